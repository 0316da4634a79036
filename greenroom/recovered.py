"""What a dead program left unfinished, and the three things that can be done about it. Decides nothing by itself; any thread.

Nothing is sent again until somebody says so, here or by preparing the turn again under its key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from greenroom.errors import GreenroomError, SessionStateError
from greenroom.journal import Decision, RecoveredSession, RecoveredTicket, Verdict
from greenroom.journal.records import TicketDecided
from greenroom.model import Turn, TurnRequest

if TYPE_CHECKING:
    from greenroom.agent import Agent
    from greenroom.preparing import TurnTicket
    from greenroom.room import Greenroom
    from greenroom.session import Session


@attrs.frozen(kw_only=True)
class LostSession:
    """The session that a recovered turn belongs to. `conversation_id`: the last conversation that it is known to have been in."""

    id: str
    cwd: Path
    provider: str
    conversation_id: str | None


@attrs.frozen(kw_only=True, eq=False)
class Recovered:
    """A turn whose outcome nobody was given. `outcome` is how it ended, where that is known (FINISHED_UNREPORTED)."""

    turn_id: str
    session: LostSession
    key: str | None
    request: TurnRequest
    verdict: Verdict
    outcome: Turn | GreenroomError | None
    _ticket: RecoveredTicket = attrs.field(repr=False)
    _recorded: RecoveredSession = attrs.field(repr=False)
    _room: Greenroom = attrs.field(repr=False)

    def resume(self, agent: Agent | None = None) -> tuple[Session, TurnTicket]:
        """Open the session again and prepare this very turn, to be run by the caller.

        Nothing was sent: it runs as if nothing had been. Something was: whether the provider took it is found out, and then the work goes
        on where it was cut. It has ended: `run` returns or raises the outcome, and no provider is asked. `agent` is by default one made
        of what is on record. Raises SessionStateError when it was decided upon already, or the default agent would not find the
        conversation; what `Agent.session` and `Session.prepare_turn` raise.
        """
        session = self._session(agent)
        ticket = session._preparing.take_up(self._ticket)
        self._room._decided(self.turn_id)
        return session, ticket

    def rerun(self, agent: Agent | None = None) -> tuple[Session, TurnTicket]:
        """Open the session again and prepare a new turn with the same request (and key), to be run by the caller; this one is done with.

        What the cut turn has done already is not undone, and the provider may be shown the prompt twice. Raises as `resume` does.
        """
        session = self._session(agent)
        ticket = session._preparing.run_again(self._ticket)
        self._room._decided(self.turn_id)
        return session, ticket

    def discard(self) -> None:
        """Let it be: it is listed no more. Raises SessionStateError when it was decided upon already, StoreUnavailableError."""
        self._check()
        self._room._put_durably(TicketDecided(turn_id=self.turn_id, decision=Decision.DISCARD), "the turn was not discarded")
        self._room._decided(self.turn_id)

    def _check(self) -> None:
        if not self._room._is_open(self.turn_id):
            raise SessionStateError(f"turn {self.turn_id!r} was decided upon already")

    def _session(self, agent: Agent | None) -> Session:
        self._check()
        living = self._room._living(self.session.id)
        if living is not None:
            return living
        return (agent or self._agent())._recover(self._recorded.opened.spec, self.session.id)

    def _agent(self) -> Agent:
        opened = self._recorded.opened
        spec = opened.spec
        agent = self._room.agent(opened.provider, permissions=spec.permissions, approvals=spec.approvals, model=spec.model)
        home = str(getattr(agent.transport, "state_home", ""))
        if home != opened.state_home:
            raise SessionStateError(
                f"session {opened.session_id!r} has its state in {opened.state_home!r}, not in {home!r}: give its agent"
            )
        return agent


def recovered(room: Greenroom, tickets: tuple[RecoveredTicket, ...], sessions: tuple[RecoveredSession, ...]) -> tuple[Recovered, ...]:
    """Return what can be done about `tickets`, in their order."""
    by_id = {session.opened.session_id: session for session in sessions}
    return tuple(_one(room, ticket, by_id[ticket.session_id]) for ticket in tickets if ticket.verdict is not None)


def _one(room: Greenroom, ticket: RecoveredTicket, session: RecoveredSession) -> Recovered:
    opened = session.opened
    lost = LostSession(id=opened.session_id, cwd=opened.spec.cwd, provider=opened.provider, conversation_id=session.last_conversation_id)
    if ticket.verdict is None:
        raise ValueError(f"nothing about turn {ticket.turn_id!r} is open")
    return Recovered(
        turn_id=ticket.turn_id,
        session=lost,
        key=ticket.key,
        request=ticket.request,
        verdict=ticket.verdict,
        outcome=ticket.outcome,
        ticket=ticket,
        recorded=session,
        room=room,
    )
