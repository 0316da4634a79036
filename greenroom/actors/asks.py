"""What waits for a person: the room's book of open requests, and the desk of each session, which gives the answers to its conversation.

Decides that the first answer wins, and what becomes of a request that nobody answers: its deadline gives the default verdict; the end of
its turn, its process or its session closes it. `AskBook` is thread-safe; an `AskDesk` is owned by its session's actor, on the loop thread.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.dispatcher import Dispatcher, TimerFired
from greenroom.actors.runtime import Message, tell
from greenroom.asks import (
    AcceptForSession,
    Answer,
    AskPolicy,
    CancelTurn,
    Decline,
    Pending,
    PendingApproval,
    check_answer,
    pending_of,
    title_of,
)
from greenroom.clock import Clock, TimerHandle
from greenroom.errors import UnknownRequestError
from greenroom.events import AgentEvent, ApprovalRequested, ApprovalResolved, Lifecycle, QuestionAsked, QuestionResolved
from greenroom.journal import records as r
from greenroom.policy import events as e

SETTLED_KEPT = 10_000

Ref = pykka.ActorRef[Any]


class AskBook:
    """All requests of a room that wait, and the ids of those that do not any more (as many as are worth keeping). Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Pending, Any]] = {}
        self._settled: dict[str, str] = {}

    def put(self, pending: Pending, core: Any) -> None:
        """A request waits; `core` is its session's."""
        with self._lock:
            self._open[pending.request_id] = (pending, core)

    def settle(self, pending: Pending) -> None:
        """It waits no more."""
        with self._lock:
            self._open.pop(pending.request_id, None)
            self._settled[pending.request_id] = pending.session_id
            while len(self._settled) > SETTLED_KEPT:
                del self._settled[next(iter(self._settled))]

    def pending(self, session_id: str | None = None) -> tuple[Pending, ...]:
        """Return what waits, oldest first: of one session, or of all."""
        with self._lock:
            return tuple(pending for pending, _ in self._open.values() if session_id in (None, pending.session_id))

    def find(self, request_id: str, session_id: str | None = None) -> tuple[Pending, Any] | None:
        """Return a request that waits, and its session's core; None when it does so no more. Raises UnknownRequestError."""
        with self._lock:
            found, settled = self._open.get(request_id), self._settled.get(request_id)
        owner = found[0].session_id if found is not None else settled
        if owner is None or session_id not in (None, owner):
            raise UnknownRequestError(request_id)
        return found


def answer_ask(book: AskBook, request_id: str, answer: Answer, *, clock: Clock, session_id: str | None = None) -> bool:
    """Answer a request; return whether this answer has reached the agent. On a caller's thread.

    Raises UnknownRequestError; TypeError and ValueError for an answer that the request does not take.
    """
    if not isinstance(answer, Answer):
        raise TypeError(f"an answer is Accept(), AcceptForSession(), Decline(), CancelTurn() or Reply(), got {answer!r}")
    found = book.find(request_id, session_id)
    if found is None:
        return False
    pending, core = found
    check_answer(pending, answer)
    reply: Cell[bool] = Cell()
    tell(core.ref, m.AnswerAsk(request_id=request_id, answer=answer, reply_to=reply))
    reply.wait(None, clock)
    return reply.get()


@attrs.frozen(kw_only=True)
class _Given:
    """An answer that is on its way to the provider."""

    answer: Answer
    by: str
    reply_to: Cell[bool] | None = None


def _tell(given: _Given | None, *, reached: bool) -> None:
    """Tell whoever answered whether it came in time."""
    if given is not None and given.reply_to is not None:
        given.reply_to.settle(value=reached)


@attrs.define(kw_only=True, eq=False)
class _Entry:
    pending: Pending
    incarnation: int
    wire_id: str
    announced: bool = True
    timer: TimerHandle | None = None
    given: _Given | None = None


@attrs.frozen(kw_only=True)
class Hands:
    """What a desk can have done by its session's actor."""

    emit: Callable[[int, str | None, tuple[AgentEvent, ...]], None]
    tell_conversation: Callable[[int, Message], None]
    advance: Callable[[e.SessionInput], None]
    interrupt: Callable[[str], None]
    record: Callable[..., None]


class AskDesk:
    """The open requests of one session."""

    def __init__(self, *, core: Any, dispatcher: Dispatcher, ref: Ref, hands: Hands) -> None:
        self._core = core
        self._dispatcher = dispatcher
        self._ref = ref
        self._hands = hands
        self._entries: dict[str, _Entry] = {}
        self._since_s: dict[str, float] = {}
        self._granted: set[str] = set()

    @property
    def _policy(self) -> AskPolicy:
        policy: AskPolicy = self._core.asks
        return policy

    def handle(self, message: m.AskMessage) -> None:
        """Take what concerns requests."""
        match message:
            case m.AskArrived():
                self._arrived(message)
            case m.AnswerAsk():
                self._answer(message)
            case m.AskAnswered():
                self._answered(message)
            case m.AskWithdrawn():
                entry = self._of_wire(message.incarnation, message.wire_id)
                if entry is not None:
                    self._resolve(entry, None, "withdrawn")
            case _:
                pass  # there are no others

    # --- requests

    def _arrived(self, message: m.AskArrived) -> None:
        now_s = self._dispatcher.monotonic()
        pending = pending_of(
            message.ask,
            request_id=f"ask-{uuid.uuid4()}",
            session_id=self._core.session_id,
            turn_id=message.turn_id,
            asked_at=dt.datetime.fromtimestamp(self._dispatcher.clock.wall(), tz=dt.UTC),
            deadline_s=self._policy.deadline_s,
        )
        entry = _Entry(pending=pending, incarnation=message.incarnation, wire_id=message.wire_id)
        self._entries[pending.request_id] = entry
        if message.turn_id is not None:
            self._since_s.setdefault(message.turn_id, now_s)
        if _key(pending) in self._granted:
            entry.announced = False
            self._hands.emit(entry.incarnation, message.turn_id, (Lifecycle("accepted for the session", title_of(message.ask)),))
            self._give(entry, _Given(answer=AcceptForSession(), by="session"))
        else:
            self._announce(entry, title_of(message.ask))

    def _announce(self, entry: _Entry, title: str) -> None:
        pending = entry.pending
        self._core.book.put(pending, self._core)
        self._hands.record(r.AskOpened(pending=pending))
        self._hands.emit(entry.incarnation, pending.turn_id, (Lifecycle("waiting", title), _asked(pending)))
        now_s, deadline_s = self._dispatcher.monotonic(), self._policy.deadline_s
        if pending.turn_id is not None:
            self._core.pulse.asks(pending.request_id, now_s, until_s=None if deadline_s is None else now_s + deadline_s)
        if deadline_s is not None:
            timer = TimerFired(token=("ask", pending.request_id))
            entry.timer = self._dispatcher.call_later(deadline_s, self._ref, timer)

    def _of_wire(self, incarnation: int, wire_id: str) -> _Entry | None:
        rows = self._entries.values()
        return next((entry for entry in rows if (entry.incarnation, entry.wire_id) == (incarnation, wire_id)), None)

    # --- answers

    def _answer(self, message: m.AnswerAsk) -> None:
        entry = self._entries.get(message.request_id)
        if entry is None or entry.given is not None:
            message.reply_to.settle(value=False)
        else:
            self._give(entry, _Given(answer=message.answer, by="answer", reply_to=message.reply_to))

    def deadline_passed(self, request_id: str) -> None:
        """Nobody has answered in time."""
        entry = self._entries.get(request_id)
        if entry is not None and entry.given is None:
            self._give(entry, _Given(answer=self._policy.verdict_on(entry.pending), by="deadline"))

    def _give(self, entry: _Entry, given: _Given) -> None:
        """Send the answer; whether it came in time, the conversation says."""
        entry.given = given
        request = m.AnswerRequest(incarnation=entry.incarnation, wire_id=entry.wire_id, answer=given.answer, session=self._ref)
        self._hands.tell_conversation(entry.incarnation, request)

    def _answered(self, message: m.AskAnswered) -> None:
        entry = self._of_wire(message.incarnation, message.wire_id)
        if entry is None or entry.given is None:
            return
        if not message.taken:
            # It came too late; what for (it was taken back, or the process died), a message on its way tells, which closes the request.
            _tell(entry.given, reached=False)
            return
        given, turn_id = entry.given, entry.pending.turn_id
        if isinstance(given.answer, AcceptForSession) and not getattr(entry.pending, "each_time", True):
            self._granted.add(_key(entry.pending))
        self._resolve(entry, given.answer, given.by, reached=True)
        if isinstance(given.answer, CancelTurn) and turn_id is not None:
            self._hands.interrupt(turn_id)

    # --- ends

    def end(self, by: str, *, turn_id: str | None = None, incarnation: int | None = None) -> None:
        """Close what waits in a turn, in a process, or at all. An answer that is on its way reports by itself, while there is anybody to.

        Nothing is written here: the interrupt that a stop or a close brings makes the provider reject its request.
        """
        for entry in list(self._matching(turn_id, incarnation)):
            if entry.given is not None and by not in {"died", "withdrawn"}:
                continue
            self._resolve(entry, _VERDICTS.get(by), by)

    def _matching(self, turn_id: str | None, incarnation: int | None) -> Iterator[_Entry]:
        for entry in self._entries.values():
            if turn_id in (None, entry.pending.turn_id) and incarnation in (None, entry.incarnation):
                yield entry

    def _resolve(self, entry: _Entry, verdict: Answer | None, by: str, *, reached: bool = False) -> None:
        pending = entry.pending
        self._forget(entry)
        if entry.announced:
            self._hands.record(r.AskClosed(request_id=pending.request_id))
            self._hands.emit(entry.incarnation, pending.turn_id, (_resolved(pending, verdict, by),))
        self._put_off(pending.turn_id)
        # Last: whoever is told finds everything as it is from now on.
        _tell(entry.given, reached=reached)

    def _forget(self, entry: _Entry) -> None:
        self._entries.pop(entry.pending.request_id, None)
        self._core.pulse.answered(entry.pending.request_id, self._dispatcher.monotonic())
        if entry.announced:
            self._core.book.settle(entry.pending)
        if entry.timer is not None:
            entry.timer.cancel()

    def _put_off(self, turn_id: str | None) -> None:
        """When nothing of the turn waits any more, the time that it waited does not count in its timeout."""
        if turn_id is None or any(entry.pending.turn_id == turn_id for entry in self._entries.values()):
            return
        since_s, now_s = self._since_s.pop(turn_id, None), self._dispatcher.monotonic()
        if since_s is not None and now_s > since_s:
            self._hands.advance(e.WaitedForPerson(now_s=now_s, turn_id=turn_id, waited_s=now_s - since_s))

    # --- a crash of the session's actor

    def give_up(self, *, heir: bool) -> None:
        """The actor ends: answer everybody. What is open is the successor's to close, if there is one."""
        for entry in list(self._entries.values()):
            if heir:
                if entry.timer is not None:
                    entry.timer.cancel()
            else:
                self._forget(entry)
                self._hands.record(r.AskClosed(request_id=entry.pending.request_id))
            _tell(entry.given, reached=False)
        self._entries.clear()

    def inherit(self) -> None:
        """Close what an actor that crashed has left open: its process is gone."""
        for pending in self._core.book.pending(self._core.session_id):
            self._resolve(_Entry(pending=pending, incarnation=0, wire_id=""), None, "died")


_VERDICTS: dict[str, Answer] = {"closed": Decline(), "interrupt": CancelTurn()}


def _asked(pending: Pending) -> AgentEvent:
    return ApprovalRequested(pending) if isinstance(pending, PendingApproval) else QuestionAsked(pending)


def _resolved(pending: Pending, verdict: Answer | None, by: str) -> AgentEvent:
    kind = ApprovalResolved if isinstance(pending, PendingApproval) else QuestionResolved
    return kind(pending.request_id, verdict, by)


def _key(pending: Pending) -> str:
    """Return what makes two calls the same: the tool and its arguments, but for the model's own description of them."""
    if not isinstance(pending, PendingApproval):
        return ""
    given = {name: value for name, value in pending.input.items() if name != "description"}
    return f"{pending.tool} {json.dumps(given, sort_keys=True, default=str)}"
