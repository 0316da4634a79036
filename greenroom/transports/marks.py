"""Which processes are ours, and how to end them: by a mark in their environment, wherever they have gone.

A mark is one item of the ':'-separated list in GREENROOM_MARK. A CLI's descendants inherit it, also those in sessions of their own,
which no signal to a group reaches. Those with a cleared environment are found by the session id (sid) that a marked process was seen
in, or as children of one. A process is named by pid *and* start time: a recycled pid is never touched. A working directory is never a
reason to end anything; this process, its ancestors and their sessions are never touched.

Standard library only, and nothing of ours is imported: the guard loads this file by its path. Any thread.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote

VARIABLE = "GREENROOM_MARK"
_NEEDLE = VARIABLE.encode() + b"="
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# A pid comes back only after all others were given out; that takes longer than this.
_NO_REUSE_TICKS = 10 * _TICKS_PER_S
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_VANISHED = (errno.ENOENT, errno.ESRCH, errno.EIO)
MAX_ROUNDS = 100
_EXEC_TRIES = 10
_EXEC_PAUSE_S = 0.0005
_ON_LINUX = sys.platform == "linux"


# --- names -----------------------------------------------------------------------------------------------------------------


def host_prefix(host_id: str) -> str:
    """Return what the marks of everything started by this host begin with. Ends in a slash, like every prefix."""
    return f"gr/{_part(host_id)}/"


def room_prefix(host_id: str, room_id: str) -> str:
    """Return what the marks of everything started by this room begin with."""
    return f"{host_prefix(host_id)}{_part(room_id)}/"


def make_mark(host_id: str, room_id: str, session_id: str, incarnation: int) -> str:
    """Return the mark of one process: `gr/host/room/session/incarnation`."""
    return f"{room_prefix(host_id, room_id)}{_part(session_id)}/{incarnation}"


def append_mark(inherited: str | None, mark: str) -> str:
    """Return the list `inherited` with `mark` as its last item, once."""
    return ":".join([*(item for item in split_marks(inherited) if item != mark), mark])


def split_marks(value: str | None) -> list[str]:
    """Return the items of a list of marks."""
    return [item for item in (value or "").split(":") if item]


def _part(text: str) -> str:
    # Ids may be a user's own: a colon would split the list, a slash would make another room of it.
    return quote(text, safe="") or "-"


# --- scanning ----------------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """A living process: `start_time` (clock ticks since the boot) tells it from a later one with its pid. `mark` is why it matched."""

    pid: int
    start_time: int
    sid: int
    mark: str | None


class _Entry(NamedTuple):
    pid: int
    start_time: int
    sid: int
    parent: int
    marks: tuple[str, ...]
    sure: bool = True

    def found(self, mark: str | None = None) -> Found:
        return Found(self.pid, self.start_time, self.sid, mark)


class Snapshot:
    """All living processes that could be looked at, at one moment. One snapshot serves any number of marks.

    `taken_at` is in clock ticks since the boot. `unsure`: one of ours may have been missed, since some ended while they were
    looked at and may have left a child, or were becoming another program. `safe_sids`: the sessions of this process and its ancestors.
    """

    def __init__(self, entries: Iterable[_Entry], *, taken_at: int, unsure: bool = False) -> None:
        self.taken_at = taken_at
        self._entries = {entry.pid: entry for entry in entries}
        self.unsure = unsure or any(not entry.sure for entry in self._entries.values())
        self._safe_pids = self._ancestry()
        self.safe_sids = {self._entries[pid].sid for pid in self._safe_pids if pid in self._entries}

    def matching(self, marks: Iterable[str]) -> list[Found]:
        """Return the processes that carry one of `marks`: an item of the list exactly, or by a prefix, which ends in a slash."""
        wanted = list(marks)
        exact = {mark for mark in wanted if not mark.endswith("/")}
        prefixes = tuple(mark for mark in wanted if mark.endswith("/"))
        found = ((entry, _first(entry.marks, exact, prefixes)) for entry in self._others())
        return [entry.found(mark) for entry, mark in found if mark is not None]

    def in_sessions(self, sids: Mapping[int, int]) -> list[Found]:
        """Return the processes in the sessions `sids` (sid: when it was last seen under a mark), as far as they still are the same."""
        members: dict[int, list[_Entry]] = {}
        for entry in self._others():
            if entry.sid in sids and entry.sid not in self.safe_sids:
                members.setdefault(entry.sid, []).append(entry)
        return [entry.found() for sid, group in members.items() for entry in _same_session(sid, sids[sid], group)]

    def descendants(self, roots: Iterable[Found]) -> list[Found]:
        """Return the children of `roots`, and theirs, without `roots` themselves."""
        seen = {root.pid for root in roots}
        found: list[Found] = []
        todo = list(seen)
        while todo:
            new = [child for child in self._children.get(todo.pop(), ()) if child.pid not in seen]
            seen.update(child.pid for child in new)
            todo += [child.pid for child in new]
            found += [child.found() for child in new]
        return found

    def sids_of(self, found: Iterable[Found]) -> dict[int, int]:
        """Return the session ids of `found` with the time of this snapshot; without those of this process and its ancestors."""
        return {one.sid: self.taken_at for one in found if one.sid not in self.safe_sids and one.sid > 0}

    def alive(self, identities: Iterable[tuple[int, int]]) -> list[Found]:
        """Return those of `identities` (pid, start time) that still live."""
        entries = ((self._entries.get(pid), start_time) for pid, start_time in identities)
        return [entry.found() for entry, start_time in entries if entry is not None and entry.start_time == start_time]

    @functools.cached_property
    def _children(self) -> dict[int, list[_Entry]]:
        children: dict[int, list[_Entry]] = {}
        for entry in self._others():
            children.setdefault(entry.parent, []).append(entry)
        return children

    def _others(self) -> Iterator[_Entry]:
        return (entry for entry in self._entries.values() if entry.pid not in self._safe_pids)

    def _ancestry(self) -> set[int]:
        pids = {0, 1}
        pid = os.getpid()
        while pid not in pids:
            pids.add(pid)
            entry = self._entries.get(pid)
            pid = entry.parent if entry else 0
        return pids


def scan() -> Snapshot:
    """Look at all processes. About 1 ms for a hundred; what ends meanwhile or may not be looked at is left out.

    Raises OSError when it cannot look at all (no descriptors, no memory).
    """
    return _scan_proc() if _ON_LINUX else _scan_psutil()


def start_time_of(pid: int) -> int | None:
    """Return when the process started, in clock ticks since the boot, as `Found` has it; None when it is gone."""
    if not _ON_LINUX:
        return next((entry.start_time for entry in _scan_psutil()._entries.values() if entry.pid == pid), None)  # noqa: SLF001
    try:
        state = _stat(pid)
    except OSError:
        return None
    return None if state is None else state[0]


def _first(marks: tuple[str, ...], exact: set[str], prefixes: tuple[str, ...]) -> str | None:
    return next((mark for mark in marks if mark in exact or mark.startswith(prefixes)), None)


def _same_session(sid: int, seen_at: int, members: list[_Entry]) -> list[_Entry]:
    """Return those of `members` that are in the session seen then, and not in a later one with the same number.

    A number is not given out again while its session has members, and nobody joins a session but by birth. So one member that is
    older than the sighting proves all. Without one, a leader that came later disproves all; and when the leader is gone as well,
    a member counts that started too soon after the sighting for the number to have come round.
    """
    if any(member.start_time <= seen_at for member in members):
        return members
    if any(member.pid == sid for member in members):
        return []
    return [member for member in members if member.start_time <= seen_at + _NO_REUSE_TICKS]


def _scan_proc() -> Snapshot:
    taken_at = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S)
    entries: list[_Entry] = []
    unsure = False
    for name in os.listdir("/proc"):  # noqa: PTH208 - the hot path; names are all it needs
        if name.isdigit():
            try:
                entry = _entry(int(name))
            except OSError as error:
                # Anything else (no descriptor left) must not pass for a look at an empty house.
                if error.errno not in _VANISHED:
                    raise
                unsure = True
                continue
            if entry is not None:
                entries.append(entry)
    return Snapshot(entries, taken_at=taken_at, unsure=unsure)


def _entry(pid: int) -> _Entry | None:
    # The identity first, the evidence after it: should the pid be recycled in between, the mark of the later process is put to the
    # identity of the earlier one, which no longer lives and gets no signal. The other way round an innocent one would.
    state = _stat(pid)
    if state is None:
        return None
    start_time, sid, parent = state
    environ = _environ(pid, _read_file)
    return _Entry(pid, start_time, sid, parent, _marks_in(environ or b""), sure=environ is not None)


def _environ(pid: int, read: Callable[[str], bytes]) -> bytes | None:
    """Return the environment of a process; None when it cannot be told yet.

    In the middle of an exec it reads as empty for a moment, as the command line does (seen on Linux 6.18 right behind a start).
    Then it is asked again, since it may be one of ours. An empty one counts when the command line was there before it was read.
    """
    started = False
    try:
        for _ in range(_EXEC_TRIES):
            environ = read(f"/proc/{pid}/environ")
            if environ or started:
                return environ
            started = bool(read(f"/proc/{pid}/cmdline"))
            if not started:
                select.select((), (), (), _EXEC_PAUSE_S)
    except PermissionError:
        return b""
    return None


def _stat(pid: int) -> tuple[int, int, int] | None:
    """Return start time, sid and parent; None for a zombie and for a thread of the kernel. Raises OSError when it is gone."""
    # The name in brackets may hold anything, brackets and blanks as well.
    fields = _read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X") or int(fields[6]) & _KERNEL_THREAD:
        return None
    return int(fields[19]), int(fields[3]), int(fields[1])


def _read_file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = [os.read(fd, 65536)]
        while pieces[-1]:
            pieces.append(os.read(fd, 65536))
        return b"".join(pieces)
    finally:
        os.close(fd)


def _marks_in(environ: bytes) -> tuple[str, ...]:
    if _NEEDLE not in environ:
        return ()
    values = (item[len(_NEEDLE) :] for item in environ.split(b"\0") if item.startswith(_NEEDLE))
    return tuple(mark for value in values for mark in split_marks(os.fsdecode(value)))


def _scan_psutil() -> Snapshot:
    import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 - not installed beside the guard, and not needed on Linux

    taken_at = int(time.time() * _TICKS_PER_S)
    entries = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            start_time, sid, parent = int(process.create_time() * _TICKS_PER_S), os.getsid(process.pid), process.ppid()
            marks: tuple[str, ...] = ()
            with suppress(psutil.Error, OSError):
                marks = tuple(split_marks(process.environ().get(VARIABLE)))
            entries.append(_Entry(process.pid, start_time, sid, parent, marks))
    return Snapshot(entries, taken_at=taken_at)


# --- signals -----------------------------------------------------------------------------------------------------------------


def send(found: Found, sig: int) -> bool:
    """Send a signal to exactly this process; False when it is gone, also when its pid is another's by now.

    Raises PermissionError when we may not.
    """
    try:
        fd = _pidfd(found.pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor is held before the look: what is looked at is what gets the signal.
        return _is_alive(found) and _deliver(found.pid, fd, sig)
    finally:
        if fd is not None:
            os.close(fd)


def _pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None  # an old kernel, a sandbox that forbids it, no descriptor left


def _deliver(pid: int, fd: int | None, sig: int) -> bool:
    try:
        if fd is None:
            os.kill(pid, sig)
        else:
            signal.pidfd_send_signal(fd, sig)
    except ProcessLookupError:
        return False
    return True


def _is_alive(found: Found) -> bool:
    if not _ON_LINUX:
        return bool(_scan_psutil().alive([(found.pid, found.start_time)]))
    try:
        state = _stat(found.pid)
    except OSError:
        return False
    return state is not None and state[0] == found.start_time


class Sweep:
    """Ends everything that carries one of `marks` (or begins with one that ends in a slash), and all that came of it.

    The owner calls `round` with SIGTERM, later with SIGKILL, and waits some 50 ms in between, until `done` or `given_up`. `sids` are
    sessions seen under the mark before, with the time (`Snapshot.sids_of`); what the rounds see themselves is added, and so are
    children of what is found. `protected_sids` are left alone beside those of this process. `unended` is for a ReapError.
    """

    def __init__(
        self,
        marks: Iterable[str],
        sids: Mapping[int, int] | None = None,
        *,
        protected_sids: Iterable[int] = (),
        max_rounds: int = MAX_ROUNDS,
        send: Callable[[Found, int], bool] = send,
    ) -> None:
        self.marks = tuple(marks)
        self.sids = dict(sids or {})
        self.rounds = 0
        self.remaining: list[Found] = []
        self._protected_sids = set(protected_sids)
        self._max_rounds = max_rounds
        self._send = send
        self._known: set[tuple[int, int]] = set()
        self._sent: set[tuple[int, int, int]] = set()
        self._clean_rounds = 0

    @property
    def done(self) -> bool:
        """Whether a round found nothing: one in which nothing could be missed, or two in a row."""
        return self._clean_rounds > 1

    @property
    def given_up(self) -> bool:
        """Whether enough rounds were tried: something cannot be ended, or is born faster than we end it."""
        return not self.done and self.rounds >= self._max_rounds

    @property
    def unended(self) -> tuple[int, ...]:
        """The pids that the last round still found alive."""
        return tuple(found.pid for found in self.remaining)

    def round(self, sig: int, snapshot: Snapshot | None = None) -> list[Found]:
        """Scan (or use a fresh `snapshot`) and signal what is found; return it. SIGKILL again, others once to each."""
        snapshot = snapshot or scan()
        self.rounds += 1
        self.remaining = self._targets(snapshot)
        for found in self.remaining:
            self._signal(found, sig)
        self._count_clean(snapshot)
        return self.remaining

    def _count_clean(self, snapshot: Snapshot) -> None:
        if self.remaining:
            self._clean_rounds = 0
        else:
            self._clean_rounds += 1 if snapshot.unsure else 2

    def _targets(self, snapshot: Snapshot) -> list[Found]:
        marked = snapshot.matching(self.marks)
        self.sids.update(snapshot.sids_of(marked))
        roots = _unique(marked, snapshot.in_sessions(self._open_sids()), snapshot.alive(self._known))
        found = _unique(roots, snapshot.descendants(roots))
        # What has a cleared environment *and* a session of its own is only known while its parent lives: remember it.
        self._known |= {(one.pid, one.start_time) for one in found}
        self.sids.update(snapshot.sids_of(found))
        return found

    def _open_sids(self) -> dict[int, int]:
        return {sid: seen_at for sid, seen_at in self.sids.items() if sid not in self._protected_sids}

    def _signal(self, found: Found, sig: int) -> None:
        key = (found.pid, found.start_time, sig)
        if key in self._sent and sig != signal.SIGKILL:
            return
        self._sent.add(key)
        with suppress(PermissionError):  # it stays in `unended`
            self._send(found, sig)


def _unique(*groups: list[Found]) -> list[Found]:
    by_identity: dict[tuple[int, int], Found] = {}
    for found in (one for group in groups for one in group):
        by_identity.setdefault((found.pid, found.start_time), found)
    return list(by_identity.values())
