"""What a conversation remembers: its history, the open attempt, its steers, its stop. Holds; decides nothing but what a field means."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs

from greenroom.errors import GreenroomError
from greenroom.transports.allowed_time import TimedAttempt
from greenroom.transports.codex.lines import Frame, clean, obj, rows, text


class Phase(enum.Enum):
    """How far a conversation is. LOST: quarantined, whatever the server still says of it is ignored."""

    WAITING = "waiting"
    OPENING = "opening"
    READY = "ready"
    LOST = "lost"


@attrs.define(kw_only=True)
class Steer:
    """A text for the open turn."""

    text: str
    steer_id: str
    delivered: bool = False
    consumed: bool = False


@attrs.define(kw_only=True)
class Stop:
    """The attempt is being ended: by an interrupt (`error` None), or because it failed by our own judgement."""

    until_s: float
    error: GreenroomError | None = None
    sent: bool = False
    again_s: float | None = None


@attrs.define(kw_only=True)
class OpenAttempt(TimedAttempt):
    """The attempt that is under way. `wire_turn`: the server's id of its turn, from the answer or proved by our message in it.

    `early`: a turn that began before the answer came, and `early_end` its end.
    `cancelled`: an answer that was given cancels it; the interrupt that follows such an answer may come behind the server's end.
    """

    written: bool = False
    has_message: bool = False
    wire_turn: str | None = None
    early: str | None = None
    early_end: Frame | None = None
    started: bool = False
    line_lost: bool = False
    stop: Stop | None = None
    cancelled: bool = False
    error: Frame | None = None
    text: str = ""
    steers: dict[str, Steer] = attrs.field(factory=dict)
    tools: dict[str, str] = attrs.field(factory=dict)
    calls: dict[str, Frame] = attrs.field(factory=dict)
    closed_tools: set[str] = attrs.field(factory=set)
    texts: set[str] = attrs.field(factory=set)
    denied: set[str] = attrs.field(factory=set)

    def owns(self, wire_turn: str) -> bool:
        """Whether the server's turn is this attempt's, as far as is known."""
        if not self.written or not wire_turn:
            return False
        return wire_turn == (self.early if self.wire_turn is None else self.wire_turn)


@attrs.define(kw_only=True)
class History:
    """What is known of a thread's past: how its last turn ended, and which messages of the user are in it."""

    last_status: str | None = None
    receipts: set[str] = attrs.field(factory=set)
    prompts: set[str] = attrs.field(factory=set)

    @classmethod
    def of(cls, newest_first: Iterable[Frame]) -> History:
        """Read the turns that a resume shows."""
        history = cls()
        for turn in newest_first:
            history.last_status = history.last_status or text(turn.get("status")) or None
            for item in rows(turn.get("items")):
                history.add(item)
        return history

    def add(self, item: Frame) -> None:
        """Take up a message of the user."""
        if item.get("type") != "userMessage":
            return
        self.receipts.add(text(item.get("clientId")))
        self.prompts.add(message_text(item))

    def shows(self, prompt: str) -> bool:
        """Whether the prompt is in it."""
        return clean(prompt) in self.prompts

    @property
    def is_cut(self) -> bool:
        """Whether the model can be asked again with the history as it is: only its last turn's failure leaves it without an answer."""
        return self.last_status in {"failed", "interrupted"}


def message_text(item: Frame) -> str:
    """Return the text of a message of the user."""
    return "".join(text(obj(part).get("text")) for part in rows(item.get("content")))
