"""What if the process dies? Counted or not, restarted or not, and what is sent then. Pure.

A death is never the provider's answer: it forgets no conversation, and past the intensity the turn alone fails.
"""

from __future__ import annotations

import copy

import attrs

from greenroom.errors import TransportDiedError
from greenroom.model import OnDeath, TurnResult
from greenroom.policy.attempts import execute, open_process
from greenroom.policy.commands import How, ReportDeath, WaitReason
from greenroom.policy.connect import died_connecting, is_connecting
from greenroom.policy.events import Died, Swallowed
from greenroom.policy.move import Move, drop, remember, wait
from greenroom.policy.outcome import fail, finish
from greenroom.policy.silence import as_death
from greenroom.policy.state import Phase


def swallowed(move: Move, event: Swallowed) -> None:
    """Go on after a probe that found the cut attempt taken."""
    if not move.runs(event.turn_id, event.incarnation) or not move.ticket.maybe_taken:
        move.ignore("no such question is open")
        return
    if move.given_up and not move.unwanted:
        move.ignore("its process is being ended: the next one is asked")
        return
    death = move.ticket.death or TransportDiedError()
    if move.unwanted:
        finish(move, TurnResult(interrupted=True), event.now_s)
    elif _go_on(move, resumable=True):
        execute(move, event.now_s)
    else:
        fail(move, death, event.now_s)


def died(move: Move, event: Died) -> None:
    """Take up the end of a process."""
    known = move.is_current(event.incarnation) or event.incarnation in move.state.ending
    if not known:
        move.ignore("that process is not known any more")
        return
    move.change(ending=move.state.ending - {event.incarnation})
    if move.is_current(event.incarnation):
        event = as_death(move, event)
        connecting, process = is_connecting(move), move.state.process
        move.change(process=None)
        if connecting and process is not None:
            died_connecting(move, event, process.flags)
        else:
            _died_current(move, event)


def _died_current(move: Move, event: Died) -> None:
    if move.state.phase is Phase.RUNNING:
        _died_running(move, event)
    elif move.state.phase is Phase.OPENING:
        _died_opening(move, event)
    elif move.state.phase is not Phase.WAITING and move.state.held.settled and move.state.resumable_id is None:
        drop(move)


def _died_opening(move: Move, event: Died) -> None:
    if event.evicted and not move.unwanted:
        open_process(move, event.now_s)
    elif event.refused or event.expected:
        fail(move, event.error, event.now_s)
    else:
        _count_death(move, event)
        _restart(move, event)


def _died_running(move: Move, event: Died) -> None:
    if event.evicted and not event.sent and not move.unwanted:
        open_process(move, event.now_s)
        return
    _book_cut(move, event)
    if not event.expected:
        _count_death(move, event)
    if move.unwanted:
        finish(move, TurnResult(interrupted=True), event.now_s, forced=event.expected)
    elif event.expected or not can_go_on(move):
        fail(move, event.error, event.now_s)
    else:
        _restart(move, event)


def _book_cut(move: Move, event: Died) -> None:
    bill = move.ticket.bill
    move.mark(cut=True)
    if event.sent:
        move.hold(reached=True)
        move.mark(bill=bill.lose(event.usage, duration_ms=event.duration_ms), maybe_taken=True)
    else:
        move.mark(bill=attrs.evolve(bill, duration_ms=bill.duration_ms + event.duration_ms))
    remember(move, None, event.usage)


def _count_death(move: Move, event: Died) -> None:
    deaths = (*move.settings.restart.recent(move.state.deaths, event.now_s), event.now_s)
    move.change(deaths=deaths)
    move.emit(ReportDeath(turn_id=move.ticket.turn_id, incarnation=event.incarnation, cause=event.error.detail))


def can_go_on(move: Move) -> bool:
    """Say whether the cut attempt can be taken up; where nobody can find out whether it was taken, `on_death` holds at once."""
    ticket, found_again = move.ticket, move.state.resumable_id is not None
    if not ticket.maybe_taken or (move.settings.probes and found_again):
        return True
    return _go_on(move, resumable=found_again)


def _go_on(move: Move, *, resumable: bool) -> bool:
    """Plan what follows an attempt that was taken and cut, as `on_death` says; False: nothing does."""
    on_death = move.settings.restart.on_death
    if on_death is OnDeath.CONTINUE and resumable:
        move.mark(how=How.CONTINUE, again=True)
    elif on_death is OnDeath.RESEND:
        move.mark(how=How.PROMPT, again=True)
    else:
        return False
    return True


def _restart(move: Move, event: Died) -> None:
    delay_s = move.settings.restart.delay_s(len(move.state.deaths))
    if delay_s is None:
        fail(move, _given_up(move, event.error), event.now_s)
        return
    move.mark(recovering=True, death=event.error)
    wait(move, delay_s, WaitReason.RESTART)


def _given_up(move: Move, error: TransportDiedError) -> TransportDiedError:
    """Return the error with a hint of why nothing follows it; the one that was reported stays as it was."""
    hinted = copy.copy(error)
    kept = "; the conversation is kept, and the next turn resumes it" if move.state.resumable_id is not None else ""
    hinted.hint = f"{len(move.state.deaths)} deaths within {move.settings.restart.within_s:g} s: it is restarted no more{kept}"
    return hinted
