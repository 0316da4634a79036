"""What Claude Code has on disk of a conversation: whether it took a message before it died. Reads one file; starter thread.

The wire cannot tell. After a resume the CLI swallows a message id only when an answer of the model followed it on disk; killed while it
waited for the model, or in the middle of the first text, it runs the same id again, and the model sees the prompt twice (2.1.332, seen
with both). The transcript can: a row of type "user" with the message's id is what a resume shows to the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec


class _Row(msgspec.Struct):
    type: str = ""
    uuid: str | None = None


def state_home(env: Mapping[str, str]) -> Path:
    """Where the CLI keeps its state: CLAUDE_CONFIG_DIR, or `.claude` in HOME."""
    given = env.get("CLAUDE_CONFIG_DIR")
    return Path(given) if given else Path(env.get("HOME") or Path.home()) / ".claude"


def took(env: Mapping[str, str], conversation_id: str, receipt: str) -> bool | None:
    """Return whether the message `receipt` is in the conversation on disk; None when the conversation is not found there."""
    found = None
    for path in state_home(env).glob(f"projects/*/{conversation_id}.jsonl"):
        found = found or _has_row(path, receipt)
    return found


def missing(env: Mapping[str, str], conversation_id: str, tool_ids: Sequence[str]) -> tuple[str, ...]:
    """Return those of `tool_ids` of which the conversation on disk has no trace: the CLI writes it up to 0.1 s late.

    None is named when the conversation is not found there: then nothing is known.
    """
    paths = list(state_home(env).glob(f"projects/*/{conversation_id}.jsonl"))
    left = dict.fromkeys(tool_ids) if paths else {}
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb") as rows:
            for row in rows:
                for tool_id in [tool_id for tool_id in left if tool_id.encode() in row]:
                    del left[tool_id]
    return tuple(left)


def _has_row(path: Path, receipt: str) -> bool:
    needle = receipt.encode()
    try:
        with path.open("rb") as rows:
            return any(needle in row and _is_message(row, receipt) for row in rows)
    except OSError:
        return False


def _is_message(row: bytes, receipt: str) -> bool:
    # A half row, cut by the kill, is none: the CLI does not read it either.
    try:
        decoded = msgspec.json.decode(row, type=_Row)
    except msgspec.MsgspecError:
        return False
    return decoded.type == "user" and decoded.uuid == receipt
