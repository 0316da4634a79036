"""What the undertaker says of what it could not end, who is told of the sessions that it saw, and what stays on record."""

from __future__ import annotations

import attrs
import pytest

from greenroom.actors import undertaker as u
from greenroom.actors.births import Births
from greenroom.actors.dispatcher import ManualDispatcher, TimerFired
from greenroom.actors.guardian import GuardianActor, GuardStarted, SidsSeen
from greenroom.actors.runtime import LoopActor, tell
from greenroom.journal.records import ProcessEnded, ProcessStarted
from greenroom.testing import FakeClock


class Asker(LoopActor):
    def __init__(self, dispatcher):
        super().__init__(dispatcher)
        self.told = []

    def handle(self, message):
        self.told.append(message)


class Rig:
    def __init__(self):
        self.dispatcher = ManualDispatcher(FakeClock())
        self.sids = []
        self.asker = Asker.start(self.dispatcher)
        self.told = self.asker._actor_weakref().told
        self.ref = u.UndertakerActor.start(self.dispatcher, tell_sids=self.sids.append)

    def swept(self, *, remaining=(), done=False, round_=0, sids=None):
        batch = u._Batch(asked=(u.ProveDead(token=("s", 1), mark="gr/no/such/mark/1", asker=self.asker),), sweep=None)
        tell(self.ref, u._Swept(batch=batch, remaining=remaining, done=done, round_=round_, sids=sids or {}))
        self.dispatcher.run_until_idle()

    def close(self):
        self.ref.stop(block=False)
        self.asker.stop(block=False)
        self.dispatcher.run_until_idle()
        self.dispatcher.stop()


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.close()


@pytest.mark.parametrize(("remaining", "done"), [((), True), ((4711,), False)])
def test_what_could_not_be_ended_is_not_called_proven(rig, remaining, done):
    rig.swept(remaining=remaining, done=done, round_=u.SWEEP_ROUNDS)
    assert rig.told == [u.ProvenDead(token=("s", 1), proven=done)]


def test_without_an_undertaker_nothing_is_proven(rig):
    u.ProveDead(token="link-1", mark="m", asker=rig.asker).refuse()  # noqa: S106
    rig.dispatcher.run_until_idle()
    assert rig.told == [u.ProvenDead(token="link-1", proven=False)]  # noqa: S106


def test_sessions_that_were_seen_are_told_from_the_first_round_on(rig):
    rig.swept(remaining=(4711,), sids={4711: 5})
    rig.swept(round_=1, sids={4711: 5}, done=True)
    assert rig.sids == [{4711: 5}]


# --- the record


class Living:
    pid = 1


@pytest.mark.parametrize("proven", [True, False])
def test_only_what_is_proven_dead_is_recorded_as_ended(proven):
    records = []
    births = Births("room-1", records.append)
    births.open()
    births.enter("s", 1, "gr/h/r/s/1", Living)
    births.enter("s", 2, "gr/h/r/s/2", Living)
    births.strike("gr/h/r/s/1", proven=proven)
    births.strike("gr/h/r/s/2", proven=True)
    births.strike("gr/h/r/nobody/1", proven=True)
    births.close()
    started = [record.mark for record in records if isinstance(record, ProcessStarted)]
    ended = [record.mark for record in records if isinstance(record, ProcessEnded)]
    assert len(started) == 3
    # What is left keeps the host on record as well: the next one looks for all that carries its marks.
    assert set(started) - set(ended) == (set() if proven else {"gr/h/r/s/1", started[0]})


# --- the guardian


@attrs.define(eq=False)
class FakeGuard:
    sids: dict = attrs.field(factory=dict)
    exit_fd: int | None = None

    def tell_sids(self, sids):
        self.sids |= sids

    def poll(self):
        return None


def test_a_guard_that_is_being_started_is_told_when_it_is_there():
    dispatcher, guard = ManualDispatcher(FakeClock()), FakeGuard()
    actor = GuardianActor(dispatcher)
    actor.handle(SidsSeen(sids={1: 2}))
    actor.handle(SidsSeen(sids={3: 4}))
    actor.handle(GuardStarted(guard=guard, error=None))
    actor.handle(SidsSeen(sids={5: 6}))
    actor.handle(TimerFired(token="look"))  # noqa: S106
    assert guard.sids == {1: 2, 3: 4, 5: 6}
    actor.stop()
    dispatcher.stop()
