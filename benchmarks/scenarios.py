"""What is measured. Each repetition plays raw and greenroom in turn, in the same process and on live processes of the same kind."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from benchmarks.figures import Figure, middle, percentile
from benchmarks.fleets import AsyncioFleet, Fleet, Player, RawFleet, Stage, ThreadsFleet

FLOOD_BYTES = 200
WARM_EVENTS = 20
TALK_S = 300


@attrs.frozen(kw_only=True)
class Size:
    """How much is done. `play_s`: for how long the sessions of a fleet talk in one repetition."""

    repetitions: int = 5
    sessions: int = 64
    play_s: float = 3.0
    turns: int = 30
    flood: int = 30_000
    interrupts: int = 150
    idle_s: float = 5.0
    dormant: int = 256


SMOKE = Size(repetitions=1, sessions=4, play_s=0.5, turns=3, flood=2000, interrupts=5, idle_s=0.5, dormant=8)


class Listener(Player):
    """Notes how old each event is when its owner gets it; the first ones of a turn are not counted."""

    def __init__(self) -> None:
        self.ages_ms: list[float] = []

    def on_text(self, text: str) -> None:
        """Compare the text, which is the time at which it was sent, with now."""
        if text[:1].isdigit():
            self.ages_ms.append((time.monotonic_ns() - int(text)) / 1e6)

    @property
    def counted(self) -> list[float]:
        """The ages, without the warm-up."""
        return self.ages_ms[WARM_EVENTS:]


@contextlib.contextmanager
def fleets(folder: Path, size: int) -> Iterator[dict[str, Fleet]]:
    """Have the three fleets, alive."""
    stage = Stage(folder)
    with contextlib.ExitStack() as stack:
        found: dict[str, Fleet] = {}
        for kind in (RawFleet, ThreadsFleet, AsyncioFleet):
            fleet = found[kind.name] = kind(stage, size)
            stack.callback(fleet.close)
        yield found


def medians(found: dict[str, Fleet], repetitions: int, measure: Callable[[Fleet], Sequence[float]]) -> dict[str, list[float]]:
    """Measure each fleet in turn, `repetitions` times, and return each number's median."""
    rounds: dict[str, list[Sequence[float]]] = {name: [] for name in found}
    for round_, (name, fleet) in itertools.product(range(repetitions), found.items()):
        del round_
        rounds[name].append(measure(fleet))
    return {name: [middle(numbers) for numbers in zip(*rows, strict=True)] for name, rows in rounds.items()}


def ages(fleet: Fleet, sessions: int, per_s: int, play_s: float) -> tuple[float, float]:
    """Have all sessions talk at a rate; return the median and the 99th percentile of the events' ages in ms."""
    listeners = [Listener() for _ in range(sessions)]
    fleet.play(f"RATE {int(per_s * play_s) + WARM_EVENTS} {per_s}", listeners)()
    counted = [age for listener in listeners for age in listener.counted]
    return percentile(counted, 50), percentile(counted, 99)


def turn_ms(fleet: Fleet, turns: int) -> tuple[float]:
    """Return the median time of a turn that says one word, in ms."""
    took: list[float] = []
    for _ in range(turns):
        began = time.perf_counter()
        fleet.turn(0, "SAY yes", _ignore)
        took.append((time.perf_counter() - began) * 1e3)
    return (percentile(took, 50),)


def flood_per_s(fleet: Fleet, count: int) -> tuple[float]:
    """Return how many events a second come through, from the first to the last, when the CLI writes as fast as it is read."""
    times: list[float] = []
    fleet.turn(0, f"FLOOD {count} {FLOOD_BYTES}", lambda _text: times.append(time.perf_counter()))
    return (len(times) / (times[-1] - times[0]),)


def one_session(folder: Path, size: Size) -> list[Figure]:
    """A quiet machine, one session."""
    with fleets(folder, 1) as found:
        age = medians(found, size.repetitions, lambda fleet: ages(fleet, 1, 200, size.play_s / 2))
        turn = medians(found, size.repetitions, lambda fleet: turn_ms(fleet, size.turns))
        flood = medians(found, size.repetitions, lambda fleet: flood_per_s(fleet, size.flood))
    raw_age, raw_turn, raw_flood = age["raw"], turn["raw"][0], flood["raw"][0]
    figures: list[Figure] = []
    for name in _ours(found):
        figures += [
            _ms(f"1 session: event age p50 ({name})", age[name][0], raw_age[0], "<= 2 x raw", 2 * raw_age[0]),
            _ms(f"1 session: event age p99 ({name})", age[name][1], raw_age[1]),
            _ms(f"1 session: short turn p50 ({name})", turn[name][0], raw_turn, "<= raw + 2 ms", raw_turn + 2),
            Figure(
                name=f"1 session: burst ({name})",
                unit="events/s",
                ours=flood[name][0],
                raw=raw_flood,
                target=">= 1/3 raw",
                limit=raw_flood / 3,
                more_is_better=True,
            ),
        ]
    return figures


def many_sessions(folder: Path, size: Size) -> list[Figure]:
    """All sessions talk at once."""
    count = size.sessions
    with fleets(folder, count) as found:
        age = medians(found, size.repetitions, lambda fleet: ages(fleet, count, 50, size.play_s))
        stop = medians(found, size.repetitions, lambda fleet: interrupt_ms(fleet, count, 200, size.interrupts))
    raw_stop50, raw_stop99 = stop["raw"]
    limit = 2 * raw_stop99 + 2
    figures: list[Figure] = []
    for name in _ours(found):
        slow, fast = f"{count} sessions, 50 events/s each", f"{count} sessions, 200 events/s each"
        figures += [
            _ms(f"{slow}: event age p50 ({name})", age[name][0], age["raw"][0]),
            _ms(f"{slow}: event age p99 ({name})", age[name][1], age["raw"][1], "< 5 ms", 5.0),
            _ms(f"{fast}: interrupt p50 ({name})", stop[name][0], raw_stop50),
            _ms(f"{fast}: interrupt p99 ({name})", stop[name][1], raw_stop99, "<= 2 x raw + 2 ms", limit),
        ]
    return figures


class Talker(Player):
    """A session that talks for ever; tells when its turn has begun, and when it has ended."""

    def __init__(self) -> None:
        self.talks = threading.Event()
        self.ended = threading.Event()
        self.ended_ns = 0
        self.over = False

    def on_text(self, text: str) -> None:
        """The turn has begun."""
        if not self.talks.is_set():
            self.talks.set()

    def again(self) -> bool:
        """Begin anew, until it is over."""
        self.ended_ns = time.monotonic_ns()
        self.talks.clear()
        self.ended.set()
        return not self.over


def interrupt_ms(fleet: Fleet, sessions: int, per_s: int, interrupts: int) -> tuple[float, float]:
    """Interrupt one talking session after the other; return p50 and p99 of the time from the call to the end of the turn, in ms."""
    talkers = [Talker() for _ in range(sessions)]
    # Bounded: the raw loop's CLIs have no guard, and finish their turns if this program is killed.
    join = fleet.play(f"RATE {TALK_S * per_s} {per_s}", talkers)
    for talker in talkers:
        talker.talks.wait()
    took = [_interrupt_one(fleet, number % sessions, talkers[number % sessions]) for number in range(interrupts)]
    for number, talker in enumerate(talkers):
        talker.talks.wait()
        talker.over = True
        fleet.interrupt(number)
    join()
    return percentile(took, 50), percentile(took, 99)


def _interrupt_one(fleet: Fleet, number: int, talker: Talker) -> float:
    talker.talks.wait()
    talker.ended.clear()
    began_ns = time.monotonic_ns()
    fleet.interrupt(number)
    talker.ended.wait()
    time.sleep(0.01)  # the sessions' own business goes on between two interrupts
    return (talker.ended_ns - began_ns) / 1e6


def _ignore(_text: str) -> None:
    return


def _ours(found: dict[str, Fleet]) -> list[str]:
    return [name for name in found if name != RawFleet.name]


def _ms(name: str, ours: float, raw: float, target: str = "", limit: float = float("inf")) -> Figure:
    return Figure(name=name, unit="ms", ours=ours, raw=raw, target=target, limit=limit)
