"""`greenroom run --state-dir` that dies by SIGKILL, and is run again."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from greenroom.testing.scripted import conversations, history, prompts_seen
from tests.faults.bench import binary, until

ROOT = pathlib.Path(__file__).parents[2]
CUT = "SAY one\nTOOL_SLEEP 300\nSAY done"


class Stage:
    def __init__(self, folder):
        self.folder = folder
        self.state = folder / "scripted"
        self.tasks = folder / "tasks.jsonl"
        self.out = folder / "out.jsonl"
        self.where = ["--state-dir", str(folder / "journal")]
        tasks = [{"id": "quick", "prompt": "SAY quick"}, {"id": "cut", "prompt": CUT}]
        self.tasks.write_text("".join(json.dumps({**task, "permissions": "bypass", "cwd": str(folder)}) + "\n" for task in tasks))

    def start(self, *options, out=True):
        command = [sys.executable, "-m", "greenroom", "run", str(self.tasks), *self.where]
        command += ["--claude-binary", str(binary()), *(["--out", str(self.out)] if out else []), *options]
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "PYTHONPATH": str(ROOT), "GREENROOM_SCRIPTED_STATE": str(self.state)}
        return subprocess.Popen(command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def prompts(self):
        return [text for one in conversations(self.state) for text in prompts_seen(self.state, one)]

    def records(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def killed(self):
        run = self.start()
        until(lambda: CUT in self.prompts() and self.out.exists() and len(self.records()) == 1, "the cut task")
        until(self._in_the_tool, "its tool")
        run.send_signal(signal.SIGKILL)
        run.communicate()

    def _in_the_tool(self):
        return any(seen.role == "tool_use" for one in conversations(self.state) for seen in history(self.state, one))

    def again(self, *options, out=True):
        run = self.start(*options, out=out)
        told, _ = run.communicate(timeout=50)
        return run.returncode, told


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


def test_a_run_that_died_goes_on_and_shows_no_prompt_twice(stage):
    stage.killed()
    status, told = stage.again()
    assert status == 0, told
    assert [(record["id"], record["outcome"]) for record in stage.records()] == [("quick", "done"), ("cut", "done")]
    assert [stage.prompts().count(prompt) for prompt in ("SAY quick", CUT)] == [1, 1]


def test_what_is_on_record_is_not_asked_again_without_the_results_file(stage):
    stage.killed()
    assert stage.again()[0] == 0
    status, told = stage.again(out=False)
    assert status == 0, told
    assert [stage.prompts().count(prompt) for prompt in ("SAY quick", CUT)] == [1, 1]


def test_an_unknown_outcome_may_fail_its_task_and_stays_open(stage):
    stage.killed()
    for _ in range(2):
        status, told = stage.again("--unknown", "fail")
        assert status == 1
        assert "outcome is unknown" in told
        assert "--unknown continue" in told
    assert stage.again()[0] == 0
    assert [stage.prompts().count(prompt) for prompt in ("SAY quick", CUT)] == [1, 1]


def test_an_unknown_outcome_may_be_run_anew(stage):
    stage.killed()
    run = stage.start("--unknown", "rerun")
    until(lambda: stage.prompts().count(CUT) == 2, "the second showing")
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=50)
    assert run.returncode == 130


def test_a_durable_run_has_a_place_of_its_own_for_each_task_file(stage):
    stage.where = ["--durable"]
    stage.tasks.write_text(stage.tasks.read_text().splitlines()[0])
    for _ in range(2):
        status, told = stage.again(out=False)
        assert status == 0, told
        (place,) = (stage.folder / ".local/state/greenroom").iterdir()
        assert f"the run is journalled in {place}" in told
    assert stage.prompts() == ["SAY quick"]


@pytest.mark.parametrize(
    ("where", "why"), [(["--durable", "--state-dir", "x"], "exclude one another"), (["--durable", "--unknown", "x"], "--unknown")]
)
def test_what_does_not_go_together_is_refused(stage, where, why):
    stage.where = where
    status, told = stage.again(out=False)
    assert status == 2
    assert why in told


def test_a_second_run_of_the_same_file_meanwhile_is_told_who_has_it(stage):
    stage.where = ["--durable"]
    run = stage.start()
    until(stage._in_the_tool, "the tool")
    status, told = stage.again(out=False)
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=50)
    assert status == 2
    assert f"process {run.pid} on host" in told
    assert run.returncode == 143
