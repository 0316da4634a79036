"""The actor of one session: feeds the policy what happened and carries out what it commands. Never blocks, waits or does I/O.

`_advance` is the only place that assigns the state. What users read of a session (`SessionCore.view`) is published before any command
is performed, so that a caller whose turn ended finds the session as the turn left it. With a journal, intent comes before action: what a
step means is told to the journal first, and what must not be seen before it is durable (a ticket, a prompt on its way, an outcome)
waits for it (`Recorder`). Callers are answered by `Tickets`, events go out through `Voice`. Runs on the loop thread.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from typing import Any, assert_never

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.announce import CRASHED, SPEAKING, of_command, of_step
from greenroom.actors.asks import AskDesk, Hands
from greenroom.actors.cell import Cell
from greenroom.actors.core import NO_FLAGS, SessionCore
from greenroom.actors.dispatcher import Dispatcher, TimerFired
from greenroom.actors.heirs import Heritage, Left
from greenroom.actors.loglines import log_command
from greenroom.actors.record import Recorder, Stores
from greenroom.actors.rewind import Rollbacks
from greenroom.actors.runtime import ActorDown, LoopActor, Message, tell
from greenroom.actors.stall_watch import StallWatch
from greenroom.actors.store import unavailable
from greenroom.actors.ticket import TicketCore
from greenroom.actors.tickets import PolicyPort, Tickets
from greenroom.actors.voice import Voice
from greenroom.clock import TimerHandle
from greenroom.errors import NoRunningTurnError, SessionCrashedError, SessionStateError
from greenroom.events import Lifecycle, Stalled, TransportDied, TransportRestarted
from greenroom.journal import records as r
from greenroom.model import SessionStatus
from greenroom.policy import commands as c
from greenroom.policy import events as e
from greenroom.policy.session import Phase, State, public_snapshot, step
from greenroom.policy.wire_ids import receipt
from greenroom.transports.base import Attempt, Flags, LaunchSpec
from greenroom.transports.guard import host_id
from greenroom.transports.marks import make_mark

logger = logging.getLogger("greenroom.session")

Ref = pykka.ActorRef[Any]


class SessionActor(LoopActor):
    """A thin shell around `step`."""

    dispatcher: Dispatcher

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        core: SessionCore,
        supervisor: Ref,
        store: Callable[[], Ref],
        observer: Callable[[], Ref],
        journal: Callable[[], Ref] | None = None,
    ) -> None:
        super().__init__(dispatcher)
        self._now_s = dispatcher.monotonic
        self._core = core
        self._supervisor = supervisor
        self._state: State = core.origin
        self._inputs: collections.deque[e.SessionInput] = collections.deque()
        self._advancing = False
        self._adoptions: dict[str, Cell[bool]] = {}
        self._rollbacks = Rollbacks()
        self._connects: list[Cell[None]] = []
        self._conversation: tuple[int, Ref] | None = None
        self._started: set[int] = set()
        self._ending: dict[int, c.CloseConversation] = {}
        self._receipt: str | None = None
        self._slot_waits: dict[int, float] = {}
        self._held_deadline: tuple[str, int] | None = None
        self._deadline_timer: TimerHandle | None = None
        self._waits: dict[int, TimerHandle] = {}
        self._stall_watch = StallWatch(dispatcher, self.actor_ref, core.pulse, lambda: self._conversation)
        stores = Stores(checkpoints=store, journal=journal)
        self._recorder = Recorder(core=core, dispatcher=dispatcher, ref=self.actor_ref, stores=stores, degrade=self._degrade)
        self._ledger = self._recorder.ledger
        self._tickets = Tickets(
            session_id=core.session_id,
            dispatcher=dispatcher,
            supervisor=supervisor,
            recorder=self._recorder,
            policy=PolicyPort(state=lambda: self._state, advance=self._advance),
        )
        self._voice = Voice(
            core=core,
            dispatcher=dispatcher,
            ref=self.actor_ref,
            recorder=self._recorder,
            tickets=self._tickets,
            observer=observer,
            state=lambda: self._state,
            hold_reading=lambda: self._hold_reading(hold=True),
        )
        hands = Hands(
            emit=self._voice.emit,
            tell_conversation=self._tell_now,
            advance=self._advance,
            interrupt=self._interrupted,
            record=self._recorder.record,
        )
        self._asks = AskDesk(core=core, dispatcher=dispatcher, ref=self.actor_ref, hands=hands)

    def on_start(self) -> None:
        """Begin the policy with what was stored."""
        tell(self._supervisor, m.SessionBegan(session_id=self._core.session_id, session=self.actor_ref))
        heritage, self._core.heritage = self._core.heritage, None
        if heritage is not None:
            self._inherit(heritage)
            return
        self._recorder.opening()
        self._advance(self._core.beginning(self._now_s()))

    def _inherit(self, heritage: Heritage) -> None:
        """Go on where an actor that crashed was: with its tickets, and without its process."""
        left, self._state = heritage.left, heritage.state
        heritage.settle()
        self._tickets.open, self._tickets.requests, self._voice.sequence = left.tickets, left.requests, left.sequence
        self._voice.hears(left.calls)
        ticket = self._state.ticket
        self._receipt = receipt(ticket.nonce, ticket.attempt) if ticket is not None and ticket.attempt > 0 else None
        self._core.view = public_snapshot(self._state)
        self._asks.inherit()
        now_s = self._now_s()
        self._core.pulse.holds(now_s, hold=False)
        self._core.pulse.stepped(self._state, now_s)
        if self._state.waiting is not None and heritage.wait is not None:
            self._wait(attrs.evolve(heritage.wait, delay_s=max(0.0, heritage.wait_ends_s - now_s)))
        if ticket is not None and ticket.deadline_s is not None and self._state.phase is not Phase.RUNNING:
            self._set_deadline(c.SetDeadline(turn_id=ticket.turn_id, attempt=ticket.attempt, deadline_s=ticket.deadline_s))
        for ended in heritage.ends(now_s):
            self._advance(ended)
        for over in self._rollbacks.lost(self._state, self._core.rewinding, now_s):
            self._advance(over)
        if self._core.close_asked:
            self._advance(e.Close(now_s=now_s))
        if self._state.stopped and not self.is_over and not self._recorder.busy:
            self._stop_session()

    def handle(self, message: Any) -> None:  # noqa: C901, PLR0912, PLR0915 - one line a case
        """Turn each message into an input of the policy, or pass it on."""
        now_s = self._now_s()
        match message:
            case m.PrepareTurn():
                self._tickets.prepare(message)
            case m.Run():
                try:
                    self._run(message)
                finally:
                    message.seen()
            case m.TurnEvent():
                self._voice.emit(message.incarnation, message.turn_id, message.events)
            case m.CreditReturned() | m.Detach():
                self._hold_reading(hold=False)
            case m.Steer():
                self._steer(message)
            case m.Interrupt():
                self._interrupted(message.turn_id)
            case m.AskMessage():
                self._asks.handle(message)
            case m.CancelTurn():
                self._tickets.forget(message.turn_id)
                self._advance(e.Cancelled(now_s=now_s, turn_id=message.turn_id))
            case m.Listened():
                self._listened(message)
            case m.StartWaits():
                self._core.pulse.needs_slot(now_s, needs=True)
                self._voice.emit(message.incarnation, None, (Lifecycle("waiting", "start slot"),))
            case m.Admitted():
                self._admitted(message)
            case m.ConversationOpened():
                self._opened(message)
            case m.ConversationNamed():
                self._named(message)
            case m.OpenFailed():
                self._advance(
                    e.Failed(now_s=now_s, turn_id=None, incarnation=message.incarnation, error=message.error, killed=message.killed)
                )
            case m.TurnEnded():
                self._turn_ended(message)
            case m.TurnSwallowed():
                self._asks.end("withdrawn", turn_id=message.turn_id)
                self._advance(e.Swallowed(now_s=now_s, turn_id=message.turn_id, incarnation=message.incarnation))
            case m.Spent():
                self._recorder.booked(message.usage)
            case m.Down():
                self._down(message)
            case m.Stored():
                self._recorder.stored(message)
            case TimerFired():
                self._timer(message.token)
            case m.AdoptConversation():
                self._adopt(message)
            case m.RollBack():
                self._advance(self._rollbacks.asked(message, now_s))
            case m.RollbackEnded():
                ended = self._rollbacks.ended(message, now_s)
                if message.checkpoint is not None:  # told first: it may have been the last thing that the session's end waits for
                    self._voice.emit(0, None, (Lifecycle("rolled back", f"by {message.num_turns} turns"),))
                self._advance(ended)
                self._rolled_back(message)
            case m.ReleaseConversation():
                self._advance(e.Release(now_s=now_s))
                message.reply_to.settle(None)
            case m.ReleaseIfIdle():
                self._advance(e.Release(now_s=now_s))
            case m.Connect():
                self._connects.append(message.reply_to)
                self._advance(e.Connect(now_s=now_s, flags=message.flags))
            case m.CloseSession():
                self._asks.end("closed")
                self._advance(e.Close(now_s=now_s))
            case m.DrainSession():
                self._tickets.drain()
            case ActorDown():
                pass  # a conversation's end is told by its Down
            case _:
                logger.warning("session %s: unexpected %s", self._core.session_id, type(message).__name__)

    # --- the policy

    def _advance(self, event: e.SessionInput) -> None:
        """Feed one input. An input that arises while commands are performed waits until they all are."""
        self._inputs.append(event)
        if self._advancing:
            return
        self._advancing = True
        while self._inputs:
            event, before = self._inputs.popleft(), self._state
            self._state, commands = step(before, event)
            self._publish_view()
            self._core.pulse.stepped(self._state, event.now_s)
            if self._ledger is not None:
                self._recorder.record(*self._ledger.snapshot(before))
                self._recorder.record(*self._ledger.step(event, before, self._state, commands, self._tickets.prepares))
            self._voice.announce(of_step(event, before, self._state))
            for command in commands:
                log_command(self._core.log, self._core.session_id, command)
                if isinstance(command, SPEAKING):
                    self._voice.interrupted(command)
                    self._voice.announce(of_command(command, event, before, self._core.transport.profile))
                self._perform(command)
        self._advancing = False
        if self._connects and self._state.status is not SessionStatus.CONNECTING:
            self._answer_connects()

    def _answer_connects(self) -> None:
        connects, self._connects = self._connects, []
        for connect in connects:
            connect.settle(None)

    def _publish_view(self) -> None:
        view = public_snapshot(self._state)
        if view != self._core.view:
            self._core.view, self._core.changed_at_s = view, self.dispatcher.clock.wall()

    def _perform(self, command: c.Command) -> None:  # noqa: C901, PLR0912 - one line a case
        match command:
            case c.Grant():
                self._tickets.grant(command)
            case c.Refuse():
                self._tickets.refuse(command)
            case c.AdoptVerdict():
                self._adoptions.pop(command.request_id).settle(command.accepted)
            case c.BeginRollback() | c.RefuseRollback():
                self._rollbacks.answer(command)
            case c.Open():
                self._open(command)
            case c.Execute():
                self._execute(command)
            case c.InterruptAttempt():
                self._tell_conversation(command.incarnation, m.InterruptTurn(turn_id=command.turn_id))
            case c.Wait():
                self._wait(command)
            case c.CancelWait():
                self._cancel_wait(command.wait_id)
            case c.SetDeadline():
                self._set_deadline(command)
            case c.CloseConversation():
                self._end_conversation(command)
            case c.SaveCheckpoint():
                self._recorder.checkpoint(command.checkpoint)
            case c.ClearCheckpoint():
                self._recorder.checkpoint(None)
            case c.ReportDeath():
                self._voice.emit(command.incarnation, command.turn_id, (TransportDied(command.cause),))
            case c.ReportRestart():
                self._voice.emit(command.incarnation, command.turn_id, (TransportRestarted(command.incarnation),))
            case c.ReportStall():
                self._voice.emit(command.incarnation, command.turn_id, (Stalled(command.reason, command.quiet_s, command.action.value),))
            case c.Finish():
                self._recorder.spent(command.turn.result.usage)
                self._tickets.settle(command.turn.turn_id, lambda ticket: ticket.finish(command.turn))
            case c.Fail():
                self._recorder.spent(getattr(command.error, "usage", None))
                self._tickets.settle(command.turn_id, lambda ticket: ticket.fail(command.error))
            case c.Stop():
                self._stop_session()
            case c.Ignored():
                logger.debug("session %s: ignored: %s", self._core.session_id, command.reason)
            case _:
                assert_never(command)

    # --- turns

    def _run(self, message: m.Run) -> None:
        if message.turn_id not in self._tickets.open:
            message.ticket.fail(SessionStateError(f"turn {message.turn_id!r} is not the session's most recent ticket"))
            return
        prepared = self._tickets.requests[message.turn_id]
        self._voice.hears(prepared.sent.calls if prepared.sent is not None else ())
        if prepared.sent is not None:
            self._receipt = receipt(prepared.nonce, prepared.sent.attempt)
        self._advance(e.RunBegan(now_s=self._now_s(), turn_id=message.turn_id, flags=prepared.flags))

    def _interrupted(self, turn_id: str) -> None:
        self._hold_reading(hold=False)
        self._asks.end("interrupt", turn_id=turn_id)
        self._advance(e.Interrupted(now_s=self._now_s(), turn_id=turn_id))

    def _steer(self, message: m.Steer) -> None:
        view = self._core.view
        if self._conversation is None or view.turn_id is None or message.turn_id not in (None, view.turn_id):
            message.reply_to.fail(NoRunningTurnError("no turn is running"))
            return
        steer = m.SteerAttempt(turn_id=view.turn_id, text=message.text, steer_id=message.steer_id, reply_to=message.reply_to)
        self._in_turn(self._conversation[1], steer)

    def _adopt(self, message: m.AdoptConversation) -> None:
        self._adoptions[message.request_id] = message.reply_to
        self._advance(e.Adopt(now_s=self._now_s(), request_id=message.request_id, checkpoint=message.checkpoint))

    def _rolled_back(self, message: m.RollbackEnded) -> None:
        """Let the asker go once it is stored."""
        self._recorder.once_written(lambda _error: self._rollbacks.let_go(message))

    # --- conversations

    def _hold_reading(self, *, hold: bool) -> None:
        self._core.pulse.holds(self._now_s(), hold=hold)
        if self._conversation is not None:
            tell(self._conversation[1], m.HoldReading(hold=hold))

    def _open(self, command: c.Open) -> None:
        conversation_id = command.resume_id or command.proposed_id
        if conversation_id is not None:
            try:
                self._core.claim(conversation_id)
            except SessionStateError as error:
                self._advance(e.Failed(now_s=self._now_s(), turn_id=None, incarnation=command.incarnation, error=error))
                return
        flags = command.flags if isinstance(command.flags, Flags) else NO_FLAGS
        launch = LaunchSpec(
            spec=self._core.spec,
            flags=flags,
            incarnation=command.incarnation,
            mark=make_mark(host_id(), self._core.room_id, self._core.session_id, command.incarnation),
            resume_id=command.resume_id,
            proposed_id=command.proposed_id,
            previous_usage=command.previous_usage,
            after_death=command.after_death,
            cut_receipt=self._receipt if command.after_death else None,
            cut_calls=tuple(self._voice.calls) if command.after_death else (),
        )
        self._started.add(command.incarnation)
        tell(
            self._supervisor,
            m.StartConversation(
                session_id=self._core.session_id,
                session=self.actor_ref,
                dispatcher=self.dispatcher,
                launch=launch,
                transport=self._core.transport,
            ),
        )

    def _admitted(self, message: m.Admitted) -> None:
        self._conversation = (message.incarnation, message.conversation)
        self._slot_waits = {message.incarnation: message.slot_wait_s}
        self._core.pulse.needs_slot(self._now_s(), needs=False)
        if self._held_deadline is not None:
            token, self._held_deadline = ("deadline", *self._held_deadline), None
            self.dispatcher.call_later(message.slot_wait_s, self.actor_ref, TimerFired(token=token))
        ending = self._ending.get(message.incarnation)
        if ending is not None:
            self._end_conversation(ending)

    def _opened(self, message: m.ConversationOpened) -> None:
        self._advance(
            e.Opened(
                now_s=self._now_s(),
                incarnation=message.incarnation,
                conversation_id=message.conversation_id,
                slot_wait_s=self._slot_waits.pop(message.incarnation, 0.0),
            )
        )

    def _named(self, message: m.ConversationNamed) -> None:
        try:
            self._core.claim(message.conversation_id)
        except SessionStateError as error:
            # The provider itself joined a conversation that another session holds: nothing is lost, but it must be seen.
            self._degrade(str(error))
        self._advance(e.Named(now_s=self._now_s(), incarnation=message.incarnation, conversation_id=message.conversation_id))

    def _execute(self, command: c.Execute) -> None:
        prepared = self._tickets.requests.get(command.turn_id)
        if prepared is None:
            return
        attempt = Attempt(
            turn_id=command.turn_id,
            request=prepared.request,
            how=command.how,
            receipt=command.receipt,
            probe=command.probe,
            deadline_s=command.deadline_s,
            timeout_s=prepared.request.timeout,
        )
        self._receipt = command.receipt
        self._stall_watch.begin(self._state.settings.stall)
        if self._ledger is None:
            prepared.ticket.sent = True
            self._tell_conversation(command.incarnation, m.RunAttempt(attempt=attempt))
        else:
            self._recorder.once_recorded(lambda error: self._send(command, prepared.ticket, attempt, error))

    def _send(self, command: c.Execute, ticket: TicketCore, attempt: Attempt, error: BaseException | None) -> None:
        """The attempt is on record as sent: let it go. Or it is not, and then nothing of it is."""
        if error is None:
            if command.incarnation not in self._ending:
                ticket.sent = True
                self._tell_now(command.incarnation, m.RunAttempt(attempt=attempt))
            return
        if self._tickets.over:
            return
        refused = unavailable(f"turn {command.turn_id!r} was not sent", error)
        failed = e.Failed(
            now_s=self._now_s(),
            turn_id=command.turn_id,
            incarnation=command.incarnation,
            error=refused,
            keeps_conversation=True,
            sent=False,
        )
        self._advance(failed)

    def _tell_conversation(self, incarnation: int, message: Message) -> None:
        """Tell the live conversation, behind an attempt that still waits for the journal: what is meant for it must not overtake it."""
        self._recorder.behind(lambda: self._tell_now(incarnation, message))

    def _tell_now(self, incarnation: int, message: Message) -> None:
        """A message for a conversation that has just ended is moot: its Down is on the way."""
        if self._conversation is not None and self._conversation[0] == incarnation:
            tell(self._conversation[1], message)

    def _in_turn(self, conversation: Ref, message: Message) -> None:
        """The same for a message that somebody waits for: a conversation that has ended answers it."""
        self._recorder.behind(lambda: _tell(conversation, message))

    def _end_conversation(self, command: c.CloseConversation) -> None:
        self._ending[command.incarnation] = command
        if self._conversation is not None and self._conversation[0] == command.incarnation:
            tell(self._conversation[1], m.EndConversation(kill=command.kill, reason=command.reason, hung=command.hung))
        elif command.incarnation in self._started:
            tell(self._supervisor, m.WithdrawStart(session_id=self._core.session_id, incarnation=command.incarnation))

    def _turn_ended(self, message: m.TurnEnded) -> None:
        self._asks.end("withdrawn", turn_id=message.turn_id)
        now_s = self._now_s()
        if message.error is not None:
            self._advance(
                e.Failed(
                    now_s=now_s,
                    turn_id=message.turn_id,
                    incarnation=message.incarnation,
                    error=message.error,
                    usage=message.usage,
                    cumulative=message.cumulative,
                    duration_ms=message.duration_ms,
                    nudgeable=message.nudgeable,
                    sent=message.sent,
                    keeps_conversation=message.keeps_conversation,
                    killed=message.forced,
                )
            )
        elif message.result is not None:
            self._advance(
                e.Succeeded(
                    now_s=now_s,
                    turn_id=message.turn_id,
                    incarnation=message.incarnation,
                    result=message.result,
                    cumulative=message.cumulative,
                    forced=message.forced,
                )
            )

    def _down(self, message: m.Down) -> None:
        self._asks.end("died", incarnation=message.incarnation)
        self._started.discard(message.incarnation)
        self._ending.pop(message.incarnation, None)
        if self._conversation is not None and self._conversation[0] == message.incarnation:
            self._conversation = None
        self._advance(
            e.Died(
                now_s=self._now_s(),
                incarnation=message.incarnation,
                error=message.error,
                expected=message.expected,
                sent=message.sent,
                refused=message.refused,
                evicted=message.evicted,
                usage=message.usage,
                duration_ms=message.duration_ms,
            )
        )

    # --- time

    def _wait(self, command: c.Wait) -> None:
        self._core.pulse.waits(self._state, command, self._now_s())
        self._voice.emit(0, command.turn_id, (Lifecycle("waiting", f"{command.reason.value}: {round(command.delay_s, 2):g} s"),))
        timer = TimerFired(token=("wait", command.wait_id))
        self._waits[command.wait_id] = self.dispatcher.call_later(command.delay_s, self.actor_ref, timer, is_wait=True)

    def _cancel_wait(self, wait_id: int) -> None:
        timer = self._waits.pop(wait_id, None)
        if timer is not None:
            timer.cancel()

    def _set_deadline(self, command: c.SetDeadline) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        delay_s = max(0.0, command.deadline_s - self._now_s())
        token = ("deadline", command.turn_id, command.attempt)
        self._deadline_timer = self.dispatcher.call_later(delay_s, self.actor_ref, TimerFired(token=token))

    def _deadline_passed(self, turn_id: str, attempt: int) -> None:
        """The wait for a start slot does not count: while it lasts, the deadline is held, and put off by as much."""
        if self._started and self._conversation is None:
            self._held_deadline = (turn_id, attempt)
            return
        self._advance(e.DeadlinePassed(now_s=self._now_s(), turn_id=turn_id, attempt=attempt))

    def _listened(self, message: m.Listened) -> None:
        silence = self._stall_watch.listened(self._state, message.incarnation)
        if silence is not None:
            self._advance(silence)

    def _timer(self, token: Any) -> None:
        match token:
            case ("stall",):
                self._stall_watch.fired(self._state)
            case ("wait", wait_id):
                self._waits.pop(wait_id, None)
                self._advance(e.WaitDone(now_s=self._now_s(), wait_id=wait_id))
            case ("deadline", turn_id, attempt):
                self._deadline_passed(turn_id, attempt)
            case ("listener", turn_id):
                self._voice.look_after_listener(turn_id)
            case ("ask", request_id):
                self._asks.deadline_passed(request_id)
            case ("store", sequence):
                self._recorder.lose_patience(sequence)
            case _:
                logger.warning("session %s: unexpected timer %r", self._core.session_id, token)

    def _degrade(self, detail: str) -> None:
        self._voice.degraded(detail)

    # --- the end

    def _stop_session(self) -> None:
        """The end of a session waits for the record of its last outcome; a checkpoint store is not waited for."""
        if self._ledger is None:
            self._recorder.drain()
            self._retire()
        else:
            self._recorder.record(r.SessionClosed(session_id=self._core.session_id, removed=self._core.removed))
            self._recorder.once_written(lambda _error: self._retire())

    def _retire(self) -> None:
        tell(self._supervisor, m.RetireSession(session_id=self._core.session_id, closed=self._core.closed))
        self.finish()

    def on_down(self, error: BaseException | None) -> None:
        """Settle whatever is open. In order nothing is; after a crash nobody may wait for ever."""
        try:
            self._go_down(error)
        finally:
            self._answer_connects()  # last: whoever is let go reads what became of the session

    def _go_down(self, error: BaseException | None) -> None:
        self._tickets.over = True
        crashed: BaseException = (
            SessionStateError("the session is closed") if error is None else SessionCrashedError(self._core.session_id, repr(error))
        )
        heir = self._core.start is not None and isinstance(crashed, SessionCrashedError) and not self._state.stopped
        left = self._left(crashed) if isinstance(crashed, SessionCrashedError) else None
        if not heir:
            self._tickets.fail_all(crashed, self._adoptions)
        self._rollbacks.fail(crashed)
        self._asks.give_up(heir=heir)
        if self._tickets.unsettled:
            self._core.degraded = "an outcome was given out before it was known to be on record: the session's actor ended"
        self._recorder.end(crashed)
        for timer in self._waits.values():
            timer.cancel()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._stall_watch.end()
        if error is not None:
            self._log_crash(error)
            for incarnation in self._started:
                tell(self._supervisor, m.WithdrawStart(session_id=self._core.session_id, incarnation=incarnation))
            if heir:
                tell(self._supervisor, m.SessionCrashed(session_id=self._core.session_id, core=self._core, left=left))
            else:
                self._core.pulse.ends()
                self._core.view = attrs.evolve(self._core.view, closed=True, stopped=True, status=SessionStatus.CLOSED)
                self._voice.announce(CRASHED)
                tell(self._supervisor, m.RetireSession(session_id=self._core.session_id, closed=self._core.closed))
            # Last, since it rests on state that the crash may have left half set; the supervisor knows the conversation as well.
            if self._conversation is not None:
                tell(self._conversation[1], m.EndConversation(kill=True, reason="its session crashed"))

    def _left(self, crashed: SessionCrashedError) -> Left:
        return Left(
            error=crashed,
            tickets=dict(self._tickets.open),
            requests=dict(self._tickets.requests),
            prepares=dict(self._tickets.prepares),
            adoptions=dict(self._adoptions),
            calls=tuple(self._voice.calls),
            sequence=self._voice.sequence,
        )

    def _log_crash(self, error: BaseException) -> None:
        """The report: the message in hand and the traceback are in the actor's own line, this is the state."""
        state = self._state
        turn = f"turn {state.ticket.turn_id!r}, attempt {state.ticket.attempt}" if state.ticket is not None else "no turn"
        logger.error("session %s crashed in phase %s, %s: %r", self._core.session_id, state.phase.value, turn, error)


def _tell(ref: Ref, message: Message) -> None:
    tell(ref, message)
