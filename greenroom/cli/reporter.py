"""Shows a board while a run goes on: a live table on a terminal, one line a change elsewhere. Runs on the loop's thread.

A screen that is gone (a closed pipe) ends the showing, never the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from greenroom.cli.progress import Board, Change
from greenroom.cli.results import TaskRecord
from greenroom.cli.safe_text import one_line
from greenroom.cli.view import render
from greenroom.events import AgentEvent, SessionEvent
from greenroom.liveness import Liveness

_REFRESH_S = 0.125
_UNSHOWABLE = (OSError, ValueError)  # gone, closed, or an encoding that lacks the character


class Screen(Console):
    """A console whose reader may go away (`greenroom run … | head`): rich's own would end the process then."""

    def on_broken_pipe(self) -> None:
        """Say nothing more, here or by `print`."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


class Reporter:
    """Feeds the board and shows it. `plain` forces lines on a terminal too."""

    def __init__(self, board: Board, console: Console, *, plain: bool = False) -> None:
        self.board = board
        self._console = console
        self._table = console.is_terminal and not plain
        self._live: Live | None = None
        self._gone = False
        board.started_s = time.monotonic()

    def began(self, key: str) -> None:
        """A task was taken up."""
        self._say(self.board.began(key, time.monotonic()))

    def opened(self, key: str, liveness: Callable[[], Liveness]) -> None:
        """A task has its session."""
        self.board.opened(key, liveness)

    def event(self, key: str, event: AgentEvent | SessionEvent) -> None:
        """A task's turn told something."""
        self._say(self.board.event(key, event))

    def ended(self, record: TaskRecord) -> None:
        """A task has its outcome."""
        self._say(self.board.ended(record, time.monotonic()))

    def note(self, text: str) -> None:
        """Say something about the run as a whole."""
        self.board.note = text
        self._say(Change("", text))

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        """Keep the table fresh within the block."""
        if not self._table:
            yield
            return
        live = self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._safely(live.start)
        started = not self._gone
        ticker = asyncio.ensure_future(self._tick())
        try:
            yield
        finally:
            ticker.cancel()
            self._draw()
            if started:  # rich undoes what it did not do
                self._safely(live.stop)

    async def _tick(self) -> None:
        while not self._gone:
            self._draw()
            await asyncio.sleep(_REFRESH_S)

    def _draw(self) -> None:
        if self._live is None or self._gone:
            return
        width, height = self._console.size
        picture = render(self.board, width=width, height=height, now_s=time.monotonic())
        self._safely(self._live.update, picture, refresh=True)

    def _say(self, change: Change | None) -> None:
        if change is None or self._table or self._gone:
            return
        passed = time.monotonic() - self.board.started_s
        line = one_line(f"{change.key} {change.text}")
        self._safely(self._console.print, Text(f"{passed:8.1f}s  {line}"), soft_wrap=True)

    def _safely(self, show: Callable[..., None], *args: Any, **options: Any) -> None:
        try:
            show(*args, **options)
        except _UNSHOWABLE:
            self._gone = self._console.quiet = True
