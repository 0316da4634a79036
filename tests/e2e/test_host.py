"""The program that runs real CLIs is killed: nothing of them, and nothing that they started, may live on."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import psutil

from tests.e2e.stage import Stage, ended, until

ROOT = pathlib.Path(__file__).parents[2]
HOST = """
import json, sys, threading
from greenroom import Agent, ApprovalPolicy, ClaudeStreamTransport, NativePermissions, TurnRequest

binary, cwd, env = json.loads(sys.stdin.read())
transport = ClaudeStreamTransport(binary=binary, env=env)
agent = Agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
tool = "BASH setsid sleep 300 & echo x >> running; until false; do sleep 1; done"
for _ in range(3):
    session = agent.session(cwd)
    threading.Thread(target=session.run, args=(session.prepare_turn(TurnRequest(tool)),)).start()
"""


def test_a_host_that_is_killed_leaves_no_cli_and_no_tool(stage: Stage) -> None:
    argv = [sys.executable, "-c", HOST]
    host = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, text=True)
    assert host.stdin is not None
    host.stdin.write(json.dumps([str(stage.binary), str(stage.cwd), stage.env]))
    host.stdin.close()
    running = stage.cwd / "running"
    until(lambda: running.exists() and len(running.read_text()) == 6, "three tools to run")
    family = psutil.Process(host.pid).children(recursive=True)
    assert sum(process.name() == "sleep" for process in family) >= 3
    host.kill()
    host.wait()
    until(lambda: all(ended(process.pid) for process in family), "the end of all that the host had started")
