"""kill -9 on the real Codex, at every moment of a turn: the turn goes on, and the model is shown and does nothing twice."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from greenroom import (
    Continuity,
    OnDeath,
    RestartPolicy,
    SteerConsumed,
    SteerDelivered,
    SteerRejected,
    TransportDied,
    TransportDiedError,
    TransportRestarted,
)
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import Running, ended, has_no_process, together, until
from tests.e2e.test_deaths import LATE_END, SLOW_END, TOOL_END, Frame, cutter

TOOL_PROMPT = "BASH echo x >> side\nSAY the-end"
ITEM = "params.item.type"
FRAMES = {
    "handshake": {"result.userAgent": "*"},
    "thread": {"result.thread.id": "*"},
    "accepted": {"result.turn.id": "*"},
    "started": {"method": "turn/started"},
    "input": {"method": "item/started", ITEM: "userMessage"},
    "command": {"method": "item/started", ITEM: "commandExecution"},
    "command ended": {"method": "item/completed", ITEM: "commandExecution"},
    "usage": {"method": "thread/tokenUsage/updated"},
    "answer": {"method": "item/completed", ITEM: "agentMessage"},
}


@contextmanager
def cut_stage(folder: pathlib.Path, real: str, at: Frame, *, shown: bool = True, times: int = 1) -> Iterator[CodexStage]:
    binary, env = cutter(folder / "bin", real, at, shown=shown, times=times, arg="app-server")
    (folder / "bin" / "codex").write_text(binary.read_text())
    (folder / "bin" / "codex").chmod(0o755)
    with CodexStage(folder, folder / "bin" / "codex", env=env) as stage:
        yield stage


def shown_once(stage: CodexStage, text: str) -> None:
    """The text is in no request twice, and in the last one once."""
    counts = stage.shown(text)
    assert max(counts) == counts[-1] == 1, [stage.server.seen(index) for index in range(len(counts))]


def went_on(running: Running, restarts: int = 1) -> None:
    """The turn survived, in its own conversation, and said so."""
    turn = running.join()
    assert turn.result.text == "the-end"
    assert (turn.restarts, turn.retries, turn.continuity) == (restarts, 0, Continuity.CONTINUED)
    assert len(running.saw(TransportDied)) == len(running.saw(TransportRestarted)) == restarts
    assert "signal 9" in running.saw(TransportDied)[0].cause


def killed_in_the_first_turn(codex: str, folder: pathlib.Path, moment: str, shown: bool) -> None:
    with cut_stage(folder, codex, FRAMES[moment], shown=shown) as stage, stage.session() as session:
        running = stage.begin(session, TOOL_PROMPT)
        went_on(running)
        after = stage.run(session, "SAY next", prepare={"pin": True})
        assert after.conversation_id == running.turn.conversation_id
    shown_once(stage, "BASH echo x")
    shown_once(stage, "SAY next")
    assert (stage.cwd / "side").read_text() == "x\n"


@pytest.mark.parametrize("shown", [True, False], ids=["told", "untold"])
def test_killed_at_a_frame(codex: str, tmp_path: pathlib.Path, shown: bool) -> None:
    """`untold`: the frame is written by Codex and never read by us."""
    together([(codex, tmp_path / name, name, shown) for name in FRAMES], killed_in_the_first_turn, width=3)


def test_killed_as_the_message_is_written(codex: str, tmp_path: pathlib.Path) -> None:
    """Now and then the message is in the thread, but not yet its id: then the thread's file tells (one time in five without it)."""
    together([(codex, tmp_path / str(number), "input", True) for number in range(8)], killed_in_the_first_turn, width=4)


@pytest.mark.parametrize("moment", ["accepted", "started", "input", "command ended", "answer"])
def test_killed_in_a_later_turn(codex: str, tmp_path: pathlib.Path, moment: str) -> None:
    with cut_stage(tmp_path, codex, FRAMES[moment], shown=True) as stage:
        with stage.session(agent=stage.agent(transport=stage.transport(binary=codex))) as session:
            one = stage.run(session, "SAY one")
        with stage.session(resume_id=one.conversation_id) as session:
            running = stage.begin(session, TOOL_PROMPT)
            went_on(running)
            assert running.turn.conversation_id == one.conversation_id
    shown_once(stage, "SAY one")
    shown_once(stage, "BASH echo x")
    assert (stage.cwd / "side").read_text() == "x\n"


def test_killed_behind_the_turns_end(codex: str, tmp_path: pathlib.Path) -> None:
    with cut_stage(tmp_path, codex, {"method": "turn/completed"}) as stage, stage.session() as session:
        one = stage.begin(session, TOOL_PROMPT)
        assert one.join().restarts == 0
        has_no_process(session)
        two = stage.run(session, "SAY two", prepare={"pin": True})
        assert (two.restarts, two.conversation_id) == (0, one.turn.conversation_id)
    assert not one.saw(TransportDied)
    shown_once(stage, "SAY two")


@pytest.mark.parametrize("where", ["silence", "text"])
def test_killed_while_the_model_works(codex_stage: CodexStage, where: str) -> None:
    stage = codex_stage
    prompt = {"silence": LATE_END, "text": SLOW_END}[where]
    with stage.session() as session:
        running = stage.begin(session, prompt)
        stage.asked(1) if where == "silence" else stage.streams()
        stage.kill()
        stage.go_on()
        turn = running.join()
    assert turn.result.text.endswith("the-end")
    assert turn.restarts == 1
    assert not turn.result.usage.increment_known
    shown_once(stage, prompt.splitlines()[0])


def test_killed_in_a_command_its_processes_end_and_it_is_not_run_again(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        running = stage.begin(session, "BASH echo x >> side; echo $$ > pid; mkdir once && exec sleep 61\nSAY the-end")
        stage.in_a_tool(running)
        pid = int((stage.cwd / "pid").read_text())
        stage.kill()
        went_on(running)
        until(lambda: ended(pid), "the end of the command")
    assert (stage.cwd / "side").read_text() == "x\n"
    shown_once(stage, "BASH echo x")


def test_a_steer_that_was_not_consumed_is_told(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        running = stage.begin(session, TOOL_END)
        stage.in_a_tool(running)
        session.steer("SAY steered")
        running.wait_for(SteerDelivered)
        stage.kill()
        running.join()
    assert [event.text for event in running.saw(SteerRejected)] == ["SAY steered"]
    assert not running.saw(SteerConsumed)


def test_interrupted_in_the_restart(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session(agent=stage.agent(restart=RestartPolicy(delays=(30.0,)))) as session:
        running = stage.begin(session, "SLEEP 20\nSAY late")
        stage.asked(1)
        stage.kill()
        running.wait_for(TransportDied)
        session.interrupt()
        assert running.join().result.interrupted
        assert stage.run(session, "SAY next", prepare={"pin": True}).result.text == "next"


@pytest.mark.parametrize("on_death", [OnDeath.FAIL, OnDeath.RESEND])
def test_what_on_death_says_is_done(codex_stage: CodexStage, on_death: OnDeath) -> None:
    stage = codex_stage
    restart = RestartPolicy(delays=(0.0,), on_death=on_death)
    with stage.session(agent=stage.agent(restart=restart)) as session:
        running = stage.begin(session, LATE_END)
        stage.asked(1)
        stage.wrote("SAY the-end")
        stage.kill()
        stage.go_on()
        running.ended()
        stage.run(session, "SAY next")
    if on_death is OnDeath.FAIL:
        assert isinstance(running.error, TransportDiedError)
    else:
        assert running.join().result.text == "the-end"
        assert stage.shown("SAY the-end")[-2] == 2


def test_a_server_that_always_dies_is_given_up(codex: str, tmp_path: pathlib.Path) -> None:
    with cut_stage(tmp_path, codex, FRAMES["started"], times=9) as stage:
        agent = stage.agent(restart=RestartPolicy(max_restarts=2, delays=(0.0,)))
        with stage.session(agent=agent) as session, pytest.raises(TransportDiedError):
            stage.run(session, TOOL_PROMPT)
