"""One thread of a server: how it is opened, and what each of its notifications is for. What they mean for a turn is decided in `turns.py`.

Pure; called by the link's codec only, which addresses what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from greenroom.errors import CliCheckError, GreenroomError
from greenroom.events import Lifecycle, PermissionsDiffer, RawOutput
from greenroom.transports.base import LaunchSpec, Output, Ready, Renamed, StartFailed, Write
from greenroom.transports.codex import params
from greenroom.transports.codex.classify import ARCHIVED, refused_open
from greenroom.transports.codex.config import CodecConfig
from greenroom.transports.codex.desk import Pending, RequestDesk
from greenroom.transports.codex.lines import Frame, obj, rows, text
from greenroom.transports.codex.params import View
from greenroom.transports.codex.state import History, Phase
from greenroom.transports.codex.turns import CLEAN, Turns, within

_Handler = Callable[[Frame, float], Iterator[Output]]

#: Known, and of no use to anybody: progress marks that another frame tells better, and what concerns other clients.
DELTAS = (
    *("item/agentMessage/delta", "item/plan/delta", "item/reasoning/summaryTextDelta", "item/reasoning/summaryPartAdded"),
    *("item/reasoning/textDelta", "item/commandExecution/outputDelta", "item/commandExecution/terminalInteraction"),
    *("item/fileChange/outputDelta", "item/fileChange/patchUpdated", "item/mcpToolCall/progress", "turn/diff/updated"),
)
QUIET = frozenset(
    {
        *DELTAS,
        *("thread/started", "thread/readState/changed", "thread/goal/cleared", "thread/goal/updated"),
        *("thread/name/updated", "thread/archived", "thread/unarchived", "thread/compacted"),
        *("thread/queue/changed", "thread/prediction/updated", "thread/environment/connected", "thread/environment/disconnected"),
        *("turn/plan/updated", "turn/moderationMetadata", "hook/started", "hook/completed"),
        *("item/autoApprovalReview/started", "item/autoApprovalReview/completed", "deprecationNotice", "model/verification"),
        "model/safetyBuffering/updated",
    }
)


class Conversation:
    """A thread with its turns."""

    def __init__(self, config: CodecConfig, desk: RequestDesk, launch: LaunchSpec) -> None:
        self.launch = launch
        self.turns = Turns(config, desk, launch, owner=self)
        self._phase = Phase.WAITING
        self._config = config
        self._desk = desk
        self._was_archived = False
        self._view = View.FULL
        self._handlers: dict[str, _Handler] = {
            "turn/started": self.turns.turn_started,
            "turn/completed": self.turns.turn_completed,
            "thread/status/changed": self.turns.status_changed,
            "item/started": self.turns.item_started,
            "item/completed": self.turns.item_completed,
            "thread/tokenUsage/updated": self.turns.token_usage,
            "error": self.turns.error_notice,
            "warning": self._warning,
            "guardianWarning": self._warning,
            "mcpServer/startupStatus/updated": self._mcp_status,
            "model/rerouted": self._rerouted,
            "thread/settings/updated": self._settings,
            "thread/closed": self._closed,
            "serverRequest/resolved": self.turns.request_resolved,
        }

    @property
    def phase(self) -> Phase:
        """How far it is."""
        return Phase.LOST if self.turns.lost else self._phase

    @property
    def thread_id(self) -> str | None:
        """The thread, once the server has named it."""
        return self.turns.thread_id

    # --- the thread ----------------------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> Iterator[Output]:
        """Ask for the thread."""
        self._phase = Phase.OPENING
        if self.launch.resume_id is None:
            yield self._ask("thread/start", params.thread_start(self.launch, self._config.marks), now_s)
        else:
            yield self._ask("thread/resume", params.thread_resume(self.launch, self._config.marks, self._view), now_s)

    def line_lost(self, what: str, now_s: float) -> Iterator[Output]:
        """A line that was too long may have been ours: the answer to a resume is asked for again, shorter; an attempt fails."""
        if self._phase is Phase.OPENING and self.launch.resume_id is not None and (shorter := self._view.shorter) is not None:
            self._view = shorter
            yield from self.begin(now_s)
        yield from self.turns.line_lost(what, now_s)

    def _ask(self, method: str, asked: Frame, now_s: float) -> Write:
        return self._desk.ask(method, asked, owner=self, until_s=now_s + self._config.startup_timeout_s)

    def abandon(self) -> None:
        """Nobody holds it any more."""
        self._phase, self.turns.open = Phase.LOST, None

    def fail_start(self, error: GreenroomError) -> StartFailed:
        """The thread does not open."""
        self._phase = Phase.LOST
        return StartFailed(error)

    def _opened(self, reply: Frame, error: Any, now_s: float) -> Iterator[Output]:
        if self._phase is not Phase.OPENING:
            return
        if error is not None:
            yield from self._open_refused(error, now_s)
            return
        if self._has_no_history(reply) and self._view is not View.WHOLE:
            self._view = View.WHOLE
            yield from self.begin(now_s)
            return
        thread_id = self.turns.thread_id = text(obj(reply.get("thread")).get("id")) or None
        if thread_id is None:
            yield self.fail_start(CliCheckError(self._config.argv[0], "the server named no thread"))
        elif (differs := params.differing(self.launch, *_permissions(reply, "sandbox"))) is not None:
            yield PermissionsDiffer(*differs)
            yield self.fail_start(params.refused(*differs))
        else:
            self._phase = Phase.READY
            self._learn(reply)
            yield Renamed(thread_id)
            yield Lifecycle("model", f"{reply.get('model')} ({reply.get('modelProvider')})")
            yield Ready(thread_id)

    def _has_no_history(self, reply: Frame) -> bool:
        """Whether a resume was answered without any: what a death has cut could not be found then."""
        is_empty = not rows(obj(reply.get("thread")).get("turns")) and not isinstance(reply.get("initialTurnsPage"), dict)
        return self.launch.resume_id is not None and is_empty

    def _learn(self, reply: Frame) -> None:
        """Take up what the thread brings along, also a turn that runs: then it was loaded already."""
        thread, turns = obj(reply.get("thread")), self.turns
        page = rows(obj(reply.get("initialTurnsPage")).get("data")) or rows(thread.get("turns"))[::-1]
        turns.history = History.of(page)
        turns.modes.learn(turns.thread_id or "", reply)
        if obj(thread.get("status")).get("type") == "active" and turns.history.last_status == "inProgress":
            turns.active = text(page[0].get("id")) or None

    def _open_refused(self, error: Any, now_s: float) -> Iterator[Output]:
        resume_id = self.launch.resume_id
        if resume_id is not None and not self._was_archived and ARCHIVED.search(text(obj(error).get("message"))):
            # A thread is given up by way of the archive, and a death in between leaves it there.
            self._was_archived = True
            yield self._ask("thread/unarchive", {"threadId": resume_id}, now_s)
        else:
            yield self.fail_start(refused_open(error, resume_id=resume_id, argv=self._config.argv))

    # --- answers -------------------------------------------------------------------------------------------------------

    def answered(self, pending: Pending, reply: Frame, error: Any, now_s: float) -> Iterator[Output]:
        """The server answered one of our requests; `error` is None for a result."""
        if pending.method in {"thread/start", "thread/resume"}:
            yield from self._opened(reply, error, now_s)
        elif pending.method == "thread/unarchive":
            yield from self.begin(now_s)
        elif pending.method == "turn/start":
            yield from self.turns.turn_answered(pending, reply, error, now_s)
        elif pending.method == "turn/steer":
            yield from self.turns.steer_answered(pending, error)
        elif pending.method == "turn/interrupt":
            yield from self.turns.interrupt_answered(pending, error, now_s)
        elif pending.method == CLEAN:
            yield from self.turns.write(now_s)

    def expired(self, pending: Pending, now_s: float) -> Iterator[Output]:
        """A request of ours got no answer in time. An interrupt without one is bounded by its stop."""
        if self._phase is Phase.OPENING:
            why = f"no answer to {pending.method} {within(self._config.startup_timeout_s)}"
            yield self.fail_start(CliCheckError(self._config.argv[0], why))
        elif pending.method == "turn/start":
            yield from self.turns.turn_unanswered(pending, now_s)
        elif pending.method == "turn/steer":
            yield from self.turns.reject(pending.subject, "delivery unknown: the server did not answer")
        elif pending.method == CLEAN:
            yield from self.turns.write(now_s)

    # --- notices -------------------------------------------------------------------------------------------------------

    def notice(self, method: str, fields: Frame, line: bytes, now_s: float) -> Iterator[Output]:
        """Take a notification about this thread."""
        if self.phase is not Phase.READY:
            return
        handler = self._handlers.get(method)
        if handler is not None:
            yield from handler(fields, now_s)
        elif method not in QUIET:
            yield RawOutput(line.decode("utf-8", "replace"))

    def _mcp_status(self, fields: Frame, now_s: float) -> Iterator[Output]:
        if fields.get("status") == "failed":
            yield Lifecycle("mcp server", f"{text(fields.get('name'))} did not start: {text(fields.get('error'))}")

    def _warning(self, fields: Frame, now_s: float) -> Iterator[Output]:
        yield Lifecycle("warning", text(fields.get("message")))

    def _rerouted(self, fields: Frame, now_s: float) -> Iterator[Output]:
        self.turns.modes.model = text(fields.get("toModel")) or self.turns.modes.model
        yield Lifecycle("model fallback", f"{text(fields.get('fromModel'))} to {text(fields.get('toModel'))}: {text(fields.get('reason'))}")

    def _settings(self, fields: Frame, now_s: float) -> Iterator[Output]:
        """The thread's settings have changed, by a turn of ours or by somebody else's doing."""
        told = obj(fields.get("threadSettings"))
        differs = params.differing(self.launch, *_permissions(told, "sandboxPolicy"))
        yield from self.turns.settings(differs, obj(told.get("collaborationMode")).get("mode"), now_s)

    def _closed(self, fields: Frame, now_s: float) -> Iterator[Output]:
        yield Lifecycle("thread closed", "the server has unloaded the thread")


def _permissions(said: Frame, sandbox: str) -> tuple[Any, Any, Any]:
    return said.get(sandbox), said.get("approvalPolicy"), said.get("approvalsReviewer")
