"""Codex as a stream transport: what it can do, whether it can be started, and how. Never retries, never runs a turn.

`check` and `open` block and belong on a caller's thread; `launch` and `launch_link` look for the binary and belong on the starter thread;
the rest is pure, but for `link_key`, which looks for the binary as well.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Hashable, Mapping
from pathlib import Path

import attrs

from greenroom.attachments import texts_of
from greenroom.errors import McpConfigError, ProviderCapabilityError, SessionResumeError
from greenroom.history import Account, Thread
from greenroom.model import Checkpoint, ConversationSpec, NativeMode, ProviderProfile, RenewalBudget, StdioMcpServer, TurnRequest
from greenroom.transports.base import Conversation, Flags, Launch, LaunchSpec, LinkLaunch
from greenroom.transports.binaries import Program
from greenroom.transports.codex import first_start, queries
from greenroom.transports.codex.codec import CodexCodec
from greenroom.transports.codex.config import CodecConfig
from greenroom.transports.codex.link import CodexLinkCodec
from greenroom.transports.codex.rollout import last_messages
from greenroom.transports.environment import child_env
from greenroom.transports.installed import InstalledCli, servers_key
from greenroom.transports.marks import VARIABLE
from greenroom.transports.query import Place, ask
from greenroom.transports.refusals import refuse_moves, refuse_repeated, refuse_schema, refuse_scopes

NAME = "codex"
#: The server refuses more, counted in characters (0.163 and 0.171: `input_too_large`).
MAX_PROMPT_CHARS = 1_048_576
#: How long a thread that another server still holds is waited for, try by try: one that gives it up takes milliseconds.
IN_USE_DELAYS_S = (0.1, 0.2, 0.4, 0.8, 1.6)
_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]+")

PROGRAM = Program(
    name="codex",
    package="codex_cli_bin",
    carried="bin/codex",
    minimum=(0, 163, 0),
    hint="install it with: npm install -g @openai/codex (or pip install openai-codex-cli-bin)",
)
PROFILE = ProviderProfile(
    name=NAME,
    display_name="Codex",
    binary=PROGRAM.name,
    native_permission_modes=frozenset(NativeMode),
    supports_resume=True,
    supports_steer=True,
    supports_reasoning_effort=True,
    output_schema=True,
    mcp=True,
    attachments=True,
    turn_model=True,
    plan_mode=True,
    chooses_ids=False,
    retries_in_place=True,
    supports_asks=True,
    supports_history=True,
    supports_rollback=True,
    supports_fork=True,
    renewal=RenewalBudget(max_turns=2, max_turn_input_tokens=10_000_000, max_turn_duration_ms=600_000),
    # None: the server looks at its login, and at the variable that the configured provider names, which may be any. It does not look at
    # OPENAI_API_KEY or CODEX_API_KEY by itself (0.163 and 0.171).
    auth_env_vars=(),
    state_root_env="CODEX_HOME",
    program="codex app-server",
)


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class CodexAppServerTransport(InstalledCli):
    """Codex by its app-server. `shared`: conversations with the same binary, environment and home share a server.

    `max_conversations`: how many a server carries at most. `env`: the whole environment of the servers (None: the caller's), less markers
    of a parent session. `binary`: a path, or a name on PATH. Times are in seconds.
    """

    program = PROGRAM

    shared: bool = True
    max_conversations: int = 32

    @property
    def profile(self) -> ProviderProfile:
        """What Codex can do."""
        return PROFILE

    @property
    def state_home(self) -> str:
        """Where Codex keeps its threads: a conversation id means something within it only."""
        env = self._environment()
        home = env.get("CODEX_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".codex")  # noqa: PTH111, PTH118
        return os.path.realpath(home)

    def validate(self, spec: ConversationSpec, request: TurnRequest | None = None) -> None:
        """Refuse by name what Codex cannot do. Raises ProviderCapabilityError, SchemaDialectError, McpConfigError.

        An unknown model or effort is passed on: the server accepts any.
        """
        refuse_scopes(spec, provider=NAME)
        _check_servers(spec.mcp_servers)
        if request is not None:
            _check_request(spec, request)

    def flags(self, spec: ConversationSpec, request: TurnRequest) -> Flags:
        """Return what a thread must be opened with for this turn: its MCP servers. All else is asked for turn by turn."""
        servers = request.mcp_servers or spec.mcp_servers
        return Flags(key=servers_key(servers), mcp_servers=servers)

    def launch(self, launch: LaunchSpec) -> Launch:
        """Return the command line, the environment and a fresh codec of a server with one conversation. Raises CliNotFoundError."""
        argv = self._argv()
        env = child_env(self.env, mark=launch.mark, ours={})
        return Launch(
            argv=argv,
            cwd=launch.spec.cwd,
            env=env,
            codec=CodexCodec(self._config(argv, env), self.prepare(launch)),
            startup_timeout_s=self.startup_timeout_s,
            close_grace_s=self.close_grace_s,
            settled=first_start.take(Path(self.state_home)),
        )

    def _argv(self) -> tuple[str, ...]:
        return (self.find_binary(), "app-server")

    def _config(self, argv: tuple[str, ...], env: Mapping[str, str]) -> CodecConfig:
        return CodecConfig(
            argv=argv,
            marks=env[VARIABLE],
            home_models=self._home_models,
            startup_timeout_s=self.startup_timeout_s,
            interrupt_grace_s=self.interrupt_grace_s,
        )

    def link_key(self, spec: ConversationSpec) -> Hashable | None:
        """Conversations with the same binary, environment and home share a server; None with `shared=False`. Raises CliNotFoundError."""
        if not self.shared:
            return None
        return (NAME, self.find_binary(), tuple(sorted(self._environment().items())), self.state_home)

    def prepare(self, launch: LaunchSpec) -> LaunchSpec:
        """Return the launch with what users said in the turn that a death has cut. Reads the thread's file."""
        if launch.resume_id is None or launch.cut_receipt is None:
            return launch
        return attrs.evolve(launch, cut_texts=last_messages(self.state_home, launch.resume_id))

    @property
    def first_key(self) -> Hashable:
        """The first server in a home goes alone (`first_start.py`): within a room nobody need wait for a lock."""
        return (NAME, self.state_home)

    def launch_link(self, spec: ConversationSpec, mark: str) -> LinkLaunch:
        """Return what to start for conversations of `link_key(spec)`. Raises CliNotFoundError.

        It works in its state home, for it outlives the directory of any one conversation, and takes no project's configuration as its own.
        """
        argv = self._argv()
        env = child_env(self.env, mark=mark, ours={})
        home = Path(self.state_home)
        return LinkLaunch(
            argv=argv,
            cwd=home if home.is_dir() else Path("/"),
            env=env,
            codec=CodexLinkCodec(self._config(argv, env)),
            startup_timeout_s=self.startup_timeout_s,
            close_grace_s=self.close_grace_s,
            settled=first_start.take(home),
            max_conversations=self.max_conversations,
        )

    # --- beside the turns: all of these block, on the calling thread, and ask a short-lived server of their own

    def read_thread(self, conversation_id: str, *, running: bool = False) -> Thread:
        """Return the conversation's past, also while another server has it. `running`: a turn runs in it.

        Raises SessionResumeError when it is gone, QueryFailedError when no usable answer comes.
        """
        return ask(self._server(f"conversation {conversation_id!r} cannot be read"), queries.read_thread(conversation_id, running=running))

    def rollback(self, spec: ConversationSpec, num_turns: int) -> Checkpoint:
        """Take the last turns out of the conversation `spec.resume_id`, which nobody may hold.

        Raises SessionStateError when it has fewer turns, SessionResumeError when it is gone or stays in use, QueryFailedError.
        """
        conversation_id = spec.resume_id or ""
        place = self._server(f"conversation {conversation_id!r} was not rolled back")
        for delay_s in (*IN_USE_DELAYS_S, None):
            try:
                usage = ask(place, queries.rollback(conversation_id, num_turns, spec.previous_usage))
            except SessionResumeError as error:
                if not error.in_use or delay_s is None:
                    raise
                threading.Event().wait(delay_s)
            else:
                break
        return Checkpoint(conversation_id, usage)

    def fork(self, spec: ConversationSpec) -> Checkpoint:
        """Return a new conversation with the history of `spec.resume_id`, which is left as it is. Raises as `rollback`."""
        conversation_id = spec.resume_id or ""
        fork_id = ask(self._server(f"conversation {conversation_id!r} was not forked"), queries.fork(conversation_id))
        self._home_models.keep(fork_id, self._home_models.of(conversation_id))
        return Checkpoint(fork_id, spec.previous_usage)

    def account(self) -> Account:
        """Return which account its servers use, as one of them says it. With a ChatGPT login the server asks OpenAI.

        Raises CliNotFoundError, QueryFailedError.
        """
        return ask(self._server("the account is not known"), queries.whose())

    def _server(self, what: str) -> Place:
        home = Path(self.state_home)
        return self._place(what, home if home.is_dir() else Path("/"), self._argv())

    def open(self, spec: ConversationSpec) -> Conversation:
        """Open a conversation on the calling thread, with a server of its own. Raises SessionResumeError when `spec.resume_id` is gone."""
        from greenroom.transports.blocking import open_blocking  # noqa: PLC0415 - it builds on this module's ports

        return open_blocking(self, spec)


def _unable(what: str, hint: str | None = None) -> ProviderCapabilityError:
    return ProviderCapabilityError(what, provider=NAME, hint=hint)


def _check_request(spec: ConversationSpec, request: TurnRequest) -> None:
    refuse_moves(spec, request, provider=NAME)
    if request.env is not None:
        raise _unable("a turn cannot have an environment of its own: it is the server's", hint="give env= to the agent")
    if request.extra_args:
        raise _unable("a turn cannot have arguments of its own: they are the server's")
    if (count := len(request.prompt) + sum(map(len, texts_of(request)))) > MAX_PROMPT_CHARS:
        what = f"the prompt has {count} characters, with what is attached; at most {MAX_PROMPT_CHARS} are possible"
        raise _unable(what, hint="put it into a file")
    _check_servers(request.mcp_servers)
    if request.output_schema is not None:
        refuse_schema(request.output_schema, provider=NAME)


def _check_servers(servers: tuple[StdioMcpServer, ...]) -> None:
    refuse_repeated(servers)
    for server in servers:
        if _SERVER_NAME.fullmatch(server.name) is None:
            raise McpConfigError(f"the name of an MCP server must be of letters, digits, '_' and '-': {server.name!r}")
