"""The journal's actor: what shares a commit, who is answered what, and what is owed when the journal fails. Stepped by hand."""

import pytest

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.dispatcher import ManualDispatcher, TimerFired
from greenroom.actors.runtime import LoopActor, tell
from greenroom.actors.store import (
    EVENTS_BACKLOG,
    GROUP_RECORDS,
    HEAL_EVERY_S,
    TRIM,
    TRIM_PAUSE_S,
    JournalActor,
    Keeper,
    plainer,
    unavailable,
)
from greenroom.errors import JournalError, SessionCrashedError, StoreFailedError, StoreUnavailableError, TurnFailedError
from greenroom.journal import STANDARD, Journal, Recovery, Retention
from greenroom.journal import records as r
from greenroom.model import FailureKind, StoreFault
from greenroom.policy import events as e
from greenroom.testing import FakeClock
from tests.unit.journal.values import opened, prepared, sent, spoken, turn


class Flaky(Journal):
    """Fails where the test says: `plan` has the names of the next calls that fail; `ill`: it cannot be healed."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.plan = []
        self.ill = False
        self.commits = 0

    def _fails(self, name):
        if self.plan and self.plan[0] == name:
            self.plan.pop(0)
            raise self._fail(StoreFault.FULL, "database or disk is full")

    def begin(self):
        self._fails("begin")
        super().begin()

    def put(self, record):
        self._fails("put")
        super().put(record)

    def commit(self):
        self._fails("commit")
        super().commit()
        self.commits += 1

    def try_heal(self):
        return not self.ill and super().try_heal()


class Waiter(LoopActor):
    def __init__(self, dispatcher):
        super().__init__(dispatcher)
        self.answers = {}

    def handle(self, message):
        assert message.sequence not in self.answers
        self.answers[message.sequence] = message.error


class Rig:
    def __init__(self, directory):
        self.clock = FakeClock()
        self.dispatcher = ManualDispatcher(self.clock)
        self.directory = directory
        self.journal = Flaky.open(directory)
        self.ref = JournalActor.start(self.dispatcher, journal=self.journal)
        self.waiter = Waiter.start(self.dispatcher)
        self.sequence = 0

    @property
    def answers(self):
        return self.waiter._actor_weakref().answers

    def put(self, *records, waiting=True):
        self.sequence += 1
        tell(self.ref, m.Record(records=records, sequence=self.sequence, session=self.waiter if waiting else None))

    def idle(self):
        self.dispatcher.run_until_idle()

    def ask(self, question, *names):
        reply = Cell()
        tell(self.ref, m.Consult(question=question, names=names, reply_to=reply))
        self.idle()
        return reply.get()

    def close(self):
        reply = Cell()
        tell(self.ref, m.CloseJournal(reply_to=reply))
        self.waiter.stop(block=False)
        self.idle()
        self.dispatcher.stop()
        assert reply.settled


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "state")
    yield rig
    rig.close()


def test_what_waits_shares_one_commit_and_each_is_answered(rig):
    for number in range(5):
        rig.put(opened(f"s-{number}"), prepared(f"t-{number}", f"s-{number}"))
    rig.idle()
    assert rig.journal.commits == 1
    assert rig.answers == dict.fromkeys(range(1, 6))
    assert len(rig.ask("sessions")) == 5


def test_a_group_has_a_bound(rig):
    rig.put(opened())
    for number in range(GROUP_RECORDS):
        rig.put(prepared(f"t-{number}"), sent(f"t-{number}"))
    rig.idle()
    assert rig.journal.commits >= 2
    assert len(rig.answers) == GROUP_RECORDS + 1


def test_a_record_that_cannot_be_written_concerns_its_sender_alone(rig):
    rig.put(opened(), prepared())
    rig.put(prepared("t-2", "nobody"))
    rig.put(sent())
    rig.idle()
    assert isinstance(rig.answers.pop(2), JournalError)
    assert rig.answers == {1: None, 3: None}
    assert rig.ask("ticket", "t-1").attempt == 1


@pytest.mark.parametrize("step", ["begin", "put", "commit"])
def test_a_failure_is_healed_at_once_and_the_group_is_written_after_all(rig, step):
    rig.journal.plan = [step]
    rig.put(opened(), prepared())
    rig.idle()
    assert rig.answers == {1: None}
    assert rig.ask("ticket", "t-1") is not None


@pytest.mark.parametrize("step", ["begin", "put", "commit"])
def test_what_a_failed_journal_owes_is_written_first_when_it_is_well_again(rig, step):
    rig.put(opened(), prepared())
    rig.idle()
    rig.journal.plan, rig.journal.ill = [step], True
    rig.put(sent())
    rig.put(spoken(1), waiting=False)
    rig.idle()
    assert isinstance(rig.answers[2], StoreFailedError)
    rig.put(r.TicketEnded(turn_id="t-1", outcome=turn()))
    rig.idle()
    assert isinstance(rig.answers[4], StoreFailedError)
    rig.journal.ill = False
    rig.clock.advance(HEAL_EVERY_S)
    rig.idle()
    found = rig.ask("ticket", "t-1")
    assert (found.attempt, found.outcome) == (1, turn())
    assert rig.ask("events", "s-1").batches == ()  # events are not owed


def test_it_is_tried_again_at_most_once_a_second(rig):
    rig.put(opened())
    rig.idle()
    rig.journal.plan, rig.journal.ill = ["begin"], True
    rig.put(prepared())
    rig.idle()
    rig.journal.ill = False
    rig.put(prepared("t-2"))
    rig.idle()
    assert isinstance(rig.answers[3], StoreFailedError)
    rig.clock.advance(HEAL_EVERY_S)
    rig.put(prepared("t-3"))
    rig.idle()
    assert rig.answers[4] is None
    assert [ticket.turn_id for ticket in rig.ask("unfinished")] == ["t-1", "t-2", "t-3"]


def test_an_error_of_a_users_class_is_recorded_as_the_class_of_ours_that_it_is():
    class TheirError(TurnFailedError):
        def __init__(self):
            super().__init__(FailureKind.AUTH, "no key")
            self.handle = object()

    plain = plainer(r.TicketEnded(turn_id="t-1", outcome=TheirError()), STANDARD)
    back = STANDARD.decode(STANDARD.encode(plain)).outcome
    assert (type(back), back.kind, str(back)) == (TurnFailedError, FailureKind.AUTH, str(TheirError()))
    failed = e.Failed(now_s=1.0, turn_id="t-1", incarnation=1, error=TheirError())
    assert STANDARD.encode(plainer(r.Input(session_id="s-1", n=1, event=failed), STANDARD))
    assert plainer(opened(), STANDARD) is None


def test_an_outcome_of_a_users_class_is_written(rig):
    class TheirError(TurnFailedError):
        pass

    rig.put(opened(), prepared(), r.TicketEnded(turn_id="t-1", outcome=TheirError(FailureKind.AUTH, "no key")))
    rig.idle()
    assert rig.answers == {1: None}
    assert rig.ask("outcome", "t-1").kind is FailureKind.AUTH


def test_events_beyond_the_backlog_are_dropped_and_leave_a_gap(rig):
    rig.put(opened())
    for number in range(1, EVENTS_BACKLOG + 11):
        rig.put(spoken(number), waiting=False)
    rig.put(prepared())
    rig.idle()
    history = rig.ask("events", "s-1")
    assert history.gaps
    assert rig.answers == {1: None, EVENTS_BACKLOG + 12: None}


def test_a_question_is_answered_behind_what_was_told_before(rig):
    rig.put(opened(), prepared(key="k"))
    assert rig.ask("find_key", "s-1", "k").turn_id == "t-1"


def test_a_question_is_not_answered_over_what_is_owed(rig):
    rig.journal.ill, rig.journal.plan = True, ["begin"]
    rig.put(opened(), prepared())
    rig.idle()
    with pytest.raises(StoreFailedError):
        rig.ask("ticket", "t-1")
    rig.journal.ill = False
    rig.clock.wait(HEAL_EVERY_S)  # nobody has looked yet whether it is well
    assert rig.ask("ticket", "t-1").turn_id == "t-1"


def test_a_crash_costs_nothing_of_what_was_told_behind_it(tmp_path):
    dispatcher = ManualDispatcher(FakeClock())
    keeper = Keeper(Journal.open(tmp_path / "state"), loop=dispatcher)
    waiter = Waiter.start(dispatcher)
    late = Cell()
    keeper.put(opened())
    tell(keeper.ref(), m.Consult(question="nothing of the kind", names=(), reply_to=Cell()))
    tell(keeper.ref(), m.Record(records=(prepared(),), sequence=1, session=waiter))
    tell(keeper.ref(), m.Consult(question="sessions", names=(), reply_to=late))
    keeper.put(sent())
    dispatcher.run_until_idle()
    assert isinstance(waiter._actor_weakref().answers[1], StoreFailedError)
    with pytest.raises(StoreFailedError):
        late.get()
    reply = Cell()
    tell(keeper.ref(), m.Consult(question="ticket", names=("t-1",), reply_to=reply))
    dispatcher.run_until_idle()
    assert reply.get().attempt == 1
    waiter.stop(block=False)
    closed = Cell()
    tell(keeper.ref(), m.CloseJournal(reply_to=closed))
    dispatcher.run_until_idle()
    dispatcher.stop()
    assert closed.settled


def test_an_actor_that_keeps_crashing_is_given_up_for_good(tmp_path):
    clock = FakeClock()
    dispatcher = ManualDispatcher(clock)
    journal = Journal.open(tmp_path / "state")
    keeper = Keeper(journal, loop=dispatcher)
    for _ in range(4):
        tell(keeper.ref(), m.Consult(question="nothing of the kind", names=(), reply_to=Cell()))
        dispatcher.run_until_idle()
    for _ in range(2):
        reply = Cell()
        tell(keeper.ref(), m.Consult(question="sessions", names=(), reply_to=reply))
        dispatcher.run_until_idle()
        with pytest.raises(StoreFailedError):
            reply.get()
        clock.wait(100.0)  # what was refused meanwhile would be a hole among what came later
    journal.close()
    dispatcher.stop()


def test_closing_writes_what_waits_and_what_is_owed(tmp_path):
    rig = Rig(tmp_path / "state")
    rig.journal.plan, rig.journal.ill = ["commit"], True
    rig.put(opened(), prepared())
    rig.idle()
    rig.journal.ill = False
    rig.put(prepared("t-2"))
    rig.close()
    with Journal.open(rig.directory) as journal:
        assert len(Recovery(journal).unfinished()) == 2
    late = Cell()
    tell(rig.ref, m.Consult(question="sessions", names=(), reply_to=late))
    with pytest.raises(StoreFailedError):
        late.get()


def test_a_crash_answers_what_was_in_hand_and_its_successor_writes_it(tmp_path):
    keeper = Keeper(Flaky.open(tmp_path / "state"))
    try:
        keeper.put(opened())
        assert len(keeper.consult("sessions")) == 1
        tell(keeper.ref(), m.Record(records=(prepared(), object()), sequence=1))  # no record at all: refused, not a crash
        first = keeper.ref()
        tell(first, m.Consult(question="nothing of the kind", names=(), reply_to=Cell()))
        first.actor_stopped.wait(5)
        assert keeper.ref() is not first
        assert keeper.consult("ticket", "t-1").turn_id == "t-1"
    finally:
        keeper.close()


def test_what_is_no_failure_of_the_store_is_refused_as_what_it_is():
    crashed = SessionCrashedError("s-1", "a defect")
    assert unavailable("no turn was prepared", crashed) is crashed


def test_the_refusal_says_what_was_not_done_why_and_what_to_do():
    refused = unavailable("no turn was prepared", StoreFailedError(StoreFault.FULL, "disk is full", path="/s/journal.db"))
    assert isinstance(refused, StoreUnavailableError)
    assert (refused.kind, refused.path) == (StoreFault.FULL, "/s/journal.db")
    assert "no turn was prepared" in str(refused)
    assert refused.hint == "make room on the disk; then try again"
    odd = JournalError("cannot record a Thing")
    assert unavailable("no turn was prepared", odd) is odd


# --- forgetting


def test_what_is_too_old_is_forgotten_soon_after_the_opening_and_every_minute_then(rig):
    def events():
        return rig.ask("events", "s-1").batches

    rig.journal.close()
    ref = JournalActor.start(
        rig.dispatcher, journal=(journal := Flaky.open(rig.directory, clock_wall=rig.clock.wall)), retention=Retention(max_age_s=1000.0)
    )
    rig.ref.stop(block=False)
    rig.ref, rig.journal = ref, journal
    rig.put(opened(), spoken(1, at_wall_s=rig.clock.wall() - 1001.0), spoken(2, at_wall_s=rig.clock.wall()))
    rig.idle()
    assert len(events()) == 2
    rig.clock.advance(TRIM_PAUSE_S)
    rig.idle()
    assert [batch.first_sequence for batch in events()] == [2]
    rig.clock.advance(1001.0)
    rig.idle()
    assert events() == ()


def test_a_journal_that_is_never_idle_forgets_all_the_same(rig):
    rig.put(opened(), spoken(1, at_wall_s=-(10.0**9)))
    rig.idle()
    tell(rig.ref, TimerFired(token=TRIM))
    for first in range(2, 40):
        rig.put(spoken(first, at_wall_s=rig.clock.wall()), waiting=False)
    rig.idle()
    assert [batch.first_sequence for batch in rig.ask("events", "s-1").batches] == list(range(2, 40))
