from __future__ import annotations

import importlib.util

import attrs
import pytest
from codex_wire import launch

from greenroom import Agent, CodexAppServerTransport
from greenroom.errors import CliCheckError, CliNotFoundError, McpConfigError, ProviderCapabilityError, SchemaDialectError
from greenroom.model import (
    ApprovalPolicy,
    ConversationSpec,
    NativeMode,
    NativePermissions,
    OutputSchema,
    RenewalBudget,
    StdioMcpServer,
    TransportKind,
    TurnRequest,
)
from greenroom.transports.base import SharedTransport, StreamTransport
from greenroom.transports.catalog import transport_for
from greenroom.transports.codex.codec import CodexCodec
from greenroom.transports.codex.link import CodexLinkCodec


def program(tmp_path, says: str, name: str = "codex"):
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


def spec(tmp_path, **fields) -> ConversationSpec:
    base = {"cwd": tmp_path, "permissions": NativePermissions.bypass(), "approvals": ApprovalPolicy.DENY}
    return ConversationSpec(**{**base, **fields})


@pytest.fixture
def transport(tmp_path) -> CodexAppServerTransport:
    program(tmp_path, "echo codex-cli 0.171.0")
    return CodexAppServerTransport(env={"PATH": str(tmp_path), "HOME": "/home/x", "CODEX_THREAD_ID": "outer", "KEY": "k"})


def test_the_profile(transport: CodexAppServerTransport) -> None:
    profile = transport.profile
    assert profile.renewal == RenewalBudget(max_turns=2, max_turn_input_tokens=10_000_000, max_turn_duration_ms=600_000)
    assert (profile.chooses_ids, profile.retries_in_place, profile.supports_steer, profile.supports_resume) == (False, True, True, True)
    assert profile.native_permission_modes == frozenset(NativeMode)
    assert isinstance(transport, StreamTransport)
    assert isinstance(transport, SharedTransport)


def test_it_is_known_by_name(tmp_path) -> None:
    assert isinstance(transport_for("codex", TransportKind.STREAM), CodexAppServerTransport)
    with pytest.raises(ProviderCapabilityError):
        transport_for("codex", TransportKind.ONE_SHOT)


def test_the_binary_is_found_on_path_else_in_the_package(tmp_path, monkeypatch) -> None:
    env = {"PATH": str(tmp_path / "nothing")}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CliNotFoundError) as caught:
        CodexAppServerTransport(env=env).find_binary()
    assert "openai-codex-cli-bin" in caught.value.hint
    package = tmp_path / "codex_cli_bin"
    (package / "bin").mkdir(parents=True)
    bundled = program(package / "bin", "exit 0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: type("Spec", (), {"origin": str(package / "__init__.py")}))
    assert CodexAppServerTransport(env=env).find_binary() == str(bundled)
    with pytest.raises(CliNotFoundError):
        CodexAppServerTransport(env=env, binary=tmp_path / "gone").find_binary()


@pytest.mark.parametrize(
    ("says", "needle"),
    [
        ("echo codex-cli 0.162.9", "needed 0.163.0 or newer"),
        ("echo hello", "no version"),
        ("echo broken >&2; exit 3", "broken"),
    ],
)
def test_a_binary_that_will_not_do(tmp_path, says: str, needle: str) -> None:
    path = program(tmp_path, says)
    with pytest.raises(CliCheckError, match=needle):
        CodexAppServerTransport(env={"PATH": "/usr/bin:/bin"}, binary=path).check()


def test_a_binary_that_does_not_answer(tmp_path) -> None:
    path = program(tmp_path, "exec sleep 30")
    with pytest.raises(CliCheckError, match=r"did not answer within 0\.2 s"):
        CodexAppServerTransport(env={"PATH": "/usr/bin:/bin"}, binary=path, check_timeout=0.2).check()


@pytest.mark.parametrize("version", ["0.163.0", "0.171.0", "1.0.0"])
def test_a_binary_that_will_do(tmp_path, version: str) -> None:
    path = program(tmp_path, f"echo codex-cli {version}")
    assert CodexAppServerTransport(env={"PATH": "/usr/bin:/bin"}, binary=path).check() == version


def test_the_state_home(tmp_path) -> None:
    assert CodexAppServerTransport(env={"HOME": "/h"}).state_home == "/h/.codex"
    assert CodexAppServerTransport(env={"HOME": "/h", "CODEX_HOME": "/c"}).state_home == "/c"


def test_what_shares_a_server(tmp_path, transport: CodexAppServerTransport) -> None:
    one = spec(tmp_path)
    other = spec(tmp_path / "elsewhere", permissions=NativePermissions(NativeMode.READ_ONLY), model="m")
    assert transport.link_key(one) == transport.link_key(other)
    assert hash(transport.link_key(one)) is not None
    env = {**transport.env, "CODEX_HOME": "/other"}
    assert CodexAppServerTransport(env=env).link_key(one) != transport.link_key(one)
    assert CodexAppServerTransport(env=transport.env, shared=False).link_key(one) is None


def test_the_launch_of_a_shared_server(tmp_path, transport: CodexAppServerTransport) -> None:
    start = transport.launch_link(spec(tmp_path), "room/host/1")
    assert start.argv == (str(tmp_path / "codex"), "app-server")
    assert isinstance(start.codec, CodexLinkCodec)
    assert start.max_conversations == 32
    assert start.env["GREENROOM_MARK"].endswith("room/host/1")
    assert start.env["KEY"] == "k"
    assert "CODEX_THREAD_ID" not in start.env
    assert str(start.cwd) == "/"
    home = CodexAppServerTransport(env={**transport.env, "CODEX_HOME": str(tmp_path)})
    assert home.launch_link(spec(tmp_path), "m").cwd == tmp_path


def test_the_launch_of_a_server_for_one(tmp_path, transport: CodexAppServerTransport) -> None:
    start = transport.launch(attrs.evolve(launch(), spec=spec(tmp_path), mark="room/host/1"))
    assert isinstance(start.codec, CodexCodec)
    assert start.cwd == tmp_path
    (written,) = start.codec.opened(0.0)
    assert b'"initialize"' in written.data


def test_flags_are_what_a_thread_fixes(tmp_path, transport: CodexAppServerTransport) -> None:
    server = StdioMcpServer("s", "cmd")
    plain = transport.flags(spec(tmp_path), TurnRequest("x"))
    assert plain == transport.flags(spec(tmp_path), TurnRequest("y", output_schema=OutputSchema({}), reasoning_effort="high"))
    assert plain != transport.flags(spec(tmp_path), TurnRequest("x", mcp_servers=(server,)))
    assert transport.flags(spec(tmp_path, mcp_servers=(server,)), TurnRequest("x")).mcp_servers == (server,)


@pytest.mark.parametrize(
    ("request_", "error", "needle"),
    [
        (TurnRequest("x", env={"A": "b"}), ProviderCapabilityError, "environment"),
        (TurnRequest("x", extra_args=("--x",)), ProviderCapabilityError, "arguments"),
        (TurnRequest("x", mcp_workspace="/x"), ProviderCapabilityError, "mcp_workspace"),
        (TurnRequest("x", cwd="/elsewhere"), ProviderCapabilityError, "working directory"),
        (TurnRequest("x" * 1_048_577), ProviderCapabilityError, "1048577 characters"),
        (TurnRequest("x", mcp_servers=(StdioMcpServer("a", "c"), StdioMcpServer("a", "c"))), McpConfigError, "same name"),
        (TurnRequest("x", mcp_servers=(StdioMcpServer("a.b", "c"),)), McpConfigError, "'a.b'"),
        (TurnRequest("x", mcp_servers=(StdioMcpServer("", "c"),)), McpConfigError, "''"),
        (TurnRequest("x", output_schema=OutputSchema({"type": "array"})), SchemaDialectError, "'array'"),
        (TurnRequest("x", output_schema=OutputSchema({"a": float("nan")})), SchemaDialectError, "no JSON"),
        (TurnRequest("x", output_schema=OutputSchema({"a": {1, 2}})), SchemaDialectError, "no JSON"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(tmp_path, transport, request_, error, needle) -> None:
    with pytest.raises(error, match=needle):
        transport.validate(spec(tmp_path), request_)


def test_what_can_be_done_is_not_refused(tmp_path, transport: CodexAppServerTransport) -> None:
    for mode in NativeMode:
        transport.validate(spec(tmp_path, permissions=NativePermissions(mode, ("/x",), True)))
    transport.validate(spec(tmp_path), TurnRequest("\U0001f600" * 1_048_576, cwd=tmp_path, reasoning_effort="gigantic"))
    with pytest.raises(ProviderCapabilityError, match="scopes"):
        transport.validate(spec(tmp_path, skill_scope="NONE"))


def test_an_agent_by_name(tmp_path) -> None:
    path = program(tmp_path, "echo codex-cli 0.171.0")
    transport = CodexAppServerTransport(env={"PATH": str(path.parent)})
    assert Agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY) is not None
