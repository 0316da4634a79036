"""What is forgotten and when, at the bounds; what an unfinished ticket or an open session needs never is."""

from __future__ import annotations

import pytest

from greenroom.events import ToolCall
from greenroom.journal import Decision, Recovery, Retention, Verdict
from greenroom.journal.records import AgentEvents, Input, SessionClosed, Spent, TicketDecided, TicketEnded, TicketReported
from greenroom.policy.events import Start
from tests.unit.journal.values import named, opened, prepared, sent, spoken, turn, write

ALL = Retention(max_age_s=0.0, max_bytes=0, sessions_max_age_s=0.0)


def trim_all(journal, retention):
    rounds = 0
    while journal.trim(retention).more:
        rounds += 1
        assert rounds < 1000
    return rounds


def counts(journal):
    tables = ("session", "ticket", "request", "outcome", "input", "snapshot", "agent_events", "spent")
    return {name: count for name in tables if (count := journal.rows(f"SELECT count(*) FROM {name}")[0][0])}  # noqa: S608


@pytest.mark.parametrize("field", ["max_age_s", "max_bytes", "sessions_max_age_s"])
@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (True, TypeError)])
def test_a_bound_that_cannot_be_is_refused_by_name(field, value, error):
    with pytest.raises(error, match=field):
        Retention(**{field: value})


def test_without_bounds_nothing_is_forgotten(journal, wall):
    write(journal, opened(), named(1), spoken(1), SessionClosed(session_id="s-1"))
    before = counts(journal)
    wall.now_s = 10.0**12
    assert trim_all(journal, Retention(max_age_s=None, max_bytes=None)) == 0
    assert counts(journal) == before


@pytest.mark.parametrize(("past_s", "kept"), [(99.9, True), (100.0, True), (100.1, False)])
def test_the_age_is_a_bound(journal, wall, past_s, kept):
    write(journal, opened(), named(1), spoken(1, at_wall_s=1000.0), SessionClosed(session_id="s-1"))
    wall.now_s = 1000.0 + past_s
    trim_all(journal, Retention(max_age_s=100.0))
    assert bool(Recovery(journal).events("s-1").batches) is kept
    assert (Recovery(journal).history("s-1") is not None) is kept


def called(turn_id, first):
    call = ToolCall(tool_id="tool", tool="Bash", args={})
    return AgentEvents(
        session_id="s-1", first_sequence=first, turn_id=turn_id, incarnation=1, at_monotonic_s=1.0, at_wall_s=1.0, events=(call,)
    )


@pytest.mark.parametrize("retention", [ALL, Retention(max_age_s=None, max_bytes=0)], ids=["age", "size"])
def test_a_turn_that_was_cut_keeps_what_it_is_taken_up_with_until_it_is_decided(journal, wall, retention):
    write(journal, opened(), prepared("t-1"), sent("t-1"), called("t-1", 1), called("t-2", 2), named(1))
    write(journal, SessionClosed(session_id="s-1"))
    wall.now_s += 1
    trim_all(journal, retention)
    recovery = Recovery(journal)
    assert len(recovery.calls("s-1", "t-1")) == 1
    assert recovery.calls("s-1", "t-2") == ()
    assert recovery.inputs("s-1") == (named(1).event,)
    assert [ticket.verdict for ticket in recovery.unfinished()] == [Verdict.UNKNOWN]
    write(journal, TicketDecided(turn_id="t-1", decision=Decision.DISCARD))
    trim_all(journal, retention)
    assert recovery.calls("s-1", "t-1") == ()
    assert recovery.inputs("s-1") is None or retention is ALL


def test_an_open_session_keeps_its_inputs_and_its_tickets(journal, wall):
    write(journal, opened(), prepared(), sent(), TicketEnded(turn_id="t-1", outcome=turn()), TicketReported(turn_id="t-1"), named(1))
    wall.now_s = 10.0**12
    trim_all(journal, ALL)
    assert counts(journal) == {"session": 1, "ticket": 1, "request": 1, "outcome": 1, "input": 1}


@pytest.mark.parametrize("open_ticket", ["NEVER_SENT", "UNKNOWN", "FINISHED_UNREPORTED"])
def test_a_closed_session_with_a_turn_that_nobody_decided_upon_is_kept(journal, wall, open_ticket):
    records = {"NEVER_SENT": (), "UNKNOWN": (sent(),), "FINISHED_UNREPORTED": (sent(), TicketEnded(turn_id="t-1", outcome=turn()))}
    write(journal, opened(), prepared(), *records[open_ticket], SessionClosed(session_id="s-1"))
    wall.now_s = 10.0**12
    trim_all(journal, ALL)
    assert [ticket.verdict.name for ticket in Recovery(journal).unfinished()] == [open_ticket]
    assert Recovery(journal).session("s-1") is not None


@pytest.mark.parametrize(("past_s", "kept"), [(99.9, True), (100.0, True), (100.1, False)])
def test_a_closed_session_goes_whole_with_its_tickets_and_keys(journal, wall, past_s, kept):
    for session_id, turn_id in (("s-1", "t-1"), ("s-2", "t-2")):
        ended = (TicketEnded(turn_id=turn_id, outcome=turn(turn_id)), TicketReported(turn_id=turn_id))
        write(journal, opened(session_id), prepared(turn_id, session_id, key="k"), sent(turn_id), *ended)
        write(journal, named(1, session_id), spoken(1, session_id=session_id), Spent(session_id=session_id, usage=None))
    write(journal, SessionClosed(session_id="s-1"))
    wall.now_s += past_s
    trim_all(journal, Retention(max_age_s=None, max_bytes=None, sessions_max_age_s=100.0))
    recovery = Recovery(journal)
    assert (recovery.find_key("s-1", "k") is not None) is kept
    assert recovery.find_key("s-2", "k").outcome == turn("t-2")
    each = 2 if kept else 1
    assert counts(journal) == dict.fromkeys(["session", "ticket", "request", "outcome", "input", "agent_events", "spent"], each)


def test_many_sessions_go_in_bounded_rounds_and_the_file_shrinks(journal, wall):
    for number in range(40):
        name = f"s-{number}"
        write(journal, opened(name), *(spoken(n, session_id=name, text="long " * 200) for n in range(1, 200)))
        write(journal, SessionClosed(session_id=name))
    journal.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    size = journal.path.stat().st_size
    wall.now_s += 1
    rounds = trim_all(journal, Retention(max_age_s=None, max_bytes=None, sessions_max_age_s=0.0))
    assert rounds >= 4
    journal.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    assert size > 5_000_000
    assert journal.path.stat().st_size < 200_000
    assert counts(journal) == {}


@pytest.mark.parametrize(("spare", "kept"), [(0, True), (-1, False)])
def test_the_size_is_a_bound(journal, wall, spare, kept):
    write(journal, opened(), Input(session_id="s-1", n=1, event=Start(now_s=1.0)), SessionClosed(session_id="s-1"))
    used = journal.rows("PRAGMA page_count")[0][0] * journal.rows("PRAGMA page_size")[0][0]
    trim_all(journal, Retention(max_bytes=used + spare, max_age_s=None))
    assert (Recovery(journal).history("s-1") is not None) is kept
