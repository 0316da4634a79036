"""The outputs of `step()`: what the shell must do. Pure values, in the imperative; carried out in order, each without waiting."""

from __future__ import annotations

import enum
from collections.abc import Hashable

import attrs

from greenroom.errors import GreenroomError
from greenroom.model import Checkpoint, ProviderUsage, Turn
from greenroom.policy.stall import StallAction


class How(enum.Enum):
    """What an attempt sends: the prompt, a retry in place (no second prompt), or a text to go on with the cut work."""

    PROMPT = "prompt"
    RETRY = "retry"
    CONTINUE = "continue"


class WaitReason(enum.Enum):
    """Why a turn waits."""

    RETRY = "retry"
    RESTART = "restart"
    IN_USE = "in use"


class Refusal(enum.Enum):
    """Why a ticket was not granted or not run."""

    CONTINUITY = "continuity"
    BUSY = "busy"
    CLOSED = "closed"
    STALE = "stale"


@attrs.frozen(kw_only=True)
class Grant:
    """The ticket exists. `superseded`: the prepared ticket that it replaces (to be settled with SessionStateError)."""

    turn_id: str
    expected_conversation: str | None
    superseded: str | None = None


@attrs.frozen(kw_only=True)
class Refuse:
    """The Prepare (or the RunBegan) is refused with `error`."""

    turn_id: str
    refusal: Refusal
    error: GreenroomError


@attrs.frozen(kw_only=True)
class AdoptVerdict:
    """The answer to Adopt."""

    request_id: str
    accepted: bool


@attrs.frozen(kw_only=True)
class BeginRollback:
    """No process has the conversation `checkpoint`, and none is started before RolledBack: take turns out of it now."""

    request_id: str
    checkpoint: Checkpoint


@attrs.frozen(kw_only=True)
class RefuseRollback:
    """The rollback does not begin."""

    request_id: str
    error: GreenroomError


@attrs.frozen(kw_only=True)
class Open:
    """Start process number `incarnation`, once the one before is proven dead.

    `resume_id`: the conversation to resume, or None for a fresh one, which gets `proposed_id` where the provider lets us choose.
    `after_death`: it takes over a turn that was cut.
    """

    incarnation: int
    resume_id: str | None
    proposed_id: str | None = None
    previous_usage: ProviderUsage | None = None
    flags: Hashable = None
    after_death: bool = False


@attrs.frozen(kw_only=True)
class Execute:
    """Run one attempt in the live process. `receipt` is its wire id, a UUID; `deadline_s` is absolute (monotonic), None: no bound.

    `probe`: the attempt under this receipt may have been taken before a death: find out, and report Swallowed if so.
    """

    turn_id: str
    incarnation: int
    how: How
    receipt: str
    attempt: int
    probe: bool = False
    deadline_s: float | None = None


@attrs.frozen(kw_only=True)
class InterruptAttempt:
    """Pass the interrupt on to the process that runs the attempt."""

    turn_id: str
    incarnation: int


@attrs.frozen(kw_only=True)
class Wait:
    """Report WaitDone after `delay_s`. A later Wait or CancelWait makes this one void."""

    wait_id: int
    turn_id: str
    delay_s: float
    reason: WaitReason


@attrs.frozen(kw_only=True)
class CancelWait:
    """Forget the wait."""

    wait_id: int


@attrs.frozen(kw_only=True)
class SetDeadline:
    """Report DeadlinePassed at `deadline_s` (absolute). Execute hands the deadline to the process; this one is for the time without."""

    turn_id: str
    attempt: int
    deadline_s: float


@attrs.frozen(kw_only=True)
class CloseConversation:
    """End process `incarnation` in order (`kill`: at once). It reports Died(expected=True).

    `hung`: its running attempt is cut on purpose (Died says whether it was sent); a process that others share takes no new ones.
    """

    incarnation: int
    kill: bool = False
    reason: str = ""
    hung: bool = False


@attrs.frozen(kw_only=True)
class SaveCheckpoint:
    """Store the checkpoint under the session's key."""

    checkpoint: Checkpoint


@attrs.frozen(kw_only=True)
class ClearCheckpoint:
    """Forget the stored checkpoint."""


@attrs.frozen(kw_only=True)
class ReportDeath:
    """Tell the turn's listeners that the process died (TransportDied)."""

    turn_id: str
    incarnation: int
    cause: str


@attrs.frozen(kw_only=True)
class ReportRestart:
    """Tell the turn's listeners that a new process took over (TransportRestarted)."""

    turn_id: str
    incarnation: int


@attrs.frozen(kw_only=True)
class ReportStall:
    """Tell the turn's listeners that nothing was heard of it for `quiet_s` (Stalled). `reason`: what it was at when it fell silent."""

    turn_id: str
    incarnation: int
    action: StallAction
    quiet_s: float
    reason: str


@attrs.frozen(kw_only=True)
class Finish:
    """The ticket ended with `turn`."""

    turn: Turn


@attrs.frozen(kw_only=True)
class Fail:
    """The ticket ended with `error`."""

    turn_id: str
    error: GreenroomError


@attrs.frozen(kw_only=True)
class Stop:
    """The session has ended: nothing runs, nothing will come. Last command of its life."""


@attrs.frozen(kw_only=True)
class Ignored:
    """The event was stale or repeated; nothing changed."""

    reason: str


Command = (
    Grant
    | Refuse
    | AdoptVerdict
    | BeginRollback
    | RefuseRollback
    | Open
    | Execute
    | InterruptAttempt
    | Wait
    | CancelWait
    | SetDeadline
    | CloseConversation
    | SaveCheckpoint
    | ClearCheckpoint
    | ReportDeath
    | ReportRestart
    | ReportStall
    | Finish
    | Fail
    | Stop
    | Ignored
)
