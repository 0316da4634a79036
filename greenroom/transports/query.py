"""A short conversation with a CLI that runs no turn: asks, listens, and ends the process. Blocks the calling thread, for a bounded time.

What is asked is a script, a generator: it yields the bytes to write (or None, to listen on) and is sent each line of standard output; what
it returns is the answer. So it is pure, and can be played by hand. At most `MAX_QUERIES` processes are asked at once.
"""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, TypeVar

import attrs

from greenroom.clock import SystemClock
from greenroom.errors import GreenroomError, QueryFailedError
from greenroom.ids import new_nonce
from greenroom.model import ProviderUsage
from greenroom.transports.base import Executor, Kill, Launch, Output, ProcessExit, Ready, Write
from greenroom.transports.driver import Driver, Ended
from greenroom.transports.guard import host_id
from greenroom.transports.marks import make_mark
from greenroom.transports.pipes import Oversized
from greenroom.transports.process import LocalExecutor
from greenroom.transports.pump import FOREIGN_CLOCK_S, pump, sweep

TIMEOUT_S = 30.0
MAX_QUERIES = 8
_REAP_ROUNDS = 40

AnswerT = TypeVar("AnswerT")
Line = bytes | Oversized
Script = Generator[bytes | None, Line, AnswerT]


class _Slots:
    """How many processes may be asked at once. A forked child begins anew."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.free = threading.BoundedSemaphore(MAX_QUERIES)


_SLOTS = _Slots()


class QueryCodec(Generic[AnswerT]):
    """Plays a script to one process. `outcome`: what it returned or raised, once `over`. Pure, as any codec."""

    def __init__(self, script: Script[AnswerT], *, what: str, timeout_s: float) -> None:
        self._script = script
        self._what = what
        self._timeout_s = timeout_s
        self._until_s: float | None = None
        self.over = False
        self.answer: AnswerT | None = None
        self.error: GreenroomError | None = None
        self.sent = False

    @property
    def deadline_s(self) -> float | None:
        """When the answer must be there."""
        return self._until_s

    def opened(self, now_s: float) -> list[Output]:
        """The process runs: ask the first question."""
        self._until_s = now_s + self._timeout_s
        return self._play(None)

    def receive(self, line: bytes, now_s: float) -> list[Output]:
        """Take one line of standard output."""
        return self._play(line) if line.strip() else []

    def oversized(self, size: int, now_s: float) -> list[Output]:
        """A line was longer than the limit: the script decides what follows."""
        return self._play(Oversized(size))

    def tick(self, now_s: float) -> list[Output]:
        """The time is up."""
        if self.over or self._until_s is None or now_s < self._until_s:
            return []
        why = f"no answer within {self._timeout_s:g} s"
        self._end(QueryFailedError(self._what, why))
        return [Kill(why)]

    def exited(self, exit_: ProcessExit, stderr_tail: str, now_s: float) -> list[Output]:
        """The process ended; who started it says what that means."""
        self._until_s = None
        return []

    def consumed(self) -> ProviderUsage | None:
        """Nothing: no turn runs."""
        return None

    def _play(self, line: Line | None) -> list[Output]:
        if self.over:
            return []
        try:
            data = next(self._script) if line is None else self._script.send(line)
        except StopIteration as stop:
            self.answer = stop.value
            self._end(None)
            return [Ready(None)]
        except GreenroomError as error:
            self._end(error)
            return [Ready(None)]
        return [] if data is None else [Write(data)]

    def _end(self, error: GreenroomError | None) -> None:
        self.over, self.error, self._until_s = True, error, None
        self._script.close()


@attrs.frozen(kw_only=True)
class Place:
    """Who is asked: a command line, where it runs, its environment under a given mark, and who starts it (None: this machine).

    `what` is asked, in words, for errors.
    """

    what: str
    argv: tuple[str, ...]
    cwd: pathlib.Path
    env_for: Callable[[str], Mapping[str, str]]
    executor: Executor | None = None
    timeout_s: float = TIMEOUT_S
    close_grace_s: float = 5.0


def ask(place: Place, script: Script[AnswerT]) -> AnswerT:
    """Start the process, play the script to it, end it by closing its input, and return the answer. Nothing of it runs on.

    Raises what the script raises, CliNotFoundError and WorkingDirectoryError from the start, and QueryFailedError for a process that cannot
    be started, ends by itself, or is silent too long.
    """
    with _SLOTS.free:
        return _ask(place, script)


def _ask(place: Place, script: Script[AnswerT]) -> AnswerT:
    clock, mark = SystemClock(), make_mark(host_id(), "query", new_nonce(), 1)
    codec = QueryCodec(script, what=place.what, timeout_s=place.timeout_s)
    env = place.env_for(mark)
    launch: Any = Launch(argv=place.argv, cwd=place.cwd, env=env, codec=codec, close_grace_s=place.close_grace_s)  # type: ignore[arg-type]
    try:
        process = (place.executor or LocalExecutor()).start(place.argv, place.cwd, env)
    except OSError as error:
        raise QueryFailedError(place.what, f"{place.argv[0]!r} cannot be started: {error}") from error
    driver = Driver(launch, process)
    ended: Ended | None = None
    try:
        outputs = driver.begin(clock.monotonic())
        while not codec.over and not driver.ended:
            ended = _end_in(outputs) or ended
            outputs = pump(driver, clock)
        ended = _end_in(outputs) or ended
        driver.shutdown(clock.monotonic(), reason=str(codec.error or "the answer is there"))
        while not driver.ended:
            ended = _end_in(pump(driver, clock)) or ended
    finally:
        _give_up(driver)
        sweep(mark)
    return _outcome(codec, ended, place)


def _give_up(driver: Driver) -> None:
    """Close it; one that still lives (the caller was interrupted) is killed and reaped."""
    if not driver.ended:
        driver.abandon()
        for _ in range(_REAP_ROUNDS):
            if driver.process.poll() is not None:
                break
            threading.Event().wait(FOREIGN_CLOCK_S)
    driver.release()


def _end_in(outputs: list[Output]) -> Ended | None:
    return next((output for output in outputs if isinstance(output, Ended)), None)


def _outcome(codec: QueryCodec[AnswerT], ended: Ended | None, place: Place) -> AnswerT:
    if codec.error is not None:
        raise codec.error
    if not codec.over:
        raise QueryFailedError(place.what, "the process ended" if ended is None else ended.as_error(place.argv).detail)
    return codec.answer  # type: ignore[return-value]
