"""How a turn is named before it runs: a ticket, under the caller's own key or none, new or in place of one of a program that is gone.

Decides whether a key means a turn that is known. Blocks until the session's actor has answered; any thread.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import attrs

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.core import NO_FLAGS, SessionCore
from greenroom.actors.runtime import tell
from greenroom.actors.ticket import TicketCore
from greenroom.clock import Clock
from greenroom.errors import SessionStateError, WaitTimeoutError
from greenroom.ids import IdAllocator, new_nonce
from greenroom.journal import STANDARD, RecoveredTicket, Verdict
from greenroom.keys import Keyed, Keys, check_same
from greenroom.model import Turn, TurnRequest
from greenroom.policy.commands import How
from greenroom.transports.base import StreamTransport
from greenroom.transports.refusals import refuse_undeclared

if TYPE_CHECKING:
    from greenroom.room import Greenroom


@attrs.frozen(kw_only=True, eq=False)
class TurnTicket:
    """The right to run one turn, named before anything runs. `expected_conversation` is what its continuity is judged against."""

    turn_id: str
    request: TurnRequest
    expected_conversation: str | None
    strict: bool
    pinned: bool
    _core: TicketCore = attrs.field(repr=False)
    _clock: Clock = attrs.field(repr=False)
    _pid: int = attrs.field(factory=os.getpid, init=False, repr=False)

    def wait(self, timeout: float | None = None) -> Turn:
        """Wait for the outcome, at most `timeout` seconds, on any thread, as often as wanted.

        Raises the turn's error, or WaitTimeoutError; the turn goes on. SessionStateError in a forked child, which no outcome reaches.
        """
        if self._pid != os.getpid() and not self._core.cell.settled:
            raise SessionStateError(f"turn {self.turn_id!r} runs in the parent process; its outcome cannot be seen after a fork")
        if not self._core.cell.wait(timeout, self._clock):
            raise WaitTimeoutError(self.turn_id, timeout or 0.0)
        return self._core.outcome()

    @property
    def ended(self) -> bool:
        """Whether the outcome is there."""
        return self._core.cell.settled


class Preparing:
    """Makes the tickets of a session. What is prepared is the actor's to grant, and to refuse."""

    def __init__(self, core: SessionCore, room: Greenroom, *, clock: Clock, ids: IdAllocator) -> None:
        self._core = core
        self._room = room
        self._clock = clock
        self._ids = ids
        self._key_lock = threading.Lock()
        self.keys = Keys(durable=room.durable)

    def prepare(self, request: TurnRequest, key: str | None, **demands: Any) -> TurnTicket:
        """Return a ticket for the request, the one that the key has if it has one. `demands`: `expect_conversation`, `pin`."""
        if key is None:
            return self._prepare(request, **demands)
        with self._key_lock:
            return self._prepare_keyed(request, key, **demands)

    def _prepare_keyed(self, request: TurnRequest, key: str, **demands: Any) -> TurnTicket:
        request_hash = STANDARD.fingerprint(request)
        known = self.keys.find(key, request_hash)
        if known is None:
            found = self._room._consult("find_key", self._core.session_id, key)
            if found is None:
                return self._prepare(request, key=key, **demands)
            check_same(key, found.turn_id, found.request_hash, request_hash)
            # The same request, and the whole of it: of one that is done with, the record has not kept what was attached.
            return self.take_up(attrs.evolve(found, request=request))
        if known.open:
            return known.ticket
        if known.ran:
            return self._ended_ticket(known.ticket.turn_id, request, known.core.cell.outcome)
        known.core.replace()
        if known.core.sent and (found := self._room._consult("find_key", self._core.session_id, key)) is not None:
            return self.take_up(found)
        return self._prepare(request, key=key, turn_id=known.ticket.turn_id, nonce=known.nonce, **demands)

    def take_up(self, found: RecoveredTicket) -> TurnTicket:
        """Prepare a turn of a program that is gone, as far as that one got with it."""
        if found.outcome is not None:
            return self._ended_ticket(found.turn_id, found.request, found.outcome, told=found.reported)
        if found.reported:
            raise SessionStateError(f"turn {found.turn_id!r} has ended, but its outcome could not be recorded")
        expected, pin = found.expected_conversation if found.strict else None, found.pinned
        if found.attempt > 0 and found.decision is not None:
            # That one was done with: this is another turn.
            return self._prepare(found.request, key=found.key, expect_conversation=expected, pin=pin)
        sent = None
        if found.attempt > 0:
            calls = self._room._consult("calls", self._core.session_id, found.turn_id)
            sent = m.Sent(attempt=found.attempt, how=found.how or How.PROMPT, calls=calls)
        return self._prepare(
            found.request,
            key=found.key,
            expect_conversation=expected,
            pin=pin,
            turn_id=found.turn_id,
            nonce=found.nonce,
            sent=sent,
        )

    def run_again(self, found: RecoveredTicket) -> TurnTicket:
        """Prepare a new turn in place of one of a program that is gone."""
        if found.verdict is Verdict.NEVER_SENT:
            return self.take_up(found)
        return self._prepare(found.request, key=found.key, replaces=found.turn_id, pin=found.pinned)

    def _ended_ticket(self, turn_id: str, request: TurnRequest, outcome: Turn | BaseException, *, told: bool = True) -> TurnTicket:
        core = TicketCore.ended(turn_id, self._core.session_id, outcome, None if told else self._room._teller(turn_id))
        self._room._decided(turn_id)
        return TurnTicket(
            turn_id=turn_id, request=request, expected_conversation=None, strict=False, pinned=False, core=core, clock=self._clock
        )

    def _prepare(
        self,
        request: TurnRequest,
        *,
        expect_conversation: str | None = None,
        pin: bool = False,
        key: str | None = None,
        turn_id: str | None = None,
        nonce: str | None = None,
        sent: m.Sent | None = None,
        replaces: str | None = None,
    ) -> TurnTicket:
        transport = self._core.transport
        flags = NO_FLAGS
        refuse_undeclared(transport.profile, request)
        if isinstance(transport, StreamTransport):
            transport.validate(self._core.spec, request)
            flags = transport.flags(self._core.spec, request)
        request_hash = STANDARD.fingerprint(request) if key is not None or self._room.durable else ""
        turn_id = turn_id or self._ids.new_id("turn")
        core = TicketCore(turn_id, self._core.session_id, on_told=self._room._teller(turn_id))
        core.sent = sent is not None
        reply: Cell[str | None] = Cell()
        message = m.PrepareTurn(
            turn_id=turn_id,
            nonce=nonce or new_nonce(),
            request=request,
            flags=flags,
            expect_conversation=expect_conversation,
            pin=pin,
            ticket=core,
            reply_to=reply,
            key=key,
            request_hash=request_hash,
            sent=sent,
            replaces=replaces,
        )
        tell(self._core.ref, message)
        reply.wait(None, self._clock)
        ticket = TurnTicket(
            turn_id=turn_id,
            request=request,
            expected_conversation=reply.get(),
            strict=expect_conversation is not None,
            pinned=pin,
            core=core,
            clock=self._clock,
        )
        if key is not None:
            self.keys.add(key, Keyed(ticket=ticket, core=core, nonce=message.nonce, request_hash=request_hash))
        self._room._decided(turn_id)
        return ticket
