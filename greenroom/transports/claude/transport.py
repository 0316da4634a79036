"""Claude Code as a stream transport: what it can do, whether it can be started, and how. Never retries, never runs a turn.

`check` and `open` block and belong on a caller's thread; `launch` looks for the binary and belongs on the starter thread; the rest is pure.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path

import attrs

from greenroom.errors import McpConfigError, ProviderCapabilityError
from greenroom.events import ToolCall
from greenroom.history import Account, Thread
from greenroom.ids import new_nonce
from greenroom.model import Checkpoint, ConversationSpec, NativeMode, OutputSchema, ProviderProfile, StdioMcpServer, TurnRequest
from greenroom.transports.base import Conversation, Flags, Launch, LaunchSpec
from greenroom.transports.binaries import Program
from greenroom.transports.claude import queries, transcript
from greenroom.transports.claude.codec import ClaudeCodec
from greenroom.transports.claude.config import CodecConfig
from greenroom.transports.claude.launch import (
    PERMISSION_MODES,
    ClaudeHook,
    argv_for,
    env_for,
    refuse_permissions,
    schema_goes_by_handshake,
    schema_of,
)
from greenroom.transports.claude.lines import MAX_TEXT_BYTES, request_too_long
from greenroom.transports.installed import InstalledCli, servers_key
from greenroom.transports.query import Place, ask
from greenroom.transports.refusals import refuse_moves, refuse_repeated, refuse_schema, refuse_scopes

NAME = "claude"
EFFORTS = ("low", "medium", "high", "xhigh", "max")
_SANDBOX_TOOLS = ("bwrap", "socat")

PROGRAM = Program(
    name="claude",
    package="claude_agent_sdk",
    carried="_bundled/claude",
    minimum=(2, 1, 332),
    hint="install it with: npm install -g @anthropic-ai/claude-code (or pip install 'greenroom[clis]')",
)
PROFILE = ProviderProfile(
    name=NAME,
    display_name="Claude Code",
    binary=PROGRAM.name,
    native_permission_modes=frozenset({NativeMode.BYPASS, NativeMode.WORKSPACE_WRITE, NativeMode.ASK}),
    supports_resume=True,
    supports_steer=True,
    supports_reasoning_effort=True,
    output_schema=True,
    mcp=True,
    attachments=True,
    turn_model=True,
    plan_mode=True,
    chooses_ids=True,
    retries_in_place=True,
    supports_asks=True,
    supports_history=True,
    supports_rollback=True,
    supports_fork=True,
    auth_env_vars=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    state_root_env="CLAUDE_CONFIG_DIR",
)


def _hooks(hooks: Iterable[ClaudeHook]) -> tuple[ClaudeHook, ...]:
    return tuple(hooks)  # a converter of its own, so that type checkers know what `hooks=` takes


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class ClaudeStreamTransport(InstalledCli):
    """Claude Code, one long-lived process per conversation.

    `env`: the whole environment of the processes (None: the caller's), less markers of a parent session. `binary`: a path, or a name
    on PATH. `hooks`: command hooks for every process. `partial_messages`: text comes in pieces. Times are in seconds.
    """

    program = PROGRAM

    hooks: tuple[ClaudeHook, ...] = attrs.field(default=(), converter=_hooks)
    steer_grace_s: float = 10.0
    partial_messages: bool = False

    @property
    def profile(self) -> ProviderProfile:
        """What Claude Code can do."""
        return PROFILE

    @property
    def state_home(self) -> str:
        """Where Claude Code keeps its conversations: a conversation id means something within it only."""
        return str(transcript.state_home(self._environment()))

    def validate(self, spec: ConversationSpec, request: TurnRequest | None = None) -> None:
        """Refuse by name what Claude Code cannot do. Raises ProviderCapabilityError, SchemaDialectError, McpConfigError."""
        refuse_permissions(spec.permissions.mode, network=spec.permissions.network)
        if spec.permissions.mode is NativeMode.WORKSPACE_WRITE:
            self._need_sandbox()
        refuse_scopes(spec, provider=NAME)
        _check_effort(spec.reasoning_effort)
        _check_servers(spec.mcp_servers)
        if request is not None:
            _check_request(spec, request)

    def _need_sandbox(self) -> None:
        path = self._environment().get("PATH", os.defpath)
        missing = [tool for tool in _SANDBOX_TOOLS if shutil.which(tool, path=path) is None]
        if missing and sys.platform != "darwin":
            what = f"WORKSPACE_WRITE needs the OS sandbox, and {' and '.join(missing)} cannot be found on PATH"
            raise _unable(what, hint="install bubblewrap and socat, or use NativePermissions.bypass()")

    def flags(self, spec: ConversationSpec, request: TurnRequest) -> Flags:
        """Return what a process must be started with for this turn; what the request leaves open is the session's."""
        schema = request.output_schema
        servers = request.mcp_servers or spec.mcp_servers
        effort = request.reasoning_effort or spec.reasoning_effort
        env = None if request.env is None else dict(request.env)
        return Flags(
            key=(
                _schema_key(schema),
                servers_key(servers),
                effort,
                None if env is None else tuple(sorted(env.items())),
                request.extra_args,
            ),
            output_schema=schema,
            mcp_servers=servers,
            reasoning_effort=effort,
            env=env,
            extra_args=request.extra_args,
        )

    def launch(self, launch: LaunchSpec) -> Launch:
        """Return the command line, the environment and a fresh codec. Raises CliNotFoundError, McpConfigError."""
        argv = argv_for(self.find_binary(), launch, hooks=self.hooks, partial_messages=self.partial_messages)
        env = env_for(launch, self._environment())
        return Launch(
            argv=argv,
            cwd=launch.spec.cwd,
            env=env,
            codec=ClaudeCodec(self._codec_config(argv, launch, env)),
            startup_timeout_s=self.startup_timeout_s,
            close_grace_s=self.close_grace_s,
        )

    def _codec_config(self, argv: tuple[str, ...], launch: LaunchSpec, env: Mapping[str, str]) -> CodecConfig:
        taken = launch.resume_id and launch.cut_receipt and transcript.took(env, launch.resume_id, launch.cut_receipt)
        return CodecConfig(
            argv=argv,
            approvals=launch.spec.approvals,
            model=launch.spec.model,
            home_models=self._home_models,
            permission_mode=PERMISSION_MODES[launch.spec.permissions.mode],
            sandboxed=launch.spec.permissions.mode is NativeMode.WORKSPACE_WRITE,
            resume_id=launch.resume_id,
            proposed_id=launch.proposed_id,
            previous_usage=launch.previous_usage,
            after_death=launch.after_death,
            taken_receipt=launch.cut_receipt if taken else None,
            lost_calls=_lost_calls(launch, env),
            handshake_schema=schema_of(launch) if schema_goes_by_handshake(launch) else None,
            startup_timeout_s=self.startup_timeout_s,
            interrupt_grace_s=self.interrupt_grace_s,
            steer_grace_s=self.steer_grace_s,
        )

    def link_key(self, spec: ConversationSpec) -> Hashable | None:
        """A process for each conversation."""
        return None

    # --- beside the turns: all of these block, on the calling thread

    def read_thread(self, conversation_id: str, *, running: bool = False) -> Thread:
        """Return the conversation's past, from its transcript; no process is started. `running`: a turn runs in it.

        Raises SessionResumeError when there is none, QueryFailedError when it cannot be read.
        """
        return queries.read_thread(Path(self.state_home), conversation_id, running=running)

    def rollback(self, spec: ConversationSpec, num_turns: int) -> Checkpoint:
        """Take the last turns out of the conversation `spec.resume_id`, which no process may hold; in a process that runs no turn.

        Raises SessionStateError when it has fewer turns, SessionResumeError when it is gone, QueryFailedError when the CLI refuses.
        """
        conversation_id = spec.resume_id or ""
        place = self._process(f"conversation {conversation_id!r} was not rolled back", spec.cwd, "--resume", conversation_id)
        queries.rollback(place, Path(self.state_home), conversation_id, num_turns)
        return Checkpoint(conversation_id, spec.previous_usage)

    def fork(self, spec: ConversationSpec) -> Checkpoint:
        """Return a new conversation with the history of `spec.resume_id`, which is left as it is. Raises as `rollback`."""
        conversation_id, fork_id = spec.resume_id or "", new_nonce()
        home = Path(self.state_home)
        more = queries.fork_arguments(queries.read_settled(home, conversation_id), fork_id)
        self._home_models.keep(fork_id, self._home_models.of(conversation_id))
        return queries.fork(
            self._process(f"conversation {conversation_id!r} was not forked", spec.cwd, *more), home, conversation_id, fork_id
        )

    def account(self) -> Account:
        """Return which account its processes use, as one of them says it. Calls no model. Raises CliNotFoundError, QueryFailedError."""
        return ask(self._process("the account is not known", Path("/")), queries.whose())

    def _process(self, what: str, cwd: Path, *arguments: str) -> Place:
        return self._place(what, cwd, queries.arguments(self.find_binary(), *arguments))

    def open(self, spec: ConversationSpec) -> Conversation:
        """Open a conversation on the calling thread. Raises SessionResumeError when `spec.resume_id` is gone."""
        from greenroom.transports.blocking import open_blocking  # noqa: PLC0415 - it builds on this module's ports

        return open_blocking(self, spec)


def _lost_calls(launch: LaunchSpec, env: Mapping[str, str]) -> tuple[ToolCall, ...]:
    """Return the tool calls of the cut turn that the conversation will not show: all, if it is gone."""
    if launch.resume_id is None or not launch.cut_calls:
        return launch.cut_calls
    lost = transcript.missing(env, launch.resume_id, [call.tool_id for call in launch.cut_calls])
    return tuple(call for call in launch.cut_calls if call.tool_id in lost)


def _unable(what: str, hint: str | None = None) -> ProviderCapabilityError:
    return ProviderCapabilityError(what, provider=NAME, hint=hint)


def _check_request(spec: ConversationSpec, request: TurnRequest) -> None:
    refuse_moves(spec, request, provider=NAME)
    _check_prompt(request)
    _check_effort(request.reasoning_effort)
    _check_servers(request.mcp_servers)
    if request.output_schema is not None:
        refuse_schema(request.output_schema, provider=NAME)


def _check_prompt(request: TurnRequest) -> None:
    if not request.prompt.strip():
        # The model would be shown "(no content)" and answer that (seen on 2.1.332): a turn paid for nothing.
        raise _unable(f"the prompt is {'of blanks only' if request.prompt else 'empty'}")
    if (size := request_too_long(request)) is not None:
        what = "the prompt with its attachments takes" if request.attachments else "the prompt takes"
        raise _unable(f"{what} {size} bytes on the wire; at most {MAX_TEXT_BYTES} are possible", hint="put it into a file")


def _check_effort(effort: str | None) -> None:
    if effort is not None and effort not in EFFORTS:
        raise _unable(f"unknown reasoning effort {effort!r}", hint=f"one of {', '.join(EFFORTS)}")


def _check_servers(servers: tuple[StdioMcpServer, ...]) -> None:
    refuse_repeated(servers)
    if not all(server.name for server in servers):
        raise McpConfigError("an MCP server has no name")


def _schema_key(schema: OutputSchema | None) -> str | None:
    return None if schema is None else json.dumps(dict(schema.schema), sort_keys=True)
