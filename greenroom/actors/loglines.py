"""What the log says of a session's commands: ids, outcomes, causes; never a prompt, an argument or an environment. Pure."""

from __future__ import annotations

import logging

from greenroom.errors import TurnFailedError
from greenroom.policy import commands as c


def log_command(log: logging.Logger, session_id: str, command: c.Command) -> None:
    """Write the line of `command`, if it has one. `extra` carries `session_id` and `turn_id` for structured handlers."""
    line = _line(command)
    if line is None:
        return
    level, text = line
    if log.isEnabledFor(level):
        turn_id = getattr(command, "turn_id", None)
        if isinstance(command, c.Finish):
            turn_id = command.turn.turn_id
        where = session_id if turn_id is None else f"{session_id} {turn_id}"
        log.log(level, "%s: %s", where, text, extra={"session_id": session_id, "turn_id": turn_id})


def _line(command: c.Command) -> tuple[int, str] | None:  # noqa: C901 - one case a command
    match command:
        case c.Grant():
            return logging.DEBUG, f"prepared; expects conversation {command.expected_conversation}"
        case c.Open():
            what = f"resumes {command.resume_id}" if command.resume_id else "a fresh conversation"
            return logging.INFO, f"process {command.incarnation} is asked for: {what}"
        case c.Execute():
            probe = ", which may have been taken before" if command.probe else ""
            return logging.DEBUG, f"attempt {command.attempt} ({command.how.value}) in process {command.incarnation}{probe}"
        case c.Wait():
            return logging.INFO, f"waits {round(command.delay_s, 2):g} s ({command.reason.value})"
        case c.ReportDeath():
            return logging.WARNING, f"process {command.incarnation} died: {command.cause}"
        case c.ReportStall():
            return logging.WARNING, f"nothing was heard for {command.quiet_s:g} s ({command.reason}): {command.action.value}"
        case c.ReportRestart():
            return logging.INFO, f"process {command.incarnation} took over"
        case c.CloseConversation():
            return logging.DEBUG, f"process {command.incarnation} is {'killed' if command.kill else 'ended'}: {command.reason}"
        case c.Finish():
            turn = command.turn
            how = "interrupted" if turn.result.interrupted else "done"
            return (
                logging.INFO,
                f"{how}; {turn.continuity.value} in {turn.conversation_id}; {turn.retries} retries, {turn.restarts} restarts",
            )
        case c.Fail():
            error = command.error
            kind = f" ({error.kind.value})" if isinstance(error, TurnFailedError) else ""
            return logging.WARNING, f"failed: {type(error).__name__}{kind}"
        case _:
            return None
