"""Which rows does a record write? One function for each record; each may run twice. On the owner's thread, in its transaction."""

from __future__ import annotations

import sqlite3
from typing import Any

import attrs

from greenroom.attachments import without_content
from greenroom.errors import JournalError
from greenroom.journal import records as r
from greenroom.journal.codec import Codec
from greenroom.model import Turn
from greenroom.policy.events import Named

LARGE_REQUEST = 16_384
"""In characters: in a shorter request what is attached is no matter."""

Column = str | bytes | int | float | None


def column(text: str | None) -> str | bytes | None:
    """Return what a text is stored as: itself, or bytes where it is not Unicode (SQLite takes no lone surrogates)."""
    if text is None or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")
    return text


def text_of(stored: str | bytes | None) -> str | None:
    """Return the text that `column` stored."""
    return stored.decode(errors="surrogatepass") if isinstance(stored, bytes) else stored


class Writer:
    """Writes records through one connection."""

    def __init__(self, connection: sqlite3.Connection, codec: Codec) -> None:
        self._connection = connection
        self._codec = codec

    def write(self, record: r.Record, at_s: float) -> None:  # noqa: C901, PLR0912 - one line a case
        """Write the rows of one record. Raises JournalError for a record that names what is not there, sqlite3.Error."""
        match record:
            case r.SessionOpened():
                self._session_opened(record)
            case r.SessionClosed():
                self._session_closed(record, at_s)
            case r.TicketPrepared():
                self._prepared(record, at_s)
            case r.TicketSent():
                self._sent(record, at_s)
            case r.TicketTaken():
                self._ticket("taken_attempt = ?", (record.attempt,), record.turn_id, at_s)
            case r.TicketEnded():
                self._ended(record, at_s)
            case r.TicketReported():
                self._ticket("reported = ended" if record.unrun else "reported = 1", (), record.turn_id, at_s)
                if not record.unrun:
                    self._forget_content(record.turn_id)
            case r.TicketDecided():
                self._decided(record, at_s)
                self._close_asks(record.turn_id)
            case r.Input():
                self._input(record)
            case r.Snapshot():
                self._snapshot(record)
            case r.AgentEvents():
                self._agent_events(record)
            case r.CheckpointSaved():
                body = self._codec.encode(record.checkpoint)
                self._run("INSERT INTO checkpoint VALUES (?, ?) ON CONFLICT DO UPDATE SET body = excluded.body", column(record.key), body)
            case r.CheckpointCleared():
                self._run("DELETE FROM checkpoint WHERE key = ?", column(record.key))
            case r.ProcessStarted():
                self._process_started(record)
            case r.ProcessEnded():
                key = (record.pid, record.start_time, column(record.mark))
                self._run("DELETE FROM process WHERE pid = ? AND start_time = ? AND mark = ?", *key)
            case r.AskOpened():
                self._ask_opened(record)
            case r.AskClosed():
                self._run("DELETE FROM ask WHERE request_id = ?", column(record.request_id))
            case r.Spent():
                body = self._codec.encode((record.usage, record.booked))
                self._run("INSERT INTO spent VALUES (?, ?) ON CONFLICT DO UPDATE SET body = excluded.body", column(record.session_id), body)
            case _:
                raise JournalError(f"{type(record).__name__} is not a record")

    def _run(self, sql: str, *values: Column) -> int:
        return self._connection.execute(sql, values).rowcount

    # --- sessions

    def _session_opened(self, record: r.SessionOpened) -> None:
        sql = """INSERT INTO session (session_id, opened) VALUES (?, ?)
            ON CONFLICT (session_id) DO UPDATE SET opened = excluded.opened, closed_at_s = NULL"""
        self._run(sql, column(record.session_id), self._codec.encode(record))

    def _session_closed(self, record: r.SessionClosed, at_s: float) -> None:
        # One whose inputs were forgotten and that went on has new ones, to be forgotten in their turn.
        sql = """UPDATE session SET closed_at_s = ?, removed = ?,
            inputs_gone = inputs_gone AND NOT EXISTS (SELECT 1 FROM input WHERE input.session = session.seq) WHERE session_id = ?"""
        if self._run(sql, at_s, int(record.removed), column(record.session_id)) == 0:
            raise _unknown("session", record.session_id)

    def _converses(self, session_id: Column, conversation_id: str | None) -> None:
        if conversation_id is not None:
            sql = "UPDATE session SET last_conversation = ?1 WHERE session_id = ?2 AND last_conversation IS NOT ?1"
            self._run(sql, column(conversation_id), session_id)

    def _number(self, session_id: str) -> int:
        row = self._connection.execute("SELECT seq FROM session WHERE session_id = ?", (column(session_id),)).fetchone()
        if row is None:
            raise _unknown("session", session_id)
        return int(row[0])

    # --- tickets

    def _prepared(self, record: r.TicketPrepared, at_s: float) -> None:
        self._number(record.session_id)
        sql = """INSERT INTO ticket (turn_id, session_id, key, at_s) VALUES (?, ?, ?, ?)
            ON CONFLICT (turn_id) DO UPDATE SET decision = NULL, reported = reported AND ended, at_s = excluded.at_s"""
        turn_id = column(record.turn_id)
        self._run(sql, turn_id, column(record.session_id), column(record.key), at_s)
        # A request whose content was forgotten is whole again when its turn is prepared again.
        sql = "INSERT INTO request VALUES (?, ?) ON CONFLICT DO UPDATE SET body = excluded.body WHERE length(excluded.body) > length(body)"
        self._run(sql, turn_id, self._codec.encode(record))

    def _decided(self, record: r.TicketDecided, at_s: float) -> None:
        self._ticket("decision = ?", (record.decision.name,), record.turn_id, at_s)
        if record.decision is r.Decision.DISCARD:
            self._forget_content(record.turn_id)

    def _forget_content(self, turn_id: str) -> None:
        """Nobody will send this request from here any more: forget what was attached to it, which may be megabytes."""
        sql = "SELECT body FROM request WHERE turn_id = ? AND length(body) > ?"
        row = self._connection.execute(sql, (column(turn_id), LARGE_REQUEST)).fetchone()
        prepared = self._codec.decode(row[0]) if row is not None else None
        if isinstance(prepared, r.TicketPrepared) and prepared.request.attachments:
            body = self._codec.encode(attrs.evolve(prepared, request=without_content(prepared.request)))
            self._run("UPDATE request SET body = ? WHERE turn_id = ?", body, column(turn_id))

    def _sent(self, record: r.TicketSent, at_s: float) -> None:
        sets = "attempt = ?, receipt = ?, how = ?, conversation_id = coalesce(?, conversation_id), incarnation = ?, decision = NULL"
        values = (record.attempt, column(record.receipt), record.how.name, column(record.conversation_id), record.incarnation)
        self._ticket(sets, values, record.turn_id, at_s)
        self._converses(self._session_of(record.turn_id), record.conversation_id)

    def _ended(self, record: r.TicketEnded, at_s: float) -> None:
        conversation_id = record.outcome.conversation_id if isinstance(record.outcome, Turn) else None
        sets = "ended = 1, conversation_id = CASE ended WHEN 0 THEN coalesce(?, conversation_id) ELSE conversation_id END"
        self._ticket(sets, (column(conversation_id),), record.turn_id, at_s)
        self._close_asks(record.turn_id)
        body = self._codec.encode(record.outcome)
        if self._run("INSERT INTO outcome VALUES (?, ?) ON CONFLICT DO NOTHING", column(record.turn_id), body):
            self._converses(self._session_of(record.turn_id), conversation_id)

    def _ticket(self, sets: str, values: tuple[Column, ...], turn_id: str, at_s: float) -> None:
        if self._run(f"UPDATE ticket SET {sets}, at_s = ? WHERE turn_id = ?", *values, at_s, column(turn_id)) == 0:  # noqa: S608 - our words
            raise _unknown("ticket", turn_id)

    def _session_of(self, turn_id: str) -> Any:
        return self._connection.execute("SELECT session_id FROM ticket WHERE turn_id = ?", (column(turn_id),)).fetchone()[0]

    # --- what waits for a person

    def _ask_opened(self, record: r.AskOpened) -> None:
        sql = "INSERT INTO ask (request_id, turn_id, body) VALUES (?, ?, ?) ON CONFLICT (request_id) DO NOTHING"
        pending = record.pending
        self._run(sql, column(pending.request_id), column(pending.turn_id), self._codec.encode(pending))

    def _close_asks(self, turn_id: str) -> None:
        self._run("DELETE FROM ask WHERE turn_id = ?", column(turn_id))

    # --- histories

    def _input(self, record: r.Input) -> None:
        session = self._number(record.session_id)
        body = self._codec.encode(record.event)
        self._run("INSERT INTO input VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body", session, record.n, body)
        if isinstance(record.event, Named):
            self._converses(column(record.session_id), record.event.conversation_id)

    def _snapshot(self, record: r.Snapshot) -> None:
        """Keep the state and drop the inputs that gave it, both or neither: the owner's transaction is all or nothing."""
        session, body = self._number(record.session_id), self._codec.encode(record.state)
        if self._codec.encode(self._codec.decode(body)) != body:
            raise JournalError(f"the state of session {record.session_id!r} would not be read back as it is; its inputs are kept")
        sql = "INSERT INTO snapshot VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = excluded.n, body = excluded.body WHERE excluded.n > n"
        if self._run(sql, session, record.n, body):
            self._run("DELETE FROM input WHERE session = ? AND n <= ?", session, record.n)

    def _agent_events(self, record: r.AgentEvents) -> None:
        if not record.events:
            return
        sql = """INSERT INTO agent_events
            (session, first_sequence, last_sequence, turn_id, incarnation, at_monotonic_s, at_wall_s, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT DO NOTHING"""
        self._run(
            sql,
            self._number(record.session_id),
            record.first_sequence,
            record.last_sequence,
            column(record.turn_id),
            record.incarnation,
            record.at_monotonic_s,
            record.at_wall_s,
            self._codec.encode(record.events),
        )

    def _process_started(self, record: r.ProcessStarted) -> None:
        sql = "INSERT INTO process VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body"
        self._run(sql, record.pid, record.start_time, column(record.mark), self._codec.encode(record))


def _unknown(what: str, name: str) -> JournalError:
    return JournalError(f"no {what} {name!r} is recorded")
