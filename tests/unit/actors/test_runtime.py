import threading

import attrs
import pykka
import pytest

from greenroom.actors.runtime import SLOW_HANDLER_S, ActorDown, LoopActor, Message, tell
from tests.unit.actors.doubles import Echo, Line


@attrs.frozen(kw_only=True)
class Loud(Message):
    control = True
    name: str = "loud"


@attrs.frozen(kw_only=True)
class Answering(Message):
    answers: list = attrs.field(factory=list)

    def refuse(self):
        self.answers.append("refused")


class Slow(Echo):
    def handle(self, message):
        threading.Event().wait(SLOW_HANDLER_S * 1.2)


@pytest.fixture
def line():
    return Line()


def test_control_overtakes_ordinary(line):
    ref = Echo.start(line)
    actor = line.scheduled[0]
    for message in ("a", "b", Loud(), "c"):
        ref.tell(message)
    line.run()
    assert actor.seen == [Loud(), "a", "b", "c"]
    ref.stop(block=False)
    line.run()


def test_an_actor_waits_once_for_its_turn_and_once_more_before_others(line):
    ref = Echo.start(line)
    actor = line.scheduled[0]
    for _ in range(2):
        line.run()
        line.first.clear()
        for message in ("a", "b", Loud(), Loud(), "c"):
            ref.tell(message)
        assert (line.first, actor.is_urgent) == ([False, True], True)
        line.run()
        assert not actor.is_urgent
        line.first.clear()
        for message in (Loud(), "a", Loud()):
            ref.tell(message)
        assert line.first == [True]
    line.run()
    assert len(actor.seen) == 16
    ref.stop(block=False)
    line.run()


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("asked", [False, True])
def test_a_failure_told_or_asked_ends_this_actor_only(line, error, asked):
    other = Echo.start(line)
    ref = Echo.start(line, failing={"boom": error})
    actor = line.scheduled[1]
    future = ref.ask("boom", block=False) if asked else ref.tell("boom")
    behind = Answering()
    ref.tell(behind)
    line.run()
    if asked:
        with pytest.raises(type(error)):
            future.get(timeout=1)
    assert actor.downs == [error]
    assert behind.answers == ["refused"]
    assert other.is_alive()
    assert not ref.is_alive()
    other.stop(block=False)
    line.run()


def test_a_failure_in_on_start_is_a_death_like_any_other(line):
    class Broken(Echo):
        def on_start(self):
            raise SystemExit

    watcher = Echo.start(line)
    watching = line.scheduled[0]
    actor = Broken(line)
    actor.watch(watcher)
    pykka.ActorRegistry.register(actor.actor_ref)
    actor._start_actor_loop()
    line.run()
    assert [type(message) for message in watching.seen] == [ActorDown]
    assert actor.downs
    watcher.stop(block=False)
    line.run()


def test_what_is_put_after_the_end_is_answered_at_once(line):
    ref = Echo.start(line)
    ref.stop(block=False)
    line.run()
    late = Answering()
    assert not tell(ref, late)
    assert late.answers == ["refused"]
    with pytest.raises(pykka.ActorDeadError):
        ref.ask("x")
    # The race: alive when looked at, closed when put.
    direct = Answering()
    ref.actor_inbox.put(pykka._envelope.Envelope(direct))
    assert direct.answers == ["refused"]


def test_puts_racing_with_the_close_are_each_answered_once(line):
    answers = []

    @attrs.frozen(kw_only=True)
    class Racing(Message):
        def refuse(self):
            answers.append("refused")

    ref = Echo.start(line)
    actor = line.scheduled[0]
    start = threading.Barrier(5)

    def put():
        start.wait()
        for _ in range(500):
            tell(ref, Racing())

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    for _ in range(50):
        actor.run_batch(10)
    actor.finish()
    for thread in threads:
        thread.join()
    handled = len(actor.seen)
    assert handled + len(answers) == 2000
    line.scheduled.clear()


def test_a_batch_is_bounded_and_the_rest_gets_another_turn(line):
    ref = Echo.start(line)
    actor = line.scheduled[0]
    for number in range(10):
        ref.tell(number)
    line.scheduled.clear()
    assert actor.run_batch(4)
    assert actor.seen == [0, 1, 2, 3]
    ref.tell(10)
    assert line.scheduled == []  # whoever ran the batch has been told that there is more
    line.scheduled.append(actor)
    line.run()
    assert len(actor.seen) == 11
    ref.stop(block=False)
    line.run()


def test_a_failing_on_down_stops_nothing_else(line):
    class Bad(LoopActor):
        def handle(self, message):
            raise ValueError

        def on_down(self, error):
            raise RuntimeError

    watcher = Echo.start(line)
    watching = line.scheduled[0]
    actor = Bad(line)
    actor.watch(watcher)
    pykka.ActorRegistry.register(actor.actor_ref)
    actor._start_actor_loop()
    actor.actor_ref.tell("x")
    line.run()
    assert len(watching.seen) == 1
    watcher.stop(block=False)
    line.run()


def test_a_slow_handler_is_noted_and_not_shown_to_who_uses_the_command(line, caplog):
    ref = Slow.start(line)
    with caplog.at_level("INFO", logger="greenroom"):
        ref.tell("x")
        line.run()
    assert [record.levelname for record in caplog.records if record.message.startswith("Slow spent ")] == ["INFO"]
    ref.stop(block=False)
    line.run()
