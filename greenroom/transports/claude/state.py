"""What the codec remembers: the open attempt, its steers, its stop, the control requests without an answer. Holds; decides nothing."""

from __future__ import annotations

import enum
from typing import Any

import attrs

from greenroom.errors import GreenroomError
from greenroom.model import ProviderUsage
from greenroom.transports.allowed_time import TimedAttempt
from greenroom.transports.claude.frames import Frame


class Phase(enum.Enum):
    """How far a process is."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"


class Owner(enum.Enum):
    """Whose turn the CLI is in: nobody's, the open attempt's, or one that it started by itself."""

    NOBODY = "nobody"
    ATTEMPT = "attempt"
    CLI = "cli"


class SteerState(enum.Enum):
    """How far a steered text is. CONSUMED: it is in the context, and the result that covers it has not come yet."""

    SENT = "sent"
    DELIVERED = "delivered"
    CONSUMED = "consumed"
    SETTLED = "settled"


WAITING = frozenset({SteerState.SENT, SteerState.DELIVERED})


@attrs.define(kw_only=True)
class Steer:
    """A text for the open turn."""

    text: str
    uuid: str
    state: SteerState = SteerState.SENT
    opened_turn: bool = False
    cancel_sent: bool = False


@attrs.define(kw_only=True)
class Stop:
    """The attempt is being ended: by an interrupt (`error` None), or because it failed by our own judgement."""

    until_s: float
    error: GreenroomError | None = None
    keeps_conversation: bool = False
    sent: bool = False
    cancel_sent: bool = False


@attrs.define(kw_only=True)
class OpenAttempt(TimedAttempt):
    """The attempt that is under way. `results` are the frames that ended a turn of it: more than one when a steer ran on its own.

    `cancelled`: an answer that was given cancels it; the interrupt that follows such an answer may come behind the CLI's end.
    `message_id`: the answer of the model that is coming, or came last; empty while the model is asked and nothing has come. `text_id`: the
    answer that `text` is of. `goes_on`: the CLI has asked for the rest of an answer that broke off, so that text is added to `text`.
    `asked_wait_s`: for how long the server wants this call to wait.
    """

    written: bool = False
    queued: bool = False
    started: bool = False
    folded: bool = False
    line_lost: bool = False
    dropped: bool = False
    stop: Stop | None = None
    cancelled: bool = False
    probe_until_s: float | None = None
    settle_until_s: float | None = None
    steers_until_s: float | None = None
    steers: dict[str, Steer] = attrs.field(factory=dict)
    results: list[Frame] = attrs.field(factory=list)
    usage: ProviderUsage | None = None
    api_error: Frame | None = None
    text: str = ""
    text_id: str = ""
    message_id: str = ""
    goes_on: bool = False
    asked_wait_s: float | None = None
    tools: dict[str, str] = attrs.field(factory=dict)
    denied: set[str] = attrs.field(factory=set)
    skills: list[str] = attrs.field(factory=list)
    streamed: set[str] = attrs.field(factory=set)
    frames: set[str] = attrs.field(factory=set)
    # As they came: hundreds of frames may repeat them, and only the end of the attempt reads them.
    seen: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    last_call: dict[str, Any] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the CLI is in a turn of this attempt, as far as its frames say."""
        if not self.results:
            return self.started
        return any(steer.state is SteerState.CONSUMED for steer in self.steers.values())

    def model_asked(self, *, rest: bool = False) -> None:
        """The model is asked again; `rest`: for the rest of its last answer, as far as there is text of that."""
        self.goes_on = rest and bool(self.text) and self.text_id == self.message_id
        self.message_id = ""
        self.asked_wait_s = None

    @property
    def is_unsettled(self) -> bool:
        """Whether a steer may still bring a result."""
        return any(steer.state is not SteerState.SETTLED for steer in self.steers.values())

    def waiting_steers(self) -> list[Steer]:
        """Return the steers that the CLI has not taken up."""
        return [steer for steer in self.steers.values() if steer.state in WAITING]

    def owns(self, uuids: list[str] | None) -> bool:
        """Whether one of the message ids is ours."""
        receipt, steers = self.attempt.receipt, self.steers
        for uuid in uuids or ():  # noqa: SIM110 - once a frame: a generator costs more than the look
            if uuid == receipt or uuid in steers:
                return True
        return False


@attrs.frozen
class Pending:
    """A control request without an answer. No turn is written before it has one, or its time is up."""

    subtype: str
    target: str
    until_s: float | None
