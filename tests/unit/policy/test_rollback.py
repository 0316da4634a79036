"""The rules of a rollback: who has the conversation meanwhile, and what becomes of it."""

from __future__ import annotations

import attrs
import pytest

from greenroom.errors import TransportDiedError
from greenroom.model import Checkpoint, ProviderUsage, RenewalBudget, TurnRequest, TurnResult
from greenroom.policy.commands import BeginRollback
from greenroom.policy.events import (
    Close,
    Died,
    Named,
    Opened,
    Prepare,
    Reopened,
    RollBackAsked,
    RolledBack,
    RunBegan,
    Start,
    Succeeded,
)
from greenroom.policy.session import Phase, Settings, initial, step
from greenroom.policy.table import told

NONCE = "00000000-0000-4000-8000-000000000001"
C1 = Checkpoint("c1", ProviderUsage(raw={"total": 7}))
ASKED = RollBackAsked(now_s=1, request_id="b")
DONE = RolledBack(now_s=2, request_id="b", num_turns=1, checkpoint=Checkpoint("c1", ProviderUsage(raw={"total": 3})))
NOTHING = RolledBack(now_s=2, request_id="b")
ENDED = Died(now_s=1, incarnation=1, error=TransportDiedError(), expected=True)
PREPARE = Prepare(now_s=0, turn_id="t1", nonce=NONCE, request=TurnRequest("x"))
TURN = (
    PREPARE,
    RunBegan(now_s=0, turn_id="t1"),
    Opened(now_s=0, incarnation=1),
    Named(now_s=0, incarnation=1, conversation_id="c1"),
    Succeeded(now_s=0, turn_id="t1", incarnation=1, result=TurnResult(text="ok")),
)
RESUMED = Start(now_s=0, checkpoint=C1)
NEXT = attrs.evolve(PREPARE, turn_id="t2")


class Play:
    """A session to which all this happened."""

    def __init__(self, *events, **settings):
        self.state = initial(Settings(**{"session_nonce": NONCE, "checkpointing": True, "chooses_ids": True, **settings}))
        self.last = ()
        for event in events:
            self.then(event)

    def then(self, event) -> str:
        self.state, self.last = step(self.state, event)
        return told(self.last)


def test_a_rollback_begins_when_no_process_has_the_conversation_and_no_turn_begins_meanwhile():
    play = Play(*TURN)
    assert play.then(ASKED) == "CloseConversation(its conversation is rolled back)"
    assert play.then(NEXT) == "Refuse(SessionStateError)"
    assert play.then(attrs.evolve(ASKED, request_id="b2")) == "RefuseRollback(SessionStateError)"
    assert play.then(ENDED) == "BeginRollback(c1)"
    assert play.then(NEXT) == "Refuse(SessionStateError)"
    assert play.then(DONE) == "SaveCheckpoint(c1)"
    assert play.state.held.usage == DONE.checkpoint.usage
    assert play.then(NEXT) == "Grant"


def test_the_asker_gets_the_conversation_with_its_usage():
    play = Play(RESUMED)
    play.then(ASKED)
    assert play.last == (BeginRollback(request_id="b", checkpoint=C1),)


def test_a_rollback_that_came_to_nothing_leaves_everything_as_it_was():
    play = Play(RESUMED)
    before = play.state
    play.then(ASKED)
    play.then(NOTHING)
    assert attrs.evolve(play.state, idle_since_s=before.idle_since_s) == before


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((), "holds no conversation"),
        ((RESUMED, PREPARE), "prepared"),
        ((RESUMED, *TURN[:4]), "running"),
        ((RESUMED, ASKED), "already"),
        ((RESUMED, Close(now_s=0)), "closed"),
    ],
)
def test_what_is_refused(events, why):
    play = Play(*events)
    before = play.state
    play.then(attrs.evolve(ASKED, request_id="late"))
    (refused,) = play.last
    assert why in str(refused.error)
    assert refused.request_id == "late"
    assert play.state == before


def test_turns_that_were_taken_back_do_not_count_against_the_budget():
    play = Play(*TURN, ASKED, ENDED, renewal=RenewalBudget(max_turns=9))
    assert play.state.held.successful_turns == 1
    play.then(attrs.evolve(DONE, num_turns=3))
    assert play.state.held.successful_turns == 0


def test_a_session_that_is_closed_waits_for_a_rollback_that_has_begun():
    play = Play(*TURN, ASKED, ENDED)
    assert play.then(Close(now_s=2)) == "-"
    assert play.then(DONE) == "SaveCheckpoint(c1), Stop"
    assert play.state.phase is Phase.CLOSED


def test_a_session_that_is_closed_begins_none():
    play = Play(*TURN, ASKED)
    assert play.then(Close(now_s=2)) == "RefuseRollback(SessionStateError)"
    assert play.then(ENDED) == "Stop"
    assert play.then(DONE).startswith("Ignored")


def test_an_asker_that_gave_up_before_it_began_ends_it():
    play = Play(*TURN, ASKED)
    assert play.then(NOTHING) == "-"
    assert play.then(ENDED) == "-"
    assert play.then(NEXT) == "Grant"


def test_a_conversation_may_have_another_name_afterwards():
    play = Play(RESUMED, ASKED, attrs.evolve(DONE, checkpoint=Checkpoint("c2")))
    assert play.state.conversation_id == play.state.resumable_id == "c2"


def test_the_death_of_the_host_ends_it():
    play = Play(RESUMED, ASKED)
    assert play.then(Reopened(now_s=9, settings=play.state.settings)) == "-"
    assert play.then(NEXT) == "Grant"
    assert play.then(DONE).startswith("Ignored")
