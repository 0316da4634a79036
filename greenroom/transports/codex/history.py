"""A thread's past, from what the server tells of its turns. Decides what of an item is shown, and which turns are one to their user. Pure.

A turn of the server's without a message of the user's, behind one that failed or was cut, is its retry in place; one that begins with the
text to go on is what followed a death; one that was cut before anything of it was written is sent again. Each is told as a part of the
turn that it is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from greenroom.attachments import name_in
from greenroom.history import Clipper, ItemKind, ThreadItem, ThreadTurn, TurnStatus
from greenroom.transports.codex import items
from greenroom.transports.codex.lines import Frame, number, obj, rows, text
from greenroom.transports.codex.params import CONTINUE_TEXT

_STATUS = {
    "completed": TurnStatus.COMPLETED,
    "interrupted": TurnStatus.INTERRUPTED,
    "failed": TurnStatus.ERROR,
    "inProgress": TurnStatus.RUNNING,
}
_UNFINISHED = frozenset({TurnStatus.INTERRUPTED, TurnStatus.ERROR})


class Teller:
    """Makes turns of what the server tells, page by page: what is cut off is not kept."""

    def __init__(self, clipper: Clipper) -> None:
        self._clip = clipper
        self._turns: list[ThreadTurn] = []
        self._open_end = False

    def take(self, wire: Frame) -> None:
        """Take the next turn."""
        turn, known = _turn(wire, self._clip), self._turns
        self._open_end = turn.status is TurnStatus.INTERRUPTED and wire.get("completedAt") is None
        if known and known[-1].status in _UNFINISHED and (_goes_on(turn) or not known[-1].items):
            known[-1] = _joined(known[-1], turn)
        else:
            known.append(turn)

    def turns(self, *, running: bool = False) -> tuple[ThreadTurn, ...]:
        """Return the turns so far."""
        if self._turns and running and self._open_end:
            return (*self._turns[:-1], attrs.evolve(self._turns[-1], status=TurnStatus.RUNNING))
        return tuple(self._turns)


def _turn(wire: Frame, clip: Clipper) -> ThreadTurn:
    turn_id = text(wire.get("id"))
    return ThreadTurn(
        turn_id=turn_id,
        items=tuple(item for row in rows(wire.get("items")) for item in _items(row, clip)),
        status=_STATUS.get(text(wire.get("status")), TurnStatus.INTERRUPTED),
        error=text(obj(wire.get("error")).get("message")) or None,
        started_at=number(wire.get("startedAt")),
        attempt_ids=(turn_id,),
    )


def _goes_on(turn: ThreadTurn) -> bool:
    said = [item for item in turn.items if item.kind in {ItemKind.USER_TEXT, ItemKind.ATTACHMENT}]
    return not said or (said[0].kind is ItemKind.USER_TEXT and said[0].text.startswith(CONTINUE_TEXT))


def _joined(first: ThreadTurn, more: ThreadTurn) -> ThreadTurn:
    added = (attrs.evolve(item, kind=ItemKind.OTHER) if _is_ours(item) else item for item in more.items)
    return attrs.evolve(
        first, items=(*first.items, *added), status=more.status, error=more.error, attempt_ids=(*first.attempt_ids, *more.attempt_ids)
    )


def _is_ours(item: ThreadItem) -> bool:
    return item.kind is ItemKind.USER_TEXT and item.text.startswith(CONTINUE_TEXT)


def _items(row: Frame, clip: Clipper) -> Iterator[ThreadItem]:
    kind, item_id = text(row.get("type")), text(row.get("id"))
    if kind == "userMessage":
        yield from (_said(part, item_id, clip) for part in rows(row.get("content")))
    elif kind == "agentMessage":
        yield _text(ItemKind.ASSISTANT_TEXT, text(row.get("text")), item_id, clip)
    elif kind == "reasoning":
        if thought := items.thought(row):
            yield _text(ItemKind.REASONING, thought, item_id, clip)
    elif kind == "contextCompaction":
        yield ThreadItem(kind=ItemKind.COMPACTION, item_id=item_id)
    elif (described := items.described(row)) is not None:
        yield _call(row, *described, clip)
    elif kind:
        yield _text(ItemKind.OTHER, text(row.get("text")) or text(row.get("review")) or kind, item_id, clip)


def _said(part: Frame, item_id: str, clip: Clipper) -> ThreadItem:
    said = text(part.get("text"))
    if part.get("type") != "text":
        return _text(ItemKind.ATTACHMENT, f"{text(part.get('type'))} {_where(part)}".strip(), item_id, clip)
    name = name_in(said)
    return _text(ItemKind.USER_TEXT, said, item_id, clip) if name is None else _text(ItemKind.ATTACHMENT, f"text {name}", item_id, clip)


def _where(part: Frame) -> str:
    """Return where an image is, or what it is if it came along."""
    where = text(part.get("path")) or text(part.get("url")) or text(part.get("name"))
    return where.removeprefix("data:").partition(";")[0] if where.startswith("data:") else where


def _text(kind: ItemKind, said: str, item_id: str, clip: Clipper) -> ThreadItem:
    kept, truncated = clip.clip(said)
    return ThreadItem(kind=kind, text=kept, item_id=item_id, truncated=truncated)


def _call(row: Frame, tool: str, args: dict[str, Any], clip: Clipper) -> ThreadItem:
    answer = items.result(row, tool)
    status = text(row.get("status"))
    kept, truncated = clip.clip(answer.stdout or answer.stderr)
    return ThreadItem(
        kind=ItemKind.TOOL_CALL,
        item_id=answer.tool_id,
        tool=tool,
        args=args,
        result=None if status == "inProgress" else kept,
        exit_code=answer.exit_code,
        failed=status in {"failed", "declined"} or answer.exit_code not in (0, None),
        truncated=truncated,
    )
