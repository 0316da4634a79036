"""Front ends that race, subscribers that misbehave, hosts that die: the calls by id answer each time, and nobody is hurt."""

from __future__ import annotations

import collections
import os
import pathlib
import random
import subprocess
import sys
import threading

import pytest

from greenroom import EventsMissed, Greenroom, GreenroomError, SessionStateError, SessionStatus, UnknownSessionError
from greenroom.journal import Verdict
from greenroom.testing import FakeTransport, FakeTurn, turn_died
from tests.faults.front_host import options

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE_S = 50
FULL = {"runtime_mode": "full-access"}


def all_at_once(count, call):
    """Call on so many threads; return what each gave or raised."""
    barrier, results = threading.Barrier(count), [None] * count

    def play(index):
        barrier.wait(PATIENCE_S)
        try:
            results[index] = call(index)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[index] = error

    threads = [threading.Thread(target=play, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a call hangs"
    return results


@pytest.fixture
def room():
    with Greenroom() as room:
        yield room


@pytest.mark.parametrize("round_", range(5))
def test_one_of_many_starts_of_an_id_wins(room, tmp_path, round_):
    results = all_at_once(8, lambda _: room.start_session("t", FakeTransport(), cwd=tmp_path, **FULL))
    won = [one for one in results if not isinstance(one, Exception)]
    assert [one.status for one in won] == [SessionStatus.READY]
    assert all(isinstance(one, SessionStateError) for one in results if one not in won)
    assert room.send_turn("t", "x").wait(PATIENCE_S).result.text == "echo: x"


def test_an_id_that_is_being_started_is_nobody_elses(room, tmp_path):
    """A start that was slow once began a session anew that another one had started, and a third had stopped, meanwhile."""
    looked, go_on = threading.Event(), threading.Event()

    class Slow(FakeTransport):
        @property
        def profile(self):
            looked.set()
            go_on.wait(PATIENCE_S)
            return super().profile

    results = []
    slow = threading.Thread(target=lambda: results.append(room.start_session("t", Slow(), cwd=tmp_path, **FULL)))
    slow.start()
    assert looked.wait(PATIENCE_S)
    with pytest.raises(SessionStateError, match="is open already"):
        room.start_session("t", FakeTransport(), cwd=tmp_path, **FULL)
    with pytest.raises(UnknownSessionError):
        room.stop_session("t")
    go_on.set()
    slow.join(PATIENCE_S)
    assert [record.status for record in results] == [SessionStatus.READY]


def test_a_name_is_free_once_all_of_its_session_has_ended(room, tmp_path):
    """A session that is being closed was forgotten when another one began, and a second one of its name with it hung."""
    closing, go_on = threading.Event(), threading.Event()

    class Lingers(FakeTransport):
        def open(self, spec):
            conversation = super().open(spec)
            end = conversation.close

            def close():
                closing.set()
                go_on.wait(PATIENCE_S)
                end()

            conversation.close = close
            return conversation

    room.start_session("t", Lingers(), cwd=tmp_path, **FULL)
    stopper = threading.Thread(target=room.session("t").close)
    stopper.start()
    assert closing.wait(PATIENCE_S)
    room.start_session("other", FakeTransport(), cwd=tmp_path, **FULL)
    with pytest.raises(SessionStateError, match="is open already"):
        room.start_session("t", FakeTransport(), cwd=tmp_path, **FULL)
    go_on.set()
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    assert room.start_session("t", FakeTransport(), cwd=tmp_path, **FULL).status is SessionStatus.READY


def test_one_of_many_turns_at_once_runs(room, tmp_path):
    turn = FakeTurn("done", waits=True)
    room.start_session("t", FakeTransport([turn]), cwd=tmp_path, **FULL)
    results = all_at_once(8, lambda index: room.send_turn("t", f"turn {index}"))
    (sent,) = [one for one in results if not isinstance(one, Exception)]
    assert all(isinstance(one, SessionStateError) for one in results if one is not sent)
    turn.release()
    assert sent.wait(PATIENCE_S).result.text == "done"


def test_one_of_many_stops_is_the_one(room, tmp_path):
    turn = FakeTurn("done", waits=True)
    room.start_session("t", FakeTransport([turn]), cwd=tmp_path, **FULL)
    sent = room.send_turn("t", "x")
    assert turn.started.wait(PATIENCE_S)
    results = all_at_once(8, lambda _: (room.stop_session("t"), room.directory.get("t"), sent.ended))
    assert sorted(first for first, *_ in results) == [False] * 7 + [True]
    assert {rest for _, *rest in map(tuple, results) for rest in [tuple(rest)]} == {(None, True)}


@pytest.mark.parametrize("seed", range(6))
def test_a_storm_of_calls_leaves_everything_answered(tmp_path, seed):
    sent, seen = [], collections.defaultdict(list)

    def blocking(_event):
        release.wait(PATIENCE_S)

    def failing(event):
        raise RuntimeError(event.method)

    release = threading.Event()
    with Greenroom() as room:
        room.subscribe(blocking)
        room.subscribe(failing)
        room.subscribe(lambda event: seen[event.session_id].append(event), after=0)
        cycle = iter(range(10**6))

        def storm(index):
            rng = random.Random(f"{seed} {index}")
            for _ in range(40):
                thread_id = f"t{rng.randrange(3)}-{next(cycle) // 60}"
                try:
                    match rng.randrange(8):
                        case 0 | 1 | 2:
                            opens = [turn_died()] if rng.random() < 0.2 else []
                            room.start_session(thread_id, FakeTransport(opens=opens), cwd=tmp_path, **FULL)
                        case 3 | 4 | 5:
                            sent.append(room.send_turn(thread_id, "x"))
                        case 6:
                            room.interrupt_turn(thread_id)
                        case _ if rng.random() < 0.3:
                            room.stop_session(thread_id)
                        case _:
                            room.directory.list()
                except (SessionStateError, UnknownSessionError):
                    continue

        assert all_at_once(6, storm) == [None] * 6
        for one in sent:
            try:
                one.wait(PATIENCE_S)
            except GreenroomError:
                assert one.ended
        assert {record.status for record in room.directory.list()} <= {SessionStatus.READY, SessionStatus.ERROR}
        release.set()
    assert room.directory.list() == ()
    assert sent
    for events in seen.values():
        assert not any(isinstance(event.event, EventsMissed) for event in events)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        names = [event.method for event in events]
        assert names.count("turn/started") == names.count("turn/completed")
        assert names.index("session/closed") == len(names) - 1


def test_many_subscribers_come_and_go_while_events_flow(room, tmp_path):
    room.start_session("t", FakeTransport(), cwd=tmp_path, **FULL)
    steady = []
    room.subscribe(steady.append, "t", after=0)
    over = threading.Event()

    def come_and_go(index):
        if index == 0:
            for number in range(60):
                room.send_turn("t", str(number)).wait(PATIENCE_S)
            over.set()
            return
        while not over.is_set():
            with room.events("t", after=0) as stream:
                numbers = [stream.get(PATIENCE_S).sequence for _ in range(3)]
            assert numbers == [1, 2, 3]
            room.subscribe(lambda _event: None).close()

    assert all_at_once(5, come_and_go) == [None] * 5
    room.close()
    assert [event.sequence for event in steady] == list(range(1, len(steady) + 1))
    assert sum(event.method == "turn/completed" for event in steady) == 60


def test_a_session_that_waits_for_a_place_gets_that_of_one_that_was_only_connected(tmp_path):
    with Greenroom(max_live=1) as room:
        for thread_id in ("one", "two", "one more"):
            record = room.start_session(thread_id, FakeTransport(), cwd=tmp_path, timeout=PATIENCE_S, **FULL)
            assert record.status is SessionStatus.READY
        assert room.send_turn("one", "x").wait(PATIENCE_S).result.text == "echo: x"


def test_a_process_that_dies_before_there_is_a_turn(room, tmp_path):
    record = room.start_session("t", FakeTransport(opens=[turn_died()]), cwd=tmp_path, **FULL)
    assert record.status is SessionStatus.ERROR
    assert room.send_turn("t", "x").wait(PATIENCE_S).result.text == "echo: x"


def test_sessions_of_a_program_that_was_killed_are_found_and_go_on(tmp_path):
    state_dir, home = tmp_path / "state", tmp_path / "home"
    command = (sys.executable, "-m", "tests.faults.front_host", str(state_dir), str(home))
    host = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        turn_id = host.stdout.readline().strip()
        assert turn_id
    finally:
        host.kill()
        host.wait(PATIENCE_S)
        host.stdout.close()
    with Greenroom(state_dir=state_dir) as room:
        found = {record.thread_id: record for record in room.directory.list()}
        assert set(found) == {"kept", "busy"}
        assert {record.status for record in found.values()} == {SessionStatus.CLOSED}
        assert all(record.resume_cursor for record in found.values())
        (open_turn,) = [one for one in room.recovered() if one.turn_id == turn_id]
        assert open_turn.verdict is Verdict.UNKNOWN
        with pytest.raises(SessionStateError, match="was stopped"):
            room.start_session("stopped", **options(home))
        for thread_id, before in found.items():
            record = room.start_session(thread_id, **options(home))
            assert (record.status, record.resume_cursor) == (SessionStatus.READY, before.resume_cursor)
            turn = room.send_turn(thread_id, "SAY again").wait(PATIENCE_S)
            assert (turn.result.text, turn.conversation_id) == ("again", before.resume_cursor["threadId"])
