"""Where a thread waits for what others put: the caller of `run`, for its events. Decides nothing. Puts never block; any thread.

A thread that is woken by a lock (`queue.SimpleQueue`, `threading.Event`) is woken by one that holds the GIL: it starts, finds the GIL
taken, and sleeps again, two switches for nothing on each event. A write to a descriptor gives the GIL away, so that whoever is woken runs
on at once.
"""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import select
import threading
import time
from typing import Generic, Protocol, TypeVar

from greenroom.clock import LONGEST_SLEEP_S

T = TypeVar("T")


class _Bell(Protocol):
    def ring(self) -> None:
        """End the wait, the one now or the next."""

    def wait(self, timeout_s: float | None) -> None:
        """Wait until it has rung, or for `timeout_s`, LONGEST_SLEEP_S at most."""

    def close(self) -> None:
        """It rings no more."""


class _DescriptorBell:
    def __init__(self, fd: int) -> None:
        self._lock = threading.Lock()  # a closed descriptor's number may be another's
        self._fd = fd  # -1: it is closed

    def ring(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def wait(self, timeout_s: float | None) -> None:
        if timeout_s is not None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if not poll.poll(timeout_s * 1e3):
                return
        # `eventfd_read` would raise InterruptedError at every signal that a handler of the user's takes.
        os.read(self._fd, 8)

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


class _QueueBell:
    """Where the system has no such descriptor, or none left."""

    def __init__(self) -> None:
        self._rung: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        self._rung.put(None)

    def wait(self, timeout_s: float | None) -> None:
        with contextlib.suppress(queue.Empty):
            self._rung.get(timeout=timeout_s)

    def close(self) -> None:
        return


def _new_bell() -> _Bell:
    if hasattr(os, "eventfd"):
        with contextlib.suppress(OSError):
            return _DescriptorBell(os.eventfd(0))
    return _QueueBell()


class Letterbox(Generic[T]):
    """Many put, one takes. It has a descriptor until it is closed, by the one who takes."""

    __slots__ = ("_asleep", "_bell", "_items")

    def __init__(self) -> None:
        self._items: collections.deque[T] = collections.deque()
        self._bell = _new_bell()
        self._asleep = False

    def put(self, item: T) -> None:
        """Put something in. Any thread, after `close` too."""
        self._items.append(item)
        if self._asleep:
            self._asleep = False
            self._bell.ring()

    def take(self, timeout_s: float | None = None) -> T:
        """Wait for the next, for `timeout_s` at most, of whatever size. Raises TimeoutError."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._items:
            # The flag first, the look second: whoever puts after the look sees the flag. Who put in between rings for nothing.
            self._asleep = True
            if self._items:
                break
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and not left_s > 0:  # so that NaN is none
                raise TimeoutError
            self._bell.wait(None if left_s is None else min(left_s, LONGEST_SLEEP_S))
        self._asleep = False
        return self._items.popleft()

    def close(self) -> None:
        """Give the descriptor back. Idempotent; not while somebody takes."""
        self._bell.close()
