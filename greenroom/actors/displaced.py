"""The ticket that another one has taken the place of, until that one is on record: if it cannot be, the old one is good again.

Decides who is told what; the session's actor puts it back. On the loop thread.
"""

from __future__ import annotations

import attrs

from greenroom.actors import messages as m
from greenroom.errors import SessionStateError


@attrs.define
class Displaced:
    """At most one: a ticket that was superseded before it was on record itself is not put back."""

    message: m.PrepareTurn | None = None
    _by: str = ""

    def supersede(self, message: m.PrepareTurn | None, by_turn_id: str, *, durable: bool) -> None:
        """Turn `by_turn_id` takes the place of `message`'s, for good where nothing has to be recorded."""
        if message is None:
            return
        if durable and message.reply_to.settled and not message.ticket.cell.settled:
            self.message, self._by = message, by_turn_id
        else:
            _tell(message, by_turn_id)

    def confirm(self) -> None:
        """The one in its place is there to stay."""
        message, self.message = self.message, None
        if message is not None:
            _tell(message, self._by)

    def take_back(self) -> m.PrepareTurn | None:
        """Return the one to be put back, if its caller still wants it."""
        message, self.message = self.message, None
        return message if message is not None and not message.ticket.cell.settled else None


def _tell(message: m.PrepareTurn, by_turn_id: str) -> None:
    turn_id = message.turn_id
    message.ticket.fail(SessionStateError(f"turn {turn_id!r} was superseded by {by_turn_id!r} before it ran"))
