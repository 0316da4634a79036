"""The front door by id: calls that name a session and a turn, for a front end that holds no handles. Another face of the same actors.

`ById` is a part of `Greenroom`. Thread-safe; every call that may wait has an asynchronous twin with an `a` before its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.runtime import tell
from greenroom.actors.ticket import TicketState
from greenroom.agent import Agent, check_session_id
from greenroom.asks import AskPolicy
from greenroom.conversations import account
from greenroom.directory import SessionDirectory, SessionRecord, cursor_of, record_of
from greenroom.errors import NoRunningTurnError, ProviderCapabilityError, SessionStateError, UnknownSessionError
from greenroom.history import Account, Thread
from greenroom.model import ApprovalPolicy, Attachment, InteractionMode, NativePermissions, RuntimeMode, Turn, TurnRequest
from greenroom.preparing import TurnTicket
from greenroom.session import Session
from greenroom.streams import waker
from greenroom.transports.base import Transport
from greenroom.transports.catalog import PROVIDERS

if TYPE_CHECKING:
    from greenroom.room import Greenroom

DEFAULT_PROVIDER = "codex"
HOMES = {"codex": "CODEX_HOME", "claude": "CLAUDE_CONFIG_DIR"}
_PATH = (str | os.PathLike, "a path")
_OF_ALL: dict[str, tuple[Any, str]] = {"binary_path": _PATH, "home_path": _PATH, "env": (Mapping, "a mapping")}
OPTIONS = {"codex": _OF_ALL, "claude": {**_OF_ALL, "partial_messages": (bool, "a bool")}}
PERMISSIONS = {
    RuntimeMode.FULL_ACCESS: (NativePermissions.bypass(), ApprovalPolicy.DENY),
    RuntimeMode.APPROVAL_REQUIRED: (NativePermissions.ask(), ApprovalPolicy.ASK),
}

_E = TypeVar("_E", bound=enum.Enum)
ProviderOptions = Mapping[str, Mapping[str, Any]]


@attrs.frozen(kw_only=True, eq=False)
class SentTurn:
    """A turn that was sent. It runs whether or not anybody waits for it."""

    thread_id: str
    turn_id: str
    _session: Session = attrs.field(repr=False)
    _ticket: TurnTicket = attrs.field(repr=False)

    @property
    def resume_cursor(self) -> dict[str, str] | None:
        """What another session may go on from, as of now; None before the provider has named the conversation."""
        return cursor_of(self._session.conversation_id)

    @property
    def ended(self) -> bool:
        """Whether the outcome is there."""
        return self._ticket.ended

    def wait(self, timeout: float | None = None) -> Turn:
        """Wait for the outcome, at most `timeout` seconds. Raises the turn's error, or WaitTimeoutError; the turn goes on."""
        return self._ticket.wait(timeout)

    async def await_turn(self) -> Turn:
        """The same, in an event loop."""
        await _settled(self._ticket._core.cell)
        return self._ticket.wait()


async def _settled(cell: Cell[Any]) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    cell.when_settled(waker(loop, done))
    await done


def _must_be(name: str, value: object, kinds: Any, what: str) -> None:
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}")


def _one_of(name: str, kind: type[_E], given: object) -> _E:
    """Return the member that is given, or named by its value. Raises ValueError."""
    try:
        return kind(given)
    except ValueError:
        raise ValueError(f"{name} must be one of {', '.join(repr(one.value) for one in kind)}, got {given!r}") from None


def _runtime_mode(given: object) -> RuntimeMode:
    return _one_of("runtime_mode", RuntimeMode, given)


def _conversation_of(cursor: object) -> str | None:
    if cursor is None:
        return None
    conversation_id = cursor.get("threadId") if isinstance(cursor, Mapping) else None
    if not isinstance(conversation_id, str) or not conversation_id:
        raise ValueError(f"resume_cursor must be what a session's record had, like {{'threadId': …}}, got {cursor!r}")
    return conversation_id


@attrs.frozen(kw_only=True)
class _Wanted:
    """How a session is to be started, as `start_session` takes it. Raises TypeError and ValueError for what cannot be meant."""

    provider: str | Transport | None
    runtime_mode: RuntimeMode = attrs.field(converter=_runtime_mode)
    cwd: Path | str | None = None
    model: str | None = None
    resume_id: str | None = attrs.field(default=None, converter=_conversation_of, alias="resume_cursor")
    provider_options: ProviderOptions | None = None
    asks: AskPolicy = attrs.field(factory=AskPolicy)
    timeout: float | None = None

    def __attrs_post_init__(self) -> None:
        _must_be("cwd", self.cwd, str | os.PathLike | None, "a path")
        _must_be("model", self.model, str | None, "a str")
        _must_be("timeout", self.timeout, int | float | None, "a number of seconds")
        if self.timeout is not None and not self.timeout >= 0:
            raise ValueError(f"timeout must be 0 seconds or more, got {self.timeout}")

    def agent(self, room: Greenroom, known: SessionRecord | None) -> Agent:
        """Return the agent; what is not named is as `known`."""
        provider = self.provider if self.provider is not None else known.provider if known is not None else DEFAULT_PROVIDER
        permissions, approvals = PERMISSIONS[self.runtime_mode]
        return Agent(
            _transport(provider, self.provider_options or {}),
            permissions=permissions,
            approvals=approvals,
            asks=self.asks,
            model=self.model or (known.model if known is not None else None),
            room=room,
        )


class ById:
    """The calls of `Greenroom` that name a session by its id. Any thread; a forked child and a closed room are refused by name."""

    directory: SessionDirectory

    if TYPE_CHECKING:

        def _check(self) -> None: ...
        def _check_process(self) -> None: ...
        def _living(self, session_id: str) -> Session | None: ...
        def _ending(self, session_id: str) -> Session | None: ...
        def _as_room(self) -> Greenroom: ...
        def _consult(self, question: str, *names: str | int) -> Any: ...

    def _open_front(self) -> None:
        self._front_lock = threading.Lock()
        self._stopped: set[str] = set()
        self._starting: set[str] = set()

    # --- sessions

    def start_session(
        self,
        thread_id: str,
        provider: str | Transport | None = None,
        *,
        runtime_mode: RuntimeMode | str,
        cwd: Path | str | None = None,
        model: str | None = None,
        resume_cursor: Mapping[str, str] | None = None,
        provider_options: ProviderOptions | None = None,
        asks: AskPolicy = AskPolicy(),  # noqa: B008 - frozen
        timeout: float | None = None,
    ) -> SessionRecord:
        """Start a session under an id of the caller's, and its process; return its record once it is ready, or an error.

        `provider`: a name ("codex" by default) or a ready transport. `runtime_mode` "full-access": the agent is asked for nothing;
        "approval-required": what it wants to change waits for a person (`room.pending`, `room.answer`), as `asks` says. `cwd`: this
        process's by default. `resume_cursor`: what another session's record had; a conversation that is gone gives way to a new one, any
        other failure to resume is an error. A session on record (`state_dir`) goes on in its conversation, with the provider, directory
        and model that it had unless they are named. `provider_options`: by the provider's name `binary_path`, `home_path`, `env`, and for
        Claude `partial_messages`. After `timeout` seconds the record is returned as it is, connecting.

        Blocks for the check of the binary and the start. Raises SessionStateError for an id that is started already, or was stopped, and
        what `Agent` and `Agent.session` raise; ValueError and TypeError for arguments that cannot be meant. What the start of the process
        fails of is in the record (`last_error`).
        """
        wanted = _Wanted(
            provider=provider,
            runtime_mode=runtime_mode,
            cwd=cwd,
            model=model,
            resume_cursor=resume_cursor,
            provider_options=provider_options,
            asks=asks,
            timeout=timeout,
        )
        session, connected = self._begin_session(thread_id, wanted)
        connected.wait(timeout, session._clock)
        return record_of(session._core)

    async def astart_session(self, thread_id: str, provider: str | Transport | None = None, **options: Any) -> SessionRecord:
        """The same as `start_session`, in an event loop."""
        wanted = _Wanted(provider=provider, **options)
        session, connected = await asyncio.to_thread(self._begin_session, thread_id, wanted)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_settled(connected), wanted.timeout)
        return record_of(session._core)

    def _begin_session(self, thread_id: str, wanted: _Wanted) -> tuple[Session, Cell[None]]:
        self._check()
        _check_id(thread_id)
        with self._reserved(thread_id):
            known = self.directory.get(thread_id)
            where = wanted.cwd or (known.cwd if known is not None else None) or Path.cwd()
            agent = wanted.agent(self._as_room(), known)
            session = agent.session(where, session_id=thread_id, resume_id=wanted.resume_id, renewal=None)
        return session, session._connect()

    @contextlib.contextmanager
    def _reserved(self, thread_id: str) -> Iterator[None]:
        """Have the id to oneself while a session is begun under it: nobody starts it meanwhile, and so nobody stops it."""
        with self._front_lock:
            if thread_id in self._stopped:
                raise was_stopped(thread_id)
            if thread_id in self._starting or self._living(thread_id) is not None:
                raise SessionStateError(f"session {thread_id!r} is open already")
            self._starting.add(thread_id)
        try:
            found = self._consult("session", thread_id)
            if found is not None and found.removed:
                raise was_stopped(thread_id)
            yield
        finally:
            with self._front_lock:
                self._starting.discard(thread_id)

    def _check_not_stopped(self, thread_id: str) -> None:
        """Raise SessionStateError for an id that was stopped. Takes no lock: one that is there stays."""
        if thread_id in self._stopped:
            raise was_stopped(thread_id)

    def session(self, thread_id: str) -> Session:
        """Return the handle of a session by its id. Raises UnknownSessionError."""
        self._check_process()
        _must_be("thread_id", thread_id, str, "a str")
        session = self._living(thread_id)
        if session is None:
            raise UnknownSessionError(thread_id, on_record=self.directory.get(thread_id) is not None)
        return session

    def stop_session(self, thread_id: str) -> bool:
        """End a session for good: its turn is interrupted, what waits for a person is declined, its process is ended, it leaves the
        directory, and then `session/closed` is told. In this order; returns when all is done.

        False: it was stopped before. It cannot be started again under its id. Raises UnknownSessionError.
        """
        session, first = self._leaving(thread_id)
        if session is not None:
            session.close()
        return first

    async def astop_session(self, thread_id: str) -> bool:
        """The same as `stop_session`, in an event loop."""
        session, first = await asyncio.to_thread(self._leaving, thread_id)
        if session is not None:
            await session.aclose()
        return first

    def _leaving(self, thread_id: str) -> tuple[Session | None, bool]:
        """Return the session that is to be closed, and whether it is this call that stops it."""
        self._check_process()
        _must_be("thread_id", thread_id, str, "a str")
        with self._front_lock:
            if thread_id in self._stopped:
                return self._ending(thread_id), False
            session = self.session(thread_id)
            session._core.removed = True
            self._stopped.add(thread_id)
            return session, True

    # --- turns

    def send_turn(
        self,
        thread_id: str,
        input: str,  # noqa: A002 - the name that front ends know
        attachments: Iterable[Attachment] = (),
        model: str | None = None,
        interaction_mode: InteractionMode | str = "default",
    ) -> SentTurn:
        """Send a prompt and begin the turn; it is named when this returns, and runs whether or not anybody waits for it.

        `attachments`, `model` and `interaction_mode` ("default" or "plan") are of this turn alone. Raises UnknownSessionError,
        SessionStateError while a turn runs, ValueError for an empty input, and what `prepare_turn` raises.
        """
        session = self.session(thread_id)
        request = _request(input, attachments, model, interaction_mode)
        with session._send_lock:
            ticket, begun = session.prepare_turn(request), Cell[None]()
            session._start(ticket, None, begun)
        begun.wait(None, session._clock)
        return SentTurn(thread_id=thread_id, turn_id=ticket.turn_id, session=session, ticket=ticket)

    async def asend_turn(self, thread_id: str, input: str, **options: Any) -> SentTurn:  # noqa: A002
        """The same as `send_turn`, in an event loop."""
        return await asyncio.to_thread(self.send_turn, thread_id, input, **options)

    def interrupt_turn(self, thread_id: str, turn_id: str | None = None) -> bool:
        """End the running turn, if it is the one that `turn_id` names; the conversation is kept. Returns at once.

        False: no turn was named, and none runs. Raises UnknownSessionError, and NoRunningTurnError when another turn runs or none.
        """
        session = self.session(thread_id)
        _must_be("turn_id", turn_id, str | None, "a str")
        core = session._current
        running = core if core is not None and core.state is TicketState.BEGUN and not core.cell.settled else None
        if turn_id is not None and (running is None or running.turn_id != turn_id):
            other = "no turn runs" if running is None else f"turn {running.turn_id!r} does"
            raise NoRunningTurnError(f"turn {turn_id!r} of session {thread_id!r} does not run: {other}")
        if running is None:
            return False
        tell(session._ref, m.Interrupt(turn_id=running.turn_id))
        return True

    async def ainterrupt_turn(self, thread_id: str, turn_id: str | None = None) -> bool:
        """The same as `interrupt_turn`."""
        return self.interrupt_turn(thread_id, turn_id)

    # --- the conversation, and who pays

    def read_thread(self, thread_id: str) -> Thread:
        """Return the session's conversation: its turns with their items. Blocks; starts no turn.

        Raises UnknownSessionError, ProviderCapabilityError, and what `Session.read_thread` raises.
        """
        return self.session(thread_id).read_thread()

    async def aread_thread(self, thread_id: str) -> Thread:
        """The same as `read_thread`, in an event loop."""
        return await asyncio.to_thread(self.read_thread, thread_id)

    def rollback_thread(self, thread_id: str, num_turns: int) -> None:
        """Go back by so many turns. Blocks. Raises UnknownSessionError, ProviderCapabilityError, and what `Session.rollback` raises."""
        self.session(thread_id).rollback(num_turns)

    async def arollback_thread(self, thread_id: str, num_turns: int) -> None:
        """The same as `rollback_thread`, in an event loop."""
        await asyncio.to_thread(self.rollback_thread, thread_id, num_turns)

    def fork_thread(self, thread_id: str, new_thread_id: str) -> SessionRecord:
        """Begin another session under an id of the caller's, with the whole history of this one; return its record.

        Blocks. Raises UnknownSessionError, ProviderCapabilityError, SessionStateError for an id that is taken, and more of `Session.fork`.
        """
        self._check()
        _check_id(new_thread_id)
        with self._reserved(new_thread_id):
            forked = self.session(thread_id).fork(new_thread_id, renewal=None)
        forked._connect().wait(None, forked._clock)
        return record_of(forked._core)

    async def afork_thread(self, thread_id: str, new_thread_id: str) -> SessionRecord:
        """The same as `fork_thread`, in an event loop."""
        return await asyncio.to_thread(self.fork_thread, thread_id, new_thread_id)

    def account(self, provider: str | Transport = DEFAULT_PROVIDER, *, provider_options: ProviderOptions | None = None) -> Account:
        """Return which account the provider's processes use, as it says. Blocks; calls no model. Raises ProviderCapabilityError."""
        self._check()
        return account(_transport(provider, provider_options or {}))

    async def aaccount(self, provider: str | Transport = DEFAULT_PROVIDER, *, provider_options: ProviderOptions | None = None) -> Account:
        """The same as `account`, in an event loop."""
        return await asyncio.to_thread(self.account, provider, provider_options=provider_options)


def was_stopped(thread_id: str) -> SessionStateError:
    """Return what is raised for a session that was stopped for good."""
    return SessionStateError(f"session {thread_id!r} was stopped; start another one, which may take its resume cursor")


def _check_id(thread_id: str) -> None:
    _must_be("thread_id", thread_id, str, "a str")
    if not thread_id.strip():
        raise ValueError("thread_id must not be empty")
    check_session_id(thread_id)


def _transport(provider: str | Transport, options: ProviderOptions) -> Transport:
    """Return the provider's transport. Raises ProviderCapabilityError for a provider or an option that there is not, TypeError."""
    if not isinstance(provider, str) and not hasattr(provider, "profile"):
        raise TypeError(f"provider must be a name or a ready transport, got {provider!r}")
    _must_be("provider_options", options, Mapping, "a mapping")
    for name, given in options.items():
        if name not in OPTIONS:
            raise ProviderCapabilityError("provider_options: no such provider", provider=name, hint=f"known ones: {', '.join(OPTIONS)}")
        _must_be(f"provider_options[{name!r}]", given, Mapping, "a mapping")
        unknown = sorted(set(given) - set(OPTIONS[name]), key=str)
        if unknown:
            hint = f"known options: {', '.join(sorted(OPTIONS[name]))}"
            raise ProviderCapabilityError(f"provider_options: no option {unknown[0]!r}", provider=name, hint=hint)
        for option, value in given.items():
            kinds, what = OPTIONS[name][option]
            _must_be(f"provider_options[{name!r}][{option!r}]", value, kinds | None, what)
    if not isinstance(provider, str):
        if options:
            raise ProviderCapabilityError("provider_options belong to the transport; a ready one has its own")
        return provider
    factory = PROVIDERS.get(provider)
    if factory is None:
        raise ProviderCapabilityError(f"unknown provider {provider!r}", hint=f"known providers: {', '.join(sorted(PROVIDERS))}")
    given = options.get(provider, {})
    env, home = given.get("env"), given.get("home_path")
    if home is not None:
        env = {**(os.environ if env is None else env), HOMES[provider]: os.fspath(home)}
    more = {"partial_messages": bool(given["partial_messages"])} if "partial_messages" in given else {}
    return factory(binary=given.get("binary_path"), env=env, **more)


def _request(text: str, attachments: Iterable[Attachment], model: str | None, interaction_mode: InteractionMode | str) -> TurnRequest:
    _must_be("input", text, str, "a str")
    request = TurnRequest(
        text, attachments=attachments, model=model, interaction_mode=_one_of("interaction_mode", InteractionMode, interaction_mode)
    )
    if not request.prompt.strip() and not request.attachments:
        raise ValueError("input must not be empty")
    return request
