"""A history is read, rolled back and forked while the process that is asked dies, is slow, or finds the thread in use."""

from __future__ import annotations

import contextlib
import threading

import pytest

from greenroom import (
    ApprovalPolicy,
    CodexAppServerTransport,
    Greenroom,
    NativePermissions,
    QueryFailedError,
    SessionResumeError,
    TurnRequest,
)
from greenroom.testing import Plan, codex_history, write_scripted_codex
from greenroom.transports.codex.transport import IN_USE_DELAYS_S
from tests.faults.killing import KillsQueries

OPTIONS = {"permissions": NativePermissions.bypass(), "approvals": ApprovalPolicy.DENY}


class Bench:
    """A scripted Codex whose queries die."""

    def __init__(self, folder, room, delay_s=None, **plan):
        self.executor = KillsQueries(delay_s or 0.0)
        self.executor.off = delay_s is None
        self.state = folder / "state"
        (folder / "home" / "codex").mkdir(parents=True)
        env = {"PATH": "/usr/bin:/bin", "HOME": str(folder / "home"), "CODEX_HOME": str(folder / "home" / "codex")}
        env |= {"GREENROOM_SCRIPTED_STATE": str(self.state), **Plan(**plan).env(folder)}
        self.transport = CodexAppServerTransport(binary=write_scripted_codex(folder / "bin"), env=env, executor=self.executor)
        self.session = room.agent(self.transport, **OPTIONS).session(folder)

    def say(self, *words):
        for word in words:
            self.session.run(self.session.prepare_turn(TurnRequest(f"SAY {word}", timeout=30), pin=True))

    @property
    def told(self):
        return [turn.items[0].text for turn in self.session.read_thread().turns]

    @property
    def shown(self):
        return [one.text for one in codex_history(self.state, self.session.conversation_id) if one.role == "user"]


@pytest.fixture
def room():
    with Greenroom() as room:
        yield room


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.06, 0.09, 0.12, 0.2])
def test_a_rollback_that_is_cut_leaves_one_history_or_the_other(tmp_path, room, delay_s):
    bench = Bench(tmp_path, room)
    bench.say("one", "two")
    bench.executor.off, bench.executor.delay_s = False, delay_s
    with contextlib.suppress(QueryFailedError):
        bench.session.rollback(1)
    assert bench.executor.killed == 1
    bench.executor.off = True
    left = bench.told
    assert left in (["SAY one"], ["SAY one", "SAY two"])
    assert bench.session.state == "idle"
    bench.say("three")
    assert bench.told == bench.shown == [*left, "SAY three"]


@pytest.mark.parametrize("what", ["read_thread", "fork", "rollback"])
def test_a_process_that_dies_at_once_is_an_error_and_no_more(tmp_path, room, what):
    bench = Bench(tmp_path, room)
    bench.say("one")
    bench.executor.off = False
    ask = {"read_thread": bench.session.read_thread, "fork": bench.session.fork, "rollback": lambda: bench.session.rollback(1)}[what]
    with pytest.raises(QueryFailedError, match="killed by signal 9"):
        ask()
    bench.executor.off = True
    assert bench.told == ["SAY one"]
    bench.say("two")


def test_a_read_that_dies_in_mid_turn_does_not_touch_the_turn(tmp_path, room):
    bench = Bench(tmp_path, room)
    bench.say("one")
    ticket = bench.session.prepare_turn(TurnRequest("SLOW 40 0.05\nSAY two", timeout=30), pin=True)
    worker = threading.Thread(target=bench.session.run, args=(ticket,))
    worker.start()
    for delay_s in (0.0, 0.05):
        bench.executor.off, bench.executor.delay_s = False, delay_s
        with contextlib.suppress(QueryFailedError):
            bench.session.read_thread()
    bench.executor.off = True
    assert bench.told[0] == "SAY one"
    worker.join(30)
    assert ticket.wait(30).result.text.endswith("two")
    assert bench.shown == ["SAY one", "SLOW 40 0.05\nSAY two"]


def test_a_thread_that_another_server_gives_up_is_waited_for(tmp_path, room):
    bench = Bench(tmp_path, room, in_use_times=2)
    bench.say("one", "two")
    bench.session.rollback(1)
    assert bench.told == ["SAY one"]


def test_a_thread_that_stays_in_use_is_refused_and_the_session_goes_on(tmp_path, room):
    bench = Bench(tmp_path, room, in_use_times=len(IN_USE_DELAYS_S) + 1)
    bench.say("one", "two")
    with pytest.raises(SessionResumeError) as refused:
        bench.session.rollback(1)
    assert refused.value.in_use
    assert bench.told == ["SAY one", "SAY two"]
    bench.say("three")


def test_many_read_at_once(tmp_path, room):
    bench = Bench(tmp_path, room)
    bench.say("one")
    seen: list[list[str]] = []
    workers = [threading.Thread(target=lambda: seen.append(bench.told)) for _ in range(20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen == [["SAY one"]] * 20
