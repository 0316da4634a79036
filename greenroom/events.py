"""Agent events: what a turn tells while it runs, and the envelope that carries them. Decides nothing; frozen values, safe on any thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import attrs

from greenroom.asks import Answer, PendingApproval, PendingQuestion
from greenroom.history import Account
from greenroom.model import ProviderUsage


class AgentEvent:
    """Base of all agent events. `method` is the name under which a front end knows the kind of event; None: it has none."""

    __slots__ = ()
    method: ClassVar[str | None] = None


@attrs.frozen
class RunStarted(AgentEvent):
    """A process was started for the conversation."""

    argv: tuple[str, ...]


@attrs.frozen
class RunFinished(AgentEvent):
    """A process of the conversation ended; negative: minus the signal's number; None: unknown."""

    exit_code: int | None


@attrs.frozen
class SessionStarted(AgentEvent):
    """The provider named the conversation."""

    session_id: str


@attrs.frozen
class AccountInUse(AgentEvent):
    """Which account the process uses, as it says itself; told when it has started."""

    account: Account


@attrs.frozen
class AssistantText(AgentEvent):
    """Text of the assistant: one whole block, or one piece where partial messages were asked for."""

    method: ClassVar[str] = "item/agentMessage/delta"
    text: str


@attrs.frozen
class Reasoning(AgentEvent):
    """Thinking text of the model."""

    text: str


@attrs.frozen
class ToolCall(AgentEvent):
    """The model calls a tool."""

    method: ClassVar[str] = "item/tool/started"
    tool_id: str
    tool: str
    args: Mapping[str, Any] = attrs.field(hash=False)


@attrs.frozen
class ToolResult(AgentEvent):
    """A tool answered. None: the provider did not say."""

    tool_id: str
    tool: str
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    duration_s: float | None = None


@attrs.frozen
class SkillsDiscovered(AgentEvent):
    """The skills that the provider offers."""

    names: tuple[str, ...]


@attrs.frozen
class SkillInvoked(AgentEvent):
    """The model used a skill."""

    name: str
    source_path: str | None = None
    tool_id: str | None = None


@attrs.frozen
class UsageReport(AgentEvent):
    """What one attempt consumed."""

    usage: ProviderUsage
    cost_usd: float | None = None


@attrs.frozen
class Lifecycle(AgentEvent):
    """A change that fits no other event: a wait and its reason, a compaction, a provider's own retry.

    Where the provider says so: `about`, in its own word, `ongoing`: it begins something that goes on (True) or tells its end (False),
    `delay_s`: it goes on by itself after so many seconds.
    """

    kind: str
    detail: str = ""
    about: str = attrs.field(default="", kw_only=True)
    ongoing: bool | None = attrs.field(default=None, kw_only=True)
    delay_s: float | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Stderr(AgentEvent):
    """A line of the process's standard error."""

    text: str


@attrs.frozen
class RawOutput(AgentEvent):
    """A frame or a line that we do not know, unchanged."""

    text: str


@attrs.frozen
class ProviderError(AgentEvent):
    """The provider reported an error; the turn need not fail of it."""

    message: str


@attrs.frozen
class TurnInterrupted(AgentEvent):
    """The turn ended by an interrupt."""


@attrs.frozen
class ApprovalDenied(AgentEvent):
    """The agent asked for leave and was refused."""

    kind: str
    detail: str = ""


@attrs.frozen
class PermissionsDiffer(AgentEvent):
    """What the provider says of its permissions is not what was `asked`. The start, or the turn, ends with a ProviderCapabilityError."""

    asked: str
    reported: str


@attrs.frozen
class ApprovalRequested(AgentEvent):
    """The agent asks for leave, and the request waits for a person."""

    pending: PendingApproval


@attrs.frozen
class ApprovalResolved(AgentEvent):
    """The request waits no more. `verdict` is what it got, None where nobody gave one.

    `by`: answer, deadline, interrupt, closed, died (its process), withdrawn (by the provider, or its turn ended).
    """

    request_id: str
    verdict: Answer | None
    by: str


@attrs.frozen
class QuestionAsked(AgentEvent):
    """The agent asks the user something, and the question waits for a person."""

    pending: PendingQuestion


@attrs.frozen
class QuestionResolved(AgentEvent):
    """The question waits no more; as with ApprovalResolved."""

    request_id: str
    verdict: Answer | None
    by: str


@attrs.frozen
class RateLimitStatus(AgentEvent):
    """Where a rate limit stands. `resets_at` is Unix time in seconds; `used_fraction` 0 to 1."""

    window: str
    used_fraction: float | None = None
    resets_at: float | None = None
    limit: int | None = None
    window_minutes: int | None = None
    exhausted: bool = False
    raw: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class SteerDelivered(AgentEvent):
    """The provider has accepted the text."""

    text: str


@attrs.frozen
class SteerConsumed(AgentEvent):
    """The text entered the turn's context."""

    text: str


@attrs.frozen
class SteerRejected(AgentEvent):
    """The text did not reach the turn, or it is not known whether it did; it is not sent again."""

    text: str
    reason: str


@attrs.frozen
class TransportDied(AgentEvent):
    """The process died in a turn."""

    cause: str


@attrs.frozen
class TransportRestarted(AgentEvent):
    """A new process took over the conversation."""

    incarnation: int


class Notice(AgentEvent):
    """Base of what a session tells of itself and of its turns. Goes to subscribers, to `stream` and `arun`; not to `run`'s `on_event`.

    `kind` is "session" or "turn", `message` says it in words.
    """

    __slots__ = ()
    kind: ClassVar[str]


@attrs.frozen
class SessionConnecting(Notice):
    """A process is being started for the session, or joined."""

    kind: ClassVar[str] = "session"
    method: ClassVar[str] = "session/connecting"
    message: str


@attrs.frozen
class ThreadOpenRequested(Notice):
    """The provider is asked to resume the conversation `thread_id`, or (None) for a new one."""

    kind: ClassVar[str] = "session"
    method: ClassVar[str] = "session/threadOpenRequested"
    message: str
    thread_id: str | None = None


@attrs.frozen
class ThreadResumeFallback(Notice):
    """The conversation `thread_id` could not be resumed; a new one takes its place."""

    kind: ClassVar[str] = "session"
    method: ClassVar[str] = "session/threadResumeFallback"
    message: str
    thread_id: str


@attrs.frozen
class SessionReady(Notice):
    """The process is ready. `thread_id` is the conversation that it is in, if that has an id already."""

    kind: ClassVar[str] = "session"
    method: ClassVar[str] = "session/ready"
    message: str
    thread_id: str | None = None


@attrs.frozen
class SessionFailed(Notice):
    """The process that was to be connected, outside of a turn, is not there; the next turn tries again."""

    kind: ClassVar[str] = "session"
    method: ClassVar[str] = "session/failed"
    message: str


@attrs.frozen
class SessionEnded(Notice):
    """The session is over: nothing of it runs, and no event follows."""

    kind: ClassVar[str] = "session"
    method: ClassVar[str] = "session/closed"
    message: str = "Session stopped"


@attrs.frozen
class TurnStarted(Notice):
    """The turn has begun."""

    kind: ClassVar[str] = "turn"
    method: ClassVar[str] = "turn/started"
    message: str = "Turn started"


@attrs.frozen
class TurnCompleted(Notice):
    """The turn has ended: `state` is "completed", "interrupted" or "error", and `message` then says which error."""

    kind: ClassVar[str] = "turn"
    method: ClassVar[str] = "turn/completed"
    message: str
    state: str


@attrs.frozen
class EventsMissed(AgentEvent):
    """In place of events that this subscriber does not get: `count` of those numbered `first_sequence` to `last_sequence`.

    They are gone from the history, or the subscriber was too slow for them. It is made for the one subscriber, no part of the session's
    own numbering.
    """

    method: ClassVar[str] = "events/missed"
    count: int
    first_sequence: int
    last_sequence: int


@attrs.frozen
class Stalled(AgentEvent):
    """Nothing was heard of the running turn for `quiet_s` seconds. `reason`: what it was at; `action`: what is done about it."""

    reason: str
    quiet_s: float
    action: str = "report"


@attrs.frozen
class SessionEvent:
    """The envelope, stamped by the session's actor alone.

    `sequence` counts from 1 in the session without gaps as seen by an attached caller; `at_monotonic_s` is the room's
    clock in seconds, `at` wall time with a zone; `incarnation` is the number of the process, 0 where none is involved.
    """

    session_id: str
    turn_id: str | None
    incarnation: int
    sequence: int
    at_monotonic_s: float
    at: dt.datetime
    event: AgentEvent

    @property
    def method(self) -> str | None:
        """The name under which a front end knows the kind of event, for instance `turn/started`; None: it has none."""
        return self.event.method


class EventHandler(Protocol):
    """An object that takes bare agent events."""

    def on_event(self, event: AgentEvent) -> None:
        """Take one event."""


class SessionEventHandler(Protocol):
    """An object that takes agent events in their envelopes."""

    def on_event(self, event: SessionEvent) -> None:
        """Take one event."""


EventCallback = Callable[[AgentEvent], None]
SessionEventCallback = Callable[[SessionEvent], None]
