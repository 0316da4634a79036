from __future__ import annotations

import json

import pytest
from codex_wire import FIXTURES

from greenroom.errors import SessionResumeError
from greenroom.model import FailureKind
from greenroom.transports.codex.classify import Failure, kind_of_text, refused_open, refused_request, refused_start

K = FailureKind
ROWS = {row["name"]: row["error"] for row in map(json.loads, (FIXTURES / "errors.jsonl").read_text().splitlines())}
RECORDED = {
    "g_default E429": K.TRANSIENT,
    "g_default E429-quota": K.USAGE_LIMIT,
    "g_default E400 bad thing": K.OTHER,
    "g_default E400-context": K.CONTEXT_OVERFLOW,
    "g_default E400-model": K.OTHER,
    "g_default USAGE-LIMIT": K.USAGE_LIMIT,
    "g_default E429x2": K.TRANSIENT,
    "g_default E503-overload": K.TRANSIENT,
    "g_default E401": K.AUTH,
    "g_default E404": K.OTHER,
    "g_default E403": K.AUTH,
    "g_default E402 pay": K.USAGE_LIMIT,
    "g_default E429-retry": K.TRANSIENT,
    "g_default E503": K.TRANSIENT,
    "g_default E502": K.TRANSIENT,
    "g_default E500": K.TRANSIENT,
    "g_limited E429": K.TRANSIENT,
    "g_limited E500": K.TRANSIENT,
    "g_limited E503": K.TRANSIENT,
    "g_limited CUT 3": K.TRANSIENT,
    "g_limited FAIL whatever_code hmm": K.TRANSIENT,
    "g_limited FAIL server_is_overloaded x": K.TRANSIENT,
    "g_limited FAIL rate_limit_exceeded Please try again in 1s.": K.TRANSIENT,
    "g_limited HANG2": K.TRANSIENT,
    "n2_nokey SAY x": K.AUTH,
    "a_basic INCOMPLETE max_output_tokens": K.OTHER,
    "163 FAIL 401": K.AUTH,
    "163 FAIL 429 insufficient_quota": K.USAGE_LIMIT,
    "163 FAIL 503": K.TRANSIENT,
    "163 FAIL 400 context_length_exceeded": K.CONTEXT_OVERFLOW,
    "163 FAIL 400 model_not_found": K.OTHER,
}


def test_every_recorded_failure_is_in_the_table() -> None:
    assert set(ROWS) == set(RECORDED)


@pytest.mark.parametrize(("name", "kind"), RECORDED.items())
def test_recorded_failures(name: str, kind: FailureKind) -> None:
    assert Failure.of(ROWS[name]).kind is kind


@pytest.mark.parametrize(
    ("info", "kind"),
    [
        ({"httpConnectionFailed": {"httpStatusCode": None}}, K.TRANSIENT),
        ({"httpConnectionFailed": {"httpStatusCode": 408}}, K.TRANSIENT),
        ({"httpConnectionFailed": {"httpStatusCode": 529}}, K.TRANSIENT),
        ({"responseStreamDisconnected": {"httpStatusCode": None}}, K.TRANSIENT),
        ({"responseStreamConnectionFailed": {}}, K.TRANSIENT),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, K.TRANSIENT),
        ("unauthorized", K.AUTH),
        ("sessionBudgetExceeded", K.USAGE_LIMIT),
        ("cyberPolicy", K.OTHER),
        ("somethingNew", K.OTHER),
        (None, K.OTHER),
        ([], K.OTHER),
        ({"new": 3}, K.OTHER),
    ],
)
def test_codes(info: object, kind: FailureKind) -> None:
    assert Failure.of({"message": "words", "codexErrorInfo": info}).kind is kind


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, {"message": 3}])
def test_junk_is_a_failure_without_a_reason(junk: object) -> None:
    error = Failure.of(junk).error()
    assert (error.kind, error.detail) == (K.OTHER, "the turn failed without a reason")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Invalid schema for response_format 'codex_output_schema'", K.SCHEMA),
        ("Failed to refresh token: 404 Not Found", K.AUTH),
        ("stream disconnected before completion: max_output_tokens", K.OTHER),
        ("error sending request for url", K.TRANSIENT),
        ("who knows", K.OTHER),
    ],
)
def test_texts(text: str, kind: FailureKind) -> None:
    assert kind_of_text(text) is kind


GONE = [
    "no rollout found for thread id X",
    "failed to read thread: thread-store internal error: rollout at /x is empty",
    "invalid session id: bad",
    "thread not found: X",
    "missing thread X",
    "no such thread",
    "Unknown thread",
    "the thread does not exist",
]


@pytest.mark.parametrize("text", GONE)
def test_a_thread_that_is_gone(text: str) -> None:
    error = refused_open({"code": -32600, "message": text}, resume_id="X", argv=("codex",))
    assert isinstance(error, SessionResumeError)
    assert not error.in_use
    assert not isinstance(refused_open({"message": text}, resume_id=None, argv=()), SessionResumeError)


def test_a_thread_that_is_in_use() -> None:
    error = refused_open({"message": "thread X already has an active writer"}, resume_id="X", argv=())
    assert isinstance(error, SessionResumeError)
    assert error.in_use


@pytest.mark.parametrize(
    "text",
    [
        "failed to load configuration: /h/config.toml: No such file or directory: not found",
        "error creating thread: required MCP servers failed to initialize: broken: not found",
        "Model provider `x` not found",
        "disk quota",
    ],
)
def test_other_refusals_keep_their_reason(text: str) -> None:
    error = refused_open({"message": text}, resume_id="X", argv=())
    assert not isinstance(error, SessionResumeError)
    assert text in str(error)


def test_an_overloaded_server_and_a_compacting_thread_are_transient() -> None:
    assert refused_request({"code": -32001, "message": "Server overloaded; retry later."}).kind is K.TRANSIENT
    assert (
        refused_request({"code": -32603, "message": "failed to submit: ActiveTurnNotSteerable { turn_kind: Compact }"}).kind is K.TRANSIENT
    )
    assert refused_request({"code": -32600, "message": "bad"}).kind is K.OTHER
    assert refused_request(None).detail == "the server gave no reason"


def test_a_process_that_ends_at_once_says_why() -> None:
    stderr = '\x1b[2mWARN\x1b[0m x\nError: CODEX_HOME points to "/nowhere", but that path does not exist\nlast line'
    error = refused_start(argv=("codex",), returncode=1, stderr=stderr)
    assert "CODEX_HOME points to" in str(error)
    assert "\x1b" not in error.stderr
    assert str(refused_start(argv=(), returncode=2, stderr="")) == "turn failed (other): app-server ended with status 2"
