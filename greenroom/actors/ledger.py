"""What does a session put on record? Each input of its policy, what its commands say of its tickets, its events. Pure; one a session.

Decides what is written, never when it counts as written: that is the session's gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from greenroom.actors import messages as m
from greenroom.actors.ticket import Batch
from greenroom.errors import SessionStateError, StoreUnavailableError
from greenroom.events import AssistantText, Reasoning, SkillInvoked, ToolCall, ToolResult, UsageReport
from greenroom.journal import records as r
from greenroom.policy import commands as c
from greenroom.policy import events as e
from greenroom.policy.state import BEGUN, Phase, State, Ticket

EVIDENCE = (AssistantText, Reasoning, ToolCall, ToolResult, SkillInvoked, UsageReport)
"""Only a provider that has the message says any of these."""

SNAPSHOT_EVERY = 200
"""After so many inputs the state is recorded, and they are dropped: a session that is open for months does not grow without bound."""

_AWAITED = (r.TicketPrepared, r.TicketSent, r.TicketEnded)
NOT_RUN = (SessionStateError, StoreUnavailableError)


@attrs.define(kw_only=True)
class Ledger:
    """The numbers that run on through a session's life, over restarts of the host: how many inputs and events were recorded."""

    session_id: str
    inputs: int = 0
    events: int = 0
    snapshot_every: int = SNAPSHOT_EVERY
    _covered: int = 0
    _taken: tuple[str, int] | None = None

    def step(
        self, event: e.SessionInput, before: State, after: State, commands: tuple[c.Command, ...], prepares: Mapping[str, m.PrepareTurn]
    ) -> tuple[r.Record, ...]:
        """Return the records of one step; an input that was ignored leaves none, since without it the state is the same."""
        if after is before and all(isinstance(command, c.Ignored) for command in commands):
            return ()
        self.inputs += 1
        entry = r.Input(session_id=self.session_id, n=self.inputs, event=event)
        return (entry, *_left_unrun(event, before, after), *self._of_commands(commands, before, after, prepares))

    def snapshot(self, state: State) -> tuple[r.Record, ...]:
        """Return the record of `state`, which the inputs so far have given, when it is time for one.

        Between turns alone, and before the next input: whoever replays from here needs nothing of what was done about earlier ones.
        A record by itself, which nobody waits for: where it cannot be written the inputs are kept.
        """
        if self.inputs - self._covered < self.snapshot_every or state.phase in BEGUN:
            return ()
        self._covered = self.inputs
        return (r.Snapshot(session_id=self.session_id, n=self.inputs, state=state),)

    def _of_commands(
        self, commands: tuple[c.Command, ...], before: State, after: State, prepares: Mapping[str, m.PrepareTurn]
    ) -> Iterator[r.Record]:
        for command in commands:
            match command:
                case c.Grant():
                    yield from _superseded(command, before)
                    yield from self._granted(command, prepares[command.turn_id])
                case c.Execute():
                    yield _sent(command, after)
                case c.Finish():
                    yield r.TicketEnded(turn_id=command.turn.turn_id, outcome=command.turn)
                case c.Fail():
                    yield from _failed(command, before)
                case _:
                    pass  # follows from the input

    def _granted(self, command: c.Grant, message: m.PrepareTurn) -> Iterator[r.Record]:
        if message.replaces is not None:
            yield r.TicketDecided(turn_id=message.replaces, decision=r.Decision.RUN_AGAIN)
        yield r.TicketPrepared(
            turn_id=command.turn_id,
            session_id=self.session_id,
            nonce=message.nonce,
            request=message.request,
            request_hash=message.request_hash,
            key=message.key,
            expected_conversation=command.expected_conversation,
            strict=message.expect_conversation is not None,
            pinned=message.pin,
        )

    def told(self, state: State, batch: Batch) -> tuple[r.Record, ...]:
        """Return the records of events: that the running attempt was taken, if they are the first that prove it, and the events."""
        events = r.AgentEvents(
            session_id=batch.session_id,
            first_sequence=batch.first_sequence,
            turn_id=batch.turn_id,
            incarnation=batch.incarnation,
            at_monotonic_s=batch.at_monotonic_s,
            at_wall_s=batch.at_wall_s,
            events=batch.events,
        )
        ticket = state.ticket
        if ticket is None or state.phase is not Phase.RUNNING or self._taken == (ticket.turn_id, ticket.attempt):
            return (events,)
        if not any(isinstance(event, EVIDENCE) for event in batch.events):
            return (events,)
        self._taken = (ticket.turn_id, ticket.attempt)
        return (r.TicketTaken(turn_id=ticket.turn_id, attempt=ticket.attempt), events)


def awaited(records: tuple[r.Record, ...]) -> bool:
    """Whether something must not happen before these are durable."""
    return any(isinstance(record, _AWAITED) for record in records)


def _sent(command: c.Execute, after: State) -> r.TicketSent:
    return r.TicketSent(
        turn_id=command.turn_id,
        attempt=command.attempt,
        receipt=command.receipt,
        how=command.how,
        conversation_id=after.conversation_id,
        incarnation=command.incarnation,
    )


def _failed(command: c.Fail, before: State) -> Iterator[r.Record]:
    """A ticket that was refused, and not for a fault of its own, has no outcome: it may be prepared again, or taken up."""
    ticket = before.ticket
    again = ticket is not None and ticket.attempt > 1
    if ticket is None or not isinstance(command.error, NOT_RUN) or (again and not isinstance(command.error, StoreUnavailableError)):
        yield r.TicketEnded(turn_id=command.turn_id, outcome=command.error)
    elif not again and not ticket.maybe_taken:
        yield _discarded(ticket)
    # else it was sent before: what became of that is as unknown as before


def _superseded(command: c.Grant, before: State) -> Iterator[r.Record]:
    ticket = before.ticket
    if command.superseded is not None and ticket is not None and not ticket.maybe_taken and command.turn_id != ticket.turn_id:
        yield _discarded(ticket)


def _left_unrun(event: e.SessionInput, before: State, after: State) -> Iterator[r.Record]:
    ticket = before.ticket
    if isinstance(event, e.Cancelled) and ticket is not None and after.ticket is None and not ticket.maybe_taken:
        yield _discarded(ticket)


def _discarded(ticket: Ticket) -> r.TicketDecided:
    return r.TicketDecided(turn_id=ticket.turn_id, decision=r.Decision.DISCARD)
