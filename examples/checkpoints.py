"""A conversation that outlives the program: a checkpoint store on disk. Run it: python examples/checkpoints.py [--real]

Without a directory it runs itself three times in one: each run is a program of its own, and goes on where the last one stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import msgspec
from offline import REAL, play, use_scripted_claude

from greenroom import Agent, ApprovalPolicy, Checkpoint, NativePermissions, TurnRequest

RUNS = 3


class FileCheckpoints:
    """A file for each key. Runs on the store's thread; what it raises is reported as `session.degraded` and fails no turn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, key: str) -> Checkpoint | None:
        try:
            return msgspec.json.decode(self._path(key).read_bytes(), type=Checkpoint)
        except FileNotFoundError:
            return None

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        half = self._path(key).with_suffix(".half")
        half.write_bytes(msgspec.json.encode(checkpoint))
        half.replace(self._path(key))  # a program that is killed here leaves the old one or the new one

    def clear(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{quote(key, safe='')}.json"


def one_run(folder: Path) -> None:
    agent = Agent("claude", permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    with agent.session(folder, checkpoints=FileCheckpoints(folder / "checkpoints"), checkpoint_key="my-task") as session:
        held = session.conversation_id
        prompt = play("How many times have I asked you this? Answer with the number only.", "SAY once more")
        turn = session.run(session.prepare_turn(TurnRequest(prompt, timeout=120)))
        print(f"process {os.getpid()} held {held}, ran in {turn.conversation_id} ({turn.continuity.value}): {turn.result.text!r}")


def main() -> None:
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    work = use_scripted_claude()
    if folders:
        one_run(folders[0])
        return
    for _ in range(RUNS):
        subprocess.run([sys.executable, __file__, str(work), *(["--real"] if REAL else [])], check=True)


if __name__ == "__main__":
    main()
