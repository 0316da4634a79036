"""A provider's program as its transport has it: where it is, whether it is new enough, in which environment and within which times it runs.

Knows nothing of what it says. `check` blocks and belongs on a caller's thread.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import ClassVar

import attrs

from greenroom.clock import Clock
from greenroom.ids import IdAllocator
from greenroom.model import StdioMcpServer
from greenroom.transports.base import Executor
from greenroom.transports.binaries import Program
from greenroom.transports.environment import child_env, without_parent
from greenroom.transports.home_models import HomeModels
from greenroom.transports.query import Place
from greenroom.transports.versions import check_version


def _own(env: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if env is None else dict(env)


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class InstalledCli:
    """What the stream transports of installed programs have in common; a provider's own adds what it can do and how it is started."""

    program: ClassVar[Program]

    executor: Executor | None = None
    env: dict[str, str] | None = attrs.field(default=None, converter=_own)
    clock: Clock | None = None
    ids: IdAllocator | None = None
    check_timeout: float = 15.0
    startup_timeout_s: float = 60.0
    interrupt_grace_s: float = 10.0
    close_grace_s: float = 5.0
    _binary: str | Path | None = None
    _home_models: HomeModels = attrs.field(factory=HomeModels, init=False)

    def find_binary(self) -> str:
        """Return the binary's path: the given one, else from PATH, else the one in the Python package that carries it.

        Raises CliNotFoundError.
        """
        return self.program.find(self._environment(), self._binary)

    def check(self) -> str:
        """Return the binary's version. Blocks, at most `check_timeout`; asked once per file.

        Raises CliNotFoundError, or CliCheckError when it does not answer or is older than `program.minimum`.
        """
        return check_version(self.find_binary(), without_parent(self._environment()), self.check_timeout, self.program)

    def _environment(self) -> Mapping[str, str]:
        return os.environ if self.env is None else self.env

    def _place(self, what: str, cwd: Path, argv: tuple[str, ...]) -> Place:
        """Say where a short-lived process of this program is asked beside the turns; `what` did not happen if it fails."""
        return Place(
            what=what,
            argv=argv,
            cwd=cwd,
            env_for=lambda mark: child_env(self.env, mark=mark, ours={}),
            executor=self.executor,
            timeout_s=self.startup_timeout_s,
            close_grace_s=self.close_grace_s,
        )


def servers_key(servers: tuple[StdioMcpServer, ...]) -> tuple[Hashable, ...]:
    """Return what is equal for equal MCP servers, and can be hashed."""
    return tuple((server.name, server.command, server.args, tuple(sorted(server.env.items()))) for server in servers)
