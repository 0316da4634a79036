"""Faults of the command that were found by trying to break it: as a real process, or in ours where that is enough."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from greenroom.testing.scripted import write_scripted_claude

ROOT = pathlib.Path(__file__).parents[2]
TASKS = '[defaults]\npermissions = "bypass"\n[[task]]\nid = "a"\nprompt = "SAY hi"\n'
MANY_DIGITS = "9" * 5000


@pytest.fixture
def folder(tmp_path):
    write_scripted_claude(tmp_path)
    (tmp_path / "tasks.toml").write_text(TASKS)
    return tmp_path


def greenroom(folder, *args, stdout=subprocess.PIPE, before="", timeout_s=30):
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    command = f'{before} exec {sys.executable} -m greenroom "$@"'
    return subprocess.run(
        ["/bin/sh", "-c", command, "sh", *map(str, args)],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_a_binary_in_the_working_directory_is_meant_by_its_path(folder):
    done = greenroom(folder, "run", "--claude-binary", "./claude", "tasks.toml")
    assert done.returncode == 0, done.stderr
    assert "1 done" in done.stdout
    assert "not an executable file" in greenroom(folder, "run", "--claude-binary", "claude-that-is-nowhere", "tasks.toml").stderr


@pytest.mark.parametrize("what", ["pipe", "device"])
@pytest.mark.parametrize("dry", [True, False])
def test_results_go_to_a_regular_file_only(folder, what, dry):
    if what == "pipe":
        os.mkfifo(folder / "pipe")
    out = folder / "pipe" if what == "pipe" else "/dev/zero"
    done = greenroom(folder, "run", "--out", out, "tasks.toml", *(["--dry-run"] if dry else []))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a regular file" in done.stderr


BAD_TASKS = {
    "seconds beyond a float": (
        "t.jsonl",
        '{"prompt": "x", "permissions": "bypass", "timeout": ' + "9" * 400 + "}",
        "'timeout': is too large",
    ),
    "a number of JSON with too many digits": ("t.jsonl", '{"timeout": ' + MANY_DIGITS + "}", "too many digits"),
    "a number of TOML with too many digits": ("t.toml", "[[task]]\ntimeout = " + MANY_DIGITS, "too many digits"),
    "half a character in a directory": (
        "t.jsonl",
        '{"prompt": "x", "permissions": "bypass", "cwd": "a\\ud800"}',
        "'cwd': cannot be encoded",
    ),
    "half a character in a file": ("t.jsonl", '{"prompt_file": "a\\ud800", "permissions": "bypass"}', "'prompt_file': cannot be encoded"),
    "half a character in a model": (
        "t.jsonl",
        '{"prompt": "x", "permissions": "bypass", "model": "a\\ud800"}',
        "'model': cannot be encoded",
    ),
    "half a character in a variable": ("t.jsonl", '{"prompt": "x", "permissions": "bypass", "env": {"A": "\\ud800"}}', "'A' cannot be"),
}


@pytest.mark.parametrize("name", BAD_TASKS)
def test_what_json_and_toml_can_say_and_we_cannot_use_is_refused(folder, name):
    file, text, words = BAD_TASKS[name]
    (folder / file).write_text(text)
    done = greenroom(folder, "run", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [["run", "--dry-run", "tasks.toml"], ["run", "--claude-binary", "./claude", "tasks.toml"], ["doctor"]])
def test_an_output_that_cannot_be_written_is_told_in_words(folder, args):
    with pathlib.Path("/dev/full").open("w") as full:
        done = greenroom(folder, *args, stdout=full)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_descriptors_and_no_directory_are_told_in_words(folder):
    done = greenroom(folder, "run", "--claude-binary", folder / "claude", "tasks.toml", before="ulimit -n 9;")
    assert done.returncode == 2  # nothing was started
    assert "Too many open files" in done.stderr
    assert "Traceback" not in done.stderr
    assert "npm install" not in done.stderr
    done = greenroom(folder, "run", folder / "tasks.toml", before="mkdir gone; cd gone; rmdir ../gone;")
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def many(folder, count):
    prompts = "".join(f'[[task]]\nid = "t{number}"\nprompt = "SLEEP 1\\nSAY hi"\n' for number in range(count))
    (folder / "many.toml").write_text(f'[defaults]\npermissions = "bypass"\n{prompts}')
    return ("run", "--claude-binary", "./claude", "--parallel", count, "--max-starting", count, "many.toml")


def test_a_low_soft_limit_of_open_files_is_raised_to_what_the_sessions_need(folder):
    done = greenroom(folder, *many(folder, 30), before="ulimit -Sn 64;", timeout_s=100)
    assert (done.returncode, "open files" in done.stderr) == (0, False), done.stderr


def test_a_hard_limit_of_open_files_is_told_beforehand_and_at_the_start_that_fails(folder):
    done = greenroom(folder, *many(folder, 30), before="ulimit -n 100;", timeout_s=100)
    assert done.returncode == 1
    assert "hint: 30 sessions at once may need 278 open files, and 100 are allowed" in done.stderr
    assert "Too many open files" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


UNFIT = {
    "too old": ('echo "2.0.1 (Claude Code)"', "bypass", "found version 2.0.1, needed 2.1.332 or newer"),
    "broken": ("echo boom >&2; exit 3", "bypass", "--version ended with status 3: boom"),
    "without a sandbox": ('echo "2.1.332 (Claude Code)"', "workspace-write", "WORKSPACE_WRITE needs the OS sandbox"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_cannot_run_at_all_is_bad_input_before_anything_starts(name, folder):
    script, permissions, why = UNFIT[name]
    unfit = folder / "unfit"
    unfit.mkdir()
    (unfit / "claude").write_text(f"#!/bin/sh\n{script}\n")
    (unfit / "claude").chmod(0o755)
    (folder / "tasks.toml").write_text(
        f'[defaults]\npermissions = "bypass"\nenv = {{ PATH = "{folder}" }}\n'
        f'[[task]]\nid = "fit"\nprompt = "WRITE {folder}/ran x"\n'
        f'[[task]]\nid = "unfit"\nprompt = "x"\npermissions = "{permissions}"\nenv = {{ PATH = "{unfit}" }}\n'
    )
    done = greenroom(folder, "run", "--out", "out.jsonl", "tasks.toml")
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert why in done.stderr
    assert not (folder / "ran").exists()
    assert (folder / "out.jsonl").read_bytes() == b""
    assert greenroom(folder, "run", "--dry-run", "tasks.toml").returncode == 0
