"""What a turn consumed, from Claude Code's figures. Decides which figure is this turn's own and when it is unknown. Pure.

`usage` of a result is per turn, but leaves out sub-agents and is zero for an interrupted turn; `modelUsage` and `total_cost_usd` are
cumulative, over processes too where the one before ended in order; `model_usage_since_last_result` is the turn's own in every case
seen (2.1.332). So that one is used, and differences only where it is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from greenroom.model import CostSource, ProviderUsage, TokenUsage
from greenroom.transports.claude.frames import Frame

PROVIDER = "claude"
_ROUNDING_USD = 1e-9
_RESULTS_KEPT = 256


def count(value: Any) -> int:
    """Return a token count, 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def cost(value: Any) -> float | None:
    """Return an amount of money, None for what is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and value >= 0 else None


def api_tokens(usage: Any) -> TokenUsage:
    """Return the tokens in a `usage` object of the Messages API."""
    if not isinstance(usage, Mapping):
        return TokenUsage()
    writes = usage.get("cache_creation")
    details = usage.get("output_tokens_details")
    return TokenUsage(
        input=count(usage.get("input_tokens")),
        output=count(usage.get("output_tokens")),
        cache_read_input=count(usage.get("cache_read_input_tokens")),
        cache_write_input=count(usage.get("cache_creation_input_tokens")),
        cache_write_1h_input=count(writes.get("ephemeral_1h_input_tokens")) if isinstance(writes, Mapping) else 0,
        reasoning_output=count(details.get("thinking_tokens")) if isinstance(details, Mapping) else 0,
    )


_MODEL_KEYS = {
    "input": "inputTokens",
    "output": "outputTokens",
    "cache_read_input": "cacheReadInputTokens",
    "cache_write_input": "cacheCreationInputTokens",
    "cache_write_1h_input": "cacheCreationEphemeral1hInputTokens",
    "reasoning_output": "thinkingTokens",
}


@attrs.frozen
class Tally:
    """The sum over the models of a `modelUsage` object."""

    tokens: TokenUsage
    cost_usd: float | None
    priced: bool

    @classmethod
    def of(cls, models: Mapping[str, Any]) -> Tally:
        """Add the models up. One without a price makes the cost unknown, not smaller."""
        rows = [row for row in models.values() if isinstance(row, Mapping)]
        sums = {name: sum(count(row.get(key)) for row in rows) for name, key in _MODEL_KEYS.items()}
        costs = [cost(row.get("costUSD")) for row in rows]
        known = [amount for amount in costs if amount is not None]
        priced = len(known) == len(costs) and all(row.get("costBasis") != "unknown" for row in rows)
        return cls(TokenUsage(**sums), math.fsum(known) if len(known) == len(costs) else None, priced)


def _difference(now: Tally, before: Tally) -> Tally | None:
    """Return `now - before`, or None when a figure went back: then the totals began anew."""
    fields = {name: getattr(now.tokens, name) - getattr(before.tokens, name) for name in _MODEL_KEYS}
    spent = None if now.cost_usd is None or before.cost_usd is None else now.cost_usd - before.cost_usd
    went_back = any(value < 0 for value in fields.values()) or (spent is not None and spent < -_ROUNDING_USD)
    if went_back:
        return None
    return Tally(TokenUsage(**fields), None if spent is None else max(spent, 0.0), now.priced and before.priced)


def add(one: ProviderUsage | None, other: ProviderUsage | None) -> ProviderUsage | None:
    """Return the sum; unknown stays unknown; `raw` is the later one's."""
    if one is None or other is None:
        return one or other
    costs = (one.total_cost_usd, other.total_cost_usd)
    return ProviderUsage(
        tokens=one.tokens + other.tokens,
        total_cost_usd=None if None in costs else math.fsum(amount for amount in costs if amount is not None),
        provider=PROVIDER,
        raw=other.raw,
        increment_known=one.increment_known and other.increment_known,
        cost_source=one.cost_source if one.cost_source is not CostSource.PROVIDER_REPORTED else other.cost_source,
    )


def unknown(tokens: TokenUsage | None = None) -> ProviderUsage:
    """Return a usage of which `tokens` is at most a lower bound."""
    return ProviderUsage(tokens=tokens or TokenUsage(), provider=PROVIDER, increment_known=False)


class Ledger:
    """The running totals of one process. `take` each result of it once, in order, whoever it belongs to."""

    def __init__(self, *, fresh: bool, previous: ProviderUsage | None, after_death: bool) -> None:
        self._taken: dict[str, None] = {}
        self._last = self._baseline(fresh=fresh, previous=previous, after_death=after_death)
        self._tokens = previous.tokens if previous is not None else TokenUsage()
        self._cost = previous.total_cost_usd if previous is not None else 0.0
        self._known = fresh or (previous is not None and previous.increment_known)
        self._raw: Mapping[str, Any] = previous.raw if previous is not None else {}

    @staticmethod
    def _baseline(*, fresh: bool, previous: ProviderUsage | None, after_death: bool) -> Tally | None:
        """Return the totals that the process begins with: none after a kill, the old ones after an end in order (2.1.332)."""
        models = previous.raw.get("modelUsage") if previous is not None else None
        if fresh or after_death:
            return Tally.of({})
        return Tally.of(models) if isinstance(models, Mapping) else None

    def take(self, result: Frame, *, uncounted: bool = False) -> ProviderUsage | None:
        """Return what was consumed since the result before; None for a result that has been taken already.

        `uncounted`: a call was made that is in none of its figures.
        """
        if self._is_repeated(result.uuid):
            return None
        usage = self._increment(result)
        if uncounted:
            usage = attrs.evolve(usage, increment_known=False)
        if isinstance(result.model_usage, Mapping):
            self._last = Tally.of(result.model_usage)
            self._raw = {"total_cost_usd": cost(result.total_cost_usd), "modelUsage": result.model_usage}
        self._tokens = self._tokens + usage.tokens
        self._cost = None if self._cost is None or usage.total_cost_usd is None else self._cost + usage.total_cost_usd
        self._known = self._known and usage.increment_known
        return usage

    def _is_repeated(self, uuid: str) -> bool:
        if not uuid:
            return False
        repeated = uuid in self._taken
        self._taken[uuid] = None
        if len(self._taken) > _RESULTS_KEPT:
            del self._taken[next(iter(self._taken))]
        return repeated

    def _increment(self, result: Frame) -> ProviderUsage:
        if isinstance(result.model_usage_since, Mapping):
            return self._usage(Tally.of(result.model_usage_since), result)
        if isinstance(result.model_usage, Mapping) and self._last is not None:
            difference = _difference(Tally.of(result.model_usage), self._last)
            if difference is not None:
                return self._usage(difference, result)
        return attrs.evolve(unknown(api_tokens(result.usage)), raw=self._raw)

    @staticmethod
    def _usage(tally: Tally, result: Frame) -> ProviderUsage:
        return ProviderUsage(
            tokens=attrs.evolve(tally.tokens, turns=count(result.num_turns)),
            total_cost_usd=tally.cost_usd,
            provider=PROVIDER,
            raw={"total_cost_usd": cost(result.total_cost_usd), "modelUsage": result.model_usage or {}},
            cost_source=CostSource.PROVIDER_REPORTED if tally.priced else CostSource.UNKNOWN_MODEL,
        )

    def cumulative(self) -> ProviderUsage:
        """Return the conversation's totals so far, as the next process wants them back."""
        return ProviderUsage(tokens=self._tokens, total_cost_usd=self._cost, provider=PROVIDER, raw=self._raw, increment_known=self._known)
