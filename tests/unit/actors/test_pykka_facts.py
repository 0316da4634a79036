"""The facts about Pykka that `actors/runtime.py` builds on: an upgrade that changes one is noticed here."""

import queue

import pykka
import pytest
from pykka import messages
from pykka._envelope import Envelope

from greenroom.actors.runtime import Inbox
from tests.unit.actors.doubles import Echo, Line


def test_the_seams_are_called_as_we_expect():
    line = Line()
    ref = Echo.start(line)
    assert isinstance(ref.actor_inbox, Inbox)
    assert line.scheduled
    ref.tell("a")
    future = ref.ask("b", block=False)
    line.run()
    assert future.get(timeout=1) == "b"
    ref.stop(block=False)
    line.run()
    assert not ref.is_alive()
    assert ref not in pykka.ActorRegistry.get_all()


def test_an_envelope_has_a_message_and_a_reply_to():
    envelope = Envelope("m", reply_to=None)
    assert (envelope.message, envelope.reply_to) == ("m", None)


def test_a_stop_is_an_ordinary_message():
    assert isinstance(messages._ActorStop(), object)
    line = Line()
    ref = Echo.start(line)
    actor = line.scheduled[0]
    ref.tell("before")
    ref.stop(block=False)
    line.run()
    assert actor.seen == ["before"]


def test_a_future_may_be_set_once():
    future = pykka.ThreadingFuture()
    future.set(1)
    with pytest.raises(queue.Full):
        future.set(2)


def test_a_ref_does_not_keep_its_actor_but_the_inbox_does():
    line = Line()
    ref = Echo.start(line)
    line.scheduled.clear()
    ref.actor_inbox.scheduled = False
    ref.tell("still there")
    assert line.scheduled
    actor = line.scheduled[0]
    line.run()
    assert actor.seen == ["still there"]
    ref.stop(block=False)
    line.run()
