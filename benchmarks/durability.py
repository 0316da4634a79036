"""What durability costs a turn: `python -m benchmarks.durability [--turns N] [--sessions 1,16,64] [--smoke] [directory]`.

Scripted CLIs, each session in a thread that runs a short turn every so often, out of step with the others, as agents are; measured is a
turn from `prepare_turn` to the return of `run`. The journal is off, on (`process`), and on with a flush for every commit (`full`); the
three take turns, so that what else the machine does falls on all. The directory should be on the disk that is meant.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.fleets import Stage, out_of_step_s
from greenroom import ApprovalPolicy, ClaudeStreamTransport, Greenroom, NativePermissions, Session, TurnRequest
from greenroom.journal import Journal

MODES = ("off", "process", "full")
PROMPT = "SAY one\nTOOL Bash {} -> ok\nSAY two\nSAY done"
TARGET_MS = 2.0
PERIOD_S = 0.8


class Commits:
    """Counts what the journal does meanwhile."""

    def __init__(self, journal: Journal | None) -> None:
        self.commits = self.records = 0
        if journal is not None:
            connection = journal._connection  # noqa: SLF001
            connection.set_trace_callback(self._saw)  # type: ignore[union-attr]

    def _saw(self, statement: str) -> None:
        if statement == "COMMIT":
            self.commits += 1
        elif statement == "RELEASE put":
            self.records += 1


def run(stage: Stage, state_dir: Path, mode: str, sessions: int, turns: int, *, counting: bool = False) -> tuple[list[float], Commits]:
    """Return the seconds of each turn."""
    durable = {} if mode == "off" else {"state_dir": state_dir, "sync": mode}
    with Greenroom(**durable) as room:  # type: ignore[arg-type]
        transport = ClaudeStreamTransport(env=stage.state(state_dir.name), binary=stage.binary)
        agent = room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
        fleet = [agent.session(stage.cwd) for _ in range(sessions)]
        seconds: list[float] = []
        begin = threading.Barrier(sessions + 1)
        threads = [threading.Thread(target=play, args=(fleet[n], n, turns, begin, seconds)) for n in range(sessions)]
        for thread in threads:
            thread.start()
        begin.wait()
        keeper = room._keeper  # noqa: SLF001
        commits = Commits(keeper.journal if keeper is not None and counting else None)
        for thread in threads:
            thread.join()
        return seconds, commits


def play(session: Session, number: int, turns: int, begin: threading.Barrier, seconds: list[float]) -> None:
    """Run a session's turns; the first, which starts the process, does not count."""
    session.run(session.prepare_turn(TurnRequest(PROMPT)))
    begin.wait()
    time.sleep(out_of_step_s(number) * PERIOD_S * 10)
    for _ in range(turns):
        began_s = time.perf_counter()
        session.run(session.prepare_turn(TurnRequest(PROMPT)), on_event=lambda _event: None)
        took_s = time.perf_counter() - began_s
        seconds.append(took_s)
        time.sleep(max(0.0, PERIOD_S - took_s))


def measure(folder: Path, sessions: int, turns: int, repetitions: int) -> dict[str, tuple[float, float]]:
    """Return the median and the 99th percentile of a turn in ms for each mode; and print them."""
    stage_folder = folder / f"stage-{sessions}"
    stage_folder.mkdir()
    stage = Stage(stage_folder)
    taken: dict[str, list[float]] = {mode: [] for mode in MODES}
    for repetition in range(repetitions):
        for mode in MODES:
            taken[mode] += run(stage, folder / f"{mode}-{sessions}-{repetition}", mode, sessions, turns)[0]
    _, commits = run(stage, folder / f"count-{sessions}", "process", sessions, turns, counting=True)
    figures = {mode: (percentile(taken[mode], 50), percentile(taken[mode], 99)) for mode in MODES}
    off = figures["off"][0]
    for mode, (p50, p99) in figures.items():
        more = "" if mode == "off" else f" {p50 - off:+.2f} ms | {p50 / off:.2f} |"
        print(f"| {sessions} | {mode} | {p50:.2f} | {p99:.2f} |{more or ' | |'}")
    per_turn, per_commit = commits.commits / (sessions * turns), commits.records / max(1, commits.commits)
    print(f"  {sessions} sessions: {per_turn:.1f} commits a turn, {per_commit:.1f} records a commit")
    return figures


def percentile(seconds: list[float], rank: int) -> float:
    """Return the percentile in ms."""
    return statistics.quantiles(seconds, n=100)[rank - 1] * 1e3


def main(argv: list[str]) -> int:
    """Parse, run, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durability", description="What durability costs a turn.")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--sessions", default="1,16,64")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("directory", nargs="?")
    options = parser.parse_args(argv)
    counts, turns, repetitions = [int(count) for count in options.sessions.split(",")], options.turns, options.repetitions
    if options.smoke:
        counts, turns, repetitions = [2], 3, 1
    print("| sessions | journal | turn p50 ms | p99 ms | more p50 | ratio |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="greenroom-durability-", dir=options.directory) as folder:
        figures = {count: measure(Path(folder), count, turns, repetitions) for count in counts}
    missed = [count for count, figure in figures.items() if figure["process"][0] - figure["off"][0] >= TARGET_MS]
    return 0 if options.smoke or not missed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
