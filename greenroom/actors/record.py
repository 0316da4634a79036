"""The writes of one session: what is told to the journal and to the checkpoint store, what waits for them, and for how long.

Intent comes before action: what must not be seen before it is durable is held here until the write is answered, in order. A store that
does not answer is waited for for so long and no longer; that is reported, and never costs a result. No I/O here: the writing is
`StoreActor`'s. Owned by its session's actor, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pykka

from greenroom.actors import messages as m
from greenroom.actors.core import SessionCore
from greenroom.actors.dispatcher import Dispatcher, TimerFired
from greenroom.actors.gate import Action, Gate
from greenroom.actors.ledger import Ledger, awaited
from greenroom.actors.runtime import tell
from greenroom.clock import TimerHandle
from greenroom.errors import StoreFailedError
from greenroom.journal import records as r
from greenroom.model import Checkpoint, ProviderUsage, StoreFault

STORE_PATIENCE_S = 5.0

Ref = pykka.ActorRef[Any]


@attrs.frozen(kw_only=True)
class Stores:
    """Where the writes go: the actors of the checkpoint store and of the journal (None: the session has no journal)."""

    checkpoints: Callable[[], Ref]
    journal: Callable[[], Ref] | None


class Recorder:
    """`ledger`: what a step means for the journal; None without one."""

    def __init__(self, *, core: SessionCore, dispatcher: Dispatcher, ref: Ref, stores: Stores, degrade: Callable[[str], None]) -> None:
        self.ledger: Ledger | None = core.ledger if stores.journal is not None else None
        self._core = core
        self._dispatcher = dispatcher
        self._ref = ref
        self._stores = stores
        self._degrade = degrade
        self._gate = Gate()
        self._timer: TimerHandle | None = None
        self._last = 0

    @property
    def busy(self) -> bool:
        """Whether something waits for a write."""
        return self._gate.shut

    # --- what is written

    def record(self, *records: r.Record) -> None:
        """Tell the journal; what must not be seen before waits `once_recorded`."""
        if self._stores.journal is None or not records:
            return
        if awaited(records):
            self._last = self._gate.begin("journal")
            tell(self._stores.journal(), m.Record(records=records, sequence=self._last, session=self._ref))
        else:
            tell(self._stores.journal(), m.Record(records=records))

    def opening(self) -> None:
        """Record what the session is."""
        core, profile = self._core, self._core.transport.profile
        if self.ledger is None:
            return
        opened = r.SessionOpened(
            session_id=core.session_id,
            nonce=core.settings.session_nonce,
            provider=profile.name,
            state_home=str(getattr(core.transport, "state_home", "")),
            spec=core.spec,
            settings=core.past.settings if core.past is not None else core.settings,
            at_s=core.created_at_s or self._dispatcher.clock.wall(),
            checkpoint_key=core.store_key,
        )
        self.record(opened)

    def spent(self, usage: ProviderUsage | None) -> None:
        """A turn has ended: add what it cost."""
        self._core.spent = _sum(self._core.spent, usage)
        self._record_spend()

    def booked(self, usage: ProviderUsage | None) -> None:
        """Add what a process has cost that no turn asked for."""
        self._core.booked = _sum(self._core.booked, usage)
        self._record_spend()

    def _record_spend(self) -> None:
        if self.ledger is not None and not (self._core.spent is self._core.booked is None):
            self.record(r.Spent(session_id=self._core.session_id, usage=self._core.spent, booked=self._core.booked))

    def checkpoint(self, checkpoint: Checkpoint | None) -> None:
        """Store the checkpoint; None clears it."""
        if self._core.store is None or self._core.store_key is None:
            return
        store = m.Store(
            store=self._core.store,
            key=self._core.store_key,
            checkpoint=checkpoint,
            sequence=self._gate.begin("checkpoint store"),
            session=self._ref,
        )
        tell(self._stores.checkpoints(), store)

    # --- what waits for it

    def once_written(self, action: Action) -> None:
        """Act when every write that was begun has been answered or given up."""
        self._gate.hold(action)
        self._watch()

    def once_recorded(self, action: Action) -> None:
        """The same; `action` is told the error of the last record that is waited for."""
        self._gate.hold(action, needs=self._last)
        self._watch()

    def behind(self, action: Callable[[], None]) -> None:
        """Act behind all that waits for the journal; at once, if nothing does."""
        if self.ledger is not None and self._gate.shut:
            self._gate.hold(lambda _error: action())
        else:
            action()

    def stored(self, message: m.Stored) -> None:
        """A write was answered."""
        if message.error is not None and message.sequence in self._gate.open:
            self._degrade(f"the {self._gate.open[message.sequence]} failed: {_text(message.error)}")
        self._gate.settle(message.sequence, message.error)
        self._watch()

    def _watch(self) -> None:
        """While something waits, wait with it for so long and no longer."""
        if self._gate.shut and self._timer is None:
            token = ("store", self._gate.last)
            self._timer = self._dispatcher.call_later(STORE_PATIENCE_S, self._ref, TimerFired(token=token))
        elif not self._gate.shut and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lose_patience(self, sequence: int) -> None:
        """Wait no longer for the writes up to `sequence`."""
        self._timer = None
        for number in self._gate.overdue(sequence):
            late = f"has not answered within {STORE_PATIENCE_S:g} s"
            self._degrade(f"the {self._gate.open[number]} {late}")
            self._gate.settle(number, StoreFailedError(StoreFault.BUSY, late))
        self._watch()

    # --- the end

    def drain(self, error: BaseException | None = None) -> None:
        """Act now on everything that waits: nobody will answer any more. `error`: what every action is told."""
        self._gate.drain(error)

    def end(self, error: BaseException) -> None:
        """The session's actor has ended."""
        self._gate.drain(error)
        if self._timer is not None:
            self._timer.cancel()


def _text(error: BaseException) -> str:
    """Return what a user's exception says; even that may raise."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001
        return f"<{type(error).__name__} without a text>"


def _sum(total: ProviderUsage | None, more: ProviderUsage | None) -> ProviderUsage | None:
    return total + more if total is not None and more is not None else (more if total is None else total)
