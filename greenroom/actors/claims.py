"""Which session of this process holds which conversation: never two live writers on one. One registry for all rooms; any thread."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from greenroom.errors import SessionStateError

Key = tuple[Hashable, ...]


class Claims:
    """Conversation keys and their owners (session ids)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[Key, str] = {}

    def take(self, key: Key, owner: str) -> None:
        """Claim `key` for `owner`; again is harmless. Raises SessionStateError when another session holds it."""
        with self._lock:
            holder = self._owners.setdefault(key, owner)
        if holder != owner:
            raise SessionStateError(f"conversation {key[-1]!r} is held by session {holder!r}; one conversation has one session")

    def drop(self, owner: str) -> None:
        """Give up every claim of `owner`."""
        with self._lock:
            for key in [key for key, holder in self._owners.items() if holder == owner]:
                del self._owners[key]

    def give_back(self, key: Key, owner: str) -> None:
        """Give up one claim, if it is `owner`'s."""
        with self._lock:
            if self._owners.get(key) == owner:
                del self._owners[key]

    def clear(self) -> None:
        """Forget all, in a forked child."""
        self._lock = threading.Lock()
        self._owners.clear()

    def __len__(self) -> int:
        return len(self._owners)


CLAIMS = Claims()
