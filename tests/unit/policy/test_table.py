"""The checked-in table of transitions is the one that the code gives."""

from __future__ import annotations

import pathlib

import pytest

from greenroom.policy.events import SessionInput
from greenroom.policy.session import Phase, step
from greenroom.policy.table import SITUATIONS, _happenings, reach, render

TABLE = pathlib.Path(__file__).parents[3] / "docs" / "transitions.md"


def test_the_checked_in_table_is_current():
    assert TABLE.read_text() == render(), "run: python -m greenroom.policy.table > docs/transitions.md"


@pytest.mark.parametrize(("title", "events"), SITUATIONS, ids=[title for title, _ in SITUATIONS])
def test_every_situation_is_what_its_title_says(title, events):
    assert reach(events).phase.value == title.split(":")[0]


def test_every_phase_and_every_event_is_in_the_table():
    assert {reach(events).phase for _, events in SITUATIONS} == set(Phase)
    assert {type(event) for _, event in _happenings(reach(()))} == set(SessionInput.__args__)


def test_the_same_event_twice_is_always_answered():
    for _, events in SITUATIONS:
        state = reach(events)
        for _, event in _happenings(state):
            once, _ = step(state, event)
            step(once, event)
