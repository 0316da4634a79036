"""Many real CLIs at once, each with a repository of its own; and what is left when all is over: nothing."""

from __future__ import annotations

import os
import pathlib
import subprocess
import threading

from greenroom import Turn
from greenroom.transports.guard import host_id
from greenroom.transports.marks import host_prefix, scan
from tests.e2e.stage import Running, Stage, until

SESSIONS = 16


def git(folder: pathlib.Path, *argv: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(("git", *who, *argv), cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


def repository(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "file.txt").write_text("before\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def prompt(number: int, folder: pathlib.Path) -> str:
    commit = f"git -c user.name=t -c user.email=t@localhost commit -qam edit-{number}"
    return f"BASH cat file.txt\nWRITE {folder}/file.txt after-{number}\\n\nBASH {commit}\nSAY done-{number}"


def test_sixteen_clis_edit_sixteen_repositories_and_leave_nothing(stage: Stage) -> None:
    threads_before = set(threading.enumerate())
    folders = [repository(stage.folder / f"repository-{number}") for number in range(SESSIONS)]
    agent = stage.agent()
    sessions = [stage.session(cwd=folder, agent=agent) for folder in folders]
    victim = 3  # one of them is killed in the middle: the others do not notice
    prompts = [prompt(number, folder) for number, folder in enumerate(folders)]
    prompts[victim] = "SLEEP 60\n" + prompts[victim]
    running = [stage.begin(session, text) for session, text in zip(sessions, prompts, strict=True)]
    stage.kill(folders[victim])
    stage.go_on()
    turns = [turn.join() for turn in running]
    check(turns, running, folders, victim)
    pids = [process.pid for folder in folders for process in stage.processes(folder)]
    assert len(pids) == SESSIONS
    stage.room.close()
    assert scan().matching([host_prefix(host_id())]) == []
    assert not [folder for folder in folders if stage.processes(folder)]
    until(lambda: set(threading.enumerate()) - threads_before - {threading.current_thread()} <= set(), "the threads to end")


def check(turns: list[Turn], running: list[Running], folders: list[pathlib.Path], victim: int) -> None:
    """Each did its own work, once, in a conversation of its own."""
    assert len({turn.conversation_id for turn in turns}) == SESSIONS
    for number, turn in enumerate(turns):
        assert turn.result.text == f"done-{number}"
        assert turn.restarts == (number == victim)
        assert (folders[number] / "file.txt").read_text() == f"after-{number}\n"
        assert git(folders[number], "log", "--format=%s").split() == [f"edit-{number}", "first"]
        assert git(folders[number], "status", "--porcelain") == ""
