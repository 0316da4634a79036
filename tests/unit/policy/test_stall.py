"""What follows from a silence, by action and by what comes next."""

from __future__ import annotations

import attrs
import pytest

from greenroom.errors import TransportDiedError, TurnFailedError
from greenroom.model import FailureKind, OnDeath, TurnRequest, TurnResult
from greenroom.policy.commands import CloseConversation, Execute, Fail, Finish, Ignored, Open, ReportDeath, ReportStall
from greenroom.policy.events import (
    Close,
    Died,
    Failed,
    Interrupted,
    Named,
    Opened,
    Prepare,
    RunBegan,
    Succeeded,
    Swallowed,
    WaitDone,
    WentSilent,
)
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.session import Phase, Settings, initial, step
from greenroom.policy.stall import StallAction, StallPolicy
from greenroom.policy.table import told

NONCE = "00000000-0000-4000-8000-000000000001"
KILLED = TransportDiedError(signal=9)


class Play:
    """A session with a running turn, and what it is told."""

    def __init__(self, action=StallAction.RESTART, **settings):
        stall = StallPolicy(after_s=60.0, action=action) if action else None
        self.state = initial(Settings(session_nonce=NONCE, chooses_ids=True, retry_delays=(30.0,), stall=stall, **settings))
        self.seen = []
        self.last = ()
        self.told(Prepare, turn_id="t1", nonce=NONCE, request=TurnRequest("x")).told(RunBegan, turn_id="t1").told(Opened, incarnation=1)
        self.told(Named, incarnation=1, conversation_id="c1")

    def told(self, event_type, **fields):
        self.state, self.last = step(self.state, event_type(now_s=0.0, **fields))
        self.seen += self.last
        return self

    def silent(self, **fields):
        aim = {"turn_id": "t1", "incarnation": 1, "attempt": 1, "quiet_s": 60.0, "reason": "model at work"}
        return self.told(WentSilent, **{**aim, **fields})

    def killed(self, *, sent=True, incarnation=1):
        return self.told(Died, incarnation=incarnation, error=KILLED, expected=True, sent=sent)

    def reopened(self, incarnation=2):
        return self.told(WaitDone, wait_id=self.state.waits).told(Opened, incarnation=incarnation)

    def ended(self, **fields):
        return self.told(Succeeded, **{"turn_id": "t1", "incarnation": 1, "result": TurnResult(text="ok"), **fields})

    def all(self, kind):
        return [command for command in self.seen if isinstance(command, kind)]

    @property
    def ignored(self):
        return len(self.last) == 1 and isinstance(self.last[0], Ignored)


def test_a_report_changes_nothing():
    play = Play(StallAction.REPORT)
    before = play.state
    assert told(play.silent().last) == "ReportStall(60 s, model at work)"
    assert play.state == before
    assert play.silent().all(ReportStall)[1:], "a second silence is told too"


def test_an_interrupt_ends_the_turn_as_an_interrupted_one():
    play = Play(StallAction.INTERRUPT)
    assert told(play.silent().last) == "ReportStall(60 s, model at work), InterruptAttempt"
    assert play.silent().ignored
    play.ended(result=TurnResult(interrupted=True))
    assert play.all(Finish)[0].turn.result.interrupted


def test_a_restart_is_a_death_that_is_taken_up():
    play = Play().silent()
    assert told(play.last).startswith(
        "ReportStall(60 s, model at work), CloseConversation(kill: nothing was heard for 60 s (model at work)"
    )
    assert play.all(CloseConversation)[0].hung
    assert play.state.phase is Phase.RUNNING
    assert told(play.killed().last) == "ReportDeath, Wait(restart, 0 s)"
    assert play.all(ReportDeath)[0].cause == "nothing was heard for 60 s (model at work), and it was given up (killed by signal 9)"
    assert told(play.reopened().last) == "ReportRestart, Execute(prompt, attempt 1, probe)"
    assert told(play.told(Swallowed, turn_id="t1", incarnation=2).last) == "Execute(continue, attempt 2)"
    play.ended(incarnation=2)
    assert play.all(Finish)[0].turn.restarts == 1
    assert not play.all(Finish)[0].turn.result.interrupted


@pytest.mark.parametrize("on_death", OnDeath)
def test_what_is_sent_then_is_what_on_death_says(on_death):
    play = Play(restart=RestartPolicy(on_death=on_death)).silent().killed().reopened()
    play.told(Swallowed, turn_id="t1", incarnation=2)
    expected = {
        OnDeath.CONTINUE: "Execute(continue, attempt 2)",
        OnDeath.RESEND: "Execute(prompt, attempt 2)",
        OnDeath.FAIL: "Fail(TransportDiedError)",
    }
    assert told(play.last).replace("SaveCheckpoint(c1), ", "") == expected[on_death]


def test_past_the_intensity_the_turn_fails_and_the_conversation_is_kept():
    play = Play(restart=RestartPolicy(max_restarts=1)).silent().killed().reopened()
    play.silent(incarnation=2).killed(incarnation=2)
    error = play.all(Fail)[0].error
    assert isinstance(error, TransportDiedError)
    assert "nothing was heard for 60 s" in str(error)
    assert "2 deaths within 600 s" in error.hint
    assert play.state.conversation_id == "c1"
    assert play.state.phase is Phase.IDLE


def test_a_stall_that_fires_as_the_result_arrives_costs_the_process_and_not_the_result():
    play = Play().silent().ended()
    assert play.all(Finish)[0].turn.result.text == "ok"
    assert play.all(Finish)[0].turn.restarts == 0
    assert play.state.process is None
    assert play.state.ending == {1}
    play.told(Prepare, turn_id="t2", nonce=NONCE, request=TurnRequest("y")).told(RunBegan, turn_id="t2")
    assert play.all(Open)[-1].resume_id == "c1"
    play.killed(sent=False)
    assert not play.all(ReportDeath)
    assert play.state.phase is Phase.OPENING


def test_a_failure_that_arrives_is_taken_up_without_the_process():
    play = Play().silent()
    play.told(Failed, turn_id="t1", incarnation=1, error=TurnFailedError(FailureKind.TRANSIENT, "busy"), nudgeable=True)
    assert told(play.last) == "Wait(retry, 30 s)"
    assert told(play.killed(sent=False).told(WaitDone, wait_id=1).last) == "Open(resume c1)"
    assert not play.all(ReportDeath)


def test_the_answer_to_a_probe_in_a_process_that_is_given_up_is_asked_for_again():
    play = Play().silent().killed().reopened().silent(incarnation=2)
    assert play.told(Swallowed, turn_id="t1", incarnation=2).ignored
    assert told(play.killed(incarnation=2, sent=False).reopened(3).last) == "ReportRestart, Execute(prompt, attempt 1, probe)"


@pytest.mark.parametrize(
    "aim", [{"turn_id": "t2"}, {"incarnation": 2}, {"attempt": 2}], ids=["another turn", "another process", "another attempt"]
)
@pytest.mark.parametrize("action", StallAction)
def test_the_silence_of_another_is_ignored(action, aim):
    assert Play(action).silent(**aim).ignored


def test_a_second_silence_of_a_process_that_is_given_up_is_ignored():
    assert Play().silent().silent().ignored


@pytest.mark.parametrize("action", StallAction)
@pytest.mark.parametrize("before", [(Interrupted, {"turn_id": "t1"}), (Close, {})], ids=["interrupt", "close"])
def test_after_an_interrupt_or_a_close_nothing_more_is_done(action, before):
    kind, fields = before
    assert Play(action).told(kind, **fields).silent().ignored


def test_without_a_policy_and_without_a_running_turn_it_is_ignored():
    assert Play(None).silent().ignored
    assert Play().ended().silent().ignored


@pytest.mark.parametrize("then", [(Interrupted, {"turn_id": "t1"}), (Close, {})], ids=["interrupt", "close"])
def test_a_turn_that_is_not_wanted_any_more_is_not_restarted(then):
    kind, fields = then
    play = Play().silent().told(kind, **fields).killed()
    assert play.all(Finish)[0].turn.result.interrupted
    assert play.all(Finish)[0].turn.forced
    assert not play.all(ReportDeath)
    assert len(play.all(Execute)) == 1


@pytest.mark.parametrize("fields", [{"after_s": 0}, {"after_s": float("inf")}, {"after_s": float("nan")}, {"tool_after_s": -1}])
def test_numbers_that_cannot_be_meant(fields):
    with pytest.raises(ValueError, match="must be finite and more than 0"):
        StallPolicy(**fields)


def test_an_action_that_is_none():
    with pytest.raises(TypeError, match="action must be a StallAction, got 'restart'"):
        StallPolicy(action="restart")
    assert attrs.evolve(StallPolicy(), tool_after_s=5.0).shortest_s == 5.0
    assert StallPolicy(after_s=5.0).shortest_s == 5.0
