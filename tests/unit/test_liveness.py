"""Why a session is quiet: from the policy's own states and from events, row by row; no actor, no thread, no clock."""

from __future__ import annotations

import attrs
import pytest

from greenroom.errors import SessionResumeError, TransportDiedError, TurnFailedError
from greenroom.events import AssistantText, Lifecycle, RateLimitStatus, Reasoning, Stderr, ToolCall, ToolResult
from greenroom.liveness import Liveness, LivenessReason, Pulse, RunningTool, StallPolicy, in_short
from greenroom.model import Checkpoint, FailureKind, TurnRequest, TurnResult
from greenroom.policy import commands as c
from greenroom.policy import events as e
from greenroom.policy.session import Settings, initial, step
from greenroom.policy.stall import StallAction

NONCE = "00000000-0000-4000-8000-000000000001"
R = LivenessReason
DEATH = TransportDiedError(signal=9)
BUSY = TurnFailedError(FailureKind.TRANSIENT, "busy")
LIMITED = TurnFailedError(FailureKind.TRANSIENT, "limited", retry_after_s=90.0)


class Life:
    """A session that is only a state and a pulse; the time moves as the rows say."""

    def __init__(self, stall=None):
        self.now_s = 100.0
        self.policy = stall
        self.state = initial(Settings(session_nonce=NONCE, retry_delays=(30.0,), stall=stall))
        self.pulse = Pulse(heard_s=self.now_s)

    def told(self, kind, **fields):
        self.state, commands = step(self.state, kind(now_s=self.now_s, **fields))
        self.pulse.stepped(self.state, self.now_s)
        for command in commands:
            if isinstance(command, c.Wait):
                self.pulse.waits(self.state, command, self.now_s)
        return self

    def after(self, seconds):
        self.now_s += seconds
        return self

    def said(self, *events, incarnation=None):
        process = self.state.process
        self.pulse.heard(incarnation or (process.incarnation if process else 0), events, self.now_s)
        return self

    def begun(self):
        return self.told(e.Prepare, turn_id="t1", nonce=NONCE, request=TurnRequest("x")).told(e.RunBegan, turn_id="t1")

    def running(self):
        return self.begun().told(e.Opened, incarnation=1).told(e.Named, incarnation=1, conversation_id="c1")

    def failed(self, error, **fields):
        return self.told(e.Failed, **{"turn_id": "t1", "incarnation": 1, "error": error, "nudgeable": True, **fields})

    def ended(self):
        return self.told(e.Succeeded, turn_id="t1", incarnation=1, result=TurnResult(text="ok"))

    def died(self, **fields):
        return self.told(e.Died, incarnation=1, error=DEATH, sent=True, **fields)

    @property
    def now(self) -> Liveness:
        return self.pulse.read(self.now_s, self.policy)

    @property
    def due_s(self):
        due_s = self.pulse.stall_due_s(self.now_s, self.policy)
        return None if due_s is None else due_s - self.now_s


def call(tool_id="a", tool="Bash", **args):
    return ToolCall(tool_id, tool, args)


def result(tool_id="a", tool="Bash"):
    return ToolResult(tool_id, tool)


def provider_retry(error="overloaded", delay_s=30.0):
    return Lifecycle("provider retry", "…", about=error, delay_s=delay_s)


def own_turn(*, ongoing):
    return Lifecycle("background turn", "…", ongoing=ongoing)


def tasks(*, ongoing):
    return Lifecycle("background tasks", "…", ongoing=ongoing)


def slot(life, *, needs):
    life.pulse.needs_slot(life.now_s, needs=needs)
    return life


def hold(life, *, on):
    life.pulse.holds(life.now_s, hold=on)
    return life


def asks(life, request_id="q", until_s=None):
    life.pulse.asks(request_id, life.now_s, until_s=until_s)
    return life


def answered(life, request_id="q"):
    life.pulse.answered(request_id, life.now_s)
    return life


ROWS = {
    # what has happened: (the reason, how long ago it began, how long it still waits)
    "nothing": (lambda x: x.after(7), R.IDLE, 7, None),
    "a ticket": (lambda x: x.told(e.Prepare, turn_id="t1", nonce=NONCE, request=TurnRequest("x")).after(3), R.IDLE, 3, None),
    "opening": (lambda x: x.begun().after(4), R.OPENING, 4, None),
    "no slot": (lambda x: slot(x.begun().after(2), needs=True).after(5), R.START_SLOT, 5, None),
    "a slot": (lambda x: slot(slot(x.begun(), needs=True).after(5), needs=False).after(1), R.OPENING, 1, None),
    "running": (lambda x: x.running().after(6), R.MODEL, 6, None),
    "it speaks": (lambda x: x.running().after(6).said(AssistantText("a")).after(2), R.MODEL, 8, None),
    "a tool": (lambda x: x.running().after(6).said(call()).after(12), R.TOOL, 12, None),
    "a tool has ended": (lambda x: x.running().said(call()).after(12).said(result()).after(3), R.MODEL, 3, None),
    "two tools": (lambda x: x.running().said(call("a")).after(5).said(call("b")).after(1), R.TOOL, 1, None),
    "one of two has ended": (lambda x: x.running().said(call("a")).after(5).said(call("b")).after(1).said(result("b")), R.TOOL, 6, None),
    "a tool of a sub-agent": (lambda x: x.running().said(call("a", "Agent")).after(5).said(call("b", "Read")).after(2), R.TOOL, 2, None),
    "a result of no tool": (lambda x: x.running().after(2).said(result("z")).after(3), R.MODEL, 5, None),
    "asked for leave": (lambda x: asks(x.running().said(call()).after(1)).after(9), R.APPROVAL, 9, None),
    "asked for so long": (lambda x: asks(x.running(), until_s=x.now_s + 60).after(9), R.APPROVAL, 9, 51),
    "two are asked": (lambda x: asks(asks(x.running(), "p", x.now_s + 60), "q", x.now_s + 30).after(9), R.APPROVAL, 9, 21),
    "leave was given": (lambda x: answered(asks(x.running().said(call())).after(9)).after(2), R.TOOL, 11, None),
    "an answer to nothing": (lambda x: answered(x.running().after(9)).after(2), R.MODEL, 11, None),
    "the CLI retries": (lambda x: x.running().after(1).said(provider_retry()).after(2), R.RETRY, 2, 28),
    "the CLI meets a limit": (lambda x: x.running().said(provider_retry("rate_limit")).after(2), R.LIMIT, 2, 28),
    "the CLI asks again": (lambda x: x.running().said(provider_retry()).after(35), R.MODEL, 5, None),
    "the CLI was answered": (lambda x: x.running().said(provider_retry()).after(9).said(AssistantText("a")).after(1), R.MODEL, 1, None),
    "the CLI retries once more": (
        lambda x: x.running().said(provider_retry()).after(31).said(provider_retry(delay_s=60.0)).after(1),
        R.RETRY,
        1,
        59,
    ),
    "a tool after its retry": (lambda x: x.running().said(provider_retry()).after(31).said(call()).after(1), R.TOOL, 1, None),
    "its own turn, ours waits": (lambda x: x.running().after(1).said(own_turn(ongoing=True)).after(2), R.BACKGROUND, 2, None),
    "its own turn is over": (
        lambda x: x.running().said(own_turn(ongoing=True)).after(2).said(own_turn(ongoing=False)).after(3),
        R.MODEL,
        3,
        None,
    ),
    "tasks behind a turn": (lambda x: x.running().said(tasks(ongoing=True)).after(2), R.MODEL, 2, None),
    "tasks after the turn": (lambda x: x.running().said(tasks(ongoing=True)).ended().after(2), R.BACKGROUND, 2, None),
    "the tasks are over": (
        lambda x: x.running().said(tasks(ongoing=True)).ended().after(2).said(tasks(ongoing=False)).after(1),
        R.IDLE,
        1,
        None,
    ),
    "its own turn after ours": (lambda x: x.running().ended().after(2).said(own_turn(ongoing=True)).after(1), R.BACKGROUND, 1, None),
    "tasks of a process that died": (lambda x: x.running().said(tasks(ongoing=True)).ended().died().after(2), R.IDLE, 2, None),
    "the caller is slow": (lambda x: hold(x.running().after(3), on=True).after(2), R.CALLER, 2, None),
    "the caller is back": (lambda x: hold(hold(x.running().after(3), on=True).after(2), on=False).after(4), R.MODEL, 4, None),
    "a tool and a slow caller": (lambda x: hold(x.running().said(call()), on=True).after(2), R.CALLER, 2, None),
    "interrupted": (lambda x: x.running().after(3).told(e.Interrupted, turn_id="t1").after(1), R.STOPPING, 1, None),
    "closed in a turn": (lambda x: x.running().after(3).told(e.Close).after(1), R.STOPPING, 1, None),
    "ended": (lambda x: x.running().after(3).ended().after(8), R.IDLE, 8, None),
    "a tool that never ended": (lambda x: x.running().said(call()).ended().after(8), R.IDLE, 8, None),
    "failed, retried": (lambda x: x.running().failed(BUSY).after(10), R.RETRY, 10, 20),
    "limited, retried": (lambda x: x.running().failed(LIMITED).after(10), R.LIMIT, 10, 80),
    "a death after a limit": (
        lambda x: x.running().failed(LIMITED).told(e.WaitDone, wait_id=1).died().after(0),
        R.RESTART,
        0,
        0,
    ),
    "died": (lambda x: x.running().said(call()).died(), R.RESTART, 0, 0),
    "in use": (
        lambda x: x.told(e.Start, checkpoint=Checkpoint("c1")).begun().failed(SessionResumeError("c1", in_use=True), turn_id=None),
        R.IN_USE,
        0,
        0.5,
    ),
    "after the wait": (lambda x: x.running().failed(BUSY).after(30).told(e.WaitDone, wait_id=1).after(2), R.MODEL, 2, None),
    "rolled back": (
        lambda x: x.running().ended().told(e.RollBackAsked, request_id="r").died(expected=True).after(2),
        R.REWINDING,
        2,
        None,
    ),
    "closed": (lambda x: x.told(e.Close).after(2), R.CLOSED, 2, None),
}


@pytest.mark.parametrize("name", ROWS)
def test_why_it_is_quiet(name):
    happen, reason, for_s, left_s = ROWS[name]
    now = happen(Life()).now
    assert (now.reason, now.for_s, now.left_s) == (reason, for_s, left_s)


def test_every_reason_has_a_row():
    assert {row[1] for row in ROWS.values()} == set(R) - {R.SILENT}


def test_what_runs_is_told():
    life = Life().running().after(1).said(call("a", "Agent", prompt="look around")).after(2).said(call("b", "Bash", command="make\n  test"))
    agent = RunningTool(tool_id="a", tool="Agent", detail="look around", since_monotonic_s=101.0)
    bash = RunningTool(tool_id="b", tool="Bash", detail="make test", since_monotonic_s=103.0)
    assert life.now.tools == (agent, bash)
    assert life.now.tool == bash
    assert asks(life).now.tool == bash
    assert life.died().now.tools == ()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"command": "ls", "description": "list"}, "ls"),
        ({"file_path": "/a", "content": "x" * 9}, "/a"),
        ({"command": ["a", "b"]}, "['a', 'b']"),
        ({"command": "a\x1b[31mb"}, "a?[31mb"),
        ({"command": "x" * 500}, "x" * 119 + "…"),
        ({"other": 1}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_call_in_short(args, said):
    assert in_short(args) == said


# --- what counts as a sign of life


@pytest.mark.parametrize("event", [AssistantText("a"), Reasoning("a"), call(), Lifecycle("compaction")])
def test_a_sign_of_life(event):
    assert Life().running().after(5).said(event).after(2).now.quiet_s == 2


@pytest.mark.parametrize("event", [RateLimitStatus("codex primary"), Stderr("warning: …")])
def test_no_sign_of_life(event):
    assert Life().running().after(5).said(event).after(2).now.quiet_s == 7


def test_what_an_older_process_or_we_ourselves_say_is_no_sign_of_life():
    life = Life().running().died().told(e.WaitDone, wait_id=1).told(e.Opened, incarnation=2).after(5)
    assert life.said(call(), incarnation=1).now.quiet_s == 5
    life.pulse.heard(0, (call(),), life.now_s)
    assert (life.now.quiet_s, life.now.tools) == (5, ())


# --- silence

STALL = StallPolicy(after_s=60.0, tool_after_s=600.0)
EXCUSED = (
    "nothing",
    "opening",
    "no slot",
    "asked for leave",
    "its own turn, ours waits",
    "tasks after the turn",
    "the caller is slow",
    "interrupted",
    "failed, retried",
    "limited, retried",
    "died",
    "in use",
    "closed",
)


@pytest.mark.parametrize("name", EXCUSED)
def test_what_excuses_a_silence(name):
    life = ROWS[name][0](Life(STALL)).after(100_000)
    assert life.due_s is None
    assert life.now.reason is not R.SILENT


def test_a_silent_model_is_silent_too_long_when_it_is_read():
    life = Life(STALL).running().after(20).said(AssistantText("a"))
    assert life.due_s == 60
    assert life.after(59).now.reason is R.MODEL
    now = life.after(1).now
    assert (now.reason, now.for_s, now.quiet_s) == (R.SILENT, 60, 60)
    assert life.said(AssistantText("b")).now.reason is R.MODEL


def test_a_tool_has_a_bound_of_its_own_or_none():
    life = Life(STALL).running().said(call()).after(599)
    assert (life.now.reason, life.due_s) == (R.TOOL, 1)
    now = life.after(1).now
    assert (now.reason, now.tool.tool, now.for_s) == (R.SILENT, "Bash", 600)
    forever = Life(StallPolicy(after_s=60.0)).running().said(call()).after(100_000)
    assert (forever.now.reason, forever.due_s) == (R.TOOL, None)


def test_a_tool_whose_sub_agents_speak_is_not_silent():
    life = Life(STALL).running().said(call("a", "Agent")).after(599).said(call("b")).after(10).said(result("b")).after(500)
    assert life.now.reason is R.TOOL
    assert life.due_s == 100


def test_a_wait_of_the_clis_own_is_excused_and_what_follows_it_is_not():
    life = Life(STALL).running().said(provider_retry(delay_s=300.0)).after(299)
    assert life.due_s is None
    assert life.after(1).due_s == 60
    assert life.after(60).now.reason is R.SILENT


def test_an_answer_and_a_caller_who_is_back_begin_the_silence_anew():
    assert answered(asks(Life(STALL).running()).after(500)).due_s == 60
    assert hold(hold(Life(STALL).running(), on=True).after(500), on=False).due_s == 60


def test_a_new_attempt_begins_the_silence_anew():
    life = Life(STALL).running().after(59).failed(BUSY).after(30).told(e.WaitDone, wait_id=1)
    assert life.due_s == 60


def test_a_process_that_was_given_up_is_waited_for():
    life = Life(attrs.evolve(STALL, action=StallAction.RESTART)).running().after(60)
    life.told(e.WentSilent, turn_id="t1", incarnation=1, attempt=1, quiet_s=60.0, reason="model at work")
    assert (life.now.reason, life.due_s) == (R.RESTART, None)


def test_without_a_policy_nothing_is_too_long():
    assert Life().running().after(1e6).now.reason is R.MODEL


# --- words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "idle"),
        ("closed", "closed"),
        ("running", "model at work 6 s"),
        ("a tool", "tool Bash 12 s"),
        ("failed, retried", "waiting for a retry 20 s"),
        ("limited, retried", "waiting for a limit to reset 80 s"),
        ("asked for leave", "waiting for approval 9 s"),
        ("no slot", "waiting for a start slot 5 s"),
    ],
)
def test_in_a_few_words(name, words):
    assert str(ROWS[name][0](Life()).now) == words


def test_what_it_was_at_when_it_fell_silent():
    assert Life().running().pulse.at(101.0) == "model at work"
    assert Life().running().said(call(command="make")).pulse.at(101.0) == "tool Bash: make"


def test_a_session_that_crashed_for_good():
    life = Life().running().said(call())
    life.pulse.ends()
    assert (life.now.reason, life.now.tools) == (R.CLOSED, ())
