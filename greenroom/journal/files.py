"""How is the journal's file made, judged and connected to? Never changes a file that it does not accept.

A new journal is made under another name and renamed when it is whole. One that is there is looked at through a read-only connection
first, which cannot even move its write-ahead log; only what is accepted is opened for writing. Runs on the opener's thread, blocking.
"""

from __future__ import annotations

import os
import pathlib
import sqlite3
import stat
from contextlib import closing, suppress
from typing import Literal
from urllib.parse import quote

from greenroom.errors import StateDirError
from greenroom.journal.directory import JOURNAL_NAME, check_owner, refused, unusable
from greenroom.journal.schema import APPLICATION_ID, CORE_TABLES, MIGRATIONS, migrate, version_of
from greenroom.model import StateDirProblem, StoreFault

Sync = Literal["process", "full"]

# NORMAL: a commit is in the kernel's hands, where no death of this process reaches it, and costs no fsync; only moving the log into the
# database does. OFF would save that one too, and could leave a damaged file after a power cut, where NORMAL loses the latest commits.
_SYNCHRONOUS = {"process": "NORMAL", "full": "FULL"}
BUSY_TIMEOUT_S = 2.0
FULL_CHECK_BYTES = 64 * 1024 * 1024
"""Up to this size the whole file is checked when it is opened; beyond it the history (agent events, inputs) is not."""
_LOG_LIMIT_BYTES = 16 * 1024 * 1024
_SUFFIXES = ("", "-wal", "-shm", "-journal")
_MAGIC = b"SQLite format 3\0"

_FAULTS = {
    sqlite3.SQLITE_FULL: StoreFault.FULL,
    sqlite3.SQLITE_IOERR: StoreFault.IO,
    sqlite3.SQLITE_CANTOPEN: StoreFault.IO,
    sqlite3.SQLITE_BUSY: StoreFault.BUSY,
    sqlite3.SQLITE_LOCKED: StoreFault.BUSY,
    sqlite3.SQLITE_READONLY: StoreFault.READ_ONLY,
    sqlite3.SQLITE_PERM: StoreFault.READ_ONLY,
    sqlite3.SQLITE_CORRUPT: StoreFault.DAMAGED,
    sqlite3.SQLITE_NOTADB: StoreFault.DAMAGED,
}
_PROBLEMS = {StoreFault.READ_ONLY: StateDirProblem.READ_ONLY, StoreFault.DAMAGED: StateDirProblem.DAMAGED}
_DAMAGED_HINT = "move it away to begin anew, or bring back a copy; `sqlite3 journal.db .recover` may save what is left"


def fault_of(error: sqlite3.Error) -> StoreFault:
    """Say what kind of failure it is; the low byte of SQLite's code is the kind, the rest the detail."""
    code = getattr(error, "sqlite_errorcode", None)
    return StoreFault.OTHER if code is None else _FAULTS.get(code & 0xFF, StoreFault.OTHER)


def connect(path: pathlib.Path, *, sync: Sync) -> sqlite3.Connection:
    """Open an accepted journal for writing, in autocommit mode. May be used by any thread, by one at a time."""
    connection = sqlite3.connect(_uri(path, "rw"), uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S)
    try:
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[sync]}")
        connection.execute(f"PRAGMA fullfsync = {int(sync == 'full')}")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}")
        connection.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def _uri(path: pathlib.Path, mode: str) -> str:
    return f"file:{quote(os.fsencode(path))}?mode={mode}"


def accepted(directory: pathlib.Path, *, sync: Sync, at_s: float) -> sqlite3.Connection:
    """Return a connection to the directory's journal, made or brought up to date if need be. The caller holds the directory.

    Raises StateDirError.
    """
    path = directory / JOURNAL_NAME
    connection = None
    try:
        if not os.path.lexists(path):
            _make(path, at_s, sync=sync)
        _judge_file(directory, path)
        judge(directory, path)
        connection = connect(path, sync=sync)
        migrate(connection, at_s)
    except sqlite3.Error as error:
        _close(connection)
        raise _refused(directory, error) from error
    except OSError as error:
        _close(connection)
        raise unusable(directory, error) from error
    return connection


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with suppress(sqlite3.Error):
            connection.close()


def _refused(directory: pathlib.Path, error: sqlite3.Error) -> StateDirError:
    fault = fault_of(error)
    hint = _DAMAGED_HINT if fault is StoreFault.DAMAGED else None
    problem = _PROBLEMS.get(fault, StateDirProblem.UNUSABLE)
    return refused(directory, problem, f"{JOURNAL_NAME}: {error} ({fault.value})", hint=hint)


# --- making


def _make(path: pathlib.Path, at_s: float, *, sync: Sync) -> None:
    """Make a journal in one step: whoever dies in between leaves none, and what is left over of it is cleared away."""
    new = path.with_name(path.name + ".new")
    for suffix in _SUFFIXES:
        pathlib.Path(f"{new}{suffix}").unlink(missing_ok=True)
    _make_empty(new)
    with closing(sqlite3.connect(_uri(new, "rw"), uri=True, isolation_level=None)) as connection:
        # One flush at the end does for all; without it the name could outlive the contents in a power cut.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection, at_s)
    _flush(new)
    new.rename(path)
    if sync == "full":
        _flush(path.parent)


def _make_empty(path: pathlib.Path) -> None:
    # SQLite gives the log the mode of the database, whatever the umask says.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def _flush(path: pathlib.Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- judging


def _judge_file(directory: pathlib.Path, path: pathlib.Path) -> None:
    """Look at the file itself. Only before a connection is open: closing any descriptor of it would drop SQLite's locks."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise refused(directory, StateDirProblem.FOREIGN, f"{JOURNAL_NAME} is not a plain file")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        check_owner(directory, os.fstat(fd))
        head = os.pread(fd, len(_MAGIC), 0)
    finally:
        os.close(fd)
    if head != _MAGIC:
        raise refused(directory, StateDirProblem.DAMAGED, f"{JOURNAL_NAME} does not begin like a database", hint=_DAMAGED_HINT)


def judge(directory: pathlib.Path, path: pathlib.Path) -> None:
    """Raise StateDirError (or sqlite3.Error) for a file that is not a sound journal of a version that we know."""
    with closing(sqlite3.connect(_uri(path, "ro"), uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)) as connection:
        _judge_kind(directory, connection)
        whole = path.stat().st_size <= FULL_CHECK_BYTES
        for name in ("",) if whole else tuple(f"('{table}')" for table in CORE_TABLES):
            verdict = connection.execute(f"PRAGMA quick_check{name}").fetchone()[0]
            if verdict != "ok":
                raise refused(directory, StateDirProblem.DAMAGED, f"{JOURNAL_NAME}: {' '.join(verdict.split())}", hint=_DAMAGED_HINT)


def _judge_kind(directory: pathlib.Path, connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise refused(directory, StateDirProblem.FOREIGN, f"{JOURNAL_NAME} is another program's database", hint="give another directory")
    version, known = version_of(connection), len(MIGRATIONS)
    if version > known:
        why = f"{JOURNAL_NAME} is of version {version}, and this program knows up to version {known}"
        raise refused(directory, StateDirProblem.NEWER_VERSION, why, hint="use a newer greenroom, or give another directory")
    if version == 0:
        raise refused(directory, StateDirProblem.DAMAGED, f"{JOURNAL_NAME} has no tables", hint=_DAMAGED_HINT)
