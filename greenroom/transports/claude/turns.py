"""The open attempt of a process: when its message is written, which frames are its own, when it has ended.

Pure; called by the codec only. An attempt ends with a result that names its message, with an error of ours once the CLI has stopped
working on it, or by force when the CLI does not stop within its grace. A steer that the CLI takes up after that result keeps it open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from greenroom.asks import Answer, CancelTurn
from greenroom.errors import GreenroomError, TurnFailedError, TurnTimeoutError
from greenroom.events import ApprovalDenied, Lifecycle, PermissionsDiffer, SteerRejected
from greenroom.model import ApprovalPolicy, FailureKind, ProviderUsage
from greenroom.transports.base import Attempt, AttemptSwallowed, Booked, Kill, Output, Urgent, Write, soonest
from greenroom.transports.claude import lines, mapping, outcome, steers, usage
from greenroom.transports.claude.asks import Asks
from greenroom.transports.claude.config import CodecConfig
from greenroom.transports.claude.control import ControlDesk
from greenroom.transports.claude.frames import Frame
from greenroom.transports.claude.modes import SUBTYPES, Modes, unable
from greenroom.transports.claude.state import OpenAttempt, Owner, Pending, Steer, SteerState, Stop

SETTLE_S = 2.0


class Turns:
    """The attempt that is open, if one is, and the turn that the CLI is in."""

    def __init__(self, config: CodecConfig, desk: ControlDesk) -> None:
        self.open: OpenAttempt | None = None
        self.session_id: str | None = None
        self.asks = Asks()
        self._config = config
        self._desk = desk
        self._lost_calls = config.lost_calls
        self._modes = Modes(config, desk)
        self._owner = Owner.NOBODY
        self._ledger = usage.Ledger(fresh=config.resume_id is None, previous=config.previous_usage, after_death=config.after_death)

    @property
    def deadline_s(self) -> float | None:
        """When `tick` is due."""
        if (turn := self.open) is None:
            return None
        whole_s = turn.deadline_s if turn.stop is None else turn.stop.until_s
        return soonest(whole_s, turn.settle_until_s, turn.steers_until_s, turn.probe_until_s)

    # --- begin ---------------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt, now_s: float) -> Iterator[Output]:
        """Open an attempt."""
        self.open = OpenAttempt(attempt=attempt)
        yield from self.write(now_s)

    def write(self, now_s: float) -> Iterator[Output]:
        """Write the open attempt, unless an answer is due that belongs to an earlier one."""
        turn = self.open
        if turn is None or turn.written or self._desk:
            return
        attempt = turn.attempt
        if attempt.probe and attempt.receipt == self._config.taken_receipt:
            # Found on disk: nothing need be asked, and asking could show the prompt twice.
            self.open = None
            yield AttemptSwallowed(attempt.turn_id)
            return
        asked = self._modes.ask(attempt.request, now_s)
        if asked is not None:
            yield asked
            return
        turn.written = True
        if attempt.probe:
            turn.probe_until_s = now_s + self._config.startup_timeout_s
        # Told once, with what the process is given first: a prompt too, if the CLI died before it had any of the conversation on disk.
        lost_calls, self._lost_calls = self._lost_calls, ()
        yield Write(lines.user_message(lines.content_of(attempt.how, attempt.request, lost_calls), attempt.receipt))

    def steer(self, text: str, uuid: str) -> list[Output] | None:
        """Write a text for the running turn; None when there is none, or it is ending."""
        turn = self.open
        if turn is None or turn.stop is not None or not turn.is_running:
            return None
        if (size := lines.too_long(text)) is not None:
            return [SteerRejected(text, f"it takes {size} bytes on the wire; at most {lines.MAX_TEXT_BYTES} are possible")]
        turn.steers[uuid] = Steer(text=text, uuid=uuid)
        return [Write(lines.user_message(lines.prompt_content(text), uuid))]

    # --- the model and the permission mode -----------------------------------------------------------------------------

    def mode_answered(self, pending: Pending, response: dict[str, Any], now_s: float) -> Iterator[Output]:
        """The CLI answered one of the requests that a turn waits for."""
        wrong, turn = self._modes.answered(pending, response), self.open
        if turn is None or turn.written:
            return
        if wrong is None:
            yield from self.write(now_s)
        elif pending.subtype == "set_model":
            turn.stop = Stop(until_s=now_s, error=wrong, keeps_conversation=True)
            yield from self._settle(turn, now_s)
        else:
            yield from self._unmet(wrong, now_s)

    def unanswered(self, pending: Pending, now_s: float) -> Iterator[Output]:
        """A request of ours got no answer in time. A turn that waits for it must not run: nobody knows with what."""
        if pending.subtype in SUBTYPES and self.open is not None and not self.open.written:
            why = f"no answer to {pending.subtype} within {self._config.startup_timeout_s:g} s"
            yield from self._unmet(TurnFailedError(FailureKind.OTHER, why), now_s)

    def mode_told(self, mode: str, now_s: float) -> Iterator[Output]:
        """The CLI says that its permission mode has changed."""
        if (wrong := self._modes.told(mode)) is not None:
            yield from self._overruled(wrong, now_s)

    def _began(self, turn: OpenAttempt, frame: Frame, now_s: float) -> Iterator[Output]:
        mode = frame.permission_mode
        wrong = self._modes.begins(turn.attempt.request, mode) if isinstance(mode, str) else None
        yield from self._started(turn, now_s) if wrong is None else self._overruled(wrong, now_s)

    def _overruled(self, wrong: str, now_s: float) -> Iterator[Output]:
        """The process has other permissions than it was given. It is killed, whatever it is at."""
        yield PermissionsDiffer(self._modes.asked, wrong)
        yield from self._unmet(unable(wrong), now_s)

    def _unmet(self, error: GreenroomError, now_s: float) -> Iterator[Output]:
        turn = self.open
        if turn is not None:
            turn.stop = Stop(until_s=now_s, error=error, keeps_conversation=True)
            verdict = self._verdict(turn)
            yield from steers.all_rejected(turn, "delivery unknown: the process is killed")
            self._close()
            yield from verdict.stopped(forced=True)
        yield Kill(str(error))

    # --- whose frame is it? --------------------------------------------------------------------------------------------

    def owner_of(self, frame: Frame) -> OpenAttempt | None:
        """Return the open attempt if the frame, of the main thread, is of its turn."""
        turn = self.open
        if turn is None:
            return None
        if frame.user_message_uuids:
            return turn if turn.owns(frame.user_message_uuids) else None
        return turn if self._owner is Owner.ATTEMPT else None

    def is_first(self, turn: OpenAttempt, frame: Frame) -> bool:
        """Whether the frame has not come before."""
        if frame.uuid and frame.uuid in turn.frames:
            return False
        turn.frames.add(frame.uuid)
        return True

    def init(self, frame: Frame, now_s: float) -> Iterator[Output]:
        """A turn begins: ours if it names our message, else one that the CLI started by itself."""
        turn = self.open
        if turn is not None and turn.owns(frame.user_message_uuids):
            yield from self._own(Owner.ATTEMPT)
            turn.model_asked()
            for steer in turn.steers.values():
                steer.opened_turn = steer.opened_turn or steer.uuid in (frame.user_message_uuids or ())
            if turn.receipt in (frame.user_message_uuids or ()):
                yield from self._began(turn, frame, now_s)
        elif self._owner is not Owner.ATTEMPT:
            self._owner = Owner.CLI
            yield Lifecycle("background turn", "the CLI started a turn by itself", ongoing=True)
            if turn is not None:
                yield from self._push_stop(turn, now_s)

    def _own(self, owner: Owner) -> Iterator[Output]:
        """What the CLI is in is `owner`'s from now on; a turn of its own that was on is told to be over."""
        before, self._owner = self._owner, owner
        if before is Owner.CLI and owner is not Owner.CLI:
            yield Lifecycle("background turn", "its end", ongoing=False)

    # --- the life of our messages --------------------------------------------------------------------------------------

    def lifecycle(self, uuid: str, state: str, now_s: float) -> Iterator[Output]:
        """A message of ours was queued, started, completed or cancelled."""
        turn = self.open
        if turn is None or not turn.written:
            return
        if uuid == turn.receipt:
            yield from self._prompt_lifecycle(turn, state, now_s)
        elif (steer := turn.steers.get(uuid)) is not None:
            yield from self._steer_lifecycle(turn, steer, state, now_s)

    def _prompt_lifecycle(self, turn: OpenAttempt, state: str, now_s: float) -> Iterator[Output]:
        if state == "queued":
            turn.queued = True
            turn.probe_until_s = None
            yield from self._push_stop(turn, now_s)
        elif state == "started":
            turn.folded = self._owner is Owner.CLI
            yield from self._started(turn, now_s)
        elif state == "cancelled":
            yield from self._dropped(turn, now_s)
        elif state == "completed":
            yield from self._completed(turn, now_s)

    def _started(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        turn.started = True
        turn.probe_until_s = None
        if not turn.results:
            yield from self._own(Owner.ATTEMPT)
        yield from self._push_stop(turn, now_s)

    def _dropped(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        """The prompt was taken out of the queue, which gives no result; after `started` the result comes before this."""
        if turn.results:
            return
        if turn.started and not turn.line_lost:
            turn.settle_until_s = now_s + SETTLE_S
        else:
            turn.dropped = not turn.started
            yield from self._settle(turn, now_s)

    def _completed(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        """The message is done with: its result came before this, unless it was swallowed, folded into another turn, or lost."""
        if turn.results or turn.folded:
            return
        if not turn.queued and not turn.started:
            yield from self._swallowed(turn)
        elif turn.line_lost:
            yield from self._settle(turn, now_s)
        else:
            turn.settle_until_s = now_s + SETTLE_S

    def echo(self, uuid: str, now_s: float) -> Iterator[Output]:
        """The CLI repeats a message of ours. Of one that it never queued it is the sign that the uuid was known already."""
        turn = self.open
        if turn is None or not turn.written:
            return
        if (steer := turn.steers.get(uuid)) is not None:
            yield from steers.consumed(turn, steer)
        elif uuid == turn.receipt and not turn.queued and not turn.started:
            yield from self._swallowed(turn) if turn.attempt.probe else self._started(turn, now_s)

    def _swallowed(self, turn: OpenAttempt) -> Iterator[Output]:
        turn.dropped = True
        verdict = self._verdict(turn)
        self._close()
        if turn.stop is not None:
            yield from verdict.stopped()
        else:
            yield AttemptSwallowed(turn.turn_id)

    # --- steers --------------------------------------------------------------------------------------------------------

    def process_ended(self) -> Iterator[Output]:
        """Settle the steers; the attempt is the owner's."""
        if self.open is not None:
            yield from steers.all_rejected(self.open, "delivery unknown: the process ended")

    def _steer_lifecycle(self, turn: OpenAttempt, steer: Steer, state: str, now_s: float) -> Iterator[Output]:
        if state == "queued":
            yield from steers.delivered(steer)
        elif state == "started":
            yield from self._own(Owner.ATTEMPT)
            yield from steers.consumed(turn, steer)
        elif state == "cancelled":
            yield from steers.rejected(steer, "dropped by the interrupt" if turn.stop is not None else "it was not taken up in time")
            yield from self._finish_if_settled(turn, now_s)
        elif state == "completed":
            yield from steers.consumed(turn, steer)
            if steer.opened_turn and steer.state is SteerState.CONSUMED:
                turn.settle_until_s = now_s + SETTLE_S

    def _cancel_steers(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        """Take back what the CLI has not taken up: it would run it as a turn of its own."""
        if turn.stop is not None and turn.stop.sent:
            return
        for steer in turn.waiting_steers():
            if not steer.cancel_sent:
                steer.cancel_sent = True
                yield self._cancel(steer.uuid, now_s)

    def _cancel(self, uuid: str, now_s: float) -> Write:
        until_s = now_s + self._config.interrupt_grace_s
        return self._desk.ask("cancel_async_message", target=uuid, until_s=until_s, message_uuid=uuid)

    # --- stop ----------------------------------------------------------------------------------------------------------

    def interrupt(self, now_s: float) -> Iterator[Output]:
        """End the open attempt as soon as the CLI can take it."""
        turn = self.open
        if turn is None or turn.stop is not None:
            return
        turn.stop = Stop(until_s=now_s + self._config.interrupt_grace_s)
        yield Urgent()
        yield from self.asks.drop(turn.receipt)
        yield from self._push_stop(turn, now_s)

    def fail(self, error: GreenroomError, now_s: float, *, keeps_conversation: bool = True) -> Iterator[Output]:
        """End the open attempt with `error`, once the CLI has stopped working on it."""
        turn = self.open
        if turn is None or turn.stop is not None:
            return
        turn.stop = Stop(until_s=now_s + self._config.interrupt_grace_s, error=error, keeps_conversation=keeps_conversation)
        yield Urgent()
        yield from self.asks.drop(turn.receipt)
        yield from self._push_stop(turn, now_s)

    def _push_stop(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        """Pass the stop on as far as the CLI can take it now: an interrupt written right behind its message misses it."""
        stop = turn.stop
        if stop is None or stop.sent:
            return
        if not turn.written:
            yield from self._settle(turn, now_s)
        elif turn.started:
            stop.sent = True
            yield self._desk.ask("interrupt", target=turn.receipt, until_s=stop.until_s, cancel_queued=True)
        elif self._owner is Owner.CLI and not stop.cancel_sent:
            # An interrupt would end a turn that is not ours; ours is still queued behind it and can be taken back.
            stop.cancel_sent = True
            yield self._cancel(turn.receipt, now_s)

    def answered(self, pending: Pending, answer: dict[str, Any], now_s: float) -> Iterator[Output]:
        """The CLI answered a control request."""
        turn = self.open
        if turn is None or not turn.written:
            yield from self.write(now_s)
        elif pending.subtype == "interrupt" and pending.target == turn.receipt:
            yield from self._interrupt_answered(turn, answer, now_s)
        elif pending.subtype == "interrupt" or answer.get("cancelled") is not True:
            return
        elif pending.target == turn.receipt:
            yield from self._dropped(turn, now_s)
        elif pending.target in turn.steers:
            yield from steers.rejected(turn.steers[pending.target], "it was not taken up in time")
            yield from self._finish_if_settled(turn, now_s)

    def _interrupt_answered(self, turn: OpenAttempt, answer: dict[str, Any], now_s: float) -> Iterator[Output]:
        if turn.receipt in _listed(answer.get("still_queued")) and turn.stop is not None:
            turn.stop.sent = False  # it came too early, and our message runs: once more when that has begun
            turn.started = False
        elif turn.receipt in _listed(answer.get("cancelled")) or (turn.results and not turn.is_running):
            yield from self._settle(turn, now_s)

    # --- end -----------------------------------------------------------------------------------------------------------

    def result(self, frame: Frame, now_s: float) -> Iterator[Output]:
        """A turn ended: ours, or one that the CLI started by itself, which is booked apart."""
        turn = self.open
        ours = turn if turn is not None and self._is_ours(turn, frame) else None
        spent = self._ledger.take(frame, uncounted=ours is not None and outcome.is_uncounted(ours, frame))
        if spent is None:
            return
        if ours is not None:
            yield from self._our_result(ours, frame, spent, now_s)
            return
        if self._owner is Owner.CLI:
            yield from self._own(Owner.NOBODY)
        if spent.tokens.total_input or spent.tokens.output or spent.total_cost_usd or not spent.increment_known:
            yield Booked(spent)

    def _is_ours(self, turn: OpenAttempt, frame: Frame) -> bool:
        if not turn.written:
            return False
        if frame.user_message_uuids:
            return turn.owns(frame.user_message_uuids)
        return self._owner is Owner.ATTEMPT and (frame.origin is None or turn.folded)

    def _our_result(self, turn: OpenAttempt, frame: Frame, spent: ProviderUsage, now_s: float) -> Iterator[Output]:
        yield from self._own(Owner.NOBODY)
        turn.results.append(frame)
        turn.usage = usage.add(turn.usage, spent)
        turn.seen.clear()
        turn.started, turn.settle_until_s = True, None
        yield from steers.covered(turn, frame.user_message_uuids or ())
        yield from self._denials(turn, frame, now_s)
        if turn.stop is not None or not turn.is_unsettled:
            yield from self._settle(turn, now_s)
        elif outcome.is_failure(turn, frame):
            yield from self._cancel_steers(turn, now_s)
            turn.steers_until_s = now_s + self._config.interrupt_grace_s
        else:
            turn.steers_until_s = now_s + self._config.steer_grace_s

    def _finish_if_settled(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        if turn is self.open and turn.results and not turn.is_unsettled:
            yield from self._settle(turn, now_s)

    def _settle(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        """End the attempt: with its last result, or, if none will come, with why it was stopped."""
        verdict = self._verdict(turn)
        yield from self.asks.end(turn.receipt)
        yield from self._cancel_steers(turn, now_s)
        yield from steers.all_rejected(turn, "the turn ended before it was taken up")
        self._close()
        if turn.results:
            yield from verdict.tell()
        elif turn.stop is not None:
            yield from verdict.stopped()
        else:
            yield from verdict.failed(_no_result(turn))

    def _verdict(self, turn: OpenAttempt) -> outcome.Verdict:
        resumed = self._config.resume_id is not None
        return outcome.Verdict(
            turn, session_id=self.session_id or self._config.resume_id, resumed=resumed, cumulative=self._ledger.cumulative()
        )

    def _close(self) -> None:
        self.open = None
        if self._owner is Owner.ATTEMPT:
            self._owner = Owner.NOBODY

    # --- approvals -----------------------------------------------------------------------------------------------------

    def ask(self, request_id: str, request: dict[str, Any], now_s: float) -> Iterator[Output]:
        """The CLI asks a person. What the attempt that runs asks is its own; while it waits, its time stands still."""
        turn = self.open
        running = turn if turn is not None and turn.is_running else None
        if running is not None and running.stop is not None:
            yield Write(lines.denial(request_id, "the turn is being stopped", interrupt=True))
            return
        yield self.asks.ask(request_id, request, None if running is None else running.receipt)
        if running is not None:
            running.stand_still(now_s)

    def answer(self, request_id: str, answer: Answer, now_s: float) -> list[Output] | None:
        """Answer what was asked; None when it is open no more."""
        receipt, call = self.asks.receipt_of(request_id), self.asks.call_of(request_id)
        written = self.asks.answer(request_id, answer)
        if written is None:
            return None
        if (turn := self.open) is not None and turn.receipt == receipt:
            turn.denied.add(call)  # whoever declined it knows
            turn.cancelled = turn.cancelled or isinstance(answer, CancelTurn)
            self._wait_over(turn, now_s)
        return [written]

    def taken_back(self, request_id: Any, now_s: float) -> Iterator[Output]:
        """The CLI wants no answer any more."""
        yield from self.asks.taken_back(request_id)
        if self.open is not None:
            self._wait_over(self.open, now_s)

    def _wait_over(self, turn: OpenAttempt, now_s: float) -> None:
        if not self.asks.waits(turn.receipt):
            turn.go_on(now_s)

    def _denials(self, turn: OpenAttempt, frame: Frame, now_s: float) -> Iterator[Output]:
        for denial in frame.permission_denials or ():
            if isinstance(denial, dict):
                tool, tool_use_id = str(denial.get("tool_name") or ""), str(denial.get("tool_use_id") or "")
                yield from self.denied(turn, tool, tool_use_id, mapping.brief(denial.get("tool_input")), now_s)

    def denied(self, turn: OpenAttempt, tool: str, tool_use_id: str, detail: str, now_s: float) -> Iterator[Output]:
        """Something was not allowed: tell it once, and fail the turn if the caller wants that."""
        if tool_use_id in turn.denied:
            return
        turn.denied.add(tool_use_id)
        yield ApprovalDenied(tool, detail)
        if self._config.approvals is ApprovalPolicy.FAIL_TURN:
            error = TurnFailedError(FailureKind.OTHER, f"approval denied: {tool}: {detail}"[:2000], text=turn.text)
            yield from self._fail_for_denial(turn, error, now_s)

    def _fail_for_denial(self, turn: OpenAttempt, error: TurnFailedError, now_s: float) -> Iterator[Output]:
        if not turn.results or turn.is_running:
            yield from self.fail(error, now_s)
        elif turn.stop is None:
            turn.stop = Stop(until_s=now_s, error=error, keeps_conversation=True)  # its turn is over: nothing to interrupt

    # --- time ----------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> Iterator[Output]:
        """Act on the first of the open attempt's bounds that has passed."""
        turn = self.open
        if turn is None:
            return
        if turn.settle_until_s is not None and now_s >= turn.settle_until_s:
            yield from self._settle(turn, now_s)
        elif turn.stop is not None:
            if now_s >= turn.stop.until_s:
                yield from self._give_up(turn, now_s)
        elif turn.deadline_s is not None and now_s >= turn.deadline_s:
            yield from self._timed_out(turn, now_s)
        elif turn.steers_until_s is not None and now_s >= turn.steers_until_s:
            yield from self._steers_late(turn, now_s)
        elif turn.probe_until_s is not None and now_s >= turn.probe_until_s:
            turn.probe_until_s = None
            yield Kill(f"no sign of the message within {self._config.startup_timeout_s:g} s")

    def _timed_out(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        if turn.results and not turn.is_running:
            yield from self.interrupt(now_s)  # the answer is there; only a steer is outstanding
            return
        timeout_s = turn.attempt.timeout_s or turn.attempt.request.timeout or 0.0
        yield from self.fail(TurnTimeoutError(timeout_s, turn_id=turn.turn_id), now_s, keeps_conversation=True)

    def _steers_late(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        turn.steers_until_s = now_s + self._config.interrupt_grace_s
        requests = list(self._cancel_steers(turn, now_s))
        yield from requests
        if not requests:
            turn.steers_until_s = None
            yield from steers.all_rejected(turn, "delivery unknown: the CLI did not say whether it dropped it")
            yield from self._finish_if_settled(turn, now_s)

    def _give_up(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        """The stop went unanswered."""
        if turn.results and not turn.is_running:
            yield from self._settle(turn, now_s)
            return
        verdict = self._verdict(turn)
        yield from steers.all_rejected(turn, "delivery unknown: the process is killed")
        self._close()
        yield from verdict.stopped(forced=True)
        yield Kill(f"an interrupt went unanswered for {self._config.interrupt_grace_s:g} s")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _no_result(turn: OpenAttempt) -> TurnFailedError:
    return TurnFailedError(FailureKind.OTHER, "the turn ended without a result", text=turn.text)
