"""Drives the scripted Codex over its pipes, blocking, one line at a time."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import time

from greenroom.testing.scripted import scripted_codex_argv


class CodexPeer:
    def __init__(self, home, *, env=None, argv=None, stderr=subprocess.DEVNULL, state=None):
        (home / "codex").mkdir(exist_ok=True, parents=True)
        self.home = home
        self.state = state or home / "codex" / "scripted"
        clean = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home / "codex"), **(env or {})}
        argv = (*(argv or scripted_codex_argv()), "app-server")
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=clean, cwd=home, bufsize=0)
        self.buffer = b""
        self.frames = []
        self.unread = []
        self.ids = itertools.count(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()

    # --- frames ---

    def raw(self, data):
        self.process.stdin.write(data)

    def send(self, method, **params):
        """Send a request and return its id."""
        request_id = next(self.ids)
        self.raw(json.dumps({"id": request_id, "method": method, "params": params}).encode() + b"\n")
        return request_id

    def answer(self, request, **result):
        self.raw(json.dumps({"id": request["id"], "result": result}).encode() + b"\n")

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
        if self.unread:
            return self.unread.pop(0)
        line = self.line(timeout)
        if not line:
            return None
        frame = json.loads(line)
        self.frames.append(frame)
        return frame

    def where(self, test, what):
        while True:
            frame = self.frame()
            assert frame is not None, f"ended before {what}: {self.frames[-3:]}"
            if test(frame):
                return frame

    def until(self, method, thread_id=None, **values):
        """Read up to the next message of a method, of a thread, with these params."""

        def wanted(frame):
            params = frame.get("params", {})
            right = thread_id is None or params.get("threadId") == thread_id
            return frame.get("method") == method and right and values.items() <= params.items()

        return self.where(wanted, method)["params"]

    def asked(self, method):
        return self.where(lambda frame: frame.get("method") == method and "id" in frame, method)

    def item(self, kind, which="item/completed"):
        while True:
            item = self.until(which)["item"]
            if item["type"] == kind:
                return item

    def reply(self, request_id):
        return self.where(lambda frame: frame.get("id") == request_id and "method" not in frame, f"the reply to {request_id}")

    def call(self, method, **params):
        """Send a request and return its result; an error is an AssertionError."""
        reply = self.reply(self.send(method, **params))
        assert "result" in reply, reply
        return reply["result"]

    def refused(self, method, **params):
        """Send a request and return the error that answers it."""
        return self.reply(self.send(method, **params))["error"]

    def quiet(self, seconds=0.2):
        """Whether nothing comes for a while."""
        try:
            self.unread.append(self.frame(seconds))
        except TimeoutError:
            return True
        return False

    # --- the usual ---

    def begin(self, **capabilities):
        able = {"experimentalApi": True, **capabilities}
        return self.call("initialize", clientInfo={"name": "peer", "title": "Peer", "version": "0"}, capabilities=able)

    def thread(self, **params):
        """Start a thread in which nothing is asked."""
        params = {"cwd": str(self.home), "approvalPolicy": "never", "sandbox": "danger-full-access", **params}
        return self.call("thread/start", **params)["thread"]["id"]

    def start(self, thread_id, text, client_id=None, **more):
        """Start a turn and return its id."""
        content = [{"type": "text", "text": text}] if isinstance(text, str) else text
        return self.call("turn/start", threadId=thread_id, input=content, clientUserMessageId=client_id, **more)["turn"]["id"]

    def steer(self, thread_id, turn_id, text, client_id=None):
        content = [{"type": "text", "text": text}]
        return self.call("turn/steer", threadId=thread_id, expectedTurnId=turn_id, input=content, clientUserMessageId=client_id)

    def end(self, thread_id):
        return self.until("turn/completed", thread_id)["turn"]

    def turn(self, thread_id, text, client_id=None, **more):
        """Run a turn and return how it ended."""
        self.start(thread_id, text, client_id, **more)
        return self.end(thread_id)

    def said(self, thread_id, text):
        """Run a turn and return its answer."""
        turn = self.turn(thread_id, text)
        assert turn["status"] == "completed", turn
        return turn["items"][-1]["text"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def gone(self, timeout=30):
        while self.line(timeout):
            pass
        return self.process.wait(timeout)

    def rest(self):
        self.process.stdin.close()
        return self.gone()
