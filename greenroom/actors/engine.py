"""What all rooms of a process share: the loop, its starter, the side threads, the guard. Made with the first room, ended with the last.

A forked child has none of it: its rooms refuse, and a new one there makes a new engine. Any thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

import pykka

from greenroom.actors.dispatcher import LoopDispatcher
from greenroom.actors.guardian import GuardianActor, SidsSeen
from greenroom.actors.runtime import LoopActor, tell
from greenroom.actors.side import ObserverActor, StoreActor

logger = logging.getLogger("greenroom")

SIDE_PATIENCE_S = 2.0

Ref = pykka.ActorRef[Any]


class Engine:
    """The threads of a process, at most three here, a starter and one for each journal beside them."""

    def __init__(self) -> None:
        self.loop = LoopDispatcher()
        self._lock = threading.Lock()
        self._sides: dict[type[LoopActor], tuple[LoopDispatcher, Ref]] = {}
        self._guardian: Ref | None = None
        self.rooms = 0

    def store(self) -> Ref:
        """The store's actor; its thread starts with its first use."""
        return self._side(StoreActor, "greenroom-store")

    def observer(self) -> Ref:
        """The observer's actor; its thread starts with its first use."""
        return self._side(ObserverActor, "greenroom-observer")

    def _side(self, kind: type[LoopActor], name: str) -> Ref:
        with self._lock:
            side = self._sides.get(kind)
            if side is None or not side[1].is_alive():
                loop = side[0] if side is not None else LoopDispatcher(name=name, starter=False)
                side = self._sides[kind] = (loop, kind.start(loop))
            return side[1]

    def guard(self) -> None:
        """Have the guard process run, before the first process of ours does."""
        with self._lock:
            if self._guardian is None or not self._guardian.is_alive():
                self._guardian = GuardianActor.start(self.loop)

    def tell_sids(self, sids: Mapping[int, int]) -> None:
        """Have the guard know of sessions that were seen under our marks. On the loop thread."""
        guardian = self._guardian
        if guardian is not None:
            tell(guardian, SidsSeen(sids=sids))

    def stop(self) -> None:
        """End everything; no room is left."""
        with self._lock:
            refs = [ref for _, ref in self._sides.values()]
            loops = [loop for loop, _ in self._sides.values()]
            guardian, self._guardian = self._guardian, None
            self._sides.clear()
        for ref in refs if guardian is None else [*refs, guardian]:
            ref.stop(block=False)
        for loop in loops:
            if not loop.stop(patience_s=SIDE_PATIENCE_S):
                logger.error("a checkpoint store or an event handler has not returned within %g s; its thread is left", SIDE_PATIENCE_S)
        self.loop.stop()


_lock = threading.Lock()
_engine: Engine | None = None


def acquire() -> Engine:
    """Return the process's engine, for one more room."""
    global _engine  # noqa: PLW0603 - one a process is the point
    with _lock:
        if _engine is None:
            _engine = Engine()
        _engine.rooms += 1
        return _engine


def release(engine: Engine) -> None:
    """A room has ended; the last one ends the engine."""
    global _engine  # noqa: PLW0603
    with _lock:
        engine.rooms -= 1
        if engine.rooms:
            return
        if _engine is engine:
            _engine = None
    engine.stop()


def _forget_in_child() -> None:
    global _engine, _lock
    _engine, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
