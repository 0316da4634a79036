"""What if a running turn says nothing? Reported, interrupted, or its process given up, as the `StallPolicy` says. Pure.

The process that is given up was killed by us, but not at anybody's wish: its end is taken for the death that it replaces.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from greenroom.errors import TransportDiedError
from greenroom.policy.commands import InterruptAttempt, ReportStall
from greenroom.policy.events import Died, WentSilent
from greenroom.policy.move import Move, tell_end
from greenroom.policy.stall import StallAction


def went_silent(move: Move, event: WentSilent) -> None:
    """Take up a silence of the running attempt."""
    policy = move.settings.stall
    if policy is None or not move.runs(event.turn_id, event.incarnation) or move.ticket.attempt != event.attempt:
        move.ignore("that attempt does not run any more, or nobody minds its silence")
        return
    process = move.state.process
    if move.unwanted or process is None or process.hung is not None:
        move.ignore("that attempt is being ended already")
        return
    reported = ReportStall(
        turn_id=event.turn_id, incarnation=event.incarnation, action=policy.action, quiet_s=event.quiet_s, reason=event.reason
    )
    move.emit(reported)
    match policy.action:
        case StallAction.REPORT:
            pass
        case StallAction.INTERRUPT:
            move.emit(InterruptAttempt(turn_id=event.turn_id, incarnation=event.incarnation))
            move.mark(interrupted=True)
        case StallAction.RESTART:
            why = f"nothing was heard for {event.quiet_s:g} s ({event.reason}), and it was given up"
            move.change(process=attrs.evolve(process, hung=why))
            tell_end(move, kill=True, reason=why, hung=True)
        case _:
            assert_never(policy.action)


def as_death(move: Move, event: Died) -> Died:
    """Return what the end of the current process means: one that was given up for its silence died, unless its turn is unwanted by now."""
    process = move.state.process
    if process is None or process.hung is None or move.state.ticket is None or move.unwanted:
        return event
    told = event.error
    error = TransportDiedError(
        told.argv, told.returncode, told.stdout, told.stderr, signal=told.signal, reason=process.hung, usage=told.usage
    )
    return attrs.evolve(event, expected=False, error=error)
