"""What every test is held to: it leaves no actor, thread, child process or descriptor behind."""

from __future__ import annotations

import gc
import os
import pathlib
import random
import threading
import time

import psutil
import pykka
import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow, and the same commit must give the same verdict twice: neither may fail a test.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

ORDER_SEED = int(os.environ.get("GREENROOM_ORDER_SEED", "1"))
SETTLE_S = 15.0  # of a busy machine; a leak lasts longer


def pytest_report_header() -> str:
    """Say in which order the tests run."""
    return f"order: shuffled by GREENROOM_ORDER_SEED={ORDER_SEED}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the files, and the tests of each: none may count on what ran before it. The seed is fixed, for the verdict to be."""
    chance = random.Random(ORDER_SEED)
    files: dict[pathlib.Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = chance.sample(sorted(files), len(files))
    items[:] = [item for path in order for item in chance.sample(files[path], len(files[path]))]


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.is_alive()}


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd") if pathlib.Path("/proc/self/fd").exists() else []:
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if not target.startswith(("/dev/urandom", "/dev/null")):
            found[int(name)] = target
    return found


def _leaks(before: tuple[set[threading.Thread], set[int], dict[int, str]]) -> dict[str, object]:
    threads, children, descriptors = before
    now = _descriptors()
    leaks = {
        "actors": [str(ref) for ref in pykka.ActorRegistry.get_all()],
        "threads": [thread.name for thread in _threads() - threads],
        "children": [_described(pid) for pid in _children() - children],
        "descriptors": {fd: target for fd, target in now.items() if descriptors.get(fd) != target},
    }
    return {kind: found for kind, found in leaks.items() if found}


def _described(pid: int) -> str:
    try:
        return f"{pid} {' '.join(psutil.Process(pid).cmdline())[:200]}"
    except psutil.Error:
        return f"{pid} (gone)"


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest):
    """Fail a test that leaves something behind, after a moment for what is just ending."""
    before = (_threads(), _children(), _descriptors())
    yield
    from greenroom import room

    if room._default is not None:
        room._default.close()
    deadline = time.monotonic() + SETTLE_S
    while (leaks := _leaks(before)) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert not leaks, f"{request.node.nodeid} left behind: {leaks}"
