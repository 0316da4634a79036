"""What a session remembers: the values of which `State` is made. They decide nothing; the rules are in `policy/session.py`. Pure."""

from __future__ import annotations

import enum
from collections.abc import Hashable

import attrs

from greenroom.errors import GreenroomError, TransportDiedError
from greenroom.model import ProviderUsage, RenewalBudget, SessionStatus, TurnRequest
from greenroom.policy.bill import Bill
from greenroom.policy.commands import How, WaitReason
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.stall import StallPolicy
from greenroom.policy.wire_ids import proposed_conversation


@attrs.frozen(kw_only=True)
class Settings:
    """What is fixed for a session's life.

    `chooses_ids`: a fresh conversation gets an id of ours. `probes`: the transport can find out whether the provider took an attempt
    that was cut. `retries_in_place`: it can ask again without a second prompt.
    """

    session_nonce: str
    retry_delays: tuple[float, ...] = ()
    restart: RestartPolicy = attrs.field(factory=RestartPolicy)
    stall: StallPolicy | None = None
    renewal: RenewalBudget | None = None
    idle_release_after_s: float | None = None
    checkpointing: bool = False
    supports_resume: bool = True
    chooses_ids: bool = False
    probes: bool = True
    retries_in_place: bool = False


def text_of(error: GreenroomError) -> str:
    """Return what an error says; a user's own may raise even then."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001
        return type(error).__name__


class Phase(enum.Enum):
    """Where the session stands. OPENING, RUNNING and WAITING have a begun turn; in REWINDING no turn can be prepared."""

    IDLE = "idle"
    PREPARED = "prepared"
    OPENING = "opening"
    RUNNING = "running"
    WAITING = "waiting"
    REWINDING = "rewinding"
    CLOSED = "closed"


BEGUN = frozenset({Phase.OPENING, Phase.RUNNING, Phase.WAITING})


@attrs.frozen(kw_only=True)
class Process:
    """The current process. `resumed` is the conversation that it was told to resume; `named`: the provider has told its id.

    `hung`: why it was given up and is being killed, so that its end counts as a death.
    `ready`: it has been opened, and takes attempts.
    """

    incarnation: int
    flags: Hashable = None
    resumed: str | None = None
    named: bool = False
    hung: str | None = None
    ready: bool = False


@attrs.frozen(kw_only=True)
class Held:
    """The conversation that the session holds, `generation` in a row. `public_id`: the provider told it; `opened_id`: the transport did.

    `reached`: something of a turn may be in it. `settled`: a turn ended in it, so that a fresh one in its place would lose history.
    `usage`: the provider's cumulative record, as a resume wants it back.
    """

    generation: int = 1
    public_id: str | None = None
    opened_id: str | None = None
    reached: bool = False
    settled: bool = False
    usage: ProviderUsage | None = None
    successful_turns: int = 0


@attrs.frozen(kw_only=True)
class Ticket:
    """A prepared or begun turn.

    The attempt: `attempt` is its number (0: none yet), `how` what it sends, `again` that the next Execute draws a new receipt,
    `maybe_taken` that a death left it open whether the provider took it, `deadline_s` its end. `taken`: the provider has answered for
    something of this turn in this conversation. `cut`: the attempt lost its process; `recovering`: a death has not been followed by a
    ready process yet; `replaced`: the one fresh conversation after a refused resume has been used up.
    """

    turn_id: str
    nonce: str
    request: TurnRequest
    expected_conversation: str | None = None
    strict: bool = False
    pinned: bool = False
    flags: Hashable = None
    interrupted: bool = False
    attempt: int = 0
    how: How = How.PROMPT
    again: bool = True
    maybe_taken: bool = False
    taken: bool = False
    deadline_s: float | None = None
    cut: bool = False
    recovering: bool = False
    replaced: bool = False
    retries: int = 0
    restarts: int = 0
    in_use_waits: int = 0
    bill: Bill = attrs.field(factory=Bill)
    failure: GreenroomError | None = None
    death: TransportDiedError | None = None

    @property
    def keepsake(self) -> bool:
        """Whether the caller demanded that the conversation is kept, whatever happens."""
        return self.strict or self.pinned


@attrs.frozen(kw_only=True)
class Waiting:
    """The wait that is on."""

    wait_id: int
    reason: WaitReason


@attrs.frozen(kw_only=True)
class Rewinding:
    """The rollback that is asked for. `begun`: the conversation is in its asker's hands."""

    request_id: str
    begun: bool = False


@attrs.frozen(kw_only=True)
class State:
    """All that a session knows. `ending`: processes that we ended and whose end has not been reported; `deaths`: when, in the window.

    `failure`: what the last turn failed of, or the last start of a process outside of a turn, until something goes well again.
    """

    settings: Settings
    phase: Phase = Phase.IDLE
    started: bool = False
    held: Held = Held()
    last_turn_conversation_id: str | None = None
    ticket: Ticket | None = None
    process: Process | None = None
    ending: frozenset[int] = frozenset()
    incarnations: int = 0
    deaths: tuple[float, ...] = ()
    waits: int = 0
    waiting: Waiting | None = None
    rewinding: Rewinding | None = None
    idle_since_s: float = 0.0
    failure: str | None = None
    closing: bool = False
    stopped: bool = False

    @property
    def conversation_id(self) -> str | None:
        """Where the next turn continues; None before the provider named it, and after a reset."""
        return self.held.public_id

    @property
    def waiting_reason(self) -> str | None:
        """Why the begun turn does not run: `start slot` (until its process is ready), `retry`, `restart`, `in use`; else None."""
        if self.phase is Phase.OPENING:
            return "start slot"
        return self.waiting.reason.value if self.waiting else None

    @property
    def status(self) -> SessionStatus:
        """Where it stands for a front end. A begun turn is running, whatever it waits for; an error is over with the next turn."""
        if self.closing:
            return SessionStatus.CLOSED
        if self.phase in BEGUN:
            return SessionStatus.RUNNING
        if self.process is not None and not self.process.ready:
            return SessionStatus.CONNECTING
        return SessionStatus.READY if self.failure is None else SessionStatus.ERROR

    @property
    def last_error(self) -> str | None:
        """What went wrong last and has not been made good; while a retry is waited for, what it is retried for."""
        if self.ticket is not None and self.ticket.failure is not None:
            return text_of(self.ticket.failure)
        return self.failure

    @property
    def proposed_id(self) -> str | None:
        """The id that a fresh conversation asks for, where the provider lets us choose."""
        return proposed_conversation(self.settings.session_nonce, self.held.generation) if self.settings.chooses_ids else None

    @property
    def resumable_id(self) -> str | None:
        """The id under which the conversation may be found again, or None if only a fresh one can be opened."""
        if not self.settings.supports_resume:
            return None
        if self.held.public_id is None and self.held.reached:
            return self.held.opened_id or self.proposed_id
        return self.held.public_id


@attrs.frozen(kw_only=True)
class SessionView:
    """What others may know of a session. `turn_id`: the prepared or begun turn; `incarnation`: the current process, 0 for none.

    `active_turn_id`: the begun turn; `stopped`: it is over, and nothing of it runs; `usage`: the provider's cumulative record of the
    held conversation.
    """

    phase: Phase
    conversation_id: str | None
    last_turn_conversation_id: str | None
    turn_id: str | None
    waiting_reason: str | None
    incarnation: int
    closed: bool
    usage: ProviderUsage | None = None
    status: SessionStatus = SessionStatus.READY
    active_turn_id: str | None = None
    last_error: str | None = None
    stopped: bool = False


def initial(settings: Settings) -> State:
    """Return the state of a session to which nothing has happened."""
    return State(settings=settings)


def public_snapshot(state: State) -> SessionView:
    """Return what others may know of `state`."""
    return SessionView(
        phase=state.phase,
        conversation_id=state.conversation_id,
        last_turn_conversation_id=state.last_turn_conversation_id,
        turn_id=state.ticket.turn_id if state.ticket else None,
        waiting_reason=state.waiting_reason,
        incarnation=state.process.incarnation if state.process else 0,
        closed=state.closing,
        usage=state.held.usage,
        status=state.status,
        active_turn_id=state.ticket.turn_id if state.ticket and state.phase in BEGUN else None,
        last_error=state.last_error,
        stopped=state.stopped,
    )
