"""Faults that were found by trying to break it, each as the smallest scenario that did."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time

import pytest

from greenroom import (
    AssistantText,
    FailureKind,
    Greenroom,
    OutputSchema,
    ProviderProfile,
    RetryPolicy,
    SessionCrashedError,
    ToolCall,
    TransportDiedError,
    TurnCancelledError,
    TurnFailedError,
    TurnRequest,
    TurnResult,
    WaitTimeoutError,
)
from greenroom.testing import FakeCheckpointStore, FakeTurn, Plan
from tests.faults.bench import PATIENCE_S, until
from tests.faults.test_callers import OPTIONS, fake, in_thread, prepare, room  # noqa: F401 - fixtures

AGES_S = (math.inf, 1e300, 1e12, 3e9, 1e8)


# --- times that no operating system can wait for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", AGES_S)
def test_an_endless_timeout_breaks_no_loop(fake, caplog, timeout_s):  # noqa: F811
    turn = FakeTurn("one", waits=True)
    session = fake(turn)
    ticket = session.prepare_turn(TurnRequest("p", timeout=timeout_s))
    answer = in_thread(session.run, ticket)
    assert turn.started.wait(PATIENCE_S)
    turn.release()
    assert answer().result.text == "one"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("listen", [False, True])
@pytest.mark.parametrize("wait_s", AGES_S)
def test_endless_patience_is_patience(fake, listen, wait_s):  # noqa: F811
    session = fake()
    ticket = prepare(session)
    assert session.run(ticket, wait=wait_s, on_event=(lambda event: None) if listen else None).result.text == "echo: p"
    later = prepare(session)
    answer = in_thread(later.wait, wait_s)
    session.run(later)
    assert answer().result.text == "echo: p"


def test_a_provider_that_asks_for_ages_before_the_retry_breaks_no_loop(fake, caplog):  # noqa: F811
    error = TurnFailedError(FailureKind.TRANSIENT, "overloaded", retry_after_s=1e10)
    session = fake(error, agent={"retry": RetryPolicy(delays=(0.01,))})
    answer = in_thread(session.run, prepare(session))
    until(lambda: session.state == "waiting", "the wait")
    session.interrupt()
    assert answer() is error
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# --- arguments that cannot be meant ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [None, 5, b"x"])
def test_a_prompt_that_is_no_text_is_refused(prompt):
    with pytest.raises(TypeError, match="prompt must be a str"):
        TurnRequest(prompt)


@pytest.mark.parametrize(("seconds", "error"), [(-1, ValueError), (math.nan, ValueError), ("x", TypeError)])
def test_an_idle_release_that_cannot_be_meant_is_refused(fake, seconds, error):  # noqa: F811
    with pytest.raises(error):
        fake(idle_release_after=seconds)


@pytest.mark.parametrize("provider", [None, 5])
def test_a_provider_that_is_none_is_refused(room, provider):  # noqa: F811
    with pytest.raises(TypeError, match="a name or a ready transport"):
        room.agent(provider, **OPTIONS)


@pytest.mark.parametrize("bad", [None, 5, b"x", ""])
def test_a_conversation_id_that_is_none_is_refused(fake, bad):  # noqa: F811
    session = fake()
    with pytest.raises((TypeError, ValueError), match="conversation_id must"):
        session.adopt(bad)
    assert session.run(prepare(session)).continuity.value == "continued"
    if bad is not None:
        with pytest.raises((TypeError, ValueError), match="resume_id must"):
            fake(resume_id=bad)


@pytest.mark.parametrize("options", [{"max_starting": None}, {"max_starting": 1.5}, {"max_live": "x"}])
def test_limits_that_are_no_counts_are_refused(options):
    with pytest.raises(TypeError, match="must be an int"):
        Greenroom(**options)


# --- transports and stores of users ----------------------------------------------------------------------------------------------------


class Own:
    """A conversation of a user's; attributes as given."""

    conversation_id = "own-1"

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def turn(self, request, emit):
        emit(AssistantText("said"))
        return TurnResult(text="said")

    def interrupt(self):
        pass

    def close(self):
        pass


class OwnTransport:
    profile = ProviderProfile(name="own")

    def __init__(self, make):
        self.make = make
        self.opens = 0

    def open(self, spec):
        self.opens += 1
        return self.make()


class Wordless(Exception):  # noqa: N818
    def __repr__(self):
        raise ZeroDivisionError

    __str__ = __repr__


class NoId(Own):
    @property
    def conversation_id(self):
        raise ZeroDivisionError


def raising(error):
    def call(*args):
        raise error

    return call


BAD_TRANSPORTS = {
    "turn returns nothing": lambda: Own(turn=lambda request, emit: None),
    "turn returns a text": lambda: Own(turn=lambda request, emit: "done"),
    "usage is none": lambda: Own(turn=lambda request, emit: TurnResult(usage="much")),
    "usage of an error is none": lambda: Own(turn=raising(TurnFailedError(FailureKind.OTHER, "no", usage="much"))),
    "turn raises what has no words": lambda: Own(turn=raising(Wordless())),
    "open raises what has no words": raising(Wordless()),
    "open returns nothing": lambda: None,
    "the id raises": NoId,
    "the id is a number": lambda: Own(conversation_id=5),
    "our own patience": lambda: Own(turn=raising(WaitTimeoutError("other", 1.0))),
    "our own cancel": lambda: Own(turn=raising(TurnCancelledError("other"))),
    "our own crash": lambda: Own(turn=raising(SessionCrashedError("other", "boo"))),
}


@pytest.mark.parametrize("name", BAD_TRANSPORTS)
def test_what_a_transport_does_wrong_fails_its_turn_once_and_crashes_nothing(room, tmp_path, caplog, name):  # noqa: F811
    transport = OwnTransport(BAD_TRANSPORTS[name])
    session = room.agent(transport, **OPTIONS).session(tmp_path)
    with pytest.raises(TurnFailedError) as caught:
        session.run(prepare(session), wait=PATIENCE_S)
    assert caught.value.kind is FailureKind.OTHER
    assert not isinstance(caught.value, TransportDiedError)
    assert transport.opens == 1, "the turn was run again"
    assert "crashed" not in caplog.text
    assert not session.closed


def test_an_id_that_is_slow_to_read_stalls_nobody_else(room, fake, tmp_path):  # noqa: F811
    free = threading.Event()

    class Slow(Own):
        @property
        def conversation_id(self):
            free.wait(PATIENCE_S)
            return "slow"

    slow = room.agent(OwnTransport(Slow), **OPTIONS).session(tmp_path)
    answer = in_thread(slow.run, prepare(slow))
    other = fake()
    try:
        assert other.run(prepare(other), wait=5.0).result.text == "echo: p"
    finally:
        free.set()
    assert answer().result.text == "said"


def test_a_store_that_raises_what_has_no_words_costs_no_session(fake):  # noqa: F811
    store = FakeCheckpointStore()
    session = fake(checkpoints=store, checkpoint_key="k")
    store.error = Wordless()
    for _ in range(2):
        assert session.run(prepare(session)).result.text == "echo: p"
    assert "Wordless" in session.degraded


def test_a_store_that_loads_something_else_is_told(fake):  # noqa: F811
    class Odd(FakeCheckpointStore):
        def load(self, key):
            return "conv-1"

    with pytest.raises(TypeError, match=r"checkpoints\.load must return"):
        fake(checkpoints=Odd(), checkpoint_key="k")


def test_a_turn_whose_listeners_loop_was_closed_still_ends(room, tmp_path):  # noqa: F811
    def loud(request, emit):
        for _ in range(3000):
            emit(AssistantText("x"))
        return TurnResult(text="over")

    session = room.agent(OwnTransport(lambda: Own(turn=loud)), **OPTIONS).session(tmp_path)
    ticket, kept = prepare(session), []

    async def begin():
        kept.append(session.stream(ticket))

    asyncio.run(begin())
    assert ticket.wait(PATIENCE_S).result.text == "over"


# --- doubles ----------------------------------------------------------------------------------------------------------------------------


def test_two_fake_transports_do_not_share_their_conversations(fake, caplog):  # noqa: F811
    sessions = [fake() for _ in range(3)]
    for session in sessions:
        session.run(prepare(session))
    assert [session.degraded for session in sessions] == [None] * 3
    assert "is held by" not in caplog.text


def test_the_history_of_a_scripted_cli_keeps_line_separators_within_prompts(bench):
    cli = bench.cli()
    cli.run("SAY \u2028x\u0085")
    assert cli.prompts() == ["SAY \u2028x\u0085"]


# --- ids that can be had neither way ------------------------------------------------------------------------------------------------------


def test_an_id_that_is_gone_to_a_resume_and_in_use_to_a_start_is_given_up(bench):
    """So does Claude Code 2.1.332 when a kill left a transcript without a message: its session could never run a turn again."""
    cli = bench.cli(Plan(refuse_resume=True, kill_after_line=5, kill_times=1))
    began = time.monotonic()
    turn = cli.run("SAY one")
    assert (turn.result.text, turn.restarts, turn.continuity.value) == ("one", 1, "continued")
    assert time.monotonic() - began < 20.0
    assert cli.run("SAY two").conversation_id == turn.conversation_id
    assert [seen.get("session_id") for seen in cli.starts][-1] == turn.conversation_id


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("extra_args", "--verbose"),  # it was sent letter by letter
        ("extra_args", (1,)),
        ("output_schema", {"type": "object"}),
        ("output_schema", OutputSchema(None)),
        ("mcp_servers", ("server",)),
    ],
)
def test_options_of_a_request_of_another_type_are_refused_by_name(name, value):
    with pytest.raises(TypeError, match=name):
        TurnRequest("p", **{name: value})


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_what_no_command_line_can_hold_is_refused_at_once(value):
    with pytest.raises(ValueError, match="extra_args"):
        TurnRequest("p", extra_args=("--x", value))
    with pytest.raises(ValueError, match="environment variable"):
        TurnRequest("p", env={"X": value})


@pytest.mark.parametrize("name", ["clock", "ids"])
@pytest.mark.parametrize("value", [3, 0, object])
def test_a_room_refuses_ports_of_another_type_by_name(name, value):
    with pytest.raises(TypeError, match=f"{name} must be"):
        Greenroom(**{name: value})


def test_a_steer_that_is_no_text_does_not_cost_the_process(bench):
    cli = bench.cli()
    begun = cli.begin("AWAIT_STEER\nSAY over")
    cli.wait_for(ToolCall)
    with pytest.raises(TypeError, match="text must be a str"):
        cli.session.steer(5)
    for blank in ("", " \n"):  # nothing of it would reach the model, and it would be told as consumed
        with pytest.raises(ValueError, match="text is empty"):
            cli.session.steer(blank)
    cli.session.steer("\ud800 go")
    turn = begun.outcome()
    assert turn.restarts == 0
