"""Random durable fleets, whose hosts die; `python -m tests.faults.simulate_durable` runs more of them."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.faults.simulate_durable import simulate_durable

ROOT = pathlib.Path(__file__).parents[2]
SEEDS, BLOCK = 100, 10


@pytest.mark.parametrize("start", range(0, SEEDS, BLOCK))
def test_nothing_is_lost_and_nothing_runs_twice_over_the_lives_of_a_random_fleet(start):
    for seed in range(start, start + BLOCK):
        simulate_durable(seed)


@pytest.mark.parametrize("seed", [191, 303])
def test_seeds_that_once_found_something(seed):
    simulate_durable(seed)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", range(1000, 4000, 250))
def test_more_of_them(start):
    for seed in range(start, start + 250):
        simulate_durable(seed)


def test_the_same_seed_gives_the_same_journal_in_another_process_too():
    command = [sys.executable, "-m", "tests.faults.simulate_durable", "--seeds", "4", "--digests"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    told = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    digests = [simulate_durable(seed) for seed in range(4)]
    assert told.splitlines()[:4] == digests
    assert len(set(digests)) == 4
