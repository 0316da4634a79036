"""Runs a plan: decides which task goes next, and what a stop, a failure or a budget means for those that have not begun.

Everything happens on one loop; calls that may block go to `Offload`. Of agents it knows only the ports of `engine.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from greenroom.cli.engine import AgentPort, RoomPort, SessionPort
from greenroom.cli.offload import Lane, Offload
from greenroom.cli.plan import Plan
from greenroom.cli.progress import bare_event, is_retry_wait
from greenroom.cli.requests import request_of
from greenroom.cli.results import Outcome, Tally, TaskRecord, record_of_error, record_of_turn, record_without_turn
from greenroom.cli.stopping import StopRequest
from greenroom.cli.tasks import AgentSettings, Task
from greenroom.errors import CliCheckError, CliNotFoundError, GreenroomError, SessionCrashedError, SessionStateError
from greenroom.events import AgentEvent, AssistantText, SessionEvent, TransportRestarted
from greenroom.liveness import Liveness

FORCED_DEADLINE_S = 1.0
_AFTER_FORCE_S = 2.0  # what settling may still take once the room says that it is closed
_STOPPED = "the run was stopped before this task began"


class Progress(Protocol):
    """Who is told how the run goes. Must not raise."""

    def began(self, key: str) -> None:
        """A task was taken up."""

    def opened(self, key: str, liveness: Callable[[], Liveness]) -> None:
        """It has its session; `liveness` reads, at any moment, what that is at."""

    def event(self, key: str, event: AgentEvent | SessionEvent) -> None:
        """Its turn told something."""

    def ended(self, record: TaskRecord) -> None:
        """It has its outcome."""

    def note(self, text: str) -> None:
        """Something about the run as a whole."""


class Log(Protocol):
    """Where records are kept. Blocks."""

    def append(self, record: TaskRecord) -> None:
        """Keep a record. Raises OSError."""


class Unknown(enum.Enum):
    """What becomes of a task that a run which died had sent to the provider, without seeing its end."""

    CONTINUE = "continue"
    RERUN = "rerun"
    FAIL = "fail"


@attrs.frozen(kw_only=True)
class Limits:
    """What bounds a run. `max_cost_usd` stops the admission of tasks, and lets those that run end.

    `unknown`: the run is journalled, and this is what becomes of tasks with an unknown outcome; None: it is not. `grace_s`: how long
    running turns may go on once the run is told to stop.
    """

    parallel: int = 8
    max_cost_usd: float | None = None
    unknown: Unknown | None = None
    grace_s: float = 0.0


class UnknownOutcomeError(GreenroomError):
    """A run that died had sent the task to the provider, and nobody knows how it ended."""

    hint = "--unknown continue takes it up where it was cut, --unknown rerun begins it anew"

    def __init__(self, task_id: str, turn_id: str) -> None:
        self.task_id = task_id
        self.turn_id = turn_id
        super().__init__(f"task {task_id!r} was sent as turn {turn_id!r} by a run that died; its outcome is unknown")


@attrs.define(kw_only=True)
class _Held:
    """A session that is open. `live`: the ticket of the turn that runs; `spent_usd`: what its tasks were seen to cost."""

    session: SessionPort
    live: Any = None
    spent_usd: float = 0.0
    parting: asyncio.Future[None] | None = None


class Runner:
    """One run of one plan. `done` holds the records of tasks that an earlier run did."""

    def __init__(
        self,
        plan: Plan,
        *,
        room: RoomPort,
        agents: Callable[[AgentSettings], AgentPort],
        progress: Progress,
        offload: Offload,
        stop: StopRequest,
        limits: Limits = Limits(),
        log: Log | None = None,
        done: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._plan = plan
        self._room = room
        self._agents = agents
        self._progress = progress
        self._offload = offload
        self._stop = stop
        self._limits = limits
        self._log = log
        self._done = done or {}
        self._outcomes: dict[str, Outcome] = dict.fromkeys(self._done, Outcome.DONE)
        self._records: dict[str, TaskRecord] = {}
        self._halted: str | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._running: dict[asyncio.Future[TaskRecord], Task] = {}
        self._held: dict[tuple[str, str], _Held] = {}
        self._conversations = self._known_conversations()
        self._gone_usd = 0.0
        self._tallies: dict[str, Tally] = {}
        self._partings: set[asyncio.Future[None]] = set()
        self.trouble: list[str] = []

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The outcome of every task, earlier runs included."""
        return self._outcomes

    async def run(self) -> dict[str, TaskRecord]:
        """Run it. Returns the record of each task that this run ended; every task has exactly one outcome then."""
        signals: dict[asyncio.Future[Any], Callable[[], Any]] = {
            asyncio.ensure_future(self._stop.in_order.wait()): self._stop_in_order,
            asyncio.ensure_future(self._stop.by_force.wait()): self._stop_by_force,
        }
        try:
            await self._loop(signals)
        finally:
            for waiter in signals:
                waiter.cancel()
            if self._grace is not None:
                self._grace.cancel()
        for task in self._plan.tasks:
            if task.id not in self._outcomes:
                await self._finish(record_without_turn(task, Outcome.NOT_STARTED, self._halted or _STOPPED))
        if not self._stop.by_force.is_set():
            await asyncio.gather(*self._partings)
        return self._records

    async def _loop(self, signals: dict[asyncio.Future[Any], Callable[[], Any]]) -> None:
        while True:
            self._admit()
            if not self._running:
                return
            ended, _ = await asyncio.wait({*self._running, *signals}, return_when=asyncio.FIRST_COMPLETED)
            for future in sorted(ended, key=lambda future: future not in signals):
                if future in signals:
                    await signals.pop(future)()
                elif (task := self._running.pop(future, None)) is not None:
                    await self._ended(task, future.result())

    @property
    def _ending(self) -> bool:
        """Whether no further task begins. A stop holds from the moment it is asked for, not from when the loop gets to it."""
        return self._halted is not None or self._stop.asked

    # --- which task goes next ----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        self._check_budget()
        while not self._ending and len(self._running) < self._limits.parallel:
            task = self._next_ready()
            if task is None:
                return
            self._progress.began(task.id)
            self._running[asyncio.ensure_future(self._perform(task))] = task

    def _next_ready(self) -> Task | None:
        """Return the first task that may begin; one whose session is already open first, so that few processes sit idle."""
        taken = {task.id for task in self._running.values()}
        ready = [task for task in self._plan.tasks if task.id not in taken and task.id not in self._outcomes and self._is_ready(task)]
        return next((task for task in ready if task.session_key in self._held), ready[0] if ready else None)

    def _is_ready(self, task: Task) -> bool:
        return all(other in self._outcomes for other in self._plan.before(task))

    def _check_budget(self) -> None:
        limit = self._limits.max_cost_usd
        if limit is not None and self._halted is None and self._cost_usd() >= limit:
            self._halt(f"the limit of ${limit:g} is reached")

    def _cost_usd(self) -> float:
        return self._gone_usd + sum(_spent(held) for held in self._held.values())

    def _halt(self, why: str) -> None:
        self._halted = why
        self._progress.note(f"{why}; no further task begins")

    # --- one task ------------------------------------------------------------------------------------------------------------

    async def _perform(self, task: Task) -> TaskRecord:
        started_s = asyncio.get_running_loop().time()
        self._tallies[task.id] = Tally()
        try:
            record = await self._turn(task, started_s)
        except asyncio.CancelledError as error:  # only a forced stop cancels
            record = self._record_error(task, error, started_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this task's outcome, and the others go on
            record = self._record_error(task, error, started_s)
        return record

    async def _turn(self, task: Task, started_s: float) -> TaskRecord:
        held = await self._open(task)
        self._progress.opened(task.id, lambda: held.session.liveness)
        if self._stop.asked:
            return record_without_turn(task, Outcome.NOT_STARTED, _STOPPED)
        ticket = await self._offload(Lane.OPEN, self._prepare, task, held.session)
        self._tally(task.id, turn_id=ticket.turn_id)
        if self._stop.asked:  # prepared while the user asked to stop: it never runs
            held.session.interrupt(ticket)
            return attrs.evolve(record_without_turn(task, Outcome.CANCELLED, _STOPPED), turn_id=ticket.turn_id)
        held.live = ticket
        try:
            turn = await held.session.arun(ticket, on_event=lambda event: self._heard(task.id, event))
        finally:
            held.live = None
            self._tally(task.id, conversation_id=held.session.conversation_id)
        record = record_of_turn(task, turn, _since_ms(started_s), said=self._tallies[task.id].text)
        held.spent_usd += record.cost_usd or 0.0
        return record

    def _prepare(self, task: Task, session: SessionPort) -> Any:
        """Name the task's turn. In a journalled run it is the one that an earlier run named, unless that one ended badly. Blocks."""
        request = request_of(task)
        if self._limits.unknown is None:
            return session.prepare_turn(request)
        for number in itertools.count(1):
            key = f"{task.id}:{task.hash}:{number}"
            self._decide(task, key)
            ticket = session.prepare_turn(request, key=key)
            if not ticket.ended or _ended_well(ticket):
                return ticket
        raise AssertionError("unreachable")

    def _decide(self, task: Task, key: str) -> None:
        for found in self._room.recovered():
            if found.key == key and found.verdict.name == "UNKNOWN":
                if self._limits.unknown is Unknown.FAIL:
                    raise UnknownOutcomeError(task.id, found.turn_id)
                if self._limits.unknown is Unknown.RERUN:
                    found.discard()

    async def _open(self, task: Task) -> _Held:
        key = task.session_key
        held = self._held.get(key)
        if held is None:
            session = await self._offload(Lane.OPEN, self._new_session, task, self._conversations.get(key))
            held = self._held[key] = _Held(session=session)
        if held.parting is not None:  # it gave its process up while there was nothing to do
            await held.parting
            held.parting = None
        return held

    def _new_session(self, task: Task, resume_id: str | None) -> SessionPort:
        agent, settings = self._agents(task.settings), task.settings
        if self._limits.unknown is None:
            return agent.session(settings.cwd, resume_id=resume_id)
        return agent.session(settings.cwd, session_id="/".join((*task.session_key, _fingerprint(task))))

    def _record_error(self, task: Task, error: BaseException, started_s: float) -> TaskRecord:
        self._tally(task.id, duration_ms=_since_ms(started_s))
        record = record_of_error(task, error, self._tallies[task.id], stopping=self._stop.asked)
        held = self._held.get(task.session_key)
        if held is not None:
            held.spent_usd += record.cost_usd or 0.0
        if isinstance(error, CliNotFoundError | CliCheckError) and self._halted is None:
            self._halt(str(error))  # it would be the same for every other task
        if isinstance(error, SessionCrashedError | SessionStateError):
            self._forget_session(task.session_key)  # the next task of the session opens the conversation anew
        return record

    def _heard(self, task_id: str, event: AgentEvent | SessionEvent) -> None:
        tally, bare = self._tallies[task_id], bare_event(event)
        if isinstance(bare, TransportRestarted):
            self._tally(task_id, restarts=tally.restarts + 1)
        elif is_retry_wait(bare):
            self._tally(task_id, retries=tally.retries + 1)
        elif isinstance(bare, AssistantText):
            self._tally(task_id, text=bare.text)
        self._progress.event(task_id, event)

    def _tally(self, task_id: str, **changes: Any) -> None:
        self._tallies[task_id] = attrs.evolve(self._tallies[task_id], **changes)

    # --- after a task --------------------------------------------------------------------------------------------------------

    async def _ended(self, task: Task, record: TaskRecord) -> None:
        if record.conversation_id is not None:
            self._conversations[task.session_key] = record.conversation_id
        await self._finish(record)
        await self._skip_followers(record)
        self._part_idle_sessions()

    async def _finish(self, record: TaskRecord) -> None:
        """Give the task its one outcome: kept on the disk first, then shown."""
        self._outcomes[record.id] = record.outcome
        self._records[record.id] = record
        if self._log is not None:
            try:
                await self._offload(Lane.DISK, self._log.append, record)
            except OSError as error:
                self._lose(record, error)
        self._progress.ended(record)

    def _lose(self, record: TaskRecord, error: OSError) -> None:
        self.trouble.append(f"the result of {record.id!r} could not be written: {error.strerror or error}")
        if self._halted is None:
            self._halt("results cannot be written")  # more work would be paid for and lost

    async def _skip_followers(self, record: TaskRecord) -> None:
        """Skip what was to come after a task that did not end well. After a stop the rest is not skipped but not started."""
        failed = [record] if self._is_bad(record) else []
        for bad in failed:  # grows while it is read
            for task in self._plan.tasks:
                if bad.id in task.after and task.id not in self._outcomes:
                    why = f"task {bad.id!r} ended as {bad.outcome.value}, and this one comes after it"
                    skipped = record_without_turn(task, Outcome.SKIPPED, why)
                    failed.append(skipped)
                    await self._finish(skipped)

    def _is_bad(self, record: TaskRecord) -> bool:
        if record.outcome in {Outcome.FAILED, Outcome.SKIPPED}:
            return True
        return record.outcome is not Outcome.DONE and not self._ending

    def _part_idle_sessions(self) -> None:
        """End sessions that have no task left, and take the process from those whose next task has to wait."""
        waiting = {task.session_key: task for task in reversed(self._plan.tasks) if task.id not in self._outcomes}
        for key, held in list(self._held.items()):
            if held.live is not None or held.parting is not None or any(task.session_key == key for task in self._running.values()):
                continue
            task = waiting.get(key)
            if task is None:
                self._forget_session(key)
            elif not self._is_ready(task):
                held.parting = self._part(held.session.release)

    def _forget_session(self, key: tuple[str, str]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._gone_usd += _spent(held)
            self._part(held.session.close)

    def _part(self, call: Callable[[], None]) -> asyncio.Future[None]:
        """Release or close a session beside the run, which does not wait for it."""
        parting = asyncio.ensure_future(self._parting(call))
        self._partings.add(parting)
        parting.add_done_callback(self._partings.discard)
        return parting

    async def _parting(self, call: Callable[[], None]) -> None:
        try:
            await self._offload(Lane.CLOSE, call)
        except GreenroomError as error:  # a finished result is not undone by an end that fails
            self.trouble.append(str(error))

    def _known_conversations(self) -> dict[tuple[str, str], str]:
        """Return the conversations of shared sessions that earlier runs left, each from its last task that was done."""
        return {
            task.session_key: str(record["conversation_id"])
            for task in self._plan.tasks
            if task.session is not None and (record := self._done.get(task.id)) is not None and record.get("conversation_id")
        }

    # --- stopping ------------------------------------------------------------------------------------------------------------

    async def _stop_in_order(self) -> None:
        self._halted = _STOPPED
        if self._limits.grace_s > 0:
            self._progress.note(f"running turns have {self._limits.grace_s:g} s to end; Ctrl-C again to force")
            self._grace = asyncio.get_running_loop().call_later(self._limits.grace_s, self._interrupt)
        else:
            self._interrupt()

    def _interrupt(self) -> None:
        live = [held for held in self._held.values() if held.live is not None]
        self._progress.note(f"interrupting {len(live)} running turns; Ctrl-C again to force")
        for held in live:
            with contextlib.suppress(GreenroomError):  # it ended in the meantime
                held.session.interrupt(held.live)

    async def _stop_by_force(self) -> None:
        """Close the room, and then wait only a little longer for turns that still have no outcome."""
        self._progress.note("stopping by force")
        await asyncio.gather(self._offload(Lane.ROOM, self._room.close, FORCED_DEADLINE_S), return_exceptions=True)
        if self._running:
            await asyncio.wait(self._running, timeout=_AFTER_FORCE_S)
        for future in self._running:
            future.cancel()


def _ended_well(ticket: Any) -> bool:
    try:
        return not ticket.wait(0).result.interrupted
    except GreenroomError:
        return False


def _fingerprint(task: Task) -> str:
    """Return what tells a session from one of the same name with other settings, which a later task file may have."""
    return hashlib.sha256(repr(task.settings).encode()).hexdigest()[:16]


def _spent(held: _Held) -> float:
    """Return what the session cost: its own account, which knows turns that the provider began, or else what its tasks said."""
    spent = held.session.spent
    known = spent.total_cost_usd if spent is not None else None
    return max(known or 0.0, held.spent_usd)


def _since_ms(started_s: float) -> int:
    return round((asyncio.get_running_loop().time() - started_s) * 1000)
