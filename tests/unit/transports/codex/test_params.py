from __future__ import annotations

import pytest
from codex_wire import launch, opened

from greenroom.errors import ProviderCapabilityError
from greenroom.model import NativeMode, StdioMcpServer
from greenroom.transports.codex import params

M = NativeMode


@pytest.mark.parametrize(
    ("mode", "sandbox", "approvals", "policy"),
    [
        (M.BYPASS, "danger-full-access", "never", {"type": "dangerFullAccess"}),
        (M.ASK, "danger-full-access", "untrusted", {"type": "dangerFullAccess"}),
        (M.READ_ONLY, "read-only", "on-request", {"type": "readOnly", "networkAccess": False}),
        (M.WORKSPACE_WRITE, "workspace-write", "on-request", {"type": "workspaceWrite", "writableRoots": [], "networkAccess": False}),
    ],
)
def test_permissions(mode: NativeMode, sandbox: str, approvals: str, policy: dict) -> None:
    thread = params.thread_start(launch(mode), "")
    turn = params.turn_start(launch(mode), "t", "hi")
    assert (thread["sandbox"], thread["approvalPolicy"]) == (sandbox, approvals)
    assert (turn["sandboxPolicy"], turn["approvalPolicy"]) == (policy, approvals)


def test_roots_and_the_network_are_the_turns() -> None:
    policy = params.turn_start(launch(M.WORKSPACE_WRITE, roots=("out", "/abs"), network=True), "t", "hi")["sandboxPolicy"]
    assert policy == {"type": "workspaceWrite", "writableRoots": ["/project/out", "/abs"], "networkAccess": True}
    assert "writableRoots" not in params.sandbox_policy(launch(M.BYPASS, roots=("/abs",), network=True))


def test_a_resume_asks_for_the_permissions_again_and_for_a_bounded_history() -> None:
    asked = params.thread_resume(launch(M.READ_ONLY, resume="t", model="m"), "r/h/1")
    assert (asked["threadId"], asked["sandbox"], asked["approvalPolicy"], asked["model"]) == ("t", "read-only", "on-request", "m")
    assert asked["excludeTurns"] is True
    assert asked["initialTurnsPage"] == {"limit": params.HISTORY_TURNS, "sortDirection": "desc", "itemsView": "full"}


def test_the_mark_and_the_mcp_servers_are_the_threads() -> None:
    servers = (StdioMcpServer("one", "cmd", ("x",), {"A": "b"}),)
    config = params.thread_start(launch(servers=servers, mark="r/h/2"), "r/h/1")["config"]
    assert config == {
        "mcp_servers.one": {"command": "cmd", "args": ["x"], "env": {"A": "b", "GREENROOM_MARK": "r/h/1:r/h/2"}},
        "shell_environment_policy.set.GREENROOM_MARK": "r/h/1:r/h/2",
    }
    assert params.thread_start(launch(mark=""), "")["config"] == {}


@pytest.mark.parametrize("mode", list(M))
def test_the_echo_must_be_what_was_asked_for(mode: NativeMode) -> None:
    assert params.check_echo(launch(mode), opened(mode=mode)) is None
    for other in set(M) - {mode}:
        assert isinstance(params.check_echo(launch(mode), opened(mode=other)), ProviderCapabilityError)
    for junk in ({}, {"sandbox": "danger-full-access", "approvalPolicy": {"granular": {}}}, {"sandbox": [], "approvalPolicy": None}):
        assert isinstance(params.check_echo(launch(mode), junk), ProviderCapabilityError)


def test_fields_without_a_value_are_left_out() -> None:
    asked = params.turn_start(launch(), "t", None, effort=None, clientUserMessageId="r")
    assert asked["input"] == []
    assert asked["clientUserMessageId"] == "r"
    assert not {"effort", "model"} & set(asked)
