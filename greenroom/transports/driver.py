"""One conversation's lines in and out: a codec above, a process below, and the ladder that ends the process. Thread-agnostic.

Whoever owns a driver says when a descriptor is ready and when a deadline is due, and gets back what follows: agent events and signals.
The actor of a conversation is one such owner, the blocking conversation of `transports/blocking.py` another. It makes no decision about
turns: what a death means is the session's affair.

The end of a process is its exit plus a short drain (a grandchild may hold the pipe open for ever), or the end of its standard output.
"""

from __future__ import annotations

import contextlib
import enum
from typing import Any

import attrs

from greenroom.asks import Answer
from greenroom.errors import ProcessClosedError, TransportDiedError
from greenroom.events import AgentEvent, RunFinished, RunStarted, Stderr
from greenroom.model import ProviderUsage
from greenroom.transports.base import (
    Attempt,
    AttemptEnded,
    AttemptSwallowed,
    Kill,
    Launch,
    LinkLaunch,
    Output,
    Process,
    ProcessExit,
    Ready,
    Signal,
    StartFailed,
    Write,
    soonest,
)
from greenroom.transports.pipes import Oversized, ProcessIO

READ_BYTES = 262_144
DRAIN_S = 0.5
DRAIN_READS = 256
EOF_GRACE_S = 1.0
MAX_KILLS = 5


@attrs.frozen(kw_only=True)
class Ended(Signal):
    """The process has ended and its output is read; the last signal of a driver.

    `expected`: we ended it. `refused`: it ended by its own decision before the handshake. `sent`: an attempt was open and may have
    reached the provider. `usage`: what that attempt is known to have consumed.
    """

    exit_: ProcessExit
    stderr_tail: str
    expected: bool
    refused: bool
    sent: bool
    reason: str
    usage: ProviderUsage | None

    def as_error(self, argv: tuple[str, ...]) -> TransportDiedError:
        """The same as an error."""
        exit_ = self.exit_
        return TransportDiedError(argv, exit_.returncode, "", self.stderr_tail, signal=exit_.signal, reason=self.reason, usage=self.usage)


Wants = tuple[bool, bool, bool, bool]
"""Whether the exit, standard output and standard error are to be watched, and whether bytes wait for standard input."""


class _Step(enum.IntEnum):
    """The rungs of the ladder."""

    NONE = 0
    INTERRUPT = 1
    EOF = 2
    TERMINATE = 3
    KILL = 4


class Driver:
    """Pumps one process through one codec. Not thread-safe: one owner, one thread at a time."""

    def __init__(self, launch: Launch | LinkLaunch, process: Process) -> None:
        self.launch = launch
        self.process = process
        self.codec: Any = launch.codec
        self.io = ProcessIO(process)
        self.ended = False
        self.ready = False
        self.attempt: Attempt | None = None
        self._step = _Step.NONE
        self._step_due_s: float | None = None
        self._drain_due_s: float | None = None
        self._eof_due_s: float | None = None
        self._expected = False
        self._reason = "the process ended before the turn's result"
        self._exit: ProcessExit | None = None
        self._kills = 0

    # --- what the owner asks

    @property
    def deadline_s(self) -> float | None:
        """The monotonic time at which `tick` is due next; None: never."""
        codec_s = self.codec.deadline_s if self._exit is None else None
        return soonest(codec_s, self._step_due_s, self._drain_due_s, self._eof_due_s)

    def wants(self, *, paused: bool) -> Wants:
        """Say what is to be watched now; `paused`: not standard output. Asked for after every read."""
        if self.ended:
            return (False, False, False, False)
        io = self.io
        return (self._exit is None, not (io.stdout_eof or paused), not io.stderr_eof, io.wants_write)

    @property
    def wants_stdout(self) -> bool:
        """Whether standard output is still to be read."""
        return not self.ended and not self.io.stdout_eof

    @property
    def closing(self) -> bool:
        """Whether the process is being ended by us."""
        return self._step is not _Step.NONE

    # --- what the owner tells

    def begin(self, now_s: float) -> list[Output]:
        """The process has been started."""
        return [RunStarted(self.launch.argv), *self.follow(self.codec.opened(now_s), now_s)]

    def stdout_ready(self, now_s: float, max_bytes: int = READ_BYTES) -> list[Output]:
        """Standard output can be read: read up to `max_bytes`."""
        outputs = self._read_stdout(now_s, max_bytes)
        if self.io.stdout_eof:
            outputs += self._stdout_ended(now_s)
        return outputs

    def stderr_ready(self, now_s: float, max_bytes: int = READ_BYTES) -> list[Output]:
        """Standard error can be read."""
        del now_s
        return [Stderr(text) for text in self.io.read_stderr(max_bytes)]

    def stdin_ready(self, now_s: float) -> list[Output]:
        """Standard input takes bytes again."""
        del now_s
        self.io.flush()
        return []

    def exit_ready(self, now_s: float) -> list[Output]:
        """The process may have ended."""
        if self._exit is not None or self.ended:
            return []
        self._exit = self.io.poll()
        if self._exit is None:
            return []
        self._step_due_s = self._eof_due_s = None
        self._drain_due_s = now_s + DRAIN_S
        # What the kernel still holds is read before anybody hears of the end: a finished result outlives its process.
        outputs = self._drain(now_s)
        return outputs + (self._finish(now_s) if self.io.drained and self.io.stdout_eof else [])

    def tick(self, now_s: float) -> list[Output]:
        """A deadline may be due."""
        if self.ended:
            return []
        # Where an exit cannot be watched it is noticed here, at the latest.
        outputs = self.exit_ready(now_s)
        if self._exit is None and self.codec.deadline_s is not None and self.codec.deadline_s <= now_s:
            outputs += self.follow(self.codec.tick(now_s), now_s)
        if self._drain_due_s is not None and self._drain_due_s <= now_s:
            return outputs + self._drain(now_s) + self._finish(now_s)
        if self._eof_due_s is not None and self._eof_due_s <= now_s:
            self._eof_due_s = None
            self._reason = "the process closed its standard output and lived on"
            self._kill(now_s)
        if self._step_due_s is not None and self._step_due_s <= now_s:
            if self._kills >= MAX_KILLS:
                # Not even SIGKILL ends it (it hangs in the kernel): nobody waits any longer. The owner has it reaped, whenever that is.
                return outputs + self._finish(now_s)
            self._climb(now_s)
        return outputs

    def start_turn(self, attempt: Attempt, now_s: float) -> list[Output]:
        """Begin an attempt; only when ready and none is open."""
        self.attempt = attempt
        return self.follow(self.codec.start_turn(attempt, now_s), now_s)

    def steer(self, text: str, steer_id: str, now_s: float) -> list[Output] | None:
        """Send text into the open turn; None: it can take none."""
        if self.attempt is None or self._step is not _Step.NONE:
            return None
        outputs = self.codec.steer(text, steer_id, now_s)
        return None if outputs is None else self.follow(outputs, now_s)

    def answer(self, request_id: str, answer: Answer, now_s: float) -> list[Output] | None:
        """Answer what the provider asked; None: that is open no more."""
        if self.ended or self._exit is not None:
            return None
        outputs = self.codec.answer(request_id, answer, now_s)
        return None if outputs is None else self.follow(outputs, now_s)

    def interrupt(self, now_s: float) -> list[Output]:
        """End the open attempt; harmless when idle or repeated."""
        return self.follow(self.codec.interrupt(now_s), now_s)

    def shutdown(self, now_s: float, *, kill: bool = False, reason: str = "closed") -> list[Output]:
        """End the process, by the ladder or at once. Repeated calls only ever hasten it."""
        if self.ended or self._exit is not None:
            return []
        self._expected = True
        self._reason = reason
        if kill:
            self._kill(now_s)
            return []
        if self._step is not _Step.NONE:
            return []
        if self.attempt is None:
            self._to_eof(now_s)
            return []
        self._step, self._step_due_s = _Step.INTERRUPT, now_s + self.launch.close_grace_s
        return self.interrupt(now_s)

    def _start_settled(self) -> None:
        if self.launch.settled is not None:
            self.launch.settled()

    def release(self) -> None:
        """Close the descriptors. The owner has stopped watching them; a process that still lives must be killed first."""
        self.io.close()

    def abandon(self) -> None:
        """The owner crashed: kill the process. `process.poll` still has to reap it."""
        self.process.kill()
        self.ended = True
        self._start_settled()

    # --- inside

    def follow(self, outputs: list[Output], now_s: float) -> list[Output]:
        """Deal with what the codec gave: write what is to be written, act on what concerns the process, and return the rest."""
        kept: list[Output] = []
        for output in outputs:
            if isinstance(output, AgentEvent):
                kept.append(output)
            elif isinstance(output, Write):
                self._write(output.data)
            elif isinstance(output, Kill):
                self._expected = True
                self._reason = output.reason
                self._kill(now_s)
            else:
                kept.append(output)
                self._note(output, now_s)
        return kept

    def _write(self, data: bytes) -> None:
        # An answer to a process whose input is closing is moot.
        with contextlib.suppress(ProcessClosedError):
            self.io.write(data)

    def _note(self, signal: Signal, now_s: float) -> None:
        if isinstance(signal, Ready):
            self.ready = True
            self._start_settled()
        elif isinstance(signal, StartFailed):
            self._expected = True
            self._start_settled()
            self._to_eof(now_s)
        elif isinstance(signal, (AttemptEnded, AttemptSwallowed)):
            self.attempt = None
            if self._step is _Step.INTERRUPT:
                self._to_eof(now_s)

    def _to_eof(self, now_s: float) -> None:
        if self._step < _Step.EOF:
            self._step, self._step_due_s = _Step.EOF, now_s + self.launch.close_grace_s
            self.io.close_stdin_when_flushed()

    def _climb(self, now_s: float) -> None:
        if self._step is _Step.INTERRUPT:
            self._to_eof(now_s)
        elif self._step is _Step.EOF:
            self._step, self._step_due_s = _Step.TERMINATE, now_s + self.launch.close_grace_s
            self.process.terminate()
        else:
            self._kill(now_s)

    def _kill(self, now_s: float) -> None:
        if self._exit is not None:
            return
        # Repeated once a second: a kill that met a process in an uninterruptible state is not the last word.
        self._step, self._step_due_s = _Step.KILL, now_s + 1.0
        self._kills += 1
        self.process.kill()

    def _stdout_ended(self, now_s: float) -> list[Output]:
        if self._exit is not None:
            return self._finish(now_s)
        if self._eof_due_s is None and self._step is _Step.NONE:
            self._eof_due_s = now_s + EOF_GRACE_S
        return self.exit_ready(now_s)

    def _read_stdout(self, now_s: float, max_bytes: int) -> list[Output]:
        return self._take_lines(self.io.read_stdout(max_bytes), now_s)

    def _take_lines(self, lines: list[bytes | Oversized], now_s: float) -> list[Output]:
        outputs: list[Output] = []
        codec = self.codec
        for line in lines:
            found = codec.oversized(line.size, now_s) if isinstance(line, Oversized) else codec.receive(line, now_s)
            if found:
                outputs += self.follow(found, now_s)
        return outputs

    def _drain(self, now_s: float) -> list[Output]:
        """Read what the kernel holds, a bounded number of times: a grandchild may write for ever."""
        outputs: list[Output] = []
        for _ in range(DRAIN_READS):
            outputs += self._read_stdout(now_s, READ_BYTES)
            outputs += [Stderr(text) for text in self.io.read_stderr(READ_BYTES)]
            if self.io.drained:
                break
        return outputs

    def _finish(self, now_s: float) -> list[Output]:
        if self.ended:
            return []
        exit_ = self._exit or ProcessExit()
        outputs = self._take_lines(self.io.finish_stdout(), now_s)
        tail = self.io.stderr_tail
        sent = self.codec.sent
        usage = self.codec.consumed() if sent else None
        outputs += self.follow(self.codec.exited(exit_, tail, now_s), now_s)
        self.ended = True
        self._start_settled()
        self._step_due_s = self._drain_due_s = self._eof_due_s = None
        code = -exit_.signal if exit_.signal else exit_.returncode
        refused = not self.ready and not self._expected and exit_.signal is None
        ended = Ended(
            exit_=exit_,
            stderr_tail=tail,
            expected=self._expected,
            refused=refused,
            sent=sent,
            reason=self._reason,
            usage=usage,
        )
        return [*outputs, RunFinished(code), ended]
