"""The messages between actors, grouped by receiver. Frozen values; each names the turn and, if a process produced it, the incarnation.

A message that somebody waits for carries his cell (`reply_to`), and answers it itself when its receiver is dead (`refuse`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pykka

from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.runtime import Message, tell
from greenroom.asks import Answer, Approval, Inquiry
from greenroom.errors import GreenroomError, NoRunningTurnError, SessionStateError, StoreFailedError, TransportDiedError
from greenroom.events import AgentEvent, ToolCall
from greenroom.journal.records import InputHistory
from greenroom.journal.records import Record as JournalRecord
from greenroom.model import Checkpoint, ProviderUsage, StoreFault, TurnRequest, TurnResult
from greenroom.policy.commands import How
from greenroom.transports.base import Attempt, Flags, LaunchSpec, Process

if TYPE_CHECKING:
    from greenroom.actors.ticket import TicketCore

Ref = pykka.ActorRef[Any]


def _closed() -> SessionStateError:
    return SessionStateError("the session is closed")


def _journal_closed() -> StoreFailedError:
    return StoreFailedError(StoreFault.CLOSED, "it is closed")


# --- to a SessionActor, from the front door -------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Sent:
    """The attempt that a dead host sent last, and the tool calls that were seen in the turn."""

    attempt: int
    how: How
    calls: tuple[ToolCall, ...] = ()


@attrs.frozen(kw_only=True)
class PrepareTurn(Message):
    """Reserve a turn. Answered with the expected conversation id, or a refusal.

    For the journal: the caller's `key` and `request_hash`, and the ticket of a dead host that this one `replaces`. `sent`: the ticket is
    itself one of a dead host, and this is how far that one got with it.
    """

    turn_id: str
    nonce: str
    request: TurnRequest
    flags: Flags
    expect_conversation: str | None
    pin: bool
    ticket: TicketCore
    reply_to: Cell[str | None]
    key: str | None = None
    request_hash: str = ""
    sent: Sent | None = None
    replaces: str | None = None

    def refuse(self) -> None:
        """Answer that the session is closed."""
        self.reply_to.fail(_closed())


@attrs.frozen(kw_only=True)
class Run(Message):
    """Run the prepared turn; its outcome goes to the ticket's cell. `begun` is settled once the session's state says so."""

    turn_id: str
    ticket: TicketCore
    begun: Cell[None] | None = None

    def refuse(self) -> None:
        """Settle the ticket: the session is closed."""
        self.ticket.fail(_closed())
        self.seen()

    def seen(self) -> None:
        """Let who waits for the state look at it."""
        if self.begun is not None:
            self.begun.settle(None)


@attrs.frozen(kw_only=True)
class CancelTurn(Message):
    """The prepared turn was cancelled; its cell is settled already."""

    turn_id: str


@attrs.frozen(kw_only=True)
class Steer(Message):
    """Send text into the running turn. Answered once the codec has accepted it, or with NoRunningTurnError."""

    turn_id: str | None
    text: str
    steer_id: str
    reply_to: Cell[None]

    def refuse(self) -> None:
        """Answer that the session is closed."""
        self.reply_to.fail(NoRunningTurnError("the session is closed"))


@attrs.frozen(kw_only=True)
class Interrupt(Message):
    """End the begun turn `turn_id`. May arrive before the Run that it means."""

    turn_id: str
    control = True


@attrs.frozen(kw_only=True)
class AdoptConversation(Message):
    """Offer a conversation. Answered with whether it was taken."""

    request_id: str
    checkpoint: Checkpoint
    reply_to: Cell[bool]

    def refuse(self) -> None:
        """Answer that it was not taken."""
        self.reply_to.settle(value=False)


@attrs.frozen(kw_only=True)
class ReleaseConversation(Message):
    """Give up the live process, keep the conversation. Answered once it has been asked to end."""

    reply_to: Cell[None]

    def refuse(self) -> None:
        """Nothing is live any more."""
        self.reply_to.settle(None)


@attrs.frozen(kw_only=True)
class RollBack(Message):
    """Go back by some turns. Answered with the conversation, once no process has it and it is the asker's to change."""

    request_id: str
    reply_to: Cell[Checkpoint]

    def refuse(self) -> None:
        """Answer that the session is closed."""
        self.reply_to.fail(_closed())


@attrs.frozen(kw_only=True)
class RollbackEnded(Message):
    """The asker is done: the conversation is `num_turns` shorter and is this `checkpoint` now, or (None) it is as it was."""

    request_id: str
    num_turns: int
    checkpoint: Checkpoint | None
    reply_to: Cell[None]

    def done(self) -> None:
        """Let the asker go."""
        self.reply_to.settle(None)

    def refuse(self) -> None:
        """Nobody is there to take it back."""
        self.done()


@attrs.frozen(kw_only=True)
class ReleaseIfIdle(Message):
    """Another session waits for a live slot: give up the process if no turn needs it."""


@attrs.frozen(kw_only=True)
class Connect(Message):
    """Have the session's process started before there is a turn. Answered once it is ready, or will not be."""

    flags: Flags
    reply_to: Cell[None]

    def refuse(self) -> None:
        """The session is not there: who waits finds it closed."""
        self.reply_to.settle(None)


@attrs.frozen(kw_only=True)
class CloseSession(Message):
    """End the session. Its cell `closed` (in the session's core) is settled when nothing of it runs any more."""

    control = True


@attrs.frozen(kw_only=True)
class DrainSession(Message):
    """End the session once the turn that runs has ended, at once where none does."""

    control = True


@attrs.frozen(kw_only=True)
class CreditReturned(Message):
    """The caller's sink has room again."""

    turn_id: str
    control = True


@attrs.frozen(kw_only=True)
class Detach(Message):
    """The caller does not listen any more; the turn goes on."""

    turn_id: str
    control = True


class AskMessage(Message):
    """Base of all that concerns the requests which wait for a person."""


@attrs.frozen(kw_only=True)
class AnswerAsk(AskMessage):
    """Somebody answers a request. Answered with whether it reached the agent."""

    request_id: str
    answer: Answer
    reply_to: Cell[bool]

    def refuse(self) -> None:
        """Answer that it did not."""
        self.reply_to.settle(value=False)


@attrs.frozen(kw_only=True)
class AskArrived(AskMessage):
    """The provider asks a person; `wire_id` is its own name for the request."""

    incarnation: int
    turn_id: str | None
    wire_id: str
    ask: Approval | Inquiry


@attrs.frozen(kw_only=True)
class AskWithdrawn(AskMessage):
    """The provider wants no answer any more."""

    incarnation: int
    wire_id: str


@attrs.frozen(kw_only=True)
class AskAnswered(AskMessage):
    """Says of an AnswerRequest whether the request was still open, so that the answer was written."""

    incarnation: int
    wire_id: str
    taken: bool


# --- to a SessionActor, from conversations, the supervisor and the store ----------------------------------------------------


@attrs.frozen(kw_only=True)
class StartWaits(Message):
    """The start has to wait: for a slot, for room, or for the death of the process before."""

    incarnation: int


@attrs.frozen(kw_only=True)
class Admitted(Message):
    """The supervisor has given the start a slot; `conversation` is the actor that runs it."""

    incarnation: int
    conversation: Ref
    slot_wait_s: float


@attrs.frozen(kw_only=True)
class ConversationOpened(Message):
    """The process has answered its handshake."""

    incarnation: int
    conversation_id: str | None


@attrs.frozen(kw_only=True)
class ConversationNamed(Message):
    """The provider said which conversation this is."""

    incarnation: int
    conversation_id: str


@attrs.frozen(kw_only=True)
class OpenFailed(Message):
    """The start failed by an answer. `killed`: its process still has to end, which Down will tell."""

    incarnation: int
    error: GreenroomError
    killed: bool


@attrs.frozen(kw_only=True)
class TurnEvent(Message):
    """What one read gave: agent events of the attempt, or of the time between turns (`turn_id` None)."""

    incarnation: int
    turn_id: str | None
    events: tuple[AgentEvent, ...]


@attrs.frozen(kw_only=True)
class Listened(Message):
    """What the process had said when it was asked (Listen) has been told before this."""

    incarnation: int


@attrs.frozen(kw_only=True)
class TurnEnded(Message):
    """The attempt ended: with a result or with an error."""

    incarnation: int
    turn_id: str
    result: TurnResult | None
    error: GreenroomError | None
    usage: ProviderUsage | None
    cumulative: ProviderUsage | None
    duration_ms: int
    nudgeable: bool
    keeps_conversation: bool
    forced: bool
    sent: bool = True


@attrs.frozen(kw_only=True)
class TurnSwallowed(Message):
    """The probe found that the attempt had been taken before."""

    incarnation: int
    turn_id: str


@attrs.frozen(kw_only=True)
class Spent(Message):
    """Consumption that belongs to the session and to no ticket."""

    incarnation: int
    usage: ProviderUsage


@attrs.frozen(kw_only=True)
class Down(Message):
    """The process ended. Ordinary: it never overtakes what the process said last."""

    incarnation: int
    error: TransportDiedError
    expected: bool
    refused: bool
    sent: bool
    usage: ProviderUsage | None
    duration_ms: int
    evicted: bool = False


def never_started(incarnation: int) -> Down:
    """Return the end of a process that there never was."""
    error = TransportDiedError(reason="it was never started")
    return Down(incarnation=incarnation, error=error, expected=True, refused=False, sent=False, usage=None, duration_ms=0)


@attrs.frozen(kw_only=True)
class Stored(Message):
    """The store or the journal has done (or failed to do) the write `sequence`."""

    sequence: int
    error: BaseException | None


# --- to a conversation's actor -----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class RunAttempt(Message):
    """Run one attempt."""

    attempt: Attempt


@attrs.frozen(kw_only=True)
class SteerAttempt(Message):
    """Send text into the running attempt of `turn_id`."""

    turn_id: str
    text: str
    steer_id: str
    reply_to: Cell[None]

    def refuse(self) -> None:
        """Answer that no turn runs."""
        self.reply_to.fail(NoRunningTurnError("no turn is running"))


@attrs.frozen(kw_only=True)
class AnswerRequest(Message):
    """Answer what the provider asked. Told to `session` as AskAnswered."""

    incarnation: int
    wire_id: str
    answer: Answer
    session: Ref

    def told(self, *, taken: bool) -> None:
        """Tell the session."""
        tell(self.session, AskAnswered(incarnation=self.incarnation, wire_id=self.wire_id, taken=taken))

    def refuse(self) -> None:
        """The process that asked is gone."""
        self.told(taken=False)


@attrs.frozen(kw_only=True)
class InterruptTurn(Message):
    """End the running attempt of `turn_id`. Ordinary: it must not overtake the RunAttempt that it means, nor a steer before it."""

    turn_id: str


@attrs.frozen(kw_only=True)
class Listen(Message):
    """Read what the process has said, and answer Listened behind it. Without an answer it has ended, or is not to be read now."""


@attrs.frozen(kw_only=True)
class HoldReading(Message):
    """The caller is slow: read no more of standard output until told."""

    hold: bool
    control = True


@attrs.frozen(kw_only=True)
class EndConversation(Message):
    """End the process, by the ladder or at once. `hung`: it is killed in a turn, which is to be taken up by the next one."""

    kill: bool
    reason: str
    hung: bool = False
    control = True


# --- to the supervisor ---------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class StartConversation(Message):
    """Start process `incarnation` of the session once the one before is proven dead and a slot is free."""

    session_id: str
    session: Ref
    dispatcher: Any
    launch: LaunchSpec
    transport: Any

    def refuse(self) -> None:
        """Nobody starts it: to the session that is an end like any other."""
        tell(self.session, never_started(self.launch.incarnation))


@attrs.frozen(kw_only=True)
class WithdrawStart(Message):
    """The start is not wanted any more (it may have been granted meanwhile)."""

    session_id: str
    incarnation: int


@attrs.frozen(kw_only=True)
class StartSettled(Message):
    """The start succeeded or failed: its slot is free."""

    session_id: str
    incarnation: int


@attrs.frozen(kw_only=True)
class ProcessGone(Message):
    """The process ended; what it left behind under `mark` must still be found and ended."""

    session_id: str
    incarnation: int
    mark: str | None


@attrs.frozen(kw_only=True)
class ReapProcess(Message):
    """The process was killed by an owner that cannot poll it any more."""

    process: Process


@attrs.frozen(kw_only=True)
class LinkReady(Message):
    """A shared process has answered its handshake: its start slot is free."""

    link_id: str


@attrs.frozen(kw_only=True)
class LinkRetired(Message):
    """A shared process takes no new conversations."""

    link_id: str


@attrs.frozen(kw_only=True)
class LinkGone(Message):
    """A shared process has ended; what it left behind under `mark` must still be found and ended."""

    link_id: str
    mark: str | None


@attrs.frozen(kw_only=True)
class TurnOver(Message):
    """A turn of the session ended: its process may be idle now."""

    session_id: str


@attrs.frozen(kw_only=True)
class RetireSession(Message):
    """The session has ended; settle `closed` when nothing of it lives any more."""

    session_id: str
    closed: Cell[None]

    def refuse(self) -> None:
        """The supervisor is gone, and with it everything it had to prove."""
        try:
            CLAIMS.drop(self.closed)
        finally:
            self.closed.settle(None)


@attrs.frozen(kw_only=True)
class SessionCrashed(Message):
    """A journalled session's actor crashed; another one is to take over what it `left`. `core` is the session's."""

    session_id: str
    core: Any
    left: Any

    def refuse(self) -> None:
        """There is nobody to do it."""
        self.core.give_up(self.left)


@attrs.frozen(kw_only=True)
class Recalled(Message):
    """What the journal has of a session that crashed, or why it has not."""

    session_id: str
    core: Any
    left: Any
    history: InputHistory | None
    error: BaseException | None

    def refuse(self) -> None:
        """There is nobody to take it up."""
        self.core.give_up(self.left)


@attrs.frozen(kw_only=True)
class SessionBegan(Message):
    """A session exists: it is to be told when the room closes."""

    session_id: str
    session: Ref

    def refuse(self) -> None:
        """There is nobody to start anything for it."""
        tell(self.session, CloseSession())


@attrs.frozen(kw_only=True)
class CloseRoom(Message):
    """End every session within `deadline_s`, of which running turns have `grace_s`. Answered with the ids of those who had to be killed."""

    deadline_s: float
    grace_s: float = 0.0
    reply_to: Cell[tuple[str, ...]]
    control = True

    def refuse(self) -> None:
        """Nothing is left to close."""
        self.reply_to.settle(())


# --- to the store and the observer -------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Store(Message):
    """Save (or clear, `checkpoint` None) under `key` in `store`; answered with Stored."""

    store: Any
    key: str
    checkpoint: Checkpoint | None
    sequence: int
    session: Ref


@attrs.frozen(kw_only=True)
class Record(Message):
    """Put `records` into the journal, in order. Answered with Stored(sequence) to `session`, if somebody waits, once they are durable."""

    records: tuple[JournalRecord, ...]
    sequence: int = 0
    session: Ref | None = None

    def refuse(self) -> None:
        """The journal is closed."""
        if self.session is not None:
            tell(self.session, Stored(sequence=self.sequence, error=_journal_closed()))


@attrs.frozen(kw_only=True)
class Consult(Message):
    """Ask the journal: the method `question` of its Recovery, with `names`. Answered with what that returns or raises."""

    question: str
    names: tuple[str | int, ...]
    reply_to: Cell[Any]

    def refuse(self) -> None:
        """The journal is closed."""
        self.reply_to.fail(_journal_closed())


@attrs.frozen(kw_only=True)
class CloseJournal(Message):
    """Write what is waiting, and close it. Ordinary: what was told before is written."""

    reply_to: Cell[None]

    def refuse(self) -> None:
        """It is closed already."""
        self.reply_to.settle(None)


@attrs.frozen(kw_only=True)
class Observe(Message):
    """Call the handlers with the events, in order."""

    handlers: tuple[Any, ...]
    events: tuple[AgentEvent, ...]
