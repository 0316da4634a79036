"""The real Claude Code and the real Codex in front of a model that does not answer, and of tools that take long.

What is a stall on the wire: nothing at all. Both CLIs wait for minutes for a first byte, and say nothing meanwhile.
"""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any

import pytest

from greenroom import (
    Continuity,
    LivenessReason,
    RestartPolicy,
    Session,
    StallAction,
    Stalled,
    StallPolicy,
    ToolCall,
    TransportDied,
    TransportDiedError,
    TransportRestarted,
)
from greenroom.testing.model_server import Reply, Rules
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import Stage, until

PIN = {"pin": True}  # Codex's own budget would retire the conversation after its second turn
SOON_S = 3.0  # more than a start and a turn's overhead take on a busy machine
R = LivenessReason


class HangsFirst:
    """A model that leaves its first `times` requests with a prompt unanswered."""

    def __init__(self, prompt: str, times: int = 1) -> None:
        self.rules = Rules()
        self.prompt = prompt
        self.left = times

    def __call__(self, body: dict[str, Any]) -> Reply:
        """Answer a request."""
        if self.left and self.prompt in str(body):
            self.left -= 1
            return Reply(hang=True)
        return self.rules(body)


@pytest.fixture(params=["claude", "codex"])
def playing(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Any:
    """What makes the stage of a provider."""
    binary = request.getfixturevalue(request.param)
    stage = Stage if request.param == "claude" else CodexStage
    return lambda **options: stage(tmp_path, binary, **options)


def session_of(stage: Stage, action: StallAction, *, tool_after_s: float | None = None, **options: Any) -> Session:
    stall = StallPolicy(after_s=SOON_S, action=action, tool_after_s=tool_after_s)
    return stage.session(agent=stage.agent(stall=stall, **options))


def shown(stage: Stage, text: str) -> int:
    """How often the last request showed the model a text of the user's."""
    return stage.shown(text)[-1]


def test_a_model_that_does_not_answer_is_reported(playing: Any) -> None:
    with playing() as stage, session_of(stage, StallAction.REPORT) as session:
        running = stage.begin(session, "HANG")
        stalled = running.wait_for(Stalled)
        assert (stalled.reason, stalled.action) == ("model at work", "report")
        assert SOON_S <= stalled.quiet_s < 3 * SOON_S
        assert session.liveness.reason is R.SILENT
        session.interrupt()
        assert running.join().result.interrupted
        assert session.liveness.reason is R.IDLE
        assert stage.run(session, "SAY next").result.text == "next"


def test_a_model_that_does_not_answer_is_interrupted(playing: Any) -> None:
    with playing() as stage, session_of(stage, StallAction.INTERRUPT) as session:
        running = stage.begin(session, "HANG")
        turn = running.join()
        assert turn.result.interrupted
        assert not turn.forced
        assert [event.action for event in running.saw(Stalled)] == ["interrupt"]
        after = stage.run(session, "SAY next")
        assert (after.result.text, after.continuity, after.conversation_id) == ("next", Continuity.CONTINUED, turn.conversation_id)
        assert len(stage.processes()) == 1


def test_a_model_that_does_not_answer_is_asked_by_the_next_process(playing: Any) -> None:
    with playing(script=HangsFirst("SAY the-end")) as stage, session_of(stage, StallAction.RESTART) as session:
        stage.run(session, "SAY first")
        first = stage.processes()[0].pid
        running = stage.begin(session, "SAY the-end", prepare=PIN)
        turn = running.join()
        assert (turn.result.text, turn.restarts, turn.continuity) == ("the-end", 1, Continuity.CONTINUED)
        assert [len(running.saw(kind)) for kind in (Stalled, TransportDied, TransportRestarted)] == [1, 1, 1]
        assert running.saw(TransportDied)[0].cause.startswith("nothing was heard for ")
        until(lambda: [process.pid for process in stage.processes()] != [first] and len(stage.processes()) == 1, "one process, a new one")
        assert stage.run(session, "SAY next").conversation_id == turn.conversation_id
        assert shown(stage, "SAY the-end") == 1


def test_a_model_that_never_answers_fails_the_turn_and_keeps_the_conversation(playing: Any) -> None:
    restart = RestartPolicy(max_restarts=1, delays=(0,))
    with playing() as stage, session_of(stage, StallAction.RESTART, restart=restart) as session:
        kept = stage.run(session, "SAY first").conversation_id
        running = stage.begin(session, "HANG").ended()
        assert isinstance(running.error, TransportDiedError)
        assert len(running.saw(Stalled)) == 2
        after = stage.run(session, "SAY next")
        assert (after.result.text, after.conversation_id) == ("next", kept)
        assert shown(stage, "HANG") == 1


def test_a_process_that_stops_dead_is_replaced(playing: Any) -> None:
    with playing() as stage, session_of(stage, StallAction.RESTART) as session:
        running = stage.begin(session, "BASH echo x >> side\nSLEEP 1\nSAY the-end")
        running.wait_for(ToolCall)
        until((stage.cwd / "side").exists, "the tool")
        stage.asked(2)
        os.kill(stage.processes()[0].pid, signal.SIGSTOP)
        turn = running.join()
        assert (turn.result.text, turn.restarts) == ("the-end", 1)
        assert len(running.saw(Stalled)) == 1


@pytest.mark.parametrize("action", [StallAction.INTERRUPT, StallAction.RESTART])
def test_a_long_tool_is_no_stall(playing: Any, action: StallAction) -> None:
    command = f"BASH timeout {2 * SOON_S + 1:g} tail -f /dev/null; echo done >> side"
    with playing() as stage, session_of(stage, action) as session:
        running = stage.begin(session, f"{command}\nSAY the-end")
        running.wait_for(ToolCall)
        until(lambda: session.liveness.for_s > SOON_S, "the tool to take long")
        live = session.liveness
        assert live.reason is R.TOOL
        assert live.tool is not None
        assert "tail -f /dev/null" in live.tool.detail
        turn = running.join()
        assert (turn.result.text, turn.restarts) == ("the-end", 0)
        assert not running.saw(Stalled)


def test_a_tool_beyond_its_bound_is_interrupted(playing: Any) -> None:
    with playing() as stage, session_of(stage, StallAction.INTERRUPT, tool_after_s=2.0) as session:
        running = stage.begin(session, "BASH timeout 60 tail -f /dev/null\nSAY the-end")
        assert running.join().result.interrupted
        assert running.saw(Stalled)[0].reason.startswith("tool ")


def test_an_answer_that_streams_without_a_word_on_the_wire(playing: Any) -> None:
    """Neither CLI tells of a text before it is whole: `after_s` must be more than the longest one takes."""
    pieces, interval_s = 10, SOON_S / 5
    with playing() as stage, session_of(stage, StallAction.REPORT) as session:
        running = stage.begin(session, f"SLOW {pieces} {interval_s:g} w")
        assert running.join().result.text.startswith("w0 w1")
        assert len(running.saw(Stalled)) == 1


def test_of_two_threads_in_one_codex_server_the_silent_one_moves_out(codex_stage: CodexStage) -> None:
    stage = codex_stage
    stage.server.script = HangsFirst("SAY the-end")
    stall = StallPolicy(after_s=SOON_S, action=StallAction.RESTART)
    agent = stage.agent(stall=stall)
    with stage.session(agent=agent) as silent, stage.session(agent=agent) as busy:
        stage.run(silent, "SAY first")
        theirs = stage.begin(busy, f"BASH timeout {3 * SOON_S:g} tail -f /dev/null\nSAY undisturbed")
        theirs.wait_for(ToolCall)
        assert len(stage.processes()) == 1
        mine = stage.begin(silent, "SAY the-end", prepare=PIN)
        turn = mine.join()
        assert (turn.result.text, turn.restarts) == ("the-end", 1)
        other = theirs.join()
        assert (other.result.text, other.restarts) == ("undisturbed", 0)
        assert stage.run(silent, "SAY next").conversation_id == turn.conversation_id
        assert stage.run(busy, "SAY next").conversation_id == other.conversation_id
        assert max(stage.shown("SAY the-end")) == 1
        until(lambda: len(stage.processes()) == 1, "the old server's end")


def test_background_work_of_claude_is_told_after_its_turn(stage: Stage) -> None:
    with session_of(stage, StallAction.RESTART) as session:
        prompt = 'TOOL Bash {"command": "timeout 4 tail -f /dev/null", "run_in_background": true, "description": "b"}\nSAY the-end'
        assert stage.run(session, prompt).result.text == "the-end"
        until(lambda: session.liveness.reason is R.BACKGROUND, "the background work")
        until(lambda: session.liveness.reason is R.IDLE, "its end")
