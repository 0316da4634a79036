"""Stands for `claude` or `codex`: runs the real one and kills it, and itself, with SIGKILL at a chosen frame. Standard library; a script.

CUTTER_PLAN names a JSON file: `real` (the binary), `at` (keys, dotted for those within, and values that the frame must have; "*" is any
value), `arg` (the argument by which a process is one that may be cut), `shown` (whether the frame is still passed on), `times` (how many
processes are cut, over all that share the file), `written` (for each cut: what must be in a transcript before the kill comes).
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

PATIENCE_S = 30.0


def claims_a_cut(plan_path: pathlib.Path, times: int) -> int | None:
    for number in range(times):
        try:
            os.close(os.open(f"{plan_path}.{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return number
    return None


def within(frame: object, path: str) -> object:
    for key in path.split("."):
        frame = frame.get(key) if isinstance(frame, dict) else None
    return frame


def matches(frame: dict, wanted: dict) -> bool:
    return all(
        found is not None and value in ("*", found) for found, value in ((within(frame, key), value) for key, value in wanted.items())
    )


def wait_for(text: str) -> None:
    """Wait until the CLI has written it down; what it has said it may not have written yet."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        files = pathlib.Path(os.environ["HOME"]).glob(".claude/projects/*/*.jsonl")
        if any(text in path.read_text(errors="replace") for path in files):
            return
        time.sleep(0.01)


def cut(child: subprocess.Popen, written: str) -> None:
    if written:
        wait_for(written)
    child.kill()
    child.wait()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    plan_path = pathlib.Path(os.environ["CUTTER_PLAN"])
    plan = json.loads(plan_path.read_text())
    argv = [plan["real"], *sys.argv[1:]]
    number = claims_a_cut(plan_path, plan["times"]) if plan["arg"] in argv else None
    if number is None:
        os.execv(argv[0], argv)  # noqa: S606
    written = plan["written"][number] if number < len(plan["written"]) else ""
    child = subprocess.Popen(argv, stdout=subprocess.PIPE)
    for line in child.stdout:
        hit = matches(json.loads(line), plan["at"])
        if hit and not plan["shown"]:
            cut(child, written)
        os.write(1, line)
        if hit:
            cut(child, written)
    sys.exit(child.wait())


if __name__ == "__main__":
    main()
