from __future__ import annotations

import json
import signal
import threading
import time

import pytest
from fakes import FakeEngine, FakeRoom, Script
from typer.testing import CliRunner

from greenroom.cli.app import app
from greenroom.errors import CliNotFoundError, TurnFailedError
from greenroom.model import FailureKind

TASKS = '[defaults]\npermissions = "bypass"\n' + "".join(f'[[task]]\nid = "{name}"\nprompt = "{name}"\n' for name in "abc")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.toml").write_text(TASKS)
    return tmp_path


def greenroom(*args, engine=None, stdin=None):
    return CliRunner().invoke(app, args, obj=engine or FakeEngine(), input=stdin)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_well(folder):
    engine = FakeEngine()
    result = greenroom("run", "tasks.toml", "--out", "out.jsonl", "--max-starting", "3", engine=engine)
    assert result.exit_code == 0, result.output
    assert {line["id"]: line["outcome"] for line in lines(folder / "out.jsonl")} == dict.fromkeys("abc", "done")
    assert engine.opened == [3]
    assert engine.room.deadlines == [10.0]
    assert "a started" in result.stdout
    assert result.stdout.splitlines()[-1] == "$0.03 · 45 tokens · 3 done"


def test_a_run_without_a_result_file_says_where_the_answers_are(folder):
    result = greenroom("run", "tasks.toml")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["hint: the answers were not kept; with --out FILE they are, and a second run does only the rest"]
    assert "hint" not in greenroom("run", "tasks.toml", "--out", "out.jsonl").stderr


def test_run_again_does_only_what_is_not_done(folder):
    broken = FakeEngine(FakeRoom(scripts={"b": Script(error=TurnFailedError(FailureKind.AUTH, "login expired"))}))
    result = greenroom("run", "tasks.toml", "--out", "out.jsonl", engine=broken)
    assert result.exit_code == 1
    assert "error: b: turn failed (auth): login expired" in result.stderr
    engine = FakeEngine()
    result = greenroom("run", "tasks.toml", "--out", "out.jsonl", engine=engine)
    assert result.exit_code == 0
    assert engine.room.begun == ["b"]
    assert "(2 done in an earlier run)" in result.stdout
    assert [line["id"] for line in lines(folder / "out.jsonl")].count("b") == 2
    (folder / "tasks.toml").write_text(TASKS.replace('prompt = "a"', 'prompt = "changed"'))
    engine = FakeEngine()
    assert greenroom("run", "tasks.toml", "--out", "out.jsonl", engine=engine).exit_code == 0
    assert engine.room.begun == ["changed"]


def test_a_dry_run_starts_and_writes_nothing(folder):
    engine = FakeEngine()
    (folder / "out.jsonl").write_text('{"id": "half')
    result = greenroom("run", "tasks.toml", "--out", "out.jsonl", "--dry-run", engine=engine)
    assert result.exit_code == 0
    assert engine.opened == []
    assert (folder / "out.jsonl").read_text() == '{"id": "half'
    assert result.stdout.splitlines()[:2] == ["wave 1", f"  a: claude, bypass, {folder}"]
    assert result.stdout.splitlines()[-1] == "3 tasks, 3 sessions, 0 done in an earlier run; nothing was started"


def test_one_task_is_told_as_one(folder):
    (folder / "tasks.toml").write_text('[[task]]\nprompt = "x"\npermissions = "bypass"\n')
    told = greenroom("run", "tasks.toml", "--dry-run").stdout.splitlines()[-1]
    assert told == "1 task, 1 session, 0 done in an earlier run; nothing was started"


def test_bad_input_starts_nothing_and_says_all_of_it(folder):
    (folder / "tasks.toml").write_text('[[task]]\npromt = "x"\n[[task]]\nprompt = "y"\n')
    engine = FakeEngine()
    result = greenroom("run", "tasks.toml", engine=engine)
    assert result.exit_code == 2
    assert engine.opened == []
    assert result.stderr.splitlines()[0] == "error: tasks.toml:2: key 'promt': unknown key in a task"
    assert result.stderr.splitlines()[1] == "hint: did you mean 'prompt'?"
    assert "tasks.toml:3: key 'permissions': is missing" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--permissions", "bypas"), "key '--permissions': unknown value 'bypas'"),
        (("--provider", "gpt"), "key '--provider': unknown value 'gpt'"),
        (("--timeout", "0"), "key '--timeout': must be more than 0, got 0"),
        (("--max-cost-usd", "nan"), "key '--max-cost-usd': must be more than 0"),
        (("--claude-binary", "./gone"), "gone' is not an executable file"),
        (("--out", "gone/out.jsonl"), "gone/out.jsonl: key '--out': cannot be written"),
        (("--out", "tasks.toml"), "tasks.toml:1: key '--out': is not a result of greenroom run"),
        (("--parallel", "0"), "--parallel"),
        (("--unknown", "rerun"), "key '--unknown': without a journal nothing is known of an earlier run"),
    ],
)
def test_bad_options(args, words, folder):
    result = greenroom("run", "tasks.toml", *args)
    assert result.exit_code == 2
    assert words in result.stderr
    assert (folder / "tasks.toml").read_text() == TASKS


def test_a_permission_that_the_provider_has_not_is_bad_input(folder):
    text = '{"id": "x", "prompt": "hello"}\n'
    for provider, status in (("claude", 2), ("codex", 0)):
        result = greenroom("run", "-", "--permissions", "read-only", "--provider", provider, "--dry-run", stdin=text)
        assert result.exit_code == status, result.output
        assert ("key 'permissions': claude has no 'read-only'" in result.stderr) is (status == 2)


def test_tasks_come_from_standard_input_and_options_fill_in(folder):
    engine = FakeEngine()
    text = '{"id": "x", "prompt": "hello"}\n'
    result = greenroom("run", "-", "--permissions", "workspace-write", "--model", "m", engine=engine, stdin=text)
    assert result.exit_code == 0, result.output
    assert (engine.room.settings[0].permissions, engine.room.settings[0].model) == ("workspace-write", "m")


def test_a_missing_binary_is_told_with_its_hint(folder):
    engine = FakeEngine(FakeRoom(open_error=CliNotFoundError("claude", hint="install it")))
    result = greenroom("run", "tasks.toml", engine=engine)
    assert result.exit_code == 1
    assert "'claude': not found on PATH" in result.stderr
    assert "hint: install it" in result.stderr
    assert "answers" not in result.stderr  # there are none


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_in_order_and_leaves_the_lines(number, folder):
    engine = FakeEngine(FakeRoom(scripts={name: Script(forever=True) for name in "ab"}))

    def stop_when_running():
        until = time.monotonic() + 10
        while len(engine.room.running) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        signal.raise_signal(number)

    stopper = threading.Thread(target=stop_when_running)
    stopper.start()
    result = greenroom("run", "tasks.toml", "--out", "out.jsonl", "--parallel", "2", engine=engine)
    stopper.join()
    assert result.exit_code == 128 + number, result.output
    assert {line["id"]: line["outcome"] for line in lines(folder / "out.jsonl")} == {
        "a": "interrupted",
        "b": "interrupted",
        "c": "not_started",
    }
    assert engine.room.deadlines == [10.0]


def test_help_and_version():
    assert "greenroom demo" in greenroom("--help").stdout
    assert "0 all tasks are done" in greenroom("run", "--help").stdout
    for command in ("doctor", "demo"):
        assert greenroom(command, "--help").exit_code == 0
    assert greenroom("--version").stdout.startswith("greenroom ")
