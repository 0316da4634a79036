"""What does a session do about what happened? `step(state, event) -> (state, commands)`: all rules of turns, conversations and processes.

Pure and total: no I/O, no clock, no randomness; a late, stale or repeated event gives `Ignored`, nothing raises. Every process is known
by its incarnation, every piece of work by its turn; what names another one than the current is stale. The shell owes two things: it
starts process n+1 only once n is proven dead (so Open may follow CloseConversation at once), and it reports the end of every process
that it was told to close. The table of all of it is docs/transitions.md, made from this code by `python -m greenroom.policy.table`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import attrs

from greenroom.errors import (
    ContinuityError,
    GreenroomError,
    SessionResumeError,
    SessionStateError,
    TransportDiedError,
    TurnTimeoutError,
)
from greenroom.model import Checkpoint, TurnResult
from greenroom.policy.attempts import execute, is_another, open_process, refuse_another
from greenroom.policy.commands import AdoptVerdict, Command, Fail, Grant, InterruptAttempt, Refusal, Refuse, ReportRestart, Stop, WaitReason
from greenroom.policy.connect import connect, connected, is_connecting
from greenroom.policy.deaths import can_go_on, died, swallowed
from greenroom.policy.events import (
    Adopt,
    Cancelled,
    Close,
    Connect,
    DeadlinePassed,
    Died,
    Failed,
    Interrupted,
    Named,
    Opened,
    Prepare,
    Release,
    Reopened,
    RollBackAsked,
    RolledBack,
    RunBegan,
    SessionInput,
    Start,
    Succeeded,
    Swallowed,
    WaitDone,
    WaitedForPerson,
    WentSilent,
)
from greenroom.policy.failures import failed
from greenroom.policy.move import Move, drop, end_process, forget_process, keep_deadline, leave_wait, remember, save, tell_end
from greenroom.policy.outcome import fail, finish
from greenroom.policy.rollback import ask_rollback, begin_if_free, break_off_rollback, rolled_back
from greenroom.policy.silence import went_silent
from greenroom.policy.state import BEGUN, Held, Phase, SessionView, Settings, State, Ticket, initial, public_snapshot

__all__ = ["Phase", "SessionView", "Settings", "State", "initial", "public_snapshot", "replay", "replay_on", "step"]


def step(state: State, event: SessionInput) -> tuple[State, tuple[Command, ...]]:  # noqa: C901, PLR0912, PLR0915 (one line per event)
    """Return what `state` becomes by `event`, and what must be done, in order."""
    move = Move(state)
    match event:
        case Start():
            _start(move, event)
        case Reopened():
            _reopened(move, event)
        case Adopt():
            _adopt(move, event)
        case Prepare():
            _prepare(move, event)
        case Cancelled():
            _cancelled(move, event)
        case RunBegan():
            _run_began(move, event)
        case Connect():
            connect(move, event)
        case Opened():
            _opened(move, event)
        case Named():
            _named(move, event)
        case Succeeded():
            _succeeded(move, event)
        case Failed():
            failed(move, event)
        case Swallowed():
            swallowed(move, event)
        case Died():
            died(move, event)
        case WaitDone():
            _wait_done(move, event)
        case DeadlinePassed():
            _deadline_passed(move, event)
        case WaitedForPerson():
            _waited_for_person(move, event)
        case WentSilent():
            went_silent(move, event)
        case Interrupted():
            _interrupted(move, event)
        case RollBackAsked():
            ask_rollback(move, event)
        case RolledBack():
            rolled_back(move, event)
        case Release():
            _release(move)
        case Close():
            _close(move, event)
        case _:
            assert_never(event)
    begin_if_free(move)
    _stop_if_over(move)
    return move.state, tuple(move.commands)


def replay(settings: Settings, events: Iterable[SessionInput]) -> State:
    """Return the state of a session with these settings to which all this happened, in order."""
    return replay_on(initial(settings), events)


def replay_on(state: State, events: Iterable[SessionInput]) -> State:
    """Return what `state` becomes when all this happens to it, in order."""
    for event in events:
        state, _ = step(state, event)
    return state


def _start(move: Move, event: Start) -> None:
    if move.state.started or move.state.closing:
        move.ignore("the session has begun already")
        return
    move.change(started=True)
    if event.checkpoint is not None and move.settings.supports_resume:
        _take_up(move, event.checkpoint)


def _reopened(move: Move, event: Reopened) -> None:
    """Whatever was under way died with the host; what may be in the conversation is remembered, so that it is looked for there."""
    state = move.state
    if state.ticket is not None and state.ticket.attempt > 0 and state.phase in BEGUN:
        move.hold(reached=True)
    move.change(
        settings=attrs.evolve(event.settings, session_nonce=state.settings.session_nonce),
        phase=Phase.IDLE,
        started=True,
        ticket=None,
        process=None,
        ending=frozenset(),
        deaths=(),
        waiting=None,
        rewinding=None,
        idle_since_s=event.now_s,
        closing=False,
        stopped=False,
    )
    if move.state.resumable_id is None and move.state.held != Held(generation=state.held.generation):
        drop(move)  # what its process knew is gone with it
    if move.state == state:
        move.ignore("nothing was under way")


def _take_up(move: Move, checkpoint: Checkpoint) -> None:
    generation = move.state.held.generation + 1
    move.change(held=Held(generation=generation, public_id=checkpoint.conversation_id, settled=True, usage=checkpoint.usage))


def _adopt(move: Move, event: Adopt) -> None:
    state = move.state
    newer = state.held.reached or state.conversation_id is not None
    accepted = state.phase is Phase.IDLE and state.settings.supports_resume and not newer
    if accepted:
        end_process(move, reason="another conversation was adopted")
        move.change(started=True)
        _take_up(move, event.checkpoint)
    move.emit(AdoptVerdict(request_id=event.request_id, accepted=accepted))


def _prepare(move: Move, event: Prepare) -> None:
    state = move.state
    if state.closing:
        _refuse(move, event.turn_id, Refusal.CLOSED, SessionStateError("the session is closed"))
    elif state.ticket is not None and state.ticket.turn_id == event.turn_id:
        move.ignore("that ticket exists already")
    elif state.phase in BEGUN:
        _refuse(move, event.turn_id, Refusal.BUSY, SessionStateError(f"turn {move.ticket.turn_id!r} is running"))
    elif state.phase is Phase.REWINDING:
        _refuse(move, event.turn_id, Refusal.BUSY, SessionStateError("the conversation is being rolled back"))
    elif event.expect_conversation not in (None, state.conversation_id):
        _refuse(move, event.turn_id, Refusal.CONTINUITY, ContinuityError(event.expect_conversation, state.conversation_id))
    else:
        _grant(move, event)


def _refuse(move: Move, turn_id: str, refusal: Refusal, error: GreenroomError) -> None:
    move.emit(Refuse(turn_id=turn_id, refusal=refusal, error=error))


def _grant(move: Move, event: Prepare) -> None:
    superseded = move.state.ticket.turn_id if move.state.ticket else None
    ticket = Ticket(
        turn_id=event.turn_id,
        nonce=event.nonce,
        request=event.request,
        expected_conversation=move.state.conversation_id,
        strict=event.expect_conversation is not None,
        pinned=event.pin,
        attempt=event.sent_attempt,
        how=event.sent_how,
        again=event.sent_attempt == 0,
        maybe_taken=event.sent_attempt > 0,
        cut=event.sent_attempt > 0,
    )
    if event.sent_attempt > 0:
        move.hold(reached=True)
    move.change(ticket=ticket, phase=Phase.PREPARED, started=True)
    _release_if_idle(move, event.now_s)
    move.emit(Grant(turn_id=ticket.turn_id, expected_conversation=ticket.expected_conversation, superseded=superseded))


def _release_if_idle(move: Move, now_s: float) -> None:
    after_s = move.settings.idle_release_after_s
    if after_s is not None and now_s - move.state.idle_since_s >= after_s and move.state.resumable_id is not None:
        end_process(move, reason="idle")


def _cancelled(move: Move, event: Cancelled) -> None:
    if move.state.phase is not Phase.PREPARED or move.ticket.turn_id != event.turn_id:
        move.ignore("that ticket is not waiting to be run")
        return
    move.change(ticket=None, phase=Phase.IDLE)


def _run_began(move: Move, event: RunBegan) -> None:
    state = move.state
    if state.phase in BEGUN and move.ticket.turn_id == event.turn_id:
        move.ignore("that turn runs already")
    elif state.closing:
        _refuse(move, event.turn_id, Refusal.CLOSED, SessionStateError("the session is closed"))
    elif state.phase is not Phase.PREPARED or move.ticket.turn_id != event.turn_id:
        _refuse(move, event.turn_id, Refusal.STALE, SessionStateError(f"ticket {event.turn_id!r} is not the most recent one"))
    else:
        _begin(move, event)


def _begin(move: Move, event: RunBegan) -> None:
    move.mark(flags=event.flags)
    move.change(failure=None)
    ticket, held = move.ticket, move.state.held
    if ticket.interrupted:
        _finish_unrun(move, event.now_s)
    elif ticket.keepsake and ticket.expected_conversation not in (None, held.public_id):
        fail(move, SessionResumeError(ticket.expected_conversation, detail="the session lost it before the turn ran"), event.now_s)
    elif ticket.maybe_taken and not can_go_on(move):
        fail(move, TransportDiedError(reason="the host died, and nobody can find out whether the provider took the message"), event.now_s)
    elif is_connecting(move) and move.state.process is not None and move.state.process.flags == ticket.flags and not ticket.maybe_taken:
        move.change(phase=Phase.OPENING)  # its start is on already
    elif _fits(move.state, ticket) and not ticket.maybe_taken:
        execute(move, event.now_s)
    else:
        end_process(move, reason="the turn needs a process of its own to find out what was taken" if ticket.cut else _OTHER_FLAGS)
        open_process(move, event.now_s)


_OTHER_FLAGS = "the turn needs a process with other flags"


def _fits(state: State, ticket: Ticket) -> bool:
    """Say whether the live process can take the turn; one whose conversation could not be found again has to."""
    if state.process is None:
        return False
    return state.process.ready and (state.process.flags == ticket.flags or (state.held.reached and state.resumable_id is None))


def _release(move: Move) -> None:
    state = move.state
    nothing_lost = state.resumable_id is not None or (not state.held.reached and not state.held.settled)
    if state.process is None or not state.process.ready or state.phase in BEGUN or not nothing_lost:
        move.ignore("there is no idle process whose conversation could be resumed")
        return
    end_process(move, reason="released")


def _close(move: Move, event: Close) -> None:
    if move.state.closing:
        move.ignore("the session is closed already")
        return
    move.change(closing=True)
    if move.state.phase is Phase.PREPARED:
        error = SessionStateError(f"the session was closed before turn {move.ticket.turn_id!r} ran")
        move.emit(Fail(turn_id=move.ticket.turn_id, error=error))
        move.change(ticket=None)
    if move.state.phase in BEGUN:
        _break_off(move, event.now_s)
    if move.state.phase is Phase.REWINDING:
        break_off_rollback(move)
    elif move.state.phase is Phase.RUNNING:
        tell_end(move, kill=False, reason="closed")
    else:
        end_process(move, reason="closed")
        move.change(phase=Phase.CLOSED)


def _stop_if_over(move: Move) -> None:
    state = move.state
    if state.closing and state.ticket is None and state.rewinding is None and not state.ending and not state.stopped:
        move.change(stopped=True)
        move.emit(Stop())


def _opened(move: Move, event: Opened) -> None:
    process = move.state.process
    if process is None or process.incarnation != event.incarnation or process.ready:
        move.ignore("that process is not being opened")
        return
    if is_connecting(move):
        connected(move, event)
        return
    if is_another(move, event.conversation_id):
        refuse_another(move, event.conversation_id, event.now_s)
        return
    move.change(process=attrs.evolve(process, ready=True))
    move.hold(opened_id=event.conversation_id or move.state.held.opened_id)
    ticket = move.ticket
    if ticket.recovering:
        move.emit(ReportRestart(turn_id=ticket.turn_id, incarnation=event.incarnation))
    deadline_s = None if ticket.deadline_s is None else ticket.deadline_s + event.slot_wait_s
    move.mark(recovering=False, in_use_waits=0, deadline_s=deadline_s)
    execute(move, event.now_s)


def _named(move: Move, event: Named) -> None:
    state, process = move.state, move.state.process
    if process is None or process.incarnation != event.incarnation:
        move.ignore("that process is not the current one")
    elif process.named and state.conversation_id == event.conversation_id:
        move.ignore("the conversation has that name already")
    elif state.phase in BEGUN and not process.named and is_another(move, event.conversation_id):
        refuse_another(move, event.conversation_id, event.now_s)
    else:
        move.change(process=attrs.evolve(process, named=True))
        _take_name(move, event.conversation_id)


def _take_name(move: Move, conversation_id: str) -> None:
    """A conversation into which nothing was sent yet keeps its name to itself: it could not be resumed by it."""
    held = move.state.held
    unused = move.state.phase not in BEGUN and not held.reached
    if not held.settled and (unused or move.state.phase is Phase.OPENING):
        move.hold(opened_id=conversation_id)
    elif move.state.phase in BEGUN:
        move.hold(public_id=conversation_id, reached=True)
    elif held.public_id != conversation_id:
        move.hold(public_id=conversation_id, settled=True)
        save(move)


def _succeeded(move: Move, event: Succeeded) -> None:
    if not move.runs(event.turn_id, event.incarnation):
        move.ignore("that attempt does not run any more")
        return
    result = event.result
    bill = move.ticket.bill.add(result.usage, cost_usd=result.cost_usd, duration_ms=result.duration_ms)
    move.mark(bill=bill)
    move.hold(reached=True, public_id=result.session_id or move.state.conversation_id)
    remember(move, event.cumulative, result.usage)
    if event.forced or move.given_up:
        forget_process(move, killed=True)
    finish(move, result, event.now_s, forced=event.forced)


def _wait_done(move: Move, event: WaitDone) -> None:
    waiting = move.state.waiting
    if waiting is None or waiting.wait_id != event.wait_id:
        move.ignore("nobody waits for that any more")
        return
    move.change(waiting=None)
    if waiting.reason is WaitReason.RESTART:
        move.mark(restarts=move.ticket.restarts + 1)
    if move.state.process is not None:
        execute(move, event.now_s)
    else:
        open_process(move, event.now_s)


def _deadline_passed(move: Move, event: DeadlinePassed) -> None:
    ticket = move.state.ticket
    due = ticket is not None and ticket.turn_id == event.turn_id and ticket.attempt == event.attempt
    if ticket is None or not due or ticket.deadline_s is None or move.state.phase not in {Phase.OPENING, Phase.WAITING}:
        move.ignore("that deadline is not kept here any more")
    elif event.now_s < ticket.deadline_s:
        keep_deadline(move)
    else:
        leave_wait(move)
        end_process(move, kill=True, reason="the attempt's time is over")
        fail(move, TurnTimeoutError(ticket.request.timeout or 0.0, turn_id=ticket.turn_id), event.now_s)


def _waited_for_person(move: Move, event: WaitedForPerson) -> None:
    """The transport has put its own deadline off already; what a restart would hand on is put off here."""
    ticket = move.state.ticket
    if ticket is None or ticket.turn_id != event.turn_id or ticket.deadline_s is None:
        move.ignore("no deadline of that turn is kept")
    else:
        move.mark(deadline_s=ticket.deadline_s + event.waited_s)


def _interrupted(move: Move, event: Interrupted) -> None:
    ticket = move.state.ticket
    if ticket is None or ticket.turn_id != event.turn_id:
        move.ignore("that turn has ended, or was never prepared")
    elif ticket.interrupted:
        move.ignore("that turn is being interrupted already")
    elif move.state.phase is Phase.PREPARED:
        # It overtook the RunBegan that it means: the front door marks a ticket begun before it posts either.
        move.mark(interrupted=True)
    else:
        _break_off(move, event.now_s)


def _break_off(move: Move, now_s: float) -> None:
    """End the begun turn as soon as its phase allows: only a running attempt has to be asked."""
    ticket, waiting = move.ticket, move.state.waiting
    if move.state.phase is Phase.RUNNING:
        if not ticket.interrupted and move.state.process is not None:
            move.emit(InterruptAttempt(turn_id=ticket.turn_id, incarnation=move.state.process.incarnation))
        move.mark(interrupted=True)
        return
    leave_wait(move)
    if waiting is not None and waiting.reason is WaitReason.RETRY and ticket.failure is not None:
        fail(move, ticket.failure, now_s)
    else:
        end_process(move, kill=True, reason="the turn was interrupted")
        _finish_unrun(move, now_s)


def _finish_unrun(move: Move, now_s: float) -> None:
    finish(move, TurnResult(interrupted=True), now_s)
