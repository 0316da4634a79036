"""A journal in a directory of its own, with a clock that the test sets."""

from __future__ import annotations

import attrs
import pytest

from greenroom.journal import Journal


@attrs.define
class Wall:
    now_s: float = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def wall():
    return Wall()


@pytest.fixture
def state_dir(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def journal(state_dir, wall):
    with Journal.open(state_dir, clock_wall=wall) as opened:
        yield opened
