"""A session actor and its journal: intent before action, in order, and what happens when the journal fails. Stepped by hand."""

import pathlib

import pytest

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.core import NO_FLAGS, SessionCore
from greenroom.actors.dispatcher import ManualDispatcher
from greenroom.actors.ledger import Ledger
from greenroom.actors.record import STORE_PATIENCE_S
from greenroom.actors.runtime import LoopActor, tell
from greenroom.actors.session import SessionActor
from greenroom.actors.ticket import TicketCore
from greenroom.errors import (
    GreenroomError,
    SessionCrashedError,
    SessionStateError,
    StoreFailedError,
    StoreUnavailableError,
    TransportDiedError,
    TurnCancelledError,
)
from greenroom.events import AssistantText
from greenroom.ids import new_nonce
from greenroom.journal import STANDARD as PLAIN
from greenroom.journal import records as r
from greenroom.model import ApprovalPolicy, ConversationSpec, NativePermissions, StoreFault, TurnRequest, TurnResult
from greenroom.policy.session import Settings, initial, step
from greenroom.testing import FakeClock, FakeTransport
from greenroom.transports.base import Flags

STANDARD = PLAIN.extended([Flags])

SPEC = ConversationSpec(cwd=pathlib.Path("/"), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
FULL = StoreFailedError(StoreFault.FULL, "database or disk is full", path="/state/journal.db")


class Recorder(LoopActor):
    """Keeps what it is told."""

    def __init__(self, dispatcher):
        super().__init__(dispatcher)
        self.told = []

    def handle(self, message):
        self.told.append(message)

    def of(self, kind):
        return [message for message in self.told if isinstance(message, kind)]


class Rig:
    def __init__(self):
        self.clock = FakeClock()
        self.dispatcher = ManualDispatcher(self.clock)
        self.journal, self.supervisor, self.conversation = (self.recorder() for _ in range(3))
        self.settings = Settings(session_nonce=new_nonce(), chooses_ids=True)
        self.core = SessionCore(
            session_id="s-1", transport=FakeTransport(), spec=SPEC, settings=self.settings, checkpoint=None, ledger=Ledger(session_id="s-1")
        )
        self.ref = SessionActor.start(
            self.dispatcher,
            core=self.core,
            supervisor=self.supervisor.actor_ref,
            store=lambda: None,
            observer=lambda: None,
            journal=lambda: self.journal.actor_ref,
        )
        self.actor = self.ref._actor_weakref()
        self.answered = 0
        self.turns = 0
        self.idle()

    def recorder(self):
        return Recorder.start(self.dispatcher)._actor_weakref()

    def idle(self):
        self.dispatcher.run_until_idle()

    def tell(self, message):
        tell(self.ref, message)
        self.idle()

    @property
    def records(self):
        return [record for message in self.journal.of(m.Record) for record in message.records]

    def written(self, kind):
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def awaited(self):
        return [message for message in self.journal.of(m.Record)[self.answered :] if message.session is not None]

    def store(self, error=None):
        """Let the journal answer everything that waits."""
        for message in self.journal.of(m.Record)[self.answered :]:
            if message.session is not None:
                tell(message.session, m.Stored(sequence=message.sequence, error=error))
        self.answered = len(self.journal.of(m.Record))
        self.idle()

    def prepare(self, *, durable=True, request=TurnRequest(prompt="p"), **fields):  # noqa: B008 - frozen
        self.turns += 1
        core, reply = TicketCore(f"t-{self.turns}", "s-1"), Cell()
        plain = {"expect_conversation": None, "pin": False, "request_hash": STANDARD.fingerprint(request)}
        message = m.PrepareTurn(
            turn_id=core.turn_id, nonce=new_nonce(), request=request, flags=NO_FLAGS, ticket=core, reply_to=reply, **{**plain, **fields}
        )
        self.tell(message)
        if durable:
            self.store()
        return core, reply

    def run(self, core):
        core.begin(None)
        self.tell(m.Run(turn_id=core.turn_id, ticket=core))

    def open(self, incarnation=1):
        self.tell(m.Admitted(incarnation=incarnation, conversation=self.conversation.actor_ref, slot_wait_s=0.0))
        self.tell(m.ConversationOpened(incarnation=incarnation, conversation_id="c-1"))

    def running(self, **fields):
        core, _ = self.prepare(**fields)
        self.run(core)
        self.open()
        self.store()
        self.tell(m.ConversationNamed(incarnation=1, conversation_id="c-1"))
        return core

    def end(self, core, text="done"):
        ended = {"error": None, "usage": None, "cumulative": None, "duration_ms": 1, "nudgeable": False}
        result = TurnResult(text=text, session_id="c-1")
        self.tell(
            m.TurnEnded(incarnation=1, turn_id=core.turn_id, result=result, keeps_conversation=False, forced=False, **ended),
        )

    def replayed(self):
        state = initial(self.settings)
        for entry in self.written(r.Input):
            state, _ = step(state, STANDARD.decode(STANDARD.encode(entry.event)))
        return state

    def close(self):
        for actor in (self.actor, self.journal, self.supervisor, self.conversation):
            actor.actor_ref.stop(block=False)
        self.idle()
        self.dispatcher.stop()
        CLAIMS.drop(self.core.closed)


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.close()


# --- intent before action


def test_a_ticket_is_given_out_when_it_is_on_record(rig):
    _, reply = rig.prepare(durable=False)
    assert not reply.settled
    assert [type(record) for record in rig.records[-2:]] == [r.Input, r.TicketPrepared]
    rig.store()
    assert reply.get() is None


def test_a_prompt_leaves_when_its_attempt_is_on_record_and_nothing_overtakes_it(rig):
    core, _ = rig.prepare()
    rig.run(core)
    rig.open()
    assert rig.written(r.TicketSent)[-1].attempt == 1
    assert rig.conversation.told == []
    reply = Cell()
    rig.tell(m.Steer(turn_id=core.turn_id, text="s", steer_id="i", reply_to=reply))
    rig.tell(m.Interrupt(turn_id=core.turn_id))
    assert rig.conversation.of(m.RunAttempt) == rig.conversation.of(m.InterruptTurn) == []
    rig.store()
    kinds = [type(message) for message in rig.conversation.told if not isinstance(message, m.HoldReading)]
    assert kinds == [m.RunAttempt, m.SteerAttempt, m.InterruptTurn]


def test_an_outcome_is_given_out_when_it_is_on_record(rig):
    core = rig.running()
    rig.end(core)
    assert not core.cell.settled
    assert rig.written(r.TicketEnded)[-1].outcome.result.text == "done"
    rig.store()
    assert core.cell.get().result.text == "done"


def test_a_session_has_ended_when_its_last_outcome_is_on_record(rig):
    core = rig.running()
    rig.tell(m.CloseSession())
    rig.tell(m.Down(incarnation=1, error=TransportDiedError(), expected=True, refused=False, sent=True, usage=None, duration_ms=1))
    assert not rig.supervisor.of(m.RetireSession)
    rig.store()
    assert core.cell.get().result.interrupted
    assert rig.supervisor.of(m.RetireSession)
    assert rig.written(r.SessionClosed)


def test_the_first_word_of_the_provider_proves_once_that_it_has_the_message(rig):
    core = rig.running()
    for _ in range(2):
        rig.tell(m.TurnEvent(incarnation=1, turn_id=core.turn_id, events=(AssistantText("x"),)))
    assert rig.written(r.TicketTaken) == [r.TicketTaken(turn_id=core.turn_id, attempt=1)]
    said = [record.first_sequence for record in rig.written(r.AgentEvents) if AssistantText("x") in record.events]
    assert said == [said[0], said[0] + 1]


def test_tickets_that_never_ran_are_on_record_as_discarded(rig):
    rig.prepare()
    second, _ = rig.prepare()
    rig.tell(m.CancelTurn(turn_id=second.turn_id))
    rig.prepare()
    rig.tell(m.CloseSession())
    assert [record.turn_id for record in rig.written(r.TicketDecided)] == ["t-1", "t-2", "t-3"]
    assert rig.written(r.TicketEnded) == []


def test_the_inputs_on_record_give_the_live_state(rig):
    core = rig.running()
    rig.tell(m.TurnEvent(incarnation=1, turn_id=core.turn_id, events=(AssistantText("x"),)))
    rig.tell(m.Down(incarnation=7, error=TransportDiedError(), expected=False, refused=False, sent=True, usage=None, duration_ms=1))
    assert STANDARD.encode(rig.replayed()) == STANDARD.encode(rig.actor._state)
    rig.end(core)
    rig.store()
    rig.prepare()
    assert STANDARD.encode(rig.replayed()) == STANDARD.encode(rig.actor._state)
    assert [entry.n for entry in rig.written(r.Input)] == list(range(1, len(rig.written(r.Input)) + 1))


# --- a journal that fails


def test_a_ticket_that_cannot_be_recorded_is_refused_by_name_and_the_next_one_is_not(rig):
    core, reply = rig.prepare(durable=False)
    rig.store(FULL)
    with pytest.raises(StoreUnavailableError, match="no turn was prepared") as caught:
        reply.get()
    assert caught.value.kind is StoreFault.FULL
    assert "make room" in caught.value.hint
    rig.run(core)
    with pytest.raises(SessionStateError):
        core.cell.get()
    assert rig.prepare()[1].get() is None


def test_a_ticket_is_superseded_only_by_one_that_is_on_record(rig):
    old, _ = rig.prepare()
    _, reply = rig.prepare(durable=False)
    assert not old.cell.settled
    rig.store(FULL)
    with pytest.raises(StoreUnavailableError):
        reply.get()
    rig.store()
    assert [record.turn_id for record in rig.written(r.TicketPrepared)] == ["t-1", "t-2", "t-1"]
    assert STANDARD.encode(rig.replayed()) == STANDARD.encode(rig.actor._state)
    rig.run(old)
    rig.open()
    rig.store()
    rig.end(old)
    rig.store()
    assert old.cell.get().result.text == "done"


def test_a_ticket_is_put_back_behind_several_that_were_refused(rig):
    old, _ = rig.prepare()
    second, _ = rig.prepare(durable=False)
    third, _ = rig.prepare(durable=False)
    with pytest.raises(SessionStateError, match="superseded by 't-3'"):
        second.cell.get()
    rig.store(FULL)
    assert rig.core.view.turn_id == "t-1"
    assert not old.cell.settled
    rig.run(third)
    with pytest.raises(SessionStateError):
        third.cell.get()


def test_a_ticket_whose_successor_is_on_record_is_superseded(rig):
    old, _ = rig.prepare()
    rig.prepare()
    with pytest.raises(SessionStateError, match="superseded by 't-2'"):
        old.cell.get()


@pytest.mark.parametrize("meanwhile", ["run", "cancelled", "closed", "crashed"])
def test_a_ticket_in_between_has_one_end_whatever_happens_meanwhile(rig, meanwhile):
    old, _ = rig.prepare()
    _, reply = rig.prepare(durable=False)
    match meanwhile:
        case "run":
            rig.run(old)
        case "cancelled":
            old.cancel(TurnCancelledError("t-1"))
            rig.tell(m.CancelTurn(turn_id="t-1"))
        case "closed":
            rig.tell(m.CloseSession())
        case "crashed":
            rig.tell(m.Spent(incarnation=1, usage=object()))
            rig.tell(m.Spent(incarnation=1, usage=object()))
    rig.store(FULL)
    with pytest.raises(GreenroomError):
        reply.get()
    with pytest.raises((SessionStateError, TurnCancelledError, SessionCrashedError)):
        old.cell.get()
    assert rig.core.view.turn_id is None or meanwhile == "crashed"


def test_a_prompt_that_cannot_be_recorded_is_not_sent(rig):
    core, _ = rig.prepare()
    rig.run(core)
    rig.open()
    rig.store(FULL)
    rig.store()
    with pytest.raises(StoreUnavailableError, match="was not sent"):
        core.cell.get()
    assert rig.conversation.of(m.RunAttempt) == []
    assert rig.written(r.TicketDecided)[-1].turn_id == core.turn_id
    again, _ = rig.prepare()
    rig.run(again)
    rig.store()
    assert [message.attempt.turn_id for message in rig.conversation.of(m.RunAttempt)] == [again.turn_id]


def test_a_finished_result_is_given_out_although_it_cannot_be_recorded(rig):
    core = rig.running()
    rig.end(core)
    rig.store(FULL)
    assert core.cell.get().result.text == "done"
    assert "disk is full" in rig.core.degraded


def test_a_journal_that_does_not_answer_is_not_waited_for_without_a_bound(rig):
    core = rig.running()
    rig.end(core)
    rig.clock.advance(STORE_PATIENCE_S)
    rig.idle()
    assert core.cell.get().result.text == "done"
    assert "has not answered" in rig.core.degraded
    rig.store()


def test_a_prompt_is_not_sent_when_the_journal_does_not_answer_and_a_late_answer_sends_nothing(rig):
    core, _ = rig.prepare()
    rig.run(core)
    rig.open()
    rig.clock.advance(STORE_PATIENCE_S)
    rig.idle()
    rig.store()
    with pytest.raises(StoreUnavailableError):
        core.cell.get()
    assert rig.conversation.of(m.RunAttempt) == []


def test_a_prompt_behind_the_gate_is_not_sent_to_a_process_that_is_being_ended(rig):
    core, _ = rig.prepare()
    rig.run(core)
    rig.open()
    rig.tell(m.Down(incarnation=1, error=TransportDiedError(), expected=False, refused=False, sent=False, usage=None, duration_ms=1))
    rig.store()
    assert rig.conversation.of(m.RunAttempt) == []
    assert not core.cell.settled


def test_a_crash_settles_what_waits_at_the_gate(rig):
    core = rig.running()
    rig.end(core)
    _, reply = rig.prepare(durable=False)
    rig.tell(m.Spent(incarnation=1, usage=object()))
    rig.tell(m.Spent(incarnation=1, usage=object()))
    assert core.cell.get().result.text == "done"
    assert reply.settled
