"""How an attempt ended, from the frames that ended it. Decides between a result and an error; never takes a failure for an answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from greenroom.errors import GreenroomError, TurnFailedError
from greenroom.events import TurnInterrupted, UsageReport
from greenroom.model import FailureKind, ProviderUsage, TurnResult
from greenroom.transports.base import AttemptEnded, Output
from greenroom.transports.claude import usage
from greenroom.transports.claude.classify import Failure
from greenroom.transports.claude.frames import Frame
from greenroom.transports.claude.state import OpenAttempt

_ABORTED = "aborted"
_NO_OUTPUT = (msgspec.UNSET, None)
_ORDINARY_ENDS = frozenset({None, "completed"})


def is_aborted(result: Frame) -> bool:
    """Whether the turn was cut short by an interrupt."""
    return (result.terminal_reason or "").startswith(_ABORTED)


def is_uncounted(turn: OpenAttempt, result: Frame) -> bool:
    """Whether an interrupt cut a call of the model of which nothing had come: it was made, and is in no figure (2.1.332)."""
    return result.terminal_reason == "aborted_streaming" and not turn.message_id


def is_failure(turn: OpenAttempt, result: Frame) -> bool:
    """Whether a result is no answer, whatever it calls itself: an API error says `success`, and may say `is_error: false` as well."""
    return result.is_error or result.subtype != "success" or result.terminal_reason not in _ORDINARY_ENDS or turn.api_error is not None


def consumed(turn: OpenAttempt) -> ProviderUsage:
    """Return what the open attempt is known to have taken: the results before, and the calls that have begun. A lower bound."""
    tokens = turn.usage.tokens if turn.usage is not None else usage.unknown().tokens
    for call in turn.seen.values():
        tokens = tokens + usage.api_tokens(call)
    return usage.unknown(tokens)


class Verdict:
    """The end of one attempt, ready to be told. `cumulative` is the conversation's total for the checkpoint."""

    def __init__(self, turn: OpenAttempt, *, session_id: str | None, resumed: bool, cumulative: ProviderUsage | None) -> None:
        self._turn = turn
        self._session_id = session_id
        self._resumed = resumed
        self._cumulative = cumulative

    def tell(self) -> Iterator[Output]:
        """Give the events and the signal of an attempt whose last result has come."""
        turn = self._turn
        last = turn.results[-1]
        if turn.stop is not None and turn.stop.error is not None:
            yield from self.failed(turn.stop.error, keeps_conversation=turn.stop.keeps_conversation)
        elif (turn.stop is not None or turn.cancelled) and (is_aborted(last) or last.subtype == "error_during_execution"):
            yield from self.interrupted()
        elif is_failure(turn, last):
            yield from self._failed_by(Failure.of(last, turn.api_error))
        elif turn.attempt.request.output_schema is not None and last.structured_output in _NO_OUTPUT:
            yield from self.failed(TurnFailedError(FailureKind.SCHEMA, "the answer does not match the output schema", text=turn.text))
        elif self._stopped_for_a_tool(last):
            yield from self.failed(TurnFailedError(FailureKind.OTHER, "the turn ended at a tool call, without an answer", text=turn.text))
        else:
            yield from self._succeeded(last)

    @staticmethod
    def _stopped_for_a_tool(last: Frame) -> bool:
        return last.stop_reason == "tool_use" and not last.result and last.structured_output in _NO_OUTPUT

    def _failed_by(self, failure: Failure) -> Iterator[Output]:
        what = failure.text or failure.terminal_reason or failure.subtype or "the turn failed without a reason"
        asked_s = failure.retry_after_s if failure.retry_after_s is not None else self._turn.asked_wait_s
        error = TurnFailedError(failure.kind, what, retry_after_s=asked_s, text=self._turn.text)
        yield from self.failed(error, nudgeable=failure.nudgeable)

    def stopped(self, *, forced: bool = False) -> Iterator[Output]:
        """Give the end of an attempt that was stopped before a result came."""
        stop = self._turn.stop
        if stop is not None and stop.error is not None:
            yield from self.failed(stop.error, keeps_conversation=stop.keeps_conversation, forced=forced)
        else:
            yield from self.interrupted(forced=forced)

    def failed(
        self, error: GreenroomError, *, nudgeable: bool = False, keeps_conversation: bool = False, forced: bool = False
    ) -> Iterator[Output]:
        """Give the end by an error."""
        spent = self._spent()
        yield from self._report(spent)
        yield AttemptEnded(
            turn_id=self._turn.turn_id,
            error=error,
            usage=spent,
            cumulative=self._cumulative,
            duration_ms=self._duration_ms(),
            nudgeable=nudgeable,
            sent=self._turn.written,
            forced=forced,
            keeps_conversation=keeps_conversation,
        )

    def interrupted(self, *, forced: bool = False) -> Iterator[Output]:
        """Give the end by an interrupt: a result with what the model had said."""
        yield TurnInterrupted()
        yield from self._ended_with(self._result(self._turn.text, interrupted=True), forced=forced)

    def _succeeded(self, last: Frame) -> Iterator[Output]:
        structured = None if last.structured_output is msgspec.UNSET else last.structured_output
        text = last.result or ""
        if self._turn.goes_on and structured is None and self._turn.text.endswith(text):
            text = self._turn.text  # the CLI's own is the last piece alone
        yield from self._ended_with(self._result(text, structured_output=structured))

    def _ended_with(self, result: TurnResult, *, forced: bool = False) -> Iterator[Output]:
        yield from self._report(result.usage)
        yield AttemptEnded(
            turn_id=self._turn.turn_id,
            result=result,
            usage=result.usage,
            cumulative=self._cumulative,
            duration_ms=result.duration_ms,
            forced=forced,
        )

    def _result(self, text: str, *, interrupted: bool = False, structured_output: object = None) -> TurnResult:
        spent = self._spent()
        return TurnResult(
            text=text,
            structured_output=structured_output,
            session_id=self._session_id,
            resumed=self._resumed,
            usage=spent,
            cost_usd=None if spent is None else spent.total_cost_usd,
            duration_ms=self._duration_ms(),
            skills=tuple(self._turn.skills),
            interrupted=interrupted,
            context_tokens=None if (call := self._turn.last_call) is None else usage.api_tokens(call).total_input,
        )

    def _spent(self) -> ProviderUsage | None:
        """Return what the results say; without one, what the frames before let us know, if anything was sent at all."""
        if self._turn.results:
            return self._turn.usage
        if self._turn.dropped:
            return ProviderUsage(provider=usage.PROVIDER)
        return consumed(self._turn) if self._turn.written else None

    def _duration_ms(self) -> int:
        return sum(usage.count(result.duration_ms) for result in self._turn.results)

    @staticmethod
    def _report(spent: ProviderUsage | None) -> Iterator[Output]:
        if spent is not None:
            yield UsageReport(spent, spent.total_cost_usd)
