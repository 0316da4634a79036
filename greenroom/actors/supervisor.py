"""The supervisor: who may start, what is proven dead, and the end of all. Runs on the loop thread; does no I/O and no waiting of its own.

Process n+1 of a session starts only when process n is *proven dead*: reaped, and a scan finds nothing that carries its mark. At most
`max_starting` processes are between fork and handshake, at most `max_live` alive. Whether and when to restart is the session's policy.
"""

from __future__ import annotations

import collections
import logging
import signal
from collections.abc import Callable
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.conversation import ConversationActor, launch_job
from greenroom.actors.dispatcher import Dispatcher, TimerFired
from greenroom.actors.runtime import ActorDown, LoopActor, Message, tell
from greenroom.actors.worker import WorkerConversationActor
from greenroom.transports.base import Executor, Process, StreamTransport
from greenroom.transports.marks import Sweep

logger = logging.getLogger("greenroom.supervisor")

SWEEP_ROUNDS = 60
SWEEP_PAUSE_S = 0.05
TERM_ROUNDS = 2
REAP_ROUNDS = 100
DEADLINE = "deadline"

Ref = pykka.ActorRef[Any]


@attrs.frozen(kw_only=True)
class Swept(Message):
    """One round of the sweep is done; `remaining` are the pids still alive under its marks."""

    batch: _Batch
    remaining: tuple[int, ...]
    clean: bool
    round_: int


@attrs.frozen(kw_only=True)
class Reaped(Message):
    """A killed process was polled; `gone` when it is reaped."""

    process: Process
    gone: bool
    round_: int


@attrs.frozen(kw_only=True, eq=False)
class _Batch:
    """Processes whose leavings are being ended together: one scan serves all."""

    gone: tuple[m.ProcessGone, ...]
    sweep: Sweep


@attrs.define(kw_only=True)
class _Session:
    """What the supervisor knows of a session."""

    ref: Ref
    unproven: set[int] = attrs.field(factory=set)
    conversations: dict[int, Ref] = attrs.field(factory=dict)
    closed: Cell[None] | None = None


@attrs.define(kw_only=True)
class _Closing:
    """The end of the room."""

    reply_to: Cell[tuple[str, ...]]
    killed: set[str] = attrs.field(factory=set)


class SupervisorActor(LoopActor):
    """One for each room."""

    dispatcher: Dispatcher

    def __init__(self, dispatcher: Dispatcher, *, executor: Executor, max_starting: int, max_live: int | None) -> None:
        super().__init__(dispatcher)
        self._executor = executor
        self._max_starting = max_starting
        self._max_live = max_live
        self._sessions: dict[str, _Session] = {}
        self._queue: collections.deque[tuple[m.StartConversation, float]] = collections.deque()
        self._starting: set[tuple[str, int]] = set()
        self._live: dict[tuple[str, int], Ref] = {}
        self._to_sweep: list[m.ProcessGone] = []
        self._sweeping = False
        self._closing: _Closing | None = None

    def handle(self, message: Any) -> None:  # noqa: C901, PLR0912 - one line a case
        """Keep the books, and grant what has become possible."""
        match message:
            case m.SessionBegan():
                self._session_began(message)
            case m.StartConversation():
                self._queue.append((message, self.dispatcher.monotonic()))
                self._grant()
            case m.WithdrawStart():
                self._withdraw(message)
            case m.StartSettled():
                self._starting.discard((message.session_id, message.incarnation))
                self._grant()
            case m.ProcessGone():
                self._process_gone(message)
            case Swept():
                self._swept(message)
            case m.ReapProcess():
                self._reap(message.process, 0)
            case Reaped():
                self._reaped(message)
            case m.TurnOver():
                self._make_room()
            case m.RetireSession():
                self._retire(message)
            case m.CloseRoom():
                self._close_room(message)
            case TimerFired():
                self._timer(message.token)
            case ActorDown():
                pass  # a conversation's own on_down has told everything
            case _:
                logger.warning("supervisor: unexpected %s", type(message).__name__)

    # --- starts

    def _session_began(self, message: m.SessionBegan) -> None:
        self._sessions[message.session_id] = _Session(ref=message.session)
        if self._closing is not None:
            tell(message.session, m.CloseSession())

    def _grant(self) -> None:
        """Start what may start, oldest first; one that still waits for a death does not hold up the others."""
        waiting: collections.deque[tuple[m.StartConversation, float]] = collections.deque()
        while self._queue and len(self._starting) < self._max_starting and not self._full():
            start, asked_s = self._queue.popleft()
            session = self._sessions.get(start.session_id)
            if session is None:
                continue
            if session.unproven:
                waiting.append((start, asked_s))
            else:
                self._start(session, start, asked_s)
        self._queue = waiting + self._queue
        self._make_room()

    def _full(self) -> bool:
        return self._max_live is not None and len(self._live) >= self._max_live

    def _make_room(self) -> None:
        """Somebody waits for a live slot: ask those who hold one to give up an idle process."""
        if self._queue and self._full():
            for session_id, _ in list(self._live):
                tell(self._sessions[session_id].ref, m.ReleaseIfIdle())

    def _start(self, session: _Session, start: m.StartConversation, asked_s: float) -> None:
        incarnation = start.launch.incarnation
        key = (start.session_id, incarnation)
        transport = start.transport
        if isinstance(transport, StreamTransport):
            ref: Ref = ConversationActor.start(
                start.dispatcher,
                session_id=start.session_id,
                session=start.session,
                supervisor=self.actor_ref,
                spec=start.launch,
                job=launch_job(transport, start.launch, self._executor, self.actor_ref),
            )
        else:
            ref = WorkerConversationActor.start(
                start.dispatcher,
                session_id=start.session_id,
                session=start.session,
                supervisor=self.actor_ref,
                transport=transport,
                spec=start.launch,
            )
        self._starting.add(key)
        self._live[key] = ref
        session.unproven.add(incarnation)
        session.conversations[incarnation] = ref
        slot_wait_s = self.dispatcher.monotonic() - asked_s
        tell(start.session, m.Admitted(incarnation=incarnation, conversation=ref, slot_wait_s=slot_wait_s))

    def _withdraw(self, message: m.WithdrawStart) -> None:
        """Take the start out of the queue, or end what it has become."""
        session = self._sessions.get(message.session_id)
        if session is None:
            return
        for item in self._queue:
            start = item[0]
            if start.session_id == message.session_id and start.launch.incarnation == message.incarnation:
                self._queue.remove(item)
                tell(session.ref, m.never_started(message.incarnation))
                return
        ref = session.conversations.get(message.incarnation)
        if ref is not None:
            tell(ref, m.EndConversation(kill=True, reason="the start was withdrawn"))

    # --- proof of death

    def _process_gone(self, message: m.ProcessGone) -> None:
        key = (message.session_id, message.incarnation)
        self._starting.discard(key)
        if message.mark is None:
            self._proven(message)
        else:
            self._to_sweep.append(message)
            self._sweep_next()
        self._grant()

    def _sweep_next(self) -> None:
        if self._sweeping or not self._to_sweep:
            return
        self._sweeping = True
        gone, self._to_sweep = tuple(self._to_sweep), []
        batch = _Batch(gone=gone, sweep=Sweep([item.mark for item in gone if item.mark is not None]))
        self._sweep_round(batch, 0)

    def _sweep_round(self, batch: _Batch, round_: int) -> None:
        def job() -> Message:
            try:
                batch.sweep.round(signal.SIGTERM if round_ < TERM_ROUNDS else signal.SIGKILL)
            except Exception:
                # No descriptor left, no memory: looked at again, a bounded number of times. Without an answer nothing would ever close.
                logger.exception("a scan for left processes failed")
            return Swept(batch=batch, remaining=batch.sweep.unended, clean=batch.sweep.done, round_=round_)

        self.dispatcher.offload(job, self.actor_ref)

    def _swept(self, message: Swept) -> None:
        if not message.clean and message.round_ < SWEEP_ROUNDS:
            self.dispatcher.call_later(SWEEP_PAUSE_S, self.actor_ref, TimerFired(token=(message.batch, message.round_ + 1)))
            return
        if message.remaining:
            # Reported and not waited for any longer: an unkillable tool must not hold a session for ever.
            logger.error("processes that could not be ended: %s", ", ".join(map(str, message.remaining)))
        self._sweeping = False
        for gone in message.batch.gone:
            self._proven(gone)
        self._sweep_next()
        self._grant()

    def _proven(self, gone: m.ProcessGone) -> None:
        self._live.pop((gone.session_id, gone.incarnation), None)
        session = self._sessions.get(gone.session_id)
        if session is None:
            return
        session.unproven.discard(gone.incarnation)
        session.conversations.pop(gone.incarnation, None)
        self._finish_session(gone.session_id, session)

    def _reap(self, process: Process, round_: int) -> None:
        def job() -> Message:
            try:
                return Reaped(process=process, gone=process.poll() is not None, round_=round_)
            except Exception:
                logger.exception("a killed process could not be polled")
                return Reaped(process=process, gone=False, round_=round_)

        self.dispatcher.offload(job, self.actor_ref)

    def _reaped(self, message: Reaped) -> None:
        if not message.gone and message.round_ < REAP_ROUNDS:
            self.dispatcher.call_later(SWEEP_PAUSE_S, self.actor_ref, TimerFired(token=("reap", message.process, message.round_ + 1)))

    def _timer(self, token: Any) -> None:
        match token:
            case (_Batch() as batch, int(round_)):
                self._sweep_round(batch, round_)
            case ("reap", process, int(round_)):
                self._reap(process, round_)
            case _:
                self._deadline()

    # --- ends

    def _retire(self, message: m.RetireSession) -> None:
        session = self._sessions.get(message.session_id)
        if session is None:
            message.closed.settle(None)
            return
        session.closed = message.closed
        self._queue = collections.deque(item for item in self._queue if item[0].session_id != message.session_id)
        self._finish_session(message.session_id, session)

    def _finish_session(self, session_id: str, session: _Session) -> None:
        """Say "closed" only when it is: no process of the session is left unproven."""
        if session.closed is None or session.unproven:
            return
        del self._sessions[session_id]
        CLAIMS.drop(session_id)
        session.closed.settle(None)
        self._finish_room()

    def _close_room(self, message: m.CloseRoom) -> None:
        if self._closing is not None:
            self._closing.reply_to.when_settled(_copy(self._closing.reply_to, message.reply_to))
        else:
            self._closing = _Closing(reply_to=message.reply_to)
        for session in self._sessions.values():
            tell(session.ref, m.CloseSession())
        self.dispatcher.call_later(message.deadline_s, self.actor_ref, TimerFired(token=DEADLINE))
        self._finish_room()

    def _deadline(self) -> None:
        """Time is up: whatever still runs is killed."""
        if self._closing is None:
            return
        for (session_id, _), ref in self._live.items():
            self._closing.killed.add(session_id)
            tell(ref, m.EndConversation(kill=True, reason="the room was closed"))

    def _finish_room(self) -> None:
        if self._closing is not None and not self._sessions:
            self._closing.reply_to.settle(tuple(sorted(self._closing.killed)))
            self.finish()

    def on_down(self, error: BaseException | None) -> None:
        """Nobody may wait for a supervisor that crashed."""
        if error is None:
            return
        for start, _ in self._queue:
            start.refuse()
        for ref in self._live.values():
            tell(ref, m.EndConversation(kill=True, reason="the supervisor crashed"))
        for session_id, session in self._sessions.items():
            tell(session.ref, m.CloseSession())
            if session.closed is not None:
                CLAIMS.drop(session_id)
                session.closed.settle(None)
        if self._closing is not None:
            self._closing.reply_to.settle(tuple(sorted(self._closing.killed)))


def _copy(source: Cell[tuple[str, ...]], target: Cell[tuple[str, ...]]) -> Callable[[], None]:
    def copy() -> None:
        target.settle(source.get())

    return copy
