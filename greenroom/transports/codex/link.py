"""What is written to `codex app-server`, and whose each of its lines is: the state machine of one process with many conversations.

Decides which conversation a frame belongs to, by its thread, and answers what the server asks; what a frame means for a turn is the
conversation's affair. Never waits, looks at no clock, does no I/O, and never raises on what the process says. One thread at a time.

A conversation that is given up is archived and taken out of the archive again: that ends its turn and its commands, and lets another
process have the thread (`thread/unsubscribe` does not; 0.163 and 0.171).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from greenroom.asks import Answer
from greenroom.errors import CliCheckError, GreenroomError, SessionResumeError, SessionStateError
from greenroom.events import AccountInUse, Lifecycle, RateLimitStatus
from greenroom.history import Account
from greenroom.model import ProviderUsage
from greenroom.transports.base import Addressed, Attempt, Kill, LaunchSpec, Output, ProcessExit, Ready, StartFailed, Write
from greenroom.transports.codex import items, lines
from greenroom.transports.codex.account import WHOSE, account_of
from greenroom.transports.codex.asks import SERVED
from greenroom.transports.codex.classify import refused_request, refused_start
from greenroom.transports.codex.config import CodecConfig
from greenroom.transports.codex.conversation import DELTAS, Conversation
from greenroom.transports.codex.desk import Pending, RequestDesk
from greenroom.transports.codex.lines import Frame, obj, text
from greenroom.transports.codex.requests import refuse
from greenroom.transports.codex.state import Phase

_CHILDREN_KEPT = 1024
#: Said of a thread while it opens, before the answer that tells whose it is.
_EARLY = frozenset({"mcpServer/startupStatus/updated", "warning"})
_EARLY_KEPT = 64
_WHOSE_ID = "account"


class CodexLinkCodec:
    """The codec of one app-server. `greenroom.transports.base.SharedCodec` says what each method is for."""

    def __init__(self, config: CodecConfig) -> None:
        self.junk_lines = 0
        self._config = config
        self._desk = RequestDesk()
        self._conversations: dict[str, Conversation] = {}
        self._by_thread: dict[str, str] = {}
        self._children: dict[str, str] = {}
        self._leaving: dict[str, list[str]] = {}
        self._limits: dict[str, RateLimitStatus] = {}
        self._faults: dict[str, None] = {}
        self._early: deque[tuple[str, str, Frame]] = deque(maxlen=_EARLY_KEPT)
        self._account: Account | None = None
        self._ready = False
        self._ended = False

    # --- the port ------------------------------------------------------------------------------------------------------

    @property
    def deadline_s(self) -> float | None:
        """When `tick` is due."""
        if self._ended:
            return None
        bounds = [self._desk.until_s, *(conversation.turns.deadline_s for conversation in self._conversations.values())]
        return min((bound for bound in bounds if bound is not None), default=None)

    @property
    def sent(self) -> bool:
        """Whether an attempt of any conversation is open whose first byte has been handed out."""
        return any(map(_has_sent, self._conversations.values()))

    def sent_by(self, key: str) -> bool:
        """Whether the conversation's attempt is open and its first byte has been handed out."""
        conversation = self._conversations.get(key)
        return conversation is not None and _has_sent(conversation)

    def opened(self, now_s: float) -> list[Output]:
        """Begin the handshake. Deltas are not wanted: whole items follow, and they would be most of the traffic."""
        asked = {
            "clientInfo": {"name": "greenroom", "title": "Greenroom", "version": self._config.client_version},
            "capabilities": {"experimentalApi": True, "optOutNotificationMethods": list(DELTAS)},
        }
        return [self._desk.ask("initialize", asked, owner=None, until_s=now_s + self._config.startup_timeout_s)]

    def receive(self, line: bytes, now_s: float) -> list[Output]:
        """Take one line of standard output."""
        if self._ended or not line.strip():
            return []
        frame = lines.decode(line)
        if frame is None:
            self.junk_lines += 1
            return []
        method = frame.get("method")
        if not isinstance(method, str):
            return list(self._answered(frame, now_s))
        fields = obj(frame.get("params"))
        if "id" in frame:
            return list(self._asked(method, frame["id"], fields, now_s))
        return list(self._told(method, fields, line, now_s))

    def oversized(self, size: int, now_s: float) -> list[Output]:
        """Fail every open attempt: whose line it was cannot be known. Their turns are stopped; the next ones run in the same process."""
        what = f"a line of {size} bytes is longer than the limit of {self._config.max_line_bytes} bytes"
        return [output for key, conv in list(self._conversations.items()) for output in _to(key, conv.line_lost(what, now_s))]

    def attach(self, key: str, launch: LaunchSpec, now_s: float) -> list[Output]:
        """Open (or resume) a conversation, at once or when the handshake is done."""
        if key in self._conversations:
            raise SessionStateError(f"conversation key {key!r} is attached already")
        conversation = Conversation(self._config, self._desk, launch)
        holder = self._by_thread.get(launch.resume_id or "")
        if holder is not None:
            error = SessionResumeError(launch.resume_id, detail="another session holds it", in_use=True, argv=self._config.argv)
            return [Addressed(key=key, output=StartFailed(error))]
        self._conversations[key] = conversation
        if (waiting := self._leaving.get(launch.resume_id or "")) is not None:
            waiting.append(key)
            return []
        return list(self._open(key, now_s)) if self._ready else []

    def detach(self, key: str, now_s: float) -> list[Output]:
        """Give the conversation up: the server ends its turn and unloads it."""
        conversation = self._conversations.pop(key, None)
        if conversation is None:
            return []
        for thread_id in [thread_id for thread_id, parent in self._children.items() if parent == key]:
            del self._children[thread_id]
        conversation.abandon()
        held = conversation.thread_id
        if held is None or self._ended or self._by_thread.get(held) != key:
            return []
        del self._by_thread[held]
        return [self._leave(held, now_s)]

    def start_turn(self, key: str, attempt: Attempt, now_s: float) -> list[Output]:
        """Begin an attempt."""
        conversation = self._conversations.get(key)
        if conversation is None or self._ended or conversation.phase is not Phase.READY or conversation.turns.open is not None:
            raise SessionStateError(f"attempt {attempt.receipt!r} cannot begin now")
        return _to(key, conversation.turns.start_turn(attempt, now_s))

    def steer(self, key: str, text: str, steer_id: str, now_s: float) -> list[Output] | None:
        """Send text into the open turn; None when it can take none now."""
        conversation = self._conversations.get(key)
        outputs = None if conversation is None or self._ended else conversation.turns.steer(text, steer_id, now_s)
        return None if outputs is None else _to(key, outputs)

    def interrupt(self, key: str, now_s: float) -> list[Output]:
        """End the open attempt as soon as the server can take it."""
        conversation = self._conversations.get(key)
        return [] if conversation is None or self._ended else _to(key, conversation.turns.interrupt(now_s))

    def answer(self, key: str, request_id: str, answer: Answer, now_s: float) -> list[Output] | None:
        """Answer what a conversation asked; None when it is open no more."""
        conversation = self._conversations.get(key)
        outputs = None if conversation is None or self._ended else conversation.turns.answer(request_id, answer, now_s)
        return None if outputs is None else _to(key, outputs)

    def exited(self, exit_: ProcessExit, stderr_tail: str, now_s: float) -> list[Output]:
        """End the start if it is open and this is an answer, and the steers; never an attempt."""
        if self._ended:
            return []
        was_starting = not self._ready
        outputs = [
            out
            for key, conv in self._conversations.items()
            for out in _to(key, conv.turns.reject_steers("delivery unknown: the process ended"))
        ]
        self._end()
        if not was_starting or exit_.signal is not None or (exit_.returncode or 0) < 0:
            return outputs
        error = refused_start(argv=self._config.argv, returncode=exit_.returncode, stderr=stderr_tail)
        return [*outputs, *self._start_failed(error)]

    def consumed(self) -> ProviderUsage | None:
        """Nothing: a process has no consumption of its own."""
        return None

    def consumed_by(self, key: str) -> ProviderUsage | None:
        """What the conversation's open attempt is known to have consumed so far: a lower bound."""
        conversation = self._conversations.get(key)
        return None if conversation is None else conversation.turns.consumed()

    def tick(self, now_s: float) -> list[Output]:
        """Act on every bound that has passed."""
        if self._ended:
            return []
        outputs = [output for pending in self._desk.expired(now_s) for output in self._expired(pending, now_s)]
        for key, conversation in list(self._conversations.items()):
            outputs += _to(key, conversation.turns.tick(now_s))
        return outputs

    # --- the process ---------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._ended = True
        self._desk.clear()

    def _start_failed(self, error: GreenroomError) -> Iterator[Output]:
        """The process does not start: neither does what waits for it."""
        self._end()
        yield StartFailed(error)
        for key, conversation in self._conversations.items():
            yield Addressed(key=key, output=conversation.fail_start(error))

    def _handshake_answered(self, error: Any, now_s: float) -> Iterator[Output]:
        if error is not None:
            yield from self._start_failed(refused_request(error))
            return
        self._ready = True
        yield Write(lines.notification("initialized"))
        # Nobody waits for the answer: with a ChatGPT login the server asks OpenAI first, and may never come back.
        yield Write(lines.request(_WHOSE_ID, WHOSE, {}))
        yield Ready(None)
        for key, conversation in list(self._conversations.items()):
            if conversation.phase is Phase.WAITING:
                yield from self._open(key, now_s)

    def _expired(self, pending: Pending, now_s: float) -> Iterator[Output]:
        if pending.method == "initialize":
            why = f"no answer to the handshake within {self._config.startup_timeout_s:g} s"
            yield from self._start_failed(CliCheckError(self._config.argv[0], why))
            yield Kill(why)
        elif pending.owner is None:
            yield from self._left(pending.subject, now_s)
        elif (key := self._key_of(pending.owner)) is not None:
            yield from _to(key, pending.owner.expired(pending, now_s))

    # --- coming and going ----------------------------------------------------------------------------------------------

    def _key_of(self, conversation: Conversation) -> str | None:
        return next((key for key, row in self._conversations.items() if row is conversation), None)

    def _open(self, key: str, now_s: float) -> Iterator[Output]:
        yield from _to(key, self._conversations[key].begin(now_s))

    def _leave(self, thread_id: str, now_s: float) -> Write:
        self._leaving[thread_id] = []
        until_s = now_s + self._config.startup_timeout_s
        return self._desk.ask("thread/archive", {"threadId": thread_id}, owner=None, subject=thread_id, until_s=until_s)

    def _left(self, thread_id: str, now_s: float) -> Iterator[Output]:
        """The server has let go of a thread; who waits for it gets it now."""
        self._early = deque((row for row in self._early if row[0] != thread_id), maxlen=_EARLY_KEPT)
        for key in self._leaving.pop(thread_id, ()):
            if key in self._conversations:
                yield from self._open(key, now_s)

    def _leaving_answered(self, pending: Pending, now_s: float) -> Iterator[Output]:
        if pending.method == "thread/archive":
            until_s = now_s + self._config.startup_timeout_s
            yield self._desk.ask("thread/unarchive", {"threadId": pending.subject}, owner=None, subject=pending.subject, until_s=until_s)
        else:
            yield from self._left(pending.subject, now_s)

    # --- answers -------------------------------------------------------------------------------------------------------

    def _answered(self, frame: Frame, now_s: float) -> Iterator[Output]:
        pending = self._desk.take(frame.get("id"))
        if frame.get("id") == _WHOSE_ID and self._account is None:
            yield from self._told_account(account_of(obj(frame.get("result")), frame.get("error")))
        if pending is None:
            return
        reply, error = obj(frame.get("result")), frame.get("error")
        if pending.method == "initialize":
            yield from self._handshake_answered(error, now_s)
        elif pending.owner is None:
            yield from self._leaving_answered(pending, now_s)
        elif (key := self._key_of(pending.owner)) is None:
            yield from self._answered_in_vain(pending, reply, now_s)
        else:
            yield from self._conversation_answered(key, pending, reply, error, now_s)

    def _answered_in_vain(self, pending: Pending, reply: Frame, now_s: float) -> Iterator[Output]:
        """Who asked is gone; a thread that has been opened for it is given back."""
        thread_id = text(obj(reply.get("thread")).get("id"))
        if pending.method in {"thread/start", "thread/resume"} and thread_id and thread_id not in self._by_thread:
            yield self._leave(thread_id, now_s)

    def _conversation_answered(self, key: str, pending: Pending, reply: Frame, error: Any, now_s: float) -> Iterator[Output]:
        conversation: Conversation = pending.owner
        outputs = _to(key, conversation.answered(pending, reply, error, now_s))
        if conversation.thread_id is not None and pending.method in {"thread/start", "thread/resume"}:
            self._by_thread.setdefault(conversation.thread_id, key)
        yield from outputs
        if any(isinstance(output, Addressed) and isinstance(output.output, Ready) for output in outputs):
            yield from self._greet(key, conversation, now_s)

    def _greet(self, key: str, conversation: Conversation, now_s: float) -> Iterator[Output]:
        """Tell a new conversation what was said to the process before it came, and of its thread before it had its name."""
        said = [row for row in self._early if row[0] == conversation.thread_id]
        for row in said:
            self._early.remove(row)
            yield from _to(key, conversation.notice(row[1], row[2], b"", now_s))
        for fault in self._faults:
            yield Addressed(key=key, output=Lifecycle("warning", fault))
        for limit in self._limits.values():
            yield Addressed(key=key, output=limit)
        if self._account is not None:
            yield Addressed(key=key, output=AccountInUse(self._account))

    def _told_account(self, account: Account) -> Iterator[Output]:
        """The server has said who pays: told to who is there, and to each that comes."""
        self._account = account
        yield from self._to_all([AccountInUse(account)])

    # --- notifications -------------------------------------------------------------------------------------------------

    def _told(self, method: str, fields: Frame, line: bytes, now_s: float) -> Iterator[Output]:
        thread_id = text(fields.get("threadId"))
        if not thread_id:
            yield from self._told_all(method, fields)
            return
        key = self._by_thread.get(thread_id)
        conversation = self._conversations.get(key) if key is not None else None
        if key is None or conversation is None:
            if method in _EARLY:
                self._early.append((thread_id, method, fields))
            yield from self._told_of_child(thread_id, method, fields)
            return
        if method in {"item/started", "item/completed"}:
            self._note_child(key, obj(fields.get("item")))
        yield from _to(key, conversation.notice(method, fields, line, now_s))

    def _told_all(self, method: str, fields: Frame) -> Iterator[Output]:
        if method == "account/rateLimits/updated":
            yield from self._to_all(self._news(items.rate_limits(obj(fields.get("rateLimits")))))
        elif method == "configWarning" and text(fields.get("path")):
            fault = f"{text(fields.get('summary'))} {text(fields.get('details')) or text(fields.get('path'))}"
            self._faults[fault] = None

    def _news(self, limits: Iterable[RateLimitStatus]) -> Iterator[RateLimitStatus]:
        """A snapshot comes with every call of every conversation; told is only what has changed."""
        for limit in limits:
            if self._limits.get(limit.window) != limit:
                self._limits[limit.window] = limit
                yield limit

    def _to_all(self, events: Iterable[RateLimitStatus | AccountInUse]) -> Iterator[Output]:
        for event in events:
            for key, conversation in self._conversations.items():
                if conversation.phase is Phase.READY:
                    yield Addressed(key=key, output=event)

    # --- sub-agents ----------------------------------------------------------------------------------------------------

    def _note_child(self, key: str, item: Frame) -> None:
        child = text(item.get("agentThreadId"))
        if item.get("type") == "subAgentActivity" and child:
            if len(self._children) >= _CHILDREN_KEPT:
                del self._children[next(iter(self._children))]
            self._children[child] = key

    def _told_of_child(self, thread_id: str, method: str, fields: Frame) -> Iterator[Output]:
        """A sub-agent's frames are no answer to the caller; what it consumes is."""
        key = self._children.get(thread_id)
        conversation = self._conversations.get(key) if key is not None else None
        if key is not None and conversation is not None and method == "thread/tokenUsage/updated":
            yield from _to(key, conversation.turns.child_usage(thread_id, fields))

    # --- requests of the server ----------------------------------------------------------------------------------------

    def _asked(self, method: str, request_id: Any, asked: Frame, now_s: float) -> Iterator[Output]:
        """Leave it to a person, or answer at once, whoever it is for: a request without an answer is waited for without end."""
        thread_id = text(asked.get("threadId")) or text(asked.get("conversationId"))
        key = self._by_thread.get(thread_id, self._children.get(thread_id))
        conversation = self._conversations.get(key) if key is not None else None
        if key is not None and conversation is not None and method in SERVED and conversation.turns.asks_people:
            yield from _to(key, conversation.turns.ask(method, request_id, asked, now_s))
            return
        refusal = refuse(method, request_id, asked, fails_turn=conversation is not None and conversation.turns.fails_turns)
        yield Write(refusal.line)
        if key is None or conversation is None:
            return
        if not refusal.kind:
            yield Addressed(key=key, output=Lifecycle("request refused", refusal.detail))
            return
        cancelled = refusal.cancels and thread_id == conversation.thread_id
        yield from _to(key, conversation.turns.denied(refusal.kind, refusal.detail, refusal.item_id, now_s, cancelled=cancelled))


def _has_sent(conversation: Conversation) -> bool:
    return conversation.turns.open is not None and conversation.turns.open.written


def _to(key: str, outputs: Iterable[Output]) -> list[Output]:
    """Address what concerns a conversation; bytes are the process's."""
    return [output if isinstance(output, Write) else Addressed(key=key, output=output) for output in outputs]
