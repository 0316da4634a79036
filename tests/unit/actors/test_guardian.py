from __future__ import annotations

import pytest

from greenroom.actors import engine


@pytest.mark.parametrize("turn", range(3))
def test_an_engine_that_ends_while_its_guard_is_being_started_leaves_none(turn):
    """The autouse fixture looks for the child and its descriptors."""
    ours = engine.Engine()
    ours.guard()
    ours.stop()
