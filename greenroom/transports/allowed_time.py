"""How long an attempt may still take: a wait for a person does not count. What the codecs' open attempts have in common. Pure."""

from __future__ import annotations

import attrs

from greenroom.transports.base import Attempt


@attrs.define(kw_only=True)
class TimedAttempt:
    """An attempt and its time. `waits_since_s`: since when it waits for a person; `waited_s`: how long it has, in all, before that."""

    attempt: Attempt
    waits_since_s: float | None = None
    waited_s: float = 0.0

    @property
    def turn_id(self) -> str:
        """The ticket's turn."""
        return self.attempt.turn_id

    @property
    def receipt(self) -> str:
        """The id of its message on the wire."""
        return self.attempt.receipt

    @property
    def deadline_s(self) -> float | None:
        """When its time is over; None: never, or not while it waits for a person."""
        bound_s = self.attempt.deadline_s
        return None if bound_s is None or self.waits_since_s is not None else bound_s + self.waited_s

    def stand_still(self, now_s: float) -> None:
        """A person is waited for, if not since before."""
        if self.waits_since_s is None:
            self.waits_since_s = now_s

    def go_on(self, now_s: float) -> None:
        """Nobody is waited for any more."""
        if self.waits_since_s is not None:
            self.waited_s += now_s - self.waits_since_s
            self.waits_since_s = None
