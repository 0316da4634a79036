"""What is opened and what is sent? The attempts of the begun turn, and what happens when its conversation is gone. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from greenroom.errors import SessionResumeError
from greenroom.policy.commands import Execute, How, Open, WaitReason
from greenroom.policy.move import Move, drop, end_process, keep_deadline, wait
from greenroom.policy.outcome import fail
from greenroom.policy.restart import IN_USE_DELAYS_S
from greenroom.policy.state import Held, Phase, Process
from greenroom.policy.wire_ids import receipt


def open_process(move: Move, now_s: float) -> None:
    """Start the next process, for the begun turn: in the conversation that is held, or else in a fresh one."""
    resume_id = move.state.resumable_id
    if resume_id is None and move.state.held.settled:
        _lost(move, SessionResumeError(move.state.conversation_id, detail="the provider cannot resume"), now_s, resumed=False)
        return
    if resume_id is None:
        _begin_fresh(move)
    move.change(phase=Phase.OPENING)
    keep_deadline(move)
    start_process(move, resume_id, move.ticket.flags, after_death=move.ticket.cut)


def start_process(move: Move, resume_id: str | None, flags: Hashable, *, after_death: bool = False) -> None:
    """Have the next process started; it is the current one from now on, and ready later."""
    incarnation = move.state.incarnations + 1
    move.change(incarnations=incarnation, process=Process(incarnation=incarnation, flags=flags, resumed=resume_id))
    move.emit(
        Open(
            incarnation=incarnation,
            resume_id=resume_id,
            proposed_id=move.state.proposed_id if resume_id is None else None,
            previous_usage=move.state.held.usage,
            flags=flags,
            after_death=after_death,
        )
    )


def _begin_fresh(move: Move) -> None:
    """Nothing of this turn is in the conversation now: the prompt is due, whatever was to be sent."""
    ticket = move.ticket
    move.change(held=Held(generation=move.state.held.generation))
    move.mark(how=How.PROMPT, again=ticket.again or ticket.how is not How.PROMPT, maybe_taken=False, taken=False)


def execute(move: Move, now_s: float) -> None:
    """Give the attempt to the live process: the one that was cut, under its old receipt, or a new one."""
    ticket, process = move.ticket, move.state.process
    if process is None:
        raise RuntimeError("no process to execute in")
    timeout_s = ticket.request.timeout
    deadline_s = now_s + timeout_s if ticket.deadline_s is None and timeout_s is not None else ticket.deadline_s
    if ticket.again:
        move.mark(attempt=ticket.attempt + 1, again=False, maybe_taken=False)
    move.mark(deadline_s=deadline_s, cut=False)
    move.change(phase=Phase.RUNNING)
    if process.named and move.state.conversation_id is None:
        move.hold(public_id=move.state.held.opened_id)
    ticket = move.ticket
    move.emit(
        Execute(
            turn_id=ticket.turn_id,
            incarnation=process.incarnation,
            how=ticket.how,
            receipt=receipt(ticket.nonce, ticket.attempt),
            attempt=ticket.attempt,
            probe=ticket.maybe_taken and move.settings.probes,
            deadline_s=deadline_s,
        )
    )


def resume_refused(move: Move, error: SessionResumeError, now_s: float, *, resumed: bool) -> None:
    """Answer a refused resume: wait for a conversation that is in use, do without one that is gone. `resumed`: it was asked for."""
    if move.unwanted:
        end_process(move, reason="its conversation cannot be resumed")
        fail(move, error, now_s)
    elif not error.in_use:
        _lost(move, error, now_s, resumed=resumed)
    elif move.ticket.in_use_waits < len(IN_USE_DELAYS_S):
        _wait_for_it(move)
    else:
        end_process(move, reason="its conversation is in use")
        fail(move, error, now_s)


def _wait_for_it(move: Move) -> None:
    end_process(move, reason="its conversation is in use")
    ticket = move.ticket
    if move.state.resumable_id is None and move.settings.chooses_ids:
        # We asked for a fresh conversation under an id that is ours alone: so it exists, and whoever wrote it may have taken the attempt.
        move.hold(reached=True)
        move.mark(maybe_taken=ticket.attempt > 0 and not ticket.again)
    move.mark(in_use_waits=ticket.in_use_waits + 1)
    wait(move, IN_USE_DELAYS_S[ticket.in_use_waits], WaitReason.IN_USE)


def _lost(move: Move, error: SessionResumeError, now_s: float, *, resumed: bool) -> None:
    """The conversation is gone: take a fresh one if no history is lost by it, or if the caller allows it, once."""
    ticket, held = move.ticket, move.state.held
    end_process(move, reason="its conversation is gone")
    if resumed and not held.settled:
        # Refused as gone, and before that as in use: Claude Code says both of a transcript that was begun and holds no message yet.
        # Such an id can be had neither way any more, and nothing is in it.
        move.change(held=Held(generation=held.generation + (1 if ticket.in_use_waits else 0)))
        open_process(move, now_s)
    elif ticket.expected_conversation is not None and not ticket.keepsake and not ticket.replaced:
        drop(move)
        move.mark(replaced=True)
        open_process(move, now_s)
    else:
        fail(move, error, now_s)


def is_another(move: Move, conversation_id: str | None) -> bool:
    """Say whether a resume was answered with another conversation in a turn that demands its own."""
    resumed = move.state.process.resumed if move.state.process else None
    return move.ticket.keepsake and move.state.held.settled and resumed is not None and conversation_id not in (None, resumed)


def refuse_another(move: Move, other: str | None, now_s: float) -> None:
    """End a turn that would run in another conversation than the one that it demands."""
    expected = move.state.conversation_id
    end_process(move, kill=True, reason="it is not the conversation that was asked for")
    fail(move, SessionResumeError(expected, detail=f"the provider answered with conversation {other!r}"), now_s)
