"""The values and enums that users see. Decides nothing; imports nothing of ours; safe on any thread (all values are frozen)."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs


class NativeMode(enum.Enum):
    """What an agent may do unasked, in the provider's own permission system.

    BYPASS: everything. READ_ONLY, WORKSPACE_WRITE: what the sandbox allows. ASK: hardly more than to read; the provider asks for all that
    changes something, `ApprovalPolicy` says what becomes of that, and what is accepted runs without a sandbox.
    """

    BYPASS = "bypass"
    READ_ONLY = "read_only"
    WORKSPACE_WRITE = "workspace_write"
    ASK = "ask"


def _paths(roots: Iterable[Path | str]) -> tuple[Path, ...]:
    return tuple(Path(root) for root in roots)


@attrs.frozen
class NativePermissions:
    """A permission mode with its options. `writable_roots` and `network` mean something in WORKSPACE_WRITE only."""

    mode: NativeMode
    writable_roots: tuple[Path, ...] = attrs.field(default=(), converter=_paths)
    network: bool = False

    @classmethod
    def bypass(cls) -> NativePermissions:
        """Return the mode in which the provider asks for nothing and refuses nothing."""
        return cls(NativeMode.BYPASS)

    @classmethod
    def ask(cls) -> NativePermissions:
        """Return the mode in which the provider asks for everything that changes something."""
        return cls(NativeMode.ASK)


class ApprovalPolicy(enum.Enum):
    """What happens when the agent asks for leave: it is denied, it fails the turn, or it waits for a person (`greenroom.asks`)."""

    DENY = "deny"
    FAIL_TURN = "fail_turn"
    ASK = "ask"


class SessionStatus(enum.Enum):
    """Where a session stands, for a front end."""

    CONNECTING = "connecting"
    READY = "ready"
    RUNNING = "running"
    ERROR = "error"
    CLOSED = "closed"


class RuntimeMode(enum.Enum):
    """How far an agent goes by itself: everything, or it asks a person first."""

    FULL_ACCESS = "full-access"
    APPROVAL_REQUIRED = "approval-required"


class TransportKind(enum.Enum):
    """How a provider is reached: one long-lived process per conversation, or one process per turn."""

    STREAM = "stream"
    ONE_SHOT = "one_shot"


class Continuity(enum.Enum):
    """Whether a turn ran in the conversation that its ticket expected, and whether that one is still held."""

    CONTINUED = "continued"
    RESET = "reset"
    REPLACED = "replaced"


class FailureKind(enum.Enum):
    """Why a turn failed, by what the caller can do about it."""

    TRANSIENT = "transient"
    USAGE_LIMIT = "usage_limit"
    AUTH = "auth"
    SCHEMA = "schema"
    CONTEXT_OVERFLOW = "context_overflow"
    OTHER = "other"


class StateDirProblem(enum.Enum):
    """Why a state directory cannot be used, by what its owner can do about it."""

    IN_USE = "in use"
    NEWER_VERSION = "newer version"
    OTHER_USER = "another user's"
    EXPOSED = "writable by others"
    READ_ONLY = "read-only"
    DAMAGED = "damaged"
    FOREIGN = "not a journal"
    UNUSABLE = "unusable"


class StoreFault(enum.Enum):
    """Why the journal could not write or read. After any of them it is closed until it is healed."""

    FULL = "disk full"
    IO = "input/output error"
    BUSY = "locked"
    READ_ONLY = "read-only"
    DAMAGED = "damaged"
    GONE = "removed"
    CLOSED = "closed"
    FORKED = "forked"
    OTHER = "other"


class OnDeath(enum.Enum):
    """What to do when a process died in a turn whose prompt the provider had already taken."""

    CONTINUE = "continue"
    FAIL = "fail"
    RESEND = "resend"


class InteractionMode(enum.Enum):
    """What a turn is for: to do the work, or to plan it and leave everything as it is."""

    DEFAULT = "default"
    PLAN = "plan"


class CostSource(enum.Enum):
    """Where a cost figure comes from."""

    PRICE_TABLE = "price_table"
    PROVIDER_REPORTED = "provider_reported"
    UNKNOWN_MODEL = "unknown_model"


@attrs.frozen(kw_only=True)
class TokenUsage:
    """Token counts. `input` is uncached input; `turns` counts model calls or provider turns, as the provider reports them."""

    input: int = 0
    output: int = 0
    cache_read_input: int = 0
    cache_write_input: int = 0
    cache_write_1h_input: int = 0
    reasoning_output: int = 0
    turns: int = 0

    @property
    def cached_input(self) -> int:
        """The same as `cache_read_input`."""
        return self.cache_read_input

    @property
    def total_input(self) -> int:
        """All input tokens, cached or not."""
        return self.input + self.cache_read_input + self.cache_write_input

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum, field by field."""
        return TokenUsage(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in attrs.fields(TokenUsage)})


@attrs.frozen(kw_only=True)
class ProviderUsage:
    """What one piece of work consumed. `increment_known=False`: the true figure is unknown, `tokens` is at most a lower bound.

    `total_cost_usd` is the cost of this piece of work in US dollars (None: unknown); `raw` is the provider's own cumulative
    record, as `previous_usage` wants it back.
    """

    tokens: TokenUsage = TokenUsage()
    total_cost_usd: float | None = None
    provider: str = ""
    raw: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    increment_known: bool = True
    cost_source: CostSource = CostSource.PROVIDER_REPORTED

    def __add__(self, other: ProviderUsage) -> ProviderUsage:
        """Return the sum. A cost that one side does not know leaves the other's as a lower bound; `raw` is the later one's."""
        costs = [usage.total_cost_usd for usage in (self, other) if usage.total_cost_usd is not None]
        return ProviderUsage(
            tokens=self.tokens + other.tokens,
            total_cost_usd=sum(costs) if costs else None,
            provider=other.provider or self.provider,
            raw=other.raw or self.raw,
            increment_known=self.increment_known and other.increment_known,
            cost_source=other.cost_source,
        )


@attrs.frozen
class OutputSchema:
    """A JSON schema that the final answer must match.

    `host_dir` and `cli_dir` say where a schema file lives, for providers that need one.
    """

    schema: Mapping[str, Any] = attrs.field(hash=False)
    host_dir: Path | None = None
    cli_dir: Path | None = None


@attrs.frozen
class StdioMcpServer:
    """An MCP server that the provider starts itself and speaks to over its stdin and stdout."""

    name: str
    command: str
    args: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    env: Mapping[str, str] = attrs.field(factory=dict, hash=False)


def _check_timeout(_: object, __: object, timeout: float | None) -> None:
    if not isinstance(timeout, int | float | None):
        raise TypeError(f"timeout must be a number of seconds, got {timeout!r}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, got {timeout}")


def _reaches_a_process(text: str) -> bool:
    """Whether a command line or an environment can hold it: no NUL, and no half of a surrogate pair."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _check_env(_: object, __: object, env: Mapping[str, str] | None) -> None:
    for name, value in (env or {}).items():
        if type(name) is not str or type(value) is not str:
            raise TypeError(f"environment variables are strings, got {name!r}: {type(value).__name__}")
        if not name or "=" in name or not _reaches_a_process(name + value):
            raise ValueError(f"not the name or value of an environment variable: {name!r}")


def _check_text(_: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{attribute.name} must be a str, got {type(value).__name__}")


def _check_schema(_: object, __: object, schema: Any) -> None:
    if schema is not None and not (isinstance(schema, OutputSchema) and isinstance(schema.schema, Mapping)):
        raise TypeError(f"output_schema must be an OutputSchema with a mapping, got {schema!r}")


def _check_servers(_: object, __: object, servers: tuple[object, ...]) -> None:
    for server in servers:
        if not isinstance(server, StdioMcpServer):
            raise TypeError(f"mcp_servers must be StdioMcpServer objects, got {server!r}")


def _path(path: Path | str | None) -> Path | None:
    return None if path is None else Path(path)


def _bytes(data: bytes | bytearray | memoryview | None) -> bytes | None:
    if data is not None and not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data must be bytes, got {type(data).__name__}")
    return None if data is None else bytes(data)


def _check_one_source(names: str, *given: object) -> None:
    if sum(value is not None for value in given) != 1:
        raise ValueError(f"give either {names}")


def _check_optional_str(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")


@attrs.frozen(kw_only=True)
class ImageAttachment:
    """An image for the model: a file (`path`, read once, when the turn is prepared) or its bytes. PNG, JPEG, GIF or WebP.

    It is known by its first bytes; `media_type` (such as `image/png`) need not be given, but must be true.
    Raises ValueError unless one of `path` and `data` is given.
    """

    path: Path | None = attrs.field(default=None, converter=_path)
    data: bytes | None = attrs.field(default=None, converter=_bytes, repr=False)
    media_type: str | None = None

    def __attrs_post_init__(self) -> None:
        _check_one_source("path or data", self.path, self.data)
        _check_optional_str("media_type", self.media_type)


@attrs.frozen(kw_only=True)
class TextAttachment:
    """A text for the model, with a name: a UTF-8 file (`path`, read once, when the turn is prepared) or the text itself.

    `name` is by default the file's. Raises ValueError unless one of `path` and `text` is given, and for a text without a name.
    """

    path: Path | None = attrs.field(default=None, converter=_path)
    text: str | None = attrs.field(default=None, repr=False)
    name: str | None = None

    def __attrs_post_init__(self) -> None:
        _check_one_source("path or text", self.path, self.text)
        _check_optional_str("text", self.text)
        _check_optional_str("name", self.name)
        if self.path is None and not self.name:
            raise ValueError("a text needs a name")


Attachment = ImageAttachment | TextAttachment


def _attachments(values: Iterable[Attachment]) -> tuple[Attachment, ...]:
    if not isinstance(values, Iterable):
        raise TypeError(f"attachments must be a sequence of them, got {type(values).__name__}")
    attachments = tuple(values)
    for attachment in attachments:
        if not isinstance(attachment, ImageAttachment | TextAttachment):
            raise TypeError(f"attachments must be ImageAttachment or TextAttachment objects, got {type(attachment).__name__}")
    return attachments


def _check_model(_: object, __: object, model: Any) -> None:
    if model is not None and (not isinstance(model, str) or not model.strip()):
        raise ValueError(f"model must be a name, got {model!r}; None means the session's")


def _check_mode(_: object, __: object, mode: Any) -> None:
    if not isinstance(mode, InteractionMode):
        raise TypeError(f"interaction_mode must be an InteractionMode, got {mode!r}")


def _arguments(values: Iterable[str]) -> tuple[str, ...]:
    arguments = tuple(values)
    if isinstance(values, str) or not all(isinstance(value, str) for value in arguments):
        raise TypeError(f"extra_args must be a sequence of str, got {values!r}")
    for argument in arguments:
        if not _reaches_a_process(argument):
            raise ValueError(f"extra_args holds what no command line can: {argument!r}")
    return arguments


@attrs.frozen
class TurnRequest:
    """One prompt and its options. `timeout` is in seconds and bounds one attempt; None or () means the session's value.

    `attachments` are shown to the model with the prompt; `model` is for this turn alone, and so is `interaction_mode`.
    Raises ValueError for a timeout that is not more than 0, and for `extra_args` or an `env` with a NUL or half a surrogate pair; TypeError
    for values of another type.
    """

    prompt: str = attrs.field(validator=_check_text)
    cwd: Path | str | None = attrs.field(default=None, kw_only=True)
    timeout: float | None = attrs.field(default=None, kw_only=True, validator=_check_timeout)
    output_schema: OutputSchema | None = attrs.field(default=None, kw_only=True, validator=_check_schema)
    reasoning_effort: str | None = attrs.field(default=None, kw_only=True)
    env: Mapping[str, str] | None = attrs.field(default=None, kw_only=True, hash=False, validator=_check_env)
    mcp_workspace: Path | str | None = attrs.field(default=None, kw_only=True)
    extra_args: tuple[str, ...] = attrs.field(default=(), converter=_arguments, kw_only=True)
    mcp_servers: tuple[StdioMcpServer, ...] = attrs.field(default=(), converter=tuple, kw_only=True, validator=_check_servers)
    attachments: tuple[Attachment, ...] = attrs.field(default=(), converter=_attachments, kw_only=True)
    model: str | None = attrs.field(default=None, kw_only=True, validator=_check_model)
    interaction_mode: InteractionMode = attrs.field(default=InteractionMode.DEFAULT, kw_only=True, validator=_check_mode)


@attrs.frozen(kw_only=True)
class TurnResult:
    """What a turn gave. `session_id` is the provider's conversation id; `usage` and `cost_usd` are this ticket's own,

    all attempts summed.
    """

    text: str = ""
    structured_output: Any = attrs.field(default=None, hash=False)
    session_id: str | None = None
    resumed: bool = False
    usage: ProviderUsage | None = None
    cost_usd: float | None = None
    duration_ms: int = 0
    exit_code: int | None = None
    skills: tuple[str, ...] = ()
    interrupted: bool = False
    context_tokens: int | None = None


@attrs.frozen
class Turn:
    """The outcome of a ticket that ended well or was interrupted. `conversation_id` is where it ran.

    `retries` counts retries in place after transient failures, `restarts` the transport deaths it survived; `forced` says
    that an interrupt went unanswered and the process was killed.
    """

    result: TurnResult
    continuity: Continuity
    turn_id: str
    conversation_id: str | None
    retries: int = attrs.field(default=0, kw_only=True)
    restarts: int = attrs.field(default=0, kw_only=True)
    forced: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class Checkpoint:
    """The least that is needed to resume a conversation: its id and the provider's cumulative usage at that point."""

    conversation_id: str
    usage: ProviderUsage | None = None


@attrs.frozen(kw_only=True)
class RenewalBudget:
    """When a conversation is retired after a successful turn. None: never for that reason."""

    max_turns: int | None = None
    max_turn_input_tokens: int | None = None
    max_turn_duration_ms: int | None = None


@attrs.frozen(kw_only=True)
class ProviderProfile:
    """What a provider can do, declared by its transport. `chooses_ids`: a new conversation may be given an id of ours.

    `attachments`, `turn_model`, `plan_mode`: what a `TurnRequest` may ask for beside its prompt. `auth_env_vars`: variables that the
    provider takes a credential from by itself, without any configuration that names them.
    `supports_history`, `supports_rollback`, `supports_fork`: its transport has `read_thread`, `rollback`, `fork`.
    `supports_asks`: `ApprovalPolicy.ASK` is possible.
    `program` says in words what is started ("codex app-server"); empty: the name.
    """

    name: str
    display_name: str = ""
    binary: str | None = None
    native_permission_modes: frozenset[NativeMode] = frozenset({NativeMode.BYPASS})
    supports_resume: bool = True
    supports_steer: bool = False
    supports_reasoning_effort: bool = False
    output_schema: bool = False
    mcp: bool = False
    attachments: bool = False
    turn_model: bool = False
    plan_mode: bool = False
    chooses_ids: bool = False
    retries_in_place: bool = False
    supports_history: bool = False
    supports_rollback: bool = False
    supports_fork: bool = False
    supports_asks: bool = False
    renewal: RenewalBudget | None = None
    auth_env_vars: tuple[str, ...] = ()
    state_root_env: str | None = None
    default_model: str | None = None
    program: str = ""


@attrs.frozen(kw_only=True)
class ConversationSpec:
    """All that is fixed for a conversation's life. `resume_id` (with `previous_usage`) starts from an existing one."""

    cwd: Path
    permissions: NativePermissions
    approvals: ApprovalPolicy
    model: str | None = None
    mcp_servers: tuple[StdioMcpServer, ...] = ()
    reasoning_effort: str | None = None
    resume_id: str | None = None
    previous_usage: ProviderUsage | None = None
    skill_scope: str = "ALL"
    mcp_scope: str = "ALL"
    config_scope: str = "ALL"
