"""Doubles of the ports, for tests of code that drives sessions: no process, no account, no real waiting.

    transport = FakeTransport([turn_failed(FailureKind.TRANSIENT), FakeTurn(text="done")])
    agent = Agent(transport, permissions=..., approvals=..., clock=FakeClock(), ids=SequentialIds())

They decide nothing that is not scripted, never start a thread, and are safe on any thread. Each passes the contract suite of its port
in `greenroom.testing.contracts`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from greenroom.errors import (
    CliExitError,
    GreenroomError,
    NoRunningTurnError,
    ProviderCapabilityError,
    SessionResumeError,
    SessionStateError,
    TurnFailedError,
    TurnTimeoutError,
)
from greenroom.events import AgentEvent, AssistantText, SessionStarted, SteerConsumed, SteerDelivered, TurnInterrupted
from greenroom.model import Checkpoint, ConversationSpec, FailureKind, ProviderProfile, ProviderUsage, TurnRequest, TurnResult
from greenroom.testing.fake_clock import FakeClock, SequentialIds
from greenroom.transports.checkpoints import InMemoryCheckpointStore

__all__ = [
    "FakeCheckpointStore",
    "FakeClock",
    "FakeConversation",
    "FakeTransport",
    "FakeTurn",
    "Outcome",
    "RecordingEventHandler",
    "SequentialIds",
    "fake_profile",
    "resume_refused",
    "turn_died",
    "turn_failed",
    "turn_timeout",
]

EventT = TypeVar("EventT")
Emit = Callable[[AgentEvent], None]
_FORGOTTEN_S = 30.0
_POLL_S = 0.005


# --- outcomes -------------------------------------------------------------------------------------------------------------------


class FakeTurn:
    """A scripted turn that ends well: `text` is said and is the result's text, after `events` were emitted.

    With `waits=True` it runs until it is interrupted, steered (on a steerable transport; `until_steered=False`: steering alone does not
    end it) or released by `release()`; `started` is set once it waits. `ignores_interrupt=True` leaves interrupts unanswered.
    """

    def __init__(
        self,
        text: str = "",
        *,
        events: Iterable[AgentEvent] = (),
        structured_output: Any = None,
        usage: ProviderUsage | None = None,
        cost_usd: float | None = None,
        duration_ms: int = 0,
        session_id: str | None = None,
        waits: bool = False,
        until_steered: bool = True,
        ignores_interrupt: bool = False,
    ) -> None:
        self.text = text
        self.events = tuple(events)
        self.structured_output = structured_output
        self.usage = usage
        self.cost_usd = cost_usd
        self.duration_ms = duration_ms
        self.session_id = session_id
        self.waits = waits
        self.until_steered = until_steered
        self.ignores_interrupt = ignores_interrupt
        self.started = threading.Event()
        self._released = threading.Event()

    def release(self) -> None:
        """Let a turn that waits end well."""
        self._released.set()

    @property
    def released(self) -> bool:
        """Whether `release()` was called."""
        return self._released.is_set()


Outcome = FakeTurn | GreenroomError


def turn_failed(
    kind: FailureKind = FailureKind.OTHER, detail: str = "scripted failure", *, retry_after_s: float | None = None
) -> TurnFailedError:
    """Return the outcome of a turn that fails with `kind`."""
    return TurnFailedError(kind, detail, retry_after_s=retry_after_s)


def resume_refused(session_id: str | None = None, *, in_use: bool = False) -> SessionResumeError:
    """Return the outcome of a conversation that cannot be resumed: it is gone, or `in_use`."""
    return SessionResumeError(session_id, in_use=in_use)


def turn_timeout(timeout: float = 60.0) -> TurnTimeoutError:
    """Return the outcome of an attempt that took longer than `timeout` seconds."""
    return TurnTimeoutError(timeout)


def turn_died(returncode: int | None = None, *, signal: int | None = 9, stderr: str = "") -> CliExitError:
    """Return the outcome of a turn whose process died: by `signal`, or with `returncode`."""
    return CliExitError(("fake",), returncode if returncode is not None else -(signal or 0), "", stderr)


# --- the transport ----------------------------------------------------------------------------------------------------------------


def fake_profile(**overrides: Any) -> ProviderProfile:
    """Return the profile of a provider that can resume, and nothing else; `overrides` are fields of `ProviderProfile`."""
    return ProviderProfile(**{"name": "fake", "display_name": "Fake", **overrides})


class FakeConversation:
    """A conversation of `FakeTransport`. Its id is public from its first turn on, or from the start where it was resumed."""

    def __init__(self, transport: FakeTransport, spec: ConversationSpec, conversation_id: str) -> None:
        self.spec = spec
        self.closed = False
        self._transport = transport
        self._id = conversation_id
        self._known = spec.resume_id is not None
        self._changed = threading.Condition()
        self._running: FakeTurn | None = None
        self._interrupted = False
        self._steers: list[str] = []

    @property
    def conversation_id(self) -> str | None:
        """The id, once it is known."""
        return self._id if self._known else None

    def turn(self, request: TurnRequest, emit: Emit) -> TurnResult:
        """Play the next outcome. Raises what it says, or SessionStateError after `close`."""
        if self.closed:
            raise SessionStateError(f"conversation {self._id!r} is closed")
        return self._play(self._transport.next_outcome(request), emit)

    def interrupt(self) -> None:
        """End the turn that waits; nothing if none does."""
        with self._changed:
            if self._running is not None and not self._running.ignores_interrupt:
                self._interrupted = True
                self._changed.notify_all()

    def close(self) -> None:
        """Close it; a turn that waits ends as interrupted."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _play(self, outcome: Outcome, emit: Emit) -> TurnResult:
        if isinstance(outcome, GreenroomError):
            raise outcome
        if outcome.session_id is not None:
            self._id = outcome.session_id
        if not self._known or outcome.session_id is not None:
            self._known = True
            emit(SessionStarted(self._id))
        interrupted = self._run(outcome, emit)
        if interrupted:
            emit(TurnInterrupted())
        elif outcome.text:
            emit(AssistantText(outcome.text))
        return self._result(outcome, interrupted=interrupted)

    def _run(self, turn: FakeTurn, emit: Emit) -> bool:
        with self._changed:
            self._running, self._interrupted, self._steers = turn, False, []
        try:
            for event in turn.events:
                emit(event)
            if turn.waits:
                self._wait(turn, emit)
        finally:
            with self._changed:
                self._running = None
                late, self._steers = self._steers, []
        self._tell(late, emit)
        return self._interrupted or (turn.waits and self.closed)

    def _wait(self, turn: FakeTurn, emit: Emit) -> None:
        turn.started.set()
        for _ in range(int(_FORGOTTEN_S / _POLL_S)):
            with self._changed:
                self._changed.wait_for(lambda: self._over(turn), _POLL_S)
                steers, self._steers = self._steers, []
                over = self._over(turn) or (bool(steers) and turn.until_steered)
            self._tell(steers, emit)
            if over:
                return
        raise TurnFailedError(FailureKind.OTHER, f"the FakeTurn was neither released nor interrupted within {_FORGOTTEN_S:g} s")

    def _over(self, turn: FakeTurn) -> bool:
        return self._interrupted or self.closed or turn.released or bool(self._steers)

    def _tell(self, steers: Sequence[str], emit: Emit) -> None:
        for text in steers:
            emit(SteerDelivered(text))
            emit(SteerConsumed(text))

    def _result(self, turn: FakeTurn, *, interrupted: bool) -> TurnResult:
        return TurnResult(
            text="" if interrupted else turn.text,
            structured_output=turn.structured_output,
            session_id=self._id,
            resumed=self.spec.resume_id is not None,
            usage=turn.usage,
            cost_usd=turn.cost_usd,
            duration_ms=turn.duration_ms,
            interrupted=interrupted,
        )


class _Steering(FakeConversation):
    """Takes text while a turn waits."""

    def steer(self, text: str) -> None:
        """Send `text` into the turn that waits. Raises NoRunningTurnError when none does."""
        with self._changed:
            turn = self._running
            if turn is None or not turn.started.is_set() or self._interrupted or turn.released:
                raise NoRunningTurnError("no turn is running that could take the text")
            self._steers.append(text)
            self._transport.steers.append(text)
            self._changed.notify_all()


class _Retrying(FakeConversation):
    """Retries in place: without a second prompt."""

    def retry(self, emit: Emit) -> TurnResult:
        """Play the next outcome as a retry of the failed attempt."""
        return self._play(self._transport.next_retry(), emit)


class _SteeringRetrying(_Steering, _Retrying):
    """Both."""


_CONVERSATIONS = {(False, False): FakeConversation, (True, False): _Steering, (False, True): _Retrying, (True, True): _SteeringRetrying}


_homes = itertools.count(1)


class FakeTransport:
    """A transport that plays `outcomes`, one for each attempt of any of its conversations, in order.

    An outcome is a `FakeTurn` or an error to raise (`turn_failed`, `resume_refused`, `turn_timeout`, `turn_died`); without `outcomes`
    every turn answers `echo: <prompt>`. `opens` does the same for `open`: an error to raise, or None. `steerable` conversations take
    text; `retries_in_place` gives them `retry(emit)`;
    with the same `state_home` two of them are one provider. What happened is in `specs`, `conversations`, `requests`, `steers`, `retries`.
    """

    def __init__(
        self,
        outcomes: Iterable[Outcome] | None = None,
        *,
        opens: Iterable[GreenroomError | None] = (),
        profile: ProviderProfile | None = None,
        steerable: bool = False,
        retries_in_place: bool = False,
        state_home: str | None = None,
    ) -> None:
        self.specs: list[ConversationSpec] = []
        self.conversations: list[FakeConversation] = []
        self.requests: list[TurnRequest] = []
        self.steers: list[str] = []
        self.retries = 0
        # Its conversations are not those of another one, though their ids are the same; unless it is to stand for the same provider.
        self.state_home = state_home or f"fake-{next(_homes)}"
        self._lock = threading.Lock()
        self._outcomes = None if outcomes is None else list(outcomes)
        self._opens = list(opens)
        self._profile = profile or fake_profile(supports_steer=steerable, retries_in_place=retries_in_place)
        self._kind: type[FakeConversation] = _CONVERSATIONS[steerable, retries_in_place]

    @property
    def profile(self) -> ProviderProfile:
        """What the fake provider can do."""
        return self._profile

    def open(self, spec: ConversationSpec) -> FakeConversation:
        """Open a conversation. Raises what `opens` says, and ProviderCapabilityError for a mode that the profile does not declare."""
        if spec.permissions.mode not in self._profile.native_permission_modes:
            raise ProviderCapabilityError(f"permission mode {spec.permissions.mode.value} is not supported", provider=self._profile.name)
        with self._lock:
            self.specs.append(spec)
            refusal = self._opens.pop(0) if self._opens else None
            if refusal is not None:
                raise refusal
            conversation = self._kind(self, spec, spec.resume_id or f"conv-{len(self.conversations) + 1}")
            self.conversations.append(conversation)
            return conversation

    def add(self, *outcomes: Outcome) -> None:
        """Add outcomes behind those that are left."""
        with self._lock:
            self._outcomes = [*(self._outcomes or ()), *outcomes]

    def next_outcome(self, request: TurnRequest) -> Outcome:
        """Take the next outcome for `request` (called by its conversations)."""
        with self._lock:
            self.requests.append(request)
            return self._take(f"echo: {request.prompt}")

    def next_retry(self) -> Outcome:
        """Take the next outcome for a retry in place (called by its conversations)."""
        with self._lock:
            self.retries += 1
            return self._take("retried")

    def _take(self, text: str) -> Outcome:
        if self._outcomes is None:
            return FakeTurn(text)
        if not self._outcomes:
            return turn_failed(FailureKind.OTHER, "the FakeTransport has no outcome left")
        return self._outcomes.pop(0)


# --- stores and handlers ----------------------------------------------------------------------------------------------------------


class FakeCheckpointStore(InMemoryCheckpointStore):
    """A store that remembers what it was asked, in `calls` as (method, key), and raises `error` while it is set."""

    def __init__(self, **kept: Checkpoint) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.error: Exception | None = None
        for key, checkpoint in kept.items():
            super().save(key, checkpoint)

    def load(self, key: str) -> Checkpoint | None:
        """Return what was saved last under `key`, or None."""
        self._called("load", key)
        return super().load(key)

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` under `key`."""
        self._called("save", key)
        super().save(key, checkpoint)

    def clear(self, key: str) -> None:
        """Forget what is kept under `key`."""
        self._called("clear", key)
        super().clear(key)

    def _called(self, method: str, key: str) -> None:
        self.calls.append((method, key))
        if self.error is not None:
            raise self.error


class RecordingEventHandler:
    """Keeps the events it gets, in order; an object with `on_event` and a callable at once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Any] = []

    def on_event(self, event: Any) -> None:
        """Keep one event."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    __call__ = on_event

    @property
    def events(self) -> tuple[Any, ...]:
        """All events so far."""
        with self._changed:
            return tuple(self._events)

    def of(self, kind: type[EventT]) -> tuple[EventT, ...]:
        """Return the events of one class."""
        return tuple(event for event in self.events if isinstance(event, kind))

    def wait_for(self, kind: type, count: int = 1, timeout_s: float = _FORGOTTEN_S) -> bool:
        """Block until `count` events of a class have come; False after `timeout_s` seconds of real time."""
        with self._changed:
            return self._changed.wait_for(lambda: sum(isinstance(event, kind) for event in self._events) >= count, timeout_s)
