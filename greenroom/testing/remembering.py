"""A fake provider that remembers: its conversations can be read, rolled back and forked, and it knows who pays.

    transport = RememberingTransport()
    session.run(session.prepare_turn(TurnRequest("one")))
    session.rollback(1)
    transport.threads                # what each conversation holds

Decides nothing that is not scripted, never starts a thread, and is safe on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from greenroom.errors import GreenroomError, SessionResumeError, SessionStateError
from greenroom.events import AgentEvent
from greenroom.history import Account, AccountKind, ItemKind, Thread, ThreadItem, ThreadTurn, TurnStatus
from greenroom.model import Checkpoint, ConversationSpec, ProviderProfile, TurnRequest, TurnResult
from greenroom.testing.doubles import FakeConversation, FakeTransport, Outcome, fake_profile

__all__ = ["RememberingTransport"]


class _Remembering(FakeConversation):
    """Keeps what was said."""

    _transport: RememberingTransport

    def turn(self, request: TurnRequest, emit: Callable[[AgentEvent], None]) -> TurnResult:
        """Play the next outcome, and remember it."""
        turn_id = self._transport.begin(self._id, request.prompt)
        try:
            result = super().turn(request, emit)
        except GreenroomError as error:
            self._transport.end(self._id, turn_id, TurnStatus.ERROR, error=str(error))
            raise
        status = TurnStatus.INTERRUPTED if result.interrupted else TurnStatus.COMPLETED
        self._transport.end(self._id, turn_id, status, text=result.text)
        return result


class RememberingTransport(FakeTransport):
    """As `FakeTransport`, with a past. `account_in_use`: what `account` answers.

    `threads`: the turns of each conversation, by its id. `holding`: called, on the asker's thread, in the middle of each rollback and
    fork; what it raises is raised. `work`: what was asked beside the turns.
    """

    def __init__(
        self,
        outcomes: Iterable[Outcome] | None = None,
        *,
        profile: ProviderProfile | None = None,
        account_in_use: Account | None = None,
        holding: Callable[[], object] | None = None,
        **options: Any,
    ) -> None:
        abilities = {"supports_history": True, "supports_rollback": True, "supports_fork": True}
        super().__init__(outcomes, profile=profile or fake_profile(**abilities), **options)
        self._kind = _Remembering
        self._numbers = threading.Lock()
        self._count = 0
        self.threads: dict[str, tuple[ThreadTurn, ...]] = {}
        self.work: list[str] = []
        self.holding = holding
        self.account_in_use = account_in_use or Account(provider=self.profile.name, kind=AccountKind.API_KEY, source="a test")

    # --- for its conversations

    def begin(self, conversation_id: str, prompt: str) -> str:
        """A turn begins; return its id."""
        with self._numbers:
            self._count += 1
            turn_id = f"wire-{self._count}"
            said = ThreadItem(kind=ItemKind.USER_TEXT, text=prompt)
            turn = ThreadTurn(turn_id=turn_id, items=(said,), status=TurnStatus.RUNNING, attempt_ids=(turn_id,))
            self.threads[conversation_id] = (*self.threads.get(conversation_id, ()), turn)
            return turn_id

    def end(self, conversation_id: str, turn_id: str, status: TurnStatus, *, text: str = "", error: str | None = None) -> None:
        """A turn ended."""
        answer = (ThreadItem(kind=ItemKind.ASSISTANT_TEXT, text=text),) if text else ()
        with self._numbers:
            self.threads[conversation_id] = tuple(
                attrs.evolve(turn, items=(*turn.items, *answer), status=status, error=error) if turn.turn_id == turn_id else turn
                for turn in self.threads[conversation_id]
            )

    # --- beside the turns

    def read_thread(self, conversation_id: str, *, running: bool = False) -> Thread:
        """Return the conversation's past. Raises SessionResumeError for one that there is not."""
        if conversation_id not in self.threads and not running:
            raise SessionResumeError(conversation_id)
        return Thread(thread_id=conversation_id, turns=self.threads.get(conversation_id, ()))

    def rollback(self, spec: ConversationSpec, num_turns: int) -> Checkpoint:
        """Take turns back. Raises SessionStateError when there are fewer."""
        conversation_id, turns = self._asked("rollback", spec)
        if num_turns > len(turns):
            raise SessionStateError(f"cannot go back by {num_turns} turns: conversation {conversation_id!r} has {len(turns)}")
        self.threads[conversation_id] = turns[:-num_turns]
        return Checkpoint(conversation_id, spec.previous_usage)

    def fork(self, spec: ConversationSpec) -> Checkpoint:
        """Return a conversation with the same past."""
        conversation_id, turns = self._asked("fork", spec)
        with self._numbers:
            fork_id = f"{conversation_id}-fork-{len(self.threads)}"
            self.threads[fork_id] = turns
        return Checkpoint(fork_id, spec.previous_usage)

    def account(self) -> Account:
        """Return who pays."""
        self.work.append("account")
        return self.account_in_use

    def _asked(self, what: str, spec: ConversationSpec) -> tuple[str, tuple[ThreadTurn, ...]]:
        self.work.append(what)
        if self.holding is not None:
            self.holding()
        return spec.resume_id or "", self.threads[spec.resume_id or ""]
