"""When is a turn retried, and what is sent then? `RetryPolicy` for users; its delays reach the policy as data. Pure.

The one place that knows tenacity: its `wait_*` and `stop_*` objects are asked once per session, ahead of time, in the order in which
tenacity itself asks them. Nothing here ever sleeps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import attrs
import tenacity

from greenroom.errors import GreenroomError, TurnFailedError
from greenroom.model import FailureKind
from greenroom.policy.commands import How

DEFAULT_DELAYS_S = (30.0, 60.0, 120.0, 240.0, 480.0)
MAX_DELAYS = 100
"""How many retries a tenacity pair may give: `stop_never` would have no end."""


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


@attrs.frozen
class RetryPolicy:
    """How often and when a transient failure is retried: after each of `delays` (seconds), or as a tenacity `wait` and `stop` say.

    `jitter` makes each delay longer by a random part of up to that fraction, so that sessions do not retry in step. tenacity's own
    random waits draw from Python's global generator. Raises ValueError for arguments that do not go together.
    """

    delays: tuple[float, ...] = attrs.field(default=DEFAULT_DELAYS_S, converter=_floats)
    wait: Callable[[tenacity.RetryCallState], float] | None = attrs.field(default=None, kw_only=True)
    stop: Callable[[tenacity.RetryCallState], bool] | None = attrs.field(default=None, kw_only=True)
    jitter: float = attrs.field(default=0.1, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if (self.wait is None) != (self.stop is None):
            raise ValueError("wait and stop belong together: give both, or delays alone")
        if self.wait is not None and self.delays != DEFAULT_DELAYS_S:
            raise ValueError("give either delays, or wait and stop")
        for name, value in (("wait", self.wait), ("stop", self.stop)):
            if value is not None and not callable(value):
                raise ValueError(f"{name} must be a tenacity {name}_* object, got {value!r}")
        if not 0 <= self.jitter < math.inf:
            raise ValueError(f"jitter must be finite and 0 or more, got {self.jitter}")
        _check(self.delays)

    def delays_data(self, rng: random.Random | None) -> tuple[float, ...]:
        """Return the delays of one session in seconds, with jitter drawn from `rng` (None: without).

        Raises ValueError if a tenacity wait gives no usable number.
        """
        plain = self.delays if self.wait is None or self.stop is None else _simulated(self.wait, self.stop)
        return tuple(delay_s * (1 + self.jitter * rng.random()) for delay_s in plain) if self.jitter and rng is not None else plain


def _simulated(wait: Callable[[tenacity.RetryCallState], float], stop: Callable[[tenacity.RetryCallState], bool]) -> tuple[float, ...]:
    """Ask tenacity's objects what they would do about failures that take no time: the wait first, then the stop, as tenacity does."""
    call = tenacity.RetryCallState(retry_object=tenacity.Retrying(), fn=None, args=(), kwargs={})
    call.start_time = 0.0
    delays: list[float] = []
    while len(delays) < MAX_DELAYS:
        call.outcome = tenacity.Future.construct(
            call.attempt_number, TurnFailedError(FailureKind.TRANSIENT, "overloaded"), has_exception=True
        )
        call.outcome_timestamp = call.idle_for
        call.upcoming_sleep = float(wait(call))
        if stop(call):
            break
        _check((call.upcoming_sleep,))
        delays.append(call.upcoming_sleep)
        call.idle_for += call.upcoming_sleep
        call.prepare_for_next_attempt()
    return tuple(delays)


def _check(delays: tuple[float, ...]) -> None:
    for delay_s in delays:
        if not 0 <= delay_s < math.inf:
            raise ValueError(f"delays must be finite and 0 or more, got {delay_s}")


def retry_delay_s(delays: tuple[float, ...], retries: int, error: GreenroomError) -> float | None:
    """Return the wait before retry number `retries + 1` after `error`; None: no retry. Never earlier than the provider asked for."""
    if not isinstance(error, TurnFailedError) or error.kind is not FailureKind.TRANSIENT or retries >= len(delays):
        return None
    asked_s = error.retry_after_s
    return max(delays[retries], asked_s) if asked_s is not None and math.isfinite(asked_s) else delays[retries]


def sent_again(*, retries_in_place: bool, nudgeable: bool, taken: bool) -> How:
    """Say what a retry sends. `taken`: the provider has answered for something of this turn in this conversation.

    A nudge is valid directly after an API error only. A transport without nudges is told RETRY too, and knows what that is for it.
    """
    if not taken:
        return How.PROMPT
    return How.RETRY if nudgeable or not retries_in_place else How.CONTINUE
