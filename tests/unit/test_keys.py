"""Which keyed tickets a session remembers: all that are open, and of those that are over the latest ones only."""

from __future__ import annotations

import types

import pytest

from greenroom.actors.ticket import TicketCore
from greenroom.errors import SessionStateError
from greenroom.keys import Keyed, Keys
from greenroom.model import Continuity, Turn, TurnResult

TURN = Turn(TurnResult(text="x"), Continuity.CONTINUED, "t", "c")


def keyed(outcome=None):
    core = TicketCore("t")
    if outcome is TURN:
        core.begin(None)
        core.finish(outcome)
    elif outcome is not None:
        core.fail(outcome)
    return Keyed(ticket=types.SimpleNamespace(turn_id="t"), core=core, nonce="n", request_hash="h")


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_over_is_bounded_the_oldest_goes_first(durable):
    keys = Keys(durable=durable, max_keys=3)
    superseded = SessionStateError("superseded")
    for number in range(10):
        keys.add(f"k{number}", keyed(superseded))
    assert [number for number in range(10) if keys.find(f"k{number}", "h")] == [7, 8, 9]


def test_what_is_open_is_remembered_however_much_comes_after_it():
    keys = Keys(durable=False, max_keys=3)
    mine = keyed()
    keys.add("mine", mine)
    for number in range(10):
        keys.add(f"k{number}", keyed(TURN))
    assert keys.find("mine", "h") is mine
    assert len(keys) == 3
    mine.core.fail(SessionStateError("closed"))
    keys.add("k10", keyed(TURN))
    assert keys.find("mine", "h") is None


def test_a_key_that_comes_again_is_the_latest():
    keys = Keys(durable=False, max_keys=2)
    for name in ("a", "b", "a", "c"):
        keys.add(name, keyed(TURN))
    assert keys.find("a", "h")
    assert not keys.find("b", "h")


def test_with_a_journal_what_has_ended_is_the_journals():
    keys = Keys(durable=True)
    keys.add("ended", keyed(TURN))
    keys.add("open", keyed())
    assert keys.find("ended", "h") is None
    assert keys.find("open", "h")
