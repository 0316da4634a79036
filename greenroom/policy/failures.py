"""What if an attempt fails? Waited for and retried, taken to a fresh conversation, or passed on. Pure."""

from __future__ import annotations

from greenroom.errors import CliExitError, GreenroomError, SessionResumeError, TurnFailedError
from greenroom.model import FailureKind
from greenroom.policy.attempts import resume_refused
from greenroom.policy.commands import WaitReason
from greenroom.policy.connect import connect_failed, is_connecting
from greenroom.policy.events import Failed
from greenroom.policy.move import Move, forget_process, remember, wait
from greenroom.policy.outcome import fail
from greenroom.policy.retry import retry_delay_s, sent_again
from greenroom.policy.state import Phase, Ticket


def failed(move: Move, event: Failed) -> None:
    """Take up an attempt or a start that failed by an answer of the provider."""
    if is_connecting(move) and move.is_current(event.incarnation):
        connect_failed(move, event)
        return
    opening = move.state.phase is Phase.OPENING and move.is_current(event.incarnation)
    if not opening and (event.turn_id is None or not move.runs(event.turn_id, event.incarnation)):
        move.ignore("that attempt does not run any more")
        return
    _book_failure(move, event, opening=opening)
    resumed = move.state.process is not None and move.state.process.resumed is not None
    killed = event.killed or move.given_up
    if opening or killed:
        forget_process(move, killed=killed)
    _answer_failure(move, event, opening=opening, resumed=resumed)


def _book_failure(move: Move, event: Failed, *, opening: bool) -> None:
    if not event.sent:
        return
    usage = event.usage or getattr(event.error, "usage", None)
    refused = isinstance(event.error, SessionResumeError)
    if usage is not None or not (refused or opening):
        move.mark(bill=move.ticket.bill.add(usage, duration_ms=event.duration_ms))
    if not (opening or refused):
        move.hold(reached=True)
        move.mark(taken=True)
    remember(move, event.cumulative, usage)


def _answer_failure(move: Move, event: Failed, *, opening: bool, resumed: bool) -> None:
    error = event.error
    if isinstance(error, SessionResumeError):
        resume_refused(move, error, event.now_s, resumed=resumed)
        return
    delay_s = None if move.unwanted else retry_delay_s(move.settings.retry_delays, move.ticket.retries, error)
    if delay_s is not None:
        _retry(move, event, delay_s, opening=opening)
    else:
        fail(move, error, event.now_s, forget=not event.keeps_conversation and _is_forgotten(move.ticket, error))


def _retry(move: Move, event: Failed, delay_s: float, *, opening: bool) -> None:
    """Plan a new attempt with a new deadline. After a start that failed, what was to be sent is still to be sent."""
    ticket = move.ticket
    move.mark(retries=ticket.retries + 1, failure=event.error, deadline_s=None)
    if not opening:
        in_place = move.settings.retries_in_place
        move.mark(how=sent_again(retries_in_place=in_place, nudgeable=event.nudgeable, taken=ticket.taken), again=True)
    wait(move, delay_s, WaitReason.RETRY)


def _is_forgotten(ticket: Ticket, error: GreenroomError) -> bool:
    """The backstop: a resumed turn that failed for no known reason, and any overflow, make the next turn start fresh."""
    if ticket.keepsake or not isinstance(error, TurnFailedError):
        return False
    unexplained = error.kind is FailureKind.OTHER and not isinstance(error, CliExitError) and ticket.expected_conversation is not None
    return unexplained or error.kind is FailureKind.CONTEXT_OVERFLOW
