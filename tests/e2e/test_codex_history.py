"""History, rollback, fork and account on the real Codex: what is told, and what the model is shown afterwards. No call is spent."""

from __future__ import annotations

import contextlib
import pathlib

import pytest

from greenroom import AccountInUse, AccountKind, QueryFailedError, Session, SessionStateError, Thread, ToolCall, TurnFailedError, TurnStatus
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import until
from tests.e2e.test_history import SAYS, THINKS, TOOL, USER, prompts, session_account, told
from tests.faults.killing import KillsQueries

PIN = {"pin": True}
INPUT = 70  # uncached tokens that the model server says of every call


def users(stage: CodexStage, index: int = -1) -> list[str]:
    """Return what the model was shown of the user's."""
    return [text for role, text in stage.server.seen(index) if role == "user"]


def three(stage: CodexStage, session: Session) -> None:
    """Run three turns in one conversation."""
    for word in ("one", "two", "three"):
        stage.run(session, f"SAY {word}", prepare=PIN)


def test_a_history_tells_turns_with_their_items(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        assert session.read_thread() == Thread(thread_id=None)
        begun = stage.begin(session, "SAY one", prepare=PIN)
        first = begun.join()
        (paid,) = begun.saw(AccountInUse)
        assert paid.account == session_account(stage)
        stage.run(session, "THINK hm\nBASH echo out; exit 3\nSAY two", prepare=PIN)
        with pytest.raises(TurnFailedError):
            stage.run(session, "ERROR 500 server_error bad\nSAY three", prepare=PIN)
        calls, servers = len(stage.server.requests), stage.processes()
        thread = session.read_thread()
        assert stage.processes() == servers
        running = stage.begin(session, "SLOW 100 0.1", prepare=PIN)
        stage.asked(calls + 1)
        cut = until(lambda: (now := session.read_thread()) and len(now.turns) == 4 and now, "the running turn on disk")
        session.interrupt()
        running.join()
        after = session.read_thread()
    assert thread.thread_id == first.conversation_id
    assert told(thread)[:2] == [
        [(USER, "SAY one"), (SAYS, "one")],
        [(USER, "THINK hm\nBASH echo out; exit 3\nSAY two"), (THINKS, "hm"), (TOOL, "shell"), (SAYS, "two")],
    ]
    call = thread.turns[1].items[2]
    assert (call.result, call.exit_code, call.failed) == ("out\n", 3, True)
    assert [turn.status for turn in thread.turns] == [TurnStatus.COMPLETED, TurnStatus.COMPLETED, TurnStatus.ERROR]
    assert thread.turns[2].error
    assert cut.turns[-1].status is TurnStatus.RUNNING
    assert after.turns[-1].status is TurnStatus.INTERRUPTED
    assert session.read_thread() == after  # closed, and given up by its server


def test_retries_and_steers_are_no_turns_of_their_own(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        assert stage.run(session, "ERROR 500 server_error bad 1\nSAY one", prepare=PIN).retries == 1
        steered = stage.begin(session, "BASH sleep 1\nSAY two", prepare=PIN)
        steered.wait_for(ToolCall)
        session.steer("SAY steered")
        steered.join()
        thread = session.read_thread()
        assert len(thread.turns) == 2
        assert len(thread.turns[0].attempt_ids) == 2
        assert (USER, "SAY steered") in told(thread)[1]
        session.rollback(2)
        stage.run(session, "SAY three", prepare=PIN)
    assert users(stage) == ["SAY three"]


def test_a_turn_that_a_death_cut_goes_on_as_the_same_turn(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        running = stage.begin(session, "BASH echo x\nHANG\nSAY one", prepare=PIN)
        stage.asked(2)
        stage.processes()[0].kill()
        stage.asked(3)
        session.interrupt()
        assert running.join().restarts == 1
        thread = session.read_thread()
    assert len(thread.turns) == 1
    assert len(thread.turns[0].attempt_ids) == 2


def test_a_rollback_takes_turns_back_for_good_and_counts_on_from_there(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        three(stage, session)
        kept, calls = session.conversation_id, len(stage.server.requests)
        session.rollback(2)
        assert prompts(session) == ["SAY one"]
        assert len(stage.server.requests) == calls
        again = stage.run(session, "SAY four", prepare=PIN)
        assert users(stage) == ["SAY one", "SAY four"]
        assert again.conversation_id == kept == session.conversation_id
        assert again.result.usage.increment_known
        assert again.result.usage.tokens.input == INPUT
        session.rollback(2)
        assert not session.read_thread().turns
        # All that is left is killed before the next prompt: what was taken back stays so.
        for server in stage.processes():
            server.kill()
        fresh = stage.run(session, "SAY five", prepare=PIN)
        assert users(stage) == ["SAY five"]
        assert fresh.result.usage.tokens.input == INPUT
        assert fresh.conversation_id == kept


def test_a_rollback_leaves_the_servers_other_conversations_alone(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session, stage.session() as other:
        three(stage, session)
        running = stage.begin(other, "SLOW 30 0.1", prepare=PIN)
        stage.asked(4)
        session.rollback(1)
        assert len(stage.processes()) == 1
        assert not running.join().result.interrupted
        assert prompts(session) == ["SAY one", "SAY two"]


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2])
def test_a_rollback_that_is_cut_leaves_one_history_or_the_other(codex: str, tmp_path: pathlib.Path, delay_s: float) -> None:
    """What the history tells afterwards is what the model is shown."""
    with CodexStage(tmp_path, codex) as stage:
        executor = KillsQueries(delay_s)
        session = stage.session(agent=stage.agent(transport=stage.transport(executor=executor)))
        three(stage, session)
        with contextlib.suppress(QueryFailedError):
            session.rollback(1)
        executor.off = True
        left = prompts(session)
        assert left in (["SAY one", "SAY two"], ["SAY one", "SAY two", "SAY three"])
        stage.run(session, "SAY four", prepare=PIN)
        assert users(stage) == [*left, "SAY four"]


def test_what_cannot_be_taken_back(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        with pytest.raises(SessionStateError, match="no conversation"):
            session.rollback(1)
        stage.run(session, "SAY one", prepare=PIN)
        with pytest.raises(SessionStateError, match="has 1"):
            session.rollback(2)
        running = stage.begin(session, "SLOW 100 0.1", prepare=PIN)
        stage.asked(2)
        with pytest.raises(SessionStateError, match="running"):
            session.rollback(1)
        session.interrupt()
        running.join()
        assert prompts(session)[0] == "SAY one"


def test_a_fork_and_its_parent_go_on_by_themselves(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        stage.run(session, "SAY one", prepare=PIN)
        stage.run(session, "BASH true\nSAY two", prepare=PIN)
        calls = len(stage.server.requests)
        fork = session.fork()
        assert len(stage.server.requests) == calls
        assert fork.conversation_id != session.conversation_id
        assert told(fork.read_thread()) == told(session.read_thread())
        both = [stage.begin(session, "SAY parent", prepare=PIN), stage.begin(fork, "SAY child", prepare=PIN)]
        turns = [running.join() for running in both]
        assert [turn.result.text for turn in turns] == ["parent", "child"]
        assert [turn.result.usage.tokens.input for turn in turns] == [INPUT, INPUT]
        assert all(turn.result.usage.increment_known for turn in turns)
        assert prompts(session)[2:] == ["SAY parent"]
        assert prompts(fork)[2:] == ["SAY child"]
        fork.rollback(3)
        stage.run(fork, "SAY alone", prepare=PIN)
        assert users(stage) == ["SAY alone"]
        stage.run(session, "SAY last", prepare=PIN)
    assert users(stage) == ["SAY one", "BASH true\nSAY two", "SAY parent", "SAY last"]


def test_a_long_history_comes_page_by_page(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        for number in range(19):
            stage.run(session, f"SAY {number}", prepare=PIN)
        assert prompts(session) == [f"SAY {number}" for number in range(19)]
        session.rollback(18)
        assert prompts(session) == ["SAY 0"]


LOGIN = '{"auth_mode":"apikey","OPENAI_API_KEY":"sk-fake"}'


def test_the_account_in_use(codex: str, tmp_path: pathlib.Path) -> None:
    with CodexStage(tmp_path, codex) as stage:
        assert stage.agent().account().kind is AccountKind.UNKNOWN  # the stage's provider has a key of its own
        config = stage.codex_home / "config.toml"
        transport = stage.transport()
        config.write_text(config.read_text().replace("requires_openai_auth = false", "requires_openai_auth = true").replace("env_key", "#"))
        assert transport.account().kind is AccountKind.NONE
        (stage.codex_home / "auth.json").write_text(LOGIN)
        assert transport.account().kind is AccountKind.API_KEY
        assert not stage.server.requests
