"""Draws a board. Decides what fits: running rows first, then the rest, then counts. Pure; text of agents is never markup."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from greenroom.cli.progress import ACTIVE, BAD, Board, Row, State
from greenroom.cli.safe_text import fit, one_line
from greenroom.liveness import Liveness, LivenessReason

_STYLES = {
    State.QUEUED: "dim",
    State.STARTING: "cyan",
    State.RUNNING: "green",
    State.RETRY_WAIT: "yellow",
    State.RESTARTING: "yellow",
    State.DONE: "blue",
    State.FAILED: "red",
    State.INTERRUPTED: "magenta",
}
_RANKS = (ACTIVE, BAD, frozenset({State.QUEUED}))
# What a session is at, in a word; `in` where the time is what is left.
_R = LivenessReason
_SHORT = {
    _R.START_SLOT: "slot",
    _R.OPENING: "opening",
    _R.MODEL: "model",
    _R.BACKGROUND: "bg work",
    _R.REWINDING: "rewind",
    _R.APPROVAL: "approval",
    _R.RETRY: "retry",
    _R.LIMIT: "limit",
    _R.RESTART: "restart",
    _R.IN_USE: "in use",
    _R.CALLER: "caller",
    _R.STOPPING: "stopping",
    _R.SILENT: "silent",
}
_AT_WORK = frozenset({_R.OPENING, _R.MODEL, _R.TOOL})
# id, session, state, turns/retries/restarts, tokens, cost, time; the column between takes what is left.
_NARROW = (12, 9, 14, 5, 6, 7, 5)
_WIDE = (20, 16, 20, 7, 7, 8, 7)
_WIDE_FROM = 110
_CHROME = 5  # two lines of header, the column names, the line of what is not shown, and the cursor's
_MINUTE, _HOUR = 60, 3600


def render(board: Board, *, width: int, height: int, now_s: float) -> RenderableType:
    """Return the board for a terminal of `width` by `height` cells."""
    rows = list(board.rows.values())
    shown = _choose(rows, max(height - _CHROME, 1))
    parts: list[RenderableType] = [*_header(board, width, now_s), _table(shown, width, now_s)]
    if len(shown) < len(rows):
        parts.append(_hidden(rows, shown, width))
    return Group(*parts)


def totals(board: Board) -> str:
    """Return the line of totals: cost, tokens, and how many rows are in which state."""
    counts = " · ".join(f"{count} {state.value}" for state, count in board.counts().items())
    tokens = sum(row.tokens for row in board.rows.values())
    cost = sum(row.cost_usd for row in board.rows.values())
    return f"${cost:.2f} · {short_count(tokens)} tokens · {counts}"


def short_count(count: int) -> str:
    """Return a count in at most five characters: 950, 12.3k, 4.5M."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}" if count < 100 * size else f"{count // size}{letter}"
    return str(count)


def short_time(seconds: float | None) -> str:
    """Return a duration in at most five characters: 7s, 3m05, 2h07."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    return f"{whole // _MINUTE}m{whole % _MINUTE:02}" if whole < _HOUR else f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}"


def _choose(rows: list[Row], space: int) -> list[Row]:
    """Return the rows to show: all in file order where they fit, else those that matter most first."""
    if len(rows) <= space:
        return rows
    return sorted(rows, key=lambda row: (_rank(row), row.started_s or 0.0 if row.state in ACTIVE else -(row.ended_s or 0.0)))[:space]


def _rank(row: Row) -> int:
    return next((rank for rank, states in enumerate(_RANKS) if row.state in states), len(_RANKS))


def _header(board: Board, width: int, now_s: float) -> tuple[Text, Text]:
    first = " · ".join(part for part in (board.title, short_time(now_s - board.started_s), board.note) if part)
    return Text(fit(first, width), style="bold", no_wrap=True), Text(fit(totals(board), width), no_wrap=True)


def _table(rows: list[Row], width: int, now_s: float) -> Table:
    widths = _WIDE if width >= _WIDE_FROM else _NARROW
    doing = max(width - sum(widths) - len(widths), 4)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, width=width)
    heads = ("id", "session", "state", "now", "t/r/R", "tokens", "cost", "time")
    all_widths = (*widths[:3], doing, *widths[3:])
    for head, cells in zip(heads, all_widths, strict=True):
        right = head in {"tokens", "cost", "time"}
        table.add_column(Text(head), width=cells, no_wrap=True, justify="right" if right else "left", header_style="dim")
    for row in rows:
        told = zip(_cells(row, now_s, state_width=all_widths[2]), all_widths, strict=True)
        table.add_row(*(Text(fit(text, cells), style=style) for (text, style), cells in told))
    return table


def in_short(liveness: Liveness, width: int) -> str:
    """Return what a session is at in at most `width` characters: `tool Bash 12s`, `retry in 28s`."""
    left_s, time = liveness.left_s, short_time(liveness.for_s)
    if liveness.reason is not _R.TOOL or liveness.tool is None:
        word = _SHORT.get(liveness.reason, liveness.reason.value)
        return f"{word} {time}" if left_s is None else f"{word} in {short_time(left_s)}"
    name = one_line(liveness.tool.tool)
    whole = f"tool {name} {time}"
    return whole if len(whole) <= width else f"{fit(name, width - len(time) - 1)} {time}"


def _state(row: Row, width: int) -> tuple[str, str]:
    """Return the words and the style of a row's state: of a running one, what its session is at."""
    style = _STYLES.get(row.state, "dim")
    liveness = row.liveness() if row.liveness is not None and row.state in ACTIVE else None
    if liveness is None or liveness.reason in {_R.IDLE, _R.CLOSED}:
        return row.state.value, style
    if liveness.reason is _R.SILENT:
        return in_short(liveness, width), "red"
    return in_short(liveness, width), "green" if liveness.reason in _AT_WORK else "yellow"


def _cells(row: Row, now_s: float, *, state_width: int) -> tuple[tuple[str, str], ...]:
    return (
        (row.key, "bold" if row.state in ACTIVE else ""),
        ("" if row.session == row.key else row.session, ""),
        _state(row, state_width),
        (row.now, "dim" if row.state not in ACTIVE else ""),
        (f"{row.turns}/{row.retries}/{row.restarts}" if row.turns else "", ""),
        (short_count(row.tokens) if row.tokens else "", ""),
        (f"${row.cost_usd:.2f}" if row.cost_usd else "", ""),
        (short_time(row.seconds(now_s)), ""),
    )


def _hidden(rows: list[Row], shown: list[Row], width: int) -> Text:
    names = {row.key for row in shown}
    states = [row.state for row in rows if row.key not in names]
    counts = ", ".join(f"{states.count(state)} {state.value}" for state in State if state in states)
    return Text(fit(f"… and {len(states)} more: {counts}", width), style="dim", no_wrap=True)
