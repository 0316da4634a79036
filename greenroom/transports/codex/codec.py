"""One conversation on a process of its own: the link's codec with a single key, its outputs without an address. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from greenroom.asks import Answer
from greenroom.model import ProviderUsage
from greenroom.transports.base import Addressed, Attempt, LaunchSpec, Output, ProcessExit, Ready, StartFailed
from greenroom.transports.codex.config import CodecConfig
from greenroom.transports.codex.link import CodexLinkCodec

_KEY = "only"


class CodexCodec:
    """The codec of an app-server that carries one conversation. `greenroom.transports.base.Codec` says what each method is for."""

    def __init__(self, config: CodecConfig, launch: LaunchSpec) -> None:
        self._link = CodexLinkCodec(config)
        self._launch = launch
        self._start_failed = False

    @property
    def junk_lines(self) -> int:
        """How many lines were no JSON objects."""
        return self._link.junk_lines

    @property
    def deadline_s(self) -> float | None:
        """When `tick` is due."""
        return self._link.deadline_s

    @property
    def sent(self) -> bool:
        """Whether an attempt is open whose first byte has been handed out."""
        return self._link.sent

    def opened(self, now_s: float) -> list[Output]:
        """Begin the handshake; the thread is asked for when it is done."""
        return self._bare([*self._link.opened(now_s), *self._link.attach(_KEY, self._launch, now_s)])

    def receive(self, line: bytes, now_s: float) -> list[Output]:
        """Take one line of standard output."""
        return self._bare(self._link.receive(line, now_s))

    def oversized(self, size: int, now_s: float) -> list[Output]:
        """Fail the open attempt: what was lost cannot be known."""
        return self._bare(self._link.oversized(size, now_s))

    def start_turn(self, attempt: Attempt, now_s: float) -> list[Output]:
        """Begin an attempt."""
        return self._bare(self._link.start_turn(_KEY, attempt, now_s))

    def steer(self, text: str, steer_id: str, now_s: float) -> list[Output] | None:
        """Send text into the running turn; None when there is none, or it is ending."""
        outputs = self._link.steer(_KEY, text, steer_id, now_s)
        return None if outputs is None else self._bare(outputs)

    def interrupt(self, now_s: float) -> list[Output]:
        """End the open attempt as soon as the server can take it."""
        return self._bare(self._link.interrupt(_KEY, now_s))

    def answer(self, request_id: str, answer: Answer, now_s: float) -> list[Output] | None:
        """Answer what the server asked; None when it is open no more."""
        outputs = self._link.answer(_KEY, request_id, answer, now_s)
        return None if outputs is None else self._bare(outputs)

    def exited(self, exit_: ProcessExit, stderr_tail: str, now_s: float) -> list[Output]:
        """End the start if it is open, and the steers; never the attempt."""
        return self._bare(self._link.exited(exit_, stderr_tail, now_s))

    def consumed(self) -> ProviderUsage | None:
        """What the open attempt is known to have consumed so far: a lower bound."""
        return self._link.consumed_by(_KEY)

    def tick(self, now_s: float) -> list[Output]:
        """Act on every bound that has passed."""
        return self._bare(self._link.tick(now_s))

    def _bare(self, outputs: Iterable[Output]) -> list[Output]:
        """Take the addresses off. The process's own Ready is no news, and a start fails once, for both."""
        return [output for given in outputs if (output := self._of(given)) is not None]

    def _of(self, output: Output) -> Output | None:
        if isinstance(output, Ready):
            return None
        bare = output.output if isinstance(output, Addressed) else output
        if isinstance(bare, StartFailed):
            if self._start_failed:
                return None
            self._start_failed = True
        return bare
