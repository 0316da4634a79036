"""What did the dead host leave? Reads the journal, on the owner's thread; changes nothing, so that asking twice gives the same answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from greenroom.asks import Pending, PendingApproval, PendingQuestion
from greenroom.errors import GreenroomError, JournalError
from greenroom.events import ToolCall
from greenroom.journal.database import Journal
from greenroom.journal.records import (
    AgentEvents,
    Decision,
    EventHistory,
    Gap,
    InputHistory,
    ProcessStarted,
    RecoveredSession,
    RecoveredTicket,
    SessionOpened,
    Spent,
    TicketPrepared,
    Verdict,
)
from greenroom.journal.tables import column, text_of
from greenroom.model import Checkpoint, Turn
from greenroom.policy.commands import How
from greenroom.policy.events import SessionInput
from greenroom.policy.state import State

_TICKET = """SELECT request.body, ticket.attempt, ticket.receipt, ticket.how, ticket.conversation_id, ticket.incarnation,
    ticket.taken_attempt, outcome.body, ticket.reported, ticket.decision, ticket.at_s
    FROM ticket JOIN request USING (turn_id) LEFT JOIN outcome USING (turn_id)"""
_SESSION = "SELECT opened, closed_at_s, last_conversation, removed FROM session"
_EVENTS = """SELECT turn_id, first_sequence, incarnation, at_monotonic_s, at_wall_s, body FROM agent_events
    WHERE session = ?1 AND last_sequence > ?2
        AND first_sequence >= coalesce((SELECT max(first_sequence) FROM agent_events WHERE session = ?1 AND first_sequence <= ?2 + 1), 0)
    ORDER BY first_sequence LIMIT ?3"""

_PAGE_BATCHES = 500


class Recovery:
    """The reading side of an open journal. Every method raises StoreFailedError, and JournalError for a row that cannot be read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    # --- tickets

    def unfinished(self) -> tuple[RecoveredTicket, ...]:
        """Return the tickets whose outcome was not reported and about which nothing was decided, in the order of their preparation."""
        rows = self._journal.rows(f"{_TICKET} WHERE ticket.reported = 0 AND ticket.decision IS NULL ORDER BY ticket.seq")
        return tuple(self._ticket(row) for row in rows)

    def ticket(self, turn_id: str) -> RecoveredTicket | None:
        """Return the ticket, or None."""
        rows = self._journal.rows(f"{_TICKET} WHERE ticket.turn_id = ?", column(turn_id))
        return self._ticket(rows[0]) if rows else None

    def find_key(self, session_id: str, key: str) -> RecoveredTicket | None:
        """Return the session's latest ticket that was prepared under the caller's `key`, or None."""
        sql = f"{_TICKET} WHERE ticket.session_id = ? AND ticket.key = ? ORDER BY ticket.seq DESC LIMIT 1"
        rows = self._journal.rows(sql, column(session_id), column(key))
        return self._ticket(rows[0]) if rows else None

    def outcome(self, turn_id: str) -> Turn | GreenroomError | None:
        """Return how the ticket ended; None: it has not, or there is none of that name."""
        rows = self._journal.rows("SELECT body FROM outcome WHERE turn_id = ?", column(turn_id))
        outcome: Turn | GreenroomError | None = self._one(rows, (Turn, GreenroomError))
        return outcome

    def _ticket(self, row: tuple[Any, ...]) -> RecoveredTicket:
        body, attempt, receipt, how, conversation_id, incarnation, taken_attempt, ending, reported, decision, at_s = row
        prepared = self._value(body, TicketPrepared)
        open_ = not reported and decision is None
        return RecoveredTicket(
            turn_id=prepared.turn_id,
            session_id=prepared.session_id,
            verdict=_verdict(attempt, ended=ending is not None) if open_ else None,
            nonce=prepared.nonce,
            request=prepared.request,
            request_hash=prepared.request_hash,
            key=prepared.key,
            expected_conversation=prepared.expected_conversation,
            strict=prepared.strict,
            pinned=prepared.pinned,
            attempt=attempt,
            receipt=text_of(receipt),
            how=None if how is None else How[how],
            conversation_id=text_of(conversation_id),
            incarnation=incarnation,
            taken=attempt > 0 and taken_attempt >= attempt,
            outcome=None if ending is None else self._value(ending, (Turn, GreenroomError)),
            reported=bool(reported),
            decision=None if decision is None else Decision[decision],
            at_s=at_s,
        )

    # --- what waited for a person

    def open_asks(self) -> tuple[Pending, ...]:
        """Return the requests that nobody had answered when their host died, in the order in which they came."""
        rows = self._journal.rows("SELECT body FROM ask ORDER BY seq")
        return tuple(self._value(body, (PendingApproval, PendingQuestion)) for (body,) in rows)

    # --- sessions

    def sessions(self) -> tuple[RecoveredSession, ...]:
        """Return every session, closed ones too, in the order in which they were opened."""
        return tuple(self._session(row) for row in self._journal.rows(f"{_SESSION} ORDER BY seq"))

    def session(self, session_id: str) -> RecoveredSession | None:
        """Return the session, or None."""
        rows = self._journal.rows(f"{_SESSION} WHERE session_id = ?", column(session_id))
        return self._session(rows[0]) if rows else None

    def last_conversation(self, session_id: str) -> str | None:
        """Return the last conversation that the session is known to have been in; whether it is held still, the replayed state says."""
        found = self.session(session_id)
        return found.last_conversation_id if found else None

    def _session(self, row: tuple[Any, ...]) -> RecoveredSession:
        opened, closed_at_s, conversation_id, removed = row
        return RecoveredSession(
            opened=self._value(opened, SessionOpened),
            closed_at_s=closed_at_s,
            last_conversation_id=text_of(conversation_id),
            removed=bool(removed),
        )

    def progress(self, session_id: str) -> tuple[int, int]:
        """Return the numbers of the session's last input and of its last agent event, as far as they were recorded."""
        sql = """SELECT max(
                coalesce((SELECT max(n) FROM input WHERE session = session.seq), 0),
                coalesce((SELECT n FROM snapshot WHERE session = session.seq), 0)),
            max(trimmed_to, coalesce((SELECT max(last_sequence) FROM agent_events WHERE session = session.seq), 0))
            FROM session WHERE session_id = ?"""
        rows = self._journal.rows(sql, column(session_id))
        return (rows[0][0], rows[0][1]) if rows else (0, 0)

    # --- histories

    def history(self, session_id: str) -> InputHistory | None:
        """Return what gives the session's state; None: it was forgotten after the session was closed.

        Raises JournalError when an input is missing: what follows it would replay to a state that never was.
        """
        name = column(session_id)
        kept = self._journal.rows("SELECT n, body FROM snapshot JOIN session ON seq = session WHERE session_id = ?", name)
        covered, body = kept[0] if kept else (0, None)
        sql = "SELECT n, body FROM input JOIN session ON seq = session WHERE session_id = ? AND n > ? ORDER BY n"
        rows = self._journal.rows(sql, name, covered)
        if not rows and not kept:
            gone = self._journal.rows("SELECT 1 FROM session WHERE session_id = ? AND inputs_gone = 1", name)
            return None if gone else InputHistory(state=None, inputs=())
        if rows and (rows[0][0] != covered + 1 or rows[-1][0] - covered != len(rows)):
            raise JournalError(f"an input of session {session_id!r} is missing among the {len(rows)} recorded")
        state = None if body is None else self._value(body, State)
        return InputHistory(state=state, inputs=tuple(self._journal.codec.decode(body) for _, body in rows))

    def inputs(self, session_id: str) -> tuple[SessionInput, ...] | None:
        """Return the inputs of `history`."""
        found = self.history(session_id)
        return None if found is None else found.inputs

    def events(self, session_id: str, after_sequence: int = 0, *, max_batches: int = 10_000) -> EventHistory:
        """Return the session's agent events after number `after_sequence`, at most `max_batches` records of them, and the gaps."""
        sql = "SELECT seq, trimmed_to FROM session WHERE session_id = ?"
        rows = self._journal.rows(sql, column(session_id))
        if not rows:
            return EventHistory(batches=(), gaps=(), complete=True)
        session, trimmed_to = rows[0]
        found = self._journal.rows(_EVENTS, session, after_sequence, max_batches + 1)
        batches = tuple(self._batch(session_id, after_sequence, row) for row in found[:max_batches])
        complete = len(found) <= max_batches
        return EventHistory(batches=batches, gaps=tuple(_gaps(batches, after_sequence, trimmed_to if complete else 0)), complete=complete)

    def events_page(self, session_id: str, after_sequence: int) -> EventHistory:
        """The same, in pieces that a reader can hold."""
        return self.events(session_id, after_sequence, max_batches=_PAGE_BATCHES)

    def calls(self, session_id: str, turn_id: str) -> tuple[ToolCall, ...]:
        """Return the tool calls that were seen in the turn, in order."""
        sql = """SELECT body FROM agent_events JOIN session ON session.seq = agent_events.session
            WHERE session_id = ? AND turn_id = ? ORDER BY first_sequence"""
        rows = self._journal.rows(sql, column(session_id), column(turn_id))
        return tuple(event for (body,) in rows for event in self._value(body, tuple) if isinstance(event, ToolCall))

    def _batch(self, session_id: str, after_sequence: int, row: tuple[Any, ...]) -> AgentEvents:
        turn_id, first_sequence, incarnation, at_monotonic_s, at_wall_s, body = row
        seen = max(0, after_sequence + 1 - first_sequence)
        return AgentEvents(
            session_id=session_id,
            first_sequence=first_sequence + seen,
            turn_id=text_of(turn_id),
            incarnation=incarnation,
            at_monotonic_s=at_monotonic_s,
            at_wall_s=at_wall_s,
            events=self._value(body, tuple)[seen:],
        )

    # --- the rest

    def checkpoint(self, key: str) -> Checkpoint | None:
        """Return what is kept under `key`, or None."""
        rows = self._journal.rows("SELECT body FROM checkpoint WHERE key = ?", column(key))
        checkpoint: Checkpoint | None = self._one(rows, Checkpoint)
        return checkpoint

    def processes(self) -> tuple[ProcessStarted, ...]:
        """Return the processes whose end was not recorded, by pid."""
        rows = self._journal.rows("SELECT body FROM process ORDER BY pid, start_time, mark")
        return tuple(self._value(body, ProcessStarted) for (body,) in rows)

    def spend(self) -> tuple[Spent, ...]:
        """Return what each session has consumed, by session id."""
        rows = self._journal.rows("SELECT session_id, body FROM spent ORDER BY session_id")
        return tuple(self._spent(text_of(session_id) or "", self._value(body, tuple)) for session_id, body in rows)

    def spent(self, session_id: str) -> Spent | None:
        """Return what the session has consumed, or None."""
        rows = self._journal.rows("SELECT body FROM spent WHERE session_id = ?", column(session_id))
        return self._spent(session_id, self._value(rows[0][0], tuple)) if rows else None

    def _spent(self, session_id: str, pair: tuple[Any, ...]) -> Spent:
        usage, booked = pair
        return Spent(session_id=session_id, usage=usage, booked=booked)

    # --- reading

    def _one(self, rows: list[tuple[Any, ...]], kind: type | tuple[type, ...]) -> Any:
        return self._value(rows[0][0], kind) if rows else None

    def _value(self, body: str, kind: type | tuple[type, ...]) -> Any:
        value = self._journal.codec.decode(body)
        if not isinstance(value, kind):
            raise JournalError(f"cannot read a record: it holds a {type(value).__name__}")
        return value


def _verdict(attempt: int, *, ended: bool) -> Verdict:
    if ended:
        return Verdict.FINISHED_UNREPORTED
    return Verdict.UNKNOWN if attempt > 0 else Verdict.NEVER_SENT


def _gaps(batches: tuple[AgentEvents, ...], after_sequence: int, trimmed_to: int) -> Iterator[Gap]:
    following = after_sequence + 1
    for batch in batches:
        if batch.first_sequence > following:
            yield Gap(first_sequence=following, last_sequence=batch.first_sequence - 1)
        following = batch.last_sequence + 1
    if trimmed_to >= following:
        yield Gap(first_sequence=following, last_sequence=trimmed_to)
