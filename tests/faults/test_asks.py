"""Requests that wait for a person, on scripted CLIs of both providers: kills, races, late answers, closes, restarts of the program."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from greenroom import (
    Accept,
    AcceptForSession,
    ApprovalPolicy,
    ApprovalResolved,
    AskPolicy,
    AssistantText,
    CancelTurn,
    ClaudeStreamTransport,
    CodexAppServerTransport,
    Decline,
    Greenroom,
    Lifecycle,
    LivenessReason,
    NativePermissions,
    PendingApproval,
    PendingQuestion,
    ProviderCapabilityError,
    QuestionAsked,
    QuestionResolved,
    Reply,
    RestartPolicy,
    ToolResult,
    TurnTimeoutError,
    UnknownRequestError,
)
from greenroom.actors import messages as m
from greenroom.actors.runtime import tell
from greenroom.journal import Journal, Verdict
from greenroom.journal.records import AskOpened
from greenroom.testing import FakeClock, FakeTransport
from greenroom.testing.scripted import codex_history, conversations, history, starts
from tests.faults import bench, codex_bench
from tests.faults.bench import PATIENCE_S, until

WORDS = {
    # what the scripted CLI is told: a call that asks, the same again, another, a question, a form, one that is taken back
    "claude": {
        "ask": 'CAN_USE_TOOL Bash {"command":"touch x"}',
        "other": 'CAN_USE_TOOL Bash {"command":"touch y"}',
        "question": 'CAN_USE_TOOL AskUserQuestion {"questions":[{"question":"Which?","options":[{"label":"A"}]}]}',
        "back": 'TAKE_BACK Bash {"command":"touch x"}',
    },
    "codex": {"ask": "ASK touch x -> ok", "other": "ASK touch y -> ok", "question": "ASK_USER Which?", "back": "TAKE_BACK touch x"},
}
FORM = 'ELICIT travel {"type":"object","properties":{"city":{"type":"string"}}}'


class House:
    """A room with one scripted provider, whose sessions ask."""

    def __init__(self, provider, directory, **room):
        self.provider, self.words, self.directory = provider, WORDS[provider], directory
        self.home = directory / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.state = directory / "state"
        env = {
            "HOME": str(self.home),
            "CODEX_HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "GREENROOM_SCRIPTED_STATE": str(self.state),
        }
        times = {"env": env, "interrupt_grace_s": 5.0, "close_grace_s": 1.0}
        if provider == "claude":
            self.transport = ClaudeStreamTransport(binary=bench.binary(), **times)
        else:
            self.transport = CodexAppServerTransport(binary=codex_bench.binary(), **times)
        self.room = Greenroom(**room)

    def agent(self, **options):
        plain = {"permissions": NativePermissions.ask(), "approvals": ApprovalPolicy.ASK, "restart": RestartPolicy(delays=(0,))}
        return self.room.agent(self.transport, **{**plain, **options})

    def one(self, **options):
        session = options.pop("session", {})
        return codex_bench.One(self.agent(**options).session(self.directory, **session))

    def pending(self, count=1):
        until(lambda: len(self.room.pending()) == count, f"{count} pending requests")
        return self.room.pending()

    def tool_results(self):
        read = history if self.provider == "claude" else codex_history
        return [seen.text for one in conversations(self.state) for seen in read(self.state, one) if seen.role == "tool_result"]

    def kill(self):
        pids = [record["pid"] for record in starts(self.state)]
        for pid in pids:
            if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["claude", "codex"])
def house(request, tmp_path):
    house = House(request.param, tmp_path)
    yield house
    house.room.close()


def lines(*words):
    return "\n".join(words)


def resolutions(one):
    return [(event.verdict, event.by) for event in one.of(ApprovalResolved) + one.of(QuestionResolved)]


# --- the answers


def test_a_call_that_is_accepted_runs(house):
    one = house.one()
    begun = one.begin(lines(house.words["ask"], "SAY done"))
    (pending,) = house.pending()
    assert isinstance(pending, PendingApproval)
    assert (pending.session_id, pending.turn_id) == (one.session.id, begun.ticket.turn_id)
    assert "touch x" in pending.input["command"]
    assert one.session.pending() == (pending,)
    assert house.room.answer(pending.request_id, Accept()) is True
    assert begun.outcome().result.text == "done"
    assert house.tool_results()[0].strip().endswith("ok")
    assert resolutions(one) == [(Accept(), "answer")]
    assert any(event.kind == "waiting" and event.detail.startswith("approval: ") for event in one.of(Lifecycle))
    assert house.room.pending() == ()


def test_a_call_that_is_declined_does_not_and_the_model_is_told_why(house):
    one = house.one()
    begun = one.begin(lines(house.words["ask"], "SAY done"))
    assert one.session.answer(house.pending()[0].request_id, Decline("use make")) is True
    outcome = begun.outcome()
    assert outcome.result.text in {"done", "echo: use make"}
    if house.provider == "claude":
        assert house.tool_results() == ["use make"]
    else:
        assert "rejected by user" in house.tool_results()[0]
        assert "echo: use make" in [event.text for event in one.of(AssistantText)]


def test_accepted_for_the_session_it_is_not_asked_again_even_by_another_process(house):
    one = house.one()
    begun = one.begin(lines(house.words["ask"], house.words["ask"], house.words["other"], "SAY done"))
    assert house.room.answer(house.pending()[0].request_id, AcceptForSession())
    until(lambda: house.room.pending() and "touch y" in house.room.pending()[0].input["command"], "the other command")
    assert house.room.answer(house.room.pending()[0].request_id, Accept())
    assert begun.outcome().result.text == "done"
    one.session.release()
    again = one.begin(lines(house.words["ask"], "SAY again"))
    assert again.outcome().result.text == "again"
    assert house.room.pending() == ()


def test_cancelling_ends_the_turn_as_interrupted_and_the_next_one_goes_on(house):
    one = house.one()
    begun = one.begin(lines(house.words["ask"], "SAY never"))
    assert house.room.answer(house.pending()[0].request_id, CancelTurn())
    outcome = begun.outcome()
    assert (outcome.result.interrupted, outcome.forced) == (True, False)
    assert one.run("SAY next").result.text == "next"


def test_a_question_is_answered(house):
    one = house.one()
    begun = one.begin(lines(house.words["question"], "SAY done"))
    (pending,) = house.pending()
    assert isinstance(pending, PendingQuestion)
    (question,) = pending.questions
    assert (question.text, question.options[0].label) == ("Which?", "A")
    with pytest.raises(TypeError, match="a question is answered with Reply"):
        house.room.answer(pending.request_id, Accept())
    with pytest.raises(ValueError, match="was not asked"):
        house.room.answer(pending.request_id, Reply({"Who?": "A"}))
    assert house.room.answer(pending.request_id, Reply({question.id: "A"}))
    assert begun.outcome().result.text == "done"
    assert '"A"' in house.tool_results()[0]
    assert len(one.of(QuestionAsked)) == 1


def test_a_form_of_an_mcp_server_is_filled_in(house):
    one = house.one()
    begun = one.begin(FORM)
    (pending,) = house.pending()
    assert (pending.source, pending.message, [question.id for question in pending.questions]) == ("travel", "Please say", ["city"])
    assert house.room.answer(pending.request_id, Reply({"city": "Rome"}))
    assert begun.outcome().result.text == 'elicited: {"action": "accept", "content": {"city": "Rome"}}'


# --- nobody answers in time, or too many do


def test_of_eight_answers_exactly_one_wins(house):
    one = house.one()
    begun = one.begin(lines(house.words["ask"], "SAY done"))
    request_id = house.pending()[0].request_id
    barrier, won = threading.Barrier(8), []

    def answer(number):
        barrier.wait()
        verdict = Accept() if number % 2 else Decline(f"no {number}")
        if house.room.answer(request_id, verdict):
            won.append(verdict)

    codex_bench.together([lambda number=number: answer(number) for number in range(8)])
    begun.outcome()
    assert len(won) == 1
    assert resolutions(one) == [(won[0], "answer")]


def test_an_answer_after_the_end_has_no_effect_and_says_so(house):
    one = house.one()
    begun = one.begin(lines(house.words["ask"], "SAY done"))
    request_id = house.pending()[0].request_id
    one.session.interrupt()
    assert begun.outcome().result.interrupted
    assert house.room.answer(request_id, Accept()) is False
    assert one.session.answer(request_id, Accept()) is False
    assert resolutions(one) == [(CancelTurn(), "interrupt")]
    assert one.run("SAY next").result.text == "next"


def test_an_unknown_id_is_an_error(house):
    one, other = house.one(), house.one(session={"session_id": "other"})
    begun = one.begin(lines(house.words["ask"], "SAY done"))
    request_id = house.pending()[0].request_id
    with pytest.raises(UnknownRequestError, match="nothing was asked under the id 'ask-0'"):
        house.room.answer("ask-0", Accept())
    with pytest.raises(UnknownRequestError):
        other.session.answer(request_id, Accept())
    assert other.session.pending() == ()
    assert one.session.answer(request_id, Accept())
    begun.outcome()


def test_what_the_provider_takes_back_is_closed(house):
    one = house.one()
    assert one.run(lines(house.words["back"], "SAY done")).result.text == "done"
    assert resolutions(one) == [(None, "withdrawn")]


def test_the_deadline_gives_the_default(house):
    clock = FakeClock()
    one = house.one(asks=AskPolicy(deadline_s=3600, default=Decline("nobody is there")), clock=clock)
    begun = one.begin(lines(house.words["ask"], "SAY done"))
    (pending,) = house.pending()
    assert (pending.expires_at - pending.asked_at).total_seconds() == 3600
    clock.advance(3599)
    assert house.room.pending() == (pending,)
    clock.advance(2)
    begun.outcome(None)
    assert resolutions(one) == [(Decline("nobody is there"), "deadline")]
    assert house.room.answer(pending.request_id, Accept()) is False


def test_the_wait_does_not_count_in_the_timeout_and_the_work_does(house):
    clock = FakeClock()
    one = house.one(clock=clock)
    begun = one.begin(lines(house.words["ask"], "HANG"), timeout=60)
    (pending,) = house.pending()
    clock.advance(100_000)
    assert house.room.pending() == (pending,)
    assert house.room.answer(pending.request_id, Accept())
    one.wait_for(ToolResult)
    clock.advance(59)
    assert not begun.ticket.ended
    clock.advance(2)
    assert isinstance(begun.outcome(None), TurnTimeoutError)


# --- ends


def test_a_kill_while_it_waits_closes_it_and_the_turn_goes_on(house):
    one = house.one()
    begun = one.begin(lines(house.words["ask"], "SAY done"))
    first = house.pending()[0].request_id
    house.kill()
    one.wait_for(ApprovalResolved)
    assert resolutions(one)[0] == (None, "died")
    assert house.room.answer(first, Accept()) is False
    for _ in range(3):  # what was cut may be asked again, under another id
        until(lambda: begun.ticket.ended or house.room.pending(), "the end, or the request again")
        if begun.ticket.ended:
            break
        assert house.room.pending()[0].request_id != first
        house.room.answer(house.room.pending()[0].request_id, Accept())
    assert begun.outcome().restarts == 1


def test_a_kill_against_an_answer_leaves_one_truth(house):
    for number in range(4):
        one = house.one(session={"session_id": f"s-{number}"})
        begun = one.begin(lines(house.words["ask"], "SAY done"))
        (pending,) = house.pending()
        killer = threading.Thread(target=house.kill)
        killer.start()
        reached = house.room.answer(pending.request_id, Accept())
        killer.join()
        one.wait_for(ApprovalResolved)
        assert pending not in house.room.pending()
        verdicts = [(event.verdict, event.by) for event in one.of(ApprovalResolved) if event.request_id == pending.request_id]
        assert verdicts == [(Accept(), "answer") if reached else (None, "died")]
        one.session.close()
        begun.outcome()


@pytest.mark.parametrize("how", ["session", "room"])
def test_a_close_declines_what_waits(house, how):
    one = house.one()
    begun = one.begin(lines(house.words["ask"], "SAY never"))
    request_id = house.pending()[0].request_id
    started_s = time.monotonic()
    one.session.close() if how == "session" else house.room.close()
    assert time.monotonic() - started_s < PATIENCE_S
    assert begun.outcome().result.interrupted
    assert resolutions(one) == [(Decline(), "closed")]
    assert house.room.answer(request_id, Accept()) is False
    assert house.room.pending() == ()


def test_others_go_on_while_one_waits(house):
    waiting, other = house.one(session={"session_id": "waiting"}), house.one(session={"session_id": "other"})
    begun = waiting.begin(lines(house.words["ask"], "SAY at last"))
    (pending,) = house.pending()
    assert other.run("SAY hello").result.text == "hello"
    slow = other.begin(lines("HANG"))
    until(lambda: other.session.state == "running", "the other turn")
    other.session.interrupt()
    assert slow.outcome().result.interrupted
    assert house.room.pending("waiting") == (pending,)
    assert house.room.pending("other") == ()
    house.room.answer(pending.request_id, Accept())
    assert begun.outcome().result.text == "at last"


def test_a_callback_may_answer(house):
    one = house.one()
    answered = []

    def react(event):
        pending = getattr(event, "pending", None)
        if pending is not None:
            answered.append(one.session.answer(pending.request_id, Accept()))

    one.react = react
    assert one.run(lines(house.words["ask"], house.words["other"], "SAY done")).result.text == "done"
    assert answered == [True, True]


def test_an_event_loop_answers_too(house):
    one = house.one()
    begun = one.begin(lines(house.words["ask"], house.words["other"], "SAY done"))

    async def answer():
        first = house.pending()[0].request_id
        told = [await house.room.aanswer(first, Accept()), await one.session.aanswer(first, Accept())]
        until(lambda: house.room.pending() and house.room.pending()[0].request_id != first, "the other request")
        return [*told, await one.session.aanswer(house.room.pending()[0].request_id, Accept())]

    assert asyncio.run(answer()) == [True, False, True]
    assert begun.outcome().result.text == "done"


def test_what_cannot_ask_refuses_by_name(house, tmp_path):
    agent = house.room.agent(FakeTransport(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.ASK)
    with pytest.raises(ProviderCapabilityError, match=r"cannot wait for a person: ApprovalPolicy\.ASK"):
        agent.session(tmp_path)
    spec = house.one().session._core.spec
    with pytest.raises(ProviderCapabilityError, match="only a session can wait for a person"):
        house.transport.open(spec)


def test_a_crash_of_its_actor_closes_what_waits_and_the_session_goes_on(tmp_path):
    house = House("claude", tmp_path, state_dir=tmp_path / "journal")
    with house.room:
        one = house.one()
        begun = one.begin(lines(house.words["ask"], "SAY done"))
        (pending,) = house.pending()
        for _ in range(2):  # a defect of ours: a message that cannot be handled
            tell(one.session._core.ref, m.Spent(incarnation=1, usage=object()))
        until(lambda: pending not in house.room.pending(), "the end of the wait")
        assert house.room.answer(pending.request_id, Accept()) is False
        until(lambda: house.room.pending() or begun.ticket.ended, "the end, or the request again")
        for again in house.room.pending():
            house.room.answer(again.request_id, Accept())
        assert begun.outcome().restarts == 1
        assert resolutions(one)[0] == (None, "died")
    with Greenroom(state_dir=tmp_path / "journal") as room:
        assert room.expired_asks() == ()


def test_approval_required_of_a_front_end_asks(house):
    policy = AskPolicy(deadline_s=3600)
    assert (
        house.room.start_session("t", house.transport, runtime_mode="approval-required", cwd=house.directory, asks=policy).status.value
        == "ready"
    )
    sent = house.room.send_turn("t", lines(house.words["ask"], "SAY done"))
    (pending,) = house.pending()
    assert house.room.pending("t") == (pending,)
    assert (pending.expires_at - pending.asked_at).total_seconds() == 3600
    assert house.room.directory.get("t").status.value == "running"
    assert house.room._living("t").liveness.reason is LivenessReason.APPROVAL
    assert house.room.answer(pending.request_id, Accept())
    assert sent.wait(PATIENCE_S).result.text == "done"
    again = house.room.send_turn("t", lines(house.words["other"], "SAY never"))
    house.pending()
    house.room.stop_session("t")
    assert again.wait(PATIENCE_S).result.interrupted
    assert house.room.pending() == ()


# --- the program itself


HOST = """
import os, sys, threading
from greenroom import *
provider, directory, binary = sys.argv[1:4]
home = os.path.join(directory, "home")
env = {"HOME": home, "CODEX_HOME": home, "PATH": os.environ["PATH"], "GREENROOM_SCRIPTED_STATE": os.path.join(directory, "state")}
kind = ClaudeStreamTransport if provider == "claude" else CodexAppServerTransport
room = Greenroom(state_dir=os.path.join(directory, "journal"))
agent = room.agent(kind(binary=binary, env=env), permissions=NativePermissions.ask(), approvals=ApprovalPolicy.ASK)
session = agent.session(directory, session_id="s")
def on_event(event):
    if isinstance(event, ApprovalRequested):
        room._keeper.consult("open_asks")  # behind it everything that was told is written
        print(event.pending.request_id, flush=True)
session.run(session.prepare_turn(TurnRequest(sys.argv[4]), key="k"), on_event=on_event)
"""


@pytest.mark.parametrize("provider", ["claude", "codex"])
def test_after_a_death_of_the_program_they_are_listed_as_expired(provider, tmp_path):
    house = House(provider, tmp_path, state_dir=None)
    binary = bench.binary() if provider == "claude" else codex_bench.binary()
    prompt = lines(house.words["ask"], "SAY done")
    argv = [sys.executable, "-c", HOST, provider, str(tmp_path), str(binary), prompt]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as host:
        request_id = host.stdout.readline().strip()
        host.kill()
    house.room.close()
    for _ in range(2):  # asked twice, it says the same
        with Greenroom(state_dir=tmp_path / "journal") as room:
            (expired,) = room.expired_asks()
            assert (expired.request_id, expired.session_id, expired.turn_id) == (request_id, "s", room.recovered()[0].turn_id)
            assert room.recovered()[0].verdict is Verdict.UNKNOWN
            assert room.pending() == ()
            assert room.answer(request_id, Accept()) is False
    with Greenroom(state_dir=tmp_path / "journal") as room:
        house.room = room
        agent = house.agent(asks=AskPolicy(deadline_s=0.01, default=Accept()))
        session, ticket = room.recovered()[0].resume(agent)
        assert room.expired_asks() == ()
        assert session.run(ticket, wait=PATIENCE_S).result is not None
    with Greenroom(state_dir=tmp_path / "journal") as room:
        assert room.expired_asks() == ()
        assert room.recovered() == ()


def test_what_belonged_to_no_turn_is_listed_once(tmp_path):
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    about = {"request_id": "ask-1", "session_id": "s", "turn_id": None, "asked_at": at}
    pending = PendingApproval(tool="Bash", input={}, reason="", suggestions=(), **about)
    with Journal.open(tmp_path / "journal") as journal:
        journal.begin()
        journal.put(AskOpened(pending=pending))
        journal.commit()
    for expected in ((pending,), ()):
        with Greenroom(state_dir=tmp_path / "journal") as room:
            assert room.expired_asks() == expected
            if expected:
                assert room.answer("ask-1", Accept()) is False
