"""The lines that Claude Code writes, as values. Decides only what a well-formed line is; never raises on what a line holds. Pure.

One `Frame` holds the fields of every frame type that we act on. The fast path decodes a line in one step; a line that does not fit
(a lone surrogate, a field of another type, bytes that are no UTF-8) is decoded again, slowly, and keeps the fields that do fit.
"""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from typing import Any, TypeVar

import msgspec


class Block(msgspec.Struct, gc=False):
    """One content block of a message."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] | None = None
    tool_use_id: str = ""
    content: Any = None
    is_error: bool = False


class Message(msgspec.Struct):
    """The message of an `assistant` or a `user` frame."""

    id: str = ""
    model: str = ""
    content: str | list[Block] = ""
    usage: dict[str, Any] | None = None


class Delta(msgspec.Struct, gc=False):
    """What a streamed event adds."""

    type: str = ""
    text: str = ""
    thinking: str = ""


class StreamEvent(msgspec.Struct):
    """One event of the model's stream, as partial messages pass it on."""

    type: str = ""
    delta: Delta | None = None


class Frame(msgspec.Struct):
    """One line. Fields that its type does not have keep their defaults."""

    type: str = ""
    subtype: str = ""
    uuid: str = ""
    session_id: str = ""
    parent_tool_use_id: str | None = None
    user_message_uuids: list[str] | None = None
    timestamp: str = ""
    # assistant, user
    message: Message | None = None
    is_replay: bool = msgspec.field(name="isReplay", default=False)
    is_synthetic: bool = msgspec.field(name="isSynthetic", default=False)
    tool_use_result: Any = None
    error: Any = None
    is_api_error_message: bool = False
    api_error: Any = None
    api_error_type: Any = None
    api_error_params: Any = None
    # stream_event
    event: StreamEvent | None = None
    api_message_id: str = ""
    # command_lifecycle
    command_uuid: str = ""
    state: str = ""
    # control_request, control_response
    request_id: Any = None
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    # result
    is_error: bool = False
    result: str | None = None
    errors: list[Any] | None = None
    terminal_reason: str | None = None
    stop_reason: str | None = None
    api_error_status: Any = None
    num_turns: Any = 0
    duration_ms: Any = 0
    total_cost_usd: Any = None
    usage: Any = None
    model_usage: Any = msgspec.field(name="modelUsage", default=None)
    model_usage_since: Any = msgspec.field(name="model_usage_since_last_result", default=None)
    permission_denials: list[Any] | None = None
    structured_output: Any = msgspec.UNSET
    origin: Any = None
    # system
    permission_mode: Any = msgspec.field(name="permissionMode", default=None)
    skills: list[Any] | None = None
    tool_name: str = ""
    tool_use_id: str = ""
    status: Any = None
    content: Any = None
    trigger: Any = None
    attempt: Any = None
    max_retries: Any = None
    retry_delay_ms: Any = None
    error_status: Any = None
    compact_metadata: Any = None
    summary: Any = None
    description: Any = None
    original_model: Any = None
    fallback_model: Any = None
    decision_reason: Any = None
    rate_limit_info: Any = None
    tasks: list[Any] | None = None


_decode = msgspec.json.Decoder(Frame).decode
_MISFIT = object()
_S = TypeVar("_S", bound=msgspec.Struct)
_BAD_LINE = (msgspec.MsgspecError, ValueError, RecursionError)


def decode(line: bytes) -> Frame | None:
    """Return the frame in `line`, or None when it is no JSON object."""
    try:
        return _decode(line)
    except _BAD_LINE:
        return _decode_leniently(line)


def _decode_leniently(line: bytes) -> Frame | None:
    try:
        value = _clean(json.loads(line.decode("utf-8", "replace")))
    except _BAD_LINE:
        return None
    return _fit(Frame, value) if isinstance(value, dict) else None


def _clean(value: Any) -> Any:
    """Replace lone surrogates, which no UTF-8 writer takes, and numbers that are not finite."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    hints = typing.get_type_hints(struct)
    return tuple((field.name, field.encode_name, hints[field.name]) for field in msgspec.structs.fields(struct))


def _fit(struct: type[_S], value: dict[str, Any]) -> _S:
    """Build `struct` from the fields of `value` that have its types."""
    fitting = {}
    for name, key, hint in _fields(struct):
        if key in value and (fitted := _fit_value(hint, value[key])) is not _MISFIT:
            fitting[name] = fitted
    return struct(**fitting)


def _fit_value(hint: Any, value: Any) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if (fitted := _fit_one(option, value)) is not _MISFIT:
            return fitted
    return _MISFIT


def _fit_one(option: Any, value: Any) -> Any:
    if option is Any:
        return value
    if isinstance(option, type) and issubclass(option, msgspec.Struct):
        return _fit(option, value) if isinstance(value, dict) else _MISFIT
    if typing.get_origin(option) is list:
        return _fit_list(typing.get_args(option)[0], value)
    plain = typing.get_origin(option) or option
    return value if isinstance(value, plain) else _MISFIT


def _fit_list(item_hint: Any, value: Any) -> Any:
    if not isinstance(value, list):
        return _MISFIT
    fitted = (_fit_value(item_hint, item) for item in value)
    return [item for item in fitted if item is not _MISFIT]
