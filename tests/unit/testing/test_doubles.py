from __future__ import annotations

import pathlib
import subprocess
import sys
import threading

import pytest

from greenroom.errors import (
    CliExitError,
    NoRunningTurnError,
    ProviderCapabilityError,
    SessionResumeError,
    SessionStateError,
    TurnFailedError,
    TurnTimeoutError,
)
from greenroom.events import AssistantText, SessionStarted, SteerConsumed, SteerDelivered, TurnInterrupted
from greenroom.model import ApprovalPolicy, Checkpoint, ConversationSpec, FailureKind, NativeMode, NativePermissions, TurnRequest
from greenroom.testing import (
    FakeCheckpointStore,
    FakeClock,
    FakeTransport,
    FakeTurn,
    RecordingEventHandler,
    SequentialIds,
    fake_profile,
    resume_refused,
    turn_died,
    turn_failed,
    turn_timeout,
)

REQUEST = TurnRequest("hello")


def spec(resume_id=None, mode=NativeMode.BYPASS):
    permissions = NativePermissions(mode)
    return ConversationSpec(cwd=pathlib.Path(), permissions=permissions, approvals=ApprovalPolicy.DENY, resume_id=resume_id)


def started(conversation, turn, emit):
    """Run a turn that waits on another thread; return the thread and where its outcome goes."""
    outcomes = []

    def run():
        try:
            outcomes.append(conversation.turn(REQUEST, emit))
        except Exception as error:  # noqa: BLE001
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert turn.started.wait(10)
    return thread, outcomes


# --- the clock ---


def test_waits_elapse_at_once_and_are_recorded():
    clock = FakeClock(start_s=0)
    fired = []
    assert clock.wait(30) is False
    clock.call_later(60, lambda: fired.append(clock.monotonic()), is_wait=True)
    assert (clock.waits, fired, clock.monotonic()) == ((30, 60), [90], 90)
    assert clock.wall() == 1_800_000_090


def test_deadlines_fire_on_advance_only_in_order_and_at_their_time():
    clock = FakeClock(start_s=0)
    fired = []
    for delay_s in (5, 1, 3):
        clock.call_later(delay_s, lambda delay_s=delay_s: fired.append((delay_s, clock.monotonic())))
    clock.wait(100)
    assert fired == []
    assert clock.pending == (1, 3, 5)
    clock.advance(0)
    assert fired == [(1, 100), (3, 100), (5, 100)]


def test_a_callback_may_add_and_cancel_timers_also_due_ones():
    clock = FakeClock(start_s=0)
    fired = []
    handle = clock.call_later(3, lambda: fired.append("never"))

    def first():
        handle.cancel()
        handle.cancel()
        clock.call_later(1, lambda: fired.append(clock.monotonic()))
        clock.call_later(10, lambda: fired.append("later"))

    clock.call_later(2, first)
    clock.advance(5)
    assert (fired, clock.monotonic(), clock.pending) == ([3], 5, (12,))


def test_held_waits_pass_on_advance_and_end_on_stop():
    clock = FakeClock(start_s=0, hold_waits=True)
    results = {}
    stop = threading.Event()
    threads = [
        threading.Thread(target=lambda: results.update(plain=clock.wait(5))),
        threading.Thread(target=lambda: results.update(stopped=clock.wait(50, stop))),
    ]
    for thread in threads:
        thread.start()
    clock.call_later(2, lambda: results.update(timer=clock.monotonic()), is_wait=True)
    assert clock.wait_for_waiters(3)
    assert results == {}
    stop.set()
    clock.advance(5)
    for thread in threads:
        thread.join(10)
    assert results == {"plain": False, "stopped": True, "timer": 2}
    assert sorted(clock.waits) == [2, 5, 50]
    assert not clock.wait_for_waiters(1, timeout_s=0.01)


def test_a_callback_runs_outside_the_lock():
    clock = FakeClock()
    read = []

    def look():
        thread = threading.Thread(target=lambda: read.append(clock.monotonic()))
        thread.start()
        thread.join(10)

    clock.call_later(1, look)
    clock.call_later(1, look, is_wait=True)
    clock.advance(1)
    assert len(read) == 2


def test_ids_are_counted_for_each_prefix():
    ids = SequentialIds()
    assert [ids.new_id("turn"), ids.new_id("session"), ids.new_id("turn")] == ["turn-1", "session-1", "turn-2"]


# --- the transport ---


def test_outcomes_are_played_in_order_over_all_conversations():
    outcomes = [FakeTurn("one"), turn_failed(FailureKind.TRANSIENT, retry_after_s=7), FakeTurn("two", structured_output={"n": 1})]
    transport = FakeTransport(outcomes)
    first, second = transport.open(spec()), transport.open(spec())
    handler = RecordingEventHandler()
    assert first.conversation_id is None
    assert first.turn(REQUEST, handler).text == "one"
    with pytest.raises(TurnFailedError) as failed:
        second.turn(REQUEST, handler)
    assert (failed.value.kind, failed.value.retry_after_s) == (FailureKind.TRANSIENT, 7)
    result = second.turn(REQUEST, handler)
    assert (result.session_id, result.structured_output, result.resumed) == ("conv-2", {"n": 1}, False)
    assert handler.events == (SessionStarted("conv-1"), AssistantText("one"), SessionStarted("conv-2"), AssistantText("two"))
    assert transport.requests == [REQUEST] * 3
    with pytest.raises(TurnFailedError, match="no outcome left"):
        first.turn(REQUEST, handler)
    transport.add(FakeTurn("more"))
    assert first.turn(REQUEST, handler).text == "more"


def test_without_outcomes_the_prompt_is_echoed():
    assert FakeTransport().open(spec()).turn(REQUEST, print).text == "echo: hello"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(resume_refused("c"), SessionResumeError), (turn_timeout(5), TurnTimeoutError), (turn_died(stderr="oom"), CliExitError)],
)
def test_scripted_errors(outcome, error):
    with pytest.raises(error):
        FakeTransport([outcome]).open(spec()).turn(REQUEST, print)
    assert turn_died().returncode == -9
    assert resume_refused("c", in_use=True).in_use


def test_open_refuses_what_is_scripted_and_what_is_not_supported():
    transport = FakeTransport(opens=[resume_refused("c"), None])
    with pytest.raises(SessionResumeError):
        transport.open(spec("c"))
    conversation = transport.open(spec("c"))
    assert conversation.conversation_id == "c"
    assert conversation.turn(REQUEST, print).resumed
    with pytest.raises(ProviderCapabilityError):
        transport.open(spec(mode=NativeMode.READ_ONLY))


def test_a_turn_that_waits_ends_by_interrupt_release_or_close():
    for act, interrupted in (("interrupt", True), ("release", False), ("close", True)):
        turn = FakeTurn("end", waits=True)
        conversation = FakeTransport([turn]).open(spec())
        handler = RecordingEventHandler()
        thread, outcomes = started(conversation, turn, handler)
        {"interrupt": conversation.interrupt, "release": turn.release, "close": conversation.close}[act]()
        thread.join(10)
        assert (outcomes[0].interrupted, outcomes[0].text) == (interrupted, "" if interrupted else "end")
        assert bool(handler.of(TurnInterrupted)) == interrupted


def test_a_turn_may_ignore_interrupts_and_change_the_id():
    turn = FakeTurn("end", waits=True, ignores_interrupt=True, session_id="other")
    conversation = FakeTransport([turn]).open(spec("c"))
    thread, outcomes = started(conversation, turn, print)
    conversation.interrupt()
    thread.join(0.1)
    assert thread.is_alive()
    turn.release()
    thread.join(10)
    assert (outcomes[0].interrupted, conversation.conversation_id) == (False, "other")


def test_steering_many_times_is_told_on_the_turns_thread_and_ends_only_what_waits_for_it():
    turn = FakeTurn("end", waits=True, until_steered=False)
    transport = FakeTransport([turn], steerable=True)
    conversation = transport.open(spec())
    told, threads = RecordingEventHandler(), set()
    thread, outcomes = started(conversation, turn, lambda event: (told(event), threads.add(threading.get_ident())))
    conversation.steer("one")
    conversation.steer("two")
    assert told.wait_for(SteerConsumed, 2)
    turn.release()
    thread.join(10)
    assert outcomes[0].text == "end"
    steering = [event for event in told.events if isinstance(event, SteerDelivered | SteerConsumed)]
    assert steering == [SteerDelivered("one"), SteerConsumed("one"), SteerDelivered("two"), SteerConsumed("two")]
    assert (threads, transport.steers) == ({thread.ident}, ["one", "two"])
    with pytest.raises(NoRunningTurnError):
        conversation.steer("late")


def test_a_retry_in_place_shows_no_second_prompt():
    transport = FakeTransport([turn_failed(FailureKind.TRANSIENT), FakeTurn("done")], retries_in_place=True)
    conversation = transport.open(spec())
    with pytest.raises(TurnFailedError):
        conversation.turn(REQUEST, print)
    assert conversation.retry(print).text == "done"
    assert (transport.retries, transport.requests) == (1, [REQUEST])
    assert transport.profile.retries_in_place
    assert not hasattr(FakeTransport().open(spec()), "retry")


def test_a_closed_conversation_runs_nothing():
    conversation = FakeTransport().open(spec())
    conversation.close()
    with pytest.raises(SessionStateError):
        conversation.turn(REQUEST, print)


def test_a_profile_takes_any_field():
    assert fake_profile(supports_resume=False, name="mine").name == "mine"


# --- stores and handlers ---


def test_a_store_remembers_its_calls_and_fails_on_demand():
    store = FakeCheckpointStore(key=Checkpoint("conv-1"))
    assert store.load("key") == Checkpoint("conv-1")
    store.error = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        store.save("key", Checkpoint("conv-2"))
    assert store.calls == [("load", "key"), ("save", "key")]


def test_a_handler_waits_for_events():
    handler = RecordingEventHandler()
    handler.on_event(AssistantText("x"))
    assert handler.wait_for(AssistantText)
    assert not handler.wait_for(TurnInterrupted, timeout_s=0.01)


def test_the_package_needs_neither_pytest_nor_the_extra():
    code = (
        "import sys; sys.modules['pytest'] = sys.modules['uvicorn'] = None; import greenroom.testing; print(len(greenroom.testing.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 15
