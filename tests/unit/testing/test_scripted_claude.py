from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

from greenroom.testing import scripted_claude
from greenroom.testing.scripted import (
    Plan,
    conversations,
    history,
    overlaps,
    prompts_seen,
    scripted_claude_argv,
    starts,
    write_scripted_claude,
)

from .scripted_peer import Peer

CONTINUE = "Continue from where you left off."
NUDGE = [{"type": "text", "text": ""}]
ID = "0b5f4c1e-0000-4000-8000-00000000000a"


def texts(frames):
    blocks = [frame["message"]["content"][0] for frame in frames if frame.get("type") == "assistant"]
    return [block["text"] for block in blocks if block["type"] == "text"]


def roles(state):
    return [(one.role, one.tool or one.text) for one in history(state, ID)]


# --- starting ---


def test_the_wrapper_is_an_executable_named_claude(tmp_path):
    path = write_scripted_claude(tmp_path / "bin")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)}, timeout=30)
    assert (path.name, done.stdout) == ("claude", "2.1.332 (Claude Code)\n")


def test_the_wrapper_starts_through_a_shell_where_a_first_line_cannot_hold_it(tmp_path, monkeypatch):
    monkeypatch.setattr("greenroom.testing.scripted._SHEBANG_LIMIT", 1)
    path = write_scripted_claude(tmp_path)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)}, timeout=30)
    assert done.stdout.startswith("2.1.332")


def test_the_script_runs_as_a_file_too(tmp_path):
    argv = [scripted_claude_argv()[0], "-S", "-E", scripted_claude.__file__, "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)}, timeout=30)
    assert done.stdout == "2.1.332 (Claude Code)\n"


def test_it_imports_nothing_but_the_standard_library(tmp_path):
    code = scripted_claude_argv()[-1].replace("main()", "") + "print([name for name in sys.modules if name.startswith('greenroom')])"
    done = subprocess.run([*scripted_claude_argv()[:-1], code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "[]\n"


def test_a_prompt_without_directives_is_echoed_and_eof_ends_with_the_last_verdict(tmp_path):
    with Peer(tmp_path) as peer:
        assert peer.turn("What is this?\nTell me.")["result"] == "echo: What is this?\nTell me."
        assert peer.rest() == 0
    with Peer(tmp_path) as peer:
        assert peer.turn("API_ERROR 500 server_error API Error: 500")["is_error"]
        assert peer.rest() == 1


def test_eof_finishes_the_turn_and_what_is_queued(tmp_path):
    with Peer(tmp_path) as peer:
        peer.say("SLOW 3 0.05", "u1")
        peer.until("started")
        peer.say("SAY second", "u2")
        assert peer.rest() == 0
        assert [frame["result"] for frame in peer.frames if frame.get("type") == "result"] == ["w0 w1 w2", "second"]


# --- stdin that is wrong ---


@pytest.mark.parametrize(
    "line",
    [b"no json\n", b'{"type":"user"}\n', b'{"type":"control_request"}\n', b'{"type":"user","message":{"role":"system","content":"x"}}\n'],
)
def test_a_malformed_line_ends_it(tmp_path, line):
    with Peer(tmp_path) as peer:
        peer.raw(line)
        assert peer.gone() == 1
        assert peer.process.stderr.read().startswith(b"Error parsing streaming input line")


def test_a_half_line_before_eof_ends_it(tmp_path):
    with Peer(tmp_path) as peer:
        peer.raw(b'{"type":"user"')
        peer.process.stdin.close()
        assert peer.gone() == 1


def test_frames_that_mean_nothing_are_ignored(tmp_path):
    with Peer(tmp_path) as peer:
        peer.raw(b'\n[1]\n42\n{"type":"keep_alive"}\n{"type":"control_response","response":{"request_id":"x"}}\r\n')
        assert peer.turn("SAY on")["result"] == "on"


# --- conversations ---


def test_a_conversation_outlives_kill_and_swallows_what_it_took(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.turn("SAY one", "u1")
        peer.say("HANG", "u2")
        peer.until("init")
        peer.kill()
    with Peer(tmp_path, "--resume", ID) as peer:
        peer.say("HANG", "u2")
        assert peer.until("user", isReplay=True)["uuid"] == "u2"
        assert peer.until("command_lifecycle")["state"] == "completed"
        assert peer.turn("SAY three", "u3")["session_id"] == ID
        peer.rest()
        assert len([frame for frame in peer.frames if frame.get("type") == "result"]) == 1
    assert prompts_seen(peer.state, ID) == ("SAY one", "HANG", "SAY three")
    assert conversations(peer.state) == (ID,)
    assert [(start["session_id"], start["resumed"]) for start in starts(peer.state)] == [(ID, False), (ID, True)]


def test_a_message_that_was_only_queued_runs_after_the_resume(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.say("HANG", "u1")
        peer.until("init")
        peer.say("SAY queued", "u2")
        peer.until("queued", command_uuid="u2")
        peer.kill()
    with Peer(tmp_path, "--resume", ID) as peer:
        assert peer.turn("SAY queued", "u2")["result"] == "queued"


def test_an_unknown_conversation_is_refused_without_an_answer_to_initialize(tmp_path):
    with Peer(tmp_path, "--resume", ID) as peer:
        assert peer.gone() == 1
        assert peer.process.stderr.read().decode() == f"No conversation found with session ID: {ID}\n"


def test_an_id_is_free_until_its_first_turn_and_taken_afterwards(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.control("initialize")
        peer.until("control_response")
        peer.kill()
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.turn("SAY x")
        peer.rest()
    with Peer(tmp_path, "--session-id", ID) as peer:
        assert peer.gone() == 1
        assert peer.process.stderr.read().decode() == f"Error: Session ID {ID} is already in use.\n"
    with Peer(tmp_path, "--session-id", "no-uuid") as peer:
        assert peer.gone() == 1


def test_costs_go_on_after_a_clean_end_and_begin_anew_after_a_kill(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        first = peer.turn("SAY x")["total_cost_usd"]
        peer.rest()
    with Peer(tmp_path, f"--resume={ID}") as peer:
        result = peer.turn("SAY x")
        assert result["total_cost_usd"] == pytest.approx(2 * first)
        assert result["model_usage_since_last_result"]["claude-opus-5-5"]["costUSD"] == pytest.approx(first)
        assert result["result_index"] == 0
        peer.kill()
    with Peer(tmp_path, "--resume", ID) as peer:
        assert peer.turn("SAY x")["total_cost_usd"] == pytest.approx(first)


def test_a_transcript_that_was_not_written_yet_is_lost_with_the_process(tmp_path):
    with Peer(tmp_path, "--session-id", ID, env=Plan(transcript_delay_s=30.0).env(tmp_path)) as peer:
        peer.say("HANG", "u1")
        peer.until("init")
        peer.kill()
        assert conversations(peer.state) == ()
    env = Plan(transcript_delay_s=0.1).env(tmp_path)
    with Peer(tmp_path, "--session-id", ID, env=env) as peer:
        peer.say("HANG", "u1")
        peer.until("init")
        deadline = time.monotonic() + 30
        while prompts_seen(peer.state, ID) != ("HANG",) and time.monotonic() < deadline:
            time.sleep(0.01)
        peer.kill()
        assert prompts_seen(peer.state, ID) == ("HANG",)


# --- going on ---


def test_continue_goes_on_with_what_was_not_done(tmp_path):
    log = tmp_path / "log"
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.say(f"APPEND {log} one\nCRASH_ONCE\nAPPEND {log} two\nSAY end", "u1")
        assert peer.gone() == -signal.SIGKILL
    with Peer(tmp_path, "--resume", ID) as peer:
        assert peer.turn(CONTINUE, "u2")["result"] == "end"
    assert log.read_text() == "one\ntwo\n"
    seen = roles(peer.state)
    assert [text for role, text in seen if role == "user"][1:] == [CONTINUE]
    assert ("assistant", "No response requested.") in seen


def test_a_cut_call_is_not_repeated_and_the_model_is_told(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.say("TOOL_SLEEP 30\nSAY end", "u1")
        peer.until("assistant")
        peer.kill()
    with Peer(tmp_path, "--resume", ID) as peer:
        assert peer.turn(CONTINUE, "u2")["result"] == "end"
    seen = history(peer.state, ID)
    assert [one.role for one in seen].count("tool_use") == 1
    assert "outcome is unknown" in next(one.text for one in seen if one.role == "tool_result")


def test_the_first_turn_killed_after_every_line_is_taken_once_and_finished(tmp_path):
    """Handshake, queued, started, init, echo, tool_use, tool_result, text, result, completed: whatever the last line was."""
    for after in range(1, 11):
        home = tmp_path / str(after)
        home.mkdir()
        env = Plan(kill_after_line=after).env(home)
        prompt = f"APPEND {home}/log done\nSAY end"
        with Peer(home, "--session-id", ID, env=env) as peer:
            peer.control("initialize")
            peer.say(prompt, "u1")
            assert peer.gone() == -signal.SIGKILL
        stored = conversations(peer.state) == (ID,)
        assert stored == (after >= 4)
        with Peer(home, "--resume" if stored else "--session-id", ID, env=env) as peer:
            peer.say(prompt, "u1")
            if stored:
                peer.until("completed", command_uuid="u1")
                peer.say(CONTINUE, "u2")
            peer.until("result", is_error=False)
        assert (home / "log").read_text() == "done\n", after
        assert [text for text in prompts_seen(peer.state, ID) if text == prompt] == [prompt], after


def test_a_nudge_after_an_api_error_goes_on_and_is_not_seen(tmp_path):
    prompt = "TOOL Bash {} -> ran\nAPI_ERROR 529 server_error API Error: 529 Overloaded. 2\nSAY end"
    with Peer(tmp_path, "--session-id", ID) as peer:
        for number in (1, 2):
            result = peer.turn(NUDGE if number > 1 else prompt, f"u{number}")
            assert (result["is_error"], result["subtype"], result["api_error_status"]) == (True, "success", 529)
        assert peer.turn(NUDGE, "u3")["result"] == "end"
    assert prompts_seen(peer.state, ID) == (prompt,)
    assert [one.role for one in history(peer.state, ID)].count("tool_use") == 1


def test_a_nudge_works_after_the_resume_too_but_not_after_a_completed_turn(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.turn("API_ERROR 529 server_error Overloaded 1\nSAY end", "u1")
        peer.kill()
    with Peer(tmp_path, "--resume", ID) as peer:
        assert peer.turn(NUDGE, "u2")["result"] == "end"
        assert peer.turn(NUDGE, "u3")["result"] == "echo: (no content)"


def test_an_api_error_without_a_count_fails_always(tmp_path):
    with Peer(tmp_path) as peer:
        results = [peer.turn(text) for text in ("API_ERROR 401 authentication_failed Invalid API key", NUDGE)]
        assert [result["is_error"] for result in results] == [True, True]


def test_the_variable_that_resumes_an_interrupted_turn_does_so_unasked(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.say("CRASH_ONCE\nSAY end", "u1")
        peer.gone()
    with Peer(tmp_path, "--resume", ID, env={"CLAUDE_CODE_RESUME_INTERRUPTED_TURN": "1"}) as peer:
        result = peer.until("result")
        assert (result["result"], result["user_message_uuids"]) == ("end", ["u1"])


# --- interrupts ---


def test_an_interrupt_right_behind_its_message_misses_it(tmp_path):
    with Peer(tmp_path) as peer:
        user = {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "SAY on"}}
        peer.send(user, {"type": "control_request", "request_id": "r", "request": {"subtype": "interrupt"}})
        assert peer.until("control_response")["response"]["response"] == {"still_queued": ["u1"]}
        assert peer.until("result")["result"] == "on"


def test_cancel_queued_right_behind_a_message_drops_it_without_a_result(tmp_path):
    with Peer(tmp_path) as peer:
        user = {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "SAY on"}}
        peer.send(user, {"type": "control_request", "request_id": "r", "request": {"subtype": "interrupt", "cancel_queued": True}})
        assert peer.until("command_lifecycle", state="cancelled")["command_uuid"] == "u1"
        assert peer.turn("SAY after", "u2")["result_index"] == 0


def test_an_interrupt_in_a_later_call_counts_the_calls_before_as_claude_code_does(tmp_path):
    recording = pathlib.Path(__file__).parents[2] / "fixtures" / "claude" / "int_later.jsonl"
    theirs = next(frame for line in recording.read_text().splitlines() if (frame := json.loads(line)["f"])["type"] == "result")
    with Peer(tmp_path) as peer:
        peer.say('TOOL Bash {"command": "x"} -> hi\nHANG', "u1")
        peer.until("user", isReplay=True)
        peer.until("user")
        peer.control("interrupt")
        ours = peer.until("result")
    for frame in (ours, theirs):
        (row,) = frame["model_usage_since_last_result"].values()
        assert (frame["terminal_reason"], frame["usage"]["input_tokens"], row["inputTokens"]) == ("aborted_streaming", 100, 100)


def test_an_answer_that_breaks_off_is_asked_for_again(tmp_path):
    with Peer(tmp_path) as peer:
        result = peer.turn("BREAK_OFF half an ans\nSAY wer", "u1")
        (asked,) = [frame for frame in peer.frames if frame.get("isSynthetic")]
    recording = pathlib.Path(__file__).parents[2] / "fixtures" / "claude" / "broke_off.jsonl"
    real = next(json.loads(line)["f"] for line in recording.read_text().splitlines() if "cut off mid-stream" in line)
    assert (asked["message"], set(asked)) == (real["message"], set(real))
    assert texts(peer.frames) == ["half an ans", "wer"]
    assert (result["result"], result["num_turns"], result["usage"]["input_tokens"]) == ("wer", 2, 200)


def test_ignore_interrupt_answers_nothing(tmp_path):
    with Peer(tmp_path) as peer:
        peer.say("IGNORE_INTERRUPT\nSLOW 4 0.1", "u1")
        peer.until("init")
        peer.control("interrupt")
        assert peer.until("result")["is_error"] is False
        peer.control("interrupt", "later")
        assert peer.until("control_response")["response"]["request_id"] == "later"


def test_signals(tmp_path):
    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)):
        with Peer(tmp_path) as peer:
            peer.say("HANG", "u1")
            peer.until("init")
            peer.process.send_signal(number)
            assert peer.gone() == code
    with Peer(tmp_path) as peer:
        peer.say("IGNORE_SIGTERM\nSAY deaf\nHANG", "u1")
        peer.until("assistant")
        peer.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            peer.process.wait(0.3)


# --- what the process does wrong ---


@pytest.mark.parametrize(
    ("directive", "code"),
    [("CRASH", -9), ("CRASH 11", -11), ("CRASH TERM", -15), ("EXIT 3", 3), ("NO_RESULT_EXIT", 0), ("HALF_LINE", 1)],
)
def test_ways_to_end_without_a_result(tmp_path, directive, code):
    with Peer(tmp_path) as peer:
        peer.say(f"SAY before\n{directive}", "u1")
        assert peer.until("assistant")["message"]["content"][0]["text"] == "before"
        rest = b"".join(iter(peer.line, b"")) if directive != "HALF_LINE" else peer.line()
        assert b'"result"' not in rest
        assert rest.startswith(b'{"type":"assistant"') == (directive == "HALF_LINE")
        assert peer.process.wait(10) == code


def test_closed_stdout_with_a_living_process(tmp_path):
    with Peer(tmp_path) as peer:
        peer.say("SAY before\nCLOSE_STDOUT\nHANG", "u1")
        peer.until("assistant")
        assert peer.line() == b""
        assert peer.process.poll() is None


def test_strange_bytes(tmp_path):
    with Peer(tmp_path) as peer:
        peer.say("GARBAGE\nBAD_UTF8\nHUGE_LINE 300000\nSAY end", "u1")
        lines = [peer.line()]
        while b'"type":"result"' not in lines[-1]:
            lines.append(peer.line())
        assert max(map(len, lines)) > 300_000
        assert any(b"\xff\xc3" in line for line in lines)
        assert b"Warning: this line is no JSON" in lines


def test_much_stderr_blocks_it_only_until_it_is_read(tmp_path):
    with Peer(tmp_path, stderr=subprocess.DEVNULL) as peer:
        assert peer.turn("STDERR 2000000\nSAY end")["result"] == "end"
    with Peer(tmp_path) as peer:
        peer.say("STDERR 2000001\nSAY end")
        got = 0
        while got < 2_000_001:
            got += len(os.read(peer.process.stderr.fileno(), 1 << 16))
        assert (got, peer.until("result")["result"]) == (2_000_001, "end")


def test_an_unread_pipe_delays_no_turn(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.say("HUGE_LINE 3000000\nSAY end", "u1")
        deadline = time.monotonic() + 30
        while not any(one.text == "end" for one in history(peer.state, ID)):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_late_frames_come_after_the_next_prompt(tmp_path):
    with Peer(tmp_path) as peer:
        old = peer.turn("SAY old\nLATE_FRAMES", "u1")
        peer.say("SAY new", "u2")
        assert peer.until("result")["uuid"] == old["uuid"]
        assert peer.until("result")["result"] == "new"


def test_an_unprompted_turn_has_an_origin_and_names_no_message(tmp_path):
    with Peer(tmp_path) as peer:
        peer.turn("SAY mine\nUNPROMPTED the task is over", "u1")
        result = peer.until("result")
        assert (result["result"], result["origin"]["kind"]) == ("the task is over", "task-notification")
        assert "user_message_uuids" not in result


def test_grandchildren_outlive_it(tmp_path):
    with Peer(tmp_path) as peer:
        pid = int(peer.turn("SPAWN 30")["result"].split()[1])
        holder = int(peer.turn("HOLD_PIPE 30")["result"].split()[1])
        try:
            peer.kill()
            assert os.getsid(pid) == pid
            with pytest.raises(TimeoutError):
                peer.line(0.2)
        finally:
            os.kill(holder, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
        assert peer.line() == b""


# --- what it asks ---


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ({"subtype": "success", "response": {"behavior": "allow"}}, ("completed", 0)),
        ({"subtype": "success", "response": {"behavior": "deny", "message": "no"}}, ("completed", 1)),
        ({"subtype": "success", "response": {"behavior": "deny", "message": "no", "interrupt": True}}, ("aborted_tools", 1)),
        ({"subtype": "error", "error": "cannot"}, ("completed", 1)),
    ],
)
def test_a_call_that_asks_the_host(tmp_path, answer, end):
    with Peer(tmp_path) as peer:
        peer.say('CAN_USE_TOOL Bash {"command": "rm"}\nSAY end', "u1")
        asked = peer.until("control_request")
        assert asked["request"]["input"] == {"command": "rm"}
        peer.send({"type": "control_response", "response": {**answer, "request_id": asked["request_id"]}})
        result = peer.until("result")
        assert (result["terminal_reason"], len(result["permission_denials"])) == end


def test_an_unanswered_question_is_withdrawn_by_an_interrupt(tmp_path):
    with Peer(tmp_path) as peer:
        peer.say("CAN_USE_TOOL Bash {}", "u1")
        asked = peer.until("control_request")
        peer.control("interrupt")
        assert peer.until("control_cancel_request")["request_id"] == asked["request_id"]
        assert peer.until("result")["terminal_reason"] == "aborted_tools"


def test_an_unknown_request_waits_for_any_answer(tmp_path):
    with Peer(tmp_path) as peer:
        peer.say("UNKNOWN_REQUEST", "u1")
        asked = peer.until("control_request")
        peer.send({"type": "control_response", "response": {"subtype": "error", "request_id": asked["request_id"], "error": "no"}})
        assert peer.until("result")["result"] == "answered: error"


# --- what else a turn contains ---


def test_frames_of_other_kinds(tmp_path):
    with Peer(tmp_path) as peer:
        prompt = 'API_RETRY 2 0.01\nRATE_LIMIT rejected five_hour 1.0 1796060000\nCOMPACT\nSUBAGENT from below\nSTRUCTURED {"n": 3}'
        result = peer.turn(prompt, "u1")
        assert (result["result"], result["structured_output"]) == ('{"n":3}', {"n": 3})
        assert [frame["attempt"] for frame in peer.frames if frame.get("subtype") == "api_retry"] == [1, 2]
        limit = next(frame["rate_limit_info"] for frame in peer.frames if frame.get("type") == "rate_limit_event")
        assert (limit["status"], limit["resetsAt"]) == ("rejected", 1796060000)
        assert any(frame.get("subtype") == "compact_boundary" for frame in peer.frames)
        assert [frame["parent_tool_use_id"] is not None for frame in peer.frames if frame.get("agent_id")] == [True]


def test_rate_carries_the_times_of_sending(tmp_path):
    with Peer(tmp_path) as peer:
        peer.turn("RATE 20 200")
        sent = [int(text) for text in texts(peer.frames) if text.strip().isdigit()]
        assert len(sent) == 20
        assert 80e6 < sent[-1] - sent[0] < 2e9
        assert sent[-1] < time.monotonic_ns()
        assert len({frame["uuid"] for frame in peer.frames if frame["type"] == "assistant"}) == 21


def test_rate_streams_where_partial_messages_are_asked_for(tmp_path):
    with Peer(tmp_path, "--include-partial-messages") as peer:
        peer.turn("RATE 5 100")
        assert len([f for f in peer.frames if f.get("event", {}).get("type") == "content_block_delta"]) == 5


def test_a_flood_is_interrupted_in_its_middle(tmp_path):
    with Peer(tmp_path) as peer:
        peer.say("FLOOD 1000000 200", "u1")
        peer.until("assistant")
        peer.control("interrupt")
        assert peer.until("result")["terminal_reason"] == "aborted_streaming"
        assert len(peer.frames) < 200_000


def test_a_flood_has_its_number_of_frames(tmp_path):
    with Peer(tmp_path) as peer:
        peer.turn("FLOOD 1000 50")
        assert texts(peer.frames).count("x" * 50) == 1000
        assert len({frame["uuid"] for frame in peer.frames if frame["type"] == "assistant"}) == 1001


def test_a_written_file_is_there(tmp_path):
    with Peer(tmp_path) as peer:
        peer.turn(f"WRITE {tmp_path}/out a\\nb")
        assert (tmp_path / "out").read_text() == "a\nb"


# --- the plan ---


def test_a_plan_counts_over_processes(tmp_path):
    env = Plan(die_at_start=2).env(tmp_path)
    ends = []
    for _ in range(3):
        with Peer(tmp_path, env=env) as peer:
            peer.process.stdin.close()
            ends.append(peer.gone())
    assert ends == [1, 1, 0]


@pytest.mark.parametrize(("plan", "stderr"), [(Plan(in_use_times=1), b"already in use"), (Plan(refuse_resume=1), b"No conversation found")])
def test_a_resume_refused_once(tmp_path, plan, stderr):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.turn("SAY x")
        peer.rest()
    env = plan.env(tmp_path)
    with Peer(tmp_path, "--resume", ID, env=env) as peer:
        assert peer.gone() == 1
        assert stderr in peer.process.stderr.read()
    with Peer(tmp_path, "--resume", ID, env=env) as peer:
        assert peer.turn("SAY y")["result"] == "y"


def test_handshakes_that_go_wrong(tmp_path):
    with Peer(tmp_path, env=Plan(no_handshake=True).env(tmp_path)) as peer:
        peer.control("initialize")
        with pytest.raises(TimeoutError):
            peer.frame(0.3)
    with Peer(tmp_path, env=Plan(slow_start_s=0.3).env(tmp_path)) as peer:
        begin = time.monotonic()
        peer.control("initialize")
        peer.until("control_response")
        assert time.monotonic() - begin > 0.2
    with Peer(tmp_path, env=Plan(exit_after_handshake=True).env(tmp_path)) as peer:
        peer.control("initialize")
        peer.until("control_response")
        assert peer.gone() == 1


def test_other_plans(tmp_path):
    plan = Plan(version="9.9.9", stderr_at_start=100_000, garbage_at_start=True, unprompted_between="by itself", resume_as="new")
    env = plan.env(tmp_path)
    with Peer(tmp_path, "--session-id", ID, env=env, stderr=subprocess.DEVNULL) as peer:
        assert peer.line() == b"Welcome to a banner"
        peer.control("initialize")
        assert peer.until("control_response")["response"]["response"]["claude_code_version"] == "9.9.9"
        peer.turn("SAY x", "u1")
        assert peer.until("result")["result"] == "by itself"
        peer.rest()
    with Peer(tmp_path, "--resume", ID, env=env, stderr=subprocess.DEVNULL) as peer:
        peer.line()
        assert peer.turn("SAY y")["session_id"] != ID


def test_a_plan_may_ignore_eof(tmp_path):
    with Peer(tmp_path, env=Plan(ignore_eof=True).env(tmp_path)) as peer:
        peer.turn("SAY x")
        peer.process.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            peer.process.wait(0.3)


def test_a_slow_exit(tmp_path):
    with Peer(tmp_path, env=Plan(exit_delay_s=0.3).env(tmp_path)) as peer:
        begin = time.monotonic()
        assert peer.rest() == 0
        assert time.monotonic() - begin > 0.25


def write_for_ever(peer):
    while True:
        peer.raw(b" " * 65536)


def test_it_may_die_while_a_long_prompt_is_written(tmp_path):
    with Peer(tmp_path, env=Plan(die_after_input_bytes=1_000_000).env(tmp_path)) as peer:
        with pytest.raises(BrokenPipeError):
            write_for_ever(peer)
        assert peer.gone() == -signal.SIGKILL


@pytest.mark.parametrize("planned", [True, False])
def test_it_may_stop_reading(tmp_path, planned):
    with Peer(tmp_path, env=Plan(stop_reading=planned).env(tmp_path)) as peer:
        if not planned:
            peer.turn("STOP_READING\nSAY x")
        peer.control("initialize")
        with pytest.raises(TimeoutError):
            peer.frame(0.3)


def test_two_processes_on_one_conversation_are_noted(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.turn("SAY x\nSPAWN 1")
        peer.kill()
    with Peer(tmp_path, "--resume", ID) as first:
        first.turn("SAY y")
        assert overlaps(first.state) == ()
        with Peer(tmp_path, "--resume", ID) as second:
            second.turn("SAY z")
            assert [one["pid"] for one in overlaps(first.state)] == [second.process.pid]


def test_a_cleared_conversation_goes_on_under_another_id(tmp_path):
    with Peer(tmp_path, "--session-id", ID) as peer:
        peer.say("SAY x\nCLEAR\nSAY y\nHANG\nSAY z", "u1")
        new = peer.until("conversation_reset")["new_conversation_id"]
        assert peer.until("assistant")["session_id"] == new
        peer.kill()
    with Peer(tmp_path, "--resume", new) as peer:
        peer.say("x", "u1")
        peer.until("completed", command_uuid="u1")
        peer.say(CONTINUE, "u2")
        peer.until("init")
        peer.control("interrupt")
        assert peer.until("result")["session_id"] == new


def test_a_plan_holds_only_what_differs(tmp_path):
    assert json.loads(Plan(in_use_times=3).write(tmp_path / "plan").read_text()) == {"in_use_times": 3}
