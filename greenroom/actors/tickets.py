"""The tickets of one session: how one is granted, refused, superseded and settled, in step with the journal.

The policy decides which; here the callers are answered. A ticket is given out once it is on record, an outcome once everything written
for it is. Owned by its session's actor, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.dispatcher import Dispatcher
from greenroom.actors.displaced import Displaced
from greenroom.actors.record import Recorder
from greenroom.actors.runtime import tell
from greenroom.actors.store import unavailable
from greenroom.actors.ticket import TicketCore, TicketState
from greenroom.attachments import without_content
from greenroom.errors import SessionStateError
from greenroom.policy import commands as c
from greenroom.policy import events as e
from greenroom.policy.session import Phase, State

Ref = pykka.ActorRef[Any]


@attrs.frozen(kw_only=True)
class PolicyPort:
    """The session's policy, as its actor has it: its state, and how an input is fed to it."""

    state: Callable[[], State]
    advance: Callable[[e.SessionInput], None]


class Tickets:
    """`open` and `requests` by turn id; `over`: the actor has ended, and the policy is fed no more."""

    def __init__(self, *, session_id: str, dispatcher: Dispatcher, supervisor: Ref, recorder: Recorder, policy: PolicyPort) -> None:
        self.open: dict[str, TicketCore] = {}
        self.unsettled: dict[str, TicketCore] = {}
        self.requests: dict[str, m.PrepareTurn] = {}
        self.prepares: dict[str, m.PrepareTurn] = {}
        self.over = False
        self._session_id = session_id
        self._dispatcher = dispatcher
        self._supervisor = supervisor
        self._recorder = recorder
        self._policy = policy
        self._displaced = Displaced()
        self._draining = False

    def find(self, turn_id: str | None) -> TicketCore | None:
        """Return the ticket of a turn whose caller has not got its outcome yet."""
        return self.open.get(turn_id, self.unsettled.get(turn_id)) if turn_id is not None else None

    # --- how one comes about

    def prepare(self, message: m.PrepareTurn) -> None:
        """Ask the policy for a ticket."""
        self._tell_prepare(message)
        if self.prepares.pop(message.turn_id, None) is not None:
            message.reply_to.fail(SessionStateError(f"turn {message.turn_id!r} is prepared already"))

    def _tell_prepare(self, message: m.PrepareTurn) -> None:
        self.prepares[message.turn_id] = message
        self._policy.advance(
            e.Prepare(
                now_s=self._dispatcher.monotonic(),
                turn_id=message.turn_id,
                nonce=message.nonce,
                request=without_content(message.request),
                expect_conversation=message.expect_conversation,
                pin=message.pin,
                sent_attempt=message.sent.attempt if message.sent is not None else 0,
                sent_how=message.sent.how if message.sent is not None else c.How.PROMPT,
            )
        )

    def grant(self, command: c.Grant) -> None:
        """There is a ticket, once it is on record."""
        if command.superseded is not None:
            self._supersede(command.superseded, command.turn_id)
        message = self.prepares.pop(command.turn_id)
        self.open[command.turn_id] = message.ticket
        self.requests[command.turn_id] = message
        if self._recorder.ledger is None or message.reply_to.settled:  # settled: it is put back, and was on record before
            message.reply_to.settle(command.expected_conversation)
        else:
            self._recorder.once_recorded(lambda error: self._granted(message, command.expected_conversation, error))

    def _granted(self, message: m.PrepareTurn, expected_conversation: str | None, error: BaseException | None) -> None:
        """The ticket is on record, so that there is one; or it could not be recorded, and there is none."""
        if error is None:
            message.reply_to.settle(expected_conversation)
            self._displaced.confirm()
            return
        self.forget(message.turn_id)
        message.reply_to.fail(unavailable("no turn was prepared", error))
        if not self.over:
            self._policy.advance(e.Cancelled(now_s=self._dispatcher.monotonic(), turn_id=message.turn_id))
        self._put_back()

    def _supersede(self, turn_id: str, by_turn_id: str) -> None:
        message = self.requests.get(turn_id)
        self.forget(turn_id)
        self._displaced.supersede(message, by_turn_id, durable=self._recorder.ledger is not None)

    def _put_back(self) -> None:
        """What was to take the place of a ticket could not be recorded: that one is the most recent again, unless another waits."""
        phase = self._policy.state().phase
        if phase is Phase.PREPARED and not self.over:
            return
        message = None if self.over or phase is not Phase.IDLE else self._displaced.take_back()
        if message is None:
            self._displaced.confirm()
            return
        self._tell_prepare(message)
        self.prepares.pop(message.turn_id, None)
        if message.turn_id not in self.open:
            message.ticket.fail(SessionStateError(f"turn {message.turn_id!r} could not be prepared again"))

    def refuse(self, command: c.Refuse) -> None:
        """There is no ticket, or the one that there is may not run."""
        prepare = self.prepares.pop(command.turn_id, None)
        if prepare is not None:
            prepare.reply_to.fail(command.error)
            return
        ticket = self.open.get(command.turn_id)
        self.forget(command.turn_id)
        if ticket is not None:
            ticket.fail(command.error)

    # --- how it ends

    def settle(self, turn_id: str, ending: Callable[[TicketCore], None]) -> None:
        """End the ticket, once what was written for it is confirmed: who has the outcome finds the checkpoint and the record."""
        ticket = self.open.get(turn_id)
        self.forget(turn_id)
        tell(self._supervisor, m.TurnOver(session_id=self._session_id))
        if ticket is None:
            return
        # A store that fails never costs a finished result: the recorder has reported it, to this caller too.
        self.unsettled[turn_id] = ticket
        self._recorder.once_written(lambda _error: ending(self.unsettled.pop(turn_id, ticket)))

    def forget(self, turn_id: str) -> None:
        """The session is done with the ticket."""
        self.open.pop(turn_id, None)
        self.requests.pop(turn_id, None)
        self._close_if_drained()

    def drain(self) -> None:
        """Close the session once no turn runs."""
        self._draining = True
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        """A turn that its caller has begun may end first, also when its Run has not arrived yet: we were told out of turn."""
        if self._draining and not any(ticket.state is TicketState.BEGUN for ticket in self.open.values()):
            self._draining = False
            self._policy.advance(e.Close(now_s=self._dispatcher.monotonic()))

    def fail_all(self, error: BaseException, adoptions: dict[str, Cell[bool]]) -> None:
        """Nobody goes on with the session: answer everybody."""
        for ticket in list(self.open.values()):
            ticket.fail(error)
        for prepare in self.prepares.values():
            prepare.reply_to.fail(error)
        for adoption in adoptions.values():
            adoption.settle(value=False)
