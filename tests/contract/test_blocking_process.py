from __future__ import annotations

import os
import pathlib

import pytest

from greenroom.testing import ProcessContract

process = pytest.importorskip("greenroom.transports.process", exc_type=ImportError)


class TestLocalProcess(ProcessContract):
    def start(self, argv):
        return process.BlockingProcess(process.LocalExecutor().start(argv, pathlib.Path.cwd(), dict(os.environ)))
