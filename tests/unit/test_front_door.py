"""What a newcomer gets wrong at the front door, and what is said about it."""

from __future__ import annotations

import asyncio
import copy
import os
import pathlib
import pickle
import subprocess
import sys
import traceback

import pytest

import greenroom
from greenroom import (
    Agent,
    ApprovalPolicy,
    FailureKind,
    NativeMode,
    NativePermissions,
    ProviderCapabilityError,
    SessionStateError,
    TurnFailedError,
    TurnRequest,
)
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


@pytest.mark.parametrize("no_ticket", ["Fix the failing test", TurnRequest("Fix the failing test")])
def test_what_is_no_ticket_is_refused_by_name(tmp_path, no_ticket):
    agent = Agent(FakeTransport(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    with agent.session(tmp_path) as session:
        for call in (
            session.run,
            session.interrupt,
            lambda wrong: session.run(wrong, on_event=print),
            lambda wrong: asyncio.run(session.arun(wrong)),
            lambda wrong: asyncio.run(session.arun(wrong, on_event=print)),
        ):
            with pytest.raises(TypeError, match=r"ticket must be a TurnTicket, got (str|TurnRequest); prepare_turn makes one of a request"):
                call(no_ticket)
        assert session.state == "idle"


def test_a_timeout_of_another_type_is_refused_by_name():
    with pytest.raises(TypeError, match="timeout must be a number of seconds, got '900'"):
        TurnRequest("x", timeout="900")


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


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_traceback_shows_the_hint():
    with pytest.raises(ProviderCapabilityError) as caught:
        Agent("gemini", permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    error = caught.value
    assert str(error) == "unknown provider 'gemini'"
    assert shown(error).endswith("unknown provider 'gemini'\nhint: known providers: claude, codex\n")
    other = copy.copy(error)
    other.hint = "another"
    other.add_note("a note")
    assert shown(pickle.loads(pickle.dumps(other))).endswith("unknown provider 'gemini'\na note\nhint: another\n")  # noqa: S301
    assert "another" not in shown(error)
    other.hint = None
    assert shown(other).endswith("unknown provider 'gemini'\na note\n")


def test_a_refused_credential_has_a_hint():
    assert "greenroom doctor" in TurnFailedError(FailureKind.AUTH, "bad key").hint
    assert TurnFailedError(FailureKind.OTHER, "x").hint is None
