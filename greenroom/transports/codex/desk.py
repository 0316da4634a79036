"""Our requests to the server and who waits for their answers. Decides the ids; nothing follows from an answer here. Pure."""

from __future__ import annotations

from typing import Any

import attrs

from greenroom.transports.base import Write
from greenroom.transports.codex import lines


@attrs.frozen(kw_only=True)
class Pending:
    """A request without an answer. `owner`: who gets it (None: the link); `subject`: what it is about, as its method has it."""

    request_id: int
    method: str
    owner: Any
    subject: str
    until_s: float | None


class RequestDesk:
    """The requests without an answer. The server's own requests have another id space and do not come here."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._count = 0

    def ask(self, method: str, params: dict[str, Any], *, owner: Any, subject: str = "", until_s: float | None) -> Write:
        """Write a request. `until_s`: when to stop waiting for its answer (None: somebody else bounds it)."""
        self._count += 1
        self._pending[self._count] = Pending(request_id=self._count, method=method, owner=owner, subject=subject, until_s=until_s)
        return Write(lines.request(self._count, method, params))

    def take(self, request_id: Any) -> Pending | None:
        """Return the request that an answer belongs to, once."""
        is_id = isinstance(request_id, int) and not isinstance(request_id, bool)
        return self._pending.pop(request_id, None) if is_id else None

    def waits(self, method: str, owner: Any) -> bool:
        """Whether `owner` still waits for an answer to such a request."""
        return any(pending.method == method and pending.owner is owner for pending in self._pending.values())

    @property
    def until_s(self) -> float | None:
        """When the next wait is over."""
        return min((pending.until_s for pending in self._pending.values() if pending.until_s is not None), default=None)

    def expired(self, now_s: float) -> list[Pending]:
        """Return what has waited too long, and wait for it no more."""
        late = [pending for pending in self._pending.values() if pending.until_s is not None and now_s >= pending.until_s]
        for pending in late:
            del self._pending[pending.request_id]
        return late

    def clear(self) -> None:
        """Forget everything: the process has ended."""
        self._pending.clear()
