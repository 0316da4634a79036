"""The loop and its manual twin: order, fairness, timers, pipes, jobs, and what happens when the loop itself fails."""

# ruff: noqa: S105, S106 - a timer's token is no secret

import contextlib
import logging
import os
import statistics
import threading
import time

import attrs
import pykka
import pytest

from greenroom.actors.dispatcher import (
    WOKEN_AT_ONCE,
    ClockedDispatcher,
    LoopDispatcher,
    LoopFailed,
    ManualDispatcher,
    PipeReady,
    TimerFired,
)
from greenroom.actors.runtime import ActorDown, LoopActor, Message, tell
from greenroom.testing import FakeClock

PATIENCE_S = 10.0


@attrs.frozen(kw_only=True)
class Note(Message):
    text: str


class Keeper(LoopActor):
    """Keeps what it gets; some texts make it do something."""

    def __init__(self, dispatcher, *, does=None):
        super().__init__(dispatcher)
        self.does = does or {}
        self.seen = []
        self.heard = threading.Condition()

    def handle(self, message):
        with self.heard:
            self.seen.append(message)
            self.heard.notify_all()
        action = self.does.get(getattr(message, "text", type(message)))
        if action:
            action(self, message)

    def wait_for(self, count):
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.seen) >= count, PATIENCE_S), self.seen


def start(dispatcher, **options):
    ref = Keeper.start(dispatcher, **options)
    return ref, ref.actor_inbox._actor


@pytest.fixture
def loop():
    loop = LoopDispatcher(name="loop-under-test")
    yield loop
    loop.stop()


@pytest.fixture
def stops():
    """Ends the actors of a test before its loop."""
    refs = []
    yield refs.append
    for ref in refs:
        ref.stop(block=True, timeout=PATIENCE_S)


@pytest.fixture
def pipe():
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    yield read_fd, write_fd
    os.close(read_fd)
    os.close(write_fd)


def test_a_flooding_actor_starves_no_other(loop, stops):
    def again(actor, message):
        for _ in range(2 if len(actor.seen) < 50 else 1):
            tell(actor.actor_ref, Note(text="again"))

    loud, _ = start(loop, does={"again": again})
    quiet, keeper = start(loop)
    tell(loud, Note(text="again"))
    stops(loud)
    stops(quiet)
    took_s = []
    for number in range(1, 50):
        began_s = time.monotonic()
        tell(quiet, Note(text="q"))
        keeper.wait_for(number)
        took_s.append(time.monotonic() - began_s)
    assert statistics.median(took_s) < 1.0, took_s


def test_a_timer_fires_in_time_while_an_actor_floods(loop, stops):
    loud, _ = start(loop, does={"again": lambda actor, message: tell(actor.actor_ref, message)})
    stops(loud)
    tell(loud, Note(text="again"))
    ref, keeper = start(loop)
    loop.call_later(0.05, ref, TimerFired(token="late"))
    loop.call_later(0.01, ref, TimerFired(token="early"))
    loop.call_later(0.03, ref, TimerFired(token="never")).cancel()
    keeper.wait_for(2)
    assert [message.token for message in keeper.seen] == ["early", "late"]
    stops(ref)


def test_a_pipe_is_reported_once_until_it_is_resumed(loop, stops, pipe):
    read_fd, write_fd = pipe
    ref, keeper = start(loop, does={"watch": lambda actor, message: loop.watch(read_fd, ref, read=True, write=False)})
    stops(ref)
    tell(ref, Note(text="watch"))
    os.write(write_fd, b"x")
    keeper.wait_for(2)
    for number in range(3):
        tell(ref, Note(text=f"barrier {number}"))
        keeper.wait_for(3 + number)
    assert [type(message) for message in keeper.seen].count(PipeReady) == 1
    keeper.does["resume"] = lambda actor, message: loop.resume(read_fd)
    keeper.does["off"] = lambda actor, message: loop.watch(read_fd, ref, read=False, write=False)
    tell(ref, Note(text="resume"))
    keeper.wait_for(7)
    tell(ref, Note(text="off"))
    keeper.wait_for(8)
    assert [type(message) for message in keeper.seen].count(PipeReady) == 2


@attrs.frozen(kw_only=True)
class Order(Message):
    text: str
    control = True


@contextlib.contextmanager
def held(loop):
    """The loop stands still, in a handler, until the block is left or what it is given is called."""
    free = threading.Event()
    ref, keeper = start(loop, does={"hold": lambda actor, message: free.wait(PATIENCE_S)})
    tell(ref, Note(text="hold"))
    keeper.wait_for(1)
    try:
        yield free.set
    finally:
        free.set()
        ref.stop(block=True, timeout=PATIENCE_S)


@contextlib.contextmanager
def held_in_round(loop, begin):
    """As `held`, at the beginning of a round in which those wait whom `begin` tells something."""
    free = threading.Event()
    ref, keeper = start(loop, does={"hold": lambda actor, message: free.wait(PATIENCE_S)})
    with held(loop) as release:
        tell(ref, Note(text="hold"))
        begin()
        release()
        keeper.wait_for(1)
        try:
            yield
        finally:
            free.set()
    ref.stop(block=True, timeout=PATIENCE_S)


class Turns:
    """Actors by name, and whose turn came when. `wakes`: whom it tells what, in its turn."""

    def __init__(self, loop, stops, names, wakes=None):
        self.taken = []
        self.refs, self.keepers = {}, []
        self._wakes = wakes or {}
        for name in names:
            self.refs[name], keeper = start(loop, does={text: self._turn(name) for text in ("go", TimerFired, PipeReady)})
            self.keepers.append(keeper)
            stops(self.refs[name])

    def _turn(self, name):
        def turn(actor, message):
            self.taken.append(name)
            for other, told in self._wakes.get(name, ()):
                tell(self.refs[other], told)

        return turn

    def go(self, *names, kind=Note):
        for name in names:
            tell(self.refs[name], kind(text="go"))

    def wait_for(self, count):
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.taken) < count:
            assert time.monotonic() < deadline_s, self.taken
            time.sleep(0.001)
        return "".join(self.taken[:count])


GO = Note(text="go")


def test_who_is_woken_has_its_turn_right_behind(loop, stops):
    turns = Turns(loop, stops, "abcd", {"a": [("c", GO), ("d", GO)], "c": [("d", GO)]})
    with held(loop):
        turns.go("a", "b")
    assert turns.wait_for(5) == "acddb"


def test_a_chain_of_wakings_keeps_others_waiting_for_so_long_only(loop, stops):
    turns = Turns(loop, stops, "abc", {"a": [("b", GO)], "b": [("a", GO)]})
    with held(loop):
        turns.go("a", "c")
    assert turns.wait_for(WOKEN_AT_ONCE + 2) == "ab" * (WOKEN_AT_ONCE // 2) + "ac"


def test_a_chain_of_wakings_keeps_no_timer_and_no_pipe_waiting(loop, stops, pipe):
    read_fd, write_fd = pipe
    turns = Turns(loop, stops, "abtp", {"a": [("b", GO)], "b": [("a", GO)], "p": [("a", GO)]})
    watching = threading.Event()
    watcher, _ = start(
        loop,
        does={
            "on": lambda actor, message: (loop.watch(read_fd, turns.refs["p"], read=True, write=False), watching.set()),
            "off": lambda actor, message: loop.watch(read_fd, turns.refs["p"], read=False, write=False),
        },
    )
    stops(watcher)
    turns.go("a")
    tell(watcher, Note(text="on"))
    assert watching.wait(PATIENCE_S)
    loop.call_later(0.0, turns.refs["t"], TimerFired(token=None))
    os.write(write_fd, b"x")
    for keeper in turns.keepers[2:]:
        keeper.wait_for(1)
    tell(watcher, Note(text="off"))


def test_who_is_sent_a_control_message_comes_first(loop, stops):
    turns = Turns(loop, stops, "abc")
    with held(loop):
        turns.go("a", "b")
        turns.go("c", kind=Order)
        turns.go("b", kind=Order)  # which waits already, behind another
    assert turns.wait_for(4) == "cbba"


def test_who_is_sent_a_control_message_comes_first_in_the_middle_of_a_round(loop, stops):
    turns = Turns(loop, stops, "abcx")
    with held_in_round(loop, lambda: turns.go("a", "b", "c")):
        turns.go("x", kind=Order)
    assert turns.wait_for(4) == "xabc"


def test_control_messages_without_end_leave_every_other_turn_to_others(loop, stops):
    turns = Turns(loop, stops, "abxyz")
    with held_in_round(loop, lambda: turns.go("a", "b")):
        turns.go("x", "y", "z", kind=Order)
    assert turns.wait_for(5) == "xaybz"


def test_whose_timer_fires_comes_first(loop, stops):
    turns = Turns(loop, stops, "abt")
    with held(loop):
        turns.go("a", "b")
        loop.call_later(0.0, turns.refs["t"], TimerFired(token=None))
    assert turns.wait_for(3) == "tab"


def test_a_control_message_of_an_actor_comes_first_even_at_the_end_of_a_chain(loop, stops):
    """As of a room that closes, which tells all its sessions at once."""
    crowd = [chr(ord("A") + number) for number in range(WOKEN_AT_ONCE + 1)]
    turns = Turns(loop, stops, ["a", "b", *crowd], {"a": [(name, Order(text="go")) for name in crowd]})
    with held(loop):
        turns.go("a", "b")
    assert turns.wait_for(len(crowd) + 2) == "a" + "".join(crowd) + "b"


class BrokenRef:
    """A receiver on whom the loop itself breaks."""

    @property
    def actor_inbox(self):
        raise ZeroDivisionError("the loop")


def test_a_loop_that_fails_is_rebuilt_and_every_link_gets_its_end(loop, stops, pipe, caplog):
    read_fd, write_fd = pipe
    watcher, watching = start(loop, does={"watch": lambda actor, message: loop.watch(read_fd, watcher, read=True, write=False)})
    other, keeper = start(loop)
    stops(watcher)
    stops(other)
    tell(watcher, Note(text="watch"))
    watching.wait_for(1)
    with caplog.at_level(logging.CRITICAL):
        loop.call_later(0.02, other, TimerFired(token="survives"))
        loop.call_later(0.0, BrokenRef(), TimerFired(token=None))
        watching.wait_for(2)
    assert isinstance(watching.seen[1], LoopFailed)
    assert isinstance(watching.seen[1].error, ZeroDivisionError)
    keeper.wait_for(1)
    assert keeper.seen[0].token == "survives"
    # The new loop serves the same descriptor, once it is watched again.
    tell(watcher, Note(text="watch"))
    os.write(write_fd, b"x")
    watching.wait_for(4)
    assert isinstance(watching.seen[-1], PipeReady)
    watching.does["off"] = lambda actor, message: loop.watch(read_fd, watcher, read=False, write=False)
    tell(watcher, Note(text="off"))
    watching.wait_for(5)


def fail():
    raise ZeroDivisionError("the loop")


def test_a_callback_that_fails_keeps_no_other_from_being_called(loop, stops):
    """The others hand events to callers who would wait for ever."""
    called = threading.Event()
    ref, keeper = start(loop, does={"later": lambda actor, message: (loop.after_round(fail), loop.after_round(called.set))})
    stops(ref)
    tell(ref, Note(text="later"))
    assert called.wait(PATIENCE_S)
    tell(ref, Note(text="x"))
    keeper.wait_for(2)


def test_whoever_was_woken_when_the_loop_failed_has_its_turn(loop, stops):
    turns = Turns(loop, stops, "ab")
    ref, _ = start(loop, does={"later": lambda actor, message: loop.after_round(lambda: (turns.go("a", "b"), fail()))})
    stops(ref)
    tell(ref, Note(text="later"))
    assert turns.wait_for(2) == "ab"


def test_a_loop_that_fails_while_it_is_stopped_serves_who_is_still_in_line():
    loop = LoopDispatcher(name="failing-loop", starter=False)
    free = threading.Event()
    holder, holding = start(loop, does={"hold": lambda actor, message: free.wait(PATIENCE_S)})
    ref, keeper = start(loop)
    tell(ref, Note(text="before"))
    keeper.wait_for(1)  # or else it might be in the holder's round
    tell(holder, Note(text="hold"))
    holding.wait_for(1)
    stopping = threading.Thread(target=loop.stop)
    stopping.start()
    while not loop._stopping:
        time.sleep(0.001)
    loop.call_later(0.0, BrokenRef(), TimerFired(token=None))
    tell(ref, Note(text="behind"))
    for one in (holder, ref):
        one.stop(block=False)
    free.set()
    stopping.join(PATIENCE_S)
    try:
        assert keeper.seen == [Note(text="before"), Note(text="behind")]
        assert not ref.is_alive()
    finally:
        for actor in (holding, keeper):
            actor.crash(ValueError())


def test_a_loop_that_has_ended_writes_to_no_descriptor_of_another():
    loop = LoopDispatcher(name="ended-loop", starter=False)
    number = loop._wake_write.fileno()
    loop.stop()
    read_fd, write_fd = os.pipe()
    try:
        if write_fd != number:
            os.dup2(write_fd, number)
        os.set_blocking(read_fd, False)
        loop.stop()
        with pytest.raises(BlockingIOError):
            os.read(read_fd, 1)
    finally:
        for fd in {read_fd, write_fd, number}:
            os.close(fd)


@pytest.fixture
def raising_log():
    """A log whose handler raises, as a user's own may."""

    class Raising(logging.Handler):
        def emit(self, record):
            raise ZeroDivisionError("the log")

    handler, log = Raising(), logging.getLogger("greenroom.actors")
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield
    log.removeHandler(handler)
    log.setLevel(level)


def test_a_log_that_raises_ends_neither_loop_nor_starter(loop, stops, raising_log):
    answers = []

    @attrs.frozen(kw_only=True)
    class Asked(Message):
        text: str = "crash"

        def refuse(self):
            answers.append("refused")
            raise ValueError

    def crash(actor, message):
        raise ValueError

    watcher, watching = start(loop)
    stops(watcher)
    watched = Keeper(loop, does={"crash": crash, "slow": lambda actor, message: time.sleep(0.06)})
    watched.watch(watcher)
    pykka.ActorRegistry.register(watched.actor_ref)
    watched._start_actor_loop()
    tell(watched.actor_ref, Note(text="slow"))
    tell(watched.actor_ref, Asked())
    watching.wait_for(1)
    assert isinstance(watching.seen[0], ActorDown)
    assert answers == ["refused"]
    loop.call_later(0.0, BrokenRef(), TimerFired(token=None))
    loop.offload(fail, watcher)
    loop.offload(lambda: Note(text="after"), watcher)
    watching.wait_for(2)


def test_a_slow_handler_is_named_in_the_log(caplog):
    """By the machine's time: that is what the others on the loop wait for, whatever a test's clock says."""
    manual = ManualDispatcher(FakeClock())
    ref, _ = start(manual, does={"slow": lambda actor, message: time.sleep(0.06), "quick": lambda actor, message: None})
    with caplog.at_level(logging.INFO, "greenroom.actors"):
        for text in ("slow", "quick"):
            tell(ref, Note(text=text))
        manual.run_until_idle()
    assert [record.getMessage().partition(" spent")[0] for record in caplog.records] == ["Keeper"]
    assert caplog.records[0].getMessage().endswith("ms on Note")
    ref.stop(block=False)
    manual.run_until_idle()
    manual.stop()


def test_a_job_that_fails_costs_the_starter_nothing(loop, stops):
    ref, keeper = start(loop)
    stops(ref)

    def bad():
        raise SystemExit(3)

    loop.offload(bad, ref)
    loop.offload(lambda: Note(text="after"), ref)
    keeper.wait_for(1)
    assert keeper.seen == [Note(text="after")]


def test_a_refusal_that_fails_ends_neither_the_loop_nor_the_answers_behind_it(loop, stops):
    answers = []

    @attrs.frozen(kw_only=True)
    class Bad(Message):
        def refuse(self):
            raise ZeroDivisionError

    @attrs.frozen(kw_only=True)
    class Good(Message):
        def refuse(self):
            answers.append("good")

    def crash(actor, message):
        for left in (Bad(), Good()):
            tell(actor.actor_ref, left)
        raise ValueError

    ref, _ = start(loop, does={"crash": crash})
    other, keeper = start(loop)
    stops(other)
    tell(ref, Note(text="crash"))
    tell(other, Note(text="x"))
    keeper.wait_for(1)
    until_dead(ref)
    assert answers == ["good"]


def until_dead(ref):
    deadline_s = time.monotonic() + PATIENCE_S
    while ref.is_alive() or ref.actor_inbox.closed is False:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_the_message_on_which_an_actor_crashes_is_answered():
    answers = []

    @attrs.frozen(kw_only=True)
    class Asked(Message):
        text: str = "crash"

        def refuse(self):
            answers.append("refused")

    def crash(actor, message):
        raise ValueError

    manual = ManualDispatcher(FakeClock())
    ref, _ = start(manual, does={"crash": crash})
    tell(ref, Asked())
    manual.run_until_idle()
    assert answers == ["refused"]
    manual.stop()


def test_a_clock_of_its_own_rules_the_timers_of_a_room_only(loop, stops):
    clock = FakeClock()
    clocked = ClockedDispatcher(loop, clock)
    ref, keeper = start(clocked)
    stops(ref)
    clocked.call_later(600.0, ref, TimerFired(token="deadline"))
    clocked.call_later(5.0, ref, TimerFired(token="wait"), is_wait=True)
    cancelled = clocked.call_later(1.0, ref, TimerFired(token="cancelled"))
    cancelled.cancel()
    keeper.wait_for(1)
    assert keeper.seen[0].token == "wait"
    clock.advance(600.0)
    keeper.wait_for(2)
    assert keeper.seen[1].token == "deadline"


def test_a_seed_gives_one_order_and_another_seed_another():
    def order(seed):
        manual = ManualDispatcher(FakeClock(), seed=seed)
        seen = []
        refs = [start(manual, does={"x": lambda actor, message, name=name: seen.append(name)})[0] for name in range(6)]
        for ref in refs:
            for _ in range(4):
                tell(ref, Note(text="x"))
        manual.run_until_idle()
        for ref in refs:
            ref.stop(block=False)
        manual.run_until_idle()
        manual.stop()
        return seen

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == sorted(order(2))


def test_a_loop_that_is_stuck_in_a_handler_is_left_after_the_patience():
    free = threading.Event()
    loop = LoopDispatcher(name="stuck-loop", starter=False)
    ref, keeper = start(loop, does={"hang": lambda actor, message: free.wait(PATIENCE_S)})
    tell(ref, Note(text="hang"))
    keeper.wait_for(1)
    ref.stop(block=False)
    assert loop.stop(patience_s=0.05) is False
    free.set()
    assert loop.stop(patience_s=PATIENCE_S) is True


def test_an_idle_loop_sleeps(loop):
    deadline_s = time.monotonic() + PATIENCE_S
    before = None
    while (now := wakings(loop)) != before:  # until half a second has passed in which it was not woken
        assert time.monotonic() < deadline_s
        before = now
        time.sleep(0.5)


def wakings(loop):
    with open(f"/proc/self/task/{loop._thread.native_id}/status") as status:
        return [line for line in status if line.startswith("voluntary")]
