"""The front door: `Greenroom` owns a supervisor and the sessions under it, and `Agent` alone stands in a default room that closes at exit.

Decides nothing about turns. Thread-safe; refuses by name in a forked child, whose threads are not there.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import attrs
import pykka

from greenroom.actors import engine as engines
from greenroom.actors import messages as m
from greenroom.actors.asks import AskBook, answer_ask
from greenroom.actors.births import Births, ended
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.core import Past, SessionCore
from greenroom.actors.dispatcher import ClockedDispatcher, Dispatcher
from greenroom.actors.ledger import NOT_RUN, Ledger
from greenroom.actors.orphans import end_orphans
from greenroom.actors.runtime import tell
from greenroom.actors.session import SessionActor
from greenroom.actors.store import Keeper
from greenroom.actors.supervisor import SupervisorActor
from greenroom.agent import Agent
from greenroom.asks import Answer, Pending
from greenroom.clock import Clock, SystemClock
from greenroom.directory import SessionDirectory, found_record
from greenroom.errors import JournalError, SessionCrashedError, SessionStateError, StoreUnavailableError
from greenroom.front import ById, was_stopped
from greenroom.ids import IdAllocator, RandomIds
from greenroom.journal import Journal, Recovery, Retention
from greenroom.journal.files import Sync
from greenroom.journal.records import AskClosed, SessionClosed, SessionOpened, Spent, TicketDecided, TicketReported
from greenroom.model import Checkpoint, Turn
from greenroom.policy.session import replay_on
from greenroom.recovered import Recovered, recovered
from greenroom.session import Session
from greenroom.signals import ClosingOnSignals
from greenroom.subscriptions import Audience, EventStream, Subscription
from greenroom.transports.base import Flags
from greenroom.transports.process import LocalExecutor

logger = logging.getLogger("greenroom")

AT_EXIT_S = 2.0
PROOF_S = 8.0


def _refuse_other(name: str, value: object, port: str, *methods: str) -> None:
    if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in methods):
        raise TypeError(f"{name} must be {port}, got {value!r}")


class Greenroom(ById):
    """Where sessions live: a context manager that leaves nothing running.

    `max_starting`: how many processes may be between their start and their handshake at once; `max_live`: how many may be alive (None:
    no limit), idle ones are released when another session waits. `clock` and `ids` are ports for tests. `log` is the logger to use.
    Any thread. Raises SessionStateError once it is closed, and in a forked child; TypeError and ValueError for options of another kind.

    With `state_dir` everything that happens is journalled there, and survives the death of this program (`sync="process"`) or a power
    cut (`sync="full"`). Opening it ends what a dead program left running there (at most 5 s), and resends nothing: `recovered()` lists
    what was not finished; `retention` says how long it remembers the rest. Raises StateDirError for a directory that cannot be used.
    """

    # What it stands on; a simulation that is stepped by hand has its own.
    _acquire_engine = staticmethod(engines.acquire)
    _open_file = staticmethod(Journal.open)
    _keep = staticmethod(Keeper)

    def __init__(
        self,
        *,
        state_dir: Path | str | None = None,
        sync: Sync = "process",
        retention: Retention = Retention(),  # noqa: B008 - frozen
        max_live: int | None = None,
        max_starting: int = 8,
        clock: Clock | None = None,
        ids: IdAllocator | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        for name, value in (("max_starting", max_starting), ("max_live", max_live if max_live is not None else 1)):
            if not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.clock: Clock = SystemClock() if clock is None else clock
        self.ids: IdAllocator = RandomIds() if ids is None else ids
        _refuse_other("clock", self.clock, "a Clock", "monotonic", "wall", "wait", "call_later")
        _refuse_other("ids", self.ids, "an IdAllocator", "new_id")
        self.log = log or logger
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._closed = False
        self.id = self.ids.new_id("room")
        self._open_front()
        self.directory = SessionDirectory(self._forget_session)
        self._keeper: Keeper | None = None
        self._births: Births | None = None
        self._recovered: dict[str, Recovered] = {}
        self._book = AskBook()
        self._expired: tuple[Pending, ...] = ()
        self.orphans: tuple[int, ...] = ()
        if state_dir is not None:
            self._open_journal(state_dir, sync, retention)
        self._audience = Audience(self._consult if self.durable else None)
        self._engine = self._acquire_engine()
        self._supervisor: pykka.ActorRef[Any] = SupervisorActor.start(
            self._engine.loop,
            executor=LocalExecutor(),
            room_id=self.id,
            max_starting=max_starting,
            max_live=max_live,
            births=self._births,
            journal=self._journal,
            tell_sids=self._engine.tell_sids,
        )
        _rooms.add(self)

    def _open_journal(self, state_dir: Path | str, sync: Sync, retention: Retention) -> None:
        """Open the journal, and end what a dead host left running, before anything of ours runs."""
        journal = self._open_file(state_dir, sync=sync, clock_wall=self.clock.wall, classes=(Flags,))
        try:
            recovery = Recovery(journal)
            left = recovery.processes()
            self.orphans = end_orphans(left)
            sessions = recovery.sessions()
            found = recovered(self, recovery.unfinished(), sessions)
            self._expired = recovery.open_asks()
        except BaseException:
            journal.close()
            raise
        self._recovered = {one.turn_id: one for one in found}
        for session in sessions:
            if not session.removed:
                self.directory.register(found_record(session))
        for pending in self._expired:
            self._book.settle(pending)
        self._keeper = self._keep(journal, retention)
        self._births = Births(self.id, self._keeper.put)
        self._births.open()
        self._keeper.put(*(ended(record) for record in left if record.pid not in self.orphans))
        # What belongs to no turn is listed this once: no decision about a turn will ever close it.
        self._keeper.put(*(AskClosed(request_id=pending.request_id) for pending in self._expired if pending.turn_id is None))

    def agent(self, provider: Any, **options: Any) -> Agent:
        """Return an agent of this room; the options are those of `Agent`."""
        return Agent(provider, room=self, **options)

    def sessions(self) -> tuple[Session, ...]:
        """The sessions that are not closed, oldest first."""
        with self._lock:
            return tuple(session for session in self._sessions.values() if not session.closed)

    def subscribe(self, subscriber: Any, session_id: str | None = None, after: int | Mapping[str, int] | None = None) -> Subscription:
        """Have `subscriber`, a callable or a queue, get the events (SessionEvent) of one session, or of all that are and will be.

        `after`: from behind this number on, out of the history, for each session alike or by session id; None: only what is new. What
        is gone from the history, or comes faster than the subscriber takes it, is stated by an `EventsMissed`: text and reasoning beyond
        10 000 events that wait, anything beyond 100 000. It is called on a thread of its own kind, one event at a time; raising hurts
        nobody. Never blocks. Raises TypeError, ValueError; SessionStateError once the room is closed.
        """
        self._check()
        return self._audience.subscribe(subscriber, session_id, after)

    def events(self, session_id: str | None = None, after: int | Mapping[str, int] | None = None) -> EventStream:
        """The same as a stream: read it with `get`, `for` or `async for`. It ends with the room. Raises as `subscribe`."""
        self._check()
        return self._audience.events(session_id, after)

    def recovered(self) -> tuple[Recovered, ...]:
        """The turns that a dead program left without an outcome in its callers' hands, oldest first, as far as nothing was decided yet.

        Empty without a `state_dir`. Opening again without having decided gives the same.
        """
        with self._lock:
            return tuple(self._recovered.values())

    def pending(self, session_id: str | None = None) -> tuple[Pending, ...]:
        """The requests of agents that wait for an answer, oldest first: of one session, or of all."""
        return self._book.pending(session_id)

    def answer(self, request_id: str, answer: Answer) -> bool:
        """Answer a request; return whether the answer reached the agent: False when it was answered before, or waits no more.

        Raises UnknownRequestError for an id under which nothing was asked, TypeError and ValueError for an answer that the request does not
        take.
        """
        self._check_process()
        return answer_ask(self._book, request_id, answer, clock=self.clock)

    async def aanswer(self, request_id: str, answer: Answer) -> bool:
        """The same as `answer`, in an event loop."""
        return await asyncio.to_thread(self.answer, request_id, answer)

    def expired_asks(self) -> tuple[Pending, ...]:
        """The requests that waited when a dead program ended, of turns about which nothing was decided yet. They cannot be answered.

        A turn that goes on may ask again, under another id. Empty without a `state_dir`.
        """
        with self._lock:
            return tuple(pending for pending in self._expired if pending.turn_id in (None, *self._recovered))

    def close(self, deadline_s: float = 10.0, *, grace_s: float = 0.0) -> tuple[str, ...]:
        """End every session within `deadline_s` seconds: turns are interrupted, processes end by EOF, SIGTERM, SIGKILL, all in parallel.

        No turn is admitted from now on. Those that run may go on for `grace_s` seconds of the deadline, and only then are interrupted;
        another `close` without a grace ends it. Returns the ids of the sessions whose processes had to be killed because time was up.
        Blocks; idempotent; any thread. Raises ValueError for a grace that is longer than the deadline.
        """
        if not 0 <= grace_s <= deadline_s:
            raise ValueError(f"grace_s must be from 0 to deadline_s ({deadline_s:g} s), which includes it, got {grace_s:g}")
        if not self._pid_is_ours():
            return ()
        reply: Cell[tuple[str, ...]] = Cell()
        with self._lock:
            first, self._closed = not self._closed, True
        tell(self._supervisor, m.CloseRoom(deadline_s=deadline_s, grace_s=grace_s, reply_to=reply))
        # After the deadline everything is killed and looked for; that is bounded as well. Not by a test's clock: the processes are real.
        if not reply.wait(deadline_s + PROOF_S, SystemClock()):
            self.log.error("room %s: not everything ended within %g s", self.id, deadline_s + PROOF_S)
        for session in tuple(self._sessions.values()):
            # Closed they are, but for a supervisor that crashed: then each still ends what it has, on the loop that we are to stop.
            session._core.closed.wait(deadline_s, SystemClock())
        if first:
            _rooms.discard(self)
            self._audience.close()
            self._close_journal(in_order=reply.settled)
            engines.release(self._engine)
        return reply.get() if reply.settled else tuple(session.id for session in self.sessions())

    def close_on_signals(
        self, *, deadline_s: float = 10.0, grace_s: float = 0.0, signals: Iterable[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
    ) -> ClosingOnSignals:
        """Return a context in which the first of `signals` closes the room as `close` does, and a second one by force.

        Main thread only. A turn that runs ends with its outcome, the next one is refused; leaving the block after a signal waits for the
        close and raises SystemExit(128 + number). See `ClosingOnSignals`. Raises ValueError for a grace that is longer than the deadline.
        """
        if not 0 <= grace_s <= deadline_s:
            raise ValueError(f"grace_s must be from 0 to deadline_s ({deadline_s:g} s), which includes it, got {grace_s:g}")
        return ClosingOnSignals(self.close, deadline_s=deadline_s, grace_s=grace_s, signals=signals, log=self.log)

    def _close_journal(self, *, in_order: bool) -> None:
        if self._keeper is None or self._births is None:
            return
        if in_order:
            self._births.close()
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- for Agent

    @property
    def _journal(self) -> Callable[[], Any] | None:
        return self._keeper.ref if self._keeper is not None else None

    @property
    def durable(self) -> bool:
        """Whether what happens is journalled."""
        return self._keeper is not None

    def _teller(self, turn_id: str) -> Callable[[Turn | BaseException], None] | None:
        """Return what notes that a caller has the outcome of the turn, or an error that is none."""
        keeper = self._keeper
        if keeper is None:
            return None
        return lambda outcome: keeper.put(TicketReported(turn_id=turn_id, unrun=isinstance(outcome, (*NOT_RUN, SessionCrashedError))))

    def _consult(self, question: str, *names: str | int) -> Any:
        """Ask the journal; None without one."""
        return None if self._keeper is None else self._keeper.consult(question, *names)

    def _put_durably(self, record: TicketDecided, what: str) -> None:
        """Record a decision; return when it is durable. Raises StoreUnavailableError."""
        if self._keeper is None:
            return
        self._keeper.put(record)
        found = self._keeper.consult("ticket", record.turn_id)
        if found is None or found.decision is not record.decision:
            raise StoreUnavailableError(what, "the journal is not well", hint="see to the disk under the state directory; then try again")

    def _is_open(self, turn_id: str) -> bool:
        with self._lock:
            return turn_id in self._recovered

    def _decided(self, turn_id: str) -> None:
        with self._lock:
            self._recovered.pop(turn_id, None)

    def _living(self, session_id: str) -> Session | None:
        with self._lock:
            session = self._sessions.get(session_id)
        return None if session is None or session.closed else session

    def _as_room(self) -> Greenroom:
        return self

    def _ending(self, session_id: str) -> Session | None:
        """The session of that name that is closed or is being closed, as long as it is remembered."""
        with self._lock:
            return self._sessions.get(session_id)

    def _forget_session(self, session_id: str) -> None:
        if self._keeper is not None:
            self._keeper.put(SessionClosed(session_id=session_id, removed=True))

    def _check_free(self, session_id: str) -> None:
        """Raise SessionStateError when a session of that name lives, or was stopped."""
        with self._lock:
            session = self._sessions.get(session_id)
        if session is not None and not session._core.closed.settled:
            raise SessionStateError(f"session {session_id!r} is open already")
        self._check_not_stopped(session_id)

    def _find_session(self, session_id: str, *, stopped_too: bool = False) -> FoundSession | None:
        """Look the session up in the journal. Raises SessionStateError when it lives, or was stopped and is not meant (`stopped_too`)."""
        self._check_free(session_id)
        found = self._consult("session", session_id)
        if found is None:
            return None
        if found.removed and not stopped_too:
            raise was_stopped(session_id)
        inputs, events = self._consult("progress", session_id)
        checkpoint = Checkpoint(found.last_conversation_id) if found.last_conversation_id is not None else None
        return FoundSession(
            opened=found.opened,
            past=self._past(found.opened),
            checkpoint=checkpoint,
            ledger=Ledger(session_id=session_id, inputs=inputs, events=events),
            spent=self._consult("spent", session_id),
            removed=found.removed,
        )

    def _past(self, opened: SessionOpened) -> Past | None:
        """Replay what is on record; None: it was forgotten, or cannot be read, and only the last conversation is known."""
        try:
            history = self._consult("history", opened.session_id)
        except JournalError as error:
            self.log.warning("session %s goes on from its last conversation alone: %s", opened.session_id, error)
            return None
        if history is None:
            return None
        return Past(state=replay_on(history.origin(opened.settings), history.inputs), settings=opened.settings)

    def _pid_is_ours(self) -> bool:
        return self._pid == os.getpid()

    def _check_process(self) -> None:
        if not self._pid_is_ours():
            raise SessionStateError("this room belongs to the parent process; make a new Greenroom after a fork")

    def _check(self) -> None:
        self._check_process()
        if self._closed:
            raise SessionStateError("the room is closed")

    def _dispatcher(self, clock: Clock) -> Dispatcher:
        loop = self._engine.loop
        return loop if isinstance(clock, SystemClock) else ClockedDispatcher(loop, clock)

    def _begin(self, core: SessionCore, session: Session, clock: Clock, *, guarded: bool) -> pykka.ActorRef[Any]:
        """Start the session's actor."""
        with self._lock:
            self._check()
            known = self._sessions.get(core.session_id)
            self._check_not_stopped(core.session_id)  # looked at once more, where no stop can come between
            if known is not None and not known._core.closed.settled:
                raise SessionStateError(f"session {core.session_id!r} is open already")
            if guarded:
                self._engine.guard()
            # Not those that are still ending: their names are taken, and whoever stops them again waits.
            for session_id in [session_id for session_id, known in self._sessions.items() if known._core.closed.settled]:
                del self._sessions[session_id]
            # Who finds it by its name finds it begun.
            ref = self._start(core, clock)
            self._sessions[core.session_id] = session
        self._audience.hub.forget_ended()
        return ref

    def _start(self, core: SessionCore, clock: Clock) -> pykka.ActorRef[Any]:
        core.room_id, core.publish, core.book = self.id, self._audience.hub.publish, self._book
        core.changed_at_s = self.clock.wall()
        core.created_at_s = core.created_at_s or core.changed_at_s
        self.directory.attach(core)
        start = functools.partial(
            SessionActor.start,
            self._dispatcher(clock),
            core=core,
            supervisor=self._supervisor,
            store=self._engine.store,
            observer=self._engine.observer,
            journal=self._journal,
        )
        core.start = start if self._keeper is not None else None
        core.ref = ref = start()
        return ref


@attrs.frozen(kw_only=True)
class FoundSession:
    """A session on record. `past` is None when it cannot be replayed; then `checkpoint` is what it goes on from."""

    opened: SessionOpened
    past: Past | None
    checkpoint: Checkpoint | None
    ledger: Ledger
    spent: Spent | None
    removed: bool


_rooms: weakref.WeakSet[Greenroom] = weakref.WeakSet()
_default_lock = threading.Lock()
_default: Greenroom | None = None


def default_room() -> Greenroom:
    """Return the room of agents that were made without one; it closes itself at exit."""
    global _default  # noqa: PLW0603 - one a process is the point
    with _default_lock:
        if _default is None or _default._closed or not _default._pid_is_ours():
            _default = Greenroom()
        return _default


def _close_all() -> None:
    for room in list(_rooms):
        room.close(deadline_s=AT_EXIT_S)


def _forget_in_child() -> None:
    global _default, _default_lock
    _default, _default_lock = None, threading.Lock()
    _rooms.clear()
    CLAIMS.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
