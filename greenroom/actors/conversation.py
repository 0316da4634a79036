"""The actor of one conversation with a process of its own: passes the session's wishes to the driver and tells what follows.

Runs on the loop thread and decides nothing about turns. When the driver has ended, the session gets Down, behind everything that the
process said, and the supervisor ProcessGone; if this actor crashes, both still come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pykka

from greenroom.actors import messages as m
from greenroom.actors.dispatcher import Dispatcher, LoopFailed, PipeReady, TimerFired
from greenroom.actors.process_owner import Launched, LaunchFailed, ProcessOwner, crash_reason
from greenroom.actors.runtime import Message
from greenroom.actors.teller import Teller
from greenroom.errors import GreenroomError, NoRunningTurnError, TransportDiedError
from greenroom.transports.base import LaunchSpec, Output, Urgent
from greenroom.transports.driver import Ended

logger = logging.getLogger("greenroom.conversation")

Ref = pykka.ActorRef[Any]


class ConversationActor(ProcessOwner):
    """One conversation, one process."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        session_id: str,
        session: Ref,
        supervisor: Ref,
        spec: LaunchSpec,
        job: Callable[[], Message],
    ) -> None:
        super().__init__(dispatcher, supervisor=supervisor, job=job)
        self._spec = spec
        self._teller = Teller(session_id=session_id, session=session, supervisor=supervisor, incarnation=spec.incarnation)
        self._argv: tuple[str, ...] = ()
        self._ending: m.EndConversation | None = None
        self._held = False
        self._urgent = False

    def handle(self, message: Any) -> None:  # noqa: C901 - one line a case
        """Pass each message to the driver, and on what follows."""
        match message:
            case PipeReady() | TimerFired() | LoopFailed():
                self._serve(message)
            case m.RunAttempt():
                self._run(message)
            case m.SteerAttempt():
                self._steer(message)
            case m.AnswerRequest():
                self._answer(message)
            case m.InterruptTurn():
                self._interrupt(message)
            case m.Listen():
                if self._read_on():
                    self._teller.listened()
            case m.HoldReading():
                self._pause(hold=message.hold, urgent=self._urgent)
                self._rearm()
            case m.EndConversation():
                self._end_process(message)
            case Launched():
                self._launched(message)
            case LaunchFailed():
                self._launch_failed(message.error)
            case _:
                logger.warning("conversation of %s: unexpected %s", self._teller.session_id, type(message).__name__)

    # --- start

    def _launched(self, message: Launched) -> None:
        self._argv = message.launch.argv
        driver, now_s = self._take_over(message), self._now_s()
        outputs = driver.begin(now_s)
        if self._ending is not None:
            outputs += driver.shutdown(now_s, kill=self._ending.kill, reason=self._ending.reason)
        self._follow(outputs)

    def _launch_failed(self, error: GreenroomError) -> None:
        self._teller.start_failed(m.OpenFailed(incarnation=self._spec.incarnation, error=error, killed=False))
        self._teller.down(TransportDiedError(reason="it was never started"), now_s=self._now_s(), mark=None, expected=True)
        self.finish()

    # --- work

    def _run(self, message: m.RunAttempt) -> None:
        driver = self._driver
        if driver is None or driver.ended or driver.closing:
            return  # its Down is on the way; the session does what is right
        now_s = self._now_s()
        self._teller.begin(message.attempt, now_s)
        self._pause(hold=self._held, urgent=False)
        self._follow(driver.start_turn(message.attempt, now_s))

    def _steer(self, message: m.SteerAttempt) -> None:
        outputs = None
        if self._driver is not None and message.turn_id == self._teller.turn_id:
            outputs = self._driver.steer(message.text, message.steer_id, self._now_s())
        if outputs is None:
            message.reply_to.fail(NoRunningTurnError("no turn is running that could take the text; nothing was sent"))
            return
        message.reply_to.settle(None)
        self._follow(outputs)

    def _answer(self, message: m.AnswerRequest) -> None:
        outputs = None if self._driver is None else self._driver.answer(message.wire_id, message.answer, self._now_s())
        message.told(taken=outputs is not None)
        self._follow(outputs or [])

    def _interrupt(self, message: m.InterruptTurn) -> None:
        if self._driver is not None and message.turn_id == self._teller.turn_id:
            self._pause(hold=self._held, urgent=True)
            self._follow(self._driver.interrupt(self._now_s()))

    def _pause(self, *, hold: bool, urgent: bool) -> None:
        """A slow caller holds the reading back, unless the turn is being stopped: then its output is drained."""
        self._held, self._urgent = hold, urgent
        self._paused = hold and not urgent

    # --- what follows

    def follow(self, outputs: list[Output]) -> None:
        """Tell the session; see to the rest."""
        for signal in self._teller.outputs(outputs):
            match signal:
                case Urgent():
                    self._pause(hold=self._held, urgent=True)
                case Ended():
                    self._ended(signal)
                case _:
                    logger.warning("conversation of %s: unknown signal %s", self._teller.session_id, type(signal).__name__)

    # --- end

    def _end_process(self, message: m.EndConversation) -> None:
        self._ending, self._teller.ending = message, True
        if self._driver is not None:
            self._pause(hold=self._held, urgent=True)
            self._follow(self._driver.shutdown(self._now_s(), kill=message.kill, reason=message.reason))

    def _ended(self, ended: Ended) -> None:
        self._teller.down(
            ended.as_error(self._argv),
            now_s=self._now_s(),
            mark=self._spec.mark,
            expected=ended.expected,
            refused=ended.refused,
            sent=ended.sent,
            usage=ended.usage,
        )
        self._let_go()
        self.finish()

    def on_down(self, error: BaseException | None) -> None:
        """Leave nothing: a crash of ours ends the process, and the session learns of it like of any other death."""
        driver = self._driver
        sent = driver is not None and not driver.ended and driver.codec.sent
        self._abandon()
        if error is None:
            return
        died = TransportDiedError(self._argv, reason=crash_reason(error))
        self._teller.down(died, now_s=self._now_s(), mark=self._spec.mark if driver is not None else None, sent=sent)
