from __future__ import annotations

import math
import os
import pathlib
import sys
from typing import Any

import pytest

from greenroom.errors import CliCheckError, CliNotFoundError, McpConfigError, ProviderCapabilityError, SchemaDialectError
from greenroom.model import ApprovalPolicy, ConversationSpec, NativeMode, NativePermissions, OutputSchema, StdioMcpServer, TurnRequest
from greenroom.transports.base import Codec, LaunchSpec, StreamTransport
from greenroom.transports.claude.transport import PROGRAM, ClaudeStreamTransport


def script(path: pathlib.Path, body: str) -> pathlib.Path:
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def claude(tmp_path: pathlib.Path) -> pathlib.Path:
    return script(tmp_path / "claude", "print('2.1.332 (Claude Code)')")


def spec(tmp_path: pathlib.Path, **fields: Any) -> ConversationSpec:
    permissions = fields.pop("permissions", NativePermissions.bypass())
    return ConversationSpec(cwd=tmp_path, permissions=permissions, approvals=ApprovalPolicy.DENY, **fields)


# --- the binary -------------------------------------------------------------------------------------------------------------


def test_the_version_is_asked_once_per_file(tmp_path: pathlib.Path) -> None:
    counter = tmp_path / "count"
    path = script(tmp_path / "claude", f"open({str(counter)!r}, 'a').write('x')\nprint('2.1.400 (Claude Code)')")
    assert [ClaudeStreamTransport(binary=path).check() for _ in range(3)] == ["2.1.400"] * 3
    assert counter.read_text() == "x"
    script(path, "print('2.2.0 (Claude Code), another')")
    assert ClaudeStreamTransport(binary=path).check() == "2.2.0"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("print('2.1.331 (Claude Code)')", "found version 2.1.331, needed 2.1.332"),
        ("print('1.0.999')", "needed 2.1.332"),
        ("print('hello')", "no version"),
        ("sys.stderr.write('broken\\n'); sys.exit(3)", "status 3: broken"),
        ("time.sleep(60)", "within 0.5 s"),
        ("print('2.1.332', flush=True); os.fork() and os._exit(0); time.sleep(60)", "within 0.5 s"),
    ],
)
def test_a_binary_that_cannot_be_used(tmp_path: pathlib.Path, body: str, why: str) -> None:
    transport = ClaudeStreamTransport(binary=script(tmp_path / "claude", body), check_timeout=0.5 if "sleep" in body else 30)
    with pytest.raises(CliCheckError, match=why):
        transport.check()


def test_found_and_needed_are_kept(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CliCheckError) as caught:
        ClaudeStreamTransport(binary=script(tmp_path / "claude", "print('2.0.0')")).check()
    assert (caught.value.found, caught.value.needed) == ("2.0.0", "2.1.332")


def test_a_newer_version_is_compared_by_number() -> None:
    assert PROGRAM.minimum < (2, 1, 1000)


def test_no_such_binary_and_not_executable(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CliNotFoundError, match="no such file"):
        ClaudeStreamTransport(binary=tmp_path / "none").check()
    (tmp_path / "plain").write_text("x")
    with pytest.raises(CliNotFoundError, match="not executable"):
        ClaudeStreamTransport(binary=tmp_path / "plain").check()
    with pytest.raises(CliNotFoundError):
        ClaudeStreamTransport(binary="surely-no-such-command").check()
    bad = tmp_path / "bad"
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    with pytest.raises(CliCheckError, match="cannot be started"):
        ClaudeStreamTransport(binary=bad).check()


def test_the_path_of_the_given_environment_is_searched(claude: pathlib.Path) -> None:
    transport = ClaudeStreamTransport(env={"PATH": str(claude.parent)})
    assert transport.find_binary() == str(claude)
    assert ClaudeStreamTransport(env={"PATH": str(claude.parent)}, binary="claude").find_binary() == str(claude)


@pytest.mark.skipif(PROGRAM.bundled() is None, reason="claude-agent-sdk is not installed")
def test_else_the_one_in_the_package(tmp_path: pathlib.Path) -> None:
    assert ClaudeStreamTransport(env={"PATH": str(tmp_path)}).find_binary() == PROGRAM.bundled()


# --- refusals ---------------------------------------------------------------------------------------------------------------


def test_it_is_a_stream_transport(claude: pathlib.Path) -> None:
    transport = ClaudeStreamTransport(binary=claude)
    assert isinstance(transport, StreamTransport)
    assert transport.profile.supports_steer
    assert NativeMode.BYPASS in transport.profile.native_permission_modes


def test_what_it_can_do(tmp_path: pathlib.Path) -> None:
    transport = ClaudeStreamTransport()
    transport.validate(spec(tmp_path))
    request = TurnRequest("p", cwd=tmp_path, reasoning_effort="max", output_schema=OutputSchema({"type": "object"}))
    transport.validate(spec(tmp_path), request)
    transport.validate(spec(tmp_path), TurnRequest("p", cwd="."))


@pytest.mark.parametrize(
    ("fields", "request_", "words"),
    [
        ({"permissions": NativePermissions(NativeMode.READ_ONLY)}, None, "read_only"),
        ({"permissions": NativePermissions(NativeMode.WORKSPACE_WRITE, network=True)}, None, "network"),
        ({"reasoning_effort": "extreme"}, None, "extreme"),
        ({"skill_scope": "NONE"}, None, "scopes"),
        ({}, TurnRequest("p", cwd="/"), "working directory"),
        ({}, TurnRequest("p", cwd="sub"), "working directory"),
        ({}, TurnRequest("p", reasoning_effort="Max"), "Max"),
        ({}, TurnRequest("p", mcp_workspace="x"), "mcp_workspace"),
        ({}, TurnRequest(" \n"), "blanks"),
        ({}, TurnRequest(""), "empty"),
    ],
)
def test_what_it_cannot_do(tmp_path: pathlib.Path, fields: dict[str, Any], request_: TurnRequest | None, words: str) -> None:
    with pytest.raises(ProviderCapabilityError, match=words):
        ClaudeStreamTransport().validate(spec(tmp_path, **fields), request_)


def test_a_prompt_that_fits_no_line(tmp_path: pathlib.Path) -> None:
    transport = ClaudeStreamTransport()
    transport.validate(spec(tmp_path), TurnRequest("x" * 20_000_000))
    for prompt in ("x" * 32_000_000, "x" + "\n" * 16_000_000):
        with pytest.raises(ProviderCapabilityError, match="bytes on the wire"):
            transport.validate(spec(tmp_path), TurnRequest(prompt))


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS brings its sandbox along")
def test_workspace_write_without_its_sandbox(tmp_path: pathlib.Path) -> None:
    write = spec(tmp_path, permissions=NativePermissions(NativeMode.WORKSPACE_WRITE))
    with pytest.raises(ProviderCapabilityError, match="bwrap and socat") as caught:
        ClaudeStreamTransport(env={"PATH": str(tmp_path)}).validate(write)
    assert "bubblewrap" in caught.value.hint
    for tool in ("bwrap", "socat"):
        script(tmp_path / tool, "")
    ClaudeStreamTransport(env={"PATH": str(tmp_path)}).validate(write)


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": "object", "x": {1, 2}}, {"type": "object", "x": math.nan}])
def test_unusable_schemas(tmp_path: pathlib.Path, schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaDialectError):
        ClaudeStreamTransport().validate(spec(tmp_path), TurnRequest("p", output_schema=OutputSchema(schema)))


@pytest.mark.parametrize("names", [("a", "a"), ("",)])
def test_unusable_mcp_servers(tmp_path: pathlib.Path, names: tuple[str, ...]) -> None:
    servers = tuple(StdioMcpServer(name, "c") for name in names)
    with pytest.raises(McpConfigError):
        ClaudeStreamTransport().validate(spec(tmp_path, mcp_servers=servers))


# --- flags and launches -----------------------------------------------------------------------------------------------------


def test_flags_compare_by_what_the_process_is_started_with(tmp_path: pathlib.Path) -> None:
    transport, session = ClaudeStreamTransport(), spec(tmp_path, reasoning_effort="low", mcp_servers=(StdioMcpServer("a", "b"),))
    plain = transport.flags(session, TurnRequest("p"))
    assert plain == transport.flags(session, TurnRequest("another", timeout=5))
    assert plain == transport.flags(session, TurnRequest("p", reasoning_effort="low"))
    assert plain.reasoning_effort == "low"
    others = (
        TurnRequest("p", reasoning_effort="high"),
        TurnRequest("p", output_schema=OutputSchema({"type": "object"})),
        TurnRequest("p", mcp_servers=(StdioMcpServer("a", "c"),)),
        TurnRequest("p", env={"A": "1"}),
        TurnRequest("p", extra_args=("--x",)),
    )
    assert len({transport.flags(session, request).key for request in others} | {plain.key}) == 6
    assert hash(plain.key) is not None


def test_a_launch(tmp_path: pathlib.Path, claude: pathlib.Path) -> None:
    transport = ClaudeStreamTransport(binary=claude, env={"A": "1"}, startup_timeout_s=7, close_grace_s=3)
    session = spec(tmp_path)
    launch = transport.launch(
        LaunchSpec(spec=session, flags=transport.flags(session, TurnRequest("p")), incarnation=2, mark="m", resume_id="r")
    )
    codec: Codec = launch.codec
    assert launch.argv[0] == str(claude)
    assert launch.cwd == tmp_path
    assert launch.env["GREENROOM_MARK"].split(":")[-1] == "m"
    assert "PATH" not in launch.env
    assert (launch.startup_timeout_s, launch.close_grace_s) == (7, 3)
    codec.opened(0.0)
    assert codec.deadline_s == 7.0
    assert transport.link_key(session) is None
    assert os.environ is not launch.env
