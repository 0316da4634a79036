"""The supervisor: who may start, what is proven dead, and the end of all. Runs on the loop thread; does no I/O and no waiting of its own.

Process n+1 of a session starts only when process n is *proven dead*: reaped, and a scan finds nothing that carries its mark. At most
`max_starting` conversations are between start and handshake, at most `max_live` processes alive. Whether and when to restart is the
session's policy.
"""

from __future__ import annotations

import collections
import functools
import logging
from collections.abc import Callable, Hashable
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.births import Births
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.conversation import ConversationActor
from greenroom.actors.dispatcher import Dispatcher, TimerFired
from greenroom.actors.heirs import heritage
from greenroom.actors.link import EndLink, GuestActor, LinkActor
from greenroom.actors.links import Link, Links
from greenroom.actors.process_owner import launch_job
from greenroom.actors.runtime import ActorDown, LoopActor, tell
from greenroom.actors.undertaker import ProveDead, ProvenDead, TellSids, UndertakerActor
from greenroom.actors.worker import WorkerConversationActor
from greenroom.errors import GreenroomError
from greenroom.transports.base import Executor, Process, SharedTransport, StreamTransport
from greenroom.transports.guard import host_id
from greenroom.transports.marks import make_mark

logger = logging.getLogger("greenroom.supervisor")

DEADLINE = "deadline"
GRACE = "grace"
LINGER_S = 2.0
"""How long a shared process without conversations stays: a session that renews its conversation finds it again."""
MAX_CRASHES = 3
CRASHES_WITHIN_S = 60.0

Ref = pykka.ActorRef[Any]


@attrs.define(kw_only=True)
class _Session:
    """What the supervisor knows of a session: its conversations, alive or not yet proven dead."""

    ref: Ref
    conversations: dict[int, Ref] = attrs.field(factory=dict)
    closed: Cell[None] | None = None


@attrs.frozen(kw_only=True)
class _Start:
    """A start that was asked for. `link_key`: whose process it may share; `first_key`: the first start with it goes alone."""

    message: m.StartConversation
    asked_s: float
    link_key: Hashable | None
    first_key: Hashable | None

    @property
    def guest(self) -> tuple[str, int]:
        """The conversation, as the books have it."""
        return (self.message.session_id, self.message.launch.incarnation)


@attrs.define(kw_only=True)
class _Closing:
    """The end of the room. `draining`: turns that run may end yet."""

    reply_to: Cell[tuple[str, ...]]
    draining: bool
    killed: set[str] = attrs.field(factory=set)


class SupervisorActor(LoopActor):
    """One for each room."""

    dispatcher: Dispatcher

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        executor: Executor,
        room_id: str,
        max_starting: int,
        max_live: int | None,
        births: Births | None = None,
        journal: Callable[[], Ref] | None = None,
        tell_sids: TellSids | None = None,
    ) -> None:
        super().__init__(dispatcher)
        self._births = births
        self._tell_sids = tell_sids
        self._journal = journal
        self._crashes: dict[str, collections.deque[float]] = {}
        self._executor = executor
        self._room_id = room_id
        self._max_starting = max_starting
        self._max_live = max_live
        self._sessions: dict[str, _Session] = {}
        self._queue: collections.deque[_Start] = collections.deque()
        self._starting: set[Hashable] = set()
        self._firsts: dict[Hashable, Hashable | None] = {}
        self._alone: set[tuple[str, int]] = set()
        self._links = Links()
        self._undertaker: Ref | None = None
        self._closing: _Closing | None = None

    def on_start(self) -> None:
        """Have an undertaker."""
        self._undertaker = UndertakerActor.start(self.dispatcher, tell_sids=self._tell_sids)

    def handle(self, message: Any) -> None:  # noqa: C901, PLR0912 - one line a case
        """Keep the books, and grant what has become possible."""
        match message:
            case m.SessionBegan():
                self._session_began(message)
            case m.StartConversation():
                self._asked(message)
            case m.WithdrawStart():
                self._withdraw(message)
            case m.StartSettled():
                self._start_settled((message.session_id, message.incarnation))
            case m.LinkReady():
                self._start_settled(message.link_id)
            case m.LinkRetired():
                self._links.retire(message.link_id)
            case m.ProcessGone():
                self._process_gone(message)
            case m.LinkGone():
                self._link_gone(message)
            case ProvenDead():
                self._proven(message.token, proven=message.proven)
            case m.ReapProcess():
                self._tell_undertaker(message)
            case m.TurnOver():
                self._make_room()
            case m.SessionCrashed():
                self._session_crashed(message)
            case m.Recalled():
                self._recalled(message)
            case m.RetireSession():
                self._retire(message)
            case m.CloseRoom():
                self._close_room(message)
            case TimerFired(token=("idle", link_id, moves)):
                self._end_idle_link(link_id, moves)
            case TimerFired(token="grace"):
                self._end_grace()
            case TimerFired():
                self._kill_all()
            case ActorDown():
                pass  # a conversation's own on_down has told everything
            case _:
                logger.warning("supervisor: unexpected %s", type(message).__name__)

    # --- starts

    def _session_began(self, message: m.SessionBegan) -> None:
        known = self._sessions.get(message.session_id)
        if known is not None:  # one that crashed goes on: what its processes were is not proven dead yet
            known.ref = message.session
        else:
            self._sessions[message.session_id] = _Session(ref=message.session)
        if self._closing is not None:
            self._end_session(message.session)

    def _asked(self, message: m.StartConversation) -> None:
        incarnation = message.launch.incarnation
        try:
            link_key = _link_key(message)
        except Exception as error:  # noqa: BLE001 - a transport's code, which looks for files: whatever it raises answers the start
            tell(message.session, m.OpenFailed(incarnation=incarnation, error=_as_failure(error), killed=False))
            tell(message.session, m.never_started(incarnation))
            return
        first_key = getattr(message.transport, "first_key", None)
        start = _Start(message=message, asked_s=self.dispatcher.monotonic(), link_key=link_key, first_key=first_key)
        self._queue.append(start)
        self._grant()
        if start in self._queue:
            tell(message.session, m.StartWaits(incarnation=message.launch.incarnation))

    def _start_settled(self, key: Hashable) -> None:
        self._starting.discard(key)
        for first_key in [first_key for first_key, alone in self._firsts.items() if alone == key]:
            self._firsts[first_key] = None
        self._grant()

    def _grant(self) -> None:
        """Start what may start, oldest first; one that still waits for a death or for room does not hold up the others."""
        waiting: collections.deque[_Start] = collections.deque()
        while self._queue and len(self._starting) < self._max_starting:
            start = self._queue.popleft()
            session = self._sessions.get(start.message.session_id)
            if session is None:
                continue
            if session.conversations or not self._has_place(start):
                waiting.append(start)
            else:
                self._start(session, start)
        self._queue = waiting + self._queue
        self._make_room()

    def _has_place(self, start: _Start) -> bool:
        """Say whether it can join a process, or have a new one."""
        if start.link_key is not None and self._links.choose(start.link_key) is not None:
            return True
        return not self._full() and self._firsts.get(start.first_key) is None

    def _full(self) -> bool:
        return self._max_live is not None and len(self._alone) + len(self._links) >= self._max_live

    def _make_room(self) -> None:
        """Somebody waits for a live slot: ask the sessions to give up idle processes."""
        if self._queue and self._full():
            for link in self._links.idle():
                self._end_link(link)
            for session in self._sessions.values():
                if session.conversations:
                    tell(session.ref, m.ReleaseIfIdle())

    def _start(self, session: _Session, start: _Start) -> None:
        message, incarnation = start.message, start.message.launch.incarnation
        slot_wait_s = self.dispatcher.monotonic() - start.asked_s
        ref = self._start_actor(start)
        self._starting.add(start.guest)
        session.conversations[incarnation] = ref
        tell(message.session, m.Admitted(incarnation=incarnation, conversation=ref, slot_wait_s=slot_wait_s))

    def _start_actor(self, start: _Start) -> Ref:
        message, launch = start.message, start.message.launch
        names = {"session_id": message.session_id, "session": message.session, "supervisor": self.actor_ref}
        if start.link_key is not None:
            link = self._links.choose(start.link_key) or self._new_link(start)
            link.join(start.guest)
            return GuestActor.start(message.dispatcher, link=link.ref, spec=launch, **names)
        self._alone.add(start.guest)
        self._goes_first(start.first_key, start.guest)
        transport = message.transport
        if isinstance(transport, StreamTransport):
            prepare, born = functools.partial(transport.launch, launch), self._born(*start.guest, launch.mark)
            job = launch_job(prepare, transport.executor or self._executor, self.actor_ref, born)
            return ConversationActor.start(message.dispatcher, spec=launch, job=job, **names)
        return WorkerConversationActor.start(message.dispatcher, transport=transport, spec=launch, **names)

    def _goes_first(self, first_key: Hashable | None, key: Hashable) -> None:
        """The first start of its kind: the next ones wait until it is over."""
        if first_key is not None and first_key not in self._firsts:
            self._firsts[first_key] = key

    def _new_link(self, asked: _Start) -> Link:
        start, link_id = asked.message, self._links.new_id()
        transport = start.transport
        mark = make_mark(host_id(), self._room_id, link_id, 1)
        prepare = functools.partial(transport.launch_link, start.launch.spec, mark)
        job = launch_job(prepare, transport.executor or self._executor, self.actor_ref, self._born(link_id, 1, mark))
        ref = LinkActor.start(start.dispatcher, link_id=link_id, mark=mark, supervisor=self.actor_ref, job=job, prepare=transport.prepare)
        link = Link(link_id=link_id, key=asked.link_key, ref=ref, max_guests=transport.max_conversations)
        self._links.add(link)
        self._starting.add(link_id)
        self._goes_first(asked.first_key, link_id)
        return link

    def _born(self, owner_id: str, incarnation: int, mark: str) -> Callable[[Process], None] | None:
        return None if self._births is None else functools.partial(self._births.enter, owner_id, incarnation, mark)

    def _withdraw(self, message: m.WithdrawStart) -> None:
        """Take the start out of the queue, or end what it has become."""
        session = self._sessions.get(message.session_id)
        if session is None:
            return
        for start in self._queue:
            if start.guest == (message.session_id, message.incarnation):
                self._queue.remove(start)
                tell(session.ref, m.never_started(message.incarnation))
                return
        ref = session.conversations.get(message.incarnation)
        if ref is not None:
            tell(ref, m.EndConversation(kill=True, reason="the start was withdrawn"))

    # --- proof of death

    def _process_gone(self, message: m.ProcessGone) -> None:
        key = (message.session_id, message.incarnation)
        for link in self._links.leave(key):
            self.dispatcher.call_later(LINGER_S, self.actor_ref, TimerFired(token=("idle", link.link_id, link.moves)))
        self._prove(key, message.mark)
        self._start_settled(key)

    def _end_idle_link(self, link_id: str, moves: int) -> None:
        """A shared process has had no conversations for a while, if nobody has come or gone since."""
        for link in self._links.idle():
            if link.link_id == link_id and link.moves == moves:
                self._end_link(link)

    def _end_link(self, link: Link) -> None:
        link.retired = True
        tell(link.ref, EndLink(kill=False, reason="nobody uses it"))

    def _link_gone(self, message: m.LinkGone) -> None:
        self._links.retire(message.link_id)
        self._prove(message.link_id, message.mark)
        self._start_settled(message.link_id)

    def _prove(self, token: Hashable, mark: str | None) -> None:
        if mark is None:
            self._proven(token, proven=True)
        else:
            self._tell_undertaker(ProveDead(token=token, mark=mark, asker=self.actor_ref))

    def _tell_undertaker(self, message: ProveDead | m.ReapProcess) -> None:
        if self._undertaker is None or not self._undertaker.is_alive():
            self._undertaker = UndertakerActor.start(self.dispatcher, tell_sids=self._tell_sids)
        tell(self._undertaker, message)

    def _proven(self, token: Any, *, proven: bool) -> None:
        if isinstance(token, str):
            self._links.remove(token)
            self._buried(token, 1, proven=proven)
        else:
            self._conversation_proven(*token)
            self._buried(*token, proven=proven)
        self._finish_room()
        self._grant()

    def _buried(self, owner_id: str, incarnation: int, *, proven: bool) -> None:
        if self._births is not None:
            self._births.strike(make_mark(host_id(), self._room_id, owner_id, incarnation), proven=proven)

    def _conversation_proven(self, session_id: str, incarnation: int) -> None:
        self._alone.discard((session_id, incarnation))
        session = self._sessions.get(session_id)
        if session is not None:
            session.conversations.pop(incarnation, None)
            self._finish_session(session_id, session)

    # --- sessions that crash

    def _session_crashed(self, message: m.SessionCrashed) -> None:
        """Have the session go on from its record, unless it crashes too often."""
        session, journal = self._sessions.get(message.session_id), self._journal
        for ref in session.conversations.values() if session is not None else ():
            tell(ref, m.EndConversation(kill=True, reason="its session crashed"))
        self._queue = collections.deque(start for start in self._queue if start.message.session_id != message.session_id)
        if journal is None or self._crashed_too_often(message.session_id):
            self._give_up(message)
            return
        reply: Cell[Any] = Cell()
        ref = self.actor_ref
        reply.when_settled(lambda: _recall(ref, message, reply))
        tell(journal(), m.Consult(question="history", names=(message.session_id,), reply_to=reply))

    def _crashed_too_often(self, session_id: str) -> bool:
        crashes = self._crashes.setdefault(session_id, collections.deque(maxlen=MAX_CRASHES))
        now_s = self.dispatcher.monotonic()
        often = len(crashes) == MAX_CRASHES and now_s - crashes[0] < CRASHES_WITHIN_S
        crashes.append(now_s)
        return often

    def _recalled(self, message: m.Recalled) -> None:
        core, history = message.core, message.history
        if history is None or (history.state is None and not history.inputs):
            logger.error("session %s cannot go on after its crash: %s", message.session_id, message.error or "nothing of it is on record")
            self._give_up(message)
            return
        settings = core.past.settings if core.past is not None else core.settings
        core.heritage = heritage(history.origin(settings), history.inputs, message.left)
        core.ref = core.start()

    def _give_up(self, message: m.SessionCrashed | m.Recalled) -> None:
        message.core.give_up(message.left)
        self._retire(m.RetireSession(session_id=message.session_id, closed=message.core.closed))

    # --- ends

    def _retire(self, message: m.RetireSession) -> None:
        session = self._sessions.get(message.session_id)
        if session is None:
            message.closed.settle(None)
            return
        session.closed = message.closed
        self._queue = collections.deque(start for start in self._queue if start.message.session_id != message.session_id)
        self._finish_session(message.session_id, session)
        self._finish_room()

    def _finish_session(self, session_id: str, session: _Session) -> None:
        """Say "closed" only when it is: every process of the session is proven dead."""
        if session.closed is None or session.conversations:
            return
        del self._sessions[session_id]
        self._crashes.pop(session_id, None)
        CLAIMS.drop(session.closed)
        session.closed.settle(None)

    def _close_room(self, message: m.CloseRoom) -> None:
        if self._closing is not None:
            self._closing.reply_to.when_settled(_copy(self._closing.reply_to, message.reply_to))
            self._closing.draining = self._closing.draining and message.grace_s > 0
        else:
            self._closing = _Closing(reply_to=message.reply_to, draining=message.grace_s > 0)
        for session in self._sessions.values():
            self._end_session(session.ref)
        if self._closing.draining:
            self.dispatcher.call_later(message.grace_s, self.actor_ref, TimerFired(token=GRACE))
        self.dispatcher.call_later(message.deadline_s, self.actor_ref, TimerFired(token=DEADLINE))
        self._finish_room()

    def _end_session(self, session: Ref) -> None:
        draining = self._closing is not None and self._closing.draining
        tell(session, m.DrainSession() if draining else m.CloseSession())

    def _end_grace(self) -> None:
        """Turns that still run have had their time."""
        if self._closing is not None:
            self._closing.draining = False
        for session in self._sessions.values():
            self._end_session(session.ref)

    def _kill_all(self) -> None:
        """Time is up: whatever still runs is killed."""
        for session_id, session in self._sessions.items():
            for ref in session.conversations.values():
                if self._closing is not None:
                    self._closing.killed.add(session_id)
                tell(ref, m.EndConversation(kill=True, reason="the room was closed"))
        for ref in self._links.refs():
            tell(ref, EndLink(kill=True, reason="the room was closed"))

    def _finish_room(self) -> None:
        if self._closing is None or self._sessions:
            return
        for link in self._links.idle():
            self._end_link(link)
        if not len(self._links):
            self._closing.reply_to.settle(tuple(sorted(self._closing.killed)))
            self.finish()

    def on_down(self, error: BaseException | None) -> None:
        """Nobody may wait for a supervisor that crashed, and nothing may run without one."""
        if self._undertaker is not None:
            self._undertaker.stop(block=False)
        if error is None:
            return
        for start in self._queue:
            start.message.refuse()
        self._kill_all()
        for session in self._sessions.values():
            tell(session.ref, m.CloseSession())
            if session.closed is not None:
                CLAIMS.drop(session.closed)
                session.closed.settle(None)
        if self._closing is not None:
            self._closing.reply_to.settle(tuple(sorted(self._closing.killed)))


def _recall(supervisor: Ref, crashed: m.SessionCrashed, reply: Cell[Any]) -> None:
    outcome: Any = reply.outcome
    failed = isinstance(outcome, BaseException)
    recalled = m.Recalled(
        session_id=crashed.session_id,
        core=crashed.core,
        left=crashed.left,
        history=None if failed else outcome,
        error=outcome if failed else None,
    )
    tell(supervisor, recalled)


def _link_key(start: m.StartConversation) -> Hashable | None:
    transport = start.transport
    return transport.link_key(start.launch.spec) if isinstance(transport, SharedTransport) else None


def _as_failure(error: Exception) -> GreenroomError:
    if isinstance(error, GreenroomError):
        return error
    failure = GreenroomError(f"the transport raised {error!r}")
    failure.__cause__ = error
    return failure


def _copy(source: Cell[tuple[str, ...]], target: Cell[tuple[str, ...]]) -> Callable[[], None]:
    def copy() -> None:
        target.settle(source.get())

    return copy
