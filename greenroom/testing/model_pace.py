"""How fast the scripted model answers: the pauses of SLEEP and SLOW, which `hurry` ends at once, and what was sent between them.

Decides nothing about what is answered. Its pauses are awaited on the server's loop; `hurry` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib


class Pace:
    """The pauses of one server. `pieces_sent` counts the pieces of slow texts that have gone out, over all answers."""

    def __init__(self) -> None:
        self.pieces_sent = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurried = asyncio.Event()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say in which loop the pauses are."""
        self._loop = loop

    async def pause(self, delay_s: float) -> None:
        """Wait `delay_s` seconds, or until somebody is in a hurry; not at all if somebody was."""
        if delay_s <= 0 or self._hurried.is_set():
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), delay_s)

    def hurry(self) -> None:
        """End the pauses that are, and let there be none from now on. Any thread; harmless before the start and after the end."""
        if self._loop is None:
            self._hurried.set()
            return
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._hurried.set)
