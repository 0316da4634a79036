"""Checkpoints in the journal, for whoever wants a `CheckpointStore`. Safe on any thread; each call is durable when it returns.

It has a connection of its own, so that a reader on a caller's thread never waits for the owner's open transaction, and a writer at most
`files.BUSY_TIMEOUT_S`. On the thread on which the journal's owner has a transaction open, a write joins that transaction instead (it
would wait for itself): it is durable when that is committed.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress

from greenroom.errors import JournalError, StoreFailedError
from greenroom.journal import files
from greenroom.journal.database import Journal
from greenroom.journal.records import CheckpointCleared, CheckpointSaved
from greenroom.journal.tables import Writer, column
from greenroom.model import Checkpoint, StoreFault


class JournalCheckpointStore:
    """Keeps one checkpoint for each key in the journal. Every method raises StoreFailedError; the next call tries again."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None

    def load(self, key: str) -> Checkpoint | None:
        """Return what was saved last under `key`, or None. Raises JournalError for a checkpoint that cannot be read."""
        with self._lock:
            try:
                row = self._ready().execute("SELECT body FROM checkpoint WHERE key = ?", (column(key),)).fetchone()
            except sqlite3.Error as error:
                raise self._failed(error) from error
        checkpoint = None if row is None else self._journal.codec.decode(row[0])
        if not isinstance(checkpoint, Checkpoint | None):
            raise JournalError(f"under {key!r} a {type(checkpoint).__name__} is kept")
        return checkpoint

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` under `key` in place of the one before. Raises JournalError for one that cannot be written."""
        self._write(CheckpointSaved(key=key, checkpoint=checkpoint))

    def clear(self, key: str) -> None:
        """Forget what is kept under `key`; nothing kept is fine."""
        self._write(CheckpointCleared(key=key))

    def _write(self, record: CheckpointSaved | CheckpointCleared) -> None:
        if self._journal.in_transaction_here:
            self._journal.put(record)
            return
        with self._lock:
            try:
                # One statement in autocommit mode: a transaction of its own.
                Writer(self._ready(), self._journal.codec).write(record, 0.0)
            except sqlite3.Error as error:
                raise self._failed(error) from error

    def _ready(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            raise StoreFailedError(StoreFault.FORKED, "it belongs to the process that opened it", path=str(self._journal.path))
        if self._connection is None:
            self._connection = self._journal.connect_beside(self)
        return self._connection

    def _failed(self, error: sqlite3.Error) -> StoreFailedError:
        self._close()
        return StoreFailedError(files.fault_of(error), str(error), path=str(self._journal.path))

    def disconnect(self) -> None:
        """Close the connection; the next call opens another, unless the journal is closed."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
