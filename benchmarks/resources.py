"""What live sessions cost when they do nothing: processor, threads, memory. A process of its own, so that nothing else is in the numbers.

`python -m benchmarks.resources LIVE IDLE_S DORMANT` prints one JSON object.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks.figures import Figure
from benchmarks.fleets import Stage, open_sessions
from benchmarks.scenarios import Size
from greenroom import Greenroom, Session, TurnRequest


def resident_kb() -> float:
    """Return the resident memory of this process in KB."""
    gc.collect()
    return psutil.Process().memory_info().rss / 1024


async def talk(sessions: list[Session]) -> None:
    """Run a short turn in each."""
    await asyncio.gather(*(session.arun(session.prepare_turn(TurnRequest(prompt="SAY yes"))) for session in sessions))


def measure(live: int, idle_s: float, dormant: int) -> dict[str, float]:
    """Return the numbers."""
    with tempfile.TemporaryDirectory() as folder, Greenroom() as room:
        stage = Stage(Path(folder))
        asyncio.run(talk(open_sessions(room, stage, 4)))
        threads_before, before_kb = threading.active_count(), resident_kb()
        sessions = open_sessions(room, stage, live)
        asyncio.run(talk(sessions))
        live_kb = resident_kb()
        threads = threading.active_count()
        began_s = time.process_time()
        time.sleep(idle_s)
        idle_cpu = (time.process_time() - began_s) / idle_s
        dormant_before_kb = resident_kb()
        sessions += open_sessions(room, stage, dormant)
        dormant_kb = resident_kb()
    return {
        "idle_percent": idle_cpu * 100,
        "threads": threads - 1,  # less the main thread
        "threads_grown": threads - threads_before,
        "live_kb": (live_kb - before_kb) / live,
        "dormant_kb": (dormant_kb - dormant_before_kb) / dormant,
    }


def resources(size: Size) -> list[Figure]:
    """Measure in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.resources", str(size.sessions), str(size.idle_s), str(size.dormant)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE)
    numbers = json.loads(done.stdout)
    live = f"{size.sessions} idle sessions"
    return [
        Figure(name=f"{live}: processor", unit="% of a core", ours=numbers["idle_percent"], target="< 0.2", limit=0.2),
        Figure(name=f"{live}: threads", unit="threads", ours=numbers["threads"], target="<= 8", limit=8),
        Figure(name="threads more than with 4 sessions", unit="threads", ours=numbers["threads_grown"], target="0", limit=0),
        Figure(name=f"{live}: memory", unit="KB each", ours=numbers["live_kb"], target="< 150", limit=150),
        Figure(
            name=f"{size.dormant} sessions without a process: memory", unit="KB each", ours=numbers["dormant_kb"], target="< 150", limit=150
        ),
    ]


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
