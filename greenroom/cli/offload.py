"""Takes calls that may block off the loop. Decides nothing. A few threads in all, whatever the number of tasks.

Each kind of work has its own lane, so that a slow end of one process delays neither the next start nor a record on its way
to the disk, and a forced stop never queues behind either.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class Lane(enum.Enum):
    """What the call is for; the value is how many may be under way at once."""

    OPEN = ("open", 4)
    DISK = ("disk", 1)
    CLOSE = ("close", 4)
    ROOM = ("room", 2)


class Offload(Protocol):
    """Runs a blocking call elsewhere."""

    async def __call__(self, lane: Lane, call: Callable[..., _T], /, *args: Any) -> _T:
        """Return what `call(*args)` returns."""
        ...


class Threads:
    """The real one. Threads begin with a lane's first call."""

    def __init__(self) -> None:
        self._pools = {lane: ThreadPoolExecutor(lane.value[1], thread_name_prefix=f"greenroom-{lane.value[0]}") for lane in Lane}

    async def __call__(self, lane: Lane, call: Callable[..., _T], /, *args: Any) -> _T:
        """Run the call in its lane."""
        return await asyncio.get_running_loop().run_in_executor(self._pools[lane], call, *args)

    def close(self) -> None:
        """Let the threads go; calls that have not begun are dropped."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
