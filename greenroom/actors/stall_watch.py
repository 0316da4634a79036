"""Watches for a running turn that says nothing: one timer a session, set when an attempt begins, and set again when it fires.

Never on the path of an event: the timer looks at when something was last heard. Before a silence counts, the conversation is asked to
read what is there, so that a word that has arrived is never overtaken by the verdict, however late a busy or suspended host comes to it.
Decides nothing: what follows from a silence is the policy's. Runs on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pykka

from greenroom.actors import messages as m
from greenroom.actors.dispatcher import Dispatcher, TimerFired
from greenroom.actors.runtime import tell
from greenroom.clock import TimerHandle
from greenroom.liveness import Pulse, StallPolicy
from greenroom.policy import events as e
from greenroom.policy.state import Phase, State

TOKEN = ("stall",)
EARLY_S = 0.001
"""How much too early a timer may fire: sums of floats are not exact."""

Ref = pykka.ActorRef[Any]


class StallWatch:
    """One session's. `live` returns the live conversation and its number; the session hears its answer (`listened`), if there is one."""

    def __init__(self, dispatcher: Dispatcher, ref: Ref, pulse: Pulse, live: Callable[[], tuple[int, Ref] | None]) -> None:
        self._dispatcher = dispatcher
        self._ref = ref
        self._pulse = pulse
        self._live = live
        self._timer: TimerHandle | None = None
        self._told_heard_s: float | None = None

    def begin(self, policy: StallPolicy | None) -> None:
        """An attempt begins. A timer that is still set comes early enough: it was set for an earlier one."""
        if policy is not None and self._timer is None:
            self._set(policy.shortest_s)

    def fired(self, state: State) -> None:
        """The timer fired: look."""
        self._timer = None
        policy = state.settings.stall
        if policy is None or state.phase is not Phase.RUNNING:
            return
        now_s = self._dispatcher.monotonic()
        due_s = self._due_s(now_s, policy)
        is_due = due_s is not None and due_s <= now_s + EARLY_S
        live = self._live()
        if is_due and live is not None:
            tell(live[1], m.Listen())
        # What excuses the silence now may be over at once: then it takes the shortest to be one.
        left_s = policy.shortest_s if due_s is None or is_due else due_s - now_s
        self._set(min(left_s, policy.shortest_s))

    def listened(self, state: State, incarnation: int) -> e.WentSilent | None:
        """The process has been read: return what is to be told to the policy, if it has still said nothing."""
        policy, ticket, process, now_s = state.settings.stall, state.ticket, state.process, self._dispatcher.monotonic()
        if policy is None or ticket is None or process is None or process.incarnation != incarnation or state.phase is not Phase.RUNNING:
            return None
        due_s = self._due_s(now_s, policy)
        if due_s is None or due_s > now_s + EARLY_S:
            return None
        heard_s = self._told_heard_s = self._pulse.heard_s
        return e.WentSilent(
            now_s=now_s,
            turn_id=ticket.turn_id,
            incarnation=incarnation,
            attempt=ticket.attempt,
            quiet_s=round(now_s - heard_s, 1),
            reason=self._pulse.at(now_s),
        )

    def end(self) -> None:
        """The session is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due_s(self, now_s: float, policy: StallPolicy) -> float | None:
        """Each silence is told once."""
        return None if self._pulse.heard_s == self._told_heard_s else self._pulse.stall_due_s(now_s, policy)

    def _set(self, delay_s: float) -> None:
        self._timer = self._dispatcher.call_later(delay_s, self._ref, TimerFired(token=TOKEN))
