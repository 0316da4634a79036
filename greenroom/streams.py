"""The events of a turn in an event loop: how batches reach it, and the iterator that hands them out.

Decides nothing about the turn: whoever stops listening only detaches. Made and read in one event loop; filled by the loop thread of ours.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from greenroom.actors import messages as m
from greenroom.actors.runtime import tell
from greenroom.actors.session import SessionCore
from greenroom.actors.ticket import Batch, Sink
from greenroom.events import SessionEvent
from greenroom.model import Turn

if TYPE_CHECKING:
    from greenroom.agent import Session, TurnTicket


class Mailbox:
    """Batches on their way into an event loop; known to the sink instead of the stream, so that an abandoned stream can be collected."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self.batches: list[Batch | None] = []
        self.arrived = asyncio.Event()

    def __call__(self, batch: Batch | None) -> None:
        """Put a batch in, or None for the end. Any thread."""
        with self._lock:
            first = not self.batches
            self.batches.append(batch)
        if first:
            _call_soon(self._loop, self.arrived.set)

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
        self._sink = None if silent else Sink(self._mailbox, session._credit(ticket.turn_id), self._loop.is_closed)
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


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> bool:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop was closed: nobody listens there any more
        return False
    return True


def waker(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> Callable[[], None]:
    """Return what wakes the one who waits for `done` in `loop`; callable from any thread, as often as wanted."""

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def wake() -> None:
        _call_soon(loop, finish)

    return wake
