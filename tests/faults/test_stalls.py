"""Real processes that fall silent in mid-turn, under each action; and silences that are none."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from greenroom import (
    Accept,
    ApprovalPolicy,
    ApprovalRequested,
    AssistantText,
    LivenessReason,
    NativePermissions,
    RestartPolicy,
    StallAction,
    Stalled,
    StallPolicy,
    SteerConsumed,
    ToolCall,
    TransportDied,
    TransportDiedError,
    TransportRestarted,
    TurnRequest,
)
from greenroom.testing import FakeClock, FakeTransport, FakeTurn, RecordingEventHandler
from tests.faults.bench import PATIENCE_S, until

R = LivenessReason
SOON_S = 0.5
WORK = "SAY a\nSLEEP 0.3\nSAY b\nSLEEP 0.3\nSAY done"
REPORT, INTERRUPT, RESTART = (StallPolicy(after_s=SOON_S, action=action) for action in StallAction)


def freeze_at(cli, pids, kind=AssistantText):
    """Have the process stop dead, as one does that hangs, at the first event of a kind."""
    done = []

    def react(event):
        if isinstance(event, kind) and not done:
            done.append(event)
            os.kill(pids()[-1], signal.SIGSTOP)

    cli.react = react


def pids_of(cli):
    return [start["pid"] for start in cli.starts]


# --- a model that says nothing


def test_a_silent_model_is_reported(bench):
    cli = bench.cli(stall=REPORT)
    begun = cli.begin("SAY a\nHANG")
    cli.wait_for(Stalled)
    assert cli.session.liveness.reason is R.SILENT
    assert cli.session.liveness.quiet_s >= SOON_S
    assert cli.of(Stalled)[0].reason == "model at work"
    cli.session.interrupt()
    assert begun.outcome().result.interrupted
    assert cli.session.liveness.reason is R.IDLE
    assert len(cli.of(Stalled)) == 1


def test_a_silent_model_is_interrupted_and_the_process_serves_the_next_turn(bench):
    cli = bench.cli(stall=INTERRUPT)
    turn = cli.run("SAY a\nHANG")
    assert turn.result.interrupted
    assert not turn.forced
    assert [event.action for event in cli.of(Stalled)] == ["interrupt"]
    assert cli.run("SAY b").result.text == "b"
    assert len(cli.starts) == 1


def test_a_silent_model_is_restarted_until_the_intensity_and_the_conversation_is_kept(bench):
    cli = bench.cli(stall=RESTART, restart=RestartPolicy(max_restarts=1, delays=(0,)))
    with pytest.raises(TransportDiedError, match=r"nothing was heard for 0\.5 s"):
        cli.run("SAY a\nHANG")
    assert len(cli.of(Stalled)) == 2
    assert len(cli.starts) == 2
    assert cli.run("SAY b").result.text == "b"
    assert len(cli.conversation_ids) == 1
    assert [text for text in cli.prompts() if "HANG" in text] == ["SAY a\nHANG"], "the model was shown it once"


# --- a process that hangs


def test_a_process_that_hangs_is_replaced_and_the_turn_goes_on(bench):
    cli = bench.cli(stall=RESTART)
    freeze_at(cli, lambda: pids_of(cli))
    turn = cli.run(WORK)
    assert turn.result.text == "done"
    assert turn.restarts == 1
    assert [type(event) for event in cli.events if isinstance(event, Stalled | TransportDied | TransportRestarted)] == [
        Stalled,
        TransportDied,
        TransportRestarted,
    ]
    assert len(cli.prompts()) == len(set(cli.prompts()))


def test_a_process_that_hangs_does_not_answer_the_interrupt_and_is_killed_after_its_grace(bench):
    cli = bench.cli(stall=INTERRUPT, transport={"interrupt_grace_s": 0.5})
    freeze_at(cli, lambda: pids_of(cli))
    turn = cli.run(WORK)
    assert turn.result.interrupted
    assert turn.forced
    assert cli.run("SAY b").result.text == "b"


def test_close_while_a_stalled_process_is_being_replaced(bench):
    cli = bench.cli(stall=RESTART, restart=RestartPolicy(delays=(60,)))
    freeze_at(cli, lambda: pids_of(cli))
    begun = cli.begin(WORK)
    cli.wait_for(TransportDied)
    assert cli.session.liveness.reason is R.RESTART
    assert 50 < cli.session.liveness.left_s <= 60
    cli.session.close()
    assert begun.outcome().result.interrupted
    assert cli.session.liveness.reason is R.CLOSED


# --- what is no stall


@pytest.mark.parametrize("stall", [INTERRUPT, RESTART])
def test_a_long_tool_is_no_stall(bench, stall):
    cli = bench.cli(stall=stall)
    begun = cli.begin("TOOL_SLEEP 1.6 out\nSAY done")
    cli.wait_for(ToolCall)
    live = cli.session.liveness
    assert (live.reason, live.tool.tool) == (R.TOOL, "Bash")
    turn = begun.outcome()
    assert turn.result.text == "done"
    assert not cli.of(Stalled)


def test_somebody_who_takes_his_time_to_answer_is_no_stall(bench):
    cli = bench.cli(stall=RESTART, approvals=ApprovalPolicy.ASK)
    begun = cli.begin('CAN_USE_TOOL Bash {"command":"touch x"}\nSAY done')
    cli.wait_for(ApprovalRequested)
    assert cli.session.liveness.reason is R.APPROVAL
    until(lambda: cli.session.liveness.for_s > 3 * SOON_S, "a long wait")
    assert cli.session.answer(cli.session.pending()[0].request_id, Accept())
    turn = begun.outcome()
    assert turn.result.text == "done"
    assert turn.restarts == 0
    assert not cli.of(Stalled)


def test_a_tool_beyond_its_bound_is_a_stall(bench):
    cli = bench.cli(stall=StallPolicy(after_s=60, tool_after_s=SOON_S, action=StallAction.INTERRUPT))
    turn = cli.run("TOOL_SLEEP 60 out\nSAY done")
    assert turn.result.interrupted
    assert cli.of(Stalled)[0].reason.startswith("tool Bash")


def test_a_turn_that_speaks_is_no_stall(bench):
    cli = bench.cli(stall=RESTART)
    turn = cli.run("\n".join(["SLEEP 0.2", "SAY a"] * 6))
    assert turn.restarts == 0
    assert not cli.of(Stalled)


def test_a_wait_of_the_clis_own_is_no_stall(bench):
    cli = bench.cli(stall=INTERRUPT)
    begun = cli.begin("API_RETRY 1 1.5\nSAY done")
    until(lambda: cli.session.liveness.reason is R.RETRY, "the retry of the CLI's own")
    assert cli.session.liveness.left_s <= 1.5
    assert begun.outcome().result.text == "done"
    assert not cli.of(Stalled)


def test_work_that_nobody_asked_for_is_background_work(bench):
    cli = bench.cli(stall=RESTART)
    cli.run("SAY a\nUNPROMPTED SLEEP 1.5")
    until(lambda: cli.session.liveness.reason is R.BACKGROUND, "the turn of the CLI's own")
    assert cli.run("SAY b").result.text == "b"
    assert not cli.of(Stalled)
    until(lambda: cli.session.liveness.reason is R.IDLE, "its end")


def test_a_caller_who_sleeps_is_no_stall(bench):
    """512 events behind, nothing is read of the process any more; it is not the process that is silent."""
    cli = bench.cli(stall=RESTART)
    slept = []

    def react(_event):
        if not slept:
            slept.append(True)
            until(lambda: cli.session.liveness.reason is R.CALLER, "the pause")
            time.sleep(3 * SOON_S)

    cli.react = react
    turn = cli.run("SAY a\nFLOOD 3000 300\nSAY done")
    assert turn.result.text == "done"
    assert turn.restarts == 0
    assert not cli.of(Stalled)


def test_a_steer_is_a_sign_of_life(bench):
    cli = bench.cli(stall=StallPolicy(after_s=60, tool_after_s=2.0, action=StallAction.INTERRUPT))
    begun = cli.begin("AWAIT_STEER\nSAY done")
    cli.wait_for(ToolCall)
    cli.session.steer("go on")
    cli.wait_for(SteerConsumed)
    assert not begun.outcome().result.interrupted


# --- codex: a process that others share


def test_codex_a_silent_model_is_reported_and_interrupted(make):
    one = make().one(stall=INTERRUPT)
    turn = one.run("SAY a\nHANG")
    assert turn.result.interrupted
    assert [event.reason for event in one.of(Stalled)] == ["model at work"]
    assert one.run("SAY b").result.text == "b"


def test_codex_a_server_that_hangs_and_serves_one_alone_is_killed(make):
    bench = make()
    one = bench.one(stall=RESTART)
    freeze_at(one, lambda: [start["pid"] for start in bench.starts])
    turn = one.run("SAY a\nSLEEP 0.3\nSAY done")
    assert turn.result.text == "done"
    assert turn.restarts == 1
    assert len(bench.starts) == 2
    assert len(bench.pids) == 1
    assert bench.prompts().count("SAY a\nSLEEP 0.3\nSAY done") == 1


def test_codex_one_silent_thread_moves_out_and_the_others_turn_is_not_cut(make):
    bench = make()
    silent, busy = bench.one(stall=RESTART, restart=RestartPolicy(max_restarts=1, delays=(0,))), bench.one(stall=RESTART)
    theirs = busy.begin("\n".join(["SAY still here", "SLEEP 0.2"] * 12) + "\nSAY done")
    busy.wait_for(AssistantText)
    with pytest.raises(TransportDiedError, match=r"nothing was heard for 0\.5 s"):
        silent.run("SAY a\nHANG")
    assert len(silent.of(Stalled)) == 2
    turn = theirs.outcome()
    assert turn.result.text == "done"
    assert turn.restarts == 0
    assert not busy.of(Stalled)
    assert silent.run("SAY b").result.text == "b"
    assert busy.run("SAY c").result.text == "c"
    assert [text for text in bench.prompts() if "HANG" in text] == ["SAY a\nHANG"]


def test_codex_a_long_command_is_no_stall(make):
    one = make().one(stall=RESTART)
    begun = one.begin("RUN_SLEEP 1.6 out\nSAY done")
    one.wait_for(ToolCall)
    live = one.session.liveness
    assert (live.reason, live.tool.tool) == (R.TOOL, "shell")
    assert live.tool.detail
    assert begun.outcome().result.text == "done"
    assert not one.of(Stalled)


# --- a user's own transport


def test_a_blocking_transport_that_hangs_is_left_behind_and_the_turn_goes_on(bench, tmp_path):
    stuck, clock = FakeTurn(events=(AssistantText("a"),), waits=True, ignores_interrupt=True), FakeClock()
    transport = FakeTransport([FakeTurn(text="first"), stuck, FakeTurn(text="done")])
    handler = RecordingEventHandler()
    agent = bench.room.agent(
        transport,
        permissions=NativePermissions.bypass(),
        approvals=ApprovalPolicy.DENY,
        clock=clock,
        stall=RESTART,
        event_handlers=(handler,),
    )
    with agent.session(tmp_path) as session:
        session.run(session.prepare_turn(TurnRequest("w")))  # nobody could be resumed whose conversation has no name yet
        ticket = session.prepare_turn(TurnRequest("x"))
        caller = threading.Thread(target=session.run, args=(ticket,))
        caller.start()
        assert stuck.started.wait(PATIENCE_S)
        assert handler.wait_for(AssistantText, 2)
        assert session.liveness.reason is R.MODEL
        clock.advance(SOON_S)
        assert handler.wait_for(Stalled)
        caller.join(PATIENCE_S)
        turn = ticket.wait(0)
        assert (turn.result.text, turn.restarts) == ("done", 1)
    stuck.release()
