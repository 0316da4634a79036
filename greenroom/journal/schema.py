"""The tables, and how an older journal becomes a current one. Pure data, and one function that runs on the owner's thread.

A new journal goes through the same steps as an old one, so that every step is run every day. Steps are never changed once released;
a change is a new step. Columns are what is searched for, JSON (`codec`) is the rest. What is large and never changes (requests,
outcomes) is kept apart from what changes often, since SQLite writes a changed row whole.
"""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x6772_6A6C
"""Tells a journal from another program's database."""

_TICKETS = (
    """CREATE TABLE session (
        seq INTEGER PRIMARY KEY, session_id NOT NULL UNIQUE, opened TEXT NOT NULL, closed_at_s REAL, last_conversation)""",
    """CREATE TABLE ticket (
        seq INTEGER PRIMARY KEY, turn_id NOT NULL UNIQUE, session_id NOT NULL, key, attempt INTEGER NOT NULL DEFAULT 0, receipt, how TEXT,
        conversation_id, incarnation INTEGER NOT NULL DEFAULT 0, taken_attempt INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0,
        reported INTEGER NOT NULL DEFAULT 0, decision TEXT, at_s REAL NOT NULL)""",
    "CREATE INDEX ticket_by_key ON ticket (session_id, key) WHERE key IS NOT NULL",
    "CREATE INDEX ticket_unfinished ON ticket (seq) WHERE reported = 0 AND decision IS NULL",
    "CREATE TABLE request (turn_id PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE outcome (turn_id PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
)

_REST = (
    "CREATE TABLE checkpoint (key PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE process (pid INTEGER, start_time INTEGER, mark, body TEXT NOT NULL, PRIMARY KEY (pid, start_time, mark)) WITHOUT ROWID",
    "CREATE TABLE spent (session_id PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE probe (id INTEGER PRIMARY KEY, body BLOB)",
    "CREATE TABLE input (session INTEGER NOT NULL, n INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (session, n)) WITHOUT ROWID",
    """CREATE TABLE agent_events (
        seq INTEGER PRIMARY KEY, session INTEGER NOT NULL, first_sequence INTEGER NOT NULL, last_sequence INTEGER NOT NULL, turn_id,
        incarnation INTEGER NOT NULL, at_monotonic_s REAL NOT NULL, at_wall_s REAL NOT NULL, body TEXT NOT NULL,
        UNIQUE (session, first_sequence))""",
)

# What is older than the bounds of `trim` goes; what went is remembered, so that a reader is told of it.
_RETENTION = (
    "ALTER TABLE session ADD COLUMN trimmed_to INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE session ADD COLUMN inputs_gone INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX agent_events_by_age ON agent_events (at_wall_s)",
    "CREATE INDEX session_closed ON session (closed_at_s) WHERE closed_at_s IS NOT NULL AND inputs_gone = 0",
    """UPDATE session SET trimmed_to = coalesce(
        (SELECT min(first_sequence) - 1 FROM agent_events WHERE agent_events.session = session.seq), 0)""",
)

# A session that was stopped is not listed, and not begun again.
_DIRECTORY = ("ALTER TABLE session ADD COLUMN removed INTEGER NOT NULL DEFAULT 0",)

# What a session was after its first n inputs; those are dropped in the same step.
_SNAPSHOTS = (
    "CREATE TABLE snapshot (session INTEGER PRIMARY KEY, n INTEGER NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX ticket_by_session ON ticket (session_id)",
)

# What waits for a person; a row goes when it does so no more.
_ASKS = (
    "CREATE TABLE ask (seq INTEGER PRIMARY KEY, request_id NOT NULL UNIQUE, turn_id, body TEXT NOT NULL)",
    "CREATE INDEX ask_by_turn ON ask (turn_id)",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_TICKETS + _REST, _RETENTION, _DIRECTORY, _SNAPSHOTS, _ASKS)
"""Step number n makes version n out of version n - 1."""

CORE_TABLES = ("session", "ticket", "request", "outcome", "checkpoint", "process", "spent")
"""What recovery stands on: checked whole at every opening."""


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of the journal; 0: nothing in it yet."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'").fetchone() is None:
        return 0
    return int(connection.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, at_s: float, steps: tuple[tuple[str, ...], ...] = MIGRATIONS) -> int:
    """Bring the journal to the version of `steps`, one transaction for each step; return the version that it had.

    The connection must be in autocommit mode. Killed in between, the journal is at one of the versions on the way.
    """
    before = version_of(connection)
    for version in range(before + 1, len(steps) + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, at_s REAL NOT NULL)")
            for statement in steps[version - 1]:
                connection.execute(statement)
            connection.execute("INSERT INTO schema_version VALUES (?, ?)", (version, at_s))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return before
