"""Ctrl-C while the command is still being loaded, or has just begun: a status, no traceback."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

import greenroom

SOURCE = pathlib.Path(greenroom.__file__).parents[1]
# What an installer writes.
SCRIPT = "import sys\nfrom greenroom.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.mark.parametrize("cue", ["greenroom._loading", "attrs", "greenroom.room", "typer", "greenroom.cli.runner"])
@pytest.mark.parametrize("how", ["module", "script"])
def test_ctrl_c_while_it_is_being_loaded(tmp_path, how, cue):
    script = tmp_path / "greenroom"
    script.write_text(SCRIPT)
    command = ["-m", "greenroom"] if how == "module" else [str(script)]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    argv = [sys.executable, "-X", "importtime", *command, "run", "-"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    seen = []
    for line in process.stderr:  # one for each import that is over
        seen.append(line)
        if line.rstrip().endswith(f" {cue}"):
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=30)
    assert "Traceback" not in rest, rest
    assert process.returncode == 130, "".join(seen[-3:]) + rest


def test_another_program_keeps_its_ctrl_c(tmp_path):
    body = """
import signal, greenroom
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(greenroom._loading._taken)
"""
    for name, taken in (("mine.py", "False"), ("greenroom", "True")):
        (tmp_path / name).write_text(body)
        env = {**os.environ, "PYTHONPATH": str(SOURCE)}
        done = subprocess.run([sys.executable, str(tmp_path / name)], capture_output=True, text=True, env=env, check=True)
        assert done.stdout.strip() == taken


def test_between_the_package_and_its_main_it_is_still_taken():
    """`python -m` looks for the main module there, and has no words for Ctrl-C."""
    body = """
import signal, sys
sys.argv, sys.orig_argv = ["-m"], ["python", "-m", "greenroom", "--version"]
import greenroom
print(signal.getsignal(signal.SIGINT) is greenroom._loading._end)
sys.argv = ["greenroom", "--version"]
from greenroom.__main__ import main
try:
    main()
finally:
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("True", "True")
