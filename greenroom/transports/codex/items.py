"""Items of the open turn as agent events, and notes for its result. Decides what the user sees; writes nothing, ends nothing. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from greenroom.events import AgentEvent, AssistantText, Lifecycle, RateLimitStatus, RawOutput, Reasoning, ToolCall, ToolResult
from greenroom.transports.codex.lines import Frame, number, obj, rows, text
from greenroom.transports.codex.state import OpenAttempt

_Described = tuple[str, dict[str, Any]]

# Of use to nobody: the user's own message is handled apart, the rest repeats what another item tells.
_QUIET = frozenset({"userMessage", "hookPrompt", "functionCallOutput"})
_NOTICES = {
    "contextCompaction": "compaction",
    "plan": "plan",
    "sleep": "sleep",
    "enteredReviewMode": "review",
    "exitedReviewMode": "review",
}


def _command(item: Frame) -> _Described:
    return "shell", {"command": text(item.get("command")), "cwd": text(item.get("cwd"))}


def _file_change(item: Frame) -> _Described:
    return "apply_patch", {"changes": rows(item.get("changes"))}


def _mcp(item: Frame) -> _Described:
    arguments = item.get("arguments")
    return f"{text(item.get('server'))}.{text(item.get('tool'))}", arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _dynamic(item: Frame) -> _Described:
    arguments = item.get("arguments")
    return text(item.get("tool")) or "tool", arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _web_search(item: Frame) -> _Described:
    return "web_search", {"query": text(item.get("query"))}


def _view_image(item: Frame) -> _Described:
    return "view_image", {"path": text(item.get("path"))}


def _generate_image(item: Frame) -> _Described:
    return "image_generation", {"prompt": text(item.get("revisedPrompt"))}


def _collab(item: Frame) -> _Described:
    return text(item.get("tool")) or "collaboration", {"prompt": text(item.get("prompt"))}


_TOOLS: dict[str, Callable[[Frame], _Described]] = {
    "commandExecution": _command,
    "fileChange": _file_change,
    "mcpToolCall": _mcp,
    "dynamicToolCall": _dynamic,
    "webSearch": _web_search,
    "imageView": _view_image,
    "imageGeneration": _generate_image,
    "collabAgentToolCall": _collab,
}


def started(turn: OpenAttempt, item: Frame) -> Iterator[AgentEvent]:
    """Map the beginning of an item: only tools have one that matters."""
    kind = text(item.get("type"))
    if kind in _TOOLS:
        yield from _call(turn, kind, item)


def _call(turn: OpenAttempt, kind: str, item: Frame) -> Iterator[AgentEvent]:
    item_id = text(item.get("id"))
    if item_id not in turn.tools:
        tool, arguments = _TOOLS[kind](item)
        turn.tools[item_id] = tool
        turn.calls[item_id] = arguments
        yield ToolCall(item_id, tool, arguments)


def completed(turn: OpenAttempt, item: Frame) -> Iterator[AgentEvent]:
    """Map an item that is whole."""
    kind, item_id = text(item.get("type")), text(item.get("id"))
    if kind in _TOOLS:
        yield from _call(turn, kind, item)
        if item_id not in turn.closed_tools:
            turn.closed_tools.add(item_id)
            turn.calls.pop(item_id, None)
            yield result(item, turn.tools[item_id])
    elif item_id not in turn.texts:
        turn.texts.add(item_id)
        yield from _told(turn, kind, item)


def _told(turn: OpenAttempt, kind: str, item: Frame) -> Iterator[AgentEvent]:
    if kind == "agentMessage":
        yield from _message(turn, item)
    elif kind == "reasoning":
        if said := thought(item):
            yield Reasoning(said)
    elif kind == "subAgentActivity":
        yield Lifecycle("sub-agent", f"{text(item.get('kind'))}: {text(item.get('agentPath'))}")
    elif kind in _NOTICES:
        yield Lifecycle(_NOTICES[kind], text(item.get("text")) or text(item.get("review")))
    elif kind not in _QUIET:
        yield RawOutput(json.dumps(item))


def _message(turn: OpenAttempt, item: Frame) -> Iterator[AgentEvent]:
    said = text(item.get("text"))
    if item.get("delivery") != "async":
        # A message to the user in mid-turn calls itself a final answer too (0.171.0, code mode), and is none.
        turn.text = said
    if said:
        yield AssistantText(said)


def thought(item: Frame) -> str:
    """Return what a reasoning item says."""
    parts = item.get("summary") or item.get("content")
    return "\n".join(part for part in parts if isinstance(part, str)) if isinstance(parts, list) else ""


def described(item: Frame) -> _Described | None:
    """Return a tool's name and its arguments; None for an item that is no tool."""
    describe = _TOOLS.get(text(item.get("type")))
    return None if describe is None else describe(item)


def result(item: Frame, tool: str) -> ToolResult:
    """Return what a tool's item says of its end."""
    item_id = text(item.get("id"))
    exit_code, duration_ms = item.get("exitCode"), number(item.get("durationMs"))
    return ToolResult(
        item_id,
        tool,
        text(item.get("aggregatedOutput")) or _mcp_text(obj(item.get("result"))),
        _failure(item),
        exit_code if isinstance(exit_code, int) else None,
        None if duration_ms is None else duration_ms / 1000,
    )


def _mcp_text(result: Frame) -> str:
    return "\n".join(text(part.get("text")) or json.dumps(part) for part in rows(result.get("content")))


def _failure(item: Frame) -> str:
    said = item.get("error")
    status = text(item.get("status"))
    told = text(obj(said).get("message")) or text(said)
    return told or (status if status in {"failed", "declined"} and item.get("exitCode") is None else "")


def unfinished(turn: OpenAttempt) -> Iterator[AgentEvent]:
    """Close the tools that the turn's end has left open: an interrupt, a declined patch and a cut stream give them no end."""
    for item_id, tool in turn.tools.items():
        if item_id not in turn.closed_tools:
            turn.closed_tools.add(item_id)
            yield ToolResult(item_id, tool, "", "the turn ended before the tool")


def answer_of(wire_turn: Frame) -> str | None:
    """Return the final answer that a finished turn carries: its last message."""
    said = [text(item.get("text")) for item in rows(wire_turn.get("items")) if item.get("type") == "agentMessage"]
    return said[-1] if said else None


def rate_limits(snapshot: Frame) -> Iterator[RateLimitStatus]:
    """Map the state of the account's windows."""
    reached = snapshot.get("rateLimitReachedType") is not None
    for name in ("primary", "secondary"):
        window = obj(snapshot.get(name))
        used = number(window.get("usedPercent"))
        if used is None:
            continue
        minutes = window.get("windowDurationMins")
        yield RateLimitStatus(
            window=f"{text(snapshot.get('limitId')) or 'codex'} {name}",
            used_fraction=used / 100,
            resets_at=number(window.get("resetsAt")),
            window_minutes=minutes if isinstance(minutes, int) else None,
            exhausted=used >= 100 or (reached and name == "primary"),  # noqa: PLR2004 - percent
            raw=snapshot,
        )
