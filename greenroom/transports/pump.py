"""Waits for a driver's process on the calling thread, and ends what is left of it. Decides nothing; blocks.

For owners that are no actors: the blocking conversation and the queries.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading

from greenroom.clock import LONGEST_SLEEP_S, Clock, SystemClock
from greenroom.transports.base import Output
from greenroom.transports.driver import Driver
from greenroom.transports.marks import Sweep

FOREIGN_CLOCK_S = 0.05
SWEEP_ROUNDS = 40


def pump(driver: Driver, clock: Clock, wake_fd: int | None = None) -> list[Output]:
    """Wait until something is ready or due (or `wake_fd` is readable, which is emptied), and let the driver see to it."""
    exit_, stdout, stderr, stdin = driver.wants(paused=False)
    readers = {
        driver.process.stdout_fd if stdout else None: driver.stdout_ready,
        driver.process.stderr_fd if stderr else None: driver.stderr_ready,
        driver.process.exit_fd if exit_ else None: driver.exit_ready,
    }
    outputs: list[Output] = []
    with selectors.DefaultSelector() as selector:
        if wake_fd is not None:
            selector.register(wake_fd, selectors.EVENT_READ)
        for fd, ready in readers.items():
            if fd is not None:
                selector.register(fd, selectors.EVENT_READ, ready)
        if stdin and driver.process.stdin_fd is not None:
            selector.register(driver.process.stdin_fd, selectors.EVENT_WRITE, driver.stdin_ready)
        ready_keys = selector.select(_patience(driver, clock))
    now_s = clock.monotonic()
    for key, _ in ready_keys:
        if key.data is not None:
            outputs += key.data(now_s)
        else:
            os.read(key.fd, 4096)
    due_s = driver.deadline_s
    return outputs + (driver.tick(now_s) if due_s is not None and due_s <= now_s else [])


def _patience(driver: Driver, clock: Clock) -> float | None:
    due_s = driver.deadline_s
    left_s = None if due_s is None else max(0.0, due_s - clock.monotonic())
    if isinstance(clock, SystemClock) and driver.process.exit_fd is not None:
        return None if left_s is None else min(left_s, LONGEST_SLEEP_S)
    return FOREIGN_CLOCK_S if left_s is None else min(left_s, FOREIGN_CLOCK_S)


def sweep(mark: str) -> None:
    """End whatever is left of a process that has ended, for some two seconds at most."""
    sweeping = Sweep([mark])
    for _ in range(SWEEP_ROUNDS):
        sweeping.round(signal.SIGKILL)
        if sweeping.done:
            return
        threading.Event().wait(FOREIGN_CLOCK_S)
