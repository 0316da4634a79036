"""Who waits for a rollback to begin? Kept beside the session's actor, and answered by what the policy commands. Loop thread.

The asker does the work, on his own thread, and always says when he is done: an actor that takes a crashed one's place need only find out
whether he still is at it (`SessionCore.rewinding`), for what he said to the crashed one is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.model import Checkpoint
from greenroom.policy import commands as c
from greenroom.policy import events as e
from greenroom.policy.state import State


class Rollbacks:
    """The requests that have not begun, and the askers who wait to be let go."""

    def __init__(self) -> None:
        self._asked: dict[str, Cell[Checkpoint]] = {}
        self._done: list[m.RollbackEnded] = []

    def asked(self, message: m.RollBack, now_s: float) -> e.RollBackAsked:
        """Take a request."""
        self._asked[message.request_id] = message.reply_to
        return e.RollBackAsked(now_s=now_s, request_id=message.request_id)

    def ended(self, message: m.RollbackEnded, now_s: float) -> e.RolledBack:
        """Take what came of it."""
        self._done.append(message)
        return e.RolledBack(now_s=now_s, request_id=message.request_id, num_turns=message.num_turns, checkpoint=message.checkpoint)

    def answer(self, command: c.BeginRollback | c.RefuseRollback) -> None:
        """Answer who asked; he may have been answered by a crash."""
        reply = self._asked.pop(command.request_id, None)
        if reply is None:
            return
        if isinstance(command, c.BeginRollback):
            reply.settle(command.checkpoint)
        else:
            reply.fail(command.error)

    def fail(self, error: BaseException) -> None:
        """The actor has ended: answer everybody. What was done to the conversation is done, whether or not it is on record."""
        for reply in self._asked.values():
            reply.fail(error)
        for message in self._done:
            message.done()
        self._asked.clear()

    def let_go(self, message: m.RollbackEnded) -> None:
        """It is on record: let the asker go."""
        self._done.remove(message)
        message.done()

    def lost(self, state: State, at_work: Collection[str], now_s: float) -> Iterable[e.RolledBack]:
        """Return the end of a rollback that nobody is at any more; `at_work`: those that somebody is."""
        if state.rewinding is not None and state.rewinding.request_id not in at_work:
            yield e.RolledBack(now_s=now_s, request_id=state.rewinding.request_id)
