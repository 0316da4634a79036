"""What a durable room stands on when it is stepped by hand: a journal that fails as told, a room on a manual dispatcher, its sessions.

The room, its agents, sessions and recovered turns are the product's own; only what would block is driven instead, and what is drawn at
random is drawn from the seed.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading

import attrs

from greenroom import room as rooms
from greenroom.actors import engine as engines
from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.core import NO_FLAGS
from greenroom.actors.ledger import Ledger
from greenroom.actors.runtime import tell
from greenroom.actors.store import Keeper, unavailable
from greenroom.actors.ticket import TicketCore
from greenroom.agent import Agent
from greenroom.errors import StoreFailedError
from greenroom.journal import STANDARD, Journal
from greenroom.model import StoreFault
from greenroom.preparing import TurnTicket

TABLES = ("session", "ticket", "request", "outcome", "checkpoint", "spent", "input", "agent_events")
"""All but the processes, which are this machine's."""


class FlakyJournal(Journal):
    """Fails once in the named call (`doubt`: behind a commit that is there), or in all of them and cannot be healed while `ill`."""

    next_fault = None
    ill = False

    def _meets(self, call):
        if self.ill or self.next_fault == call:
            self.next_fault = None
            raise self._fail(StoreFault.FULL, "database or disk is full")

    def begin(self):
        self._meets("begin")
        super().begin()

    def put(self, record):
        self._meets("put")
        super().put(record)

    def commit(self):
        self._meets("commit")
        super().commit()
        self._meets("doubt")

    def rows(self, *query):
        self._meets("rows")
        return super().rows(*query)

    def try_heal(self):
        return not self.ill and super().try_heal()


class DrivenKeeper(Keeper):
    """Whoever waits for an answer lets the actors go on until it is there."""

    def consult(self, question, *names):
        reply = Cell()
        tell(self.ref(), m.Consult(question=question, names=names, reply_to=reply))
        self.drive(reply)
        try:
            return reply.get()
        except StoreFailedError as error:
            raise unavailable("the journal could not be read", error) from error

    def drive(self, reply):
        while not reply.settled:
            assert self._loop.step(), "nobody answers"


class Engine(engines.Engine):
    """Everything on the one dispatcher."""

    def __init__(self, dispatcher):
        self.loop = dispatcher
        self._lock = threading.Lock()
        self._sides = {}
        self._guardian = None

    def _side(self, kind, name):
        if kind not in self._sides:
            self._sides[kind] = (self.loop, kind.start(self.loop))
        return self._sides[kind][1]


class WatchingLedger(Ledger):
    """Notes the state behind every input, under its number."""

    seen = None

    def step(self, event, before, after, commands, prepares):
        records = super().step(event, before, after, commands, prepares)
        if records:
            self.seen[self.inputs] = after
        return records


class Room(rooms.Greenroom):
    def __init__(self, life, state_dir, **options):
        self.life = life
        self._acquire_engine = lambda: Engine(life.dispatcher)
        self._open_file = FlakyJournal.open
        self._keep = lambda journal, retention: DrivenKeeper(journal, retention, loop=life.dispatcher)
        super().__init__(state_dir=state_dir, clock=life.clock, ids=life.world.ids, **options)
        rooms._rooms.discard(self)

    def _begin(self, core, session, clock, *, guarded):
        ledger = core.ledger
        core.ledger = WatchingLedger(session_id=ledger.session_id, inputs=ledger.inputs, events=ledger.events)
        core.ledger.seen = self.life.world.callers[core.session_id].states
        return super()._begin(core, session, clock, guarded=guarded)


class SimAgent(Agent):
    """Makes sessions that prepare without waiting; `answered(session, ticket core, reply)` hears what came of it."""

    def __init__(self, caller, **options):
        self.caller = caller
        super().__init__(caller.transport, **options)

    def _settings(self, *args, **options):
        return attrs.evolve(super()._settings(*args, **options), session_nonce=self.caller.world.nonce())

    def _begin(self, *args, **options):
        session = super()._begin(*args, **options)
        session._preparing._prepare = lambda request, **demands: post(self.caller, session, request, **demands)
        self.caller.session = session
        return session


def post(caller, session, request, *, expect_conversation=None, pin=False, key=None, turn_id=None, nonce=None, sent=None, replaces=None):
    """Do what `Preparing._prepare` does, without waiting for the answer."""
    turn_id = turn_id or session._preparing._ids.new_id("turn")
    core = TicketCore(turn_id, session.id, on_told=session._room._teller(turn_id))
    core.sent = sent is not None
    reply = Cell()
    message = m.PrepareTurn(
        turn_id=turn_id,
        nonce=nonce or caller.world.nonce(),
        request=request,
        flags=NO_FLAGS,
        expect_conversation=expect_conversation,
        pin=pin,
        ticket=core,
        reply_to=reply,
        key=key,
        request_hash=STANDARD.fingerprint(request),
        sent=sent,
        replaces=replaces,
    )
    ticket = TurnTicket(
        turn_id=turn_id, request=request, expected_conversation=None, strict=False, pinned=pin, core=core, clock=session._clock
    )
    caller.posted(session, ticket, message)
    tell(session._ref, message)
    return ticket


def content(path):
    """Return a digest of what a journal says, whatever its pages look like, and wherever it is."""
    digest = hashlib.sha256()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        for table in TABLES:
            for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2"):  # noqa: S608 - our own words
                digest.update(repr((table, row)).replace(str(path), "journal.db").encode())
    finally:
        connection.close()
    return digest.hexdigest()
