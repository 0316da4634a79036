"""The same scenes on the scripted Codex and on the real one give the same events: so the scripted one stays honest.

Each scene says what a caller sees, in short words, and is played on both, in a shared server and in one of its own.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest

from greenroom import ApprovalPolicy, NativeMode, NativePermissions, SessionStarted, SteerDelivered, ToolCall
from greenroom.testing import write_scripted_codex
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import LONG_TOOL, Running, together, until
from tests.e2e.test_parity import CONSUMED, DELIVERED, IN_VAIN, LATE, PLAIN, SCHEMA, SLOW, STOPPED, Scene, end, seen

READ_ONLY = NativePermissions(NativeMode.READ_ONLY)


SCRIPTED = {LATE: "SLEEP 2", SLOW: "SLOW 25 0.1 w"}  # nobody can let the scripted one go on


@attrs.frozen
class Cli:
    """One of the two, on a stage."""

    name: str
    stage: CodexStage

    def prompt(self, lines: str) -> str:
        """Return the prompt in the words of this CLI; scenes are written in those of the real one's model server."""
        return lines if self.name == "real" else "\n".join(scripted(line, self.stage.cwd) for line in lines.splitlines())

    def in_a_command(self, running: Running) -> None:
        """Wait until the command runs."""
        running.wait_for(ToolCall)
        until((self.stage.cwd / "once").exists, "the command to run")

    def thinks(self, running: Running) -> None:
        """Wait until the model is at work on a prompt that is stored."""
        running.wait_for(SessionStarted)
        if self.name == "real":
            self.stage.asked(1)
            self.stage.wrote(running.ticket.request.prompt.splitlines()[-1])
        else:
            until(lambda: any((self.stage.folder / "state").glob("*.jsonl")), "the prompt to be stored")

    def streams(self, running: Running) -> None:
        """Wait until the model is in its text, as far as that can be seen."""
        if self.name == "real":
            self.stage.streams()
        else:
            self.thinks(running)


def scripted(line: str, cwd: pathlib.Path) -> str:
    if line in SCRIPTED:
        return SCRIPTED[line]
    word, _, rest = line.partition(" ")
    match word:
        case "BASH":
            return f"RUN {rest}"
        case "WRITE":
            return f"CHANGE_FILE {rest}"
        case "ERROR":
            status, code, message = rest.split(" ", 2)
            info = {"500": '{"httpConnectionFailed":{"httpStatusCode":500}}', "401": '{"httpConnectionFailed":{"httpStatusCode":401}}'}
            return f"FAIL {info.get(status, CODES.get(code, 'other'))} {message}"
        case _:
            return line


CODES = {"context_length_exceeded": "contextWindowExceeded", "insufficient_quota": "usageLimitExceeded"}


@contextmanager
def playing(kind: str, codex: str, folder: pathlib.Path) -> Iterator[Cli]:
    """A stage of its own for one of the two."""
    binary = codex if kind == "real" else write_scripted_codex(folder / "bin")
    with CodexStage(folder, binary, env={"GREENROOM_SCRIPTED_STATE": str(folder / "state")}) as stage:
        yield Cli(kind, stage)


@pytest.fixture(params=["scripted", "real"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def cli(kind: str, codex: str, tmp_path: pathlib.Path) -> Iterator[Cli]:
    with playing(kind, codex, tmp_path) as cli:
        yield cli


def plainly(cli: Cli, running: Running) -> None:
    """Do nothing in the turn."""


def interrupt(cli: Cli, running: Running) -> None:
    cli.thinks(running)
    running.session.interrupt()


def interrupt_in_text(cli: Cli, running: Running) -> None:
    cli.streams(running)
    running.session.interrupt()


def interrupt_in_a_command(cli: Cli, running: Running) -> None:
    cli.in_a_command(running)
    running.session.interrupt()


def steer(cli: Cli, running: Running) -> None:
    running.session.steer("SAY steered")
    running.wait_for(SteerDelivered)
    cli.stage.go_on()


def steer_in_a_command(cli: Cli, running: Running) -> None:
    cli.in_a_command(running)
    steer(cli, running)


def steer_in_text(cli: Cli, running: Running) -> None:
    cli.streams(running)
    steer(cli, running)


def kill(cli: Cli, running: Running) -> None:
    cli.thinks(running)
    cli.stage.kill()
    cli.stage.go_on()


COMMAND = "call shell", "result of shell: 0"
SCENES = {
    "says": Scene("SAY hi", ("text hi", "usage")),
    "thinks": Scene("THINK hm\nSAY hi", ("thinks hm", "text hi", "usage")),
    "runs": Scene("SAY so\nBASH echo out\nSAY done", ("text so", *COMMAND, "text done", "usage")),
    "writes": Scene("WRITE {cwd}/f.txt text\nSAY done", ("call apply_patch", "result of apply_patch: None", "text done", "usage")),
    "streams": Scene("SLOW 5 0.05 w", ("text w0 …", "usage")),
    "structured": Scene('STRUCTURED {"n": 7}', ('text {"n":7}', "usage"), request={"output_schema": SCHEMA}),
    "misses the schema": Scene("SAY no", ("usage",), "TurnFailedError schema", request={"output_schema": SCHEMA}, texts=False),
    "a server error once": Scene(
        "ERROR 500 server_error Internal 1\nSAY hi",
        ("ProviderError", "usage", "waits: retry", "text hi", "usage"),
        "ended continued retries=1 restarts=0 known",
    ),
    "no credentials": Scene("ERROR 401 invalid_api_key nope", ("ProviderError", "usage"), "TurnFailedError auth"),
    "too long": Scene("ERROR 400 context_length_exceeded too long", ("ProviderError", "usage"), "TurnFailedError context_overflow"),
    "used up": Scene("ERROR 429 insufficient_quota used up", ("ProviderError", "usage"), "TurnFailedError usage_limit"),
    "interrupted in silence": Scene("HANG", ("TurnInterrupted", "usage?"), IN_VAIN, interrupt),
    "interrupted in text": Scene(SLOW, ("TurnInterrupted", "usage?"), IN_VAIN, interrupt_in_text),
    "interrupted in a command": Scene(
        LONG_TOOL, ("call shell", "result of shell: None", "TurnInterrupted", "usage"), STOPPED, interrupt_in_a_command
    ),
    "times out": Scene("HANG", ("usage",), "TurnTimeoutError", request={"timeout": 1.0}, warm=True),
    "steered in a command": Scene(
        f"{LONG_TOOL}\nSAY done",
        ("call shell", DELIVERED, "result of shell: 0", CONSUMED, "usage"),
        act=steer_in_a_command,
        texts=False,
    ),
    "steered in text": Scene(SLOW, (DELIVERED, CONSUMED, "text steered", "usage"), act=steer_in_text),
    "killed": Scene(
        f"{LATE}\nSAY done",
        ("finished -9", "TransportDied", "waits: restart: 0 s", "run", "TransportRestarted", "session", "text done", "usage"),
        "ended continued retries=0 restarts=1 unknown",
        kill,
    ),
}


def play(kind: str, codex: str, folder: pathlib.Path, scene: str) -> None:
    it = SCENES[scene]
    with playing(kind, codex, folder) as cli, cli.stage.session() as session:
        began = ("run", "session")
        if it.warm:
            began = ()
            assert end(cli.stage.begin(session, "SAY before")) == PLAIN
        running = cli.stage.begin(session, cli.prompt(it.lines.replace("{cwd}", str(cli.stage.cwd))), **it.request)
        it.act(cli, running)
        ended = end(running)
        said = [re.sub(r"(?<=retry): .*|(?<={\"n\":) ", "", one) for one in seen(running, texts=it.texts)]
        assert (ended, said) == (it.end, [*began, *it.seen])
        after = cli.stage.begin(session, "SAY next", prepare={"pin": session.conversation_id is not None})
        assert end(after) == PLAIN
        assert seen(after)[-2:] == ["text next", "usage"]


def test_scenes(kind: str, codex: str, tmp_path: pathlib.Path) -> None:
    together([(kind, codex, tmp_path / str(number), scene) for number, scene in enumerate(SCENES)], play, width=4)


@pytest.mark.parametrize("policy", [ApprovalPolicy.DENY, ApprovalPolicy.FAIL_TURN])
def test_a_request_for_leave(cli: Cli, policy: ApprovalPolicy) -> None:
    with cli.stage.session(agent=cli.stage.agent(permissions=READ_ONLY, approvals=policy)) as session:
        running = cli.stage.begin(session, "ASK touch x\nSAY done")
        ended = end(running)
        said = [one for one in seen(running) if not one.startswith("usage")]
    assert said[:4] == ["run", "session", "call shell", "denied command"]
    assert ended == (PLAIN if policy is ApprovalPolicy.DENY else "TurnFailedError other")


def test_the_budget_is_used_up(cli: Cli) -> None:
    with cli.stage.session() as session:
        ends = [end(cli.stage.begin(session, f"SAY {number}")).split()[1] for number in range(3)]
    assert ends == ["continued", "reset", "continued"]


def test_a_thread_that_is_gone(cli: Cli) -> None:
    with cli.stage.session(resume_id="0197a1b2-0000-7000-8000-000000000000") as session:
        running = cli.stage.begin(session, "SAY hi")
        assert end(running) == "ended replaced retries=0 restarts=0 known"
        assert seen(running)[-3:] == ["session", "text hi", "usage"]
