"""Every example runs as a program of its own, without an account, says what it should, and leaves nothing running."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

import greenroom
from greenroom.cli.fields import build_tasks
from greenroom.cli.taskfile import read_source
from greenroom.cli.tasks import Given
from greenroom.testing import CheckpointStoreContract, write_scripted_claude
from greenroom.testing.model_server import ModelServer

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SOURCE = pathlib.Path(greenroom.__file__).parents[1]  # the checkout or the installed wheel: what this process tests

SAYS = {
    "one_session.py": (r"is named, and nothing runs yet", r"continued in .*: 'The directory is empty\.'", r"the session has cost \$0\.00"),
    "fleet.py": (
        r"the running turn has taken 'Use the cache instead\.'",
        r"steered: I use the cache\.",
        r"interrupted: interrupted",
        r"ordinary 17: hello",
        r"still open: 0",
    ),
    "asyncio_stream.py": (r"'one half of 3,'", r"continued: 'the other half of 2'"),
    "checkpoints.py": (
        r"held None, ran in (?P<id>[0-9a-f-]{36}) \(continued\)",
        r"held (?P=id), ran in (?P=id) \(continued\)(?s:.*)held (?P=id), ran in (?P=id) \(continued\)",
    ),
    "approve.py": (
        r"asked: Which colour\? -> Reply\(answers=\{'Which colour\?': 'blue'\}\), in time: True",
        r"asked: Bash -> Accept\(\), in time: True",
        r"once more: False",
        r"asked: Bash -> Decline\(message='leave the rest alone'\), in time: True",
        r"continued: 'It is there, and all the rest is too\.'; waiting: 0",
    ),
    "frontend.py": (
        r"first is ready",
        r"second is ready",
        r"answered: hello",
        r"running: \['second'\]",
        r"interrupted: True",
        r"second \d+: session/closed",
        r"in the directory: \['first'\]",
        r"found again: first, closed",
        r"goes on in its conversation: True",
        r"answered: hello",
        r"turns in its history: 2",
    ),
    "history.py": (
        r"paid by: unknown",
        r"rolled back 1 \(completed\): the plan\nrolled back 2 \(completed\): a first try\nparent 1",
        r"parent 3 \(completed\): this way\nfork 1 (?s:.*)fork 3 \(completed\): that way",
    ),
    "turn_requests.py": (
        r"the model, default: 'The lamp is red\.'",
        r"the model, plan: 'By a green lamp\.'",
        r"haiku, default: 'Green\.'",
        r"the model, default: 'Green lamp\.'",
        r"refused: attachment '.*build\.log' is not an image",
    ),
    "stalls.py": (
        r"before the first turn it is idle",
        r"it is at: tool Bash \d+ s",
        r"'A long tool is no stall\.'",
        r"nothing was heard for \d+(\.\d+)? s \(model at work\): interrupt",
        r"interrupted",
        r"'I am here\.'",
    ),
    "own_transport.py": (r"'HELLO'", r"interrupted"),
    "real_cli_offline.py": (r"claude \d+\.\d+\.\d+", r"continued: 'The file is written\.'", r"proof\.txt: 'seen by a real shell'"),
}
HELPERS = {"offline.py"}


def run(*argv: str, cwd: pathlib.Path, timeout_s: float = 50, given: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    env = {**given, "PYTHONPATH": os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))}
    return subprocess.run([sys.executable, *argv], check=False, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s)


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SAYS, *HELPERS}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.e2e) if "real" in name else name for name in SAYS])
def test_it_runs(name, tmp_path):
    ended = run(str(EXAMPLES / name), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    pattern = "(?s:.*)".join(SAYS[name])
    if name == "fleet.py":  # what is printed first is up to the threads
        assert all(re.search(part, ended.stdout) for part in SAYS[name]), ended.stdout
    else:
        assert re.search(pattern, ended.stdout), ended.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["one_session.py", "fleet.py", "asyncio_stream.py", "checkpoints.py", "turn_requests.py"])
def test_it_runs_on_the_real_cli(name, tmp_path):
    with ModelServer() as server:
        ended = run(str(EXAMPLES / name), "--real", cwd=tmp_path, given=server.env(tmp_path / "home"))
    assert ended.returncode == 0, ended.stderr
    assert "echo: " in ended.stdout  # what the model server answers to prose


def test_the_own_transport_passes_the_contract(tmp_path):
    ended = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "own_transport.py"), cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert "10 passed" in ended.stdout


def test_the_file_store_passes_the_contract(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from checkpoints import FileCheckpoints

    class Contract(CheckpointStoreContract):
        count = 0

        def make_store(self):
            self.count += 1
            return FileCheckpoints(tmp_path / str(self.count))

    for name in (name for name in dir(Contract) if name.startswith("test_")):
        getattr(Contract(), name)()


def test_the_task_file_is_good():
    tasks = build_tasks(read_source(str(EXAMPLES / "tasks.toml")), Given())
    assert [task.id for task in tasks] == ["outline", "report", "typos", "verdict"]


def test_the_task_file_runs_and_the_second_run_has_nothing_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("GREENROOM_SCRIPTED_STATE", str(tmp_path / "state"))
    binary, out, tasks = write_scripted_claude(tmp_path / "bin"), tmp_path / "results.jsonl", tmp_path / "tasks.toml"
    answer = r"with README.md?\nSTRUCTURED {\"consistent\": true}"  # what the scripted CLI is to answer to the schema
    tasks.write_text((EXAMPLES / "tasks.toml").read_text().replace("with README.md?", answer))
    argv = ("-m", "greenroom", "run", str(tasks), "--out", str(out), "--claude-binary", str(binary))
    first, second = run(*argv, cwd=tmp_path), run(*argv, cwd=tmp_path)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "4 done in an earlier run" in second.stdout
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["outcome"] for record in records] == ["done"] * 4
    assert records[-1]["structured_output"] == {"consistent": True}
    by_id = {record["id"]: record for record in records}
    assert by_id["outline"]["conversation_id"] == by_id["report"]["conversation_id"] != by_id["typos"]["conversation_id"]
