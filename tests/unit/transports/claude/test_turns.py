from __future__ import annotations

from typing import Any

import pytest
from claude_wire import (
    S1,
    SESSION,
    U1,
    U2,
    Cli,
    aborted,
    api_error,
    background_result,
    calls,
    echo,
    failed_result,
    init,
    life,
    model_usage,
    result,
    says,
)

from greenroom.errors import TurnFailedError, TurnTimeoutError
from greenroom.events import (
    ApprovalDenied,
    AssistantText,
    Lifecycle,
    RateLimitStatus,
    RawOutput,
    SkillInvoked,
    ToolCall,
    ToolResult,
    TurnInterrupted,
)
from greenroom.model import ApprovalPolicy, FailureKind, OutputSchema, TurnRequest
from greenroom.policy.commands import How
from greenroom.transports.base import AttemptEnded, AttemptSwallowed, Booked, Kill, Renamed, Urgent

# --- what is sent ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "content"),
    [
        ("hello", "hello"),
        ("", ""),
        ("/clear", [{"type": "text", "text": "/clear"}, {"type": "text", "text": " "}]),
        (" /clear", " /clear"),
        ("a\nb\u2028c\x00d\ud800", "a\nb\u2028c\x00d\ud800"),
    ],
)
def test_a_prompt_arrives_as_it_is_in_one_line(prompt: str, content: Any) -> None:
    cli = Cli().ready()
    cli.start(prompt=prompt)
    (message,) = cli.written("user")
    assert message["message"]["content"] == content
    assert message["uuid"] == U1
    (written,) = cli.out[-1:]
    assert written.data.count(b"\n") == 1
    assert written.data.isascii()


def test_a_retry_and_a_continuation_are_no_second_prompt() -> None:
    cli = Cli().ready()
    cli.start(how=How.RETRY)
    cli.feed(life(U1, "queued"), life(U1, "started"), result(U1))
    cli.start(U2, how=How.CONTINUE)
    assert [message["message"]["content"] for message in cli.written("user")] == [
        [{"type": "text", "text": ""}],
        "Continue from where you left off.",
    ]


def test_lost_calls_are_told_with_the_first_message_whatever_it_is_and_only_once() -> None:
    """Also with a prompt that nobody asks about: the CLI died before it had anything of the conversation on disk, and its tool had run."""
    cli = Cli(lost_calls=(ToolCall("toolu_1", "Bash", {"command": "git push"}),)).ready()
    cli.start()
    cli.feed(life(U1, "queued"), life(U1, "started"), result(U1))
    cli.start(U2, prompt="next")
    first, second = [message["message"]["content"] for message in cli.written("user")]
    assert "git push" in first[-1]["text"]
    assert second == "next"


# --- whose result is it? ---------------------------------------------------------------------------------------------------


def test_a_result_of_a_turn_that_nobody_asked_for_is_booked_and_told_apart() -> None:
    cli = Cli().ready()
    cli.feed(init(), says("theirs"), calls("Bash"), background_result())
    assert not cli.of(AttemptEnded, AssistantText, ToolCall)
    assert cli.of(Booked)[0].usage.tokens.input == 100
    assert [item.kind for item in cli.of(Lifecycle)] == ["credential", "background turn", "background turn"]
    assert [item.ongoing for item in cli.of(Lifecycle)] == [None, True, False]


def test_a_turn_of_its_own_that_ours_is_folded_into_is_told_to_be_over() -> None:
    cli = Cli().ready()
    cli.feed(init(), says("theirs"))
    cli.start()
    cli.feed(life(U1, "queued"), life(U1, "started"))
    told = [item.ongoing for item in cli.of(Lifecycle) if item.kind == "background turn"]
    assert told == [True, False]


def test_what_runs_behind_the_turns_is_told_as_a_whole() -> None:
    cli = Cli().ready()
    frame = {"type": "system", "subtype": "background_tasks_changed"}
    cli.feed({**frame, "tasks": [{"description": "serve"}, {"task_type": "local_agent"}, "?"]}, {**frame, "tasks": []}, frame)
    told = [(item.detail, item.ongoing) for item in cli.of(Lifecycle) if item.kind == "background tasks"]
    assert told == [("2 running: serve, local_agent", True), ("none running", False), ("none running", False)]


def test_it_ends_while_our_prompt_is_queued() -> None:
    cli = Cli().ready()
    cli.feed(init())
    cli.start()
    cli.feed(life(U1, "queued"), says("theirs"), background_result())
    assert not cli.of(AttemptEnded)
    cli.feed(life(U1, "started"), init(U1), echo(U1), says("ours", U1), result(U1, text="ours"))
    assert cli.ended.result.text == "ours"
    assert [item.text for item in cli.of(AssistantText)] == ["ours"]


def test_the_old_turns_frames_come_after_the_next_prompt() -> None:
    cli = Cli().ready().running()
    cli.feed(result(U1, uuid="r1"))
    cli.start(U2)
    cli.feed(says("late", U1), aborted(U1, uuid="r2"), result(U1, uuid="r1"), life(U1, "cancelled"), life(U1, "completed"), echo(U1))
    assert len(cli.of(AttemptEnded)) == 1
    assert not cli.of(AssistantText)
    cli.feed(
        life(U2, "queued"), life(U2, "started"), init(U2), says("late too", U1), init(U1), says("new"), result(U2, text="new", uuid="r3")
    )
    assert [end.result.text for end in cli.of(AttemptEnded)] == ["answer", "new"]
    assert [item.text for item in cli.of(AssistantText)] == ["new"]


def test_text_after_the_end_is_nobodys() -> None:
    cli = Cli().ready().running()
    cli.feed(result(U1), says("after"), calls("Bash"))
    assert not cli.of(AssistantText, ToolCall)


def test_a_result_that_names_no_message_is_ours_while_our_turn_runs_and_not_else() -> None:
    cli = Cli().ready().running()
    cli.feed(result(text="ours"))
    assert cli.ended.result.text == "ours"
    cli.start(U2)
    cli.feed(result(text="whose?"))
    assert len(cli.of(AttemptEnded)) == 1


def test_sub_agents_tools_are_shown_and_their_text_is_not() -> None:
    cli = Cli().ready().running()
    inner = {"parent_tool_use_id": "tool-1"}
    cli.feed(
        calls("Agent"),
        {**says("inner"), **inner},
        calls("Bash", "tool-2", **inner),
        {**calls("Bash", "tool-3"), "parent_tool_use_id": "foreign"},
    )
    assert [call.tool_id for call in cli.of(ToolCall)] == ["tool-1", "tool-2"]
    assert not cli.of(AssistantText)


def test_the_id_changes_in_mid_life() -> None:
    cli = Cli().ready().running()
    cli.feed({"type": "conversation_reset", "trigger": "clear", "new_conversation_id": "other"}, init(U1, session="new"), result(U1))
    assert [item.conversation_id for item in cli.of(Renamed)] == [SESSION, "new"]
    assert cli.ended.result.session_id == "new"


FOLDED = [life(U1, "queued"), echo(U1), life(U1, "started"), says("mine", U1), life(U1, "completed")]


@pytest.mark.parametrize("named", [(U1,), ()])
def test_a_prompt_folded_into_a_turn_of_the_clis_own_waits_for_that_turns_result(named: tuple[str, ...]) -> None:
    cli = Cli().ready()
    cli.feed(init())
    cli.start()
    cli.feed(*FOLDED)
    cli.later(60)  # a Stop hook runs between `completed` and the result
    assert not cli.of(AttemptEnded)
    cli.feed(result(*named, text="mine", origin={"kind": "task-notification"}))
    assert cli.ended.result.text == "mine"
    assert not cli.of(Booked)


# --- failures ---------------------------------------------------------------------------------------------------------------


def test_an_api_error_that_calls_itself_success() -> None:
    cli = Cli().ready().running()
    cli.feed(says("half", U1), api_error(), failed_result(U1))
    end = cli.ended
    assert (end.error.kind, end.nudgeable, end.error.text) == (FailureKind.TRANSIENT, True, "half")
    assert [item.text for item in cli.of(AssistantText)] == ["half"]
    assert end.usage.increment_known


@pytest.mark.parametrize(
    "fields",
    [
        {"is_error": True},
        {"subtype": "error_during_execution"},
        {"terminal_reason": "api_error"},
        {"terminal_reason": "stop_hook_prevented"},
        {"terminal_reason": "aborted_tools"},
        {"stop_reason": "tool_use", "result": ""},
        {"subtype": "something_new"},
    ],
)
def test_a_failure_dressed_as_success(fields: dict[str, Any]) -> None:
    cli = Cli().ready().running()
    cli.feed(result(U1, **fields))
    assert isinstance(cli.ended.error, TurnFailedError)
    assert cli.ended.result is None


def test_error_prose_is_no_answer_though_nothing_else_says_so() -> None:
    cli = Cli().ready().running()
    cli.feed({**api_error(), "user_message_uuids": [U1]}, result(U1, text="API Error: 529 Overloaded."))
    assert cli.ended.error.kind is FailureKind.TRANSIENT


def test_an_api_error_that_the_cli_got_over() -> None:
    cli = Cli().ready().running()
    cli.feed(api_error(), says("recovered"), result(U1, text="recovered"))
    assert cli.ended.result.text == "recovered"


def test_a_schema_turn_without_structured_output() -> None:
    request = TurnRequest("p", output_schema=OutputSchema({"type": "object"}))
    for fields, kind in (
        ({}, FailureKind.SCHEMA),
        ({"structured_output": None}, FailureKind.SCHEMA),
        ({"structured_output": {"n": 0}}, None),
    ):
        cli = Cli().ready().running(request=request)
        cli.feed(result(U1, **fields))
        assert (cli.ended.error and cli.ended.error.kind) is kind


def test_a_turn_that_completes_without_a_result() -> None:
    cli = Cli().ready().running()
    cli.feed(says("all done", U1), life(U1, "completed"))
    assert not cli.of(AttemptEnded)
    cli.later(5)
    assert (cli.ended.error.kind, cli.ended.error.text) == (FailureKind.OTHER, "all done")
    assert not cli.ended.usage.increment_known


def test_the_result_comes_just_behind_completed() -> None:
    cli = Cli().ready().running()
    cli.feed(life(U1, "completed"))
    cli.later(1)
    cli.feed(result(U1))
    assert cli.ended.result.text == "answer"


def test_a_prompt_that_the_cli_drops_by_itself() -> None:
    cli = Cli().ready()
    cli.start()
    cli.feed(life(U1, "queued"), life(U1, "cancelled"))
    assert "without a result" in str(cli.ended.error)


# --- interrupts -------------------------------------------------------------------------------------------------------------


def test_an_interrupt_is_held_until_the_turn_has_started() -> None:
    cli = Cli().ready()
    cli.start()
    assert [type(item) for item in cli.interrupt()] == [Urgent]
    cli.feed(life(U1, "queued"))
    assert cli.requests() == []
    cli.feed(life(U1, "started"))
    assert cli.written("control_request")[-1]["request"] == {"subtype": "interrupt", "cancel_queued": True}
    cli.answer("interrupt", still_queued=[])
    cli.feed(aborted(U1), life(U1, "cancelled"))
    assert cli.ended.result.interrupted
    assert not cli.ended.forced
    assert len(cli.of(TurnInterrupted)) == 1


def test_an_interrupt_twice_and_when_idle_is_one() -> None:
    cli = Cli().ready().running()
    cli.interrupt()
    assert cli.interrupt() == []
    cli.feed(aborted(U1))
    assert cli.interrupt() == []
    assert cli.requests() == ["interrupt"]


def test_an_interrupt_that_lost_the_race_gives_the_plain_result_and_holds_the_next_turn() -> None:
    cli = Cli().ready().running()
    cli.interrupt()
    cli.feed(result(U1, text="done"))
    assert (cli.ended.result.text, cli.ended.result.interrupted) == ("done", False)
    cli.start(U2)
    assert not cli.codec.sent
    assert len(cli.written("user")) == 1
    cli.answer("interrupt", still_queued=[])
    assert cli.codec.sent
    assert cli.written("user")[-1]["uuid"] == U2


def test_a_held_turn_is_written_when_the_answer_never_comes() -> None:
    cli = Cli(interrupt_grace_s=10).ready().running()
    cli.interrupt()
    cli.feed(result(U1))
    cli.start(U2)
    cli.later(9)
    assert not cli.codec.sent
    cli.later(2)
    assert cli.codec.sent


def test_an_interrupt_of_a_held_turn_ends_it_unsent() -> None:
    cli = Cli().ready().running()
    cli.interrupt()
    cli.feed(result(U1))
    cli.start(U2)
    cli.interrupt()
    end = cli.of(AttemptEnded)[-1]
    assert end.result.interrupted
    assert end.usage is None
    cli.answer("interrupt")
    assert len(cli.written("user")) == 1


def test_a_timeout_of_a_held_turn_ends_it_unsent() -> None:
    cli = Cli().ready().running()
    cli.interrupt()
    cli.feed(result(U1))
    cli.start(U2, deadline_s=cli.now_s + 1, timeout_s=1)
    cli.later(2)
    assert isinstance(cli.of(AttemptEnded)[-1].error, TurnTimeoutError)
    assert len(cli.written("user")) == 1


def test_an_unanswered_interrupt_is_forced() -> None:
    cli = Cli(interrupt_grace_s=10).ready().running()
    cli.feed(says("half", U1))
    cli.interrupt()
    cli.later(9.9)
    assert not cli.of(AttemptEnded)
    cli.later(0.2)
    assert (cli.ended.forced, cli.ended.result.interrupted, cli.ended.result.text) == (True, True, "half")
    assert not cli.ended.usage.increment_known
    assert isinstance(cli.out[-1], Kill)
    assert cli.feed(aborted(U1)) == []
    assert cli.exit(signal=9) == []


def test_an_answered_interrupt_without_a_result_is_forced_too() -> None:
    cli = Cli().ready().running()
    cli.interrupt()
    cli.answer("interrupt", still_queued=[])
    cli.later(11)
    assert cli.ended.forced


def test_an_interrupt_that_came_too_early_is_sent_again() -> None:
    cli = Cli().ready().running()
    cli.interrupt()
    cli.answer("interrupt", still_queued=[U1])
    cli.feed(life(U1, "started"))
    assert cli.requests() == ["interrupt", "interrupt"]


def test_a_prompt_dropped_by_the_interrupt_gives_no_result() -> None:
    cli = Cli().ready().running()
    cli.interrupt()
    cli.answer("interrupt", still_queued=[], cancelled=[U1])
    assert cli.ended.result.interrupted


def test_a_prompt_behind_a_turn_of_the_clis_own_is_taken_back() -> None:
    cli = Cli().ready()
    cli.start()
    cli.interrupt()
    cli.feed(life(U1, "queued"), init())
    assert cli.requests() == ["cancel_async_message"]
    cli.feed(says("theirs"))
    cli.answer("cancel_async_message", cancelled=True)
    assert cli.ended.result.interrupted
    assert cli.ended.usage.increment_known
    cli.feed(life(U1, "cancelled"), background_result())
    assert len(cli.of(AttemptEnded)) == 1


def test_it_starts_before_it_can_be_taken_back() -> None:
    cli = Cli().ready()
    cli.feed(init())
    cli.start()
    cli.interrupt()
    cli.answer("cancel_async_message", cancelled=False)
    cli.feed(background_result(), life(U1, "started"))
    assert cli.requests() == ["cancel_async_message", "interrupt"]
    cli.feed(aborted(U1))
    assert cli.ended.result.interrupted


def test_an_interrupt_during_a_provider_error_stays_an_interrupt() -> None:
    cli = Cli().ready().running()
    cli.interrupt()
    cli.feed(aborted(U1, terminal_reason=None))
    assert cli.ended.result.interrupted


# --- an answer that breaks off, and what of a call has come -------------------------------------------------------------------


def gives(tool_id: str = "tool-1") -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": tool_id, "content": "x"}
    return {"type": "user", "message": {"role": "user", "content": [block]}, "parent_tool_use_id": None}


def goes_on(text: str = "Your response above was cut off mid-stream. Resume.", **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None, "isSynthetic": True, **fields}


def piece(kind: str, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "stream_event", "event": {"type": kind, "delta": delta}, "parent_tool_use_id": None, "api_message_id": "msg_9"}


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ((says("ha", U1), goes_on(), says("lf")), "half"),
        ((says("ha", U1), goes_on(), says("l"), goes_on(), says("f")), "half"),
        ((says("before", U1), calls("Bash"), gives(), goes_on(), says("lf")), "lf"),  # nothing of it survived
        ((says("ha", U1), goes_on(), says("lf"), calls("Bash"), gives(), says("end")), "end"),
        ((says("ha", U1), goes_on("[structured-output-enforce] You MUST call it"), says("end")), "end"),
        ((says("ha", U1), goes_on(isSynthetic=False), says("end")), "end"),  # somebody says so; the CLI does not
    ],
)
@pytest.mark.parametrize("interrupted", [False, True])
def test_an_answer_that_the_cli_had_gone_on_with_is_whole(frames: Any, text: str, interrupted: bool) -> None:
    cli = Cli().ready().running()
    cli.feed(*frames)
    if interrupted:
        cli.interrupt()
    last = frames[-1]["message"]["content"][0]["text"]
    cli.feed(aborted(U1) if interrupted else result(U1, text=last))
    assert cli.ended.result.text == text


def test_a_structured_answer_is_the_clis_own() -> None:
    cli = Cli().ready().running()
    cli.feed(says("ha", U1), goes_on(), says("lf"), result(U1, text='{"n":1}', structured_output={"n": 1}))
    assert (cli.ended.result.text, cli.ended.result.structured_output) == ('{"n":1}', {"n": 1})


@pytest.mark.parametrize(
    ("frames", "known"),
    [
        ((), False),
        ((calls("Bash"), gives()), False),
        ((calls("Bash"), gives(), says("half", aborted=True)), True),
        ((calls("Bash"), gives(), piece("content_block_delta", {"type": "input_json_delta", "partial_json": "{"})), True),
        ((calls("Bash"), gives(), piece("message_delta", {"stop_reason": "tool_use"})), False),  # of the call before
        ((calls("Bash"), gives(), {"type": "system", "subtype": "thinking_tokens"}), True),
        ((says("half"), goes_on()), False),
    ],
)
def test_an_interrupt_leaves_a_lower_bound_if_it_cut_a_call_of_which_nothing_had_come(frames: Any, known: bool) -> None:
    cli = Cli().ready().running()
    cli.feed(*frames)
    cli.interrupt()
    cli.feed(aborted(U1, terminal_reason="aborted_streaming"))
    assert cli.ended.usage.increment_known is known
    assert cli.ended.cumulative.increment_known is known


def test_an_interrupt_in_a_tool_leaves_the_usage_known() -> None:
    cli = Cli().ready().running()
    cli.feed(calls("Bash"))
    cli.interrupt()
    cli.feed(gives(), aborted(U1, terminal_reason="aborted_tools"))
    assert cli.ended.usage.increment_known


# --- timeouts ---------------------------------------------------------------------------------------------------------------


def test_a_timeout_interrupts_and_waits_for_the_result() -> None:
    cli = Cli().ready().running(deadline_s=105.0, timeout_s=5.0)
    cli.later(4.9)
    assert cli.requests() == []
    cli.later(0.2)
    assert cli.requests() == ["interrupt"]
    assert cli.of(Urgent)
    cli.feed(aborted(U1, since=model_usage(7, 1, 0.1)))
    assert isinstance(cli.ended.error, TurnTimeoutError)
    assert cli.ended.error.timeout == 5.0
    assert cli.ended.usage.tokens.input == 7
    assert not cli.of(Kill, TurnInterrupted)


def test_a_timeout_that_is_ignored_kills() -> None:
    cli = Cli().ready().running(deadline_s=105.0, timeout_s=5.0)
    cli.later(16)
    assert isinstance(cli.ended.error, TurnTimeoutError)
    assert cli.ended.forced
    assert isinstance(cli.out[-1], Kill)


def test_a_timeout_before_the_turn_started() -> None:
    cli = Cli().ready()
    cli.start(deadline_s=105.0, timeout_s=5.0)
    cli.later(6)
    assert cli.requests() == []
    cli.feed(life(U1, "started"))
    assert cli.requests() == ["interrupt"]


def test_a_deadline_that_has_passed_already() -> None:
    cli = Cli().ready()
    cli.start(deadline_s=cli.now_s - 1, timeout_s=1.0)
    cli.later(0)
    assert cli.of(Urgent)


# --- the probe --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frames", [[echo(U1)], [life(U1, "completed")], [echo(U1), life(U1, "completed")], [init(), background_result(), echo(U1)]]
)
def test_a_swallowed_probe(frames: list[dict[str, Any]]) -> None:
    cli = Cli(resume_id="r").ready()
    cli.start(probe=True)
    cli.feed(*frames)
    assert cli.of(AttemptSwallowed) == [AttemptSwallowed("turn-1")]
    assert not cli.codec.sent
    cli.running(U2)
    cli.feed(result(U2))
    assert cli.ended.result.text == "answer"


def test_a_probe_that_was_never_taken_runs() -> None:
    cli = Cli(resume_id="r").ready()
    cli.start(probe=True)
    cli.feed(life(U1, "queued"), life(U1, "started"), init(U1), echo(U1), result(U1), life(U1, "completed"))
    assert cli.ended.result.text == "answer"
    assert not cli.of(AttemptSwallowed)


def test_a_slow_probe_is_not_taken_for_a_swallowed_one() -> None:
    cli = Cli(startup_timeout_s=60).ready()
    cli.start(probe=True)
    cli.later(50)
    cli.feed(life(U1, "queued"))
    cli.later(1000)
    assert not cli.of(AttemptSwallowed, AttemptEnded, Kill)


def test_a_probe_without_any_sign_is_bounded() -> None:
    cli = Cli(startup_timeout_s=60).ready()
    cli.start(probe=True)
    cli.later(61)
    assert cli.of(Kill)
    assert cli.codec.sent  # the owner decides what the death means
    assert not cli.of(AttemptSwallowed, AttemptEnded)


def test_an_interrupted_probe_that_was_swallowed_is_an_interrupted_turn() -> None:
    cli = Cli().ready()
    cli.start(probe=True)
    cli.interrupt()
    cli.feed(echo(U1))
    assert cli.ended.result.interrupted
    assert not cli.of(AttemptSwallowed)


def test_a_repeated_uuid_without_probe_does_not_hang() -> None:
    cli = Cli().ready()
    cli.start()
    cli.feed(life(U1, "completed"))
    assert cli.of(AttemptSwallowed)


# --- lines too long ---------------------------------------------------------------------------------------------------------


def test_a_line_too_long_fails_the_turn_and_stops_it() -> None:
    cli = Cli().ready().running()
    cli.oversized(40_000_000)
    assert cli.requests() == ["interrupt"]
    cli.answer("interrupt", still_queued=[])
    cli.feed(aborted(U1))
    assert cli.ended.keeps_conversation
    assert "40000000" in str(cli.ended.error)
    assert "33554432" in str(cli.ended.error)
    cli.running(U2)
    cli.feed(result(U2))
    assert cli.of(AttemptEnded)[-1].result.text == "answer"


def test_the_lost_line_was_the_result() -> None:
    cli = Cli().ready().running()
    cli.oversized()
    cli.feed(life(U1, "completed"))
    assert cli.ended.keeps_conversation
    cli.start(U2)
    assert not cli.codec.sent
    cli.answer("interrupt", still_queued=[])
    assert cli.codec.sent


def test_a_line_too_long_between_turns_fails_nothing() -> None:
    cli = Cli().ready()
    assert [type(item) for item in cli.oversized()] == [Lifecycle]


# --- approvals --------------------------------------------------------------------------------------------------------------

DENIED = {"type": "system", "subtype": "permission_denied", "tool_name": "Bash", "tool_use_id": "tool-1", "decision_reason": "nobody"}
ASKED = {
    "type": "control_request",
    "request_id": 5,
    "request": {"subtype": "can_use_tool", "tool_name": "Bash", "tool_use_id": "tool-1", "input": {}},
}
LISTED = {"permission_denials": [{"tool_name": "Bash", "tool_use_id": "tool-1", "tool_input": {}}, "junk", {}]}


def test_a_denial_is_told_once() -> None:
    cli = Cli().ready().running()
    cli.feed(DENIED, DENIED, ASKED, result(U1, **LISTED))
    assert [item.kind for item in cli.of(ApprovalDenied)] == ["Bash", ""]
    assert cli.ended.result.text == "answer"
    assert "interrupt" not in cli.written("control_response")[0]["response"]["response"]


@pytest.mark.parametrize("denial", [DENIED, ASKED])
def test_fail_turn_stops_the_turn_at_the_denial(denial: dict[str, Any]) -> None:
    cli = Cli(approvals=ApprovalPolicy.FAIL_TURN).ready().running()
    cli.feed(denial)
    assert cli.requests() == ["interrupt"]
    cli.feed(aborted(U1))
    assert (cli.ended.error.kind, cli.ended.keeps_conversation) == (FailureKind.OTHER, True)
    assert not cli.of(TurnInterrupted)
    if denial is ASKED:
        assert cli.written("control_response")[0]["response"]["response"]["interrupt"] is True


def test_fail_turn_by_the_results_list() -> None:
    cli = Cli(approvals=ApprovalPolicy.FAIL_TURN).ready().running()
    cli.feed(result(U1, **LISTED))
    assert cli.ended.keeps_conversation
    assert cli.requests() == []


def test_a_denial_in_a_turn_of_the_clis_own_fails_nothing_of_ours() -> None:
    cli = Cli(approvals=ApprovalPolicy.FAIL_TURN).ready()
    cli.feed(init())
    cli.start()
    cli.feed(DENIED, ASKED, background_result(**LISTED))
    assert cli.requests() == []
    assert cli.codec.sent
    assert cli.of(ApprovalDenied) == [ApprovalDenied("Bash", "{}")]


# --- what is told -----------------------------------------------------------------------------------------------------------


def test_unknown_frames_and_blocks_pass() -> None:
    cli = Cli().ready().running()
    odd = says("x", U1)
    odd["message"]["content"] = [{"type": "new_block", "x": 1}, {"type": "text", "text": "kept"}]
    cli.feed(odd, {"type": "new"}, {"type": "system", "subtype": "new"}, {"type": "keep_alive"}, b"junk")
    assert [item.text for item in cli.of(AssistantText)] == ["kept"]
    assert len(cli.of(RawOutput)) == 3
    assert cli.codec.junk_lines == 1


def test_missing_fields_are_no_error() -> None:
    cli = Cli().ready().running()
    for type_ in ("assistant", "user", "stream_event", "command_lifecycle", "control_response", "rate_limit_event", "conversation_reset"):
        cli.feed({"type": type_})
    for subtype in ("init", "permission_denied", "api_retry", "compact_boundary", "informational", "model_fallback", "task_started"):
        cli.feed({"type": "system", "subtype": subtype})
    cli.feed({"type": "result", "user_message_uuids": [U1]})
    assert cli.ended.error is not None


def test_rate_limits_window_by_window() -> None:
    windows = {
        "five_hour": {"utilization": 0.93, "resetsAt": 1796063001, "status": "rejected"},
        "seven_day": {"utilization": 0.4},
        "odd": 5,
    }
    cli = Cli().ready()
    cli.feed(
        {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "unifiedWindows": windows}},
        {"type": "rate_limit_event", "rate_limit_info": {"status": "allowed"}},
    )
    first, second, third = cli.of(RateLimitStatus)
    assert (first.window, first.used_fraction, first.resets_at, first.window_minutes, first.exhausted) == (
        "five_hour",
        0.93,
        1796063001,
        300,
        True,
    )
    assert (second.window, second.resets_at, second.exhausted) == ("seven_day", None, False)
    assert (third.window, third.exhausted) == ("unknown", False)


def test_the_clis_own_retries_are_told() -> None:
    cli = Cli().ready()
    retry = {"attempt": 1, "max_retries": 3, "retry_delay_ms": 587.5, "error_status": 529, "error": "overloaded"}
    cli.feed({"type": "system", "subtype": "api_retry", **retry})
    assert cli.of(Lifecycle)[-1] == Lifecycle(
        "provider retry", "overloaded (status 529), attempt 1 of 3, next in 0.5875 s", about="overloaded", delay_s=0.5875
    )


def retried(attempt: int, delay_s: float) -> dict[str, Any]:
    told = {"attempt": attempt, "max_retries": 3, "retry_delay_ms": delay_s * 1000, "error_status": 429, "error": "rate_limit"}
    return {"type": "system", "subtype": "api_retry", **told}


@pytest.mark.parametrize(
    ("frames", "asked_s"),
    [
        ((), None),
        ((retried(1, 0.616), retried(2, 1.001), retried(3, 2.117)), None),  # without a header: how long it waits by itself
        ((retried(1, 2.238), retried(2, 2.192), retried(3, 2.488)), 2.192),  # with one of 2 s
        ((retried(1, 73.243), says("over"), calls("Bash"), gives()), None),  # of a call that came to its end
        (({"type": "system", "subtype": "api_retry"},), None),
    ],
)
def test_how_long_the_server_asks_to_wait_is_told_by_the_clis_own_wait(frames: Any, asked_s: float | None) -> None:
    cli = Cli().ready().running()
    cli.feed(*frames, api_error(429, "API Error: Request rejected (429)"), failed_result(U1, status=429, text="Request rejected (429)"))
    assert cli.ended.error.retry_after_s == asked_s


def test_a_skill() -> None:
    cli = Cli().ready().running()
    cli.feed(calls("Skill", arguments={"skill": "review"}), result(U1))
    assert cli.of(SkillInvoked) == [SkillInvoked("review", tool_id="tool-1")]
    assert cli.ended.result.skills == ("review",)


@pytest.mark.parametrize(
    ("content", "is_error", "details", "expected"),
    [
        ("out", False, {"stdout": "out", "stderr": "err", "interrupted": False}, ("out", "err", 0)),
        ("out", False, {"stdout": "out", "stderr": "", "interrupted": True}, ("out", "", None)),
        ("Exit code 3\nout", True, "Error: Exit code 3", ("out", "", 3)),
        ("Exit code 127", True, "Error", ("", "", 127)),
        ("no such tool", True, "Error", ("", "no such tool", None)),
        ([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}], False, {"x": 1}, ("a\nb", "", None)),
        (None, False, None, ("", "", None)),
    ],
)
def test_tool_results(content: Any, is_error: bool, details: Any, expected: tuple[Any, ...]) -> None:
    cli = Cli().ready().running()
    block = {"type": "tool_result", "tool_use_id": "tool-1", "content": content, "is_error": is_error}
    cli.feed(calls("Bash"), {"type": "user", "message": {"content": [block]}, "tool_use_result": details})
    (told,) = cli.of(ToolResult)
    assert (told.stdout, told.stderr, told.exit_code) == expected


def test_what_a_cut_attempt_consumed_is_a_lower_bound() -> None:
    cli = Cli().ready()
    assert cli.codec.consumed() is None
    cli.running()
    cli.feed(says("a", U1), says("b", U1))
    cut = cli.codec.consumed()
    assert (cut.tokens.input, cut.tokens.cache_read_input, cut.increment_known) == (100, 30, False)


def test_what_a_cut_attempt_consumed_counts_nothing_twice() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(says("a", U1), result(U1, since=model_usage(100, 8, 0.1)), life(S1, "started"))
    assert cli.codec.consumed().tokens.input == 100


def test_usage_of_each_attempt_and_of_the_conversation() -> None:
    cli = Cli().ready().running()
    cli.feed(result(U1, since=model_usage(10, 1, 0.1)), background_result(since=model_usage(5, 1, 0.1)))
    cli.running(U2)
    cli.feed(result(U2, since=model_usage(20, 2, 0.2)))
    first, second = cli.of(AttemptEnded)
    assert (first.usage.tokens.input, second.usage.tokens.input) == (10, 20)
    assert (first.cumulative.tokens.input, second.cumulative.tokens.input) == (10, 35)


def test_nothing_of_a_finished_turn_leaks_into_the_next() -> None:
    cli = Cli().ready().running()
    cli.feed(says("one", U1), calls("Skill", arguments={"skill": "a"}), result(U1, text="one"))
    cli.running(U2)
    cli.interrupt()
    cli.feed(aborted(U2))
    assert (cli.of(AttemptEnded)[-1].result.text, cli.of(AttemptEnded)[-1].result.skills) == ("", ())


def test_after_the_exit_nothing_is_written() -> None:
    cli = Cli().ready().running()
    cli.exit(signal=9)
    assert cli.codec.sent
    assert cli.interrupt() == []
    assert cli.steer() is None
    assert cli.codec.tick(1e9) == []
    assert cli.feed(result(U1)) == []
    assert S1
