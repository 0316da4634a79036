"""Whoever wants a room's events gets them, as a callback, a queue or a stream, and hurts nobody by it."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading

import pytest

from greenroom import ApprovalPolicy, EventsMissed, Greenroom, NativePermissions, SessionStateError, TurnRequest
from greenroom.actors import hub as hubs
from greenroom.events import AssistantText, RunStarted, SessionEnded, TurnCompleted, TurnStarted
from greenroom.testing import FakeTransport, FakeTurn

PATIENCE_S = 20
METHODS = [
    "turn/started",
    "session/connecting",
    "session/threadOpenRequested",
    "session/ready",
    None,
    "item/agentMessage/delta",
    "turn/completed",
]


@pytest.fixture
def room():
    with Greenroom() as room:
        yield room


def session_of(room, tmp_path, *outcomes, **options):
    transport = FakeTransport(outcomes or None)
    agent = room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    return agent.session(tmp_path, **options)


def turn(session, prompt="x"):
    return session.run(session.prepare_turn(TurnRequest(prompt)))


class Recorder:
    def __init__(self):
        self.events, self._changed = [], threading.Condition()

    def __call__(self, event):
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, kind, count=1):
        with self._changed:
            assert self._changed.wait_for(lambda: sum(isinstance(one.event, kind) for one in self.events) >= count, PATIENCE_S)
        return self.events

    @property
    def methods(self):
        return [event.method for event in self.events]


def test_a_callback_gets_the_names_of_the_page_in_order(room, tmp_path):
    seen = Recorder()
    room.subscribe(seen)
    session = session_of(room, tmp_path)
    ended = turn(session)
    seen.wait_for(TurnCompleted)
    assert seen.methods == METHODS
    assert [event.sequence for event in seen.events] == list(range(1, 8))
    assert {event.turn_id for event in seen.events} == {ended.turn_id}
    assert {event.session_id for event in seen.events} == {session.id}
    session.close()
    assert isinstance(seen.wait_for(SessionEnded)[-1].event, SessionEnded)


def test_it_is_called_off_the_loop_and_off_the_callers_thread(room, tmp_path):
    names = set()
    done = threading.Event()

    def see(event):
        names.add(threading.current_thread().name)
        if isinstance(event.event, TurnCompleted):
            done.set()

    room.subscribe(see)
    turn(session_of(room, tmp_path))
    assert done.wait(PATIENCE_S)
    assert names == {"greenroom-subscribers"}


def test_one_session_only(room, tmp_path):
    one, other = session_of(room, tmp_path), session_of(room, tmp_path)
    seen = Recorder()
    room.subscribe(seen, one.id)
    turn(other)
    turn(one)
    seen.wait_for(TurnCompleted)
    assert {event.session_id for event in seen.events} == {one.id}


def test_from_a_number_on(room, tmp_path):
    session = session_of(room, tmp_path)
    turn(session)
    with room.events(session.id, after=5) as stream:
        assert [stream.get(PATIENCE_S).sequence for _ in range(2)] == [6, 7]
        turn(session)
        assert stream.get(PATIENCE_S).sequence == 8


def test_what_is_gone_is_stated(room, tmp_path, monkeypatch):
    monkeypatch.setattr(hubs, "HISTORY_EVENTS", 3)
    session = session_of(room, tmp_path)
    turn(session)
    with room.events(after={session.id: 1}) as stream:
        first = stream.get(PATIENCE_S)
        assert (first.session_id, first.sequence, first.event) == (session.id, 4, EventsMissed(3, 2, 4))
        assert [stream.get(PATIENCE_S).sequence for _ in range(3)] == [5, 6, 7]


def test_a_queue(room, tmp_path):
    seen = queue.Queue(maxsize=1)
    room.subscribe(seen)
    turn(session_of(room, tmp_path))
    assert [seen.get(timeout=PATIENCE_S).method for _ in METHODS] == METHODS


def test_a_full_queue_does_not_hold_the_end_of_the_room_up(tmp_path):
    with Greenroom() as room:
        subscription = room.subscribe(queue.Queue(maxsize=1))
        turn(session_of(room, tmp_path))
    assert subscription.closed


def test_bare_events_are_as_they_were(room, tmp_path):
    bare, handled = [], []
    transport = FakeTransport()
    agent = room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY, event_handlers=(handled.append,))
    session = agent.session(tmp_path)
    session.run(session.prepare_turn(TurnRequest("x")), on_event=bare.append)
    assert [type(event).__name__ for event in bare] == ["SessionStarted", "AssistantText"]
    turn(session)
    session.close()
    assert not any(isinstance(event, TurnStarted | TurnCompleted | SessionEnded) for event in handled)


def test_a_stream_of_a_turn_has_no_gaps(room, tmp_path):
    session = session_of(room, tmp_path)

    async def read():
        return [event async for event in session.stream(session.prepare_turn(TurnRequest("x")))]

    events = asyncio.run(read())
    assert [event.method for event in events] == METHODS
    assert [event.sequence for event in events] == list(range(1, 8))


def test_one_that_raises_goes_on_getting_and_hurts_nobody(room, tmp_path, caplog):
    seen, calls = Recorder(), []

    def fail(event):
        calls.append(event)
        raise SystemExit("mine")

    failing = room.subscribe(fail)
    room.subscribe(seen)
    session = session_of(room, tmp_path)
    turn(session)
    turn(session)
    seen.wait_for(TurnCompleted, 2)
    with room.events(session.id, after=0) as stream:  # served behind the one that fails
        while not isinstance(stream.get(PATIENCE_S).event, TurnCompleted):
            pass
    failing.close()
    assert failing.failures == len(calls)
    assert calls
    assert caplog.text.count("a subscriber failed") == 1


def test_one_that_blocks_hurts_nobody(room, tmp_path):
    blocked, release, seen = threading.Event(), threading.Event(), Recorder()

    def block(_event):
        blocked.set()
        release.wait(PATIENCE_S)

    room.subscribe(block)
    session = session_of(room, tmp_path)
    turn(session)
    assert blocked.wait(PATIENCE_S)
    room.subscribe(seen)
    turn(session)
    seen.wait_for(TurnCompleted)
    release.set()


def test_it_may_end_itself_from_within(room, tmp_path):
    seen = []
    done = Recorder()

    def once(event):
        seen.append(event)
        subscription.close()

    subscription = room.subscribe(once)
    room.subscribe(done)
    turn(session_of(room, tmp_path))
    done.wait_for(TurnCompleted)
    assert len(seen) == 1
    assert subscription.closed


def test_it_may_subscribe_another_from_within(room, tmp_path):
    seen, others = Recorder(), []

    def see(event):
        if isinstance(event.event, TurnStarted):
            others.append(room.subscribe(seen, event.session_id, 0))

    room.subscribe(see)
    turn(session_of(room, tmp_path))
    seen.wait_for(TurnCompleted)
    assert seen.methods == METHODS


def test_after_close_from_another_thread_no_call_begins(room, tmp_path):
    seen = Recorder()
    with room.subscribe(seen) as subscription:
        session = session_of(room, tmp_path)
        turn(session)
        seen.wait_for(TurnCompleted)
    assert subscription.closed
    turn(session)
    assert seen.methods == METHODS


def test_ten_thousand_events_come_in_order_and_beyond_them_deltas_are_counted(room, tmp_path):
    many = [AssistantText(str(number)) for number in range(12_000)]
    release, first, seen = threading.Event(), threading.Event(), Recorder()

    def slow(event):
        first.set()
        release.wait(PATIENCE_S)
        seen(event)

    subscription = room.subscribe(slow)
    fast = Recorder()
    room.subscribe(fast)
    session = session_of(room, tmp_path, FakeTurn("end", events=[RunStarted(("x",)), *many]))
    turn(session)
    assert first.wait(PATIENCE_S)
    release.set()
    seen.wait_for(TurnCompleted)
    fast.wait_for(TurnCompleted)
    for subscriber in (seen, fast):
        told = [event for event in subscriber.events if isinstance(event.event, EventsMissed)]
        assert len(subscriber.events) - len(told) + sum(event.event.count for event in told) == len(many) + 8
        assert [event.sequence for event in subscriber.events] == sorted(event.sequence for event in subscriber.events)
    assert subscription.dropped == sum(event.event.count for event in seen.events if isinstance(event.event, EventsMissed))
    assert subscription.dropped >= 2_000


def test_it_may_close_the_room_from_within(tmp_path, caplog):
    room, closed, seen = Greenroom(), threading.Event(), []

    def see(event):
        seen.append(event.method)
        if event.method == "turn/completed":
            room.close()
            closed.set()

    room.subscribe(see)
    other = room.subscribe(Recorder())
    turn(session_of(room, tmp_path))
    assert closed.wait(PATIENCE_S)
    assert "has not returned" not in caplog.text
    assert other.closed


def test_a_stream_ends_with_the_room(tmp_path):
    with Greenroom() as room:
        stream = room.events()
        turn(session_of(room, tmp_path))
    assert [event.method for event in stream] == [*METHODS, "session/closed"]
    assert stream.get() is None


def test_a_reader_that_waits_is_told_of_the_end(tmp_path):
    with Greenroom() as room:
        stream, got = room.events(), []
        reader = threading.Thread(target=lambda: got.append(stream.get()))
        reader.start()
    reader.join(PATIENCE_S)
    assert got == [None]


def test_a_closed_stream_gives_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(hubs, "HISTORY_EVENTS", 2)
    with Greenroom(state_dir=tmp_path / "state") as room:
        session = session_of(room, tmp_path)
        turn(session)
        stream = room.events(session.id, after=0)
        assert stream.get(PATIENCE_S).sequence == 1
        stream.close()
        assert stream.get() is None


def test_patience(room):
    with room.events() as stream, pytest.raises(TimeoutError):
        stream.get(timeout=0.01)


def test_a_stream_in_an_event_loop(tmp_path):
    async def watch(room, session):
        stream = room.events(session.id, after=0)
        methods = []
        async for event in stream:
            methods.append(event.method)
            if isinstance(event.event, TurnCompleted):
                await asyncio.to_thread(room.close)
        return methods

    with Greenroom() as room:
        session = session_of(room, tmp_path)
        turn(session)
        assert asyncio.run(watch(room, session)) == [*METHODS, "session/closed"]


def test_an_event_loop_wakes_for_an_event(room, tmp_path):
    session = session_of(room, tmp_path)

    async def watch():
        async with room.events(session.id) as stream:
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            await asyncio.to_thread(turn, session)
            return await asyncio.wait_for(waiting, PATIENCE_S)

    assert isinstance(asyncio.run(watch()).event, TurnStarted)


def test_a_forgotten_stream_is_let_go(room):
    stream = room.events()
    assert room._audience.hub._everywhere
    del stream
    gc.collect()
    assert not room._audience.hub._everywhere


def test_the_journal_has_what_memory_has_not(tmp_path, monkeypatch):
    monkeypatch.setattr(hubs, "HISTORY_EVENTS", 2)
    with Greenroom(state_dir=tmp_path / "state") as room:
        session = session_of(room, tmp_path, session_id="s")
        for _ in range(3):
            turn(session)
        with room.events("s", after=2) as stream:
            found = [stream.get(PATIENCE_S) for _ in range(11)]
        assert [event.sequence for event in found] == list(range(3, 14))
        assert isinstance(found[-1].event, TurnCompleted)
        assert room.events("s", after=2).get(PATIENCE_S) == found[0]


def test_a_session_of_a_dead_program_is_heard_from_its_beginning_and_goes_on(tmp_path):
    transport = FakeTransport()
    for _ in range(2):
        with Greenroom(state_dir=tmp_path / "state") as room:
            seen = Recorder()
            room.subscribe(seen, "s", after=0)
            agent = room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
            turn(agent.session(tmp_path, session_id="s"))
        assert [event.sequence for event in seen.events] == list(range(1, len(seen.events) + 1))
    assert [seen.methods.count(method) for method in ("turn/completed", "session/closed")] == [2, 2]


@pytest.mark.parametrize("after", ["1", 1.5, True, {"s": None}])
def test_a_number_that_is_none_is_refused(room, after):
    with pytest.raises(TypeError, match="after must be a sequence number"):
        room.subscribe(print, after=after)


def test_bad_subscribers(room):
    with pytest.raises(ValueError, match="0 or more"):
        room.events(after=-1)
    with pytest.raises(TypeError, match="callable or a queue, got int"):
        room.subscribe(7)
    with pytest.raises(TypeError, match=r"room\.events\(\)"):
        room.subscribe(asyncio.Queue())
    with pytest.raises(TypeError, match="session_id must be a str"):
        room.subscribe(print, 7)

    async def coroutine(event):
        pass

    with pytest.raises(TypeError, match=r"room\.events\(\)"):
        room.subscribe(coroutine)
    assert room._audience.hub._everywhere == ()
    room.close()
    with pytest.raises(SessionStateError, match="the room is closed"):
        room.subscribe(print)


def test_without_subscribers_there_is_no_thread(room, tmp_path):
    turn(session_of(room, tmp_path))
    assert not [thread for thread in threading.enumerate() if thread.name == "greenroom-subscribers"]
