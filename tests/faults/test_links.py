"""Many conversations in one process, on the scripted app-server: what one does or suffers, and what the others notice of it."""

from __future__ import annotations

import concurrent.futures
import os
import statistics
import threading
import time

import pykka
import pytest

from greenroom import (
    AssistantText,
    GreenroomError,
    NativeMode,
    NativePermissions,
    RestartPolicy,
    ToolCall,
    TransportDied,
    TransportDiedError,
    TransportRestarted,
    Turn,
)
from greenroom.actors import link, messages, process_owner
from greenroom.actors.dispatcher import LoopFailed, PipeReady, TimerFired
from greenroom.actors.link import GuestActor, LinkActor
from greenroom.actors.runtime import tell
from greenroom.testing.scripted import Plan
from tests.faults.codex_bench import AT_ONCE, PATIENCE_S, together, until
from tests.faults.test_poison import answered, bounded, ends, named, poisoned

UNTIL_GO = "RUN until [ -e go ]; do sleep 0.05; done"


@pytest.fixture
def bench(make):
    return make()


def texts(turns):
    return [turn.result.text for turn in turns]


def all_run(ones, prompt):
    return together([lambda one=one: one.run(prompt) for one in ones])


# --- one process -----------------------------------------------------------------------------------------------------------------


def test_thirty_two_share_one_process_and_the_next_gets_another(bench):
    ones = bench.many(34)
    assert texts(all_run(ones[:32], "SAY hi")) == ["hi"] * 32
    assert len(bench.starts) == 1
    assert texts(all_run(ones[32:], "SAY hi")) == ["hi"] * 2
    assert len(bench.starts) == 2
    assert len(bench.pids) == 2


def test_the_least_loaded_one_comes_first(make):
    bench = make(max_conversations=2)
    ones = bench.many(6)
    all_run(ones[:4], "SAY hi")
    first, second = bench.pids
    ones[0].session.close()
    ones[1].session.close()
    all_run(ones[4:], "SAY hi")
    assert bench.pids[:2] == [first, second]
    assert len(bench.starts) == 2


def test_starts_at_once_make_one_process(make):
    bench = make(Plan(slow_start_s=0.3))
    assert texts(all_run(bench.many(20), "SAY hi")) == ["hi"] * 20
    assert len(bench.starts) == 1


def test_the_first_start_in_a_home_goes_alone(make):
    """Codex 0.163 makes its databases without a lock."""
    bench = make(Plan(slow_start_s=1.5), max_conversations=1)
    all_run(bench.many(3), "SAY hi")
    began = [record["at"] for record in bench.starts]
    assert began[1] - began[0] >= 1.5
    assert began[2] - began[1] < 1.5


def test_another_environment_has_another_process(bench, make):
    other = make()
    agent = bench.agent(transport=other.transport)
    one, two = bench.one(), bench.one(agent=agent)
    assert texts(all_run([one, two], "SAY hi")) == ["hi"] * 2
    assert len(bench.starts) == len(other.starts) == 1


def test_a_new_agent_with_the_same_settings_shares_it_too(bench):
    ones = [bench.one(), bench.one(permissions=NativePermissions(NativeMode.READ_ONLY))]
    all_run(ones, "SAY hi")
    assert len(bench.starts) == 1


def test_nobody_uses_it_and_it_ends(bench):
    one = bench.one()
    one.run("SAY hi")
    one.session.close()
    assert bench.pids
    until(lambda: not bench.pids, "its end")
    assert bench.one().run("SAY hi").result.text == "hi"
    assert len(bench.starts) == 2


def test_an_idle_process_gives_its_place_away(make, monkeypatch):
    monkeypatch.setattr(link, "LEAVE_GRACE_S", 10 * PATIENCE_S)
    bench = make(room={"max_live": 1})
    bench.one().run("SAY hi")
    bench.ones[0].session.close()
    other = make()
    assert bench.one(transport=other.transport).run("SAY hi").result.text == "hi"


# --- its death --------------------------------------------------------------------------------------------------------------------


def test_the_death_of_the_process_is_one_restart_for_all(bench):
    ones = bench.many(12)
    all_run(ones, "SAY before")
    prompts = [f"RUN echo x\nRUN_SLEEP 30 {number}\nSAY done{number}" for number in range(12)]
    running = [one.begin(prompt, prepare={"pin": True}) for one, prompt in zip(ones, prompts, strict=True)]
    for one in ones:
        one.wait_for(ToolCall, 2)
    bench.kill()
    turns = [begun.outcome() for begun in running]
    assert texts(turns) == [f"done{number}" for number in range(12)]
    assert {turn.restarts for turn in turns} == {1}
    assert len(bench.starts) == 2
    for one in ones:
        assert len(one.of(TransportDied)) == len(one.of(TransportRestarted)) == 1
    for prompt in prompts:
        assert bench.prompts().count(prompt) == 1


def test_each_recovers_by_its_own_policy(bench):
    patient, strict = bench.one(), bench.one(restart=RestartPolicy(max_restarts=0))
    all_run([patient, strict], "SAY before")
    running = [one.begin("RUN_SLEEP 30\nSAY done", prepare={"pin": True}) for one in (patient, strict)]
    for one in (patient, strict):
        one.wait_for(ToolCall)
    bench.kill()
    assert running[0].outcome().result.text == "done"
    assert isinstance(running[1].outcome(), TransportDiedError)
    assert strict.run("SAY next", prepare={"pin": True}).result.text == "next"
    assert len(bench.starts) == 2


def test_one_who_kills_it_always_gives_up_and_the_others_go_on(bench):
    """The neighbours suffer as many deaths, and no more than their own intensity allows."""
    culprit = bench.one(restart=RestartPolicy(max_restarts=2, delays=(0.0,)))
    neighbour = bench.one(restart=RestartPolicy(max_restarts=10, delays=(0.0,)))
    all_run([culprit, neighbour], "SAY before")
    theirs = neighbour.begin("RUN_SLEEP 30\nSAY done", prepare={"pin": True})
    neighbour.wait_for(ToolCall)
    mine = culprit.begin("CRASH", prepare={"pin": True})
    assert isinstance(mine.outcome(), TransportDiedError)
    turn = theirs.outcome()
    assert turn.result.text == "done"
    assert 1 <= turn.restarts <= 3
    assert turn.restarts == len(neighbour.of(TransportDied))


def test_a_process_that_dies_at_every_start_is_given_up_by_each(make):
    bench = make(Plan(kill_after_line=1, kill_times=1000))
    ones = bench.many(5, restart=RestartPolicy(max_restarts=2, delays=(0.0, 0.05)))
    outcomes = together([lambda one=one: outcome(one, "SAY hi") for one in ones])
    assert all(isinstance(one, GreenroomError) for one in outcomes), outcomes
    assert len(bench.starts) <= 15


def outcome(one, prompt):
    try:
        return one.run(prompt)
    except GreenroomError as error:
        return error


def test_killed_while_conversations_are_opening(make):
    bench = make(Plan(slow_start_s=0.3))
    ones = bench.many(6)
    running = [one.begin("SAY hi") for one in ones]
    until(lambda: bench.pids, "a start")
    bench.kill()
    assert texts([begun.outcome() for begun in running]) == ["hi"] * 6
    assert len(bench.starts) == 2


def test_killed_with_many_conversations_of_which_some_are_idle(bench):
    ones = bench.many(6)
    before = all_run(ones, "SAY before")
    running = [one.begin("RUN_SLEEP 30\nSAY done", prepare={"pin": True}) for one in ones[:3]]
    for one in ones[:3]:
        one.wait_for(ToolCall)
    bench.kill()
    assert texts([begun.outcome() for begun in running]) == ["done"] * 3
    after = together([lambda one=one: one.run("SAY after", prepare={"pin": True}) for one in ones])
    assert [turn.conversation_id for turn in after] == [turn.conversation_id for turn in before]
    assert {turn.restarts for turn in after} == {0}
    assert len(bench.starts) == 2


# --- coming and going ----------------------------------------------------------------------------------------------------------------


def test_closing_one_leaves_the_others(bench):
    ones = bench.many(3)
    all_run(ones, "SAY hi")
    running = [one.begin(f"{UNTIL_GO}\nSAY done", prepare={"pin": True}) for one in ones]
    for one in ones:
        one.wait_for(ToolCall)
    ones[0].session.close()
    assert running[0].outcome().result.interrupted
    for one in ones[1:]:
        (one.session.cwd / "go").touch()
    assert texts([begun.outcome() for begun in running[1:]]) == ["done"] * 2
    assert len(bench.starts) == 1


def test_closing_the_room_ends_everything_soon(bench):
    ones = bench.many(8)
    all_run(ones[:4], "SAY hi")
    running = [one.begin("RUN_SLEEP 30\nSAY late", prepare={"pin": True}) for one in ones[:6]]
    for one in ones[:6]:
        one.wait_for(ToolCall)
    began_s = time.monotonic()
    bench.close()
    assert time.monotonic() - began_s < 20
    assert all(begun.outcome().result.interrupted for begun in running)
    assert not bench.pids


def test_interrupted_before_it_is_open(make):
    """The start is withdrawn: from the queue, before the process runs, and before the thread is open."""
    bench = make(Plan(slow_start_s=1.0))
    ones = bench.many(3)
    running = []
    for number, one in enumerate(ones):
        running.append(one.begin("SAY hi"))
        until(lambda one=one: one.session.state not in {"idle", "prepared"}, "the turn's beginning")
        time.sleep(0.15 * number)
        one.session.interrupt()
    assert all(begun.outcome().result.interrupted for begun in running)
    assert texts(all_run(ones, "SAY next")) == ["next"] * 3


def test_closed_before_it_is_open(make):
    bench = make(Plan(slow_start_s=0.3))
    one, other = bench.many(2)
    running, theirs = one.begin("SAY hi"), other.begin("SAY hi")
    until(lambda: bench.pids, "a start")
    one.session.close()
    assert isinstance(running.outcome(), (Turn, GreenroomError))
    assert theirs.outcome().result.text == "hi"


def test_an_ignored_interrupt_parts_with_one_and_retires_the_process(make):
    bench = make(interrupt_grace_s=0.3)
    deaf, busy, idle = bench.many(3)
    before = all_run([deaf, busy, idle], "SAY before")
    (old,) = bench.pids
    theirs = busy.begin(f"{UNTIL_GO}\nSAY done", prepare={"pin": True})
    busy.wait_for(ToolCall)
    mine = deaf.begin("IGNORE_INTERRUPT\nSAY deaf\nHANG", prepare={"pin": True})
    deaf.wait_for(AssistantText, 2)
    deaf.session.interrupt()
    assert mine.outcome().result.interrupted
    assert not theirs.ticket.ended
    # An idle one is put out at once, and opens its own conversation elsewhere; a newcomer as well.
    moved = idle.run("SAY moved", prepare={"pin": True})
    assert (moved.conversation_id, moved.restarts) == (before[2].conversation_id, 0)
    assert bench.one().run("SAY new").result.text == "new"
    assert len(bench.starts) == 2
    assert not theirs.ticket.ended
    (busy.session.cwd / "go").touch()
    turn = theirs.outcome()
    assert (turn.result.text, turn.restarts) == ("done", 0)
    until(lambda: old not in bench.pids, "the end of the retired process")
    after = busy.run("SAY after", prepare={"pin": True})
    assert (after.conversation_id, after.restarts) == (before[1].conversation_id, 0)
    again = deaf.run("SAY again", prepare={"pin": True})
    assert (again.conversation_id, again.restarts) == (before[0].conversation_id, 0)
    assert len(bench.starts) == 2
    assert not idle.of(TransportDied) + busy.of(TransportDied) + deaf.of(TransportDied)


def test_two_of_one_thread_never_run(bench):
    one = bench.one()
    turn = one.run("SAY one")
    with pytest.raises(GreenroomError):
        bench.one(session={"resume_id": turn.conversation_id})
    one.session.close()
    assert bench.one(session={"resume_id": turn.conversation_id}).run("SAY two").conversation_id == turn.conversation_id


def test_many_come_and_go(bench):
    """Releases, closes and new ones over one another, while two turns run through it all."""
    steady = bench.many(2)
    all_run(steady, "SAY before")
    running = [one.begin("SLOW 40 0.05 w\nSAY done", prepare={"pin": True}) for one in steady]

    def visit(number):
        one = bench.one()
        first = one.run(f"SAY {number}")
        one.session.release()
        assert one.run("SAY again", prepare={"pin": True}).conversation_id == first.conversation_id
        one.session.close()

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(visit, range(18)))
    assert texts([begun.outcome() for begun in running]) == ["done"] * 2
    assert len(bench.starts) == 1


# --- one does not hold up the others ----------------------------------------------------------------------------------------------------


def median_s(one, count=20):
    """How long a turn of a neighbour takes; the median, since a busy machine makes any one of them slow."""
    took_s = []
    for _ in range(count):
        began_s = time.monotonic()
        one.run("SAY hi", prepare={"pin": True})
        took_s.append(time.monotonic() - began_s)
    return statistics.median(took_s)


def test_a_pending_request_and_a_slow_handler_hold_nobody_up(bench):
    slow, other = bench.many(2, permissions=NativePermissions(NativeMode.READ_ONLY))
    all_run([slow, other], "SAY before")
    go_on = threading.Event()
    slow.react = lambda event: isinstance(event, AssistantText) and go_on.wait(PATIENCE_S)
    mine = slow.begin("SAY stuck\nASK touch x -> no\nSAY done", prepare={"pin": True})
    slow.wait_for(AssistantText, 2)
    for _ in range(5):
        other.run("SAY hi", prepare={"pin": True})  # ends although the other's handler has not returned
    assert not go_on.is_set()
    go_on.set()
    assert mine.outcome().result.text == "done"


def test_a_flood_holds_nobody_up(bench):
    loud, other = bench.many(2)
    all_run([loud, other], "SAY before")
    quiet_s = median_s(other)
    stop = threading.Event()
    loud.react = lambda event: stop.is_set() or time.sleep(0.001)
    lines = "\n".join(f"RUN x{number} -> {'y' * 100}" for number in range(8000))
    mine = loud.begin(lines, prepare={"pin": True})
    loud.wait_for(ToolCall, 20)
    beside_s = median_s(other)
    stop.set()
    loud.session.interrupt()
    assert mine.outcome()
    print(f"a neighbour's turn: {quiet_s * 1e3:.1f} ms alone, {beside_s * 1e3:.1f} ms beside a flood")  # noqa: T201
    assert beside_s < 1.0, (quiet_s, beside_s)


# --- a defect of ours ------------------------------------------------------------------------------------------------------------------


LINK = [
    *named(link, "Attach Detach GuestRun GuestSteer GuestInterrupt EndLink GuestPrepared"),
    *named(process_owner, "Launched"),
    TimerFired,
    PipeReady,
    LoopFailed,
]
GUEST = [
    *named(messages, "RunAttempt SteerAttempt InterruptTurn HoldReading EndConversation"),
    *named(link, "LinkOutputs LinkLost"),
    TimerFired,
]


def the(kind):
    return pykka.ActorRegistry.get_by_class(kind)


@pytest.fixture
def pair(make):
    """Two in a turn, in one process: the victim's never ends by itself."""
    bench = make()
    victim, sibling = bench.many(2, restart=AT_ONCE)
    theirs = sibling.begin("SLOW 10 0.05 w\nSAY lives")
    mine = victim.begin("SAY said\nRUN_SLEEP 60\nSAY never")
    victim.wait_for(ToolCall)
    yield bench, victim, mine, sibling, theirs
    bounded(bench.close)


@pytest.mark.parametrize("kind", LINK, ids=lambda kind: kind.__name__)
def test_a_poisoned_link_is_a_death_like_any_other(pair, kind):
    bench, victim, mine, sibling, theirs = pair
    (ref,) = the(LinkActor)
    message = poisoned(kind)
    tell(ref, message)
    answered(message)
    assert theirs.outcome().result.text == "lives"
    victim.session.interrupt()
    ends(victim.session, mine.ticket)
    assert sibling.run("SAY again").result.text == "again"
    assert bench.prompts().count("SAY said\nRUN_SLEEP 60\nSAY never") == 1


@pytest.mark.parametrize("kind", GUEST, ids=lambda kind: kind.__name__)
def test_a_poisoned_guest_is_a_death_of_its_own(pair, kind):
    bench, victim, mine, sibling, theirs = pair
    ref = victim.session._ref.actor_inbox._actor._conversation[1]
    assert ref in the(GuestActor)
    message = poisoned(kind)
    tell(ref, message)
    answered(message)
    if not ref.is_alive():
        until(lambda: victim.of(TransportRestarted) or mine.ticket.ended, "the restart")
    victim.session.interrupt()
    ends(victim.session, mine.ticket)
    assert theirs.outcome().result.text == "lives"
    assert not sibling.of(TransportDied)
    assert sibling.run("SAY again").result.text == "again"
    assert len(bench.starts) == 1


def test_the_host_has_no_more_threads_for_more_conversations(bench):
    ones = bench.many(16)
    all_run(ones, "SAY hi")
    assert len([thread for thread in threading.enumerate() if not thread.name.startswith(("Thread", "MainThread"))]) < 8
    assert len(os.listdir("/proc/self/fd")) < 64
