"""What every test is held to: it leaves no actor, thread, child process or descriptor behind."""

from __future__ import annotations

import gc
import os
import pathlib
import threading
import time

import psutil
import pykka
import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow, and the same commit must give the same verdict twice: neither may fail a test.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

SETTLE_S = 15.0  # of a busy machine; a leak lasts longer


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
