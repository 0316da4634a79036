"""A process before there is a turn: the session is connected beforehand, so that it is seen to be ready, or why it is not. Pure.

No phase of its own: an idle or prepared session has a process that is not ready yet. A turn that comes meanwhile waits for it like for
any other that is being opened. Nothing is retried here: what fails is remembered (`State.failure`), and the next turn opens again.
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from greenroom.errors import SessionResumeError
from greenroom.policy.attempts import start_process
from greenroom.policy.events import Connect, Died, Failed, Opened
from greenroom.policy.move import Move, drop, end_process, forget_process
from greenroom.policy.state import BEGUN, Held, Phase, text_of

_NO_RESUME = "the provider cannot resume the conversation"


def connect(move: Move, event: Connect) -> None:
    """Open the conversation that is held, or a fresh one, without a turn."""
    if move.state.closing:
        move.ignore("the session is closed")
    elif move.state.process is not None or move.state.phase in BEGUN:
        move.ignore("it has a process already")
    elif move.state.phase is Phase.REWINDING:
        move.ignore("the conversation is being rolled back")
    elif move.state.failure == _NO_RESUME and _is_out_of_reach(move):
        move.ignore(_NO_RESUME)  # said before
    else:
        move.change(started=True, failure=None, idle_since_s=event.now_s)
        _open(move, event.flags)


def _is_out_of_reach(move: Move) -> bool:
    """Whether it holds a conversation that the provider cannot resume."""
    return move.state.resumable_id is None and move.state.held.settled


def _open(move: Move, flags: Hashable) -> None:
    resume_id, held = move.state.resumable_id, move.state.held
    if _is_out_of_reach(move):
        move.change(failure=_NO_RESUME)
        return
    if resume_id is None:
        move.change(held=Held(generation=held.generation))
    start_process(move, resume_id, flags)


def is_connecting(move: Move) -> bool:
    """Whether a process is being opened that no turn waits for."""
    return move.state.process is not None and not move.state.process.ready and move.state.phase not in BEGUN


def connected(move: Move, event: Opened) -> None:
    """The process is ready, in the conversation that was asked for; in another one it is not what the session is to go on in."""
    process, held = move.state.process, move.state.held
    if process is None:
        return
    if process.resumed is not None and event.conversation_id not in (None, process.resumed):
        end_process(move, kill=True, reason="it is not the conversation that was asked for")
        move.change(failure=f"the provider answered with conversation {event.conversation_id!r} in place of {process.resumed!r}")
        return
    move.change(process=attrs.evolve(process, ready=True), idle_since_s=event.now_s)
    move.hold(opened_id=event.conversation_id or held.opened_id)


def connect_failed(move: Move, event: Failed) -> None:
    """The start was refused: as gone, a fresh conversation takes its place, unless a ticket demands this one; else it is an error."""
    process, ticket = move.state.process, move.state.ticket
    if process is None:
        return
    forget_process(move, killed=event.killed)
    gone = isinstance(event.error, SessionResumeError) and not event.error.in_use
    if not gone or process.resumed is None or (ticket is not None and ticket.keepsake):
        move.change(failure=text_of(event.error))
        return
    if move.state.held.settled:
        drop(move)
    else:
        move.change(held=Held(generation=move.state.held.generation))
    _open(move, process.flags)


def died_connecting(move: Move, event: Died, flags: Hashable) -> None:
    """Its end is the answer; only a shared process that was given up for others' sake is asked for again."""
    if event.evicted:
        _open(move, flags)
    else:
        move.change(failure=text_of(event.error))
