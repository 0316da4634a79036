"""Which processes of a room are on record as alive: entered on the starter thread as they are born, struck out when proven dead."""

from __future__ import annotations

import os
from collections.abc import Callable

from greenroom.journal.records import ProcessEnded, ProcessStarted, Record
from greenroom.transports.base import Process
from greenroom.transports.guard import host_id
from greenroom.transports.marks import room_prefix, start_time_of


class Births:
    """The register of one room. `put` has records written; nobody waits for them."""

    def __init__(self, room_id: str, put: Callable[[Record], None]) -> None:
        self._put = put
        self._host = started(os.getpid(), room_prefix(host_id(), room_id), "", 0)
        self._living: dict[str, ProcessStarted] = {}
        self._all_proven = True

    def open(self) -> None:
        """Enter the host, as what began every mark of the room: a process that died before it was entered is found by that."""
        self._put(self._host)

    def enter(self, owner_id: str, incarnation: int, mark: str, process: Process) -> None:
        """A process was born to a session or a link."""
        self._living[mark] = record = started(process.pid, mark, owner_id, incarnation)
        self._put(record)

    def strike(self, mark: str, *, proven: bool) -> None:
        """The process is proven dead, and so is what came of it; or something could not be ended, and stays on record for the next host."""
        record = self._living.pop(mark, None)
        self._all_proven = self._all_proven and proven
        if record is not None and proven:
            self._put(ended(record))

    def close(self) -> None:
        """Nothing of the room lives, as far as that is proven."""
        if self._all_proven:
            self._put(ended(self._host))


def started(pid: int, mark: str, owner_id: str, incarnation: int) -> ProcessStarted:
    """Return the record of a process that runs now."""
    return ProcessStarted(
        pid=pid,
        start_time=start_time_of(pid) or 0,
        pgid=_group_of(pid),
        mark=mark,
        session_id=owner_id,
        incarnation=incarnation,
        host_id=host_id(),
    )


def ended(record: ProcessStarted) -> ProcessEnded:
    """Return the record of its end."""
    return ProcessEnded(pid=record.pid, start_time=record.start_time, mark=record.mark)


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:  # gone already: it was the leader of its group
        return pid
