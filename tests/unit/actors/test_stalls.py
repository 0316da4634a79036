"""The watch over silence, stepped by hand on a clock that only the test moves: the timer, the look before the verdict, the races."""

import logging
import pathlib

import pytest

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.core import NO_FLAGS, SessionCore
from greenroom.actors.dispatcher import ManualDispatcher
from greenroom.actors.runtime import LoopActor, tell
from greenroom.actors.session import SessionActor
from greenroom.actors.ticket import HIGH_WATER, Sink, TicketCore
from greenroom.errors import TransportDiedError, TurnFailedError
from greenroom.events import AssistantText, Lifecycle, Notice, Stalled, ToolCall, ToolResult, TransportDied, TransportRestarted
from greenroom.ids import new_nonce
from greenroom.liveness import LivenessReason, Pulse
from greenroom.model import ApprovalPolicy, ConversationSpec, FailureKind, NativePermissions, TurnRequest, TurnResult
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.session import Settings
from greenroom.policy.stall import StallAction, StallPolicy
from greenroom.testing import FakeClock, FakeTransport

SPEC = ConversationSpec(cwd=pathlib.Path("/"), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
AFTER_S = 60.0


class Recorder(LoopActor):
    """Keeps what it is told."""

    def __init__(self, dispatcher):
        super().__init__(dispatcher)
        self.told = []

    def handle(self, message):
        self.told.append(message)

    def of(self, kind):
        return [message for message in self.told if isinstance(message, kind)]


class Process(Recorder):
    """A conversation: what it says on being listened to is what the test has put there."""

    def __init__(self, dispatcher, session, incarnation):
        super().__init__(dispatcher)
        self.session = session
        self.incarnation = incarnation
        self.unread = []
        self.deaf = False

    def handle(self, message):
        super().handle(message)
        if isinstance(message, m.Listen) and not self.deaf:
            for waiting in self.unread:
                tell(self.session, waiting)
            self.unread.clear()
            tell(self.session, m.Listened(incarnation=self.incarnation))


class Rig:
    def __init__(self, action=StallAction.REPORT, *, tool_after_s=None, stall=True, hold_waits=False, **settings):
        self.clock = FakeClock(hold_waits=hold_waits)
        self.dispatcher = ManualDispatcher(self.clock)
        self.supervisor = Recorder.start(self.dispatcher)._actor_weakref()
        policy = StallPolicy(after_s=AFTER_S, action=action, tool_after_s=tool_after_s) if stall else None
        self.core = SessionCore(
            session_id="s-1",
            transport=FakeTransport(),
            spec=SPEC,
            settings=Settings(session_nonce=new_nonce(), chooses_ids=True, stall=policy, retry_delays=(30.0,), **settings),
            checkpoint=None,
            pulse=Pulse(heard_s=self.clock.monotonic()),
        )
        self.ref = SessionActor.start(
            self.dispatcher, core=self.core, supervisor=self.supervisor.actor_ref, store=lambda: None, observer=lambda: None
        )
        self.processes = {}
        self.heard = []
        self.ticket = None
        self.turns = 0
        self.idle()

    def idle(self):
        self.dispatcher.run_until_idle()

    def tell(self, message):
        tell(self.ref, message)
        self.idle()

    def advance(self, seconds):
        self.clock.advance(seconds)
        self.idle()

    def begin(self, receive=None):
        self.turns += 1
        self.ticket = TicketCore(f"t-{self.turns}", "s-1")
        self.tell(
            m.PrepareTurn(
                turn_id=self.ticket.turn_id,
                nonce=new_nonce(),
                request=TurnRequest("x"),
                flags=NO_FLAGS,
                expect_conversation=None,
                pin=False,
                ticket=self.ticket,
                reply_to=Cell(),
            )
        )
        self.sink = Sink(receive or self.receive, lambda: tell(self.ref, m.CreditReturned(turn_id=self.ticket.turn_id)))
        self.ticket.begin(self.sink)
        self.tell(m.Run(turn_id=self.ticket.turn_id, ticket=self.ticket))
        return self

    def receive(self, batch):
        if batch is not None:
            self.heard += [event for event in batch.events if not isinstance(event, Notice)]
            self.sink.consumed(len(batch.events))

    def open(self, incarnation=1):
        self.processes[incarnation] = process = Process.start(self.dispatcher, self.ref, incarnation)._actor_weakref()
        self.tell(m.Admitted(incarnation=incarnation, conversation=process.actor_ref, slot_wait_s=0.0))
        self.tell(m.ConversationOpened(incarnation=incarnation, conversation_id="c-1"))
        self.tell(m.ConversationNamed(incarnation=incarnation, conversation_id="c-1"))
        return self

    def running(self):
        return self.begin().open()

    def event(self, *events, incarnation=1):
        return m.TurnEvent(incarnation=incarnation, turn_id=self.ticket.turn_id, events=events)

    def say(self, *events, incarnation=1):
        self.tell(self.event(*events, incarnation=incarnation))

    def ended(self, incarnation=1, *, interrupted=False, error=None):
        result = None if error else TurnResult(text="done", session_id="c-1", interrupted=interrupted)
        numbers = {"usage": None, "cumulative": None, "duration_ms": 1, "nudgeable": True, "keeps_conversation": False, "forced": False}
        return m.TurnEnded(incarnation=incarnation, turn_id=self.ticket.turn_id, result=result, error=error, **numbers)

    def down(self, incarnation=1, *, sent=True):
        error = TransportDiedError(signal=9)
        return m.Down(incarnation=incarnation, error=error, expected=True, refused=False, sent=sent, usage=None, duration_ms=1)

    def of(self, kind):
        return [event for event in self.heard if isinstance(event, kind)]

    def asked(self, kind, incarnation=1):
        return self.processes[incarnation].of(kind)

    @property
    def liveness(self):
        return self.core.pulse.read(self.clock.monotonic(), self.core.settings.stall)

    def close(self):
        for actor in (self.ref, self.supervisor.actor_ref, *(process.actor_ref for process in self.processes.values())):
            actor.stop(block=False)
        self.idle()
        self.dispatcher.stop()
        CLAIMS.drop(self.core.closed)


@pytest.fixture
def make():
    rigs = []

    def make(*args, **options):
        rigs.append(Rig(*args, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


# --- the three actions


def test_a_silence_is_reported_once_and_the_turn_goes_on(make):
    rig = make().running()
    rig.advance(AFTER_S - 1)
    assert rig.heard == []
    rig.advance(1)
    assert rig.heard == [Stalled("model at work", AFTER_S, "report")]
    rig.advance(10 * AFTER_S)
    assert len(rig.of(Stalled)) == 1
    assert rig.liveness.reason is LivenessReason.SILENT
    rig.say(AssistantText("a"))
    rig.advance(AFTER_S)
    assert [event.quiet_s for event in rig.of(Stalled)] == [AFTER_S, AFTER_S], "another silence is told again"
    rig.tell(rig.ended())
    assert rig.ticket.cell.get().result.text == "done"


def test_a_silent_turn_is_interrupted(make):
    rig = make(StallAction.INTERRUPT).running()
    rig.advance(AFTER_S)
    assert [message.turn_id for message in rig.asked(m.InterruptTurn)] == ["t-1"]
    assert rig.liveness.reason is LivenessReason.STOPPING
    rig.advance(10 * AFTER_S)
    assert len(rig.asked(m.InterruptTurn)) == 1
    rig.tell(rig.ended(interrupted=True))
    assert rig.ticket.cell.get().result.interrupted
    assert len(rig.of(Stalled)) == 1


def test_a_silent_process_is_killed_and_the_next_takes_the_turn_up(make):
    rig = make(StallAction.RESTART).running()
    rig.advance(AFTER_S)
    assert [(message.kill, message.hung) for message in rig.asked(m.EndConversation)] == [(True, True)]
    rig.advance(10 * AFTER_S)
    assert len(rig.asked(m.EndConversation)) == 1
    rig.tell(rig.down())
    rig.open(2)
    assert [type(event) for event in rig.heard if not isinstance(event, Lifecycle)] == [Stalled, TransportDied, TransportRestarted]
    assert rig.of(TransportDied)[0].cause.startswith("nothing was heard for 60 s (model at work)")
    assert rig.asked(m.RunAttempt, 2)[0].attempt.probe
    rig.tell(rig.ended(2))
    assert rig.ticket.cell.get().restarts == 1


def test_the_new_process_is_watched_too_and_past_the_intensity_the_turn_fails(make):
    rig = make(StallAction.RESTART, restart=RestartPolicy(max_restarts=1)).running()
    rig.advance(AFTER_S)
    rig.tell(rig.down())
    rig.open(2)
    rig.advance(AFTER_S)
    assert len(rig.asked(m.EndConversation, 2)) == 1
    rig.tell(rig.down(2))
    with pytest.raises(TransportDiedError, match="nothing was heard for 60 s"):
        rig.ticket.cell.get()


# --- one timer, set seldom


def test_events_set_no_timers(make):
    rig = make().running()
    before = rig.clock.pending
    for number in range(1000):
        rig.say(AssistantText(str(number)))
    assert rig.clock.pending == before
    assert len(before) == 1


def test_a_talkative_turn_is_never_stalled_and_its_timer_follows(make):
    rig = make(StallAction.RESTART).running()
    for _ in range(50):
        rig.advance(AFTER_S - 1)
        rig.say(AssistantText("a"))
        assert len(rig.clock.pending) == 1
    rig.advance(AFTER_S - 1)
    assert not rig.of(Stalled)
    rig.advance(1)
    assert len(rig.of(Stalled)) == 1


def test_turns_that_follow_each_other_share_one_timer_and_an_idle_session_has_none(make):
    rig = make().running()
    for _ in range(20):
        rig.tell(rig.ended())
        rig.begin()
        assert len(rig.clock.pending) == 1
    rig.tell(rig.ended())
    rig.advance(AFTER_S)
    assert rig.clock.pending == ()
    assert not rig.of(Stalled)


def test_without_a_policy_there_is_none(make):
    rig = make(stall=False).running()
    assert rig.clock.pending == ()


def test_a_session_that_ends_takes_its_timer_along(make):
    rig = make().running()
    rig.ref.stop(block=False)
    rig.idle()
    assert rig.clock.pending == ()


# --- what is no stall


def test_a_running_tool_is_no_stall_and_the_model_after_it_is(make):
    rig = make(StallAction.RESTART).running()
    rig.say(ToolCall("a", "Bash", {"command": "make"}))
    rig.advance(100 * AFTER_S)
    assert not rig.of(Stalled)
    assert str(rig.liveness) == "tool Bash 6000 s"
    rig.say(ToolResult("a", "Bash"))
    rig.advance(AFTER_S - 1)
    assert not rig.of(Stalled)
    rig.advance(1)
    assert rig.of(Stalled) == [Stalled("model at work", AFTER_S, "restart")]


@pytest.mark.parametrize("tool_after_s", [20.0, 300.0])
def test_a_tool_with_a_bound_is_one_to_the_second(make, tool_after_s):
    rig = make(tool_after_s=tool_after_s).running()
    rig.advance(7)
    rig.say(ToolCall("a", "Bash", {"command": "make"}))
    rig.advance(tool_after_s - 1)
    assert not rig.of(Stalled)
    rig.advance(1)
    assert rig.of(Stalled) == [Stalled("tool Bash: make", tool_after_s, "report")]


def test_a_wait_for_a_retry_is_no_stall(make):
    rig = make(StallAction.RESTART, hold_waits=True)
    rig.running()
    rig.tell(rig.ended(error=TurnFailedError(FailureKind.TRANSIENT, "busy", retry_after_s=100 * AFTER_S)))
    rig.advance(99 * AFTER_S)
    assert rig.liveness.reason is LivenessReason.LIMIT
    assert rig.liveness.left_s == AFTER_S
    rig.advance(AFTER_S)
    assert rig.liveness.reason is LivenessReason.MODEL
    assert not rig.of(Stalled)
    rig.advance(AFTER_S)
    assert len(rig.of(Stalled)) == 1


def test_a_wait_for_leave_is_no_stall(make):
    rig = make(StallAction.RESTART).running()
    rig.core.pulse.asks("q", rig.clock.monotonic())
    rig.advance(100 * AFTER_S)
    assert not rig.of(Stalled)
    rig.core.pulse.answered("q", rig.clock.monotonic())
    rig.advance(AFTER_S)
    assert len(rig.of(Stalled)) == 1


def test_waits_for_a_slot_and_for_the_process_are_no_stall(make):
    rig = make(StallAction.RESTART).begin()
    rig.tell(m.StartWaits(incarnation=1))
    assert rig.liveness.reason is LivenessReason.START_SLOT
    rig.advance(100 * AFTER_S)
    rig.processes[1] = process = Process.start(rig.dispatcher, rig.ref, 1)._actor_weakref()
    rig.tell(m.Admitted(incarnation=1, conversation=process.actor_ref, slot_wait_s=6000.0))
    assert rig.liveness.reason is LivenessReason.OPENING
    rig.advance(100 * AFTER_S)
    assert not rig.of(Stalled)


def test_a_caller_who_does_not_listen_is_no_stall(make):
    """Its pipe is not read: what the provider says nobody hears."""
    rig = make(StallAction.RESTART)
    batches = []
    rig.begin(batches.append).open()
    rig.say(*(AssistantText("a") for _ in range(HIGH_WATER + 1)))
    assert rig.liveness.reason is LivenessReason.CALLER
    rig.advance(100 * AFTER_S)
    assert not rig.asked(m.EndConversation)
    rig.sink.consumed(HIGH_WATER + 1)
    rig.idle()
    assert rig.liveness.reason is LivenessReason.MODEL
    rig.advance(AFTER_S - 1)
    assert not rig.asked(m.EndConversation)
    rig.advance(1)
    assert rig.asked(m.EndConversation)


# --- races


@pytest.mark.parametrize("action", StallAction)
def test_a_word_that_waits_in_the_pipe_is_heard_before_the_verdict(make, action):
    rig = make(action).running()
    rig.processes[1].unread.append(rig.event(AssistantText("here I am")))
    rig.advance(AFTER_S)
    assert len(rig.asked(m.Listen)) == 1
    assert rig.heard == [AssistantText("here I am")]
    assert not rig.asked(m.EndConversation) + rig.asked(m.InterruptTurn)


@pytest.mark.parametrize("action", StallAction)
def test_a_result_that_waits_in_the_pipe_is_heard_before_the_verdict(make, action):
    rig = make(action).running()
    rig.processes[1].unread.append(rig.ended())
    rig.advance(AFTER_S)
    assert rig.ticket.cell.get().result.text == "done"
    assert rig.heard == []
    assert not rig.asked(m.EndConversation) + rig.asked(m.InterruptTurn)


@pytest.mark.parametrize("action", StallAction)
def test_a_word_that_waits_in_our_own_inbox_is_heard_before_the_verdict(make, action):
    """A timer overtakes ordinary messages."""
    rig = make(action).running()
    rig.clock.advance(AFTER_S)
    tell(rig.ref, rig.event(AssistantText("a")))
    rig.idle()
    assert rig.heard == [AssistantText("a")]


def test_the_result_arrives_after_the_kill(make):
    rig = make(StallAction.RESTART).running()
    rig.advance(AFTER_S)
    rig.tell(rig.ended())
    turn = rig.ticket.cell.get()
    assert (turn.result.text, turn.restarts) == ("done", 0)
    rig.tell(rig.down(sent=False))
    assert not rig.of(TransportDied)
    rig.begin().open(2)
    rig.tell(rig.ended(2))
    assert rig.ticket.cell.get().result.text == "done"


def test_a_process_that_has_ended_does_not_answer_and_its_end_is_what_counts(make):
    rig = make(StallAction.RESTART).running()
    rig.processes[1].deaf = True
    rig.advance(AFTER_S)
    assert rig.heard == []
    rig.tell(m.Down(**{**{f: getattr(rig.down(), f) for f in m.Down.__slots__ if not f.startswith("__")}, "expected": False}))
    assert [type(event) for event in rig.heard][:1] == [TransportDied]


@pytest.mark.parametrize("action", StallAction)
def test_an_answer_about_an_older_process_or_turn_is_ignored(make, action):
    rig = make(action).running()
    rig.processes[1].deaf = True
    rig.advance(AFTER_S)
    rig.tell(rig.ended())
    rig.begin()
    rig.tell(m.Listened(incarnation=1))
    rig.tell(m.Listened(incarnation=7))
    assert not rig.of(Stalled)


@pytest.mark.parametrize("action", StallAction)
def test_after_an_interrupt_it_is_the_interrupts_grace_that_counts(make, action):
    rig = make(action).running()
    rig.advance(AFTER_S - 1)
    rig.tell(m.Interrupt(turn_id="t-1"))
    rig.advance(100 * AFTER_S)
    assert rig.heard == []
    assert not rig.asked(m.EndConversation)


@pytest.mark.parametrize("action", StallAction)
def test_an_interrupt_between_the_look_and_its_answer_wins(make, action):
    rig = make(action).running()
    rig.processes[1].deaf = True
    rig.advance(AFTER_S)
    rig.tell(m.Interrupt(turn_id="t-1"))
    rig.tell(m.Listened(incarnation=1))
    assert not rig.of(Stalled)
    assert len(rig.asked(m.InterruptTurn)) == 1


def test_two_answers_give_one_verdict(make):
    rig = make(StallAction.RESTART).running()
    rig.advance(AFTER_S)
    rig.tell(m.Listened(incarnation=1))
    assert len(rig.of(Stalled)) == 1
    assert len(rig.asked(m.EndConversation)) == 1


def test_the_log_says_it(make, caplog):
    caplog.set_level(logging.WARNING, logger="greenroom.session")
    make().running().advance(AFTER_S)
    assert "s-1 t-1: nothing was heard for 60 s (model at work): report" in caplog.text
