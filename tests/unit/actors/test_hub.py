"""A room's history and its listeners' buffers: what is kept, what is dropped first, and what is said of it."""

from __future__ import annotations

import gc
import inspect

import attrs
import pytest

from greenroom import events as told
from greenroom.actors import hub as hubs
from greenroom.actors.hub import Buffer, Hub, Missed, Missing, later_than
from greenroom.actors.ticket import Batch
from greenroom.events import AgentEvent, AssistantText, EventsMissed, RawOutput, Reasoning, SessionEnded, Stderr, ToolResult, TurnCompleted


def batch(first, *events, session="s"):
    events = events or (AssistantText("x"),)
    return Batch(
        session_id=session,
        turn_id="t",
        incarnation=1,
        first_sequence=first,
        at_monotonic_s=float(first),
        at_wall_s=0.0,
        events=tuple(events),
    )


def numbers(buffer):
    """Return the numbers of the events that the buffer has, a pair for a mark."""
    found = []
    while (item := buffer.take()) is not None:
        if isinstance(item, Missed):
            found.append((item.told.count, item.told.first_sequence, item.told.last_sequence))
        else:
            found += range(item.first_sequence, item.first_sequence + len(item.events))
    return found


def joined(hub, session_id=None, after=None):
    buffer = Buffer()
    return buffer, hub.join(buffer, session_id, after)


def test_only_what_is_new_unless_asked():
    hub = Hub()
    hub.publish(batch(1))
    buffer, missing = joined(hub)
    hub.publish(batch(2))
    assert (numbers(buffer), missing) == ([2], ())


def test_from_a_number_on_even_within_a_batch():
    hub = Hub()
    hub.publish(batch(1, *[AssistantText("x")] * 3))
    hub.publish(batch(4))
    assert numbers(joined(hub, "s", 2)[0]) == [3, 4]
    assert numbers(joined(hub, None, {"s": 3, "other": 1})[0]) == [4]
    assert later_than(batch(1), 1) is None


def test_one_session_or_all():
    hub = Hub()
    one, everything = joined(hub, "a")[0], joined(hub)[0]
    hub.publish(batch(1, session="a"))
    hub.publish(batch(1, session="b"))
    assert (numbers(one), numbers(everything)) == ([1], [1, 1])


def test_history_is_bounded_by_events_and_what_is_gone_is_stated(monkeypatch):
    monkeypatch.setattr(hubs, "HISTORY_EVENTS", 5)
    hub = Hub()
    for number in range(1, 11):
        hub.publish(batch(number))
    buffer, missing = joined(hub, "s", 2)
    assert missing == (Missing(session_id="s", after=2, before=6),)
    assert numbers(buffer) == [6, 7, 8, 9, 10]
    assert joined(hub, "s", 5)[1] == ()


LONG = "x" * 600


@pytest.mark.parametrize(
    "event",
    [ToolResult("1", "Bash", stdout=LONG), *(kind(LONG) for kind in (AssistantText, Reasoning, RawOutput, Stderr))],
    ids=lambda event: type(event).__name__,
)
def test_history_is_bounded_by_size(monkeypatch, event):
    monkeypatch.setattr(hubs, "HISTORY_CHARS", 1000)
    hub = Hub()
    for number in range(1, 5):
        hub.publish(batch(number, event))
    assert numbers(joined(hub, "s", 0)[0]) == [4]


def test_the_latest_batch_is_kept_whatever_its_size(monkeypatch):
    monkeypatch.setattr(hubs, "HISTORY_EVENTS", 2)
    hub = Hub()
    hub.publish(batch(1))
    hub.publish(batch(2, *[AssistantText("x")] * 3))
    assert numbers(joined(hub, "s", 1)[0]) == [2, 3, 4]
    hub.publish(batch(5))
    buffer, missing = joined(hub, "s", 0)
    assert (numbers(buffer), missing) == ([5], (Missing(session_id="s", after=0, before=5),))


def test_what_is_at_the_bound_is_kept(monkeypatch):
    monkeypatch.setattr(hubs, "HISTORY_EVENTS", 4)
    monkeypatch.setattr(hubs, "HISTORY_CHARS", 4)
    hub = Hub()
    hub.publish(batch(1, *[AssistantText("x")] * 2))
    hub.publish(batch(3, *[AssistantText("x")] * 2))
    for after in range(5):
        buffer, missing = joined(hub, "s", after)
        assert (numbers(buffer), missing) == (list(range(after + 1, 5)), ())


def test_numbers_that_were_never_published_do_not_shift_the_others(monkeypatch):
    """A session's actor that crashed between record and publish has such a gap behind it."""
    monkeypatch.setattr(hubs, "HISTORY_EVENTS", 2)
    hub = Hub()
    for number in (1, 2, 7, 8):
        hub.publish(batch(number))
    buffer, missing = joined(hub, "s", 2)
    assert (numbers(buffer), missing) == ([7, 8], (Missing(session_id="s", after=2, before=7),))


def kinds_of_events():
    return [kind for kind in vars(told).values() if inspect.isclass(kind) and issubclass(kind, AgentEvent) and attrs.has(kind)]


@attrs.frozen
class Shouted(AssistantText):
    """As a transport of a user's own may tell it."""

    volume: int = 11


PLAIN = [
    kind(**{name: {"its": name} if name == "args" else f"its {name}" for name in attrs.fields_dict(kind)}) for kind in kinds_of_events()
]


@pytest.mark.parametrize("event", [*PLAIN, Shouted("hey")], ids=lambda event: type(event).__name__)
def test_the_past_is_told_as_it_was(event):
    hub = Hub()
    texts = [AssistantText("a"), Reasoning("b"), RawOutput("c"), Stderr("d"), Stderr("")]
    published = [batch(1, event), batch(2, event, *texts), batch(8, *texts, event), batch(14, *texts)]
    for one in published:
        hub.publish(one)
    buffer, _ = joined(hub, "s", 0)
    found = [buffer.take() for _ in published]
    assert found == published
    assert [[type(event) for event in one.events] for one in found] == [[type(event) for event in one.events] for one in published]
    buffer, _ = joined(hub, "s", 4)
    assert buffer.take() == later_than(published[1], 4)


def test_the_garbage_collector_passes_over_the_texts_of_the_past():
    hub = Hub()
    hub.publish(batch(1, *[kind("x") for kind in (AssistantText, Reasoning, RawOutput, Stderr)]))
    for _ in range(3):  # from the innermost tuple outward
        gc.collect()
    assert not any(gc.is_tracked(kept) for kept in hub._rings["s"]._kept)


def test_whoever_asks_for_the_past_keeps_the_sessions_waiting_for_none_of_it():
    """They publish under the hub's lock: a long history is made into events where it is taken."""
    hub = Hub()
    for number in range(1, 11):
        hub.publish(batch(number))
    buffer, _ = joined(hub, "s", 3)
    kept = [id(one) for one in hub._rings["s"]._kept]
    assert [id(one) for one in buffer._items] == kept[3:]
    assert numbers(buffer) == list(range(4, 11))


def test_a_past_that_has_been_taken_leaves_its_room(monkeypatch):
    monkeypatch.setattr(hubs, "BUFFER_EVENTS", 4)
    hub = Hub()
    hub.publish(batch(1, *[AssistantText("x")] * 3))
    hub.publish(batch(4))
    buffer, _ = joined(hub, "s", 1)
    hub.publish(batch(5))
    hub.publish(batch(6))
    assert numbers(buffer) == [2, 3, 4, 5, (1, 6, 6)]
    hub.publish(batch(7, *[AssistantText("x")] * 4))
    assert numbers(buffer) == [7, 8, 9, 10]


def test_a_number_from_another_life_gives_all_there_is():
    hub = Hub()
    hub.publish(batch(1))
    assert numbers(joined(hub, "s", 500)[0]) == [1]


def test_a_session_that_begins_anew_has_a_new_history():
    hub = Hub()
    hub.publish(batch(7, SessionEnded()))
    hub.publish(batch(1))
    assert numbers(joined(hub, "s", 0)[0]) == [1]


def test_histories_of_ended_sessions_are_forgotten_in_time(monkeypatch):
    monkeypatch.setattr(hubs, "ENDED_KEPT", 2)
    hub = Hub()
    for number in range(1, 6):
        hub.publish(batch(number, SessionEnded(), session=f"s{number}"))
    hub.publish(batch(1, session="living"))
    hub.forget_ended()
    assert set(hub._rings) == {"s4", "s5", "living"}


def test_a_full_buffer_drops_deltas_and_keeps_the_rest(monkeypatch):
    monkeypatch.setattr(hubs, "BUFFER_EVENTS", 3)
    hub = Hub()
    buffer, _ = joined(hub)
    for number in range(1, 6):
        hub.publish(batch(number))
    hub.publish(batch(6, TurnCompleted("Turn completed", "completed"), AssistantText("x")))
    assert buffer.dropped == 3
    assert numbers(buffer) == [1, 2, 3, (2, 4, 5), 6, (1, 7, 7)]


def test_what_must_not_be_lost_is_lost_beyond_its_own_bound(monkeypatch):
    monkeypatch.setattr(hubs, "BUFFER_EVENTS", 1)
    monkeypatch.setattr(hubs, "LOSSLESS_EVENTS", 2)
    hub = Hub()
    buffer, _ = joined(hub)
    for number in range(1, 5):
        hub.publish(batch(number, TurnCompleted("", "error")))
    assert (numbers(buffer), buffer.dropped) == ([1, 2, (2, 3, 4)], 2)


def test_once_there_is_room_again_all_is_taken_again(monkeypatch):
    monkeypatch.setattr(hubs, "BUFFER_EVENTS", 1)
    hub = Hub()
    buffer, _ = joined(hub)
    hub.publish(batch(1))
    hub.publish(batch(2))
    assert numbers(buffer) == [1, (1, 2, 2)]
    hub.publish(batch(3))
    assert numbers(buffer) == [3]


def test_marks_of_two_sessions_stay_apart(monkeypatch):
    monkeypatch.setattr(hubs, "BUFFER_EVENTS", 0)
    hub = Hub()
    buffer, _ = joined(hub)
    for session in ("a", "a", "b"):
        hub.publish(batch(1, session=session))
    first, second = buffer.take(), buffer.take()
    assert (first.batch.session_id, first.told.count) == ("a", 2)
    assert (second.batch.session_id, second.told) == ("b", EventsMissed(1, 1, 1))


def test_what_sessions_lose_by_turns_takes_one_mark_each_and_none_of_their_text(monkeypatch):
    monkeypatch.setattr(hubs, "BUFFER_EVENTS", 1)
    buffer, items = Buffer(), []
    buffer.put(batch(1, session="full"))
    for first in range(1, 1001):
        buffer.put(batch(first, session="a"))
        buffer.put(batch(first, session="b"))
    buffer.put(batch(1001, TurnCompleted("", "completed"), session="a"))
    buffer.put(batch(1002, session="a"))
    while (item := buffer.take()) is not None:
        items.append((item.batch.session_id, item.told, item.batch.events) if isinstance(item, Missed) else item)
    lost = EventsMissed(1000, 1, 1000)
    assert items[1:3] == [("a", lost, ()), ("b", lost, ())]
    assert items[4:] == [("a", EventsMissed(1, 1002, 1002), ())]


def test_a_mark_that_was_taken_changes_no_more(monkeypatch):
    monkeypatch.setattr(hubs, "BUFFER_EVENTS", 0)
    buffer = Buffer()
    buffer.put(batch(1))
    first = buffer.take()
    buffer.put(batch(2))
    assert (first.told, buffer.take().told) == (EventsMissed(1, 1, 1), EventsMissed(1, 2, 2))


def test_a_waker_is_called_once_and_at_once_if_there_is_something():
    hub, calls = Hub(), []
    buffer, _ = joined(hub)
    buffer.when_ready(lambda: calls.append(1))
    assert calls == []
    hub.publish(batch(1))
    hub.publish(batch(2))
    assert calls == [1]
    buffer.when_ready(lambda: calls.append(2))
    assert calls == [1, 2]


def test_a_listener_may_leave_in_the_middle_of_a_publish():
    """As an abandoned stream does that the garbage collector finds on the loop."""
    hub = Hub()
    (first, _), (second, _) = joined(hub), joined(hub)
    first.when_ready(lambda: (hub.leave(first), hub.leave(second)))
    hub.publish(batch(1))
    assert (first.over, second.over, hub._everywhere) == (True, True, ())


@pytest.mark.parametrize("session_id", [None, "s"])
def test_who_left_gets_nothing(session_id):
    hub = Hub()
    buffer, _ = joined(hub, session_id)
    hub.publish(batch(1))
    hub.leave(buffer)
    hub.leave(buffer)
    hub.publish(batch(2))
    assert (numbers(buffer), buffer.over) == ([], True)
    assert (hub._everywhere, hub._of) == ((), {})


def test_the_end_comes_behind_what_there_is():
    hub = Hub()
    buffer, _ = joined(hub, "s")
    hub.publish(batch(1))
    hub.close()
    assert not buffer.over
    assert (numbers(buffer), buffer.over) == ([1], True)
    late, _ = joined(hub, "s", 0)
    assert (numbers(late), late.over) == ([1], True)
