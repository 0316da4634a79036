"""Which session of this process holds which conversation: never two live writers on one. One registry for all rooms; any thread."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from greenroom.errors import SessionStateError

Key = tuple[Hashable, ...]
Owner = Hashable
"""What is a session's alone: its `closed` cell. Its name is not, where there are several rooms."""


class Claims:
    """Conversation keys, their owners, and these owners' names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[Key, tuple[Owner, str]] = {}

    def take(self, key: Key, owner: Owner, name: str) -> None:
        """Claim `key` for `owner`; again is harmless. Raises SessionStateError when another session holds it."""
        with self._lock:
            holder, called = self._owners.setdefault(key, (owner, name))
        if holder != owner:
            raise SessionStateError(f"conversation {key[-1]!r} is held by session {called!r}; one conversation has one session")

    def drop(self, owner: Owner) -> None:
        """Give up every claim of `owner`."""
        with self._lock:
            for key in [key for key, (holder, _) in self._owners.items() if holder == owner]:
                del self._owners[key]

    def give_back(self, key: Key, owner: Owner) -> None:
        """Give up one claim, if it is `owner`'s."""
        with self._lock:
            if key in self._owners and self._owners[key][0] == owner:
                del self._owners[key]

    def clear(self) -> None:
        """Forget all, in a forked child."""
        self._lock = threading.Lock()
        self._owners.clear()

    def __len__(self) -> int:
        return len(self._owners)


CLAIMS = Claims()
