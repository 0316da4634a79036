"""Faults that were found by trying to break it, each as the smallest scenario that did."""

from __future__ import annotations

import logging
import math
import threading

import pytest

from greenroom import (
    AssistantText,
    FailureKind,
    RetryPolicy,
    TurnFailedError,
    TurnRequest,
)
from greenroom.testing import FakeTransport, FakeTurn, turn_failed
from tests.faults.bench import PATIENCE_S, outcome_of, until
from tests.faults.test_callers import OPTIONS, fake, in_thread, prepare, room  # noqa: F401 - fixtures

AGES_S = (math.inf, 1e300, 1e12, 3e9, 1e8)


# --- times that no operating system can wait for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", AGES_S)
def test_an_endless_timeout_breaks_no_loop(fake, caplog, timeout_s):  # noqa: F811
    turn = FakeTurn("one", waits=True)
    session = fake(turn)
    ticket = session.prepare_turn(TurnRequest("p", timeout=timeout_s))
    answer = in_thread(session.run, ticket)
    assert turn.started.wait(PATIENCE_S)
    turn.release()
    assert answer().result.text == "one"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("listen", [False, True])
@pytest.mark.parametrize("wait_s", AGES_S)
def test_endless_patience_is_patience(fake, listen, wait_s):  # noqa: F811
    session = fake()
    ticket = prepare(session)
    assert session.run(ticket, wait=wait_s, on_event=(lambda event: None) if listen else None).result.text == "echo: p"
    later = prepare(session)
    answer = in_thread(later.wait, wait_s)
    session.run(later)
    assert answer().result.text == "echo: p"


def test_a_provider_that_asks_for_ages_before_the_retry_breaks_no_loop(fake, caplog):  # noqa: F811
    error = TurnFailedError(FailureKind.TRANSIENT, "overloaded", retry_after_s=1e10)
    session = fake(error, agent={"retry": RetryPolicy(delays=(0.01,))})
    answer = in_thread(session.run, prepare(session))
    until(lambda: session.state == "waiting", "the wait")
    session.interrupt()
    assert answer() is error
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
