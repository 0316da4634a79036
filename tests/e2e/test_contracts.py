"""The contract suites on the blocking face of the real Claude Code."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from greenroom import ApprovalPolicy, ConversationSpec, NativePermissions, SessionResumeError, Transport, TurnRequest
from greenroom.testing import SteerableConversationContract, TransportContract
from tests.e2e.stage import Stage


class OnStage:
    """Gives the contract's factories a stage."""

    stage: Stage

    @pytest.fixture(autouse=True)
    def _on_stage(self, claude: str, tmp_path: pathlib.Path) -> Iterator[None]:
        with Stage(tmp_path, claude) as self.stage:
            yield

    def make_request(self) -> TurnRequest:
        return TurnRequest("SAY hello")

    def spec(self, resume_id: str | None = None) -> ConversationSpec:
        return ConversationSpec(
            cwd=self.stage.cwd, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY, resume_id=resume_id
        )


class TestClaudeTransport(OnStage, TransportContract):
    def make_transport(self) -> Transport:
        return self.stage.transport()

    def test_a_conversation_that_is_gone_is_refused_at_open(self) -> None:
        gone = "00000000-0000-4000-8000-000000000000"
        with pytest.raises(SessionResumeError) as refused:
            self.make_transport().open(self.spec(gone))
        assert refused.value.session_id == gone


class TestClaudeConversation(OnStage, SteerableConversationContract):
    def make_conversation(self):
        return self.stage.transport().open(self.spec())

    def make_steerable_request(self) -> TurnRequest:
        return TurnRequest("BASH sleep 0.7\nSAY done")
