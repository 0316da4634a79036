"""How a Claude Code process is started: its arguments, its environment, its settings. Pure, but for the mark that we ourselves run under.

Prompts travel on standard input, never in the arguments, which everybody on the machine can read and which the kernel bounds.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from greenroom.errors import McpConfigError, ProviderCapabilityError
from greenroom.model import ApprovalPolicy, NativeMode, StdioMcpServer
from greenroom.transports.base import LaunchSpec
from greenroom.transports.environment import child_env

MAX_RETRIES = "CLAUDE_CODE_MAX_RETRIES"
OUR_MAX_RETRIES = "3"
MAX_ARGUMENT_BYTES = 100_000
WRITE_HOOK = Path(__file__).with_name("writehook.py")
WRITING_TOOLS = "Edit|MultiEdit|Write|NotebookEdit"

PERMISSION_MODES = {NativeMode.BYPASS: "bypassPermissions", NativeMode.WORKSPACE_WRITE: "acceptEdits", NativeMode.ASK: "default"}


@attrs.frozen(kw_only=True)
class ClaudeHook:
    """A command hook that is added to the settings of every process. `matcher` is a pattern of tool names; "" matches all."""

    event: str
    command: str
    matcher: str = ""
    timeout_s: int | None = None


def argv_for(binary: str, launch: LaunchSpec, *, hooks: Iterable[ClaudeHook] = (), partial_messages: bool = False) -> tuple[str, ...]:
    """Return the command line of a process."""
    return (
        binary,
        *("--print", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
        "--replay-user-messages",
        *_prompt_arguments(launch.spec.approvals),
        *(("--include-partial-messages",) if partial_messages else ()),
        *_permission_arguments(launch),
        *_option("--model", launch.spec.model),
        *_option("--effort", launch.flags.reasoning_effort),
        *_option("--json-schema", _schema_argument(launch)),
        *_mcp_arguments(launch.flags.mcp_servers),
        *_settings_arguments(settings_for(launch, hooks)),
        *_conversation_arguments(launch),
        *launch.flags.extra_args,
    )


def _option(name: str, value: str | None) -> tuple[str, ...]:
    return () if value is None else (name, value)


def _conversation_arguments(launch: LaunchSpec) -> tuple[str, ...]:
    if launch.resume_id is not None:
        return ("--resume", launch.resume_id)
    return _option("--session-id", launch.proposed_id)


def _prompt_arguments(approvals: ApprovalPolicy) -> tuple[str, ...]:
    """Where the CLI's questions go: to us, or nowhere. Only with the former does it have the tools that need a person."""
    return ("--permission-prompt-tool", "stdio") if approvals is ApprovalPolicy.ASK else ("--permission-prompts", "none")


def _permission_arguments(launch: LaunchSpec) -> tuple[str, ...]:
    roots = writable_roots(launch)
    return ("--permission-mode", PERMISSION_MODES[launch.spec.permissions.mode], *(("--add-dir", *roots) if roots else ()))


def writable_roots(launch: LaunchSpec) -> tuple[str, ...]:
    """Return the directories beside the working directory that may be written, absolute."""
    permissions = launch.spec.permissions
    if permissions.mode is not NativeMode.WORKSPACE_WRITE:
        return ()
    return tuple(str(launch.spec.cwd / root) for root in permissions.writable_roots)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def schema_of(launch: LaunchSpec) -> dict[str, Any] | None:
    """Return the JSON schema of the process's answers."""
    schema = launch.flags.output_schema
    return None if schema is None else dict(schema.schema)


def schema_goes_by_handshake(launch: LaunchSpec) -> bool:
    """Whether the schema is too long for an argument: the handshake carries it then (`initialize.jsonSchema`, 2.1.332)."""
    schema = schema_of(launch)
    return schema is not None and len(_compact(schema)) > MAX_ARGUMENT_BYTES


def _schema_argument(launch: LaunchSpec) -> str | None:
    schema = schema_of(launch)
    return None if schema is None or schema_goes_by_handshake(launch) else _compact(schema)


def _mcp_arguments(servers: tuple[StdioMcpServer, ...]) -> tuple[str, ...]:
    if not servers:
        return ()
    rows = {
        server.name: {"type": "stdio", "command": server.command, "args": list(server.args), "env": dict(server.env)} for server in servers
    }
    return ("--mcp-config", _bounded("the MCP servers", _compact({"mcpServers": rows})))


def _bounded(what: str, argument: str) -> str:
    if len(argument) > MAX_ARGUMENT_BYTES:
        raise McpConfigError(f"{what} take {len(argument)} bytes as an argument; at most {MAX_ARGUMENT_BYTES} are possible")
    return argument


def _settings_arguments(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return ("--settings", _compact(settings)) if settings else ()


def settings_for(launch: LaunchSpec, hooks: Iterable[ClaudeHook] = ()) -> dict[str, Any]:
    """Return the settings that a process gets on top of the user's own: hooks, and the sandbox of WORKSPACE_WRITE.

    Seen on 2.1.332: with these, a command can write the working directory, the roots and a temporary directory of its own, nothing
    else; `dangerouslyDisableSandbox` has no effect; a connection is refused and reported as `SandboxNetworkAccess` denied.
    """
    rows = [_hook_row(hook) for hook in hooks]
    if launch.spec.permissions.mode is not NativeMode.WORKSPACE_WRITE:
        return {"hooks": _by_event(rows)} if rows else {}
    roots = writable_roots(launch)
    return {"sandbox": _sandbox(roots), "hooks": _by_event([_hook_row(_write_hook(launch.spec.cwd, roots)), *rows])}


def _sandbox(roots: tuple[str, ...]) -> dict[str, Any]:
    return {
        "enabled": True,
        "failIfUnavailable": True,
        "allowUnsandboxedCommands": False,
        "autoAllowBashIfSandboxed": True,
        "excludedCommands": [],
        "filesystem": {"allowWrite": list(roots)},
        "network": {"allowedDomains": [], "allowAllUnixSockets": False, "allowLocalBinding": False},
    }


def _write_hook(cwd: Path, roots: tuple[str, ...]) -> ClaudeHook:
    """Deny edits outside the roots. Only status 2 blocks a tool, so every other failure of the hook is made one."""
    command = shlex.join((sys.executable, "-S", "-E", str(WRITE_HOOK), str(cwd), *roots))
    return ClaudeHook(event="PreToolUse", matcher=WRITING_TOOLS, command=f"{command} || exit 2", timeout_s=60)


def _hook_row(hook: ClaudeHook) -> tuple[str, dict[str, Any]]:
    action: dict[str, Any] = {"type": "command", "command": hook.command}
    if hook.timeout_s is not None:
        action["timeout"] = hook.timeout_s
    return hook.event, {"matcher": hook.matcher, "hooks": [action]}


def _by_event(rows: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    events: dict[str, list[dict[str, Any]]] = {}
    for event, row in rows:
        events.setdefault(event, []).append(row)
    return events


def env_for(launch: LaunchSpec, given: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a process: `given`, with what this turn adds, less the markers of a parent session, plus ours."""
    return child_env({**given, **(launch.flags.env or {})}, mark=launch.mark, ours={MAX_RETRIES: OUR_MAX_RETRIES})


def refuse_permissions(launch_mode: NativeMode, *, network: bool) -> None:
    """Raise ProviderCapabilityError for what Claude Code cannot promise."""
    if launch_mode not in PERMISSION_MODES:
        raise ProviderCapabilityError(
            f"permission mode {launch_mode.value!r} is not supported: its sandbox always lets commands write the working directory",
            provider="claude",
            hint="use NativeMode.WORKSPACE_WRITE or NativeMode.BYPASS",
        )
    if network:
        raise ProviderCapabilityError("network=True is not supported in its sandbox", provider="claude", hint="leave network=False")
