"""Pykka's seams: an actor type that needs no thread, with an inbox of two lanes that closes. Decides how an actor dies, never what it does.

This file alone uses Pykka's private names; `tests/unit/actors/test_pykka_facts.py` pins each fact it builds on. Actors run on the
thread of their dispatcher; `put` (and so `tell` and `ask`) may be called from any thread.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import attrs
import pykka
from pykka import messages as pykka_messages
from pykka._envelope import Envelope

if TYPE_CHECKING:
    from pykka import Future

logger = logging.getLogger("greenroom.actors")

SLOW_HANDLER_S = 0.05


def log(level: int, text: str, *args: object, error: BaseException | None = None) -> None:
    """Log. A handler of the user's log that raises must end no loop, no thread and no end of an actor."""
    with contextlib.suppress(Exception):
        logger.log(level, text, *args, exc_info=error, stacklevel=2)


class Message:
    """Base of all messages between actors. `control`: overtakes ordinary messages, and must make sense in any order against them."""

    __slots__ = ()
    control = False

    def refuse(self) -> None:
        """The receiver is dead or died: answer whoever waits. Must not raise; any thread."""


@attrs.frozen(kw_only=True)
class ActorDown(Message):
    """A watched actor ended. `error` is None when it stopped in order. Ordinary: it never overtakes the actor's last messages."""

    urn: str
    error: BaseException | None


class Scheduler(Protocol):
    """The part of a dispatcher that inboxes and actors see."""

    def schedule(self, actor: LoopActor, *, first: bool = False) -> None:
        """Let `actor` have a turn soon; `first`: before others that wait. Any thread."""


class Inbox:
    """Two lanes, control first; closes for good, and answers what comes later or was left."""

    __slots__ = ("_actor", "_control", "_ordinary", "closed", "scheduled", "urgent")

    def __init__(self) -> None:
        self._control: collections.deque[Envelope[Any]] = collections.deque()
        self._ordinary: collections.deque[Envelope[Any]] = collections.deque()
        self._actor: LoopActor | None = None
        self.closed = False
        self.scheduled = False
        self.urgent = False

    def bind(self, actor: LoopActor) -> None:
        """Belong to `actor`. The inbox keeps it alive: Pykka's refs hold it weakly."""
        self._actor = actor

    def put(self, envelope: Envelope[Any], /) -> None:
        """Take an envelope, from any thread. After `close` it is answered at once."""
        message = envelope.message
        # Pykka's stop is ordinary: what was told before it is handled before it.
        control = isinstance(message, Message) and message.control
        (self._control if control else self._ordinary).append(envelope)
        if self.closed:
            # Checked after the append: whichever of us and `close` comes second empties the lanes, each envelope once.
            self.refuse_all()
        elif (not self.scheduled or (control and not self.urgent)) and self._actor is not None:
            # An actor that waits for its turn already waits twice then; the second time it finds nothing to do.
            self.scheduled, self.urgent = True, control
            self._actor.dispatcher.schedule(self._actor, first=control)

    def get(self) -> Envelope[Any]:
        """Return the next envelope, control lane first. Raises IndexError when empty."""
        return (self._control or self._ordinary).popleft()

    def empty(self) -> bool:
        """Whether both lanes are empty."""
        return not self._control and not self._ordinary

    def __len__(self) -> int:
        return len(self._control) + len(self._ordinary)

    def drain(self) -> Iterator[Envelope[Any]]:
        """Pop everything."""
        while True:
            try:
                yield self.get()
            except IndexError:
                return

    def close(self) -> None:
        """Take nothing any more, and answer what is left."""
        self.closed = True
        self.refuse_all()

    def refuse_all(self) -> None:
        """Answer and drop what is in the lanes."""
        for envelope in self.drain():
            _refuse(envelope)


def _answer(message: object) -> None:
    """Let a message that nobody will handle answer for itself. A refusal that fails must not end the loop, or leave the next unanswered."""
    if not isinstance(message, Message):
        return
    try:
        message.refuse()
    except Exception as error:  # noqa: BLE001
        log(logging.ERROR, "%s failed to answer for itself", type(message).__name__, error=error)


def _refuse(envelope: Envelope[Any]) -> None:
    message = envelope.message
    _answer(message)
    if envelope.reply_to is None:
        return
    if isinstance(message, pykka_messages._ActorStop):  # noqa: SLF001
        envelope.reply_to.set(None)
    else:
        error = pykka.ActorDeadError("the actor ended before it handled the message")
        envelope.reply_to.set_exception((type(error), error, None))


class LoopActor(pykka.Actor):
    """An actor run by a dispatcher. Subclasses write `handle`; every way to die ends in `on_down`, once, and in one ActorDown per watcher.

    An exception in `on_start` or `handle`, told or asked, ordinary or BaseException, ends this actor and no other. `is_over`: it has ended;
    for its own thread, what `actor_stopped` is for others.
    """

    def __init__(self, dispatcher: Scheduler) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self._watchers: list[pykka.ActorRef[Any]] = []
        self._has_started = False
        self.is_over = False
        self._inbox = cast("Inbox", self.actor_inbox)
        self._inbox.bind(self)

    @staticmethod
    def _create_actor_inbox() -> Inbox:
        return Inbox()

    @staticmethod
    def _create_future() -> Future[Any]:
        return pykka.ThreadingFuture()

    def _start_actor_loop(self) -> None:
        self._inbox.scheduled = True
        self.dispatcher.schedule(self)

    @property
    def is_urgent(self) -> bool:
        """Whether a control message has come since its last turn."""
        return self._inbox.urgent

    def watch(self, watcher: pykka.ActorRef[Any]) -> None:
        """Tell `watcher` an ActorDown when this actor ends. Before its start, or from its own handler."""
        self._watchers.append(watcher)

    def _handle_receive(self, message: Any) -> Any:
        # Pykka's own tries its proxies' messages first, on every message; our actors have no proxies.
        return self._stop() if isinstance(message, pykka_messages._ActorStop) else self.handle(message)  # noqa: SLF001

    def handle(self, message: Any) -> Any:
        """Handle one message."""
        raise NotImplementedError

    def on_down(self, error: BaseException | None) -> None:
        """The actor ended, in whatever way: settle what others wait for. Comes once; its inbox is closed already."""

    def run_batch(self, messages: int) -> bool:
        """Handle up to `messages` envelopes; called by the dispatcher on its thread. Return whether it is to have another turn."""
        inbox = self._inbox
        # Cleared first: a put from now on schedules again, at worst once too often.
        inbox.scheduled = inbox.urgent = False
        if self.is_over:
            return False
        if not self._has_started:
            self._has_started = True
            if not self._guarded(lambda _message: self.on_start(), Envelope(None)):
                return False
        began_s = time.perf_counter()
        for _ in range(messages):
            if inbox.empty():
                return False
            envelope = inbox.get()
            if not self._guarded(self._handle_receive, envelope):
                return False
            ended_s = time.perf_counter()
            if ended_s - began_s > SLOW_HANDLER_S:
                # Not a warning: on a busy machine it happens, and without a configured log a warning lands on the user's terminal.
                took_ms, kind = (ended_s - began_s) * 1e3, type(envelope.message).__name__
                log(logging.INFO, "%s spent %.0f ms on %s", type(self).__name__, took_ms, kind)
            began_s = ended_s
        if inbox.empty() or inbox.scheduled:
            return False
        inbox.scheduled = True
        return True

    def _guarded(self, work: Callable[[Any], Any], envelope: Envelope[Any]) -> bool:
        try:
            response = work(envelope.message)
        except BaseException as error:  # noqa: BLE001 - a handler's sys.exit must not end the fleet
            if envelope.reply_to is not None:
                envelope.reply_to.set_exception(sys.exc_info())
            self.crash(error, envelope.message)
            return False
        if envelope.reply_to is not None:
            envelope.reply_to.set(response)
        return not self.is_over

    def _stop(self) -> None:
        # Pykka calls this for its stop message.
        self.finish()

    def finish(self) -> None:
        """End in order, from the actor's own handler."""
        self._terminate(None)

    def crash(self, error: BaseException, message: object | None = None) -> None:
        """End by `error`. On the dispatcher's thread."""
        on = f" on {type(message).__name__}" if message is not None else ""
        log(logging.ERROR, "%s crashed%s", type(self).__name__, on, error=error)
        self._terminate(error)
        # Whoever waits for the very message on which it crashed; `on_down` has said why, where it could.
        _answer(message)

    def _terminate(self, error: BaseException | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        pykka.ActorRegistry.unregister(self.actor_ref)  # noqa: TID251 - our own entry only
        self.actor_stopped.set()
        try:
            self.on_down(error)
        except BaseException as failure:  # noqa: BLE001
            log(logging.ERROR, "%s failed in on_down", type(self).__name__, error=failure)
        self._inbox.close()
        for watcher in self._watchers:
            tell(watcher, ActorDown(urn=self.actor_urn, error=error))


M = TypeVar("M", bound=Message)


def tell(ref: pykka.ActorRef[Any], message: Message) -> bool:
    """Send a message, from any thread; a dead receiver makes the message answer for itself. Returns whether it was put."""
    # What `ref.tell` does, without an exception where the actor is dead: this is on the path of every event.
    inbox: Any = ref.actor_inbox
    if inbox.closed:
        message.refuse()
        return False
    inbox.put(Envelope(message))
    return True
