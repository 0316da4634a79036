"""What Codex conversations cost on the real CLI, in one server and in one each; and what a turn costs over a raw JSON-RPC loop.

`python -m benchmarks.codex [--conversations 32] [--alone 32] [--turns 60] [--binary PATH]` prints the table, and exits with 1 when a target
is missed. The model is a server on loopback in a process of its own, which answers at once. Needs a real Codex.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import psutil

from benchmarks.figures import Figure, middle, table
from greenroom import ApprovalPolicy, CodexAppServerTransport, Greenroom, NativePermissions, Session, TurnRequest
from greenroom.transports.codex.conversation import DELTAS

MEMORY_MB = 350.0
OVERHEAD_MS = 2.0
NO_LIMIT = float("inf")
_CONFIG = {"shell_environment_policy.set.GREENROOM_MARK": "gr/00000000-0000-4000-8000-000000000000/session-0123456789abcdef/1"}


@contextlib.contextmanager
def model(folder: Path) -> Iterator[dict[str, str]]:
    """Run a model server; give the environment for Codex."""
    argv = [sys.executable, "-m", "greenroom.testing.model_server", "--home", str(folder / "home")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        server.stdout.readline()
        env: dict[str, str] = {}
        while "GREENROOM_SCRIPTED_KEY" not in env:
            name, _, value = server.stdout.readline().strip().partition("=")
            env[name] = value
        kept = ("PATH", "HOME", "LANG", "SHELL", "CODEX_HOME", "TMPDIR", "NO_PROXY", "GREENROOM_SCRIPTED_KEY")
        try:
            yield {"CODEX_HOME": str(folder / "home" / "codex"), **{name: env[name] for name in kept if name in env}}
        finally:
            server.terminate()


def servers(binary: str) -> list[psutil.Process]:
    """Return the Codex processes below this one."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may be ending
            found += [child] if binary in child.cmdline() else []
    return found


@attrs.frozen(kw_only=True)
class Crowd:
    """Some conversations, each after a turn. `rss_mb` counts shared pages in every process, `pss_mb` once."""

    processes: int
    rss_mb: float
    pss_mb: float
    seconds: float


def say(session: Session, text: str) -> float:
    """Run a short turn, in the conversation that is held if there is one; return how long it took."""
    ticket = session.prepare_turn(TurnRequest(prompt=f"SAY {text}"), pin=session.conversation_id is not None)
    began_s = time.perf_counter()
    session.run(ticket)
    return time.perf_counter() - began_s


def sessions(room: Greenroom, transport: CodexAppServerTransport, folder: Path, count: int) -> list[Session]:
    """Begin sessions, each in a directory of its own."""
    agent = room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    folders = [folder / f"work-{number}" for number in range(count)]
    for work in folders:
        work.mkdir(exist_ok=True)
    return [agent.session(work) for work in folders]


def crowd(binary: str, count: int, *, shared: bool) -> Crowd:
    """Start so many at once, run a turn in each, and look at the processes."""
    with tempfile.TemporaryDirectory(prefix="greenroom-codex-") as name, model(Path(name)) as env, Greenroom(max_starting=count) as room:
        warm(room, binary, env, Path(name))
        began = sessions(room, CodexAppServerTransport(binary=binary, env=env, shared=shared), Path(name), count)
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            began_s = time.perf_counter()
            list(pool.map(lambda session: say(session, "hi"), began))
            seconds = time.perf_counter() - began_s
        found = servers(binary)
        memory = [process.memory_full_info() for process in found]
        return Crowd(
            processes=len(found),
            rss_mb=sum(info.rss for info in memory) / 1e6,
            pss_mb=sum(info.pss for info in memory) / 1e6,
            seconds=seconds,
        )


def warm(room: Greenroom, binary: str, env: dict[str, str], folder: Path) -> None:
    """Have the home's databases made, and the binary in the page cache."""
    (session,) = sessions(room, CodexAppServerTransport(binary=binary, env=env, shared=False), folder, 1)
    say(session, "warm")
    session.close()


class Raw:
    """The least that can be done: write the request that greenroom writes, read lines until the turn's end, decode each."""

    def __init__(self, binary: str, env: dict[str, str], cwd: Path) -> None:
        self._process = subprocess.Popen(
            [binary, "app-server"], env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._count = 0
        asked = {"clientInfo": {"name": "raw", "version": "0"}}
        self._call("initialize", {**asked, "capabilities": {"experimentalApi": True, "optOutNotificationMethods": list(DELTAS)}})
        self._write({"method": "initialized"})
        thread = {"cwd": str(cwd), "approvalPolicy": "never", "sandbox": "danger-full-access", "config": _CONFIG}
        self._thread = self._call("thread/start", thread)["thread"]["id"]

    def _write(self, frame: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(frame).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        frame: dict[str, Any] = json.loads(self._process.stdout.readline())
        return frame

    def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        self._write({"id": self._count, "method": method, "params": params})
        while (frame := self._read()).get("id") != self._count or "method" in frame:
            pass
        result: dict[str, Any] = frame["result"]
        return result

    def say(self, text: str) -> float:
        """Run a short turn; return how long it took."""
        began_s = time.perf_counter()
        settings = {"approvalPolicy": "never", "sandboxPolicy": {"type": "dangerFullAccess"}, "clientUserMessageId": str(uuid.uuid4())}
        self._call("turn/start", {"threadId": self._thread, "input": [{"type": "text", "text": f"SAY {text}"}], **settings})
        while self._read().get("method") != "turn/completed":
            pass
        return time.perf_counter() - began_s

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def pair(raw: Raw, session: Session, number: int) -> tuple[float, float]:
    """Run a turn of each kind; which goes first changes, for it matters."""
    if number % 2:
        return raw.say(f"n{number}"), say(session, f"n{number}")
    ours_s = say(session, f"n{number}")
    return raw.say(f"n{number}"), ours_s


def turns(binary: str, count: int) -> tuple[float, float]:
    """Return the median of a turn in a raw loop, and that plus the median of what a turn through greenroom beside it took more.

    In milliseconds. Pairs, since Codex's own 30 ms wander by more than what is measured.
    """
    with tempfile.TemporaryDirectory(prefix="greenroom-codex-") as name, model(Path(name)) as env, Greenroom() as room:
        warm(room, binary, env, Path(name))
        (session,) = sessions(room, CodexAppServerTransport(binary=binary, env=env), Path(name), 1)
        raw = Raw(binary, env, Path(name))
        try:
            pairs = [pair(raw, session, number) for number in range(count + 6)][6:]
        finally:
            raw.close()
    raw_ms = middle([pair[0] for pair in pairs]) * 1e3
    return raw_ms, raw_ms + middle([pair[1] - pair[0] for pair in pairs]) * 1e3


def figures(binary: str, *, conversations: int, alone: int, count: int) -> list[Figure]:
    """Measure everything."""
    together, apart = crowd(binary, conversations, shared=True), crowd(binary, alone, shared=False)
    raw_ms, ours_ms = turns(binary, count)
    shared, own = f"{conversations} conversations, {together.processes} server", f"{alone} conversations, {apart.processes} servers"
    return [
        Figure(name=f"{shared}: resident memory", unit="MB", ours=together.rss_mb, target=f"< {MEMORY_MB:g}", limit=MEMORY_MB),
        Figure(name=f"{own}: resident memory, shared pages once", unit="MB", ours=apart.pss_mb, target="", limit=NO_LIMIT),
        Figure(name=f"{own}: resident memory, summed", unit="MB", ours=apart.rss_mb, target="", limit=NO_LIMIT),
        Figure(name=f"{shared}: all started, a turn each", unit="s", ours=together.seconds, target="", limit=NO_LIMIT),
        Figure(name=f"{own}: all started, a turn each", unit="s", ours=apart.seconds, target="", limit=NO_LIMIT),
        Figure(name="a turn, p50", unit="ms", raw=raw_ms, ours=ours_ms, target=f"< raw + {OVERHEAD_MS:g}", limit=raw_ms + OVERHEAD_MS),
    ]


def main(argv: list[str]) -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codex", description="What Codex conversations cost on the real CLI.")
    parser.add_argument("--conversations", type=int, default=32, help="in one server")
    parser.add_argument("--alone", type=int, default=32, help="each in a server of its own")
    parser.add_argument("--turns", type=int, default=60, help="of each kind, for the overhead")
    parser.add_argument("--binary", help="the real Codex; by default from PATH or the package openai-codex-cli-bin")
    options = parser.parse_args(argv)
    binary = CodexAppServerTransport(binary=options.binary).find_binary()
    before = os.getloadavg()[0]
    found = figures(binary, conversations=options.conversations, alone=options.alone, count=options.turns)
    print(table(found))
    version = CodexAppServerTransport(binary=binary).check()
    print(f"Codex {version}; {os.cpu_count()} cores, load average {before:.1f} before and {os.getloadavg()[0]:.1f} after")
    return 0 if all(figure.met for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
