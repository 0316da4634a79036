"""JSON-RPC lines, both ways. Decides only their form; never raises on what a line holds. Pure.

The server (0.163 and 0.171) gives no answer to a line that it cannot parse, such as one with an escaped lone surrogate; a byte that is no
UTF-8 ends it with all its conversations. So every line of ours is made here: ASCII, lone surrogates replaced.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

METHOD_NOT_FOUND = -32601
REFUSED = -32000

Frame = dict[str, Any]

_decode = msgspec.json.Decoder().decode
_BAD_LINE = (msgspec.MsgspecError, ValueError, RecursionError)


def decode(line: bytes) -> Frame | None:
    """Return the JSON object in `line`, or None when there is none."""
    try:
        value = _decode(line)
    except _BAD_LINE:
        value = _decode_leniently(line)
    return value if isinstance(value, dict) else None


def _decode_leniently(line: bytes) -> Any:
    try:
        return clean(json.loads(line.decode("utf-8", "replace")))
    except _BAD_LINE:
        return None


def clean(value: Any) -> Any:
    """Replace lone surrogates, which no UTF-8 writer takes, and numbers that are not finite, all the way down."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return value


def _line(value: Frame) -> bytes:
    return json.dumps(clean(value), separators=(",", ":")).encode() + b"\n"


def request(request_id: int | str, method: str, params: Frame) -> bytes:
    """Ask the server for something; it answers under the same id."""
    return _line({"id": request_id, "method": method, "params": params})


def notification(method: str) -> bytes:
    """Tell the server something."""
    return _line({"method": method})


def answer(request_id: Any, result: Frame) -> bytes:
    """Answer a request of the server's."""
    return _line({"id": request_id, "result": result})


def refusal(request_id: Any, message: str, code: int = METHOD_NOT_FOUND) -> bytes:
    """Refuse a request of the server's."""
    return _line({"id": request_id, "error": {"code": code, "message": message}})


def obj(value: Any) -> Frame:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[Frame]:
    """Return the objects in `value`, if it is a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any) -> str:
    """Return `value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def count(value: Any) -> int:
    """Return a count, 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def number(value: Any) -> float | None:
    """Return a number, None for what is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
