"""What kind of failure is it? The only place that reads Codex's error codes and texts. Pure; tables, read from the top.

The source is what 0.171.0 and 0.163.0 answer to a scripted model server, failure by failure (`tests/fixtures/codex/errors.jsonl`).
A code is believed before a text, except `other`, which says nothing: 0.163.0 says it, with the body as its text, where 0.171.0 has a code.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import attrs

from greenroom.errors import CliExitError, GreenroomError, SessionResumeError, TurnFailedError
from greenroom.model import FailureKind
from greenroom.transports.codex.lines import Frame, count, obj, text
from greenroom.transports.retry_after import retry_after_s

_K = FailureKind
_TEXT_CHARS = 4000
_OVERLOADED = -32001

_BY_CODE = {
    "contextWindowExceeded": _K.CONTEXT_OVERFLOW,
    "sessionBudgetExceeded": _K.USAGE_LIMIT,
    "usageLimitExceeded": _K.USAGE_LIMIT,
    "rateLimitExceeded": _K.TRANSIENT,
    "flexUnavailable": _K.TRANSIENT,
    "serverOverloaded": _K.TRANSIENT,
    "policyCapacityUnavailable": _K.TRANSIENT,
    "internalServerError": _K.TRANSIENT,
    "unauthorized": _K.AUTH,
    "modelNotFound": _K.OTHER,
    "cyberPolicy": _K.OTHER,
    "bioPolicy": _K.OTHER,
    "misalignmentPolicyViolation": _K.OTHER,
    "tooManyDenials": _K.OTHER,
    "sandboxError": _K.OTHER,
    "inferenceHookDenied": _K.OTHER,
}
_BY_STATUS = {401: _K.AUTH, 402: _K.USAGE_LIMIT, 403: _K.AUTH, 404: _K.OTHER, 408: _K.TRANSIENT, 409: _K.TRANSIENT, 429: _K.TRANSIENT}
# Codes that carry an HTTP status. Without one the connection itself failed.
_WITH_STATUS = frozenset(
    {"httpConnectionFailed", "responseStreamConnectionFailed", "responseStreamDisconnected", "responseTooManyFailedAttempts"}
)
_BY_TEXT = (
    (
        re.compile(
            r"context_length_exceeded|context (window|length)|maximum context|ran out of room|too many (input )?tokens", re.IGNORECASE
        ),
        _K.CONTEXT_OVERFLOW,
    ),
    (
        re.compile(
            r"usage limit|quota exceeded|insufficient_quota|usage_(limit_reached|not_included)|billing|out of credits|payment required",
            re.IGNORECASE,
        ),
        _K.USAGE_LIMIT,
    ),
    (re.compile(r"model_not_found|invalid_prompt|max_output_tokens|content_filter|certificate|no space left", re.IGNORECASE), _K.OTHER),
    (
        re.compile(
            r"missing environment variable|unauthori[sz]ed|forbidden|invalid.{0,10}api.?key|refresh token|not logged in|\b40[13]\b"
            r"|authentication|access token|sign(ed)? (in|out)",
            re.IGNORECASE,
        ),
        _K.AUTH,
    ),
    (re.compile(r"invalid_json_schema|response_format|invalid schema", re.IGNORECASE), _K.SCHEMA),
    (
        re.compile(
            r"overloaded|high demand|rate.?limit|too many requests|slow_down|try again|server_error|internal server error"
            r"|service unavailable|bad gateway|gateway time-?out|time[d ]?[ -]?out|stream (disconnected|closed|error)|idle timeout"
            r"|connection|network|dns error|error sending request|temporarily unavailable",
            re.IGNORECASE,
        ),
        _K.TRANSIENT,
    ),
)


@attrs.frozen(kw_only=True)
class Failure:
    """What a failed turn said: a code (with an HTTP status where it has one) and a text."""

    text: str = ""
    code: str = ""
    status: int | None = None

    @classmethod
    def of(cls, error: Any) -> Failure:
        """Read the `error` of a turn, or of an `error` notification."""
        row = obj(error)
        info = row.get("codexErrorInfo")
        code, status = (info, None) if isinstance(info, str) else _coded(obj(info))
        said = [text(row.get("message")), text(row.get("additionalDetails"))]
        return cls(text="; ".join(part for part in said if part)[:_TEXT_CHARS], code=code, status=status)

    @property
    def kind(self) -> FailureKind:
        """What the caller can do about it."""
        if self.code in _BY_CODE:
            return _BY_CODE[self.code]
        if self.code in _WITH_STATUS:
            return self._kind_by_status()
        return kind_of_text(self.text)

    def _kind_by_status(self) -> FailureKind:
        if self.status in _BY_STATUS:
            return _BY_STATUS[self.status]
        if self.status is not None and self.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return kind_of_text(self.text)
        return _K.TRANSIENT

    def error(self, partial: str = "") -> TurnFailedError:
        """Return it as an error. `partial`: what the assistant had said."""
        what = self.text or self.code or "the turn failed without a reason"
        return TurnFailedError(self.kind, what, retry_after_s=retry_after_s(self.text), text=partial)


def _coded(info: Frame) -> tuple[str, int | None]:
    for code, row in info.items():
        return code, count(obj(row).get("httpStatusCode")) or None
    return "", None


def kind_of_text(said: str) -> FailureKind:
    """Classify by text alone; the last resort."""
    return next((kind for pattern, kind in _BY_TEXT if pattern.search(said)), _K.OTHER)


_IN_USE = re.compile(r"already has an active writer", re.IGNORECASE)
ARCHIVED = re.compile(r"is archived", re.IGNORECASE)
# What 0.171.0 says, then the wordings by which others recognise a thread that is gone.
_GONE = re.compile(
    r"no rollout found|rollout .* is empty|invalid session id|thread not loaded"
    r"|not found|missing thread|no such thread|unknown thread|does not exist",
    re.IGNORECASE,
)
# A text that says "not found" of something else than the thread is a fault of the machine, and starting afresh would not mend it.
_NOT_THE_THREAD = re.compile(
    r"configuration|config\.toml|mcp server|working directory|environment variable|CODEX_HOME|model provider", re.IGNORECASE
)


def refused_open(error: Any, *, resume_id: str | None, argv: tuple[str, ...]) -> GreenroomError:
    """Return why a thread could not be started or resumed."""
    said = text(obj(error).get("message"))[:_TEXT_CHARS] or "the server gave no reason"
    if resume_id is not None and _IN_USE.search(said):
        return SessionResumeError(resume_id, detail=said, in_use=True, argv=argv)
    if resume_id is not None and _GONE.search(said) and not _NOT_THE_THREAD.search(said):
        return SessionResumeError(resume_id, detail=said, argv=argv)
    return refused_request(error)


def refused_request(error: Any) -> TurnFailedError:
    """Return what a JSON-RPC error answer means."""
    row = obj(error)
    said = text(row.get("message"))[:_TEXT_CHARS] or "the server gave no reason"
    info = obj(row.get("data")).get("codexErrorInfo")
    failure = Failure.of({"message": said, "codexErrorInfo": info})
    busy = row.get("code") == _OVERLOADED or "NotSteerable" in said
    return TurnFailedError(_K.TRANSIENT if busy else failure.kind, said, retry_after_s=retry_after_s(said))


_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def refused_start(*, argv: tuple[str, ...], returncode: int | None, stderr: str) -> CliExitError:
    """Return why a process ended by its own decision before its handshake: its last words on standard error."""
    said = _ANSI.sub("", stderr).strip()
    telling = [line for line in said.split("\n") if line.startswith("Error") or "CODEX_HOME" in line or "config.toml" in line]
    last = (telling or said.split("\n"))[-1]
    detail = f"app-server ended with status {returncode}" + (f": {last}" if last else "")
    return CliExitError(argv, returncode, stderr=said, kind=kind_of_text(said) if not telling else _K.OTHER, detail=detail)
