"""A room without an engine: what each task is to do is said beforehand, and what was asked of it is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import attrs

from greenroom.errors import SessionStateError, TurnCancelledError
from greenroom.events import AssistantText
from greenroom.liveness import Liveness, LivenessReason
from greenroom.model import Continuity, ProviderUsage, TokenUsage, Turn, TurnResult


@attrs.define
class Script:
    """What a turn does: yields to the loop `steps` times (forever: until it is interrupted), then ends."""

    steps: int = 1
    error: BaseException | None = None
    cost_usd: float | None = 0.01
    text: str = "fine"
    forever: bool = False
    deaf: bool = False  # ignores interrupts; only closing the room ends it
    waits_to_retry: bool = False  # an interrupt ends it with `error`
    events: tuple = (AssistantText("working"),)


@attrs.define(eq=False)
class FakeTicket:
    turn_id: str
    request: object
    interrupted: bool = False


AT_WORK = Liveness(reason=LivenessReason.MODEL, since_monotonic_s=0.0, for_s=0.0, quiet_s=0.0)


@attrs.define(eq=False)
class FakeSession:
    room: FakeRoom
    name: str
    conversation_id: str | None
    spent: ProviderUsage | None = None
    liveness: Liveness = AT_WORK
    closed: bool = False
    wake: asyncio.Event = attrs.field(factory=asyncio.Event)

    def prepare_turn(self, request):
        if self.closed:
            raise SessionStateError("the session is closed")
        self.room.prepared.append(request)
        self.room.on_prepare(request)
        return FakeTicket(f"turn-{len(self.room.prepared)}", request)

    async def arun(self, ticket, *, on_event=None):
        prompt = ticket.request.prompt
        script = self.room.scripts.get(prompt, self.room.default)
        self.room.begin(prompt)
        try:
            if ticket.interrupted:
                raise TurnCancelledError(ticket.turn_id)
            for event in script.events:
                on_event(event)
            await self._work(ticket, script)
        finally:
            self.room.end(prompt)
        self.conversation_id = self.conversation_id or f"conv-{self.name}"
        interrupted = ticket.interrupted and not script.deaf and not script.waits_to_retry
        if script.error is not None and not interrupted:
            raise script.error
        usage = ProviderUsage(tokens=TokenUsage(input=10, output=5, turns=1), total_cost_usd=script.cost_usd)
        result = TurnResult(text=script.text, interrupted=interrupted, usage=usage, cost_usd=script.cost_usd)
        return Turn(result, Continuity.CONTINUED, ticket.turn_id, self.conversation_id)

    async def _work(self, ticket, script):
        steps = script.steps
        while (script.forever or steps > 0) and not (ticket.interrupted and not script.deaf) and not self.room.closed:
            steps -= 1
            if not script.forever:
                await asyncio.sleep(0)
                continue
            await self.wake.wait()
            self.wake.clear()
        if self.room.closed and script.deaf:
            raise SessionStateError("the session was closed")

    def interrupt(self, ticket=None):
        self.room.interrupts.append(ticket.request.prompt)
        ticket.interrupted = True
        self.wake.set()

    def steer(self, text):
        self.room.steers.append(text)

    def release(self):
        self.room.released.append(self.name)

    def close(self):
        self.closed = True
        self.room.closings.append(self.name)
        if self.room.close_error is not None:
            raise self.room.close_error


@attrs.define(eq=False)
class FakeRoom:
    scripts: dict[str, Script] = attrs.field(factory=dict)
    default: Script = attrs.field(factory=Script)
    sessions: list[FakeSession] = attrs.field(factory=list)
    resumed: list[tuple[str, str | None]] = attrs.field(factory=list)
    prepared: list = attrs.field(factory=list)
    begun: list[str] = attrs.field(factory=list)
    running: list[str] = attrs.field(factory=list)
    ended: list[str] = attrs.field(factory=list)
    log: list[tuple[str, str]] = attrs.field(factory=list)
    most_at_once: int = 0
    interrupts: list[str] = attrs.field(factory=list)
    steers: list[str] = attrs.field(factory=list)
    released: list[str] = attrs.field(factory=list)
    closings: list[str] = attrs.field(factory=list)
    settings: list = attrs.field(factory=list)
    closed: bool = False
    deadlines: list[float] = attrs.field(factory=list)
    open_error: BaseException | None = None
    close_error: BaseException | None = None
    stubborn: bool = False  # closing it ends nothing
    on_prepare: object = attrs.field(default=lambda request: None)
    on_open: object = attrs.field(default=lambda cwd: None)

    def begin(self, prompt):
        self.begun.append(prompt)
        self.running.append(prompt)
        self.log.append(("begin", prompt))
        self.most_at_once = max(self.most_at_once, len(self.running))

    def end(self, prompt):
        self.running.remove(prompt)
        self.ended.append(prompt)
        self.log.append(("end", prompt))

    def session(self, cwd: Path, *, resume_id=None):
        if self.open_error is not None:
            raise self.open_error
        self.on_open(cwd)
        session = FakeSession(self, f"s{len(self.sessions)}", resume_id)
        self.sessions.append(session)
        self.resumed.append((session.name, resume_id))
        return session

    def agents(self, settings):
        self.settings.append(settings)
        return self

    def close(self, deadline_s=10):
        self.deadlines.append(deadline_s)
        self.closed = not self.stubborn
        for session in self.sessions:
            session.wake.set()


async def inline(lane, call, /, *args):
    """Run blocking calls at once, on the loop: a test has one thread."""
    await asyncio.sleep(0)
    return call(*args)


@attrs.define
class Watcher:
    """A progress that keeps what it is told."""

    begun: list[str] = attrs.field(factory=list)
    live: dict = attrs.field(factory=dict)
    records: list = attrs.field(factory=list)
    events: list = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    on_ended: object = attrs.field(default=lambda record: None)

    def began(self, key):
        self.begun.append(key)

    def opened(self, key, liveness):
        self.live[key] = liveness

    def event(self, key, event):
        self.events.append((key, event))

    def ended(self, record):
        self.on_ended(record)
        self.records.append(record)

    def note(self, text):
        self.notes.append(text)


@attrs.define
class FakeEngine:
    """What the command opens instead of the real engine."""

    room: FakeRoom = attrs.field(factory=FakeRoom)
    opened: list = attrs.field(factory=list)

    def open_room(self, *, max_starting):
        self.opened.append(max_starting)
        return self.room

    def agents(self, room, *, claude_binary, codex_binary=None):
        return room.agents

    def unfit(self, settings, *, claude_binary, codex_binary=None):
        return []
