"""Processes that carry many conversations: the actor that owns one (`LinkActor`), and the actor of each conversation in it (`GuestActor`).

Runs on the loop thread. A link's death is the death of all its guests at once: each tells its session, which recovers by its own policy;
the first restart makes a new link, and the others join it. A caller that is slow never holds the link's pipe back, since others share it:
beyond a bound its events are dropped and counted. A guest that ignores an interrupt is parted with at once, and its link retires: it takes
no new guests, puts each one out as soon as no turn of its runs (it opens again elsewhere), and ends with the last. When a link that
nobody uses ends, the supervisor decides: it alone knows who is on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.dispatcher import Dispatcher, LoopFailed, PipeReady, TimerFired
from greenroom.actors.process_owner import Launched, LaunchFailed, ProcessOwner, crash_reason
from greenroom.actors.runtime import LoopActor, Message, tell
from greenroom.actors.teller import Teller
from greenroom.errors import GreenroomError, NoRunningTurnError, TransportDiedError
from greenroom.events import AgentEvent, RunFinished, RunStarted
from greenroom.model import ProviderUsage
from greenroom.transports.base import (
    Addressed,
    Attempt,
    AttemptEnded,
    AttemptSwallowed,
    Kill,
    LaunchSpec,
    Output,
    Ready,
    StartFailed,
    Urgent,
)
from greenroom.transports.driver import Ended
from greenroom.transports.process import check_directory

logger = logging.getLogger("greenroom.link")

LEAVE_GRACE_S = 5.0

Ref = pykka.ActorRef[Any]


# --- to a link -----------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Attach(Message):
    """Open (or resume) a conversation in the link. `key` is the guest's name in it."""

    key: str
    launch: LaunchSpec
    guest: Ref

    def refuse(self) -> None:
        """The link is gone: so is the guest."""
        tell(self.guest, LinkLost(error=TransportDiedError(reason="its shared process ended"), expected=False))


@attrs.frozen(kw_only=True)
class Detach(Message):
    """The guest leaves."""

    key: str


@attrs.frozen(kw_only=True)
class GuestRun(Message):
    """Run an attempt of the guest."""

    key: str
    attempt: Attempt


@attrs.frozen(kw_only=True)
class GuestSteer(Message):
    """Send text into the guest's turn."""

    key: str
    text: str
    steer_id: str
    reply_to: Cell[None]

    def refuse(self) -> None:
        """Answer that no turn runs."""
        self.reply_to.fail(NoRunningTurnError("no turn is running"))


@attrs.frozen(kw_only=True)
class GuestAnswer(Message):
    """Answer what the guest's conversation asked."""

    key: str
    request: m.AnswerRequest

    def refuse(self) -> None:
        """The link is gone."""
        self.request.refuse()


@attrs.frozen(kw_only=True)
class GuestInterrupt(Message):
    """End the guest's attempt. Ordinary: it must not overtake the GuestRun that it means."""

    key: str


@attrs.frozen(kw_only=True)
class GuestListens(Message):
    """Read what the process has said, and answer LinkListened behind it."""

    key: str


@attrs.frozen(kw_only=True)
class GuestHangs(Message):
    """The guest's turn has gone silent and is to be taken up elsewhere."""

    key: str
    reason: str


@attrs.frozen(kw_only=True)
class EndLink(Message):
    """End the process, by the ladder or at once."""

    kill: bool
    reason: str
    control = True


# --- to a guest ----------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class LinkOutputs(Message):
    """What the codec gave for the guest, in order."""

    outputs: tuple[Output, ...]


@attrs.frozen(kw_only=True)
class LinkListened(Message):
    """What the process had said has been handed on."""


@attrs.frozen(kw_only=True)
class LinkLost(Message):
    """The guest has no process any more. `failed`: its start was refused by an answer. `evicted`: nothing was wrong with it; it moves."""

    error: TransportDiedError
    expected: bool
    evicted: bool = False
    refused: bool = False
    sent: bool = False
    usage: ProviderUsage | None = None
    failed: GreenroomError | None = None


# --- to itself ------------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class GuestPrepared(Message):
    """A guest's directory was looked at (a server takes any, also one that does not exist), and the provider's records of its conversation.

    On the starter thread.
    """

    key: str
    launch: LaunchSpec
    error: GreenroomError | None = None


class LinkActor(ProcessOwner):
    """Owner of one shared process."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        link_id: str,
        mark: str,
        supervisor: Ref,
        job: Callable[[], Message],
        prepare: Callable[[LaunchSpec], LaunchSpec],
    ) -> None:
        super().__init__(dispatcher, supervisor=supervisor, job=job)
        self._prepare = prepare
        self._link_id = link_id
        self._mark = mark
        self._argv: tuple[str, ...] = ()
        self._guests: dict[str, Ref] = {}
        self._unprepared: set[str] = set()
        self._waiting: dict[str, LaunchSpec] = {}
        self._running: set[str] = set()
        self._ending: EndLink | None = None
        self._retiring = False
        self._clearing = False
        self._ready = False

    def handle(self, message: Any) -> None:  # noqa: C901, PLR0912 - one line a case
        """Pass each message to the driver, and on what follows."""
        match message:
            case PipeReady() | TimerFired() | LoopFailed():
                self._serve(message)
            case Attach():
                self._attach(message)
            case GuestPrepared():
                self._prepared(message)
            case Detach():
                self._detach(message.key)
            case GuestRun():
                self._run(message)
            case GuestSteer():
                self._steer(message)
            case GuestAnswer():
                self._answer(message)
            case GuestInterrupt():
                self._do(lambda codec, now_s: codec.interrupt(message.key, now_s))
            case GuestListens():
                self._listen(message.key)
            case GuestHangs():
                self._hangs(message.key, message.reason)
            case EndLink():
                self._end(message)
            case Launched():
                self._launched(message)
            case LaunchFailed():
                self._launch_failed(message.error)
            case _:
                logger.warning("link %s: unexpected %s", self._link_id, type(message).__name__)

    # --- start

    def _launched(self, message: Launched) -> None:
        self._argv = message.launch.argv
        driver, now_s = self._take_over(message), self._now_s()
        outputs = driver.begin(now_s)
        for key, launch in self._waiting.items():
            outputs += driver.follow(driver.codec.attach(key, launch, now_s), now_s)
        self._waiting.clear()
        if self._ending is not None:
            outputs += driver.shutdown(now_s, kill=self._ending.kill, reason=self._ending.reason)
        self._follow(outputs)

    def _launch_failed(self, error: GreenroomError) -> None:
        never = TransportDiedError(reason="it was never started")
        self._lose_all(lambda _: LinkLost(error=never, expected=True, failed=error))
        tell(self._supervisor, m.LinkGone(link_id=self._link_id, mark=None))
        self.finish()

    # --- guests

    def _attach(self, message: Attach) -> None:
        self._guests[message.key] = message.guest
        if self._retiring:
            self._evict(message.key)
            return
        self._unprepared.add(message.key)
        self.dispatcher.offload(_prepare_job(message.key, message.launch, self._prepare), self.actor_ref)

    def _prepared(self, message: GuestPrepared) -> None:
        key, launch = message.key, message.launch
        if key not in self._unprepared:
            return  # it has left, or been put out
        self._unprepared.discard(key)
        if message.error is not None:
            refused = TransportDiedError(reason="it could not be prepared")
            self._part(key, LinkLost(error=refused, expected=True, failed=message.error))
        elif self._driver is None:
            self._waiting[key] = launch
        else:
            self._do(lambda codec, now_s: codec.attach(key, launch, now_s))

    def _part(self, key: str, lost: LinkLost) -> None:
        """Tell the guest that it is none any more, and give its conversation up."""
        guest = self._guests.get(key)
        if guest is not None:
            tell(guest, lost)
            self._detach(key)

    def _evict(self, key: str) -> None:
        gone = TransportDiedError(reason="its shared process is being ended")
        self._part(key, LinkLost(error=gone, expected=True, evicted=True))

    def _detach(self, key: str) -> None:
        if self._guests.pop(key, None) is None:
            return
        self._unprepared.discard(key)
        self._waiting.pop(key, None)
        self._running.discard(key)
        if self._ending is None:
            # A process that ends lets go of every conversation by itself.
            self._do(lambda codec, now_s: codec.detach(key, now_s))
        self._end_if_empty()

    def _run(self, message: GuestRun) -> None:
        if message.key in self._guests:
            self._running.add(message.key)
            self._do(lambda codec, now_s: codec.start_turn(message.key, message.attempt, now_s))

    def _steer(self, message: GuestSteer) -> None:
        driver = self._driver
        outputs = None
        if driver is not None and not driver.closing and message.key in self._running:
            outputs = driver.codec.steer(message.key, message.text, message.steer_id, self._now_s())
        if driver is None or outputs is None:
            message.reply_to.fail(NoRunningTurnError("no turn is running that could take the text; nothing was sent"))
            return
        message.reply_to.settle(None)
        self._follow(driver.follow(outputs, self._now_s()))

    def _answer(self, message: GuestAnswer) -> None:
        driver, request, now_s = self._driver, message.request, self._now_s()
        outputs = None
        if driver is not None and not driver.ended and message.key in self._guests:
            outputs = driver.codec.answer(message.key, request.wire_id, request.answer, now_s)
        request.told(taken=outputs is not None)
        if driver is not None and outputs is not None:
            self._follow(driver.follow(outputs, now_s))

    def _do(self, ask: Callable[[Any, float], list[Output]]) -> None:
        """Ask something of the codec, and follow up."""
        driver = self._driver
        if driver is not None and not driver.ended:
            now_s = self._now_s()
            self._follow(driver.follow(ask(driver.codec, now_s), now_s))

    # --- what follows

    def follow(self, outputs: list[Output]) -> None:
        """Hand each guest its outputs, and see to what concerns the process."""
        parcels: dict[str, list[Output]] = {}
        for output in outputs:
            if isinstance(output, Addressed):
                self._address(output, parcels)
            else:
                self._deliver(parcels)
                self._own(output)
        self._deliver(parcels)
        self._clear_out()

    def _address(self, addressed: Addressed, parcels: dict[str, list[Output]]) -> None:
        key, output = addressed.key, addressed.output
        if isinstance(output, (AttemptEnded, AttemptSwallowed)):
            self._running.discard(key)
        if isinstance(output, Kill):
            self._deliver(parcels)
            self._quarantine(key, output.reason)
        else:
            parcels.setdefault(key, []).append(output)

    def _deliver(self, parcels: dict[str, list[Output]]) -> None:
        for key, outputs in parcels.items():
            guest = self._guests.get(key)
            if guest is not None:
                tell(guest, LinkOutputs(outputs=tuple(outputs)))
        parcels.clear()

    def _own(self, output: Output) -> None:
        match output:
            case RunStarted() | RunFinished():
                for guest in self._guests.values():
                    tell(guest, LinkOutputs(outputs=(output,)))
            case Ready():
                self._ready = True
                tell(self._supervisor, m.LinkReady(link_id=self._link_id))
            case StartFailed():
                refused = TransportDiedError(reason="its shared process could not be used")
                self._lose_all(lambda _: LinkLost(error=refused, expected=True, failed=output.error))
            case Ended():
                self._ended(output)
            case AgentEvent():
                logger.debug("link %s: %s", self._link_id, output)
            case _:
                logger.warning("link %s: unknown signal %s", self._link_id, type(output).__name__)

    def _quarantine(self, key: str, reason: str) -> None:
        """The guest cannot be used any more, but others run here: it goes, and the process once they are done."""
        self._running.discard(key)
        self._retire()
        codec = self._driver.codec if self._driver is not None else None
        sent = codec is not None and codec.sent_by(key)
        usage = codec.consumed_by(key) if codec is not None else None
        self._part(key, LinkLost(error=TransportDiedError(reason=reason, usage=usage), expected=True, sent=sent, usage=usage))

    def _listen(self, key: str) -> None:
        if self._read_on() and key in self._guests:
            tell(self._guests[key], LinkListened())

    def _hangs(self, key: str, reason: str) -> None:
        """A turn has gone silent: the process is not trusted any more. Nobody else's is cut for it."""
        if key not in self._guests:
            return
        if len(self._guests) == 1:
            self._end(EndLink(kill=True, reason=reason))
        else:
            self._quarantine(key, reason)

    def _retire(self) -> None:
        if not self._retiring:
            self._retiring = True
            tell(self._supervisor, m.LinkRetired(link_id=self._link_id))

    def _clear_out(self) -> None:
        """Of a process that is to end, whoever runs no turn moves out: to the end of the others' turns nobody begins another."""
        if not self._retiring or self._ending is not None or self._clearing:
            return
        self._clearing = True
        for key in [key for key in self._guests if key not in self._running]:
            self._evict(key)
        self._clearing = False

    # --- end

    def _end_if_empty(self) -> None:
        if self._retiring and not self._guests and self._ending is None:
            self._end(EndLink(kill=False, reason="it is retired"))

    def _end(self, message: EndLink) -> None:
        self._retire()
        self._ending = message
        if self._driver is not None and not self._driver.ended:
            self._follow(self._driver.shutdown(self._now_s(), kill=message.kill, reason=message.reason))

    def _ended(self, ended: Ended) -> None:
        driver = self._driver
        codec = driver.codec if driver is not None else None

        def lost(key: str) -> LinkLost:
            usage = codec.consumed_by(key) if codec is not None else None
            return LinkLost(
                error=attrs.evolve(ended, usage=usage).as_error(self._argv),
                expected=ended.expected,
                refused=ended.refused,
                sent=codec is not None and codec.sent_by(key),
                usage=usage,
            )

        self._lose_all(lost)
        tell(self._supervisor, m.LinkGone(link_id=self._link_id, mark=self._mark))
        self._let_go()
        self.finish()

    def _lose_all(self, lost: Callable[[str], LinkLost]) -> None:
        guests, self._guests = self._guests, {}
        for key, guest in guests.items():
            tell(guest, lost(key))
        self._running.clear()
        self._unprepared.clear()
        self._waiting.clear()
        self._retire()

    def on_down(self, error: BaseException | None) -> None:
        """Leave nothing: a crash of ours ends the process, and every guest learns of it like of any other death."""
        running, had_process = set(self._running), self._driver is not None
        self._abandon()
        if error is None:
            return
        died = TransportDiedError(self._argv, reason=crash_reason(error))
        self._lose_all(lambda key: LinkLost(error=died, expected=False, sent=key in running))
        tell(self._supervisor, m.LinkGone(link_id=self._link_id, mark=self._mark if had_process else None))


def _prepare_job(key: str, launch: LaunchSpec, prepare: Callable[[LaunchSpec], LaunchSpec]) -> Callable[[], Message]:
    """Return the job that looks for what a guest needs, on the starter thread."""

    def job() -> Message:
        try:
            check_directory(launch.spec.cwd)
            return GuestPrepared(key=key, launch=prepare(launch))
        except GreenroomError as error:
            return GuestPrepared(key=key, launch=launch, error=error)
        except Exception as error:  # noqa: BLE001 - a transport's code: whatever it raises answers the start
            failure = GreenroomError(f"the conversation could not be prepared: {error!r}")
            failure.__cause__ = error
            return GuestPrepared(key=key, launch=launch, error=failure)

    return job


class GuestActor(LoopActor):
    """The actor of one conversation in a shared process."""

    dispatcher: Dispatcher

    def __init__(self, dispatcher: Dispatcher, *, session_id: str, session: Ref, supervisor: Ref, link: Ref, spec: LaunchSpec) -> None:
        super().__init__(dispatcher)
        self._spec = spec
        self._link = link
        self._key = f"{session_id}/{spec.incarnation}"
        self._teller = Teller(session_id=session_id, session=session, supervisor=supervisor, incarnation=spec.incarnation)
        self._leaving = False

    def on_start(self) -> None:
        """Ask the link in."""
        tell(self._link, Attach(key=self._key, launch=self._spec, guest=self.actor_ref))

    def handle(self, message: Any) -> None:  # noqa: C901, PLR0912 - one line a case
        """Pass each message on: to the link, or from it."""
        match message:
            case LinkOutputs():
                self._outputs(message)
            case LinkListened():
                self._teller.listened()
            case LinkLost():
                self._lost(message)
            case m.RunAttempt():
                self._run(message)
            case m.SteerAttempt():
                self._steer(message)
            case m.AnswerRequest():
                tell(self._link, GuestAnswer(key=self._key, request=message))
            case m.InterruptTurn():
                if message.turn_id == self._teller.turn_id:
                    tell(self._link, GuestInterrupt(key=self._key))
            case m.Listen():
                tell(self._link, GuestListens(key=self._key))
            case m.HoldReading():
                pass  # the pipe is everybody's
            case m.EndConversation():
                self._end(message)
            case TimerFired():
                self._leave()
            case _:
                logger.warning("guest of %s: unexpected %s", self._teller.session_id, type(message).__name__)

    def _run(self, message: m.RunAttempt) -> None:
        if self._leaving:
            return  # its Down is on the way
        self._teller.begin(message.attempt, self.dispatcher.monotonic())
        tell(self._link, GuestRun(key=self._key, attempt=message.attempt))

    def _steer(self, message: m.SteerAttempt) -> None:
        if self._leaving or message.turn_id != self._teller.turn_id:
            message.refuse()
            return
        tell(self._link, GuestSteer(key=self._key, text=message.text, steer_id=message.steer_id, reply_to=message.reply_to))

    def _outputs(self, message: LinkOutputs) -> None:
        for signal in self._teller.outputs(list(message.outputs)):
            if not isinstance(signal, Urgent):
                logger.warning("guest of %s: unknown signal %s", self._teller.session_id, type(signal).__name__)
        if any(isinstance(output, StartFailed) for output in message.outputs) or (self._leaving and self._teller.turn_id is None):
            self._leave()

    def _end(self, message: m.EndConversation) -> None:
        """Leave, after the running turn has had a moment to end in order."""
        self._teller.ending = self._leaving = True
        if message.hung and self._teller.turn_id is not None:
            tell(self._link, GuestHangs(key=self._key, reason=message.reason))
            return
        if message.kill or self._teller.turn_id is None:
            self._leave()
            return
        tell(self._link, GuestInterrupt(key=self._key))
        self.dispatcher.call_later(LEAVE_GRACE_S, self.actor_ref, TimerFired(token=None))

    def _leave(self) -> None:
        tell(self._link, Detach(key=self._key))
        left = TransportDiedError(reason="it left its shared process")
        self._teller.down(left, now_s=self.dispatcher.monotonic(), mark=self._spec.mark, expected=True)
        self.finish()

    def _lost(self, message: LinkLost) -> None:
        if message.failed is not None:
            self._teller.start_failed(m.OpenFailed(incarnation=self._spec.incarnation, error=message.failed, killed=False))
        self._teller.down(
            message.error,
            now_s=self.dispatcher.monotonic(),
            mark=self._spec.mark,
            expected=message.expected or self._leaving,
            evicted=message.evicted and not self._leaving,
            refused=message.refused,
            sent=message.sent,
            usage=message.usage,
        )
        self.finish()

    def on_down(self, error: BaseException | None) -> None:
        """A crash of ours is a death of the conversation; the process goes on for the others."""
        if error is None:
            return
        tell(self._link, Detach(key=self._key))
        died = TransportDiedError(reason=crash_reason(error))
        sent = self._teller.turn_id is not None
        self._teller.down(died, now_s=self.dispatcher.monotonic(), mark=self._spec.mark, sent=sent)
