"""What can be done with a session's conversation beside its turns: read it, take turns back, fork it, ask who pays.

The work blocks and is done on the calling thread, by the transport; the session's actor only lends the conversation for as long as it is
changed. Thread-safe. Not from the loop thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from greenroom.actors import messages as m
from greenroom.actors.cell import Cell
from greenroom.actors.runtime import tell
from greenroom.errors import ProviderCapabilityError, SessionStateError
from greenroom.history import Account, Thread
from greenroom.ids import new_nonce
from greenroom.model import Checkpoint, ConversationSpec, TransportKind
from greenroom.policy.state import BEGUN
from greenroom.transports.base import ForkTransport, HistoryTransport, RollbackTransport
from greenroom.transports.catalog import transport_for

if TYPE_CHECKING:
    from greenroom.actors.core import SessionCore
    from greenroom.clock import Clock


def read_thread(core: SessionCore) -> Thread:
    """Read the conversation that the session holds, or else the one in which its last turn ran."""
    transport = core.transport
    if not (transport.profile.supports_history and isinstance(transport, HistoryTransport)):
        raise _unable(core, "it does not tell a conversation's history")
    view = core.view
    conversation_id = view.conversation_id or view.last_turn_conversation_id
    if conversation_id is None:
        return Thread(thread_id=None)
    running = view.phase in BEGUN and conversation_id == view.conversation_id
    return transport.read_thread(conversation_id, running=running)


def check_turns(num_turns: object) -> None:
    """Raise for what is no number of turns to go back by."""
    if not isinstance(num_turns, int) or isinstance(num_turns, bool):
        raise TypeError(f"num_turns must be an int, got {num_turns!r}")
    if num_turns < 1:
        raise ValueError(f"num_turns must be at least 1, got {num_turns}")


def roll_back(core: SessionCore, num_turns: int, clock: Clock) -> None:
    """Borrow the conversation, take the turns out of it, give it back."""
    check_turns(num_turns)
    transport = core.transport
    if not (transport.profile.supports_rollback and isinstance(transport, RollbackTransport)):
        raise _unable(core, "it cannot take turns back")
    request_id, changed = new_nonce(), None
    core.rewinding.add(request_id)
    try:
        changed = transport.rollback(_spec(core, _borrow(core, request_id, clock)), num_turns)
        if not isinstance(changed, Checkpoint):
            raise TypeError(f"rollback must return a Checkpoint, got {changed!r}")
    finally:
        _give_back(core, request_id, num_turns, changed if isinstance(changed, Checkpoint) else None, clock)


def _borrow(core: SessionCore, request_id: str, clock: Clock) -> Checkpoint:
    reply: Cell[Checkpoint] = Cell()
    tell(core.ref, m.RollBack(request_id=request_id, reply_to=reply))
    reply.wait(None, clock)
    return reply.get()


def _give_back(core: SessionCore, request_id: str, num_turns: int, changed: Checkpoint | None, clock: Clock) -> None:
    """Say that it is over, whatever came of it, and wait until the session has it on record."""
    reply: Cell[None] = Cell()
    # First this: an actor that comes in the place of a crashed one looks at it, and asks for the actor only then.
    core.rewinding.discard(request_id)
    tell(core.ref, m.RollbackEnded(request_id=request_id, num_turns=num_turns, checkpoint=changed, reply_to=reply))
    reply.wait(None, clock)


def fork(core: SessionCore) -> Checkpoint:
    """Have the provider make a conversation with the same history, and return it."""
    transport, view = core.transport, core.view
    if not (transport.profile.supports_fork and isinstance(transport, ForkTransport)):
        raise _unable(core, "it cannot fork a conversation")
    if view.phase in BEGUN:
        raise SessionStateError(f"turn {view.turn_id!r} is running: a fork needs an idle session")
    if view.conversation_id is None:
        raise SessionStateError("the session holds no conversation to fork")
    made = transport.fork(_spec(core, Checkpoint(view.conversation_id, view.usage)))
    if not isinstance(made, Checkpoint):
        raise TypeError(f"fork must return a Checkpoint, got {made!r}")
    return made


def _spec(core: SessionCore, held: Checkpoint) -> ConversationSpec:
    return attrs.evolve(core.spec, resume_id=held.conversation_id, previous_usage=held.usage)


def _unable(core: SessionCore, what: str) -> ProviderCapabilityError:
    return ProviderCapabilityError(what, provider=core.transport.profile.name)


def account(provider: Any, *, env: Mapping[str, str] | None = None) -> Account:
    """Return which account a provider's processes use, as one of them says it; `provider` is a name or a ready transport.

    `env` is the whole environment of that process (None: this one's), and belongs to a name. Blocks; calls no model; any thread. Raises
    ProviderCapabilityError for a provider that does not tell, CliNotFoundError, QueryFailedError.
    """
    transport = transport_for(provider, TransportKind.STREAM, env=env) if isinstance(provider, str) else provider
    ask = getattr(transport, "account", None)
    if not callable(ask):
        raise ProviderCapabilityError("it does not tell who pays", provider=transport.profile.name)
    if env is not None and not isinstance(provider, str):
        raise ProviderCapabilityError("env belongs to the transport; a ready one has its own")
    found = ask()
    if not isinstance(found, Account):
        raise TypeError(f"account must return an Account, got {found!r}")
    return found
