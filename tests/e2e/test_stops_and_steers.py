"""Interrupts and steers on the real Claude Code: at every moment, and what follows them."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable

import pytest

from greenroom import (
    AssistantText,
    FailureKind,
    Lifecycle,
    NoRunningTurnError,
    RetryPolicy,
    RunStarted,
    SteerConsumed,
    SteerDelivered,
    SteerRejected,
    ToolCall,
    ToolResult,
    TurnCancelledError,
    TurnFailedError,
    TurnInterrupted,
    TurnRequest,
)
from tests.e2e.stage import LONG_TOOL, Running, Stage, ended, together, until

STEERS = (SteerDelivered, SteerConsumed, SteerRejected)
STUBBORN_TOOL = "BASH echo $$ > tool.pid; trap '' TERM INT HUP; timeout 60 tail -f /dev/null"
LONG_TEXT = "SLOW 100 0.1 w"


def tool_pid(stage: Stage) -> int:
    """Wait for the tool to run, and return its shell's pid."""
    path = stage.cwd / "tool.pid"
    return int(until(lambda: path.exists() and path.read_text().strip(), "the tool to run"))


def is_interrupted(running: Running) -> bool:
    turn = running.join()
    assert turn.result.interrupted == bool(running.saw(TurnInterrupted))
    assert not turn.forced
    return turn.result.interrupted


# --- interrupts


def test_interrupt_in_text(claude: str, tmp_path: pathlib.Path) -> None:
    with Stage(tmp_path, claude, partial_messages=True) as stage, stage.session() as session:
        running = stage.begin(session, LONG_TEXT)
        running.wait_for(AssistantText)
        session.interrupt()
        assert is_interrupted(running)
        assert running.turn.result.text.startswith("w0")
        kept = session.conversation_id
        pids = [process.pid for process in stage.processes()]
        after = stage.run(session, "SAY next")
        assert [process.pid for process in stage.processes()] == pids
    assert (after.result.text, after.conversation_id) == ("next", kept)
    assert stage.shown("SLOW 100")[-1] == 1


def test_interrupt_in_a_tool_ends_the_tool(stage: Stage) -> None:
    with stage.session() as session:
        running = stage.begin(session, f"{STUBBORN_TOOL}\nSAY done")
        pid = tool_pid(stage)
        session.interrupt(running.ticket)
        assert is_interrupted(running)
        until(lambda: ended(pid), "the tool's end")
        assert stage.run(session, "SAY next").result.text == "next"
    assert stage.shown("SAY next")[-1] == 1


def test_an_interrupt_in_a_later_call_of_the_model_leaves_a_lower_bound(stage: Stage) -> None:
    with stage.session() as session:
        running = stage.begin(session, "BASH echo hi\nHANG")
        stage.asked(2)
        session.interrupt()
        turn = running.join()
    assert turn.result.interrupted
    assert turn.result.usage.tokens.input == 100  # of two calls; the second was made, and never counted
    assert not turn.result.usage.increment_known


def test_an_interrupt_in_a_tool_or_in_text_that_came_leaves_the_usage_known(claude: str, tmp_path: pathlib.Path) -> None:
    with Stage(tmp_path, claude, partial_messages=True) as stage, stage.session() as session:
        in_a_tool = stage.begin(session, f"BASH echo hi\n{LONG_TOOL}")
        until(lambda: len(in_a_tool.saw(ToolCall)) == 2 and (stage.cwd / "once").exists(), "the second tool to run")
        session.interrupt()
        in_text = in_a_tool.join() and stage.begin(session, f"BASH echo hi\n{LONG_TEXT}")
        in_text.wait_for(AssistantText)
        session.interrupt()
        usages = [running.join().result.usage for running in (in_a_tool, in_text)]
    assert [(usage.tokens.input, usage.increment_known) for usage in usages] == [(200, True), (200, True)]


def test_interrupt_while_the_model_hangs_and_in_the_clis_own_retry_wait(claude: str, tmp_path: pathlib.Path) -> None:
    with Stage(tmp_path, claude, env={"CLAUDE_CODE_MAX_RETRIES": "10"}) as stage, stage.session() as session:
        hanging = stage.begin(session, "HANG")
        stage.asked(1)
        session.interrupt()
        assert is_interrupted(hanging)
        waiting = stage.begin(session, "ERROR 529 overloaded_error Overloaded")
        until(lambda: len([e for e in waiting.saw(Lifecycle) if e.kind == "provider retry"]) > 1, "two retries of the CLI's own")
        session.interrupt()
        assert is_interrupted(waiting)
        assert stage.run(session, "SAY next").result.text == "next"


def interrupted_right_behind_the_first_run(claude: str, folder: pathlib.Path, delay_s: float) -> None:
    with Stage(folder, claude) as stage, stage.session() as session:
        running = stage.begin(session, "BASH echo x >> side; timeout 60 tail -f /dev/null")
        time.sleep(delay_s)
        session.interrupt(running.ticket)
        assert is_interrupted(running)
        assert stage.run(session, "SAY next").result.text == "next"


def interrupted_right_behind_a_later_run(claude: str, folder: pathlib.Path, delay_s: float) -> None:
    with Stage(folder, claude) as stage, stage.session() as session:
        stage.run(session, "SAY one")
        running = stage.begin(session, "SLOW 100 0.1 w")
        time.sleep(delay_s)
        session.interrupt(running.ticket)
        assert is_interrupted(running)
        assert stage.run(session, "SAY next").result.text == "next"
        assert len(stage.processes()) == 1


@pytest.mark.parametrize("play", [interrupted_right_behind_the_first_run, interrupted_right_behind_a_later_run])
def test_interrupt_right_behind_the_run(claude: str, tmp_path: pathlib.Path, play: Callable[..., None]) -> None:
    """In the opening, or as the prompt is written: the turn never runs on, and the session stays usable."""
    delays_s = (0.0, 0.0005, 0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 0.5)
    together([(claude, tmp_path / str(delay_s), delay_s) for delay_s in delays_s], play)


def test_an_interrupt_that_loses_the_race_gives_the_plain_turn(stage: Stage) -> None:
    """Stopped at all moments around the end of short turns: each outcome is one or the other, and nothing hits the next turn."""
    with stage.session() as session:
        stage.run(session, "SAY one")
        for number in range(20):
            running = stage.begin(session, f"SAY text-{number}")
            time.sleep(0.006 * number)
            session.interrupt(running.ticket)
            assert is_interrupted(running) or running.turn.result.text == f"text-{number}"
            assert stage.run(session, f"SAY plain-{number}").result.text == f"plain-{number}"


def test_interrupt_of_a_prepared_ticket_asks_nobody(stage: Stage) -> None:
    with stage.session() as session:
        ticket = session.prepare_turn(TurnRequest("SAY never"))
        session.interrupt(ticket)
        with pytest.raises(TurnCancelledError):
            session.run(ticket)
        assert stage.run(session, "SAY next").result.text == "next"
    assert len(stage.server.requests) == 1


def test_interrupt_in_our_retry_wait_raises_the_transient_error(stage: Stage) -> None:
    with stage.session(agent=stage.agent(retry=RetryPolicy(delays=(60.0,)))) as session:
        running = stage.begin(session, "ERROR 529 overloaded_error Overloaded")
        until(lambda: session.state == "waiting" and stage.server.requests, "the retry wait")
        kept = session.conversation_id
        session.interrupt()
        with pytest.raises(TurnFailedError) as failed:
            running.join()
        assert failed.value.kind is FailureKind.TRANSIENT
        assert len(stage.server.requests) == 1
        after = stage.run(session, "SAY next")
    assert (after.result.text, after.conversation_id) == ("next", kept)


def test_close_in_a_running_turn_interrupts_it(stage: Stage) -> None:
    session = stage.session()
    running = stage.begin(session, f"{STUBBORN_TOOL}\nSAY done")
    pid = tool_pid(stage)
    session.close()
    assert is_interrupted(running)
    assert not stage.processes()
    until(lambda: ended(pid), "the tool's end")


def test_a_stopped_cli_is_killed_after_the_grace_and_the_next_turn_resumes(claude: str, tmp_path: pathlib.Path) -> None:
    """SIGSTOP: a CLI that answers nothing any more."""
    with Stage(tmp_path, claude, interrupt_grace_s=1.0, close_grace_s=0.5) as stage, stage.session() as session:
        stage.run(session, "SAY one")
        running = stage.begin(session, LONG_TEXT)
        stage.streams()
        stage.processes()[0].suspend()
        session.interrupt()
        turn = running.join()
        assert turn.result.interrupted
        assert turn.forced
        after = stage.run(session, "SAY next")
    assert after.conversation_id == turn.conversation_id
    assert stage.shown("SAY one")[-1] == stage.shown("SAY next")[-1] == 1


# --- steers


def test_a_steer_at_a_tool_is_folded_into_the_turn(stage: Stage) -> None:
    with stage.session() as session:
        running = stage.begin(session, f"{LONG_TOOL}\nSAY prompt-answer")
        stage.in_a_tool(running)
        session.steer("SAY steered-answer")
        running.wait_for(SteerDelivered)
        stage.go_on()
        turn = running.join()
        after = stage.begin(session, "SAY next")
        assert after.join().result.text == "next"
        with pytest.raises(NoRunningTurnError):
            session.steer("SAY late")
    assert running.saw(*STEERS) == [SteerDelivered("SAY steered-answer"), SteerConsumed("SAY steered-answer")]
    assert turn.result.text == "steered-answer"
    assert len(running.saw(ToolResult)) == 1
    assert not after.saw(*STEERS)
    assert len(stage.server.requests) == 3


def test_a_steer_in_text_runs_on_in_the_same_turn(stage: Stage) -> None:
    with stage.session() as session:
        running = stage.begin(session, LONG_TEXT)
        stage.streams()
        session.steer("SAY steered-answer")
        running.wait_for(SteerDelivered)
        stage.go_on()
        turn = running.join()
        after = stage.begin(session, "SAY next")
        assert after.join().result.text == "next"
    assert running.saw(*STEERS) == [SteerDelivered("SAY steered-answer"), SteerConsumed("SAY steered-answer")]
    assert turn.result.text == "steered-answer"
    assert turn.result.usage.tokens.input == 200
    assert [event.text.split()[-1] for event in running.saw(AssistantText)] == ["w99", "steered-answer"]
    assert [event.text for event in after.saw(AssistantText)] == ["next"]
    assert after.turn.result.usage.tokens.input == 100


@pytest.mark.parametrize("where", ["tool", "text"])
def test_many_steers_from_many_threads(stage: Stage, where: str) -> None:
    texts = [f"steer-{number} end" for number in range(6)]
    with stage.session() as session:
        running = stage.begin(session, f"{LONG_TOOL}\nSAY done" if where == "tool" else LONG_TEXT)
        stage.in_a_tool(running) if where == "tool" else stage.streams()
        threads = [threading.Thread(target=session.steer, args=(text,), daemon=True) for text in texts]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        running.wait_for(SteerDelivered, len(texts))
        stage.go_on()
        turn = running.join()
        assert not turn.result.interrupted
        after = stage.begin(session, "SAY next")
        assert after.join().result.text == "next"
    for text in texts:
        assert [event for event in running.saw(*STEERS) if event.text == text] == [SteerDelivered(text), SteerConsumed(text)]
        seen = sum(said.count(text) for role, said in stage.server.seen(-1) if role == "user")
        assert seen == 1
    assert not after.saw(*STEERS)


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.08, 0.12])
def test_a_steer_that_meets_the_end_is_delivered_once_or_refused(stage: Stage, delay_s: float) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        running = stage.begin(session, "SAY first")
        until(lambda: session.state == "running" or running.ticket.ended, "the turn to run")  # it may be over before we look
        time.sleep(delay_s)
        try:
            session.steer("SAY steered")
            accepted = True
        except NoRunningTurnError:
            accepted = False
        turn = running.join()
        after = stage.begin(session, "SAY next")
        assert after.join().result.text == "next"
    shown = stage.shown("SAY steered")[-1]
    kinds = [type(event) for event in running.saw(*STEERS)]
    if not accepted:
        assert (shown, kinds, turn.result.text) == (0, [], "first")
    elif SteerRejected in kinds:
        assert (shown, turn.result.text) == (0, "first")
    else:
        assert (shown, kinds, turn.result.text) == (1, [SteerDelivered, SteerConsumed], "steered")
    assert not after.saw(*STEERS)
    assert [event.text for event in after.saw(AssistantText)] == ["next"]


def test_an_interrupt_drops_a_steer_that_waits(stage: Stage) -> None:
    with stage.session() as session:
        running = stage.begin(session, LONG_TEXT)
        stage.streams()
        session.steer("SAY steered")
        running.wait_for(SteerDelivered)
        session.interrupt()
        assert is_interrupted(running)
        assert [type(event) for event in running.saw(*STEERS)] == [SteerDelivered, SteerRejected]
        after = stage.begin(session, "SAY next")
        assert after.join().result.text == "next"
    assert stage.shown("SAY steered")[-1] == 0
    assert not after.saw(*STEERS, RunStarted, ToolCall)
