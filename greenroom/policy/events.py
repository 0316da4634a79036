"""The inputs of `step()`: what happened, in the past tense or as the spec names it. Pure values; every one carries `now_s` (monotonic).

Events that come from a process carry its `incarnation`, events about work the `turn_id`; `step` drops the stale ones.
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from greenroom.errors import GreenroomError, TransportDiedError
from greenroom.model import Checkpoint, ProviderUsage, TurnRequest, TurnResult
from greenroom.policy.commands import How
from greenroom.policy.state import Settings


@attrs.frozen(kw_only=True)
class Event:
    """Base of all inputs. `now_s` is the monotonic time at which the actor took it up."""

    now_s: float


@attrs.frozen(kw_only=True)
class Start(Event):
    """The session begins, with `resume_id=` or the stored checkpoint, if there is one. Comes once, first."""

    checkpoint: Checkpoint | None = None


@attrs.frozen(kw_only=True)
class Reopened(Event):
    """The session goes on after its host died, or after it was closed: no process of it lives, no wait is on, no turn is begun.

    `settings` hold from now on, but for the nonce, which is the session's for good.
    """

    settings: Settings


@attrs.frozen(kw_only=True)
class Adopt(Event):
    """The caller offers a conversation. Answered by AdoptVerdict."""

    request_id: str
    checkpoint: Checkpoint


@attrs.frozen(kw_only=True)
class Prepare(Event):
    """A ticket is asked for. Answered by Grant or Refuse. `nonce` is a random UUID from which the wire ids of its attempts are derived.

    `sent_attempt`: a dead host sent the ticket's attempt of this number (`sent_how`), and no end of it was seen: run, it is taken up as
    after any death. 0: nothing was sent.
    """

    turn_id: str
    nonce: str
    request: TurnRequest
    expect_conversation: str | None = None
    pin: bool = False
    sent_attempt: int = 0
    sent_how: How = How.PROMPT


@attrs.frozen(kw_only=True)
class Cancelled(Event):
    """A prepared ticket was cancelled before it ran (its cell is settled by the front door already)."""

    turn_id: str


@attrs.frozen(kw_only=True)
class RunBegan(Event):
    """The ticket is to run now. `flags`: what the process must be started with for this turn (schema, MCP servers, effort, …),

    compared by equality.
    """

    turn_id: str
    flags: Hashable = None


@attrs.frozen(kw_only=True)
class Connect(Event):
    """The caller wants a process before there is a turn. `flags`: what it is started with, as in RunBegan."""

    flags: Hashable = None


@attrs.frozen(kw_only=True)
class Opened(Event):
    """A process is ready. `conversation_id`: the id that the transport uses (None: not known yet).

    `slot_wait_s`: how long the start waited for a slot, which does not count in the attempt's timeout.
    """

    incarnation: int
    conversation_id: str | None = None
    slot_wait_s: float = 0.0


@attrs.frozen(kw_only=True)
class Named(Event):
    """The provider said which conversation this is (first frame of a turn, or a change in mid-life): the id is public now."""

    incarnation: int
    conversation_id: str


@attrs.frozen(kw_only=True)
class Succeeded(Event):
    """The attempt ended with a result; also an interrupted one. `forced`: its process is being killed by us.

    `result.usage` is this attempt's own; `cumulative` what the checkpoint must remember.
    """

    turn_id: str
    incarnation: int
    result: TurnResult
    cumulative: ProviderUsage | None = None
    forced: bool = False


@attrs.frozen(kw_only=True)
class Failed(Event):
    """The attempt, or the start of a process (`turn_id` None), failed with `error`: an answer of the provider, never a death.

    `usage`: what the failed attempt consumed; `cumulative`: what the checkpoint must remember. `nudgeable`: it ended in an API error
    directly after which a retry in place is valid. `keeps_conversation`: the failure is of our making (FAIL_TURN, a line that was too
    long, a forced interrupt), so it says nothing against the conversation.
    `killed`: its process is being ended by us (an ignored interrupt after a timeout, a start that never answered): Died(expected)
    follows. A start that failed and was not killed is over, as far as the policy is concerned.
    `sent`: False when nothing of the attempt was given to the provider (it could not be recorded first).
    """

    turn_id: str | None
    incarnation: int
    error: GreenroomError
    usage: ProviderUsage | None = None
    cumulative: ProviderUsage | None = None
    duration_ms: int = 0
    nudgeable: bool = False
    keeps_conversation: bool = False
    killed: bool = False
    sent: bool = True


@attrs.frozen(kw_only=True)
class Swallowed(Event):
    """The probe after a restart found that the provider had taken the attempt before the death; nothing ran now."""

    turn_id: str
    incarnation: int


@attrs.frozen(kw_only=True)
class Died(Event):
    """The process `incarnation` ended. `expected`: we ended it (close, flag restart, forced interrupt); no death then.

    `evicted`: a process that others share was given up, and nothing of this session's was sent to it: no death either, it opens again.

    `sent`: the attempt that was running may have reached the provider. `refused`: it ended by its own decision before the
    handshake (a status, no signal), which is an answer and is not restarted. `usage`: what the cut attempt is known to have consumed.
    """

    incarnation: int
    error: TransportDiedError
    expected: bool = False
    sent: bool = False
    refused: bool = False
    evicted: bool = False
    usage: ProviderUsage | None = None
    duration_ms: int = 0


@attrs.frozen(kw_only=True)
class WaitDone(Event):
    """The wait `wait_id` elapsed."""

    wait_id: int


@attrs.frozen(kw_only=True)
class DeadlinePassed(Event):
    """The attempt's deadline passed while no process had it (restart wait, opening). `attempt` as in SetDeadline."""

    turn_id: str
    attempt: int


@attrs.frozen(kw_only=True)
class WentSilent(Event):
    """Nothing was heard of the running attempt for `quiet_s`, which its `reason` (what it is at) does not excuse."""

    turn_id: str
    incarnation: int
    attempt: int
    quiet_s: float
    reason: str


@attrs.frozen(kw_only=True)
class WaitedForPerson(Event):
    """The turn's attempt has waited so long for somebody to answer it, which does not count in its timeout."""

    turn_id: str
    waited_s: float


@attrs.frozen(kw_only=True)
class Interrupted(Event):
    """The caller interrupts the begun turn `turn_id`."""

    turn_id: str


@attrs.frozen(kw_only=True)
class RollBackAsked(Event):
    """The caller wants to go back by some turns. Answered by BeginRollback, once no process has the conversation, or RefuseRollback."""

    request_id: str


@attrs.frozen(kw_only=True)
class RolledBack(Event):
    """The rollback is over. `checkpoint`: the conversation as it is now, `num_turns` shorter; None: nothing was done to it."""

    request_id: str
    num_turns: int = 0
    checkpoint: Checkpoint | None = None


@attrs.frozen(kw_only=True)
class Release(Event):
    """The caller gives up the live process; the conversation is kept."""


@attrs.frozen(kw_only=True)
class Close(Event):
    """The caller ends the session."""


SessionInput = (
    Start
    | Reopened
    | Adopt
    | Prepare
    | Cancelled
    | RunBegan
    | Connect
    | Opened
    | Named
    | Succeeded
    | Failed
    | Swallowed
    | Died
    | WaitDone
    | DeadlinePassed
    | WentSilent
    | WaitedForPerson
    | Interrupted
    | RollBackAsked
    | RolledBack
    | Release
    | Close
)
