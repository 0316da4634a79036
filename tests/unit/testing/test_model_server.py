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

import pytest

from greenroom.testing.model_server import ModelServer, Reply, text_block


def ask(server, *messages, stream=False, timeout=5):
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
    assert time.monotonic() - begin < 2.5
    waiting.join(5)
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
