"""What a session tells of itself, from a whole story: the names, the words, the order."""

from __future__ import annotations

import attrs
import pytest

from greenroom import events
from greenroom.actors.announce import SPEAKING, of_command, of_step
from greenroom.errors import SessionResumeError, TransportDiedError, TurnFailedError
from greenroom.model import Checkpoint, FailureKind, ProviderProfile, TurnRequest, TurnResult
from greenroom.policy.events import (
    Close,
    Connect,
    Died,
    Failed,
    Interrupted,
    Opened,
    Prepare,
    RunBegan,
    Start,
    Succeeded,
    WaitDone,
)
from greenroom.policy.session import Settings, initial, step

NONCE = "00000000-0000-4000-8000-000000000001"
CODEX = ProviderProfile(name="codex", program="codex app-server")
PREPARE = Prepare(now_s=0, turn_id="t1", nonce=NONCE, request=TurnRequest("x"))
RUN = RunBegan(now_s=0, turn_id="t1")
CONNECT = Connect(now_s=0)
RESUME = Start(now_s=0, checkpoint=Checkpoint("abc123"))
GONE = Failed(now_s=0, turn_id=None, incarnation=1, error=SessionResumeError("abc123"))


def opened(incarnation=1, thread="abc123"):
    return Opened(now_s=0, incarnation=incarnation, conversation_id=thread)


def done(**result):
    return Succeeded(now_s=0, turn_id="t1", incarnation=1, result=TurnResult(**result))


def told(*story, **settings):
    """Return (method, message, turn, process) of everything that is told in the story."""
    state, said = initial(Settings(session_nonce=NONCE, **settings)), []
    for event in story:
        before = state
        state, commands = step(before, event)
        said.append(of_step(event, before, state))
        said += [of_command(command, event, before, CODEX) for command in commands if isinstance(command, SPEAKING)]
    return [(event.method, event.message, one.turn_id, one.incarnation) for one in said if one is not None for event in one.events]


CONNECTING = ("session/connecting", "Starting codex app-server")
RESUMING = ("session/threadOpenRequested", "Attempting to resume thread abc123.")
FRESH = ("session/threadOpenRequested", "Starting a new thread.")
FALLBACK = ("session/threadResumeFallback", "Could not resume thread abc123; started a new thread instead.")


def test_a_resumed_session_and_its_turn():
    assert told(
        RESUME, CONNECT, opened(), PREPARE, RUN, done(), Close(now_s=0), Died(now_s=0, incarnation=1, error=TransportDiedError())
    ) == [
        (*CONNECTING, None, 1),
        (*RESUMING, None, 1),
        ("session/ready", "Connected to thread abc123", None, 1),
        ("turn/started", "Turn started", "t1", 0),
        ("turn/completed", "Turn completed", "t1", 1),
        ("session/closed", "Session stopped", None, 0),
    ]


def test_a_resume_that_is_refused_falls_back():
    assert told(RESUME, CONNECT, GONE, opened(2, "def456")) == [
        (*CONNECTING, None, 1),
        (*RESUMING, None, 1),
        (*FALLBACK, None, 2),
        (*CONNECTING, None, 2),
        (*FRESH, None, 2),
        ("session/ready", "Connected to thread def456", None, 2),
    ]


def test_in_a_turn_it_falls_back_too():
    assert told(RESUME, PREPARE, RUN, GONE)[3:] == [(*FALLBACK, "t1", 2), (*CONNECTING, "t1", 2), (*FRESH, "t1", 2)]


def test_what_cannot_be_made_good_is_an_error():
    error = TurnFailedError(FailureKind.AUTH, "log in first")
    assert told(CONNECT, attrs.evolve(GONE, error=error))[2:] == [("session/failed", str(error), None, 1)]


def test_a_turn_opens_the_conversation_if_nobody_did():
    assert [method for method, *_ in told(PREPARE, RUN, opened(), done())] == [
        "turn/started",
        "session/connecting",
        "session/threadOpenRequested",
        "session/ready",
        "turn/completed",
    ]


@pytest.mark.parametrize(
    ("story", "message"),
    [
        ((opened(), done(interrupted=True)), "Turn interrupted"),
        ((Interrupted(now_s=0, turn_id="t1"),), "Turn interrupted"),
        ((opened(), Failed(now_s=0, turn_id="t1", incarnation=1, error=TurnFailedError(FailureKind.AUTH, "no"))), "no"),
    ],
)
def test_every_end_of_a_turn_is_told_once(story, message):
    ends = [line for line in told(PREPARE, RUN, *story) if line[0] == "turn/completed"]
    assert len(ends) == 1
    assert message in ends[0][1]


def test_a_turn_that_was_interrupted_before_it_began_begins_and_ends():
    methods = [method for method, *_ in told(PREPARE, Interrupted(now_s=0, turn_id="t1"), RUN)]
    assert methods == ["turn/started", "turn/completed"]


def test_a_ticket_that_never_ran_tells_nothing():
    assert [method for method, *_ in told(PREPARE, Close(now_s=0))] == ["session/closed"]


def test_a_retry_is_no_second_turn():
    busy = Failed(now_s=0, turn_id="t1", incarnation=1, error=TurnFailedError(FailureKind.TRANSIENT, "busy"))
    methods = [method for method, *_ in told(PREPARE, RUN, opened(), busy, WaitDone(now_s=1, wait_id=1), done(), retry_delays=(1.0,))]
    assert methods.count("turn/started") == methods.count("turn/completed") == methods.count("session/ready") == 1


def test_a_restart_after_a_death_is_connecting_again_in_the_same_turn():
    died = Died(now_s=0, incarnation=1, error=TransportDiedError(signal=9), sent=False)
    methods = [method for method, *_ in told(PREPARE, RUN, opened(), died, WaitDone(now_s=1, wait_id=1), opened(2))]
    assert methods.count("turn/started") == 1
    assert methods.count("session/ready") == 2
    assert "turn/completed" not in methods


def test_what_is_repeated_or_late_tells_nothing():
    assert told(RESUME, CONNECT, opened(), opened(), CONNECT, done(), GONE)[3:] == []


def test_text_and_tools_have_the_names_of_a_front_end():
    assert events.AssistantText("x").method == "item/agentMessage/delta"
    assert events.ToolCall("1", "Bash", {}).method == "item/tool/started"
    assert events.Reasoning("x").method is None
