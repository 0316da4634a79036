"""What a session says: events are stamped here, and handed to the turn's caller, to the journal, to subscribers and to the observers.

Decides the numbers, and when a caller who does not keep up slows his session down; never what is told. Owned by its session's actor,
on the loop thread.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import pykka

from greenroom.actors import messages as m
from greenroom.actors.announce import Announcement
from greenroom.actors.core import SessionCore, logger
from greenroom.actors.dispatcher import Dispatcher, TimerFired
from greenroom.actors.record import Recorder
from greenroom.actors.runtime import tell
from greenroom.actors.ticket import Batch, Sink
from greenroom.actors.tickets import Tickets
from greenroom.events import AgentEvent, Lifecycle, ToolCall, TurnInterrupted
from greenroom.policy import commands as c
from greenroom.policy.session import State

CALLS_KEPT = 64
LISTENER_LOOK_S = 1.0

Ref = pykka.ActorRef[Any]


class Voice:
    """`sequence`: the number of the last event; `calls`: the tools that the turn has called, as far as they are kept."""

    def __init__(
        self,
        *,
        core: SessionCore,
        dispatcher: Dispatcher,
        ref: Ref,
        recorder: Recorder,
        tickets: Tickets,
        observer: Callable[[], Ref],
        state: Callable[[], State],
        hold_reading: Callable[[], None],
    ) -> None:
        self.sequence = core.ledger.events if core.ledger is not None else 0
        self.calls: collections.deque[ToolCall] = collections.deque(maxlen=CALLS_KEPT)
        self._core = core
        self._dispatcher = dispatcher
        self._ref = ref
        self._recorder = recorder
        self._tickets = tickets
        self._observer = observer
        self._state = state
        self._hold_reading = hold_reading
        self._interrupt_told: str | None = None

    def hears(self, calls: Iterable[ToolCall] = ()) -> None:
        """A turn begins; `calls`: what it had called before its host died."""
        self.calls.clear()
        self.calls.extend(calls)

    def emit(self, incarnation: int, turn_id: str | None, events: tuple[AgentEvent, ...]) -> None:
        """Tell what has happened in a process, or to one (0: none)."""
        now_s = self._dispatcher.monotonic()
        self._core.pulse.heard(incarnation, events, now_s)
        turn_id = turn_id or self._core.view.turn_id
        for event in events:
            if type(event) is ToolCall:
                self.calls.append(event)
            elif type(event) is TurnInterrupted:
                self._interrupt_told = turn_id
        self._hand_out(incarnation, turn_id, events, now_s)
        if self._core.handlers:
            tell(self._observer(), m.Observe(handlers=self._core.handlers, events=events))

    def announce(self, told: Announcement | None) -> None:
        """Tell what the session has to say of itself; not to those who asked for bare events."""
        if told is not None:
            self._hand_out(told.incarnation, told.turn_id, told.events, self._dispatcher.monotonic())

    def interrupted(self, command: c.Command) -> None:
        """Say that the turn was interrupted, if no process was there to say it."""
        if isinstance(command, c.Finish) and command.turn.result.interrupted and self._interrupt_told != command.turn.turn_id:
            self.emit(0, command.turn.turn_id, (TurnInterrupted(),))

    def degraded(self, detail: str) -> None:
        """Report what failed beside the work: it never replaces a result."""
        self._core.degraded = detail
        logger.error("session %s: %s", self._core.session_id, detail)
        self.emit(0, next(reversed(self._tickets.unsettled), None), (Lifecycle("degraded", detail),))

    def _hand_out(self, incarnation: int, turn_id: str | None, events: tuple[AgentEvent, ...], now_s: float) -> None:
        first, self.sequence = self.sequence + 1, self.sequence + len(events)
        ledger, publish = self._recorder.ledger, self._core.publish
        ticket = self._tickets.find(turn_id)
        sink = ticket.sink if ticket is not None else None
        if sink is None and ledger is None and publish is None:
            return
        batch = Batch(
            session_id=self._core.session_id,
            turn_id=turn_id,
            incarnation=incarnation,
            first_sequence=first,
            at_monotonic_s=now_s,
            at_wall_s=self._dispatcher.clock.wall(),
            events=events,
        )
        if ledger is not None:
            self._recorder.record(*ledger.told(self._state(), batch))
        if sink is not None and turn_id is not None:
            self._hand_over(turn_id, sink, batch)
        if publish is not None:
            publish(batch)

    # --- a caller who listens

    def _hand_over(self, turn_id: str, sink: Sink, batch: Batch) -> None:
        if sink.put(batch):
            self._dispatcher.after_round(sink.flush)
        if sink.wants_hold():
            self._hold_reading()
            self._look_later(turn_id)

    def _look_later(self, turn_id: str) -> None:
        self._dispatcher.call_later(LISTENER_LOOK_S, self._ref, TimerFired(token=("listener", turn_id)))

    def look_after_listener(self, turn_id: str) -> None:
        """A caller whose event loop was closed will never catch up, and does not say so: its turn must not wait for it."""
        ticket = self._tickets.open.get(turn_id)
        if ticket is None or ticket.sink is None or not ticket.sink.held:
            return
        if ticket.sink.gone():
            ticket.sink.detach()
        else:
            self._look_later(turn_id)
