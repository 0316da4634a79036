"""Whose is the state directory? Makes it, refuses one that is not ours alone, and holds it for one host at a time.

The lock is `flock` on a file that is never removed: it ends with its owner, however that ends, it holds against a second opener in this
process too, and nobody loses it by opening and closing the file (as POSIX record locks would be lost). A forked child would inherit it,
so the child closes its copy at once. Any thread, blocking for a few system calls.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pathlib
import select
import socket
import stat
import weakref
from contextlib import suppress

from greenroom.errors import StateDirError
from greenroom.model import StateDirProblem

LOCK_NAME = "lock"
JOURNAL_NAME = "journal.db"
_MAX_OWNER_BYTES = 4096
_ORPHANED_TRIES = 100
_ORPHANED_PAUSE_S = 0.02
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}


def refused(path: pathlib.Path, problem: StateDirProblem, why: str, *, hint: str | None = None) -> StateDirError:
    """Return the error that refuses the state directory."""
    return StateDirError(str(path), problem, why, hint=hint)


def unusable(path: pathlib.Path, error: OSError) -> StateDirError:
    """Return the error for what the machine refused."""
    why = f"{error.strerror or error} ({error.filename})" if error.filename else str(error.strerror or error)
    if error.errno in _REFUSED:
        return refused(path, StateDirProblem.READ_ONLY, why, hint="give a directory that can be written, or remount the disk for writing")
    return refused(path, StateDirProblem.UNUSABLE, why)


def prepare(path: pathlib.Path) -> None:
    """Make the directory, mode 0700, with its parents, or check the one that is there. Raises StateDirError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _made(path):
            path.chmod(0o700)
            return
        _check(path, path.stat())
    except OSError as error:
        raise unusable(path, error) from error


def _made(path: pathlib.Path) -> bool:
    # The mode is passed too, so that nobody can look in before the umask is made good.
    try:
        path.mkdir(0o700)
    except FileExistsError:
        return False
    return True


def _check(path: pathlib.Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise refused(path, StateDirProblem.UNUSABLE, "it is not a directory")
    check_owner(path, found)
    if found.st_mode & 0o077 and _is_ours_alone(path):
        path.chmod(0o700)
    elif found.st_mode & 0o022:
        raise refused(path, StateDirProblem.EXPOSED, "others may write to it", hint=f"chmod go-w {path}, or give another directory")


def check_owner(path: pathlib.Path, found: os.stat_result) -> None:
    """Raise StateDirError for what belongs to another user, or is a link or a device in place of a file."""
    if found.st_uid != os.geteuid():
        why = f"it belongs to user {found.st_uid}, and this is user {os.geteuid()}"
        raise refused(path, StateDirProblem.OTHER_USER, why, hint="give a directory of your own")


def _is_ours_alone(path: pathlib.Path) -> bool:
    """Whether nothing but a journal is in it: a directory that somebody uses for other things keeps its mode."""
    names = {entry.name for entry in os.scandir(path)}
    return not names or LOCK_NAME in names or JOURNAL_NAME in names


class DirectoryLock:
    """Holds a state directory until `release`, or until the process ends. Not for a forked child, which has closed it."""

    def __init__(self, directory: pathlib.Path) -> None:
        """Raise StateDirError (IN_USE) while another opener holds it."""
        self._path = directory / LOCK_NAME
        self._fd = -1
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._take(directory)
        except StateDirError:
            self.release()
            raise
        except OSError as error:
            self.release()
            raise unusable(directory, error) from error
        _HELD.add(self)

    def _take(self, directory: pathlib.Path) -> None:
        found = os.fstat(self._fd)
        check_owner(directory, found)
        for _ in range(_ORPHANED_TRIES):
            if self._taken():
                break
            if not self._owner_is_dead():
                raise self._held_by_another(directory)
            # What was being forked when its owner died has the descriptor until it becomes another program.
            select.select((), (), (), _ORPHANED_PAUSE_S)
        else:
            raise self._held_by_another(directory)
        os.fchmod(self._fd, 0o600)
        # On a full disk the lock holds all the same, without a name.
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _owner(self) -> tuple[int, str]:
        owner = json.loads(os.pread(self._fd, _MAX_OWNER_BYTES, 0))
        return int(owner["pid"]), str(owner["host"])

    def _owner_is_dead(self) -> bool:
        try:
            pid, host = self._owner()
            if host == socket.gethostname():
                os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError, TypeError, LookupError):
            return False
        return False

    def _held_by_another(self, directory: pathlib.Path) -> StateDirError:
        try:
            pid, host = self._owner()
            who = f"process {pid} on host {host!r}"
        except (OSError, ValueError, TypeError, LookupError):
            who = "another process"
        return refused(directory, StateDirProblem.IN_USE, f"{who} holds it", hint="end that process, or give another directory")

    def stands(self) -> bool:
        """Whether the file by which others would find the lock is still the one that is held."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.lstat())
        except OSError:
            return False

    def release(self) -> None:
        """Let others have it. Idempotent."""
        _HELD.discard(self)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The parent's death must free the directory, although this child lives.
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_after_fork_in_child)
