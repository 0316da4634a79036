"""One-shot cells: an outcome or an answer is put once and read by any thread or event loop. Decides only "first settle wins"."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from greenroom.clock import Clock

T = TypeVar("T")


class Cell(Generic[T]):
    """Holds one value or one error, for ever. Settling never blocks and never raises; any thread."""

    __slots__ = ("_callbacks", "_error", "_event", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] | None = []

    @property
    def settled(self) -> bool:
        """Whether it holds its value or error."""
        return self._event.is_set()

    def settle(self, value: T) -> bool:
        """Put the value; False when something was there already."""
        return self._set(value, None)

    def fail(self, error: BaseException) -> bool:
        """Put the error; False when something was there already."""
        return self._set(None, error)

    def _set(self, value: T | None, error: BaseException | None) -> bool:
        with self._lock:
            if self._event.is_set():
                return False
            self._value, self._error = value, error
            callbacks, self._callbacks = self._callbacks or [], None
            self._event.set()
        for callback in callbacks:
            callback()
        return True

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` once it is settled, on the settling thread, or now. It must not block or raise."""
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout_s: float | None, clock: Clock) -> bool:
        """Block until it is settled, at most `timeout_s` on `clock`; return whether it is."""
        if timeout_s is None:
            return self._event.wait()
        return self._event.is_set() or clock.wait(timeout_s, self._event) or self._event.is_set()

    @property
    def outcome(self) -> T | BaseException:
        """The value or the error of a settled cell; the error is not raised."""
        if not self._event.is_set():
            raise RuntimeError("the cell is not settled")
        return self._error if self._error is not None else self._value  # type: ignore[return-value]

    def get(self) -> T:
        """Return the value or raise the error of a settled cell."""
        if not self._event.is_set():
            raise RuntimeError("the cell is not settled")
        if self._error is not None:
            # A cell may be read by several threads: each gets the error without the others' frames.
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]
