"""A host that is killed at every single commit of its journal, with real CLIs under it; `commit_host.py` is that host, and its judge."""

import collections
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOME = ("2:before", "7:after", "10:after", "12:before", "15:after", "17:before")


def killed_at(tmp_path, *points):
    command = [sys.executable, "-m", "tests.faults.commit_host", str(tmp_path), *points]
    told = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    judged = [json.loads(line) for line in told.stdout.splitlines()]
    for one in judged:
        assert "error" not in one, f"{one['point']}: {one['error']}"
    return [one for one in judged if one["killed"]]


def test_a_host_killed_at_some_commits_leaves_what_is_true(tmp_path):
    assert len(killed_at(tmp_path, *SOME)) == len(SOME)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_host_killed_at_every_commit_leaves_what_is_true(tmp_path):
    killed = killed_at(tmp_path, "all")
    assert len(killed) > 30
    verdicts = collections.Counter(verdict for one in killed for verdict in one["verdicts"])
    assert set(verdicts) == {"NEVER_SENT", "UNKNOWN", "FINISHED_UNREPORTED"}
