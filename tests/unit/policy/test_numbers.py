"""Retry, restart, renewal and wire ids: the numbers."""

from __future__ import annotations

import random
import uuid

import pytest
import tenacity

from greenroom.errors import TurnFailedError, TurnTimeoutError
from greenroom.model import FailureKind, ProviderUsage, RenewalBudget, TokenUsage
from greenroom.policy.bill import Bill
from greenroom.policy.commands import How
from greenroom.policy.renewal import renewal_due
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.retry import MAX_DELAYS, RetryPolicy, retry_delay_s, sent_again
from greenroom.policy.wire_ids import derived_uuid, receipt


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (RetryPolicy(), (30, 60, 120, 240, 480)),
        (RetryPolicy(delays=()), ()),
        (RetryPolicy([1, 2]), (1, 2)),
        (RetryPolicy(wait=tenacity.wait_fixed(3), stop=tenacity.stop_after_attempt(3)), (3, 3)),
        (RetryPolicy(wait=tenacity.wait_exponential(max=8), stop=tenacity.stop_after_attempt(6)), (1, 2, 4, 8, 8)),
        (RetryPolicy(wait=tenacity.wait_incrementing(5, 5), stop=tenacity.stop_after_delay(20)), (5, 10, 15)),
        (RetryPolicy(wait=tenacity.wait_fixed(10), stop=tenacity.stop_before_delay(25)), (10, 10)),
        (
            RetryPolicy(wait=tenacity.wait_chain(tenacity.wait_fixed(1), tenacity.wait_fixed(9)), stop=tenacity.stop_after_attempt(4)),
            (1, 9, 9),
        ),
        (RetryPolicy(wait=tenacity.wait_fixed(1), stop=tenacity.stop_never), (1,) * MAX_DELAYS),
    ],
)
def test_delays_become_data(policy, delays):
    assert policy.delays_data(None) == delays


def test_tenacity_itself_would_wait_as_long():
    slept = []
    wait, stop = tenacity.wait_exponential(multiplier=2, max=30), tenacity.stop_after_attempt(7)
    retrying = tenacity.Retrying(wait=wait, stop=stop, sleep=slept.append)
    with pytest.raises(tenacity.RetryError):
        retrying(int, "no number")
    assert RetryPolicy(wait=wait, stop=stop).delays_data(None) == tuple(slept)


def test_jitter_makes_delays_longer_by_a_bounded_part():
    policy = RetryPolicy(delays=(10, 20), jitter=0.1)
    drawn = [policy.delays_data(random.Random(seed)) for seed in range(50)]
    assert len(set(drawn)) == 50
    assert all(10 <= first <= 11 and 20 <= second <= 22 for first, second in drawn)
    assert policy.delays_data(random.Random(3)) == policy.delays_data(random.Random(3))


@pytest.mark.parametrize(
    "arguments",
    [
        {"delays": (-1,)},
        {"delays": (float("nan"),)},
        {"delays": (float("inf"),)},
        {"wait": tenacity.wait_fixed(1)},
        {"stop": tenacity.stop_after_attempt(2)},
        {"wait": 3, "stop": tenacity.stop_after_attempt(2)},
        {"wait": tenacity.wait_fixed(1), "stop": tenacity.stop_never, "delays": (1,)},
        {"jitter": -0.1},
        {"jitter": float("nan")},
    ],
)
def test_a_retry_policy_that_cannot_be_meant(arguments):
    with pytest.raises(ValueError):
        RetryPolicy(**arguments)


def test_a_tenacity_wait_that_gives_no_number_is_refused_by_value():
    policy = RetryPolicy(wait=lambda _: float("nan"), stop=tenacity.stop_after_attempt(3))
    with pytest.raises(ValueError, match="finite"):
        policy.delays_data(random.Random(1))


def test_only_transient_failures_of_a_turn_are_retried():
    transient = TurnFailedError(FailureKind.TRANSIENT, "busy")
    assert retry_delay_s((1.0, 2.0), 1, transient) == 2.0
    assert retry_delay_s((1.0, 2.0), 2, transient) is None
    assert retry_delay_s((1.0,), 0, TurnTimeoutError(3.0)) is None


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("nudgeable", [True, False])
def test_nothing_taken_means_the_prompt(in_place, nudgeable):
    assert sent_again(retries_in_place=in_place, nudgeable=nudgeable, taken=False) is How.PROMPT


def test_the_restart_window_slides():
    policy = RestartPolicy(within_s=100)
    assert policy.recent((0.0, 50.0, 99.0), 100.0) == (50.0, 99.0)
    assert [policy.delay_s(deaths) for deaths in (1, 2, 3, 4)] == [0.0, 1.0, 5.0, None]


def test_the_last_restart_delay_repeats_and_none_means_at_once():
    assert [RestartPolicy(max_restarts=5, delays=(2,)).delay_s(deaths) for deaths in (1, 5, 6)] == [2.0, 2.0, None]
    assert RestartPolicy(delays=()).delay_s(1) == 0.0
    assert RestartPolicy(max_restarts=0).delay_s(1) is None


@pytest.mark.parametrize("arguments", [{"max_restarts": -1}, {"within_s": 0}, {"within_s": float("nan")}, {"delays": (float("inf"),)}])
def test_a_restart_policy_that_cannot_be_meant(arguments):
    with pytest.raises(ValueError):
        RestartPolicy(**arguments)


@pytest.mark.parametrize(
    ("budget", "due"),
    [
        (None, False),
        (RenewalBudget(), False),
        (RenewalBudget(max_turns=3), True),
        (RenewalBudget(max_turns=4), False),
        (RenewalBudget(max_turn_input_tokens=30), True),
        (RenewalBudget(max_turn_input_tokens=31), False),
        (RenewalBudget(max_turn_duration_ms=40), True),
        (RenewalBudget(max_turn_duration_ms=41), False),
    ],
)
def test_renewal(budget, due):
    bill = Bill().add(ProviderUsage(tokens=TokenUsage(input=10, cache_read_input=20)), duration_ms=40)
    assert renewal_due(budget, successful_turns=3, ticket=bill) is due


def test_a_bill_never_invents_a_cost():
    assert Bill().add(ProviderUsage()).total().total_cost_usd is None
    assert Bill().add(None).total() is None
    lost = Bill().lose(None).total()
    assert (lost.increment_known, lost.total_cost_usd) == (False, None)


def test_wire_ids_are_uuids_and_differ():
    nonce = str(uuid.uuid4())
    ids = {receipt(nonce, 1), receipt(nonce, 2), derived_uuid(nonce, "x"), receipt(str(uuid.uuid4()), 1)}
    assert len(ids) == 4
    assert all(str(uuid.UUID(wire_id)) == wire_id for wire_id in ids)
    assert receipt(nonce, 1) == receipt(nonce, 1)
