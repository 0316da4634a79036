"""What the real servers (0.163.0 and 0.171.0) wrote, played into the codec that drove them."""

from __future__ import annotations

import contextlib
import json
import random

import pytest
from codex_wire import FIXTURES, VERSIONS, Recording

from greenroom.errors import SessionResumeError, SessionStateError, TurnFailedError
from greenroom.events import (
    ApprovalDenied,
    AssistantText,
    ProviderError,
    RawOutput,
    SessionStarted,
    SteerConsumed,
    SteerDelivered,
    SteerRejected,
    ToolCall,
    ToolResult,
    TurnInterrupted,
)
from greenroom.model import FailureKind
from greenroom.transports.base import Addressed, AttemptEnded, AttemptSwallowed, Kill, Ready, Renamed, StartFailed

NAMES = sorted({path.stem.rsplit("_", 1)[0] for path in FIXTURES.glob("*_1*.jsonl")})
EVERY = [(name, version) for name in NAMES for version in VERSIONS]


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_the_codec_still_writes_what_it_wrote_to_the_real_server(name: str, version: str) -> None:
    played = Recording(name, version).play()
    # The question for the account is newer than the recordings, and has an id of its own.
    written = [row for row in played.written() if row.get("method") != "account/read"]
    assert [(row.get("method"), row.get("id")) for row in written] == [(row.get("method"), row.get("id")) for row in played.recorded]
    assert not played.of(RawOutput)
    assert played.codec.junk_lines == 0


def test_turns(version: str) -> None:
    played = Recording("turns", version).play()
    plain, shell, schema, last = played.ends()
    assert [end.result.text for end in (plain, shell, schema, last)] == ["hi", "DONE", '{"a": 1}', "plain"]
    assert schema.result.structured_output == {"a": 1}
    assert (plain.usage.tokens.input, plain.usage.tokens.cached_input, plain.usage.tokens.output) == (600, 400, 50)
    assert (shell.usage.tokens.total_input, shell.usage.tokens.turns) == (2000, 2)
    assert last.cumulative.tokens.total_input == 5000
    assert last.cumulative.raw["total"]["inputTokens"] == 5000
    assert (plain.result.cost_usd, plain.result.context_tokens, plain.usage.increment_known) == (None, 1000, True)
    (call,), (result,) = played.of(ToolCall), played.of(ToolResult)
    assert (call.tool, result.exit_code, result.stdout) == ("shell", 3, "hi\n")
    assert len(played.of(SessionStarted)) == 1
    assert {name.conversation_id for name in played.of(Renamed)} == {last.result.session_id}


def test_the_effort_of_one_turn_is_taken_back_for_the_next(version: str) -> None:
    asked = [row["params"] for row in Recording("turns", version).play().asked("turn/start")]
    assert [row.get("effort") for row in asked] == [None, None, "high", None]
    assert asked[3]["collaborationMode"]["settings"] == {"model": "gpt-5.5", "reasoning_effort": None, "developer_instructions": None}


def test_steers(version: str) -> None:
    played = Recording("steer", version).play()
    in_text, in_command, interrupted = played.ends()
    assert (in_text.result.text, in_command.result.text) == ("steered", "in a command")
    assert [event.text for event in played.of(SteerConsumed)] == ["SAY steered", "SAY in a command"]
    assert len(played.of(SteerDelivered)) == 3
    assert played.of(SteerRejected) == [SteerRejected("SAY lost", "the turn ended before it was taken up")]
    assert interrupted.result.interrupted


def test_interrupts(version: str) -> None:
    played = Recording("interrupt", version).play()
    early, command, after, hanging = played.ends()
    assert [end.result.interrupted for end in (early, command, after, hanging)] == [True, True, False, True]
    assert (command.usage.increment_known, hanging.usage.increment_known) == (True, False)
    assert len(played.of(TurnInterrupted)) == 3
    assert len(played.asked("thread/backgroundTerminals/clean")) == 3
    assert [result.stderr for result in played.of(ToolResult)] == ["the turn ended before the tool"]


def test_approvals(version: str) -> None:
    played = Recording("approvals", version).play()
    assert [event.kind for event in played.of(ApprovalDenied)] == ["command", "command"]
    (denied,) = played.ends("deny")
    failed, after = played.ends("fail")
    assert denied.result.text == "DONE"
    assert isinstance(failed.error, TurnFailedError)
    assert (failed.error.kind, failed.keeps_conversation, after.result.text) == (FailureKind.OTHER, True, "after")
    assert [row["result"]["decision"] for row in played.answered()] == ["decline", "cancel"]


def test_a_retry_in_place_shows_the_prompt_once(version: str) -> None:
    played = Recording("retry", version).play()
    failed, retried = played.ends()
    assert (failed.error.kind, failed.nudgeable, retried.result.text) == (FailureKind.TRANSIENT, True, "DONE")
    assert [row["params"]["input"] == [] for row in played.asked("turn/start")] == [False, True]
    assert failed.usage.tokens.total_input == retried.usage.tokens.total_input == 1000
    assert len(played.of(ProviderError)) == 1


def test_a_death_in_mid_turn_leaves_the_attempt_to_the_owner(version: str) -> None:
    played = Recording("killed", version).play()
    assert len(played.ends()) == 1
    assert played.codec.sent_by("a")
    assert played.codec.consumed_by("a").increment_known is False
    assert played.exit(signal=9) == []


def test_what_a_death_has_cut_is_found_in_the_history(version: str) -> None:
    played = Recording("resumed", version).play()
    assert len(played.of(AttemptSwallowed)) == 1
    continued, fresh = played.ends()
    assert (continued.result.text, fresh.result.text, continued.result.resumed) == ("DONE", "never taken", True)
    asked = [row["params"]["input"] for row in played.asked("turn/start")]
    assert (asked[0], asked[1][0]["text"]) == ([], "SAY never taken")
    assert (continued.usage.tokens.total_input, fresh.usage.tokens.total_input) == (1000, 1000)


def test_threads_that_cannot_be_resumed(version: str) -> None:
    played = Recording("unknown", version).play()
    (unknown,), (junk,), (twice,) = (played.of(StartFailed, key=key) for key in "abd")
    assert all(isinstance(failed.error, SessionResumeError) for failed in (unknown, junk, twice))
    assert [failed.error.in_use for failed in (unknown, junk, twice)] == [False, False, True]
    (held,) = Recording("inuse", version).play().of(StartFailed)
    assert held.error.in_use


def test_a_conversation_that_is_given_up_can_be_opened_anew_in_the_same_server(version: str) -> None:
    played = Recording("parallel", version).play()
    first, back = played.ends("a")
    assert (first.result.text, back.result.text) == ("w0 w1 w2 w3 w4 w5", "back")
    assert [end.result.text for end in played.ends("b")] == ["w0 w1 w2 w3 w4 w5", "w0 w1 w2 w3 w4 w5 w6 w7"]
    resumed = played.asked("thread/resume")[0]["params"]
    assert (resumed["sandbox"], len(played.asked("thread/archive")), len(played.asked("thread/unarchive"))) == ("read-only", 1, 1)
    assert len(played.of(Ready, key="a")) == 2


# --- faults -------------------------------------------------------------------------------------------------------------


def _check_order(played: Recording) -> None:
    """Every attempt ends at most once, after it began, and nothing is said of an attempt that is not open."""
    begun = [row["params"]["clientUserMessageId"] for row in played.asked("turn/start")]
    ended = [end.turn_id for end in played.of(AttemptEnded)]
    assert len(ended) == len(set(ended))
    assert len(ended) <= len(begun)
    assert not played.of(Kill)


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_every_prefix_and_then_the_end(name: str, version: str) -> None:
    for rows in range(len(Recording(name, version)) + 1):
        played = Recording(name, version).play(rows)
        _check_order(played)
        before = len(played.ends())
        played.exit(signal=9)
        assert len(played.ends()) == before
        assert played.codec.deadline_s is None
        assert played.feed({"id": 1, "result": {}}) == []


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_frames_that_come_twice_change_nothing(name: str, version: str) -> None:
    once, twice = Recording(name, version).play(), Recording(name, version)
    for row in list(twice._rows):
        if row["d"] == "out" and "id" not in row["f"]:
            twice._rows.insert(twice._rows.index(row), row)
    twice.play()
    texts = [(end.turn_id, end.result.text if end.result else str(end.error)) for end in once.ends()]
    assert [(end.turn_id, end.result.text if end.result else str(end.error)) for end in twice.ends()] == texts
    kinds = (ToolCall, ToolResult, AssistantText, SteerConsumed, SteerRejected, SessionStarted)
    assert twice.of(*kinds) == once.of(*kinds)
    assert [end.usage.tokens for end in twice.ends()] == [end.usage.tokens for end in once.ends()]


@pytest.mark.parametrize("seed", range(12))
def test_frames_in_any_order_never_raise(seed: int) -> None:
    chance = random.Random(seed)
    frames = [row["f"] for name, version in EVERY for row in Recording(name, version)._rows if row["d"] == "out"]
    played = Recording("parallel", VERSIONS[seed % 2])
    for row in list(played._rows):
        if row["d"] == "act":
            if row["f"][0] == "start" and not played.of(Ready, key=row["f"][1]):
                continue
            with contextlib.suppress(SessionStateError):  # misuse by this shuffled driver
                played._act(*row["f"][:-1], **row["f"][-1])
        for frame in [row["f"]] if row["d"] == "out" else []:
            played.feed(frame)
        for frame in chance.sample(frames, 3):
            played.feed(_mutilated(frame, chance))
        played.later(chance.choice((0.0, 0.1, 70.0)))
    played.exit(returncode=0)


def _mutilated(frame: dict, chance: random.Random) -> dict | bytes:
    line = json.dumps(frame)
    how = chance.randrange(4)
    if how == 0:
        return line[: chance.randrange(len(line))].encode()
    if how == 1:
        return line.replace('"id"', '"di"', 1).encode()
    if how == 2 and "params" in frame:
        return {**frame, "params": chance.choice(([], None, "x", 3, {"threadId": 4}, {"threadId": "thread-1", "turn": [], "item": 3}))}
    return frame


@pytest.mark.parametrize("version", VERSIONS)
def test_every_output_of_a_conversation_carries_its_address(version: str) -> None:
    played = Recording("parallel", version).play()
    assert {row.key for row in played.out if isinstance(row, Addressed)} == {"a", "b"}
    assert not [row for row in played.out if isinstance(row, AttemptEnded | Renamed | StartFailed)]
