from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import tomllib

import pytest

from greenroom.testing.model_server import ModelServer, Reply, text_block

from .codex_peer import CodexPeer


def ask(server, *messages, stream=False, timeout=30):
    host = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=timeout)
    try:
        body = {"model": "m", "messages": list(messages), "stream": stream}
        connection.request("POST", "/v1/messages?beta=true", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def user(text):
    return {"role": "user", "content": text}


def called(*names):
    return {"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": name, "input": {}} for name in names]}


def answered(text="ok"):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}


def said(server, *messages):
    status, body, _ = ask(server, *messages)
    assert status == 200, body
    return [block.get("text", block.get("input")) for block in json.loads(body)["content"]]


@pytest.fixture(scope="module")
def server():
    with ModelServer() as server:
        yield server


def test_a_prompt_is_echoed_and_directives_are_played(server):
    assert said(server, user("plain words")) == ["echo: plain words"]
    assert said(server, user("SAY one\nSAY two")) == ["one", "two"]


def test_tools_come_one_by_one_each_after_the_result_of_the_one_before(server):
    prompt = user('SAY go\nBASH ls\nTOOL Read {"file_path": "f"}\nSAY end')
    assert said(server, prompt) == ["go", {"command": "ls", "description": "run it"}]
    assert said(server, prompt, called("Bash"), answered()) == [{"file_path": "f"}]
    assert said(server, prompt, called("Bash"), answered(), called("Read"), answered()) == ["end"]
    assert said(server, user("BASH ls"), called("Bash"), answered()) == ["done"]


def test_a_message_that_joined_the_turn_is_what_counts(server):
    steer = "The user sent a new message while you were working:\nstop it\n\nThis is how Claude Code surfaces messages."
    joined = {"role": "user", "content": [*answered()["content"], text_block(steer)]}
    assert said(server, user("BASH ls\nSAY never"), called("Bash"), joined) == ["echo: stop it"]


def test_continuations_and_reminders_go_on_with_the_prompt_before(server):
    prompt = user("BASH ls\nSAY end")
    for text in ("Continue from where you left off.", "(no content)", "<system-reminder>SAY no</system-reminder>"):
        assert said(server, prompt, called("Bash"), answered(), user(text)) == ["end"]


def test_usage_is_fixed_but_for_the_words_said(server):
    message = json.loads(ask(server, user("SAY one two three"))[1])
    usage = {"input_tokens": 100, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30, "output_tokens": 3}
    assert message["usage"] == usage


def test_errors_are_counted_and_carry_retry_after(server):
    prompt = user("ERROR 429 rate_limit_error slow down 2 7\nSAY end")
    for _ in range(2):
        status, body, headers = ask(server, prompt)
        assert (status, headers["retry-after"]) == (429, "7")
        assert json.loads(body)["error"] == {"type": "rate_limit_error", "message": "slow down"}
    assert said(server, prompt) == ["end"]
    assert [ask(server, user("ERROR 500 api_error broken"))[0] for _ in range(3)] == [500, 500, 500]
    assert "prompt is too long" in ask(server, user("TOO_LONG"))[1]


def test_an_answer_is_streamed_with_every_kind_of_block(server):
    _, body, headers = ask(server, user("THINK hm\nSAY one\nSLOW 2 0.01\nBASH ls"), stream=True)
    assert headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events][:1] + [event["type"] for event in events][-2:] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta", "signature_delta", "text_delta", "text_delta", "text_delta", "input_json_delta"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]


@pytest.mark.parametrize("stream", [True, False])
def test_a_cut_drops_the_connection(server, stream):
    with pytest.raises(http.client.IncompleteRead):
        ask(server, user("CUT"), stream=stream)


def test_a_callable_may_decide(tmp_path):
    with ModelServer(script=lambda body: Reply(content=(text_block(str(len(body["messages"]))),))) as server:
        assert said(server, user("a"), user("b")) == ["2"]
        assert server.seen(0) == (("user", "a"), ("user", "b"))
        assert server.wait_for_requests(1)
        assert not server.wait_for_requests(2, timeout=0.01)
        assert server.env(tmp_path / "home")["ANTHROPIC_BASE_URL"] == server.url


def test_nothing_is_slow_any_more_for_one_in_a_hurry():
    with ModelServer() as server:
        texts = []
        asking = threading.Thread(target=lambda: texts.extend(said(server, user("SLEEP 300\nSAY late"))))
        asking.start()
        assert server.wait_for_requests(1)
        server.hurry()
        asking.join(30)
        assert texts == ["late"]
        assert server.pieces_sent == 0
        status, body, _ = ask(server, user("SLOW 100 60 w"), stream=True)
        assert (status, body.count("text_delta"), server.pieces_sent) == (200, 100, 100)
    server.hurry()  # harmless afterwards


def test_the_pieces_of_a_slow_text_are_counted_as_they_are_sent():
    with ModelServer() as server:
        asking = threading.Thread(target=ask, args=(server, user("SLOW 3000 0.01 w")), kwargs={"stream": True})
        asking.start()
        deadline = time.monotonic() + 30
        while server.pieces_sent < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert server.pieces_sent < 3000
        server.hurry()
        asking.join(30)
        assert server.pieces_sent == 3000


def hang(server):
    with contextlib.suppress(http.client.HTTPException, OSError):
        ask(server, user("HANG"), timeout=20)


def test_a_script_that_fails_is_told():
    with ModelServer(script=lambda body: 1 / 0) as server:
        assert ask(server, user("x"))[0] == 500
        assert isinstance(server.failures[0], ZeroDivisionError)


def test_it_stops_in_time_with_an_answer_that_hangs_and_leaves_no_thread():
    before = set(threading.enumerate())
    server = ModelServer()
    server.start()
    waiting = threading.Thread(target=hang, args=(server,))
    waiting.start()
    assert server.wait_for_requests(1)
    begin = time.monotonic()
    server.stop()
    server.stop()
    assert time.monotonic() - begin < 15
    waiting.join(30)
    assert set(threading.enumerate()) == before


def test_it_runs_as_a_command(tmp_path):
    command = [sys.executable, "-m", "greenroom.testing.model_server", "--home", str(tmp_path / "h")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        lines = [process.stdout.readline().strip() for _ in range(3)]
        process.terminate()
    assert url.startswith("http://127.0.0.1:")
    assert f"HOME={tmp_path / 'h'}" in lines


# --- with the real CLI ---


def real_claude():
    spec = importlib.util.find_spec("claude_agent_sdk")
    bundled = pathlib.Path(spec.origin).parent / "_bundled" / "claude" if spec and spec.origin else None
    return str(bundled) if bundled and bundled.exists() else shutil.which("claude")


@pytest.mark.e2e
@pytest.mark.skipif(real_claude() is None, reason="Claude Code is not installed")
def test_the_real_claude_code_runs_against_it(tmp_path):
    flags = ["--print", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--replay-user-messages"]
    with ModelServer() as server:
        env = {**server.env(tmp_path), "CLAUDE_CODE_MAX_RETRIES": "0"}
        argv = [real_claude(), *flags, "--permission-mode", "bypassPermissions"]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=tmp_path)
        with process:

            def send(number, content):
                message = {"role": "user", "content": content}
                frame = {"type": "user", "uuid": f"00000000-0000-4000-8000-{number:012}", "message": message}
                process.stdin.write(json.dumps(frame).encode() + b"\n")
                process.stdin.flush()

            def until(kind):
                while (frame := json.loads(process.stdout.readline())).get("type") != kind:
                    pass
                return frame

            send(1, "SAY one")
            assert until("result")["result"] == "one"
            send(2, "THINK hm\nBASH echo hi\nSAY two")
            assert until("result")["result"] == "two"
            send(3, "BASH echo again\nERROR 529 overloaded_error Overloaded 1\nSAY three")
            assert until("result")["api_error_status"] == 529
            send(4, [{"type": "text", "text": ""}])
            assert until("result")["result"] == "three"
            send(5, "BASH sleep 1; echo x\nSAY never")
            until("assistant")
            send(6, "SAY steered")
            assert until("result")["result"] == "steered"
            process.stdin.close()
        seen = server.seen(-1)
        assert [text for role, text in seen if role == "user"][:2] == ["SAY one", "THINK hm\nBASH echo hi\nSAY two"]
        assert sum("echo again" in text for role, text in seen if role == "tool_use") == 1
        assert ("tool_result", "hi") in seen


# --- the Responses API ---


def stream(server, *items, timeout=30):
    """Ask as Codex does; return the status and the events, or the error."""
    host = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=timeout)
    try:
        body = {"model": "gpt-5.5", "instructions": "x", "input": list(items), "stream": True}
        connection.request("POST", "/v1/responses", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status != 200:
        return answer.status, json.loads(text), dict(answer.getheaders())
    return 200, [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")], {}


def asked(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def function(name="exec_command"):
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": "{}"}


def output(text="ok"):
    return {"type": "function_call_output", "call_id": "c", "output": text}


def done(server, *items):
    """The output items of an answer."""
    status, events, _ = stream(server, *items)
    assert status == 200, events
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


def spoken(server, *items):
    return [item["content"][0]["text"] for item in done(server, *items) if item["type"] == "message"]


def test_responses_are_streamed_with_usage(server):
    _, events, _ = stream(server, asked("THINK hm\nSAY one\nSLOW 2 0.01"))
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert kinds.count("response.output_text.delta") == 3
    assert "response.reasoning_summary_text.delta" in kinds
    usage = events[-1]["response"]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_responses_call_the_tools_of_codex(server):
    items = done(server, asked("BASH ls")) + done(server, asked("ASK rm x")) + done(server, asked("WRITE a.txt one\\ntwo"))
    assert [(item["type"], item["name"]) for item in items] == [
        ("function_call", "exec_command"),
        ("function_call", "exec_command"),
        ("custom_tool_call", "apply_patch"),
    ]
    assert json.loads(items[1]["arguments"])["sandbox_permissions"] == "require_escalated"
    assert items[2]["input"] == "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** End Patch"
    mcp = done(server, asked('TOOL mcp__echo/ping {"x": 1}'))[0]
    assert (mcp["namespace"], mcp["name"], mcp["arguments"]) == ("mcp__echo", "ping", '{"x": 1}')


def test_responses_go_on_behind_what_was_done_already(server):
    prompt = asked("BASH a\nBASH b\nSAY end")
    assert json.loads(done(server, prompt, function(), output())[0]["arguments"])["cmd"] == "b"
    assert spoken(server, prompt, function(), output(), function(), output()) == ["end"]
    assert spoken(server, prompt, function(), output(), function(), output("aborted"), asked("Continue from where you left off.")) == [
        "end"
    ]
    assert spoken(server, prompt, function(), output(), asked("SAY steered")) == ["steered"]
    assert spoken(server, asked("SAY hi"), asked("<environment_context>\n</environment_context>")) == ["hi"]
    assert spoken(server, asked('STRUCTURED {"a": 1}')) == ['{"a": 1}']


def test_a_message_fails_within_its_stream_and_as_a_whole_with_a_status(server):
    prompt = user("SAY half\nFAILED overloaded_error Overloaded 2\nSAY end")
    status, text, _ = ask(server, prompt, stream=True)
    assert status == 200
    assert '"text_delta", "text": "half"' in text
    assert "event: error" in text
    assert "message_stop" not in text
    status, text, _ = ask(server, prompt)
    assert (status, json.loads(text)["error"]) == (529, {"type": "overloaded_error", "message": "Overloaded"})
    assert '"end"' in ask(server, prompt)[1]


def test_a_command_that_still_runs_is_waited_for(server):
    prompt = asked("BASH sleep 20\nSAY end")
    waits = done(server, prompt, function(), output("Process running with session ID 7"))[0]
    assert (waits["name"], json.loads(waits["arguments"])["session_id"]) == ("write_stdin", 7)
    more = (function("write_stdin"), output("Process exited with code 0"))
    assert spoken(server, prompt, function(), output("Process running with session ID 7"), *more) == ["end"]


def test_responses_fail_before_and_within_the_stream(server):
    prompt = asked("ERROR 429 slow_down too fast 1 3\nSAY end")
    status, error, headers = stream(server, prompt)
    assert (status, error["error"]["code"], headers["retry-after"]) == (429, "slow_down", "3")
    assert spoken(server, prompt) == ["end"]
    assert stream(server, asked("FAILED insufficient_quota used up"))[1][-1]["response"]["error"]["code"] == "insufficient_quota"
    assert stream(server, asked("TOO_LONG"))[1][-1]["response"]["error"]["code"] == "context_length_exceeded"
    with pytest.raises(http.client.IncompleteRead):
        stream(server, asked("CUT"))


def test_what_a_responses_model_was_shown_is_told_without_what_codex_adds():
    with ModelServer() as server:
        context = asked("<environment_context>x</environment_context>")
        developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be good"}]}
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
        stream(server, developer, context, asked("SAY hi"), said, function(), output("done"), asked("next"))
        assert server.seen(0) == (
            ("user", "SAY hi"),
            ("assistant", "hi"),
            ("tool_use", "exec_command {}"),
            ("tool_result", "done"),
            ("user", "next"),
        )


def test_codex_gets_a_home_of_its_own(tmp_path):
    with ModelServer() as server:
        env = server.codex_env(tmp_path, extra='[shell_environment_policy]\ninherit = "core"\n')
        config = tomllib.loads((tmp_path / "codex" / "config.toml").read_text())
        assert env["CODEX_HOME"] == str(tmp_path / "codex")
        provider = config["model_providers"]["scripted"]
        assert (provider["base_url"], provider["request_max_retries"]) == (server.url + "/v1", 0)
        assert provider["env_key"] in env
        assert config["shell_environment_policy"] == {"inherit": "core"}
        server.codex_env(tmp_path, retries=None)
        assert "max_retries" not in (tmp_path / "codex" / "config.toml").read_text()


def real_codex():
    spec = importlib.util.find_spec("codex_cli_bin")
    bundled = pathlib.Path(spec.origin).parent / "bin" / "codex" if spec and spec.origin else None
    return str(bundled) if bundled and bundled.exists() else shutil.which("codex")


@pytest.mark.e2e
@pytest.mark.skipif(real_codex() is None, reason="Codex is not installed")
def test_the_real_codex_runs_against_it(tmp_path):
    with ModelServer() as server:
        env = server.codex_env(tmp_path)
        with CodexPeer(tmp_path, argv=(real_codex(),), env=env) as peer:
            peer.begin()
            thread = peer.thread()
            assert peer.said(thread, "SAY one") == "one"
            assert peer.said(thread, "THINK hm\nBASH echo hi\nSAY two") == "two"
            assert peer.turn(thread, "BASH echo x >> ran\nERROR 500 server_error boom 1\nSAY three")["status"] == "failed"
            assert peer.turn(thread, [])["items"][-1]["text"] == "three"
            assert (tmp_path / "ran").read_text() == "x\n"
            assert server.requests[-1]["input"] == server.requests[-2]["input"]
            turn = peer.start(thread, "BASH sleep 1; echo x\nSAY never")
            peer.item("commandExecution", "item/started")
            peer.steer(thread, turn, "SAY steered")
            assert peer.end(thread)["items"][-1]["text"] == "steered"
            turn = peer.start(thread, "SLOW 100 0.1")
            peer.until("item/agentMessage/delta")
            assert peer.call("turn/interrupt", threadId=thread, turnId=turn) == {}
            assert peer.end(thread)["status"] == "interrupted"
            assert peer.turn(thread, "ERROR 429 rate_limit_exceeded slow down")["error"]["codexErrorInfo"] == {
                "responseTooManyFailedAttempts": {"httpStatusCode": 429}
            }
            peer.start(thread, "BASH echo y >> ran\nHANG", "c9")
            peer.item("commandExecution")
            peer.kill()
        with CodexPeer(tmp_path, argv=(real_codex(),), env=env) as peer:
            peer.begin()
            last = peer.call("thread/resume", threadId=thread)["thread"]["turns"][-1]
            assert (last["status"], last["items"][0]["clientId"]) == ("interrupted", "c9")
            assert peer.said(thread, "Continue from where you left off.\nSAY on") == "on"
            assert (tmp_path / "ran").read_text() == "x\ny\n"
        assert server.failures == []
