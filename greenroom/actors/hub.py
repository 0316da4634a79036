"""Where a room's events can be had by anybody: a bounded history of each session, and who listens. Thread-safe; waits for nobody.

Sessions publish on the loop; that costs putting the texts together, and an append for each listener. A listener's buffer is its own: when
it is full, deltas are dropped and counted first, and the place where they were is marked (`EventsMissed`).
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from greenroom.actors.ticket import Batch
from greenroom.events import AgentEvent, AssistantText, EventsMissed, RawOutput, Reasoning, SessionEnded, Stderr, ToolCall, ToolResult

HISTORY_EVENTS = 2_000
HISTORY_CHARS = 2_000_000
ENDED_KEPT = 64
BUFFER_EVENTS = 10_000
LOSSLESS_EVENTS = 100_000
DELTAS = frozenset({AssistantText, Reasoning, Stderr, RawOutput})
"""What a subscriber that is too slow does without first."""

_TEXTS = (AssistantText, Reasoning, RawOutput, Stderr)


def _chars(events: tuple[AgentEvent, ...]) -> int:
    """About how much text events hold."""
    chars = 0
    for event in events:
        if isinstance(event, _TEXTS):
            chars += len(event.text)
        elif isinstance(event, ToolResult):
            chars += len(event.stdout) + len(event.stderr)
        elif isinstance(event, ToolCall):
            chars += sum(len(value) for value in event.args.values() if isinstance(value, str))
    return chars


def later_than(batch: Batch, sequence: int) -> Batch | None:
    """Return the part of the batch behind event number `sequence`, or None."""
    skipped = sequence + 1 - batch.first_sequence
    if skipped <= 0:
        return batch
    return attrs.evolve(batch, first_sequence=sequence + 1, events=batch.events[skipped:]) if skipped < len(batch.events) else None


def last_of(batch: Batch) -> int:
    """Return the number of the batch's last event."""
    return batch.first_sequence + len(batch.events) - 1


# By name, and by nothing that the garbage collector follows.
_NAMES: dict[type[AgentEvent], str] = {kind: kind.__name__ for kind in _TEXTS}
_BY_NAME: dict[str, Any] = {name: kind for kind, name in _NAMES.items()}
_Packed = tuple[str, int, str | None, int, float, float, tuple[str, ...], tuple[str, ...]]
Kept = Batch | _Packed


def _pack(batch: Batch) -> Kept:
    """Return the batch as strings and numbers alone, if it is made of texts: the garbage collector need not look at those.

    Hundreds of sessions keep some hundred thousand events; as objects, they would make each full collection a pause of a tenth of a second.
    """
    names, texts = [], []
    for event in batch.events:
        name = _NAMES.get(type(event))
        if name is None:
            return batch
        names.append(name)
        texts.append(event.text)  # type: ignore[attr-defined]
    stamp = (batch.session_id, batch.first_sequence, batch.turn_id, batch.incarnation, batch.at_monotonic_s, batch.at_wall_s)
    return (*stamp, tuple(names), tuple(texts))


def _unpack(kept: Kept) -> Batch:
    if isinstance(kept, Batch):
        return kept
    session_id, first_sequence, turn_id, incarnation, at_monotonic_s, at_wall_s, names, texts = kept
    return Batch(
        session_id=session_id,
        turn_id=turn_id,
        incarnation=incarnation,
        first_sequence=first_sequence,
        at_monotonic_s=at_monotonic_s,
        at_wall_s=at_wall_s,
        events=tuple([_BY_NAME[name](text) for name, text in zip(names, texts, strict=True)]),
    )


def _first_of(kept: Kept) -> int:
    return kept.first_sequence if isinstance(kept, Batch) else kept[1]


class Ring:
    """The latest events of one session, oldest first: HISTORY_EVENTS or HISTORY_CHARS of text at most, but the latest batch in any case.

    `last`: the number of the newest event; `last_at_s`: when it came; `ended`: nothing follows it.
    """

    __slots__ = ("_chars", "_events", "_kept", "_sizes", "ended", "last", "last_at_s")

    def __init__(self) -> None:
        self._kept: collections.deque[Kept] = collections.deque()
        self._sizes: collections.deque[tuple[int, int]] = collections.deque()
        self._events = 0
        self._chars = 0
        self.last = 0
        self.last_at_s = 0.0
        self.ended = False

    def add(self, batch: Batch) -> None:
        """Take a batch; forget the oldest ones for it."""
        events, count = batch.events, len(batch.events)
        chars = _chars(events)
        self._kept.append(_pack(batch))
        self._sizes.append((count, chars))
        self.last, self.last_at_s = batch.first_sequence + count - 1, batch.at_monotonic_s
        self.ended = type(events[-1]) is SessionEnded
        self._events += count
        self._chars += chars
        while (self._events > HISTORY_EVENTS or self._chars > HISTORY_CHARS) and len(self._kept) > 1:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        self._kept.popleft()
        count, chars = self._sizes.popleft()
        self._events -= count
        self._chars -= chars

    @property
    def first(self) -> int:
        """The number of the oldest event that is there."""
        return _first_of(self._kept[0])

    def later_than(self, sequence: int) -> tuple[list[Kept], int]:
        """Return what is kept behind event number `sequence`, and how many events that is."""
        later, events = [], 0
        for kept, (count, _) in zip(reversed(self._kept), reversed(self._sizes), strict=True):
            if _first_of(kept) > sequence:
                later.append(kept)
                events += count
                continue
            part = later_than(_unpack(kept), sequence)
            if part is not None:
                later.append(part)
                events += len(part.events)
            break
        later.reverse()
        return later, events


@attrs.define
class Missed:
    """The mark in place of events that a listener does not get; numbers are of `batch`'s session, whose stamp it bears.

    It grows while it waits, and changes no more once it has been taken.
    """

    batch: Batch
    told: EventsMissed


Item = Batch | Missed


class Buffer:
    """What one listener has not had yet. The hub puts; the listener takes, on any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an abandoned stream may be collected in the middle of a publish
        self._items: collections.deque[Kept | Missed] = collections.deque()
        self._marks: dict[str, Missed] = {}
        self._events = 0
        self._wakers: list[Callable[[], None]] = []
        self._ended = False
        self.left = False
        self.dropped = 0

    def put(self, batch: Batch) -> None:
        """Take a batch, or what there is room for of it. Never blocks for long, never raises."""
        with self._lock:
            if self._ended:
                return
            if self._events + len(batch.events) > BUFFER_EVENTS:
                self._squeeze(batch)
            else:
                self._add(batch)
            wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    def seed(self, past: Iterable[Kept], events: int) -> None:
        """Begin with these, of so many events. They are made where they are taken: meanwhile the sessions wait for the hub."""
        with self._lock:
            self._items.extend(past)
            self._events += events

    def _squeeze(self, batch: Batch) -> None:
        for index, event in enumerate(batch.events):
            one = attrs.evolve(batch, first_sequence=batch.first_sequence + index, events=(event,))
            if self._events >= LOSSLESS_EVENTS or (type(event) in DELTAS and self._events >= BUFFER_EVENTS):
                self.dropped += 1
                self._miss(one)
            else:
                self._add(one)

    def _add(self, batch: Batch) -> None:
        self._items.append(batch)
        self._events += len(batch.events)
        self._marks.pop(batch.session_id, None)

    def _miss(self, one: Batch) -> None:
        """Mark that it is not there: where the session's last mark stands, unless something of that session follows it."""
        number, stamp = one.first_sequence, attrs.evolve(one, events=())
        mark = self._marks.get(one.session_id)
        if mark is not None:
            mark.batch, mark.told = stamp, EventsMissed(mark.told.count + 1, mark.told.first_sequence, number)
            return
        mark = self._marks[one.session_id] = Missed(stamp, EventsMissed(1, number, number))
        self._items.append(mark)

    def take(self) -> Item | None:
        """Return the next item, or None when there is none now."""
        with self._lock:
            if not self._items:
                return None
            item = self._items.popleft()
            if not isinstance(item, Missed):
                batch = _unpack(item)
                self._events -= len(batch.events)
                return batch
            if self._marks.get(item.batch.session_id) is item:
                del self._marks[item.batch.session_id]
            return item

    @property
    def over(self) -> bool:
        """Whether nothing is left, and nothing comes."""
        with self._lock:
            return self._ended and not self._items

    def end(self, *, drop: bool = False) -> None:
        """Nothing comes any more; what is there can still be taken, unless it is dropped."""
        with self._lock:
            self._ended = True
            if drop:
                self.left = True
                self._items.clear()
            wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    def when_ready(self, waker: Callable[[], None]) -> None:
        """Call `waker` once, when something can be taken or it has ended; perhaps at once. It must not block or raise."""
        with self._lock:
            if not self._items and not self._ended:
                self._wakers.append(waker)
                return
        waker()


@attrs.frozen(kw_only=True)
class Missing:
    """What the history here does not have of one session: the events behind `after`, up to before `before` (None: all of them)."""

    session_id: str
    after: int
    before: int | None


After = int | Mapping[str, int] | None


class Hub:
    """A room's histories and listeners."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an abandoned stream may be collected in the middle of a publish
        self._rings: dict[str, Ring] = {}
        self._everywhere: tuple[Buffer, ...] = ()
        self._of: dict[str, tuple[Buffer, ...]] = {}
        self._closed = False

    def publish(self, batch: Batch) -> None:
        """Take events of a session. Called on the loop."""
        with self._lock:
            ring = self._rings.get(batch.session_id)
            if ring is None or batch.first_sequence <= ring.last:  # a session of that name begins anew
                ring = self._rings[batch.session_id] = Ring()
            ring.add(batch)
            if self._everywhere:
                for buffer in self._everywhere:
                    buffer.put(batch)
            if self._of:
                for buffer in self._of.get(batch.session_id, ()):
                    buffer.put(batch)

    def join(self, buffer: Buffer, session_id: str | None, after: After) -> tuple[Missing, ...]:
        """Let the buffer have what is published from now on, behind what is kept; return what is not kept of what was asked for."""
        with self._lock:
            missing: list[Missing] = []
            for known, number in self._asked(session_id, after).items():
                missing.extend(self._seed(buffer, known, number))
            if self._closed:
                buffer.end()
            elif session_id is None:
                self._everywhere = (*self._everywhere, buffer)
            else:
                self._of[session_id] = (*self._of.get(session_id, ()), buffer)
            return tuple(missing)

    def _asked(self, session_id: str | None, after: After) -> dict[str, int]:
        if after is None:
            return {}
        if isinstance(after, int):
            return dict.fromkeys(self._rings if session_id is None else (session_id,), after)
        return {known: number for known, number in after.items() if session_id in (None, known)}

    def _seed(self, buffer: Buffer, session_id: str, after: int) -> Iterable[Missing]:
        ring = self._rings.get(session_id)
        if ring is None:
            return (Missing(session_id=session_id, after=after, before=None),)
        # A number that was never given out is one of another life: then all that is there is news.
        after = after if after <= ring.last else 0
        buffer.seed(*ring.later_than(after))
        return (Missing(session_id=session_id, after=after, before=ring.first),) if ring.first > after + 1 else ()

    def leave(self, buffer: Buffer) -> None:
        """Let the buffer have nothing more. Any thread; idempotent."""
        with self._lock:
            self._everywhere = tuple(one for one in self._everywhere if one is not buffer)
            self._of = {name: rest for name, some in self._of.items() if (rest := tuple(one for one in some if one is not buffer))}
        buffer.end(drop=True)

    def forget_ended(self) -> None:
        """Forget the histories of all but the ENDED_KEPT sessions that ended last."""
        with self._lock:
            ended = [name for name, ring in self._rings.items() if ring.ended]
            for name in sorted(ended, key=lambda name: self._rings[name].last_at_s)[:-ENDED_KEPT]:
                del self._rings[name]

    def close(self) -> None:
        """Nothing is published any more: every listener ends once it has had what there is. Idempotent."""
        with self._lock:
            self._closed = True
            buffers = {*self._everywhere, *(buffer for some in self._of.values() for buffer in some)}
            self._everywhere, self._of = (), {}
        for buffer in buffers:
            buffer.end()
