"""The first server of a home goes alone: who waits for it, for how long, and what is left of the lock."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading

import pytest

from greenroom.transports.codex.first_start import NAME, take

HOLD = """
import pathlib, sys
from greenroom.transports.codex.first_start import take
held = take(pathlib.Path(sys.argv[1]))
print(held, flush=True)
sys.stdin.read()
"""


def make_databases(home: pathlib.Path) -> None:
    (home / "state_5.sqlite").touch()


def test_a_home_with_databases_needs_no_lock_and_one_that_is_not_there_has_none(tmp_path: pathlib.Path) -> None:
    assert take(tmp_path / "nowhere") is None
    make_databases(tmp_path)
    assert take(tmp_path) is None
    assert os.listdir(tmp_path) == ["state_5.sqlite"]


def test_nothing_is_left_of_it(tmp_path: pathlib.Path) -> None:
    release = take(tmp_path)
    assert release is not None
    assert os.listdir(tmp_path) == [NAME]
    release()
    release()
    assert os.listdir(tmp_path) == []


def test_another_one_waits_until_it_is_given_back(tmp_path: pathlib.Path) -> None:
    release, got = take(tmp_path), []
    assert release is not None
    waiter = threading.Thread(target=lambda: got.append(take(tmp_path, 30.0)))
    waiter.start()
    waiter.join(0.3)
    assert waiter.is_alive()
    make_databases(tmp_path)
    release()
    waiter.join(20)
    assert got == [None], "the databases are there"


def test_a_home_whose_databases_are_elsewhere_is_locked_once(tmp_path: pathlib.Path) -> None:
    release = take(tmp_path)
    assert release is not None
    release()
    assert take(tmp_path) is None


def test_nobody_waits_for_ever(tmp_path: pathlib.Path) -> None:
    release = take(tmp_path)
    assert release is not None
    assert take(tmp_path, 0.2) is None
    release()


def test_a_program_that_dies_gives_it_back(tmp_path: pathlib.Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdin is not None
    assert "_Release" in program.stdout.readline()
    assert take(tmp_path, 0.1) is None
    program.kill()
    program.wait()
    program.stdin.close()
    program.stdout.close()
    release = take(tmp_path)
    assert release is not None
    release()


def test_a_home_that_cannot_be_written_is_left_alone(tmp_path: pathlib.Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / NAME).mkdir()  # root may write anywhere
    else:
        tmp_path.chmod(0o500)
    assert take(tmp_path) is None


@pytest.mark.parametrize("shared", [True, False])
def test_a_start_that_fails_gives_it_back(tmp_path: pathlib.Path, shared: bool) -> None:
    from greenroom import Agent, ApprovalPolicy, CodexAppServerTransport, GreenroomError, NativePermissions, TurnRequest

    home, binary = tmp_path / "home", tmp_path / "codex"
    home.mkdir()
    binary.write_text("#!/bin/sh\ncase $1 in --version) echo codex-cli 0.163.0;; *) exit 3;; esac\n")
    binary.chmod(0o700)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CODEX_HOME": str(home)}
    transport = CodexAppServerTransport(binary=binary, env=env, shared=shared)
    agent = Agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    with agent.session(tmp_path) as session, pytest.raises(GreenroomError):
        session.run(session.prepare_turn(TurnRequest("x")))
    assert os.listdir(home) == []
