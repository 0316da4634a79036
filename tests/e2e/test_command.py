"""`greenroom run` on the real Claude Code, as a user types it: a process of its own, a task file, a results file."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

from tests.e2e.stage import Stage

ROOT = pathlib.Path(__file__).parents[2]
TASKS = """
[defaults]
permissions = "bypass"
[[task]]
id = "write"
session = "s"
prompt = "BASH echo $WORD > word.txt\\nSAY written"
env = { WORD = "green" }
[[task]]
id = "read"
session = "s"
prompt = "BASH cat word.txt\\nSAY read"
env = { WORD = "green" }
[[task]]
id = "count"
after = ["write"]
prompt = 'STRUCTURED {"n": 3}'
schema = { type = "object", properties = { n = { type = "integer" } }, required = ["n"] }
effort = "low"
[[task]]
id = "refused"
prompt = "ERROR 401 authentication_error nope"
[[task]]
id = "behind"
after = ["refused"]
prompt = "SAY behind"
[[task]]
id = "long"
after = ["read", "count"]
prompt = "SLOW 4000 0.02 w"
"""


def begin(stage: Stage) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "greenroom", "run", "tasks.toml", "--out", "out.jsonl", "--claude-binary", str(stage.binary)]
    env = {**os.environ, **stage.env, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(argv, cwd=stage.cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(stage: Stage, run: subprocess.Popen[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    """Wait for the end; return the exit status, and the last record of each task."""
    _, errors = run.communicate(timeout=60)
    assert "Traceback" not in errors
    lines = (stage.cwd / "out.jsonl").read_text().splitlines()
    return run.returncode, {record["id"]: record for record in map(json.loads, lines)}


def test_a_run_is_stopped_and_gone_on_with(stage: Stage) -> None:
    path = stage.cwd / "tasks.toml"
    path.write_text(TASKS)
    run = begin(stage)
    stage.streams()
    run.send_signal(signal.SIGINT)
    status, first = ended(stage, run)
    assert status == 130
    outcomes = {"write": "done", "read": "done", "count": "done", "refused": "failed", "behind": "skipped", "long": "interrupted"}
    assert {name: record["outcome"] for name, record in first.items()} == outcomes
    assert (stage.cwd / "word.txt").read_text() == "green\n"
    assert first["read"]["conversation_id"] == first["write"]["conversation_id"] != first["count"]["conversation_id"]
    assert first["count"]["structured_output"] == {"n": 3}
    assert first["long"]["text"].startswith("w0 w1")
    assert first["refused"]["error"]["kind"] == "auth"
    assert all(first[name]["cost_usd"] > 0 for name in ("write", "read", "count"))

    path.write_text(TASKS.replace("ERROR 401 authentication_error nope", "SAY fine").replace("SLOW 4000 0.02 w", "SAY short"))
    asked = len(stage.server.requests)
    status, second = ended(stage, begin(stage))
    assert status == 0
    assert {record["outcome"] for record in second.values()} == {"done"}
    assert len(stage.server.requests) == asked + 3
    assert second["write"] == first["write"]
    assert (second["behind"]["text"], second["long"]["text"]) == ("behind", "short")
    assert not stage.processes()
