"""What did a ticket cost? Sums the attempts of one ticket, and owns up to what is not known. Pure."""

from __future__ import annotations

import attrs

from greenroom.model import ProviderUsage, TokenUsage


@attrs.frozen(kw_only=True)
class Bill:
    """The attempts of a ticket so far. `known` is False once an attempt did not say what it consumed; `duration_ms` has no waits in it."""

    tokens: TokenUsage = attrs.field(factory=TokenUsage)
    cost_usd: float | None = None
    duration_ms: int = 0
    latest: ProviderUsage | None = None
    known: bool = True
    lost: bool = False

    def add(self, usage: ProviderUsage | None, *, cost_usd: float | None = None, duration_ms: int = 0) -> Bill:
        """Book an attempt that ended; `cost_usd` wins over the cost in `usage`."""
        timed = attrs.evolve(self, duration_ms=self.duration_ms + duration_ms)
        if usage is None:
            return attrs.evolve(timed, known=False, cost_usd=_sum(self.cost_usd, cost_usd))
        return attrs.evolve(
            timed,
            tokens=self.tokens + usage.tokens,
            cost_usd=_sum(self.cost_usd, usage.total_cost_usd if cost_usd is None else cost_usd),
            latest=usage,
            known=self.known and usage.increment_known,
        )

    def lose(self, usage: ProviderUsage | None, *, duration_ms: int = 0) -> Bill:
        """Book an attempt that was cut by a death: `usage` is at most a part of it."""
        return attrs.evolve(self.add(usage, duration_ms=duration_ms), known=False, lost=True)

    def total(self) -> ProviderUsage | None:
        """Return the sum, or None if no attempt said anything and none was cut."""
        if self.latest is None:
            return ProviderUsage(increment_known=False, total_cost_usd=self.cost_usd) if self.lost else None
        return attrs.evolve(self.latest, tokens=self.tokens, total_cost_usd=self.cost_usd, increment_known=self.known)


def _sum(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
