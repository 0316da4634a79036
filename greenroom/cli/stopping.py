"""How a run is told to stop: in order first, then by force. Runs on the loop's thread; the signals end here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

BY_SIGNAL = 128
"""An exit status above this names the signal that ended a program: 130 is Ctrl-C, 143 SIGTERM."""


class StopRequest:
    """Counts the asks: the first stops the run in order, the second by force. `number` is the signal of the first."""

    def __init__(self) -> None:
        self.number: int = signal.SIGINT
        self.in_order = asyncio.Event()
        self.by_force = asyncio.Event()

    def ask(self, number: int = signal.SIGINT) -> None:
        """Ask to stop; asked again, by force."""
        if self.in_order.is_set():
            self.by_force.set()
        else:
            self.number = number
            self.in_order.set()

    @property
    def status(self) -> int:
        """The exit status of a program that the signal stopped."""
        return BY_SIGNAL + self.number

    @property
    def asked(self) -> bool:
        """Whether the run is to stop, in whatever way."""
        return self.in_order.is_set()


@contextlib.contextmanager
def signals_to(ask: Callable[[int], None]) -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and a hangup into calls of `ask` on the running loop, for the length of the block.

    A signal that the parent had us ignore (`nohup`, a job in the background) stays ignored.
    """
    loop = asyncio.get_running_loop()
    heeded = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, ask, number)
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
