"""What kind of failure is it? The only place that reads Claude Code's error codes and texts. Pure; a table, read from the top.

The source is what 2.1.332 answers to a scripted model server, failure by failure (`tests/fixtures/claude/errors.jsonl`). A code is
believed before a text, except where the same code means two things: 429 is an overload or a spent limit, 400 is a bad request, a full
context or an empty account.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import attrs

from greenroom.model import FailureKind
from greenroom.transports.claude.frames import Frame
from greenroom.transports.retry_after import retry_after_s

_LIMIT = re.compile(
    r"hit your .{0,40}limit|usage limit|limit reached|spend(ing)? limit|credit balance|out of (extra )?(usage|credits)"
    r"|insufficient (credits?|funds|balance)|exceeded your (current )?quota|quota exceeded|billing|payment required",
    re.IGNORECASE,
)
_AUTH = re.compile(
    r"not logged in|please run /login|invalid (x-)?api[ -]key|invalid bearer|authentication|failed to authenticate|unauthori[sz]ed"
    r"|(oauth )?token (has )?(expired|revoked)|login expired|disabled organi[sz]ation|permission_error|forbidden",
    re.IGNORECASE,
)
_OVERFLOW = re.compile(
    r"prompt is too long|context (window|length|limit)|too many (input )?tokens|exceeds? the maximum (number of )?tokens"
    r"|request (is )?too large|conversation (is )?too long|input is too long",
    re.IGNORECASE,
)
_TRANSIENT = re.compile(
    r"overloaded|rate limit|too many requests|internal server error|service unavailable|bad gateway|gateway time-?out"
    r"|timed? ?out|connection (error|dropped|refused|reset|closed|aborted)|unable to connect|network error|socket hang up|fetch failed"
    r"|stream (closed|ended|idle|stalled)|temporarily unavailable"
    r"|ECONN(REFUSED|RESET|ABORTED)|EPIPE|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|ENETUNREACH|EHOSTUNREACH",
    re.IGNORECASE,
)
_BROKE_OFF = re.compile(r"mid-response|response above may be incomplete", re.IGNORECASE)
_LASTING = re.compile(r"certificate|ENOSPC|no space left|out of memory|heap limit", re.IGNORECASE)
_BY_TERMINAL_REASON = {
    "prompt_too_long": FailureKind.CONTEXT_OVERFLOW,
    "blocking_limit": FailureKind.CONTEXT_OVERFLOW,
    "rapid_refill_breaker": FailureKind.CONTEXT_OVERFLOW,
    "budget_exhausted": FailureKind.USAGE_LIMIT,
    "max_turns": FailureKind.OTHER,
}
_BY_SUBTYPE = {
    "error_max_budget_usd": FailureKind.USAGE_LIMIT,
    "error_max_turns": FailureKind.OTHER,
    "error_max_structured_output_retries": FailureKind.SCHEMA,
}
_BY_STATUS = {
    401: FailureKind.AUTH,
    402: FailureKind.USAGE_LIMIT,
    403: FailureKind.AUTH,
    404: FailureKind.OTHER,
    408: FailureKind.TRANSIENT,
    409: FailureKind.TRANSIENT,
    413: FailureKind.CONTEXT_OVERFLOW,
    425: FailureKind.TRANSIENT,
    429: FailureKind.TRANSIENT,
}
_BY_KIND = {
    "usage_limit_reached": FailureKind.USAGE_LIMIT,
    "billing_error": FailureKind.USAGE_LIMIT,
    "authentication_failed": FailureKind.AUTH,
    "authentication_error": FailureKind.AUTH,
    "permission_error": FailureKind.AUTH,
    "oauth_org_not_allowed": FailureKind.AUTH,
    "cloud_credential_error": FailureKind.AUTH,
    "request_too_large": FailureKind.CONTEXT_OVERFLOW,
    "connection_failed": FailureKind.TRANSIENT,
    "overloaded": FailureKind.TRANSIENT,
    "overloaded_error": FailureKind.TRANSIENT,
    "rate_limit": FailureKind.TRANSIENT,
    "rate_limit_error": FailureKind.TRANSIENT,
    "server_error": FailureKind.TRANSIENT,
    "api_error": FailureKind.TRANSIENT,
    "timeout_error": FailureKind.TRANSIENT,
    "model_not_found": FailureKind.OTHER,
    "max_output_tokens": FailureKind.OTHER,
}
_TEXT_CHARS = 4000
_AMBIGUOUS_STATUS = frozenset({400, 429})


@attrs.frozen(kw_only=True)
class Failure:
    """What a failed result and the error message before it said."""

    text: str = ""
    status: int | None = None
    kinds: tuple[str, ...] = ()
    terminal_reason: str | None = None
    subtype: str = ""
    stop_reason: str | None = None
    resets_in_s: float | None = None

    @classmethod
    def of(cls, result: Frame, message: Frame | None) -> Failure:
        """Gather it from the result and, if there was one, the synthetic error message (`is_api_error_message`)."""
        said = (message.api_error, message.error, message.api_error_type) if message is not None else ()
        status = result.api_error_status
        return cls(
            text=_text(result),
            status=status if isinstance(status, int) else None,
            kinds=tuple(kind for kind in said if isinstance(kind, str)),
            terminal_reason=result.terminal_reason,
            subtype=result.subtype,
            stop_reason=result.stop_reason,
            resets_in_s=_resets_in_s(message),
        )

    @property
    def kind(self) -> FailureKind:
        """What the caller can do about it."""
        return kind_of(self)

    @property
    def retry_after_s(self) -> float | None:
        """How long the provider asks to wait, if it says so."""
        return self.resets_in_s if self.resets_in_s is not None else retry_after_s(self.text)

    @property
    def nudgeable(self) -> bool:
        """Whether a retry in place is valid next: only directly after an API error, and a refusal is an answer, as is half of one."""
        return self.terminal_reason == "api_error" and self.stop_reason != "refusal" and not _BROKE_OFF.search(self.text)


def kind_of(failure: Failure) -> FailureKind:
    """Classify a failure."""
    if failure.terminal_reason in _BY_TERMINAL_REASON:
        return _BY_TERMINAL_REASON[failure.terminal_reason]
    if failure.subtype in _BY_SUBTYPE:
        return _BY_SUBTYPE[failure.subtype]
    if failure.stop_reason == "refusal":
        return FailureKind.OTHER
    return _kind_of_api_error(failure)


def _kind_of_api_error(failure: Failure) -> FailureKind:
    status = failure.status
    if {"usage_limit_reached", "billing_error"} & set(failure.kinds):
        return FailureKind.USAGE_LIMIT
    if status in _AMBIGUOUS_STATUS:
        return _kind_of_ambiguous(failure.text, status)
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None:
        return FailureKind.TRANSIENT if status >= HTTPStatus.INTERNAL_SERVER_ERROR else kind_of_text(failure.text)
    if _LASTING.search(failure.text):
        return FailureKind.OTHER
    return next((_BY_KIND[kind] for kind in failure.kinds if kind in _BY_KIND), kind_of_text(failure.text))


def _kind_of_ambiguous(text: str, status: int | None) -> FailureKind:
    if _LIMIT.search(text):
        return FailureKind.USAGE_LIMIT
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return FailureKind.TRANSIENT
    if _OVERFLOW.search(text):
        return FailureKind.CONTEXT_OVERFLOW
    return FailureKind.AUTH if _AUTH.search(text) else FailureKind.OTHER


_BY_TEXT = (
    (_LASTING, FailureKind.OTHER),
    (_LIMIT, FailureKind.USAGE_LIMIT),
    (_AUTH, FailureKind.AUTH),
    (_OVERFLOW, FailureKind.CONTEXT_OVERFLOW),
    (_TRANSIENT, FailureKind.TRANSIENT),
)


def kind_of_text(text: str) -> FailureKind:
    """Classify by text alone; the last resort."""
    return next((kind for pattern, kind in _BY_TEXT if pattern.search(text)), FailureKind.OTHER)


def _text(result: Frame) -> str:
    parts = [result.result or "", *(str(error) for error in result.errors or ())]
    return "; ".join(part for part in parts if part)[:_TEXT_CHARS]


def _resets_in_s(message: Frame | None) -> float | None:
    """Return the seconds to a limit's reset: the reset is given in wall time, and so is the message's own stamp."""
    params = message.api_error_params if message is not None else None
    limit = params.get("rate_limit_info") if isinstance(params, Mapping) else None
    resets_at = limit.get("resetsAt") if isinstance(limit, Mapping) else None
    if message is None or not isinstance(resets_at, int | float):
        return None
    said_at = _unix_time(message.timestamp)
    return None if said_at is None else max(0.0, resets_at - said_at)


def _unix_time(stamp: Any) -> float | None:
    try:
        return dt.datetime.fromisoformat(stamp).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
