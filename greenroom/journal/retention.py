"""What may be forgotten? Old agent events, and the inputs of sessions that are closed; never a ticket. On the owner's thread."""

from __future__ import annotations

import sqlite3

from greenroom.journal.records import Trimmed

BATCHES_PER_ROUND = 500
SESSIONS_PER_ROUND = 10
PAGES_PER_ROUND = 2000
_FOREVER_S = float("inf")


def trim(connection: sqlite3.Connection, *, before_s: float, max_bytes: int) -> Trimmed:
    """Forget what is older than `before_s` (Unix time), and what is oldest while the journal is too large; a bounded piece.

    Only pages in use are counted: what was forgotten is given back to the disk in pieces too.
    """
    batches = _forget_events(connection, before_s)
    sessions = _forget_inputs(connection, before_s)
    excess = _bytes_used(connection) - max_bytes
    too_large = excess > 0
    if too_large:
        sessions += _forget_inputs(connection, _FOREVER_S)
        batches += _forget_events(connection, _FOREVER_S, enough_bytes=excess) if sessions == 0 else 0
    # Not `execute`, which takes one step of a statement without columns, and so gives back one page.
    connection.executescript(f"PRAGMA incremental_vacuum({PAGES_PER_ROUND})")
    full_round = batches >= BATCHES_PER_ROUND or sessions >= SESSIONS_PER_ROUND
    return Trimmed(batches=batches, sessions=sessions, more=full_round or (too_large and batches + sessions > 0))


def _bytes_used(connection: sqlite3.Connection) -> int:
    pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size"))
    return int((pages - free) * size)


def _forget_events(connection: sqlite3.Connection, before_s: float, *, enough_bytes: float = _FOREVER_S) -> int:
    """Forget the oldest batches, and note for each session how far: a reader is told of the gap."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        gone = _oldest(connection, before_s, enough_bytes)
        connection.executemany("DELETE FROM agent_events WHERE seq = ?", [(seq,) for seq, _, _ in gone])
        marks: dict[int, int] = {}
        for _, session, last in gone:
            marks[session] = max(last, marks.get(session, 0))
        sql = "UPDATE session SET trimmed_to = max(trimmed_to, ?) WHERE seq = ?"
        connection.executemany(sql, [(last, session) for session, last in marks.items()])
        connection.execute("COMMIT")
    except BaseException:
        _undo(connection)
        raise
    return len(gone)


def _oldest(connection: sqlite3.Connection, before_s: float, enough_bytes: float) -> list[tuple[int, int, int]]:
    """Return (seq, session, last_sequence) of the oldest batches, until they make up `enough_bytes`."""
    sql = "SELECT seq, session, last_sequence, length(body) FROM agent_events WHERE at_wall_s < ? ORDER BY at_wall_s, seq LIMIT ?"
    found: list[tuple[int, int, int]] = []
    for seq, session, last_sequence, size in connection.execute(sql, (before_s, BATCHES_PER_ROUND)).fetchall():
        if enough_bytes <= 0:
            break
        found.append((seq, session, last_sequence))
        enough_bytes -= size
    return found


def _forget_inputs(connection: sqlite3.Connection, before_s: float) -> int:
    """Forget the inputs of whole sessions, those closed first: half of them would replay to a state that never was."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        sql = "SELECT seq FROM session WHERE closed_at_s < ? AND inputs_gone = 0 ORDER BY closed_at_s, seq LIMIT ?"
        gone = connection.execute(sql, (before_s, SESSIONS_PER_ROUND)).fetchall()
        connection.executemany("DELETE FROM input WHERE session = ?", gone)
        connection.executemany("DELETE FROM snapshot WHERE session = ?", gone)
        connection.executemany("UPDATE session SET inputs_gone = 1 WHERE seq = ?", gone)
        connection.execute("COMMIT")
    except BaseException:
        _undo(connection)
        raise
    return len(gone)


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
