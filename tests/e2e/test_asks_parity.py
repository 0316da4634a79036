"""What is asked and answered looks the same on the scripted CLIs and on the real ones: so the scripted ones stay honest."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from greenroom import (
    Accept,
    AcceptForSession,
    Answer,
    ApprovalRequested,
    ApprovalResolved,
    AssistantText,
    CancelTurn,
    Decline,
    Lifecycle,
    PendingApproval,
    QuestionAsked,
    QuestionResolved,
    Reply,
    ToolCall,
    ToolResult,
    TurnInterrupted,
)
from greenroom.testing import write_scripted_claude, write_scripted_codex
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import Running, Stage
from tests.e2e.test_asks import QUESTION, answering, asking

Words = Callable[[str], str]


def real_claude(line: str) -> str:
    return f"TOOL AskUserQuestion {json.dumps(QUESTION)}" if line == "QUESTION" else line


def scripted_claude(line: str) -> str:
    word, _, rest = line.partition(" ")
    if word == "BASH":
        return f"CAN_USE_TOOL Bash {json.dumps({'command': rest})}"
    return f"CAN_USE_TOOL AskUserQuestion {json.dumps(QUESTION)}" if word == "QUESTION" else line


def real_codex(line: str) -> str:
    return line


def scripted_codex(line: str) -> str:
    word, _, rest = line.partition(" ")
    return f"ASK {rest}" if word == "BASH" else line


@pytest.fixture
def real(claude: str, codex: str) -> dict[str, str]:
    return {"claude": claude, "codex": codex}


@contextmanager
def playing(provider: str, kind: str, folder: pathlib.Path, real: dict[str, str]) -> Iterator[tuple[Stage, Words]]:
    state = {"GREENROOM_SCRIPTED_STATE": str(folder / "state")}
    if provider == "claude":
        binary = real["claude"] if kind == "real" else str(write_scripted_claude(folder / "bin"))
        with Stage(folder, binary, env=state) as stage:
            yield stage, real_claude if kind == "real" else scripted_claude
    else:
        binary = real["codex"] if kind == "real" else str(write_scripted_codex(folder / "bin"))
        with CodexStage(folder, binary, env=state) as stage:
            yield stage, real_codex if kind == "real" else scripted_codex


def word_of(event: Any) -> str | None:
    """Return an event in a word, None for one that this is not about."""
    match event:
        case ApprovalResolved() | QuestionResolved():
            return f"{type(event.verdict).__name__} by {event.by}"
        case ApprovalRequested():
            return "asks" if isinstance(event.pending, PendingApproval) else None
        case QuestionAsked():
            return "question"
        case ToolCall():
            return "call"
        case ToolResult():
            return "result"
        case AssistantText():
            return f"says {event.text}"
        case TurnInterrupted():
            return "interrupted"
        case Lifecycle(kind="waiting" | "accepted for the session" as kind):
            return kind if "start slot" not in event.detail else None
        case _:
            return None


def words(running: Running) -> list[str]:
    return [word for event in running.events if (word := word_of(event)) is not None]


SCENES: dict[str, tuple[str, tuple[Answer, ...], list[str]]] = {
    "accepted": (
        "BASH touch x\nSAY done",
        (Accept(),),
        ["call", "waiting", "asks", "Accept by answer", "result", "says done"],
    ),
    "declined": (
        "BASH touch x\nSAY done",
        (Decline(),),
        ["call", "waiting", "asks", "Decline by answer", "result", "says done"],
    ),
    "cancelled": (
        "BASH touch x\nSAY done",
        (CancelTurn(),),
        ["call", "waiting", "asks", "CancelTurn by answer", "result", "interrupted"],
    ),
    "for the session": (
        "BASH touch x\nBASH touch x\nSAY done",
        (AcceptForSession(),),
        ["call", "waiting", "asks", "AcceptForSession by answer", "result", "call", "result", "says done"],
    ),
}


@pytest.mark.parametrize("kind", ["scripted", "real"])
@pytest.mark.parametrize("provider", ["claude", "codex"])
@pytest.mark.parametrize("scene", SCENES)
def test_the_same_scene(scene: str, provider: str, kind: str, tmp_path: pathlib.Path, real: dict[str, str]) -> None:
    prompt, answers, expected = SCENES[scene]
    with playing(provider, kind, tmp_path, real) as (stage, said), asking(stage) as session:
        running = stage.begin(session, "\n".join(map(said, prompt.splitlines())))
        answering(stage, running, *answers)
        running.join()
    assert words(running) == expected


@pytest.mark.parametrize("kind", ["scripted", "real"])
def test_the_same_question(kind: str, tmp_path: pathlib.Path, real: dict[str, str]) -> None:
    with playing("claude", kind, tmp_path, real) as (stage, said), asking(stage) as session:
        running = stage.begin(session, "\n".join(map(said, ("QUESTION", "SAY done"))))
        answering(stage, running, Reply({"Which one?": "Red"}))
        running.join()
    assert words(running) == ["call", "waiting", "question", "Reply by answer", "result", "says done"]
    assert 'Your questions have been answered: "Which one?"="Red".' in running.saw(ToolResult)[0].stdout
