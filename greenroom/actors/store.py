"""The owner of a room's journal: a thread of its own that may block for the disk, so that nobody else does. Decides what shares a commit.

What waits when it gets to it is one transaction: many sessions share a commit, and each is answered once it is durable. What nobody waits
for is put at once, and committed with the next thing that somebody waits for, or after a moment. When the journal fails, whoever waits is
told at once; what was not written is owed, and written first as soon as the journal is well again, so that the order of the facts is kept.
Agent events are never owed: beyond a backlog they are dropped and counted, and a reader finds the gap.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.dispatcher import Dispatcher, LoopDispatcher, TimerFired
from greenroom.actors.runtime import LoopActor, Message, tell
from greenroom.clock import SystemClock
from greenroom.errors import GreenroomError, JournalError, StoreFailedError, StoreUnavailableError
from greenroom.journal import Journal, Record, Recovery, Retention
from greenroom.journal.codec import Codec
from greenroom.journal.records import AgentEvents, Input, TicketEnded
from greenroom.model import StoreFault

logger = logging.getLogger("greenroom.journal")

GROUP_RECORDS = 256
LINGER_S = 0.02
EVENTS_BACKLOG = 10_000
OWED_RECORDS = 20_000
HEAL_EVERY_S = 1.0
TRIM_EVERY_S = 60.0
TRIM_PAUSE_S = 0.05
CONSULT_PATIENCE_S = 10.0
CLOSE_PATIENCE_S = 5.0
MAX_RESTARTS = 3
WITHIN_S = 60.0

HEAL = "heal"
LINGER = "linger"
TRIM = "trim"

Ref = pykka.ActorRef[Any]
Answer = BaseException | None


@attrs.define
class Books:
    """What outlives a crash of the actor: records that the journal owes, and what could not be kept."""

    owed: collections.deque[Record] = attrs.field(factory=collections.deque)
    dropped_events: int = 0
    lost_records: int = 0


class JournalActor(LoopActor):
    """Writes records in groups, and answers for them."""

    dispatcher: Dispatcher

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        journal: Journal,
        books: Books | None = None,
        retention: Retention = Retention(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(dispatcher)
        self._retention = retention
        self._journal = journal
        self._recovery = Recovery(journal)
        self._books = books or Books()
        self._group: list[m.Record] = []
        self._group_records = 0
        self._answers: list[Answer] = []
        self._awaited = self._lingering = False
        self._healed_s: float | None = None
        self._heal_timer = False

    def on_start(self) -> None:
        """Begin anew whatever a crash left half done, and see to old history from time to time."""
        if self._journal.in_transaction:
            self._journal.rollback()
        self._later(TRIM_PAUSE_S, TRIM)

    def handle(self, message: Any) -> None:
        """Take what is to be written; write when nothing else waits, or enough does."""
        match message:
            case m.Record():
                self._take(message)
            case m.Consult():
                self._flush(anyway=True)
                self._consult(message)
            case m.CloseJournal():
                self._flush()
                self._close(message)
                return
            case TimerFired(token="heal"):
                self._heal_timer = False
                self._flush(anyway=True)
            case TimerFired(token="linger"):
                self._lingering = False
                self._flush()
            case TimerFired():
                self._trim()
            case _:
                logger.warning("journal: unexpected %s", type(message).__name__)
        if self._group_records >= GROUP_RECORDS or (self._awaited and self._inbox.empty()):
            self._flush()
        elif self._group and not self._lingering:
            self._lingering = True
            self._later(LINGER_S, LINGER)

    def _later(self, delay_s: float, token: str) -> None:
        self.dispatcher.call_later(delay_s, self.actor_ref, TimerFired(token=token))

    def _take(self, message: m.Record) -> None:
        if len(self._inbox) > EVENTS_BACKLOG:
            message = self._without_events(message)
        self._group.append(message)
        self._group_records += len(message.records)
        self._awaited = self._awaited or message.session is not None
        self._put_early(message)

    def _without_events(self, message: m.Record) -> m.Record:
        kept = tuple(record for record in message.records if not isinstance(record, AgentEvents))
        self._books.dropped_events += sum(len(record.events) for record in message.records if isinstance(record, AgentEvents))
        return attrs.evolve(message, records=kept)

    def _put_early(self, message: m.Record) -> None:
        """Put it while nobody waits for the commit. What fails here is put again, with the whole group, when the group is due."""
        if not self._journal.healthy or self._books.owed or len(self._answers) != len(self._group) - 1:
            return
        with contextlib.suppress(StoreFailedError):
            if not self._journal.in_transaction:
                self._journal.begin()
            self._answers.append(self._put_all(message))

    # --- writing

    def _flush(self, *, anyway: bool = False) -> None:
        """Write the group, and answer each message of it."""
        if not self._group and not (anyway and self._books.owed):
            return
        answers = self._written(self._group)
        group, self._group, self._group_records = self._group, [], 0
        self._answers, self._awaited = [], False
        for message, answer in zip(group, answers, strict=True):
            if message.session is not None:
                tell(message.session, m.Stored(sequence=message.sequence, error=answer))

    def _written(self, group: list[m.Record]) -> list[Answer]:
        """Write in one transaction, twice if the first one fails and the journal can be healed."""
        for _ in range(2):
            if not self._journal.healthy and not self._heal():
                break
            try:
                return self._transaction(group)
            except StoreFailedError as error:
                logger.error("%s", error)  # noqa: TRY400 - the traceback says nothing more
                failure = error
            self._answers = []
        else:
            return self._owe(group, failure)
        return self._owe(group, StoreFailedError(self._journal.fault or StoreFault.OTHER, "it is not well", path=str(self._journal.path)))

    def _heal(self) -> bool:
        """Try to make the journal well, at most once a second."""
        now_s = self.dispatcher.monotonic()
        if self._healed_s is not None and now_s - self._healed_s < HEAL_EVERY_S:
            return False
        self._healed_s = now_s
        return self._journal.try_heal()

    def _transaction(self, group: list[m.Record]) -> list[Answer]:
        if self._journal.in_transaction:
            if group and len(self._answers) == len(group):
                self._journal.commit()
                return self._answers
            self._journal.rollback()
        self._journal.begin()
        for record in self._books.owed:
            self._put(record)
        answers = [self._put_all(message) for message in group]
        self._journal.commit()
        self._books.owed.clear()
        return answers

    def _put_all(self, message: m.Record) -> Answer:
        answers = [self._put(record) for record in message.records]
        return next((answer for answer in answers if answer is not None), None)

    def _put(self, record: Record) -> Answer:
        """Put one record; one that cannot be written concerns nobody but its sender."""
        try:
            self._journal.put(record)
        except JournalError as error:
            return self._put_plain(record, error)
        return None

    def _put_plain(self, record: Record, error: JournalError) -> Answer:
        plain = plainer(record, self._journal.codec)
        if plain is not None:
            try:
                self._journal.put(plain)
            except JournalError as again:
                error = again
            else:
                return None
        logger.warning("%s", error)
        return error

    def _owe(self, group: list[m.Record], failure: StoreFailedError) -> list[Answer]:
        """Keep what was not written for later, in order, and say that it was not."""
        for record in (record for message in group for record in message.records):
            if isinstance(record, AgentEvents):
                self._books.dropped_events += len(record.events)
            elif len(self._books.owed) >= OWED_RECORDS:
                self._books.lost_records += 1
            else:
                self._books.owed.append(record)
        if self._books.owed and not self._heal_timer:
            self._heal_timer = True
            self._later(HEAL_EVERY_S, HEAL)
        return [failure] * len(group)

    # --- the rest

    def _consult(self, message: m.Consult) -> None:
        try:
            # While something is owed the journal is not what was told: then nobody but `_flush` may make it well.
            if not self._journal.healthy and not self._books.owed:
                self._heal()
            message.reply_to.settle(getattr(self._recovery, message.question)(*message.names))
        except GreenroomError as error:
            message.reply_to.fail(error)

    def _trim(self) -> None:
        more = False
        self._flush()
        if self._journal.healthy and not self._journal.in_transaction:
            try:
                more = self._journal.trim(self._retention).more
            except StoreFailedError as error:
                logger.error("%s", error)  # noqa: TRY400
        self._later(TRIM_PAUSE_S if more else TRIM_EVERY_S, TRIM)

    def _close(self, message: m.CloseJournal) -> None:
        if self._books.owed:
            self._healed_s = None
            self._flush(anyway=True)
        books = self._books
        if books.owed or books.lost_records:
            logger.error("%s: %d records were never written", self._journal.path, len(books.owed) + books.lost_records)
        if books.dropped_events:
            logger.warning("%s: %d agent events were not written", self._journal.path, books.dropped_events)
        self._journal.close()
        message.reply_to.settle(None)
        self.finish()

    def on_down(self, error: BaseException | None) -> None:
        """Answer whoever waits for what was in hand, or behind it: that is owed now, so that no fact is missing among the others."""
        failure = StoreFailedError(StoreFault.OTHER, f"its actor crashed: {error!r}", path=str(self._journal.path))
        group, self._group = self._group, []
        if error is not None:
            group += self._unheard()
        for message in group:
            self._books.owed.extend(record for record in message.records if not isinstance(record, AgentEvents))
            if message.session is not None:
                tell(message.session, m.Stored(sequence=message.sequence, error=failure))

    def _unheard(self) -> list[m.Record]:
        """Take what is to be written out of the inbox; the rest answers for itself."""
        waiting = [envelope.message for envelope in self._inbox.drain()]
        for message in waiting:
            if not isinstance(message, m.Record) and isinstance(message, Message):
                message.refuse()
        return [message for message in waiting if isinstance(message, m.Record)]


def plainer(record: Record, codec: Codec) -> Record | None:
    """Return the record with an error of a user's class as one of ours, which can be written; None: there is none in it."""
    if isinstance(record, TicketEnded) and isinstance(record.outcome, GreenroomError):
        return attrs.evolve(record, outcome=_plain(record.outcome, codec))
    if isinstance(record, Input):
        error = getattr(record.event, "error", None)
        if isinstance(error, GreenroomError):
            event: Any = record.event
            return attrs.evolve(record, event=attrs.evolve(event, error=_plain(error, codec)))
    return None


def _plain(error: GreenroomError, codec: Codec) -> GreenroomError:
    known = codec.classes.values()
    cls: type[GreenroomError] = next(cls for cls in type(error).__mro__ if issubclass(cls, GreenroomError) and cls in known)
    plain = cls.__new__(cls)
    plain.args = (str(error),)
    plain.__dict__.update({name: value for name, value in error.__dict__.items() if _writable(value, codec)})
    return plain


def _writable(value: Any, codec: Codec) -> bool:
    try:
        codec.encode(value)
    except JournalError:
        return False
    return True


class Keeper:
    """What a room has of its journal: the actor on its thread, started again when it crashes. Any thread."""

    def __init__(
        self,
        journal: Journal,
        retention: Retention = Retention(),  # noqa: B008 - frozen
        *,
        loop: LoopDispatcher | None = None,
    ) -> None:
        self.journal = journal
        self._retention = retention
        self._loop = loop or LoopDispatcher(name="greenroom-journal", starter=False)
        self._books = Books()
        self._given_up = False
        self._lock = threading.Lock()
        self._crashes: collections.deque[float] = collections.deque(maxlen=MAX_RESTARTS)
        self._ref: Ref = self._start()

    def _start(self) -> Ref:
        return JournalActor.start(self._loop, journal=self.journal, books=self._books, retention=self._retention)

    def ref(self) -> Ref:
        """The actor: another one if the last one crashed, unless that happens too often."""
        if self._ref.is_alive():
            return self._ref
        with self._lock:
            if not self._ref.is_alive() and not self._spent():
                self._ref = self._start()
            return self._ref

    def _spent(self) -> bool:
        now_s = self._loop.monotonic()
        if self.journal.fault is StoreFault.CLOSED:
            return True
        # Given up for good: what nobody took meanwhile would be missing among what came later.
        self._given_up = self._given_up or (len(self._crashes) == MAX_RESTARTS and now_s - self._crashes[0] < WITHIN_S)
        if self._given_up:
            return True
        self._crashes.append(now_s)
        return False

    def put(self, *records: Record) -> None:
        """Have records written; nobody waits for them."""
        tell(self.ref(), m.Record(records=records))

    def consult(self, question: str, *names: str | int) -> Any:
        """Return what the journal's Recovery answers. Blocks, bounded; never on the loop. Raises StoreUnavailableError, JournalError."""
        reply: Cell[Any] = Cell()
        tell(self.ref(), m.Consult(question=question, names=names, reply_to=reply))
        if not reply.wait(CONSULT_PATIENCE_S, SystemClock()):
            raise StoreUnavailableError("the journal could not be read", f"it has not answered within {CONSULT_PATIENCE_S:g} s")
        try:
            return reply.get()
        except StoreFailedError as error:
            raise unavailable("the journal could not be read", error) from error

    def close(self) -> None:
        """Write what is waiting and close the journal. Blocks, bounded."""
        reply: Cell[None] = Cell()
        tell(self.ref(), m.CloseJournal(reply_to=reply))
        if not reply.wait(CLOSE_PATIENCE_S, SystemClock()) or not self._loop.stop(patience_s=CLOSE_PATIENCE_S):
            logger.error("%s: the disk has not answered within %g s; its thread is left", self.journal.path, CLOSE_PATIENCE_S)
            return
        self.journal.close()


_HINTS = {
    StoreFault.FULL: "make room on the disk",
    StoreFault.READ_ONLY: "make the disk writable again",
    StoreFault.BUSY: "end the other program that locks the journal",
    StoreFault.DAMAGED: "close the room; the journal's file is damaged",
    StoreFault.GONE: "close the room; the journal's file was taken away",
}


def unavailable(what: str, error: BaseException) -> GreenroomError:
    """Return the refusal of something that had to be recorded first; what is no failure of the store is refused as what it is."""
    if isinstance(error, GreenroomError) and not isinstance(error, StoreFailedError):
        return error
    kind = error.kind if isinstance(error, StoreFailedError) else StoreFault.OTHER
    hint = _HINTS.get(kind, "see to the disk under the state directory") + "; then try again"
    path = error.path if isinstance(error, StoreFailedError) else ""
    refused = StoreUnavailableError(what, str(error), kind=kind, path=path, hint=hint)
    refused.__cause__ = error
    return refused
