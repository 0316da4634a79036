"""How does a turn end? Its result or its error, what was spent, and what becomes of the conversation. Pure."""

from __future__ import annotations

import copy

import attrs

from greenroom.errors import GreenroomError, TurnFailedError, TurnTimeoutError
from greenroom.model import Continuity, ProviderUsage, Turn, TurnResult
from greenroom.policy.commands import Fail, Finish
from greenroom.policy.move import Move, drop, end_process, save
from greenroom.policy.renewal import renewal_due
from greenroom.policy.state import Phase, Ticket, text_of


def finish(move: Move, result: TurnResult, now_s: float, *, forced: bool = False) -> None:
    """End the turn with a result, its own or an interrupted one. `forced`: its process was killed for it."""
    ticket, ran_in = move.ticket, move.state.conversation_id
    if not result.interrupted:
        move.hold(successful_turns=move.state.held.successful_turns + 1)
    retired = not result.interrupted and not ticket.keepsake and _is_due(move)
    turn = Turn(
        attrs.evolve(
            result,
            usage=ticket.bill.total(),
            cost_usd=ticket.bill.cost_usd,
            duration_ms=ticket.bill.duration_ms,
            session_id=result.session_id or ran_in,
        ),
        _continuity(ticket, ran_in, retired=retired),
        ticket.turn_id,
        ran_in,
        retries=ticket.retries,
        restarts=ticket.restarts,
        forced=forced,
    )
    _conclude(move, Finish(turn=turn), now_s, forget="the conversation's budget is spent" if retired else None)


def _is_due(move: Move) -> bool:
    held = move.state.held
    return renewal_due(move.settings.renewal, successful_turns=held.successful_turns, ticket=move.ticket.bill)


def _continuity(ticket: Ticket, ran_in: str | None, *, retired: bool) -> Continuity:
    if ticket.expected_conversation not in (None, ran_in):
        return Continuity.REPLACED
    return Continuity.RESET if retired else Continuity.CONTINUED


def fail(move: Move, error: GreenroomError, now_s: float, *, forget: bool = False) -> None:
    """End the turn with `error`, which then carries what the whole ticket consumed. `forget`: the conversation goes too."""
    failure = Fail(turn_id=move.ticket.turn_id, error=_with_usage(error, move.ticket.bill.total()))
    _conclude(move, failure, now_s, forget="the conversation is not usable any more" if forget else None)


def _with_usage(error: GreenroomError, usage: ProviderUsage | None) -> GreenroomError:
    """Return the error with the whole ticket's usage; the one that was reported stays as it was."""
    if usage is None or not isinstance(error, TurnFailedError | TurnTimeoutError) or error.usage == usage:
        return error
    billed = copy.copy(error).with_traceback(error.__traceback__)
    billed.__cause__, billed.usage = error.__cause__, usage
    return billed


def _conclude(move: Move, outcome: Finish | Fail, now_s: float, *, forget: str | None) -> None:
    """End the turn. The conversation, if the turn got as far as to run, is settled and saved, or (`forget`: why) dropped."""
    if move.ticket.attempt > 0 and move.state.conversation_id is not None:
        move.change(last_turn_conversation_id=move.state.conversation_id)
        move.hold(settled=True)
    if forget is not None:
        end_process(move, reason=forget)
        drop(move)
    elif move.ticket.attempt > 0:
        save(move)
    move.emit(outcome)
    failure = text_of(outcome.error) if isinstance(outcome, Fail) else None
    move.change(ticket=None, phase=Phase.IDLE, idle_since_s=now_s, failure=failure)
    if move.state.closing:
        end_process(move, reason="closed")
        move.change(phase=Phase.CLOSED)
