from __future__ import annotations

import json

import pytest
from claude_wire import FIXTURES

from greenroom.model import FailureKind
from greenroom.transports.claude.classify import Failure, kind_of_text
from greenroom.transports.claude.frames import decode

K = FailureKind
RECORDED = {
    "h_400_credit": K.USAGE_LIMIT,
    "h_400_too_long": K.CONTEXT_OVERFLOW,
    "h_401_r2": K.AUTH,
    "h_402": K.USAGE_LIMIT,
    "h_403": K.AUTH,
    "h_429_long": K.TRANSIENT,
    "h_429_r2": K.TRANSIENT,
    "h_500_r2": K.TRANSIENT,
    "h_529_r0": K.TRANSIENT,
    "h_cut": K.TRANSIENT,
    "h_maxtok": K.OTHER,
    "h_maxturns": K.OTHER,
    "h_refuse": K.OTHER,
    "h_refused_r2": K.TRANSIENT,
    "x_noauth": K.AUTH,
    "x_ratelimit_oauth": K.USAGE_LIMIT,
}
ROWS = {row["name"]: row for row in map(json.loads, (FIXTURES / "errors.jsonl").read_text().splitlines())}


def recorded(name: str) -> Failure:
    row = ROWS[name]
    message = None if row["message"] is None else decode(json.dumps(row["message"]).encode())
    return Failure.of(decode(json.dumps(row["result"]).encode()), message)


@pytest.mark.parametrize(("name", "kind"), RECORDED.items())
def test_recorded_failures(name: str, kind: FailureKind) -> None:
    assert recorded(name).kind is kind


def test_only_an_api_error_can_be_nudged() -> None:
    nudgeable = {name for name in RECORDED if recorded(name).nudgeable}
    assert nudgeable == set(RECORDED) - {"h_400_too_long", "h_maxturns", "h_refuse"}


def test_an_answer_that_broke_off_cannot_be_nudged() -> None:
    text = "API Error: Server error mid-response. The response above may be incomplete."
    failure = Failure(text=text, kinds=("server_error",), terminal_reason="api_error")
    assert (failure.kind, failure.nudgeable) == (K.TRANSIENT, False)


def test_the_wait_to_a_limits_reset_is_kept() -> None:
    failure = recorded("x_ratelimit_oauth")
    assert failure.retry_after_s is not None
    assert 0 < failure.retry_after_s < 7200


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "API Error: 400 bad field", K.OTHER),
        (400, "API Error: 400 prompt is too long: 210000 tokens > 200000 maximum", K.CONTEXT_OVERFLOW),
        (400, "Your ANTHROPIC_API_KEY belongs to a disabled organization", K.AUTH),
        (400, "Your credit balance is too low to access the API", K.USAGE_LIMIT),
        (400, "messages.3: `tool_use` ids were found without `tool_result` blocks", K.OTHER),
        (404, "There's an issue with the selected model (x).", K.OTHER),
        (408, "timeout", K.TRANSIENT),
        (413, "Request too large (max 32MB)", K.CONTEXT_OVERFLOW),
        (429, "Request rejected (429) · rate limited", K.TRANSIENT),
        (429, "You exceeded your current quota", K.USAGE_LIMIT),
        (429, "You've hit your weekly limit · resets Mon", K.USAGE_LIMIT),
        (500, "oops", K.TRANSIENT),
        (503, "unavailable", K.TRANSIENT),
        (529, "overloaded", K.TRANSIENT),
        (418, "teapot", K.OTHER),
        (None, "API Error: Connection refused (ECONNREFUSED)", K.TRANSIENT),
        (None, "Request timed out. The server did not answer", K.TRANSIENT),
        (None, "Stream idle timeout", K.TRANSIENT),
        (None, "Not logged in · Please run /login", K.AUTH),
        (None, "OAuth token has expired", K.AUTH),
        (None, "unable to verify the first certificate", K.OTHER),
        (None, "ENOSPC: no space left on device, write", K.OTHER),
        (None, "JavaScript heap out of memory", K.OTHER),
        (None, "something new", K.OTHER),
    ],
)
def test_codes_and_texts(status: int | None, text: str, kind: FailureKind) -> None:
    assert Failure(status=status, text=text, terminal_reason="api_error").kind is kind


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"terminal_reason": "prompt_too_long"}, K.CONTEXT_OVERFLOW),
        ({"terminal_reason": "rapid_refill_breaker"}, K.CONTEXT_OVERFLOW),
        ({"terminal_reason": "budget_exhausted"}, K.USAGE_LIMIT),
        ({"subtype": "error_max_budget_usd"}, K.USAGE_LIMIT),
        ({"subtype": "error_max_turns"}, K.OTHER),
        ({"subtype": "error_max_structured_output_retries"}, K.SCHEMA),
        ({"kinds": ("server_error",)}, K.TRANSIENT),
        ({"kinds": ("connection_failed", "server_error")}, K.TRANSIENT),
        ({"kinds": ("server_error",), "text": "self-signed certificate in certificate chain"}, K.OTHER),
        ({"kinds": ("overloaded",)}, K.TRANSIENT),
        ({"kinds": ("authentication_failed",)}, K.AUTH),
        ({"kinds": ("billing_error",), "status": 400}, K.USAGE_LIMIT),
        ({"kinds": ("usage_limit_reached", "rate_limit"), "status": 429}, K.USAGE_LIMIT),
        ({"kinds": ("unheard_of",), "text": "overloaded"}, K.TRANSIENT),
        ({"stop_reason": "refusal", "kinds": ("server_error",)}, K.OTHER),
        ({}, K.OTHER),
    ],
)
def test_kinds_and_reasons(fields: dict[str, object], kind: FailureKind) -> None:
    assert Failure(**fields).kind is kind


def test_a_message_with_odd_fields_is_classified_all_the_same() -> None:
    message = decode(
        b'{"type":"assistant","error":5,"api_error":[],"api_error_params":{"rate_limit_info":{"resetsAt":9}},"timestamp":"junk"}'
    )
    result = decode(b'{"type":"result","is_error":true,"errors":[{"a":1},null],"api_error_status":"529"}')
    failure = Failure.of(result, message)
    assert failure.kind is K.OTHER
    assert failure.retry_after_s is None


def test_text_alone() -> None:
    assert kind_of_text("429 too many requests") is K.TRANSIENT
