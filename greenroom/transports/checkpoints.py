"""Where a session's checkpoint is kept. Decides only the shape; the store of a room and of a user's own stand behind it.

Called from one thread at a time for one key (the room's store thread); a store may block, and nobody waits for it without a bound.
"""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable

from greenroom.model import Checkpoint


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps one checkpoint for each key. A call that raises is reported as a degradation; it never fails a finished turn."""

    def load(self, key: str) -> Checkpoint | None:
        """Return what was saved last under `key`, or None."""
        ...

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` under `key` in place of the one before."""

    def clear(self, key: str) -> None:
        """Forget what is kept under `key`; nothing kept is fine."""


class InMemoryCheckpointStore:
    """Keeps checkpoints as long as it lives: for sessions that come and go within one process. Safe on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, Checkpoint] = {}

    def load(self, key: str) -> Checkpoint | None:
        """Return what was saved last under `key`, or None."""
        with self._lock:
            return self._kept.get(key)

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` under `key` in place of the one before."""
        with self._lock:
            self._kept[key] = checkpoint

    def clear(self, key: str) -> None:
        """Forget what is kept under `key`; nothing kept is fine."""
        with self._lock:
            self._kept.pop(key, None)
