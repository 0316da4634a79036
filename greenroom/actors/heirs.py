"""What a session's actor that crashes leaves to its successor, and how that one takes it up: the record of inputs, replayed. Pure.

The crash itself is, to the policy, a death of the session's process: that one was killed with the actor, and what it was told last may
not have been heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.ticket import TicketCore
from greenroom.errors import GreenroomError, SessionCrashedError, TransportDiedError
from greenroom.model import Turn
from greenroom.policy import commands as c
from greenroom.policy import events as e
from greenroom.policy.session import State, step
from greenroom.policy.state import Phase


@attrs.frozen(kw_only=True)
class Left:
    """The half of the actor that is not on record: who waits for what."""

    error: SessionCrashedError
    tickets: dict[str, TicketCore]
    requests: dict[str, m.PrepareTurn]
    prepares: dict[str, m.PrepareTurn]
    adoptions: dict[str, Cell[bool]]
    calls: tuple[Any, ...]
    sequence: int

    def give_up(self) -> None:
        """Nobody takes it up: answer everybody."""
        self.answer_asked()
        for ticket in self.tickets.values():
            ticket.fail(self.error)

    def answer_asked(self) -> None:
        """Answer those whose question may have been lost."""
        for prepare in self.prepares.values():
            prepare.reply_to.fail(self.error)
        for adoption in self.adoptions.values():
            adoption.settle(value=False)


@attrs.frozen(kw_only=True)
class Heritage:
    """What the successor begins with. `outcomes`: of every turn that ended; `wait`: the last one that was begun, and when it ends."""

    state: State
    outcomes: dict[str, Turn | GreenroomError]
    wait: c.Wait | None
    wait_ends_s: float
    left: Left

    def settle(self) -> None:
        """Give each ticket that has ended its outcome, and answer what may have been lost. What goes on is the successor's."""
        self.left.answer_asked()
        current = self.state.ticket.turn_id if self.state.ticket is not None else None
        for turn_id, ticket in list(self.left.tickets.items()):
            outcome = self.outcomes.get(turn_id)
            if isinstance(outcome, Turn):
                ticket.finish(outcome)
            elif outcome is not None or turn_id != current:
                ticket.fail(outcome or self.left.error)
            else:
                continue
            del self.left.tickets[turn_id]

    def ends(self, now_s: float) -> Iterable[e.Died]:
        """Yield the end of every process that there was."""
        living = {self.state.process.incarnation} if self.state.process is not None else set()
        for incarnation in sorted(living | self.state.ending):
            error = TransportDiedError(reason=f"it was ended, since its session's actor had crashed: {self.left.error.reason}")
            ending = incarnation in self.state.ending
            sent = self.state.phase is Phase.RUNNING and incarnation in living
            yield e.Died(now_s=now_s, incarnation=incarnation, error=error, expected=ending, sent=sent)


def heritage(origin: State, inputs: Iterable[e.SessionInput], left: Left) -> Heritage:
    """Replay the record, from where it begins. What it does not reach back to has ended, and its callers were answered."""
    state, outcomes, wait, ends_s = origin, dict[str, Turn | GreenroomError](), None, 0.0
    for event in inputs:
        state, commands = step(state, event)
        for command in commands:
            match command:
                case c.Finish():
                    outcomes[command.turn.turn_id] = command.turn
                case c.Fail():
                    outcomes[command.turn_id] = command.error
                case c.Wait():
                    wait, ends_s = command, event.now_s + command.delay_s
                case _:
                    pass
    return Heritage(state=state, outcomes=outcomes, wait=wait, wait_ends_s=ends_s, left=left)
