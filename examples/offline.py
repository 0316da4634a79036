"""Lets every example here run without an account: puts a scripted `claude`, which is a real process, first on PATH.

With `--real` on the command line nothing is changed, and the examples use the Claude Code that is installed, and spend money.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from greenroom.testing import write_scripted_claude

REAL = "--real" in sys.argv


def use_scripted_claude() -> Path:
    """Set up the scripted CLI unless `--real` is given; return a directory to work in, which is removed at exit."""
    folder = Path(tempfile.mkdtemp(prefix="greenroom-example-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if not REAL:
        write_scripted_claude(folder / "bin")
        os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        os.environ.setdefault("GREENROOM_SCRIPTED_STATE", str(folder / "state"))
    work = folder / "work"
    work.mkdir()
    return work


def say(line: str) -> None:
    """Print a line whole: `print` writes its end apart, and another thread's line may come in between."""
    sys.stdout.write(f"{line}\n")


def play(real: str, *script: str) -> str:
    """Return the prompt for the real CLI, or the lines that the scripted one plays instead."""
    return real if REAL else "\n".join(script)
