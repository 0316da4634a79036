"""Why is a session quiet, since when, until when, and is that too long? Decides it from the policy's state and from agent events. Pure.

A `Pulse` is written by its session's actor alone, with every step and every batch of events; it is read on any thread, at any moment,
without asking the actor: what is written is a time, or a frozen value that replaces the one before. Nothing here keeps a timer: *since*
is stored, *for how long* and *too long* follow when it is read. `StallPolicy` says what too long is and what is done then.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from greenroom.events import AgentEvent, Lifecycle, RateLimitStatus, Stalled, Stderr, ToolCall, ToolResult
from greenroom.model import SessionStatus
from greenroom.policy.commands import Wait, WaitReason
from greenroom.policy.stall import StallAction, StallPolicy
from greenroom.policy.state import Phase, State

__all__ = ["Liveness", "LivenessReason", "Pulse", "RunningTool", "StallAction", "StallPolicy"]

_DETAIL_CHARS = 120
_SAYS_MOST = ("command", "cmd", "file_path", "path", "pattern", "url", "query", "description", "prompt")
_RATE_LIMIT = "rate_limit"


class LivenessReason(enum.Enum):
    """Why a session is quiet. The values are words for people."""

    IDLE = "idle"
    CLOSED = "closed"
    START_SLOT = "waiting for a start slot"
    OPENING = "opening"
    MODEL = "model at work"
    TOOL = "tool running"
    BACKGROUND = "background work"
    REWINDING = "rolling back"
    APPROVAL = "waiting for approval"
    RETRY = "waiting for a retry"
    LIMIT = "waiting for a limit to reset"
    RESTART = "waiting for a restart"
    IN_USE = "waiting for its conversation"
    CALLER = "waiting for its caller"
    STOPPING = "stopping"
    SILENT = "silent too long"


_R = LivenessReason
_WAITS = {WaitReason.RETRY: _R.RETRY, WaitReason.RESTART: _R.RESTART, WaitReason.IN_USE: _R.IN_USE}
# Of other conversations in the same process, or of nobody: no sign that the turn goes on.
_NO_SIGN = frozenset({RateLimitStatus, Stderr, Stalled})


@attrs.frozen(kw_only=True)
class RunningTool:
    """A tool that has been called and has not answered. `detail`: what it was called with, in short, on one line."""

    tool_id: str
    tool: str
    detail: str
    since_monotonic_s: float


@attrs.frozen(kw_only=True)
class Liveness:
    """What a session is at, as of the moment at which it was read. Times are seconds on the room's monotonic clock.

    `since_monotonic_s`: when `reason` began, `for_s` ago. `until_monotonic_s`: when what it waits for comes, if that is known.
    `quiet_s`: how long ago the provider last said anything. `tool`: of those that run (`tools`, oldest first) the one that was called
    last; also where they have been silent too long, or one of them waits for approval.
    """

    reason: LivenessReason
    since_monotonic_s: float
    for_s: float
    quiet_s: float
    until_monotonic_s: float | None = None
    tools: tuple[RunningTool, ...] = ()

    @property
    def tool(self) -> RunningTool | None:
        """The running tool that was called last; None: none runs."""
        return self.tools[-1] if self.tools else None

    @property
    def left_s(self) -> float | None:
        """How long it still waits, as of the moment at which this was read; None: not known."""
        if self.until_monotonic_s is None:
            return None
        return max(0.0, self.until_monotonic_s - self.since_monotonic_s - self.for_s)

    def __str__(self) -> str:
        """Return it in a few words: `tool Bash 12 s`, `waiting for a retry 28 s`."""
        what: str = self.reason.value
        if self.reason is _R.IDLE or self.reason is _R.CLOSED:
            return what
        if self.reason is _R.TOOL and self.tool is not None:
            what = f"tool {self.tool.tool}"
        return f"{what} {self.for_s if self.left_s is None else self.left_s:.0f} s"


@attrs.frozen(kw_only=True)
class _Doing:
    """What is published: all of `Liveness` that does not change by itself."""

    reason: LivenessReason
    since_s: float
    until_s: float | None = None
    tools: tuple[RunningTool, ...] = ()
    passes: bool = False


@attrs.define(kw_only=True, eq=False)
class Pulse:
    """One session's. Every method but `read` is the actor's.

    `heard_s`: when the provider last gave a sign that the turn goes on.
    """

    heard_s: float
    _doing: _Doing = attrs.field(init=False)
    _phase: Phase = Phase.IDLE
    _attempt: tuple[str, int, int] | None = None
    _incarnation: int = 0
    _unwanted: bool = False
    _hung: bool = False
    _connects: bool = False
    _needs_slot: bool = False
    _wait: tuple[LivenessReason, float | None] | None = None
    _provider_wait: tuple[LivenessReason, float] | None = None
    _tools: dict[str, RunningTool] = attrs.field(factory=dict)
    _asks: dict[str, float | None] = attrs.field(factory=dict)
    _own_turn: bool = False
    _tasks: bool = False
    _held: bool = False

    def __attrs_post_init__(self) -> None:
        self._doing = _Doing(reason=_R.IDLE, since_s=self.heard_s)

    # --- what the actor tells

    def stepped(self, state: State, now_s: float) -> None:
        """The policy has made a step."""
        ticket, process = state.ticket, state.process
        incarnation = process.incarnation if process is not None else 0
        running = state.phase is Phase.RUNNING and ticket is not None
        attempt = (ticket.turn_id, ticket.attempt, incarnation) if running and ticket is not None else None
        if incarnation != self._incarnation:
            self._own_turn = self._tasks = False
        if attempt != self._attempt:
            self._tools, self._provider_wait, self._asks, self.heard_s = {}, None, {}, now_s
        self._connects = state.status is SessionStatus.CONNECTING
        if state.phase is not Phase.OPENING and not self._connects:
            self._needs_slot = False
        if state.waiting is None:
            self._wait = None
        elif self._wait is None:
            self._wait = (_WAITS[state.waiting.reason], None)
        self._phase, self._attempt, self._incarnation = state.phase, attempt, incarnation
        self._unwanted = state.closing or (ticket is not None and ticket.interrupted)
        self._hung = process is not None and process.hung is not None
        self._publish(now_s)

    def waits(self, state: State, command: Wait, now_s: float) -> None:
        """The begun turn waits. A retry at the time that the provider named is one that waits for a limit."""
        failure = state.ticket.failure if state.ticket is not None else None
        named = command.reason is WaitReason.RETRY and getattr(failure, "retry_after_s", None) is not None
        self._wait = (_R.LIMIT if named else _WAITS[command.reason], now_s + command.delay_s)
        self._publish(now_s)

    def needs_slot(self, now_s: float, *, needs: bool) -> None:
        """The start waits for a slot, or has it."""
        self._needs_slot = needs
        self._publish(now_s)

    def holds(self, now_s: float, *, hold: bool) -> None:
        """The caller is so far behind that its pipe is not read; what comes of it is no silence of the provider."""
        if hold != self._held:
            self._held = hold
            self.heard_s = now_s
            self._publish(now_s)

    def ends(self) -> None:
        """The session has crashed, and nobody goes on with it."""
        self._phase = Phase.CLOSED
        self._publish(self.heard_s)

    def asks(self, request_id: str, now_s: float, *, until_s: float | None = None) -> None:
        """Somebody is asked for leave or for an answer, and the turn waits for that."""
        self._asks[request_id] = until_s
        self._publish(now_s)

    def answered(self, request_id: str, now_s: float) -> None:
        """The question is settled."""
        if self._asks.pop(request_id, self) is not self:
            self.heard_s = now_s
            self._publish(now_s)

    def heard(self, incarnation: int, events: Iterable[AgentEvent], now_s: float) -> None:
        """The process has said something. On the path of every event: cheap where nothing follows from it."""
        if incarnation != self._incarnation or not incarnation:
            return
        changed = spoke = False
        waited = self._provider_wait
        for event in events:
            kind = type(event)
            if kind in _NO_SIGN:
                continue
            spoke = True
            note = _NOTES.get(kind)
            if note is not None:
                changed |= note(self, event, now_s)
        if spoke:
            self.heard_s = now_s
            if waited is not None and self._provider_wait is waited:
                self._provider_wait, changed = None, True
        if changed:
            self._publish(now_s)

    # --- what anybody reads

    def read(self, now_s: float, policy: StallPolicy | None = None) -> Liveness:
        """Return what the session is at. Any thread."""
        doing, heard_s = self._now(now_s)
        reason, since_s = doing.reason, doing.since_s
        bound_s = _bound_s(reason, policy)
        if bound_s is not None and now_s - heard_s >= bound_s:
            reason, since_s = _R.SILENT, heard_s
        return Liveness(
            reason=reason,
            since_monotonic_s=since_s,
            for_s=max(0.0, now_s - since_s),
            quiet_s=max(0.0, now_s - heard_s),
            until_monotonic_s=doing.until_s,
            tools=doing.tools,
        )

    def stall_due_s(self, now_s: float, policy: StallPolicy) -> float | None:
        """Return when the silence that is on will be a stall; None: what the session is at excuses it."""
        doing, heard_s = self._now(now_s)
        bound_s = _bound_s(doing.reason, policy)
        return None if bound_s is None else heard_s + bound_s

    def at(self, now_s: float) -> str:
        """Return what the turn is at, in words, whether or not that has been too long."""
        doing, _ = self._now(now_s)
        tool = doing.tools[-1] if doing.reason is _R.TOOL else None
        return doing.reason.value if tool is None else f"tool {tool.tool}: {tool.detail}"

    def _now(self, now_s: float) -> tuple[_Doing, float]:
        """A wait of the provider's own passes by itself: from then on its model is expected to say something."""
        doing, heard_s = self._doing, self.heard_s
        if doing.passes and doing.until_s is not None and now_s >= doing.until_s:
            return _Doing(reason=_R.MODEL, since_s=doing.until_s, tools=doing.tools), max(heard_s, doing.until_s)
        return doing, heard_s

    # --- what it comes to

    def _publish(self, now_s: float) -> None:
        reason, until_s, passes = self._judged()
        tools = tuple(self._tools.values()) if self._phase is Phase.RUNNING else ()
        before = self._doing
        if reason is _R.TOOL:
            since_s = tools[-1].since_monotonic_s
        elif reason is before.reason and until_s == before.until_s:
            since_s = before.since_s
        else:
            since_s = now_s
        self._doing = _Doing(reason=reason, since_s=since_s, until_s=until_s, tools=tools, passes=passes)

    def _judged(self) -> tuple[LivenessReason, float | None, bool]:
        match self._phase:
            case Phase.RUNNING:
                return self._running()
            case Phase.OPENING:
                return (_R.START_SLOT if self._needs_slot else _R.OPENING), None, False
            case Phase.WAITING:
                reason, until_s = self._wait if self._wait is not None else (_R.RETRY, None)
                return reason, until_s, False
            case Phase.REWINDING:
                return _R.REWINDING, None, False
            case Phase.CLOSED:
                return _R.CLOSED, None, False
            case _ if self._connects:
                return (_R.START_SLOT if self._needs_slot else _R.OPENING), None, False
            case _:
                return (_R.BACKGROUND if self._own_turn or self._tasks else _R.IDLE), None, False

    def _running(self) -> tuple[LivenessReason, float | None, bool]:
        if self._unwanted:
            return _R.STOPPING, None, False
        if self._hung:
            return _R.RESTART, None, False
        if self._asks:
            known = [until_s for until_s in self._asks.values() if until_s is not None]
            return _R.APPROVAL, min(known, default=None), False
        if self._held:
            return _R.CALLER, None, False
        if self._provider_wait is not None:
            reason, until_s = self._provider_wait
            return reason, until_s, True
        if self._tools:
            return _R.TOOL, None, False
        return (_R.BACKGROUND if self._own_turn else _R.MODEL), None, False

    # --- what events mean

    def _called(self, event: ToolCall, now_s: float) -> bool:
        self._tools[event.tool_id] = RunningTool(
            tool_id=event.tool_id, tool=event.tool, detail=in_short(event.args), since_monotonic_s=now_s
        )
        return True

    def _returned(self, event: ToolResult, _now_s: float) -> bool:
        return self._tools.pop(event.tool_id, None) is not None

    def _lifecycle(self, event: Lifecycle, now_s: float) -> bool:
        if event.delay_s is not None:
            reason = _R.LIMIT if event.about == _RATE_LIMIT else _R.RETRY
            self._provider_wait = (reason, now_s + event.delay_s)
        elif event.ongoing is not None and event.kind == "background turn":
            self._own_turn = event.ongoing
        elif event.ongoing is not None and event.kind == "background tasks":
            self._tasks = event.ongoing
        else:
            return False
        return True


_NOTES: dict[type, Callable[[Pulse, Any, float], bool]] = {
    ToolCall: Pulse._called,  # noqa: SLF001 - its own table
    ToolResult: Pulse._returned,  # noqa: SLF001
    Lifecycle: Pulse._lifecycle,  # noqa: SLF001
}


def _bound_s(reason: LivenessReason, policy: StallPolicy | None) -> float | None:
    if policy is None:
        return None
    if reason is _R.TOOL:
        return policy.tool_after_s
    return policy.after_s if reason is _R.MODEL else None


def in_short(args: Mapping[str, Any]) -> str:
    """Return the argument that says most, on one line: what is run, or which file."""
    if not isinstance(args, Mapping):
        return ""
    said = next((args[key] for key in _SAYS_MOST if key in args), "")
    text = said if isinstance(said, str) else str(said)
    line = " ".join(text[: 4 * _DETAIL_CHARS].split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _DETAIL_CHARS else line[: _DETAIL_CHARS - 1] + "…"
