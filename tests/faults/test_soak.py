"""The short form of `python -m benchmarks.soak`: a process of its own, so that nothing else is in the numbers."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def soaked(*options):
    done = subprocess.run([sys.executable, "-m", "benchmarks.soak", *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_hundred_turns_with_faults_leave_everything_flat():
    told = soaked("--turns", "200", "--sessions", "20", "--live", "8", "--faults", "0.1")
    assert "200 turns, 20 sessions" in told
    assert "MISSED" not in told


@pytest.mark.full
@pytest.mark.timeout(900)
def test_two_thousand_turns_with_faults_leave_everything_flat():
    assert "2000 turns, 100 sessions" in soaked()
