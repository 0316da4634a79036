"""When is a dead process replaced? `RestartPolicy`, and the window over which deaths are counted. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from greenroom.model import OnDeath

IN_USE_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""How long a resume waits, each time, for the process that still holds the conversation; after the last one the refusal stands."""


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


@attrs.frozen(kw_only=True)
class RestartPolicy:
    """At most `max_restarts` in any `within_s` seconds, after `delays` (seconds; the last one repeats).

    `on_death` says what is sent when the provider had already taken the message of the attempt that was cut.
    Raises ValueError for numbers that cannot be meant.
    """

    max_restarts: int = 3
    within_s: float = 600.0
    delays: tuple[float, ...] = attrs.field(default=(0.0, 1.0, 5.0), converter=_floats)
    on_death: OnDeath = OnDeath.CONTINUE

    def __attrs_post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts must be 0 or more, got {self.max_restarts}")
        if not self.within_s > 0:
            raise ValueError(f"within_s must be more than 0, got {self.within_s}")
        for delay_s in self.delays:
            if not 0 <= delay_s < float("inf"):
                raise ValueError(f"delays must be finite and 0 or more, got {delay_s}")

    def recent(self, deaths: tuple[float, ...], now_s: float) -> tuple[float, ...]:
        """Return the deaths that still count. A start that succeeds takes none away: a process may answer and die, every time."""
        return tuple(died_s for died_s in deaths if now_s - died_s < self.within_s)

    def delay_s(self, recent_deaths: int) -> float | None:
        """Return the wait before the restart after the latest of `recent_deaths` deaths; None: no restart any more."""
        if recent_deaths > self.max_restarts:
            return None
        return self.delays[min(recent_deaths, len(self.delays)) - 1] if self.delays else 0.0
