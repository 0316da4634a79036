"""The actors that may block: the store, which writes checkpoints, and the observer, which calls users' event handlers. A thread each.

Nobody waits for them without a bound. The observer's backlog is bounded: what a slow handler cannot follow is dropped and counted.
"""

from __future__ import annotations

import logging
from typing import Any

from greenroom.actors import messages as m
from greenroom.actors.runtime import LoopActor, tell

logger = logging.getLogger("greenroom.observer")

OBSERVER_BACKLOG = 50_000


class StoreActor(LoopActor):
    """Writes checkpoints and answers each write."""

    def handle(self, message: Any) -> None:
        """Do one write."""
        match message:
            case m.Store():
                tell(message.session, m.Stored(sequence=message.sequence, error=_write(message)))
            case _:
                logger.warning("store: unexpected %s", type(message).__name__)


def _write(message: m.Store) -> BaseException | None:
    try:
        if message.checkpoint is None:
            message.store.clear(message.key)
        else:
            message.store.save(message.key, message.checkpoint)
    except BaseException as error:  # noqa: BLE001 - a user's store: its failure, a sys.exit too, is reported, never raised into a turn
        return error
    return None


class ObserverActor(LoopActor):
    """Calls the handlers of every session, in the order of the events."""

    dropped = 0

    def handle(self, message: Any) -> None:
        """Hand one batch to its handlers."""
        match message:
            case m.Observe():
                self._observe(message)
            case _:
                logger.warning("observer: unexpected %s", type(message).__name__)

    def _observe(self, message: m.Observe) -> None:
        if len(self._inbox) > OBSERVER_BACKLOG:
            self.dropped += len(message.events)
            logger.warning("event handlers are %d batches behind; %d events dropped so far", len(self._inbox), self.dropped)
            return
        for handler in message.handlers:
            for event in message.events:
                try:
                    handler(event)
                except BaseException:  # a handler's sys.exit must not silence the others
                    logger.exception("an event handler failed")
