"""The actor that keeps the guard process alive. Runs on the loop thread; starts and restarts the guard on the starter thread."""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from greenroom.actors.dispatcher import Dispatcher, LoopFailed, PipeReady, TimerFired
from greenroom.actors.runtime import LoopActor, Message
from greenroom.clock import Clock, SystemClock
from greenroom.transports.guard import MAX_SIDS, Guard, host_id
from greenroom.transports.marks import host_prefix

logger = logging.getLogger("greenroom.guard")

MAX_RESTARTS = 5
WITHIN_S = 60.0
REAP_S = 0.05
REAP_ROUNDS = 40


@attrs.frozen(kw_only=True)
class GuardStarted(Message):
    """The starter thread has started a guard (`error` None), or could not."""

    guard: Guard | None
    error: Exception | None

    def refuse(self) -> None:
        """Nobody keeps it: it must not stay. The room was closed while it started; it exits at once, and is reaped on a passing thread."""
        if self.guard is not None:
            self.guard.close()
            threading.Thread(target=_reap, args=(self.guard, SystemClock()), name="greenroom-guard-reaper", daemon=True).start()


@attrs.frozen(kw_only=True)
class SidsSeen(Message):
    """Sessions of processes seen under our marks, for the guard to know."""

    sids: Mapping[int, int]


class GuardianActor(LoopActor):
    """Restarts a guard that dies, within an intensity: without one, a dying host would leave its CLIs running."""

    dispatcher: Dispatcher

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        self._guard: Guard | None = None
        self._latest: Guard | None = None  # assigned on the starter thread, by a job; read there, by a later one
        self._untold: dict[int, int] = {}
        self._fd: int | None = None
        self._deaths: collections.deque[float] = collections.deque(maxlen=MAX_RESTARTS)

    def on_start(self) -> None:
        """Start the first guard."""
        self._offload(lambda: Guard.start([host_prefix(host_id())]))

    def handle(self, message: Any) -> None:
        """Watch the guard, and replace it."""
        match message:
            case GuardStarted():
                self._started(message)
            case PipeReady() | TimerFired():
                self._look()
            case LoopFailed():
                self._watch_again()
            case SidsSeen():
                self._seen(message.sids)
            case _:
                logger.warning("guardian: unexpected %s", type(message).__name__)

    def _seen(self, sids: Mapping[int, int]) -> None:
        """Tell the guard; one that is still being started is told when it is there."""
        if self._guard is not None:
            self._guard.tell_sids(sids)
        else:
            self._untold = {**self._untold, **sids} if len(self._untold) < MAX_SIDS else dict(sids)

    def _offload(self, start: Callable[[], Guard]) -> None:
        def job() -> Message:
            try:
                self._latest = start()
            except Exception as error:  # noqa: BLE001 - without a guard there is still work to do
                return GuardStarted(guard=None, error=error)
            return GuardStarted(guard=self._latest, error=None)

        self.dispatcher.offload(job, self.actor_ref)

    def _started(self, message: GuardStarted) -> None:
        self._guard = message.guard
        if message.guard is None:
            logger.error("no guard: if this process dies, its agents live on (%s)", message.error)
            return
        untold, self._untold = self._untold, {}
        message.guard.tell_sids(untold)
        self._fd = message.guard.exit_fd
        if self._fd is not None:
            self.dispatcher.watch(self._fd, self.actor_ref, read=True, write=False)

    def _look(self) -> None:
        guard = self._guard
        if guard is None or guard.poll() is None:
            if self._fd is not None:
                self.dispatcher.resume(self._fd)
            return
        self._unwatch()
        self._guard = None
        now_s = self.dispatcher.monotonic()
        self._deaths.append(now_s)
        if len(self._deaths) == MAX_RESTARTS and now_s - self._deaths[0] < WITHIN_S:
            logger.error("the guard died %d times within %g s; there is none now", MAX_RESTARTS, WITHIN_S)
            guard.release()
            return
        logger.warning("the guard died; another one is started")
        self._offload(lambda: _replace(guard))

    def _watch_again(self) -> None:
        # The rebuilt loop knows the descriptor no more; the guard itself is as it was.
        if self._fd is not None:
            self.dispatcher.watch(self._fd, self.actor_ref, read=True, write=False)

    def _unwatch(self) -> None:
        if self._fd is not None:
            self.dispatcher.watch(self._fd, self.actor_ref, read=False, write=False)
            self._fd = None

    def on_down(self, error: BaseException | None) -> None:
        """Part with the guard in good order and reap it: it has nothing left to end."""
        del error
        self._unwatch()
        # The starter's jobs run in order: a guard that is just being started is there by then, and must not stay.
        self.dispatcher.offload(self._reap_latest, self.actor_ref)
        self._guard = None

    def _reap_latest(self) -> Message:
        guard, self._latest = self._latest, None
        if guard is not None:
            guard.close()
            _reap(guard, self.dispatcher.clock)
        return GuardGone()


@attrs.frozen(kw_only=True)
class GuardGone(Message):
    """The guard has been reaped; nobody waits for it."""


def _replace(dead: Guard) -> Guard:
    guard = dead.restart()
    dead.release()
    return guard


def _reap(guard: Guard, clock: Clock) -> None:
    # On the starter thread, which is ending with us, or a passing one: a short bounded wait for a process that exits at once.
    for _ in range(REAP_ROUNDS):
        if guard.poll() is not None:
            break
        clock.wait(REAP_S)
    guard.release()
