"""What users see of a conversation's past and of who pays: frozen values. Decides nothing; imports nothing of ours; safe on any thread."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

MAX_ITEM_CHARS = 1_048_576
"""How much of a text or of a tool's result an item keeps; of a longer one it keeps the beginning, and says so (`truncated`)."""

MAX_THREAD_CHARS = 64 * MAX_ITEM_CHARS
"""How much of all texts a thread keeps; past it an item keeps `SHORT_CHARS`."""

SHORT_CHARS = 2_000


class ItemKind(enum.Enum):
    """What a piece of a turn is. ATTACHMENT: an image or a file beside the user's text; OTHER: of the provider's own kinds."""

    USER_TEXT = "user_text"
    ASSISTANT_TEXT = "assistant_text"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    ATTACHMENT = "attachment"
    COMPACTION = "compaction"
    OTHER = "other"


class TurnStatus(enum.Enum):
    """What became of a turn, as far as the provider's record of it tells."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    ERROR = "error"
    RUNNING = "running"


@attrs.frozen(kw_only=True)
class ThreadItem:
    """One piece of a turn. `text`: what was said, or what is attached. `item_id`: the provider's, where it has one.

    Of a TOOL_CALL: `tool` and `args`, and `result`, the tool's answer as text (None: none is on record), with `exit_code` and `failed`
    where the provider tells. `truncated`: the text or the result is the beginning of a longer one.
    """

    kind: ItemKind
    text: str = ""
    item_id: str = ""
    tool: str = ""
    args: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    result: str | None = None
    exit_code: int | None = None
    failed: bool = False
    truncated: bool = False


def _tuple(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(values)


@attrs.frozen(kw_only=True)
class ThreadTurn:
    """One turn. `turn_id` is the provider's: Codex's turn, or the uuid of the prompt in Claude Code.

    A retry in place and a text to go on after a death belong to the turn that they are for: `attempt_ids` are the provider's ids of all,
    the first is `turn_id`. `error`: what it failed of. `started_at`: Unix time in seconds.
    """

    turn_id: str
    items: tuple[ThreadItem, ...] = attrs.field(default=(), converter=_tuple)
    status: TurnStatus = TurnStatus.COMPLETED
    error: str | None = None
    started_at: float | None = None
    attempt_ids: tuple[str, ...] = attrs.field(default=(), converter=_tuple)


@attrs.frozen(kw_only=True)
class Thread:
    """A conversation's past, oldest turn first. `thread_id` is the conversation's id, None before it has one.

    `unread`: how many rows of the provider's record could not be understood, such as one that is being written.
    """

    thread_id: str | None
    turns: tuple[ThreadTurn, ...] = attrs.field(default=(), converter=_tuple)
    unread: int = 0


class AccountKind(enum.Enum):
    """How the provider lets itself be paid. CLOUD: by a cloud's own credentials; NONE: nobody is logged in, or nobody needs to be."""

    API_KEY = "apiKey"
    CHATGPT = "chatgpt"
    SUBSCRIPTION = "subscription"
    CLOUD = "cloud"
    NONE = "none"
    UNKNOWN = "unknown"


@attrs.frozen(kw_only=True)
class Account:
    """Which account a provider's processes use, as they say it. No secret is in it.

    `plan`: what was subscribed to; `source`: where the credential comes from; `who`: the login's address or organisation; `detail`: why
    it is not known. None or "": not told.
    """

    provider: str
    kind: AccountKind
    plan: str | None = None
    source: str | None = None
    who: str | None = None
    detail: str = ""


class Clipper:
    """Cuts texts to what a thread keeps. One a thread that is read."""

    def __init__(self, max_item_chars: int = MAX_ITEM_CHARS, max_thread_chars: int = MAX_THREAD_CHARS) -> None:
        self._max_item_chars = max_item_chars
        self._left = max_thread_chars

    def clip(self, text: str) -> tuple[str, bool]:
        """Return as much of `text` as is kept, and whether that is less than all."""
        room = self._max_item_chars if self._left > 0 else min(SHORT_CHARS, self._max_item_chars)
        kept = text[:room]
        self._left -= len(kept)
        return kept, len(kept) < len(text)
