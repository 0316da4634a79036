"""Many conversations in one real Codex server at once; the server killed under them; and what is left when all is over: nothing."""

from __future__ import annotations

import contextlib
import pathlib
import threading

import psutil
import pytest

from greenroom import ApprovalPolicy, Greenroom, NativePermissions, ToolCall, TransportDied, TransportRestarted
from greenroom.transports.guard import host_id
from greenroom.transports.marks import host_prefix, scan
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import Running, until

SESSIONS = 32
TARGET_MB = 350
OPTIONS = {"permissions": NativePermissions.bypass(), "approvals": ApprovalPolicy.DENY}


def folders(stage: CodexStage, count: int) -> list[pathlib.Path]:
    made = [stage.folder / f"work-{number}" for number in range(count)]
    for folder in made:
        folder.mkdir()
    return made


def begin_all(stage: CodexStage, prompt: str, count: int = SESSIONS) -> list[Running]:
    """Begin a turn in as many sessions; the prompt's `{}` is the number."""
    agent = stage.agent()
    sessions = [stage.session(cwd=folder, agent=agent) for folder in folders(stage, count)]
    return [stage.begin(session, prompt.format(number)) for number, session in enumerate(sessions)]


def test_thirty_two_conversations_in_one_server_leave_nothing(codex_stage: CodexStage) -> None:
    stage = codex_stage
    threads_before = set(threading.enumerate())
    running = begin_all(stage, "BASH echo {0} > made; sleep 0.2\nSAY done-{0}")
    turns = [turn.join() for turn in running]
    (server,) = stage.processes()
    assert [turn.result.text for turn in turns] == [f"done-{number}" for number in range(SESSIONS)]
    assert len({turn.conversation_id for turn in turns}) == SESSIONS
    for number in range(SESSIONS):
        assert (stage.folder / f"work-{number}" / "made").read_text() == f"{number}\n"
        assert stage.shown(f"SAY done-{number}\n")[-1] <= 1
    assert psutil.Process(server.pid).memory_info().rss / 1e6 < TARGET_MB
    with stage.session() as another:
        stage.run(another, "SAY hi")
        assert len(stage.processes()) == 2
    stage.room.close()
    assert scan().matching([host_prefix(host_id())]) == []
    assert not stage.processes()
    until(lambda: set(threading.enumerate()) - threads_before - {threading.current_thread()} <= set(), "the threads to end")


def test_the_server_is_killed_under_them(codex_stage: CodexStage) -> None:
    """One restart for all; each is shown its prompt once and runs its command once."""
    stage = codex_stage
    running = begin_all(stage, "BASH echo {0} >> side\nBASH mkdir once && sleep 60\nSAY done-{0}", 16)
    for turn in running:
        turn.wait_for(ToolCall, 2)
    until(lambda: calls_written(stage) == 2 * 16, "all the calls in the threads' files")
    (before,) = stage.processes()
    before.kill()
    turns = [turn.join() for turn in running]
    assert [turn.result.text for turn in turns] == [f"done-{number}" for number in range(16)]
    assert {turn.restarts for turn in turns} == {1}
    assert len(stage.processes()) == 1
    for number, turn in enumerate(running):
        assert len(turn.saw(TransportDied)) == len(turn.saw(TransportRestarted)) == 1
        assert (stage.folder / f"work-{number}" / "side").read_text() == f"{number}\n"
    # A request shows one conversation: nobody's prompt is in one twice.
    for index in range(len(stage.server.requests)):
        assert sum(said.count("SAY done-") for role, said in stage.server.seen(index) if role == "user") == 1


def test_one_is_stopped_and_one_closed_among_the_others(codex_stage: CodexStage) -> None:
    stage = codex_stage
    running = begin_all(stage, "BASH until [ -e go ]; do sleep 0.02; done\nSAY done-{0}", 6)
    for turn in running:
        turn.wait_for(ToolCall)
    running[0].session.interrupt()
    running[1].session.close()
    assert running[0].join().result.interrupted
    assert running[1].join().result.interrupted
    for number in range(2, 6):
        (stage.folder / f"work-{number}" / "go").touch()
    assert [turn.join().result.text for turn in running[2:]] == [f"done-{number}" for number in range(2, 6)]
    assert len(stage.processes()) == 1


def calls_written(stage: CodexStage) -> int:
    return sum(path.read_text(errors="replace").count(stage.CALL) for path in stage.transcripts())


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
def test_servers_that_start_at_once_in_a_fresh_home(codex: str, tmp_path: pathlib.Path, shared: bool) -> None:
    """Codex 0.163 makes its databases without a lock: a second server that starts meanwhile would end with an error."""
    with CodexStage(tmp_path, codex) as stage:
        agent = stage.agent(transport=stage.transport(shared=shared, max_conversations=2))
        sessions = [stage.session(cwd=folder, agent=agent) for folder in folders(stage, 6)]
        running = [stage.begin(session, "SAY hi") for session in sessions]
        assert [turn.join().result.text for turn in running] == ["hi"] * 6
        assert len(stage.processes()) == (3 if shared else 6)


def test_a_loud_one_does_not_hold_up_the_others(codex_stage: CodexStage) -> None:
    stage = codex_stage
    agent = stage.agent()
    loud = stage.begin(stage.session(agent=agent), "BASH seq 1 400000\nBASH seq 1 400000\nBASH seq 1 400000\nSAY done")
    with stage.session(agent=agent) as session:
        turns = [stage.run(session, "SAY hi") for _ in range(10)]
    assert {turn.result.text for turn in turns} == {"hi"}
    assert loud.join().result.text == "done"
    assert len(stage.processes()) == 1


def test_rooms_that_start_at_once_in_a_fresh_home(codex: str, tmp_path: pathlib.Path) -> None:
    """Between rooms there is no supervisor to keep the second one back."""
    with CodexStage(tmp_path, codex) as stage, contextlib.ExitStack() as rooms:
        agents = [rooms.enter_context(Greenroom()).agent(stage.transport(), **OPTIONS) for _ in range(3)]
        sessions = [rooms.enter_context(agent.session(stage.cwd)) for agent in agents]
        running = [stage.begin(session, f"SAY {number}") for number, session in enumerate(sessions)]
        assert [turn.join().result.text for turn in running] == ["0", "1", "2"]
        assert not list(stage.codex_home.glob("*.lock"))
