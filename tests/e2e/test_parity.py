"""The same scenes on the scripted Claude and on the real one give the same events: so the scripted one stays honest.

Each scene says what a caller sees, in short words, and is played on both.
"""

from __future__ import annotations

import pathlib
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from greenroom import (
    Agent,
    AgentEvent,
    ApprovalDenied,
    AssistantText,
    Lifecycle,
    OutputSchema,
    ProviderError,
    Reasoning,
    RunFinished,
    RunStarted,
    SessionStarted,
    SteerConsumed,
    SteerDelivered,
    SteerRejected,
    ToolCall,
    ToolResult,
    TransportDied,
    TransportRestarted,
    TurnFailedError,
    TurnInterrupted,
    UsageReport,
)
from greenroom.testing import write_scripted_claude
from tests.e2e.stage import LONG_TOOL, Running, Stage, together, until

SCHEMA = OutputSchema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


LATE, SLOW = "SLEEP 60", "SLOW 100 0.1 w"
SCRIPTED = {LONG_TOOL: "AWAIT_STEER", LATE: "SLEEP 2", SLOW: "SLOW 25 0.1 w"}  # nobody can let the scripted one go on


@attrs.frozen
class Cli:
    """One of the two, on a stage."""

    name: str
    stage: Stage

    def prompt(self, lines: str) -> str:
        """Return the prompt in the words of this CLI; scenes are written in those of the real one's model server."""
        return lines if self.name == "real" else "\n".join(scripted(line) for line in lines.splitlines())

    def in_a_tool(self, running: Running) -> None:
        """Wait until the tool runs."""
        if self.name == "real":
            self.stage.in_a_tool(running)
        running.wait_for(ToolCall)

    def thinks(self, running: Running) -> None:
        """Wait until the model is at work on a prompt that is stored."""
        if self.name == "real":
            self.stage.asked(1)
            self.stage.wrote(running.ticket.request.prompt.splitlines()[-1])
        else:
            until(lambda: any((self.stage.folder / "state").glob("*.jsonl")), "the prompt to be stored")
        running.wait_for(SessionStarted)


def scripted(line: str) -> str:
    if line in SCRIPTED:
        return SCRIPTED[line]
    word, _, rest = line.partition(" ")
    if word == "BASH":
        return f'TOOL Bash {{"command": "{rest}"}} -> out'
    if word == "ERROR":
        return f"API_ERROR {rest}"
    return line


@contextmanager
def playing(kind: str, claude: str, folder: pathlib.Path) -> Iterator[Cli]:
    """A stage of its own for one of the two."""
    binary = claude if kind == "real" else write_scripted_claude(folder / "bin")
    with Stage(folder, binary, env={"GREENROOM_SCRIPTED_STATE": str(folder / "state")}) as stage:
        yield Cli(kind, stage)


@pytest.fixture(params=["scripted", "real"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def cli(kind: str, claude: str, tmp_path: pathlib.Path) -> Iterator[Cli]:
    with playing(kind, claude, tmp_path) as cli:
        yield cli


LATER_PIECE = re.compile(r"\s*w[1-9]\d*\s*")


def word(event: AgentEvent) -> str | None:
    match event:
        case RunStarted():
            return "run"
        case RunFinished():
            return f"finished {event.exit_code}"
        case SessionStarted():
            return "session"
        case AssistantText() if LATER_PIECE.fullmatch(event.text):
            return None
        case AssistantText():
            return "text " + re.sub(r"(?<=w0).*", " …", event.text)
        case Reasoning():
            return f"thinks {event.text}"
        case ToolCall():
            return f"call {event.tool}"
        case ToolResult():
            return f"result of {event.tool}: {event.exit_code}"
        case UsageReport():
            return "usage" if event.usage.increment_known else "usage?"
        case ApprovalDenied():
            return f"denied {event.kind}"
        case SteerDelivered() | SteerConsumed() | SteerRejected():
            return f"{type(event).__name__} {event.text}"
        case ProviderError() | TurnInterrupted() | TransportDied() | TransportRestarted():
            return type(event).__name__
        case Lifecycle(kind="waiting"):
            return None if "slot" in event.detail else f"waits: {event.detail.split(',')[0].split(' in ')[0]}"
        case _:
            return None


def seen(running: Running, *, texts: bool = True) -> list[str]:
    """Return what the caller saw, in words."""
    said = [word(event) for event in running.events]
    return [one for one in said if one is not None and (texts or not one.startswith("text "))]


def end(running: Running) -> str:
    """Return how the turn ended, in words."""
    running.ended()
    if running.error is not None:
        kind = running.error.kind.value if isinstance(running.error, TurnFailedError) else ""
        return f"{type(running.error).__name__} {kind}".strip()
    turn, result = running.turn, running.turn.result
    return " ".join(
        (
            "interrupted" if result.interrupted else "ended",
            turn.continuity.value,
            f"retries={turn.retries} restarts={turn.restarts}",
            "known" if result.usage and result.usage.increment_known else "unknown",
        )
    )


def plainly(cli: Cli, running: Running) -> None:
    """Do nothing in the turn."""


def interrupt(cli: Cli, running: Running) -> None:
    cli.thinks(running)
    running.session.interrupt()


def interrupt_in_text(cli: Cli, running: Running) -> None:
    running.wait_for(AssistantText)
    running.session.interrupt()


def interrupt_in_a_tool(cli: Cli, running: Running) -> None:
    cli.in_a_tool(running)
    running.session.interrupt()


def steer(cli: Cli, running: Running) -> None:
    running.session.steer("SAY steered")
    running.wait_for(SteerDelivered)
    cli.stage.go_on()


def steer_in_a_tool(cli: Cli, running: Running) -> None:
    cli.in_a_tool(running)
    steer(cli, running)


def steer_in_text(cli: Cli, running: Running) -> None:
    running.wait_for(AssistantText)
    steer(cli, running)


def kill(cli: Cli, running: Running) -> None:
    cli.thinks(running)
    cli.stage.kill()
    cli.stage.go_on()


Act = Callable[[Cli, Running], None]
PLAIN = "ended continued retries=0 restarts=0 known"
STOPPED = "interrupted continued retries=0 restarts=0 known"
IN_VAIN = "interrupted continued retries=0 restarts=0 unknown"
DELIVERED, CONSUMED = "SteerDelivered SAY steered", "SteerConsumed SAY steered"
TOOL = "call Bash", "result of Bash: 0"


@attrs.frozen
class Scene:
    """A prompt, what is done in the turn, what the caller sees, and how it ends. `texts`: whether what the model says counts.

    `warm`: it is the session's second turn. `pieces`: a slow text is told piece by piece, and its first piece counts.
    """

    lines: str
    seen: tuple[str, ...]
    end: str = PLAIN
    act: Act = plainly
    request: dict[str, Any] = attrs.field(factory=dict)
    texts: bool = True
    warm: bool = False
    pieces: bool = False


SCENES = {
    "says": Scene("SAY hi", ("text hi", "usage")),
    "thinks": Scene("THINK hm\nSAY hi", ("thinks hm", "text hi", "usage")),
    "says twice": Scene("SAY a\nSAY b", ("text a", "text b", "usage")),
    "runs": Scene("SAY so\nBASH echo out\nSAY done", ("text so", *TOOL, "text done", "usage")),
    "writes": Scene("WRITE f.txt text\nSAY done", ("call Write", "result of Write: None", "text done", "usage")),
    "streams": Scene("SLOW 5 0.05 w", ("text w0 …", "usage")),
    "structured": Scene(
        'STRUCTURED {"n": 7}',
        ("call StructuredOutput", "result of StructuredOutput: None", "usage"),
        request={"output_schema": SCHEMA},
    ),
    "misses the schema": Scene("SAY no", ("usage",), "TurnFailedError schema", request={"output_schema": SCHEMA}, texts=False),
    "overloaded once": Scene(
        "ERROR 529 overloaded_error Overloaded 1\nSAY hi",
        ("ProviderError", "usage", "waits: retry: 0.1 s", "text hi", "usage"),
        "ended continued retries=1 restarts=0 known",
    ),
    "no credentials": Scene("ERROR 401 authentication_error nope", ("ProviderError", "usage"), "TurnFailedError auth"),
    "too long": Scene(
        "ERROR 400 invalid_request_error prompt is too long: 2 tokens > 1 maximum",
        ("ProviderError", "usage"),
        "TurnFailedError context_overflow",
    ),
    "interrupted in silence": Scene("HANG", ("TurnInterrupted", "usage?"), IN_VAIN, interrupt),
    "interrupted in text": Scene(SLOW, ("text w0 …", "TurnInterrupted", "usage"), STOPPED, interrupt_in_text, pieces=True),
    "interrupted in a tool": Scene(
        LONG_TOOL, ("call Bash", "result of Bash: None", "TurnInterrupted", "usage"), STOPPED, interrupt_in_a_tool
    ),
    "times out": Scene("HANG", ("usage?",), "TurnTimeoutError", request={"timeout": 1.0}, warm=True),
    "steered in a tool": Scene(
        f"{LONG_TOOL}\nSAY done", ("call Bash", DELIVERED, "result of Bash: 0", CONSUMED, "usage"), act=steer_in_a_tool, texts=False
    ),
    "steered in text": Scene(SLOW, ("text w0 …", DELIVERED, CONSUMED, "text steered", "usage"), act=steer_in_text, pieces=True),
    "killed": Scene(
        f"{LATE}\nSAY done",
        ("finished -9", "TransportDied", "waits: restart: 0 s", "run", "TransportRestarted", "session", "text done", "usage"),
        "ended continued retries=0 restarts=1 unknown",
        kill,
    ),
}


def play(kind: str, claude: str, folder: pathlib.Path, scene: str) -> None:
    it = SCENES[scene]
    with playing(kind, claude, folder) as cli, cli.stage.session(agent=agent_for(cli, it)) as session:
        began = ("run", "session")
        if it.warm:
            began = ()
            assert end(cli.stage.begin(session, "SAY before")) == PLAIN
        running = cli.stage.begin(session, cli.prompt(it.lines), **it.request)
        it.act(cli, running)
        assert end(running) == it.end
        assert seen(running, texts=it.texts) == [*began, *it.seen]
        after = cli.stage.begin(session, "SAY next")
        assert end(after) == PLAIN
        assert seen(after)[-2:] == ["text next", "usage"]


def agent_for(cli: Cli, scene: Scene) -> Agent:
    return cli.stage.agent(transport=cli.stage.transport(partial_messages=scene.pieces))


def test_scenes(kind: str, claude: str, tmp_path: pathlib.Path) -> None:
    together([(kind, claude, tmp_path / str(number), scene) for number, scene in enumerate(SCENES)], play, width=4)


def test_a_second_turn_and_a_release(cli: Cli) -> None:
    with cli.stage.session() as session:
        end(cli.stage.begin(session, "SAY one"))
        two = cli.stage.begin(session, "SAY two")
        assert (end(two), seen(two)) == (PLAIN, ["text two", "usage"])
        session.release()
        three = cli.stage.begin(session, "SAY three")
        assert end(three) == PLAIN
        assert [said for said in seen(three) if said != "finished 0"] == ["run", "session", "text three", "usage"]


def test_a_refused_resume(cli: Cli) -> None:
    with cli.stage.session(resume_id=str(uuid.uuid4())) as session:
        running = cli.stage.begin(session, "SAY hi")
        assert end(running) == "ended replaced retries=0 restarts=0 known"
        assert seen(running) == ["run", "finished 1", "run", "session", "text hi", "usage"]
