"""What is there, by id: a record for each session, and the directory of all. Decides nothing; thread-safe.

A living session's record is read off its state each time, so that it is never out of date; it changes by what the session does alone.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from greenroom.actors.core import SessionCore
from greenroom.errors import SessionStateError, UnknownSessionError
from greenroom.journal import RecoveredSession
from greenroom.liveness import Liveness
from greenroom.model import ConversationSpec, NativeMode, RuntimeMode, SessionStatus

__all__ = ["RuntimeMode", "SessionDirectory", "SessionRecord", "SessionStatus", "cursor_of", "found_record", "record_of"]


@attrs.frozen(kw_only=True)
class SessionRecord:
    """A session as a front end sees it. Times are wall time with a zone.

    `status` is READY or ERROR when it takes a turn, CONNECTING while its process is being started, RUNNING while a turn has begun, CLOSED
    when it takes none: a session on record that was not started again is closed. `resume_cursor` is what another session may go on from;
    None before the provider has named the conversation. `last_error`: what the last turn or start failed of, until one goes well.
    `liveness`: what a living session was at when the record was read, or what it waited for; it makes no two records differ.
    """

    thread_id: str
    provider: str
    status: SessionStatus
    runtime_mode: RuntimeMode
    cwd: Path | None = None
    model: str | None = None
    resume_cursor: Mapping[str, str] | None = attrs.field(default=None, hash=False)
    active_turn_id: str | None = None
    created_at: dt.datetime
    updated_at: dt.datetime
    last_error: str | None = None
    liveness: Liveness | None = attrs.field(default=None, eq=False)


def cursor_of(conversation_id: str | None) -> dict[str, str] | None:
    """Return what another session may go on from."""
    return None if conversation_id is None else {"threadId": conversation_id}


def mode_of(spec: ConversationSpec) -> RuntimeMode:
    """Return the runtime mode that the permissions come to."""
    return RuntimeMode.FULL_ACCESS if spec.permissions.mode is NativeMode.BYPASS else RuntimeMode.APPROVAL_REQUIRED


def record_of(core: SessionCore) -> SessionRecord:
    """Return the record of a session that lives, or has ended."""
    view, spec = core.view, core.spec
    # The session has been asked to connect, and has not come to it yet.
    asked = core.connecting is not None and not core.connecting.settled and view.status in {SessionStatus.READY, SessionStatus.ERROR}
    return SessionRecord(
        thread_id=core.session_id,
        provider=core.transport.profile.name,
        status=SessionStatus.CONNECTING if asked else view.status,
        runtime_mode=mode_of(spec),
        cwd=spec.cwd,
        model=spec.model,
        resume_cursor=cursor_of(view.conversation_id),
        active_turn_id=view.active_turn_id,
        created_at=_utc(core.created_at_s),
        updated_at=_utc(core.changed_at_s),
        last_error=view.last_error,
        liveness=core.liveness,
    )


def found_record(found: RecoveredSession) -> SessionRecord:
    """Return the record of a session that an earlier program left in the journal."""
    opened = found.opened
    return SessionRecord(
        thread_id=opened.session_id,
        provider=opened.provider,
        status=SessionStatus.CLOSED,
        runtime_mode=mode_of(opened.spec),
        cwd=opened.spec.cwd,
        model=opened.spec.model,
        resume_cursor=cursor_of(found.last_conversation_id),
        created_at=_utc(opened.at_s),
        updated_at=_utc(max(opened.at_s, found.closed_at_s or 0.0)),
    )


def _utc(at_s: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_s, tz=dt.UTC)


def _has_left(entry: SessionRecord | SessionCore) -> bool:
    return isinstance(entry, SessionCore) and entry.view.stopped and (entry.removed or entry.ledger is None)


class SessionDirectory:
    """Records by thread id, in the order in which they came.

    A room's has its sessions, and with a `state_dir` those that earlier programs left there. Others may be registered, updated and
    removed by hand; what belongs to a living session follows from that alone.
    """

    def __init__(self, forget: Callable[[str], None] = lambda _: None) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, SessionRecord | SessionCore] = {}
        self._forget = forget

    def register(self, record: SessionRecord) -> None:
        """Take a record. Raises SessionStateError when there is one under its id, TypeError for what is none."""
        if not isinstance(record, SessionRecord):
            raise TypeError(f"record must be a SessionRecord, got {type(record).__name__}")
        with self._lock:
            if self._read(record.thread_id) is not None:
                raise SessionStateError(f"session {record.thread_id!r} is in the directory already")
            self._entries[record.thread_id] = record

    def update(self, thread_id: str, **changes: Any) -> SessionRecord:
        """Change fields of a record; return what it is then.

        Raises UnknownSessionError, TypeError for a field that there is not, SessionStateError for a session that lives.
        """
        with self._lock:
            entry = self._found(thread_id)
            if not isinstance(entry, SessionRecord):
                raise SessionStateError(f"session {thread_id!r} lives: its record follows from what it does")
            record = self._entries[thread_id] = attrs.evolve(entry, **{**changes, "thread_id": thread_id})
            return record

    def get(self, thread_id: str) -> SessionRecord | None:
        """Return the record, or None."""
        with self._lock:
            return self._read(thread_id)

    def remove(self, thread_id: str) -> bool:
        """Forget a record, for good; return whether there was one. Raises SessionStateError for a session that lives."""
        with self._lock:
            if self._read(thread_id) is None:
                return False
            entry = self._entries[thread_id]
            if isinstance(entry, SessionCore) and not entry.view.stopped:
                raise SessionStateError(f"session {thread_id!r} lives; stop it")
            del self._entries[thread_id]
        self._forget(thread_id)
        return True

    def list(self) -> tuple[SessionRecord, ...]:
        """Return all records, oldest first."""
        with self._lock:
            return tuple(record for thread_id in list(self._entries) if (record := self._read(thread_id)) is not None)

    def attach(self, core: SessionCore) -> None:
        """Have the record of a session that begins; for the room."""
        with self._lock:
            for thread_id in [thread_id for thread_id, entry in self._entries.items() if _has_left(entry)]:
                del self._entries[thread_id]
            self._entries.pop(core.session_id, None)
            self._entries[core.session_id] = core

    def _read(self, thread_id: str) -> SessionRecord | None:
        """Return the record. A session that has ended leaves, unless it is on record and may go on."""
        entry = self._entries.get(thread_id)
        if entry is None or _has_left(entry):
            self._entries.pop(thread_id, None)
            return None
        return record_of(entry) if isinstance(entry, SessionCore) else entry

    def _found(self, thread_id: str) -> SessionRecord | SessionCore:
        if self._read(thread_id) is None:
            raise UnknownSessionError(thread_id)
        entry = self._entries[thread_id]
        if isinstance(entry, SessionCore) and entry.view.stopped:
            return record_of(entry)
        return entry
