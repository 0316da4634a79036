"""What a dead host left running, and its end: found by the marks that its journal names. On the opener's thread, blocking, bounded."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable

from greenroom.clock import SystemClock
from greenroom.journal.records import ProcessStarted
from greenroom.transports.guard import host_id
from greenroom.transports.marks import Sweep

logger = logging.getLogger("greenroom.journal")

PATIENCE_S = 5.0
PAUSE_S = 0.05
TERM_ROUNDS = 2


def end_orphans(left: Iterable[ProcessStarted], *, patience_s: float = PATIENCE_S) -> tuple[int, ...]:
    """End what carries the marks of these records, and all that came of it; return the pids of what could not be ended.

    A process counts by its mark, which holds its host's random id: one that has a recorded pid by chance is not touched. What is of
    this very process (a room that was closed in a hurry) is that room's affair.
    """
    marks = [record.mark for record in left if record.host_id != host_id()]
    if not marks:
        return ()
    clock, sweep = SystemClock(), Sweep(marks)
    until_s = clock.monotonic() + patience_s
    while True:
        try:
            sweep.round(signal.SIGTERM if sweep.rounds < TERM_ROUNDS else signal.SIGKILL)
        except OSError:
            logger.exception("a scan for what a dead host left failed")
        if sweep.done or clock.monotonic() >= until_s:
            break
        clock.wait(PAUSE_S)
    if sweep.unended:
        logger.error("processes of a dead host that could not be ended: %s", ", ".join(map(str, sweep.unended)))
    return sweep.unended
