"""The blocking face of a stream transport: the spec's `Conversation`, with the same driver and codec that the actors use.

Runs on the thread that calls `open` and `turn`; `interrupt`, `steer` and `close` may come from any other. It neither restarts nor recovers.
Between turns nobody reads: what the provider asks then is answered at the start of the next one. Use sessions for everything else.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

import attrs

from greenroom.attachments import load
from greenroom.clock import Clock, SystemClock
from greenroom.errors import GreenroomError, NoRunningTurnError, ProviderCapabilityError, SessionStateError, TransportDiedError
from greenroom.events import AgentEvent
from greenroom.ids import new_nonce
from greenroom.model import ApprovalPolicy, ConversationSpec, TurnRequest, TurnResult
from greenroom.policy.commands import How
from greenroom.policy.wire_ids import proposed_conversation, receipt
from greenroom.transports.base import (
    Attempt,
    AttemptEnded,
    Flags,
    Launch,
    LaunchSpec,
    Output,
    Process,
    Ready,
    Renamed,
    StartFailed,
    StreamTransport,
)
from greenroom.transports.driver import Driver, Ended
from greenroom.transports.guard import host_id
from greenroom.transports.marks import make_mark
from greenroom.transports.process import LocalExecutor
from greenroom.transports.pump import FOREIGN_CLOCK_S, pump, sweep

Action = Callable[[float], list[Output]]


class BlockingConversation:
    """One conversation on the caller's thread. Make it with a stream transport's `open`."""

    def __init__(self, transport: StreamTransport, spec: ConversationSpec) -> None:
        self._transport = transport
        self._spec = spec
        self._clock: Clock = getattr(transport, "clock", None) or SystemClock()
        self._nonce = new_nonce()
        self._id: str | None = None
        self._resumable = spec.resume_id
        self._incarnation = 0
        self._turns = 0
        self._lock = threading.Lock()
        self._actions: list[Action] = []
        self._running = False
        self._closed = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._driver: Driver | None = None
        self._flags: Flags | None = None
        try:
            self._open(transport.flags(spec, TurnRequest("")))
        except BaseException:
            self.close()
            raise

    @property
    def conversation_id(self) -> str | None:
        """The provider's id, once a frame of the provider named it."""
        return self._id

    def turn(self, request: TurnRequest, emit: Callable[[AgentEvent], None]) -> TurnResult:
        """Run one turn; `emit` is called on this thread. Raises what the transport raises; SessionStateError after close."""
        if self._closed:
            raise SessionStateError("the conversation is closed")
        request = load(request)
        self._transport.validate(self._spec, request)
        flags = self._transport.flags(self._spec, request)
        if self._driver is None or self._driver.ended or flags != self._flags:
            self._end(kill=False)
            self._open(flags)
        self._turns += 1
        with self._lock:
            self._running = True
        try:
            return self._run(request, emit)
        finally:
            with self._lock:
                self._running = False
                self._actions.clear()

    def _run(self, request: TurnRequest, emit: Callable[[AgentEvent], None]) -> TurnResult:
        driver, now_s = self._live(), self._clock.monotonic()
        attempt = Attempt(
            turn_id=f"turn-{self._turns}",
            request=request,
            how=How.PROMPT,
            receipt=receipt(self._nonce, self._turns),
            deadline_s=None if request.timeout is None else now_s + request.timeout,
            timeout_s=request.timeout,
        )
        outputs = driver.start_turn(attempt, now_s)
        while True:
            for output in outputs:
                if isinstance(output, AgentEvent):
                    emit(output)
                elif isinstance(output, Renamed):
                    self._id = output.conversation_id
                elif isinstance(output, AttemptEnded):
                    return self._outcome(output)
                elif isinstance(output, Ended):
                    raise self._died(output)
            outputs = self._pump()

    def _outcome(self, ended: AttemptEnded) -> TurnResult:
        self._resumable = self._id or self._resumable
        if ended.forced:
            self._end(kill=True)
        if ended.result is not None:
            return ended.result
        raise ended.error or GreenroomError("the attempt ended without a result")

    def interrupt(self) -> None:
        """End the running turn, from any thread; harmless when there is none."""
        with self._lock:
            if self._running:
                self._actions.append(lambda now_s: self._live().interrupt(now_s))
                self._wake()

    def steer(self, text: str) -> None:
        """Send `text` into the running turn, from any thread. Raises NoRunningTurnError when there is none that can take it."""
        if not self._transport.profile.supports_steer:
            raise ProviderCapabilityError("it takes no text in mid-turn", provider=self._transport.profile.name)
        done = threading.Event()
        taken: list[bool] = []

        def action(now_s: float) -> list[Output]:
            outputs = self._live().steer(text, new_nonce(), now_s)
            taken.append(outputs is not None)
            done.set()
            return outputs or []

        with self._lock:
            if not self._running:
                raise NoRunningTurnError("no turn is running")
            self._actions.append(action)
            self._wake()
        while not done.wait(FOREIGN_CLOCK_S):
            with self._lock:
                if action not in self._actions and not done.is_set() and not self._running:
                    break
        if not any(taken):
            raise NoRunningTurnError("no turn is running that could take the text; nothing was sent")

    def close(self) -> None:
        """End the process. Idempotent; not while another thread is in `turn`."""
        if self._closed:
            return
        self._closed = True
        self._end(kill=False)
        os.close(self._wake_read)
        os.close(self._wake_write)

    # --- inside

    def _live(self) -> Driver:
        if self._driver is None:
            raise SessionStateError("the conversation is closed")
        return self._driver

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def _open(self, flags: Flags) -> None:
        self._incarnation += 1
        self._mark = make_mark(host_id(), "blocking", self._nonce, self._incarnation)
        spec = LaunchSpec(
            spec=self._spec,
            flags=flags,
            incarnation=self._incarnation,
            mark=self._mark,
            resume_id=self._resumable,
            proposed_id=None if self._resumable else proposed_conversation(self._nonce, 1),
            previous_usage=self._spec.previous_usage if self._incarnation == 1 else None,
        )
        launch = self._transport.launch(spec)
        process = self._process(launch)
        self._driver, self._flags = Driver(launch, process), flags
        outputs = self._driver.begin(self._clock.monotonic())
        while True:
            for output in outputs:
                if isinstance(output, Ready):
                    return
                if isinstance(output, StartFailed):
                    self._end(kill=True)
                    raise output.error
                if isinstance(output, Ended):
                    raise self._died(output)
            outputs = self._pump()

    def _process(self, launch: Launch) -> Process:
        try:
            return (self._transport.executor or LocalExecutor()).start(launch.argv, launch.cwd, launch.env)
        except BaseException:
            if launch.settled is not None:
                launch.settled()
            raise

    def _pump(self) -> list[Output]:
        """Wait until something is ready or due, and let the driver see to it."""
        driver = self._live()
        with self._lock:
            actions, self._actions = self._actions, []
        outputs = [output for action in actions for output in action(self._clock.monotonic())]
        if outputs or driver.ended:
            return outputs
        return outputs + pump(driver, self._clock, self._wake_read)

    def _end(self, *, kill: bool) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        self._driver = driver
        driver.shutdown(self._clock.monotonic(), kill=kill)
        while not driver.ended:
            self._pump()
        driver.release()
        self._driver = None
        sweep(self._mark)

    def _died(self, ended: Ended) -> TransportDiedError:
        driver = self._live()
        driver.release()
        self._driver = None
        sweep(self._mark)
        return ended.as_error(driver.launch.argv)


def open_blocking(transport: StreamTransport, spec: ConversationSpec) -> BlockingConversation:
    """Open a conversation on the calling thread. Raises what the start raises."""
    if spec.approvals is ApprovalPolicy.ASK:
        raise ProviderCapabilityError("only a session can wait for a person: ApprovalPolicy.ASK", provider=transport.profile.name)
    transport.validate(attrs.evolve(spec, resume_id=None, previous_usage=None), None)
    return BlockingConversation(transport, spec)
