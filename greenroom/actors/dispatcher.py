"""What runs actors: one loop thread with their messages, timers, pipes and exits; or a test, by hand. Decides order and fairness only.

The loop thread serves whole rounds: every ready actor gets a bounded share, and behind it whoever it woke, so that a line goes from its
pipe to its caller at once; then the next. Who is sent a control message comes first. `select` is entered when none is ready, and looked
at without waiting after each round. Blocking jobs (a fork and exec, a scan of /proc) go to one starter thread, and each
answers with a message.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import io
import itertools
import logging
import os
import random
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import attrs

from greenroom.actors.runtime import LoopActor, Message, log, tell
from greenroom.actors.threads import InlineWorker, Job, Ref, Starter, ThreadWorker, Worker
from greenroom.clock import LONGEST_SLEEP_S, Clock, SystemClock, TimerHandle

BATCH_MESSAGES = 64
# How many of those whom an actor woke, and whom these woke, have their turn right behind it: longer chains must not keep others waiting.
WOKEN_AT_ONCE = 16
# A loop that never waits gives up the GIL for an instant at every look, and has it back before a thread that waits for it is awake;
# CPython forces a switch only on a holder of a whole switch interval, which each look starts anew. So a busy loop rests for a moment:
# without it, a caller beside a saturated loop waits for 0.3 s a message (seen with 3.11 on two cores); with it, for some milliseconds.
REST_AFTER_S = 0.002
REST_S = 50e-6


@attrs.frozen(kw_only=True)
class PipeReady(Message):
    """A watched descriptor is ready. Ordinary, so that a loud pipe waits its turn; at most one a descriptor is on its way."""

    fd: int


@attrs.frozen(kw_only=True)
class TimerFired(Message):
    """A timer of the actor fired. `token` is what it was set with."""

    token: Any
    control = True


class Dispatcher(Protocol):
    """What actors ask of whatever runs them. All from the dispatcher's own thread, but `schedule`, `call_later` and `offload` from any."""

    clock: Clock

    def schedule(self, actor: LoopActor, *, first: bool = False) -> None:
        """Let `actor` have a turn soon; `first`: before others that wait."""

    def monotonic(self) -> float:
        """Return the clock's time in seconds."""
        ...

    def call_later(self, delay_s: float, ref: Ref, message: Message, *, is_wait: bool = False) -> TimerHandle:
        """Tell `ref` the message after `delay_s`."""
        ...

    def watch(self, fd: int, ref: Ref, *, read: bool, write: bool) -> None:
        """Report readiness of `fd` to `ref` as PipeReady; both False: stop watching."""

    def resume(self, fd: int) -> None:
        """The last PipeReady of `fd` has been dealt with: report again."""

    def offload(self, job: Job, ref: Ref) -> None:
        """Run `job` on the starter thread and tell `ref` the message that it returns."""

    def after_round(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the actors that are ready have had their turn: whoever it wakes does not fight them for the GIL."""

    def worker(self, owner: Ref, name: str) -> Worker:
        """Return a worker for jobs that block for as long as they like."""
        ...


class _HeapTimer:
    __slots__ = ("cancelled", "message", "ref")

    def __init__(self, ref: Ref, message: Message) -> None:
        self.ref: Ref | None = ref
        self.message: Message | None = message
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self.ref = self.message = None


class _Pipe:
    __slots__ = ("mask", "pending", "ready", "ref", "registered")

    def __init__(self, ref: Ref, fd: int) -> None:
        self.ref = ref
        self.ready = PipeReady(fd=fd)
        self.mask = 0
        self.registered = 0
        self.pending = False


class _Pipes:
    """Descriptors under watch. A descriptor whose PipeReady is on its way is out of the selector: level-triggered, it would fire again."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._pipes: dict[int, _Pipe] = {}
        self._reported: list[int] = []

    def watch(self, fd: int, ref: Ref, mask: int) -> None:
        pipe = self._pipes.get(fd)
        if pipe is None:
            if not mask:
                return
            pipe = self._pipes[fd] = _Pipe(ref, fd)
        pipe.ref, pipe.mask = ref, mask
        if not mask:
            del self._pipes[fd]
            pipe.pending = False
        self._sync(fd, pipe)

    def resume(self, fd: int) -> None:
        pipe = self._pipes.get(fd)
        if pipe is not None:
            pipe.pending = False
            self._sync(fd, pipe)

    def _sync(self, fd: int, pipe: _Pipe) -> None:
        wanted = 0 if pipe.pending else pipe.mask
        if wanted == pipe.registered:
            return
        if not wanted:
            self.selector.unregister(fd)
        elif not pipe.registered:
            self.selector.register(fd, wanted)
        else:
            self.selector.modify(fd, wanted)
        pipe.registered = wanted

    def report(self, ready: list[tuple[selectors.SelectorKey, int]], wake_fd: int | None = None) -> bool:
        """Report what the selector found ready; return whether the wake descriptor was among it."""
        woken = False
        for key, _ in ready:
            if key.fd == wake_fd:
                woken = True
                continue
            pipe = self._pipes[key.fd]
            pipe.pending = True
            self._reported.append(key.fd)
            # Left registered for now: the reader usually resumes it within the same round, which then costs no system call.
            tell(pipe.ref, pipe.ready)
        return woken

    def settle(self) -> None:
        """Take out what is still pending before the selector is asked again."""
        for fd in self._reported:
            pipe = self._pipes.get(fd)
            if pipe is not None and pipe.pending:
                self._sync(fd, pipe)
        self._reported.clear()

    def refs(self) -> list[Ref]:
        return [pipe.ref for pipe in self._pipes.values()]

    def close(self) -> None:
        self.selector.close()


def _mask(*, read: bool, write: bool) -> int:
    return (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)


class _ClockTimer:
    """A timer on a clock that is not the machine's."""

    def __init__(self, clock: Clock, delay_s: float, ref: Ref, message: Message, *, is_wait: bool) -> None:
        self._live = True
        self._handle = clock.call_later(delay_s, lambda: self._fire(ref, message), is_wait=is_wait)

    def _fire(self, ref: Ref, message: Message) -> None:
        if self._live:
            tell(ref, message)

    def cancel(self) -> None:
        self._live = False
        self._handle.cancel()


class LoopDispatcher:
    """The loop thread. Started by its constructor; `stop` ends it, from any thread but its own."""

    def __init__(self, *, name: str = "greenroom-loop", starter: bool = True) -> None:
        self.clock: Clock = SystemClock()
        self.monotonic = self.clock.monotonic
        self._ready: collections.deque[LoopActor] = collections.deque()
        self._urgent: collections.deque[LoopActor] = collections.deque()
        self._woken: collections.deque[LoopActor] = collections.deque()  # by the loop's own thread, which alone uses it
        self._timers: list[tuple[float, int, _HeapTimer]] = []
        self._new_timers: collections.deque[tuple[float, int, _HeapTimer]] = collections.deque()
        self._timer_ids = itertools.count()
        self._after_round: collections.deque[Callable[[], None]] = collections.deque()
        self._pipes = _Pipes()
        self._wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        # A file, which knows when it is closed: the number may be another's then.
        self._wake_write = io.FileIO(wake_write, "wb")
        self._pipes.selector.register(self._wake_read, selectors.EVENT_READ)
        self._sleeping = False
        self._stopping = False
        self._rested_s = 0.0
        self._starter = Starter(f"{name}-starter") if starter else None
        self._ident: int | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    # --- from any thread

    def schedule(self, actor: LoopActor, *, first: bool = False) -> None:
        """Let `actor` have a turn soon; `first`: before others that wait."""
        if threading.get_ident() == self._ident:
            self._woken.append(actor)
            return
        (self._urgent if first else self._ready).append(actor)
        if self._sleeping:
            self._wake()

    def call_later(self, delay_s: float, ref: Ref, message: Message, *, is_wait: bool = False) -> TimerHandle:
        """Tell `ref` the message after `delay_s`."""
        timer = _HeapTimer(ref, message)
        self._new_timers.append((self.clock.monotonic() + delay_s, next(self._timer_ids), timer))
        if self._sleeping:
            self._wake()
        return timer

    def offload(self, job: Job, ref: Ref) -> None:
        """Run `job` on the starter thread and tell `ref` the message that it returns."""
        if self._starter is None:
            raise RuntimeError("this dispatcher has no starter thread")
        self._starter.submit(job, ref)

    def worker(self, owner: Ref, name: str) -> Worker:
        """Return a worker with a thread of its own."""
        return ThreadWorker(owner, name)

    def _wake(self) -> None:
        with contextlib.suppress(ValueError, OSError):  # closed: it has ended; full is no error: it will wake
            self._wake_write.write(b"\0")

    def on_own_thread(self) -> bool:
        """Whether the caller is the loop itself (which must never wait for the loop)."""
        return threading.current_thread() is self._thread

    def stop(self, patience_s: float | None = None) -> bool:
        """End both threads, once what is scheduled has run; actors must have been told to stop before. Return whether the loop has ended.

        With `patience_s` only that long is waited for the loop: one that runs code of users may be stuck in it for ever.
        """
        self._stopping = True
        self._wake()
        if not self.on_own_thread():
            self._thread.join(patience_s)
        if self._starter is not None:
            self._starter.stop()
        return self.on_own_thread() or not self._thread.is_alive()

    # --- from the loop's own thread

    def after_round(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the actors that are ready have had their turn."""
        self._after_round.append(callback)

    def watch(self, fd: int, ref: Ref, *, read: bool, write: bool) -> None:
        """Report readiness of `fd` to `ref`; both False: stop watching."""
        self._pipes.watch(fd, ref, _mask(read=read, write=write))

    def resume(self, fd: int) -> None:
        """Report readiness of `fd` again."""
        self._pipes.resume(fd)

    def _main(self) -> None:
        self._ident = threading.get_ident()
        while True:
            try:
                self._run()
                break
            except BaseException as error:  # noqa: BLE001
                log(logging.ERROR, "the loop failed; it is rebuilt, and every link it served gets its end", error=error)
                self._rebuild(error)
        self._pipes.close()
        self._wake_write.close()
        os.close(self._wake_read)

    def _run(self) -> None:
        while True:
            self._fire_timers()
            self._round()
            if self._after_round:
                self._end_round()
            if self._stopping and not self._ready and not self._urgent:
                return
            self._pipes.settle()
            self._sleep()

    def _round(self) -> None:
        ready, urgent = self._ready, self._urgent
        for _ in range(len(ready)):
            # One at a time: whoever is sent control messages without end must not keep the others waiting either.
            if urgent:
                self._serve(urgent.popleft())
            self._serve(ready.popleft())
        for _ in range(len(urgent)):
            self._serve(urgent.popleft())

    def _serve(self, actor: LoopActor) -> None:
        """Let `actor` have its turn, and those whom it wakes theirs."""
        ready, woken = self._ready, self._woken
        if actor.run_batch(BATCH_MESSAGES):
            ready.append(actor)
        for _ in range(WOKEN_AT_ONCE):
            if not woken:
                return
            actor = woken.popleft()
            if actor.run_batch(BATCH_MESSAGES):
                ready.append(actor)
        self._line_up()

    def _line_up(self) -> None:
        """Have those who were woken by the loop's own thread wait for their turn."""
        for actor in self._woken:
            (self._urgent if actor.is_urgent else self._ready).append(actor)
        self._woken.clear()

    def _end_round(self) -> None:
        # One by one, and none twice: what a callback that fails leaves behind is called when the loop is rebuilt.
        for _ in range(len(self._after_round)):
            self._after_round.popleft()()
        self._line_up()

    def _sleep(self) -> None:
        # The flag first, the look second: whoever schedules after the look sees the flag and wakes us.
        self._sleeping = True
        timeout_s = 0.0 if self._ready or self._urgent or self._new_timers or self._stopping else self._until_next_timer()
        try:
            began_s = self.clock.monotonic()
            ready = self._pipes.selector.select(timeout_s)
            self._rest(began_s)
        finally:
            # Before the reports: they schedule, and must not wake us, who are awake.
            self._sleeping = False
        woken = self._pipes.report(ready, self._wake_read)
        self._line_up()
        if woken:
            os.read(self._wake_read, 4096)

    def _rest(self, began_s: float) -> None:
        now_s = self.clock.monotonic()
        if now_s - began_s < REST_S:
            if now_s - self._rested_s < REST_AFTER_S:
                return
            time.sleep(REST_S)  # noqa: TID251 - not a wait for anything: it gives the GIL away
        self._rested_s = now_s

    def _until_next_timer(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        # Bounded: the selector takes no more than some weeks, and a deadline may be `inf`.
        return min(LONGEST_SLEEP_S, max(0.0, self._timers[0][0] - self.clock.monotonic())) if self._timers else None

    def _fire_timers(self) -> None:
        while self._new_timers:
            heapq.heappush(self._timers, self._new_timers.popleft())
        if not self._timers:
            return
        now_s = self.clock.monotonic()
        while self._timers and self._timers[0][0] <= now_s:
            timer = heapq.heappop(self._timers)[2]
            ref, message = timer.ref, timer.message
            if ref is not None and message is not None:
                tell(ref, message)
        self._line_up()

    def _rebuild(self, error: BaseException) -> None:
        orphans = {id(ref.actor_inbox): ref for ref in self._pipes.refs()}
        self._pipes.close()
        self._pipes = _Pipes()
        self._pipes.selector.register(self._wake_read, selectors.EVENT_READ)
        for ref in orphans.values():
            tell(ref, LoopFailed(error=error))
        self._line_up()


@attrs.frozen(kw_only=True)
class LoopFailed(Message):
    """The loop that served the actor's pipes failed: its link is lost."""

    error: BaseException


def _pipe() -> tuple[int, int]:
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    return read_fd, write_fd


class ClockedDispatcher:
    """The loop, with another clock for one room's timers: two rooms may share a loop and not a clock."""

    def __init__(self, loop: LoopDispatcher, clock: Clock) -> None:
        self.clock = clock
        self.monotonic = clock.monotonic
        self._loop = loop
        self.schedule = loop.schedule
        self.watch = loop.watch
        self.resume = loop.resume
        self.offload = loop.offload
        self.worker = loop.worker
        self.after_round = loop.after_round

    def call_later(self, delay_s: float, ref: Ref, message: Message, *, is_wait: bool = False) -> TimerHandle:
        """Tell `ref` the message after `delay_s` of the clock."""
        return _ClockTimer(self.clock, delay_s, ref, message, is_wait=is_wait)


class ManualDispatcher:
    """Runs actors when a test says so, one batch at a time, in the order of a seed. One thread; jobs run in place.

    `seed=None`: first come, first served. Otherwise the next actor is drawn, which finds orders that a loop would rarely give.
    """

    def __init__(self, clock: Clock, *, seed: int | None = None) -> None:
        self.clock = clock
        self.monotonic = clock.monotonic
        self._random = random.Random(seed) if seed is not None else None  # noqa: S311 - a schedule, not a secret
        self._ready: list[LoopActor] = []
        self._jobs: list[tuple[Job, Ref]] = []
        self._pipes = _Pipes()

    def schedule(self, actor: LoopActor, *, first: bool = False) -> None:
        """Let `actor` have a turn soon; `first`: before others that wait, where the seed does not say who is next."""
        self._ready.insert(0 if first else len(self._ready), actor)

    def call_later(self, delay_s: float, ref: Ref, message: Message, *, is_wait: bool = False) -> TimerHandle:
        """Tell `ref` the message after `delay_s` of the clock."""
        return _ClockTimer(self.clock, delay_s, ref, message, is_wait=is_wait)

    def watch(self, fd: int, ref: Ref, *, read: bool, write: bool) -> None:
        """Report readiness of `fd` to `ref`; both False: stop watching."""
        self._pipes.watch(fd, ref, _mask(read=read, write=write))

    def resume(self, fd: int) -> None:
        """Report readiness of `fd` again."""
        self._pipes.resume(fd)

    def after_round(self, callback: Callable[[], None]) -> None:
        """Call it now: nobody else runs."""
        callback()

    def offload(self, job: Job, ref: Ref) -> None:
        """Keep the job for a later step."""
        self._jobs.append((job, ref))

    def worker(self, owner: Ref, name: str) -> Worker:
        """Return a worker whose jobs are steps."""
        del name
        return InlineWorker(self.offload, owner)

    def on_own_thread(self) -> bool:
        """The test's thread is the loop, and drives it while it waits."""
        return False

    def step(self) -> bool:
        """Run one batch or one job; return False when there is nothing to do."""
        choices = len(self._ready) + len(self._jobs)
        if not choices:
            self._pipes.settle()
            self._pipes.report(self._pipes.selector.select(0.0))
            choices = len(self._ready)
            if not choices:
                return False
        index = self._random.randrange(choices) if self._random else 0
        if index < len(self._ready):
            actor = self._ready.pop(index)
            if actor.run_batch(1 if self._random else BATCH_MESSAGES):
                self._ready.append(actor)
        else:
            job, ref = self._jobs.pop(index - len(self._ready))
            tell(ref, job())
        return True

    def run_until_idle(self, limit: int = 100_000) -> int:
        """Step until nothing is left; return how many steps it took. Raises RuntimeError past `limit`."""
        for count in range(limit):
            if not self.step():
                return count
        raise RuntimeError(f"still busy after {limit} steps")

    def stop(self) -> None:
        """Close the selector."""
        self._pipes.close()
