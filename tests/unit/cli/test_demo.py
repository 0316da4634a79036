from __future__ import annotations

import asyncio
import io

import attrs
import pytest

from greenroom.cli.demo import INTERRUPTED, KILLED, OVERLOADED, STEERED, Stage, make_tasks, play
from greenroom.cli.reporter import Screen
from greenroom.events import AssistantText, Lifecycle, SteerConsumed, ToolCall, TransportDied, TransportRestarted
from greenroom.model import Continuity, Turn, TurnResult

NO_PID = 1 << 30  # above what any kernel gives out


@attrs.define
class Scripted:
    """Stands for `greenroom.testing.scripted`."""

    stage: Stage | None = None
    shown: int = 1

    def write_scripted_claude(self, folder):
        return folder / "claude"

    def starts(self, state):
        return [{"pid": NO_PID, "cwd": str(task.settings.cwd)} for task in self.stage.tasks]

    def prompts_seen(self, state, conversation_id):
        return (self.stage.plan.by_id[conversation_id].prompt,) * self.shown


@attrs.define(eq=False)
class Session:
    """Plays its part by its directory's name, and waits for what is to be done to it."""

    name: str
    engine: Engine
    conversation_id: str | None = None
    spent: None = None
    acted: asyncio.Event = attrs.field(factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop | None = None
    interrupted: bool = False

    def prepare_turn(self, request):
        return attrs.make_class("Ticket", ["turn_id"])("turn-" + self.name)

    async def arun(self, ticket, *, on_event=None):
        self.loop = asyncio.get_running_loop()
        self.conversation_id = self.name
        on_event(AssistantText("at work"))
        on_event(ToolCall("1", "Bash", {"command": "make"}))
        on_event(ToolCall("2", "Bash", {"command": "make again"}))
        if self.name in {STEERED, INTERRUPTED, KILLED} and self.name not in self.engine.inert:
            await self.acted.wait()
        for event in self.then():
            on_event(event)
        result = TurnResult(text="done", interrupted=self.interrupted)
        extra = (
            {"retries": int(self.name == OVERLOADED), "restarts": int(self.name == KILLED)} if self.name not in self.engine.inert else {}
        )
        return Turn(result, Continuity.CONTINUED, ticket.turn_id, self.name, **extra)

    def then(self):
        events = {
            STEERED: (SteerConsumed("x"),),
            OVERLOADED: (Lifecycle("wait", "retry in 1 s"),),
            KILLED: (TransportDied("signal 9"), TransportRestarted(2)),
        }
        return events.get(self.name, ()) if self.name not in self.engine.inert else ()

    def act(self):
        self.engine.acts.append(self.name)
        self.loop.call_soon_threadsafe(self.acted.set)

    def steer(self, text):
        self.act()

    def interrupt(self, ticket=None):
        self.interrupted = True
        self.act()

    def close(self):
        pass

    def release(self):
        pass


@attrs.define(eq=False)
class Engine:
    """Room, agent and engine in one."""

    inert: set = attrs.field(factory=set)
    acts: list = attrs.field(factory=list)
    sessions: dict = attrs.field(factory=dict)
    closed: list = attrs.field(factory=list)

    def open_room(self, *, max_starting):
        return self

    def scripted_agent(self, room, binary, *, env, retry_delays_s):
        assert env["GREENROOM_SCRIPTED_STATE"].endswith("state")
        return self

    def session(self, cwd):
        self.sessions[cwd.name] = Session(cwd.name, self)
        return self.sessions[cwd.name]

    def close(self, deadline_s=10):
        self.closed.append(deadline_s)

    def kill(self, pid):
        assert pid == NO_PID
        self.sessions[KILLED].act()


def perform(tmp_path, *, inert=(), cap=20.0, shown=1, sessions=12):
    engine, scripted = Engine(inert=set(inert)), Scripted(shown=shown)
    stage = scripted.stage = Stage(tmp_path, sessions, scripted=scripted, kill=engine.kill, cue_delay_s=0.01)
    out = io.StringIO()
    status = asyncio.run(play(stage, engine, Screen(file=out), seconds_cap=cap, plain=True))
    return engine, stage, status, out.getvalue()


def test_all_four_things_happen_once_and_are_told(tmp_path):
    engine, stage, status, out = perform(tmp_path)
    assert status == 0
    assert [line for fine, line in stage.verdicts() if not fine] == []
    assert sorted(engine.acts) == sorted([STEERED, INTERRUPTED, KILLED])
    assert engine.closed
    assert "killed died: signal 9" in out
    assert "killed restarted (process 2)" in out


@pytest.mark.parametrize(
    ("name", "words"),
    [(STEERED, "took a message"), (INTERRUPTED, "was interrupted"), (OVERLOADED, "met an overload"), (KILLED, "lost its process")],
)
def test_what_did_not_happen_is_told(name, words, tmp_path):
    _, stage, _, _ = perform(tmp_path, inert={name})
    (line,) = (line for fine, line in stage.verdicts() if not fine and "was not" not in line)
    assert words in line


def test_a_prompt_that_was_shown_twice_is_told(tmp_path):
    _, stage, _, _ = perform(tmp_path, shown=2)
    assert [line for fine, line in stage.verdicts() if not fine] == ["no model was shown a prompt twice"]


def test_the_cap_ends_it(tmp_path):
    engine, stage, status, _ = perform(tmp_path, cap=0.01)
    assert status == 0
    assert stage.timed_out
    assert any("ran into its cap" in line for fine, line in stage.verdicts() if not fine)
    assert engine.closed


def test_each_session_has_a_directory_and_a_prompt_of_its_own(tmp_path):
    tasks = make_tasks(tmp_path, 30)
    assert len({task.settings.cwd for task in tasks}) == len({task.id for task in tasks}) == 30
