"""A session that is connected before there is a turn: what it becomes, and what a front end reads of it."""

from __future__ import annotations

import attrs
import pytest

from greenroom.errors import SessionResumeError, TransportDiedError, TurnFailedError
from greenroom.model import Checkpoint, FailureKind, SessionStatus, TurnRequest, TurnResult
from greenroom.policy.commands import CloseConversation, Execute, Finish, Ignored, Open
from greenroom.policy.events import (
    Close,
    Connect,
    Died,
    Failed,
    Interrupted,
    Named,
    Opened,
    Prepare,
    Release,
    RunBegan,
    Start,
    Succeeded,
)
from greenroom.policy.session import Phase, Settings, initial, public_snapshot, step

NONCE = "00000000-0000-4000-8000-000000000001"
GONE = SessionResumeError("c1")


class Story:
    def __init__(self, checkpoint=None, **settings):
        self.state = initial(Settings(session_nonce=NONCE, chooses_ids=True, **settings))
        self.tell(Start, checkpoint=checkpoint)

    def tell(self, kind, **fields):
        self.state, self.last = step(self.state, kind(now_s=1.0, **fields))
        return self.last

    def of(self, kind):
        return [command for command in self.last if isinstance(command, kind)]

    def prepare(self, turn_id="t1", **fields):
        return self.tell(Prepare, turn_id=turn_id, nonce=NONCE, request=TurnRequest("x"), **fields)

    @property
    def view(self):
        return public_snapshot(self.state)


def connected(**settings):
    story = Story(**settings)
    story.tell(Connect)
    story.tell(Opened, incarnation=1)
    return story


def test_it_connects_and_is_ready():
    story = Story()
    assert story.view.status is SessionStatus.READY
    assert story.tell(Connect) == (Open(incarnation=1, resume_id=None, proposed_id=story.state.proposed_id),)
    assert story.view.status is SessionStatus.CONNECTING
    story.tell(Opened, incarnation=1, conversation_id="c9")
    assert (story.view.status, story.view.conversation_id) == (SessionStatus.READY, None)


def test_the_turn_runs_in_the_connected_process():
    story = connected()
    story.prepare()
    story.tell(RunBegan, turn_id="t1")
    assert [command.incarnation for command in story.of(Execute)] == [1]
    assert (story.view.status, story.view.active_turn_id) == (SessionStatus.RUNNING, "t1")


def test_a_turn_that_comes_meanwhile_waits_for_the_start_that_is_on():
    story = Story()
    story.tell(Connect)
    story.prepare()
    assert story.view.active_turn_id is None
    assert story.tell(RunBegan, turn_id="t1") == ()
    assert story.view.status is SessionStatus.RUNNING
    assert [type(command) for command in story.tell(Opened, incarnation=1)] == [Execute]


def test_a_turn_with_other_flags_has_a_process_of_its_own():
    story = connected()
    story.prepare()
    assert [type(command) for command in story.tell(RunBegan, turn_id="t1", flags="b")] == [CloseConversation, Open]


def test_an_interrupt_in_the_start_ends_the_turn():
    story = Story()
    story.tell(Connect)
    story.prepare()
    story.tell(RunBegan, turn_id="t1")
    story.tell(Interrupted, turn_id="t1")
    assert story.of(Finish)[0].turn.result.interrupted
    assert story.view.status is SessionStatus.READY


def test_a_conversation_that_is_gone_is_replaced():
    story = Story(Checkpoint("c1"))
    assert story.tell(Connect)[0].resume_id == "c1"
    assert [(command.incarnation, command.resume_id) for command in story.tell(Failed, turn_id=None, incarnation=1, error=GONE)] == [
        (2, None)
    ]
    story.tell(Opened, incarnation=2)
    assert (story.view.status, story.view.conversation_id) == (SessionStatus.READY, None)


def test_a_fresh_one_that_is_refused_too_is_an_error():
    story = Story(Checkpoint("c1"))
    story.tell(Connect)
    story.tell(Failed, turn_id=None, incarnation=1, error=GONE)
    assert story.tell(Failed, turn_id=None, incarnation=2, error=GONE) == ()
    assert story.view.status is SessionStatus.ERROR


@pytest.mark.parametrize("demand", [{"pin": True}, {"expect_conversation": "c1"}])
def test_a_demanded_conversation_is_not_replaced(demand):
    story = Story(Checkpoint("c1"))
    story.tell(Connect)
    story.prepare(**demand)
    assert story.tell(Failed, turn_id=None, incarnation=1, error=GONE) == ()
    assert (story.view.status, story.view.conversation_id) == (SessionStatus.ERROR, "c1")
    assert story.tell(RunBegan, turn_id="t1")[0].resume_id == "c1"


@pytest.mark.parametrize("error", [TurnFailedError(FailureKind.AUTH, "log in"), SessionResumeError("c1", in_use=True)])
def test_what_is_not_gone_is_an_error_and_the_next_turn_tries_again(error):
    story = Story(Checkpoint("c1"))
    story.tell(Connect)
    assert story.tell(Failed, turn_id=None, incarnation=1, error=error) == ()
    assert (story.view.status, story.view.last_error) == (SessionStatus.ERROR, str(error))
    story.prepare()
    assert story.tell(RunBegan, turn_id="t1")[0].resume_id == "c1"
    assert (story.view.status, story.view.last_error) == (SessionStatus.RUNNING, None)


def test_a_death_in_the_start_is_an_error_and_no_death_in_a_turn():
    story = Story()
    story.tell(Connect)
    assert story.tell(Died, incarnation=1, error=TransportDiedError(signal=9)) == ()
    assert (story.view.status, story.state.deaths) == (SessionStatus.ERROR, ())


def test_another_conversation_in_answer_is_an_error():
    story = Story(Checkpoint("c1"))
    story.tell(Connect)
    assert story.tell(Opened, incarnation=1, conversation_id="c2") == (
        CloseConversation(incarnation=1, kill=True, reason="it is not the conversation that was asked for"),
    )
    assert (story.view.status, story.view.conversation_id) == (SessionStatus.ERROR, "c1")


def test_a_name_before_anything_was_sent_is_not_public():
    story = connected()
    story.tell(Named, incarnation=1, conversation_id="c7")
    assert (story.view.conversation_id, story.state.held.opened_id, story.state.held.settled) == (None, "c7", False)
    story.prepare()
    story.tell(RunBegan, turn_id="t1")
    assert story.view.conversation_id == "c7"


def test_connecting_twice_and_after_the_end_changes_nothing():
    story = connected()
    assert [type(command) for command in story.tell(Connect)] == [Ignored]
    story.tell(Close)
    assert [type(command) for command in story.tell(Connect)] == [Ignored]


def test_a_connected_process_in_which_nothing_was_sent_may_be_released():
    story = connected()
    assert [type(command) for command in story.tell(Release)] == [CloseConversation]
    connecting = Story()
    connecting.tell(Connect)
    assert [type(command) for command in connecting.tell(Release)] == [Ignored]


def test_an_idle_release_does_not_end_what_is_being_connected():
    story = Story(Checkpoint("c1"), idle_release_after_s=5.0)
    story.state = attrs.evolve(story.state, idle_since_s=-100.0)
    story.tell(Connect)
    story.prepare()
    assert story.of(CloseConversation) == []


def test_a_turn_that_fails_is_an_error_until_the_next_goes_well():
    story = connected()
    story.prepare()
    story.tell(RunBegan, turn_id="t1")
    story.tell(Failed, turn_id="t1", incarnation=1, error=TurnFailedError(FailureKind.AUTH, "log in"))
    assert (story.view.status, story.state.phase) == (SessionStatus.ERROR, Phase.IDLE)
    assert "log in" in story.view.last_error
    story.prepare("t2")
    story.tell(RunBegan, turn_id="t2")
    story.tell(Succeeded, turn_id="t2", incarnation=story.state.process.incarnation, result=TurnResult())
    assert (story.view.status, story.view.last_error) == (SessionStatus.READY, None)


def test_closed_is_closed():
    story = connected()
    story.tell(Close)
    assert (story.view.status, story.view.stopped) == (SessionStatus.CLOSED, False)
    story.tell(Died, incarnation=1, error=TransportDiedError(), expected=True)
    assert (story.view.status, story.view.stopped) == (SessionStatus.CLOSED, True)


def test_a_conversation_out_of_reach_is_told_again_without_a_change():
    story = Story(checkpoint=Checkpoint("c1"), supports_resume=False)
    story.state = attrs.evolve(story.state, held=attrs.evolve(story.state.held, settled=True))
    story.tell(Connect)
    before = story.state
    assert before.failure == "the provider cannot resume the conversation"
    assert story.tell(Connect) == (Ignored(reason=before.failure),)
    assert story.state == before
