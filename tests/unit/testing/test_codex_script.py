from __future__ import annotations

import pytest

from greenroom.testing import (
    Ask,
    AwaitSteer,
    CallMcp,
    ChangeFile,
    CodexScript,
    Complain,
    Crash,
    Fail,
    Hang,
    ReportRateLimits,
    Retrying,
    RunCommand,
    Say,
    Spend,
    Think,
)
from greenroom.testing.scripted_codex import directives

from .codex_peer import CodexPeer


@pytest.mark.parametrize(
    ("step", "lines"),
    [
        (Say("two\nlines"), ["SAY two\\nlines"]),
        (Say("w", pieces=3, interval_s=0.5), ["SLOW 3 0.5 w"]),
        (Think("hm"), ["THINK hm"]),
        (RunCommand("make"), ["RUN make"]),
        (RunCommand("make", output=""), ["RUN make -> "]),
        (RunCommand("make", seconds=2.0, output="made"), ["RUN_SLEEP 2.0 made"]),
        (ChangeFile("a.txt", "one\ntwo"), ["CHANGE_FILE a.txt one\\ntwo"]),
        (ChangeFile("a.txt", "x", ask=True), ["ASK_PATCH a.txt x"]),
        (CallMcp("echo", "ping", {"x": 1}, output="pong"), ['CALL_MCP echo ping {"x": 1} -> pong']),
        (Ask("rm x"), ["ASK rm x"]),
        (Ask(question="Which one?"), ["ASK_USER Which one?"]),
        (Spend(10, 2), ["SPEND 10 2 0"]),
        (ReportRateLimits(90, resets_at=7), ["RATE_LIMIT 90 300 7"]),
        (Retrying(2, delay_s=0.1), ["RETRY_NOTICE 2 0.1"]),
        (Fail("other", "no", times=2), ["FAIL other no 2"]),
        (Fail({"httpConnectionFailed": {"httpStatusCode": 503}}, "no"), ['FAIL {"httpConnectionFailed":{"httpStatusCode":503}} no']),
        (Fail("other", "error 5"), ["FAIL other error 5 1073741824"]),
        (Hang(), ["HANG"]),
        (AwaitSteer(), ["AWAIT_STEER a message came"]),
        (Crash(), ["CRASH KILL"]),
        (Crash(once=True), ["CRASH_ONCE KILL"]),
        (Complain(200, garbage=True), ["STDERR 200", "GARBAGE"]),
    ],
)
def test_a_step_is_written_as_directives_that_the_scripted_codex_knows(step, lines):
    prompt = CodexScript([step]).prompt()
    assert prompt.splitlines() == lines
    assert [word.upper() for word, _ in directives(prompt)] == [line.split()[0] for line in lines]


def test_what_cannot_be_written_on_a_line_is_refused():
    with pytest.raises(ValueError, match="a command must be one line"):
        CodexScript([RunCommand("a\nb")]).prompt()
    with pytest.raises(ValueError, match="no white space"):
        CodexScript([ChangeFile("a b", "x")]).prompt()


def test_a_script_is_played(tmp_path):
    script = CodexScript([Think("hm"), RunCommand("make", output=""), Spend(5, 1)]).then([Complain(), Retrying(), Say("one\ntwo")])
    with CodexPeer(tmp_path) as peer:
        peer.begin()
        assert peer.said(peer.thread(), script.prompt()) == "one\ntwo"
        items = [one["params"]["item"] for one in peer.frames if one.get("method") == "item/completed"]
    assert [item["type"] for item in items] == ["userMessage", "reasoning", "commandExecution", "agentMessage"]
    assert (items[2]["command"], items[2]["aggregatedOutput"]) == ("/bin/bash -lc 'make'", "")
