"""Turns on the real Claude Code: answers, tools, events, money, requests of all kinds."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from greenroom import (
    AssistantText,
    Continuity,
    FailureKind,
    OutputSchema,
    ProviderCapabilityError,
    Reasoning,
    RunFinished,
    RunStarted,
    SessionEvent,
    SessionStarted,
    SessionStateError,
    StdioMcpServer,
    ToolCall,
    ToolResult,
    TurnFailedError,
    TurnRequest,
    TurnTimeoutError,
    UsageReport,
)
from tests.e2e.stage import BOUND_S, Stage, until

INPUT, CACHE_WRITE, CACHE_READ = 100, 20, 30  # what the model server says of every call
SCHEMA = OutputSchema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
NUMBER = 'STRUCTURED {"n": 7}'


def test_two_turns_share_a_process_and_a_context(stage: Stage) -> None:
    with stage.session() as session:
        first = stage.begin(session, "SAY one")
        one = first.join()
        pids = {process.pid for process in stage.processes()}
        two = stage.run(session, "SAY two")
        assert {process.pid for process in stage.processes()} == pids
        assert len(pids) == 1
    assert (one.result.text, two.result.text) == ("one", "two")
    assert one.conversation_id == two.conversation_id == session.conversation_id
    assert one.continuity is two.continuity is Continuity.CONTINUED
    assert stage.server.seen(1) == (("user", "SAY one"), ("assistant", "one"), ("user", "SAY two"))
    assert [event.session_id for event in first.saw(SessionStarted)] == [one.conversation_id]
    assert first.saw(RunStarted)[0].argv[0] == stage.binary


def test_usage_and_cost_are_each_turns_own(stage: Stage) -> None:
    with stage.session() as session:
        one, two = stage.run(session, "SAY one"), stage.run(session, "BASH true\nSAY a b c")
        spent = session.spent
    for turn, calls, output in ((one, 1, 1), (two, 2, 4)):
        tokens = turn.result.usage.tokens
        assert (tokens.input, tokens.cache_write_input, tokens.cache_read_input) == tuple(
            calls * n for n in (INPUT, CACHE_WRITE, CACHE_READ)
        )
        assert tokens.output == output
        assert turn.result.usage.increment_known
        assert turn.result.cost_usd == turn.result.usage.total_cost_usd > 0
    assert spent.total_cost_usd == pytest.approx(one.result.cost_usd + two.result.cost_usd)
    assert two.result.context_tokens == INPUT + CACHE_WRITE + CACHE_READ


def test_a_tool_is_told_by_its_call_and_its_result(stage: Stage) -> None:
    with stage.session() as session:
        running = stage.begin(session, "THINK hm\nBASH echo out; echo err >&2; exit 3\nBASH echo fine > made\nSAY done")
        turn = running.join()
    assert turn.result.text == "done"
    calls, results = running.saw(ToolCall), running.saw(ToolResult)
    assert [call.tool for call in calls] == ["Bash", "Bash"]
    assert [call.tool_id for call in calls] == [result.tool_id for result in results]
    assert [result.exit_code for result in results] == [3, 0]
    assert "out" in results[0].stdout
    assert "err" in results[0].stdout
    assert running.saw(Reasoning)[0].text == "hm"
    assert (stage.cwd / "made").read_text() == "fine\n"
    order = [type(event) for event in running.saw(Reasoning, ToolCall, ToolResult, AssistantText, UsageReport)]
    assert order == [Reasoning, ToolCall, ToolResult, ToolCall, ToolResult, AssistantText, UsageReport]


def test_text_in_pieces_is_not_repeated_whole(claude: str, tmp_path: pathlib.Path) -> None:
    with Stage(tmp_path, claude, partial_messages=True) as stage, stage.session() as session:
        running = stage.begin(session, "SLOW 4 0.05 w")
        assert running.join().result.text == "w0 w1 w2 w3"
    pieces = [event.text for event in running.saw(AssistantText)]
    assert "".join(pieces) == "w0 w1 w2 w3"
    assert len(pieces) > 1


def test_a_structured_answer(stage: Stage) -> None:
    with stage.session() as session:
        turn = stage.run(session, NUMBER, output_schema=SCHEMA)
    assert turn.result.structured_output == {"n": 7}


def test_a_schema_on_the_second_turn_restarts_and_continues(stage: Stage) -> None:
    with stage.session() as session:
        one = stage.run(session, "SAY one")
        two = stage.run(session, NUMBER, output_schema=SCHEMA)
        three = stage.run(session, "SAY three")
    assert two.result.structured_output == {"n": 7}
    assert [turn.continuity for turn in (one, two, three)] == [Continuity.CONTINUED] * 3
    assert len({turn.conversation_id for turn in (one, two, three)}) == 1
    assert [turn.restarts for turn in (one, two, three)] == [0] * 3
    assert stage.shown("SAY one")[-1] == stage.shown("STRUCTURED")[-1] == 1


def test_an_answer_that_misses_the_schema_fails_and_keeps_the_conversation(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        kept = session.conversation_id
        with pytest.raises(TurnFailedError) as failed:
            stage.run(session, "SAY no number", output_schema=SCHEMA)
        assert failed.value.kind is FailureKind.SCHEMA
        assert stage.run(session, "SAY two").conversation_id == kept


MCP_SERVER = """
import json, sys
def result(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "tiny", "version": "1"}}
    if method == "tools/list":
        return {"tools": [{"name": "double", "description": "Double.", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": str(2 * params["arguments"]["n"])}]}
    return {}
for line in sys.stdin:
    call = json.loads(line)
    if "id" in call:
        print(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result(call["method"], call.get("params") or {})}), flush=True)
"""


def test_an_mcp_server_serves_a_tool(stage: Stage) -> None:
    path = stage.folder / "tiny.py"
    path.write_text(MCP_SERVER)
    server = StdioMcpServer("tiny", "python3", ("-S", str(path)))
    with stage.session(mcp_servers=(server,)) as session:
        running = stage.begin(session, 'TOOL ToolSearch {"query": "select:mcp__tiny__double"}\nTOOL mcp__tiny__double {"n": 21}\nSAY done')
        assert running.join().result.text == "done"
    assert [result.stdout for result in running.saw(ToolResult) if result.tool == "mcp__tiny__double"] == ["42"]


def test_the_effort_reaches_the_model(stage: Stage) -> None:
    with stage.session(reasoning_effort="low") as session:
        stage.run(session, "SAY one")
        stage.run(session, "SAY two", reasoning_effort="high")
        with pytest.raises(ProviderCapabilityError):
            stage.run(session, "SAY three", reasoning_effort="enormous")
    efforts = [(request.get("output_config") or {}).get("effort") for request in stage.server.requests]
    assert efforts == ["low", "high"]


def test_a_timeout_interrupts_and_the_next_turn_works(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        kept = session.conversation_id
        pids = {process.pid for process in stage.processes()}
        running = stage.begin(session, "BASH echo x >> side; timeout 60 tail -f /dev/null", timeout=1.5)
        with pytest.raises(TurnTimeoutError) as timeout:
            running.join()
        assert timeout.value.turn_id == running.ticket.turn_id
        two = stage.run(session, "SAY two")
        assert {process.pid for process in stage.processes()} == pids
    assert (two.result.text, two.conversation_id) == ("two", kept)


@pytest.mark.parametrize("prompt", ["/clear", "/cost now", "/nosuch", "!ls", "#note"])
def test_a_prompt_that_looks_like_a_command_reaches_the_model_as_text(stage: Stage, prompt: str) -> None:
    with stage.session() as session:
        one = stage.run(session, "SAY one")
        turn = stage.run(session, prompt)
        assert turn.result.text == f"echo: {prompt}"
        assert turn.conversation_id == one.conversation_id
    assert stage.shown("SAY one")[-1] == stage.shown(prompt)[-1] == 1


def test_a_large_prompt(stage: Stage) -> None:
    with stage.session() as session:
        turn = stage.run(session, "SAY got it\n" + "x" * 400_000)
    assert turn.result.text == "got it"
    assert any(text.count("x") >= 400_000 for _, text in stage.server.seen(0))


def test_five_megabytes_of_prompt_are_too_much_for_the_model_and_no_trouble_for_the_pipes(stage: Stage) -> None:
    with stage.session() as session:
        with pytest.raises(TurnFailedError) as failed:
            stage.run(session, "SAY got it\n" + "x" * 5_000_000)
        assert failed.value.kind is FailureKind.CONTEXT_OVERFLOW
        assert session.conversation_id is None
        assert stage.run(session, "SAY next").result.text == "next"
    assert stage.shown("SAY next")[-1] == 1


def test_bytes_that_no_text_has(stage: Stage) -> None:
    with stage.session() as session:
        turn = stage.run(session, "SAY a\x00b \ud800 \U0001f600 end")
        assert stage.run(session, "SAY next").result.text == "next"
    assert turn.result.text.startswith("a")
    assert turn.result.text.endswith("end")
    assert "\U0001f600" in turn.result.text


def test_an_unusual_working_directory(claude: str, tmp_path: pathlib.Path) -> None:
    with Stage(tmp_path, claude, cwd="mit Leer zeichen/äöü 目录 'quoted'") as stage, stage.session() as session:
        stage.run(session, "BASH pwd > here\nSAY done")
        session.release()
        turn = stage.run(session, "SAY again")
        assert turn.continuity is Continuity.CONTINUED
        assert (stage.cwd / "here").read_text().strip() == str(stage.cwd)
    assert stage.shown("SAY again")[-1] == stage.shown("BASH pwd")[-1] == 1


def test_another_directory_is_refused(stage: Stage) -> None:
    with stage.session() as session, pytest.raises(ProviderCapabilityError):
        session.prepare_turn(TurnRequest("SAY x", cwd=stage.folder))


def test_a_turn_that_nobody_asked_for_is_kept_apart(stage: Stage) -> None:
    """A command in the background ends while the session is idle: the CLI runs a turn by itself."""
    command = '{"command": "until [ -e go ]; do sleep 0.02; done; echo finished", "run_in_background": true, "description": "wait"}'
    with stage.session() as session:
        one = stage.begin(session, f"TOOL Bash {command}\nSAY started")
        turn = one.join()
        assert session.spent_unprompted is None
        stage.go_on()
        until(lambda: session.spent_unprompted, "the unprompted turn to be booked")
        two = stage.begin(session, "SAY next")
        after = two.join()
        spent, unprompted = session.spent, session.spent_unprompted
    assert (turn.result.text, after.result.text) == ("started", "next")
    assert turn.result.usage.tokens.input == 2 * INPUT
    assert after.result.usage.tokens.input == INPUT
    assert unprompted.tokens.input == INPUT * (len(stage.server.requests) - 3)
    assert spent.tokens.input == 3 * INPUT
    assert [event.text for event in two.saw(AssistantText)] == ["next"]


def test_an_unprompted_turn_in_front_of_a_prompt(stage: Stage) -> None:
    """The prompt comes just as the CLI's own turn may be running: each text stays with its own turn."""
    command = '{"command": "sleep 0.6; echo finished", "run_in_background": true, "description": "wait"}'
    with stage.session() as session:
        stage.run(session, f"TOOL Bash {command}\nSAY started")
        turns = [stage.begin(session, f"SAY text-{number}") for number in range(1)]
        texts = [turn.join().result.text for turn in turns]
        texts += [stage.run(session, f"SAY text-{number}").result.text for number in range(1, 12)]
    assert texts == [f"text-{number}" for number in range(12)]


async def _all_faces(stage: Stage) -> None:
    async with stage.session() as session:
        events: list[SessionEvent] = []
        turn = await session.arun(session.prepare_turn(TurnRequest("SAY one")), on_event=events.append)
        assert turn.result.text == "one"
        assert all(isinstance(event, SessionEvent) for event in events)
        assert any(isinstance(event.event, AssistantText) for event in events)
        stream = session.stream(session.prepare_turn(TurnRequest("BASH echo hi\nSAY two")))
        envelopes = [envelope async for envelope in stream]
        assert (await stream.turn()).result.text == "two"
        sequences = [envelope.sequence for envelope in envelopes]
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
        assert {envelope.turn_id for envelope in envelopes} == {(await stream.turn()).turn_id}
        with pytest.raises(TurnFailedError):
            async for _ in session.stream(session.prepare_turn(TurnRequest("ERROR 401 authentication_error nope"))):
                pass
        task = asyncio.ensure_future(session.arun(ticket := session.prepare_turn(TurnRequest("SLOW 100 0.1 w"))))
        await asyncio.to_thread(stage.streams)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stage.go_on()
        detached = await asyncio.to_thread(ticket.wait, BOUND_S)
        assert detached.result.text.endswith("w99")
        assert not detached.result.interrupted


def test_the_asynchronous_faces(stage: Stage) -> None:
    asyncio.run(_all_faces(stage))


def test_tickets_run_once_and_the_last_one_only(stage: Stage) -> None:
    with stage.session() as session:
        old, new = session.prepare_turn(TurnRequest("SAY old")), session.prepare_turn(TurnRequest("SAY new"))
        with pytest.raises(SessionStateError):
            session.run(old)
        assert session.run(new).result.text == "new"
        with pytest.raises(SessionStateError):
            session.run(new)
    assert len(stage.server.requests) == 1


def test_a_process_starts_with_the_first_turn_and_ends_with_the_session(stage: Stage) -> None:
    with stage.session() as session:
        assert not stage.processes()
        running = stage.begin(session, "SAY one")
        running.join()
        assert len(stage.processes()) == 1
        assert not running.saw(RunFinished)
    assert not stage.processes()
