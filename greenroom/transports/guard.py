"""The guard: one small process beside the host that ends the host's CLIs, and all that came of them, when the host dies.

In whatever way it dies: the guard holds the reading end of a pipe (the lifeline) whose writing end only the host has, closed on exec
and in forked copies. It is in a session of its own, ignores what a terminal or a service manager sends, and holds none of the host's
output open. `Guard` never blocks and decides nothing; its owner (one thread) watches `exit_fd` and restarts it.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from greenroom.ids import new_nonce
from greenroom.transports.base import ProcessExit
from greenroom.transports.binaries import find_binary
from greenroom.transports.marks import scan
from greenroom.transports.pipes import WriteBuffer
from greenroom.transports.process import LocalProcess, spawn

MAX_SIDS = 10_000
_SCRIPT = pathlib.Path(__file__).with_name("guard_script.py")
# The guard needs psutil where there is no /proc, and for that the installed packages.
_FLAGS = ("-I", "-S") if sys.platform == "linux" else ("-I",)

_host: tuple[int, str] | None = None


def host_id() -> str:
    """Return the random id of this process, the same on every call; a forked copy has another."""
    global _host  # noqa: PLW0603 - it names the process, so it is the process's
    if _host is None or _host[0] != os.getpid():
        _host = (os.getpid(), new_nonce())
    return _host[1]


class Guard:
    """A running guard. Make one with `start`; give it to one owner."""

    def __init__(self, process: LocalProcess, prefixes: tuple[str, ...], sids: Mapping[int, int]) -> None:
        self.prefixes = prefixes
        self.sids: dict[int, int] = {}
        self._process = process
        self._buffer = WriteBuffer()
        self.tell_sids(sids)

    @classmethod
    def start(cls, prefixes: Iterable[str], *, sids: Mapping[int, int] | None = None, python: str = "") -> Guard:
        """Start a guard for everything whose mark begins with one of `prefixes`. Blocks for a fork and exec.

        `sids` are sessions seen under these marks (`Snapshot.sids_of`). `python` is the interpreter (default: the running one).
        Raises CliNotFoundError when the interpreter is gone, OSError when the machine refuses.
        """
        ours = tuple(prefixes)
        program = find_binary(python or sys.executable)
        protected = ",".join(str(sid) for sid in sorted(scan().safe_sids))
        argv = (str(program), *_FLAGS, str(_SCRIPT), str(os.getpid()), protected, *ours)
        reading, writing = os.pipe()
        try:
            os.set_blocking(writing, False)
            # "/": it must not keep a directory busy.
            pid = spawn(program, argv, pathlib.Path("/"), os.environ, (reading, subprocess.DEVNULL, subprocess.DEVNULL))
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return cls(LocalProcess(pid, argv, None, (writing, None, None)), ours, sids or {})

    def restart(self) -> Guard:
        """Start another one that knows what this one, which is dead, knew. Blocks and raises like `start`."""
        self.abandon()
        return Guard.start(self.prefixes, sids=self.sids, python=self._process.argv[0])

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._process.pid

    @property
    def exit_fd(self) -> int | None:
        """Turns readable when it ends (None: poll)."""
        return self._process.exit_fd

    def poll(self) -> ProcessExit | None:
        """Reap it if it has ended; never blocks."""
        return self._process.poll()

    def tell_sids(self, sids: Mapping[int, int]) -> None:
        """Tell it of sessions seen under the marks, so that a process with a cleared environment in one of them is found later."""
        new = {sid: seen_at for sid, seen_at in sids.items() if self.sids.get(sid) != seen_at}
        self.sids |= new
        for sid in list(self.sids)[:-MAX_SIDS]:
            del self.sids[sid]
        if new:
            self._tell({"sids": {str(sid): seen_at for sid, seen_at in new.items()}})

    def close(self) -> None:
        """Part in good order: it exits at once and ends nothing. Idempotent; the owner still reaps it with `poll`."""
        self._tell({"close": True})
        self._process.close_stdin()

    def abandon(self) -> None:
        """Let it think that the host is dead: it ends everything, then exits. Idempotent."""
        self._process.close_stdin()

    def release(self) -> None:
        """Close the descriptors that are left, once it has ended. Idempotent."""
        self._process.close()

    def _tell(self, order: dict[str, Any]) -> None:
        fd = self._process.stdin_fd
        if fd is not None:
            self._buffer.append(json.dumps(order).encode() + b"\n")
            self._buffer.flush(fd)
