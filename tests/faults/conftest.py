import pytest

from greenroom.actors.claims import CLAIMS
from tests.faults.bench import Bench
from tests.faults.codex_bench import CodexBench


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    assert not len(CLAIMS), "a closed room holds conversations"


@pytest.fixture
def make(tmp_path):
    """Makes benches of scripted Codex, each with a home of its own."""
    benches = []

    def make(plan=None, **options):
        benches.append(CodexBench(tmp_path / f"bench-{len(benches)}", plan, **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def pytest_collection_modifyitems(config, items):
    """What is marked `full` runs only when `-m` asks for it."""
    if "full" in (config.getoption("-m") or ""):
        return
    full = [item for item in items if item.get_closest_marker("full")]
    if full:
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if item not in full]
