"""Durable fleets on a dispatcher that is stepped by hand: random orders, faults of the journal, deaths of the host, and what follows.

    python -m tests.faults.simulate_durable --seeds 1000 --start 0

A world has sessions, a provider that remembers, and a state directory; it goes through some lives of a host, each of which ends at a
random step, or in order. The same seed gives the same journal. What is checked, at every step or between two lives:

* a ticket that somebody has is on record; an attempt that leaves is on record before it does; nothing is sent for a turn that has ended;
* an outcome that a caller is given is on record, unless the session has said that it is degraded; once on record it never changes;
* after a death every ticket has an outcome, a verdict or a decision, and the verdict is true of what the provider has seen;
* opening twice gives the same answer; the inputs on record replay to the state that was live behind the last of them;
* no prompt is shown twice in a conversation unless it was asked for; every ticket ends once; nothing is left open at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import logging
import os
import pathlib
import random
import tempfile
import time
import uuid

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.runtime import tell
from greenroom.actors.ticket import Sink, TicketState
from greenroom.errors import GreenroomError, SessionCrashedError, SessionStateError, StoreUnavailableError, TurnCancelledError
from greenroom.journal import STANDARD, Journal, Recovery, Verdict
from greenroom.keys import Keyed
from greenroom.model import ApprovalPolicy, NativePermissions, OnDeath, RenewalBudget, Turn, TurnRequest
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.retry import RetryPolicy
from greenroom.policy.session import replay
from greenroom.testing import FakeClock, SequentialIds
from greenroom.transports.base import Flags
from tests.faults import simulate
from tests.faults.durable_parts import Room, SimAgent, content

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a folder of its own in it
CODEC = STANDARD.extended([Flags])
UNRUN = (SessionStateError, StoreUnavailableError, TurnCancelledError)
"""What ends a ticket without an outcome on record."""


def told_to_the_world(method):
    """Called by actors of ours, which would take a failure for one of their own."""

    @functools.wraps(method)
    def checked(self, *args):
        try:
            method(self, *args)
        except Exception as error:
            self.world.failures.append(error)
            raise

    return checked


class Worker(simulate.Worker):
    """Sees each attempt as it leaves."""

    def submit(self, job):
        attempt = self.owner._actor_weakref()._attempt
        if attempt is not None:
            self.world.leaves(attempt)
        super().submit(job)
        self.hangs = self.hangs and not self.world.calm


class Dispatcher(simulate.Dispatcher):
    def worker(self, owner, name):
        return Worker(self.world, owner)


class Conversation(simulate.Conversation):
    def answer(self, emit):
        self.transport.sent += 1
        return super().answer(emit)


class Transport(simulate.Transport):
    """Outlives the hosts, as a provider does."""

    conversation = Conversation
    sent = 0

    def __init__(self, world, name):
        super().__init__(world, name)
        if world.random.random() < 0.3:
            self.profile = attrs.evolve(self.profile, renewal=RenewalBudget(max_turns=3))


@attrs.define
class Work:
    """Something to be done, by a key or without. `showings`: how often its prompt may be shown in one conversation."""

    prompt: str
    key: str | None
    timeout_s: float | None
    pin: bool
    showings: int = 1
    turn_ids: list = attrs.field(factory=list)


@attrs.define
class Mine:
    """A ticket in a caller's hands in this life."""

    ticket: object
    core: object
    work: Work
    message: object
    granted: bool | None = None
    endings: int = 0
    taken: bool = False
    crashes: int = 0


class Caller:
    """Whoever wants the work of one session done, over all lives."""

    def __init__(self, world, number):
        self.world = world
        self.name = f"s{number}"
        self.transport = Transport(world, self.name)
        self.restart = RestartPolicy(on_death=world.random.choice((OnDeath.CONTINUE, OnDeath.CONTINUE, OnDeath.FAIL)))
        self.works = []
        self.states = {}
        self.granted = {}
        self.told = {}
        self.untold = set()
        self.begin_life()

    def begin_life(self):
        self.session = self.agent = None
        self.mine = []
        self.current = None
        self.asked = []
        # What could not be recorded, and was said to be so, may end in another way when it is taken up.
        self.told = {turn_id: told for turn_id, told in self.told.items() if turn_id not in self.untold}
        self.untold = set()

    # --- acts

    def act(self):
        if self.session is None or self.session.closed:
            self.open()
            return
        acts = (
            self.prepare,
            self.again,
            self.run,
            self.take,
            self.interrupt,
            self.cancel,
            self.steer,
            self.release,
            self.crash,
            self.close,
        )
        self.world.random.choices(acts, (25, 8, 30, 15, 6, 3, 6, 3, 0.5, 1))[0]()

    def open(self):
        agent = self.agent or self.make_agent()
        self.session = None
        agent.session("/", session_id=self.name)

    def make_agent(self):
        room = self.world.life.room
        self.agent = SimAgent(
            self,
            permissions=NativePermissions.bypass(),
            approvals=ApprovalPolicy.DENY,
            retry=RetryPolicy(delays=(1.0, 2.0)),
            restart=self.restart,
            room=room,
        )
        return self.agent

    def prepare(self):
        if self.waiting() and self.world.random.random() < 0.8:
            self.run()
            return
        rnd, number = self.world.random, len(self.works) + 1
        key = f"k{number}" if rnd.random() < 0.5 else None
        self.works.append(Work(f"p {self.name}-{number}", key, rnd.choice((None, None, 30.0)), rnd.random() < 0.2))
        self.ask(self.works[-1])

    def again(self):
        keyed = [work for work in self.works if work.key is not None]
        if keyed:
            self.ask(self.world.random.choice(keyed))

    def ask(self, work):
        # As behind the lock for keys: one question at a time.
        if work.key is not None and any(one.granted is None for one in self.mine):
            return
        ticket = self.session.prepare_turn(TurnRequest(prompt=work.prompt, timeout=work.timeout_s), key=work.key, pin=work.pin)
        if ticket._core.recorded:
            self.given(work, ticket)

    def given(self, work, ticket):
        """It has ended before: this is its outcome, and nobody runs it."""
        assert ticket.turn_id in work.turn_ids
        self.mine.append(Mine(ticket, ticket._core, work, None, granted=True))
        told = self.told.get(ticket.turn_id)
        assert told is None or text(ticket._core.cell) == told, f"{ticket.turn_id} has changed"

    def posted(self, session, ticket, message):
        work = next(work for work in self.works if work.prompt == message.request.prompt)
        if work.turn_ids and ticket.turn_id not in work.turn_ids:
            work.showings += 1
        if ticket.turn_id not in work.turn_ids:
            work.turn_ids.append(ticket.turn_id)
        mine = Mine(ticket, ticket._core, work, message)
        self.mine.append(mine)
        message.reply_to.when_settled(lambda: self.answered(session, mine))
        mine.core.cell.when_settled(lambda: self.ended(session, mine))

    @told_to_the_world
    def answered(self, session, mine):
        try:
            mine.message.reply_to.get()
        except GreenroomError as error:
            mine.granted = False
            self.check_refusal(session, error)
            return
        mine.granted = True
        turn_id = mine.ticket.turn_id
        assert self.world.life.on_record(turn_id) is not None, f"{turn_id} was given out, and is not on record"
        self.granted[turn_id] = mine.work
        session._room._decided(turn_id)
        if mine.work.key is not None:
            session._preparing.keys.add(
                mine.work.key,
                Keyed(ticket=mine.ticket, core=mine.core, nonce=mine.message.nonce, request_hash=mine.message.request_hash),
            )

    def check_refusal(self, session, error):
        if isinstance(error, StoreUnavailableError):
            assert session._core.degraded is not None or self.world.troubled, "refused for a journal that is well"

    @told_to_the_world
    def ended(self, session, mine):
        mine.endings += 1
        turn_id = mine.ticket.turn_id
        outcome = mine.core.cell.outcome
        self.world.note(f"{turn_id}: {text(mine.core.cell)}")
        if isinstance(outcome, StoreUnavailableError):
            self.check_refusal(session, outcome)
        if isinstance(outcome, (*UNRUN, SessionCrashedError)):
            assert not isinstance(outcome, SessionCrashedError) or self.world.troubled or "unsupported operand" in outcome.reason
            return
        told = text(mine.core.cell)
        assert self.told.setdefault(turn_id, told) == told, f"{turn_id} ended twice"
        row = self.world.life.on_record(turn_id)
        if row is not None and row[1] is not None:
            assert text_of(CODEC.decode(row[1])) == told, f"{turn_id} is on record as something else"
            return
        assert session._core.degraded is not None, f"{turn_id} was given out, and its outcome is not on record"
        self.untold.add(turn_id)

    def waiting(self):
        return [one for one in self.mine if one.granted and one.core.state is TicketState.PREPARED and not one.core.cell.settled]

    def run(self):
        for mine in self.waiting()[-1:]:
            self.begin(mine)

    def begin(self, mine):
        core, session = mine.core, self.session
        sink = Sink(lambda batch: self.hear(core, batch), session._credit(mine.ticket))
        self.current = mine
        session._start(mine.ticket, sink)

    def hear(self, core, batch):
        if batch is not None:
            self.world.note(f"{core.turn_id}: {' '.join(type(event).__name__ for event in batch.events)}")
            core.sink.consumed(len(batch.events))

    def take(self):
        for mine in self.mine:
            if mine.granted and not mine.taken and mine.core.cell.settled:
                mine.taken = True
                with contextlib.suppress(GreenroomError):
                    mine.ticket.wait(0)
                return

    def interrupt(self):
        if self.current is not None:
            self.session.interrupt(self.current.ticket)

    def cancel(self):
        for mine in self.mine:
            if mine.granted and mine.core.state is TicketState.PREPARED:
                self.session.interrupt(mine.ticket)

    def steer(self):
        if self.current is not None:
            self.tell(lambda reply: m.Steer(turn_id=self.current.ticket.turn_id, text="s", steer_id="i", reply_to=reply))

    def release(self):
        self.tell(lambda reply: m.ReleaseConversation(reply_to=reply))

    def tell(self, message_of):
        reply = Cell()
        self.asked.append(reply)
        tell(self.session._ref, message_of(reply))

    def crash(self):
        """A defect of ours: a message that cannot be handled."""
        if not self.world.calm:
            self.world.note(f"{self.name} crashes")
            for _ in range(2):
                tell(self.session._ref, m.Spent(incarnation=1, usage=object()))

    def close(self):
        self.session._begin_close()

    # --- what must hold

    def check_life(self):
        """The room was closed in order: everybody has been answered."""
        for mine in self.mine:
            assert mine.granted is not None, f"{mine.ticket.turn_id}: nobody was told whether there is such a ticket"
            assert mine.endings == 1 or mine.message is None or not mine.granted, f"{mine.ticket.turn_id} ended {mine.endings} times"
        assert all(reply.settled for reply in self.asked), f"{self.name}: somebody still waits"
        assert all(one.closed for one in self.transport.opened), f"{self.name}: a conversation is left open"

    def check_record(self, recovery):
        for turn_id, work in self.granted.items():
            self.check_ticket(recovery.ticket(turn_id), turn_id, work)
        self.check_shown()
        found = recovery.session(self.name)
        if found is not None:
            inputs = recovery.inputs(self.name)
            if inputs:
                assert CODEC.encode(replay(found.opened.settings, inputs)) == CODEC.encode(self.states[len(inputs)]), (
                    f"{self.name}: its {len(inputs)} inputs do not replay to what was live"
                )
        batches = recovery.events(self.name).batches
        assert all(one.last_sequence < two.first_sequence for one, two in itertools.pairwise(batches))

    def check_ticket(self, ticket, turn_id, work):
        assert ticket is not None, f"{turn_id} was given out and is lost"
        assert ticket.request.prompt == work.prompt
        assert any(one is not None for one in (ticket.outcome, ticket.verdict, ticket.decision)), f"{turn_id} has no verdict"
        assert ticket.verdict is not Verdict.NEVER_SENT or turn_id not in self.world.sent, f"{turn_id} was sent"
        if ticket.outcome is not None:
            told = self.told.setdefault(turn_id, text_of(ticket.outcome))
            assert text_of(ticket.outcome) == told, f"{turn_id} has changed"
        elif turn_id in self.told:
            assert turn_id in self.untold, f"{turn_id} was given out, and is lost"

    def check_shown(self):
        for (conversation_id, prompt), times in self.transport.shown.items():
            work = next(work for work in self.works if work.prompt == prompt)
            assert times <= work.showings, f"{prompt} was shown {times} times in {conversation_id}"


def text(cell):
    return text_of(cell.outcome)


def text_of(outcome):
    """What an outcome says, also after it was written down and read back."""
    if isinstance(outcome, Turn):
        return CODEC.encode(outcome)
    return f"{type(outcome).__name__}: {outcome}"


class Life:
    """One host: a room on a clock, a dispatcher and a connection that sees what is committed."""

    def __init__(self, world, number):
        self.world = world
        rnd = world.random
        self.clock = FakeClock(start_s=rnd.uniform(0, 5000), wall_s=1_800_000_000.0 + 10_000 * number)
        self.dispatcher = Dispatcher(world, self.clock, f"{world.seed}-{number}")
        world.life = self
        self.room = Room(self, world.state_dir, max_starting=rnd.choice((1, 2, 8)), max_live=rnd.choice((None, 3)))
        self.journal = self.room._keeper.journal
        self.reader = Journal.connect_beside(self.journal, self)

    def disconnect(self):
        self.reader.close()

    def on_record(self, turn_id):
        sql = "SELECT ticket.receipt, outcome.body FROM ticket LEFT JOIN outcome USING (turn_id) WHERE turn_id = ?"
        return self.reader.execute(sql, (turn_id,)).fetchone()

    def die(self):
        """As a SIGKILL: nobody says anything, nothing more is written. What the provider was sent it may have got."""
        world = self.world
        for ref in pykka.ActorRegistry.get_all():
            actor = ref._actor_weakref()
            if actor.dispatcher is self.dispatcher or getattr(actor.dispatcher, "_loop", None) is self.dispatcher:
                pykka.ActorRegistry.unregister(ref)
                actor.is_over = actor._inbox.closed = True
                actor.actor_stopped.set()
        for worker in world.workers:
            if worker.jobs and worker.conversation is not None and world.random.random() < 0.5:
                worker.jobs.popleft()()
        self.gone()

    def close(self):
        """In order."""
        reply = Cell()
        tell(self.room._supervisor, m.CloseRoom(deadline_s=30.0, reply_to=reply))
        for _ in range(100):
            while self.world.step():
                pass
            if reply.settled:
                break
            self.clock.advance(5.0)
        assert reply.settled, "the room has not closed"
        closed = Cell()
        tell(self.room._keeper.ref(), m.CloseJournal(reply_to=closed))
        self.room._keeper.drive(closed)
        for _, ref in self.room._engine._sides.values():
            ref.stop(block=False)
        while self.world.step():
            pass
        for caller in self.world.callers.values():
            caller.check_life()
        left = [ref for ref in pykka.ActorRegistry.get_all() if ref._actor_weakref().dispatcher is self.dispatcher]
        assert not left, f"actors left: {left}"
        self.gone()

    def gone(self):
        self.journal.close()
        self.dispatcher.stop()
        self.world.workers.clear()
        for session in self.room._sessions.values():
            CLAIMS.drop(session._core.closed)
        for caller in self.world.callers.values():
            for one in caller.transport.opened:
                one.closed = True


class World:
    def __init__(self, seed, state_dir):
        self.seed = seed
        self.random = random.Random(f"durable {seed}")
        self.state_dir = pathlib.Path(state_dir) / "journal"
        self.ids = SequentialIds()
        self.log = []
        self.steps = 0
        self.workers = []
        self.failures = []
        self.sent = set()
        self.calm = False
        self.troubles = self.random.random() < 0.6
        self.troubled = False
        self.life = None
        large = self.random.random() < 0.1
        self.acts = 150 if large else 80
        self.callers = {}
        for number in range(self.random.randint(16, 64) if large else self.random.randint(2, 5)):
            caller = Caller(self, number)
            self.callers[caller.name] = caller

    def nonce(self):
        return uuid.UUID(int=self.random.getrandbits(128), version=4).hex

    @property
    def world(self):
        return self

    def fail(self, why):
        self.failures.append(AssertionError(why))

    def note(self, text):
        self.log.append(f"{self.steps} {self.life.clock.monotonic():.1f} {text}")

    @told_to_the_world
    def leaves(self, attempt):
        """Something of the attempt is about to be written to its provider."""
        row = self.life.on_record(attempt.turn_id)
        assert row is not None, f"{attempt.turn_id} leaves, and is not on record"
        assert row[0] == attempt.receipt, f"an attempt of {attempt.turn_id} leaves that is not on record"
        assert row[1] is None, f"{attempt.turn_id} has ended, and is sent"
        self.sent.add(attempt.turn_id)

    # --- lives

    def go(self):
        claims = len(CLAIMS)
        for number in range(self.random.randint(1, 3)):
            self.live(number)
            self.judge()
        self.finish()
        assert len(CLAIMS) == claims, "claims left"
        said = hashlib.sha256("\n".join(self.log).replace(str(self.state_dir), "").encode()).hexdigest()
        return f"{content(self.state_dir / 'journal.db')} {said}"

    def live(self, number):
        life = self.begin_life(number)
        for found in life.room.recovered():
            if self.random.random() < 0.6:
                self.attempt(lambda found=found: self.decide(found, self.random.choice((found.resume, found.resume, found.rerun))))
        for _ in range(self.random.randrange(self.acts)):
            self.attempt(self.random.choice(list(self.callers.values())).act)
            if self.troubles:
                self.trouble(life.journal)
            for _ in range(self.random.randrange(30)):
                self.step()
            if self.random.random() < 0.1:
                life.clock.advance(self.random.choice((0.05, 1.0, 15.0, 40.0)))
        if self.random.random() < 0.2:
            life.close()
        else:
            life.die()

    def begin_life(self, number):
        self.troubled = False
        for caller in self.callers.values():
            caller.begin_life()
        return Life(self, number)

    def decide(self, found, how):
        caller = self.callers[found.session.id]
        if self.random.random() < 0.2:
            found.discard()
            return
        _, ticket = how(caller.make_agent())
        if ticket._core.recorded:
            caller.given(next(work for work in caller.works if work.prompt == found.request.prompt), ticket)

    def attempt(self, act):
        try:
            act()
        except StoreUnavailableError:
            assert self.troubled, "refused for a journal that is well"
        except SessionStateError as error:
            self.note(f"refused: {error}")

    def trouble(self, journal):
        if journal.ill:
            journal.ill = self.random.random() < 0.9
            return
        fate = self.random.random()
        if fate > 0.05:
            return
        self.troubled = True
        if fate < 0.015:
            journal.ill = True
        elif fate < 0.04:
            journal.next_fault = self.random.choice(("begin", "put", "commit", "doubt", "rows"))
        else:
            self.note("the journal's actor crashes")
            tell(self.life.room._keeper.ref(), m.Consult(question="no such question", names=(), reply_to=Cell()))

    def step(self):
        """Let an actor, a job or a running turn go on; return whether anything could."""
        if self.failures:
            raise self.failures[0]
        self.steps += 1
        ready = [worker for worker in self.workers if worker.ready]
        if ready and self.random.random() < 0.3:
            self.random.choice(ready).run()
            return True
        if self.life.dispatcher.step():
            return True
        if ready:
            self.random.choice(ready).run()
        return bool(ready)

    def finish(self):
        """The last life: nothing fails any more, and everything that is open is brought to its end."""
        self.calm = True
        life = self.begin_life(10)
        while life.room.recovered():
            found = life.room.recovered()[0]
            self.decide(found, found.resume)
            caller = self.callers[found.session.id]
            self.rest()
            if caller.mine and not caller.mine[-1].core.recorded:
                caller.run()
                self.rest()
            caller.take()
        life.close()
        self.judge()
        with self.opened() as journal:
            left = Recovery(journal).unfinished()
            assert not left, f"left open: {[(one.turn_id, one.verdict) for one in left]}"

    def rest(self):
        for _ in range(100):
            while self.step():
                pass
            if not self.life.clock.pending:
                return
            self.life.clock.advance(1.0)

    def opened(self):
        journal = Journal.open(self.state_dir)
        journal.codec = CODEC  # made once: it is read with alone
        return journal

    def judge(self):
        """Between two lives: look at what the last one left, twice."""
        with self.opened() as journal:
            recovery = Recovery(journal)
            for caller in self.callers.values():
                caller.check_record(recovery)
            verdicts = [(one.turn_id, one.verdict) for one in recovery.unfinished()]
        with self.opened() as journal:
            assert verdicts == [(one.turn_id, one.verdict) for one in Recovery(journal).unfinished()]
        self.log.append(repr(verdicts))


def simulate_durable(seed):
    """Run one seed; return a digest of the journal and of all that was heard. Raises AssertionError."""
    with tempfile.TemporaryDirectory(prefix="greenroom-sim-", dir=MEMORY) as folder:
        return World(seed, folder).go()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--digests", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began_s = time.monotonic()
    for seed in range(options.start, options.start + options.seeds):
        try:
            digest = simulate_durable(seed)
        except Exception:
            print(f"seed {seed} failed; repeat with --seeds 1 --start {seed}")  # noqa: T201
            raise
        if options.digests:
            print(digest)  # noqa: T201
    print(f"{options.seeds} seeds from {options.start} in {time.monotonic() - began_s:.1f} s")  # noqa: T201


if __name__ == "__main__":
    main()
