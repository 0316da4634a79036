"""Shows the library without an account: scripted CLIs, which are real processes, and four things that go otherwise than planned.

Decides what the sessions play and checks that all of it happened. The run itself is that of `greenroom run`. Main thread.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import psutil  # type: ignore[import-untyped]

from greenroom.cli.engine import AgentPort, Engine, SessionPort
from greenroom.cli.offload import Lane, Offload, Threads
from greenroom.cli.plan import make_plan
from greenroom.cli.progress import Board, bare_event
from greenroom.cli.reporter import Reporter, Screen
from greenroom.cli.results import Outcome, TaskRecord
from greenroom.cli.runner import Limits, Runner
from greenroom.cli.safe_text import one_line
from greenroom.cli.stopping import StopRequest, signals_to
from greenroom.cli.tasks import AgentSettings, Task
from greenroom.errors import GreenroomError
from greenroom.events import AgentEvent, SessionEvent, SteerConsumed, ToolCall
from greenroom.liveness import Liveness

STEERED, INTERRUPTED, OVERLOADED, KILLED = "steered", "interrupted", "overloaded", "killed"
_STEER = "Use the cache instead."
_RETRY_DELAYS_S = (2.0, 2.0)
_GONE_WITHIN_S = 2.0

# What the four play. The tool call is the cue: something happens to the session while it waits for the tool.
_SPECIAL = {
    STEERED: "THINK The upload looks slow.\nSAY I will rewrite the upload.\nAWAIT_STEER\nSAY Right: the cache it is.",
    INTERRUPTED: "SAY I will read every file on this disk.\nTOOL_SLEEP 60 read\nSAY Read them all.",
    OVERLOADED: "SAY Checking the types.\nAPI_ERROR 529 overloaded_error Overloaded 1\nSAY The types are fine.",
    KILLED: 'SAY Building.\nTOOL Bash {"command":"make"} -> built\nTOOL_SLEEP 6 tested\nSAY Built and tested.',
}
_ORDINARY = (
    'SAY Looking at the failing test.\nTOOL Bash {{"command":"pytest -x"}} -> 1 failed\nSLEEP {pause}\nSAY Fixed it.',
    'THINK Which callers are there?\nTOOL Grep {{"pattern":"def load"}} -> 7 files\nSLOW 16 0.2 renaming \nSAY Renamed.',
    'TOOL Read {{"file_path":"README.md"}} -> 80 lines\nSLEEP {pause}\nTOOL Bash {{"command":"ruff check"}} -> clean\nSAY Documented.',
)


def run_demo(engine: Engine, *, sessions: int, seconds_cap: float, plain: bool) -> int:
    """Play it and return the exit status: 0, 1 if something did not happen as it should, 130 or 143 if it was stopped."""
    with tempfile.TemporaryDirectory(prefix="greenroom-demo-", ignore_cleanup_errors=True) as folder:
        stage = Stage(Path(folder).resolve(), sessions)
        status = asyncio.run(play(stage, engine, Screen(), seconds_cap=seconds_cap, plain=plain))
        if status != 0:
            print("stopped")
            return status
        verdicts = stage.verdicts()
    for fine, line in verdicts:
        print(f"{'ok  ' if fine else 'FAIL'} {one_line(line)}")
    return 0 if all(fine for fine, _ in verdicts) else 1


def make_tasks(folder: Path, sessions: int) -> tuple[Task, ...]:
    """Return what the sessions play, each in a directory of its own under `folder`."""
    names = [*_SPECIAL, *(f"worker-{number}" for number in range(1, sessions - len(_SPECIAL) + 1))]
    prompts = [*_SPECIAL.values(), *(_ORDINARY[place % 3].format(pause=2 + place % 4) for place in range(sessions - len(_SPECIAL)))]
    return tuple(
        Task(id=name, prompt=prompt, settings=_settings(folder / "work" / name)) for name, prompt in zip(names, prompts, strict=True)
    )


def _settings(cwd: Path) -> AgentSettings:
    return AgentSettings(cwd=cwd, provider="claude", model=None, permissions="bypass", approvals="deny")


class Stage:
    """One play: the directory, the scripted CLI in it, the sessions, and what was seen. `agents` of the runner, `progress` beside."""

    def __init__(
        self, folder: Path, sessions: int, *, scripted: Any = None, kill: Callable[[int], None] | None = None, cue_delay_s: float = 1.5
    ) -> None:
        self.kill = kill or kill_scripted
        self.cue_delay_s = cue_delay_s
        self.tasks = make_tasks(folder, sessions)
        self.plan = make_plan("demo", self.tasks)
        self.state = folder / "state"
        self.sessions: dict[str, SessionPort] = {}
        self.records: Mapping[str, TaskRecord] = {}
        self.steer_consumed = False
        self.took_s = 0.0
        self.timed_out = False
        self.trouble: list[str] = []
        self._folder = folder
        self._scripted = scripted or importlib.import_module("greenroom.testing.scripted")
        for task in self.tasks:
            task.settings.cwd.mkdir(parents=True)

    def agents(self, engine: Engine, room: Any) -> Callable[[AgentSettings], AgentPort]:
        """Return the one agent of the play, in the form that the runner wants."""
        binary = self._scripted.write_scripted_claude(self._folder / "bin")
        env = {**os.environ, "GREENROOM_SCRIPTED_STATE": str(self.state), "IS_SANDBOX": "1"}
        agent = engine.scripted_agent(room, binary, env=env, retry_delays_s=_RETRY_DELAYS_S)
        return lambda _settings: Cast(agent, self.sessions)

    def pids(self, name: str | None = None) -> list[int]:
        """Return the pids of the CLIs that were started (for one session: that work in its directory)."""
        starts = self._scripted.starts(self.state)
        return [start["pid"] for start in starts if name is None or Path(start["cwd"]).name == name]

    def verdicts(self) -> list[tuple[bool, str]]:
        """Return what was to happen, and whether it did."""
        return [*self._what_happened(), *self._what_must_hold()]

    def _what_happened(self) -> Iterator[tuple[bool, str]]:
        steered, killed, overloaded = (self.records.get(name) for name in (STEERED, KILLED, OVERLOADED))
        yield _is_done(steered) and self.steer_consumed, f"session {STEERED!r} took a message into its running turn"
        stopped = self.records.get(INTERRUPTED)
        yield stopped is not None and stopped.outcome is Outcome.INTERRUPTED, f"session {INTERRUPTED!r} was interrupted in mid-turn"
        retries = overloaded.retries if overloaded else 0
        yield _is_done(overloaded) and retries > 0, f"session {OVERLOADED!r} met an overload; retries: {retries}"
        restarts = killed.restarts if killed else 0
        yield _is_done(killed) and restarts > 0, f"session {KILLED!r} lost its process (SIGKILL) and went on; restarts: {restarts}"

    def _what_must_hold(self) -> Iterator[tuple[bool, str]]:
        others = [self.records.get(task.id) for task in self.tasks if task.id not in _SPECIAL]
        yield all(map(_is_done, others)), f"the other {len(others)} sessions did their work undisturbed"
        yield all(map(self._asked_once, self.records.values())), "no model was shown a prompt twice"
        left = [pid for pid in self.pids() if _is_scripted(pid)]
        yield not left, f"of {len(self.pids())} processes none is left running" + (f", except {left}" if left else "")
        yield not self.timed_out, f"it took {self.took_s:.1f} s" + (" and ran into its cap" if self.timed_out else "")
        for trouble in self.trouble:
            yield False, trouble

    def _asked_once(self, record: TaskRecord) -> bool:
        if record.conversation_id is None:
            return False
        seen = self._scripted.prompts_seen(self.state, record.conversation_id)
        return list(seen).count(self.plan.by_id[record.id].prompt) == 1


@attrs.frozen
class Cast:
    """An agent that remembers its sessions by their directories, for those who act on them from outside."""

    agent: Any
    sessions: dict[str, SessionPort]

    def session(self, cwd: Path, *, resume_id: str | None = None, session_id: str | None = None) -> SessionPort:
        """Open a session."""
        opened: SessionPort = self.agent.session(cwd)
        self.sessions[cwd.name] = opened
        return opened


class Stagehand:
    """Stands between the runner and the reporter, and does to the sessions what the play wants, each once, on its cue."""

    def __init__(self, stage: Stage, reporter: Reporter, offload: Offload) -> None:
        self._stage = stage
        self._reporter = reporter
        self._offload = offload
        self._played: set[str] = set()
        self._acts: dict[str, Callable[[], Any]] = {STEERED: self._steer, INTERRUPTED: self._interrupt, KILLED: self._kill}
        self._pending: set[asyncio.Future[None]] = set()

    def began(self, key: str) -> None:
        """Pass it on."""
        self._reporter.began(key)

    def opened(self, key: str, liveness: Callable[[], Liveness]) -> None:
        """Pass it on."""
        self._reporter.opened(key, liveness)

    def event(self, key: str, event: AgentEvent | SessionEvent) -> None:
        """Pass it on, and act on the cue."""
        self._reporter.event(key, event)
        bare = bare_event(event)
        self._stage.steer_consumed |= isinstance(bare, SteerConsumed)
        if isinstance(bare, ToolCall) and key in self._acts and key not in self._played:
            self._played.add(key)
            pending = asyncio.ensure_future(self._act(key))
            self._pending.add(pending)
            pending.add_done_callback(self._pending.discard)

    def ended(self, record: TaskRecord) -> None:
        """Pass it on."""
        self._reporter.ended(record)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._reporter.note(text)

    async def _act(self, key: str) -> None:
        await asyncio.sleep(self._stage.cue_delay_s)  # so that somebody who watches sees the session at work first
        try:
            await self._offload(Lane.OPEN, self._acts[key])
        except (GreenroomError, OSError) as error:
            self._stage.trouble.append(f"{key}: {error}")

    def _steer(self) -> None:
        self._stage.sessions[STEERED].steer(_STEER)

    def _interrupt(self) -> None:
        self._stage.sessions[INTERRUPTED].interrupt()

    def _kill(self) -> None:
        self._stage.kill(self._stage.pids(KILLED)[-1])


async def play(stage: Stage, engine: Engine, console: Screen, *, seconds_cap: float, plain: bool) -> int:
    """Run the play and end everything. Returns 0, or more than 128 if it was told to stop; `stage.verdicts()` says how it went."""
    board = Board(((task.id, task.session_name) for task in stage.tasks), title=f"greenroom demo: {len(stage.tasks)} sessions")
    reporter, offload, stop = Reporter(board, console, plain=plain), Threads(), StopRequest()
    started_s = time.monotonic()
    with signals_to(stop.ask):
        room = await offload(Lane.ROOM, lambda: engine.open_room(max_starting=8))
        caps = _cap(stage, stop, seconds_cap)
        try:
            stagehand = Stagehand(stage, reporter, offload)
            limits = Limits(parallel=len(stage.tasks))
            runner = Runner(
                stage.plan, room=room, agents=stage.agents(engine, room), progress=stagehand, offload=offload, stop=stop, limits=limits
            )
            async with reporter.showing():
                stage.records = await runner.run()
        finally:
            for cap in caps:
                cap.cancel()
            await offload(Lane.ROOM, room.close, _GONE_WITHIN_S)
            offload.close()
    stage.took_s = time.monotonic() - started_s
    return stop.status if stop.asked and not stage.timed_out else 0


def _cap(stage: Stage, stop: StopRequest, seconds_cap: float) -> list[asyncio.TimerHandle]:
    """Stop the play shortly before its time is up: in order, and a little later by force."""

    def give_up() -> None:
        stage.timed_out = True
        stop.ask()

    loop = asyncio.get_running_loop()
    return [loop.call_later(seconds_cap * 0.7, give_up), loop.call_later(seconds_cap * 0.85, give_up)]


def _is_done(record: TaskRecord | None) -> bool:
    return record is not None and record.outcome is Outcome.DONE


def kill_scripted(pid: int) -> None:
    """Kill a CLI that we started; it named itself in our directory, and it must still be what it was."""
    if _is_scripted(pid):
        os.kill(pid, signal.SIGKILL)


def _is_scripted(pid: int) -> bool:
    """Whether the process lives and is one of the scripted CLIs; a recycled pid is not."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any("claude" in part for part in process.cmdline())
    except psutil.Error:
        return False
