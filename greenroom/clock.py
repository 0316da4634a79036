"""Time as a port. Decides nothing; `SystemClock` is the real one, `greenroom.testing.FakeClock` the one of tests. Any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

LONGEST_WAIT_S = threading.TIMEOUT_MAX / 2
"""What a lock can still be asked for (more than a century); `inf` means it."""

LONGEST_SLEEP_S = 3600.0
"""For a selector or a poll, which take no more than some weeks: who wakes early looks again."""


class TimerHandle(Protocol):
    """A timer that can be cancelled, any number of times, from any thread."""

    def cancel(self) -> None:
        """Cancel it; without effect once it has fired."""


class Clock(Protocol):
    """What the library asks of time."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def wall(self) -> float:
        """Return Unix time in seconds."""
        ...

    def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
        """Block for `seconds`, or until `stop` is set; return True when it was stopped."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None], *, is_wait: bool = False) -> TimerHandle:
        """Call `callback`, on any thread, after `delay_s`. `is_wait` tells a wait (retry, restart) from a deadline.

        The difference matters to the fake clock alone: waits elapse at once and are recorded, deadlines fire on `advance()`.
        """
        ...


class SystemClock:
    """The machine's clock. The loop keeps its own timers and does not call `call_later`, which costs a thread each."""

    # On the path of every event, some times over: not wrapped.
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
        """Block for `seconds`, or until `stop` is set; return True when it was stopped."""
        return (stop or threading.Event()).wait(min(seconds, LONGEST_WAIT_S))

    def call_later(self, delay_s: float, callback: Callable[[], None], *, is_wait: bool = False) -> TimerHandle:
        """Call `callback` on a thread of its own after `delay_s`."""
        timer = threading.Timer(delay_s, callback)
        timer.daemon = True
        timer.start()
        return timer
