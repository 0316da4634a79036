"""Numbers out of samples, and the table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True)
class Figure:
    """One line of the table. `raw` is None where a raw loop has no counterpart; `limit` is the target, already computed from `raw`."""

    name: str
    unit: str
    ours: float
    target: str
    limit: float
    raw: float | None = None
    more_is_better: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.ours >= self.limit if self.more_is_better else self.ours <= self.limit

    @property
    def ratio(self) -> float | None:
        """Ours by raw."""
        return self.ours / self.raw if self.raw else None


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the sample that `percent` of them do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def middle(values: Sequence[float]) -> float:
    """Return the median of the repetitions."""
    return statistics.median(values)


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as Markdown."""
    rows = [("figure", "unit", "raw", "greenroom", "ratio", "target", "verdict"), ("---",) * 7]
    rows += [_row(figure) for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows)


def _row(figure: Figure) -> tuple[str, ...]:
    raw = "" if figure.raw is None else _number(figure.raw)
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    verdict = "" if not figure.target else "met" if figure.met else "MISSED"
    return (figure.name, figure.unit, raw, _number(figure.ours), ratio, figure.target, verdict)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
