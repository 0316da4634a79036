"""Codex through the public API, on the scripted app-server: shared and with a process each."""

from __future__ import annotations

import shutil
import time

import pytest

from greenroom import (
    ApprovalDenied,
    ApprovalPolicy,
    AssistantText,
    CliNotFoundError,
    CodexAppServerTransport,
    Continuity,
    FailureKind,
    Lifecycle,
    NativeMode,
    NativePermissions,
    OutputSchema,
    ProviderCapabilityError,
    ProviderError,
    SessionResumeError,
    SessionStarted,
    StdioMcpServer,
    SteerConsumed,
    SteerRejected,
    ToolCall,
    ToolResult,
    TransportDied,
    TransportDiedError,
    TransportRestarted,
    TurnFailedError,
    TurnTimeoutError,
    WorkingDirectoryError,
)
from greenroom.testing.scripted import Plan
from tests.faults.codex_bench import until

SCHEMA = OutputSchema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


@pytest.fixture(params=[True, False], ids=["shared", "alone"])
def shared(request):
    return request.param


@pytest.fixture
def bench(make, shared):
    return make(shared=shared)


def test_two_turns_then_the_budget_is_used_up(bench):
    one = bench.one()
    turns = [one.run(f"SAY n{number}\nSPEND 100 10 20") for number in range(3)]
    assert [turn.result.text for turn in turns] == ["n0", "n1", "n2"]
    assert [turn.continuity for turn in turns] == [Continuity.CONTINUED, Continuity.RESET, Continuity.CONTINUED]
    assert turns[0].conversation_id == turns[1].conversation_id != turns[2].conversation_id
    assert {(turn.result.usage.tokens.input, turn.result.usage.tokens.cache_read_input) for turn in turns} == {(80, 20)}
    assert all(turn.result.usage.increment_known for turn in turns)


def test_a_pinned_turn_keeps_its_conversation(bench):
    one = bench.one()
    first = one.run("SAY one")
    pinned = [one.run(f"SAY {number}", prepare={"pin": True}) for number in range(3)]
    assert {turn.conversation_id for turn in pinned} == {first.conversation_id}


def test_a_steer_joins_the_turn(bench):
    one = bench.one()
    running = one.begin("AWAIT_STEER came\nSAY done")
    one.wait_for(ToolCall)
    one.session.steer("SAY steered")
    turn = running.outcome()
    assert [event.text for event in one.of(SteerConsumed)] == ["SAY steered"]
    assert [event.text for event in one.of(AssistantText)] == ["steered", "done"]
    assert turn.result.text == "done"


def test_a_steer_that_is_lost_is_told(bench):
    one = bench.one()
    running = one.begin("LOSE_STEER\nTHINK hm\nRUN_SLEEP 2\nSAY done")
    one.wait_for(ToolCall)
    one.session.steer("SAY steered")
    assert running.outcome().result.text == "done"
    assert one.of(SteerRejected)
    assert not one.of(SteerConsumed)


def test_an_interrupt_ends_the_turn_and_its_command(bench):
    one = bench.one()
    running = one.begin("RUN_SLEEP 30\nSAY late")
    one.wait_for(ToolCall)
    one.session.interrupt()
    turn = running.outcome()
    assert turn.result.interrupted
    assert one.run("SAY next").conversation_id == turn.conversation_id
    assert bench.requests("thread/backgroundTerminals/clean")
    assert len(bench.pids) == 1


def test_a_timeout_keeps_the_conversation(bench):
    one = bench.one()
    first = one.run("SAY one")
    with pytest.raises(TurnTimeoutError):
        one.run("HANG", timeout=0.3)
    assert one.run("SAY two").conversation_id == first.conversation_id


def test_a_stored_conversation_is_resumed(bench):
    one = bench.one()
    first = one.run("SAY one")
    one.session.close()
    again = bench.one(session={"resume_id": first.conversation_id}).run("SAY two")
    assert again.conversation_id == first.conversation_id
    assert [seen.text for seen in bench.history(first.conversation_id) if seen.role == "user"] == ["SAY one", "SAY two"]
    assert not again.result.usage.increment_known


def test_a_conversation_is_resumed_after_a_release(bench):
    one = bench.one()
    first = one.run("SAY one")
    for _ in range(2):
        one.session.release()
        assert one.run("SAY more", prepare={"pin": True}).conversation_id == first.conversation_id


def test_a_thread_that_is_gone_is_replaced_or_refused(bench):
    unknown = "0197a1b2-0000-7000-8000-00000000000{}"
    turn = bench.one(session={"resume_id": unknown.format(0)}).run("SAY hi")
    assert turn.continuity is Continuity.REPLACED
    with pytest.raises(SessionResumeError):
        bench.one(session={"resume_id": unknown.format(1)}).run("SAY hi", prepare={"pin": True})


def test_a_retry_in_place_shows_the_prompt_once(bench):
    one = bench.one()
    turn = one.run("FAIL serverOverloaded busy 1\nSAY done")
    assert (turn.result.text, turn.retries) == ("done", 1)
    assert bench.prompts() == ["FAIL serverOverloaded busy 1\nSAY done"]


@pytest.mark.parametrize(
    ("info", "kind"),
    [
        ("usageLimitExceeded", FailureKind.USAGE_LIMIT),
        ("contextWindowExceeded", FailureKind.CONTEXT_OVERFLOW),
        ("unauthorized", FailureKind.AUTH),
    ],
)
def test_a_failure_has_its_kind(bench, info, kind):
    one = bench.one()
    with pytest.raises(TurnFailedError) as caught:
        one.run(f"FAIL {info} it failed")
    assert caught.value.kind is kind


def test_a_notice_of_a_retry_ends_nothing(bench):
    one = bench.one()
    assert one.run("RETRY_NOTICE 2 0\nSAY done").result.text == "done"
    assert len(one.of(ProviderError)) == 2


def test_a_schema_and_an_effort(bench):
    one = bench.one(session={"reasoning_effort": "high"})
    turn = one.run('STRUCTURED {"n": 7}', output_schema=SCHEMA)
    assert turn.result.structured_output == {"n": 7}
    one.run("SAY plain", reasoning_effort="low")
    sent = [row["params"] for row in bench.requests("turn/start")]
    assert [row.get("effort") for row in sent] == ["high", "low"]
    assert ["outputSchema" in row for row in sent] == [True, False]


def test_other_servers_reopen_the_thread(bench):
    server = StdioMcpServer(name="echo", command="true")
    one = bench.one()
    first = one.run("SAY one")
    second = one.run('CALL_MCP echo ping {"a": 1} -> pong\nSAY two', mcp_servers=(server,))
    assert (second.result.text, second.restarts) == ("two", 0)
    assert second.conversation_id == first.conversation_id
    (resumed,) = [row["params"] for row in bench.requests("thread/resume")]
    assert resumed["config"]["mcp_servers.echo"]["command"] == "true"
    assert [event.tool for event in one.of(ToolCall)] == ["echo.ping"]


@pytest.mark.parametrize("policy", [ApprovalPolicy.DENY, ApprovalPolicy.FAIL_TURN])
def test_a_request_for_leave(bench, policy):
    one = bench.one(permissions=NativePermissions(NativeMode.READ_ONLY), approvals=policy)
    if policy is ApprovalPolicy.DENY:
        assert one.run("ASK touch x -> no\nSAY went on").result.text == "went on"
    else:
        with pytest.raises(TurnFailedError, match="approval denied"):
            one.run("ASK touch x -> no\nSAY went on")
    assert len(one.of(ApprovalDenied)) == 1
    assert one.run("SAY next").result.text == "next"


def test_a_question_and_something_new_are_refused(bench):
    one = bench.one()
    assert one.run("ASK_USER which\nUNKNOWN_REQUEST item/new/thing\nSAY done").result.text == "done"
    assert len([event for event in one.of(Lifecycle) if event.kind == "request refused"]) == 2


def test_a_death_in_the_turn(bench):
    one = bench.one()
    prompt = "RUN echo x\nCRASH_ONCE\nSAY done"
    turn = one.run(prompt)
    assert (turn.result.text, turn.restarts) == ("done", 1)
    assert len(one.of(TransportDied)) == len(one.of(TransportRestarted)) == 1
    assert bench.prompts().count(prompt) == 1
    assert len([seen for seen in bench.history(turn.conversation_id) if seen.role == "tool_use"]) == 1


@pytest.mark.parametrize("moment", ["reply", "started", "input"])
def test_a_death_at_the_turns_beginning(bench, moment):
    one = bench.one()
    one.run("SAY before")
    prompt = f"CRASH_AT {moment}\nSAY done"
    turn = one.run(prompt)
    assert (turn.result.text, turn.restarts) == ("done", 1)
    assert bench.prompts().count(prompt) == 1


def test_a_server_that_always_dies_is_given_up(bench):
    one = bench.one()
    first = one.run("SAY before")
    with pytest.raises(TransportDiedError) as caught:
        one.run("CRASH")
    assert "restarted no more" in caught.value.hint
    assert len(bench.starts) == 4
    assert one.session.conversation_id == first.conversation_id


def test_a_death_between_turns_is_none(bench):
    one = bench.one()
    first = one.run("SAY one")
    bench.kill()
    # A turn that begins before we have noticed is one that the death has met.
    until(lambda: one.session._core.view.incarnation == 0, "the news of its end")
    turn = one.run("SAY two")
    assert (turn.restarts, turn.conversation_id) == (0, first.conversation_id)
    assert not one.of(TransportDied)


def test_a_directory_that_is_not_there(bench, tmp_path):
    with pytest.raises(WorkingDirectoryError):
        bench.one(cwd=tmp_path / "nowhere")
    assert bench.one().run("SAY hi").result.text == "hi"


def test_a_directory_that_has_gone_since(bench):
    one = bench.one()
    one.run("SAY hi")
    one.session.release()
    (bench.directory / "work-0").rmdir()
    with pytest.raises(WorkingDirectoryError):
        one.run("SAY hi")


def test_a_binary_that_is_not_there(bench, tmp_path):
    transport = CodexAppServerTransport(binary=tmp_path / "none", env=bench.env, shared=bench.transport.shared)
    with pytest.raises(CliNotFoundError):
        bench.one(transport=transport)
    assert bench.one().run("SAY hi").result.text == "hi"


def test_a_binary_that_has_gone_since(make, shared, tmp_path):
    """It is looked for again at each start: also while the room works."""
    bench = make(shared=shared)
    own = tmp_path / "codex-bin"
    shutil.copy(bench.transport.find_binary(), own)
    own.chmod(0o755)
    one = bench.one(transport=CodexAppServerTransport(binary=own, env=bench.env, shared=shared))
    one.run("SAY hi")
    one.session.release()
    until(lambda: not bench.pids, "the end of what nobody uses")
    own.unlink()
    with pytest.raises(CliNotFoundError):
        one.run("SAY hi")
    assert bench.one().run("SAY hi").result.text == "hi"


def test_what_a_server_echoes_is_looked_at(make, shared):
    bench = make(Plan(echo_wrong_sandbox="read-only"), shared=shared)
    with pytest.raises(ProviderCapabilityError):
        bench.one().run("SAY hi")


def test_a_server_that_never_answers_is_given_up(make, shared):
    bench = make(Plan(no_handshake=True), shared=shared, startup_timeout_s=0.5)
    began_s = time.monotonic()
    with pytest.raises(Exception, match="handshake"):
        bench.one().run("SAY hi")
    assert time.monotonic() - began_s < 20


def test_a_command_that_is_left_behind_is_found(bench):
    one = bench.one()
    turn = one.run("SPAWN 60\nSAY done")
    assert turn.result.text == "done"
    one.session.close()


def test_late_items_and_sub_agents_do_not_disturb(bench):
    one = bench.one()
    assert one.run("FOREIGN_THREAD aside\nLATE_ITEM 0.2\nSAY done").result.text == "done"
    time.sleep(0.3)
    assert one.run("SAY next").result.text == "next"
    assert [event.text for event in one.of(AssistantText)] == ["done", "next"]
    assert len(one.of(SessionStarted)) == 1
    assert len(one.of(ToolResult)) <= 1
