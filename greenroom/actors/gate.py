"""What must not be seen before it is written: actions of one session that wait, in order, for writes. Decides order only; no I/O.

An action runs once every write that was begun before it has been answered and every action before it has run. It is given the error of
the one write that it names. Without an open write it runs at once. On the loop thread.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import attrs

Action = Callable[[BaseException | None], None]


@attrs.frozen(kw_only=True)
class _Held:
    upto: int
    needs: int
    action: Action


class Gate:
    """The writes under way, each with what it is, and the actions behind them."""

    def __init__(self) -> None:
        self.last = 0
        self.open: dict[int, str] = {}
        self._errors: dict[int, BaseException] = {}
        self._held: collections.deque[_Held] = collections.deque()
        self._releasing = False

    @property
    def shut(self) -> bool:
        """Whether something waits here, so that what must not overtake it has to wait too."""
        return bool(self._held) or self._releasing

    def begin(self, what: str) -> int:
        """A write begins; return its number."""
        self.last += 1
        self.open[self.last] = what
        return self.last

    def hold(self, action: Action, *, needs: int = 0) -> None:
        """Run `action` when it is due; `needs`: the write whose error it wants to know."""
        self._held.append(_Held(upto=self.last, needs=needs, action=action))
        self._release()

    def settle(self, sequence: int, error: BaseException | None) -> str | None:
        """A write was answered, or is waited for no longer. Return what it was, None if that is settled already."""
        what = self.open.pop(sequence, None)
        if what is not None:
            if error is not None:
                self._errors[sequence] = error
            self._release()
        return what

    def overdue(self, sequence: int) -> list[int]:
        """Return the open writes up to `sequence`."""
        return [number for number in self.open if number <= sequence]

    def _release(self) -> None:
        if self._releasing:  # an action that holds another one: the loop below gets to it
            return
        self._releasing = True
        try:
            while self._held and self._is_due(self._held[0]):
                held = self._held.popleft()
                held.action(self._errors.get(held.needs))
        finally:
            self._releasing = False
        if not self._held:
            self._errors.clear()

    def _is_due(self, held: _Held) -> bool:
        # Numbers rise, and a dict keeps its order: the first one is the oldest.
        return next(iter(self.open), held.upto + 1) > held.upto

    def drain(self, error: BaseException | None = None) -> None:
        """Run everything now: nobody will answer any more. `error`: what every action is told."""
        self.open.clear()
        while self._held:
            self._held.popleft().action(error)
