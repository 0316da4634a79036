"""The life of a text sent into a running turn: delivered, then consumed or rejected, each told once and in that order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from greenroom.events import SteerConsumed, SteerDelivered, SteerRejected
from greenroom.transports.base import Output
from greenroom.transports.claude.state import WAITING, OpenAttempt, Steer, SteerState


def delivered(steer: Steer) -> Iterator[Output]:
    """The CLI has it in its queue."""
    if steer.state is SteerState.SENT:
        steer.state = SteerState.DELIVERED
        yield SteerDelivered(steer.text)


def consumed(turn: OpenAttempt, steer: Steer) -> Iterator[Output]:
    """It is in the context. The frame that says so may come first, or alone."""
    yield from delivered(steer)
    if steer.state is SteerState.DELIVERED:
        steer.state = SteerState.CONSUMED
        yield SteerConsumed(steer.text)
    if not turn.waiting_steers():
        turn.steers_until_s = None


def rejected(steer: Steer, reason: str) -> Iterator[Output]:
    """It will not be taken up, or nobody can know."""
    if steer.state in WAITING:
        yield SteerRejected(steer.text, reason)
    steer.state = SteerState.SETTLED


def all_rejected(turn: OpenAttempt, reason: str) -> Iterator[Output]:
    """Nobody will take up what is waiting."""
    for steer in turn.steers.values():
        yield from rejected(steer, reason)


def covered(turn: OpenAttempt, uuids: Iterable[str]) -> Iterator[Output]:
    """A result of the attempt came: it covers the steers that it names and those that are in the context."""
    for uuid in uuids:
        if (steer := turn.steers.get(uuid)) is not None:
            yield from consumed(turn, steer)
    for steer in turn.steers.values():
        if steer.state is SteerState.CONSUMED:
            steer.state = SteerState.SETTLED
