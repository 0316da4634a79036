"""History, rollback, fork and account on the real Claude Code: what is told, and what the model is shown afterwards. No call is spent."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

from greenroom import (
    Account,
    AccountInUse,
    AccountKind,
    ApprovalPolicy,
    Greenroom,
    ItemKind,
    NativePermissions,
    OutputSchema,
    QueryFailedError,
    Session,
    SessionStateError,
    Thread,
    ToolCall,
    TurnFailedError,
    TurnRequest,
    TurnStatus,
)
from tests.e2e.stage import Stage, until
from tests.faults.killing import KillsQueries

USER, SAYS, TOOL, THINKS = ItemKind.USER_TEXT, ItemKind.ASSISTANT_TEXT, ItemKind.TOOL_CALL, ItemKind.REASONING


def told(thread: Thread) -> list[list[tuple[ItemKind, str]]]:
    """Return what a thread tells, without its ids."""
    return [[(item.kind, item.tool or item.text) for item in turn.items] for turn in thread.turns]


def session_account(stage: Stage) -> Account:
    """Ask in another process."""
    return stage.agent().account()


def prompts(session: Session) -> list[str]:
    """Return the first text of each turn."""
    return [turn.items[0].text for turn in session.read_thread().turns]


def test_a_history_tells_turns_with_their_items(stage: Stage) -> None:
    with stage.session() as session:
        assert session.read_thread() == Thread(thread_id=None)
        begun = stage.begin(session, "SAY one")
        first = begun.join()
        (paid,) = begun.saw(AccountInUse)
        assert paid.account == session_account(stage)
        stage.run(session, "BASH echo out\nSAY two")
        with pytest.raises(TurnFailedError):
            stage.run(session, "ERROR 529 overloaded_error busy\nSAY three")
        calls = len(stage.server.requests)
        thread = session.read_thread()
        live = stage.processes()
    assert len(live) == 1
    assert len(stage.server.requests) == calls
    assert thread.thread_id == first.conversation_id
    assert told(thread)[:2] == [
        [(USER, "SAY one"), (SAYS, "one")],
        [(USER, "BASH echo out\nSAY two"), (TOOL, "Bash"), (SAYS, "two")],
    ]
    call = thread.turns[1].items[1]
    assert (call.args["command"], call.result, call.failed) == ("echo out", "out", False)
    assert [turn.status for turn in thread.turns] == [TurnStatus.COMPLETED, TurnStatus.COMPLETED, TurnStatus.ERROR]
    assert "529" in (thread.turns[2].error or "")
    assert session.read_thread() == thread  # closed, and without a process


def test_a_retry_a_steer_and_an_interrupt_are_no_turns_of_their_own(stage: Stage) -> None:
    with stage.session() as session:
        assert stage.run(session, "ERROR 529 overloaded_error busy 1\nSAY one").retries == 1
        steered = stage.begin(session, "BASH sleep 1; echo x\nSAY two")
        steered.wait_for(ToolCall)
        session.steer("SAY steered")
        steered.join()
        cut = stage.begin(session, "BASH echo x\nHANG\nSAY three")
        cut.wait_for(ToolCall)
        running = until(lambda: _last_with(session, TOOL, turns=3), "the call on disk")
        session.interrupt()
        assert cut.join().result.interrupted
        after = until(lambda: _last_is(session, TurnStatus.INTERRUPTED), "the interrupt on disk")
    assert running.turns[-1].status is TurnStatus.RUNNING
    assert len(after.turns) == 3
    assert told(after)[0] == [(USER, "ERROR 529 overloaded_error busy 1\nSAY one"), (SAYS, "one")]
    assert len(after.turns[0].attempt_ids) == 2
    assert (USER, "SAY steered") in told(after)[1]


def _last_with(session: Session, kind: ItemKind, *, turns: int = 1) -> Thread | None:
    thread = session.read_thread()
    return thread if len(thread.turns) == turns and any(item.kind is kind for item in thread.turns[-1].items) else None


def _last_is(session: Session, status: TurnStatus) -> Thread | None:
    thread = session.read_thread()
    return thread if thread.turns and thread.turns[-1].status is status else None


def test_a_turn_that_a_death_cut_goes_on_as_the_same_turn(stage: Stage) -> None:
    with stage.session() as session:
        running = stage.begin(session, "BASH echo x\nHANG\nSAY one")
        stage.asked(2)
        until(lambda: _last_with(session, TOOL), "the call on disk")
        stage.kill()
        stage.asked(3)
        session.interrupt()
        assert running.join().restarts == 1
        thread = until(lambda: _last_is(session, TurnStatus.INTERRUPTED), "the interrupt on disk")
    assert len(thread.turns) == 1
    assert len(thread.turns[0].attempt_ids) == 2


def test_a_rollback_takes_turns_back_for_good(stage: Stage) -> None:
    with stage.session() as session:
        for word in ("one", "two", "three"):
            stage.run(session, f"SAY {word}")
        kept, calls = session.conversation_id, len(stage.server.requests)
        session.rollback(2)
        assert not stage.processes()
        assert prompts(session) == ["SAY one"]
        assert len(stage.server.requests) == calls
        again = stage.run(session, "SAY four", prepare={"pin": True})
        assert stage.server.seen(-1) == (("user", "SAY one"), ("assistant", "one"), ("user", "SAY four"))
        assert again.conversation_id == kept == session.conversation_id
        assert again.result.usage.increment_known
        assert again.result.usage.tokens.input == stage.run(session, "SAY five").result.usage.tokens.input
        session.rollback(3)
        assert not session.read_thread().turns
        stage.run(session, "SAY six")
        assert stage.server.seen(-1) == (("user", "SAY six"),)


def test_a_rollback_outlives_a_kill_of_the_next_process_before_its_prompt(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        stage.run(session, "ERROR 529 overloaded_error busy 1\nSAY two")
        session.rollback(1)
        kept = session.conversation_id
    process = subprocess.Popen(
        (stage.binary, "--print", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--resume", kept),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=stage.env,
        cwd=stage.cwd,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(b'{"type":"control_request","request_id":"r","request":{"subtype":"initialize"}}\n')
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with stage.session(resume_id=kept) as session:
        stage.run(session, "SAY three")
    assert stage.server.seen(-1) == (("user", "SAY one"), ("assistant", "one"), ("user", "SAY three"))


def test_a_steered_last_turn_is_taken_back_too(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        steered = stage.begin(session, "BASH sleep 1; echo x\nSAY two")
        steered.wait_for(ToolCall)
        session.steer("SAY steered")
        steered.join()
        session.rollback(1)
        stage.run(session, "SAY three")
    assert stage.server.seen(-1) == (("user", "SAY one"), ("assistant", "one"), ("user", "SAY three"))


def test_an_answer_by_a_schema_is_complete_and_images_are_noted(stage: Stage) -> None:
    schema = OutputSchema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    with stage.session() as session:
        assert stage.run(session, 'STRUCTURED {"n": 7}', output_schema=schema).result.structured_output == {"n": 7}
        assert session.read_thread().turns[0].status is TurnStatus.COMPLETED
        running = stage.begin(session, "SAY two")
        running.join()
        assert session.read_thread().turns[1].status is TurnStatus.COMPLETED


@pytest.mark.parametrize("delay_s", [0.0, 0.2, 0.35, 0.5])
def test_a_rollback_that_is_cut_leaves_one_history_or_the_other(claude: str, tmp_path: pathlib.Path, delay_s: float) -> None:
    """What the history tells afterwards is what the model is shown."""
    with Stage(tmp_path, claude) as stage:
        executor = KillsQueries(delay_s)
        session = stage.session(agent=stage.agent(transport=stage.transport(executor=executor)))
        stage.run(session, "SAY one")
        stage.run(session, "SAY two")
        with contextlib.suppress(QueryFailedError):
            session.rollback(1)
        executor.off = True
        left = prompts(session)
        assert left in (["SAY one"], ["SAY one", "SAY two"])
        stage.run(session, "SAY three")
        assert [text for role, text in stage.server.seen(-1) if role == "user"] == [*left, "SAY three"]
        session.rollback(1)
        assert prompts(session) == left


def test_what_cannot_be_taken_back(stage: Stage) -> None:
    with stage.session() as session:
        with pytest.raises(SessionStateError, match="no conversation"):
            session.rollback(1)
        stage.run(session, "SAY one")
        with pytest.raises(SessionStateError, match="has 1"):
            session.rollback(2)
        running = stage.begin(session, "SLOW 100 0.1")
        stage.asked(2)
        with pytest.raises(SessionStateError, match="running"):
            session.rollback(1)
        with pytest.raises(SessionStateError, match="running"):
            session.fork()
        session.interrupt()
        running.join()
        assert prompts(session)[0] == "SAY one"
        stage.run(session, "SAY two")
        # Someone compacts it, by the CLI's own command: what was before can be read, and not be taken back.
        session.release()
        _compact(stage, session)
        assert "SAY one" in prompts(session)
        with pytest.raises(QueryFailedError) as refused:
            session.rollback(len(session.read_thread().turns))
        assert refused.value.hint
        stage.run(session, "SAY three")


def _compact(stage: Stage, session: Session) -> None:
    until(lambda: not stage.processes(), "the process's end")
    argv = (stage.binary, "--print", "--resume", str(session.conversation_id), "/compact")
    subprocess.run(argv, env=stage.env, cwd=stage.cwd, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def test_a_fork_and_its_parent_go_on_by_themselves(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        stage.run(session, "BASH echo x\nSAY two")
        calls, processes = len(stage.server.requests), stage.processes()
        fork = session.fork()
        assert stage.processes() == processes
        assert len(stage.server.requests) == calls
        assert fork.conversation_id != session.conversation_id
        assert told(fork.read_thread()) == told(session.read_thread())
        both = [stage.begin(session, "SAY parent"), stage.begin(fork, "SAY child")]
        turns = [running.join() for running in both]
        assert [turn.result.text for turn in turns] == ["parent", "child"]
        assert all(turn.result.usage.increment_known for turn in turns)
        assert turns[0].result.usage.tokens.input == turns[1].result.usage.tokens.input
        assert prompts(session)[2:] == ["SAY parent"]
        assert prompts(fork)[2:] == ["SAY child"]
        stage.run(fork, "SAY more")
        seen = stage.server.seen(-1)
        fork.rollback(3)
        stage.run(session, "SAY last")
        assert prompts(fork) == ["SAY one"]
    assert [text for role, text in seen if role == "user"] == ["SAY one", "BASH echo x\nSAY two", "SAY child", "SAY more"]
    assert [text for role, text in stage.server.seen(-1) if role == "user"] == [
        "SAY one",
        "BASH echo x\nSAY two",
        "SAY parent",
        "SAY last",
    ]


HOST = """
    import pathlib, sys
    from greenroom import *
    state, cwd = sys.argv[1:]
    room = Greenroom(state_dir=state)
    agent = room.agent("claude", permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    session = agent.session(cwd, session_id="mine")
    for word in ("one", "two"):
        session.run(session.prepare_turn(TurnRequest(f"SAY {word}")))
    session.rollback(1)
    print("back", flush=True)
    sys.stdin.read()
"""


def test_a_rollback_outlives_the_host(stage: Stage, tmp_path: pathlib.Path) -> None:
    env = {**stage.env, "PATH": f"{pathlib.Path(stage.binary).parent}{os.pathsep}{stage.env['PATH']}", "PYTHONPATH": os.getcwd()}
    host = subprocess.Popen(
        (sys.executable, "-c", textwrap.dedent(HOST), str(tmp_path / "state"), str(stage.cwd)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    )
    assert host.stdout
    assert host.stdout.readline() == b"back\n"
    host.kill()
    host.communicate()
    with Greenroom(state_dir=tmp_path / "state") as room:
        agent = room.agent(stage.transport(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
        session = agent.session(stage.cwd, session_id="mine")
        turn = session.run(session.prepare_turn(TurnRequest("SAY three"), pin=True))
        assert turn.result.usage.increment_known
    assert stage.server.seen(-1) == (("user", "SAY one"), ("assistant", "one"), ("user", "SAY three"))


@pytest.mark.parametrize(
    ("env", "kind", "source"),
    [
        ({}, AccountKind.API_KEY, "ANTHROPIC_API_KEY"),
        ({"ANTHROPIC_API_KEY": ""}, AccountKind.NONE, None),
        ({"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-fake"}, AccountKind.SUBSCRIPTION, "CLAUDE_CODE_OAUTH_TOKEN"),
        ({"ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": "fake"}, AccountKind.UNKNOWN, "ANTHROPIC_AUTH_TOKEN"),
    ],
)
def test_the_account_in_use(claude: str, tmp_path: pathlib.Path, env: dict[str, str], kind: AccountKind, source: str | None) -> None:
    with Stage(tmp_path, claude, env=env) as stage:
        account = stage.agent().account()
        assert (account.provider, account.kind, account.source) == ("claude", kind, source)
        assert not stage.server.requests
