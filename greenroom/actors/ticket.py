"""What a ticket's caller and its session share: the outcome cell, and the sink through which events reach the caller. Thread-safe.

The front door decides *begun* and *cancelled* under one lock, before any message is sent, so that `interrupt` and `run` never race. The
sink never blocks and never raises into an actor: what a slow caller has not consumed is credit out, and the session stops reading its pipe.
"""

from __future__ import annotations

import datetime as dt
import enum
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import attrs

from greenroom.actors.cell import Cell
from greenroom.errors import SessionStateError
from greenroom.events import (
    AgentEvent,
    ApprovalDenied,
    ApprovalRequested,
    ApprovalResolved,
    Notice,
    QuestionAsked,
    QuestionResolved,
    SessionEvent,
    SteerConsumed,
    SteerDelivered,
    SteerRejected,
    TurnInterrupted,
    UsageReport,
)
from greenroom.model import Turn

HIGH_WATER = 512
LOW_WATER = 128
LIFTED_BOUND = 20_000
KEPT_ALWAYS = (
    *(Notice, SteerDelivered, SteerConsumed, SteerRejected, TurnInterrupted, UsageReport),
    *(ApprovalDenied, ApprovalRequested, ApprovalResolved, QuestionAsked, QuestionResolved),
)


@attrs.frozen(kw_only=True)
class Batch:
    """Agent events with one stamp; the envelopes are made where somebody wants them."""

    session_id: str
    turn_id: str | None
    incarnation: int
    first_sequence: int
    at_monotonic_s: float
    at_wall_s: float
    events: tuple[AgentEvent, ...]

    def envelopes(self) -> Iterator[SessionEvent]:
        """Yield each event in its envelope."""
        at = dt.datetime.fromtimestamp(self.at_wall_s, tz=dt.UTC)
        for index, event in enumerate(self.events):
            yield SessionEvent(
                session_id=self.session_id,
                turn_id=self.turn_id,
                incarnation=self.incarnation,
                sequence=self.first_sequence + index,
                at_monotonic_s=self.at_monotonic_s,
                at=at,
                event=event,
            )


class Receiver(Protocol):
    """The caller's end of a sink: takes batches and, last, None. Called on the loop; must not block or raise."""

    def __call__(self, batch: Batch | None, /) -> None:
        """Take a batch, or the end."""


class Sink:
    """Counts what is on its way to one caller. The loop calls `put`, `flush` and `end`, the caller `consumed` and `detach`."""

    __slots__ = ("_consumed", "_handed", "_receive", "_waiting", "detached", "dropped", "gone", "held", "on_credit")

    def __init__(self, receive: Receiver, on_credit: Callable[[], None], gone: Callable[[], bool] = lambda: False) -> None:
        self._receive = receive
        self.gone = gone  # whether the caller can never listen again; any thread
        self.on_credit = on_credit
        self._waiting: list[Batch] = []  # the loop's only
        self._handed = 0  # written by the loop only
        self._consumed = 0  # written by the caller only
        self.held = False
        self.detached = False
        self.dropped = 0

    @property
    def outstanding(self) -> int:
        """Events handed out and not yet consumed."""
        return self._handed - self._consumed

    def put(self, batch: Batch) -> bool:
        """Take a batch for the caller; beyond the bound (credit was lifted) only what must not be lost.

        Returns whether it is the first to wait for `flush`.
        """
        if self.detached:
            self.dropped += len(batch.events)
            return False
        if self.outstanding > LIFTED_BOUND:
            kept = tuple(event for event in batch.events if isinstance(event, KEPT_ALWAYS))
            self.dropped += len(batch.events) - len(kept)
            if not kept:
                return False
            batch = attrs.evolve(batch, events=kept)
        self._handed += len(batch.events)
        self._waiting.append(batch)
        return len(self._waiting) == 1

    def flush(self) -> None:
        """Hand what waits to the caller, which wakes it."""
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            self._receive(batch)

    def wants_hold(self) -> bool:
        """Whether the caller is so far behind that its pipe must pause; if so, `on_credit` will be called."""
        if self.detached or self.outstanding < HIGH_WATER:
            return False
        self.held = True
        # The caller may have caught up between the look and the flag; then it has not seen the flag.
        if self.outstanding <= LOW_WATER:
            self.held = False
            return False
        return True

    def end(self) -> None:
        """No event comes any more."""
        self.flush()
        if not self.detached:
            self._receive(None)

    def consumed(self, count: int) -> None:
        """The caller has dealt with `count` events."""
        self._consumed += count
        if self.held and self.outstanding <= LOW_WATER:
            self.held = False
            self.on_credit()

    def detach(self) -> None:
        """The caller listens no more."""
        self.detached = True
        if self.held:
            self.held = False
            self.on_credit()


class TicketState(enum.Enum):
    """Where a ticket stands, for the front door."""

    PREPARED = "prepared"
    BEGUN = "begun"
    CANCELLED = "cancelled"


class TicketCore:
    """The shared half of a ticket."""

    __slots__ = ("_lock", "_on_told", "cell", "recorded", "sent", "session_id", "sink", "state", "turn_id")

    def __init__(self, turn_id: str, session_id: str = "", on_told: Callable[[Turn | BaseException], None] | None = None) -> None:
        self._on_told = on_told
        self.recorded = False
        self.sent = False  # whether an attempt has left; set by the session, before it does
        self.turn_id = turn_id
        self.session_id = session_id
        self.cell: Cell[Turn] = Cell()
        self.sink: Sink | None = None
        self.state = TicketState.PREPARED
        self._lock = threading.Lock()

    @classmethod
    def ended(
        cls, turn_id: str, session_id: str, outcome: Turn | BaseException, on_told: Callable[[Turn | BaseException], None] | None = None
    ) -> TicketCore:
        """Return the core of a turn that ended before: to run it is to be given its outcome, as often as wanted."""
        core = cls(turn_id, session_id, on_told)
        core.recorded = True
        core.state = TicketState.BEGUN
        if isinstance(outcome, BaseException):
            core.cell.fail(outcome)
        else:
            core.cell.settle(outcome)
        return core

    def begin(self, sink: Sink | None) -> None:
        """Mark it begun. Raises its outcome if it was cancelled or superseded before, SessionStateError on a second run."""
        if self.recorded:
            if sink is not None:
                sink.end()
            return
        with self._lock:
            if self.state is TicketState.BEGUN:
                raise SessionStateError(f"turn {self.turn_id!r} was run already; prepare another")
            if self.cell.settled:
                self.cell.get()
            self.state = TicketState.BEGUN
            self.sink = sink

    def cancel(self, error: BaseException) -> bool:
        """Settle it with `error` if it was not begun; return whether it was this call that did."""
        with self._lock:
            if self.state is not TicketState.PREPARED or not self.cell.fail(error):
                return False
            self.state = TicketState.CANCELLED
            return True

    def outcome(self) -> Turn:
        """Return or raise the outcome, to a caller; the first time, `on_told` is called with it."""
        with self._lock:
            on_told, self._on_told = self._on_told, None
        if on_told is not None and self.state is TicketState.BEGUN:
            on_told(self.cell.outcome)
        return self.cell.get()

    def replace(self) -> None:
        """The turn is prepared anew under its id: who reads this ticket from now on is not told what becomes of that."""
        with self._lock:
            self._on_told = None

    def finish(self, turn: Turn) -> None:
        """End it well. Events first: whoever sees the outcome has been handed every event."""
        if self.sink is not None:
            self.sink.end()
        self.cell.settle(turn)

    def fail(self, error: BaseException) -> None:
        """End it with an error."""
        if self.cell.settled:
            return
        if self.sink is not None:
            self.sink.end()
        self.cell.fail(error)
