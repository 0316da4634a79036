"""The ports between sessions and providers. Decides only shapes; every implementation lives elsewhere.

Two ways to reach a provider stand behind the same actor messages. A *stream transport* (ours) hands out a pure codec and the
command line that it speaks to: `StreamTransport.launch()`. A *blocking transport* (a user's) is `Transport` with `Conversation`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, runtime_checkable

import attrs

from greenroom.asks import Answer, Approval, Inquiry
from greenroom.errors import GreenroomError
from greenroom.events import AgentEvent, ToolCall
from greenroom.history import Account, Thread
from greenroom.model import (
    Checkpoint,
    ConversationSpec,
    OutputSchema,
    ProviderProfile,
    ProviderUsage,
    StdioMcpServer,
    TurnRequest,
    TurnResult,
)
from greenroom.policy.commands import How

# --- the blocking port: what a user implements -------------------------------------------------------------------------


class Conversation(Protocol):
    """One provider conversation over one live connection. Never retries, restarts, waits or decides."""

    @property
    def conversation_id(self) -> str | None:
        """The provider's id, once it is known."""
        ...

    def turn(self, request: TurnRequest, emit: Callable[[AgentEvent], None]) -> TurnResult:
        """Run one turn; call `emit` on the calling thread. Raises TurnFailedError, SessionResumeError, TurnTimeoutError."""
        ...

    def interrupt(self) -> None:
        """End the running turn, from any thread: `turn` returns `interrupted=True`. Without a running turn it does nothing."""

    def close(self) -> None:
        """End the connection. Idempotent."""


@runtime_checkable
class SteerableConversation(Conversation, Protocol):
    """A conversation that takes text in mid-turn."""

    def steer(self, text: str) -> None:
        """Send `text` into the running turn, from any thread. Raises NoRunningTurnError when there is none."""


class Transport(Protocol):
    """The one place that knows how to reach a provider."""

    @property
    def profile(self) -> ProviderProfile:
        """What the provider can do."""
        ...

    def open(self, spec: ConversationSpec) -> Conversation:
        """Open a conversation. Raises ProviderCapabilityError for what the profile does not declare, SessionResumeError when it is gone."""
        ...


@runtime_checkable
class HistoryTransport(Protocol):
    """A transport that tells a conversation's past (`ProviderProfile.supports_history`)."""

    def read_thread(self, conversation_id: str, *, running: bool = False) -> Thread:
        """Return the conversation's turns, oldest first; `running`: a turn runs in it now. Blocks, on any thread, at any time.

        Starts no turn. Raises SessionResumeError when the conversation is gone.
        """
        ...


@runtime_checkable
class RollbackTransport(Protocol):
    """A transport that takes turns back (`ProviderProfile.supports_rollback`)."""

    def rollback(self, spec: ConversationSpec, num_turns: int) -> Checkpoint:
        """Take the last turns out of the conversation `spec.resume_id`, for good, and return it as it is then. Blocks, on any thread.

        No other connection of the session is open meanwhile. `spec.previous_usage` and that of the answer are the cumulative usage.
        Raises SessionStateError when the conversation has fewer turns, and then and otherwise leaves it as it was.
        """
        ...


@runtime_checkable
class ForkTransport(Protocol):
    """A transport that forks conversations (`ProviderProfile.supports_fork`)."""

    def fork(self, spec: ConversationSpec) -> Checkpoint:
        """Return a new conversation with the history of `spec.resume_id`, which is left as it is. Blocks, on any thread."""
        ...


@runtime_checkable
class AccountTransport(Protocol):
    """A transport that knows who pays."""

    def account(self) -> Account:
        """Return which account it uses. Blocks, on any thread."""
        ...


# --- processes -----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ProcessExit:
    """How a process ended: its status, or the signal that ended it; both None where it cannot be known."""

    returncode: int | None = None
    signal: int | None = None


class Process(Protocol):
    """A child process as file descriptors for a loop: all three are non-blocking.
    `exit_fd` turns readable at its exit (None: poll on SIGCHLD or a waiter).

    `mark` is the value by which it and its descendants can be found (None: unmarked).
    """

    pid: int
    argv: tuple[str, ...]
    mark: str | None
    stdin_fd: int | None
    stdout_fd: int | None
    stderr_fd: int | None
    exit_fd: int | None

    def poll(self) -> ProcessExit | None:
        """Reap it if it has ended; never blocks."""
        ...

    def close_stdin(self) -> None:
        """Close its standard input. Idempotent."""

    def terminate(self) -> None:
        """Send SIGTERM to its group. Harmless after its end."""

    def kill(self) -> None:
        """Send SIGKILL to its group. Harmless after its end."""

    def close(self) -> None:
        """Close every descriptor that is left. Idempotent; does not end the process."""


class Executor(Protocol):
    """Starts processes. Called on the starter thread; may block for as long as a fork and exec take."""

    def start(self, argv: tuple[str, ...], cwd: pathlib.Path, env: Mapping[str, str]) -> Process:
        """Start a process. Raises CliNotFoundError, WorkingDirectoryError, or OSError for anything else."""
        ...


# --- the stream port: pure codecs -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Flags:
    """What a process is started with and cannot change: a turn that needs others gets a restart with resume. Compared by `key`."""

    key: Hashable
    output_schema: OutputSchema | None = attrs.field(default=None, eq=False)
    mcp_servers: tuple[StdioMcpServer, ...] = attrs.field(default=(), eq=False)
    reasoning_effort: str | None = attrs.field(default=None, eq=False)
    env: Mapping[str, str] | None = attrs.field(default=None, eq=False)
    extra_args: tuple[str, ...] = attrs.field(default=(), eq=False)


@attrs.frozen(kw_only=True)
class LaunchSpec:
    """One start of a process for a conversation. `resume_id` or else `proposed_id` (a UUID) says which conversation it will be.

    `cut_receipt`: the attempt that a death has cut; where the provider's records tell whether it was taken, they are asked.
    `cut_calls`: the tool calls that were seen in that turn, of which the provider may have lost the last.
    `cut_texts`: what users said in it, where a transport has found that on disk (`SharedTransport.prepare`).
    """

    spec: ConversationSpec
    flags: Flags
    incarnation: int
    mark: str
    resume_id: str | None = None
    proposed_id: str | None = None
    previous_usage: ProviderUsage | None = None
    after_death: bool = False
    cut_receipt: str | None = None
    cut_calls: tuple[ToolCall, ...] = ()
    cut_texts: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Launch:
    """What to start, and the codec that speaks to it. `env` is complete, the mark included.

    `settled`: to be called once the start has succeeded or failed, whatever comes of it, by the process's driver or who else has it.
    """

    argv: tuple[str, ...]
    cwd: pathlib.Path
    env: Mapping[str, str]
    codec: Codec
    startup_timeout_s: float = 60.0
    close_grace_s: float = 5.0
    settled: Callable[[], None] | None = None


@attrs.frozen(kw_only=True)
class Attempt:
    """One Execute, as a codec gets it. `receipt` is the wire id; `probe`: it may have been taken before a death."""

    turn_id: str
    request: TurnRequest
    how: How
    receipt: str
    probe: bool = False
    deadline_s: float | None = None
    timeout_s: float | None = None


class Signal:
    """Base of what a codec tells its owner beside agent events and bytes."""

    __slots__ = ()


@attrs.frozen
class Write(Signal):
    """Bytes for the process; always whole lines."""

    data: bytes


@attrs.frozen
class Ready(Signal):
    """The handshake is done. `conversation_id`: the id in use, if known already. Comes at most once, before any other end of the start."""

    conversation_id: str | None


@attrs.frozen
class StartFailed(Signal):
    """The start was refused by an answer (a refused resume, a bad handshake). The process is to be ended."""

    error: GreenroomError


@attrs.frozen
class Renamed(Signal):
    """The provider said which conversation this is: with a turn's first frame, and whenever it changes."""

    conversation_id: str


@attrs.frozen(kw_only=True)
class AttemptEnded(Signal):
    """The attempt ended: exactly one of `result` and `error` is set. `usage` is its own consumption, `cumulative` for the checkpoint.

    `nudgeable`: a retry in place is valid next. `forced`: the interrupt went unanswered, a Kill follows. `sent`: False when nothing of the
    attempt was given to the provider.
    `keeps_conversation`: an error of our making (FAIL_TURN, a line that was too long), which says nothing against the conversation.
    """

    turn_id: str
    result: TurnResult | None = None
    error: GreenroomError | None = None
    usage: ProviderUsage | None = None
    cumulative: ProviderUsage | None = None
    duration_ms: int = 0
    nudgeable: bool = False
    sent: bool = True
    forced: bool = False
    keeps_conversation: bool = False


@attrs.frozen
class AttemptSwallowed(Signal):
    """The probe found that the provider had taken this attempt before; nothing runs."""

    turn_id: str


@attrs.frozen
class Booked(Signal):
    """Consumption of a turn that the provider started by itself: booked to the session, not to a ticket."""

    usage: ProviderUsage


@attrs.frozen
class Kill(Signal):
    """The process must be killed now."""

    reason: str


@attrs.frozen(kw_only=True)
class Asked(Signal):
    """The provider asks, and waits for `answer`. `request_id` is the wire's; `ask` is what is wanted.

    While an attempt waits for a person, its deadline stands still.
    """

    request_id: str
    ask: Approval | Inquiry


@attrs.frozen(kw_only=True)
class Withdrawn(Signal):
    """What was asked under this id needs no answer any more. Comes before the end of the attempt that asked."""

    request_id: str


@attrs.frozen
class Urgent(Signal):
    """An interrupt or a timeout is on: the caller's credit does not hold the reading back any more."""


Output = Signal | AgentEvent


def soonest(*times_s: float | None) -> float | None:
    """Return the earliest of the times that are set; None when none is. Asked for after every read, so without a list."""
    found: float | None = None
    for time_s in times_s:
        if time_s is not None and (found is None or time_s < found):
            found = time_s
    return found


class Codec(Protocol):
    """A pure state machine of one provider's wire format for one process.
    No I/O, no clock, no thread; never raises on what the process says.

    Every method returns what follows from it, in order: bytes to write, agent events, signals. `deadline_s` is the monotonic time at
    which `tick` wants to be called (None: never). Random ids come from the attempt's receipt and from a counter.
    """

    @property
    def deadline_s(self) -> float | None:
        """When `tick` is due."""
        ...

    @property
    def sent(self) -> bool:
        """Whether an attempt is open whose first byte has been handed out."""
        ...

    def opened(self, now_s: float) -> list[Output]:
        """The process runs: begin the handshake."""
        ...

    def receive(self, line: bytes, now_s: float) -> list[Output]:
        """Take one line of standard output, without its end."""
        ...

    def oversized(self, size: int, now_s: float) -> list[Output]:
        """A line of `size` bytes was longer than the limit and has been dropped."""
        ...

    def start_turn(self, attempt: Attempt, now_s: float) -> list[Output]:
        """Begin an attempt. Only when Ready has come and no attempt is open."""
        ...

    def steer(self, text: str, steer_id: str, now_s: float) -> list[Output] | None:
        """Send text into the open turn; None when it can take none now. `steer_id` is a fresh UUID."""
        ...

    def interrupt(self, now_s: float) -> list[Output]:
        """End the open attempt; held until the provider can take it; harmless when idle or repeated."""
        ...

    def answer(self, request_id: str, answer: Answer, now_s: float) -> list[Output] | None:
        """Answer what the provider asked (`Asked`); None when that is open no more.

        CancelTurn only refuses; the owner interrupts as well.
        """
        ...

    def exited(self, exit_: ProcessExit, stderr_tail: str, now_s: float) -> list[Output]:
        """The process ended and its output is drained.

        Ends the start if it was still open (StartFailed, for a refusal), never the attempt.
        """
        ...

    def consumed(self) -> ProviderUsage | None:
        """What the open attempt is known to have consumed so far (for a death)."""
        ...

    def tick(self, now_s: float) -> list[Output]:
        """A deadline is due."""
        ...


@attrs.frozen(kw_only=True)
class Addressed(Signal):
    """An output of one conversation in a shared process. `key` is the conversation's, as given to `attach`."""

    key: str
    output: Output


class SharedCodec(Protocol):
    """A pure state machine of one process that carries many conversations, each known by its `key`.

    What concerns the process comes bare (Write, Ready after its handshake, StartFailed, Kill), what concerns a conversation comes
    `Addressed`: its own Ready, StartFailed, Renamed, AttemptEnded, events and the rest, with the meanings that they have for `Codec`.
    """

    @property
    def deadline_s(self) -> float | None:
        """When `tick` is due."""
        ...

    @property
    def sent(self) -> bool:
        """Whether an attempt of any conversation is open whose first byte has been handed out."""
        ...

    def opened(self, now_s: float) -> list[Output]:
        """The process runs: begin its handshake."""
        ...

    def receive(self, line: bytes, now_s: float) -> list[Output]:
        """Take one line of standard output."""
        ...

    def oversized(self, size: int, now_s: float) -> list[Output]:
        """A line was longer than the limit: every open attempt that it may have belonged to fails."""
        ...

    def attach(self, key: str, launch: LaunchSpec, now_s: float) -> list[Output]:
        """Open (or resume) a conversation, at once or when the handshake is done. Answered by its Ready or StartFailed."""
        ...

    def detach(self, key: str, now_s: float) -> list[Output]:
        """Nobody holds the conversation any more: end its open attempt's work and forget it. Nothing addressed to it comes after."""
        ...

    def start_turn(self, key: str, attempt: Attempt, now_s: float) -> list[Output]:
        """Begin an attempt."""
        ...

    def steer(self, key: str, text: str, steer_id: str, now_s: float) -> list[Output] | None:
        """Send text into the open turn; None when it can take none now."""
        ...

    def interrupt(self, key: str, now_s: float) -> list[Output]:
        """End the open attempt; harmless when idle or repeated."""
        ...

    def answer(self, key: str, request_id: str, answer: Answer, now_s: float) -> list[Output] | None:
        """Answer what a conversation asked; None when that is open no more."""
        ...

    def exited(self, exit_: ProcessExit, stderr_tail: str, now_s: float) -> list[Output]:
        """The process ended: fail what is still opening, reject pending steers. Attempts are ended by the owner."""
        ...

    def sent_by(self, key: str) -> bool:
        """Whether the conversation's attempt is open and its first byte has been handed out."""
        ...

    def consumed(self) -> ProviderUsage | None:
        """Nothing: a process has no consumption of its own."""
        ...

    def consumed_by(self, key: str) -> ProviderUsage | None:
        """What the conversation's open attempt is known to have consumed so far."""
        ...

    def tick(self, now_s: float) -> list[Output]:
        """A deadline is due."""
        ...


@attrs.frozen(kw_only=True)
class LinkLaunch:
    """What to start for a shared process. `max_conversations`: how many it may carry at once; `settled`: as in `Launch`."""

    argv: tuple[str, ...]
    cwd: pathlib.Path
    env: Mapping[str, str]
    codec: SharedCodec
    startup_timeout_s: float = 60.0
    close_grace_s: float = 5.0
    settled: Callable[[], None] | None = None
    max_conversations: int = 32


@runtime_checkable
class SharedTransport(Protocol):
    """The part of a stream transport whose conversations may share a process. `max_conversations`: how many one may carry at once."""

    @property
    def max_conversations(self) -> int:
        """At least 1; read at each start."""
        ...

    def link_key(self, spec: ConversationSpec) -> Hashable | None:
        """Conversations with one key may share a process; None: a process for each."""
        ...

    def prepare(self, launch: LaunchSpec) -> LaunchSpec:
        """Return the launch with what the provider's records add to it. On the starter thread, before the conversation is attached."""
        ...

    def launch_link(self, spec: ConversationSpec, mark: str) -> LinkLaunch:
        """Return what to start for conversations of `link_key(spec)`. On the starter thread."""
        ...


@runtime_checkable
class StreamTransport(Transport, Protocol):
    """A transport of ours: pure launches for the actors, a blocking face for everybody else."""

    executor: Executor | None

    def check(self) -> str:
        """Find the binary and its version, blocking, bounded by `check_timeout`; return the version.

        Raises CliNotFoundError, CliCheckError. Cached.
        """
        ...

    def validate(self, spec: ConversationSpec, request: TurnRequest | None = None) -> None:
        """Raise ProviderCapabilityError (and kin) for what cannot be done. Pure, at once, on the caller's thread."""

    def flags(self, spec: ConversationSpec, request: TurnRequest) -> Flags:
        """Return what a process must be started with for this turn."""
        ...

    def launch(self, launch: LaunchSpec) -> Launch:
        """Return the command line, the environment and a fresh codec. May look at files, so it runs on the starter thread."""
        ...

    def link_key(self, spec: ConversationSpec) -> Hashable | None:
        """Conversations with one key may share a process; None: a process for each."""
        ...
