"""The journal: what must survive the host's death, in one SQLite file. Plain and synchronous; decides nothing about the work.

One owner calls it, from one thread at a time; it has no thread of its own and may block for a disk. Records are put into a transaction
that the owner begins and commits: how many share one commit is the owner's affair. Once `commit` has returned, they survive the death
of this process (`sync="process"`) or a power cut (`sync="full"`). When something fails, the transaction is lost as a whole and the
journal closes itself (`healthy` is False): everything raises StoreFailedError until `try_heal` returns True. A commit that raised may,
seldom, turn out to be there after all (its last step failed): therefore the owner repeats it, and every record may be put twice.
"""

from __future__ import annotations

import os
import pathlib
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Protocol, Self

from greenroom.errors import JournalError, StateDirError, StoreFailedError
from greenroom.journal import files
from greenroom.journal.codec import STANDARD, Codec
from greenroom.journal.directory import JOURNAL_NAME, DirectoryLock, prepare
from greenroom.journal.files import Sync
from greenroom.journal.records import Record, Trimmed
from greenroom.journal.retention import Retention, trim
from greenroom.journal.tables import Column, Writer
from greenroom.model import StateDirProblem, StoreFault

_PROBE_BYTES = 64 * 1024
# What SQLite says of one record, and not of the file.
_BAD_RECORD = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError)


class _Dependent(Protocol):
    def disconnect(self) -> None: ...


class Journal:
    """An open journal. Make one with `open`; close it, or leave its `with` block."""

    def __init__(
        self,
        directory: pathlib.Path,
        lock: DirectoryLock,
        connection: sqlite3.Connection,
        *,
        sync: Sync,
        codec: Codec,
        wall: Callable[[], float],
    ) -> None:
        self.directory = directory
        self.path = directory / JOURNAL_NAME
        self.sync: Sync = sync
        self.codec = codec
        self.fault: StoreFault | None = None
        self._lock = lock
        self._wall = wall
        self._pid = os.getpid()
        self._thread: int | None = None
        self._dependents: weakref.WeakSet[_Dependent] = weakref.WeakSet()
        self._use(connection)

    @classmethod
    def open(
        cls,
        state_dir: os.PathLike[str] | str,
        *,
        sync: Sync = "process",
        clock_wall: Callable[[], float] = time.time,
        classes: Iterable[type] = (),
    ) -> Self:
        """Open the journal in `state_dir`, which is made if it is missing, and hold it against every other opener.

        `clock_wall` stamps records (Unix time); `classes` are declared to the codec beside ours. Blocks for the check of the file.
        Raises StateDirError for a directory that is in use, another user's, exposed, read-only, damaged or of a newer version; what is
        in it is then left as it is.
        """
        directory = pathlib.Path(state_dir).expanduser().absolute()
        codec = STANDARD.extended(classes) if (classes := tuple(classes)) else STANDARD
        prepare(directory)
        lock = DirectoryLock(directory)
        try:
            connection = files.accepted(directory, sync=sync, at_s=clock_wall())
            return cls(directory, lock, connection, sync=sync, codec=codec, wall=clock_wall)
        except BaseException:
            lock.release()
            raise

    def _use(self, connection: sqlite3.Connection) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._writer = Writer(connection, self.codec)
        self._inode = self.path.stat().st_ino
        self.fault = None

    # --- writing

    @property
    def healthy(self) -> bool:
        """Whether it can be written to, as far as is known."""
        return self._connection is not None and self._pid == os.getpid()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._connection is not None and self._connection.in_transaction

    @property
    def in_transaction_here(self) -> bool:
        """Whether a transaction is open that this thread began."""
        return self.in_transaction and self._thread == threading.get_ident()

    def begin(self) -> None:
        """Open a transaction. Raises JournalError if one is open, StoreFailedError."""
        connection = self._ready()
        if connection.in_transaction:
            raise JournalError("a transaction is open already")
        with self._failing():
            connection.execute("BEGIN IMMEDIATE")
        self._thread = threading.get_ident()

    def put(self, record: Record) -> None:
        """Add a record to the open transaction, whole or not at all.

        Raises JournalError for a record that cannot be written (the transaction goes on without it), StoreFailedError.
        """
        connection = self._ready()
        if not connection.in_transaction:
            raise JournalError("no transaction is open")
        with self._failing():
            connection.execute("SAVEPOINT put")
            try:
                self._writer.write(record, self._wall())
            except Exception as error:
                if isinstance(error, (sqlite3.Error, MemoryError)) and not isinstance(error, _BAD_RECORD):
                    raise
                connection.execute("ROLLBACK TO put")
                connection.execute("RELEASE put")
                if isinstance(error, JournalError):
                    raise
                raise JournalError(f"cannot record a {type(record).__name__}: {error}") from error
            connection.execute("RELEASE put")

    def commit(self) -> None:
        """Make the transaction durable. Raises JournalError if none is open; StoreFailedError: none of it, or in doubt all, is there."""
        connection = self._ready()
        if not connection.in_transaction:
            raise JournalError("no transaction is open")
        if not self._still_there():
            raise self._fail(StoreFault.GONE, "its file was removed or replaced")
        with self._failing():
            connection.execute("COMMIT")

    def rollback(self) -> None:
        """Forget the open transaction; without one it does nothing. Raises StoreFailedError."""
        connection = self._ready()
        if connection.in_transaction:
            with self._failing():
                connection.execute("ROLLBACK")

    def _ready(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            raise self._failed(StoreFault.FORKED, "it belongs to the process that opened it, and this is a fork of that")
        if self._connection is None:
            fault = self.fault or StoreFault.CLOSED
            raise self._failed(fault, "it is closed" if fault is StoreFault.CLOSED else "it failed before and has not been healed")
        return self._connection

    def _still_there(self) -> bool:
        # SQLite would go on writing into a file that nobody can find any more.
        try:
            return self.path.stat().st_ino == self._inode and self._lock.stands()
        except OSError:
            return False

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._fail(files.fault_of(error), str(error)) from error
        except MemoryError as error:
            raise self._fail(StoreFault.OTHER, "out of memory") from error

    def _fail(self, fault: StoreFault, detail: str) -> StoreFailedError:
        """Close the connection, so that its state is known, whatever SQLite made of the failure."""
        self._disconnect()
        self.fault = fault
        return self._failed(fault, detail)

    def _failed(self, fault: StoreFault, detail: str) -> StoreFailedError:
        return StoreFailedError(fault, detail, path=str(self.path))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        with suppress(sqlite3.Error):
            connection.close()

    # --- health

    def try_heal(self) -> bool:
        """Open the journal again after a failure, and prove that it can be written to; return whether it is healthy now.

        Never raises for the store's sake. A journal that was closed, whose file was removed, or that is a fork's, is not healed.
        """
        if self.healthy:
            return True
        if self._pid != os.getpid() or self.fault is None or not self._still_there():
            return False
        connection = None
        try:
            files.judge(self.directory, self.path)
            connection = files.connect(self.path, sync=self.sync)
            _probe(connection)
        except (sqlite3.Error, OSError, StateDirError) as error:
            self.fault = _fault(error)
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()
            return False
        self._use(connection)
        return True

    def close(self) -> None:
        """Close it and let others have the directory; an open transaction is forgotten. Idempotent; in a fork it does nothing."""
        if self._pid != os.getpid():
            return
        for dependent in list(self._dependents):
            dependent.disconnect()
        self._disconnect()
        self.fault = StoreFault.CLOSED
        self._lock.release()

    def __enter__(self) -> Self:
        """Return the journal."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- reading and care

    def rows(self, sql: str, *values: Column) -> list[tuple[Any, ...]]:
        """Run a query of this package; what the open transaction holds is seen. Raises StoreFailedError."""
        connection = self._ready()
        with self._failing():
            return connection.execute(sql, values).fetchall()

    def trim(self, retention: Retention) -> Trimmed:
        """Forget old history, a bounded piece at each call (`more`: call again), in transactions of its own.

        What an unfinished ticket or an open session needs stays, and so do checkpoints. Raises JournalError while a transaction is open.
        """
        connection = self._ready()
        if connection.in_transaction:
            raise JournalError("a transaction is open")
        with self._failing():
            return trim(connection, retention, self._wall())

    def connect_beside(self, dependent: _Dependent) -> sqlite3.Connection:
        """Return another connection, for `dependent`, which is told to close it with the journal. Raises StoreFailedError."""
        self._ready()
        self._dependents.add(dependent)
        try:
            return files.connect(self.path, sync=self.sync)
        except sqlite3.Error as error:
            raise self._failed(files.fault_of(error), str(error)) from error


def _probe(connection: sqlite3.Connection) -> None:
    """Write something of some size, and take it away again: a disk that has room for one page only is not well."""
    connection.execute("INSERT OR REPLACE INTO probe VALUES (1, zeroblob(?))", (_PROBE_BYTES,))
    connection.execute("DELETE FROM probe")


def _fault(error: sqlite3.Error | OSError | StateDirError) -> StoreFault:
    if isinstance(error, sqlite3.Error):
        return files.fault_of(error)
    damaged = isinstance(error, StateDirError) and error.problem is not StateDirProblem.READ_ONLY
    return StoreFault.DAMAGED if damaged else StoreFault.IO
