"""A session's state stands for the inputs that gave it: whatever happens, what is on record replays to the live state."""

from __future__ import annotations

import collections
import tempfile
import types

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from greenroom.actors.ledger import Ledger
from greenroom.errors import JournalError
from greenroom.journal import STANDARD, Journal, Recovery, Retention
from greenroom.journal.records import Input, SessionClosed, Snapshot
from greenroom.policy.events import Named, Reopened, Start
from greenroom.policy.session import initial, replay_on, step
from greenroom.policy.state import BEGUN, Process, State
from tests.unit.journal.values import named, opened, write
from tests.unit.policy.test_machine import ANY_EVENT, SETTINGS

PREPARED = types.SimpleNamespace(replaces=None, nonce="n", request=None, request_hash="", key=None, expect_conversation=None, pin=False)


def replayed(journal, settings):
    history = Recovery(journal).history("s-1")
    return replay_on(history.origin(settings), history.inputs)


def text(state):
    return STANDARD.encode(state)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(config=SETTINGS, events=st.lists(ANY_EVENT, max_size=40), every=st.integers(1, 5), death=st.none() | st.integers(0, 40))
def test_the_snapshot_and_what_followed_replay_to_the_live_state_at_any_moment(config, events, every, death):
    with tempfile.TemporaryDirectory() as folder, Journal.open(folder) as journal:
        write(journal, attrs.evolve(opened(), settings=config))
        ledger, state = Ledger(session_id="s-1", snapshot_every=every), initial(config)
        for number, event in enumerate(events):
            if number == death:
                # The host dies, another one goes on from the record.
                state = replayed(journal, config)
                ledger = Ledger(session_id="s-1", snapshot_every=every, inputs=Recovery(journal).progress("s-1")[0])
                event = Reopened(now_s=60.0, settings=config)  # noqa: PLW2901
            before = state
            state, commands = step(before, event)
            write(journal, *ledger.snapshot(before))
            assert text(replayed(journal, config)) == text(before)
            records = ledger.step(event, before, state, commands, collections.defaultdict(lambda: PREPARED))
            write(journal, *(record for record in records if isinstance(record, Input)))
            assert text(replayed(journal, config)) == text(state)
            assert Recovery(journal).progress("s-1")[0] == ledger.inputs


def test_the_record_of_a_session_does_not_grow_without_bound(journal):
    write(journal, opened())
    ledger, state, most = Ledger(session_id="s-1", snapshot_every=50), State(settings=opened().settings, started=True), 0
    for number in range(1000):
        event = Named(now_s=float(number), incarnation=1, conversation_id=f"c-{number}")
        before = state = State(settings=state.settings, started=True, process=Process(incarnation=1), held=state.held)
        state, commands = step(before, event)
        write(journal, *ledger.snapshot(before), *ledger.step(event, before, state, commands, {}))
        most = max(most, journal.rows("SELECT count(*) FROM input")[0][0])
    assert most == 50
    assert journal.rows("SELECT count(*) FROM snapshot") == [(1,)]


def test_no_snapshot_is_taken_in_a_turn():
    ledger = Ledger(session_id="s-1", inputs=1000)
    state = State(settings=opened().settings)
    for phase in BEGUN:
        assert ledger.snapshot(State(settings=state.settings, phase=phase)) == ()
    assert ledger.snapshot(state) == (Snapshot(session_id="s-1", n=1000, state=state),)
    assert ledger.snapshot(state) == ()


@pytest.fixture
def kept(journal):
    write(journal, opened(), *(named(n) for n in range(1, 6)))
    return Snapshot(session_id="s-1", n=4, state=State(settings=opened().settings, waits=7))


def test_a_snapshot_may_be_put_twice_and_an_older_one_changes_nothing(journal, kept):
    older = Snapshot(session_id="s-1", n=2, state=State(settings=opened().settings, waits=1))
    write(journal, kept, kept, older)
    history = Recovery(journal).history("s-1")
    assert (history.state, history.inputs) == (kept.state, (named(5).event,))


def test_inputs_that_a_crash_left_beside_their_snapshot_are_not_replayed_again(journal, kept):
    write(journal, kept, named(3), named(4))
    assert Recovery(journal).history("s-1").inputs == (named(5).event,)


def test_what_was_not_committed_is_as_if_it_had_not_been(state_dir, kept, journal):
    journal.begin()
    journal.put(kept)
    journal.rollback()
    assert Recovery(journal).history("s-1").state is None
    assert len(Recovery(journal).inputs("s-1")) == 5


@pytest.mark.parametrize("following", [6, 7])
def test_a_hole_behind_the_snapshot_is_not_replayed_over(journal, kept, following):
    write(journal, kept, named(following + 1))
    with pytest.raises(JournalError, match="missing"):
        Recovery(journal).history("s-1")


def test_a_state_that_cannot_be_written_leaves_the_inputs(journal, kept):
    bad = Snapshot(session_id="s-1", n=4, state=State(settings=opened().settings, process=Process(incarnation=1, flags=object())))
    journal.begin()
    with pytest.raises(JournalError):
        journal.put(bad)
    journal.commit()
    assert len(Recovery(journal).inputs("s-1")) == 5


def test_a_state_that_would_be_read_back_as_another_one_leaves_the_inputs(journal, kept, monkeypatch):
    codec = journal.codec

    class Forgetful:
        def __getattr__(self, name):
            return getattr(codec, name)

        def decode(self, body):
            found = codec.decode(body)
            return State(settings=found.settings) if isinstance(found, State) else found

    journal._writer._codec = Forgetful()
    journal.begin()
    with pytest.raises(JournalError, match="would not be read back"):
        journal.put(kept)
    journal.commit()
    assert len(Recovery(journal).inputs("s-1")) == 5


def test_a_closed_session_loses_its_snapshot_with_its_inputs(journal, kept, wall):
    write(journal, kept, SessionClosed(session_id="s-1"))
    wall.now_s += 11
    journal.trim(Retention(max_age_s=10.0, max_bytes=10**12))
    assert Recovery(journal).history("s-1") is None
    assert journal.rows("SELECT * FROM snapshot") == []


def test_a_session_that_went_on_after_its_inputs_were_forgotten_is_forgotten_again(journal, wall):
    for _ in range(2):
        write(journal, opened(), Input(session_id="s-1", n=1, event=Start(now_s=1.0)), SessionClosed(session_id="s-1"))
        assert Recovery(journal).inputs("s-1") == (Start(now_s=1.0),)
        wall.now_s += 11
        journal.trim(Retention(max_age_s=10.0, max_bytes=10**12))
        assert Recovery(journal).history("s-1") is None
