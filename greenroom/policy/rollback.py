"""What if the caller wants to go back by some turns? The conversation is put into his hands, and no process has it meanwhile. Pure."""

from __future__ import annotations

import attrs

from greenroom.errors import GreenroomError, SessionStateError
from greenroom.model import Checkpoint
from greenroom.policy.commands import BeginRollback, RefuseRollback
from greenroom.policy.events import RollBackAsked, RolledBack
from greenroom.policy.move import Move, end_process, save
from greenroom.policy.state import Phase, Rewinding


def ask_rollback(move: Move, event: RollBackAsked) -> None:
    """Take the request: what runs of an idle session is ended first."""
    refusal = _refusal(move)
    if refusal is not None:
        move.emit(RefuseRollback(request_id=event.request_id, error=refusal))
        return
    move.change(phase=Phase.REWINDING, rewinding=Rewinding(request_id=event.request_id))
    end_process(move, reason="its conversation is rolled back")


def _refusal(move: Move) -> GreenroomError | None:
    state = move.state
    if state.closing:
        return SessionStateError("the session is closed")
    if state.rewinding is not None:
        return SessionStateError("the conversation is being rolled back already")
    if state.ticket is not None:
        how = "prepared" if state.phase is Phase.PREPARED else "running"
        return SessionStateError(f"turn {state.ticket.turn_id!r} is {how}: a rollback needs an idle session")
    if state.conversation_id is None:
        return SessionStateError("the session holds no conversation to go back in")
    return None


def begin_if_free(move: Move) -> None:
    """Begin once every process of the session is gone."""
    state = move.state
    if state.rewinding is None or state.rewinding.begun or state.ending or state.conversation_id is None:
        return
    move.change(rewinding=attrs.evolve(state.rewinding, begun=True))
    checkpoint = Checkpoint(state.conversation_id, state.held.usage)
    move.emit(BeginRollback(request_id=state.rewinding.request_id, checkpoint=checkpoint))


def rolled_back(move: Move, event: RolledBack) -> None:
    """Take the conversation back, as it is now."""
    state = move.state
    if state.rewinding is None or state.rewinding.request_id != event.request_id:
        move.ignore("that rollback is not under way")
        return
    move.change(rewinding=None, phase=Phase.CLOSED if state.closing else Phase.IDLE, idle_since_s=event.now_s)
    if event.checkpoint is not None:
        left = max(0, state.held.successful_turns - event.num_turns)
        move.hold(public_id=event.checkpoint.conversation_id, usage=event.checkpoint.usage, successful_turns=left)
        save(move)


def break_off_rollback(move: Move) -> None:
    """The session is closed: what has not begun does not begin; what has is waited for."""
    rewinding = move.state.rewinding
    if rewinding is not None and not rewinding.begun:
        move.emit(RefuseRollback(request_id=rewinding.request_id, error=SessionStateError("the session was closed")))
        move.change(rewinding=None, phase=Phase.CLOSED)
