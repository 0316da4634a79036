from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import attrs
import pytest
from fakes import FakeRoom, Script, Watcher, inline
from hypothesis import given, settings
from hypothesis import strategies as st

from greenroom.cli.plan import make_plan
from greenroom.cli.results import Outcome, exit_status
from greenroom.cli.runner import Limits, Runner
from greenroom.cli.stopping import StopRequest
from greenroom.cli.tasks import AgentSettings, Task, content_hash
from greenroom.errors import CliNotFoundError, SessionCrashedError, TurnFailedError, TurnTimeoutError
from greenroom.events import Lifecycle, TransportRestarted
from greenroom.model import FailureKind, ProviderUsage


def task(name, *, session=None, after=(), prompt=None, **more):
    made = Task(
        id=name,
        prompt=prompt or name,
        settings=AgentSettings(cwd=Path("/"), provider="claude", model=None, permissions="bypass", approvals="deny"),
        session=session,
        after=tuple(after),
        **more,
    )
    return attrs.evolve(made, hash=content_hash(made))


class Play:
    """One run over a fake room."""

    def __init__(self, tasks, *, scripts=None, parallel=8, max_cost_usd=None, done=None, log=None, room=None, grace_s=0.0):
        self.room = room or FakeRoom(scripts=scripts or {})
        self.watcher = Watcher()
        self.rounds = 50
        self.stop = StopRequest()
        self.runner = Runner(
            make_plan("tasks", tuple(tasks)),
            room=self.room,
            agents=self.room.agents,
            progress=self.watcher,
            offload=inline,
            stop=self.stop,
            limits=Limits(parallel=parallel, max_cost_usd=max_cost_usd, grace_s=grace_s),
            log=log,
            done=done,
        )

    def run(self, *during):
        async def both():
            running = asyncio.ensure_future(self.runner.run())
            for act in during:
                await self.settled()
                act()
            return await asyncio.wait_for(running, 5)

        self.records = asyncio.run(both())
        return {name: record.outcome.value for name, record in self.records.items()}

    async def settled(self):
        for _ in range(self.rounds):
            await asyncio.sleep(0)

    @property
    def status(self):
        return exit_status(self.runner.outcomes.values(), stopped=self.stop.status if self.stop.asked else None)


@st.composite
def plans(draw):
    count = draw(st.integers(1, 9))
    tasks = []
    for number in range(count):
        after = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        session = draw(st.sampled_from([None, None, "x", "y"]))
        tasks.append(task(f"t{number}", session=session, after=[f"t{other}" for other in after]))
    return tasks


@settings(max_examples=200, deadline=None)
@given(
    tasks=plans(),
    parallel=st.integers(1, 4),
    steps=st.lists(st.integers(0, 6), min_size=9, max_size=9),
    bad=st.sets(st.integers(0, 8), max_size=3),
    stops=st.integers(0, 2),
    rounds=st.integers(0, 40),
)
def test_any_plan_keeps_its_order_its_bound_and_gives_each_task_one_outcome(*, tasks, parallel, steps, bad, stops, rounds):
    failure = TurnFailedError(FailureKind.OTHER, "no")
    scripts = {f"t{n}": Script(steps=steps[n], error=failure if n in bad else None) for n in range(9)}
    play = Play(tasks, scripts=scripts, parallel=parallel)
    play.rounds = rounds
    outcomes = play.run(*[play.stop.ask] * stops)
    assert sorted(outcomes) == sorted(one.id for one in tasks)
    assert sorted(record.id for record in play.watcher.records) == sorted(outcomes)
    assert play.room.most_at_once <= parallel
    assert not play.room.running
    for one in tasks:
        if one.id in play.room.begun:
            assert all(outcomes[other] == "done" for other in one.after)
            began = play.room.log.index(("begin", one.id))
            for other in play.runner._plan.before(one):
                assert other not in play.room.begun or play.room.log.index(("end", other)) < began
        if outcomes[one.id] == "skipped":
            assert any(outcomes[other] in {"failed", "skipped"} for other in one.after)
    if not play.stop.asked:
        assert set(outcomes.values()) <= {"done", "failed", "skipped"}


def test_tasks_of_a_session_run_in_its_one_conversation_and_it_is_closed_behind_the_last():
    play = Play([task("a", session="s"), task("b", session="s"), task("c")])
    assert play.run() == {"a": "done", "b": "done", "c": "done"}
    assert len(play.room.sessions) == 2
    assert play.records["a"].conversation_id == play.records["b"].conversation_id
    assert sorted(play.room.closings) == ["s0", "s1"]
    assert play.status == 0


def test_an_open_session_goes_first_so_that_few_processes_sit_idle():
    tasks = [task(f"{step}{n}", session=f"s{n}") for step in "ab" for n in range(3)]
    play = Play(tasks, parallel=1)
    play.run()
    assert play.room.begun == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_session_whose_next_task_has_to_wait_gives_its_process_up():
    play = Play([task("a", session="s"), task("slow"), task("b", session="s", after=["slow"])], scripts={"slow": Script(steps=30)})
    assert set(play.run().values()) == {"done"}
    assert play.room.released == ["s0"]
    assert play.records["b"].conversation_id == play.records["a"].conversation_id


def test_what_comes_after_a_failed_task_is_skipped_by_name_and_the_rest_goes_on():
    error = TurnFailedError(FailureKind.AUTH, "login expired")
    play = Play([task("a"), task("b", after=["a"]), task("c", after=["b"]), task("d")], scripts={"a": Script(error=error)})
    assert play.run() == {"a": "failed", "b": "skipped", "c": "skipped", "d": "done"}
    assert "'a' ended as failed" in play.records["b"].error["message"]
    assert "'b' ended as skipped" in play.records["c"].error["message"]
    assert play.records["a"].error == {"type": "TurnFailedError", "kind": "auth", "message": str(error), "hint": error.hint}
    assert play.status == 1


def test_a_failed_record_carries_what_the_run_itself_counted():
    events = (TransportRestarted(2), Lifecycle("wait", "retry in 30 s"), Lifecycle("api_retry", "by itself"))
    play = Play([task("a")], scripts={"a": Script(error=TurnTimeoutError(5), events=events)})
    play.run()
    record = play.records["a"]
    assert (record.restarts, record.retries, record.turn_id) == (1, 1, "turn-1")
    assert record.error["kind"] is None


def test_an_error_that_nobody_foresaw_is_the_tasks_outcome_and_no_ones_elses():
    play = Play([task("a"), task("b")], scripts={"a": Script(error=ZeroDivisionError("oh"))})
    assert play.run() == {"a": "failed", "b": "done"}
    assert play.records["a"].error["type"] == "ZeroDivisionError"


def test_a_crashed_session_is_opened_anew_in_its_conversation():
    scripts = {"b": Script(error=SessionCrashedError("s", "bug"))}
    play = Play([task(name, session="s") for name in "abc"], scripts=scripts)
    assert play.run() == {"a": "done", "b": "failed", "c": "done"}
    assert play.room.resumed == [("s0", None), ("s1", "conv-s0")]


def test_a_missing_binary_stops_the_admission_instead_of_failing_every_task():
    play = Play([task(str(n)) for n in range(9)], parallel=2, room=FakeRoom(open_error=CliNotFoundError("claude", hint="install it")))
    outcomes = play.run()
    assert list(outcomes.values()).count("failed") == 2
    assert list(outcomes.values()).count("not_started") == 7
    assert "'claude'" in play.records["8"].error["message"]


def test_the_budget_stops_the_admission_and_lets_running_tasks_end():
    play = Play([task(str(n)) for n in range(5)], scripts={"2": Script(steps=9)}, parallel=1, max_cost_usd=0.02)
    assert list(play.run().values()) == ["done", "done", "not_started", "not_started", "not_started"]
    assert "$0.02" in play.records["4"].error["message"]
    assert play.status == 1


def test_failed_tasks_cost_too():
    error = TurnFailedError(FailureKind.OTHER, "no", usage=ProviderUsage(total_cost_usd=1.0))
    play = Play([task("a"), task("b")], scripts={"a": Script(error=error)}, parallel=1, max_cost_usd=0.5)
    assert play.run() == {"a": "failed", "b": "not_started"}
    assert play.records["a"].cost_usd == 1.0


# --- earlier runs --------------------------------------------------------------------------------------------------------------


def test_a_later_task_of_a_session_resumes_the_conversation_of_an_earlier_run():
    tasks = [task("a", session="s"), task("b", session="s", after=["a"]), task("c")]
    play = Play(tasks, done={"a": {"id": "a", "outcome": "done", "conversation_id": "old"}, "c": {"id": "c", "outcome": "done"}})
    assert play.run() == {"b": "done"}
    assert play.room.resumed == [("s0", "old")]
    assert play.runner.outcomes == dict.fromkeys("abc", Outcome.DONE)


def test_nothing_is_opened_when_everything_is_done():
    play = Play([task("a")], done={"a": {"id": "a", "outcome": "done"}})
    assert play.run() == {}
    assert play.room.sessions == []
    assert play.status == 0


# --- stopping ------------------------------------------------------------------------------------------------------------------


def test_one_ctrl_c_interrupts_what_runs_in_order_and_starts_nothing_more():
    scripts = {"b": Script(forever=True), "c": Script(forever=True)}
    play = Play([task(name) for name in "abcd"] + [task("e", after=["b"])], scripts=scripts, parallel=2)
    assert play.run(play.stop.ask) == {"a": "done", "b": "interrupted", "c": "interrupted", "d": "not_started", "e": "not_started"}
    assert play.room.interrupts == ["b", "c"]
    assert play.room.deadlines == []
    assert play.status == 130


def test_running_turns_may_end_within_the_grace_and_nothing_more_begins():
    play = Play([task(name) for name in "abc"], scripts={"a": Script(steps=200), "b": Script(steps=200)}, parallel=2, grace_s=60.0)
    assert play.run(play.stop.ask) == {"a": "done", "b": "done", "c": "not_started"}
    assert play.room.interrupts == []
    assert play.status == 130


def test_what_outlasts_the_grace_is_interrupted():
    play = Play([task("a"), task("b")], scripts={"a": Script(forever=True)}, parallel=1, grace_s=0.01)
    assert play.run(play.stop.ask) == {"a": "interrupted", "b": "not_started"}
    assert play.room.interrupts == ["a"]


def test_a_second_stop_ends_the_grace():
    play = Play([task("a")], scripts={"a": Script(forever=True, deaf=True)}, grace_s=60.0)
    assert play.run(play.stop.ask, play.stop.ask) == {"a": "interrupted"}
    assert play.room.deadlines == [1.0]


def test_the_status_names_the_signal():
    play = Play([task("a"), task("b")], scripts={"a": Script(forever=True)}, parallel=1)
    play.run(lambda: play.stop.ask(signal.SIGTERM), lambda: play.stop.ask(signal.SIGINT))
    assert play.status == 143


def test_ctrl_c_twice_closes_the_room_at_once():
    scripts = {"a": Script(forever=True, deaf=True), "b": Script(forever=True)}
    play = Play([task("a"), task("b"), task("c")], scripts=scripts, parallel=2)
    assert play.run(play.stop.ask, play.stop.ask) == {"a": "interrupted", "b": "interrupted", "c": "not_started"}
    assert play.room.deadlines == [1.0]
    assert play.records["a"].error["type"] == "SessionStateError"
    assert play.records["a"].text == "working"  # what came of the turn


@pytest.mark.parametrize(("text", "kept"), [("", "working"), ("half", "half")])
def test_an_interrupted_turn_keeps_what_it_had_said_though_its_process_died(text, kept):
    play = Play([task("a")], scripts={"a": Script(forever=True, text=text)})
    assert play.run(play.stop.ask) == {"a": "interrupted"}
    assert play.records["a"].text == kept


def test_a_turn_that_even_the_closed_room_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr("greenroom.cli.runner._AFTER_FORCE_S", 0.01)
    play = Play([task("a")], scripts={"a": Script(forever=True, deaf=True)})
    play.room.stubborn = True
    assert play.run(play.stop.ask, play.stop.ask, play.stop.ask) == {"a": "interrupted"}
    assert play.records["a"].error["type"] == "CancelledError"


def test_a_stop_between_prepare_and_run_cancels_the_ticket():
    play = Play([task("a")])
    play.room.on_prepare = lambda request: play.stop.ask()
    assert play.run() == {"a": "cancelled"}
    assert play.room.begun == []
    assert play.room.interrupts == ["a"]


def test_a_stop_while_a_session_opens_leaves_the_task_not_started():
    play = Play([task("a")])
    play.room.on_open = lambda cwd: play.stop.ask()
    assert play.run() == {"a": "not_started"}
    assert play.room.prepared == []


def test_a_stop_in_a_retry_wait_counts_as_interrupted_and_keeps_the_error():
    error = TurnFailedError(FailureKind.TRANSIENT, "overloaded")

    play = Play([task("a")], scripts={"a": Script(forever=True, error=error, waits_to_retry=True)})
    assert play.run(play.stop.ask) == {"a": "interrupted"}
    assert play.records["a"].error["kind"] == "transient"


def test_a_stop_that_comes_when_all_is_done_changes_nothing():
    play = Play([task("a")])
    play.run()
    play.stop.ask()
    assert play.status == 0


# --- what is written ---------------------------------------------------------------------------------------------------------


class FullDisk:
    def __init__(self, after):
        self.after = after
        self.kept = []

    def append(self, record):
        if len(self.kept) >= self.after:
            raise OSError(28, "No space left on device")
        self.kept.append(record)


def test_a_full_disk_stops_the_admission_and_is_told():
    play = Play([task(str(n)) for n in range(4)], parallel=1, log=FullDisk(1))
    assert list(play.run().values()) == ["done", "done", "not_started", "not_started"]
    assert play.runner.trouble[0] == "the result of '1' could not be written: No space left on device"


def test_a_record_is_on_the_disk_before_it_is_shown():
    log = FullDisk(9)
    play = Play([task("a")], log=log)
    seen = []
    play.watcher.on_ended = lambda record: seen.append(list(log.kept))
    play.run()
    assert [record.id for record in seen[0]] == ["a"]


def test_a_session_that_cannot_be_closed_is_told_and_undoes_nothing():
    play = Play([task("a")], room=FakeRoom(close_error=TurnTimeoutError(1)))
    assert play.run() == {"a": "done"}
    assert len(play.runner.trouble) == 1


@pytest.mark.parametrize("count", [300])
def test_hundreds_of_tasks_need_no_thread_each(count):
    play = Play([task(str(n)) for n in range(count)], parallel=50)
    assert set(play.run().values()) == {"done"}
    assert play.room.most_at_once <= 50
