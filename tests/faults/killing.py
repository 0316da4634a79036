"""An executor whose queries die: processes that are asked beside the turns, some time after their start."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Mapping

from greenroom.transports.base import Process
from greenroom.transports.marks import VARIABLE
from greenroom.transports.process import LocalExecutor


class KillsQueries(LocalExecutor):
    """Kills each query `delay_s` seconds after its start, unless it is `off`; everything else is left alone."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.delay_s = delay_s
        self.off = False
        self.killed = 0

    def start(self, argv: tuple[str, ...], cwd: pathlib.Path, env: Mapping[str, str]) -> Process:
        """Start it, and see to its end."""
        process = super().start(argv, cwd, env)
        if not self.off and "/query/" in env.get(VARIABLE, ""):
            self.killed += 1
            if self.delay_s > 0:
                timer = threading.Timer(self.delay_s, process.kill)
                timer.daemon = True
                timer.start()
            else:
                process.kill()
        return process
