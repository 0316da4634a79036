"""The front door as the command uses it, and the one place that opens it. Decides how words of a task file map to the library's values.

Tests put fakes behind the same ports.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import attrs

from greenroom.cli.tasks import MODES, AgentSettings
from greenroom.errors import GreenroomError
from greenroom.events import AgentEvent, SessionEvent
from greenroom.liveness import Liveness
from greenroom.model import ApprovalPolicy, ConversationSpec, NativePermissions, ProviderUsage, Turn, TurnRequest
from greenroom.policy.retry import RetryPolicy
from greenroom.room import Greenroom
from greenroom.transports.catalog import PROVIDERS
from greenroom.transports.claude.transport import ClaudeStreamTransport


class RecoveredPort(Protocol):
    """A turn that an earlier run, which died, left without an outcome."""

    @property
    def turn_id(self) -> str:
        """Its name."""
        ...

    @property
    def key(self) -> str | None:
        """The name that its run gave to the work."""
        ...

    @property
    def verdict(self) -> Any:
        """What is known of it."""
        ...

    def discard(self) -> None:
        """Let it be; may block for a moment."""


class SessionPort(Protocol):
    """A session as the command uses it."""

    @property
    def conversation_id(self) -> str | None:
        """Where the next turn continues."""
        ...

    @property
    def liveness(self) -> Liveness:
        """What it is at, or what it waits for."""
        ...

    @property
    def spent(self) -> ProviderUsage | None:
        """What the session has consumed so far."""
        ...

    def prepare_turn(self, request: TurnRequest, *, key: str | None = None) -> Any:
        """Name a turn, under a key the same one as before; may block for a moment. Returns a ticket."""
        ...

    async def arun(self, ticket: Any, *, on_event: Callable[[AgentEvent | SessionEvent], None] | None = None) -> Turn:
        """Run it, with events in the caller's loop."""
        ...

    def interrupt(self, ticket: Any = None) -> None:
        """End the turn; never waits."""

    def steer(self, text: str) -> None:
        """Send text into the running turn; may block for a moment."""

    def release(self) -> None:
        """Give up the live process and keep the conversation."""

    def close(self) -> None:
        """End the session; may block for seconds."""


class AgentPort(Protocol):
    """An agent as the command uses it."""

    def session(self, cwd: Path, *, resume_id: str | None = None, session_id: str | None = None) -> SessionPort:
        """Open a session; one of that name that is on record goes on."""
        ...


class RoomPort(Protocol):
    """A room as the command uses it."""

    def close(self, deadline_s: float = 10) -> object:
        """End everything; blocks for at most about `deadline_s`."""

    def recovered(self) -> tuple[RecoveredPort, ...]:
        """What earlier runs left without an outcome."""
        ...


_APPROVALS = {"deny": ApprovalPolicy.DENY, "fail-turn": ApprovalPolicy.FAIL_TURN}


class Engine:
    """The real engine. Tests hand another one to the command."""

    def open_room(self, *, max_starting: int, state_dir: Path | None = None) -> RoomPort:
        """Open a room; may block for seconds, while what an earlier run left is ended."""
        return Greenroom(max_starting=max_starting, state_dir=state_dir)

    def agents(self, room: Any, *, claude_binary: Path | None, codex_binary: Path | None = None) -> Callable[[AgentSettings], AgentPort]:
        """Return what makes the agents of `room`."""
        return Agents(room, claude_binary=claude_binary, codex_binary=codex_binary)

    def unfit(
        self, settings: Iterable[AgentSettings], *, claude_binary: Path | None, codex_binary: Path | None = None
    ) -> list[GreenroomError]:
        """Say which of these agents this machine cannot run at all, each reason once: no CLI, too old a one, no sandbox. Blocks."""
        problems: dict[str, GreenroomError] = {}
        for one in settings:
            binary = {"claude": claude_binary, "codex": codex_binary}[one.provider]
            try:
                _refuse_unfit(one, binary)
            except GreenroomError as error:
                problems[str(error)] = error
        return list(problems.values())

    def scripted_agent(self, room: Any, binary: Path, *, env: dict[str, str], retry_delays_s: tuple[float, ...]) -> AgentPort:
        """Return an agent whose CLI is the executable `binary`, in exactly this environment."""
        agent: AgentPort = room.agent(
            ClaudeStreamTransport(binary=binary, env=env),
            permissions=NativePermissions.bypass(),
            approvals=ApprovalPolicy.DENY,
            retry=RetryPolicy(delays=retry_delays_s),
        )
        return agent


class Agents:
    """Makes the agents that tasks ask for, each once. Any thread; making one may block for as long as the binary takes to answer."""

    def __init__(self, room: Any, *, claude_binary: Path | None = None, codex_binary: Path | None = None) -> None:
        self._room = room
        self._binaries = {"claude": claude_binary, "codex": codex_binary}
        self._made: dict[AgentSettings, AgentPort] = {}
        self._lock = threading.Lock()

    def __call__(self, settings: AgentSettings) -> AgentPort:
        """Return the agent for these settings, whatever their working directory."""
        key = attrs.evolve(settings, cwd=Path())
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(settings)
            return self._made[key]

    def _make(self, settings: AgentSettings) -> AgentPort:
        env = _environment(settings)
        options: dict[str, Any] = {
            "permissions": NativePermissions(MODES[settings.permissions]),
            "approvals": _APPROVALS[settings.approvals],
            "model": settings.model,
        }
        agent: AgentPort
        binary = self._binaries.get(settings.provider)
        if binary is not None:  # a ready transport has its own environment
            agent = self._room.agent(PROVIDERS[settings.provider](binary=binary, env=env), **options)
        else:
            agent = self._room.agent(settings.provider, env=env, **options)
        return agent


def _environment(settings: AgentSettings) -> dict[str, str] | None:
    return {**os.environ, **dict(settings.env)} if settings.env else None


def _refuse_unfit(settings: AgentSettings, binary: Path | None) -> None:
    transport = PROVIDERS[settings.provider](binary=binary, env=_environment(settings))
    permissions, approvals = NativePermissions(MODES[settings.permissions]), _APPROVALS[settings.approvals]
    transport.validate(ConversationSpec(cwd=settings.cwd, permissions=permissions, approvals=approvals))
    transport.check()
