"""The events of a turn in an event loop: how batches reach it, and the iterator that hands them out.

Decides nothing about the turn: whoever stops listening only detaches. Made and read in one event loop; filled by the loop thread of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from greenroom.actors import messages as m
from greenroom.actors.core import SessionCore
from greenroom.actors.runtime import tell
from greenroom.actors.ticket import Batch, Sink
from greenroom.events import SessionEvent
from greenroom.model import Turn

if TYPE_CHECKING:
    from greenroom.preparing import TurnTicket
    from greenroom.session import Session


class _Bell:
    """Wakes an event loop once for all that arrives until it comes round: a wake is a system call, and gives up the GIL in mid-work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: list[Callable[[], object]] = []

    def ring(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        """Have `callback` called in `loop`, in the order of the calls. Any thread."""
        with self._lock:
            first = not self._due
            self._due.append(callback)
        if first:
            # Raised when the loop is closed: nobody listens there any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        with self._lock:
            due, self._due = self._due, []
        for callback in due:
            callback()


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = weakref.WeakKeyDictionary()
_bells_lock = threading.Lock()


def _bell_of(loop: asyncio.AbstractEventLoop) -> _Bell:
    with _bells_lock:
        # A bell that was never answered keeps its loop alive.
        for closed in [known for known in _bells if known.is_closed()]:
            del _bells[closed]
        return _bells.setdefault(loop, _Bell())


class Mailbox:
    """Batches on their way into an event loop; known to the sink instead of the stream, so that an abandoned stream can be collected."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bell = _bell_of(loop)
        self._lock = threading.Lock()
        self.batches: list[Batch | None] = []
        self.arrived = asyncio.Event()

    def __call__(self, batch: Batch | None) -> None:
        """Put a batch in, or None for the end. Any thread."""
        with self._lock:
            first = not self.batches
            self.batches.append(batch)
        if first:
            self._bell.ring(self._loop, self.arrived.set)

    def take(self) -> list[Batch | None]:
        """Return what has come; None is the end."""
        with self._lock:
            taken, self.batches = self.batches, []
            self.arrived.clear()
        return taken


class TurnStream(AsyncIterator[SessionEvent]):
    """The events of one turn, in the event loop in which it was made. An abandoned stream detaches; the turn goes on."""

    def __init__(self, session: Session, ticket: TurnTicket, *, silent: bool = False) -> None:
        self._session = session
        self._ticket = ticket
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox(self._loop)
        self._buffer: list[SessionEvent] = []
        self._ended = False
        self._sink = None if silent else Sink(self._mailbox, session._credit(ticket), self._loop.is_closed)
        session._start(ticket, self._sink)
        self._finalizer = weakref.finalize(self, _abandon, self._sink, session._core, ticket.turn_id)
        self._finalizer.atexit = False

    def __aiter__(self) -> TurnStream:
        return self

    async def __anext__(self) -> SessionEvent:
        while not self._buffer:
            if self._ended:
                await self.turn()
                raise StopAsyncIteration
            await self._fill()
        return self._buffer.pop()

    async def _fill(self) -> None:
        await self._mailbox.arrived.wait()
        batches = self._mailbox.take()
        events: list[SessionEvent] = []
        for batch in batches:
            if batch is None:
                self._ended = True
            else:
                events.extend(batch.envelopes())
        if self._sink is not None:
            self._sink.consumed(len(events))
        self._buffer = events[::-1]

    async def turn(self) -> Turn:
        """Wait for the outcome and return it, or raise its error. Events that were not taken are dropped."""
        if not self._ended:
            self.detach()
        done: asyncio.Future[None] = self._loop.create_future()
        core = self._ticket._core
        core.cell.when_settled(waker(self._loop, done))
        await done
        return core.outcome()

    def detach(self) -> None:
        """Listen no more; the turn goes on. Idempotent."""
        self._finalizer()

    async def aclose(self) -> None:
        """The same as `detach`."""
        self.detach()


def _abandon(sink: Sink | None, core: SessionCore, turn_id: str) -> None:
    if sink is not None and not sink.detached:
        sink.detach()
        tell(core.ref, m.Detach(turn_id=turn_id))


def waker(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> Callable[[], None]:
    """Return what wakes the one who waits for `done` in `loop`; callable from any thread, as often as wanted."""

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    bell = _bell_of(loop)

    def wake() -> None:
        bell.ring(loop, finish)

    return wake
