import pytest

from tests.faults.bench import Bench
from tests.faults.codex_bench import CodexBench


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()


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
