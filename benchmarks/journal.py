"""What the journal costs: commits and events a second, alone and in groups, in both modes. `python -m benchmarks.journal [directory]`.

On a machine that does other things too, the rates are of what is left of it; the last column is what the median group makes of a second.

The directory should be on the disk that is meant (default: a temporary one); `full` waits for that disk at every commit.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import tempfile
import time

from greenroom.events import AssistantText
from greenroom.journal import Journal
from greenroom.journal.files import Sync
from greenroom.journal.records import AgentEvents, SessionOpened
from greenroom.model import ApprovalPolicy, ConversationSpec, NativePermissions
from greenroom.policy.state import Settings

SECONDS = 2.0
NONCE = "00000000-0000-4000-8000-000000000001"
WORDS = "the quick brown fox jumps over the lazy dog " * 5


def opened() -> SessionOpened:
    spec = ConversationSpec(cwd=pathlib.Path("/"), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    return SessionOpened(
        session_id="s-1", nonce=NONCE, provider="claude", state_home="", spec=spec, settings=Settings(session_nonce=NONCE), at_s=0.0
    )


def said(number: int) -> AgentEvents:
    return AgentEvents(
        session_id="s-1",
        first_sequence=number,
        turn_id="t-1",
        incarnation=1,
        at_monotonic_s=1.0,
        at_wall_s=1.0,
        events=(AssistantText(WORDS),),
    )


def measure(directory: pathlib.Path, sync: Sync, group: int) -> tuple[float, float, float]:
    """Return commits a second, and the median and 99th percentile of one group in ms, its puts included."""
    with Journal.open(directory / f"{sync}-{group}", sync=sync) as journal:
        journal.begin()
        journal.put(opened())
        journal.commit()
        times, number, end = [], 0, time.perf_counter() + SECONDS
        while (begun := time.perf_counter()) < end:
            journal.begin()
            for _ in range(group):
                number += 1
                journal.put(said(number))
            journal.commit()
            times.append(time.perf_counter() - begun)
        return len(times) / sum(times), statistics.median(times) * 1000, statistics.quantiles(times, n=100)[98] * 1000


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        print(f"{'sync':>8} {'records/commit':>15} {'commits/s':>10} {'records/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'events/s at p50':>16}")
        modes: tuple[Sync, ...] = ("process", "full")
        for sync in modes:
            for group in (1, 64):
                rate, p50, p99 = measure(pathlib.Path(name), sync, group)
                at_p50 = group * 1000 / p50
                print(f"{sync:>8} {group:>15} {rate:>10.0f} {rate * group:>10.0f} {p50:>8.3f} {p99:>8.3f} {at_p50:>16.0f}")


if __name__ == "__main__":
    main()
