"""Stands for `claude` or `codex`: runs the real one and kills it, and itself, with SIGKILL at a chosen frame. Standard library; a script.

CUTTER_PLAN names a JSON file: `real` (the binary), `at` (keys, dotted for those within, and values that the frame must have; "*" is any
value), `arg` (the argument by which a process is one that may be cut), `shown` (whether the frame is still passed on), `after_s` (how
long after it the kill comes), `times` (how many processes are cut, over all that share the file).
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time


def claims_a_cut(plan_path: pathlib.Path, times: int) -> bool:
    for number in range(times):
        try:
            os.close(os.open(f"{plan_path}.{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return True
    return False


def within(frame: object, path: str) -> object:
    for key in path.split("."):
        frame = frame.get(key) if isinstance(frame, dict) else None
    return frame


def matches(frame: dict, wanted: dict) -> bool:
    return all(
        found is not None and value in ("*", found) for found, value in ((within(frame, key), value) for key, value in wanted.items())
    )


def cut(child: subprocess.Popen) -> None:
    child.kill()
    child.wait()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    plan_path = pathlib.Path(os.environ["CUTTER_PLAN"])
    plan = json.loads(plan_path.read_text())
    argv = [plan["real"], *sys.argv[1:]]
    if plan.get("arg", "--input-format") not in argv or not claims_a_cut(plan_path, plan["times"]):
        os.execv(argv[0], argv)  # noqa: S606
    child = subprocess.Popen(argv, stdout=subprocess.PIPE)
    for line in child.stdout:
        hit = matches(json.loads(line), plan["at"])
        if hit and not plan["shown"]:
            cut(child)
        os.write(1, line)
        if hit:
            time.sleep(plan["after_s"])
            cut(child)
    sys.exit(child.wait())


if __name__ == "__main__":
    main()
