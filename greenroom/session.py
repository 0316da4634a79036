"""The handle of a session: run, steer, interrupt, answer, close. Thin and thread-safe: it marks, posts a message, and waits for a cell.

No method may be called from the loop thread, which runs no code of users. Blocking calls name what they wait for; `interrupt` never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from greenroom import conversations
from greenroom.actors import messages as m
from greenroom.actors.asks import answer_ask
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS
from greenroom.actors.core import NO_FLAGS, SessionCore
from greenroom.actors.letterbox import Letterbox
from greenroom.actors.runtime import tell
from greenroom.actors.ticket import Batch, Sink, TicketCore, TicketState
from greenroom.asks import Answer, Pending
from greenroom.attachments import load
from greenroom.clock import Clock
from greenroom.errors import NoRunningTurnError, ProviderCapabilityError, SessionStateError, TurnCancelledError
from greenroom.events import EventCallback, EventHandler, SessionEventCallback, SessionEventHandler
from greenroom.history import Thread
from greenroom.ids import IdAllocator, new_nonce
from greenroom.listening import as_callback, listen
from greenroom.liveness import Liveness
from greenroom.model import Checkpoint, ProviderUsage, Turn, TurnRequest
from greenroom.preparing import Preparing, TurnTicket
from greenroom.streams import TurnStream, waker
from greenroom.transports.base import StreamTransport

if TYPE_CHECKING:
    from greenroom.room import Greenroom


class Session:
    """One logical conversation across failures. Every method may be called from any thread."""

    def __init__(self, core: SessionCore, room: Greenroom, *, clock: Clock, ids: IdAllocator, alike: Callable[..., Session]) -> None:
        self._core = core
        self._alike = alike
        self._room = room
        self._clock = clock
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._current: TicketCore | None = None
        self._closed = False
        self._preparing = Preparing(core, room, clock=clock, ids=ids)
        if core.resumes is not None:
            core.claim(core.resumes)
        try:
            room._begin(core, self, clock, guarded=isinstance(core.transport, StreamTransport))
        except BaseException:
            CLAIMS.drop(core.closed)
            raise

    # --- what it is

    @property
    def _ref(self) -> Any:
        # Asked for each time: an actor that crashed may have a successor.
        return self._core.ref

    @property
    def id(self) -> str:
        """The session's own id."""
        return self._core.session_id

    @property
    def cwd(self) -> Path:
        """The directory that it works in."""
        return self._core.spec.cwd

    @property
    def conversation_id(self) -> str | None:
        """Where the next turn continues; None when it will start cold."""
        return self._core.view.conversation_id

    @property
    def last_turn_conversation_id(self) -> str | None:
        """Where the last turn ran; kept over a reset."""
        return self._core.view.last_turn_conversation_id

    @property
    def state(self) -> str:
        """Where it stands: idle, prepared, opening, running, waiting, rewinding or closed."""
        return self._core.view.phase.value

    @property
    def liveness(self) -> Liveness:
        """Why it is quiet, and for how long: the model or a tool is at work, or what it waits for. Never waits itself."""
        return self._core.liveness

    @property
    def spent(self) -> ProviderUsage | None:
        """What its tickets have consumed in all; None before the first ended."""
        return self._core.spent

    @property
    def spent_unprompted(self) -> ProviderUsage | None:
        """What turns that the provider started by itself have consumed."""
        return self._core.booked

    @property
    def degraded(self) -> str | None:
        """What last failed beside the work (a checkpoint that could not be stored), or None."""
        return self._core.degraded

    @property
    def closed(self) -> bool:
        """Whether it takes no more turns."""
        return self._closed or self._core.view.closed

    # --- turns

    def prepare_turn(
        self, request: TurnRequest, *, key: str | None = None, expect_conversation: str | None = None, pin: bool = False
    ) -> TurnTicket:
        """Reserve a turn and name it; the provider is not asked. An earlier ticket that has not run is superseded.

        `key` is the caller's own name for the work: under the same key the same request is the same turn, also after a restart of the
        program in a room with a `state_dir`. One that has ended is not run again: `run` gives its outcome. One that was sent and not
        seen to end is taken up where it was cut.

        Raises ContinuityError when the session does not hold `expect_conversation`, ProviderCapabilityError for what the provider
        cannot do, AttachmentError for a file that cannot be shown to the model,
        SessionStateError while a turn runs, after close, and for a key that belongs to another request;
        StoreUnavailableError when it cannot be recorded, JournalError for a request that can never be.
        """
        self._check()
        if not isinstance(request, TurnRequest):
            raise TypeError(f"request must be a TurnRequest, got {type(request).__name__}")
        return self._preparing.prepare(load(request), key, expect_conversation=expect_conversation, pin=pin)

    def run(self, ticket: TurnTicket, *, on_event: EventCallback | EventHandler | None = None, wait: float | None = None) -> Turn:
        """Run the ticket and return its outcome. Blocks; `wait` is in seconds.

        `on_event` is called on this thread with the bare events of the turn (AgentEvent); a slow one slows only its own session.

        Raises the turn's error; SessionStateError for a ticket that ran, was superseded or belongs to another session;
        TurnCancelledError; WaitTimeoutError after `wait` seconds. After that, after Ctrl-C and after an exception of `on_event` the
        turn goes on, and `ticket.wait` gives its outcome.
        """
        if on_event is None:
            self._start(ticket, None)
            return ticket.wait(wait)
        inbox: Letterbox[Batch | None] = Letterbox()
        with contextlib.closing(inbox):
            sink = Sink(inbox.put, self._credit(ticket))
            self._start(ticket, sink)
            try:
                listen(inbox, sink, as_callback(on_event), turn_id=ticket.turn_id, wait_s=wait, clock=self._clock)
            except BaseException:
                self._detach(ticket, sink)
                raise
        return ticket.wait()

    async def arun(self, ticket: TurnTicket, *, on_event: SessionEventCallback | SessionEventHandler | None = None) -> Turn:
        """Run the ticket from asyncio. Cancelling only detaches: the turn goes on.

        `on_event` is called in the running loop, with what `stream` yields: events in their envelopes (SessionEvent). Raises as `run`.
        """
        callback = None if on_event is None else as_callback(on_event)
        stream = TurnStream(self, ticket, silent=callback is None)
        try:
            if callback is not None:
                async for event in stream:
                    callback(event)
            return await stream.turn()
        finally:
            stream.detach()

    def stream(self, ticket: TurnTicket) -> TurnStream:
        """Begin the ticket and return its events as an asynchronous iterator, in the running loop.

        It ends by returning when the turn ended well, else by raising its error; `await stream.turn()` gives the Turn.
        """
        return TurnStream(self, ticket)

    def steer(self, text: str) -> None:
        """Send `text` into the running turn. Returns once it is accepted for it; what became of it is told as an event.

        Raises ProviderCapabilityError when the provider cannot take text in mid-turn, NoRunningTurnError when there is no turn that
        can: nothing is queued, nothing is sent later. ValueError for a text of blanks only, TypeError for what is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        if not text.strip():
            raise ValueError("text is empty: nothing of it would reach the model")
        if not self._core.transport.profile.supports_steer:
            raise ProviderCapabilityError("it takes no text in mid-turn", provider=self._core.transport.profile.name)
        self._room._check_process()
        current = self._current
        if current is None or current.state is not TicketState.BEGUN or current.cell.settled:
            raise NoRunningTurnError("no turn is running")
        reply: Cell[None] = Cell()
        tell(self._ref, m.Steer(turn_id=current.turn_id, text=text, steer_id=new_nonce(), reply_to=reply))
        reply.wait(None, self._clock)
        reply.get()

    def interrupt(self, ticket: TurnTicket | None = None) -> None:
        """End the running turn, or the one that `ticket` names; a prepared one is cancelled. Never waits; harmless when nothing fits."""
        core = self._current if ticket is None else _core_of(ticket)
        if core is None or not self._owns(core):
            return
        if ticket is not None and core.cancel(TurnCancelledError(core.turn_id)):
            tell(self._ref, m.CancelTurn(turn_id=core.turn_id))
        elif core.state is TicketState.BEGUN and not core.cell.settled:
            tell(self._ref, m.Interrupt(turn_id=core.turn_id))

    # --- what waits for a person

    def pending(self) -> tuple[Pending, ...]:
        """The requests of the agent that wait for an answer, oldest first."""
        return self._core.book.pending(self.id)

    def answer(self, request_id: str, answer: Answer) -> bool:
        """Answer a request; return whether the answer reached the agent: False when it was answered before, or waits no more.

        Raises UnknownRequestError for an id under which this session never asked, TypeError and ValueError for an answer that the request
        does not take.
        """
        self._room._check_process()
        return answer_ask(self._core.book, request_id, answer, clock=self._clock, session_id=self.id)

    async def aanswer(self, request_id: str, answer: Answer) -> bool:
        """The same as `answer`, in an event loop."""
        return await asyncio.to_thread(self.answer, request_id, answer)

    # --- conversation and end

    def adopt(self, conversation_id: str, previous_usage: ProviderUsage | None = None) -> bool:
        """Offer a conversation to continue in.

        False when the session holds newer history, a turn is prepared or running, or the provider cannot resume.

        Raises SessionStateError when another session of this process holds it, ValueError or TypeError for what is no id.
        """
        self._check()
        check_id("conversation_id", conversation_id)
        self._core.claim(conversation_id)
        reply: Cell[bool] = Cell()
        checkpoint = Checkpoint(conversation_id, previous_usage)
        tell(self._ref, m.AdoptConversation(request_id=new_nonce(), checkpoint=checkpoint, reply_to=reply))
        reply.wait(None, self._clock)
        if not reply.get() and self.conversation_id != conversation_id:
            CLAIMS.give_back(self._core.claim_key(conversation_id), self._core.closed)
        return reply.get()

    def read_thread(self) -> Thread:
        """Read the conversation: its turns with what was said and done in them, oldest first. Starts no turn and costs nothing.

        It is the one that the session holds, or after a reset the one in which its last turn ran; without either there are no turns. At
        any time, also in mid-turn (the last turn is RUNNING then, and shows what the provider has on record so far), without a process,
        and after `close`. Blocks. Raises ProviderCapabilityError when the provider cannot, SessionResumeError when the conversation is
        gone, QueryFailedError when it cannot be read.
        """
        self._room._check_process()
        return conversations.read_thread(self._core)

    def rollback(self, num_turns: int) -> None:
        """Go back by `num_turns` turns, as `read_thread` counts them: the next turn's model sees nothing of them. Files stay as they are.

        Durable when it returns. Its process, if one runs, is ended first. Blocks, for seconds at most. Raises ValueError for less than 1,
        ProviderCapabilityError when the provider cannot, SessionStateError while a turn is prepared or runs, when there are fewer turns,
        or after `close`; QueryFailedError when the provider refuses: then the conversation is as it was.
        """
        conversations.check_turns(num_turns)
        self._check()
        conversations.roll_back(self._core, num_turns, self._clock)

    def fork(self, session_id: str | None = None, **options: Any) -> Session:
        """Begin another session, whose conversation has the whole history of this one; both go on by themselves.

        It is of the same agent, directory and options, but for `options` (those of `Agent.session`). Blocks, for seconds at most. Raises
        ProviderCapabilityError when the provider cannot, SessionStateError while a turn runs, without a conversation and after `close`,
        QueryFailedError; and what `Agent.session` raises.
        """
        self._check()
        if session_id is not None:
            self._room._check_free(session_id)  # before the provider has made what nobody would have
        made = conversations.fork(self._core)
        return self._alike(**{**options, "resume_id": made.conversation_id, "previous_usage": made.usage, "session_id": session_id})

    def release(self) -> None:
        """Give up the live process of an idle session; the conversation is kept and reopened by the next turn. Does nothing in a turn.

        Returns once that is decided, not when the process has ended. Raises SessionStateError when it is closed.
        """
        self._check()
        reply: Cell[None] = Cell()
        tell(self._ref, m.ReleaseConversation(reply_to=reply))
        reply.wait(None, self._clock)

    def close(self) -> None:
        """End the session: a running turn is interrupted, its process ended. Returns when nothing of it runs. Idempotent."""
        self._begin_close()
        if self._room._pid_is_ours():
            self._core.closed.wait(None, self._clock)

    async def aclose(self) -> None:
        """The same as `close`, from asyncio."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._begin_close()
        self._core.closed.when_settled(waker(loop, done))
        await done

    def _begin_close(self) -> None:
        self._closed = self._core.close_asked = True
        if self._room._pid_is_ours():
            tell(self._ref, m.CloseSession())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.state}>"

    # --- inside

    def _check(self) -> None:
        self._room._check()
        if self._closed:
            raise SessionStateError("the session is closed")

    def _connect(self) -> Cell[None]:
        """Have the process started before there is a turn; the cell is settled once it is ready, or will not be."""
        transport, flags, reply = self._core.transport, NO_FLAGS, Cell[None]()
        if isinstance(transport, StreamTransport):
            flags = transport.flags(self._core.spec, TurnRequest(""))
        self._core.connecting = reply
        tell(self._ref, m.Connect(flags=flags, reply_to=reply))
        return reply

    def _start(self, ticket: TurnTicket, sink: Sink | None, begun: Cell[None] | None = None) -> None:
        """Mark the ticket begun, then post Run: an interrupt from now on means this turn. `begun`: settled once the view says so."""
        self._check_ticket(ticket)
        core = ticket._core
        if core.recorded:
            core.begin(sink)
            return
        with self._lock:
            core.begin(sink)
            self._current = core
        tell(self._ref, m.Run(turn_id=core.turn_id, ticket=core, begun=begun))

    def _check_ticket(self, ticket: TurnTicket) -> None:
        # Not whether the session is closed: that has settled the ticket, and its own error says more than ours.
        self._room._check_process()
        if not self._owns(_core_of(ticket)):
            raise SessionStateError(f"turn {ticket.turn_id!r} belongs to session {ticket._core.session_id!r}, not to {self.id!r}")

    def _owns(self, core: TicketCore) -> bool:
        return core.session_id == self.id

    def _credit(self, ticket: TurnTicket) -> Callable[[], None]:
        core, turn_id = self._core, _core_of(ticket).turn_id

        def on_credit() -> None:
            tell(core.ref, m.CreditReturned(turn_id=turn_id))

        return on_credit

    def _detach(self, ticket: TurnTicket, sink: Sink) -> None:
        sink.detach()
        tell(self._ref, m.Detach(turn_id=ticket.turn_id))


def _core_of(ticket: object) -> TicketCore:
    if not isinstance(ticket, TurnTicket):
        raise TypeError(f"ticket must be a TurnTicket, got {type(ticket).__name__}; prepare_turn makes one of a request")
    return ticket._core


def check_id(name: str, value: object) -> None:
    """Raise TypeError or ValueError for what is no id of a conversation."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty; None means a new conversation")
