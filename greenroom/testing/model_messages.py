"""The Anthropic Messages API, as much of it as Claude Code needs: how a request is read, and how an answer is streamed.

Decides nothing: what is answered, `model_rules` decides. Runs on the model server's thread.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import attrs
from starlette.responses import JSONResponse, Response, StreamingResponse

from greenroom.testing.model_pace import Pace
from greenroom.testing.model_reply import Block, CutError, Pieces, Reply, split, text_block, tool_block

_REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>|\Z)", re.DOTALL)
_STEERED = re.compile(r"The user sent a new message while you were working:\n(.*?)\n\n(?:This is how|IMPORTANT: ).*", re.DOTALL)
_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}
TOO_LONG = Reply(status=400, error_type="invalid_request_error", message="prompt is too long: 250000 tokens > 200000 maximum")


def call(word: str, rest: str) -> Block:
    """Return the block of a directive that calls a tool."""
    match word:
        case "BASH" | "ASK":
            return tool_block("Bash", {"command": rest, "description": "run it"})
        case "WRITE":
            path, text = split(rest, 2)
            return tool_block("Write", {"file_path": path, "content": text.replace("\\n", "\n")})
        case "STRUCTURED":
            return tool_block("StructuredOutput", json.loads(rest))
        case _:
            name, tool_input = split(rest, 2)
            return tool_block(name, json.loads(tool_input or "{}"))


def events(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what happened in a request: ("call", "") for a tool call, (user or system, text) for a text that may be a prompt."""
    found = []
    for message in body.get("messages", []):
        for block in blocks(message):
            if message.get("role") == "assistant" and block.get("type") == "tool_use":
                found.append(("call", ""))
            elif message.get("role") in ("user", "system") and block.get("type") == "text":
                found.append((message["role"], _STEERED.sub(r"\1", _REMINDER.sub("", block["text"])).strip()))
    return found


def blocks(message: dict[str, Any]) -> list[Block]:
    """Return a message's content as blocks."""
    content = message.get("content", [])
    return [text_block(content)] if isinstance(content, str) else [block for block in content if isinstance(block, dict)]


def seen(body: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what the model was shown; reminders and messages of the role `system` are left out."""
    messages = [message for message in body.get("messages", []) if message.get("role") != "system"]
    shown = (_shown(message["role"], block) for message in messages for block in blocks(message))
    return tuple(one for one in shown if one is not None)


def _shown(role: str, block: Block) -> tuple[str, str] | None:
    match block.get("type"):
        case "text":
            text = _REMINDER.sub("", block["text"]).strip("\n")
            return (role, text) if text.strip() else None
        case "tool_use":
            return ("tool_use", f"{block['name']} {json.dumps(block['input'])}")
        case "tool_result":
            content = block.get("content", "")
            return ("tool_result", content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content))
        case _:
            return None


# --- answers -----------------------------------------------------------------------------------------------------------------


def respond(reply: Reply, body: dict[str, Any], pace: Pace) -> Response:
    """Return the HTTP answer; what is slow in it comes at this pace."""
    if reply.failed and not body.get("stream"):  # an error within a stream makes Claude Code ask for the answer as a whole
        reply = attrs.evolve(reply, status=_STATUS.get(reply.error_type, HTTPStatus.INTERNAL_SERVER_ERROR))
    if reply.refuses:
        return _refusal(reply)
    if not body.get("stream"):
        return _whole(reply, body)
    return StreamingResponse(_events(reply, body, pace), media_type="text/event-stream", headers=_request_id())


def _request_id() -> dict[str, str]:
    return {"request-id": f"req_{secrets.token_hex(8)}"}


def _refusal(reply: Reply) -> Response:
    error = {"type": "error", "error": {"type": reply.error_type, "message": reply.message}}
    return JSONResponse(error, status_code=reply.status, headers={**_request_id(), **reply.headers})


def _whole(reply: Reply, body: dict[str, Any]) -> Response:
    if reply.cut:
        return StreamingResponse(_half(), media_type="application/json", headers={**_request_id(), "content-length": "1000"})
    message = _message(body, list(reply.blocks()), reply.stop_reason, reply.output_tokens)
    return JSONResponse(message, headers=_request_id())


def _message(body: dict[str, Any], content: list[Block], stop_reason: str | None, output_tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": 100, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30, "output_tokens": output_tokens}
    head = {"id": f"msg_{secrets.token_hex(10)}", "type": "message", "role": "assistant", "model": body.get("model", "")}
    return {**head, "content": content, "stop_reason": stop_reason, "stop_sequence": None, "usage": usage}


async def _half() -> AsyncIterator[bytes]:
    yield b"{"
    raise CutError


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def _events(reply: Reply, body: dict[str, Any], pace: Pace) -> AsyncIterator[bytes]:
    """Stream an answer: each block whole, pieces with their pauses."""
    yield _event("message_start", message=_message(body, [], None, 1))
    for index, block in enumerate(reply.content):
        async for event in _piece_events(index, block, pace) if isinstance(block, Pieces) else _block_events(index, block):
            yield event
    if reply.cut:
        raise CutError
    if reply.failed:
        yield _event("error", error={"type": reply.error_type, "message": reply.message})
        return
    if reply.hang:
        await asyncio.Event().wait()
    delta = {"stop_reason": reply.stop_reason, "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": reply.output_tokens})
    yield _event("message_stop")


async def _piece_events(index: int, pieces: Pieces, pace: Pace) -> AsyncIterator[bytes]:
    yield _event("content_block_start", index=index, content_block=text_block(""))
    for text in pieces.texts:
        await pace.pause(pieces.interval_s)
        yield _event("content_block_delta", index=index, delta={"type": "text_delta", "text": text})
        pace.pieces_sent += 1
    yield _event("content_block_stop", index=index)


async def _block_events(index: int, block: Block) -> AsyncIterator[bytes]:
    empty, deltas = _opened(block)
    yield _event("content_block_start", index=index, content_block=empty)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _opened(block: Block) -> tuple[Block, list[Block]]:
    """Return a block as it begins, and the deltas that fill it."""
    match block["type"]:
        case "text":
            return text_block(""), [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            thinking = {"type": "thinking_delta", "thinking": block["thinking"]}
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {"type": "thinking", "thinking": "", "signature": ""}, [thinking, signature]
        case _:
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
