"""What a run shows: one row a task, fed by agent events. Decides what counts as a change worth a line. Pure; one thread.

`Board` knows nothing of terminals: `view.py` draws it, `reporter.py` decides when.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from greenroom.cli.results import Outcome, TaskRecord
from greenroom.cli.safe_text import one_line
from greenroom.events import (
    AgentEvent,
    ApprovalDenied,
    AssistantText,
    Lifecycle,
    Reasoning,
    SessionEvent,
    Stalled,
    SteerConsumed,
    SteerRejected,
    ToolCall,
    ToolResult,
    TransportDied,
    TransportRestarted,
    UsageReport,
)
from greenroom.liveness import Liveness
from greenroom.model import ProviderUsage, TokenUsage
from greenroom.policy.commands import WaitReason


class State(enum.Enum):
    """What a row is doing. The values are the words on the screen."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RETRY_WAIT = "retry wait"
    RESTARTING = "restarting"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    NOT_STARTED = "not started"


ACTIVE = frozenset({State.STARTING, State.RUNNING, State.RETRY_WAIT, State.RESTARTING})
BAD = frozenset({State.FAILED, State.INTERRUPTED, State.CANCELLED})
_ENDED = {outcome: State(outcome.value.replace("_", " ")) for outcome in Outcome}
_OUR_WAITS = frozenset({"wait", "waiting", "retry wait", WaitReason.RETRY.value})
_TOOL_KEYS = ("command", "file_path", "path", "pattern", "url", "description")


@attrs.define(kw_only=True)
class Row:
    """One task on the board. Times are monotonic seconds; `now` is what it does, on one harmless line.

    `liveness` tells, at any moment, what its session is at; None before it has one.
    """

    key: str
    session: str = ""
    state: State = State.QUEUED
    now: str = ""
    turns: int = 0
    retries: int = 0
    restarts: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    liveness: Callable[[], Liveness] | None = None

    def seconds(self, now_s: float) -> float | None:
        """Return how long it has been running, or ran; None before it began."""
        return None if self.started_s is None else (now_s if self.ended_s is None else self.ended_s) - self.started_s


@attrs.frozen
class Change:
    """Something worth a line where there is no table."""

    key: str
    text: str


def bare_event(event: AgentEvent | SessionEvent) -> AgentEvent:
    """Return the event without its envelope."""
    return event.event if isinstance(event, SessionEvent) else event


def is_retry_wait(event: AgentEvent) -> bool:
    """Whether a wait of ours before a retry begins; the provider's own retries are not meant."""
    return isinstance(event, Lifecycle) and event.kind in _OUR_WAITS and WaitReason.RETRY.value in f"{event.kind} {event.detail}"


class Board:
    """All rows of a run, in file order. Each method returns the change to print, if it was one."""

    def __init__(self, rows: Iterable[tuple[str, str]], *, title: str = "greenroom", started_s: float = 0.0) -> None:
        self.rows = {key: Row(key=key, session=session) for key, session in rows}
        self.title = title
        self.note = ""
        self.started_s = started_s

    def began(self, key: str, now_s: float) -> Change | None:
        """A task was taken up."""
        row = self.rows[key]
        row.state, row.started_s, row.turns, row.now = State.STARTING, now_s, row.turns + 1, ""
        return Change(key, "started")

    def opened(self, key: str, liveness: Callable[[], Liveness]) -> None:
        """The task has its session; `liveness` reads what that is at."""
        self.rows[key].liveness = liveness

    def event(self, key: str, event: AgentEvent | SessionEvent) -> Change | None:
        """Take one event of the task's turn."""
        row = self.rows[key]
        return None if row.ended_s is not None else _apply(row, bare_event(event))

    def ended(self, record: TaskRecord, now_s: float) -> Change | None:
        """Take a task's outcome."""
        row = self.rows[record.id]
        row.state, row.ended_s, row.liveness = _ENDED[record.outcome], now_s, None
        row.retries, row.restarts = max(row.retries, record.retries), max(row.restarts, record.restarts)
        if record.usage is not None:
            row.tokens = _count(TokenUsage(**record.usage["tokens"]))
        if record.cost_usd is not None:
            row.cost_usd = record.cost_usd
        row.now = one_line(str(record.error["message"]) if record.error else record.text)
        return Change(record.id, f"{row.state.value}{f': {row.now}' if record.error else ''}")

    def done_before(self, key: str) -> None:
        """A task was done in an earlier run."""
        row = self.rows[key]
        row.state, row.now = State.DONE, "in an earlier run"

    def counts(self) -> dict[State, int]:
        """Return how many rows are in each state that occurs, in the order of the states."""
        states = [row.state for row in self.rows.values()]
        return {state: count for state in State if (count := states.count(state))}


def _apply(row: Row, event: AgentEvent) -> Change | None:
    if isinstance(event, UsageReport):
        _consume(row, event.usage, event.cost_usd)
    elif doing := _activity(event):
        row.state, row.now = State.RUNNING, one_line(doing)
    else:
        return _change(row, event)
    return None


def _activity(event: AgentEvent) -> str:
    """Return what the agent does, where the event says so: the last tool or text."""
    match event:
        case AssistantText(text) | Reasoning(text):
            return text.strip()
        case ToolCall():
            return f"{event.tool} {_argument(event.args)}"
        case ToolResult():
            return f"{event.tool} → {event.stdout or event.stderr}"
        case _:
            return ""


def _change(row: Row, event: AgentEvent) -> Change | None:
    match event:
        case TransportDied(cause):
            return _turns_to(row, State.RESTARTING, f"died: {cause}")
        case TransportRestarted(incarnation):
            row.restarts += 1
            return _turns_to(row, State.RUNNING, f"restarted (process {incarnation})")
        case Stalled(reason, quiet_s):
            return _turns_to(row, row.state, f"silent for {quiet_s:g} s ({reason})")
        case Lifecycle(kind, detail):
            return _lifecycle(row, one_line(f"{kind} {detail}"), waits=is_retry_wait(event))
        case SteerConsumed(text):
            return _turns_to(row, State.RUNNING, f"steered: {text}")
        case SteerRejected(text, reason):
            return _turns_to(row, row.state, f"steer refused ({reason}): {text}")
        case ApprovalDenied(kind, detail):
            return _turns_to(row, row.state, f"denied {kind}: {detail}")
        case _:
            return None


def _turns_to(row: Row, state: State, text: str) -> Change:
    row.state, row.now = state, one_line(text)
    return Change(row.key, row.now)


def _lifecycle(row: Row, text: str, *, waits: bool) -> Change | None:
    if waits:
        row.retries += 1
        return _turns_to(row, State.RETRY_WAIT, text)
    row.now = text
    return None


def _consume(row: Row, usage: ProviderUsage, cost_usd: float | None) -> None:
    row.tokens += _count(usage.tokens)
    cost = cost_usd if cost_usd is not None else usage.total_cost_usd
    row.cost_usd += cost or 0.0


def _count(tokens: TokenUsage) -> int:
    return tokens.total_input + tokens.output


def _argument(args: Any) -> str:
    """Return the argument that says most: what is run, or which file."""
    return next((str(args[key]) for key in _TOOL_KEYS if key in args), "") if hasattr(args, "__contains__") else ""
