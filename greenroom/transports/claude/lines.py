"""The lines that we write to Claude Code. Decides only their form; every function returns one whole line. Pure.

A line that is no JSON, or half a line, ends the process (2.1.332), so all of them are made here, in ASCII: a lone surrogate or a NUL in
a prompt is an escape then. The model gets U+FFFD and U+0000 for these.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from greenroom.attachments import images_of, texts_of
from greenroom.events import ToolCall
from greenroom.model import TurnRequest
from greenroom.policy.commands import How
from greenroom.transports.claude.config import MAX_LINE_BYTES

MAX_TEXT_BYTES = MAX_LINE_BYTES - 2 * 1024 * 1024
_MOST_BYTES_PER_CHARACTER = 6
CONTINUE_TEXT = "Continue from where you left off."
LOST_CALLS_TEXT = (
    "The session ended abruptly. These tool calls had been made before it did, and are not shown above; they may have taken effect. "
    "Check before you repeat one:"
)
MAX_LOST_CALLS = 20
MAX_ARGS_CHARS = 2000

Block = dict[str, Any]
Content = str | list[Block]


def line(value: dict[str, Any]) -> bytes:
    """Return `value` as a line."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def user_message(content: Content, uuid: str) -> bytes:
    """A message of the user. `uuid` is swallowed if the conversation has seen it before, also after a kill and a resume."""
    message = {"role": "user", "content": content}
    return line({"type": "user", "uuid": uuid, "message": message, "parent_tool_use_id": None})


def prompt_content(prompt: str) -> Content:
    """Return the content that brings `prompt` to the model as it is.

    A text that begins with "/" would be run as a command of the CLI: `/clear` would drop the conversation. A block list whose last
    block is not a command is no command, and the CLI drops the blank block again (seen on 2.1.332).
    """
    return [_text(prompt), _text(" ")] if prompt.startswith("/") else prompt


def request_content(request: TurnRequest) -> Content:
    """Return the content that brings a request to the model: what is attached, and the prompt behind it."""
    prompt = prompt_content(request.prompt)
    attached = [*(_image(*image) for image in images_of(request)), *(_text(text) for text in texts_of(request))]
    return [*attached, *_as_blocks(prompt)] if attached else prompt


def too_long(*texts: str, encoded_bytes: int = 0) -> int | None:
    """Return the size in bytes of texts that fit no line, else None. The CLI repeats every message in a line of its own.

    `encoded_bytes`: what images take of the line.
    """
    if sum(map(len, texts)) * _MOST_BYTES_PER_CHARACTER + encoded_bytes <= MAX_TEXT_BYTES:
        return None
    size = sum(len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) for text in texts) + encoded_bytes
    return size if size > MAX_TEXT_BYTES else None


def request_too_long(request: TurnRequest) -> int | None:
    """Return the size in bytes of a request that fits no line, else None."""
    encoded_bytes = sum(len(data) * 4 // 3 + 4 for _, data in images_of(request))
    return too_long(request.prompt, *texts_of(request), encoded_bytes=encoded_bytes)


def content_of(how: How, request: TurnRequest, lost_calls: tuple[ToolCall, ...] = ()) -> Content:
    """Return what an attempt sends. An empty text block directly after an API error repeats the failed request, and adds no prompt."""
    match how:
        case How.PROMPT:
            return _with_reminder(request_content(request), lost_calls)
        case How.RETRY:
            return [_text("")]
        case How.CONTINUE:
            return "\n".join([CONTINUE_TEXT, *_reminder(lost_calls)])


def _with_reminder(content: Content, lost_calls: tuple[ToolCall, ...]) -> Content:
    return [*_as_blocks(content), _text("\n".join(_reminder(lost_calls)))] if lost_calls else content


def _as_blocks(content: Content) -> list[Block]:
    return [_text(content)] if isinstance(content, str) else content


def _reminder(lost_calls: tuple[ToolCall, ...]) -> list[str]:
    """Without it the model would make these calls again: the CLI died before it wrote them down."""
    if not lost_calls:
        return []
    calls = [f"- {call.tool} {json.dumps(dict(call.args))[:MAX_ARGS_CHARS]}" for call in lost_calls[-MAX_LOST_CALLS:]]
    return ["<system-reminder>", LOST_CALLS_TEXT, *calls, "</system-reminder>"]


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _image(media_type: str, data: bytes) -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode("ascii")}}


def control_request(request_id: str, subtype: str, **fields: Any) -> bytes:
    """Ask the CLI for something; it answers under the same id."""
    return line({"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **fields}})


def denial(request_id: Any, message: str, *, interrupt: bool) -> bytes:
    """Answer a `can_use_tool` request."""
    verdict = {"behavior": "deny", "message": message, **({"interrupt": True} if interrupt else {})}
    return answer(request_id, verdict)


def answer(request_id: Any, response: dict[str, Any]) -> bytes:
    """Answer a request of the CLI's."""
    return line({"type": "control_response", "response": {"subtype": "success", "request_id": request_id, "response": response}})


def refusal(request_id: Any, error: str) -> bytes:
    """Answer any other request: we offer nothing."""
    return line({"type": "control_response", "response": {"subtype": "error", "request_id": request_id, "error": error}})
