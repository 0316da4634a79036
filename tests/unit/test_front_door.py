"""What a newcomer gets wrong at the front door, and what is said about it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import greenroom
from greenroom import Agent, ApprovalPolicy, NativeMode, NativePermissions, SessionStateError, TurnRequest
from greenroom.testing import FakeTransport


def env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(pathlib.Path(greenroom.__file__).parents[1])}


@pytest.mark.parametrize("permissions", ["bypass", NativeMode.BYPASS])
def test_permissions_of_another_type_are_refused_by_name(permissions):
    with pytest.raises(TypeError, match=r"permissions must be NativePermissions, got .*NativePermissions\.bypass\(\)"):
        Agent(FakeTransport(), permissions=permissions, approvals=ApprovalPolicy.DENY)


def test_approvals_of_another_type_are_refused_by_name():
    with pytest.raises(TypeError, match=r"approvals must be an ApprovalPolicy, got 'deny'"):
        Agent(FakeTransport(), permissions=NativePermissions.bypass(), approvals="deny")


@pytest.mark.parametrize("option", ["asks", "retry", "restart", "stall", "model"])
def test_options_of_another_type_are_refused_by_name(option):
    with pytest.raises(TypeError, match=f"{option} must be .*, got 3"):
        Agent(FakeTransport(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY, **{option: 3})


def test_a_prompt_is_no_request(tmp_path):
    agent = Agent(FakeTransport(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    with agent.session(tmp_path) as session:
        with pytest.raises(TypeError, match=r"request must be a TurnRequest, got str"):
            session.prepare_turn("Fix the failing test")
        assert session.state == "idle"


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_cannot_be_meant_is_refused(timeout):
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        TurnRequest("x", timeout=timeout)


def test_a_ticket_of_another_session_is_refused_and_not_used_up(tmp_path):
    agent = Agent(FakeTransport(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    with agent.session(tmp_path) as its_own, agent.session(tmp_path) as other:
        ticket = its_own.prepare_turn(TurnRequest("x"))
        with pytest.raises(SessionStateError, match=f"belongs to session '{its_own.id}', not to '{other.id}'"):
            other.run(ticket)
        assert its_own.run(ticket).result.text == "echo: x"


@pytest.mark.parametrize("code", ["import greenroom", "import runpy; runpy.run_module('greenroom', run_name='__main__')"])
def test_windows_is_refused_by_name(code):
    # What Windows does not have is taken away, so that an import before the refusal would fail in another way.
    windows = "import sys, os, signal; sys.platform = 'win32'; del signal.SIGKILL, os.sysconf\n"
    ended = subprocess.run([sys.executable, "-c", windows + code], check=False, capture_output=True, text=True, env=env(), timeout=50)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "ImportError: greenroom does not run on Windows, only on Linux and macOS; use WSL 2"


@pytest.mark.parametrize(
    ("env", "error"), [({"A": 1}, TypeError), ({2: "b"}, TypeError), ({"A=B": "c"}, ValueError), ({"A": "b\0"}, ValueError)]
)
def test_an_environment_that_cannot_be_is_refused_at_once(env, error):
    with pytest.raises(error, match="environment variable"):
        TurnRequest("x", env=env)
