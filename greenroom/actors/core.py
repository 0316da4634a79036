"""What a session's handle and its actor share: what it is made of, what was read of it last, what it has cost.

Decides nothing. The actor alone writes what changes, on the loop thread; anybody may read, on any thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import attrs
import pykka

from greenroom.actors.asks import AskBook
from greenroom.actors.cell import Cell
from greenroom.actors.claims import CLAIMS, Key
from greenroom.actors.heirs import Heritage, Left
from greenroom.actors.ledger import Ledger
from greenroom.actors.ticket import Batch
from greenroom.asks import AskPolicy
from greenroom.liveness import Liveness, Pulse
from greenroom.model import Checkpoint, ConversationSpec, ProviderUsage, SessionStatus
from greenroom.policy import events as e
from greenroom.policy.session import SessionView, Settings, State, initial, public_snapshot, step
from greenroom.transports.base import Flags

logger = logging.getLogger("greenroom.session")

NO_FLAGS = Flags(key=None)

Ref = pykka.ActorRef[Any]


@attrs.frozen(kw_only=True)
class Past:
    """What a journalled session was when its host died: its state, and the settings with which it first began."""

    state: State
    settings: Settings


@attrs.define(kw_only=True, eq=False)
class SessionCore:
    """What a session's handle and its actor share. The actor alone writes `view`, `pulse`, `spent` and `degraded`.

    Reading is safe on any thread.
    """

    session_id: str
    transport: Any
    spec: ConversationSpec
    settings: Settings
    checkpoint: Checkpoint | None
    store: Any = None
    store_key: str | None = None
    handlers: tuple[Any, ...] = ()
    asks: AskPolicy = attrs.field(factory=AskPolicy)
    book: AskBook = attrs.field(factory=AskBook)
    ledger: Ledger | None = None
    past: Past | None = None
    room_id: str = ""
    log: logging.Logger = logger
    ref: Any = None
    close_asked: bool = False
    start: Callable[[], Ref] | None = None
    publish: Callable[[Batch], None] | None = None
    created_at_s: float = 0.0
    changed_at_s: float = 0.0
    removed: bool = False
    connecting: Cell[None] | None = None
    heritage: Heritage | None = None
    view: SessionView = attrs.field(init=False)
    resumes: str | None = attrs.field(init=False)
    spent: ProviderUsage | None = None
    booked: ProviderUsage | None = None
    degraded: str | None = None
    pulse: Pulse = attrs.field(factory=lambda: Pulse(heard_s=0.0))
    monotonic: Callable[[], float] = time.monotonic
    rewinding: set[str] = attrs.field(factory=set)
    closed: Cell[None] = attrs.field(factory=Cell)

    def __attrs_post_init__(self) -> None:
        # As the actor's own first step will have it: what the session resumes is known before the loop gets there.
        state, _ = step(self.origin, self.beginning(0.0))
        self.view = public_snapshot(state)
        self.resumes = state.resumable_id

    @property
    def origin(self) -> State:
        """The state in which the session begins: nothing has happened, or all that did before the host died."""
        return self.past.state if self.past is not None else initial(self.settings)

    @property
    def liveness(self) -> Liveness:
        """Why the session is quiet, and for how long, as of now."""
        return self.pulse.read(self.monotonic(), self.settings.stall)

    def give_up(self, left: Left) -> None:
        """Nobody goes on with the session after a crash: answer everybody."""
        self.pulse.ends()
        self.view = attrs.evolve(self.view, closed=True, stopped=True, status=SessionStatus.CLOSED)
        left.give_up()

    def beginning(self, now_s: float) -> e.SessionInput:
        """Return the first input."""
        if self.past is not None:
            return e.Reopened(now_s=now_s, settings=self.settings)
        return e.Start(now_s=now_s, checkpoint=self.checkpoint)

    def claim_key(self, conversation_id: str) -> Key:
        """The key under which a conversation of this session's provider is claimed."""
        profile = self.transport.profile
        return (profile.name, str(getattr(self.transport, "state_home", "")), conversation_id)

    def claim(self, conversation_id: str) -> None:
        """Claim a conversation until the session has ended. Raises SessionStateError when another session holds it."""
        CLAIMS.take(self.claim_key(conversation_id), self.closed, self.session_id)
