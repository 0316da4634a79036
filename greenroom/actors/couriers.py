"""Threads that call subscribers: one, and one more for each callback that does not return. Decides only who is called next, and when
another thread is needed for it: a callback that takes longer than STUCK_S does not hold the others up.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("greenroom.subscribers")

STUCK_S = 0.1
IDLE_S = 10.0
MAX_THREADS = 32

Job = Callable[[], bool]
"""Returns whether it wants to run again, behind the others."""


class Couriers:
    """Runs jobs, in the order in which they were given, one at a time as long as each is short. Any thread may give them."""

    def __init__(self, name: str = "greenroom-subscribers") -> None:
        self._name = name
        self._changed = threading.Condition()
        self._jobs: collections.deque[Job] = collections.deque()
        self._threads = 0
        self._waiting = 0
        self._running = 0
        self._stuck_at_s = 0.0
        self._closed = False

    def give(self, job: Job) -> None:
        """Have `job` run soon. Never blocks, never raises."""
        with self._changed:
            if self._closed:
                return
            self._jobs.append(job)
            if self._waiting:
                self._changed.notify()
            elif self._threads < MAX_THREADS:
                self._start()

    def _start(self) -> None:
        """Add a thread. Where none is to be had, the job waits for those that there are, or for the next job to come."""
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError as error:
            logger.error("no thread could be started for the subscribers: %s", error)  # noqa: TRY400 - where does not matter
        else:
            self._threads += 1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            again = _done(job)
            with self._changed:
                self._running -= 1
                self._stuck_at_s = 0.0
                if again:
                    self._jobs.append(job)

    def _next(self) -> Job | None:
        """Return the next job once no other one has been begun lately that may still be short; None: there is nothing to do here."""
        with self._changed:
            while True:
                now_s = time.monotonic()
                if self._jobs and (not self._running or now_s >= self._stuck_at_s):
                    self._running += 1
                    self._stuck_at_s = now_s + STUCK_S
                    return self._jobs.popleft()
                if (self._closed and not self._jobs) or not self._wait(self._stuck_at_s - now_s if self._jobs else IDLE_S):
                    self._threads -= 1
                    self._changed.notify_all()
                    return None

    def _wait(self, seconds: float) -> bool:
        """Wait for a change; False: there was nothing to do for so long that the thread may go."""
        self._waiting += 1
        changed = self._changed.wait(seconds)
        self._waiting -= 1
        return changed or bool(self._jobs)

    def close(self, patience_s: float) -> bool:
        """Take no more jobs; wait for those that there are, at most so long. Returns whether all are done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._threads, patience_s)


def _done(job: Job) -> bool:
    try:
        return job()
    except BaseException:  # a job looks after its own; nothing of it ends the thread
        logger.exception("a subscriber could not be served")
        return False
