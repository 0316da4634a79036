"""kill -9 on the real Claude Code, at every moment of a turn: the turn goes on, and the model is shown and does nothing twice.

Two ways to hit a moment: a frame of the CLI (`cutter.py` stands between), and what the model server or the file system shows.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from greenroom import (
    Continuity,
    FailureKind,
    OnDeath,
    RestartPolicy,
    RetryPolicy,
    RunStarted,
    Session,
    SteerDelivered,
    SteerRejected,
    TransportDied,
    TransportDiedError,
    TransportRestarted,
)
from greenroom.transports.claude.lines import LOST_CALLS_TEXT
from tests.e2e.stage import LONG_TOOL, QUICK_RESTART, Running, Stage, has_no_process, together, until

TOOL_PROMPT = "BASH echo x >> side\nSAY the-end"
ANSWER = '"text":"the-end"'
Frame = dict[str, str]
Written = tuple[str, ...]  # what must be in a transcript before the first cut, the second, …


def cutter(
    folder: pathlib.Path, real: str, at: Frame, *, shown: bool = True, times: int = 1, written: Written = (), arg: str = "--input-format"
) -> tuple[pathlib.Path, dict[str, str]]:
    """Write a CLI that kills the real one at a frame; return it and the variable that it needs."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = folder / "cut.json"
    plan.write_text(json.dumps({"real": real, "at": at, "shown": shown, "times": times, "written": written, "arg": arg}))
    binary = folder / "claude"
    binary.write_text(f"#!{sys.executable} -SE\n" + pathlib.Path(__file__).with_name("cutter.py").read_text())
    binary.chmod(0o755)
    return binary, {"CUTTER_PLAN": str(plan)}


@contextmanager
def cut_stage(folder: pathlib.Path, real: str, at: Frame, *, shown: bool = True, times: int = 1, written: Written = ()) -> Iterator[Stage]:
    binary, env = cutter(folder / "bin", real, at, shown=shown, times=times, written=written)
    with Stage(folder, binary, env=env) as stage:
        yield stage


def shown_once(stage: Stage, text: str) -> None:
    """The text is in no request twice, and in the last one once."""
    counts = stage.shown(text)
    assert max(counts) == counts[-1] == 1, [stage.server.seen(index) for index in range(len(counts))]


def went_on(running: Running, restarts: int = 1) -> None:
    """The turn survived, in its own conversation, and said so."""
    turn = running.join()
    assert turn.result.text == "the-end"
    assert (turn.restarts, turn.retries, turn.continuity) == (restarts, 0, Continuity.CONTINUED)
    assert len(running.saw(TransportDied)) == len(running.saw(TransportRestarted)) == restarts
    # A resume of what was never stored is refused, and the conversation begins again: a start more.
    assert restarts <= len(running.saw(RunStarted)) <= 1 + 2 * restarts
    assert "signal 9" in running.saw(TransportDied)[0].cause


def ran_once(stage: Stage) -> None:
    """The tool ran once, or the model was told that it had run and repeated it all the same, as a script does.

    The CLI writes its transcript 0.1 s late and on a busy machine later: killed right at its tool, it does not show the call when it is
    resumed.
    """
    ran = (stage.cwd / "side").read_text()
    told = any(LOST_CALLS_TEXT in json.dumps(body) for body in stage.server.requests)
    assert ran == "x\n" or (ran == "x\nx\n" and told)


FRAMES = {
    "handshake": {"type": "control_response"},
    "queued": {"type": "command_lifecycle", "state": "queued"},
    "started": {"type": "command_lifecycle", "state": "started"},
    "init": {"type": "system", "subtype": "init"},
    "echo": {"type": "user", "isReplay": True},
    "first answer": {"type": "assistant"},
    "tool result": {"type": "user", "tool_use_result": "*"},
    "result": {"type": "result"},
}


def killed_in_the_first_turn(claude: str, folder: pathlib.Path, moment: str, shown: bool) -> None:
    with cut_stage(folder, claude, FRAMES[moment], shown=shown) as stage, stage.session() as session:
        running = stage.begin(session, TOOL_PROMPT)
        went_on(running)
        after = stage.run(session, "SAY next")
        assert after.result.text == "next"
        assert after.conversation_id == running.turn.conversation_id
        assert len(stage.processes()) == 1
    shown_once(stage, "BASH echo x")
    shown_once(stage, "SAY next")
    ran_once(stage)


def killed_in_a_later_turn(claude: str, folder: pathlib.Path, moment: str, shown: bool) -> None:
    """The first turn runs on the plain binary; the cutter comes with the second process."""
    with cut_stage(folder, claude, FRAMES[moment], shown=shown) as stage:
        with stage.session(agent=stage.agent(transport=stage.transport(binary=claude))) as session:
            one = stage.run(session, "SAY one")
        with stage.session(resume_id=one.conversation_id) as session:
            running = stage.begin(session, TOOL_PROMPT)
            went_on(running)
            assert running.turn.conversation_id == one.conversation_id
            assert stage.run(session, "SAY next").result.text == "next"
    shown_once(stage, "SAY one")
    shown_once(stage, "BASH echo x")
    ran_once(stage)


@pytest.mark.parametrize("shown", [True, False], ids=["told", "untold"])
@pytest.mark.parametrize("play", [killed_in_the_first_turn, killed_in_a_later_turn])
def test_killed_at_a_frame(claude: str, tmp_path: pathlib.Path, play: Callable[..., None], shown: bool) -> None:
    """`untold`: the frame is written by the CLI and never read by us."""
    moments = [name for name in FRAMES if name != "result"]
    together([(claude, tmp_path / name, name, shown) for name in moments], play)


@pytest.mark.parametrize("number", [1, 2])
def test_killed_right_behind_the_result(claude: str, tmp_path: pathlib.Path, number: int) -> None:
    """The turn is over and written down, and the next one reopens the conversation: no death in a turn."""
    with cut_stage(tmp_path, claude, FRAMES["result"], shown=True, written=(ANSWER,)) as stage, stage.session() as session:
        one = stage.begin(session, TOOL_PROMPT)
        assert one.join().restarts == 0
        assert not one.saw(TransportDied)
        if number == 2:
            has_no_process(session)
        two = stage.run(session, "SAY two")
    assert (two.result.text, two.continuity, two.conversation_id) == ("two", Continuity.CONTINUED, one.turn.conversation_id)
    shown_once(stage, "BASH echo x")
    shown_once(stage, "SAY two")
    assert (stage.cwd / "side").read_text() == "x\n"


def test_killed_before_its_result_was_told(claude: str, tmp_path: pathlib.Path) -> None:
    """All is done and only the closing frame is missing: the model is asked to go on, and repeats nothing."""
    with cut_stage(tmp_path, claude, FRAMES["result"], shown=False, written=(ANSWER,)) as stage, stage.session() as session:
        running = stage.begin(session, TOOL_PROMPT)
        went_on(running)
        assert not running.turn.result.usage.increment_known
    shown_once(stage, "BASH echo x")
    assert (stage.cwd / "side").read_text() == "x\n"


# --- killed by hand


def while_the_model_hangs(stage: Stage, running: Running) -> None:
    until(lambda: any(stage.shown("SLEEP")), "the model to be asked")
    stage.kill()


def in_its_text(stage: Stage, running: Running) -> None:
    stage.streams()
    stage.kill()


def in_a_tool(stage: Stage, running: Running) -> None:
    stage.in_a_tool(running)
    stage.kill()


LATE_END = "SLEEP 60\nSAY the-end"
SLOW_END = "SLOW 100 0.1 w\nSAY the-end"
TOOL_END = f"{LONG_TOOL}\nSAY the-end"
BY_HAND = {"hanging": (LATE_END, while_the_model_hangs), "text": (SLOW_END, in_its_text), "tool": (TOOL_END, in_a_tool)}


def killed_by_hand(claude: str, folder: pathlib.Path, moment: str, turn: str) -> None:
    prompt, kill = BY_HAND[moment]
    with Stage(folder, claude) as stage, stage.session() as session:
        if turn == "later":
            stage.run(session, "SAY one")
        running = stage.begin(session, prompt)
        kill(stage, running)
        stage.go_on()
        assert running.join().restarts == 1
        assert running.turn.result.text.endswith("the-end")
        assert not running.turn.result.usage.increment_known
        assert stage.run(session, "SAY next").conversation_id == running.turn.conversation_id
    shown_once(stage, prompt.splitlines()[0])
    shown_once(stage, "SAY next")
    assert moment != "tool" or (stage.cwd / "side").read_text() == "x\n"


def test_killed_by_hand(claude: str, tmp_path: pathlib.Path) -> None:
    """As the model is silent, in the middle of its text, in a tool; of a first turn and of a later one."""
    cases = [(claude, tmp_path / f"{moment}-{turn}", moment, turn) for moment in BY_HAND for turn in ("first", "later")]
    together(cases, killed_by_hand)


def test_killed_as_soon_as_it_exists(stage: Stage) -> None:
    with stage.session() as session:
        running = stage.begin(session, "BASH echo x >> side\n" + LATE_END)
        stage.kill()
        stage.go_on()
        went_on(running)
    shown_once(stage, "BASH echo x")
    ran_once(stage)


def killed(stage: Stage, session: Session) -> None:
    """Kill the CLI, and wait until that has been noticed."""
    stage.processes()[0].kill()
    has_no_process(session)


def test_killed_between_turns(stage: Stage) -> None:
    with stage.session() as session:
        one = stage.run(session, "SAY one")
        stage.wrote('"text":"one"')
        killed(stage, session)
        running = stage.begin(session, "SAY two")
        two = running.join()
    assert (two.restarts, two.continuity, two.conversation_id) == (0, Continuity.CONTINUED, one.conversation_id)
    assert not running.saw(TransportDied)
    shown_once(stage, "SAY one")


def test_killed_in_a_retry_wait_is_no_death_in_a_turn(stage: Stage) -> None:
    with stage.session(agent=stage.agent(retry=RetryPolicy(delays=(3.0,)))) as session:
        stage.run(session, "SAY one")
        running = stage.begin(session, "BASH echo x >> side\nERROR 529 overloaded_error Overloaded 1\nSAY the-end")
        until(lambda: session.state == "waiting" and len(stage.server.requests) == 3, "the retry wait")
        stage.wrote(stage.RESULT)
        stage.kill()
        turn = running.join()
    assert (turn.result.text, turn.retries, turn.restarts) == ("the-end", 1, 0)
    shown_once(stage, "BASH echo x")
    assert (stage.cwd / "side").read_text() == "x\n"


def test_a_tool_that_outlives_its_cli_is_ended(stage: Stage) -> None:
    """The tool's shell is in a session of its own; kill -9 of the CLI does not reach it."""
    with stage.session() as session:
        running = stage.begin(session, "BASH nohup setsid timeout 60 tail -f /dev/null & mkdir once; wait\nSAY the-end")
        in_a_tool(stage, running)
        went_on(running)
        assert not [process for process in psutil.process_iter() if is_leftover(process, stage.cwd)]


def is_leftover(process: psutil.Process, cwd: pathlib.Path) -> bool:
    try:
        return process.cmdline() == ["tail", "-f", "/dev/null"] and process.cwd() == str(cwd)
    except psutil.Error:  # somebody else's, which has just ended
        return False


def test_a_steer_that_waits_when_the_cli_dies_is_told_as_unknown(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        running = stage.begin(session, SLOW_END)
        stage.streams()
        session.steer("SAY steered")
        running.wait_for(SteerDelivered)
        stage.kill()
        stage.go_on()
        running.join()
    assert [event.text for event in running.saw(SteerRejected)] == ["SAY steered"]
    assert stage.shown("SAY steered")[-1] == 0
    shown_once(stage, "SLOW 100")


# --- what is sent after a death, and how often


def killed_twice(on_death: OnDeath) -> RestartPolicy:
    return RestartPolicy(delays=(0.0,), on_death=on_death)


def test_on_death_fail_raises_and_keeps_the_conversation(stage: Stage) -> None:
    with stage.session(agent=stage.agent(restart=killed_twice(OnDeath.FAIL))) as session:
        one = stage.run(session, "SAY one")
        running = stage.begin(session, TOOL_END)
        in_a_tool(stage, running)
        with pytest.raises(TransportDiedError) as died:
            running.join()
        assert died.value.signal == 9
        assert died.value.kind is FailureKind.OTHER
        after = stage.run(session, "SAY next")
    assert (after.result.text, after.conversation_id) == ("next", one.conversation_id)
    assert (stage.cwd / "side").read_text() == "x\n"


def test_on_death_resend_shows_the_prompt_again(stage: Stage) -> None:
    with stage.session(agent=stage.agent(restart=killed_twice(OnDeath.RESEND))) as session:
        stage.run(session, "SAY one")
        running = stage.begin(session, TOOL_END)
        in_a_tool(stage, running)
        assert running.join().result.text == "the-end"
    assert stage.shown("BASH echo x")[-1] == 2
    assert (stage.cwd / "side").read_text() == "x\nx\n"


def test_a_cli_that_dies_every_time_is_given_up(claude: str, tmp_path: pathlib.Path) -> None:
    with cut_stage(tmp_path, claude, FRAMES["init"], shown=True, times=100) as stage, stage.session() as session:
        running = stage.begin(session, TOOL_PROMPT)
        with pytest.raises(TransportDiedError):
            running.join()
        assert len(running.saw(TransportDied)) == QUICK_RESTART.max_restarts + 1
        cutter(tmp_path / "bin", claude, FRAMES["init"], shown=True, times=0)
        assert stage.run(session, "SAY next").result.text == "next"


def test_two_deaths_in_one_turn(claude: str, tmp_path: pathlib.Path) -> None:
    """Each behind a tool, and as soon as the CLI has written down what it did: the first as the model thinks."""
    prompt = "BASH echo x >> side; echo did-x\nSLEEP 60\nBASH echo y >> side; echo did-y\nSAY the-end"
    written = ('"content":"did-x"', '"content":"did-y"')
    with cut_stage(tmp_path, claude, FRAMES["tool result"], times=2, written=written) as stage, stage.session() as session:
        running = stage.begin(session, prompt)
        running.wait_for(TransportDied)
        stage.go_on()
        went_on(running, restarts=2)
    assert (stage.cwd / "side").read_text() == "x\ny\n"
    shown_once(stage, "BASH echo x")


# --- money


def test_money_over_a_release_and_over_a_kill(stage: Stage) -> None:
    """Each call costs the same, so the sum of what we report must be the number of calls that were answered."""
    with stage.session() as session:
        one = stage.run(session, "SAY one")
        session.release()
        has_no_process(session)
        two = stage.run(session, "SAY two")
        stage.wrote('"text":"two"')
        killed(stage, session)
        three = stage.run(session, "SAY three")
        four = stage.run(session, "SAY four")
        spent = session.spent
    turns = (one, two, three, four)
    assert [turn.result.usage.tokens.input for turn in turns] == [100] * 4
    assert [turn.result.cost_usd for turn in turns] == [pytest.approx(one.result.cost_usd)] * 4
    assert all(turn.result.usage.increment_known for turn in turns)
    assert spent.tokens.input == 400
    assert spent.total_cost_usd == pytest.approx(4 * one.result.cost_usd)


def test_money_of_a_turn_that_lost_a_process_is_a_lower_bound(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        running = stage.begin(session, TOOL_END)
        in_a_tool(stage, running)
        cut = running.join()
        after = stage.run(session, "SAY next")
    assert not cut.result.usage.increment_known
    assert cut.result.usage.tokens.input in (100, 200)  # the call before the death is known by its message
    assert after.result.usage.tokens.input == 100
    assert after.result.usage.increment_known


def test_idle_release_reopens_by_id(stage: Stage) -> None:
    """It is looked at when the next turn comes: no event tells that the time is over."""
    with stage.session(idle_release_after=0.3) as session:
        one = stage.run(session, "SAY one")
        time.sleep(0.4)
        again = stage.begin(session, "SAY two")
        two = again.join()
        assert again.saw(RunStarted)
    assert (two.continuity, two.conversation_id) == (Continuity.CONTINUED, one.conversation_id)
    shown_once(stage, "SAY one")
