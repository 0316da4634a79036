"""A durable room under long use, with faults: `python -m benchmarks.soak [--turns 2000] [--sessions 100] [--seed 1] [directory]`.

Scripted CLIs, as many processes alive as `--live` allows; some caller threads take turns of one session after the other. Into a part of the
turns (`--faults`, 5 %) a fault is put: some CLI is killed, this one crashes, its API fails, its session is closed and opened again; into
twice as many an interrupt or a steer. Between rounds nothing runs, and memory, descriptors and threads are counted: they must be flat
from the second round to the last. (The history of events in memory is made short for that: it would fill all the while.)
At the end every turn has one outcome, the journal has the same one, and no prompt was shown twice.
"""

from __future__ import annotations

import argparse
import collections
import gc
import hashlib
import logging
import os
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import psutil

from benchmarks.figures import Figure, table
from benchmarks.fleets import Stage
from greenroom import (
    ApprovalPolicy,
    ClaudeStreamTransport,
    Greenroom,
    GreenroomError,
    NativePermissions,
    RestartPolicy,
    RetryPolicy,
    Session,
    ToolCall,
    TransportDiedError,
    Turn,
    TurnRequest,
)
from greenroom.actors import hub
from greenroom.journal import STANDARD, Journal, Recovery
from greenroom.policy.commands import Fail, Finish
from greenroom.policy.session import initial, step
from greenroom.testing.scripted import conversations, prompts_seen
from greenroom.transports.base import Flags

CALLERS = 24
MAX_GROWN_MB = 6.0
HISTORY_EVENTS = 20
MAX_JOURNAL_KB = 48.0
FAULTS = ("kill", "crash", "retry", "reopen")
ASKS = ("interrupt", "steer")
BODIES = {
    "": "TOOL Bash {} -> ok\nSAY done",
    "kill": "SAY one\nTOOL_SLEEP 0.05\nSAY done",
    "crash": "SAY one\nCRASH_ONCE 9\nSAY done",
    "retry": "API_ERROR 529 overloaded_error busy 1\nSAY done",
    "reopen": "TOOL Bash {} -> ok\nSAY done",
    "interrupt": "SAY one\nTOOL_SLEEP 30\nSAY done",
    "steer": "AWAIT_STEER\nSAY done",
}


@attrs.frozen(kw_only=True)
class Sample:
    """What the process holds between two rounds."""

    memory_mb: float
    descriptors: int
    threads: int


@attrs.frozen(kw_only=True)
class Told:
    """What a caller was told, in a few bytes: what is kept here must not be taken for the room's."""

    prompt: str
    digest: bytes
    due: bool
    failed: bool

    @classmethod
    def of(cls, prompt: str, outcome: Turn | GreenroomError) -> Told:
        """Make it. `due`: the model must have seen the prompt."""
        due = isinstance(outcome, Turn) and not outcome.result.interrupted
        return cls(prompt=prompt, digest=digest(outcome), due=due, failed=not isinstance(outcome, Turn | TransportDiedError))


def digest(outcome: Turn | GreenroomError | None) -> bytes:
    """Return what tells one outcome from another, written down or not."""
    text = STANDARD.encode(outcome) if isinstance(outcome, Turn) else f"{type(outcome).__name__}: {outcome}"
    return hashlib.sha256(text.encode()).digest()


class Soak:
    """The room, its sessions, and what they are to do."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.stage = Stage(folder)
        self.state_dir = folder / "journal"
        self.options = options
        self.told: dict[str, Told] = {}
        self.random = random.Random(options.seed)  # noqa: S311 - a schedule, not a secret
        self.room = Greenroom(state_dir=self.state_dir, max_live=options.live)
        env = self.stage.state("soak")
        self.cli_state = Path(env["GREENROOM_SCRIPTED_STATE"])
        self.agent = self.room.agent(
            ClaudeStreamTransport(binary=self.stage.binary, env=env),
            permissions=NativePermissions.bypass(),
            approvals=ApprovalPolicy.DENY,
            retry=RetryPolicy(delays=(0.05,)),
            restart=RestartPolicy(delays=(0, 0.1, 0.5)),
        )
        self.sessions = [self.open(f"session-{number}") for number in range(options.sessions)]
        self.faults = collections.Counter[str]()

    def open(self, session_id: str) -> Session:
        """Begin a session, or go on with it."""
        return self.agent.session(self.stage.cwd, session_id=session_id)

    def fault(self) -> str:
        """Draw what befalls a turn."""
        fate = self.random.random()
        if fate < self.options.faults:
            return self.random.choice(FAULTS)
        return self.random.choice(ASKS) if fate < 3 * self.options.faults else ""

    def round(self, pool: ThreadPoolExecutor, turns: int) -> None:
        """Have every session run so many turns."""
        plans = [[self.fault() for _ in range(turns)] for _ in self.sessions]
        self.faults.update(fault for plan in plans for fault in plan)
        for done in [pool.submit(self.play, number, plan) for number, plan in enumerate(plans)]:
            done.result()

    def play(self, number: int, plan: list[str]) -> None:
        """Run the turns of one session, one after the other."""
        for fault in plan:
            if fault == "reopen":
                self.sessions[number].close()
                self.sessions[number] = self.open(f"session-{number}")
            self.turn(self.sessions[number], fault)

    def turn(self, session: Session, fault: str) -> None:
        """Run one turn, with what befalls it."""
        prompt = f"turn {len(self.told)} of {session.id} {random.getrandbits(64):x}\n{BODIES[fault]}"
        ticket = session.prepare_turn(TurnRequest(prompt))
        befalls = {"interrupt": lambda: session.interrupt(ticket), "steer": lambda: steer(session), "kill": self.kill}.get(fault)

        def on_event(event: Any) -> None:
            if befalls is not None and isinstance(event, ToolCall):
                befalls()

        try:
            outcome: Turn | GreenroomError = session.run(ticket, on_event=on_event)
        except GreenroomError as error:
            outcome = error
        self.told[ticket.turn_id] = Told.of(prompt, outcome)

    def clis(self) -> list[psutil.Process]:
        """Return the CLIs that run."""
        found = []
        for process in psutil.Process().children():
            with suppress(psutil.Error):
                if str(self.stage.binary) in process.cmdline():
                    found.append(process)
        return found

    def kill(self) -> None:
        """Kill any CLI."""
        with suppress(psutil.Error, IndexError):
            random.choice(self.clis()).kill()  # noqa: S311

    def sample(self) -> Sample:
        """Count what is held now: processes that are kept alive hold descriptors, and are taken off."""
        gc.collect()
        own = psutil.Process()
        per_cli = 4 if hasattr(os, "pidfd_open") else 3
        return Sample(
            memory_mb=own.memory_info().rss / 2**20,
            descriptors=own.num_fds() - per_cli * len(self.clis()),
            threads=threading.active_count(),
        )


def steer(session: Session) -> None:
    """Send a text into the turn; it may have ended."""
    with suppress(GreenroomError):
        session.steer("go on")


def judge(soak: Soak) -> dict[str, int]:
    """Compare what the callers were told with the journal, and with what the model saw."""
    told = soak.told
    with Journal.open(soak.state_dir, classes=(Flags,)) as journal:
        recovery = Recovery(journal)
        left = len(recovery.unfinished())
        wrong = sum(digest(recovery.outcome(turn_id)) != one.digest for turn_id, one in told.items())
        ends = endings(recovery)
    shown = collections.Counter(
        prompt for one in conversations(soak.cli_state) for prompt in prompts_seen(soak.cli_state, one) if prompt.startswith("turn ")
    )
    unseen = sum(one.due and shown[one.prompt] == 0 for one in told.values())
    failed = sum(one.failed for one in told.values())
    twice = sum(times > 1 for times in shown.values())
    not_once = sum(ends[turn_id] != 1 for turn_id in told)
    return {
        "not ended exactly once": not_once,
        "left open": left,
        "other on record": wrong,
        "shown twice": twice,
        "never shown": unseen,
        "failed": failed,
    }


def endings(recovery: Recovery) -> collections.Counter[str]:
    """Replay every session, and return how often each turn has ended."""
    ends = collections.Counter[str]()
    for session in recovery.sessions():
        state = initial(session.opened.settings)
        for event in recovery.inputs(session.opened.session_id) or ():
            state, commands = step(state, event)
            ends.update(command.turn.turn_id for command in commands if isinstance(command, Finish))
            ends.update(command.turn_id for command in commands if isinstance(command, Fail))
    return ends


def journal_kb(state_dir: Path) -> float:
    """Return the size of the journal's files."""
    return sum(path.stat().st_size for path in state_dir.iterdir()) / 1024


def run(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Run all rounds, and return the figures."""
    before = (threading.active_count(), psutil.Process().num_fds())
    hub.HISTORY_EVENTS = HISTORY_EVENTS
    soak = Soak(folder, options)
    each = options.turns // options.sessions
    rounds = max(2, min(10, each))
    samples = []
    began_s = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(rounds):
            soak.round(pool, each // rounds)
            samples.append(soak.sample())
    took_s = time.perf_counter() - began_s
    soak.room.close()
    left = len(soak.clis())
    after = (threading.active_count(), psutil.Process().num_fds())
    size_kb = journal_kb(soak.state_dir)
    first, last, turns = samples[1], samples[-1], len(soak.told)
    asked = each // rounds * rounds * options.sessions
    put = ", ".join(f"{name or 'nothing'} {count}" for name, count in sorted(soak.faults.items()))
    print(f"{turns} turns, {options.sessions} sessions, {options.live} alive at most, {rounds} rounds, {took_s:.0f} s; into them: {put}")
    print(f"memory by round, MB: {' '.join(f'{sample.memory_mb:.1f}' for sample in samples)}\n")
    nothing = {**judge(soak), "processes left": left}
    nothing |= {"threads left": after[0] - before[0], "descriptors left": after[1] - before[1]}
    return [
        Figure(name="turns with one outcome", unit="turns", ours=turns, target="all", limit=asked, more_is_better=True),
        Figure(
            name="memory, from round 2 to the last",
            unit="MB",
            ours=last.memory_mb - first.memory_mb,
            target=f"< {MAX_GROWN_MB:g}",
            limit=MAX_GROWN_MB,
        ),
        Figure(name="memory, last", unit="MB", ours=last.memory_mb, target="", limit=0),
        Figure(name="descriptors, grown", unit="", ours=last.descriptors - first.descriptors, target="<= 4", limit=4),
        Figure(name="threads, grown", unit="", ours=last.threads - first.threads, target="0", limit=0),
        Figure(name="journal", unit="KB a turn", ours=size_kb / turns, target=f"< {MAX_JOURNAL_KB:g}", limit=MAX_JOURNAL_KB),
        *(Figure(name=name, unit="", ours=count, target="0", limit=0) for name, count in nothing.items()),
    ]


def main(argv: list[str]) -> int:
    """Parse, run, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="A durable room under long use, with faults.")
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--live", type=int, default=32)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("directory", nargs="?")
    options = parser.parse_args(argv)
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="greenroom-soak-", dir=options.directory) as folder:
        figures = run(Path(folder), options)
    print(table(figures))
    return 0 if all(figure.met for figure in figures if figure.target) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
