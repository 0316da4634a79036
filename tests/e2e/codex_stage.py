"""A stage for the real Codex: a model server on loopback, a fresh CODEX_HOME, a room, a directory to work in.

`config` is TOML for the end of config.toml; other options are the transport's.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

import psutil

from greenroom import CodexAppServerTransport
from tests.e2e.stage import Stage


class CodexStage(Stage):
    """As `Stage`, with servers that may be shared."""

    def __init__(
        self,
        folder: pathlib.Path,
        binary: str | pathlib.Path,
        *,
        config: str = "",
        retries: int | None = 0,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, binary, **options)
        self._extra = env or {}
        self._config = config
        self._retries = retries

    @property
    def env(self) -> dict[str, str]:
        """The environment of the servers."""
        return {**self.server.codex_env(self.home, retries=self._retries, extra=self._config), **self._extra}

    CALL = '"type":"function_call"'
    RESULT = '"type":"function_call_output"'

    def transcripts(self) -> Iterable[pathlib.Path]:
        """Return the files of the threads."""
        return self.codex_home.glob("sessions/**/*.jsonl")

    @property
    def codex_home(self) -> pathlib.Path:
        """Where the threads are."""
        return self.home / "codex"

    def transport(self, **options: Any) -> CodexAppServerTransport:
        """Return a transport to this stage's model."""
        return CodexAppServerTransport(**{"binary": self.binary, "env": self.env, **self._transport, **options})

    def processes(self, cwd: pathlib.Path | None = None) -> list[psutil.Process]:
        """Return the servers of this stage's home that have not ended, oldest first; a shared one works in its home."""
        found = []
        for child in psutil.Process().children():
            try:
                mine = "app-server" in child.cmdline() and child.environ().get("HOME") == str(self.home)
                if mine and child.status() != psutil.STATUS_ZOMBIE and (cwd is None or child.cwd() == str(cwd)):
                    found.append(child)
            except psutil.Error:
                continue
        return sorted(found, key=lambda process: process.create_time())

    def descendants(self) -> list[psutil.Process]:
        """Return everything that the servers have started."""
        return [below for server in self.processes() for below in server.children(recursive=True)]
