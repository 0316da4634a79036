"""The actor of one process of a stream transport: owns its driver, serves its pipes, tells its session what follows.

Runs on the loop thread and decides nothing about turns. Its life: a job on the starter thread starts the process; the driver pumps; when
the driver has ended, the session gets Down (behind everything that the process said) and the supervisor ProcessGone. If this actor
crashes, both still come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.dispatcher import Dispatcher, LoopFailed, PipeReady, TimerFired
from greenroom.actors.runtime import LoopActor, Message, tell
from greenroom.clock import TimerHandle
from greenroom.errors import GreenroomError, NoRunningTurnError, TransportDiedError
from greenroom.events import AgentEvent
from greenroom.model import ProviderUsage
from greenroom.transports.base import (
    AttemptEnded,
    AttemptSwallowed,
    Booked,
    Executor,
    Launch,
    LaunchSpec,
    Output,
    Process,
    Ready,
    Renamed,
    Signal,
    StartFailed,
    StreamTransport,
    Urgent,
)
from greenroom.transports.driver import Driver, Ended

logger = logging.getLogger("greenroom.conversation")

Ref = pykka.ActorRef[Any]


@attrs.frozen(kw_only=True)
class Launched(Message):
    """The starter thread has started the process."""

    process: Process
    launch: Launch
    reaper: Ref

    def refuse(self) -> None:
        """Nobody owns it any more: it must not live."""
        self.process.kill()
        tell(self.reaper, m.ReapProcess(process=self.process))
        self.process.close()


@attrs.frozen(kw_only=True)
class LaunchFailed(Message):
    """The process could not be started."""

    error: GreenroomError


@attrs.frozen(kw_only=True)
class _Fds:
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    exit_: int | None = None


def launch_job(transport: StreamTransport, spec: LaunchSpec, executor: Executor, reaper: Ref) -> Callable[[], Message]:
    """Return the job that starts the process, on the starter thread. The transport's own executor comes before `executor`."""

    def job() -> Message:
        try:
            launch = transport.launch(spec)
            process = (transport.executor or executor).start(launch.argv, launch.cwd, launch.env)
            return Launched(process=process, launch=launch, reaper=reaper)
        except GreenroomError as error:
            return LaunchFailed(error=error)
        except BaseException as error:  # noqa: BLE001 - a sys.exit included: whatever a transport raises is an answer to the start, never a hang
            failure = GreenroomError(f"the process could not be started: {error!r}")
            failure.__cause__ = error
            return LaunchFailed(error=failure)

    return job


class ConversationActor(LoopActor):
    """Owner of one driver."""

    dispatcher: Dispatcher

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        session_id: str,
        session: Ref,
        supervisor: Ref,
        spec: LaunchSpec,
        job: Callable[[], Message],
    ) -> None:
        super().__init__(dispatcher)
        self._session_id = session_id
        self._session = session
        self._supervisor = supervisor
        self._spec = spec
        self._job = job
        self._driver: Driver | None = None
        self._argv: tuple[str, ...] = ()
        self._process: Process | None = None
        self._fds = _Fds()
        self._ending: m.EndConversation | None = None
        self._turn_id: str | None = None
        self._turn_began_s = 0.0
        self._held = False
        self._urgent = False
        self._interests: dict[int, tuple[bool, bool]] = {}
        self._timer: TimerHandle | None = None
        self._timer_due_s: float | None = None
        self._settled = False
        self._down = False

    @property
    def _incarnation(self) -> int:
        return self._spec.incarnation

    def on_start(self) -> None:
        """Have the process started."""
        self.dispatcher.offload(self._job, self.actor_ref)

    def handle(self, message: Any) -> None:  # noqa: C901 - one line a case
        """Pass each message to the driver, and on what follows."""
        match message:
            case PipeReady():
                self._pipe(message)
            case TimerFired():
                self._tick()
            case m.RunAttempt():
                self._run(message)
            case m.SteerAttempt():
                self._steer(message)
            case m.InterruptTurn():
                self._interrupt(message)
            case m.HoldReading():
                self._held = message.hold
                self._rearm()
            case m.EndConversation():
                self._end_process(message)
            case Launched():
                self._launched(message)
            case LaunchFailed():
                self._launch_failed(message.error)
            case LoopFailed():
                self._loop_failed(message)
            case _:
                logger.warning("conversation of %s: unexpected %s", self._session_id, type(message).__name__)

    def _now_s(self) -> float:
        return self.dispatcher.monotonic()

    # --- start

    def _launched(self, message: Launched) -> None:
        self._process = message.process
        self._argv = message.launch.argv
        process = message.process
        # By value: a descriptor may be closed, and its number be another's, before its watch is taken off.
        self._fds = _Fds(stdin=process.stdin_fd, stdout=process.stdout_fd, stderr=process.stderr_fd, exit_=process.exit_fd)
        driver = self._driver = Driver(message.launch, message.process)
        now_s = self._now_s()
        outputs = driver.begin(now_s)
        if self._ending is not None:
            outputs += driver.shutdown(now_s, kill=self._ending.kill, reason=self._ending.reason)
        self._pass_on(outputs)

    def _launch_failed(self, error: GreenroomError) -> None:
        self._settle_start()
        if self._ending is None:
            self._tell(m.OpenFailed(incarnation=self._incarnation, error=error, killed=False))
        self._report_down(TransportDiedError(reason="it was never started"), expected=True)
        self.finish()

    def _settle_start(self) -> None:
        if not self._settled:
            self._settled = True
            tell(self._supervisor, m.StartSettled(session_id=self._session_id, incarnation=self._incarnation))

    # --- work

    def _run(self, message: m.RunAttempt) -> None:
        driver = self._driver
        if driver is None or driver.ended or driver.closing:
            return  # its Down is on the way; the session does what is right
        self._turn_id = message.attempt.turn_id
        self._turn_began_s = self._now_s()
        self._urgent = False
        self._pass_on(driver.start_turn(message.attempt, self._turn_began_s))

    def _steer(self, message: m.SteerAttempt) -> None:
        outputs = None
        if self._driver is not None and message.turn_id == self._turn_id:
            outputs = self._driver.steer(message.text, message.steer_id, self._now_s())
        if outputs is None:
            message.reply_to.fail(NoRunningTurnError("no turn is running that could take the text; nothing was sent"))
            return
        message.reply_to.settle(None)
        self._pass_on(outputs)

    def _interrupt(self, message: m.InterruptTurn) -> None:
        if self._driver is not None and message.turn_id == self._turn_id:
            self._urgent = True
            self._pass_on(self._driver.interrupt(self._now_s()))

    def _end_process(self, message: m.EndConversation) -> None:
        self._ending = message
        if self._driver is not None:
            self._urgent = True
            self._pass_on(self._driver.shutdown(self._now_s(), kill=message.kill, reason=message.reason))

    # --- pipes and time

    def _pipe(self, message: PipeReady) -> None:
        driver, fd = self._driver, message.fd
        if driver is None or driver.ended or fd not in self._interests:
            return
        fds, now_s = self._fds, self._now_s()
        if fd == fds.stdout:
            outputs = driver.stdout_ready(now_s)
        elif fd == fds.stderr:
            outputs = driver.stderr_ready(now_s)
        elif fd == fds.stdin:
            outputs = driver.stdin_ready(now_s)
        else:
            outputs = driver.exit_ready(now_s)
        self._pass_on(outputs)
        if fd in self._interests:
            self.dispatcher.resume(fd)

    def _tick(self) -> None:
        driver = self._driver
        self._timer = self._timer_due_s = None
        if driver is None or driver.ended:
            return
        now_s = self._now_s()
        # What has been said but not read comes first: a deadline must not beat an answer that is there.
        outputs = driver.stdout_ready(now_s) if driver.wants_stdout and not self._paused() else []
        self._pass_on(outputs + driver.tick(now_s))

    def _paused(self) -> bool:
        return self._held and not self._urgent

    def _rearm(self) -> None:
        """Bring watches and the timer in line with what the driver wants."""
        driver = self._driver
        if driver is None:
            return
        fds = self._fds
        self._watch(fds.exit_, read=driver.wants_exit, write=False)
        self._watch(fds.stdout, read=driver.wants_stdout and not self._paused(), write=False)
        self._watch(fds.stderr, read=driver.wants_stderr, write=False)
        self._watch(fds.stdin, read=False, write=driver.wants_write)
        due_s = None if driver.ended else driver.deadline_s
        if due_s != self._timer_due_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due_s = due_s
            self._timer = (
                None
                if due_s is None
                else self.dispatcher.call_later(max(0.0, due_s - self._now_s()), self.actor_ref, TimerFired(token=None))
            )

    def _watch(self, fd: int | None, *, read: bool, write: bool) -> None:
        if fd is None or self._interests.get(fd, (False, False)) == (read, write):
            return
        self.dispatcher.watch(fd, self.actor_ref, read=read, write=write)
        if read or write:
            self._interests[fd] = (read, write)
        else:
            self._interests.pop(fd, None)

    def _unwatch_all(self) -> None:
        for fd in list(self._interests):
            self.dispatcher.watch(fd, self.actor_ref, read=False, write=False)
        self._interests.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what follows

    def _pass_on(self, outputs: list[Output]) -> None:
        """Tell the session, in order; events that come together travel together."""
        events: list[AgentEvent] = []
        for output in outputs:
            if isinstance(output, AgentEvent):
                events.append(output)
                continue
            self._flush(events)
            self._signal(output)
        self._flush(events)
        if not self.actor_stopped.is_set():
            self._rearm()

    def _flush(self, events: list[AgentEvent]) -> None:
        if events:
            self._tell(m.TurnEvent(incarnation=self._incarnation, turn_id=self._turn_id, events=tuple(events)))
            events.clear()

    def _signal(self, signal: Signal) -> None:
        incarnation = self._incarnation
        match signal:
            case Ready():
                self._settle_start()
                self._tell(m.ConversationOpened(incarnation=incarnation, conversation_id=signal.conversation_id))
            case Renamed():
                self._tell(m.ConversationNamed(incarnation=incarnation, conversation_id=signal.conversation_id))
            case StartFailed():
                self._settle_start()
                if self._ending is None:
                    self._tell(m.OpenFailed(incarnation=incarnation, error=signal.error, killed=True))
            case AttemptEnded():
                self._turn_id = None
                self._tell(_turn_ended(incarnation, signal))
            case AttemptSwallowed():
                self._turn_id = None
                self._tell(m.TurnSwallowed(incarnation=incarnation, turn_id=signal.turn_id))
            case Booked():
                self._tell(m.Spent(incarnation=incarnation, usage=signal.usage))
            case Urgent():
                self._urgent = True
            case Ended():
                self._ended(signal)
            case _:
                logger.warning("conversation of %s: unknown signal %s", self._session_id, type(signal).__name__)

    def _tell(self, message: Message) -> None:
        tell(self._session, message)

    # --- end

    def _ended(self, ended: Ended) -> None:
        error = TransportDiedError(
            self._argv,
            ended.exit_.returncode,
            "",
            ended.stderr_tail,
            signal=ended.exit_.signal,
            reason=ended.reason,
            usage=ended.usage,
        )
        self._report_down(error, expected=ended.expected, refused=ended.refused, sent=ended.sent, usage=ended.usage)
        self._unwatch_all()
        if self._driver is not None:
            self._driver.release()
        self.finish()

    def _report_down(
        self,
        error: TransportDiedError,
        *,
        expected: bool = False,
        refused: bool = False,
        sent: bool = False,
        usage: ProviderUsage | None = None,
    ) -> None:
        if self._down:
            return
        self._down = True
        self._settle_start()
        duration_ms = int((self._now_s() - self._turn_began_s) * 1e3) if self._turn_id is not None else 0
        self._tell(
            m.Down(
                incarnation=self._incarnation,
                error=error,
                expected=expected,
                refused=refused,
                sent=sent,
                usage=usage,
                duration_ms=duration_ms,
            )
        )
        mark = self._spec.mark if self._process is not None else None
        tell(self._supervisor, m.ProcessGone(session_id=self._session_id, incarnation=self._incarnation, mark=mark))

    def _loop_failed(self, message: LoopFailed) -> None:
        # The new loop knows none of our descriptors.
        self._interests.clear()
        self.crash(message.error, message)

    def on_down(self, error: BaseException | None) -> None:
        """Leave nothing: a crash of ours ends the process, and the session learns of it like of any other death."""
        self._unwatch_all()
        sent = self._driver is not None and self._driver.codec.sent
        if self._driver is not None and not self._driver.ended:
            self._driver.abandon()
            tell(self._supervisor, m.ReapProcess(process=self._driver.process))
            self._driver.release()
        if error is not None:
            self._report_down(TransportDiedError(self._argv, reason=f"its actor crashed: {error!r}"), sent=sent)


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
        keeps_conversation=ended.keeps_conversation,
        forced=ended.forced,
    )
