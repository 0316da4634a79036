"""Our own requests to the CLI and their answers. Decides the ids and how long an answer is waited for; nothing follows from one here."""

from __future__ import annotations

from typing import Any

from greenroom.transports.base import Write
from greenroom.transports.claude import lines
from greenroom.transports.claude.state import Pending


class ControlDesk:
    """The control requests without an answer. No turn is written while there is one."""

    def __init__(self) -> None:
        self._pending: dict[str, Pending] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    def ask(self, subtype: str, *, target: str = "", until_s: float | None, **fields: Any) -> Write:
        """Write a request about the message `target`. `until_s`: when to stop waiting (None: somebody else bounds it)."""
        self._count += 1
        request_id = f"greenroom-{self._count}"
        self._pending[request_id] = Pending(subtype, target, until_s)
        return Write(lines.control_request(request_id, subtype, **fields))

    def take(self, request_id: Any) -> Pending | None:
        """Return the request that an answer belongs to, once."""
        return self._pending.pop(request_id, None) if isinstance(request_id, str) else None

    @property
    def until_s(self) -> float | None:
        """When the next wait is over."""
        if not self._pending:
            return None
        return min((pending.until_s for pending in self._pending.values() if pending.until_s is not None), default=None)

    def expire(self, now_s: float) -> list[Pending]:
        """Forget what has waited too long, and return it."""
        late = [key for key, pending in self._pending.items() if pending.until_s is not None and now_s >= pending.until_s]
        return [self._pending.pop(key) for key in late]

    def clear(self) -> None:
        """Forget everything: the process has ended."""
        self._pending.clear()
