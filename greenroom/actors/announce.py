"""What does a session tell of itself? The session's and the turns' own events, read off what a step of the policy did. Pure.

Nothing is kept for them: they follow from the state before, the state after, and the commands. `of_step` comes before the step's
commands are carried out, `of_command` right before that command is.
"""

from __future__ import annotations

import attrs

from greenroom.errors import SessionResumeError
from greenroom.events import (
    Notice,
    SessionConnecting,
    SessionEnded,
    SessionFailed,
    SessionReady,
    ThreadOpenRequested,
    ThreadResumeFallback,
    TurnCompleted,
    TurnStarted,
)
from greenroom.model import ProviderProfile
from greenroom.policy import commands as c
from greenroom.policy import events as e
from greenroom.policy.state import BEGUN, Phase, State, text_of

SPEAKING = (c.Open, c.Finish, c.Fail, c.Stop)
"""Of these commands something is told."""


@attrs.frozen(kw_only=True)
class Announcement:
    """Events with the turn and the process that they are about (None, 0: none)."""

    events: tuple[Notice, ...]
    turn_id: str | None = None
    incarnation: int = 0


CRASHED = Announcement(events=(SessionEnded("Session crashed"),))
"""The end of a session whose actor failed, and with which nobody goes on."""


def of_step(event: e.SessionInput, before: State, after: State) -> Announcement | None:
    """Return what the step itself tells: a turn has begun, a process is ready, or will not be."""
    if isinstance(event, e.RunBegan) and _begins(event.turn_id, before, after):
        return Announcement(events=(TurnStarted(),), turn_id=event.turn_id)
    if isinstance(event, e.Opened) and _is_ready(after, event.incarnation) and not _is_ready(before, event.incarnation):
        thread_id = event.conversation_id or after.conversation_id or after.held.opened_id
        message = f"Connected to thread {thread_id}" if thread_id is not None else "Connected"
        return Announcement(events=(SessionReady(message, thread_id),), turn_id=_turn_id(after), incarnation=event.incarnation)
    if after.failure is not None and before.failure is None and before.phase not in BEGUN:
        incarnation = before.process.incarnation if before.process is not None else 0
        return Announcement(events=(SessionFailed(after.failure),), incarnation=incarnation)
    return None


def _begins(turn_id: str, before: State, after: State) -> bool:
    """Whether the prepared ticket was taken up; a turn that was interrupted meanwhile begins and ends in one step."""
    if before.phase is not Phase.PREPARED or before.ticket is None or before.ticket.turn_id != turn_id:
        return False
    return after.phase in BEGUN or after.ticket is None


def _is_ready(state: State, incarnation: int) -> bool:
    return state.process is not None and state.process.incarnation == incarnation and state.process.ready


def _turn_id(state: State) -> str | None:
    return state.ticket.turn_id if state.ticket is not None and state.phase in BEGUN else None


def of_command(command: c.Command, event: e.SessionInput, before: State, profile: ProviderProfile) -> Announcement | None:
    """Return what the command tells: a process is started, a turn has ended, or the session has."""
    match command:
        case c.Open():
            return Announcement(
                events=(*_fallback(command, event, before), *_opening(command, profile)),
                turn_id=_turn_id(before) or (event.turn_id if isinstance(event, e.RunBegan) else None),
                incarnation=command.incarnation,
            )
        case c.Finish():
            state = "interrupted" if command.turn.result.interrupted else "completed"
            told = TurnCompleted(f"Turn {state}", state)
            return Announcement(events=(told,), turn_id=command.turn.turn_id, incarnation=_incarnation(before))
        case c.Fail() if before.phase in BEGUN or isinstance(event, e.RunBegan):
            told = TurnCompleted(text_of(command.error), "error")
            return Announcement(events=(told,), turn_id=command.turn_id, incarnation=_incarnation(before))
        case c.Stop():
            return Announcement(events=(SessionEnded(),))
        case _:
            return None


def _incarnation(state: State) -> int:
    return state.process.incarnation if state.process is not None else 0


def _fallback(command: c.Open, event: e.SessionInput, before: State) -> tuple[Notice, ...]:
    refused = isinstance(event, e.Failed) and isinstance(event.error, SessionResumeError)
    thread_id = before.process.resumed if refused and before.process is not None and command.resume_id is None else None
    if thread_id is None:
        return ()
    return (ThreadResumeFallback(f"Could not resume thread {thread_id}; started a new thread instead.", thread_id),)


def _opening(command: c.Open, profile: ProviderProfile) -> tuple[Notice, ...]:
    resume_id = command.resume_id
    request = f"Attempting to resume thread {resume_id}." if resume_id is not None else "Starting a new thread."
    return (SessionConnecting(f"Starting {profile.program or profile.name}"), ThreadOpenRequested(request, resume_id))
