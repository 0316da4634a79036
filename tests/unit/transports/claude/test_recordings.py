"""What the real CLI (2.1.332) wrote, played into the codec."""

from __future__ import annotations

import pytest
from claude_wire import FIXTURES, U2, U3, Recording

from greenroom.errors import SessionResumeError, TurnFailedError
from greenroom.events import (
    ApprovalDenied,
    AssistantText,
    Lifecycle,
    ProviderError,
    RateLimitStatus,
    Reasoning,
    SessionStarted,
    SkillsDiscovered,
    SteerConsumed,
    SteerDelivered,
    SteerRejected,
    ToolCall,
    ToolResult,
    TurnInterrupted,
)
from greenroom.model import ApprovalPolicy, FailureKind
from greenroom.transports.base import AttemptSwallowed, Booked, Ready, Renamed, StartFailed


def test_a_plain_session() -> None:
    played = Recording("plain").play()
    first, second = played.ends
    assert (second.result.text, second.result.session_id) == ("ECHO two", played.of(Renamed)[0].conversation_id)
    assert len(played.of(Renamed)) == len(played.of(SessionStarted)) == len(played.of(SkillsDiscovered)) == 1
    (tool,) = played.of(ToolResult)
    assert (tool.tool, tool.exit_code, tool.stdout) == ("Bash", 3, "hi\nerr")
    assert first.result.usage.tokens.input == 200
    assert first.result.cost_usd == pytest.approx(0.001332)
    assert first.cumulative.tokens.input == 200
    assert second.cumulative.tokens.input == 300
    assert second.result.context_tokens == 150
    assert played.of(Lifecycle)[0] == Lifecycle("credential", "ANTHROPIC_API_KEY (firstParty)")


def test_a_steer_into_a_tool_gives_one_result() -> None:
    played = Recording("steer_tool").play()
    first, second = played.ends
    assert (first.result.text, second.result.text) == ("steered", "after")
    assert [type(item) for item in played.of(SteerDelivered, SteerConsumed, SteerRejected)] == [SteerDelivered, SteerConsumed]
    assert first.usage.tokens.turns == 2


def test_a_steer_into_text_gives_a_turn_of_its_own_and_one_outcome() -> None:
    played = Recording("steer_stream").play()
    (end,) = played.ends
    assert end.result.text == "steered"
    assert (end.usage.tokens.input, end.usage.tokens.output) == (200, 27)
    assert end.usage.total_cost_usd == pytest.approx(0.001552)
    assert len(played.of(SteerConsumed)) == 1
    assert "".join(item.text for item in played.of(AssistantText)) == " ".join(f"w{n}" for n in range(15)) + "steered"


def test_two_steers_merge_into_one_turn() -> None:
    played = Recording("steer_two_stream").play()
    (end,) = played.ends
    assert end.result.text == "steered-b"
    assert [item.text for item in played.of(SteerConsumed)] == ["SAY steered-a", "SAY steered-b"]


@pytest.mark.parametrize("name", ["int_stream", "int_tool", "int_before_stream"])
def test_an_interrupt(name: str) -> None:
    played = Recording(name).play()
    first, second = played.ends
    assert first.result.interrupted
    assert not first.forced
    assert (second.result.text, second.result.interrupted) == ("after", False)
    assert len(played.of(TurnInterrupted)) == 1


def test_an_interrupted_turn_is_billed_by_what_the_models_took() -> None:
    first, _ = Recording("int_stream").play().ends
    assert first.usage.tokens.output == 4
    assert first.usage.total_cost_usd == pytest.approx(0.000586)
    assert first.result.text == "w0 w1 w2 w3"


def test_an_interrupt_before_the_first_count_costs_an_unknown_amount() -> None:
    first, second = Recording("int_before_stream").play().ends
    assert not first.usage.increment_known
    assert second.usage.increment_known


def test_an_interrupt_in_a_later_call_leaves_a_lower_bound_unless_something_of_that_call_had_come() -> None:
    played = Recording("int_later").play()
    hanging, thinking, after = (end.usage for end in played.ends)
    assert (hanging.tokens.input, hanging.increment_known) == (100, False)
    assert (thinking.tokens.input, thinking.increment_known) == (200, True)
    assert (after.tokens.input, after.increment_known) == (100, True)
    assert not played.ends[-1].cumulative.increment_known


def test_an_answer_that_broke_off_is_whole_and_ends_at_a_tool_call() -> None:
    whole, after_a_tool = Recording("broke_off").play().ends
    assert whole.result.text == "The answer, at last."  # in three pieces: an error within the stream, and the limit of tokens
    assert after_a_tool.result.text == "the end"


def test_an_interrupt_drops_a_queued_steer() -> None:
    played = Recording("int_queued_cancel").play()
    assert played.ended.result.interrupted
    assert played.of(SteerRejected) == [SteerRejected("SAY steered", "dropped by the interrupt")]


def test_a_swallowed_probe_and_one_that_was_never_taken() -> None:
    prompt = "BASH timeout 20 tail -f /dev/null"
    played = Recording("swallowed", probe=(prompt, "never taken"), resume_id="x").play()
    assert len(played.of(AttemptSwallowed)) == 1
    assert [end.result.text for end in played.ends] == ["ECHO Continue from where you left off.", "ECHO never taken"]
    assert played.ends[0].result.resumed


def test_a_prompt_folded_into_a_turn_of_the_clis_own() -> None:
    played = Recording("folded").play()
    first, second = played.ends
    assert first.result.text.startswith("DONE")
    assert "SAY mine" in second.result.text  # the result has the other turn's origin and our message's uuid
    assert not played.of(Booked)
    assert not played.codec.sent


def test_a_prompt_queued_behind_a_turn_of_the_clis_own() -> None:
    played = Recording("queued_behind").play()
    assert [end.result.text for end in played.ends][1:] == ["ECHO mine"]
    (booked,) = played.of(Booked)
    assert booked.usage.tokens.input == 100
    assert " w0" not in "".join(item.text for item in played.of(AssistantText))


def test_an_interrupt_of_a_prompt_behind_a_turn_of_the_clis_own_takes_it_back() -> None:
    played = Recording("cancelled_behind").play()
    _, taken_back, after = played.ends
    assert played.requests() == ["cancel_async_message"]
    assert taken_back.result.interrupted
    assert (taken_back.usage.tokens.input, taken_back.usage.increment_known) == (0, True)
    assert after.result.text == "ECHO mine two"


def test_a_retry_in_place_and_a_slash_that_is_no_command() -> None:
    played = Recording("nudge").play()
    _, failed, again, slash = played.ends
    assert (failed.error.kind, failed.nudgeable) == (FailureKind.TRANSIENT, True)
    assert again.error.kind is FailureKind.TRANSIENT
    assert slash.result.text == "ECHO /clear all"
    assert len(played.of(Renamed)) == 1


def test_sub_agents_text_is_never_the_answer() -> None:
    played = Recording("subagent", name_messages=True).play()
    texts = [item.text for item in played.of(AssistantText)]
    assert "from the subagent" not in texts
    assert len(played.ends) == 2
    (booked,) = played.of(Booked)
    assert booked.usage.tokens.input == 200  # the sub-agent's and the turn's that it woke
    assert played.ends[1].usage.tokens.input == 400
    assert [call.tool for call in played.of(ToolCall)] == ["Agent", "Agent", "Bash"]


def test_a_compaction() -> None:
    played = Recording("compact", name_messages=True).play()
    assert any(item.kind == "compaction" for item in played.of(Lifecycle))
    assert played.ends[-1].usage.tokens.input > 0


def test_tools_and_their_results() -> None:
    played = Recording("tools", name_messages=True).play()
    by_tool = {result.tool: result for result in played.of(ToolResult)}
    assert by_tool["Write"].stdout.startswith("File created")
    assert by_tool["NoSuchTool"].stderr.startswith("<tool_use_error>")
    assert len(played.of(ToolCall)) == len(played.of(ToolResult)) == 6


def test_denied_tools_are_told_once() -> None:
    played = Recording("denied", name_messages=True).play()
    assert [item.kind for item in played.of(ApprovalDenied)] == ["Bash", "Write"]
    assert all(end.result is not None for end in played.ends)


def test_denied_tools_fail_the_turn_where_the_caller_wants_it() -> None:
    played = Recording("denied", name_messages=True, approvals=ApprovalPolicy.FAIL_TURN).play(9)
    assert played.requests() == ["interrupt"]
    assert played.ended.error.kind is FailureKind.OTHER
    assert played.ended.keeps_conversation


def test_a_schema() -> None:
    played = Recording("schema", name_messages=True).play()
    assert played.ends[0].result.structured_output == {"name": "x", "n": 3}


def test_partial_messages_come_in_pieces_once() -> None:
    played = Recording("partial", name_messages=True).play()
    assert [item.text for item in played.of(AssistantText)] == ["deep", "DONE hi"]
    assert [item.text for item in played.of(Reasoning)] == ["hmm deep"]


def test_local_commands_change_the_conversation() -> None:
    played = Recording("slash", name_messages=True).play()
    assert len(played.of(Renamed)) == 2
    assert played.ends[1].usage.tokens.input == 200  # /compact: its `usage` says zero, its models were asked all the same


def test_a_refused_resume() -> None:
    played = Recording("unknown", resume_id="00000099-aaaa-4aaa-8aaa-aaaaaaaaaaaa").play()
    (failed,) = played.of(StartFailed)
    assert isinstance(failed.error, SessionResumeError)
    assert not failed.error.in_use
    assert "No conversation found" in failed.error.detail
    assert not played.exit(1, stderr="No conversation found with session ID: x")
    assert not played.of(Ready)


ALL = sorted(path.stem for path in FIXTURES.glob("*.jsonl") if path.stem != "errors")
WITH_UUIDS = {"steer_tool", "steer_stream", "steer_two_stream", "int_stream", "int_tool", "int_before_stream", "int_queued_cancel"}
WITH_UUIDS |= {"plain", "swallowed", "folded", "queued_behind", "cancelled_behind", "nudge", "killed", "unknown"}


def _recording(name: str) -> Recording:
    probe = ("BASH timeout 20 tail -f /dev/null", "never taken") if name == "swallowed" else ()
    return Recording(name, name_messages=name not in WITH_UUIDS, probe=probe, resume_id="r")


@pytest.mark.parametrize("name", ALL)
def test_cut_anywhere_by_an_exit_nothing_is_lost_or_told_twice(name: str) -> None:
    """Die after each row: steers are settled, the attempt is left to the owner, a start ends at most once."""
    for rows in range(len(Recording(name)) + 1):
        cut = _recording(name).play(rows)
        was_sent = cut.codec.sent
        cut.exit(signal=9)
        assert cut.codec.sent == was_sent
        assert len(cut.of(StartFailed)) + len(cut.of(Ready)) <= 1
        assert len(cut.of(SteerConsumed)) + len(cut.of(SteerRejected)) == len(
            {steer.text for steer in cut.of(SteerDelivered)} | _sent_steers(cut)
        )
        assert cut.codec.deadline_s is None
        assert cut.feed(b'{"type":"result"}') == []


def _sent_steers(cut: Recording) -> set[str]:
    texts = [frame["message"]["content"] for frame in cut.written("user") if frame["uuid"] in {U2, U3}]
    return {text for text in texts if isinstance(text, str) and "steered" in text}


@pytest.mark.parametrize("name", ALL)
def test_every_frame_twice_changes_nothing(name: str) -> None:
    once = _recording(name).play()
    twice = _recording(name)
    repeat, twice_feed = [], twice.feed

    def feed(*frames: object) -> list[object]:
        repeat.append(frames)
        return twice_feed(*frames) + twice_feed(*frames)

    twice.feed = feed
    twice.play()
    kinds = (ToolCall, SteerConsumed, SteerRejected, ApprovalDenied, TurnInterrupted, Booked, Renamed, Ready)
    assert [type(item) for item in twice.of(*kinds)] == [type(item) for item in once.of(*kinds)]
    assert [(end.result, type(end.error), end.usage) for end in twice.ends] == [
        (end.result, type(end.error), end.usage) for end in once.ends
    ]


def test_no_unknown_frames_in_the_recordings() -> None:
    assert not any(isinstance(item, RateLimitStatus | ProviderError) for item in Recording("plain").play().out)
    assert isinstance(Recording("nudge").play().ends[1].error, TurnFailedError)
