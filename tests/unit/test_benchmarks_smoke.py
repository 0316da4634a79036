from __future__ import annotations

import math
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.timeout(180)
def test_every_figure_is_produced():
    argv = [sys.executable, "-m", "benchmarks", "--smoke"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    names = [row[0] for row in rows]
    for part in ("event age p50", "event age p99", "short turn", "burst", "interrupt p50", "interrupt p99"):
        for face in ("threads", "asyncio"):
            assert any(part in name and face in name for name in names), (part, face)
    for part in ("processor", "threads", "memory"):
        assert any(part in name for name in names), part
    for row in rows:
        assert math.isfinite(float(row[3].replace(",", ""))), row
