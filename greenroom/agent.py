"""A provider with its options, and the sessions that it begins: new ones, or those that are on record. Decides what cannot be begun.

Any thread. Blocks for the check of the provider's binary, for checkpoints and for the journal.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from greenroom import conversations
from greenroom.actors.core import SessionCore
from greenroom.actors.ledger import Ledger
from greenroom.asks import AskPolicy
from greenroom.clock import Clock, SystemClock
from greenroom.errors import ProviderCapabilityError, SessionStateError, WorkingDirectoryError
from greenroom.events import EventCallback, EventHandler
from greenroom.history import Account
from greenroom.ids import IdAllocator, new_nonce
from greenroom.listening import as_callback
from greenroom.liveness import Pulse
from greenroom.model import (
    ApprovalPolicy,
    Checkpoint,
    ConversationSpec,
    NativePermissions,
    ProviderUsage,
    RenewalBudget,
    StdioMcpServer,
    TransportKind,
)
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.retry import RetryPolicy
from greenroom.policy.session import Settings
from greenroom.policy.stall import StallPolicy
from greenroom.session import Session, check_id
from greenroom.transports.base import Executor, StreamTransport, Transport
from greenroom.transports.catalog import transport_for

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
        self._handlers = tuple(as_callback(handler) for handler in event_handlers)
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
        conversation, or has the name, or the room is closed, or the session on record was stopped, or is another provider's or directory's;
        ValueError when only one of `checkpoints` and `checkpoint_key` is given, or `resume_id` for a session on record, and for other
        arguments that cannot be meant.
        """
        if (checkpoints is None) != (checkpoint_key is None):
            raise ValueError("checkpoints and checkpoint_key go together")
        if idle_release_after is not None and not idle_release_after >= 0:
            raise ValueError(f"idle_release_after must be 0 seconds or more, got {idle_release_after}")
        _check_ids(session_id, resume_id)
        room = self._living_room()
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
        return self._begin(
            room,
            spec,
            resumes=Checkpoint(resume_id, previous_usage) if resume_id is not None else None,
            checkpoints=checkpoints,
            checkpoint_key=checkpoint_key,
            idle_release_after=idle_release_after,
            session_id=session_id,
            renewal=renewal,
        )

    def _recover(self, recorded: ConversationSpec, session_id: str) -> Session:
        """Begin a session on record again as it was but for what is this agent's, even if it was stopped: a turn of it is still open."""
        room = self._living_room()
        spec = attrs.evolve(
            recorded, cwd=_directory(recorded.cwd), permissions=self.permissions, approvals=self.approvals, model=self.model
        )
        return self._begin(room, spec, session_id=session_id, stopped_too=True)

    def _begin(
        self,
        room: Greenroom,
        spec: ConversationSpec,
        *,
        session_id: str | None,
        resumes: Checkpoint | None = None,
        checkpoints: CheckpointStore | None = None,
        checkpoint_key: str | None = None,
        idle_release_after: float | None = None,
        renewal: RenewalBudget | None = UNSET,
        stopped_too: bool = False,
    ) -> Session:
        _check_capable(self.transport, spec)
        checkpoint = resumes if resumes is not None else _stored(checkpoints, checkpoint_key)
        ids, clock = self._ids or room.ids, self._clock or room.clock
        settings = self._settings(clock, idle_release_after, checkpointing=checkpoints is not None)
        if renewal is not UNSET:
            settings = attrs.evolve(settings, renewal=renewal)
        found = None if session_id is None else room._find_session(session_id, stopped_too=stopped_too)
        if found is not None:
            self._check_same(found, spec, resumes)
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
            core.created_at_s, core.removed = found.opened.at_s, found.removed
        if found is not None and found.spent is not None:
            core.spent, core.booked = found.spent.usage, found.spent.booked
        alike = functools.partial(
            self.session,
            spec.cwd,
            mcp_servers=spec.mcp_servers,
            reasoning_effort=spec.reasoning_effort,
            idle_release_after=idle_release_after,
            skill_scope=spec.skill_scope,
            mcp_scope=spec.mcp_scope,
            config_scope=spec.config_scope,
        )
        return Session(core, room, clock=clock, ids=ids, alike=alike)

    def _living_room(self) -> Greenroom:
        room = self._room or _default_room()
        room._check()
        return room

    def account(self) -> Account:
        """Return which account this agent's processes use, as the provider says it. Blocks; calls no model.

        Raises ProviderCapabilityError for a transport that does not tell, CliNotFoundError, QueryFailedError.
        """
        return conversations.account(self.transport)

    def _check_same(self, found: FoundSession, spec: ConversationSpec, resumes: Checkpoint | None) -> None:
        """Refuse to go on with a session as something that it is not."""
        opened, profile = found.opened, self.transport.profile
        name = f"session {opened.session_id!r} is on record"
        if resumes is not None:
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
        check_id("resume_id", resume_id)


def _directory(cwd: Path | str) -> Path:
    path = Path(cwd).absolute()
    if not path.is_dir():
        raise WorkingDirectoryError(str(path), "not a directory" if path.exists() else "it does not exist")
    return path


def _stored(checkpoints: CheckpointStore | None, key: str | None) -> Checkpoint | None:
    if checkpoints is None or key is None:
        return None
    checkpoint = checkpoints.load(key)
    if not isinstance(checkpoint, Checkpoint | None):
        raise TypeError(f"checkpoints.load must return a Checkpoint or None, got {checkpoint!r}")
    return checkpoint


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


def _check_types(**given: tuple[object, Any]) -> None:
    """Refuse by name, now, what would else be found out in the middle of a turn."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {getattr(kind, '__name__', kind)}, got {value!r}")
