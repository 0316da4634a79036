"""What the journal is told, and what it tells: frozen values, one class for each fact. Decides nothing; any thread.

Every record may be put twice (the owner repeats a transaction whose commit failed in doubt): the second time changes nothing.
"""

from __future__ import annotations

import enum

import attrs

from greenroom.asks import Pending
from greenroom.errors import GreenroomError
from greenroom.events import AgentEvent
from greenroom.model import Checkpoint, ConversationSpec, ProviderUsage, Turn, TurnRequest
from greenroom.policy.commands import How
from greenroom.policy.events import SessionInput
from greenroom.policy.state import Settings, State, initial


class Decision(enum.Enum):
    """What was decided about a ticket that a dead host left unfinished."""

    RUN_AGAIN = "run again"
    CONTINUE = "continue"
    DISCARD = "discard"


class Verdict(enum.Enum):
    """What is known of a ticket that a dead host left unfinished: nothing was sent, something was sent and no end seen, it ended untold."""

    NEVER_SENT = "never sent"
    UNKNOWN = "unknown"
    FINISHED_UNREPORTED = "finished, unreported"


class Record:
    """Base of all that can be put."""

    __slots__ = ()


@attrs.frozen(kw_only=True)
class SessionOpened(Record):
    """A session began. `at_s` is Unix time; `checkpoint_key` names where its checkpoint is kept, if anywhere."""

    session_id: str
    nonce: str
    provider: str
    state_home: str
    spec: ConversationSpec
    settings: Settings
    at_s: float
    checkpoint_key: str | None = None


@attrs.frozen(kw_only=True)
class SessionClosed(Record):
    """The session ended in order; its history may be forgotten. `removed`: for good, it is not to be begun again."""

    session_id: str
    removed: bool = False


@attrs.frozen(kw_only=True)
class TicketPrepared(Record):
    """A ticket exists. `key` is the caller's own name for the work, `request_hash` (`Codec.fingerprint`) tells one request from another."""

    turn_id: str
    session_id: str
    nonce: str
    request: TurnRequest
    request_hash: str
    key: str | None = None
    expected_conversation: str | None = None
    strict: bool = False
    pinned: bool = False


@attrs.frozen(kw_only=True)
class TicketSent(Record):
    """Attempt number `attempt` is about to be sent under `receipt`: committed before its first byte leaves."""

    turn_id: str
    attempt: int
    receipt: str
    how: How
    conversation_id: str | None
    incarnation: int


@attrs.frozen(kw_only=True)
class TicketTaken(Record):
    """The provider has answered for attempt number `attempt`: it has the message."""

    turn_id: str
    attempt: int


@attrs.frozen(kw_only=True)
class TicketEnded(Record):
    """The ticket's one outcome; a second one is not recorded."""

    turn_id: str
    outcome: Turn | GreenroomError


@attrs.frozen(kw_only=True)
class TicketReported(Record):
    """The caller has the outcome. `unrun`: it has an error that is none (a refusal, a crash of ours): what is open stays open."""

    turn_id: str
    unrun: bool = False


@attrs.frozen(kw_only=True)
class TicketDecided(Record):
    """Somebody decided what becomes of an unfinished ticket. Sending or preparing it again opens the question anew."""

    turn_id: str
    decision: Decision


@attrs.frozen(kw_only=True)
class Input(Record):
    """Input number `n` of the session's `step`: all of them in order give the live state."""

    session_id: str
    n: int
    event: SessionInput


@attrs.frozen(kw_only=True)
class Snapshot(Record):
    """What the session was after its first `n` inputs, which are dropped: it stands for them."""

    session_id: str
    n: int
    state: State


@attrs.frozen(kw_only=True)
class CheckpointSaved(Record):
    """The checkpoint kept under `key` from now on."""

    key: str
    checkpoint: Checkpoint


@attrs.frozen(kw_only=True)
class CheckpointCleared(Record):
    """Nothing is kept under `key` any more."""

    key: str


@attrs.frozen(kw_only=True)
class AgentEvents(Record):
    """Agent events of one session with one stamp; `first_sequence` is the number of the first, the others follow on."""

    session_id: str
    first_sequence: int
    turn_id: str | None
    incarnation: int
    at_monotonic_s: float
    at_wall_s: float
    events: tuple[AgentEvent, ...]

    @property
    def last_sequence(self) -> int:
        """The number of the last event."""
        return self.first_sequence + len(self.events) - 1


@attrs.frozen(kw_only=True)
class ProcessStarted(Record):
    """A process runs. `start_time` as `transports.marks` gives it; with the pid it names the process until the next boot."""

    pid: int
    start_time: int
    pgid: int
    mark: str
    session_id: str
    incarnation: int
    host_id: str


@attrs.frozen(kw_only=True)
class ProcessEnded(Record):
    """The process and its descendants are proven dead."""

    pid: int
    start_time: int
    mark: str


@attrs.frozen(kw_only=True)
class Spent(Record):
    """What the session has consumed so far, in all; the last one counts.

    `usage`: by its tickets; `booked`: by turns that the provider began by itself.
    """

    session_id: str
    usage: ProviderUsage | None
    booked: ProviderUsage | None = None


@attrs.frozen(kw_only=True)
class AskOpened(Record):
    """A request of the agent waits for a person."""

    pending: Pending


@attrs.frozen(kw_only=True)
class AskClosed(Record):
    """It waits no more. The end of its ticket, or a decision about that, closes it as well."""

    request_id: str


# --- what is read back


@attrs.frozen(kw_only=True)
class RecoveredSession:
    """A session as recorded. `last_conversation_id`: the last one that it is known to have been in, held still or not.

    `removed`: it was ended for good.
    """

    opened: SessionOpened
    closed_at_s: float | None
    last_conversation_id: str | None
    removed: bool = False


@attrs.frozen(kw_only=True)
class InputHistory:
    """How a session came to be what it is: its inputs in order, all of them, or those that followed on `state`."""

    state: State | None
    inputs: tuple[SessionInput, ...]

    def origin(self, settings: Settings) -> State:
        """Return the state in which the inputs begin; `settings` are those with which the session first began."""
        return initial(settings) if self.state is None else self.state


@attrs.frozen(kw_only=True)
class RecoveredTicket:
    """A ticket as recorded. `verdict` is None when nothing about it is open: its outcome was reported, or it was decided upon.

    `attempt` (0: none), `receipt`, `how`, `conversation_id` and `incarnation` are those of the last attempt sent; `taken`: the provider
    has answered for that one; `at_s`: Unix time of the last change.
    """

    turn_id: str
    session_id: str
    verdict: Verdict | None
    nonce: str
    request: TurnRequest
    request_hash: str
    key: str | None
    expected_conversation: str | None
    strict: bool
    pinned: bool
    attempt: int
    receipt: str | None
    how: How | None
    conversation_id: str | None
    incarnation: int
    taken: bool
    outcome: Turn | GreenroomError | None
    reported: bool
    decision: Decision | None
    at_s: float


@attrs.frozen(kw_only=True)
class Gap:
    """Events that are not there any more, or never were: their numbers, both ends included."""

    first_sequence: int
    last_sequence: int


@attrs.frozen(kw_only=True)
class EventHistory:
    """Events of one session in order, and what is missing among them. `complete`: there are no more than were asked for."""

    batches: tuple[AgentEvents, ...]
    gaps: tuple[Gap, ...]
    complete: bool


@attrs.frozen(kw_only=True)
class Trimmed:
    """What one round of `trim` did. `more`: there is more to do, call again."""

    batches: int
    sessions: int
    more: bool
