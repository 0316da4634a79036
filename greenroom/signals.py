"""A room that closes when its program is told to stop: in order at the first signal, by force at the second. Only where a program asks.

Handlers run on the main thread between two of its steps, so they may take no lock: they put an order into a queue that is safe for it.
A thread that was started beforehand carries it out, while the main thread goes on to be given what its turns came to.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import attrs

from greenroom.errors import GreenroomError

FORCED_DEADLINE_S = 1.0
_BY_SIGNAL = 128


class _Close(Protocol):
    def __call__(self, deadline_s: float, *, grace_s: float) -> tuple[str, ...]: ...


@attrs.frozen
class _Order:
    deadline_s: float
    grace_s: float = 0.0


_DONE = _Order(0.0)
"""Not an order: one has been carried out."""


class ClosingOnSignals:
    """Closes a room at a signal; a context manager for the main thread, made by `Greenroom.close_on_signals`.

    At the first signal no turn is admitted any more, those that run have the grace to end, and the block goes on: a `run` returns what it
    came to, a new turn is refused with SessionStateError. At the second one the room is closed within a second, and SystemExit is raised
    where the main thread stands; a third one does what it did before. A signal that was ignored (`nohup`) stays ignored.

    The block's end waits for the close, and raises SystemExit(128 + number) where it was left in order or by an error of ours; another
    exception passes. `received` is the signal, `killed` the sessions whose processes had to be killed.
    """

    def __init__(self, close: _Close, *, deadline_s: float, grace_s: float, signals: Iterable[signal.Signals], log: logging.Logger) -> None:
        self.received: signal.Signals | None = None
        self.killed: tuple[str, ...] = ()
        self._close = close
        self._in_order = _Order(deadline_s, grace_s)
        self._signals = tuple(signals)
        self._log = log
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._before: dict[signal.Signals, Any] = {}
        self._closer = threading.Thread(target=self._obey, name="greenroom-signals", daemon=True)

    def __enter__(self) -> Self:
        """Take the signals. Raises RuntimeError on any other thread than the main one, which alone is given them."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals are given to the main thread alone: close_on_signals belongs there")
        self._closer.start()
        for number in self._signals:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN and before is not None:  # None: it is not Python's, and could not be put back
                self._before[number] = before
                signal.signal(number, self._told)
        return self

    def _told(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is None:
            self.received = signal.Signals(number)
            self._orders.put(self._in_order)
            return
        self._give_back()
        self._orders.put(_Order(FORCED_DEADLINE_S))
        raise SystemExit(_BY_SIGNAL + number)

    def _obey(self) -> None:
        """Carry out each order on a thread of its own: one by force must not wait behind the one in order, to the very end."""
        under_way, leaving = 0, False
        while under_way or not leaving:
            order = self._orders.get()
            if order is None:
                leaving = True
            elif order is _DONE:
                under_way -= 1
            else:
                under_way += 1
                threading.Thread(target=self._carry_out, args=(order,), name="greenroom-closing", daemon=True).start()

    def _carry_out(self, order: _Order) -> None:
        try:
            killed = self._close(order.deadline_s, grace_s=order.grace_s)
            self.killed = tuple(sorted({*self.killed, *killed}))
        finally:
            self._orders.put(_DONE)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._wait()
        except SystemExit:  # the second signal came while we waited
            self._wait()
            raise
        finally:
            self._give_back()
        if self.received is None:
            return
        if self.killed:
            self._log.warning("%s: had to kill the processes of %s", self.received.name, ", ".join(self.killed))
        if isinstance(error, GreenroomError):
            self._log.info("%s: the program stopped at: %s", self.received.name, error)
        if error is None or isinstance(error, GreenroomError):
            raise SystemExit(_BY_SIGNAL + self.received) from error

    def _wait(self) -> None:
        """Wait for what was ordered; the room bounds it."""
        self._orders.put(None)
        self._closer.join()

    def _give_back(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
