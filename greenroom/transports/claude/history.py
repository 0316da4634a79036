"""A conversation's past, from the transcript that Claude Code keeps of it. Decides what belongs to it and what became of each turn.

The file is a tree of rows, written up to 0.1 s late (2.1.332): the branch that the last row is on is the conversation, unless a row says
that it was rewound. What was rewound, the sub-agents' own rows and what the CLI tells the model by itself are left out. The file is read
twice, once for the tree and once for the rows that count, so that memory holds an index and what is shown. Blocks; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import msgspec

from greenroom.attachments import name_in
from greenroom.history import Clipper, ItemKind, Thread, ThreadItem, ThreadTurn, TurnStatus
from greenroom.transports.claude.lines import CONTINUE_TEXT

MAX_ROW_BYTES = 64 * 1024 * 1024
_IN_TREE = frozenset({"user", "assistant", "attachment", "system"})
_INTERRUPTED = "[Request interrupted by user"
_SYNTHETIC = "<synthetic>"
_ANSWERING_TOOL = "StructuredOutput"
_LOCAL = ("<local-command-stdout>", "<local-command-stderr>")
_UNDECIDED = frozenset({None, "tool_use", "pause_turn"})


class _Head(msgspec.Struct, rename="camel"):
    """What of a row the tree needs."""

    type: str = ""
    uuid: str | None = None
    parent_uuid: str | None = None
    logical_parent_uuid: str | None = None
    is_sidechain: bool = False
    leaf_uuid: str | None = None
    explicit: bool = False
    answers: str | None = msgspec.field(default=None, name="sourceToolAssistantUUID")
    message: _MessageId | None = None


class _MessageId(msgspec.Struct):
    id: str | None = None


class _Row(msgspec.Struct, rename="camel"):
    """What of a row is shown."""

    type: str = ""
    subtype: str = ""
    uuid: str = ""
    timestamp: str = ""
    is_meta: bool | None = None
    is_compact_summary: bool | None = None
    is_visible_in_transcript_only: bool | None = None
    is_api_error_message: bool | None = None
    message: dict[str, Any] | None = None
    attachment: dict[str, Any] | None = None


@attrs.define(kw_only=True)
class _Node:
    """Where a row is in the file, and whom it follows; a tool's result also `answers` a row."""

    offset: int
    parent: str | None
    message_id: str | None
    answers: str | None


@attrs.define
class _Tree:
    """The index of a file."""

    nodes: dict[str, _Node] = attrs.field(factory=dict)
    leaf: str | None = None
    unread: int = 0

    def branch(self) -> set[int]:
        """Return the offsets of the rows on the last row's branch, and of those that belong to the same messages.

        An answer with several tool calls is a row for each, and their results hang on them like leaves: only one is on the branch.
        """
        offsets, messages = set[int](), set[str]()
        at, left = self.leaf, len(self.nodes)
        while at is not None and left > 0 and (node := self.nodes.get(at)) is not None:
            offsets.add(node.offset)
            if node.message_id is not None:
                messages.add(node.message_id)
            at, left = node.parent, left - 1
        siblings = {uuid for uuid, node in self.nodes.items() if node.message_id in messages}
        offsets |= {self.nodes[uuid].offset for uuid in siblings}
        return offsets | {node.offset for node in self.nodes.values() if node.answers in siblings}


def read(path: Path, conversation_id: str, *, running: bool = False, clipper: Clipper | None = None) -> Thread:
    """Return the conversation in the file. `running`: a turn runs in it, so that one without an end is that one. Raises OSError."""
    tree = _index(path)
    teller = _Teller(clipper or Clipper(), running=running)
    wanted = tree.branch()
    for row in _shown(path, wanted):
        teller.take(row)
    return Thread(thread_id=conversation_id, turns=teller.turns(), unread=tree.unread)


def _index(path: Path) -> _Tree:
    tree, decode = _Tree(), msgspec.json.Decoder(_Head).decode
    offset = 0
    with path.open("rb") as rows:
        while row := rows.readline(MAX_ROW_BYTES):
            try:
                _plant(tree, decode(row), offset)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                # A half row, cut by a kill or still being written, is none: the CLI does not read it either.
                tree.unread += 1
            offset += len(row)
    return tree


def _plant(tree: _Tree, head: _Head, offset: int) -> None:
    if head.type == "last-prompt" and head.explicit:
        tree.leaf = head.leaf_uuid
    if head.type not in _IN_TREE or head.uuid is None or head.is_sidechain:
        return
    parent = head.parent_uuid or head.logical_parent_uuid
    message_id = head.message.id if head.message is not None and head.type == "assistant" else None
    tree.nodes[head.uuid] = _Node(offset=offset, parent=parent, message_id=message_id, answers=head.answers)
    tree.leaf = head.uuid


def _shown(path: Path, wanted: set[int]) -> Iterator[_Row]:
    decode = msgspec.json.Decoder(_Row).decode
    with path.open("rb") as rows:
        for offset in sorted(wanted):
            rows.seek(offset)
            try:
                yield decode(rows.readline(MAX_ROW_BYTES))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue


@attrs.define(kw_only=True)
class _Open:
    """A turn in the making."""

    turn_id: str
    started_at: float | None
    attempts: list[str]
    items: list[ThreadItem] = attrs.field(factory=list)
    calls: dict[str, int] = attrs.field(factory=dict)
    error: str | None = None
    interrupted: bool = False
    ended: bool = False

    def status(self, *, running: bool) -> TurnStatus:
        """Return what became of it; `running`: it is the last one of a conversation in which a turn runs."""
        if self.error is not None:
            return TurnStatus.ERROR
        if self.ended:
            return TurnStatus.COMPLETED
        return TurnStatus.RUNNING if running and not self.interrupted else TurnStatus.INTERRUPTED


class _Teller:
    """Makes turns of rows, in the order of the file."""

    def __init__(self, clipper: Clipper, *, running: bool) -> None:
        self._clip = clipper.clip
        self._running = running
        self._turns: list[_Open] = []

    def turns(self) -> tuple[ThreadTurn, ...]:
        """Return the turns so far."""
        last = len(self._turns) - 1
        return tuple(
            ThreadTurn(
                turn_id=turn.turn_id,
                items=tuple(turn.items),
                status=turn.status(running=self._running and number == last),
                error=turn.error,
                started_at=turn.started_at,
                attempt_ids=tuple(turn.attempts),
            )
            for number, turn in enumerate(self._turns)
        )

    def take(self, row: _Row) -> None:
        """Take the next row."""
        if row.type == "assistant":
            self._assistant(row)
        elif row.type == "user":
            self._user(row)
        elif row.type == "attachment":
            self._attachment(row)

    @property
    def _now(self) -> _Open | None:
        return self._turns[-1] if self._turns else None

    # --- the user's rows

    def _user(self, row: _Row) -> None:
        blocks = _blocks(row.message)
        results = [block for block in blocks if block.get("type") == "tool_result"]
        said = [block for block in blocks if block.get("type") != "tool_result"]
        for block in results:
            self._result(block)
        if row.is_compact_summary:
            self._add(ItemKind.COMPACTION, _text_of(said), row.uuid)
        elif said and not row.is_meta and not row.is_visible_in_transcript_only:
            self._said(row, said)

    def _said(self, row: _Row, said: list[dict[str, Any]]) -> None:
        text, turn = _text_of(said), self._now
        if text.startswith(_INTERRUPTED):
            if turn is not None:
                turn.interrupted, turn.ended = True, False
        elif text.startswith(_LOCAL):
            self._add(ItemKind.OTHER, text, row.uuid)
            self._turns[-1].ended = True
        elif turn is not None and not turn.ended and self._goes_on(text, said):
            turn.attempts.append(row.uuid)
            turn.error, turn.interrupted = None, False
            if text:
                self._add(ItemKind.OTHER, text, row.uuid)
        else:
            self._turns.append(_Open(turn_id=row.uuid, started_at=_unix(row.timestamp), attempts=[row.uuid]))
            self._add_said(said, row.uuid)

    def _goes_on(self, text: str, said: list[dict[str, Any]]) -> bool:
        """Whether this is no prompt of its own: a retry in place, or what a cut turn goes on with."""
        is_nudge = not text and all(block.get("type") == "text" for block in said)
        return is_nudge or text.startswith(CONTINUE_TEXT)

    def _add_said(self, said: list[dict[str, Any]], item_id: str) -> None:
        for block in said:
            text = _str(block.get("text"))
            if block.get("type") != "text":
                self._add(ItemKind.ATTACHMENT, _attached(block), item_id)
            elif (name := name_in(text)) is not None:
                self._add(ItemKind.ATTACHMENT, f"text {name}".strip(), item_id)
            elif text.strip():
                self._add(ItemKind.USER_TEXT, text, item_id)

    def _attachment(self, row: _Row) -> None:
        """A text that was steered into the turn; the CLI's other attachments are its own affair."""
        attached = row.attachment or {}
        if attached.get("type") != "queued_command" or attached.get("commandMode") != "prompt":
            return
        said = _blocks({"content": attached.get("prompt")})
        self._add_said(said, _str(attached.get("source_uuid")) or row.uuid)

    def _result(self, block: dict[str, Any]) -> None:
        call_id = _str(block.get("tool_use_id"))
        turn = next((turn for turn in reversed(self._turns) if call_id in turn.calls), None)
        if turn is None:
            return
        number = turn.calls[call_id]
        text, truncated = self._clip(_text_of(_blocks(block)))
        failed = block.get("is_error") is True
        call = turn.items[number]
        turn.items[number] = attrs.evolve(call, result=text, failed=failed, truncated=call.truncated or truncated)
        turn.ended = call.tool == _ANSWERING_TOOL and not failed

    # --- the model's rows

    def _assistant(self, row: _Row) -> None:
        message, turn = row.message or {}, self._now
        if turn is None:
            return
        if row.is_api_error_message:
            turn.error, turn.ended = _text_of(_blocks(message)), False
            return
        if message.get("model") == _SYNTHETIC:
            return
        turn.ended = message.get("stop_reason") not in _UNDECIDED
        turn.error = None
        for block in _blocks(message):
            self._block(turn, block, row.uuid)

    def _block(self, turn: _Open, block: dict[str, Any], item_id: str) -> None:
        match block.get("type"):
            case "text":
                self._add(ItemKind.ASSISTANT_TEXT, _str(block.get("text")), item_id)
            case "thinking" if _str(block.get("thinking")):
                self._add(ItemKind.REASONING, _str(block.get("thinking")), item_id)
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                args = block.get("input")
                call_id = _str(block.get("id"))
                turn.calls[call_id] = len(turn.items)
                self._add(ItemKind.TOOL_CALL, "", call_id, tool=_str(block.get("name")), args=args if isinstance(args, dict) else {})
            case _:
                pass  # redacted thinking, and what the CLI keeps to itself

    def _add(self, kind: ItemKind, text: str, item_id: str, **fields: Any) -> None:
        turn = self._now
        if turn is None:
            # What comes before any prompt: the summary of a conversation that was compacted and rewritten.
            turn = _Open(turn_id=item_id, started_at=None, attempts=[item_id], ended=True)
            self._turns.append(turn)
        kept, truncated = self._clip(text)
        turn.items.append(ThreadItem(kind=kind, text=kept, item_id=item_id, truncated=truncated, **fields))


def _blocks(message: dict[str, Any] | None) -> list[dict[str, Any]]:
    content = (message or {}).get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _text_of(blocks: list[dict[str, Any]]) -> str:
    return "\n".join(_str(block.get("text")) for block in blocks if block.get("type") == "text")


def _attached(block: dict[str, Any]) -> str:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    return " ".join(part for part in (_str(block.get("type")), _str(block.get("title")), _str(source.get("media_type"))) if part)


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _unix(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None
