from __future__ import annotations

import json
from typing import Any

import pytest
from claude_wire import model_usage, result

from greenroom.model import CostSource, ProviderUsage, TokenUsage
from greenroom.transports.claude import usage
from greenroom.transports.claude.frames import Frame, decode


def frame(**fields: Any) -> Frame:
    return decode(json.dumps(result(**fields)).encode())


def without_since(**fields: Any) -> Frame:
    taken = frame(**fields)
    taken.model_usage_since = None
    return taken


def fresh() -> usage.Ledger:
    return usage.Ledger(fresh=True, previous=None, after_death=False)


def test_the_figure_since_the_last_result_is_the_turns_own() -> None:
    ledger = fresh()
    first = ledger.take(frame(since=model_usage(10, 1, 0.25), modelUsage=model_usage(500, 50, 9.0)))
    assert (first.tokens.input, first.total_cost_usd, first.increment_known) == (10, 0.25, True)
    ledger.take(frame(since=model_usage(20, 2, 0.5), modelUsage=model_usage(520, 52, 9.5)))
    total = ledger.cumulative()
    assert (total.tokens.input, total.tokens.output, total.total_cost_usd) == (30, 3, 0.75)
    assert total.raw == {"total_cost_usd": 0.5, "modelUsage": model_usage(520, 52, 9.5)}


def test_all_kinds_of_tokens_are_taken() -> None:
    row = {
        "inputTokens": 1,
        "outputTokens": 2,
        "cacheReadInputTokens": 3,
        "cacheCreationInputTokens": 4,
        "cacheCreationEphemeral1hInputTokens": 5,
        "thinkingTokens": 6,
        "costUSD": 0.1,
    }
    taken = fresh().take(frame(since={"a": row, "b": row}, num_turns=3)).tokens
    assert taken == TokenUsage(
        input=2, output=4, cache_read_input=6, cache_write_input=8, cache_write_1h_input=10, reasoning_output=12, turns=3
    )


def test_without_it_the_difference_of_the_totals() -> None:
    ledger = fresh()
    ledger.take(without_since(modelUsage=model_usage(100, 10, 1.0)))
    second = ledger.take(without_since(modelUsage=model_usage(150, 15, 1.5)))
    assert (second.tokens.input, second.tokens.output, second.total_cost_usd) == (50, 5, 0.5)
    assert second.increment_known


def previous(cost: float = 1.0) -> ProviderUsage:
    return ProviderUsage(tokens=TokenUsage(input=100), total_cost_usd=cost, raw={"modelUsage": model_usage(100, 10, cost)})


def test_totals_go_on_after_a_resume_in_order_and_begin_anew_after_a_kill() -> None:
    in_order = usage.Ledger(fresh=False, previous=previous(), after_death=False)
    assert in_order.take(without_since(modelUsage=model_usage(160, 16, 1.5))).tokens.input == 60
    killed = usage.Ledger(fresh=False, previous=previous(), after_death=True)
    assert killed.take(without_since(modelUsage=model_usage(160, 16, 1.5))).tokens.input == 160
    assert in_order.cumulative().tokens.input == 160


def test_totals_that_went_back_leave_the_amount_unknown_never_negative() -> None:
    ledger = usage.Ledger(fresh=False, previous=previous(), after_death=False)
    taken = ledger.take(without_since(modelUsage=model_usage(10, 1, 0.1), usage={"input_tokens": 10, "output_tokens": 1}))
    assert (taken.tokens.input, taken.increment_known, taken.total_cost_usd) == (10, False, None)
    assert ledger.cumulative().total_cost_usd is None


def test_a_resume_without_a_baseline_is_unknown() -> None:
    ledger = usage.Ledger(fresh=False, previous=None, after_death=False)
    assert not ledger.take(without_since()).increment_known
    assert not ledger.cumulative().increment_known


@pytest.mark.parametrize(
    "junk", [None, "x", 3, [], {"m": 5}, {"m": {"inputTokens": "many", "costUSD": -1}}, {"m": {"inputTokens": -5, "costUSD": True}}]
)
def test_junk_figures_never_raise_and_never_go_below_zero(junk: Any) -> None:
    ledger = fresh()
    taken = ledger.take(
        decode(json.dumps({"type": "result", "model_usage_since_last_result": junk, "modelUsage": junk, "usage": junk}).encode())
    )
    assert taken.tokens.total_input >= 0
    assert taken.total_cost_usd is None or taken.total_cost_usd >= 0


def test_a_model_without_a_price() -> None:
    taken = fresh().take(frame(since={"m": {"inputTokens": 5, "costUSD": 0.0, "costBasis": "unknown"}}))
    assert taken.cost_source is CostSource.UNKNOWN_MODEL
    assert fresh().take(frame(since={"m": {"inputTokens": 5}})).total_cost_usd is None


def test_adding() -> None:
    known = ProviderUsage(tokens=TokenUsage(input=1), total_cost_usd=0.5)
    assert usage.add(None, known) is known
    assert usage.add(known, known).total_cost_usd == 1.0
    both = usage.add(known, usage.unknown(TokenUsage(input=2)))
    assert (both.tokens.input, both.total_cost_usd, both.increment_known) == (3, None, False)
