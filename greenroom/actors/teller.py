"""Says to a session what the outputs of its conversation's codec mean, in order. Decides nothing. On the loop thread.

Shared by the conversation that has a process of its own and the one that is a guest in a shared process.
"""

from __future__ import annotations

from typing import Any

import pykka

from greenroom.actors import messages as m
from greenroom.actors.runtime import Message, tell
from greenroom.errors import TransportDiedError
from greenroom.events import AgentEvent
from greenroom.model import ProviderUsage
from greenroom.transports.base import (
    Asked,
    Attempt,
    AttemptEnded,
    AttemptSwallowed,
    Booked,
    Output,
    Ready,
    Renamed,
    Signal,
    StartFailed,
    Withdrawn,
)

Ref = pykka.ActorRef[Any]


class Teller:
    """One conversation's mouth. `ending`: we end it, so that a failed start needs no telling any more."""

    def __init__(self, *, session_id: str, session: Ref, supervisor: Ref, incarnation: int) -> None:
        self.session_id = session_id
        self.turn_id: str | None = None
        self.ending = False
        self._turn_began_s = 0.0
        self._session = session
        self._supervisor = supervisor
        self._incarnation = incarnation
        self._start_settled = False
        self._down = False

    def begin(self, attempt: Attempt, now_s: float) -> None:
        """An attempt begins: what comes from now on is its."""
        self.turn_id = attempt.turn_id
        self._turn_began_s = now_s

    def outputs(self, outputs: list[Output]) -> list[Signal]:
        """Tell what concerns the session; events that come together travel together. Return the rest, which concerns the owner."""
        rest: list[Signal] = []
        events: list[AgentEvent] = []
        for output in outputs:
            if isinstance(output, AgentEvent):
                events.append(output)
            else:
                self._flush(events)
                if not self._told(output):
                    rest.append(output)
        self._flush(events)
        return rest

    def _flush(self, events: list[AgentEvent]) -> None:
        if events:
            self._tell(m.TurnEvent(incarnation=self._incarnation, turn_id=self.turn_id, events=tuple(events)))
            events.clear()

    def _told(self, signal: Signal) -> bool:
        incarnation = self._incarnation
        match signal:
            case Ready():
                self.settle_start()
                self._tell(m.ConversationOpened(incarnation=incarnation, conversation_id=signal.conversation_id))
            case Renamed():
                self._tell(m.ConversationNamed(incarnation=incarnation, conversation_id=signal.conversation_id))
            case StartFailed():
                self.start_failed(m.OpenFailed(incarnation=incarnation, error=signal.error, killed=True))
            case AttemptEnded():
                self.turn_id = None
                self._tell(_turn_ended(incarnation, signal))
            case AttemptSwallowed():
                self.turn_id = None
                self._tell(m.TurnSwallowed(incarnation=incarnation, turn_id=signal.turn_id))
            case Asked():
                self._tell(m.AskArrived(incarnation=incarnation, turn_id=self.turn_id, wire_id=signal.request_id, ask=signal.ask))
            case Withdrawn():
                self._tell(m.AskWithdrawn(incarnation=incarnation, wire_id=signal.request_id))
            case Booked():
                self._tell(m.Spent(incarnation=incarnation, usage=signal.usage))
            case _:
                return False
        return True

    def listened(self) -> None:
        """What there was to read has been told."""
        self._tell(m.Listened(incarnation=self._incarnation))

    def settle_start(self) -> None:
        """The start is over, well or not: its slot is free."""
        if not self._start_settled:
            self._start_settled = True
            tell(self._supervisor, m.StartSettled(session_id=self.session_id, incarnation=self._incarnation))

    def start_failed(self, message: m.OpenFailed) -> None:
        """The start failed by an answer."""
        self.settle_start()
        if not self.ending:
            self._tell(message)

    def down(
        self,
        error: TransportDiedError,
        *,
        now_s: float,
        mark: str | None,
        expected: bool = False,
        refused: bool = False,
        evicted: bool = False,
        sent: bool = False,
        usage: ProviderUsage | None = None,
    ) -> None:
        """The conversation's process is gone: tell the session, and the supervisor, which looks for what it left under `mark`. Once."""
        if self._down:
            return
        self._down = True
        self.settle_start()
        duration_ms = int((now_s - self._turn_began_s) * 1e3) if self.turn_id is not None else 0
        self._tell(
            m.Down(
                incarnation=self._incarnation,
                error=error,
                expected=expected,
                refused=refused,
                evicted=evicted,
                sent=sent,
                usage=usage,
                duration_ms=duration_ms,
            )
        )
        tell(self._supervisor, m.ProcessGone(session_id=self.session_id, incarnation=self._incarnation, mark=mark))

    def _tell(self, message: Message) -> None:
        tell(self._session, message)


def _turn_ended(incarnation: int, ended: AttemptEnded) -> m.TurnEnded:
    return m.TurnEnded(
        incarnation=incarnation,
        turn_id=ended.turn_id,
        result=ended.result,
        error=ended.error,
        usage=ended.usage,
        cumulative=ended.cumulative,
        duration_ms=ended.duration_ms,
        nudgeable=ended.nudgeable,
        sent=ended.sent,
        keeps_conversation=ended.keeps_conversation,
        forced=ended.forced,
    )
