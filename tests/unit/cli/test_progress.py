from __future__ import annotations

import asyncio
import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from greenroom.cli.progress import Board, State
from greenroom.cli.reporter import Reporter, Screen
from greenroom.cli.results import Outcome, TaskRecord
from greenroom.cli.safe_text import fit, one_line
from greenroom.cli.view import in_short, render, short_count, short_time
from greenroom.events import (
    AssistantText,
    Lifecycle,
    RawOutput,
    Stalled,
    SteerConsumed,
    ToolCall,
    ToolResult,
    TransportDied,
    TransportRestarted,
    UsageReport,
)
from greenroom.liveness import Liveness, LivenessReason, RunningTool
from greenroom.model import ProviderUsage, TokenUsage


def drawn(board, width, height, now_s=100.0):
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False, color_system=None)
    console.print(render(board, width=width, height=height, now_s=now_s))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def busy_board(count):
    return Board(((f"task-{n}", "shared" if n % 2 else f"task-{n}") for n in range(count)), title="greenroom run")


def test_a_row_follows_the_events_of_its_turn():
    board = busy_board(1)
    said = [board.began("task-0", 1.0)]
    events = (
        AssistantText("Hello\nworld"),
        ToolCall("1", "Bash", {"command": "pytest -q"}),
        ToolResult("1", "Bash", stdout="3 passed"),
        UsageReport(ProviderUsage(tokens=TokenUsage(input=1000, output=500), total_cost_usd=0.25)),
        Lifecycle("wait", "retry in 30 s"),
        AssistantText("again"),
        TransportDied("signal 9"),
        TransportRestarted(2),
        SteerConsumed("use the cache"),
        RawOutput("noise"),
    )
    said.extend(board.event("task-0", event) for event in events)
    row = board.rows["task-0"]
    assert (row.retries, row.restarts, row.tokens, row.cost_usd, row.state) == (1, 1, 1500, 0.25, State.RUNNING)
    texts = [change.text for change in said if change]
    assert texts == ["started", "wait retry in 30 s", "died: signal 9", "restarted (process 2)", "steered: use the cache"]
    done = TaskRecord(id="task-0", session="task-0", outcome=Outcome.DONE, text="all\ngood", restarts=1)
    assert board.ended(done, 9.0).text == "done"
    assert row.seconds(100.0) == 8.0
    assert board.event("task-0", AssistantText("late")) is None
    assert row.now == "all good"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 10), (80, 6), (250, 60)])
@pytest.mark.parametrize("count", [1, 12, 200])
def test_the_board_fits_the_terminal(width, height, count):
    board = busy_board(count)
    for n in range(0, count, 3):
        board.began(f"task-{n}", 10.0)
        board.event(f"task-{n}", AssistantText("漢字 " * 50))
    lines = drawn(board, width, height)
    assert len(lines) <= height - 1
    assert all(cell_len(line) <= width for line in lines)


def test_two_hundred_tasks_show_the_running_ones_first_and_then_counts():
    board = busy_board(200)
    for n in (150, 60, 7):
        board.began(f"task-{n}", float(n))
    board.ended(TaskRecord(id="task-9", session="s", outcome=Outcome.FAILED, error={"message": "boom"}), 5.0)
    lines = drawn(board, 80, 24, now_s=200.0)
    assert lines[0].startswith("greenroom run · 3m20")
    assert lines[1] == "$0.00 · 0 tokens · 196 queued · 3 starting · 1 failed"
    assert [line.split()[0] for line in lines[2:7]] == ["id", "task-7", "task-60", "task-150", "task-9"]
    assert lines[-1] == "… and 181 more: 181 queued"
    assert "boom" in lines[6]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_a_row_has_everything_at_both_sizes(width, height):
    board = Board([("fix-tests", "api")])
    board.began("fix-tests", 10.0)
    board.event("fix-tests", UsageReport(ProviderUsage(tokens=TokenUsage(input=12_345), total_cost_usd=1.5)))
    board.event("fix-tests", ToolCall("1", "Bash", {"command": "pytest -q tests"}))
    lines = drawn(board, width, height, now_s=75.0)
    heads, row = lines[2], lines[3]
    assert heads.split() == ["id", "session", "state", "now", "t/r/R", "tokens", "cost", "time"]
    for part in ("fix-tests", "api", "running", "Bash pytest -q", "1/0/0", "12.3k", "$1.50", "1m05"):
        assert part in row


def test_all_rows_keep_their_place_when_they_fit():
    board = busy_board(5)
    board.began("task-4", 1.0)
    assert [line.split()[0] for line in drawn(board, 80, 24)[3:]] == [f"task-{n}" for n in range(5)]


NASTY = "\x1b[2J\x1b]0;title\x07[red]boo[/red]\r\nnext\u202egnp\x00\x9b31m\ud800end"


def test_text_of_agents_reaches_no_terminal_as_control():
    assert one_line(NASTY) == "[red]boo[/red] nextgnp31mend"
    board = Board([("[bold]a", "[red]s")])
    board.began("[bold]a", 1.0)
    board.event("[bold]a", AssistantText(NASTY))
    text = "\n".join(drawn(board, 120, 24))
    assert "[bold]a" in text
    assert "[red]s" in text
    assert "[red]boo[/red] nextgnp" in text
    assert not any(ord(char) < 32 and char != "\n" for char in text)


def test_long_lines_are_cut_by_terminal_cells():
    assert fit("漢字漢字", 5) == "漢字…"
    assert fit("abc", 3) == "abc"
    assert fit("abcd", 3) == "ab…"
    assert fit("abc", 0) == ""
    assert len(one_line("x" * 10_000_000)) == 400


def live(reason, *, for_s=0.0, left_s=None, tool=""):
    tools = (RunningTool(tool_id="a", tool=tool, detail="", since_monotonic_s=0.0),) if tool else ()
    until_s = None if left_s is None else for_s + left_s
    return Liveness(reason=reason, since_monotonic_s=0.0, for_s=for_s, quiet_s=0.0, until_monotonic_s=until_s, tools=tools)


R = LivenessReason
SHORT = [
    (live(R.TOOL, for_s=12, tool="Bash"), "tool Bash 12s"),
    (live(R.TOOL, for_s=65, tool="WebFetch"), "WebFetch 1m05"),
    (live(R.TOOL, for_s=7200, tool="mcp__tiny__echo"), "mcp__tin… 2h00"),
    (live(R.TOOL, for_s=1, tool="\x1b[2Ja\nb"), "tool a b 1s"),
    (live(R.RETRY, for_s=2, left_s=28), "retry in 28s"),
    (live(R.LIMIT, for_s=2, left_s=4000), "limit in 1h06"),
    (live(R.APPROVAL, for_s=3, tool="Bash"), "approval 3s"),
    (live(R.SILENT, for_s=900, tool="Bash"), "silent 15m00"),
    (live(R.START_SLOT, for_s=3), "slot 3s"),
]


@pytest.mark.parametrize(("now", "words"), SHORT, ids=[words for _, words in SHORT])
def test_what_a_session_is_at_in_a_narrow_column(now, words):
    assert in_short(now, 14) == words
    board = Board([("a", "a")])
    board.began("a", 1.0)
    board.opened("a", lambda: now)
    assert words in drawn(board, 80, 24)[3]


@pytest.mark.parametrize("reason", [reason for reason in R if reason not in {R.IDLE, R.CLOSED, R.TOOL}])
def test_every_reason_fits_the_column(reason):
    assert len(in_short(live(reason, for_s=3599), 14)) <= 14
    assert len(in_short(live(reason, left_s=9), 14)) <= 14


@pytest.mark.parametrize("reason", [R.IDLE, R.CLOSED])
def test_a_session_that_is_at_nothing_leaves_the_rows_own_state(reason):
    board = Board([("a", "a")])
    board.began("a", 1.0)
    board.opened("a", lambda: live(reason))
    assert "starting" in drawn(board, 80, 24)[3]


def test_a_row_that_has_ended_asks_no_session():
    board = Board([("a", "a")])
    board.began("a", 1.0)
    board.opened("a", lambda: 1 / 0)
    board.ended(TaskRecord(id="a", session="a", outcome=Outcome.DONE), 2.0)
    assert "done" in drawn(board, 80, 24)[3]


def test_a_stall_is_a_line():
    board = Board([("a", "a")])
    board.began("a", 1.0)
    assert board.event("a", Stalled("model at work", 900.0)).text == "silent for 900 s (model at work)"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1000, "1.0k"), (99_949, "99.9k"), (123_456, "123k"), (4_500_000, "4.5M")]
)
def test_short_counts(count, text):
    assert short_count(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (7.9, "7s"), (185, "3m05"), (7620, "2h07")])
def test_short_times(seconds, text):
    assert short_time(seconds) == text


def test_lines_are_printed_where_there_is_no_terminal():
    out = io.StringIO()
    reporter = Reporter(Board([("a", "a")]), Screen(file=out, width=40))

    async def play():
        async with reporter.showing():
            reporter.began("a")
            reporter.event("a", AssistantText("not a change"))
            reporter.event("a", TransportDied(NASTY))
            reporter.note("stopping")
            reporter.ended(TaskRecord(id="a", session="a", outcome=Outcome.FAILED, error={"message": "x" * 100}))

    asyncio.run(play())
    lines = out.getvalue().splitlines()
    assert [line.split("s  ", 1)[1] for line in lines] == [
        "a started",
        "a died: [red]boo[/red] nextgnp31mend",
        "stopping",
        "a failed: " + "x" * 100,
    ]


class BrokenScreen(io.StringIO):
    def write(self, text):
        raise self.error

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(5, "gone"), ValueError("closed"), UnicodeEncodeError("ascii", "x", 0, 1, "no")]
)
@pytest.mark.parametrize("terminal", [True, False])
def test_a_screen_that_is_gone_ends_the_showing_and_not_the_run(terminal, error):
    out = BrokenScreen()
    out.error = error
    out.terminal = terminal
    reporter = Reporter(Board([("a", "a")]), Screen(file=out, force_terminal=terminal))

    async def play():
        async with reporter.showing():
            reporter.began("a")
            await asyncio.sleep(0)
            reporter.ended(TaskRecord(id="a", session="a", outcome=Outcome.DONE))
        return "went on"

    assert asyncio.run(play()) == "went on"


def test_a_terminal_gets_a_live_table():
    out = io.StringIO()
    reporter = Reporter(Board([("a", "a")]), Screen(file=out, force_terminal=True, width=80, height=24))

    async def play():
        async with reporter.showing():
            reporter.began("a")
            await asyncio.sleep(0)

    asyncio.run(play())
    assert "starting" in out.getvalue()
