"""What the next host finds: verdicts, keys, histories. Asked twice, the journal says the same."""

from __future__ import annotations

import datetime as dt

import attrs
import pytest

from greenroom.asks import PendingApproval
from greenroom.errors import JournalError, TurnFailedError
from greenroom.events import AssistantText
from greenroom.journal import Decision, Journal, Recovery, Verdict
from greenroom.journal.records import (
    AskClosed,
    AskOpened,
    CheckpointCleared,
    CheckpointSaved,
    Input,
    ProcessEnded,
    ProcessStarted,
    SessionClosed,
    Spent,
    TicketDecided,
    TicketEnded,
    TicketReported,
    TicketTaken,
)
from greenroom.model import Checkpoint, FailureKind, ImageAttachment, ProviderUsage, TurnRequest, TurnResult
from greenroom.policy.commands import How
from greenroom.policy.events import Named, Opened, Prepare, RunBegan, Start, Succeeded
from greenroom.policy.session import Settings, initial, step
from tests.unit.journal.values import NONCE, named, opened, prepared, sent, spoken, turn, write


def ended(turn_id="t-1", **fields):
    return TicketEnded(turn_id=turn_id, outcome=turn(turn_id, **fields))


def asked(name="ask-1", turn_id="t-1", session_id="s-1"):
    about = {"request_id": name, "session_id": session_id, "turn_id": turn_id}
    pending = PendingApproval(**about, tool="Bash", input={"command": "ls"}, reason="", suggestions=(), asked_at=AT)
    return AskOpened(pending=pending)


AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
REPORTED = TicketReported(turn_id="t-1")
UNRUN = TicketReported(turn_id="t-1", unrun=True)
DISCARDED = TicketDecided(turn_id="t-1", decision=Decision.DISCARD)


@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        ([], Verdict.NEVER_SENT),
        ([sent()], Verdict.UNKNOWN),
        ([sent(), TicketTaken(turn_id="t-1", attempt=1)], Verdict.UNKNOWN),
        ([sent(), sent(attempt=2)], Verdict.UNKNOWN),
        ([sent(), ended()], Verdict.FINISHED_UNREPORTED),
        ([ended()], Verdict.FINISHED_UNREPORTED),
        ([sent(), ended(), REPORTED], None),
        ([DISCARDED], None),
        ([sent(), DISCARDED], None),
        ([sent(), ended(), DISCARDED], None),
        ([DISCARDED, prepared()], Verdict.NEVER_SENT),
        ([sent(), DISCARDED, sent(attempt=2)], Verdict.UNKNOWN),
        ([sent(), REPORTED], None),
        ([UNRUN], Verdict.NEVER_SENT),
        ([sent(), UNRUN], Verdict.UNKNOWN),
        ([sent(), ended(), UNRUN], None),
    ],
)
def test_a_ticket_gets_the_verdict_that_its_records_allow_however_often_it_is_asked(state_dir, records, verdict):
    with Journal.open(state_dir) as journal:
        write(journal, opened(), prepared())
        for record in records:
            write(journal, record)
    answers = []
    for _ in range(2):
        with Journal.open(state_dir) as journal:
            answers.append((Recovery(journal).unfinished(), Recovery(journal).ticket("t-1").verdict))
    assert answers[0] == answers[1]
    assert answers[0][1] is verdict
    assert [ticket.verdict for ticket in answers[0][0]] == ([] if verdict is None else [verdict])


def test_a_recovered_ticket_says_all_that_is_needed_to_go_on(journal, wall):
    write(journal, opened(), prepared(key="k", expected_conversation="c-0", strict=True, pinned=True))
    write(journal, sent(), TicketTaken(turn_id="t-1", attempt=1))
    wall.now_s = 2000.0
    write(journal, sent(attempt=2, how=How.CONTINUE, conversation_id=None, incarnation=3))
    (ticket,) = Recovery(journal).unfinished()
    assert (ticket.turn_id, ticket.session_id, ticket.key, ticket.request) == ("t-1", "s-1", "k", TurnRequest("do it"))
    assert (ticket.expected_conversation, ticket.strict, ticket.pinned, ticket.nonce) == ("c-0", True, True, NONCE)
    assert (ticket.attempt, ticket.receipt, ticket.how, ticket.incarnation) == (2, "receipt-2", How.CONTINUE, 3)
    assert (ticket.conversation_id, ticket.at_s) == ("c-1", 2000.0)
    assert ticket.taken is False, "what was taken is an earlier attempt"
    write(journal, TicketTaken(turn_id="t-1", attempt=2))
    assert Recovery(journal).ticket("t-1").taken is True


PICTURE = TurnRequest("look", attachments=[ImageAttachment(data=b"\x89PNG" * 10_000, media_type="image/png")])


def request_bytes(journal):
    return journal.rows("SELECT length(body) FROM request")[0][0]


@pytest.mark.parametrize("end", [REPORTED, DISCARDED])
def test_what_was_attached_is_kept_until_nobody_can_send_it_again(journal, end):
    picture = attrs.evolve(prepared(), request=PICTURE)
    write(journal, opened(), picture, sent(), ended())
    (found,) = Recovery(journal).unfinished()
    assert found.request == PICTURE, "it may be run again"
    write(journal, end)
    assert request_bytes(journal) < 2_000
    assert Recovery(journal).ticket("t-1").request == TurnRequest("look")
    assert Recovery(journal).ticket("t-1").request_hash == picture.request_hash
    write(journal, picture)
    assert Recovery(journal).ticket("t-1").request == PICTURE, "prepared again, it is whole again"


def test_what_is_to_be_run_again_keeps_what_was_attached(journal):
    write(journal, opened(), attrs.evolve(prepared(), request=PICTURE), sent(), TicketDecided(turn_id="t-1", decision=Decision.RUN_AGAIN))
    assert Recovery(journal).ticket("t-1").request == PICTURE


def test_tickets_come_in_the_order_of_their_preparation(journal):
    write(journal, opened("s-1"), opened("s-2"))
    for number in (3, 1, 2):
        write(journal, prepared(f"t-{number}", f"s-{number % 2 + 1}"))
    assert [ticket.turn_id for ticket in Recovery(journal).unfinished()] == ["t-3", "t-1", "t-2"]


def test_the_first_outcome_counts(journal):
    write(journal, opened(), prepared(), sent())
    write(journal, ended(text="first"))
    write(
        journal, TicketEnded(turn_id="t-1", outcome=TurnFailedError(FailureKind.OTHER, "late")), ended(text="second", conversation_id="c-9")
    )
    assert Recovery(journal).outcome("t-1").result.text == "first"
    assert Recovery(journal).last_conversation("s-1") == "c-1"
    assert Recovery(journal).ticket("t-1").conversation_id == "c-1"


def test_an_outcome_may_be_an_error(journal):
    write(journal, opened(), prepared())
    assert Recovery(journal).outcome("t-1") is None
    assert Recovery(journal).outcome("nobody") is None
    write(journal, TicketEnded(turn_id="t-1", outcome=TurnFailedError(FailureKind.AUTH, "no key")))
    (ticket,) = Recovery(journal).unfinished()
    assert ticket.outcome.kind is FailureKind.AUTH
    assert str(Recovery(journal).outcome("t-1")) == "turn failed (auth): no key"


def test_a_key_finds_the_latest_ticket_of_its_session(journal):
    write(journal, opened("s-1"), opened("s-2"), prepared("t-1", key="a"), prepared("t-2", key="a"), prepared("t-3", "s-2", key="a"))
    recovery = Recovery(journal)
    assert recovery.find_key("s-1", "a").turn_id == "t-2"
    assert recovery.find_key("s-2", "a").turn_id == "t-3"
    assert recovery.find_key("s-1", "b") is None
    assert recovery.ticket("nobody") is None


@pytest.mark.parametrize("name", ["plain", "é😀", "nul\0inside", "\ud800", "\ud83d\ude00", "😀", "a/b", "'; DROP TABLE session; --"])
def test_names_are_kept_as_they_are(journal, name):
    write(journal, opened(name), prepared(name, name, key=name), sent(name, conversation_id=name, receipt=name), named(1, name, name))
    write(journal, CheckpointSaved(key=name, checkpoint=Checkpoint(name)), spoken(1, session_id=name), Spent(session_id=name, usage=None))
    recovery = Recovery(journal)
    (ticket,) = recovery.unfinished()
    assert (ticket.turn_id, ticket.session_id, ticket.key, ticket.conversation_id, ticket.receipt) == (name,) * 5
    assert recovery.find_key(name, name) == ticket
    assert recovery.last_conversation(name) == name
    assert recovery.checkpoint(name) == Checkpoint(name)
    assert recovery.events(name).batches[0].session_id == name
    assert [spent.session_id for spent in recovery.spend()] == [name]
    assert [session.opened.session_id for session in recovery.sessions()] == [name]


def test_names_that_look_alike_stay_apart(journal):
    names = ["\ud83d\ude00", "😀", "a", "a\0", "a\0b"]
    write(journal, *(CheckpointSaved(key=name, checkpoint=Checkpoint(str(number))) for number, name in enumerate(names)))
    assert [Recovery(journal).checkpoint(name).conversation_id for name in names] == list("01234")


# --- sessions


def test_a_session_remembers_its_last_conversation_and_its_end(journal, wall):
    recovery = Recovery(journal)
    write(journal, opened(), prepared())
    assert recovery.last_conversation("s-1") is None
    assert recovery.last_conversation("nobody") is None
    write(journal, sent(conversation_id=None))
    assert recovery.last_conversation("s-1") is None
    write(journal, named(1, conversation_id="c-1"))
    assert recovery.last_conversation("s-1") == "c-1"
    write(journal, ended(conversation_id="c-2"))
    assert recovery.last_conversation("s-1") == "c-2"
    wall.now_s = 5.0
    write(journal, SessionClosed(session_id="s-1"))
    (session,) = recovery.sessions()
    assert (session.opened, session.closed_at_s, session.last_conversation_id) == (opened(), 5.0, "c-2")
    write(journal, opened())
    assert recovery.session("s-1").closed_at_s is None
    assert recovery.session("nobody") is None


def test_the_inputs_replayed_give_the_live_state(journal):
    settings = Settings(session_nonce=NONCE)
    told = [
        Start(now_s=0.0),
        Prepare(now_s=1.0, turn_id="t-1", nonce=NONCE, request=TurnRequest("hello", timeout=5.0)),
        RunBegan(now_s=2.0, turn_id="t-1", flags=("a", None)),
        Opened(now_s=3.0, incarnation=1, conversation_id="c-1"),
        Named(now_s=3.5, incarnation=1, conversation_id="c-1"),
        Succeeded(now_s=4.0, turn_id="t-1", incarnation=1, result=TurnResult(text="hi", session_id="c-1")),
    ]
    state = initial(settings)
    write(journal, opened())
    for n, event in enumerate(told, start=1):
        write(journal, Input(session_id="s-1", n=n, event=event))
        state, _ = step(state, event)
    replayed = initial(Recovery(journal).session("s-1").opened.settings)
    for event in Recovery(journal).inputs("s-1"):
        replayed, _ = step(replayed, event)
    assert replayed == state
    assert state.last_turn_conversation_id == "c-1"


def test_inputs_with_a_hole_are_not_replayed(journal):
    write(journal, opened(), named(1), named(3))
    with pytest.raises(JournalError, match="missing"):
        Recovery(journal).inputs("s-1")
    assert Recovery(journal).inputs("nobody") == ()


# --- events


def test_events_come_in_order_after_a_number_with_their_stamps(journal):
    write(journal, opened("s-1"), opened("s-2"), spoken(4, 3), spoken(1, 3), spoken(1, 9, session_id="s-2"), spoken(7, 0))
    history = Recovery(journal).events("s-1")
    assert history.batches == (spoken(1, 3), spoken(4, 3))
    assert (history.gaps, history.complete) == ((), True)
    tail = Recovery(journal).events("s-1", 4)
    assert [(batch.first_sequence, batch.events) for batch in tail.batches] == [(5, (AssistantText("word 5"), AssistantText("word 6")))]
    assert Recovery(journal).events("s-1", 6).batches == ()
    assert Recovery(journal).events("nobody").batches == ()


def test_events_that_were_never_recorded_are_a_gap(journal):
    write(journal, opened(), spoken(3, 2), spoken(8, 1))
    gaps = Recovery(journal).events("s-1").gaps
    assert [(gap.first_sequence, gap.last_sequence) for gap in gaps] == [(1, 2), (5, 7)]
    assert [(gap.first_sequence, gap.last_sequence) for gap in Recovery(journal).events("s-1", 5).gaps] == [(6, 7)]


def test_a_long_history_comes_in_pieces(journal):
    write(journal, opened(), *(spoken(first, 2) for first in range(1, 21, 2)))
    found, after = [], 0
    while True:
        history = Recovery(journal).events("s-1", after, max_batches=3)
        assert history.gaps == ()
        found += [batch.first_sequence for batch in history.batches]
        if history.complete:
            break
        after = history.batches[-1].last_sequence
    assert found == list(range(1, 21, 2))


# --- the rest


def test_processes_are_listed_until_their_end_is_recorded(journal):
    one, two = (
        ProcessStarted(pid=7, start_time=start, pgid=7, mark=f"gr/{start}", session_id="s-1", incarnation=start, host_id="h")
        for start in (1, 2)
    )
    write(journal, one, two)
    assert Recovery(journal).processes() == (one, two)
    write(journal, ProcessEnded(pid=7, start_time=1, mark="gr/1"))
    assert Recovery(journal).processes() == (two,)


def test_spending_is_a_running_total(journal):
    usage = ProviderUsage(total_cost_usd=2.0, raw={"n": 1})
    write(journal, Spent(session_id="s-2", usage=None), Spent(session_id="s-1", usage=ProviderUsage(total_cost_usd=1.0)))
    write(journal, Spent(session_id="s-1", usage=usage, booked=ProviderUsage()))
    assert Recovery(journal).spend() == (Spent(session_id="s-1", usage=usage, booked=ProviderUsage()), Spent(session_id="s-2", usage=None))


def test_checkpoints_are_replaced_and_cleared(journal):
    write(journal, CheckpointSaved(key="k", checkpoint=Checkpoint("c-1")), CheckpointSaved(key="k", checkpoint=Checkpoint("c-2")))
    assert Recovery(journal).checkpoint("k") == Checkpoint("c-2")
    write(journal, CheckpointCleared(key="k"), CheckpointCleared(key="k"))
    assert Recovery(journal).checkpoint("k") is None


@pytest.mark.parametrize(
    ("records", "left"),
    [
        ([asked()], ["ask-1"]),
        ([asked("ask-2"), asked("ask-1"), asked("ask-2")], ["ask-2", "ask-1"]),
        ([asked(), asked("ask-2"), AskClosed(request_id="ask-1")], ["ask-2"]),
        ([AskClosed(request_id="never there")], []),
        ([asked(), asked("own", turn_id=None), ended()], ["own"]),
        ([asked(), DISCARDED], []),
    ],
)
def test_what_waited_for_a_person_is_listed_until_its_turn_is_done_with(state_dir, records, left):
    with Journal.open(state_dir) as journal:
        write(journal, opened(), prepared(), sent(), *records)
    with Journal.open(state_dir) as journal:
        found = Recovery(journal).open_asks()
        assert [pending.request_id for pending in found] == left
        assert all(pending.asked_at == AT and pending.input == {"command": "ls"} for pending in found)
