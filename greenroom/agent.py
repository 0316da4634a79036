"""The user's handles: Agent, Session, TurnTicket. Thin and thread-safe: they mark, post a message, and wait for a cell.

No method may be called from the loop thread, which runs no code of users. Blocking calls name what they wait for; `interrupt` never waits.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import queue
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs

from greenroom import conversations
from greenroom.actors import messages as m
from greenroom.actors.asks import answer_ask
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.core import NO_FLAGS, SessionCore
from greenroom.actors.ledger import Ledger
from greenroom.actors.runtime import tell
from greenroom.actors.ticket import Batch, Sink, TicketCore, TicketState
from greenroom.asks import Answer, AskPolicy, Pending
from greenroom.attachments import load
from greenroom.clock import LONGEST_WAIT_S, Clock, SystemClock
from greenroom.errors import (
    NoRunningTurnError,
    ProviderCapabilityError,
    SessionStateError,
    TurnCancelledError,
    WaitTimeoutError,
    WorkingDirectoryError,
)
from greenroom.events import AgentEvent, EventCallback, EventHandler, Notice
from greenroom.history import Account, Thread
from greenroom.ids import IdAllocator, new_nonce
from greenroom.journal import STANDARD, RecoveredTicket, Verdict
from greenroom.keys import Keyed, Keys, check_same
from greenroom.liveness import Liveness, Pulse
from greenroom.model import (
    ApprovalPolicy,
    Checkpoint,
    ConversationSpec,
    NativePermissions,
    ProviderUsage,
    RenewalBudget,
    StdioMcpServer,
    TransportKind,
    Turn,
    TurnRequest,
)
from greenroom.policy.commands import How
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.retry import RetryPolicy
from greenroom.policy.session import Settings
from greenroom.policy.stall import StallPolicy
from greenroom.streams import TurnStream, waker
from greenroom.transports.base import Executor, StreamTransport, Transport
from greenroom.transports.catalog import transport_for
from greenroom.transports.refusals import refuse_undeclared

if TYPE_CHECKING:
    from greenroom.room import FoundSession, Greenroom
    from greenroom.transports.checkpoints import CheckpointStore


class _Unset:
    def __repr__(self) -> str:
        return "<the transport's own>"


UNSET: Any = _Unset()


class Agent:
    """A provider with the options that its sessions share.

    `provider` is a name ("claude") or a ready transport. `permissions` and `approvals` have no default: the caller decides.
    `env=None` is this process's environment less the markers of a parent session; a mapping is exactly that. `asks` says how long a
    request waits for a person under `ApprovalPolicy.ASK`, and what becomes of it then. `event_handlers` are called on the observer's
    thread with the events of every session. `stall` says when a running turn has been silent for too long, and what is done then (by
    default it is told, after a quarter of an hour); None: nothing is. Any thread.

    Raises ProviderCapabilityError for an unknown provider, and for options that the transport already has.
    """

    def __init__(
        self,
        provider: str | Transport,
        *,
        permissions: NativePermissions,
        approvals: ApprovalPolicy,
        model: str | None = None,
        env: Mapping[str, str] | None = None,
        executor: Executor | None = None,
        confinement: None = None,
        clock: Clock | None = None,
        ids: IdAllocator | None = None,
        asks: AskPolicy = AskPolicy(),  # noqa: B008 - frozen
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        restart: RestartPolicy = RestartPolicy(),  # noqa: B008 - frozen
        stall: StallPolicy | None = StallPolicy(),  # noqa: B008 - frozen
        event_handlers: tuple[EventCallback | EventHandler, ...] = (),
        log: logging.Logger | None = None,
        check_timeout: float = 15.0,
        transport: TransportKind = UNSET,
        room: Greenroom | None = None,
    ) -> None:
        if confinement is not None:
            raise ProviderCapabilityError("confinement is not supported by this version")
        if not isinstance(permissions, NativePermissions):
            raise TypeError(f"permissions must be NativePermissions, got {permissions!r}; for example NativePermissions.bypass()")
        if not isinstance(approvals, ApprovalPolicy):
            raise TypeError(f"approvals must be an ApprovalPolicy, got {approvals!r}")
        _check_types(
            asks=(asks, AskPolicy),
            retry=(retry, RetryPolicy),
            restart=(restart, RestartPolicy),
            stall=(stall, StallPolicy | None),
            model=(model, str | None),
        )
        self._room = room
        self._asks = asks
        self._clock = clock
        self._ids = ids
        self._retry = retry
        self._restart = restart
        self._stall = stall
        self._handlers = tuple(_as_callback(handler) for handler in event_handlers)
        self._log = log
        self.permissions = permissions
        self.approvals = approvals
        self.model = model
        if isinstance(provider, str):
            kind = TransportKind.STREAM if transport is UNSET else transport
            options = {"env": env, "executor": executor, "clock": clock, "ids": ids, "check_timeout": check_timeout}
            self.transport: Transport = transport_for(provider, kind, **options)
        else:
            if env is not None or executor is not None or transport is not UNSET:
                raise ProviderCapabilityError("env, executor and transport belong to the transport; a ready one has its own")
            if not hasattr(provider, "profile"):
                raise TypeError(f"provider must be a name or a ready transport, got {provider!r}")
            self.transport = provider

    def session(
        self,
        cwd: Path | str,
        *,
        mcp_servers: tuple[StdioMcpServer, ...] = (),
        reasoning_effort: str | None = None,
        checkpoints: CheckpointStore | None = None,
        checkpoint_key: str | None = None,
        idle_release_after: float | None = None,
        resume_id: str | None = None,
        previous_usage: ProviderUsage | None = None,
        session_id: str | None = None,
        renewal: RenewalBudget | None = UNSET,
        skill_scope: str = "ALL",
        mcp_scope: str = "ALL",
        config_scope: str = "ALL",
    ) -> Session:
        """Begin a session in the directory `cwd`; no process is started yet. `idle_release_after` is in seconds.

        `mcp_servers` and `reasoning_effort` are those of turns that name none. `resume_id` is the conversation to go on in, at which
        `previous_usage` was the bill; `checkpoints` and `checkpoint_key` keep both over restarts of the program. `skill_scope`, `mcp_scope`
        and `config_scope` other than "ALL" are refused by the providers of this version.

        `session_id` names it; in a room with a `state_dir` a session of that name that is on record goes on: in its conversation, with
        its turns. Without a name it gets a random one. `renewal` says when a conversation is retired (None: never); by default the
        provider's profile does.

        Blocks for the check of the provider's binary (once for each binary) and for `checkpoints.load`. Raises CliNotFoundError,
        CliCheckError, ProviderCapabilityError, WorkingDirectoryError; SessionStateError when another session of this process holds the
        conversation, or has the name, or the room is closed, or the session on record is another provider's or another directory's;
        ValueError when only one of `checkpoints` and `checkpoint_key` is given, or `resume_id` for a session on record, and for other
        arguments that cannot be meant.
        """
        if (checkpoints is None) != (checkpoint_key is None):
            raise ValueError("checkpoints and checkpoint_key go together")
        if idle_release_after is not None and not idle_release_after >= 0:
            raise ValueError(f"idle_release_after must be 0 seconds or more, got {idle_release_after}")
        _check_ids(session_id, resume_id)
        room = self._room or _default_room()
        room._check()
        spec = ConversationSpec(
            cwd=_directory(cwd),
            permissions=self.permissions,
            approvals=self.approvals,
            model=self.model,
            mcp_servers=tuple(mcp_servers),
            reasoning_effort=reasoning_effort,
            skill_scope=skill_scope,
            mcp_scope=mcp_scope,
            config_scope=config_scope,
        )
        _check_capable(self.transport, spec)
        checkpoint = Checkpoint(resume_id, previous_usage) if resume_id is not None else None
        if checkpoint is None and checkpoints is not None and checkpoint_key is not None:
            checkpoint = checkpoints.load(checkpoint_key)
            if not isinstance(checkpoint, Checkpoint | None):
                raise TypeError(f"checkpoints.load must return a Checkpoint or None, got {checkpoint!r}")
        ids, clock = self._ids or room.ids, self._clock or room.clock
        settings = self._settings(clock, idle_release_after, checkpointing=checkpoints is not None)
        if renewal is not UNSET:
            settings = attrs.evolve(settings, renewal=renewal)
        found = None if session_id is None else room._find_session(session_id)
        if found is not None:
            self._check_same(found, spec, resume_id)
            settings = attrs.evolve(settings, session_nonce=found.opened.nonce)
            checkpoint = checkpoint if found.past is None and checkpoint is not None else found.checkpoint
        session_id = session_id or ids.new_id("session")
        core = SessionCore(
            session_id=session_id,
            transport=self.transport,
            spec=spec,
            settings=settings,
            checkpoint=checkpoint,
            store=checkpoints,
            store_key=checkpoint_key,
            handlers=self._handlers,
            asks=self._asks,
            ledger=found.ledger if found is not None else (Ledger(session_id=session_id) if room.durable else None),
            past=found.past if found is not None else None,
            pulse=Pulse(heard_s=clock.monotonic()),
            monotonic=clock.monotonic,
            log=self._log or room.log,
        )
        if found is not None:
            core.created_at_s = found.opened.at_s
        if found is not None and found.spent is not None:
            core.spent, core.booked = found.spent.usage, found.spent.booked
        alike = functools.partial(
            self.session,
            spec.cwd,
            mcp_servers=spec.mcp_servers,
            reasoning_effort=reasoning_effort,
            idle_release_after=idle_release_after,
            skill_scope=skill_scope,
            mcp_scope=mcp_scope,
            config_scope=config_scope,
        )
        return Session(core, room, clock=clock, ids=ids, alike=alike)

    def account(self) -> Account:
        """Return which account this agent's processes use, as the provider says it. Blocks; calls no model.

        Raises ProviderCapabilityError for a transport that does not tell, CliNotFoundError, QueryFailedError.
        """
        return conversations.account(self.transport)

    def _check_same(self, found: FoundSession, spec: ConversationSpec, resume_id: str | None) -> None:
        """Refuse to go on with a session as something that it is not."""
        opened, profile = found.opened, self.transport.profile
        name = f"session {opened.session_id!r} is on record"
        if resume_id is not None:
            raise ValueError(f"{name}: it has a conversation, and takes no resume_id")
        home = str(getattr(self.transport, "state_home", ""))
        if (opened.provider, opened.state_home) != (profile.name, home):
            raise SessionStateError(f"{name} with {opened.provider} ({opened.state_home}), not with {profile.name} ({home})")
        if opened.spec.cwd != spec.cwd:
            raise SessionStateError(f"{name} in {str(opened.spec.cwd)!r}, not in {str(spec.cwd)!r}")

    def _settings(self, clock: Clock, idle_release_after_s: float | None, *, checkpointing: bool) -> Settings:
        profile = self.transport.profile
        stream = isinstance(self.transport, StreamTransport)
        return Settings(
            session_nonce=new_nonce(),
            # A test's clock wants the delays as they are written.
            retry_delays=self._retry.delays_data(random.Random() if isinstance(clock, SystemClock) else None),  # noqa: S311 - jitter
            restart=self._restart,
            stall=self._stall,
            renewal=profile.renewal,
            idle_release_after_s=idle_release_after_s,
            checkpointing=checkpointing,
            supports_resume=profile.supports_resume,
            chooses_ids=profile.chooses_ids,
            probes=stream,
            retries_in_place=profile.retries_in_place or hasattr(self.transport, "retry"),
        )


@attrs.frozen(kw_only=True, eq=False)
class TurnTicket:
    """The right to run one turn, named before anything runs. `expected_conversation` is what its continuity is judged against."""

    turn_id: str
    request: TurnRequest
    expected_conversation: str | None
    strict: bool
    pinned: bool
    _core: TicketCore = attrs.field(repr=False)
    _clock: Clock = attrs.field(repr=False)
    _pid: int = attrs.field(factory=os.getpid, init=False, repr=False)

    def wait(self, timeout: float | None = None) -> Turn:
        """Wait for the outcome, at most `timeout` seconds, on any thread, as often as wanted.

        Raises the turn's error, or WaitTimeoutError; the turn goes on. SessionStateError in a forked child, which no outcome reaches.
        """
        if self._pid != os.getpid() and not self._core.cell.settled:
            raise SessionStateError(f"turn {self.turn_id!r} runs in the parent process; its outcome cannot be seen after a fork")
        if not self._core.cell.wait(timeout, self._clock):
            raise WaitTimeoutError(self.turn_id, timeout or 0.0)
        return self._core.outcome()

    @property
    def ended(self) -> bool:
        """Whether the outcome is there."""
        return self._core.cell.settled


class Session:
    """One logical conversation across failures. Every method may be called from any thread."""

    def __init__(self, core: SessionCore, room: Greenroom, *, clock: Clock, ids: IdAllocator, alike: Callable[..., Session]) -> None:
        self._core = core
        self._alike = alike
        self._room = room
        self._clock = clock
        self._ids = ids
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._current: TicketCore | None = None
        self._closed = False
        self._key_lock = threading.Lock()
        self._keys = Keys(durable=room.durable)
        if core.resumes is not None:
            core.claim(core.resumes)
        try:
            room._begin(core, self, clock, guarded=isinstance(core.transport, StreamTransport))
        except BaseException:
            CLAIMS.drop(core.closed)
            raise

    # --- what it is

    @property
    def _ref(self) -> Any:
        # Asked for each time: an actor that crashed may have a successor.
        return self._core.ref

    @property
    def id(self) -> str:
        """The session's own id."""
        return self._core.session_id

    @property
    def cwd(self) -> Path:
        """The directory that it works in."""
        return self._core.spec.cwd

    @property
    def conversation_id(self) -> str | None:
        """Where the next turn continues; None when it will start cold."""
        return self._core.view.conversation_id

    @property
    def last_turn_conversation_id(self) -> str | None:
        """Where the last turn ran; kept over a reset."""
        return self._core.view.last_turn_conversation_id

    @property
    def state(self) -> str:
        """Where it stands: idle, prepared, opening, running, waiting, rewinding or closed."""
        return self._core.view.phase.value

    @property
    def liveness(self) -> Liveness:
        """Why it is quiet, and for how long: the model or a tool is at work, or what it waits for. Never waits itself."""
        return self._core.liveness

    @property
    def spent(self) -> ProviderUsage | None:
        """What its tickets have consumed in all; None before the first ended."""
        return self._core.spent

    @property
    def spent_unprompted(self) -> ProviderUsage | None:
        """What turns that the provider started by itself have consumed."""
        return self._core.booked

    @property
    def degraded(self) -> str | None:
        """What last failed beside the work (a checkpoint that could not be stored), or None."""
        return self._core.degraded

    @property
    def closed(self) -> bool:
        """Whether it takes no more turns."""
        return self._closed or self._core.view.closed

    # --- turns

    def prepare_turn(
        self, request: TurnRequest, *, key: str | None = None, expect_conversation: str | None = None, pin: bool = False
    ) -> TurnTicket:
        """Reserve a turn and name it; the provider is not asked. An earlier ticket that has not run is superseded.

        `key` is the caller's own name for the work: under the same key the same request is the same turn, also after a restart of the
        program in a room with a `state_dir`. One that has ended is not run again: `run` gives its outcome. One that was sent and not
        seen to end is taken up where it was cut.

        Raises ContinuityError when the session does not hold `expect_conversation`, ProviderCapabilityError for what the provider
        cannot do, AttachmentError for a file that cannot be shown to the model,
        SessionStateError while a turn runs, after close, and for a key that belongs to another request;
        StoreUnavailableError when it cannot be recorded, JournalError for a request that can never be.
        """
        self._check()
        if not isinstance(request, TurnRequest):
            raise TypeError(f"request must be a TurnRequest, got {type(request).__name__}")
        request = load(request)
        if key is None:
            return self._prepare(request, expect_conversation=expect_conversation, pin=pin)
        with self._key_lock:
            return self._prepare_keyed(request, key, expect_conversation=expect_conversation, pin=pin)

    def _prepare_keyed(self, request: TurnRequest, key: str, **demands: Any) -> TurnTicket:
        request_hash = STANDARD.fingerprint(request)
        known = self._keys.find(key, request_hash)
        if known is None:
            found = self._room._consult("find_key", self.id, key)
            if found is None:
                return self._prepare(request, key=key, **demands)
            check_same(key, found.turn_id, found.request_hash, request_hash)
            # The same request, and the whole of it: of one that is done with, the record has not kept what was attached.
            return self._take_up(attrs.evolve(found, request=request))
        if known.open:
            return known.ticket
        if known.ran:
            return self._ended_ticket(known.ticket.turn_id, request, known.core.cell.outcome)
        known.core.replace()
        if known.core.sent and (found := self._room._consult("find_key", self.id, key)) is not None:
            return self._take_up(found)
        return self._prepare(request, key=key, turn_id=known.ticket.turn_id, nonce=known.nonce, **demands)

    def _take_up(self, found: RecoveredTicket) -> TurnTicket:
        """Prepare a turn of a program that is gone, as far as that one got with it."""
        if found.outcome is not None:
            return self._ended_ticket(found.turn_id, found.request, found.outcome, told=found.reported)
        if found.reported:
            raise SessionStateError(f"turn {found.turn_id!r} has ended, but its outcome could not be recorded")
        expected, pin = found.expected_conversation if found.strict else None, found.pinned
        if found.attempt > 0 and found.decision is not None:
            # That one was done with: this is another turn.
            return self._prepare(found.request, key=found.key, expect_conversation=expected, pin=pin)
        sent = None
        if found.attempt > 0:
            calls = self._room._consult("calls", self.id, found.turn_id)
            sent = m.Sent(attempt=found.attempt, how=found.how or How.PROMPT, calls=calls)
        return self._prepare(
            found.request,
            key=found.key,
            expect_conversation=expected,
            pin=pin,
            turn_id=found.turn_id,
            nonce=found.nonce,
            sent=sent,
        )

    def _run_again(self, found: RecoveredTicket) -> TurnTicket:
        """Prepare a new turn in place of one of a program that is gone."""
        if found.verdict is Verdict.NEVER_SENT:
            return self._take_up(found)
        return self._prepare(found.request, key=found.key, replaces=found.turn_id, pin=found.pinned)

    def _ended_ticket(self, turn_id: str, request: TurnRequest, outcome: Turn | BaseException, *, told: bool = True) -> TurnTicket:
        core = TicketCore.ended(turn_id, self.id, outcome, None if told else self._room._teller(turn_id))
        self._room._decided(turn_id)
        return TurnTicket(
            turn_id=turn_id, request=request, expected_conversation=None, strict=False, pinned=False, core=core, clock=self._clock
        )

    def _prepare(
        self,
        request: TurnRequest,
        *,
        expect_conversation: str | None = None,
        pin: bool = False,
        key: str | None = None,
        turn_id: str | None = None,
        nonce: str | None = None,
        sent: m.Sent | None = None,
        replaces: str | None = None,
    ) -> TurnTicket:
        transport = self._core.transport
        flags = NO_FLAGS
        refuse_undeclared(transport.profile, request)
        if isinstance(transport, StreamTransport):
            transport.validate(self._core.spec, request)
            flags = transport.flags(self._core.spec, request)
        request_hash = STANDARD.fingerprint(request) if key is not None or self._room.durable else ""
        turn_id = turn_id or self._ids.new_id("turn")
        core = TicketCore(turn_id, self.id, on_told=self._room._teller(turn_id))
        core.sent = sent is not None
        reply: Cell[str | None] = Cell()
        message = m.PrepareTurn(
            turn_id=turn_id,
            nonce=nonce or new_nonce(),
            request=request,
            flags=flags,
            expect_conversation=expect_conversation,
            pin=pin,
            ticket=core,
            reply_to=reply,
            key=key,
            request_hash=request_hash,
            sent=sent,
            replaces=replaces,
        )
        tell(self._ref, message)
        reply.wait(None, self._clock)
        ticket = TurnTicket(
            turn_id=turn_id,
            request=request,
            expected_conversation=reply.get(),
            strict=expect_conversation is not None,
            pinned=pin,
            core=core,
            clock=self._clock,
        )
        if key is not None:
            self._keys.add(key, Keyed(ticket=ticket, core=core, nonce=message.nonce, request_hash=request_hash))
        self._room._decided(turn_id)
        return ticket

    def run(self, ticket: TurnTicket, *, on_event: EventCallback | EventHandler | None = None, wait: float | None = None) -> Turn:
        """Run the ticket and return its outcome. `on_event` is called on this thread; a slow one slows only its own session.

        Raises the turn's error; SessionStateError for a ticket that ran, was superseded or belongs to another session;
        TurnCancelledError; WaitTimeoutError after `wait` seconds. After that, after Ctrl-C and after an exception of `on_event` the
        turn goes on, and `ticket.wait` gives its outcome.
        """
        if on_event is None:
            self._start(ticket, None)
            return ticket.wait(wait)
        inbox: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        sink = Sink(inbox.put, self._credit(ticket.turn_id))
        self._start(ticket, sink)
        try:
            self._listen(ticket, inbox, sink, _as_callback(on_event), wait)
        except BaseException:
            self._detach(ticket, sink)
            raise
        return ticket.wait()

    def _listen(
        self, ticket: TurnTicket, inbox: queue.SimpleQueue[Batch | None], sink: Sink, callback: EventCallback, wait: float | None
    ) -> None:
        until_s = None if wait is None else self._clock.monotonic() + wait
        if wait is not None and not isinstance(self._clock, SystemClock):
            self._clock.call_later(wait, lambda: inbox.put(_PATIENCE_OVER))
        while True:
            try:
                timeout_s = (
                    None
                    if until_s is None or not isinstance(self._clock, SystemClock)
                    else min(LONGEST_WAIT_S, max(0.0, until_s - self._clock.monotonic()))
                )
                batch = inbox.get(timeout=timeout_s)
            except queue.Empty:
                raise WaitTimeoutError(ticket.turn_id, wait or 0.0) from None
            if batch is None:
                return
            if batch is _PATIENCE_OVER:
                raise WaitTimeoutError(ticket.turn_id, wait or 0.0)
            for event in batch.events:
                if not isinstance(event, Notice):
                    callback(event)
            sink.consumed(len(batch.events))

    async def arun(self, ticket: TurnTicket, *, on_event: EventCallback | EventHandler | None = None) -> Turn:
        """Run the ticket from asyncio; `on_event` is called in the running loop. Cancelling only detaches: the turn goes on.

        Raises as `run`.
        """
        stream = TurnStream(self, ticket, silent=on_event is None)
        try:
            if on_event is not None:
                callback = _as_callback(on_event)
                async for event in stream:
                    if not isinstance(event.event, Notice):
                        callback(event.event)
            return await stream.turn()
        finally:
            stream.detach()

    def stream(self, ticket: TurnTicket) -> TurnStream:
        """Begin the ticket and return its events as an asynchronous iterator, in the running loop.

        It ends by returning when the turn ended well, else by raising its error; `await stream.turn()` gives the Turn.
        """
        return TurnStream(self, ticket)

    def steer(self, text: str) -> None:
        """Send `text` into the running turn. Returns once it is accepted for it; what became of it is told as an event.

        Raises ProviderCapabilityError when the provider cannot take text in mid-turn, NoRunningTurnError when there is no turn that
        can: nothing is queued, nothing is sent later. ValueError for a text of blanks only, TypeError for what is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        if not text.strip():
            raise ValueError("text is empty: nothing of it would reach the model")
        if not self._core.transport.profile.supports_steer:
            raise ProviderCapabilityError("it takes no text in mid-turn", provider=self._core.transport.profile.name)
        self._room._check_process()
        current = self._current
        if current is None or current.state is not TicketState.BEGUN or current.cell.settled:
            raise NoRunningTurnError("no turn is running")
        reply: Cell[None] = Cell()
        tell(self._ref, m.Steer(turn_id=current.turn_id, text=text, steer_id=new_nonce(), reply_to=reply))
        reply.wait(None, self._clock)
        reply.get()

    def interrupt(self, ticket: TurnTicket | None = None) -> None:
        """End the running turn, or the one that `ticket` names; a prepared one is cancelled. Never waits; harmless when nothing fits."""
        core = self._current if ticket is None else ticket._core
        if core is None or not self._owns(core):
            return
        if ticket is not None and core.cancel(TurnCancelledError(core.turn_id)):
            tell(self._ref, m.CancelTurn(turn_id=core.turn_id))
        elif core.state is TicketState.BEGUN and not core.cell.settled:
            tell(self._ref, m.Interrupt(turn_id=core.turn_id))

    # --- what waits for a person

    def pending(self) -> tuple[Pending, ...]:
        """The requests of the agent that wait for an answer, oldest first."""
        return self._core.book.pending(self.id)

    def answer(self, request_id: str, answer: Answer) -> bool:
        """Answer a request; return whether the answer reached the agent: False when it was answered before, or waits no more.

        Raises UnknownRequestError for an id under which this session never asked, TypeError and ValueError for an answer that the request
        does not take.
        """
        self._room._check_process()
        return answer_ask(self._core.book, request_id, answer, clock=self._clock, session_id=self.id)

    async def aanswer(self, request_id: str, answer: Answer) -> bool:
        """The same as `answer`, in an event loop."""
        return await asyncio.to_thread(self.answer, request_id, answer)

    # --- conversation and end

    def adopt(self, conversation_id: str, previous_usage: ProviderUsage | None = None) -> bool:
        """Offer a conversation to continue in.

        False when the session holds newer history, a turn is prepared or running, or the provider cannot resume.

        Raises SessionStateError when another session of this process holds it, ValueError or TypeError for what is no id.
        """
        self._check()
        _check_id("conversation_id", conversation_id)
        self._core.claim(conversation_id)
        reply: Cell[bool] = Cell()
        checkpoint = Checkpoint(conversation_id, previous_usage)
        tell(self._ref, m.AdoptConversation(request_id=new_nonce(), checkpoint=checkpoint, reply_to=reply))
        reply.wait(None, self._clock)
        if not reply.get() and self.conversation_id != conversation_id:
            CLAIMS.give_back(self._core.claim_key(conversation_id), self._core.closed)
        return reply.get()

    def read_thread(self) -> Thread:
        """Read the conversation: its turns with what was said and done in them, oldest first. Starts no turn and costs nothing.

        It is the one that the session holds, or after a reset the one in which its last turn ran; without either there are no turns. At
        any time, also in mid-turn (the last turn is RUNNING then, and shows what the provider has on record so far), without a process,
        and after `close`. Blocks. Raises ProviderCapabilityError when the provider cannot, SessionResumeError when the conversation is
        gone, QueryFailedError when it cannot be read.
        """
        self._room._check_process()
        return conversations.read_thread(self._core)

    def rollback(self, num_turns: int) -> None:
        """Go back by `num_turns` turns, as `read_thread` counts them: the next turn's model sees nothing of them. Files stay as they are.

        Durable when it returns. Its process, if one runs, is ended first. Blocks, for seconds at most. Raises ValueError for less than 1,
        ProviderCapabilityError when the provider cannot, SessionStateError while a turn is prepared or runs, when there are fewer turns,
        or after `close`; QueryFailedError when the provider refuses: then the conversation is as it was.
        """
        conversations.check_turns(num_turns)
        self._check()
        conversations.roll_back(self._core, num_turns, self._clock)

    def fork(self, session_id: str | None = None, **options: Any) -> Session:
        """Begin another session, whose conversation has the whole history of this one; both go on by themselves.

        It is of the same agent, directory and options, but for `options` (those of `Agent.session`). Blocks, for seconds at most. Raises
        ProviderCapabilityError when the provider cannot, SessionStateError while a turn runs, without a conversation and after `close`,
        QueryFailedError; and what `Agent.session` raises.
        """
        self._check()
        if session_id is not None:
            self._room._check_free(session_id)  # before the provider has made what nobody would have
        made = conversations.fork(self._core)
        return self._alike(**{**options, "resume_id": made.conversation_id, "previous_usage": made.usage, "session_id": session_id})

    def release(self) -> None:
        """Give up the live process of an idle session; the conversation is kept and reopened by the next turn. Does nothing in a turn.

        Returns once that is decided, not when the process has ended. Raises SessionStateError when it is closed.
        """
        self._check()
        reply: Cell[None] = Cell()
        tell(self._ref, m.ReleaseConversation(reply_to=reply))
        reply.wait(None, self._clock)

    def close(self) -> None:
        """End the session: a running turn is interrupted, its process ended. Returns when nothing of it runs. Idempotent."""
        self._begin_close()
        if self._room._pid_is_ours():
            self._core.closed.wait(None, self._clock)

    async def aclose(self) -> None:
        """The same as `close`, from asyncio."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._begin_close()
        self._core.closed.when_settled(waker(loop, done))
        await done

    def _begin_close(self) -> None:
        self._closed = self._core.close_asked = True
        if self._room._pid_is_ours():
            tell(self._ref, m.CloseSession())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.state}>"

    # --- inside

    def _check(self) -> None:
        self._room._check()
        if self._closed:
            raise SessionStateError("the session is closed")

    def _connect(self) -> Cell[None]:
        """Have the process started before there is a turn; the cell is settled once it is ready, or will not be."""
        transport, flags, reply = self._core.transport, NO_FLAGS, Cell[None]()
        if isinstance(transport, StreamTransport):
            flags = transport.flags(self._core.spec, TurnRequest(""))
        self._core.connecting = reply
        tell(self._ref, m.Connect(flags=flags, reply_to=reply))
        return reply

    def _start(self, ticket: TurnTicket, sink: Sink | None, begun: Cell[None] | None = None) -> None:
        """Mark the ticket begun, then post Run: an interrupt from now on means this turn. `begun`: settled once the view says so."""
        self._check_ticket(ticket)
        core = ticket._core
        if core.recorded:
            core.begin(sink)
            return
        with self._lock:
            core.begin(sink)
            self._current = core
        tell(self._ref, m.Run(turn_id=core.turn_id, ticket=core, begun=begun))

    def _check_ticket(self, ticket: TurnTicket) -> None:
        # Not whether the session is closed: that has settled the ticket, and its own error says more than ours.
        self._room._check_process()
        if not self._owns(ticket._core):
            raise SessionStateError(f"turn {ticket.turn_id!r} belongs to session {ticket._core.session_id!r}, not to {self.id!r}")

    def _owns(self, core: TicketCore) -> bool:
        return core.session_id == self.id

    def _credit(self, turn_id: str) -> Callable[[], None]:
        core = self._core

        def on_credit() -> None:
            tell(core.ref, m.CreditReturned(turn_id=turn_id))

        return on_credit

    def _detach(self, ticket: TurnTicket, sink: Sink) -> None:
        sink.detach()
        tell(self._ref, m.Detach(turn_id=ticket.turn_id))


_PATIENCE_OVER: Any = object()


def _as_callback(handler: EventCallback | EventHandler) -> EventCallback:
    on_event = getattr(handler, "on_event", None)
    callback: Any = on_event if on_event is not None else handler
    if not callable(callback):
        raise TypeError(f"an event handler is a callable or has on_event, got {type(handler).__name__}")
    return callback  # type: ignore[no-any-return]


def _check_types(**given: tuple[object, Any]) -> None:
    """Refuse by name, now, what would else be found out in the middle of a turn."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {getattr(kind, '__name__', kind)}, got {value!r}")


def _check_id(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty; None means a new conversation")


def check_session_id(session_id: str) -> None:
    """Raise TypeError or ValueError for a name that no process could be marked with."""
    if not isinstance(session_id, str):
        raise TypeError(f"session_id must be a str, got {type(session_id).__name__}")
    try:
        session_id.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a session's name must be Unicode text, got {session_id!r}") from None


def _check_ids(session_id: str | None, resume_id: str | None) -> None:
    if session_id is not None:
        check_session_id(session_id)
    if resume_id is not None:
        _check_id("resume_id", resume_id)


def _directory(cwd: Path | str) -> Path:
    path = Path(cwd).absolute()
    if not path.is_dir():
        raise WorkingDirectoryError(str(path), "not a directory" if path.exists() else "it does not exist")
    return path


def _check_capable(transport: Transport, spec: ConversationSpec) -> None:
    """Refuse at once what would fail at the first start."""
    if spec.approvals is ApprovalPolicy.ASK and not transport.profile.supports_asks:
        raise ProviderCapabilityError("it cannot wait for a person: ApprovalPolicy.ASK", provider=transport.profile.name)
    if isinstance(transport, StreamTransport):
        transport.validate(spec, None)
        transport.check()
        return
    profile = transport.profile
    if spec.permissions.mode not in profile.native_permission_modes:
        raise ProviderCapabilityError(f"it has no permission mode {spec.permissions.mode.value!r}", provider=profile.name)


def _default_room() -> Greenroom:
    from greenroom.room import default_room  # noqa: PLC0415 - the room imports us

    return default_room()


__all__ = ["Agent", "AgentEvent", "Session", "TurnStream", "TurnTicket"]
