"""The guard's own program: outlives the host, ends what the host left behind, and exits. See `guard.py`.

Run by its path with an isolated interpreter that has the standard library only. Its standard input is the host's lifeline: lines of
JSON, `{"sids": {"123": 4567}}`, `{"close": true}`. The host is dead when the lifeline ends, and also when its pid
does (a forked copy of the host may hold the lifeline open). Then: SIGTERM, a second later SIGKILL, until a scan is clean.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

TERM_S = 1.0
KILL_S = 10.0
# The host may have been in the middle of a start when it died: what it started turns into one of ours a moment later.
SETTLE_S = 0.5
ROUND_S = 0.05
MAX_SIDS = 10_000
_KEPT = (signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP)


class Orders:
    """What the host has said so far."""

    def __init__(self, prefixes: list[str], protected_sids: list[int]) -> None:
        self.prefixes = prefixes
        self.protected_sids = protected_sids
        self.sids: dict[int, int] = {}
        self.closed = False
        self._half = b""

    def feed(self, data: bytes) -> None:
        """Take bytes of the lifeline. A line that makes no sense is skipped: nothing may end the guard but its job."""
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            with suppress(ValueError, TypeError, AttributeError):
                self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        self.sids.update({int(sid): int(seen_at) for sid, seen_at in order.get("sids", {}).items()})
        for sid in list(self.sids)[:-MAX_SIDS]:
            del self.sids[sid]
        self.closed = self.closed or bool(order.get("close"))


def ignore_signals() -> None:
    """Ignore all that a terminal, a service manager or a kind person sends.

    SIGTERM as well: what stops a whole group or a container reaches the guard first, and the host may need it yet. It ends with
    the host in any case.
    """
    for number in signal.valid_signals():
        if number not in _KEPT:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)


def watch(orders: Orders, host_pid: int) -> None:
    """Return when the host has said good-bye or is dead."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    host_fd, is_gone = _pidfd(host_pid)
    if host_fd is not None:
        poll.register(host_fd, select.POLLIN)
    while not orders.closed:
        ready = {fd for fd, _ in poll.poll(0 if is_gone else None)}
        data = os.read(0, 65536) if 0 in ready else None
        orders.feed(data or b"")
        if data == b"" or (data is None and (is_gone or host_fd in ready)):
            return


def _pidfd(host_pid: int) -> tuple[int | None, bool]:
    """Return a descriptor that tells the host's end, if there can be one; and whether the host died before we had it.

    A parent cannot be recycled before it is somebody else's parent, so look after it.
    """
    if not hasattr(os, "pidfd_open"):
        return None, False
    try:
        fd = os.pidfd_open(host_pid)
    except ProcessLookupError:
        return None, True
    except OSError:
        return None, False
    if os.getppid() == host_pid:
        return fd, False
    # We were given to another parent: the pid is the dead host's, not reaped yet, or by now a stranger's, of whom nothing follows.
    is_gone = bool(select.select([fd], [], [], 0)[0])
    os.close(fd)
    return None, is_gone


def end_all(orders: Orders, marks: ModuleType) -> None:
    """End everything with the host's marks, whatever it takes, within a bound."""
    sweep = marks.Sweep(orders.prefixes, orders.sids, protected_sids=orders.protected_sids)
    began_s = time.monotonic()
    pause = threading.Event()
    while (past_s := time.monotonic() - began_s) < TERM_S + KILL_S:
        with suppress(OSError):  # no memory, no descriptor: the next round may have some
            sweep.round(signal.SIGTERM if past_s < TERM_S else signal.SIGKILL)
            if sweep.done and past_s >= SETTLE_S:
                return
        pause.wait(ROUND_S)


def load_marks() -> ModuleType:
    """Load `marks.py` beside this file, without the package around it."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "marks.py")  # noqa: PTH118, PTH120, PTH100 - pathlib is slow to load
    spec = importlib.util.spec_from_file_location("greenroom_guard_marks", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(argv: list[str]) -> None:
    """Run: `argv` is the host's pid, the sids to leave alone (by comma), and the prefixes."""
    ignore_signals()
    marks = load_marks()
    orders = Orders(list(argv[2:]), [int(sid) for sid in argv[1].split(",") if sid])
    watch(orders, int(argv[0]))
    if not orders.closed:
        end_all(orders, marks)


if __name__ == "__main__":
    main(sys.argv[1:])
