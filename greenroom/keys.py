"""Which tickets of a session are known by the caller's own names for the work? Any thread, under the lock of the session that asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from greenroom.actors.ticket import TicketCore, TicketState
from greenroom.errors import SessionStateError, StoreUnavailableError

if TYPE_CHECKING:
    from greenroom.preparing import TurnTicket


@attrs.frozen(kw_only=True)
class Keyed:
    """A ticket that was prepared under a key in this process."""

    ticket: TurnTicket
    core: TicketCore
    nonce: str
    request_hash: str

    @property
    def open(self) -> bool:
        """Whether it is prepared, or runs."""
        return not self.core.cell.settled

    @property
    def ran(self) -> bool:
        """Whether it has an outcome: not one that was cancelled, superseded or refused."""
        if self.open or self.core.state is not TicketState.BEGUN:
            return False
        outcome = self.core.cell.outcome
        return self.core.sent if isinstance(outcome, SessionStateError) else not isinstance(outcome, StoreUnavailableError)


MAX_KEYS = 1000
"""So many tickets that are over a session remembers by their keys; without a journal, an older key names another turn then."""


class Keys:
    """The keyed tickets of a session: all that are open, and the latest others. With a journal (`durable`) what has ended is left to it."""

    def __init__(self, *, durable: bool, max_keys: int = MAX_KEYS) -> None:
        self._durable = durable
        self._max_keys = max_keys
        self._known: dict[str, Keyed] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, key: str, keyed: Keyed) -> None:
        """Know one more, and forget what was over for longest, if that makes too many."""
        if self._durable:
            self._known = {name: known for name, known in self._known.items() if not known.ran}
        self._known.pop(key, None)  # the one that comes again is the latest
        self._known[key] = keyed
        if len(self._known) > self._max_keys:
            oldest = next((name for name, known in self._known.items() if not known.open), None)
            if oldest is not None:
                del self._known[oldest]

    def find(self, key: str, request_hash: str) -> Keyed | None:
        """Return the ticket under `key`. Raises SessionStateError when it has another request."""
        known = self._known.get(key)
        if known is not None:
            check_same(key, known.ticket.turn_id, known.request_hash, request_hash)
        return known


def check_same(key: str, turn_id: str, recorded_hash: str, request_hash: str) -> None:
    """Raise SessionStateError when a key comes with another request than the first time."""
    if recorded_hash != request_hash:
        raise SessionStateError(f"key {key!r} belongs to turn {turn_id!r}, which has another request")
