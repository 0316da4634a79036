"""An actor that owns a process: its pipes, its exit and its deadlines, through a driver. Runs on the loop thread.

What the driver gives is the subclass's to deal with (`follow`). The process is started by a job on the starter thread. If this actor
crashes, the process is killed, and the supervisor reaps it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.dispatcher import Dispatcher, LoopFailed, PipeReady, TimerFired
from greenroom.actors.runtime import LoopActor, Message, tell
from greenroom.actors.threads import described
from greenroom.clock import TimerHandle
from greenroom.errors import GreenroomError
from greenroom.transports.base import Executor, Launch, LinkLaunch, Output, Process
from greenroom.transports.driver import Driver, Wants

Ref = pykka.ActorRef[Any]


@attrs.frozen(kw_only=True)
class Launched(Message):
    """The starter thread has started the process."""

    process: Process
    launch: Launch | LinkLaunch
    reaper: Ref

    def refuse(self) -> None:
        """Nobody owns it any more: it must not live."""
        _settle(self.launch)
        self.process.kill()
        tell(self.reaper, m.ReapProcess(process=self.process))
        self.process.close()


@attrs.frozen(kw_only=True)
class LaunchFailed(Message):
    """The process could not be started."""

    error: GreenroomError


def launch_job(
    prepare: Callable[[], Launch | LinkLaunch], executor: Executor, reaper: Ref, born: Callable[[Process], None] | None = None
) -> Callable[[], Message]:
    """Return the job that starts what `prepare` describes, on the starter thread. A process that nobody takes over goes to `reaper`.

    `born` is told of the process at once, on that thread.
    """

    def job() -> Message:
        launch = None
        try:
            launch = prepare()
            process = executor.start(launch.argv, launch.cwd, launch.env)
            if born is not None:
                born(process)
            return Launched(process=process, launch=launch, reaper=reaper)
        except GreenroomError as error:
            _settle(launch)
            return LaunchFailed(error=error)
        except BaseException as error:  # noqa: BLE001 - a sys.exit included: whatever is raised answers the start
            _settle(launch)
            failure = GreenroomError(f"the process could not be started: {_why(error)}")
            if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
                failure.hint = "a live session has up to five files open: raise the limit (`ulimit -n`), or bound them with `max_live`"
            failure.__cause__ = error
            return LaunchFailed(error=failure)

    return job


def _settle(launch: Launch | LinkLaunch | None) -> None:
    if launch is not None and launch.settled is not None:
        launch.settled()


def crash_reason(error: BaseException) -> str:
    """Return what is said of a crash of ours."""
    return f"its actor crashed: {described(error)}"


def _why(error: BaseException) -> str:
    """Return what the system said, in words; of any other exception its `repr`."""
    return error.strerror if isinstance(error, OSError) and error.strerror else described(error)


@attrs.frozen(kw_only=True)
class _Fds:
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    exit_: int | None = None


class ProcessOwner(LoopActor):
    """Owner of one driver."""

    dispatcher: Dispatcher

    def __init__(self, dispatcher: Dispatcher, *, supervisor: Ref, job: Callable[[], Message]) -> None:
        super().__init__(dispatcher)
        self._supervisor = supervisor
        self._job = job
        self._driver: Driver | None = None
        self._fds = _Fds()
        self._paused = False
        self._interests: dict[int, tuple[bool, bool]] = {}
        self._wants: Wants = (False, False, False, False)
        self._timer: TimerHandle | None = None
        self._now_s = dispatcher.monotonic
        self._timer_due_s: float | None = None

    def follow(self, outputs: list[Output]) -> None:
        """Deal with what the driver gave, in order."""
        raise NotImplementedError

    def on_start(self) -> None:
        """Have the process started."""
        self.dispatcher.offload(self._job, self.actor_ref)

    def _take_over(self, message: Launched) -> Driver:
        """Own the process that was started; `_follow` what its driver's `begin` gives."""
        process = message.process
        # By value: a descriptor may be closed, and its number be another's, before its watch is taken off.
        self._fds = _Fds(stdin=process.stdin_fd, stdout=process.stdout_fd, stderr=process.stderr_fd, exit_=process.exit_fd)
        self._driver = Driver(message.launch, process)
        return self._driver

    def _follow(self, outputs: list[Output]) -> None:
        self.follow(outputs)
        if not self.is_over:
            self._rearm()

    def _serve(self, message: PipeReady | TimerFired | LoopFailed) -> None:
        match message:
            case PipeReady():
                self._pipe(message.fd)
            case TimerFired():
                self._tick()
            case LoopFailed():
                # The new loop knows none of our descriptors; one that does, of whatever loop, must not keep them beyond their end.
                self.crash(message.error, message)

    def _pipe(self, fd: int) -> None:
        driver = self._driver
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
        self._follow(outputs)
        if fd in self._interests:
            self.dispatcher.resume(fd)

    def _tick(self) -> None:
        driver = self._driver
        self._timer = self._timer_due_s = None
        if driver is None or driver.ended:
            return
        now_s = self._now_s()
        # What has been said but not read comes first: a deadline must not beat an answer that is there.
        outputs = driver.stdout_ready(now_s) if driver.wants_stdout and not self._paused else []
        self._follow(outputs + driver.tick(now_s))

    def _read_on(self) -> bool:
        """Read what the process has said, if it is to be read now; return whether that says anything of its silence."""
        driver = self._driver
        if driver is None or driver.ended or self._paused:
            return False
        if driver.wants_stdout:
            self._follow(driver.stdout_ready(self._now_s()))
        return not self.is_over

    def _rearm(self) -> None:
        """Bring watches and the timer in line with what the driver wants."""
        driver = self._driver
        if driver is None:
            return
        wants = driver.wants(paused=self._paused)
        if wants != self._wants:
            self._watch_all(wants)
        due_s = None if driver.ended else driver.deadline_s
        if due_s != self._timer_due_s:
            self._set_timer(due_s)

    def _watch_all(self, wants: Wants) -> None:
        fds, self._wants = self._fds, wants
        exit_, stdout, stderr, stdin = wants
        self._watch(fds.exit_, read=exit_, write=False)
        self._watch(fds.stdout, read=stdout, write=False)
        self._watch(fds.stderr, read=stderr, write=False)
        self._watch(fds.stdin, read=False, write=stdin)

    def _set_timer(self, due_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due_s = None, due_s
        if due_s is not None:
            self._timer = self.dispatcher.call_later(max(0.0, due_s - self._now_s()), self.actor_ref, TimerFired(token=None))

    def _watch(self, fd: int | None, *, read: bool, write: bool) -> None:
        if fd is None or self._interests.get(fd, (False, False)) == (read, write):
            return
        self.dispatcher.watch(fd, self.actor_ref, read=read, write=write)
        if read or write:
            self._interests[fd] = (read, write)
        else:
            self._interests.pop(fd, None)

    def _let_go(self) -> None:
        """The process has ended: watch nothing of it and close what is left."""
        for fd in list(self._interests):
            self.dispatcher.watch(fd, self.actor_ref, read=False, write=False)
        self._interests.clear()
        self._wants = (False, False, False, False)
        self._set_timer(None)
        driver = self._driver
        if driver is not None:
            if driver.io.exit is None:
                tell(self._supervisor, m.ReapProcess(process=driver.process))
            driver.release()

    def _abandon(self) -> None:
        """We crashed: kill the process, and leave it to the supervisor to reap."""
        driver = self._driver
        if driver is not None and not driver.ended:
            driver.abandon()
        self._let_go()
