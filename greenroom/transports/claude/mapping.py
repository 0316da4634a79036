"""Frames of the open turn as agent events, and notes for its result. Decides what the user sees; writes nothing, ends nothing. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from greenroom.events import (
    AgentEvent,
    AssistantText,
    Lifecycle,
    ProviderError,
    RateLimitStatus,
    Reasoning,
    SkillInvoked,
    ToolCall,
    ToolResult,
)
from greenroom.transports.claude.frames import Block, Frame, Message
from greenroom.transports.claude.state import OpenAttempt

_EXIT_CODE = re.compile(r"\AExit code (\d+)(?:\n|\Z)")
_BRIEF_CHARS = 500
_SYNTHETIC = "<synthetic>"
# How 2.1.332 has the model go on with an answer that broke off, and with one that reached the limit of its tokens.
_GO_ON = ("Your response above was cut off mid-stream.", "Output token limit hit.")


def brief(value: Any) -> str:
    """Return a value as short JSON, for people."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _BRIEF_CHARS else text[:_BRIEF_CHARS] + "…"


def blocks_of(message: Message) -> Iterable[Block]:
    """Return the content blocks; a plain string is one text block."""
    content = message.content
    return (Block(type="text", text=content),) if isinstance(content, str) else content


def assistant(turn: OpenAttempt, frame: Frame) -> list[AgentEvent]:
    """Map an answer of the main thread. An API error comes in the same shape and is no text of the model."""
    message = frame.message
    if message is None:
        return []
    if frame.is_api_error_message:
        turn.api_error = frame
        return [ProviderError("".join(block.text for block in blocks_of(message)))]
    turn.api_error = None
    turn.message_id = message.id
    _note_usage(turn, message)
    # Most of what a CLI says comes this way: a list costs half of what generators do.
    found: list[AgentEvent] = []
    streamed = message.id in turn.streamed
    for block in blocks_of(message):
        if block.type == "text":
            turn.text = turn.text + block.text if turn.goes_on else block.text
            turn.text_id = message.id
            if block.text and not streamed:
                found.append(AssistantText(block.text))
        elif block.type == "thinking":
            if block.thinking and not streamed:
                found.append(Reasoning(block.thinking))
        else:
            found += tool_calls(turn, (block,))
    return found


def tool_calls(turn: OpenAttempt, blocks: Iterable[Block]) -> Iterator[AgentEvent]:
    """Map the tool calls among the blocks, once each."""
    for block in blocks:
        if block.type not in {"tool_use", "server_tool_use"} or block.id in turn.tools:
            continue
        arguments = block.input or {}
        turn.tools[block.id] = block.name
        yield ToolCall(block.id, block.name, arguments)
        if block.name == "Skill":
            yield _skill(turn, block.id, arguments)


def _skill(turn: OpenAttempt, tool_id: str, arguments: Mapping[str, Any]) -> SkillInvoked:
    name = str(arguments.get("skill") or arguments.get("command") or "")
    if name not in turn.skills:
        turn.skills.append(name)
    return SkillInvoked(name, tool_id=tool_id)


def _note_usage(turn: OpenAttempt, message: Message) -> None:
    """Remember what the model call took: one call comes in several frames with the same id."""
    if message.usage is None or message.model == _SYNTHETIC:
        return
    turn.seen[message.id] = turn.last_call = message.usage


def stream_event(turn: OpenAttempt, frame: Frame) -> Iterator[AgentEvent]:
    """Map a piece of an answer. The whole block that follows under the same message id is not repeated."""
    delta = frame.event.delta if frame.event is not None else None
    if delta is None:
        return
    if delta.type:  # not so the delta of a whole message, which may come behind the result of its tool
        turn.message_id = frame.api_message_id
    if delta.text:
        turn.streamed.add(frame.api_message_id)
        yield AssistantText(delta.text)
    elif delta.thinking:
        turn.streamed.add(frame.api_message_id)
        yield Reasoning(delta.thinking)


def thinks(turn: OpenAttempt) -> None:
    """Note that an answer is coming, of which no other frame may tell: thinking that is cut off is not shown."""
    turn.message_id = turn.message_id or "thinking"


def user(turn: OpenAttempt, frame: Frame) -> Iterator[AgentEvent]:
    """Map what the CLI itself shows the model in mid-turn: results of tools, or that its answer broke off."""
    blocks = blocks_of(frame.message) if frame.message is not None else ()
    if frame.is_synthetic:
        turn.model_asked(rest=any(block.text.startswith(_GO_ON) for block in blocks))
    elif any(block.type == "tool_result" for block in blocks):
        turn.model_asked()
    yield from tool_results(turn, frame)


def tool_results(turn: OpenAttempt, frame: Frame) -> Iterator[AgentEvent]:
    """Map the tool results of a user frame, for calls of this turn only."""
    for block in blocks_of(frame.message) if frame.message is not None else ():
        if block.type == "tool_result" and block.tool_use_id in turn.tools:
            yield _tool_result(block, turn.tools[block.tool_use_id], frame.tool_use_result)


def _tool_result(block: Block, tool: str, details: Any) -> ToolResult:
    text = _plain_text(block.content)
    exit_code = _EXIT_CODE.match(text) if block.is_error else None
    if exit_code is not None:
        # A failed command's two streams come as one text.
        return ToolResult(block.tool_use_id, tool, text[exit_code.end() :], "", int(exit_code[1]))
    if block.is_error:
        return ToolResult(block.tool_use_id, tool, "", text)
    if isinstance(details, Mapping) and isinstance(details.get("stdout"), str):
        return _command_result(block.tool_use_id, tool, details)
    return ToolResult(block.tool_use_id, tool, text)


def _command_result(tool_id: str, tool: str, details: Mapping[str, Any]) -> ToolResult:
    unfinished = details.get("interrupted") is True or details.get("backgroundTaskId")
    stderr = details.get("stderr")
    return ToolResult(tool_id, tool, details["stdout"], stderr if isinstance(stderr, str) else "", None if unfinished else 0)


def _plain_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (item.get("text") for item in content if isinstance(item, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def rate_limits(frame: Frame) -> Iterator[AgentEvent]:
    """Map the state of the subscription's windows."""
    info = frame.rate_limit_info
    if not isinstance(info, Mapping):
        return
    windows = info.get("unifiedWindows")
    named = {str(name): row for name, row in windows.items() if isinstance(row, Mapping)} if isinstance(windows, Mapping) else {}
    for name, row in (named or {str(info.get("rateLimitType") or "unknown"): info}).items():
        yield RateLimitStatus(
            window=name,
            used_fraction=_number(row.get("utilization")),
            resets_at=_number(row.get("resetsAt")),
            window_minutes={"five_hour": 300, "seven_day": 10080}.get(name),
            exhausted=row.get("status") == "rejected",
            raw=info,
        )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def retry_notice(frame: Frame) -> Lifecycle:
    """The CLI waits to repeat a failed request by itself."""
    delay_ms = _number(frame.retry_delay_ms)
    status = f"status {frame.error_status}" if frame.error_status is not None else "no status"
    when = "" if delay_ms is None else f", next in {delay_ms / 1000:g} s"
    told = f"{frame.error} ({status}), attempt {frame.attempt} of {frame.max_retries}{when}"
    return Lifecycle("provider retry", told, about=str(frame.error or ""), delay_s=None if delay_ms is None else delay_ms / 1000)


def note_wait(turn: OpenAttempt, frame: Frame) -> None:
    """Note a wait that is longer than the CLI's own for that attempt: then a header of the server's asked for it."""
    delay_ms, attempt = _number(frame.retry_delay_ms), _number(frame.attempt)
    if delay_ms is not None and attempt is not None and delay_ms / 1000 > _own_wait_s(attempt):
        turn.asked_wait_s = delay_ms / 1000


def _own_wait_s(attempt: float) -> float:
    """Return the longest that 2.1.332 waits by itself: half a second, doubled each time up to 32 s, and a quarter more."""
    return 1.25 * min(0.5 * 2 ** min(attempt - 1, 10), 32.0)


def background_tasks(frame: Frame) -> Lifecycle:
    """What runs behind the turns, all of it: commands and sub-agents that outlive the call that began them."""
    tasks = [task for task in frame.tasks or () if isinstance(task, Mapping)]
    said = [str(task.get("description") or task.get("task_type") or "a task") for task in tasks]
    return Lifecycle("background tasks", f"{len(said)} running: {', '.join(said)}" if said else "none running", ongoing=bool(said))


def compaction(frame: Frame) -> Lifecycle:
    """The conversation was summarised."""
    data = frame.compact_metadata if isinstance(frame.compact_metadata, Mapping) else {}
    return Lifecycle("compaction", f"{data.get('trigger')}: {data.get('pre_tokens')} to {data.get('post_tokens')} tokens")
