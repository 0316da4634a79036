"""The subscriber's end: a callback that is called, or a stream that is read, for one session of a room or for all. Decides nothing.

A callback is called on a thread of the room's subscribers; a stream is read on the caller's own, or in an event loop. What a subscriber
asks for from a number on comes from the room's history, then from the journal if there is one; what is in neither is stated
(`EventsMissed`). Being slow, or raising, is nobody else's matter.
"""

from __future__ import annotations

import asyncio
import collections
import datetime as dt
import functools
import inspect
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Self

import attrs

from greenroom.actors.couriers import Couriers
from greenroom.actors.hub import After, Buffer, Hub, Item, Missed, Missing, last_of, later_than
from greenroom.actors.ticket import Batch
from greenroom.clock import LONGEST_WAIT_S
from greenroom.errors import GreenroomError, SessionStateError
from greenroom.events import EventsMissed, SessionEvent
from greenroom.journal.records import EventHistory

logger = logging.getLogger("greenroom.subscribers")

EVENTS_AT_ONCE = 256
QUEUE_LOOK_S = 0.05
PATIENCE_S = 2.0

Consult = Callable[..., Any]


# --- what came before


def _missed(session_id: str, first: int, last: int) -> Missed:
    """The mark in place of events that nobody has."""
    now = {"at_monotonic_s": time.monotonic(), "at_wall_s": time.time()}
    stamp = Batch(session_id=session_id, turn_id=None, incarnation=0, first_sequence=last, events=(), **now)
    return Missed(stamp, EventsMissed(last - first + 1, first, last))


def _read_back(missing: Missing, consult: Consult | None) -> Iterator[Item]:
    """Yield what the journal has of it, and marks for the rest. Blocks for the disk."""
    at = missing.after
    end = missing.before - 1 if missing.before is not None else None
    try:
        while consult is not None and (end is None or at < end):
            page: EventHistory = consult("events_page", missing.session_id, at)
            for item in _page(missing.session_id, page, end):
                yield item
                at = max(at, item.told.last_sequence if isinstance(item, Missed) else last_of(item))
            if page.complete:
                break
    except GreenroomError as error:
        logger.warning("session %s: events before the kept ones cannot be read: %s", missing.session_id, error)
    if end is not None and at < end:
        yield _missed(missing.session_id, at + 1, end)


def _page(session_id: str, page: EventHistory, end: int | None) -> Iterator[Item]:
    found: list[tuple[int, Item]] = [(gap.first_sequence, _missed(session_id, gap.first_sequence, gap.last_sequence)) for gap in page.gaps]
    for record in page.batches:
        batch = Batch(**{field.name: getattr(record, field.name) for field in attrs.fields(Batch)})
        found.append((batch.first_sequence, batch))
    for first, item in sorted(found, key=lambda pair: pair[0]):
        if end is not None and first > end:
            return
        if isinstance(item, Batch) and end is not None and last_of(item) > end:
            yield attrs.evolve(item, events=item.events[: end - first + 1])
        elif isinstance(item, Missed) and end is not None and item.told.last_sequence > end:
            yield _missed(session_id, first, end)
        else:
            yield item


class Feed:
    """One subscriber's events, one after another: what came before, then what its buffer has. One thread at a time."""

    def __init__(self, buffer: Buffer, missing: tuple[Missing, ...], consult: Consult | None) -> None:
        self._buffer = buffer
        self._missing = collections.deque(missing)
        self._consult = consult
        self._older: Iterator[Item] = iter(())
        self._floors: dict[str, int] = {}
        self._open: str | None = None
        self._events: collections.deque[SessionEvent] = collections.deque()

    @property
    def reads_back(self) -> bool:
        """Whether the next event may have to be read from the disk."""
        return bool(self._missing) or self._open is not None

    def next(self) -> SessionEvent | None:
        """Return the next event, or None when there is none now."""
        while not self._events:
            item = self._item()
            if item is None:
                return None
            self._events.extend(_envelopes(item))
        return self._events.popleft()

    def _item(self) -> Item | None:
        older = self._older_item()
        if older is not None:
            return older
        while (item := self._buffer.take()) is not None:
            # What was read back up to its end may have been published meanwhile as well.
            floor = self._floors.get(item.batch.session_id if isinstance(item, Missed) else item.session_id) if self._floors else None
            if floor is None or isinstance(item, Missed):
                return item
            later = later_than(item, floor)
            if later is not None:
                return later
        return None

    def _older_item(self) -> Item | None:
        while True:
            item = next(self._older, None)
            if item is not None:
                if self._open is not None:
                    self._floors[self._open] = item.told.last_sequence if isinstance(item, Missed) else last_of(item)
                return item
            self._open = None
            if not self._missing:
                return None
            missing = self._missing.popleft()
            self._open = missing.session_id
            self._older = _read_back(missing, self._consult)


def _envelopes(item: Item) -> Iterator[SessionEvent]:
    if isinstance(item, Batch):
        yield from item.envelopes()
        return
    stamp = item.batch
    yield SessionEvent(
        session_id=stamp.session_id,
        turn_id=stamp.turn_id,
        incarnation=stamp.incarnation,
        sequence=item.told.last_sequence,
        at_monotonic_s=stamp.at_monotonic_s,
        at=dt.datetime.fromtimestamp(stamp.at_wall_s, tz=dt.UTC),
        event=item.told,
    )


# --- a callback


class Subscription:
    """A callback that gets events until it is closed, or the room is. A context manager; any thread."""

    def __init__(self, hub: Hub, couriers: Couriers, receive: Callable[[SessionEvent], object], buffer: Buffer, feed: Feed) -> None:
        self._hub = hub
        self._couriers = couriers
        self._receive = receive
        self._buffer = buffer
        self._feed = feed
        self._closed = False
        self._pid = os.getpid()
        self.failures = 0
        couriers.give(self._serve)

    @property
    def dropped(self) -> int:
        """How many events it was too slow for."""
        return self._buffer.dropped

    @property
    def closed(self) -> bool:
        """Whether it gets no more."""
        return self._closed or self._buffer.over

    def close(self) -> None:
        """Get no more events; a call that is under way may still end. Also from within the callback; idempotent."""
        self._closed = True
        _leave(self._hub, self._buffer, self._pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _serve(self) -> bool:
        """Call the callback for what there is, and for no more than its share; return whether there is more."""
        for _ in range(EVENTS_AT_ONCE):
            event = None if self._closed else self._feed.next()
            if event is None:
                if not self.closed:
                    self._buffer.when_ready(self._give)
                return False
            self._call(event)
        return True

    def _give(self) -> None:
        self._couriers.give(self._serve)

    def _call(self, event: SessionEvent) -> None:
        try:
            self._receive(event)
        except BaseException:  # a subscriber's sys.exit must not silence the others
            self.failures += 1
            if self.failures == 1:
                logger.exception(
                    "a subscriber failed at %s of session %s; its further failures are counted", event.method, event.session_id
                )


def receiver(target: Any, buffer: Buffer) -> Callable[[SessionEvent], object]:
    """Return what hands an event to `target`: a callable, or a queue, into which a full one lets nothing until there is room.

    Raises TypeError for what is neither, and for coroutine functions.
    """
    put = getattr(target, "put", None)
    if isinstance(target, asyncio.Queue) or inspect.iscoroutinefunction(target):
        raise TypeError("a subscriber is called on a thread; in an event loop, read `room.events()`")
    if callable(target):
        return target  # type: ignore[no-any-return]
    if not callable(put):
        raise TypeError(f"a subscriber is a callable or a queue, got {type(target).__name__}")

    def into_queue(event: SessionEvent) -> None:
        while not buffer.left:
            try:
                put(event, timeout=QUEUE_LOOK_S)
            except queue.Full:
                continue
            return

    return into_queue


# --- a stream


class _Bell:
    """Wakes whoever waits for a stream. Known to the buffer instead of the stream, so that an abandoned stream can be collected."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._armed = False
        self.rung = 0
        self._loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def ring(self) -> None:
        """Wake everybody."""
        with self.changed:
            self._armed = False
            self.rung += 1
            loops, self._loops = self._loops, []
            self.changed.notify_all()
        for loop, future in loops:
            _call_soon(loop, future)

    def rang(self, before: int) -> bool:
        """Whether it was rung more often than `before`."""
        return self.rung > before

    def arm(self, buffer: Buffer) -> int:
        """Have it rung once there is something, perhaps at once; return how often it was rung before."""
        with self.changed:
            before, armed = self.rung, self._armed
            self._armed = True
        if not armed:
            buffer.when_ready(self.ring)
        return before

    def future(self, before: int) -> asyncio.Future[None]:
        """Return what is done once it is rung more often than `before`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self.changed:
            if self.rung > before:
                future.set_result(None)
            else:
                self._loops.append((loop, future))
        return future


def _call_soon(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_finish, future)
    except RuntimeError:  # the loop was closed: nobody waits there any more
        return


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _leave(hub: Hub, buffer: Buffer, pid: int) -> None:
    """Let the buffer have nothing more. Not in a forked child: whoever held the hub's lock is not there."""
    if pid == os.getpid():
        hub.leave(buffer)


class EventStream(AsyncIterator[SessionEvent]):
    """Events to read: by `get`, as an iterator, or as an asynchronous one. Ends when it is closed, or the room is. Any thread.

    It is a context manager, and closes itself when it is forgotten. In a forked child, which no event reaches, reading it raises
    SessionStateError.
    """

    def __init__(self, hub: Hub, buffer: Buffer, feed: Feed) -> None:
        self._buffer = buffer
        self._feed = feed
        self._lock = threading.Lock()
        self._bell = _Bell()
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _leave, hub, buffer, self._pid)
        self._finalizer.atexit = False

    @property
    def dropped(self) -> int:
        """How many events it was too slow for."""
        return self._buffer.dropped

    def close(self) -> None:
        """Get no more events; whoever waits for one is told that there is none. Idempotent."""
        self._finalizer()

    def get(self, timeout: float | None = None) -> SessionEvent | None:
        """Wait for the next event, at most `timeout` seconds; None: there will be none. Raises TimeoutError."""
        until_s = time.monotonic() + (LONGEST_WAIT_S if timeout is None else timeout)
        while True:
            event = self._next()
            if event is not None or self._buffer.over:
                return event
            before = self._bell.arm(self._buffer)
            with self._bell.changed:
                left_s = max(0.0, min(until_s - time.monotonic(), LONGEST_WAIT_S))
                if not self._bell.changed.wait_for(functools.partial(self._bell.rang, before), left_s):
                    raise TimeoutError(f"no event within {timeout} s")

    def _next(self) -> SessionEvent | None:
        if self._pid != os.getpid():
            raise SessionStateError("these events are told in the parent process; none can be read after a fork")
        with self._lock:
            return None if self._buffer.left else self._feed.next()

    def __iter__(self) -> Iterator[SessionEvent]:
        while (event := self.get()) is not None:
            yield event

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> SessionEvent:
        while True:
            event = await asyncio.to_thread(self._next) if self._feed.reads_back else self._next()
            if event is not None:
                return event
            if self._buffer.over:
                raise StopAsyncIteration
            await self._bell.future(self._bell.arm(self._buffer))

    async def aclose(self) -> None:
        """The same as `close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()


# --- for the room


def _check(session_id: object, after: object) -> None:
    """Raise TypeError or ValueError for what cannot be meant."""
    if session_id is not None and not isinstance(session_id, str):
        raise TypeError(f"session_id must be a str or None, got {type(session_id).__name__}")
    numbers = after.values() if isinstance(after, Mapping) else () if after is None else (after,)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"after must be a sequence number, or one for each session, got {number!r}")
        if number < 0:
            raise ValueError(f"after must be 0 or more, got {number}")


class Audience:
    """All who listen to a room. `consult` asks its journal, if it has one. Any thread."""

    def __init__(self, consult: Consult | None) -> None:
        self.hub = Hub()
        self._couriers = Couriers()
        self._consult = consult
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()

    def subscribe(self, subscriber: Any, session_id: str | None, after: After) -> Subscription:
        """Have a callback or a queue get events. Raises TypeError, ValueError."""
        buffer = Buffer()
        receive = receiver(subscriber, buffer)
        subscription = Subscription(self.hub, self._couriers, receive, buffer, self._join(buffer, session_id, after))
        self._subscriptions.add(subscription)
        return subscription

    def events(self, session_id: str | None, after: After) -> EventStream:
        """Return events to read. Raises TypeError, ValueError."""
        buffer = Buffer()
        return EventStream(self.hub, buffer, self._join(buffer, session_id, after))

    def _join(self, buffer: Buffer, session_id: str | None, after: After) -> Feed:
        _check(session_id, after)
        return Feed(buffer, self.hub.join(buffer, session_id, after), self._consult)

    def close(self) -> None:
        """Let everybody have what there is, and no more. A callback that does not return is waited for at most PATIENCE_S."""
        self.hub.close()
        if not self._couriers.close(PATIENCE_S):
            logger.error("a subscriber has not returned within %g s; its thread is left", PATIENCE_S)
            for subscription in list(self._subscriptions):
                subscription.close()
