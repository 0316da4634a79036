"""The actor of one conversation of a user's own blocking transport: the same messages, with a worker thread behind them.

The thread opens the conversation and runs its turns; `interrupt`, `steer` and `close`, which users declare thread-safe, are called aside,
so that one that blocks holds up nobody. What never returns is abandoned after a grace: the turn ends, its thread is left behind (daemon).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.dispatcher import Dispatcher, TimerFired
from greenroom.actors.runtime import LoopActor, Message, tell
from greenroom.actors.threads import Worker, described, logged
from greenroom.errors import (
    CliExitError,
    GreenroomError,
    NoRunningTurnError,
    SessionCrashedError,
    SessionResumeError,
    TransportDiedError,
    TurnCancelledError,
    TurnFailedError,
    TurnTimeoutError,
    WaitTimeoutError,
)
from greenroom.events import AgentEvent
from greenroom.model import FailureKind, ProviderUsage, TurnRequest, TurnResult
from greenroom.policy.commands import How
from greenroom.transports.base import Attempt, Conversation, LaunchSpec, Transport

logger = logging.getLogger("greenroom.conversation")

OPEN_TIMEOUT_S = 60.0
INTERRUPT_GRACE_S = 10.0
INTERRUPT_AGAIN_S = 0.5
CLOSE_GRACE_S = 5.0
CONTINUE_TEXT = "Continue from where you left off."

Ref = pykka.ActorRef[Any]


@attrs.frozen(kw_only=True)
class WorkerOpened(Message):
    """`Transport.open` returned."""

    conversation: Conversation
    conversation_id: str | None

    def refuse(self) -> None:
        """Nobody owns it any more."""
        threading.Thread(target=logged(lambda: self.conversation.close()), daemon=True).start()  # noqa: PLW0108


@attrs.frozen(kw_only=True)
class WorkerFailed(Message):
    """`Transport.open` or `turn` raised."""

    turn_id: str | None
    error: BaseException
    conversation_id: str | None = None


@attrs.frozen(kw_only=True)
class WorkerResult(Message):
    """`turn` returned."""

    turn_id: str
    result: TurnResult
    conversation_id: str | None


class WorkerConversationActor(LoopActor):
    """Owner of one blocking conversation."""

    dispatcher: Dispatcher

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        session_id: str,
        session: Ref,
        supervisor: Ref,
        transport: Transport,
        spec: LaunchSpec,
    ) -> None:
        super().__init__(dispatcher)
        self._session_id = session_id
        self._session = session
        self._supervisor = supervisor
        self._transport = transport
        self._spec = spec
        self._worker: Worker | None = None
        self._conversation: Conversation | None = None
        self._attempt: Attempt | None = None
        self._interrupted = False
        self._timed_out = False
        self._named: str | None = None
        self._gate = threading.Event()  # open: the worker may emit
        self._gate.set()
        self._down = False

    def on_start(self) -> None:
        """Open the conversation on the worker."""
        self._worker = self.dispatcher.worker(self.actor_ref, f"greenroom-{self._session_id}")
        transport = self._transport
        spec = attrs.evolve(self._spec.spec, resume_id=self._spec.resume_id, previous_usage=self._spec.previous_usage)

        def job() -> Message:
            try:
                conversation = transport.open(spec)
                if not hasattr(conversation, "turn"):
                    raise TypeError(f"open must return a conversation, got {conversation!r}")  # noqa: TRY301 - as if it had raised
                return WorkerOpened(conversation=conversation, conversation_id=_id_of(conversation))
            except BaseException as error:  # noqa: BLE001 - a user's code: whatever it raises, sys.exit too, is the start's answer
                return WorkerFailed(turn_id=None, error=error)

        self._worker.submit(job)
        self.dispatcher.call_later(OPEN_TIMEOUT_S, self.actor_ref, TimerFired(token=("open", "")))

    def handle(self, message: Any) -> None:  # noqa: C901 - one line a case
        """Pass each message on to the worker, or from it to the session."""
        match message:
            case WorkerOpened():
                self._opened(message)
            case WorkerResult():
                self._result(message)
            case WorkerFailed():
                self._failed(message)
            case m.RunAttempt():
                self._run(message.attempt)
            case m.SteerAttempt():
                self._steer(message)
            case m.InterruptTurn():
                self._interrupt(message.turn_id)
            case m.HoldReading():
                (self._gate.clear if message.hold and not self._interrupted else self._gate.set)()
            case m.Listen():
                self._tell(m.Listened(incarnation=self._spec.incarnation))
            case m.EndConversation():
                self._give_up(message.reason) if message.hung and self._attempt is not None else self._end("closed")
            case TimerFired():
                self._timer(message.token)
            case _:
                logger.warning("conversation of %s: unexpected %s", self._session_id, type(message).__name__)

    # --- start

    def _opened(self, message: WorkerOpened) -> None:
        if self._conversation is not None:  # only a defect of ours could say it twice; what runs is kept
            message.refuse()
            return
        self._conversation = message.conversation
        self._settle_start()
        self._tell(m.ConversationOpened(incarnation=self._spec.incarnation, conversation_id=message.conversation_id))

    def _settle_start(self) -> None:
        tell(self._supervisor, m.StartSettled(session_id=self._session_id, incarnation=self._spec.incarnation))

    # --- work

    def _run(self, attempt: Attempt) -> None:
        conversation, worker = self._conversation, self._worker
        if conversation is None or worker is None:
            return
        self._attempt, self._interrupted, self._timed_out = attempt, False, False
        session, incarnation, gate = self._session, self._spec.incarnation, self._gate

        def emit(event: AgentEvent) -> None:
            gate.wait()
            tell(session, m.TurnEvent(incarnation=incarnation, turn_id=attempt.turn_id, events=(event,)))

        def job() -> Message:
            try:
                result = _checked(_call(conversation, attempt, emit))
                return WorkerResult(turn_id=attempt.turn_id, result=result, conversation_id=_id_of(conversation))
            except BaseException as error:  # noqa: BLE001 - a user's code: whatever it raises, sys.exit too, is the attempt's answer
                return WorkerFailed(turn_id=attempt.turn_id, error=error, conversation_id=_id_after_failure(conversation))

        if attempt.deadline_s is not None:
            delay_s = max(0.0, attempt.deadline_s - self.dispatcher.monotonic())
            self.dispatcher.call_later(delay_s, self.actor_ref, TimerFired(token=("deadline", attempt.receipt)))
        worker.submit(job)

    def _interrupt(self, turn_id: str) -> None:
        attempt, conversation, worker = self._attempt, self._conversation, self._worker
        if attempt is None or attempt.turn_id != turn_id or self._interrupted or conversation is None or worker is None:
            return
        self._interrupted = True
        self._gate.set()
        self.dispatcher.call_later(INTERRUPT_GRACE_S, self.actor_ref, TimerFired(token=("grace", attempt.receipt)))
        self._ask_to_stop(attempt)

    def _ask_to_stop(self, attempt: Attempt) -> None:
        """Call `interrupt`, and again while the turn goes on: a call that came before the user's `turn` had begun did nothing."""
        conversation, worker = self._conversation, self._worker
        if conversation is not None and worker is not None:
            worker.aside(lambda: conversation.interrupt())  # noqa: PLW0108 - looked up aside: a user's attribute may raise
            self.dispatcher.call_later(INTERRUPT_AGAIN_S, self.actor_ref, TimerFired(token=("again", attempt.receipt)))

    def _steer(self, message: m.SteerAttempt) -> None:
        conversation, worker, attempt = self._conversation, self._worker, self._attempt
        steer = getattr(conversation, "steer", None)
        if steer is None or worker is None or attempt is None or attempt.turn_id != message.turn_id or self._interrupted:
            message.refuse()
            return

        def job() -> None:
            try:
                steer(message.text)
            except GreenroomError as error:
                message.reply_to.fail(error)
            except BaseException as error:  # noqa: BLE001 - the asker is told
                message.reply_to.fail(NoRunningTurnError(f"the conversation did not take the text: {described(error)}"))
            else:
                message.reply_to.settle(None)

        worker.aside(job)

    def _timer(self, token: Any) -> None:
        attempt = self._attempt
        kind, receipt = token
        if kind == "open":
            self._open_timed_out()
            return
        if attempt is None or attempt.receipt != receipt:
            return
        if kind == "again":
            self._ask_to_stop(attempt)
            return
        if kind == "deadline":
            self._timed_out = True
            self._interrupt(attempt.turn_id)
            return
        # The interrupt went unanswered: the turn ends now, its thread is left behind.
        self._end_attempt(result=None if self._timed_out else TurnResult(interrupted=True), error=self._timeout(attempt), forced=True)
        self._end("an interrupt went unanswered")

    def _open_timed_out(self) -> None:
        """A user's `open` that never returns must not hold a start slot for ever; its thread is left behind."""
        if self._conversation is not None or self._down:
            return
        self._settle_start()
        error = TurnFailedError(FailureKind.OTHER, f"the transport did not open a conversation within {OPEN_TIMEOUT_S:g} s")
        self._tell(m.OpenFailed(incarnation=self._spec.incarnation, error=error, killed=True))
        self._end("it could not be opened")

    def _timeout(self, attempt: Attempt) -> GreenroomError | None:
        return TurnTimeoutError(attempt.timeout_s or 0.0, turn_id=attempt.turn_id) if self._timed_out else None

    # --- what follows

    def _result(self, message: WorkerResult) -> None:
        if self._attempt is None or self._attempt.turn_id != message.turn_id:
            return
        self._name(message.conversation_id)
        error = self._timeout(self._attempt) if message.result.interrupted else None
        self._end_attempt(result=None if error else message.result, error=error)

    def _name(self, conversation_id: str | None) -> None:
        if conversation_id is not None and conversation_id != self._named:
            self._named = conversation_id
            self._tell(m.ConversationNamed(incarnation=self._spec.incarnation, conversation_id=conversation_id))

    def _failed(self, message: WorkerFailed) -> None:
        error = message.error
        if message.turn_id is None:
            self._settle_start()
            self._tell(m.OpenFailed(incarnation=self._spec.incarnation, error=_as_failure(error), killed=True))
            self._end("it could not be opened")
            return
        if self._attempt is None or self._attempt.turn_id != message.turn_id:
            return
        self._name(message.conversation_id)
        if isinstance(error, CliExitError) and not isinstance(error, SessionResumeError):
            self._died(error)
        else:
            self._end_attempt(result=None, error=_as_failure(error))

    def _end_attempt(self, *, result: TurnResult | None, error: GreenroomError | None, forced: bool = False) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        usage = result.usage if result is not None else getattr(error, "usage", None)
        self._tell(
            m.TurnEnded(
                incarnation=self._spec.incarnation,
                turn_id=attempt.turn_id,
                result=result,
                error=error,
                usage=usage,
                cumulative=usage,
                duration_ms=result.duration_ms if result is not None else 0,
                nudgeable=True,
                keeps_conversation=False,
                forced=forced,
            )
        )

    def _died(self, error: CliExitError) -> None:
        died = (
            error
            if isinstance(error, TransportDiedError)
            else TransportDiedError(error.argv, error.returncode, error.stdout, error.stderr, reason=error.detail, usage=error.usage)
        )
        self._report_down(died, expected=False, sent=True)
        self.finish()

    # --- end

    def _end(self, reason: str) -> None:
        self._gate.set()
        if self._attempt is not None:
            self._end_attempt(result=TurnResult(interrupted=True), error=None)
        self._report_down(TransportDiedError(reason=reason), expected=True, sent=False)
        self.finish()

    def _give_up(self, reason: str) -> None:
        """The attempt is taken up by the next conversation; its thread, if `close` does not free it, is left behind."""
        self._gate.set()
        self._attempt = None
        self._report_down(TransportDiedError(reason=reason), expected=True, sent=True)
        self.finish()

    def _report_down(self, error: TransportDiedError, *, expected: bool, sent: bool) -> None:
        if self._down:
            return
        self._down = True
        incarnation = self._spec.incarnation
        self._tell(
            m.Down(incarnation=incarnation, error=error, expected=expected, refused=False, sent=sent, usage=error.usage, duration_ms=0)
        )
        self._close_aside(m.ProcessGone(session_id=self._session_id, incarnation=incarnation, mark=None))

    def _close_aside(self, gone: m.ProcessGone) -> None:
        """Close the conversation and say so; the next one must not be opened beside it, nor for ever wait for it."""
        conversation, supervisor = self._conversation, self._supervisor
        if conversation is None or self._worker is None:
            tell(supervisor, gone)
            return
        patience = self.dispatcher.call_later(CLOSE_GRACE_S, supervisor, gone)

        def job() -> None:
            try:
                conversation.close()
            finally:
                patience.cancel()
                tell(supervisor, gone)

        self._worker.aside(job)

    def _tell(self, message: Message) -> None:
        tell(self._session, message)

    def on_down(self, error: BaseException | None) -> None:
        """Let the worker go; after a crash, tell of it."""
        self._gate.set()
        if error is not None:
            self._report_down(TransportDiedError(reason=f"its actor crashed: {error!r}"), expected=False, sent=self._attempt is not None)
        if self._worker is not None:
            self._worker.stop()


def _call(conversation: Conversation, attempt: Attempt, emit: Callable[[AgentEvent], None]) -> TurnResult:
    retry = getattr(conversation, "retry", None)
    if attempt.how is How.RETRY and retry is not None:
        result: TurnResult = retry(emit)
        return result
    request: TurnRequest = attempt.request
    if attempt.how is How.CONTINUE:
        request = attrs.evolve(request, prompt=CONTINUE_TEXT)
    return conversation.turn(request, emit)


def _id_of(conversation: Conversation) -> str | None:
    """Read it on the worker's thread: it is an attribute of a user's, which may block or raise."""
    conversation_id: object = conversation.conversation_id
    if conversation_id is not None and not isinstance(conversation_id, str):
        raise TypeError(f"conversation_id must be a str or None, got {conversation_id!r}")
    return conversation_id


def _id_after_failure(conversation: Conversation) -> str | None:
    try:
        return _id_of(conversation)
    except BaseException:  # noqa: BLE001 - what `turn` raised says more
        return None


def _checked(result: object) -> TurnResult:
    if not isinstance(result, TurnResult):
        raise TypeError(f"turn must return a TurnResult, got {result!r}")
    if not isinstance(result.usage, ProviderUsage | None):
        raise TypeError(f"the usage of a TurnResult must be a ProviderUsage or None, got {result.usage!r}")
    return result


NOT_A_TRANSPORTS = (WaitTimeoutError, TurnCancelledError, SessionCrashedError)
"""What they say is about tickets and actors of ours; from a transport (which may drive sessions itself) it would be untrue."""


def _as_failure(error: BaseException) -> GreenroomError:
    usable = isinstance(getattr(error, "usage", None), ProviderUsage | None)
    if isinstance(error, GreenroomError) and not isinstance(error, NOT_A_TRANSPORTS) and usable:
        return error
    failure = TurnFailedError(FailureKind.OTHER, f"the transport raised {described(error)}")
    failure.__cause__ = error
    return failure
