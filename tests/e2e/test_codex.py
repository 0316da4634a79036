"""Turns on the real Codex: answers, tools, approvals, steers, stops, requests of all kinds. Most share one server, as they do in use."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import psutil
import pytest

from greenroom import (
    ApprovalDenied,
    ApprovalPolicy,
    AssistantText,
    Continuity,
    FailureKind,
    Lifecycle,
    NativeMode,
    NativePermissions,
    OutputSchema,
    ProviderCapabilityError,
    Reasoning,
    StdioMcpServer,
    SteerConsumed,
    SteerDelivered,
    ToolCall,
    ToolResult,
    TurnFailedError,
    TurnInterrupted,
    TurnTimeoutError,
)
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import LONG_TOOL, until
from tests.e2e.test_turns import MCP_SERVER

INPUT, CACHE_READ = 70, 30  # what the model server says of every call
SCHEMA = OutputSchema(
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False},
)
READ_ONLY = NativePermissions(NativeMode.READ_ONLY)


def test_turns_share_a_server_and_a_context(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        one = stage.begin(session, "SAY one").join()
        pids = {process.pid for process in stage.processes()}
        two = stage.run(session, "SAY two")
        three = stage.run(session, "SAY three")
        assert {process.pid for process in stage.processes()} == pids
        assert len(pids) == 1
    assert (one.result.text, two.result.text, three.result.text) == ("one", "two", "three")
    assert [turn.continuity for turn in (one, two, three)] == [Continuity.CONTINUED, Continuity.RESET, Continuity.CONTINUED]
    assert one.conversation_id == two.conversation_id != three.conversation_id
    assert stage.server.seen(1) == (("user", "SAY one"), ("assistant", "one"), ("user", "SAY two"))
    assert stage.server.seen(2) == (("user", "SAY three"),)


def test_a_pinned_conversation_goes_on_and_survives_a_release(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        first = stage.run(session, "SAY one")
        for number in range(3):
            session.release()
            turn = stage.run(session, f"SAY more{number}", prepare={"pin": True})
            assert turn.conversation_id == first.conversation_id
        assert len(stage.processes()) == 1
    assert stage.shown("SAY one")[-1] == stage.shown("SAY more0")[-1] == 1


def test_usage_is_each_turns_own(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        one, two = stage.run(session, "SAY one"), stage.run(session, "BASH true\nSAY a b c")
    for turn, calls in ((one, 1), (two, 2)):
        tokens = turn.result.usage.tokens
        assert (tokens.input, tokens.cache_read_input) == (calls * INPUT, calls * CACHE_READ)
        assert turn.result.usage.increment_known
        assert turn.result.cost_usd is None
    with stage.session(resume_id=two.conversation_id) as session:
        cold = stage.run(session, "SAY cold")
        warm = stage.run(session, "SAY warm", prepare={"pin": True})
    assert not cold.result.usage.increment_known
    assert warm.result.usage.increment_known
    assert warm.result.usage.tokens.input == INPUT


def test_a_tool_is_told_by_its_call_and_its_result(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        running = stage.begin(session, f"THINK hm\nBASH echo out; exit 3\nWRITE {stage.cwd}/made fine\nSAY done")
        turn = running.join()
    assert turn.result.text == "done"
    calls, results = running.saw(ToolCall), running.saw(ToolResult)
    assert [call.tool_id for call in calls] == [result.tool_id for result in results]
    assert results[0].exit_code == 3
    assert "out" in results[0].stdout
    assert running.saw(Reasoning)[0].text == "hm"
    assert (stage.cwd / "made").read_text().strip() == "fine"


def test_the_marker_reaches_the_models_shell_whatever_the_users_policy(codex: str, tmp_path: pathlib.Path) -> None:
    with CodexStage(tmp_path, codex, config='[shell_environment_policy]\ninherit = "none"\n') as stage, stage.session() as session:
        stage.run(session, "BASH /usr/bin/env > seen\nSAY done")
    seen = (stage.cwd / "seen").read_text()
    assert "GREENROOM_MARK=" in seen
    assert session.id in seen


def test_a_schema_and_an_effort_are_one_turns_own(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        turn = stage.run(session, 'STRUCTURED {"n": 7}', output_schema=SCHEMA, reasoning_effort="high")
        stage.run(session, "SAY plain")
    assert turn.result.structured_output == {"n": 7}
    first, second = stage.server.requests
    assert first["text"]["format"]["schema"] == dict(SCHEMA.schema)
    assert "format" not in (second.get("text") or {})
    assert first["reasoning"]["effort"] == "high"
    assert (second.get("reasoning") or {}).get("effort") != "high"


def test_an_answer_that_misses_the_schema_keeps_the_conversation(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        kept = stage.run(session, "SAY one").conversation_id
        with pytest.raises(TurnFailedError) as failed:
            stage.run(session, "SAY no number", output_schema=SCHEMA)
        assert failed.value.kind is FailureKind.SCHEMA
        assert stage.run(session, "SAY two", prepare={"pin": True}).conversation_id == kept


def test_an_mcp_server_serves_a_tool_and_comes_with_its_turn(codex_stage: CodexStage) -> None:
    """Other servers mean that the thread is opened again, in the same process."""
    stage = codex_stage
    path = stage.folder / "tiny.py"
    path.write_text(MCP_SERVER)
    server = StdioMcpServer("tiny", sys.executable, ("-S", str(path)))
    with stage.session() as session:
        one = stage.run(session, "SAY one")
        running = stage.begin(session, 'TOOL mcp__tiny/double {"n": 21}\nSAY done', mcp_servers=(server,))
        two = running.join()
        assert len(stage.processes()) == 1
    assert (two.result.text, two.conversation_id, two.restarts) == ("done", one.conversation_id, 0)
    assert [(result.tool, result.stdout) for result in running.saw(ToolResult)] == [("tiny.double", "42")]
    assert stage.shown("SAY one")[-1] == 1


def test_an_mcp_server_that_does_not_start_is_told(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session(mcp_servers=(StdioMcpServer("broken", "/nowhere/at/all"),)) as session:
        running = stage.begin(session, "SLEEP 60\nSAY done")
        until(lambda: any(event.kind == "mcp server" and "broken" in event.detail for event in running.saw(Lifecycle)), "the news of it")
        stage.go_on()
        assert running.join().result.text == "done"
        stage.run(session, "SAY more")


@pytest.mark.parametrize("policy", [ApprovalPolicy.DENY, ApprovalPolicy.FAIL_TURN])
def test_a_request_for_leave(codex_stage: CodexStage, policy: ApprovalPolicy) -> None:
    stage = codex_stage
    with stage.session(agent=stage.agent(permissions=READ_ONLY, approvals=policy)) as session:
        running = stage.begin(session, "ASK touch made\nSAY went on").ended()
        if policy is ApprovalPolicy.DENY:
            assert running.join().result.text == "went on"
        else:
            assert isinstance(running.error, TurnFailedError)
            assert "approval denied" in str(running.error)
        (denied,) = running.saw(ApprovalDenied)
        assert denied.kind == "command"
        assert "touch made" in denied.detail
        assert stage.run(session, "SAY next").result.text == "next"
    assert not (stage.cwd / "made").exists()


def test_a_sandbox_is_what_was_asked_for(codex_stage: CodexStage) -> None:
    stage = codex_stage
    write = NativePermissions(NativeMode.WORKSPACE_WRITE)
    with stage.session(agent=stage.agent(permissions=write)) as session:
        stage.run(session, "BASH echo x > inside; echo x > /root/outside-of-it\nSAY done")
    with stage.session(agent=stage.agent(permissions=READ_ONLY)) as session:
        stage.run(session, "BASH echo x > not-inside\nSAY done")
    assert (stage.cwd / "inside").exists()
    assert not (stage.cwd / "not-inside").exists()
    assert not pathlib.Path("/root/outside-of-it").exists()


# --- steers and stops


def test_a_steer_in_a_command(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        running = stage.begin(session, f"{LONG_TOOL}\nSAY done")
        stage.in_a_tool(running)
        session.steer("SAY steered")
        running.wait_for(SteerDelivered)
        stage.go_on()
        turn = running.join()
    assert turn.result.text == "steered"
    assert [event.text for event in running.saw(SteerDelivered)] == [event.text for event in running.saw(SteerConsumed)] == ["SAY steered"]
    assert (stage.cwd / "side").read_text() == "x\n"
    assert stage.shown("SAY steered")[-1] == 1


def test_a_steer_in_a_text(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        running = stage.begin(session, "SLOW 300 0.1 w")
        stage.streams()
        session.steer("SAY steered")
        turn = running.join()
    assert turn.result.text == "steered"
    assert running.saw(SteerConsumed)
    assert stage.shown("SAY steered")[-1] == 1


@pytest.mark.parametrize("moment", ["text", "silence", "command"])
def test_an_interrupt(codex_stage: CodexStage, moment: str) -> None:
    stage = codex_stage
    prompt = {"text": "SLOW 100 0.1 w", "silence": "HANG", "command": "BASH sleep 97.5\nSAY late"}[moment]
    with stage.session() as session:
        running = stage.begin(session, prompt)
        match moment:
            case "text":
                stage.streams()
            case "silence":
                stage.asked(1)
            case _:
                running.wait_for(ToolCall)
                until(lambda: sleepers(stage, "97.5"), "the command to run")
        session.interrupt()
        turn = running.join()
        assert turn.result.interrupted
        assert running.saw(TurnInterrupted)
        until(lambda: not sleepers(stage, "97.5"), "the end of the command")
        after = stage.run(session, "SAY next", prepare={"pin": True})
        assert (after.result.text, after.conversation_id) == ("next", turn.conversation_id)
        assert len(stage.processes()) == 1


def sleepers(stage: CodexStage, seconds: str) -> list[psutil.Process]:
    found = []
    for process in stage.descendants():
        try:
            if seconds in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_an_interrupt_as_early_as_can_be(codex_stage: CodexStage) -> None:
    """Before the thread is open, before the turn has started: it is held until Codex can take it."""
    stage = codex_stage
    agent = stage.agent()
    for pause_s in (0.0, 0.02, 0.05, 0.1, 0.2):
        with stage.session(agent=agent) as session:
            running = stage.begin(session, "HANG")
            until(lambda session=session: session.state not in {"idle", "prepared"}, "the turn's beginning")
            time.sleep(pause_s)
            session.interrupt()
            assert running.join().result.interrupted
            assert stage.run(session, "SAY next").result.text == "next"


def test_a_timeout_keeps_the_conversation(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        kept = stage.run(session, "SAY one").conversation_id
        with pytest.raises(TurnTimeoutError):
            stage.run(session, "HANG", timeout=0.5)
        after = stage.run(session, "SAY two", prepare={"pin": True})
    assert (after.result.text, after.conversation_id) == ("two", kept)


# --- odd requests


def test_a_prompt_that_is_too_long_is_refused_before_it_is_sent(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        with pytest.raises(ProviderCapabilityError, match="1048576"):
            stage.run(session, "x" * 1_048_577)
        assert stage.run(session, "SAY fits " + "x" * 1_048_500).result.text.startswith("fits")


def test_bytes_that_no_text_has(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        turn = stage.run(session, "SAY a\x00b \ud800 \U0001f600 end")
        assert stage.run(session, "SAY next").result.text == "next"
    assert "\U0001f600" in turn.result.text


def test_an_unusual_working_directory(codex: str, tmp_path: pathlib.Path) -> None:
    with CodexStage(tmp_path, codex, cwd="mit Leer zeichen/äöü 目录 'quoted'") as stage, stage.session() as session:
        stage.run(session, "BASH pwd > here\nSAY done")
        assert (stage.cwd / "here").read_text().strip() == str(stage.cwd)


def test_an_unknown_model_is_passed_on(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session(agent=stage.agent(model="no-such-model")) as session:
        running = stage.begin(session, "SAY hi")
        assert running.join().result.text == "hi"
    assert stage.server.requests[0]["model"] == "no-such-model"
    assert running.saw(AssistantText)


def test_the_command_runs_tasks_on_codex(codex_stage: CodexStage) -> None:
    stage = codex_stage
    tasks = "".join(
        f'[[task]]\nid = "t{number}"\nprompt = "BASH echo {number} > made-{number}\\nSAY done-{number}"\n' for number in range(3)
    )
    (stage.cwd / "tasks.toml").write_text('[defaults]\npermissions = "bypass"\nprovider = "codex"\n' + tasks)
    argv = [sys.executable, "-m", "greenroom", "run", "tasks.toml", "--out", "out.jsonl", "--codex-binary", str(stage.binary)]
    env = {**stage.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(argv, cwd=stage.cwd, env=env, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    records = [json.loads(line) for line in (stage.cwd / "out.jsonl").read_text().splitlines()]
    assert sorted(record["text"] for record in records) == ["done-0", "done-1", "done-2"]
    assert {path.name for path in stage.cwd.glob("made-*")} == {"made-0", "made-1", "made-2"}
