"""How an attempt ended, from its turn's end. Decides between a result and an error; never takes a failure for an answer. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs

from greenroom.errors import GreenroomError, TurnFailedError
from greenroom.events import TurnInterrupted, UsageReport
from greenroom.model import FailureKind, ProviderUsage, TurnResult
from greenroom.transports.base import AttemptEnded, Output
from greenroom.transports.codex.classify import Failure
from greenroom.transports.codex.items import answer_of
from greenroom.transports.codex.lines import Frame, count
from greenroom.transports.codex.state import OpenAttempt
from greenroom.transports.codex.usage import Ledger

_NO_JSON = object()


class Verdict:
    """The end of one attempt, ready to be told once."""

    def __init__(self, turn: OpenAttempt, ledger: Ledger, *, thread_id: str | None, resumed: bool) -> None:
        self._turn = turn
        self._thread_id = thread_id
        self._resumed = resumed
        self._usage: ProviderUsage | None = ledger.end() if turn.written else None
        self._cumulative = ledger.cumulative()
        self._context_tokens = ledger.context_tokens
        self._duration_ms = 0

    def completed(self, wire_turn: Frame) -> Iterator[Output]:
        """Give the end that the server told."""
        self._duration_ms = count(wire_turn.get("durationMs"))
        turn, status = self._turn, wire_turn.get("status")
        if turn.stop is not None and turn.stop.error is not None:
            yield from self.failed(turn.stop.error, keeps_conversation=True)
        elif status == "completed":
            yield from self._answered(answer_of(wire_turn))
        elif status == "interrupted":
            yield from self._cut_short()
        else:
            failure = Failure.of(wire_turn.get("error") or turn.error)
            yield from self.failed(failure.error(turn.text), nudgeable=True)

    def _cut_short(self) -> Iterator[Output]:
        if self._turn.stop is not None or self._turn.cancelled:
            yield from self.interrupted()
        else:
            why = TurnFailedError(FailureKind.OTHER, "the turn was interrupted, and not by us", text=self._turn.text)
            yield from self.failed(why, nudgeable=True, keeps_conversation=True)

    def _answered(self, answer: str | None) -> Iterator[Output]:
        text = self._turn.text if answer is None else answer
        structured: Any = None
        if self._turn.attempt.request.output_schema is not None:
            structured = _parsed(text)
            if structured is _NO_JSON:
                yield from self.failed(TurnFailedError(FailureKind.SCHEMA, "the answer is not the JSON that was asked for", text=text))
                return
        yield from self._ended_with(self._result(text, structured_output=structured))

    def stopped(self, *, forced: bool = False) -> Iterator[Output]:
        """Give the end of an attempt that was stopped, without the server's word."""
        stop = self._turn.stop
        if stop is not None and stop.error is not None:
            yield from self.failed(stop.error, keeps_conversation=True, forced=forced)
        else:
            yield from self.interrupted(forced=forced)

    def failed(
        self, error: GreenroomError, *, nudgeable: bool = False, keeps_conversation: bool = False, forced: bool = False
    ) -> Iterator[Output]:
        """Give the end by an error."""
        yield from self._report()
        yield AttemptEnded(
            turn_id=self._turn.turn_id,
            error=error,
            usage=self._usage,
            cumulative=self._cumulative,
            duration_ms=self._duration_ms,
            nudgeable=nudgeable,
            forced=forced,
            keeps_conversation=keeps_conversation,
        )

    def interrupted(self, *, forced: bool = False) -> Iterator[Output]:
        """Give the end by an interrupt: a result with what the model had said."""
        if self._usage is not None and not self._usage.tokens.total_input:
            self._usage = attrs.evolve(self._usage, increment_known=False)  # a call that is cut is not counted, and was made all the same
        yield TurnInterrupted()
        yield from self._ended_with(self._result(self._turn.text, interrupted=True), forced=forced)

    def _ended_with(self, result: TurnResult, *, forced: bool = False) -> Iterator[Output]:
        yield from self._report()
        yield AttemptEnded(
            turn_id=self._turn.turn_id,
            result=result,
            usage=self._usage,
            cumulative=self._cumulative,
            duration_ms=self._duration_ms,
            forced=forced,
        )

    def _result(self, text: str, *, interrupted: bool = False, structured_output: object = None) -> TurnResult:
        return TurnResult(
            text=text,
            structured_output=structured_output,
            session_id=self._thread_id,
            resumed=self._resumed,
            usage=self._usage,
            duration_ms=self._duration_ms,
            interrupted=interrupted,
            context_tokens=self._context_tokens,
        )

    def _report(self) -> Iterator[Output]:
        if self._usage is not None:
            yield UsageReport(self._usage)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON
