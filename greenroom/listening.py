"""The events of a turn on the caller's own thread: its callback is called there while the turn runs.

Decides nothing about the turn: whoever stops listening only detaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from greenroom.actors.letterbox import Letterbox
from greenroom.actors.ticket import Batch, Sink
from greenroom.clock import Clock, SystemClock
from greenroom.errors import WaitTimeoutError
from greenroom.events import EventCallback, Notice

_PATIENCE_OVER: Any = object()


def as_callback(handler: object) -> Callable[[Any], None]:
    """Return what is to be called with an event. Raises TypeError for what cannot be."""
    on_event = getattr(handler, "on_event", None)
    callback: Any = on_event if on_event is not None else handler
    if not callable(callback):
        raise TypeError(f"an event handler is a callable or has on_event, got {type(handler).__name__}")
    return cast("Callable[[Any], None]", callback)


def listen(
    inbox: Letterbox[Batch | None], sink: Sink, callback: EventCallback, *, turn_id: str, wait_s: float | None, clock: Clock
) -> None:
    """Call back with what comes, until the turn has ended. Raises WaitTimeoutError after `wait_s` seconds, and what `callback` raises."""
    real = isinstance(clock, SystemClock)
    until_s = None if wait_s is None else clock.monotonic() + wait_s
    if wait_s is not None and not real:
        clock.call_later(wait_s, lambda: inbox.put(_PATIENCE_OVER))
    while True:
        try:
            batch = inbox.take(until_s - clock.monotonic() if real and until_s is not None else None)
        except TimeoutError:
            raise WaitTimeoutError(turn_id, wait_s or 0.0) from None
        if batch is None:
            return
        if batch is _PATIENCE_OVER:
            raise WaitTimeoutError(turn_id, wait_s or 0.0)
        for event in batch.events:
            if not isinstance(event, Notice):
                callback(event)
        sink.consumed(len(batch.events))
