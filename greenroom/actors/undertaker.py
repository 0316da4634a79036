"""The actor that proves death: it looks for what a process left behind under its mark and ends that, until a scan is clean.

Runs on the loop thread; scans and signals on the starter thread. Processes that end together share their scans. What cannot be ended is
reported and waited for no longer: an unkillable tool must not hold a session for ever.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pykka

from greenroom.actors.dispatcher import Dispatcher, TimerFired
from greenroom.actors.messages import ReapProcess
from greenroom.actors.runtime import LoopActor, Message, tell
from greenroom.transports.base import Process
from greenroom.transports.marks import Sweep

logger = logging.getLogger("greenroom.supervisor")

SWEEP_ROUNDS = 60
SWEEP_PAUSE_S = 0.05
TERM_ROUNDS = 2
REAP_ROUNDS = 100

Ref = pykka.ActorRef[Any]
TellSids = Callable[[Mapping[int, int]], None]


@attrs.frozen(kw_only=True)
class ProveDead(Message):
    """End what carries `mark`, then answer `asker` with ProvenDead(token)."""

    token: Any
    mark: str
    asker: Ref

    def refuse(self) -> None:
        """There is nobody to prove it; nobody may wait for it either."""
        tell(self.asker, ProvenDead(token=self.token, proven=False))


@attrs.frozen(kw_only=True)
class ProvenDead(Message):
    """Nothing that carries the mark lives any more, or (`proven` False) it could not be ended and was reported."""

    token: Any
    proven: bool


@attrs.frozen(kw_only=True, eq=False)
class _Batch:
    """Deaths that are proven together."""

    asked: tuple[ProveDead, ...]
    sweep: Sweep


@attrs.frozen(kw_only=True)
class _Swept(Message):
    batch: _Batch
    remaining: tuple[int, ...]
    done: bool
    round_: int
    sids: Mapping[int, int]


@attrs.frozen(kw_only=True)
class _Reaped(Message):
    process: Process
    gone: bool
    round_: int


class UndertakerActor(LoopActor):
    """One for each room."""

    dispatcher: Dispatcher

    def __init__(self, dispatcher: Dispatcher, *, tell_sids: TellSids | None = None) -> None:
        super().__init__(dispatcher)
        self._tell_sids = tell_sids
        self._asked: list[ProveDead] = []
        self._scanning = False

    def handle(self, message: Any) -> None:
        """Gather what is asked into batches, and go on with those under way."""
        match message:
            case ProveDead():
                self._asked.append(message)
                self._begin()
            case _Swept():
                self._swept(message)
            case ReapProcess():
                self._reap(message.process, 0)
            case _Reaped():
                if not message.gone and message.round_ < REAP_ROUNDS:
                    self._later(message)
            case TimerFired():
                self._again(message.token)
            case _:
                logger.warning("undertaker: unexpected %s", type(message).__name__)

    def _begin(self) -> None:
        """Begin a batch, unless a first scan is on its way: what is asked meanwhile shares the next one."""
        if self._scanning or not self._asked:
            return
        self._scanning = True
        asked, self._asked = tuple(self._asked), []
        self._sweep(_Batch(asked=asked, sweep=Sweep([item.mark for item in asked])), 0)

    def _sweep(self, batch: _Batch, round_: int) -> None:
        def job() -> Message:
            try:
                batch.sweep.round(signal.SIGTERM if round_ < TERM_ROUNDS else signal.SIGKILL)
            except Exception:
                # No descriptor left, no memory: not clean, looked at again. Without an answer nothing would ever close.
                logger.exception("a scan for what was left failed")
                return _Swept(batch=batch, remaining=batch.sweep.unended, done=False, round_=round_, sids={})
            found = dict(batch.sweep.sids)
            return _Swept(batch=batch, remaining=batch.sweep.unended, done=batch.sweep.done, round_=round_, sids=found)

        self.dispatcher.offload(job, self.actor_ref)

    def _swept(self, message: _Swept) -> None:
        if message.round_ == 0:
            self._scanning = False
            self._begin()
        if self._tell_sids is not None and message.remaining and message.sids:
            # What cleared its environment is known by its session alone, once its marked parent is dead: should we die now, the guard
            # has to know it.
            self._tell_sids(message.sids)
        if not message.done and message.round_ < SWEEP_ROUNDS:
            self._later(message)
            return
        if message.remaining:
            logger.error("processes that could not be ended: %s", ", ".join(map(str, message.remaining)))
        for asked in message.batch.asked:
            tell(asked.asker, ProvenDead(token=asked.token, proven=message.done))

    def _later(self, message: _Swept | _Reaped) -> None:
        self.dispatcher.call_later(SWEEP_PAUSE_S, self.actor_ref, TimerFired(token=message))

    def _again(self, token: _Swept | _Reaped) -> None:
        if isinstance(token, _Swept):
            self._sweep(token.batch, token.round_ + 1)
        else:
            self._reap(token.process, token.round_ + 1)

    def _reap(self, process: Process, round_: int) -> None:
        def job() -> Message:
            try:
                gone = process.poll() is not None
            except Exception:
                logger.exception("a killed process could not be polled")
                gone = False
            return _Reaped(process=process, gone=gone, round_=round_)

        self.dispatcher.offload(job, self.actor_ref)
