"""The open attempt of a thread: when its turn is asked for, which frames are its own, when it has ended.

Pure; called by the conversation only. A turn is known by its id, never by its position: the answer to `turn/start` may name a turn that
never lives, its start may be told before the answer, and turns of the server's own run in between. A message of ours proves whose it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from greenroom.asks import Answer, CancelTurn, Decline
from greenroom.errors import GreenroomError, TurnFailedError, TurnTimeoutError
from greenroom.events import (
    ApprovalDenied,
    Lifecycle,
    PermissionsDiffer,
    ProviderError,
    SessionStarted,
    SteerConsumed,
    SteerDelivered,
    SteerRejected,
)
from greenroom.model import ApprovalPolicy, FailureKind, ProviderUsage, TokenUsage
from greenroom.policy.commands import How
from greenroom.transports.base import Attempt, AttemptSwallowed, Booked, Kill, LaunchSpec, Output, Renamed, Urgent, Write
from greenroom.transports.codex import items, params
from greenroom.transports.codex.asks import Asks, line_of
from greenroom.transports.codex.classify import Failure, refused_request
from greenroom.transports.codex.config import CodecConfig
from greenroom.transports.codex.desk import Pending, RequestDesk
from greenroom.transports.codex.lines import Frame, clean, obj, text
from greenroom.transports.codex.modes import DEFAULT, PLAN, Modes, wants_plan
from greenroom.transports.codex.outcome import Verdict
from greenroom.transports.codex.state import History, OpenAttempt, Steer, Stop
from greenroom.transports.codex.usage import Ledger

INTERRUPT_AGAIN_S = 0.25
CLEAN = "thread/backgroundTerminals/clean"
_DETAIL_CHARS = 2000
_IMAGE_LEFT_OUT = "image content omitted"


def within(bound_s: float) -> str:
    """Return a bound in words."""
    return f"within {bound_s:g} s"


def _is_said(said: str, on_disk: str) -> bool:
    """Say whether a message on disk is ours; the server may have put a text in the place of an image, which come first."""
    return on_disk == said or (on_disk.endswith(said) and on_disk.startswith(_IMAGE_LEFT_OUT))


class Turns:
    """The attempt that is open, if one is, and what the thread's past says about the next one.

    `owner` is who gets the answers to what is asked here. `lost`: the server did not stop when it was told to.
    """

    def __init__(self, config: CodecConfig, desk: RequestDesk, launch: LaunchSpec, owner: object) -> None:
        self.open: OpenAttempt | None = None
        self.thread_id: str | None = None
        self.history = History()
        self.active: str | None = None
        self.modes = Modes(launch, config.home_models)
        self.lost = False
        self.asks = Asks()
        self._config = config
        self._desk = desk
        self._launch = launch
        self._owner = owner
        self._named = False
        self._taken: set[str] = set()
        self._ledger = Ledger(fresh=launch.resume_id is None, previous=launch.previous_usage, after_death=launch.after_death)

    @property
    def deadline_s(self) -> float | None:
        """When `tick` is due; the bounds of requests are the desk's."""
        if (turn := self.open) is None:
            return None
        if turn.stop is None:
            return turn.deadline_s
        return turn.stop.until_s if turn.stop.again_s is None else min(turn.stop.again_s, turn.stop.until_s)

    def _ask(self, method: str, asked: Frame, now_s: float, *, subject: str = "", bound_s: float | None = None) -> Write:
        bound_s = self._config.interrupt_grace_s if bound_s is None else bound_s
        return self._desk.ask(method, asked, owner=self._owner, subject=subject, until_s=now_s + bound_s)

    # --- begin ---------------------------------------------------------------------------------------------------------

    def start_turn(self, attempt: Attempt, now_s: float) -> Iterator[Output]:
        """Begin an attempt, unless the history shows that it was taken before the death."""
        if attempt.probe and self._was_taken(attempt):
            self._taken.add(attempt.turn_id)
            yield AttemptSwallowed(attempt.turn_id)
            return
        self.open = OpenAttempt(attempt=attempt)
        self._ledger.begin()
        yield from self.write(now_s)

    def _was_taken(self, attempt: Attempt) -> bool:
        """Say whether the thread has the message of an attempt that was cut: by its id, or where the kill came before that was written."""
        said = clean(params.said_by(attempt.request) if attempt.how is How.PROMPT else params.CONTINUE_TEXT)
        is_cut = self.history.last_status == "interrupted"
        return attempt.receipt in self.history.receipts or (is_cut and any(_is_said(said, cut) for cut in self._launch.cut_texts))

    def write(self, now_s: float) -> Iterator[Output]:
        """Write the open attempt, unless a turn runs (it would become a steer of it) or the commands of one are being ended."""
        turn = self.open
        if turn is None or turn.written or self.active is not None or self._desk.waits(CLEAN, self._owner):
            return
        turn.written = True
        given = self._input_of(turn.attempt)
        turn.has_message = bool(given)
        yield self._ask(
            "turn/start", self._turn_params(turn.attempt, given), now_s, subject=turn.receipt, bound_s=self._config.startup_timeout_s
        )

    def _input_of(self, attempt: Attempt) -> list[Frame]:
        """Return what an attempt sends; nothing asks the model again with the history as it is, which shows it nothing twice."""
        request = attempt.request
        is_taken = attempt.turn_id in self._taken or self.history.shows(params.said_by(request))
        if attempt.how is How.PROMPT or not is_taken:
            return params.request_input(request)
        return [] if self.history.is_cut else params.user_input(params.CONTINUE_TEXT)

    def _turn_params(self, attempt: Attempt, given: list[Frame]) -> Frame:
        request = attempt.request
        schema = None if request.output_schema is None else dict(request.output_schema.schema)
        return params.turn_start(
            self._launch,
            self.thread_id or "",
            given,
            clientUserMessageId=attempt.receipt,
            outputSchema=schema,
            **self.modes.fields(request),
        )

    # --- what the thread is set to -------------------------------------------------------------------------------------

    def settings(self, differs: tuple[str, str] | None, mode: Any, now_s: float) -> Iterator[Output]:
        """The thread's settings have changed. Other permissions than the session's end the conversation here, whatever it is at."""
        turn = self.open
        if differs is None and turn is not None and turn.written and isinstance(mode, str):
            wanted = PLAN if wants_plan(turn.attempt.request) else DEFAULT
            differs = None if mode == wanted else (f"{wanted} mode", f"{mode} mode")
        if differs is None:
            return
        yield PermissionsDiffer(*differs)
        error = params.refused(*differs)
        if turn is None:
            self.lost = True
            yield Kill(str(error))
        else:
            turn.stop = Stop(until_s=now_s, error=error)
            yield from self._abandon(turn, str(error))

    # --- whose turn is it? ---------------------------------------------------------------------------------------------

    def turn_answered(self, pending: Pending, reply: Frame, error: Any, now_s: float) -> Iterator[Output]:
        """The server answered `turn/start`."""
        turn = self.open
        if turn is None or turn.receipt != pending.subject:
            return
        if error is not None:
            yield from self._turn_refused(turn, error)
            return
        yield from self._take_turn(turn, text(obj(reply.get("turn")).get("id")), now_s)

    def _take_turn(self, turn: OpenAttempt, wire_turn: str, now_s: float) -> Iterator[Output]:
        """The attempt's turn has a name; what was told of it before the name is taken up now."""
        if turn.wire_turn is None:
            turn.wire_turn = wire_turn or turn.early
            turn.started = turn.wire_turn is not None and turn.wire_turn in {turn.early, self.active}
        if turn.early_end is not None and turn.early_end.get("id") == turn.wire_turn:
            yield from self._completed(turn, turn.early_end, now_s)
        elif turn.started:
            yield from self._begun(turn, now_s)

    def _turn_refused(self, turn: OpenAttempt, error: Any) -> Iterator[Output]:
        verdict = self._end(turn)
        yield from self._reject_steers(turn, "the turn did not begin")
        if turn.stop is not None:
            yield from verdict.stopped()
        else:
            yield from verdict.failed(refused_request(error), nudgeable=True, keeps_conversation=True)

    def turn_unanswered(self, pending: Pending, now_s: float) -> Iterator[Output]:
        """The server did not answer `turn/start`."""
        turn = self.open
        if turn is None or turn.receipt != pending.subject or turn.started:
            return
        if turn.early is not None:
            yield from self._take_turn(turn, turn.early, now_s)
            return
        why = f"no answer to turn/start {within(self._config.startup_timeout_s)}"
        turn.stop = turn.stop or Stop(until_s=0.0, error=TurnFailedError(FailureKind.OTHER, why))
        yield from self._abandon(turn, why)

    def turn_started(self, fields: Frame, now_s: float) -> Iterator[Output]:
        """A turn of the thread begins."""
        wire_turn = text(obj(fields.get("turn")).get("id"))
        if not wire_turn:
            return
        self.active = wire_turn
        turn = self.open
        if turn is None or not turn.written:
            yield Lifecycle("background turn", "the server started a turn by itself", ongoing=True)
        elif turn.wire_turn is None:
            turn.early = wire_turn
        elif turn.wire_turn == wire_turn or (not turn.has_message and not turn.started):
            # Where nothing of ours in the turn can prove it, the turn that begins in place of the answer's is taken for it.
            turn.wire_turn = wire_turn
            yield from self._begun(turn, now_s)

    def _begun(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        turn.started = True
        if not self._named and self.thread_id is not None:
            self._named = True
            yield Renamed(self.thread_id)
            yield SessionStarted(self.thread_id)
        yield from self._push_stop(turn, now_s)

    # --- items ---------------------------------------------------------------------------------------------------------

    def item_started(self, fields: Frame, now_s: float) -> Iterator[Output]:
        """An item begins."""
        item, wire_turn = obj(fields.get("item")), text(fields.get("turnId"))
        if item.get("type") == "userMessage":
            yield from self._user_message(item, wire_turn, now_s)
        elif (turn := self.open) is not None and turn.owns(wire_turn):
            yield from items.started(turn, item)

    def item_completed(self, fields: Frame, now_s: float) -> Iterator[Output]:
        """An item is whole."""
        item, wire_turn = obj(fields.get("item")), text(fields.get("turnId"))
        if item.get("type") == "userMessage":
            yield from self._user_message(item, wire_turn, now_s)
        elif (turn := self.open) is not None and turn.owns(wire_turn):
            yield from items.completed(turn, item)

    def _user_message(self, item: Frame, wire_turn: str, now_s: float) -> Iterator[Output]:
        """A message of the user is in the thread, durably: of ours, it proves which turn runs it."""
        client_id = text(item.get("clientId"))
        self.history.add(item)
        turn = self.open
        if turn is None or not turn.written or not client_id:
            return
        if client_id == turn.receipt:
            self._taken.add(turn.turn_id)
            if turn.wire_turn != wire_turn or not turn.started:
                turn.wire_turn = wire_turn
                yield from self._begun(turn, now_s)
        elif (steer := turn.steers.get(client_id)) is not None and not steer.consumed:
            yield from self._delivered(steer)
            steer.consumed = True
            yield SteerConsumed(steer.text)

    # --- steers --------------------------------------------------------------------------------------------------------

    def steer(self, said: str, steer_id: str, now_s: float) -> list[Output] | None:
        """Write a text for the running turn; None when there is none, or it is ending."""
        turn = self.open
        if turn is None or turn.stop is not None or not turn.started or turn.wire_turn is None:
            return None
        turn.steers[steer_id] = Steer(text=said, steer_id=steer_id)
        asked = {
            "threadId": self.thread_id,
            "expectedTurnId": turn.wire_turn,
            "input": params.user_input(said),
            "clientUserMessageId": steer_id,
        }
        return [self._ask("turn/steer", asked, now_s, subject=steer_id)]

    def steer_answered(self, pending: Pending, error: Any) -> Iterator[Output]:
        """The server answered `turn/steer`."""
        turn = self.open
        steer = turn.steers.get(pending.subject) if turn is not None else None
        if turn is None or steer is None:
            return
        if error is not None:
            yield from self.reject(pending.subject, text(obj(error).get("message")) or "the server refused it")
        else:
            yield from self._delivered(steer)

    @staticmethod
    def _delivered(steer: Steer) -> Iterator[Output]:
        if not steer.delivered:
            steer.delivered = True
            yield SteerDelivered(steer.text)

    def reject(self, steer_id: str, reason: str) -> Iterator[Output]:
        """Nobody will take up this steer."""
        turn = self.open
        steer = turn.steers.pop(steer_id, None) if turn is not None else None
        if steer is not None and not steer.consumed:
            yield SteerRejected(steer.text, reason)

    @staticmethod
    def _reject_steers(turn: OpenAttempt, reason: str) -> Iterator[Output]:
        """Nobody will take up what is waiting."""
        waiting = [steer for steer in turn.steers.values() if not steer.consumed]
        turn.steers.clear()
        for steer in waiting:
            yield SteerRejected(steer.text, reason)

    # --- stop ----------------------------------------------------------------------------------------------------------

    def interrupt(self, now_s: float) -> Iterator[Output]:
        """End the open attempt as soon as the server can take it."""
        yield from self._stop(None, now_s)

    def fail(self, error: GreenroomError, now_s: float) -> Iterator[Output]:
        """End the open attempt with `error`, once the server has stopped working on it."""
        yield from self._stop(error, now_s)

    def _stop(self, error: GreenroomError | None, now_s: float) -> Iterator[Output]:
        turn = self.open
        if turn is None or turn.stop is not None:
            return
        turn.stop = Stop(until_s=now_s + self._config.interrupt_grace_s, error=error)
        yield Urgent()
        yield from self.asks.end()
        yield from self._push_stop(turn, now_s)

    def _push_stop(self, turn: OpenAttempt, now_s: float) -> Iterator[Output]:
        """Pass the stop on as far as the server can take it: before a turn has started it finds none to interrupt."""
        stop = turn.stop
        if stop is None or stop.sent:
            return
        if not turn.written:
            yield from self._end(turn).stopped()
        elif turn.started:
            stop.sent, stop.again_s = True, None
            asked = {"threadId": self.thread_id, "turnId": turn.wire_turn}
            yield self._ask("turn/interrupt", asked, now_s, subject=turn.receipt)

    def interrupt_answered(self, pending: Pending, error: Any, now_s: float) -> Iterator[Output]:
        """An interrupt that found no turn came too early or too late: its end follows, or was lost, or it is asked for again."""
        turn = self.open
        if error is None or turn is None or turn.receipt != pending.subject or turn.stop is None:
            return
        if turn.line_lost:
            self.active = None
            verdict = self._end(turn)
            yield from self._reject_steers(turn, "the turn has ended")
            yield from verdict.stopped()
        else:
            turn.stop.sent, turn.stop.again_s = False, now_s + INTERRUPT_AGAIN_S

    def line_lost(self, what: str, now_s: float) -> Iterator[Output]:
        """A line that was too long may have been this attempt's."""
        turn = self.open
        if turn is not None and turn.written:
            turn.line_lost = True
            yield from self.fail(TurnFailedError(FailureKind.OTHER, what, text=turn.text), now_s)

    # --- approvals -----------------------------------------------------------------------------------------------------

    @property
    def fails_turns(self) -> bool:
        """Whether a request for leave is to fail the turn."""
        return self._launch.spec.approvals is ApprovalPolicy.FAIL_TURN and self.open is not None

    def denied(self, kind: str, detail: str, item_id: str, now_s: float, *, cancelled: bool) -> Iterator[Output]:
        """A request for leave was refused: tell it once, and fail the turn if the caller wants that.

        `cancelled`: the refusal itself ends the turn; otherwise an interrupt does.
        """
        turn = self.open
        detail = detail[:_DETAIL_CHARS]
        if turn is None or item_id not in turn.denied:
            yield ApprovalDenied(kind, detail)
        if turn is None:
            return
        turn.denied.add(item_id)
        if not self.fails_turns or turn.stop is not None:
            return
        error = TurnFailedError(FailureKind.OTHER, f"approval denied: {kind}: {detail}", text=turn.text)
        if cancelled and turn.written:
            turn.stop = Stop(until_s=now_s + self._config.interrupt_grace_s, error=error, sent=True)
            yield Urgent()
        else:
            yield from self.fail(error, now_s)

    @property
    def asks_people(self) -> bool:
        """Whether a person answers what is asked now: not for a turn that is being stopped."""
        stopped = self.open is not None and self.open.stop is not None
        return self._launch.spec.approvals is ApprovalPolicy.ASK and not stopped and not self.lost

    def ask(self, method: str, wire_id: Any, asked: Frame, now_s: float) -> Iterator[Output]:
        """The server asks a person. While the attempt waits, its time stands still."""
        turn = self.open
        yield self.asks.ask(method, wire_id, asked, {} if turn is None else turn.calls)
        if turn is not None:
            turn.stand_still(now_s)

    def answer(self, request_id: str, answer: Answer, now_s: float) -> list[Output] | None:
        """Answer what was asked; None when it is open no more. The words of a refusal go before it, as a steer that nobody reports."""
        request = self.asks.take(request_id)
        if request is None:
            return None
        self._wait_over(now_s)
        outputs: list[Output] = []
        if (turn := self.open) is not None:
            turn.denied.add(text(request.asked.get("itemId")))  # whoever declined it knows
            turn.cancelled = turn.cancelled or isinstance(answer, CancelTurn)
            if isinstance(answer, Decline) and answer.message and turn.wire_turn is not None:
                asked = {"threadId": self.thread_id, "expectedTurnId": turn.wire_turn, "input": params.user_input(answer.message)}
                outputs.append(self._ask("turn/steer", asked, now_s))
        return [*outputs, Write(line_of(request, answer))]

    def request_resolved(self, fields: Frame, now_s: float) -> Iterator[Output]:
        """The server wants no answer any more, or has one."""
        yield from self.asks.withdraw(fields.get("requestId"))
        self._wait_over(now_s)

    def _wait_over(self, now_s: float) -> None:
        if self.open is not None and not self.asks:
            self.open.go_on(now_s)

    # --- usage and errors ----------------------------------------------------------------------------------------------

    def token_usage(self, fields: Frame, now_s: float) -> Iterator[Output]:
        """The totals have grown."""
        wire_turn, turn = text(fields.get("turnId")), self.open
        if turn is not None and turn.owns(wire_turn):
            self._ledger.take(fields.get("tokenUsage"))
        else:
            self._ledger.replay(fields.get("tokenUsage"))
        yield from ()

    def child_usage(self, thread_id: str, fields: Frame) -> Iterator[Output]:
        """A sub-agent's thread has consumed something."""
        added = self._ledger.take_child(thread_id, fields.get("tokenUsage"))
        if self.open is None and added != TokenUsage():
            yield Booked(self._ledger.book(added))

    def consumed(self) -> ProviderUsage | None:
        """Return what the open attempt is known to have consumed: a lower bound."""
        turn = self.open
        return attrs.evolve(self._ledger.spent(), increment_known=False) if turn is not None and turn.written else None

    def error_notice(self, fields: Frame, now_s: float) -> Iterator[Output]:
        """The server tells an error; only with a failed turn does it end one."""
        error, turn = obj(fields.get("error")), self.open
        if turn is None or not turn.owns(text(fields.get("turnId"))):
            return
        if fields.get("willRetry") is not True:
            turn.error = error
        yield ProviderError(Failure.of(error).text)

    # --- end -----------------------------------------------------------------------------------------------------------

    def status_changed(self, fields: Frame, now_s: float) -> Iterator[Output]:
        """The thread is busy, or idle again: then no turn runs, even if the line with its end was lost."""
        if obj(fields.get("status")).get("type") in {"idle", "systemError"}:
            if self.active is not None and (self.open is None or not self.open.written):
                yield Lifecycle("background turn", "its end", ongoing=False)
            self.active = None
            yield from self.write(now_s)

    def turn_completed(self, fields: Frame, now_s: float) -> Iterator[Output]:
        """A turn of the thread has ended: ours, or another."""
        wire_turn = obj(fields.get("turn"))
        wire_id, turn = text(wire_turn.get("id")), self.open
        if not wire_id:
            return
        if turn is not None and turn.written and turn.wire_turn is None:
            turn.early_end = wire_turn  # whose it is, the answer will say
            self.active = None if self.active == wire_id else self.active
        elif turn is not None and turn.owns(wire_id):
            yield from self._completed(turn, wire_turn, now_s)
        elif wire_id == self.active:
            self.active = None
            self.history.last_status = text(wire_turn.get("status")) or None
            yield Lifecycle("background turn", "its end", ongoing=False)
            yield from self.write(now_s)

    def _completed(self, turn: OpenAttempt, wire_turn: Frame, now_s: float) -> Iterator[Output]:
        status = text(wire_turn.get("status"))
        self.history.last_status = status or None
        self.active = None
        yield from self.asks.end()
        yield from items.unfinished(turn)
        verdict = self._end(turn)
        yield from self._reject_steers(turn, "the turn ended before it was taken up")
        if status == "interrupted" and self._config.clean_after_interrupt:
            # An interrupt leaves the running commands alone (0.163 and 0.171).
            asked = {"threadId": self.thread_id}
            yield self._ask(CLEAN, asked, now_s)
        yield from verdict.completed(wire_turn)

    def _end(self, turn: OpenAttempt) -> Verdict:
        self.open = None
        return Verdict(turn, self._ledger, thread_id=self.thread_id, resumed=self._launch.resume_id is not None)

    def _abandon(self, turn: OpenAttempt, why: str) -> Iterator[Output]:
        """The server does not stop: end the attempt without it. The conversation is lost to this process."""
        self.lost = True
        yield from self.asks.end()
        verdict = self._end(turn)
        yield from items.unfinished(turn)
        yield from self._reject_steers(turn, "delivery unknown: the conversation is taken from the server")
        yield from verdict.stopped(forced=True)
        yield Kill(why)

    def reject_steers(self, reason: str) -> Iterator[Output]:
        """Nobody will take up what is waiting."""
        if self.open is not None:
            yield from self._reject_steers(self.open, reason)

    def tick(self, now_s: float) -> Iterator[Output]:
        """Act on the first of the open attempt's bounds that has passed."""
        turn = self.open
        if turn is None:
            return
        stop = turn.stop
        if stop is None:
            if turn.deadline_s is not None and now_s >= turn.deadline_s:
                timeout_s = turn.attempt.timeout_s or turn.attempt.request.timeout or 0.0
                yield from self.fail(TurnTimeoutError(timeout_s, turn_id=turn.turn_id), now_s)
        elif now_s >= stop.until_s:
            yield from self._abandon(turn, f"an interrupt went unanswered for {self._config.interrupt_grace_s:g} s")
        elif stop.again_s is not None and now_s >= stop.again_s:
            yield from self._push_stop(turn, now_s)
