from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

from greenroom.testing.scripted import Plan, codex_history, codex_requests, starts, write_scripted_codex

from .codex_peer import CodexPeer

CONTINUE = "Continue from where you left off."


@pytest.fixture
def peer(tmp_path):
    with CodexPeer(tmp_path) as peer:
        peer.begin()
        yield peer


def planned(tmp_path, **plan):
    return CodexPeer(tmp_path, env=Plan(**plan).env(tmp_path), state=tmp_path / "state")


def reopened(tmp_path, old, thread_id, **plan):
    """Kill the server, start another one, and resume the thread in it."""
    old.kill()
    new = planned(tmp_path, **plan) if plan else CodexPeer(tmp_path)
    new.begin()
    return new, new.call("thread/resume", threadId=thread_id)


def seen(peer, thread_id):
    return [(one.role, one.text) for one in codex_history(peer.state, thread_id)]


def user_texts(peer, thread_id):
    return [text for role, text in seen(peer, thread_id) if role == "user"]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_for(test, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- the process -------------------------------------------------------------------------------------------------------------


def test_it_tells_its_version_and_asks_for_its_home(tmp_path):
    binary = str(write_scripted_codex(tmp_path / "bin"))
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == "codex-cli 0.171.0\n"
    lost = subprocess.run([binary, "app-server"], capture_output=True, text=True, check=False, env={"CODEX_HOME": "/nowhere"})
    assert lost.returncode == 1
    assert "CODEX_HOME points to" in lost.stderr


def test_nothing_is_answered_before_the_handshake(tmp_path):
    with CodexPeer(tmp_path) as peer:
        assert peer.refused("thread/list")["message"] == "Not initialized"
        peer.begin()
        assert peer.refused("initialize", clientInfo={"name": "x"})["message"] == "Already initialized"
        assert peer.refused("no/such")["message"].startswith("Invalid request: unknown variant `no/such`, expected one of `initialize`")
        assert peer.refused("turn/start", input=[])["message"] == "Invalid request: missing field `threadId`"
        assert "integer `5`" in peer.refused("thread/read", threadId=5)["message"]
        assert "unknown variant `dangerFullAccess`" in peer.refused("thread/start", sandbox="dangerFullAccess")["message"]


@pytest.mark.parametrize(
    "line",
    [b"no json\n", b'{"id":70,"method":"x"\n', b"\n", b"[1]\n", b'{"id":null,"method":"thread/list","params":{}}\n', b'{"id":1.5}\n'],
)
def test_a_malformed_line_gets_no_reply_and_does_no_harm(peer, line):
    peer.until("remoteControl/status/changed")
    peer.raw(line)
    assert peer.quiet()
    assert peer.call("thread/loaded/list") == {"data": [], "nextCursor": None}


def test_input_that_is_no_utf8_ends_it_in_order_with_all_its_turns(peer):
    thread = peer.thread()
    peer.start(thread, "HANG")
    peer.item("userMessage")
    peer.raw(b'{"id":9,"method":"\xff\xfe"}\n')
    assert peer.gone() == 0
    with CodexPeer(peer.home) as again:
        again.begin()
        turn = again.call("thread/resume", threadId=thread)["thread"]["turns"][-1]
    assert turn["status"] == "interrupted"
    assert turn["completedAt"] is not None


def test_the_end_of_input_ends_it_and_its_commands(peer, tmp_path):
    thread = peer.thread()
    peer.start(thread, "RUN echo $$ > pid; exec sleep 60")
    peer.item("commandExecution", "item/started")
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    assert peer.rest() == 0
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_sigterm_ends_it_in_order(peer):
    thread = peer.thread()
    peer.start(thread, "HANG")
    peer.process.send_signal(signal.SIGTERM)
    assert peer.gone() == 0


def test_experimental_methods_need_the_capability_and_notifications_can_be_declined(tmp_path):
    with CodexPeer(tmp_path) as peer:
        peer.begin(experimentalApi=False, optOutNotificationMethods=["item/agentMessage/delta"])
        thread = peer.thread()
        assert "requires experimentalApi" in peer.refused("thread/backgroundTerminals/clean", threadId=thread)["message"]
        assert peer.said(thread, "SAY hello") == "hello"
        assert not [frame for frame in peer.frames if frame.get("method") == "item/agentMessage/delta"]


# --- turns -------------------------------------------------------------------------------------------------------------------


def test_directives_are_played_and_another_prompt_is_echoed(peer):
    thread = peer.thread()
    assert peer.said(thread, "good morning") == "echo: good morning"
    assert peer.said(thread, "SAY one\nTHINK hm\nSAY two\\nlines") == "two\nlines"
    assert seen(peer, thread)[-2:] == [("assistant", "one"), ("assistant", "two\nlines")]


def test_turns_of_many_threads_run_at_the_same_time(peer):
    threads = [peer.thread() for _ in range(20)]
    began = time.monotonic()
    for thread in threads:
        peer.send("turn/start", threadId=thread, input=[{"type": "text", "text": f"SLEEP 0.5\nSAY {thread}"}])
    ended = {}
    while len(ended) < len(threads):
        params = peer.until("turn/completed")
        ended[params["threadId"]] = params["turn"]["items"][-1]["text"]
    assert ended == {thread: thread for thread in threads}
    assert time.monotonic() - began < 8  # one after the other would take 10


def test_a_thread_that_floods_stops_no_other(peer):
    loud, quiet = peer.thread(), peer.thread()
    peer.send("turn/start", threadId=loud, input=[{"type": "text", "text": "FLOOD 20000 1000"}])
    assert peer.said(quiet, "SAY still here") == "still here"
    assert peer.end(loud)["items"][-1]["text"] == "flooded"


def test_usage_is_counted_up_over_turns_rounds_and_processes(peer, tmp_path):
    thread = peer.thread()
    peer.turn(thread, "SPEND 10 2 3\nRUN true -> ok\nSPEND 20 4\nSAY x")
    updates = [one["params"]["tokenUsage"] for one in peer.frames if one.get("method") == "thread/tokenUsage/updated"]
    assert [(one["total"]["inputTokens"], one["last"]["inputTokens"], one["total"]["totalTokens"]) for one in updates] == [
        (10, 10, 12),
        (30, 20, 36),
    ]
    again, _ = reopened(tmp_path, peer, thread)
    with again:
        replayed = again.until("thread/tokenUsage/updated")["tokenUsage"]
        assert replayed == updates[-1]
        again.turn(thread, "SPEND 1 1\nSAY y")
        assert again.frames[-5]["params"]["tokenUsage"]["total"]["inputTokens"] == 31


def test_replayed_usage_repeats_the_last_one(peer):
    thread = peer.thread()
    first = peer.start(thread, "SAY x")
    peer.end(thread)
    peer.start(thread, "REPLAY_USAGE\nSAY y")
    assert peer.until("thread/tokenUsage/updated")["turnId"] == first


def test_overrides_of_a_turn_last(peer):
    thread = peer.thread()
    peer.start(thread, "SAY x", model="other", effort="high")
    told = [one["params"]["threadSettings"] for one in peer.frames if one.get("method") == "thread/settings/updated"]
    assert [(one["model"], one["effort"]) for one in told] == [("other", "high")]
    peer.end(thread)
    assert peer.call("thread/read", threadId=thread)["thread"]["model"] == "other"


def test_a_prompt_that_is_too_large_is_refused(peer):
    error = peer.refused("turn/start", threadId=peer.thread(), input=[{"type": "text", "text": "x" * (1 << 20) + "x"}])
    assert error["code"] == -32602
    assert error["data"]["input_error_code"] == "input_too_large"


def test_a_command_is_really_run_with_the_thread_in_its_environment(peer):
    thread = peer.thread(config={"shell_environment_policy.set": {"MARK": "m1"}, "shell_environment_policy.set.MORE": "m2"})
    peer.start(thread, "RUN echo $CODEX_THREAD_ID $MARK $MORE; exit 3")
    item = peer.item("commandExecution")
    assert (item["aggregatedOutput"], item["exitCode"], item["status"]) == (f"{thread} m1 m2\n", 3, "failed")
    peer.end(thread)
    assert seen(peer, thread)[-2:] == [("tool_result", f"{thread} m1 m2\n"), ("assistant", "done")]


def test_a_file_is_changed_and_the_diff_of_the_turn_is_told_twice(peer, tmp_path):
    thread = peer.thread()
    peer.turn(thread, "CHANGE_FILE new.txt hello")
    assert (tmp_path / "new.txt").read_text() == "hello\n"
    changes = [frame["params"]["item"] for frame in peer.frames if frame.get("method") == "item/completed"]
    assert changes[1]["changes"] == [{"path": str(tmp_path / "new.txt"), "kind": {"type": "add"}, "diff": "hello\n"}]
    assert len([frame for frame in peer.frames if frame.get("method") == "turn/diff/updated"]) == 2


def test_an_mcp_tool_asks_unless_the_policy_is_never(peer):
    config = {"mcp_servers": {"echo": {"command": "x"}}}
    quiet, asking = peer.thread(config=config), peer.thread(approvalPolicy="on-request")
    peer.start(quiet, 'CALL_MCP echo ping {"x": 1} -> pong')
    item = peer.item("mcpToolCall")
    assert (item["arguments"], item["result"]["content"][0]["text"]) == ({"x": 1}, "pong")
    peer.end(quiet)
    started = [one["params"]["status"] for one in peer.frames if one.get("method") == "mcpServer/startupStatus/updated"]
    assert started == ["starting", "ready"]
    peer.start(asking, 'CALL_MCP echo ping {"x": 1} -> pong')
    question = peer.asked("mcpServer/elicitation/request")
    peer.answer(question, action="decline", content={})
    assert peer.item("mcpToolCall")["status"] == "failed"
    assert peer.end(asking)["status"] == "completed"


# --- what the client is asked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "item", "turn"),
    [
        ({"result": {"decision": "accept"}}, "completed", "completed"),
        ({"result": {"decision": "decline"}}, "declined", "completed"),
        ({"result": {"decision": "cancel"}}, "declined", "interrupted"),
        ({"result": {"decision": "nonsense"}}, "failed", "completed"),
        ({"error": {"code": -1, "message": "no"}}, "failed", "completed"),
    ],
)
def test_a_command_that_asks_does_as_it_is_told(peer, tmp_path, answer, item, turn):
    thread = peer.thread(approvalPolicy="on-request")
    peer.start(thread, "ASK touch asked\nSAY after")
    question = peer.asked("item/commandExecution/requestApproval")
    peer.raw(json.dumps({"id": question["id"], **answer}).encode() + b"\n")
    assert peer.item("commandExecution")["status"] == item
    assert peer.end(thread)["status"] == turn
    assert (tmp_path / "asked").exists() is (item == "completed")


def test_what_was_accepted_for_the_session_is_not_asked_again(peer):
    thread = peer.thread(approvalPolicy="on-request")
    peer.start(thread, "ASK true -> yes")
    peer.answer(peer.asked("item/commandExecution/requestApproval"), decision="acceptForSession")
    peer.end(thread)
    assert peer.turn(thread, "ASK true -> yes\nSAY unasked")["items"][-1]["text"] == "unasked"


def test_under_never_nobody_is_asked_and_nothing_is_shown(peer):
    thread = peer.thread()
    assert peer.said(thread, "ASK rm -rf x -> gone\nSAY after") == "after"
    assert not [one for one in peer.frames if one.get("params", {}).get("item", {}).get("type") == "commandExecution"]
    assert ("tool_result", "approval policy is Never; reject command") in seen(peer, thread)


def test_a_patch_in_a_read_only_sandbox_asks_and_a_cancelled_one_has_no_end(peer, tmp_path):
    thread = peer.thread(approvalPolicy="on-request", sandbox="read-only")
    peer.start(thread, "CHANGE_FILE a.txt x")
    peer.answer(peer.asked("item/fileChange/requestApproval"), decision="cancel")
    assert peer.end(thread)["status"] == "interrupted"
    ended = [one for one in peer.frames if one.get("method") == "item/completed"]
    assert [one["params"]["item"]["type"] for one in ended] == ["userMessage"]
    assert not (tmp_path / "a.txt").exists()


def test_questions_to_the_user_and_unknown_requests_are_answered(peer):
    thread = peer.thread()
    peer.start(thread, "ASK_USER Which?\nUNKNOWN_REQUEST item/new")
    question = peer.asked("item/tool/requestUserInput")
    assert question["params"]["questions"][0]["question"] == "Which?"
    peer.answer(question, answers={"q1": {"answers": ["A"]}})
    unknown = peer.asked("item/new")
    peer.raw(json.dumps({"id": unknown["id"], "error": {"code": -32601, "message": "unknown"}}).encode() + b"\n")
    assert peer.end(thread)["items"][-1]["text"] == "answered: error"


def test_an_interrupt_withdraws_the_question_after_the_turns_end(peer):
    thread = peer.thread(approvalPolicy="on-request")
    turn = peer.start(thread, "ASK true -> x")
    question = peer.asked("item/commandExecution/requestApproval")
    assert peer.call("turn/interrupt", threadId=thread, turnId=turn) == {}
    assert peer.end(thread)["status"] == "interrupted"
    assert peer.until("serverRequest/resolved")["requestId"] == question["id"]
    peer.answer(question, decision="accept")
    assert peer.said(thread, "SAY next") == "next"


# --- steers and interrupts ---------------------------------------------------------------------------------------------------


def test_a_steer_cuts_the_text_that_is_streamed_and_its_item_proves_it(peer):
    thread = peer.thread()
    turn = peer.start(thread, "SLOW 100 0.05\nSAY rest")
    peer.until("item/agentMessage/delta")
    peer.steer(thread, turn, "SAY steered", "c2")
    assert peer.item("userMessage", "item/started")["clientId"] == "c2"
    assert peer.end(thread)["items"][-1]["text"] == "rest"
    assert [text for role, text in seen(peer, thread) if role == "assistant"] == ["steered", "rest"]


def test_without_instant_interrupt_the_text_is_finished_first(peer):
    thread = peer.thread(config={"features": {"instant_interrupt": False}})
    turn = peer.start(thread, "SLOW 5 0.05")
    peer.until("item/agentMessage/delta")
    peer.steer(thread, turn, "SAY steered")
    peer.end(thread)
    assert [text for role, text in seen(peer, thread) if role == "assistant"] == ["w0 w1 w2 w3 w4", "steered"]


def test_a_steer_waits_for_the_command_that_runs(peer):
    thread = peer.thread()
    turn = peer.start(thread, "AWAIT_STEER came")
    peer.item("commandExecution", "item/started")
    peer.steer(thread, turn, "SAY steered", "c2")
    assert peer.item("commandExecution")["aggregatedOutput"] == "came"
    assert peer.item("userMessage")["clientId"] == "c2"
    assert peer.end(thread)["items"][-1]["text"] == "steered"


def test_a_turn_that_is_started_on_a_busy_thread_is_a_steer(peer):
    thread = peer.thread()
    turn = peer.start(thread, "AWAIT_STEER")
    peer.item("commandExecution", "item/started")
    assert peer.start(thread, "SAY second") == turn
    assert peer.end(thread)["items"][-1]["text"] == "second"


def test_what_is_sent_before_the_turn_has_started_joins_it(peer):
    thread = peer.thread()
    line = {"id": 80, "method": "turn/start", "params": {"threadId": thread, "input": [{"type": "text", "text": "SAY a"}]}}
    peer.raw(json.dumps(line).encode() + b"\n" + json.dumps({**line, "id": 81}).encode() + b"\n")
    assert peer.reply(80)["result"] == peer.reply(81)["result"]
    peer.end(thread)
    turn = peer.start(thread, "SLOW_START 0.2\nSAY b")
    assert peer.steer(thread, turn, "SAY steered", "c2") == {"turnId": turn}
    assert peer.end(thread)["items"][-1]["text"] == "b"
    assert user_texts(peer, thread) == ["SAY a", "SAY a", "SLOW_START 0.2\nSAY b", "SAY steered"]


def test_a_steer_can_be_accepted_and_lost(peer):
    thread = peer.thread()
    turn = peer.start(thread, "LOSE_STEER\nSLEEP 0.3\nSAY end")
    peer.item("userMessage")
    assert peer.steer(thread, turn, "SAY lost", "c2") == {"turnId": turn}
    assert peer.end(thread)["items"][-1]["text"] == "end"
    assert user_texts(peer, thread) == ["LOSE_STEER\nSLEEP 0.3\nSAY end"]


def test_an_interrupt_before_the_turn_has_started_fails_and_the_turn_runs_on(peer):
    thread = peer.thread()
    turn = peer.start(thread, "SLOW_START 0.3\nSAY end")
    assert peer.refused("turn/interrupt", threadId=thread, turnId=turn)["message"] == "no active turn to interrupt"
    assert peer.end(thread)["status"] == "completed"


def test_two_interrupts_at_once_are_both_answered(peer):
    thread = peer.thread()
    turn = peer.start(thread, "HANG")
    peer.item("userMessage")
    line = json.dumps({"id": 90, "method": "turn/interrupt", "params": {"threadId": thread, "turnId": turn}}).encode() + b"\n"
    peer.raw(line + line.replace(b'"id": 90', b'"id": 91'))
    assert peer.reply(90)["result"] == peer.reply(91)["result"] == {}


def test_an_interrupt_can_stay_unanswered(peer):
    thread = peer.thread()
    turn = peer.start(thread, "IGNORE_INTERRUPT\nSLEEP 0.5")
    peer.item("userMessage")
    peer.send("turn/interrupt", threadId=thread, turnId=turn)
    assert peer.end(thread)["status"] == "completed"


def test_a_request_can_stay_without_a_reply_and_an_effect(peer):
    thread = peer.thread()
    turn = peer.start(thread, "NO_REPLY turn/interrupt\nHANG")
    peer.item("userMessage")
    peer.send("turn/interrupt", threadId=thread, turnId=turn)
    assert peer.quiet()
    assert peer.call("turn/interrupt", threadId=thread, turnId=turn) == {}


def test_an_interrupt_leaves_the_command_running_until_it_is_cleaned_up(peer, tmp_path):
    thread = peer.thread()
    turn = peer.start(thread, "RUN echo $$ > pid; exec sleep 60")
    peer.item("commandExecution", "item/started")
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    pid = int((tmp_path / "pid").read_text())
    peer.call("turn/interrupt", threadId=thread, turnId=turn)
    peer.end(thread)
    assert alive(pid)
    assert [one["command"] for one in peer.call("thread/backgroundTerminals/list", threadId=thread)["data"]] == [
        "echo $$ > pid; exec sleep 60"
    ]
    assert peer.call("thread/backgroundTerminals/clean", threadId=thread) == {}
    late = peer.until("item/completed")
    assert (late["turnId"], late["item"]["status"], late["item"]["exitCode"]) == (turn, "failed", -1)
    wait_for(lambda: not alive(pid))


def test_an_item_can_end_after_its_turn(peer):
    thread = peer.thread()
    turn = peer.start(thread, "LATE_ITEM 0 out\nSAY end")
    assert peer.end(thread)["status"] == "completed"
    late = peer.until("item/completed")
    assert (late["turnId"], late["item"]["aggregatedOutput"]) == (turn, "out")


def test_an_unsubscribed_thread_tells_its_status_alone(peer):
    thread = peer.thread()
    assert peer.call("thread/unsubscribe", threadId=thread) == {"status": "unsubscribed"}
    peer.start(thread, "SAY x")
    peer.until("thread/status/changed", thread, status={"type": "idle"})
    methods = {one["method"] for one in peer.frames if one.get("params", {}).get("threadId") == thread and "method" in one}
    assert methods == {"thread/status/changed", "thread/readState/changed"}


# --- failures and going on ---------------------------------------------------------------------------------------------------


def test_a_failed_turn_goes_on_with_no_input_and_its_tools_run_once(peer, tmp_path):
    thread = peer.thread()
    prompt = "RUN echo x >> ran\nFAIL serverOverloaded too much 1\nSAY end"
    failed = peer.turn(thread, prompt, "c1")
    assert (failed["status"], failed["error"]["codexErrorInfo"], failed["error"]["message"]) == ("failed", "serverOverloaded", "too much")
    assert peer.turn(thread, [])["items"][-1]["text"] == "end"
    assert (tmp_path / "ran").read_text() == "x\n"
    assert user_texts(peer, thread) == [prompt]
    turns = peer.call("thread/read", threadId=thread, includeTurns=True)["thread"]["turns"]
    assert [[item["type"] for item in turn["items"]] for turn in turns] == [["userMessage", "commandExecution"], ["agentMessage"]]


def test_a_failed_prompt_that_is_sent_again_is_seen_twice_and_its_tools_run_again(peer, tmp_path):
    thread = peer.thread()
    prompt = "RUN echo x >> ran\nFAIL other no"
    peer.turn(thread, prompt)
    peer.turn(thread, prompt)
    assert (tmp_path / "ran").read_text() == "x\nx\n"
    assert user_texts(peer, thread) == [prompt, prompt]


def test_the_info_of_a_failure_may_be_json(peer):
    turn = peer.turn(peer.thread(), 'FAIL {"httpConnectionFailed":{"httpStatusCode":401}} no way')
    assert turn["error"]["codexErrorInfo"] == {"httpConnectionFailed": {"httpStatusCode": 401}}


def test_retry_notices_do_not_end_a_turn(peer):
    assert peer.said(peer.thread(), "RETRY_NOTICE 2 0.01\nSAY end") == "end"
    notes = [one["params"] for one in peer.frames if one.get("method") == "error"]
    assert [(one["willRetry"], one["error"]["message"]) for one in notes] == [(True, "Reconnecting... 1/5"), (True, "Reconnecting... 2/5")]


def test_limits_are_told_again_after_each_call(peer):
    peer.turn(peer.thread(), "RATE_LIMIT 42 300 1800000000\nSAY x")
    told = [one["params"]["rateLimits"]["primary"] for one in peer.frames if one.get("method") == "account/rateLimits/updated"]
    assert told == [{"usedPercent": 42, "windowDurationMins": 300, "resetsAt": 1800000000}] * 2


def test_an_overloaded_server_refuses_the_turn(peer):
    thread, content = peer.thread(), [{"type": "text", "text": "OVERLOAD_REFUSAL\nSAY x"}]
    assert peer.refused("turn/start", threadId=thread, input=content)["code"] == -32001
    assert peer.said(thread, "OVERLOAD_REFUSAL\nSAY x") == "x"


def test_frames_of_other_threads_come_in_between(peer):
    thread = peer.thread()
    assert peer.said(thread, "FOREIGN_THREAD from-sub\nSAY mine") == "mine"
    others = [one for one in peer.frames if one.get("method") == "turn/completed" and one["params"]["threadId"] != thread]
    assert others[0]["params"]["turn"]["items"][0]["text"] == "from-sub"


@pytest.mark.parametrize("late", ["items", "reply"])
def test_the_start_of_a_turn_can_be_told_late(peer, late):
    thread = peer.thread()
    peer.start(thread, f"LATE_STARTED {late}\nSAY x")
    peer.end(thread)
    kinds = [one.get("method") or ("reply" if "turn" in one.get("result", {}) else "") for one in peer.frames]
    before, after = ("item/completed", "turn/started") if late == "items" else ("turn/started", "reply")
    assert kinds.index(before) < kinds.index(after)


def test_the_reply_can_name_a_turn_that_never_lives(peer):
    thread = peer.thread()
    named = peer.start(thread, "DEAD_TURN\nSAY x")
    assert peer.end(thread)["id"] != named


# --- deaths and resumes ------------------------------------------------------------------------------------------------------


def test_history_shows_whether_the_input_was_taken(peer, tmp_path):
    thread = peer.thread()
    peer.turn(thread, "SAY first", "c1")
    peer.start(thread, "RUN echo x >> ran\nHANG", "c2")
    peer.item("commandExecution")
    again, reply = reopened(tmp_path, peer, thread)
    with again:
        last = reply["thread"]["turns"][-1]
        assert [(item["type"], item.get("clientId")) for item in last["items"]] == [("userMessage", "c2"), ("commandExecution", None)]
        assert (last["status"], last["completedAt"]) == ("interrupted", None)
        again.start(thread, "HANG")


@pytest.mark.parametrize(("point", "items"), [("started", []), ("input", ["userMessage"])])
def test_a_death_around_the_start_of_a_turn_leaves_what_it_leaves(peer, tmp_path, point, items):
    thread = peer.thread()
    peer.turn(thread, "SAY first")
    peer.send("turn/start", threadId=thread, input=[{"type": "text", "text": f"CRASH_AT {point}\nSAY x"}])
    peer.gone()
    with CodexPeer(tmp_path) as again:
        again.begin()
        turns = again.call("thread/resume", threadId=thread)["thread"]["turns"]
        assert [item["type"] for item in turns[-1]["items"]] == items
        assert again.said(thread, f"CRASH_AT {point}\nSAY x") == "x"


def test_a_death_right_after_the_first_reply_leaves_an_empty_rollout(peer, tmp_path):
    thread = peer.thread()
    peer.send("turn/start", threadId=thread, input=[{"type": "text", "text": "CRASH_AT reply"}])
    peer.gone()
    with CodexPeer(tmp_path) as again:
        again.begin()
        error = again.refused("thread/resume", threadId=thread)
    assert error["code"] == -32603
    assert error["message"].endswith("is empty")


def test_a_cut_command_is_not_run_again_and_the_rest_is_played(peer, tmp_path):
    thread = peer.thread()
    peer.start(thread, "RUN echo x >> ran; sleep 3\nSAY rest")
    wait_for((tmp_path / "ran").exists)
    again, _ = reopened(tmp_path, peer, thread)
    with again:
        assert again.said(thread, CONTINUE) == "rest"
        assert (tmp_path / "ran").read_text() == "x\n"
        assert [text for role, text in seen(again, thread) if role == "tool_result"] == ["aborted"]
        assert user_texts(again, thread) == ["RUN echo x >> ran; sleep 3\nSAY rest", CONTINUE]


def test_a_thread_without_a_turn_cannot_be_resumed(peer, tmp_path):
    thread = peer.thread()
    assert peer.refused("thread/resume", threadId=thread)["message"] == f"no rollout found for thread id {thread}"
    assert peer.refused("turn/start", threadId="00000000-0000-7000-8000-000000000000", input=[])["message"].startswith("thread not found")


def test_one_process_writes_a_thread(peer, tmp_path):
    thread = peer.thread()
    peer.turn(thread, "SAY x")
    with CodexPeer(tmp_path) as second:
        second.begin()
        assert second.refused("thread/resume", threadId=thread)["message"] == f"thread {thread} already has an active writer"
        peer.kill()
        assert second.call("thread/resume", threadId=thread)["thread"]["id"] == thread
        assert second.said(thread, "SAY y") == "y"


def test_resuming_a_loaded_thread_joins_the_turn_that_runs(peer):
    thread = peer.thread()
    peer.start(thread, "HANG")
    peer.item("userMessage")
    reply = peer.call("thread/resume", threadId=thread, excludeTurns=True)
    assert reply["thread"]["status"]["type"] == "active"
    assert reply["thread"]["turns"] == []


def test_a_crash_once_is_not_played_again(peer, tmp_path):
    thread = peer.thread()
    peer.send("turn/start", threadId=thread, input=[{"type": "text", "text": "SAY a\nCRASH_ONCE\nSAY b"}])
    assert peer.gone() == -signal.SIGKILL
    with CodexPeer(tmp_path) as again:
        again.begin()
        again.call("thread/resume", threadId=thread)
        assert again.turn(thread, [])["items"][-1]["text"] == "b"


@pytest.mark.parametrize(("directive", "code"), [("CRASH", -9), ("CRASH TERM", 0), ("EXIT 3", 3), ("HALF_LINE", 1)])
def test_a_directive_ends_the_server(peer, directive, code):
    thread = peer.thread()
    peer.send("turn/start", threadId=thread, input=[{"type": "text", "text": directive}])
    wanted = -signal.SIGTERM if directive == "CRASH TERM" else code
    assert peer.gone() == wanted


def test_bad_bytes_do_not_end_the_turn(peer):
    thread = peer.thread()
    peer.send("turn/start", threadId=thread, input=[{"type": "text", "text": "GARBAGE\nBAD_UTF8\nSTDERR 500\nHUGE_LINE 100000\nSAY end"}])
    lines = []
    while b'"turn/completed"' not in (line := peer.line()):
        lines.append(line)
    assert b"Warning: this line is no JSON" in lines
    assert any(b"\xff\xc3" in line for line in lines)
    assert max(map(len, lines)) > 100000


def test_history_comes_in_pages(peer):
    thread = peer.thread()
    turns = [peer.turn(thread, f"RUN true -> ok\nSAY {number}")["id"] for number in range(3)]
    page = {"limit": 2, "sortDirection": "desc", "itemsView": "full"}
    reply = peer.call("thread/resume", threadId=thread, excludeTurns=True, initialTurnsPage=page)
    first = reply["initialTurnsPage"]
    assert [turn["id"] for turn in first["data"]] == turns[:0:-1]
    assert [item["type"] for item in first["data"][0]["items"]] == ["userMessage", "commandExecution", "agentMessage"]
    rest = peer.call("thread/turns/list", threadId=thread, limit=2, cursor=first["nextCursor"])
    assert ([turn["id"] for turn in rest["data"]], rest["nextCursor"]) == (turns[:1], None)
    assert [item["type"] for item in rest["data"][0]["items"]] == ["userMessage", "agentMessage"]


def test_an_archived_thread_is_given_up_with_what_runs_in_it(peer, tmp_path):
    thread = peer.thread()
    peer.start(thread, "RUN exec sleep 60")
    peer.item("commandExecution", "item/started")
    peer.send("thread/archive", threadId=thread)
    assert peer.end(thread)["status"] == "interrupted"
    peer.until("thread/archived")
    assert "is archived" in peer.refused("thread/resume", threadId=thread)["message"]
    with CodexPeer(tmp_path) as second:
        second.begin()
        assert second.call("thread/unarchive", threadId=thread)["thread"]["status"] == {"type": "notLoaded"}
        assert second.call("thread/resume", threadId=thread)["thread"]["turns"][-1]["status"] == "interrupted"
        assert "active writer" in peer.refused("thread/archive", threadId=thread)["message"]
    assert "no archived rollout" in peer.refused("thread/unarchive", threadId=thread)["message"]


def test_a_closed_output_is_the_output_of_nothing_else(peer):
    thread = peer.thread()
    peer.send("turn/start", threadId=thread, input=[{"type": "text", "text": "CLOSE_STDOUT\nRUN echo x\nSAY y"}])
    assert peer.line() != b""
    while peer.line():
        pass
    wait_for(lambda: ("assistant", "y") in seen(peer, thread))
    assert peer.process.poll() is None
    assert peer.rest() == 0


# --- plans -------------------------------------------------------------------------------------------------------------------


def test_a_plan_can_let_starts_fail(tmp_path):
    for code in (1, 0):
        with planned(tmp_path, die_at_start=1) as peer:
            if code:
                assert peer.gone() == 1
            else:
                peer.begin()
    assert len(starts(tmp_path / "state")) == 2


def test_a_plan_can_leave_the_handshake_unanswered_or_late(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with planned(tmp_path / "a", no_handshake=True) as peer:
        peer.send("initialize", clientInfo={"name": "x"})
        assert peer.quiet()
    with planned(tmp_path / "b", slow_start_s=0.3) as peer:
        began = time.monotonic()
        peer.begin()
        assert time.monotonic() - began >= 0.3


def test_a_plan_can_echo_what_was_not_asked_for(tmp_path):
    with planned(tmp_path, echo_wrong_sandbox="danger-full-access", echo_wrong_approvals="on-request", version="0.163.0") as peer:
        peer.begin()
        reply = peer.call("thread/start", sandbox="read-only", approvalPolicy="never")
    assert (reply["sandbox"], reply["approvalPolicy"], reply["thread"]["cliVersion"]) == (
        {"type": "dangerFullAccess"},
        "on-request",
        "0.163.0",
    )


def test_a_plan_can_refuse_resumes_and_turns_and_leave_requests_alone(tmp_path):
    plan = {"in_use_times": 1, "resume_error": "unknown thread {id}", "resume_error_times": 1, "overload_times": 1}
    with planned(tmp_path, **plan, refuse_resume=1, no_reply=("thread/list",)) as peer:
        peer.begin()
        thread = peer.thread()
        assert peer.refused("turn/start", threadId=thread, input=[])["code"] == -32001
        peer.turn(thread, "SAY x")
        messages = [peer.refused("thread/resume", threadId=thread)["message"] for _ in range(3)]
        assert messages == [
            f"unknown thread {thread}",
            f"no rollout found for thread id {thread}",
            f"thread {thread} already has an active writer",
        ]
        peer.call("thread/resume", threadId=thread)
        peer.send("thread/list")
        assert [one["id"] for one in peer.call("thread/list")["data"]] == [thread]
    assert [one["method"] for one in codex_requests(tmp_path / "state")][:2] == ["initialize", "thread/start"]


def test_a_plan_can_kill_the_server_after_a_line(tmp_path):
    with planned(tmp_path, kill_after_line=6) as peer:
        peer.begin()
        thread = peer.thread()
        peer.send("turn/start", threadId=thread, input=[{"type": "text", "text": "SAY x"}])
        assert peer.gone() == -signal.SIGKILL
    with planned(tmp_path, kill_after_line=6) as peer:
        peer.begin()
        assert peer.said(peer.thread(), "SAY y") == "y"


def test_an_older_version_knows_fewer_fields(tmp_path):
    with planned(tmp_path, version="0.163.0") as peer:
        assert "/0.163.0 " in peer.begin()["userAgent"]
        thread = peer.thread()
        peer.start(thread, "SAY x")
        params = peer.until("item/completed")
        assert list(params) == ["item", "threadId", "turnId", "completedAtMs"]
        assert list(params["item"]) == ["type", "id", "clientId", "content"]


# --- back and aside


def ran(peer, thread_id, *words):
    return [peer.turn(thread_id, f"SAY {word}")["id"] for word in words]


def turns_of(peer, thread_id):
    page = peer.call("thread/turns/list", threadId=thread_id, limit=50, sortDirection="asc")
    return [turn["id"] for turn in page["data"]]


def test_a_revert_takes_turns_back_for_good_and_the_totals_with_them(tmp_path, peer):
    thread_id = peer.thread()
    one, two, _ = ran(peer, thread_id, "one", "two", "three")
    peer.call("thread/revert", threadId=thread_id, beforeTurnId=two)
    assert turns_of(peer, thread_id) == [one]
    new, _ = reopened(tmp_path, peer, thread_id)
    with new:
        usage = new.until("thread/tokenUsage/updated")
        assert usage["tokenUsage"]["total"]["inputTokens"] == 1000
        assert turns_of(new, thread_id) == [one]
        ran(new, thread_id, "four")
        assert user_texts(new, thread_id) == ["SAY one", "SAY four"]


def test_a_thread_without_turns_after_a_revert_is_one(tmp_path, peer):
    thread_id = peer.thread()
    (one,) = ran(peer, thread_id, "one")
    peer.call("thread/revert", threadId=thread_id, beforeTurnId=one)
    new, _ = reopened(tmp_path, peer, thread_id)
    with new:
        ran(new, thread_id, "two")
        assert user_texts(new, thread_id) == ["SAY two"]


def test_what_is_not_there_is_not_reverted(peer):
    thread_id = peer.thread()
    ran(peer, thread_id, "one")
    assert "turn not found: x" in peer.refused("thread/revert", threadId=thread_id, beforeTurnId="x")["message"]
    assert "thread not found" in peer.refused("thread/revert", threadId="other", beforeTurnId="x")["message"]


def test_a_fork_has_its_parents_turns_and_goes_on_by_itself(tmp_path, peer):
    thread_id = peer.thread()
    one, _ = ran(peer, thread_id, "one", "two")
    with CodexPeer(tmp_path) as other:
        other.begin()
        fork = other.call("thread/fork", threadId=thread_id, excludeTurns=True)["thread"]
        short = other.call("thread/fork", threadId=thread_id, excludeTurns=True, lastTurnId=one)["thread"]
        assert fork["forkedFromId"] == thread_id
        ran(other, fork["id"], "child")
        assert user_texts(other, fork["id"]) == ["SAY one", "SAY two", "SAY child"]
        assert user_texts(other, short["id"]) == ["SAY one"]
    ran(peer, thread_id, "parent")
    assert user_texts(peer, thread_id) == ["SAY one", "SAY two", "SAY parent"]
