"""Random fleets; `python -m tests.faults.simulate` runs more of them."""

import pytest

from tests.faults.simulate import simulate

SEEDS, BLOCK = 80, 20


@pytest.mark.parametrize("start", range(0, SEEDS, BLOCK))
def test_every_ticket_of_a_random_fleet_ends_once(start):
    for seed in range(start, start + BLOCK):
        simulate(seed)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("start", range(1000, 2000, 200))
def test_more_of_them(start):
    for seed in range(start, start + 200):
        simulate(seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_log(seed):
    assert simulate(seed) == simulate(seed)
    assert simulate(seed) != simulate(seed + 10)
