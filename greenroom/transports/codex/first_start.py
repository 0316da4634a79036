"""One server at a time makes a home's databases: 0.163 makes them without a lock, and one that starts meanwhile ends with an error.

Within a room the supervisor sees to it (`first_key`); between rooms and programs a lock on a file in the home does, held from before the
first server starts until it has answered its handshake, or has ended. The kernel gives it back if the program dies. Starter thread; waits
only for a home without databases, and not for long: then the start is tried as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 10.0
LOOK_S = 0.05
NAME = "greenroom-first-start.lock"

# Homes in which a start has been over in this program: their databases are there, or are kept elsewhere.
_BEGUN: set[Path] = set()


def take(home: Path, patience_s: float = PATIENCE_S) -> Callable[[], None] | None:
    """Take the lock of a home without databases, and return what gives it back (any thread, as often as wanted). None: none is needed."""
    if home in _BEGUN or _has_databases(home) or not home.is_dir():
        return None
    try:
        fd = os.open(home / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    if _locked(fd, patience_s) and not (home in _BEGUN or _has_databases(home)):
        return _Release(fd, home / NAME)
    os.close(fd)
    return None


def _has_databases(home: Path) -> bool:
    return any(home.glob("state_*.sqlite"))


def _locked(fd: int, patience_s: float) -> bool:
    never = threading.Event()
    for _ in range(max(1, round(patience_s / LOOK_S))):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            never.wait(LOOK_S)
        except OSError:  # a file system without locks
            return False
        else:
            return True
    return False


class _Release:
    """Gives the lock back, once; at the latest when nobody knows it any more."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd: int | None = fd
        self._path = path
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            _BEGUN.add(self._path.parent)
            # Whoever waits has it open, and finds the databases there; whoever comes later does not look for it.
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(fd)

    def __del__(self) -> None:
        self()
