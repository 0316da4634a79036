"""A clock that tests move by hand, and ids that they can foretell. Decides nothing; starts no thread; safe on any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

_FORGOTTEN_S = 30.0
_POLL_S = 0.005


@attrs.define(eq=False)
class _Timer:
    """A timer of the fake clock; also its own handle."""

    due_s: float
    callback: Callable[[], None]
    is_wait: bool
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """A clock that stands still until it is told otherwise.

    *Waits* (`wait`, and `call_later(..., is_wait=True)`) elapse at once: they move the time on and are recorded in `waits`.
    *Deadlines* (`call_later`) fire on `advance()` only, in order, on the thread that advances, each at its own time and outside the lock.
    With `hold_waits=True` waits too pass on `advance()` only, so that a test can look at a session that waits.
    """

    def __init__(self, *, start_s: float = 1000.0, wall_s: float = 1_800_000_000.0, hold_waits: bool = False) -> None:
        self._changed = threading.Condition()
        self._now_s = start_s
        self._wall_offset_s = wall_s - start_s
        self._hold_waits = hold_waits
        self._timers: list[_Timer] = []
        self._waits: list[float] = []
        self._holding = 0

    def monotonic(self) -> float:
        """Return the time in seconds."""
        with self._changed:
            return self._now_s

    def wall(self) -> float:
        """Return Unix time in seconds: it moves with `monotonic()`."""
        with self._changed:
            return self._now_s + self._wall_offset_s

    def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
        """Let `seconds` pass at once (held: block until they are advanced); return True when `stop` is or gets set."""
        if stop is not None and stop.is_set():
            return True
        with self._changed:
            self._waits.append(seconds)
            until_s = self._now_s + max(0.0, seconds)
            if not self._hold_waits:
                self._now_s = until_s
                return False
            return self._held(until_s, stop)

    def _held(self, until_s: float, stop: threading.Event | None) -> bool:
        self._holding += 1
        self._changed.notify_all()
        try:
            while self._now_s < until_s:
                if stop is not None and stop.is_set():
                    return True
                self._changed.wait(None if stop is None else _POLL_S)
            return False
        finally:
            self._holding -= 1

    def call_later(self, delay_s: float, callback: Callable[[], None], *, is_wait: bool = False) -> _Timer:
        """Call `callback` on `advance()`; if it `is_wait` and waits are not held, now, on this thread."""
        with self._changed:
            timer = _Timer(self._now_s + max(0.0, delay_s), callback, is_wait)
            if is_wait:
                self._waits.append(delay_s)
            if not is_wait or self._hold_waits:
                self._timers.append(timer)
                self._changed.notify_all()
                return timer
            self._now_s = timer.due_s
        callback()
        return timer

    def advance(self, seconds: float) -> None:
        """Move the time on by `seconds` and fire what comes due, also what a callback adds on the way."""
        with self._changed:
            target_s = self._now_s + seconds
        while timer := self._next_due(target_s):
            timer.callback()
        with self._changed:
            self._now_s = max(self._now_s, target_s)
            self._changed.notify_all()

    def _next_due(self, target_s: float) -> _Timer | None:
        with self._changed:
            self._timers = [timer for timer in self._timers if not timer.cancelled]
            due = [timer for timer in self._timers if timer.due_s <= target_s]
            if not due:
                return None
            timer = min(due, key=lambda timer: timer.due_s)
            self._timers.remove(timer)
            self._now_s = max(self._now_s, timer.due_s)
            self._changed.notify_all()
            return timer

    @property
    def waits(self) -> tuple[float, ...]:
        """All waits so far, in seconds, in the order in which they were asked for."""
        with self._changed:
            return tuple(self._waits)

    @property
    def pending(self) -> tuple[float, ...]:
        """When the timers that have not fired are due, as `monotonic()` seconds, earliest first."""
        with self._changed:
            return tuple(sorted(timer.due_s for timer in self._timers if not timer.cancelled))

    def wait_for_waiters(self, count: int = 1, timeout_s: float = _FORGOTTEN_S) -> bool:
        """Block, in real time, until `count` waits are held (threads in `wait`, or timers); False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._holding + self._held_timers() >= count, timeout_s)

    def _held_timers(self) -> int:
        return sum(timer.is_wait and not timer.cancelled for timer in self._timers)


class SequentialIds:
    """Ids that a test can foretell: `turn-1`, `turn-2`, …, counted for each prefix."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def new_id(self, prefix: str) -> str:
        """Return the next id of `prefix`."""
        with self._lock:
            self._counts[prefix] = self._counts.get(prefix, 0) + 1
            return f"{prefix}-{self._counts[prefix]}"
