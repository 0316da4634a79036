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
    credential_in_use,
    env_for,
    is_parent_marker,
    schema_goes_by_handshake,
    settings_for,
)
from greenroom.transports.environment import PARENT_MARKERS

CWD = pathlib.Path("/repo")
WORKSPACE = NativePermissions(NativeMode.WORKSPACE_WRITE, writable_roots=("/data", "sub"))


def launch(
    *, permissions: NativePermissions | None = None, model: str | None = None, flags: dict[str, Any] | None = None, **fields: Any
) -> LaunchSpec:
    spec = ConversationSpec(cwd=CWD, permissions=permissions or NativePermissions.bypass(), approvals=ApprovalPolicy.DENY, model=model)
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


INHERITED = {
    "PATH": "/bin",
    "ANTHROPIC_API_KEY": "k",
    "CLAUDECODE": "1",
    "CLAUDE_CODE_ENTRYPOINT": "cli",
    "CLAUDE_CODE_SSE_PORT": "1",
    "CLAUDE_CODE_SESSION_ID": "s",
    "CLAUDE_CODE_RESUME_INTERRUPTED_TURN": "1",
    "CLAUDE_CODE_USE_BEDROCK": "1",
}


def test_an_inherited_environment_loses_the_markers_only() -> None:
    env = env_for(launch(), given=None, inherited=INHERITED)
    assert env == {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "k",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "CLAUDE_CODE_MAX_RETRIES": "3",
        "GREENROOM_MARK": "m-1",
    }


def test_what_any_cli_leaves_for_its_tools_is_a_marker() -> None:
    inherited = dict.fromkeys(PARENT_MARKERS, "1")
    assert set(env_for(launch(), given=None, inherited=inherited)) == {"GREENROOM_MARK", "CLAUDE_CODE_MAX_RETRIES"}


def test_a_given_environment_is_exactly_that() -> None:
    env = env_for(launch(), given={"A": "1", "CLAUDECODE": "1", "CLAUDE_CODE_MAX_RETRIES": "9"}, inherited=INHERITED)
    assert env == {"A": "1", "CLAUDE_CODE_MAX_RETRIES": "9", "GREENROOM_MARK": "m-1"}


def test_a_turns_environment_comes_on_top() -> None:
    assert env_for(launch(), given={"A": "1", "B": "1"}, inherited={}, extra={"A": "2"})["A"] == "2"


@pytest.mark.parametrize("given", [None, {}, {"GREENROOM_MARK": "outer"}])
def test_the_mark_is_appended_to_the_one_we_run_under(given: dict[str, str] | None) -> None:
    assert env_for(launch(), given=given, inherited={"GREENROOM_MARK": "outer"})["GREENROOM_MARK"] == "outer:m-1"


def test_is_sandbox_is_never_set_in_silence() -> None:
    assert "IS_SANDBOX" not in env_for(launch(), given=None, inherited={})


def test_ordinary_settings_are_no_markers() -> None:
    assert not any(map(is_parent_marker, ("CLAUDE_CONFIG_DIR", "CLAUDE_CODE_MAX_RETRIES", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_TMPDIR")))


@pytest.mark.parametrize(
    ("env", "credential"),
    [
        ({}, "stored login"),
        ({"ANTHROPIC_API_KEY": "k"}, "ANTHROPIC_API_KEY"),
        ({"ANTHROPIC_API_KEY": ""}, "stored login"),
        ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "t"}, "ANTHROPIC_AUTH_TOKEN"),
        ({"CLAUDE_CODE_OAUTH_TOKEN": "o"}, "CLAUDE_CODE_OAUTH_TOKEN"),
        ({"ANTHROPIC_API_KEY": "k", "CLAUDE_CODE_USE_BEDROCK": "1"}, "Amazon Bedrock"),
        ({"CLAUDE_CODE_USE_VERTEX": "0"}, "stored login"),
    ],
)
def test_the_credential_in_use(env: dict[str, str], credential: str) -> None:
    assert credential_in_use(env) == credential
