"""What a codec is told of its process. Frozen values."""

from __future__ import annotations

from typing import Any

import attrs

from greenroom.events import ToolCall
from greenroom.model import ApprovalPolicy, ProviderUsage
from greenroom.transports.home_models import HomeModels

MAX_LINE_BYTES = 32 * 1024 * 1024


@attrs.frozen(kw_only=True)
class CodecConfig:
    """Which conversation, which rules, which bounds (in seconds). `argv` is for error messages.

    `taken_receipt`: a message that is known to be in the conversation already, so that it need not be tried again.
    `home_models`: the models of conversations on which a turn had its own.
    `lost_calls`: tool calls of the cut turn that the conversation does not show, so that the model must be told of them.
    """

    argv: tuple[str, ...] = ("claude",)
    approvals: ApprovalPolicy = ApprovalPolicy.DENY
    permission_mode: str | None = None
    model: str | None = None
    home_models: HomeModels = attrs.field(factory=HomeModels)
    sandboxed: bool = False
    resume_id: str | None = None
    proposed_id: str | None = None
    previous_usage: ProviderUsage | None = None
    after_death: bool = False
    taken_receipt: str | None = None
    lost_calls: tuple[ToolCall, ...] = ()
    handshake_schema: dict[str, Any] | None = None
    startup_timeout_s: float = 60.0
    interrupt_grace_s: float = 10.0
    steer_grace_s: float = 10.0
    max_line_bytes: int = MAX_LINE_BYTES
