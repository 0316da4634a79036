from __future__ import annotations

from typing import Any

from greenroom.model import CostSource, ProviderUsage, TokenUsage
from greenroom.transports.codex.usage import Ledger


def update(tokens_in: int, cached: int = 0, out: int = 0, last: int = 0) -> dict[str, Any]:
    return {
        "total": {"inputTokens": tokens_in, "cachedInputTokens": cached, "outputTokens": out, "totalTokens": tokens_in + out},
        "last": {"inputTokens": last},
    }


def before(tokens_in: int, *, known: bool = True) -> ProviderUsage:
    return ProviderUsage(
        tokens=TokenUsage(input=tokens_in), provider="codex", raw={"total": {"inputTokens": tokens_in}}, increment_known=known
    )


def fresh() -> Ledger:
    return Ledger(fresh=True, previous=None, after_death=False)


def test_a_fresh_thread_counts_from_zero() -> None:
    ledger = fresh()
    ledger.begin()
    ledger.take(update(100, 40, 5, last=100))
    ledger.take(update(250, 90, 9, last=150))
    spent = ledger.end()
    assert spent.tokens == TokenUsage(input=160, cache_read_input=90, output=9, turns=2)
    assert (spent.increment_known, spent.total_cost_usd, spent.cost_source) == (True, None, CostSource.UNKNOWN_MODEL)
    assert ledger.context_tokens == 150
    ledger.begin()
    assert ledger.spent().tokens == TokenUsage()


def test_a_repeated_total_adds_nothing() -> None:
    ledger = fresh()
    ledger.begin()
    for _ in range(3):
        ledger.take(update(100))
    assert ledger.end().tokens == TokenUsage(input=100, turns=1)


def test_the_difference_is_taken_from_the_checkpoint() -> None:
    ledger = Ledger(fresh=False, previous=before(1000), after_death=False)
    ledger.replay(update(1400))
    ledger.begin()
    ledger.take(update(1500))
    spent = ledger.end()
    assert (spent.tokens.input, spent.increment_known) == (500, True)
    assert ledger.cumulative().tokens.input == 1500
    assert ledger.cumulative().raw["total"]["inputTokens"] == 1500


def test_after_a_death_the_replay_is_the_baseline_for_the_cut_attempt_was_billed() -> None:
    ledger = Ledger(fresh=False, previous=before(1000), after_death=True)
    ledger.begin()
    ledger.replay(update(1400))
    ledger.take(update(1500))
    ledger.replay(update(1))
    assert (ledger.spent().tokens.input, ledger.spent().increment_known) == (100, True)


def test_without_a_baseline_the_first_increment_is_a_lower_bound() -> None:
    ledger = Ledger(fresh=False, previous=None, after_death=False)
    ledger.begin()
    ledger.take(update(5000, last=100))
    first = ledger.end()
    assert (first.tokens.input, first.increment_known) == (100, False)
    assert not ledger.cumulative().increment_known
    ledger.begin()
    ledger.take(update(5300))
    second = ledger.end()
    assert (second.tokens.input, second.increment_known) == (300, True)


def test_without_a_baseline_a_replay_narrows_the_bound() -> None:
    ledger = Ledger(fresh=False, previous=None, after_death=False)
    ledger.begin()
    ledger.replay(update(4000))
    ledger.take(update(4500, last=100))
    assert (ledger.end().tokens.input, ledger.cumulative().increment_known) == (500, False)


def test_a_total_that_goes_back_is_never_negative() -> None:
    ledger = fresh()
    ledger.begin()
    ledger.take(update(300))
    ledger.take(update(50))
    ledger.take(update(80))
    spent = ledger.end()
    assert (spent.tokens.input, spent.increment_known) == (330, False)
    ledger.begin()
    ledger.take(update(90))
    assert (ledger.end().tokens.input, ledger.spent().increment_known) == (10, True)


def test_a_sub_agents_tokens_are_added() -> None:
    ledger = fresh()
    ledger.begin()
    ledger.take(update(100))
    assert ledger.take_child("t", update(30)).input == 30
    assert ledger.take_child("t", update(30)) == TokenUsage()
    ledger.take_child("t", update(50))
    assert ledger.end().tokens.input == 150
    added = ledger.take_child("t", update(60))
    assert ledger.book(added).tokens.input == 10
    assert ledger.cumulative().tokens.input == 160


def test_junk_is_no_usage() -> None:
    ledger = fresh()
    ledger.begin()
    for junk in (None, 3, {}, {"total": None}, {"total": {"inputTokens": "x", "outputTokens": -3}}, {"total": {"inputTokens": True}}):
        ledger.take(junk)
        ledger.replay(junk)
    assert ledger.end().tokens.total_input == 0
    assert Ledger(fresh=False, previous=ProviderUsage(raw={"total": 3}), after_death=False).cumulative().raw == {"total": 3}
