from __future__ import annotations

from typing import Any

import pytest
from codex_wire import launch, opened

from greenroom.model import NativeMode, StdioMcpServer
from greenroom.transports.base import LaunchSpec
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
    turn = params.turn_start(launch(mode), "t", params.user_input("hi"))
    assert (thread["sandbox"], thread["approvalPolicy"]) == (sandbox, approvals)
    assert (turn["sandboxPolicy"], turn["approvalPolicy"]) == (policy, approvals)


def test_roots_and_the_network_are_the_turns() -> None:
    policy = params.turn_start(launch(M.WORKSPACE_WRITE, roots=("out", "/abs"), network=True), "t", params.user_input("hi"))[
        "sandboxPolicy"
    ]
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


def differing(spec: LaunchSpec, reply: dict[str, Any]) -> tuple[str, str] | None:
    return params.differing(spec, reply.get("sandbox"), reply.get("approvalPolicy"), reply.get("approvalsReviewer"))


@pytest.mark.parametrize("mode", list(M))
def test_the_echo_must_be_what_was_asked_for(mode: NativeMode) -> None:
    assert differing(launch(mode), opened(mode=mode)) is None
    assert differing(launch(mode), opened(mode=mode, approvalsReviewer="user")) is None
    for other in set(M) - {mode}:
        assert differing(launch(mode), opened(mode=other)) is not None
    for junk in ({}, {"sandbox": "danger-full-access", "approvalPolicy": {"granular": {}}}, {"sandbox": [], "approvalPolicy": None}):
        assert differing(launch(mode), junk) is not None


@pytest.mark.parametrize(
    ("sandbox", "reviewer", "words"),
    [
        ({"type": "workspaceWrite", "writableRoots": ["/project/out"], "networkAccess": True}, "user", "the network"),
        ({"type": "workspaceWrite", "writableRoots": ["/project/out", "/opt"], "networkAccess": False}, "user", "leave to write '/opt'"),
        ({"type": "workspaceWrite", "writableRoots": ["/project/out"], "networkAccess": False}, "auto_review", "by 'auto_review'"),
    ],
)
def test_a_sandbox_that_lets_more_through_or_another_who_approves_is_not_what_was_asked_for(
    sandbox: Any, reviewer: str, words: str
) -> None:
    spec = launch(M.WORKSPACE_WRITE, roots=("x/../out",))
    asked, reported = params.differing(spec, sandbox, "on-request", reviewer) or ("", "")
    assert words in reported
    assert words not in asked
    same = {"type": "workspaceWrite", "writableRoots": ["/project/out"], "networkAccess": False, "excludeSlashTmp": True}
    assert params.differing(spec, same, "on-request", "user") is None


def test_what_the_users_configuration_could_widen_is_said_for_the_thread() -> None:
    config = params.thread_start(launch(M.WORKSPACE_WRITE, roots=("out",), mark=""), "")["config"]
    assert config == {"sandbox_workspace_write.network_access": False, "sandbox_workspace_write.writable_roots": ["/project/out"]}
    asked = params.thread_start(launch(), ""), params.thread_resume(launch(resume="t"), ""), params.turn_start(launch(), "t", [])
    assert [row["approvalsReviewer"] for row in asked] == ["user"] * 3


def test_fields_without_a_value_are_left_out() -> None:
    asked = params.turn_start(launch(), "t", [], effort=None, clientUserMessageId="r")
    assert asked["input"] == []
    assert asked["clientUserMessageId"] == "r"
    assert not {"effort", "model"} & set(asked)
