"""What may be forgotten? Old agent events, the inputs of sessions that are closed, whole sessions where that was asked for.

Never what an unfinished ticket or an open session needs. On the owner's thread, in bounded pieces, each a transaction of its own.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from typing import Any

import attrs

from greenroom.journal.records import Trimmed

BATCHES_PER_ROUND = 500
SESSIONS_PER_ROUND = 10
PAGES_PER_ROUND = 2000
_FOREVER_S = float("inf")

# A dead program's turn is taken up with the tool calls that were seen in it, and its session with its inputs.
_UNDECIDED = "reported = 0 AND decision IS NULL"
_CUT = f"SELECT turn_id FROM ticket WHERE attempt > 0 AND ended = 0 AND {_UNDECIDED}"  # noqa: S608 - our words
_OF_SESSION = "SELECT 1 FROM ticket WHERE ticket.session_id = session.session_id AND"


def _at_least_0(_: object, field: attrs.Attribute[Any], value: float | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{field.name} must be a number or None, got {value!r}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{field.name} must be 0 or more, got {value}")


@attrs.frozen(kw_only=True)
class Retention:
    """How long a journal remembers; None sets no bound. Seconds, bytes.

    `max_age_s`: agent events, and what leads to the state of closed sessions. `max_bytes`: while the journal is larger, the oldest of
    these goes first. `sessions_max_age_s`: sessions that were closed for so long go with all that is on record of them, their tickets,
    outcomes, keys and bills included: the same key is another turn then. Turns that are not decided upon keep their session.
    """

    max_age_s: float | None = attrs.field(default=30 * 86_400.0, validator=_at_least_0)
    max_bytes: int | None = attrs.field(default=1 << 30, validator=_at_least_0)
    sessions_max_age_s: float | None = attrs.field(default=None, validator=_at_least_0)


def trim(connection: sqlite3.Connection, retention: Retention, now_s: float) -> Trimmed:
    """Forget what is older than it may be at `now_s` (Unix time), and what is oldest while the journal is too large; a bounded piece.

    Only pages in use are counted: what was forgotten is given back to the disk in pieces too.
    """
    whole = _forget_sessions(connection, _before(now_s, retention.sessions_max_age_s))
    before_s = _before(now_s, retention.max_age_s)
    batches = _forget_events(connection, before_s)
    sessions = _forget_inputs(connection, before_s)
    excess = _bytes_used(connection) - (_FOREVER_S if retention.max_bytes is None else retention.max_bytes)
    too_large = excess > 0
    if too_large:
        sessions += _forget_inputs(connection, _FOREVER_S)
        batches += _forget_events(connection, _FOREVER_S, enough_bytes=excess) if sessions == 0 else 0
    full_round = batches >= BATCHES_PER_ROUND or max(sessions, whole) >= SESSIONS_PER_ROUND
    gave_back = _give_back(connection)
    return Trimmed(batches=batches, sessions=sessions + whole, more=full_round or (too_large and batches + sessions > 0) or gave_back)


def _before(now_s: float, max_age_s: float | None) -> float:
    return -_FOREVER_S if max_age_s is None else now_s - max_age_s


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _bytes_used(connection: sqlite3.Connection) -> int:
    return (_pragma(connection, "page_count") - _pragma(connection, "freelist_count")) * _pragma(connection, "page_size")


def _give_back(connection: sqlite3.Connection) -> bool:
    """Give free pages back to the disk; return whether there are more that can be."""
    free = _pragma(connection, "freelist_count")
    # Not `execute`, which takes one step of a statement without columns, and so gives back one page.
    connection.executescript(f"PRAGMA incremental_vacuum({PAGES_PER_ROUND})")
    return 0 < _pragma(connection, "freelist_count") < free


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
    sql = f"""SELECT seq, session, last_sequence, length(body) FROM agent_events
        WHERE at_wall_s < ? AND (turn_id IS NULL OR turn_id NOT IN ({_CUT})) ORDER BY at_wall_s, seq LIMIT ?"""  # noqa: S608 - our words
    found: list[tuple[int, int, int]] = []
    for seq, session, last_sequence, size in connection.execute(sql, (before_s, BATCHES_PER_ROUND)).fetchall():
        if enough_bytes <= 0:
            break
        found.append((seq, session, last_sequence))
        enough_bytes -= size
    return found


def _forget_inputs(connection: sqlite3.Connection, before_s: float) -> int:
    """Forget the inputs of whole sessions, those closed first: half of them would replay to a state that never was."""
    sql = f"""SELECT seq FROM session WHERE closed_at_s < ? AND inputs_gone = 0 AND NOT EXISTS ({_OF_SESSION} ended = 0 AND {_UNDECIDED})
        ORDER BY closed_at_s, seq LIMIT ?"""  # noqa: S608
    forget = (
        "DELETE FROM input WHERE session = ?",
        "DELETE FROM snapshot WHERE session = ?",
        "UPDATE session SET inputs_gone = 1 WHERE seq = ?",
    )
    return _forget(connection, sql, before_s, forget)


def _forget_sessions(connection: sqlite3.Connection, before_s: float) -> int:
    """Forget sessions with all that is on record of them."""
    if before_s == -_FOREVER_S:
        return 0
    sql = f"""SELECT seq FROM session WHERE closed_at_s < ? AND NOT EXISTS ({_OF_SESSION} {_UNDECIDED})
        ORDER BY closed_at_s, seq LIMIT ?"""  # noqa: S608
    name = "(SELECT session_id FROM session WHERE seq = ?)"
    turns = f"(SELECT turn_id FROM ticket WHERE session_id = {name})"  # noqa: S608
    forget = (
        f"DELETE FROM request WHERE turn_id IN {turns}",  # noqa: S608
        f"DELETE FROM outcome WHERE turn_id IN {turns}",  # noqa: S608
        f"DELETE FROM ticket WHERE session_id = {name}",  # noqa: S608
        f"DELETE FROM spent WHERE session_id = {name}",  # noqa: S608
        "DELETE FROM input WHERE session = ?",
        "DELETE FROM snapshot WHERE session = ?",
        "DELETE FROM agent_events WHERE session = ?",
        "DELETE FROM session WHERE seq = ?",
    )
    return _forget(connection, sql, before_s, forget)


def _forget(connection: sqlite3.Connection, sql: str, before_s: float, statements: Iterable[str]) -> int:
    connection.execute("BEGIN IMMEDIATE")
    try:
        gone = connection.execute(sql, (before_s, SESSIONS_PER_ROUND)).fetchall()
        for statement in statements:
            connection.executemany(statement, gone)
        connection.execute("COMMIT")
    except BaseException:
        _undo(connection)
        raise
    return len(gone)


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
