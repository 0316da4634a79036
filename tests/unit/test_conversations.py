"""read_thread, rollback, fork and account at the front door, on a fake provider that remembers."""

from __future__ import annotations

import threading

import pytest

from greenroom import (
    Account,
    AccountKind,
    Agent,
    ApprovalPolicy,
    Greenroom,
    ItemKind,
    Lifecycle,
    NativePermissions,
    ProviderCapabilityError,
    SessionEnded,
    SessionStateError,
    Thread,
    TurnRequest,
    TurnStatus,
    account,
)
from greenroom.model import Checkpoint
from greenroom.testing import FakeCheckpointStore, FakeTransport, FakeTurn, RecordingEventHandler, RememberingTransport

OPTIONS = {"permissions": NativePermissions.bypass(), "approvals": ApprovalPolicy.DENY}
BOUND_S = 30.0


class RefusedError(Exception):
    """What a transport's own code may raise."""


def say(session, *prompts):
    return [session.run(session.prepare_turn(TurnRequest(prompt))) for prompt in prompts]


def prompts(session):
    return [turn.items[0].text for turn in session.read_thread().turns]


@pytest.fixture
def transport():
    return RememberingTransport()


@pytest.fixture
def room():
    with Greenroom() as room:
        yield room


@pytest.fixture
def session(room, transport, tmp_path):
    return room.agent(transport, **OPTIONS).session(tmp_path)


def test_a_history_is_there_from_before_the_first_turn_to_after_the_end(session):
    assert session.read_thread() == Thread(thread_id=None)
    say(session, "one", "two")
    thread = session.read_thread()
    assert thread.thread_id == session.conversation_id
    assert [[(item.kind, item.text) for item in turn.items] for turn in thread.turns] == [
        [(ItemKind.USER_TEXT, "one"), (ItemKind.ASSISTANT_TEXT, "echo: one")],
        [(ItemKind.USER_TEXT, "two"), (ItemKind.ASSISTANT_TEXT, "echo: two")],
    ]
    session.close()
    assert session.read_thread() == thread


def test_a_history_in_mid_turn_says_that_it_runs(room, tmp_path):
    waits = FakeTurn(waits=True)
    session = room.agent(RememberingTransport([FakeTurn("one"), waits]), **OPTIONS).session(tmp_path)
    say(session, "one")
    ticket = session.prepare_turn(TurnRequest("two"))
    worker = threading.Thread(target=session.run, args=(ticket,))
    worker.start()
    assert waits.started.wait(BOUND_S)
    assert [turn.status for turn in session.read_thread().turns] == [TurnStatus.COMPLETED, TurnStatus.RUNNING]
    for forbidden in (lambda: session.rollback(1), session.fork):
        with pytest.raises(SessionStateError, match=f"turn '{ticket.turn_id}' is running"):
            forbidden()
    waits.release()
    worker.join(BOUND_S)


def test_a_rollback_takes_turns_back_and_the_next_turn_resumes(session, transport):
    say(session, "one", "two", "three")
    kept = session.conversation_id
    session.rollback(2)
    assert prompts(session) == ["one"]
    (turn,) = say(session, "four")
    assert turn.conversation_id == kept
    assert transport.specs[-1].resume_id == kept
    assert prompts(session) == ["one", "four"]


def test_a_rollback_is_told_to_observers_and_checkpointed(room, transport, tmp_path):
    seen, store = RecordingEventHandler(), FakeCheckpointStore()
    agent = room.agent(transport, event_handlers=(seen,), **OPTIONS)
    session = agent.session(tmp_path, checkpoints=store, checkpoint_key="k")
    say(session, "one")
    store.clear("k")
    session.rollback(1)
    assert store.load("k") == Checkpoint(session.conversation_id)
    assert seen.wait_for(Lifecycle)
    assert Lifecycle("rolled back", "by 1 turns") in seen.events


@pytest.mark.parametrize(("turns", "error"), [(0, ValueError), (-1, ValueError), ("1", TypeError), (1.0, TypeError), (True, TypeError)])
def test_what_is_no_number_of_turns(session, transport, turns, error):
    say(session, "one")
    with pytest.raises(error, match="num_turns"):
        session.rollback(turns)
    assert not transport.work


def test_more_turns_than_there_are(session):
    say(session, "one")
    with pytest.raises(SessionStateError, match=r"cannot go back by 2 turns: .* has 1"):
        session.rollback(2)
    assert session.state == "idle"
    assert len(say(session, "two")) == 1


def test_a_prepared_turn_is_in_the_way(session):
    say(session, "one")
    ticket = session.prepare_turn(TurnRequest("two"))
    with pytest.raises(SessionStateError, match="is prepared"):
        session.rollback(1)
    session.interrupt(ticket)
    session.rollback(1)


def test_without_a_conversation_there_is_nothing_to_do(session):
    for forbidden in (lambda: session.rollback(1), session.fork):
        with pytest.raises(SessionStateError, match="holds no conversation"):
            forbidden()


def test_after_close_nothing_is_changed_any_more(session):
    say(session, "one")
    session.close()
    for forbidden in (lambda: session.rollback(1), session.fork):
        with pytest.raises(SessionStateError, match="closed"):
            forbidden()


@pytest.mark.parametrize("error", [RefusedError("no"), KeyboardInterrupt()])
def test_an_asker_that_fails_in_the_middle_gives_the_conversation_back(room, tmp_path, error):
    def fail():
        raise error

    transport = RememberingTransport(holding=fail)
    session = room.agent(transport, **OPTIONS).session(tmp_path)
    say(session, "one")
    with pytest.raises(type(error)):
        session.rollback(1)
    assert session.state == "idle"
    assert prompts(session) == ["one"]
    assert len(say(session, "two")) == 1


class Held:
    """A rollback that is held in its middle."""

    def __init__(self, room, tmp_path):
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.transport = RememberingTransport(holding=self.hold)
        self.session = room.agent(self.transport, **OPTIONS).session(tmp_path)
        say(self.session, "one", "two")
        self.worker = threading.Thread(target=self.session.rollback, args=(1,))
        self.worker.start()
        assert self.entered.wait(BOUND_S)

    def hold(self):
        self.entered.set()
        assert self.go_on.wait(BOUND_S)

    def end(self):
        self.go_on.set()
        self.worker.join(BOUND_S)
        assert not self.worker.is_alive()


def test_meanwhile_turns_and_other_rollbacks_are_refused_and_reading_goes_on(room, tmp_path):
    held = Held(room, tmp_path)
    assert held.session.state == "rewinding"
    assert all(conversation.closed for conversation in held.transport.conversations)
    with pytest.raises(SessionStateError, match="being rolled back"):
        held.session.prepare_turn(TurnRequest("no"))
    with pytest.raises(SessionStateError, match="being rolled back"):
        held.session.rollback(1)
    assert held.session.adopt("another") is False
    held.session.release()
    assert prompts(held.session) == ["one", "two"]
    held.end()
    assert held.session.state == "idle"
    assert prompts(held.session) == ["one"]
    assert len(say(held.session, "three")) == 1


def test_close_waits_for_a_rollback_that_has_begun(room, tmp_path):
    held = Held(room, tmp_path)
    closer = threading.Thread(target=held.session.close)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    held.end()
    closer.join(BOUND_S)
    assert not closer.is_alive()
    assert prompts(held.session) == ["one"]


def test_a_session_that_is_closed_meanwhile_tells_its_end_last(room, tmp_path):
    held = Held(room, tmp_path)
    stream = room.events(held.session.id)
    closer = threading.Thread(target=held.session.close)
    closer.start()
    held.end()
    closer.join(BOUND_S)
    room.close()
    assert [type(event.event) for event in stream][-2:] == [Lifecycle, SessionEnded]


def test_a_room_that_is_closed_meanwhile_closes(tmp_path):
    with Greenroom() as room:
        held = Held(room, tmp_path)
        threading.Timer(0.1, held.go_on.set).start()
    held.end()
    assert held.session.closed


def test_a_rollback_survives_a_crash_of_the_sessions_actor(tmp_path):
    """The actor crashes while its conversation is lent: its successor neither takes turns before it is back, nor waits for ever."""
    with Greenroom(state_dir=tmp_path / "state") as room:
        held = Held(room, tmp_path)
        before = held.session._core.ref
        before._actor_weakref()._rolled_back = None  # calling it fails, when the conversation comes back
        held.end()
        deadline = threading.Event()
        for _ in range(300):
            if held.session.state == "idle" and held.session._core.ref is not before:
                break
            deadline.wait(0.1)
        assert prompts(held.session) == ["one"]
        assert len(say(held.session, "three")) == 1


def test_a_fork_has_the_past_and_goes_on_by_itself(room, session, transport):
    say(session, "one", "two")
    fork = session.fork()
    assert fork.id != session.id
    assert fork.cwd == session.cwd
    say(session, "parent")
    say(fork, "child")
    assert prompts(session) == ["one", "two", "parent"]
    assert prompts(fork) == ["one", "two", "child"]
    assert fork in room.sessions()
    named = session.fork("by-name", idle_release_after=0.0)
    assert named.id == "by-name"
    assert prompts(named) == ["one", "two", "parent"]
    assert not transport.specs[-1].previous_usage


def test_a_fork_under_a_name_that_is_taken_makes_nothing(session, transport):
    say(session, "one")
    before = dict(transport.threads)
    with pytest.raises(SessionStateError, match="is open already"):
        session.fork(session.id)
    assert transport.threads == before


def test_a_provider_that_cannot(room, tmp_path):
    session = room.agent(FakeTransport(), **OPTIONS).session(tmp_path)
    say(session, "one")
    for what in (session.read_thread, lambda: session.rollback(1), session.fork, lambda: account(FakeTransport())):
        with pytest.raises(ProviderCapabilityError, match="fake"):
            what()
    assert len(say(session, "two")) == 1


def test_a_profile_that_says_no_is_believed(room, tmp_path):
    session = room.agent(RememberingTransport(profile=FakeTransport().profile), **OPTIONS).session(tmp_path)
    say(session, "one")
    for what in (session.read_thread, lambda: session.rollback(1), session.fork):
        with pytest.raises(ProviderCapabilityError):
            what()


@pytest.mark.parametrize("ask", ["rollback", "fork"])
def test_a_transport_that_answers_nonsense(room, tmp_path, ask):
    transport = RememberingTransport()
    setattr(transport, ask, lambda *_: "done")
    session = room.agent(transport, **OPTIONS).session(tmp_path)
    say(session, "one")
    with pytest.raises(TypeError, match=f"{ask} must return a Checkpoint, got 'done'"):
        session.rollback(1) if ask == "rollback" else session.fork()
    assert len(say(session, "two")) == 1


def test_who_pays(room):
    paid = Account(provider="fake", kind=AccountKind.SUBSCRIPTION, plan="max")
    transport = RememberingTransport(account_in_use=paid)
    assert account(transport) == Agent(transport, room=room, **OPTIONS).account() == paid
    with pytest.raises(ProviderCapabilityError, match="env"):
        account(transport, env={})
    with pytest.raises(ProviderCapabilityError, match="unknown provider"):
        account("nobody")
