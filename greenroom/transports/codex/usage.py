"""What a turn consumed, from the server's running totals. Decides which figure is the turn's own and when it is unknown. Pure.

`total` in `thread/tokenUsage/updated` grows over the thread's life, over processes too; `last` is repeated when a response has no usage. So
the difference of totals is the turn's own. After a resume the server repeats the total that it begins with, under an old turn's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from greenroom.model import CostSource, ProviderUsage, TokenUsage
from greenroom.transports.codex.lines import count, obj

PROVIDER = "codex"
#: In `raw`: the thread was rolled back, and its totals with it; the next resume tells them.
ROLLED_BACK = "rolledBack"
_KEYS = ("inputTokens", "cachedInputTokens", "cacheWriteInputTokens", "outputTokens", "reasoningOutputTokens")


def tokens_of(total: Mapping[str, Any]) -> TokenUsage:
    """Return the counts of a `total` or `last`. The server's input contains what was read from the cache and written to it."""
    read, write = count(total.get("cachedInputTokens")), count(total.get("cacheWriteInputTokens"))
    return TokenUsage(
        input=max(0, count(total.get("inputTokens")) - read - write),
        output=count(total.get("outputTokens")),
        cache_read_input=read,
        cache_write_input=write,
        reasoning_output=count(total.get("reasoningOutputTokens")),
    )


def _minus(now: Mapping[str, int], before: Mapping[str, int]) -> TokenUsage:
    """Return `now - before`. A total that went back (a revert) began anew: then there is nothing to take off."""
    if any(now[key] < before[key] for key in _KEYS):
        return TokenUsage()
    return tokens_of({key: now[key] - before[key] for key in _KEYS})


def _counts(total: Mapping[str, Any]) -> dict[str, int]:
    return {key: count(total.get(key)) for key in _KEYS}


def increment(tokens: TokenUsage, *, raw: Mapping[str, Any] | None = None, known: bool = True) -> ProviderUsage:
    """Return a piece of consumption. What it costs is not known: Codex names no prices."""
    return ProviderUsage(tokens=tokens, provider=PROVIDER, raw=dict(raw or {}), increment_known=known, cost_source=CostSource.UNKNOWN_MODEL)


class Ledger:
    """The totals of one thread. `begin` an attempt, `take` each update, ask what was `spent`."""

    def __init__(self, *, fresh: bool, previous: ProviderUsage | None, after_death: bool) -> None:
        raw = _baseline(previous)
        self._previous = previous
        self._rebased = previous is not None and previous.raw.get(ROLLED_BACK) is True
        self._base_known = fresh or raw is not None
        # A cut attempt has been billed by what it was seen to take: what the server counts on from is the better baseline then.
        self._trusts_replay = after_death or raw is None
        self._last: dict[str, int] | None = _counts({}) if fresh else raw
        self._base = self._last
        self._known = self._base_known
        self._spent = TokenUsage()
        self._extra = TokenUsage()
        self._calls = 0
        self._children: dict[str, dict[str, int]] = {}
        self._sum = previous.tokens if previous is not None else TokenUsage()
        self._sum_known = fresh or (previous is not None and previous.increment_known)
        self.context_tokens: int | None = None

    def begin(self) -> None:
        """An attempt begins."""
        self._base, self._known = self._last, self._base_known
        self._spent = self._extra = TokenUsage()
        self._calls = 0

    def replay(self, usage: Any) -> None:
        """Take an update of an old turn: of use only as the baseline of a thread that has just been resumed."""
        total = obj(obj(usage).get("total"))
        if self._trusts_replay and total:
            self._trusts_replay = False
            self._last = self._base = _counts(total)
            if self._rebased:  # an attempt may have begun by now
                self._base_known = self._known = True

    def take(self, usage: Any) -> None:
        """Take an update of the open attempt's turn. Repeated totals add nothing."""
        total, last = obj(obj(usage).get("total")), obj(obj(usage).get("last"))
        if not total:
            return
        now = _counts(total)
        self._trusts_replay = False
        if self._base is None:
            self._base = _without(now, _counts(last))
        if now != self._last:
            self._calls += 1
        if self._last is not None and any(now[key] < self._last[key] for key in _KEYS):
            self._rolled_back(now)
        self._spent, self._last = _minus(now, self._base), now
        self.context_tokens = count(last.get("inputTokens")) or self.context_tokens

    def _rolled_back(self, now: dict[str, int]) -> None:
        """The total went back: what was spent until now is kept apart, and counting begins anew."""
        self._extra, self._base, self._known = self._extra + self._spent, now, False

    def take_child(self, thread_id: str, usage: Any) -> TokenUsage:
        """Take an update of a sub-agent's thread, which its parent's totals leave out; return what it adds."""
        now = _counts(obj(obj(usage).get("total")))
        added = _minus(now, self._children.get(thread_id, _counts({})))
        self._children[thread_id] = now
        self._extra = self._extra + added
        return added

    def spent(self) -> ProviderUsage:
        """Return what the attempt has consumed, as far as is known."""
        tokens = self._spent + self._extra + TokenUsage(turns=self._calls)
        return increment(tokens, raw=self._raw(), known=self._known)

    def end(self) -> ProviderUsage:
        """The attempt has ended: return what it consumed, and add it to the conversation's."""
        usage = self.spent()
        self._add(usage)
        return usage

    def book(self, tokens: TokenUsage) -> ProviderUsage:
        """Add what was consumed outside an attempt."""
        usage = increment(tokens, raw=self._raw())
        self._add(usage)
        return usage

    def _add(self, usage: ProviderUsage) -> None:
        self._sum = self._sum + usage.tokens
        self._sum_known = self._sum_known and usage.increment_known
        self._base_known = self._last is not None
        self._spent = self._extra = TokenUsage()
        self._calls = 0
        self._base = self._last

    def _raw(self) -> dict[str, Any]:
        if self._last is None:
            return dict(self._previous.raw) if self._previous is not None else {}
        return {"total": dict(self._last)}

    def cumulative(self) -> ProviderUsage:
        """Return the conversation's totals so far, as the next process wants them back."""
        return increment(self._sum, raw=self._raw(), known=self._sum_known)


def _baseline(previous: ProviderUsage | None) -> dict[str, int] | None:
    total = previous.raw.get("total") if previous is not None else None
    return _counts(total) if isinstance(total, dict) else None


def _without(now: Mapping[str, int], last: Mapping[str, int]) -> dict[str, int]:
    """Return the total before the last call: the best baseline where none is known."""
    return {key: max(0, now[key] - last[key]) for key in _KEYS}
