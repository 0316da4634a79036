"""Where checkpoints live between runs of a program: the port, and the store that forgets with the process."""

from __future__ import annotations

import threading
from typing import Protocol

from greenroom.model import Checkpoint


class CheckpointStore(Protocol):
    """Keeps one checkpoint a key. Called on the store's thread (`save`, `clear`) and on callers' threads (`load`); may block."""

    def load(self, key: str) -> Checkpoint | None:
        """Return the checkpoint saved under `key`, or None."""
        ...

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        """Put `checkpoint` in place of what was there."""

    def clear(self, key: str) -> None:
        """Forget `key`; harmless when there is nothing."""


class InMemoryCheckpointStore:
    """A store that lives as long as the process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checkpoints: dict[str, Checkpoint] = {}

    def load(self, key: str) -> Checkpoint | None:
        """Return the checkpoint saved under `key`, or None."""
        with self._lock:
            return self._checkpoints.get(key)

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        """Put `checkpoint` in place of what was there."""
        with self._lock:
            self._checkpoints[key] = checkpoint

    def clear(self, key: str) -> None:
        """Forget `key`; harmless when there is nothing."""
        with self._lock:
            self._checkpoints.pop(key, None)
