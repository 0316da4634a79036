"""What Codex has on disk of a turn that a death has cut: the messages in it. Reads one file; starter thread.

A resumed thread's history shows a message with our id only once its item is written; the message itself, which the model will see, is
written some milliseconds earlier, and a kill in between leaves it without its item (0.163 and 0.171: 11 of 50 killed at `item/started`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

_NEEDLES = (b'"task_started"', b'"role":"user"')


class _Part(msgspec.Struct):
    text: str = ""


class _Origin(msgspec.Struct):
    turn_id: str | None = None


class _Payload(msgspec.Struct):
    type: str = ""
    role: str = ""
    turn_id: str | None = None
    content: list[_Part] = []
    internal_chat_message_metadata_passthrough: _Origin | None = None


class _Row(msgspec.Struct):
    type: str = ""
    payload: _Payload | None = None


def last_messages(state_home: str, thread_id: str) -> tuple[str, ...]:
    """Return the texts of the user's messages in the thread's last turn, as they are on disk; nothing when the thread is not found."""
    texts: list[str] = []
    turn_id = None
    for path in sorted(Path(state_home).glob(f"sessions/*/*/*/rollout-*{thread_id}*.jsonl")):
        for payload in _payloads(path):
            if payload.type == "task_started":
                turn_id = payload.turn_id
                texts.clear()
            elif turn_id is not None and _origin(payload) == turn_id:
                texts.append("".join(part.text for part in payload.content))
    return tuple(texts)


def _origin(payload: _Payload) -> str | None:
    passed = payload.internal_chat_message_metadata_passthrough
    is_users = payload.type == "message" and payload.role == "user"
    return passed.turn_id if is_users and passed is not None else None


def _payloads(path: Path) -> Iterator[_Payload]:
    try:
        with path.open("rb") as rows:
            for row in rows:
                if any(needle in row for needle in _NEEDLES) and (payload := _payload(row)) is not None:
                    yield payload
    except OSError:
        return


def _payload(row: bytes) -> _Payload | None:
    # A half row, cut by the kill, is none: Codex does not read it either.
    try:
        return msgspec.json.decode(row, type=_Row).payload
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
