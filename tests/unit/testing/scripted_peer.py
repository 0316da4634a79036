"""Drives the scripted CLI over its pipes, blocking, one line at a time."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time

from greenroom.testing.scripted import scripted_claude_argv

ARGV = ("--print", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")


class Peer:
    def __init__(self, home, *args, env=None, replay=True, stderr=subprocess.PIPE):
        home.mkdir(exist_ok=True, parents=True)
        self.state = home / "state"
        clean = {"PATH": os.environ["PATH"], "HOME": str(home), "GREENROOM_SCRIPTED_STATE": str(self.state), **(env or {})}
        argv = (*scripted_claude_argv(), *ARGV, *(("--replay-user-messages",) if replay else ()), *args)
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=clean, cwd=home, bufsize=0)
        self.buffer = b""
        self.frames = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()

    def send(self, *frames):
        self.raw(b"".join(json.dumps(frame).encode() + b"\n" for frame in frames))

    def raw(self, data):
        self.process.stdin.write(data)

    def say(self, text, uuid=None, **more):
        frame = {"type": "user", "message": {"role": "user", "content": text}, **more}
        self.send({**frame, "uuid": uuid} if uuid else frame)

    def control(self, subtype, request_id="r", **fields):
        self.send({"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **fields}})

    def line(self, timeout=30.0):
        """One raw line without its end; b"" at the end of the output; TimeoutError."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self.buffer:
            if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError(self.frames[-3:])
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                rest, self.buffer = self.buffer, b""
                return rest
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line or b" "

    def frame(self, timeout=30.0):
        line = self.line(timeout)
        if not line:
            return None
        frame = json.loads(line)
        self.frames.append(frame)
        return frame

    def until(self, kind, **values):
        """Read up to the next frame of a type (or subtype, or state) with these values."""
        while True:
            frame = self.frame()
            assert frame is not None, f"ended before {kind}: {self.frames[-3:]}"
            if kind in (frame.get("type"), frame.get("subtype"), frame.get("state")) and values.items() <= frame.items():
                return frame

    def turn(self, text, uuid=None):
        """Run a turn and return its result."""
        self.say(text, uuid)
        result = self.until("result")
        if uuid:
            self.until("command_lifecycle", command_uuid=uuid)
        return result

    def rest(self):
        self.process.stdin.close()
        while self.frame() is not None:
            pass
        return self.process.wait(30)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def gone(self, timeout=30):
        while self.line(timeout):
            pass
        return self.process.wait(timeout)


def kind(frame):
    """What a frame is, without ids and texts."""
    message = frame.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    block = content[0]["type"] if isinstance(content, list) and content else None
    told = (frame.get("type"), frame.get("subtype"), frame.get("state"), block, frame.get("event", {}).get("type"))
    marks = [key for key in ("isReplay", "aborted", "error", "terminal_reason", "is_error", "status") if key in frame]
    return (*(one for one in told if one), *(f"{key}={frame[key]}" for key in marks))
