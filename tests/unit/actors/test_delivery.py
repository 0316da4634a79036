"""When a caller is woken: after the round, in order, and before its end."""

import threading

import pykka

from greenroom.actors.dispatcher import LoopDispatcher
from greenroom.actors.runtime import LoopActor
from greenroom.actors.ticket import Batch, Sink
from greenroom.events import AssistantText


def batch(text):
    return Batch(
        session_id="s", turn_id="t", incarnation=1, first_sequence=1, at_monotonic_s=0.0, at_wall_s=0.0, events=(AssistantText(text),)
    )


def test_what_waits_is_handed_out_in_order_and_before_the_end():
    got = []
    sink = Sink(got.append, lambda: None)
    first, second = batch("one"), batch("two")
    assert sink.put(first)
    assert not sink.put(second)
    assert (got, sink.outstanding) == ([], 2)
    sink.flush()
    assert got == [first, second]
    third = batch("three")
    assert sink.put(third)
    sink.end()
    sink.flush()
    assert got == [first, second, third, None]


class Noter(LoopActor):
    def __init__(self, dispatcher, *, notes, done):
        super().__init__(dispatcher)
        self.notes = notes
        self.done = done

    def handle(self, message):
        self.notes.append(message)
        self.dispatcher.after_round(lambda: self.after(message))

    def after(self, message):
        self.notes.append(f"after {message}")
        if message == "last":
            self.done.set()


def test_callbacks_come_after_the_round():
    loop = LoopDispatcher(starter=False)
    notes, done, held = [], threading.Event(), threading.Event()

    class Holder(LoopActor):
        def handle(self, message):
            held.wait(30)

    holder, ref = Holder.start(loop), Noter.start(loop, notes=notes, done=done)
    holder.tell("hold")
    ref.tell("first")
    ref.tell("last")
    held.set()
    assert done.wait(30)
    assert notes == ["first", "last", "after first", "after last"]
    for actor in (holder, ref):
        actor.stop()
    loop.stop()
    assert not pykka.ActorRegistry.get_all()
