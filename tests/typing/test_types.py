"""What a type checker tells the users of the library."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

import greenroom

pytest.importorskip("mypy", reason="comes with the extra `dev`")

HERE = pathlib.Path(__file__).parent
SOURCE = pathlib.Path(greenroom.__file__).parents[1]


def test_what_mypy_sees(tmp_path):
    argv = (sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path), str(HERE / "usage.py"))
    said = subprocess.run(argv, check=False, cwd=SOURCE, capture_output=True, text=True, timeout=120).stdout
    revealed = [re.sub(r"[\w.]+\.(\w+)", r"\1", name) for name in re.findall(r'Revealed type is "(.*)"', said)]
    turns = ["TurnTicket", "Turn", "Turn", "SessionEvent", "AgentEvent", "Turn", "Turn", "ProviderUsage | None", "Agent"]
    assert revealed == turns, said
    errors = re.findall(r"usage\.py:\d+: error: (.*)", said)
    assert errors == [
        'Missing named argument "permissions" for "Agent"  [call-arg]',
        'Missing named argument "approvals" for "Agent"  [call-arg]',
    ]
