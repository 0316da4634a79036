"""What a newcomer gets wrong at the front door, and what is said about it."""

from __future__ import annotations

import pytest

from greenroom import Agent, ApprovalPolicy, NativeMode, NativePermissions, SessionStateError, TurnRequest
from greenroom.testing import FakeTransport


@pytest.mark.parametrize("permissions", ["bypass", NativeMode.BYPASS])
def test_permissions_of_another_type_are_refused_by_name(permissions):
    with pytest.raises(TypeError, match=r"permissions must be NativePermissions, got .*NativePermissions\.bypass\(\)"):
        Agent(FakeTransport(), permissions=permissions, approvals=ApprovalPolicy.DENY)


def test_approvals_of_another_type_are_refused_by_name():
    with pytest.raises(TypeError, match=r"approvals must be an ApprovalPolicy, got 'deny'"):
        Agent(FakeTransport(), permissions=NativePermissions.bypass(), approvals="deny")


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
