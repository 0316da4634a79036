"""The desk of a session, stepped by hand: who answers, what time gives, and what is left when a turn, a process or a session ends."""

from __future__ import annotations

import datetime as dt
import threading

import pytest

from greenroom.actors import messages as m
from greenroom.actors.asks import SETTLED_KEPT, AskBook, answer_ask
from greenroom.actors.cell import Cell
from greenroom.asks import (
    Accept,
    AcceptForSession,
    Approval,
    AskPolicy,
    CancelTurn,
    Decline,
    Inquiry,
    PendingApproval,
    PendingQuestion,
    Question,
    Reply,
    pending_of,
)
from greenroom.clock import SystemClock
from greenroom.errors import TransportDiedError, UnknownRequestError
from greenroom.events import ApprovalRequested, ApprovalResolved, Lifecycle, QuestionAsked, QuestionResolved
from greenroom.journal import records as r
from greenroom.liveness import LivenessReason
from greenroom.model import TurnRequest
from greenroom.policy.events import WaitedForPerson
from tests.unit.actors.test_durable_session import Rig

BASH = Approval(tool="Bash", input={"command": "touch x", "description": "make it"})
WHICH = Inquiry(questions=(Question(id="Which?", text="Which?"),))


class AskRig(Rig):
    """A session whose first turn runs."""

    def __init__(self, timeout=None):
        super().__init__()
        self.ticket = self.running(request=TurnRequest("p", timeout=timeout))

    def ask(self, wire_id="w-1", ask=BASH, turn_id="t-1"):
        self.tell(m.AskArrived(incarnation=1, turn_id=turn_id, wire_id=wire_id, ask=ask))
        return self.pending[-1].request_id if self.pending else None

    @property
    def pending(self):
        return self.core.book.pending("s-1")

    def answer(self, request_id, answer):
        reply = Cell()
        self.tell(m.AnswerAsk(request_id=request_id, answer=answer, reply_to=reply))
        return reply

    @property
    def sent(self):
        return [(request.wire_id, request.answer) for request in self.conversation.of(m.AnswerRequest)]

    def taken(self, wire_id="w-1", *, taken=True):
        self.tell(m.AskAnswered(incarnation=1, wire_id=wire_id, taken=taken))

    def told(self, *kinds):
        return [event for batch in self.written(r.AgentEvents) for event in batch.events if isinstance(event, kinds)]

    @property
    def resolved(self):
        return [(event.verdict, event.by) for event in self.told(ApprovalResolved, QuestionResolved)]

    def down(self):
        error = TransportDiedError(reason="killed")
        self.tell(
            m.Down(incarnation=1, error=error, expected=False, refused=False, sent=True, usage=None, duration_ms=1),
        )

    def crash(self):
        self.actor.crash(RuntimeError("a defect"), None)
        self.idle()


@pytest.fixture
def rig():
    rig = AskRig()
    yield rig
    rig.close()


@pytest.fixture
def timed():
    rig = AskRig(timeout=60.0)
    yield rig
    rig.close()


# --- answers


def test_a_request_is_listed_told_and_recorded(rig):
    request_id = rig.ask()
    (pending,) = rig.pending
    assert isinstance(pending, PendingApproval)
    assert (pending.session_id, pending.turn_id, pending.tool, pending.expires_at) == ("s-1", "t-1", "Bash", None)
    assert pending.asked_at == dt.datetime.fromtimestamp(rig.clock.wall(), tz=dt.UTC)
    assert rig.told(ApprovalRequested) == [ApprovalRequested(pending)]
    assert rig.told(Lifecycle)[-1] == Lifecycle("waiting", "approval: Bash")
    assert rig.written(r.AskOpened) == [r.AskOpened(pending=pending)]
    assert request_id.startswith("ask-")


@pytest.mark.parametrize("answer", [Accept(), AcceptForSession(), Decline("no")])
def test_an_answer_counts_when_the_provider_had_it(rig, answer):
    request_id = rig.ask()
    reply = rig.answer(request_id, answer)
    assert rig.sent == [("w-1", answer)]
    assert not reply.settled
    rig.taken()
    assert reply.get() is True
    assert rig.resolved == [(answer, "answer")]
    assert rig.pending == ()
    assert rig.written(r.AskClosed) == [r.AskClosed(request_id=request_id)]


def test_a_question_is_answered_in_the_same_way(rig):
    request_id = rig.ask(ask=WHICH)
    assert isinstance(rig.pending[0], PendingQuestion)
    assert rig.told(QuestionAsked)[0].pending is rig.pending[0]
    rig.answer(request_id, Reply({"Which?": "A"}))
    rig.taken()
    assert rig.told(QuestionResolved) == [QuestionResolved(request_id, Reply({"Which?": "A"}), "answer")]


def test_the_first_answer_wins_while_it_is_on_its_way_and_after(rig):
    request_id = rig.ask()
    first, second = rig.answer(request_id, Accept()), rig.answer(request_id, Decline())
    assert (first.settled, second.get()) == (False, False)
    rig.taken()
    assert (first.get(), rig.answer(request_id, Decline()).get()) == (True, False)
    assert rig.sent == [("w-1", Accept())]


def test_an_answer_that_comes_too_late_says_so(rig):
    request_id = rig.ask()
    reply = rig.answer(request_id, Accept())
    rig.taken(taken=False)
    assert reply.get() is False
    assert rig.answer(request_id, Decline()).get() is False
    rig.end(rig.ticket)
    assert rig.resolved == [(None, "withdrawn")]


def test_an_answer_to_a_process_that_died_is_too_late_and_the_death_is_told(rig):
    reply = rig.answer(rig.ask(), Accept())
    rig.taken(taken=False)
    rig.down()
    assert reply.get() is False
    assert rig.resolved == [(None, "died")]


@pytest.mark.parametrize("withdrawn_first", [True, False])
def test_an_answer_that_crosses_a_withdrawal_says_so_once(rig, withdrawn_first):
    request_id = rig.ask()
    reply = rig.answer(request_id, Accept())
    ways = [lambda: rig.tell(m.AskWithdrawn(incarnation=1, wire_id="w-1")), lambda: rig.taken(taken=False)]
    for way in ways if withdrawn_first else ways[::-1]:
        way()
    assert reply.get() is False
    assert rig.resolved == [(None, "withdrawn")]


def test_a_withdrawal_closes_the_request(rig):
    request_id = rig.ask()
    rig.tell(m.AskWithdrawn(incarnation=1, wire_id="another"))
    assert len(rig.pending) == 1
    rig.tell(m.AskWithdrawn(incarnation=1, wire_id="w-1"))
    assert rig.pending == ()
    assert rig.answer(request_id, Accept()).get() is False
    assert rig.sent == []


def test_cancelling_the_turn_interrupts_it(rig):
    rig.ask("w-1")
    request_id = rig.ask("w-2")
    rig.answer(request_id, CancelTurn())
    rig.taken("w-2")
    assert [message.turn_id for message in rig.conversation.of(m.InterruptTurn)] == ["t-1"]
    assert rig.resolved == [(CancelTurn(), "answer"), (CancelTurn(), "interrupt")]


def test_a_call_that_was_accepted_for_the_session_is_not_asked_again(rig):
    rig.answer(rig.ask(), AcceptForSession())
    rig.taken()
    announced = len(rig.told(ApprovalRequested))
    rig.ask("w-2", Approval(tool="Bash", input={"command": "touch x", "description": "other words"}))
    assert rig.sent[1:] == [("w-2", AcceptForSession())]
    assert (rig.pending, len(rig.told(ApprovalRequested))) == ((), announced)
    assert rig.told(Lifecycle)[-1] == Lifecycle("accepted for the session", "approval: Bash")
    rig.taken("w-2")
    assert len(rig.resolved) == 1
    rig.ask("w-3", Approval(tool="Bash", input={"command": "touch y"}))
    rig.ask("w-4", Approval(tool="Write", input={"command": "touch x"}))
    assert len(rig.pending) == 2
    assert len(rig.sent) == 2


def test_what_a_person_decides_each_time_is_asked_each_time(rig):
    leave = Approval(tool="ExitPlanMode", each_time=True)
    rig.answer(rig.ask(ask=leave), AcceptForSession())
    rig.taken()
    rig.ask("w-2", leave)
    assert [one.tool for one in rig.pending] == ["ExitPlanMode"]


def test_a_plain_acceptance_is_for_once(rig):
    rig.answer(rig.ask(), Accept())
    rig.taken()
    rig.ask("w-2")
    assert len(rig.pending) == 1


# --- time


@pytest.mark.parametrize(
    ("ask", "default", "verdict"), [(BASH, Decline("late"), Decline("late")), (BASH, Accept(), Accept()), (WHICH, Accept(), Decline())]
)
def test_after_the_deadline_the_default_is_the_verdict(rig, ask, default, verdict):
    rig.core.asks = AskPolicy(deadline_s=60, default=default)
    request_id = rig.ask(ask=ask)
    assert rig.pending[0].expires_at - rig.pending[0].asked_at == dt.timedelta(seconds=60)
    rig.clock.advance(59)
    rig.idle()
    assert rig.sent == []
    rig.clock.advance(2)
    rig.idle()
    assert rig.sent == [("w-1", verdict)]
    assert rig.answer(request_id, Accept()).get() is False
    rig.taken()
    assert rig.resolved == [(verdict, "deadline")]


def test_an_answer_stops_the_clock(rig):
    rig.core.asks = AskPolicy(deadline_s=60)
    rig.answer(rig.ask(), Accept())
    rig.taken()
    rig.clock.advance(1000)
    rig.idle()
    assert rig.sent == [("w-1", Accept())]


def test_a_turn_without_a_timeout_has_nothing_to_put_off(rig):
    first, second = rig.ask("w-1"), rig.ask("w-2")
    rig.ask("w-3", turn_id=None)
    rig.clock.advance(10)
    rig.answer(first, Accept())
    rig.taken("w-1")
    rig.clock.advance(20)
    rig.answer(second, Accept())
    rig.taken("w-2")
    fed = rig.actor._state  # without a timeout there is no deadline to put off, and nothing to record
    assert fed.ticket.deadline_s is None
    assert not [entry for entry in rig.written(r.Input) if isinstance(entry.event, WaitedForPerson)]


def test_the_deadline_that_a_restart_hands_on_is_put_off_by_the_wait(timed):
    first, second = timed.ask("w-1"), timed.ask("w-2")
    timed.ask("w-3", turn_id=None)
    before_s = timed.actor._state.ticket.deadline_s
    timed.clock.advance(10)
    timed.answer(first, Accept())
    timed.taken("w-1")
    assert timed.actor._state.ticket.deadline_s == before_s
    timed.clock.advance(20)
    timed.answer(second, Accept())
    timed.taken("w-2")
    assert timed.actor._state.ticket.deadline_s == before_s + 30
    timed.ask("w-4")
    timed.clock.advance(5)
    timed.down()
    assert timed.actor._state.ticket.deadline_s == before_s + 35
    assert timed.replayed().ticket.deadline_s == before_s + 35


def test_the_session_shows_that_its_turn_waits_for_a_person(rig):
    rig.core.asks = AskPolicy(deadline_s=60)
    at_work = rig.core.pulse.read(rig.clock.monotonic()).reason
    rig.ask("own", turn_id=None)
    assert rig.core.pulse.read(rig.clock.monotonic()).reason is at_work is LivenessReason.MODEL
    request_id = rig.ask()
    seen = rig.core.pulse.read(rig.clock.monotonic())
    assert (seen.reason, seen.left_s) == (LivenessReason.APPROVAL, 60)
    rig.answer(request_id, Accept())
    rig.taken()
    assert rig.core.pulse.read(rig.clock.monotonic()).reason is LivenessReason.MODEL


# --- ends


def test_the_end_of_the_turn_closes_what_is_its(rig):
    request_id = rig.ask()
    rig.ask("w-2", turn_id=None)
    rig.end(rig.ticket)
    assert rig.resolved == [(None, "withdrawn")]
    assert [pending.turn_id for pending in rig.pending] == [None]
    assert rig.answer(request_id, Accept()).get() is False


def test_an_interrupt_closes_what_is_its_turns(rig):
    rig.ask()
    rig.tell(m.Interrupt(turn_id="another"))
    assert len(rig.pending) == 1
    rig.tell(m.Interrupt(turn_id="t-1"))
    assert rig.resolved == [(CancelTurn(), "interrupt")]
    assert rig.sent == []  # the interrupt itself takes it back


def test_the_close_of_the_session_declines_everything(rig):
    rig.ask()
    rig.ask("w-2", turn_id=None)
    rig.tell(m.CloseSession())
    assert rig.pending == ()
    assert rig.resolved == [(Decline(), "closed")] * 2
    assert len(rig.conversation.of(m.InterruptTurn)) == 1  # which rejects it on the wire


def test_a_death_closes_what_its_process_asked_and_answers_who_waits(rig):
    request_id = rig.ask()
    reply = rig.answer(request_id, Accept())
    rig.down()
    assert reply.get() is False
    assert rig.resolved == [(None, "died")]
    assert rig.pending == ()
    rig.taken()  # nobody is surprised
    assert rig.resolved == [(None, "died")]


def test_an_answer_under_way_reports_by_itself_when_the_turn_is_interrupted(rig):
    reply = rig.answer(rig.ask(), Accept())
    rig.tell(m.Interrupt(turn_id="t-1"))
    assert not reply.settled
    rig.taken()
    assert reply.get() is True
    assert rig.resolved == [(Accept(), "answer")]


def test_a_crash_of_the_actor_answers_everybody(rig):
    reply = rig.answer(rig.ask(), Accept())
    rig.ask("w-2")
    rig.crash()
    assert reply.get() is False
    assert rig.pending == ()


def test_a_session_that_is_gone_answers_that_it_is_too_late(rig):
    request_id = rig.ask()
    rig.crash()
    reply = Cell()
    m.tell(rig.ref, m.AnswerAsk(request_id=request_id, answer=Accept(), reply_to=reply))
    rig.idle()
    assert reply.get() is False


def test_a_conversation_that_is_gone_says_that_the_answer_did_not_reach_it(rig):
    request_id = rig.ask()
    rig.conversation.actor_ref.stop(block=False)
    rig.idle()
    reply = rig.answer(request_id, Accept())
    assert reply.get() is False


# --- the book


def pending(number, session_id="s-1"):
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return pending_of(BASH, request_id=f"ask-{number}", session_id=session_id, turn_id="t", asked_at=at, deadline_s=None)


def test_the_book_lists_by_session_and_knows_who_asked():
    book, core = AskBook(), object()
    one, two = pending(1), pending(2, "s-2")
    book.put(one, core)
    book.put(two, core)
    assert (book.pending(), book.pending("s-2"), book.pending("s-3")) == ((one, two), (two,), ())
    assert book.find("ask-1") == (one, core)
    for request_id, session_id in (("ask-1", "s-2"), ("ask-9", None)):
        with pytest.raises(UnknownRequestError, match=f"nothing was asked under the id '{request_id}'"):
            book.find(request_id, session_id)
    book.settle(one)
    assert book.find("ask-1", "s-1") is None


def test_the_book_forgets_the_oldest_answers():
    book = AskBook()
    for number in range(SETTLED_KEPT + 1):
        book.settle(pending(number))
    with pytest.raises(UnknownRequestError):
        book.find("ask-0")
    assert book.find(f"ask-{SETTLED_KEPT}") is None


def test_an_answer_is_checked_before_anybody_is_told():
    book = AskBook()
    book.put(pending(1), None)
    clock = SystemClock()
    with pytest.raises(TypeError, match="an answer is Accept"):
        answer_ask(book, "ask-1", True, clock=clock)
    with pytest.raises(TypeError, match="an approval is answered with"):
        answer_ask(book, "ask-1", Reply({"a": "b"}), clock=clock)
    book.settle(pending(1))
    assert answer_ask(book, "ask-1", Accept(), clock=clock) is False


def test_the_book_is_for_many_threads():
    book = AskBook()
    seen = []

    def work(base):
        for number in range(base, base + 200):
            book.put(pending(number), None)
            seen.append(len(book.pending()) >= 0)
            book.settle(pending(number))

    threads = [threading.Thread(target=work, args=(base * 1000,)) for base in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert book.pending() == ()
    assert len(seen) == 800
