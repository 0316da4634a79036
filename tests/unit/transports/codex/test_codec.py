"""Faults and orders that the recordings do not show, frame by frame."""

from __future__ import annotations

import json

import attrs
import pytest
from codex_wire import (
    R1,
    R2,
    R3,
    S1,
    S2,
    T1,
    T2,
    Server,
    asks,
    attempt,
    begins,
    command,
    ends,
    item,
    launch,
    limits,
    note,
    old_turn,
    opened,
    past,
    says,
    took,
    total,
    user_item,
)

from greenroom.asks import Accept
from greenroom.errors import (
    CliCheckError,
    CliExitError,
    ProviderCapabilityError,
    SessionResumeError,
    SessionStateError,
    TurnFailedError,
    TurnTimeoutError,
)
from greenroom.events import (
    ApprovalDenied,
    AssistantText,
    Lifecycle,
    ProviderError,
    RateLimitStatus,
    RawOutput,
    Reasoning,
    SteerConsumed,
    SteerDelivered,
    SteerRejected,
    ToolCall,
    ToolResult,
    TurnInterrupted,
)
from greenroom.model import ApprovalPolicy, FailureKind, NativeMode, OutputSchema, TurnRequest
from greenroom.policy.commands import How
from greenroom.transports.base import AttemptEnded, AttemptSwallowed, Booked, Kill, ProcessExit, Ready, Renamed, StartFailed, Urgent
from greenroom.transports.codex.codec import CodexCodec
from greenroom.transports.codex.config import CodecConfig
from greenroom.transports.codex.params import CONTINUE_TEXT

FAIL = ApprovalPolicy.FAIL_TURN


@pytest.fixture
def server() -> Server:
    return Server().attached()


# --- the process --------------------------------------------------------------------------------------------------------


def test_conversations_wait_for_the_handshake() -> None:
    server = Server()
    server.open()
    server.attach("a")
    server.attach("b")
    assert not server.asked("thread/start")
    server.reply("initialize", {})
    assert [row.get("method") for row in server.written()] == [
        *("initialize", "initialized", "account/read"),
        *("thread/start", "thread/start"),
    ]
    assert server.of(Ready, bare=True) == [Ready(None)]


def test_a_handshake_without_an_answer_ends_the_process_and_every_start() -> None:
    server = Server()
    server.open()
    server.attach("a")
    server.later(60)
    (failed,), (kill,) = server.of(StartFailed, bare=True), server.of(Kill, bare=True)
    assert isinstance(failed.error, CliCheckError)
    assert "handshake within 60 s" in kill.reason
    assert len(server.of(StartFailed, key="a")) == 1
    assert server.codec.deadline_s is None


def test_a_refused_handshake_fails_every_start() -> None:
    server = Server()
    server.open()
    server.attach("a")
    server.reply("initialize", error="bad client")
    assert "bad client" in str(server.of(StartFailed, bare=True)[0].error)
    assert len(server.of(StartFailed, key="a")) == 1


def test_a_process_that_ends_by_itself_before_its_handshake_says_why() -> None:
    server = Server()
    server.open()
    server.attach("a")
    server.exit(returncode=1, stderr='Error: CODEX_HOME points to "/x", but that path does not exist')
    (bare,), (addressed,) = server.of(StartFailed, bare=True), server.of(StartFailed)
    assert isinstance(bare.error, CliExitError)
    assert "CODEX_HOME points to" in str(addressed.error)


@pytest.mark.parametrize("how", [{"signal": 9}, {"returncode": -9}])
def test_a_death_is_no_answer(how: dict) -> None:
    server = Server()
    server.open()
    server.attach("a")
    assert server.exit(**how) == []
    assert server.exit(**how) == []


def test_a_death_after_the_handshake_leaves_the_start_to_the_owner() -> None:
    server = Server().ready()
    server.attach("a")
    assert server.exit(returncode=0) == []


def test_a_death_rejects_what_was_steered(server: Server) -> None:
    server.running()
    server.steer()
    server.exit(signal=9)
    assert server.of(SteerRejected) == [SteerRejected("steer", "delivery unknown: the process ended")]
    assert not server.ends()


def test_bad_lines_touch_nobody(server: Server) -> None:
    server.running()
    before = len(server.out)
    server.feed(
        b"junk", b"[]", b"", b"\xff", {"method": "x"}, {"id": 99, "result": {}}, {"id": None}, {"method": 3, "id": "x"}, {"method": []}
    )
    assert len(server.out) == before
    server.feed(ends("t1", text="fine"))
    assert server.ended.result.text == "fine"


def test_a_notice_that_nobody_knows_is_shown_to_its_thread_only() -> None:
    server = Server().attached("a").attached("b", T2)
    server.feed(note("thread/brandNew", T2, x=1), note("thread/readState/changed", T1), {"method": "brand/new", "params": {}})
    assert [json.loads(raw.text)["method"] for raw in server.of(RawOutput, key="b")] == ["thread/brandNew"]
    assert not server.of(RawOutput, key="a")


# --- a thread -----------------------------------------------------------------------------------------------------------


def test_a_thread_is_named_and_ready(server: Server) -> None:
    assert server.of(Renamed) == [Renamed(T1)]
    assert server.of(Ready) == [Ready(T1)]


def test_a_thread_without_an_answer_fails_and_is_given_back_when_it_comes_late() -> None:
    server = Server().attached("other", T2)
    server.attach("a")
    request_id = server.asked("thread/start")[-1]["id"]
    server.later(60)
    (failed,) = server.of(StartFailed, key="a")
    assert isinstance(failed.error, CliCheckError)
    assert not server.of(Kill, bare=True)
    server.detach("a")
    server.feed({"id": request_id, "result": opened("late")})
    assert not server.asked("thread/archive")  # its answer is not waited for any more


def test_a_thread_that_opens_for_nobody_is_given_back() -> None:
    server = Server().ready()
    server.attach("a")
    server.detach("a")
    server.reply("thread/start", opened("orphan"))
    assert [row["params"] for row in server.asked("thread/archive")] == [{"threadId": "orphan"}]
    assert not server.of(Ready, key="a")


@pytest.mark.parametrize("mode", [NativeMode.READ_ONLY, NativeMode.WORKSPACE_WRITE])
def test_permissions_never_widen(mode: NativeMode) -> None:
    server = Server().ready()
    server.attach("a", launch(mode, resume=T1))
    server.reply("thread/resume", past())
    (failed,) = server.of(StartFailed)
    assert isinstance(failed.error, ProviderCapabilityError)
    with pytest.raises(SessionStateError):
        server.start()


def test_an_answer_without_a_thread_is_no_start() -> None:
    server = Server().ready()
    server.attach("a")
    server.reply("thread/start", {"thread": {"id": 3}})
    assert isinstance(server.of(StartFailed)[0].error, CliCheckError)


def test_an_archived_thread_is_taken_out_of_the_archive_once() -> None:
    server = Server().ready()
    server.attach("a", launch(resume=T1))
    server.reply("thread/resume", error="session thread-1 is archived. Run `codex unarchive thread-1` to unarchive it first.")
    server.reply("thread/unarchive", {})
    assert len(server.asked("thread/resume")) == 2
    server.reply("thread/resume", error="session thread-1 is archived.")
    assert len(server.of(StartFailed)) == 1
    assert len(server.asked("thread/unarchive")) == 1


def test_two_keys_on_one_thread() -> None:
    server = Server().attached("a")
    server.attach("b", launch(resume=T1))
    (failed,) = server.of(StartFailed, key="b")
    assert isinstance(failed.error, SessionResumeError)
    assert failed.error.in_use
    with pytest.raises(SessionStateError):
        server.attach("a")
    assert server.detach("b") == []


def test_who_comes_back_waits_until_the_server_has_let_go() -> None:
    server = Server().attached("a").running()
    server.detach("a")
    assert server.codec.sent is False
    server.attach("a", launch(resume=T1))
    assert not server.asked("thread/resume")
    server.feed(says("t1", "late"), ends("t1", "interrupted"))
    server.reply("thread/archive")
    server.reply("thread/unarchive")
    server.reply("thread/resume", past(old_turn(R1, "interrupted")))
    assert len(server.of(Ready, key="a")) == 2
    assert not server.of(AssistantText)
    assert not server.ends()


@pytest.mark.parametrize("silent", ["thread/archive", "thread/unarchive"])
def test_a_server_that_does_not_let_go_is_not_waited_for_without_end(silent: str) -> None:
    server = Server().attached("a")
    server.detach("a")
    server.attach("b", launch(resume=T1))
    if silent == "thread/unarchive":
        server.reply("thread/archive", error="no rollout found")
    server.later(60)
    assert len(server.asked("thread/resume")) == 1


def test_what_was_said_to_the_process_is_told_to_who_comes_later() -> None:
    server = Server().ready()
    fault = {"summary": "Invalid configuration; using defaults.", "details": "/h/config.toml:3:1: bad", "path": "/h/config.toml"}
    server.feed(limits(12), {"method": "configWarning", "params": fault}, {"method": "configWarning", "params": {"summary": "bubblewrap"}})
    server.attached("a")
    assert [row.used_fraction for row in server.of(RateLimitStatus, key="a")] == [0.12]
    assert [row.detail for row in server.of(Lifecycle, key="a") if row.kind == "warning"] == [
        "Invalid configuration; using defaults. /h/config.toml:3:1: bad"
    ]


def test_rate_limits_are_everybodys_and_told_when_they_change() -> None:
    server = Server().attached("a").attached("b", T2)
    server.feed(limits(12), limits(12), limits(100), {"method": "account/rateLimits/updated", "params": {"rateLimits": {"primary": None}}})
    for key in "ab":
        assert [(row.used_fraction, row.exhausted) for row in server.of(RateLimitStatus, key=key)] == [(0.12, False), (1.0, True)]


# --- attempts -----------------------------------------------------------------------------------------------------------


def test_a_turn(server: Server) -> None:
    server.running()
    assert server.asked("turn/start")[0]["params"]["clientUserMessageId"] == R1
    server.feed(total("t1", 300, 100, 20), says("t1", "one"), says("t1", "two"), ends("t1", text="two"))
    end = server.ended
    assert (end.result.text, end.result.session_id, end.duration_ms, end.result.usage.tokens.input) == ("two", T1, 7, 200)
    assert [event.text for event in server.of(AssistantText)] == ["one", "two"]


def test_the_answer_is_the_turns_last_message_not_one_in_between(server: Server) -> None:
    server.running()
    server.feed(says("t1", "answer"), says("t1", "by the way", delivery="async", phase="final_answer"), ends("t1"))
    assert server.ended.result.text == "answer"


def test_an_attempt_that_is_open_refuses_another(server: Server) -> None:
    server.start()
    with pytest.raises(SessionStateError):
        server.start(R2)
    with pytest.raises(SessionStateError):
        server.start(key="nobody")


def test_the_start_may_be_told_before_the_answer(server: Server) -> None:
    server.start()
    server.feed(begins("t1"), took("t1"), says("t1", "hi"))
    server.reply("turn/start", {"turn": {"id": "t1"}})
    server.feed(ends("t1", text="hi"))
    assert server.ended.result.text == "hi"
    assert server.of(AssistantText) == [AssistantText("hi")]


def test_a_whole_turn_may_be_told_before_the_answer(server: Server) -> None:
    server.start()
    server.feed(begins("t1"), says("t1", "hi"), ends("t1", text="hi"))
    assert not server.ends()
    server.reply("turn/start", {"turn": {"id": "t1"}})
    assert server.ended.result.text == "hi"


def test_a_turn_that_ended_before_the_answer_and_was_not_ours_is_no_end(server: Server) -> None:
    server.start()
    server.feed(begins("foreign"), ends("foreign", text="no"))
    server.reply("turn/start", {"turn": {"id": "t1"}})
    assert not server.ends()
    server.feed(begins("t1"), ends("t1", text="yes"))
    assert server.ended.result.text == "yes"


def test_an_answer_that_never_comes_does_not_matter_once_the_turn_runs(server: Server) -> None:
    server.start()
    server.feed(begins("t1"))
    server.later(60)
    server.feed(ends("t1", text="hi"))
    assert server.ended.result.text == "hi"


def test_the_answer_may_name_a_turn_that_never_lives(server: Server) -> None:
    server.start()
    server.reply("turn/start", {"turn": {"id": "dead"}})
    server.feed(begins("t1"), took("t1"), says("t1", "hi"), ends("t1", text="hi"))
    assert server.ended.result.text == "hi"


def test_without_a_message_of_ours_the_turn_that_begins_instead_is_ours() -> None:
    server = Server().attached(spec=launch(resume=T1), reply=past(old_turn(R1, "failed")))
    server.start(R2, how=How.RETRY)
    server.reply("turn/start", {"turn": {"id": "dead"}})
    server.feed(begins("t1"), ends("t1", text="hi"))
    assert server.ended.result.text == "hi"


def test_the_end_of_another_turn_ends_nothing(server: Server) -> None:
    server.running()
    server.feed(ends("old", text="x"), ends("t1", thread=T2, text="x"), note("turn/completed", turn={}), note("turn/completed"))
    assert not server.ends()


def test_an_end_that_comes_twice_ends_one_attempt(server: Server) -> None:
    server.running()
    server.feed(ends("t1", text="one"), ends("t1", text="one"))
    server.running("t2", R2)
    server.feed(ends("t1", text="one"), says("t1", "late"), command("t1", done=True), total("t1", 900))
    assert len(server.ends()) == 1
    server.feed(ends("t2", text="two"))
    assert [end.result.text for end in server.ends()] == ["one", "two"]
    assert not server.of(AssistantText, ToolCall, ToolResult)


def test_while_a_turn_of_the_servers_own_runs_nothing_is_written(server: Server) -> None:
    server.feed(begins("foreign"))
    server.start()
    assert not server.asked("turn/start")
    assert not server.codec.sent
    server.feed(ends("foreign"))
    assert len(server.asked("turn/start")) == 1


def test_an_interrupt_of_what_was_not_written_ends_it_at_once(server: Server) -> None:
    server.feed(begins("foreign"))
    server.start()
    server.interrupt()
    assert server.ended.result.interrupted
    assert server.ended.usage is None
    server.feed(ends("foreign"))
    assert not server.asked("turn/start")


def test_a_prompt_that_became_a_steer_of_a_running_turn_ends_with_it(server: Server) -> None:
    server.start()
    server.feed(begins("foreign"))
    server.reply("turn/start", {"turn": {"id": "foreign"}})
    server.feed(took("foreign"), ends("foreign", text="both"))
    assert server.ended.result.text == "both"


def test_a_thread_that_is_resumed_in_mid_turn_is_waited_for() -> None:
    running = {"id": "x", "status": "inProgress", "items": []}
    reply = past(running)
    reply["thread"]["status"] = {"type": "active"}
    server = Server().attached(spec=launch(resume=T1), reply=reply)
    server.start()
    assert not server.asked("turn/start")
    server.feed(ends("x", "interrupted"))
    assert len(server.asked("turn/start")) == 1


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [("Server overloaded; retry later.", -32001, FailureKind.TRANSIENT), ("thread not found: T", -32600, FailureKind.OTHER)],
)
def test_a_refused_turn_fails_and_the_conversation_is_kept(server: Server, error: str, code: int, kind: FailureKind) -> None:
    server.start()
    server.reply("turn/start", error=error, code=code)
    end = server.ended
    assert isinstance(end.error, TurnFailedError)
    assert (end.error.kind, end.keeps_conversation) == (kind, True)
    server.start(R2, how=How.RETRY)
    assert server.asked("turn/start")[-1]["params"]["input"][0]["text"] == "prompt"  # it is not in the thread


def test_a_turn_without_an_answer_is_given_up_by_force(server: Server) -> None:
    server.start()
    server.later(60)
    (end,), (kill,) = server.ends(), server.of(Kill)
    assert (end.forced, end.keeps_conversation) == (True, True)
    assert "turn/start within 60 s" in kill.reason
    assert not server.of(Kill, bare=True)  # nobody else is ended
    server.feed(begins("t1"), ends("t1", text="late"))
    assert len(server.ends()) == 1


def test_a_failed_turn(server: Server) -> None:
    server.running()
    cause = {"message": "busy", "codexErrorInfo": "serverOverloaded"}
    retry = {"message": "Reconnecting... 1/5", "codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": 500}}}
    server.feed(note("error", turnId="t1", error=retry, willRetry=True))
    assert not server.ends()
    server.feed(note("error", turnId="t1", error=cause, willRetry=False), ends("t1", "failed", error=cause))
    end = server.ended
    assert (end.error.kind, end.nudgeable, end.keeps_conversation) == (FailureKind.TRANSIENT, True, False)
    assert [event.message for event in server.of(ProviderError)] == ["Reconnecting... 1/5", "busy"]


def test_a_failed_turn_without_an_error_has_the_notices(server: Server) -> None:
    server.running()
    server.feed(note("error", turnId="t1", error={"message": "quota", "codexErrorInfo": "usageLimitExceeded"}, willRetry=False))
    server.feed(ends("t1", "failed"))
    assert server.ended.error.kind is FailureKind.USAGE_LIMIT


def test_an_interrupt_that_was_not_ours(server: Server) -> None:
    server.running()
    server.feed(ends("t1", "interrupted"))
    end = server.ended
    assert (end.error.kind, end.nudgeable, end.keeps_conversation) == (FailureKind.OTHER, True, True)


@pytest.mark.parametrize(("text", "fits"), [('{"a":1}', True), ("no", False), ("", False)])
def test_a_schema(server: Server, text: str, fits: bool) -> None:
    server.running(request=TurnRequest("prompt", output_schema=OutputSchema({"type": "object"})))
    assert server.asked("turn/start")[0]["params"]["outputSchema"] == {"type": "object"}
    server.feed(ends("t1", text=text))
    if fits:
        assert server.ended.result.structured_output == {"a": 1}
    else:
        assert server.ended.error.kind is FailureKind.SCHEMA


# --- retries and deaths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [How.RETRY, How.CONTINUE])
@pytest.mark.parametrize(
    ("turns", "sent"),
    [
        ((old_turn(R1, "failed"),), None),
        ((old_turn(R1, "interrupted"),), None),
        ((old_turn(R1, "completed"),), CONTINUE_TEXT),
        ((old_turn(R2, "failed", "another"), old_turn(R1, "completed")), None),
        ((), "prompt"),
        ((old_turn(R2, "failed", "another"),), "prompt"),
    ],
)
def test_what_a_repetition_sends_depends_on_the_history(how: How, turns: tuple, sent: str | None) -> None:
    server = Server().attached(spec=launch(resume=T1), reply=past(*turns))
    server.start(R3, how=how)
    given = server.asked("turn/start")[0]["params"]["input"]
    assert given == ([] if sent is None else [{"type": "text", "text": sent}])


def test_a_retry_in_the_same_process(server: Server) -> None:
    server.running()
    server.feed(ends("t1", "failed", error={"message": "x", "codexErrorInfo": "serverOverloaded"}))
    server.start(R2, how=How.RETRY)
    server.reply("turn/start", {"turn": {"id": "t2"}})
    server.feed(begins("t2"), ends("t2", "failed", error={"message": "x", "codexErrorInfo": "serverOverloaded"}))
    server.start(R3, how=How.RETRY)
    assert [row["params"]["input"] == [] for row in server.asked("turn/start")] == [False, True, True]


def test_a_prompt_that_the_server_rewrote_is_not_sent_again(server: Server) -> None:
    server.start()
    server.reply("turn/start", {"turn": {"id": "t1"}})
    server.feed(begins("t1"), took("t1", prompt="PROMPT"), ends("t1", "failed"))
    server.start(R2, how=How.RETRY, turn_id=f"turn of {R1}")
    assert server.asked("turn/start")[1]["params"]["input"] == []


def test_a_prompt_that_never_reached_the_thread_is_sent_again(server: Server) -> None:
    server.start()
    server.reply("turn/start", {"turn": {"id": "t1"}})
    server.feed(begins("t1"), ends("t1", "failed", error={"message": "x", "codexErrorInfo": "serverOverloaded"}))
    server.start(R2, how=How.RETRY)
    assert server.asked("turn/start")[1]["params"]["input"][0]["text"] == "prompt"


@pytest.mark.parametrize("status", ["interrupted", "completed", "failed", "inProgress"])
def test_a_probe_is_answered_by_the_history(status: str) -> None:
    server = Server().attached(spec=launch(resume=T1, after_death=True), reply=past(old_turn(R1, status)))
    server.start(R1, probe=True)
    assert server.of(AttemptSwallowed) == [AttemptSwallowed(f"turn of {R1}")]
    assert not server.asked("turn/start")
    server.start(R2)


@pytest.mark.parametrize(
    ("status", "on_disk", "taken"), [("interrupted", "prompt", True), ("interrupted", "other", False), ("completed", "prompt", False)]
)
def test_a_probe_is_answered_by_the_threads_file_where_the_item_is_missing(status: str, on_disk: str, taken: bool) -> None:
    """Killed between the message and its item. A turn that has ended is not the one that was cut, whatever was said in it."""
    cut = attrs.evolve(launch(resume=T1, after_death=True), cut_texts=(on_disk,))
    server = Server().attached(spec=cut, reply=past({"id": "old", "status": status, "items": []}))
    server.start(R1, probe=True)
    assert bool(server.of(AttemptSwallowed)) == taken
    assert len(server.asked("turn/start")) == (0 if taken else 1)


def test_a_probe_of_what_was_not_taken_is_the_attempt() -> None:
    server = Server().attached(spec=launch(resume=T1, after_death=True), reply=past({"id": "x", "status": "interrupted", "items": []}))
    server.start(R1, probe=True)
    assert server.asked("turn/start")[0]["params"]["input"][0]["text"] == "prompt"


def test_a_history_of_the_older_kind_is_read_too() -> None:
    reply = opened()
    reply["thread"]["turns"] = [old_turn("r0", "completed", turn="1"), old_turn(R1, "failed", turn="2")]
    server = Server().attached(spec=launch(resume=T1), reply=reply)
    server.start(R2, how=How.RETRY)
    assert server.asked("turn/start")[0]["params"]["input"] == []


# --- interrupts and deadlines ---------------------------------------------------------------------------------------------


def test_an_interrupt_is_held_until_the_turn_has_started(server: Server) -> None:
    server.start()
    assert server.of(Urgent) == []
    server.interrupt()
    server.reply("turn/start", {"turn": {"id": "t1"}})
    assert not server.asked("turn/interrupt")
    server.feed(begins("t1"))
    assert server.asked("turn/interrupt")[0]["params"] == {"threadId": T1, "turnId": "t1"}
    server.interrupt()
    assert len(server.asked("turn/interrupt")) == len(server.of(Urgent)) == 1
    server.reply("turn/interrupt")
    server.feed(ends("t1", "interrupted"))
    assert server.ended.result.interrupted
    assert server.ended.usage.increment_known is False
    assert server.of(TurnInterrupted)


def test_an_interrupt_without_a_turn_does_nothing(server: Server) -> None:
    assert server.interrupt() == server.interrupt("nobody") == []


def test_an_interrupt_that_lost_the_race_gives_the_plain_answer(server: Server) -> None:
    server.running()
    server.interrupt()
    server.feed(ends("t1", text="done"))
    server.reply("turn/interrupt", error="no active turn to interrupt")
    assert (server.ended.result.text, server.ended.result.interrupted) == ("done", False)


def test_an_interrupt_that_came_too_early_is_asked_for_again(server: Server) -> None:
    server.running()
    server.interrupt()
    server.reply("turn/interrupt", error="no active turn to interrupt")
    server.later(1)
    assert len(server.asked("turn/interrupt")) == 2
    server.feed(ends("t1", "interrupted"))
    assert server.ended.result.interrupted


@pytest.mark.parametrize("answered", [True, False])
def test_an_interrupt_that_is_ignored_ends_this_conversation_only(answered: bool) -> None:
    server = Server().attached("a").attached("b", T2).running().running("t2", R2, "b", T2)
    server.interrupt("a")
    if answered:
        server.reply("turn/interrupt")
    server.later(10)
    (end,) = server.ends("a")
    assert (end.forced, end.result.interrupted) == (True, True)
    assert len(server.of(Kill, key="a")) == 1
    assert not server.of(Kill, bare=True)
    server.feed(says("t1", "late"), ends("t1"), ends("t2", text="fine", thread=T2))
    assert not server.of(AssistantText)
    assert server.ends("b")[0].result.text == "fine"
    with pytest.raises(SessionStateError):
        server.start(R3, "a")


def test_a_turn_that_never_starts_is_bounded_by_its_deadline(server: Server) -> None:
    server.start(deadline_s=server.now_s + 5, timeout_s=5.0)
    server.reply("turn/start", {"turn": {"id": "t1"}})
    server.later(5)
    assert not server.ends()
    server.later(10)
    end = server.ended
    assert isinstance(end.error, TurnTimeoutError)
    assert (end.forced, end.keeps_conversation) == (True, True)


def test_a_timeout_interrupts_and_then_fails(server: Server) -> None:
    server.running(deadline_s=server.now_s + 5, timeout_s=5.0)
    server.later(5)
    assert len(server.asked("turn/interrupt")) == 1
    server.feed(ends("t1", text="too late"))
    assert isinstance(server.ended.error, TurnTimeoutError)
    assert not server.of(Kill)


def test_endless_reconnects_are_bounded_by_the_deadline_alone(server: Server) -> None:
    server.running()
    for _ in range(50):
        server.now_s += 60
        server.feed(note("error", turnId="t1", error={"message": "Reconnecting... waiting for network"}, willRetry=True))
    assert server.codec.deadline_s is None
    assert not server.ends()


def test_the_next_turn_waits_until_the_cut_commands_are_ended(server: Server) -> None:
    server.running()
    server.feed(command("t1"))
    server.interrupt()
    server.feed(ends("t1", "interrupted"))
    server.start(R2)
    assert len(server.asked("turn/start")) == 1
    server.reply("thread/backgroundTerminals/clean")
    assert len(server.asked("turn/start")) == 2


def test_a_clean_up_without_an_answer_is_waited_for_as_long_as_an_interrupt(server: Server) -> None:
    server.running()
    server.interrupt()
    server.feed(ends("t1", "interrupted"))
    server.start(R2)
    server.later(10)
    assert len(server.asked("turn/start")) == 2


def test_the_clean_up_can_be_switched_off() -> None:
    server = Server(clean_after_interrupt=False).attached().running()
    server.interrupt()
    server.feed(ends("t1", "interrupted"))
    assert not server.asked("thread/backgroundTerminals/clean")


def test_a_line_that_was_too_long_fails_every_open_attempt() -> None:
    server = Server().attached("a").attached("b", T2).running()
    server.keep(server.codec.oversized(40_000_000, server.now_s))
    server.feed(ends("t1", "interrupted"))
    end = server.ended
    assert (end.error.kind, end.keeps_conversation) == (FailureKind.OTHER, True)
    assert "40000000 bytes" in str(end.error)
    assert not server.ends("b")


def test_a_thread_that_is_idle_again_takes_a_turn_though_the_end_of_the_other_was_lost(server: Server) -> None:
    server.feed(begins("foreign"))
    server.start()
    server.feed(note("thread/status/changed", status={"type": "active"}))
    assert not server.asked("turn/start")
    server.feed(note("thread/status/changed", status={"type": "idle"}), ends("foreign", text="late"))
    assert len(server.asked("turn/start")) == 1
    assert not server.ends()


def test_a_server_without_pages_is_asked_for_the_whole_history_once() -> None:
    server = Server().ready()
    server.attach("a", launch(resume=T1))
    for _ in range(2):
        server.reply("thread/resume", opened())
    asked = [row["params"] for row in server.asked("thread/resume")]
    assert ["excludeTurns" in row for row in asked] == [True, False]
    assert server.of(Ready) == [Ready(T1)]


def test_a_history_that_is_too_long_for_a_line_is_asked_for_in_brief_and_then_only_its_end() -> None:
    server = Server().ready()
    server.attach("a", launch(resume=T1))
    for _ in range(4):
        server.keep(server.codec.oversized(40_000_000, server.now_s))
    pages = [row["params"]["initialTurnsPage"] for row in server.asked("thread/resume")]
    assert [(page["itemsView"], page["limit"]) for page in pages] == [("full", 8), ("summary", 8), ("summary", 2)]
    server.reply("thread/resume", past(old_turn(R1, "failed")))
    server.later(100)
    assert len(server.of(Ready, key="a")) == 1
    assert not server.of(StartFailed)


def test_a_lost_end_of_a_turn_is_found_by_the_interrupt(server: Server) -> None:
    server.running()
    server.keep(server.codec.oversized(40_000_000, server.now_s))
    server.reply("turn/interrupt", error="no active turn to interrupt")
    assert server.ended.keeps_conversation
    server.start(R2)
    assert len(server.asked("turn/start")) == 2


# --- steers ---------------------------------------------------------------------------------------------------------------


def test_a_steer(server: Server) -> None:
    assert server.steer() is None
    server.start()
    assert server.steer() is None
    server.reply("turn/start", {"turn": {"id": "t1"}})
    assert server.steer() is None  # there is no turn before it has started
    server.feed(begins("t1"))
    server.steer()
    assert server.asked("turn/steer")[0]["params"] == {
        "threadId": T1,
        "expectedTurnId": "t1",
        "input": [{"type": "text", "text": "steer"}],
        "clientUserMessageId": S1,
    }
    server.reply("turn/steer", {"turnId": "t1"})
    assert server.of(SteerDelivered, SteerConsumed) == [SteerDelivered("steer")]
    server.feed(took("t1", S1), item("t1", user_item(S1)))
    assert server.of(SteerDelivered, SteerConsumed) == [SteerDelivered("steer"), SteerConsumed("steer")]
    server.feed(ends("t1", text="x"))
    assert not server.of(SteerRejected)


def test_the_proof_of_a_steer_may_come_before_its_answer(server: Server) -> None:
    server.running()
    server.steer()
    server.feed(took("t1", S1))
    server.reply("turn/steer", {"turnId": "t1"})
    assert server.of(SteerDelivered, SteerConsumed) == [SteerDelivered("steer"), SteerConsumed("steer")]


def test_an_accepted_steer_that_vanished_is_rejected_at_the_end(server: Server) -> None:
    server.running()
    server.steer("one", S1)
    server.steer("two", S2)
    server.reply("turn/steer", {"turnId": "t1"})
    server.feed(took("t1", S1))
    server.feed(ends("t1", text="x"))
    assert [event.text for event in server.of(SteerRejected)] == ["two"]
    assert isinstance(server.of(SteerRejected, AttemptEnded)[-1], AttemptEnded)
    assert server.steer() is None


def test_a_refused_steer(server: Server) -> None:
    server.running()
    server.steer()
    server.reply("turn/steer", error="cannot steer a compact turn")
    server.feed(ends("t1"))
    assert server.of(SteerRejected) == [SteerRejected("steer", "cannot steer a compact turn")]


def test_a_steer_without_an_answer(server: Server) -> None:
    server.running()
    server.steer()
    server.later(10)
    assert len(server.of(SteerRejected)) == 1
    server.reply("turn/steer", {"turnId": "t1"})
    server.feed(took("t1", S1))
    assert not server.of(SteerDelivered, SteerConsumed)


def test_nothing_is_steered_into_a_turn_that_is_ending(server: Server) -> None:
    server.running()
    server.interrupt()
    assert server.steer() is None


# --- approvals ------------------------------------------------------------------------------------------------------------

LEAVE = [
    ("item/commandExecution/requestApproval", {"command": "rm"}, "command", {"decision": "decline"}, {"decision": "cancel"}),
    ("item/fileChange/requestApproval", {"reason": "why"}, "file change", {"decision": "decline"}, {"decision": "cancel"}),
    ("item/permissions/requestApproval", {"reason": "why"}, "permissions", {"permissions": {}}, {"permissions": {}}),
    ("mcpServer/elicitation/request", {"serverName": "s", "message": "m"}, "mcp", {"action": "decline"}, {"action": "cancel"}),
    ("execCommandApproval", {"command": ["rm", "x"]}, "command", {"decision": "denied"}, {"decision": "abort"}),
    ("applyPatchApproval", {}, "file change", {"decision": "denied"}, {"decision": "abort"}),
]


@pytest.mark.parametrize(("method", "fields", "kind", "answer", "cancel"), LEAVE)
def test_leave_is_denied_and_the_turn_goes_on(method: str, fields: dict, kind: str, answer: dict, cancel: dict) -> None:
    server = Server().attached().running()
    server.feed(asks(method, 0, **fields))
    assert server.answered() == [{"id": 0, "result": answer}]
    assert [event.kind for event in server.of(ApprovalDenied)] == [kind]
    server.feed(ends("t1", text="went on"))
    assert server.ended.result.text == "went on"


@pytest.mark.parametrize(("method", "fields", "kind", "answer", "cancel"), LEAVE)
def test_leave_fails_the_turn(method: str, fields: dict, kind: str, answer: dict, cancel: dict) -> None:
    server = Server().attached(spec=launch(NativeMode.READ_ONLY, FAIL)).running()
    server.feed(asks(method, "id-1", **fields), asks(method, "id-2", **fields))
    assert server.answered() == [{"id": "id-1", "result": cancel}, {"id": "id-2", "result": cancel}]
    server.feed(ends("t1", "interrupted"))
    end = server.ended
    assert (end.error.kind, end.keeps_conversation, end.forced) == (FailureKind.OTHER, True, False)
    assert f"approval denied: {kind}" in str(end.error)


def test_a_cancel_that_does_not_end_the_turn_ends_it_by_force() -> None:
    server = Server().attached(spec=launch(NativeMode.READ_ONLY, FAIL)).running()
    server.feed(asks(LEAVE[0][0]))
    server.later(10)
    assert (server.ended.forced, server.ended.error.kind) == (True, FailureKind.OTHER)


@pytest.mark.parametrize("method", ["item/tool/requestUserInput", "item/tool/call", "account/chatgptAuthTokens/refresh", "brand/new"])
def test_every_other_request_gets_an_error(server: Server, method: str) -> None:
    server.running()
    server.feed(asks(method, 7, questions=[{"question": "Which?"}]), asks(method, 8, thread="nobody's"), {"method": method, "id": 9})
    assert [(row["id"], row["error"]["code"]) for row in server.answered()] == [(7, -32601), (8, -32601), (9, -32601)]
    assert [event.detail for event in server.of(Lifecycle) if event.kind == "request refused"] == [f"{method}: Which?"]
    server.feed(ends("t1", text="fine"))
    assert server.ended.result.text == "fine"


def test_a_request_for_nobody_is_declined() -> None:
    server = Server().ready()
    server.feed(asks(LEAVE[0][0], 3, thread="gone"))
    assert server.answered() == [{"id": 3, "result": {"decision": "decline"}}]


# --- what is shown ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "tool", "output"),
    [
        ({"type": "commandExecution", "command": "ls", "aggregatedOutput": "x\n", "exitCode": 0, "durationMs": 1500}, "shell", "x\n"),
        ({"type": "fileChange", "changes": [{"path": "/a"}], "status": "completed"}, "apply_patch", ""),
        (
            {"type": "mcpToolCall", "server": "s", "tool": "t", "arguments": {"x": 1}, "result": {"content": [{"text": "pong"}]}},
            "s.t",
            "pong",
        ),
        ({"type": "mcpToolCall", "server": "s", "tool": "t", "arguments": None, "error": {"message": "no"}}, "s.t", ""),
        ({"type": "webSearch", "query": "q"}, "web_search", ""),
        ({"type": "imageView", "path": "/p"}, "view_image", ""),
        ({"type": "dynamicToolCall", "tool": "d", "arguments": []}, "d", ""),
        ({"type": "collabAgentToolCall", "tool": "spawnAgent"}, "spawnAgent", ""),
        ({"type": "imageGeneration"}, "image_generation", ""),
    ],
)
def test_tools(server: Server, row: dict, tool: str, output: str) -> None:
    server.running()
    frame = {**row, "id": "i1"}
    server.feed(item("t1", frame, done=False), item("t1", frame, done=False), item("t1", frame), item("t1", frame))
    (call,), (result,) = server.of(ToolCall), server.of(ToolResult)
    assert (call.tool, result.tool, result.stdout, call.tool_id) == (tool, tool, output, result.tool_id)


def test_a_tool_that_shows_its_end_only(server: Server) -> None:
    server.running()
    server.feed(command("t1", done=True, status="declined"))
    (call,), (result,) = server.of(ToolCall), server.of(ToolResult)
    assert (call.tool_id, result.stderr) == ("c1", "declined")


def test_other_items(server: Server) -> None:
    server.running()
    rows = [
        {"type": "reasoning", "id": "1", "summary": ["thought"]},
        {"type": "contextCompaction", "id": "2"},
        {"type": "sleep", "id": "3"},
        {"type": "brandNew", "id": "4"},
        {"type": "subAgentActivity", "id": "5", "kind": "started", "agentPath": "/root/x", "agentThreadId": "child"},
        {"type": "reasoning", "id": "6", "summary": []},
        {"type": "hookPrompt", "id": "7"},
    ]
    server.feed(*(item("t1", row) for row in rows), *(item("t1", row) for row in rows))
    assert server.of(Reasoning) == [Reasoning("thought")]
    assert [(row.kind, row.detail) for row in server.of(Lifecycle)][1:] == [
        ("compaction", ""),
        ("sleep", ""),
        ("sub-agent", "started: /root/x"),
    ]
    assert len(server.of(RawOutput)) == 1


def test_notices(server: Server) -> None:
    server.feed(
        note("mcpServer/startupStatus/updated", name="s", status="failed", error="no such file"),
        note("mcpServer/startupStatus/updated", name="s", status="ready"),
        note("warning", message="odd model"),
        note("model/rerouted", fromModel="a", toModel="b", reason="r"),
        note("thread/closed"),
    )
    assert [row.kind for row in server.of(Lifecycle)] == ["model", "mcp server", "warning", "model fallback", "thread closed"]


def test_what_is_said_of_a_thread_before_its_answer_is_told_behind_it() -> None:
    server = Server().ready()
    server.attach("a")
    failed = note("mcpServer/startupStatus/updated", name="s", status="failed", error="gone")
    server.feed(failed, {**failed, "params": {**failed["params"], "threadId": "other"}}, note("thread/status/changed"))
    server.reply("thread/start", opened())
    assert [row.detail for row in server.of(Lifecycle) if row.kind == "mcp server"] == ["s did not start: gone"]
    for _ in range(200):
        server.feed(note("warning", "nobody", message="x"))
    assert len(server.codec._early) == 64


def test_a_sub_agent_is_no_answer_but_costs(server: Server) -> None:
    server.running()
    activity = {"type": "subAgentActivity", "id": "5", "kind": "started", "agentPath": "/root/x", "agentThreadId": "child"}
    server.feed(item("t1", activity), begins("c1", "child"), says("c1", "not for you", "child"), total("c1", 40, thread="child"))
    server.feed(ends("c1", text="no", thread="child"), total("t1", 100), ends("t1", text="yes"))
    assert (server.ended.result.text, server.ended.usage.tokens.input) == ("yes", 140)
    assert not server.of(AssistantText)
    server.feed(total("c1", 70, thread="child"))
    assert [booked.usage.tokens.input for booked in server.of(Booked)] == [30]


def test_a_sub_agents_request_fails_its_parents_turn() -> None:
    server = Server().attached(spec=launch(NativeMode.READ_ONLY, FAIL)).running()
    server.feed(item("t1", {"type": "subAgentActivity", "id": "5", "agentThreadId": "child"}), asks(LEAVE[0][0], thread="child"))
    assert len(server.asked("turn/interrupt")) == 1
    server.feed(ends("t1", "interrupted"))
    assert server.ended.error.kind is FailureKind.OTHER


def test_usage_of_a_cut_attempt_is_a_lower_bound(server: Server) -> None:
    assert server.codec.consumed_by("a") is server.codec.consumed_by("nobody") is server.codec.consumed() is None
    server.running()
    server.feed(total("t1", 100), total("old", 4000))
    usage = server.codec.consumed_by("a")
    assert (usage.tokens.input, usage.increment_known) == (100, False)
    assert server.codec.sent_by("a")
    assert not server.codec.sent_by("nobody")


# --- two threads --------------------------------------------------------------------------------------------------------------


def test_two_threads_do_not_touch_each_other() -> None:
    server = Server().attached("a").attached("b", T2).running("x", R1, "a", T1).running("x", R2, "b", T2)
    for n in range(20):
        server.feed(says("x", f"a{n}"), says("x", f"b{n}", T2), total("x", 10 * (n + 1)), total("x", 1000 * (n + 1), thread=T2))
    server.interrupt("a")
    server.feed(command("x", thread=T2), command("x", done=True, thread=T2))
    server.feed(ends("x", "interrupted"), ends("x", text="done", thread=T2))
    (a,), (b,) = server.ends("a"), server.ends("b")
    assert (a.result.interrupted, b.result.text) == (True, "done")
    assert (a.usage.tokens.input, b.usage.tokens.input) == (200, 20_000)
    assert [event.text[0] for event in server.of(AssistantText, key="a")] == ["a"] * 20
    assert len(server.of(ToolResult, key="b")) == 1
    assert not server.of(ToolResult, key="a")


# --- one conversation on a process of its own ---------------------------------------------------------------------------------


class Solo(Server):
    """The same, with the codec of one conversation in the place of the link's."""

    def __init__(self, spec=None) -> None:
        super().__init__()
        self.solo = CodexCodec(CodecConfig(argv=("codex", "app-server")), spec or launch())

    def feed(self, *frames):
        return [out for frame in frames for out in self.keep(self.solo.receive(json.dumps(frame).encode(), self.now_s))]

    def bare(self, *kinds: type) -> list:
        return [out for out in self.out if isinstance(out, kinds)]

    def opened(self) -> Solo:
        self.keep(self.solo.opened(self.now_s))
        self.reply("initialize", {})
        self.reply("thread/start", opened())
        return self


def test_a_solo_codec_has_no_addresses() -> None:
    solo = Solo().opened()
    assert solo.bare(Ready) == [Ready(T1)]
    solo.keep(solo.solo.start_turn(attempt(), solo.now_s))
    solo.reply("turn/start", {"turn": {"id": "t1"}})
    solo.feed(begins("t1"), took("t1"))
    assert solo.solo.sent
    assert solo.solo.steer("x", S1, solo.now_s)
    assert solo.solo.answer("1", Accept(), solo.now_s) is None
    solo.feed(total("t1", 5))
    assert solo.solo.consumed().tokens.input == 5
    solo.keep(solo.solo.interrupt(solo.now_s))
    solo.now_s += 10
    solo.keep(solo.solo.tick(solo.now_s))
    assert len(solo.bare(SteerRejected)) == 1
    assert [end.forced for end in solo.bare(AttemptEnded)] == [True]
    assert len(solo.bare(Kill)) == 1  # its process is its own


def test_a_solo_start_fails_once() -> None:
    solo = Solo()
    solo.keep(solo.solo.opened(solo.now_s))
    solo.keep(solo.solo.exited(ProcessExit(returncode=1), "Error: no", solo.now_s))
    assert len(solo.bare(StartFailed)) == 1
    assert solo.solo.deadline_s is None
    assert solo.solo.junk_lines == 0


def test_a_solo_oversized_line() -> None:
    solo = Solo().opened()
    assert solo.solo.oversized(10, solo.now_s) == []
