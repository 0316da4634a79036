from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from greenroom.errors import McpConfigError
from greenroom.model import ApprovalPolicy, ConversationSpec, NativeMode, NativePermissions, OutputSchema, StdioMcpServer
from greenroom.transports.base import Flags, LaunchSpec
from greenroom.transports.claude.launch import (
    MAX_ARGUMENT_BYTES,
    WRITE_HOOK,
    ClaudeHook,
    argv_for,
    env_for,
    schema_goes_by_handshake,
    settings_for,
)

CWD = pathlib.Path("/repo")
WORKSPACE = NativePermissions(NativeMode.WORKSPACE_WRITE, writable_roots=("/data", "sub"))


def launch(
    *,
    permissions: NativePermissions | None = None,
    approvals: ApprovalPolicy = ApprovalPolicy.DENY,
    model: str | None = None,
    flags: dict[str, Any] | None = None,
    **fields: Any,
) -> LaunchSpec:
    spec = ConversationSpec(cwd=CWD, permissions=permissions or NativePermissions.bypass(), approvals=approvals, model=model)
    return LaunchSpec(spec=spec, flags=Flags(key=None, **(flags or {})), incarnation=1, mark="m-1", **fields)


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_a_fresh_start() -> None:
    argv = argv_for("/bin/claude", launch(proposed_id="id-1", model="opus"))
    assert argv[0] == "/bin/claude"
    assert option(argv, "--permission-mode") == "bypassPermissions"
    assert option(argv, "--permission-prompts") == "none"
    assert option(argv, "--session-id") == "id-1"
    assert option(argv, "--model") == "opus"
    assert {"--print", "--verbose", "--replay-user-messages"} <= set(argv)
    assert not {"--resume", "--settings", "--mcp-config", "--json-schema", "--effort", "--include-partial-messages"} & set(argv)


@pytest.mark.parametrize(
    ("permissions", "mode"),
    [(NativePermissions.bypass(), "bypassPermissions"), (WORKSPACE, "acceptEdits"), (NativePermissions.ask(), "default")],
)
@pytest.mark.parametrize("approvals", list(ApprovalPolicy))
def test_what_is_asked_and_who_is_asked_are_chosen_apart(permissions: NativePermissions, mode: str, approvals: ApprovalPolicy) -> None:
    argv = argv_for("c", launch(permissions=permissions, approvals=approvals))
    assert option(argv, "--permission-mode") == mode
    asks = approvals is ApprovalPolicy.ASK
    assert ("--permission-prompt-tool" in argv, "--permission-prompts" in argv) == (asks, not asks)
    assert not asks or option(argv, "--permission-prompt-tool") == "stdio"
    assert ("sandbox" in settings_for(launch(permissions=permissions))) is (permissions is WORKSPACE)


def test_a_resume_never_names_a_new_id() -> None:
    argv = argv_for("c", launch(resume_id="r", proposed_id="p"))
    assert option(argv, "--resume") == "r"
    assert "--session-id" not in argv


def test_what_a_turn_needs_is_in_the_arguments() -> None:
    server = StdioMcpServer("tiny", "python", ("-m", "tiny"), {"KEY": "v"})
    schema = OutputSchema({"type": "object"})
    flags = {"output_schema": schema, "mcp_servers": (server,), "reasoning_effort": "high", "extra_args": ("--max-turns", "3")}
    argv = argv_for("c", launch(flags=flags), partial_messages=True)
    assert json.loads(option(argv, "--json-schema")) == {"type": "object"}
    assert option(argv, "--effort") == "high"
    row = json.loads(option(argv, "--mcp-config"))["mcpServers"]["tiny"]
    assert row == {"type": "stdio", "command": "python", "args": ["-m", "tiny"], "env": {"KEY": "v"}}
    assert argv[-2:] == ("--max-turns", "3")
    assert "--include-partial-messages" in argv


def test_a_long_schema_is_no_argument() -> None:
    long = launch(flags={"output_schema": OutputSchema({"type": "object", "description": "x" * MAX_ARGUMENT_BYTES})})
    assert schema_goes_by_handshake(long)
    assert "--json-schema" not in argv_for("c", long)
    assert not schema_goes_by_handshake(launch())


def test_mcp_servers_that_fit_no_argument_are_refused() -> None:
    server = StdioMcpServer("big", "x", ("y" * MAX_ARGUMENT_BYTES,))
    with pytest.raises(McpConfigError):
        argv_for("c", launch(flags={"mcp_servers": (server,)}))


def test_workspace_write() -> None:
    argv = argv_for("c", launch(permissions=WORKSPACE))
    assert option(argv, "--permission-mode") == "acceptEdits"
    at = argv.index("--add-dir")
    assert argv[at + 1 : at + 3] == ("/data", "/repo/sub")
    assert argv[at + 3].startswith("--")  # the option takes what follows it
    sandbox = json.loads(option(argv, "--settings"))["sandbox"]
    assert sandbox["enabled"]
    assert sandbox["failIfUnavailable"]
    assert sandbox["allowUnsandboxedCommands"] is False
    assert sandbox["filesystem"]["allowWrite"] == ["/data", "/repo/sub"]
    assert sandbox["network"]["allowedDomains"] == []
    assert sandbox["excludedCommands"] == []


def test_the_write_hook_blocks_whatever_happens_to_it(tmp_path: pathlib.Path) -> None:
    spec = launch(permissions=NativePermissions(NativeMode.WORKSPACE_WRITE, writable_roots=("/a b",)))
    (row,) = settings_for(spec)["hooks"]["PreToolUse"]
    assert row["matcher"] == "Edit|MultiEdit|Write|NotebookEdit"
    command = row["hooks"][0]["command"]
    assert "'/a b'" in command
    assert _status(command, {"tool_input": {"file_path": "/a b/x"}}) == 0
    assert _status(command, {"tool_input": {"file_path": "/elsewhere"}}) == 2
    assert _status(command.replace(sys.executable, "/no/python"), {"tool_input": {"file_path": "/a b/x"}}) == 2
    assert _status(command.replace(str(WRITE_HOOK), str(tmp_path / "gone.py")), {}) == 2


def _status(command: str, call: dict[str, Any]) -> int:
    return subprocess.run(command, shell=True, input=json.dumps(call).encode(), capture_output=True, check=False, timeout=20).returncode  # noqa: S602


def test_hooks_of_the_user() -> None:
    hook = ClaudeHook(event="Stop", command="true", timeout_s=5)
    assert settings_for(launch(), [hook]) == {
        "hooks": {"Stop": [{"matcher": "", "hooks": [{"type": "command", "command": "true", "timeout": 5}]}]}
    }
    both = settings_for(launch(permissions=WORKSPACE), [ClaudeHook(event="PreToolUse", command="mine", matcher="Bash")])["hooks"]
    assert [row["matcher"] for row in both["PreToolUse"]][1:] == ["Bash"]
    assert settings_for(launch()) == {}


def test_the_environment_is_the_callers_and_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENROOM_MARK", "outer")
    given = {"PATH": "/bin", "ANTHROPIC_API_KEY": "k", "CLAUDECODE": "1", "CLAUDE_CODE_USE_BEDROCK": "1"}
    assert env_for(launch(), given) == {  # no IS_SANDBOX: it is never set in silence
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "k",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "CLAUDE_CODE_MAX_RETRIES": "3",
        "GREENROOM_MARK": "outer:m-1",
    }
    assert env_for(launch(), {"CLAUDE_CODE_MAX_RETRIES": "9"})["CLAUDE_CODE_MAX_RETRIES"] == "9"


def test_a_turns_environment_comes_on_top() -> None:
    assert env_for(launch(flags={"env": {"A": "2"}}), {"A": "1", "B": "1"})["A"] == "2"
