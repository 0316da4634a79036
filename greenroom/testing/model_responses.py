"""The OpenAI Responses API, as much of it as Codex needs: how a request is read, and how an answer is streamed.

Codex (0.163.0 and 0.171.0, model gpt-5.5) always asks for a stream. Decides nothing: what is answered, `model_rules` decides. Runs on
the model server's thread.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from greenroom.testing.model_pace import Pace
from greenroom.testing.model_reply import Block, CutError, Pieces, Reply, split, text_block, tool_block

_CONTEXT = re.compile(r"\s*(?:<[a-z_]+>|# AGENTS\.md instructions)")
_RUNNING = re.compile(r"Process running with session ID (\d+)")
_CALLS = frozenset(("function_call", "custom_tool_call", "local_shell_call"))
_OUTPUTS = frozenset(("function_call_output", "custom_tool_call_output"))
TOO_LONG = Reply(failed=True, error_type="context_length_exceeded", message="Your input exceeds the context window of this model.")


def call(word: str, rest: str) -> Block:
    """Return the block of a directive that calls a tool; a structured answer is a text like another."""
    match word:
        case "BASH":
            return tool_block("exec_command", {"cmd": rest, "yield_time_ms": 10000})
        case "ASK":
            asking = {"sandbox_permissions": "require_escalated", "justification": "the script wants it"}
            return tool_block("exec_command", {"cmd": rest, "yield_time_ms": 10000, **asking})
        case "WRITE":
            path, text = split(rest, 2)
            lines = "".join(f"+{line}\n" for line in text.replace("\\n", "\n").splitlines())
            return tool_block("apply_patch", {"input": f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch"})
        case "STRUCTURED":
            return text_block(rest)
        case _:
            name, tool_input = split(rest, 2)
            return tool_block(name, json.loads(tool_input or "{}"))


def unfinished(body: dict[str, Any]) -> Block | None:
    """Return the call that waits on for a command that still runs, or None if the last output is not of one."""
    items = body.get("input") or [{}]
    running = _RUNNING.search(_text(items[-1])) if items[-1].get("type") in _OUTPUTS else None
    return tool_block("write_stdin", {"session_id": int(running[1]), "chars": "", "yield_time_ms": 10000}) if running else None


def events(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what happened in a request: ("call", "") for a tool call, ("user", text) for a text that may be a prompt."""
    found = []
    for item in _items(body):
        if item.get("type") in _CALLS and item.get("name") != "write_stdin":
            found.append(("call", ""))
        elif _role(item) == "user" and not _CONTEXT.match(_text(item)):
            found.append(("user", _text(item).strip()))
    return found


def seen(body: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what the model was shown; instructions and the context that Codex adds are left out."""
    shown = (_shown(item) for item in _items(body))
    return tuple(one for one in shown if one is not None)


def _items(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in body.get("input", []) if isinstance(item, dict)]


def _role(item: dict[str, Any]) -> str:
    return str(item.get("role", "")) if item.get("type", "message") == "message" else ""


def _text(item: dict[str, Any]) -> str:
    content = item.get("output") if item.get("type") in _OUTPUTS else item.get("content")
    if isinstance(content, dict):
        content = content.get("content", "")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))


def _shown(item: dict[str, Any]) -> tuple[str, str] | None:
    kind, text = item.get("type"), _text(item)
    if kind in _CALLS:
        return ("tool_use", f"{item.get('name')} {item.get('arguments', item.get('input', ''))}")
    if kind in _OUTPUTS:
        return ("tool_result", text)
    if _role(item) in ("user", "assistant") and not _CONTEXT.match(text):
        return (_role(item), text)
    return None


# --- answers -----------------------------------------------------------------------------------------------------------------


def respond(reply: Reply, pace: Pace) -> Response:
    """Return the HTTP answer; what is slow in it comes at this pace."""
    if reply.refuses:
        error = {"error": {"message": reply.message, "type": reply.error_type, "code": reply.error_type, "param": None}}
        return JSONResponse(error, status_code=reply.status, headers=dict(reply.headers))
    return StreamingResponse(_events(reply, pace), media_type="text/event-stream")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def _events(reply: Reply, pace: Pace) -> AsyncIterator[bytes]:
    """Stream an answer: each block whole, pieces with their pauses."""
    response = {"id": f"resp_{secrets.token_hex(10)}", "object": "response", "status": "in_progress"}
    yield _event("response.created", response=response)
    if reply.cut:
        raise CutError
    if reply.failed:
        error = {"code": reply.error_type, "message": reply.message}
        yield _event("response.failed", response={**response, "status": "failed", "error": error})
        return
    for index, block in enumerate(reply.content):
        async for event in _block_events(index, block, pace):
            yield event
    if reply.hang:
        await asyncio.Event().wait()
    yield _event("response.completed", response={**response, "status": "completed", "usage": _usage(reply.output_tokens)})


def _usage(output_tokens: int) -> dict[str, Any]:
    inputs = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 30}}
    outputs = {"output_tokens": output_tokens, "output_tokens_details": {"reasoning_tokens": 0}}
    return {**inputs, **outputs, "total_tokens": 100 + output_tokens}


async def _block_events(index: int, block: Block | Pieces, pace: Pace) -> AsyncIterator[bytes]:
    opened, done, deltas = _item(block)
    yield _event("response.output_item.added", output_index=index, item=opened)
    for kind, fields in deltas:
        if isinstance(block, Pieces):
            await pace.pause(block.interval_s)
        yield _event(kind, item_id=opened["id"], output_index=index, **fields)
        pace.pieces_sent += isinstance(block, Pieces)
    yield _event("response.output_item.done", output_index=index, item=done)


def _item(block: Block | Pieces) -> tuple[Block, Block, list[tuple[str, Block]]]:
    """Return an output item as it begins, as it ends, and the events in between."""
    if isinstance(block, Pieces):
        return _message(block.texts)
    match block["type"]:
        case "text":
            return _message((block["text"],))
        case "thinking":
            return _reasoning(block["thinking"])
        case _:
            item = _call(block)
            return item, item, []


def _message(texts: tuple[str, ...]) -> tuple[Block, Block, list[tuple[str, Block]]]:
    item = {"type": "message", "id": f"msg_{secrets.token_hex(5)}", "role": "assistant"}
    done = {**item, "content": [{"type": "output_text", "text": "".join(texts), "annotations": []}], "status": "completed"}
    deltas: list[tuple[str, Block]] = [("response.output_text.delta", {"content_index": 0, "delta": text}) for text in texts]
    return {**item, "content": [], "status": "in_progress"}, done, deltas


def _reasoning(text: str) -> tuple[Block, Block, list[tuple[str, Block]]]:
    item: Block = {"type": "reasoning", "id": f"rs_{secrets.token_hex(4)}"}
    part = ("response.reasoning_summary_part.added", {"summary_index": 0, "part": {"type": "summary_text", "text": ""}})
    delta = ("response.reasoning_summary_text.delta", {"summary_index": 0, "delta": text})
    done = {**item, "summary": [{"type": "summary_text", "text": text}], "encrypted_content": "c2ln"}
    return {**item, "summary": [], "encrypted_content": None}, done, [part, delta]


def _call(block: Block) -> Block:
    item = {"id": f"fc_{secrets.token_hex(5)}", "call_id": f"call_{secrets.token_hex(5)}", "status": "completed"}
    name, tool_input = block["name"], block["input"]
    if name == "apply_patch" and set(tool_input) == {"input"}:
        return {"type": "custom_tool_call", **item, "name": name, "input": tool_input["input"]}
    namespace, slash, tool = name.partition("/")
    named = {"namespace": namespace, "name": tool} if slash else {"name": name}
    return {"type": "function_call", **item, **named, "arguments": json.dumps(tool_input)}
