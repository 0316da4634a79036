"""One step in the making, and the small changes of which every rule is made. Used by `step` alone, never outlives it. Pure."""

from __future__ import annotations

from typing import Any

import attrs

from greenroom.model import Checkpoint, ProviderUsage
from greenroom.policy.commands import (
    CancelWait,
    ClearCheckpoint,
    CloseConversation,
    Command,
    Ignored,
    SaveCheckpoint,
    SetDeadline,
    Wait,
    WaitReason,
)
from greenroom.policy.state import Held, Phase, Settings, State, Ticket, Waiting


class Move:
    """One step in the making: the state so far and the commands so far. Never outlives `step`."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.commands: list[Command] = []

    def emit(self, *commands: Command) -> None:
        """Add commands."""
        self.commands.extend(commands)

    def ignore(self, reason: str) -> None:
        """Do nothing, and say why."""
        self.emit(Ignored(reason=reason))

    def change(self, **fields: Any) -> None:
        """Set fields of the state."""
        self.state = attrs.evolve(self.state, **fields)

    def hold(self, **fields: Any) -> None:
        """Set fields of the held conversation."""
        self.change(held=attrs.evolve(self.state.held, **fields))

    def mark(self, **fields: Any) -> None:
        """Set fields of the ticket."""
        self.change(ticket=attrs.evolve(self.ticket, **fields))

    @property
    def settings(self) -> Settings:
        """The session's settings."""
        return self.state.settings

    @property
    def ticket(self) -> Ticket:
        """The ticket; only where the phase says that there is one."""
        if self.state.ticket is None:
            raise RuntimeError(f"no ticket in phase {self.state.phase.value}")
        return self.state.ticket

    @property
    def unwanted(self) -> bool:
        """Whether the begun turn is to end: nothing new is tried for it."""
        return self.state.closing or self.ticket.interrupted

    def runs(self, turn_id: str, incarnation: int) -> bool:
        """Say whether that process runs an attempt of that turn."""
        return self.state.phase is Phase.RUNNING and self.ticket.turn_id == turn_id and self.is_current(incarnation)

    @property
    def given_up(self) -> bool:
        """Whether the current process is being killed for its silence."""
        return self.state.process is not None and self.state.process.hung is not None

    def is_current(self, incarnation: int) -> bool:
        """Say whether that process is the current one."""
        return self.state.process is not None and self.state.process.incarnation == incarnation


def tell_end(move: Move, *, kill: bool, reason: str, hung: bool = False) -> None:
    """Have the current process ended, once; it stays the current one until it is over."""
    process = move.state.process
    if process is not None and process.incarnation not in move.state.ending:
        move.change(ending=move.state.ending | {process.incarnation})
        move.emit(CloseConversation(incarnation=process.incarnation, kill=kill, reason=reason, hung=hung))


def end_process(move: Move, *, kill: bool = False, reason: str) -> None:
    """Have the current process ended, if there is one, and be done with it."""
    tell_end(move, kill=kill, reason=reason)
    move.change(process=None)


def forget_process(move: Move, *, killed: bool) -> None:
    """The process is over, or (`killed`) being ended by the transport already."""
    process = move.state.process
    if process is not None and killed:
        move.change(ending=move.state.ending | {process.incarnation})
    move.change(process=None)


def wait(move: Move, delay_s: float, reason: WaitReason) -> None:
    """Let the begun turn wait."""
    wait_id = move.state.waits + 1
    move.change(phase=Phase.WAITING, waits=wait_id, waiting=Waiting(wait_id=wait_id, reason=reason))
    keep_deadline(move)
    move.emit(Wait(wait_id=wait_id, turn_id=move.ticket.turn_id, delay_s=delay_s, reason=reason))


def keep_deadline(move: Move) -> None:
    """The attempt goes on without a process: its deadline must be kept by somebody else."""
    ticket = move.ticket
    if ticket.deadline_s is not None:
        move.emit(SetDeadline(turn_id=ticket.turn_id, attempt=ticket.attempt, deadline_s=ticket.deadline_s))


def leave_wait(move: Move) -> None:
    """Call off the wait, if there is one."""
    if move.state.waiting is not None:
        move.emit(CancelWait(wait_id=move.state.waiting.wait_id))
        move.change(waiting=None)


def drop(move: Move) -> None:
    """Hold no conversation any more; the next process starts a fresh one."""
    move.change(held=Held(generation=move.state.held.generation + 1))
    if move.settings.checkpointing:
        move.emit(ClearCheckpoint())


def save(move: Move) -> None:
    """Have the held conversation checkpointed, once it has a name."""
    held = move.state.held
    if move.settings.checkpointing and held.public_id is not None:
        move.emit(SaveCheckpoint(checkpoint=Checkpoint(held.public_id, held.usage)))


def remember(move: Move, cumulative: ProviderUsage | None, usage: ProviderUsage | None) -> None:
    """Keep the provider's cumulative record, which a usage of one attempt may carry in `raw`."""
    latest = cumulative or (usage if usage is not None and usage.raw else None)
    if latest is not None:
        move.hold(usage=latest)
