"""Fleets on a dispatcher that is stepped by hand: random orders, random faults, one seed. The same seed gives the same log.

    python -m tests.faults.simulate --seeds 1000 --start 0

Only actors of ours and a transport in memory take part: no thread, no process, no real time. What is checked after each run: every ticket
has ended exactly once, by a Turn or an error of the tree; every session has closed; no actor, claim or live conversation is left; no two
conversations of one session were alive at a time; no conversation was shown a prompt twice.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import logging
import pathlib
import random
import time
import uuid

import pykka

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.core import NO_FLAGS, SessionCore
from greenroom.actors.dispatcher import ManualDispatcher
from greenroom.actors.runtime import tell
from greenroom.actors.session import SessionActor
from greenroom.actors.side import ObserverActor, StoreActor
from greenroom.actors.supervisor import SupervisorActor
from greenroom.actors.ticket import Sink, TicketCore, TicketState
from greenroom.actors.worker import CONTINUE_TEXT, WorkerOpened
from greenroom.errors import (
    CliExitError,
    GreenroomError,
    NoRunningTurnError,
    SessionCrashedError,
    SessionResumeError,
    TurnCancelledError,
    TurnFailedError,
)
from greenroom.events import AssistantText, SteerConsumed, SteerDelivered
from greenroom.model import (
    ApprovalPolicy,
    ConversationSpec,
    FailureKind,
    NativePermissions,
    OnDeath,
    RenewalBudget,
    Turn,
    TurnRequest,
    TurnResult,
)
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.session import Settings
from greenroom.testing import FakeCheckpointStore, FakeClock, fake_profile

STEPS = 400
PROFILE = fake_profile(supports_steer=True, retries_in_place=True)
HANG_SHARE = 0.15


class Worker:
    """Its jobs run when the simulation says so: until then a turn "runs". One that hangs runs only once it was interrupted."""

    def __init__(self, world, owner):
        self.world = world
        self.owner = owner
        self.jobs = collections.deque()
        self.conversation = None
        self.hangs = False
        self.stopped = False
        world.workers.append(self)

    def submit(self, job):
        self.jobs.append(job)
        self.hangs = self.conversation is not None and self.world.random.random() < HANG_SHARE

    def aside(self, job):
        job()

    def stop(self):
        self.stopped = True
        if self in self.world.workers and not self.jobs:
            self.world.workers.remove(self)

    @property
    def ready(self):
        return bool(self.jobs) and (not self.hangs or self.conversation.interrupted or self.conversation.closed)

    def run(self):
        message = self.jobs.popleft()()
        if isinstance(message, WorkerOpened):
            self.conversation = message.conversation
        tell(self.owner, message)
        if self.stopped and self in self.world.workers:
            self.world.workers.remove(self)


class Dispatcher(ManualDispatcher):
    def __init__(self, world, clock, seed):
        super().__init__(clock, seed=seed)
        self.world = world

    def worker(self, owner, name):
        return Worker(self.world, owner)


class Conversation:
    def __init__(self, transport, spec, number):
        self.transport = transport
        self.world = transport.world
        self.resumed = spec.resume_id is not None
        self.id = spec.resume_id or f"{transport.name}-conv-{number}"
        self.known = self.resumed
        self.interrupted = self.closed = False
        self.steers = []

    @property
    def conversation_id(self):
        return self.id if self.known else None

    def turn(self, request, emit):
        if request.prompt != CONTINUE_TEXT:
            self.transport.shown[self.id, request.prompt] += 1
        return self.answer(emit)

    def retry(self, emit):
        return self.answer(emit)

    def answer(self, emit):
        self.known = True
        for _ in range(self.world.random.randrange(4)):
            emit(AssistantText("x"))
        for text in self.steers:
            emit(SteerDelivered(text))
            emit(SteerConsumed(text))
        self.steers = []
        interrupted, self.interrupted = self.interrupted or self.closed, False
        if interrupted:
            return TurnResult(session_id=self.id, interrupted=True, resumed=self.resumed)
        fate = self.world.random.random()
        if fate < 0.15:
            raise CliExitError(("sim",), -9)
        if fate < 0.30:
            raise TurnFailedError(FailureKind.TRANSIENT, "overloaded")
        if fate < 0.36:
            raise TurnFailedError(self.world.random.choice(list(FailureKind)), "failed")
        if fate < 0.38:
            raise ZeroDivisionError("a defect of the user's transport")
        return TurnResult(text="ok", session_id=self.id, resumed=self.resumed)

    def interrupt(self):
        if self.world.random.random() < 0.9:
            self.interrupted = True

    def steer(self, text):
        if self.interrupted:
            raise NoRunningTurnError("it is ending")
        self.steers.append(text)

    def close(self):
        self.closed = True


class Transport:
    profile = PROFILE
    conversation = Conversation

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.opened = []
        self.shown = collections.Counter()

    def open(self, spec):
        if not all(one.closed for one in self.opened):
            self.world.fail(f"{self.name}: two live conversations")
        fate = self.world.random.random()
        if fate < 0.06 and spec.resume_id is not None:
            raise SessionResumeError(spec.resume_id, in_use=fate < 0.03)
        if fate < 0.10:
            raise CliExitError(("sim",), 1)
        conversation = self.conversation(self, spec, len(self.opened) + 1)
        self.opened.append(conversation)
        return conversation


class Caller:
    """What the front door does for one session, without waiting."""

    def __init__(self, world, number):
        self.world = world
        self.name = f"s{number}"
        self.transport = Transport(world, self.name)
        spec = ConversationSpec(cwd=pathlib.Path("/"), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
        rnd = world.random
        settings = Settings(
            session_nonce=world.nonce(),
            retry_delays=(1.0, 2.0),
            restart=RestartPolicy(on_death=rnd.choice((OnDeath.CONTINUE, OnDeath.CONTINUE, OnDeath.FAIL))),
            renewal=RenewalBudget(max_turns=3) if rnd.random() < 0.3 else None,
            checkpointing=True,
            probes=False,
            retries_in_place=True,
        )
        self.core = SessionCore(
            session_id=self.name,
            transport=self.transport,
            spec=spec,
            settings=settings,
            checkpoint=None,
            store=world.store,
            store_key=self.name,
        )
        self.told = []
        self.core.publish = self.told.append
        self.ref = SessionActor.start(
            world.dispatcher,
            core=self.core,
            supervisor=world.supervisor,
            store=lambda: world.store_actor,
            observer=lambda: world.observer_actor,
        )
        self.tickets = []
        self.current = None
        self.pending = []
        self.ended = collections.Counter()

    def act(self):
        rnd = self.world.random
        act = rnd.choices(
            (self.prepare, self.run, self.interrupt, self.cancel, self.steer, self.release, self.connect, self.crash, self.close),
            (30, 30, 8, 3, 8, 3, 5, 0.1, 0.3),
        )[0]
        act()

    def prepare(self):
        core = TicketCore(f"{self.name}-turn-{len(self.tickets) + 1}", self.name)
        reply = Cell()
        request = TurnRequest(prompt=f"p {core.turn_id}", timeout=self.world.random.choice((None, None, 30.0)))
        self.tickets.append(core)
        self.pending.append(reply)
        reply.when_settled(lambda: self.answered(core, reply))
        core.cell.when_settled(lambda: self.settled(core))
        message = m.PrepareTurn(
            turn_id=core.turn_id,
            nonce=self.world.nonce(),
            request=request,
            flags=NO_FLAGS,
            expect_conversation=None,
            pin=self.world.random.random() < 0.2,
            ticket=core,
            reply_to=reply,
        )
        tell(self.ref, message)

    def answered(self, core, reply):
        try:
            reply.get()
        except GreenroomError as error:
            core.cell.fail(error)  # nobody ever has this ticket

    def settled(self, core):
        self.ended[core.turn_id] += 1
        try:
            turn = core.cell.get()
            outcome = f"turn {turn.continuity.value} {turn.restarts} {turn.retries} {turn.result.interrupted}"
        except Exception as error:  # noqa: BLE001 - it is judged at the end
            outcome = type(error).__name__
        self.world.note(f"{core.turn_id}: {outcome}")

    def run(self):
        waiting = [core for core in self.tickets if core.state is TicketState.PREPARED and not core.cell.settled]
        if not waiting:
            return
        core = waiting[-1]
        sink = Sink(lambda batch: self.hear(core, batch), lambda: tell(self.ref, m.CreditReturned(turn_id=core.turn_id)))
        core.begin(sink)
        self.current = core
        tell(self.ref, m.Run(turn_id=core.turn_id, ticket=core))

    def hear(self, core, batch):
        if batch is not None:
            self.world.note(f"{core.turn_id}: {' '.join(type(event).__name__ for event in batch.events)}")
            core.sink.consumed(len(batch.events))

    def interrupt(self):
        core = self.current
        if core is not None and not core.cell.settled:
            tell(self.ref, m.Interrupt(turn_id=core.turn_id))

    def cancel(self):
        for core in self.tickets:
            if core.state is TicketState.PREPARED and core.cancel(TurnCancelledError(core.turn_id)):
                tell(self.ref, m.CancelTurn(turn_id=core.turn_id))

    def steer(self):
        if self.current is not None:
            reply = Cell()
            self.pending.append(reply)
            tell(self.ref, m.Steer(turn_id=self.current.turn_id, text="s", steer_id="i", reply_to=reply))

    def release(self):
        reply = Cell()
        self.pending.append(reply)
        tell(self.ref, m.ReleaseConversation(reply_to=reply))

    def connect(self):
        reply = Cell()
        self.pending.append(reply)
        tell(self.ref, m.Connect(flags=NO_FLAGS, reply_to=reply))

    def crash(self):
        """A defect of ours: a message that cannot be handled."""
        tell(self.ref, m.Spent(incarnation=1, usage=object()))
        tell(self.ref, m.Spent(incarnation=1, usage=object()))

    def close(self):
        tell(self.ref, m.CloseSession())

    def check_told(self):
        """What subscribers are told is in order, and every turn that begins ends, unless the session crashed in it."""
        events = [(batch.first_sequence + index, event) for batch in self.told for index, event in enumerate(batch.events)]
        assert [number for number, _ in events] == list(range(1, len(events) + 1)), f"{self.name}: not in order"
        names = [event.method for _, event in events]
        assert names.count("session/closed") == 1, f"{self.name} has closed {names.count('session/closed')} times"
        assert names[-1] == "session/closed"
        open_turns = names.count("turn/started") - names.count("turn/completed")
        assert 0 <= open_turns <= (events[-1][1].message == "Session crashed"), f"{self.name}: {open_turns} turns have no end"

    def check(self):
        for core in self.tickets:
            assert self.ended[core.turn_id] == 1, f"{core.turn_id} ended {self.ended[core.turn_id]} times"
            try:
                assert isinstance(core.cell.get(), Turn)
            except SessionCrashedError as error:
                crash = error.reason
            except GreenroomError:
                continue
            else:
                continue
            assert "unsupported operand" in crash, crash
        assert all(reply.settled for reply in self.pending), f"{self.name}: somebody still waits"
        assert self.core.closed.settled, f"{self.name} has not closed"
        assert all(one.closed for one in self.transport.opened), f"{self.name}: a conversation is left open"
        self.check_told()
        twice = [what for what, count in self.transport.shown.items() if count > 1]
        assert not twice, f"shown twice: {twice}"


class World:
    def __init__(self, seed):
        self.random = random.Random(f"world {seed}")
        self.log = []
        self.claims = len(CLAIMS)
        self.steps = 0
        self.workers = []
        self.failures = []
        self.clock = FakeClock()
        self.dispatcher = Dispatcher(self, self.clock, seed)
        self.store = FakeCheckpointStore()
        limit = self.random.choice((None, 3))
        self.supervisor = SupervisorActor.start(
            self.dispatcher, executor=None, room_id="room-1", max_starting=self.random.choice((1, 2, 8)), max_live=limit
        )
        self.store_actor = StoreActor.start(self.dispatcher)
        self.observer_actor = ObserverActor.start(self.dispatcher)
        self.callers = [Caller(self, number) for number in range(self.random.randint(8, 16))]

    def nonce(self):
        return uuid.UUID(int=self.random.getrandbits(128), version=4).hex

    def note(self, text):
        self.log.append(f"{self.steps} {self.clock.monotonic():.1f} {text}")

    def fail(self, why):
        """What is seen where an exception would be taken for the actor's or the transport's own."""
        self.failures.append(why)

    def go(self):
        for _ in range(STEPS):
            self.random.choice(self.callers).act()
            self.store.error = OSError("disk full") if self.random.random() < 0.05 else None
            for _ in range(self.random.randrange(12)):
                self.step()
            if self.random.random() < 0.05:
                self.clock.advance(self.random.choice((0.1, 1.0, 15.0, 40.0)))
        self.end()
        return hashlib.sha256("\n".join(self.log).encode()).hexdigest()

    def step(self):
        """Let an actor, a job or a running turn go on; return whether anything could."""
        self.steps += 1
        ready = [worker for worker in self.workers if worker.ready]
        if ready and self.random.random() < 0.3:
            self.random.choice(ready).run()
            return True
        if self.dispatcher.step():
            return True
        if ready:
            self.random.choice(ready).run()
        return bool(ready)

    def end(self):
        reply = Cell()
        tell(self.supervisor, m.CloseRoom(deadline_s=30.0, reply_to=reply))
        for _ in range(100):
            while self.step():
                pass
            if reply.settled:
                break
            self.clock.advance(5.0)
        assert reply.settled, "the room has not closed"
        assert not self.failures
        for caller in self.callers:
            caller.check()
        for ref in (self.store_actor, self.observer_actor):
            ref.stop(block=False)
        while self.step():
            pass
        self.dispatcher.stop()
        left = pykka.ActorRegistry.get_all()
        assert not left, f"actors left: {left}"
        assert len(CLAIMS) == self.claims, "claims left"


def simulate(seed):
    """Run one seed; return the digest of its log. Raises AssertionError."""
    return World(seed).go()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began_s = time.monotonic()
    for seed in range(options.start, options.start + options.seeds):
        try:
            simulate(seed)
        except Exception:
            print(f"seed {seed} failed; repeat with --seeds 1 --start {seed}")  # noqa: T201
            raise
    print(f"{options.seeds} seeds from {options.start} in {time.monotonic() - began_s:.1f} s")  # noqa: T201


if __name__ == "__main__":
    main()
