"""A peer that plays a recording: it writes the frames that Claude Code once wrote, and waits where it once read.

    python replay_claude.py RECORDING [claude's arguments]

A recording is a file of JSON lines `{"d": "out" | "in", "f": frame}`, optionally with `"p"`, the number of the process, of which one
(GREENROOM_REPLAY_PROCESS, default 0) is played. Uuids, request ids, prompts and the conversation's id of the recording are replaced by
those of the driver. A driver that says something else than the recorded one ends it with status 3 and a line on stderr that tells both.
Lines `{"d": "proc", "f": {"exit": n}}` and `{"signal": n}` say how it ends; without one it ends well once its input is closed.

Uses the standard library alone; one thread, blocking.
"""

from __future__ import annotations

import json
import os
import signal
import sys

TYPE_CHECKING = False  # importing typing would cost a third of the start-up time
if TYPE_CHECKING:
    from typing import Any

MISMATCH = 3


def kind(frame: dict[str, Any]) -> tuple[str, str]:
    """Return what a line to Claude Code is: its type, and its subtype where it has one."""
    inner = frame.get("request") or frame.get("response") or {}
    return str(frame.get("type")), str(inner.get("subtype", ""))


def ids(frame: dict[str, Any]) -> list[str]:
    """Return the strings of a line by which later frames refer to it, always in the same order."""
    inner = frame.get("request") or {}
    message = frame.get("message") or {}
    found = (frame.get("uuid"), frame.get("request_id"), inner.get("message_uuid"), message.get("content"))
    return [json.dumps(value, ensure_ascii=False) if value else "" for value in found]


class Replay:
    """One recording that is being played."""

    def __init__(self, path: str, argv: list[str]) -> None:
        process = int(os.environ.get("GREENROOM_REPLAY_PROCESS", "0"))
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib would double the start-up time
            records = [json.loads(line) for line in file if line.strip()]
        self.records = [record for record in records if (record.get("p") or 0) == process]
        self.names: dict[str, str] = {}
        self.adopt_conversation(argv)

    def adopt_conversation(self, argv: list[str]) -> None:
        """Let the conversation have the id that the driver asks for."""
        wanted = option(argv, "--resume") or option(argv, "--session-id")
        frames = (record["f"] for record in self.records if record["d"] == "out")
        recorded = next((frame["session_id"] for frame in frames if frame.get("session_id")), None)
        if wanted and recorded:
            self.names[json.dumps(recorded)] = json.dumps(wanted)

    def play(self) -> int:
        """Play to the end; return the exit status."""
        for record in self.records:
            if record["d"] == "out":
                self.write(record["f"])
            elif record["d"] == "in" and isinstance(record["f"], dict):
                line = sys.stdin.buffer.readline()
                if not line.strip():
                    return 0
                if not self.take(record["f"], json.loads(line)):
                    return MISMATCH
            elif record["d"] == "proc" and isinstance(record["f"], dict):
                self.end(record["f"])
        sys.stdin.buffer.read()
        return 0

    def take(self, recorded: dict[str, Any], given: dict[str, Any]) -> bool:
        """Match a line of the driver with the recorded one, and remember its names."""
        if kind(recorded) != kind(given):
            sys.stderr.write(f"the recording expects {kind(recorded)}, the driver sent {kind(given)}: {json.dumps(given)[:500]}\n")
            return False
        for old, new in zip(ids(recorded), ids(given), strict=True):
            if old and new:
                self.names[old] = new
        return True

    def write(self, frame: dict[str, Any]) -> None:
        """Write a recorded frame with the driver's names in it."""
        sys.stdout.write(json.dumps(self.renamed(frame), ensure_ascii=False, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    def renamed(self, value: Any) -> Any:
        """Replace what the recording calls otherwise, however deep."""
        if isinstance(value, dict):
            return {key: self.renamed(inner) for key, inner in value.items()}
        if isinstance(value, str) or (isinstance(value, list) and json.dumps(value, ensure_ascii=False) in self.names):
            new = self.names.get(json.dumps(value, ensure_ascii=False))
            return value if new is None else json.loads(new)
        return [self.renamed(inner) for inner in value] if isinstance(value, list) else value

    def end(self, how: dict[str, Any]) -> None:
        """End as the recorded process did: by a signal at once, with a status once the input is closed."""
        if how.get("signal"):
            os.kill(os.getpid(), how["signal"])
            signal.pause()
        if "exit" in how:
            if how["exit"] == 0:
                sys.stdin.buffer.read()
            os._exit(max(0, how["exit"]))


def option(argv: list[str], name: str) -> str | None:
    """Return the value of an option, given as `--name value` or `--name=value`."""
    for place, argument in enumerate(argv):
        if argument == name and place + 1 < len(argv):
            return argv[place + 1]
        if argument.startswith(name + "="):
            return argument.partition("=")[2]
    return None


def main() -> None:
    """Play the recording that is the first argument."""
    if "--version" in sys.argv:
        print("2.1.332 (Claude Code)")  # noqa: T201 - a command
        return
    status = Replay(sys.argv[1], sys.argv[2:]).play()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
