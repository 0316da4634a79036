"""The CLI is killed after every line that it writes, in every kind of turn: what becomes of the turn, and what the model saw.

All lines of one kind of turn are one test, with a session for each line, in one room. `-m full` adds lines to those that always die.
"""

from __future__ import annotations

import functools

import attrs
import pytest

from greenroom import Continuity, NoRunningTurnError, TransportDiedError, Turn
from greenroom.events import AssistantText, SteerConsumed, SteerRejected, ToolCall, TransportDied, TransportRestarted
from greenroom.testing.scripted import Plan
from tests.faults.bench import until

WARM_LINES = 8
WARM = "SAY warm"


@attrs.frozen(kw_only=True)
class Kind:
    """A kind of turn: its prompt, how many lines it may take, what the caller does on an event, and what the turn must say then."""

    prompt: str
    lines: int
    text: str
    react: object = None
    interrupted: bool = False


def steer(cli, event):
    if isinstance(event, ToolCall):
        try:
            cli.session.steer("look there")
        except NoRunningTurnError:
            return
        cli.accepted += 1


def interrupt(cli, event):
    if isinstance(event, (AssistantText, TransportRestarted)):
        cli.session.interrupt()


KINDS = {
    "plain": Kind(prompt="SAY one", lines=9, text="one"),
    "tool": Kind(prompt="APPEND {home}/log line\nSAY two", lines=11, text="two"),
    "steered": Kind(prompt="AWAIT_STEER\nSAY three", lines=15, text="three", react=steer),
    "interrupted": Kind(prompt="SAY four\nHANG", lines=12, text="", react=interrupt, interrupted=True),
    "retried": Kind(prompt="API_ERROR 529 overloaded_error Overloaded 1\nSAY five", lines=17, text="five"),
}


def cases():
    for name, kind in KINDS.items():
        for later in (False, True):
            yield pytest.param(kind, later, id=f"{name}-{'later' if later else 'first'}")


@pytest.mark.parametrize(("kind", "later"), list(cases()))
def test_a_kill_after_any_line_costs_no_turn(bench, kind, later):
    before = WARM_LINES if later else 0
    clis = [begun(bench, kind, before, line) for line in range(1, kind.lines + 1)]
    for cli in clis:
        cli.outcome = cli.begun.outcome()
    found = {cli.line: what for cli in clis if (what := wrong(cli, kind))}
    assert not found, "\n".join(f"line {line}: {what}" for line, what in found.items())
    assert clis[0].outcome.restarts == 1, "the first line was no death"
    assert clis[-1].outcome.restarts == 0, "the last line was not reached: there are more lines than the case knows"
    for cli in clis:
        goes_on(cli)
    bench.close()
    for cli in clis:
        assert not cli.session._core.degraded


def begun(bench, kind, before, line):
    cli = bench.cli(Plan(kill_after_line=before + line))
    cli.line, cli.accepted = line, 0
    if before:
        cli.run(WARM)
    cli.events.clear()
    prompt = kind.prompt.format(home=cli.session.cwd)
    if kind.react is not None:
        cli.react = functools.partial(kind.react, cli)
    cli.prompt = prompt
    cli.warm = before > 0
    cli.begun = cli.begin(prompt)
    return cli


def wrong(cli, kind):
    """What is wrong with how the turn ended, if anything."""
    turn = cli.outcome
    if not isinstance(turn, Turn):
        return repr(turn)
    deaths, restarts = len(cli.of(TransportDied)), len(cli.of(TransportRestarted))
    steers = len(cli.of(SteerConsumed)) + len(cli.of(SteerRejected))
    faults = {
        # An interrupt may come while the next process starts: begun, but never ready.
        "restarts": turn.restarts > 1 or turn.restarts < restarts or (turn.restarts > restarts and not kind.interrupted),
        "deaths": deaths > 1 or deaths < turn.restarts,
        "interrupted": turn.result.interrupted != kind.interrupted,
        "text": not kind.interrupted and turn.result.text not in {kind.text, "done" if turn.restarts else ""},
        "continuity": turn.continuity is not Continuity.CONTINUED,
        "conversations": cli.conversation_ids != (turn.conversation_id,),
        "the prompt": cli.prompts().count(cli.prompt) != 1,
        "the steer": cli.prompts().count("look there") > max(1, cli.accepted),
        "steers": steers != cli.accepted,
        # After the handshake the turn's message may have been sent or not: then either is true.
        "bill": turn.restarts > 0 and (cli.warm or cli.line > 1) and turn.result.usage is not None and turn.result.usage.increment_known,
        "tools": "APPEND" in cli.prompt and (cli.session.cwd / "log").read_text().count("line") != 1,
    }
    found = [name for name, is_so in faults.items() if is_so]
    return found and (found, turn, cli.events, cli.prompts())


def goes_on(cli):
    """The next turn finds everything as it was left."""
    cli.react = None
    conversation_id = cli.outcome.conversation_id
    turn = cli.run("SAY next")
    assert (turn.result.text, turn.continuity, turn.conversation_id) == ("next", Continuity.CONTINUED, conversation_id), cli.line
    assert cli.prompts().count(cli.prompt) == 1


@pytest.mark.parametrize("line", [1, pytest.param(2, marks=pytest.mark.full), 4, pytest.param(5, marks=pytest.mark.full), 6])
def test_a_cli_that_always_dies_is_given_up_within_the_intensity(bench, line):
    sibling = bench.cli()
    slow = sibling.begin("SLOW 20 0.02")
    cli = bench.cli(Plan(kill_after_line=line, kill_times=1000))
    outcome = cli.begin("SAY never").outcome()
    assert isinstance(outcome, TransportDiedError)
    assert outcome.signal == 9
    assert len(cli.of(TransportDied)) == 4
    assert len(cli.of(TransportRestarted)) <= 3
    assert cli.prompts().count("SAY never") <= 1
    kept = cli.session.conversation_id
    assert kept is None or cli.conversation_ids == (kept,)
    # The intensity is the session's: while its window lasts, the next death is one too many at once.
    again = cli.begin("SAY again").outcome()
    assert isinstance(again, TransportDiedError)
    assert cli.session.conversation_id == kept
    assert slow.outcome().result.text
    until(lambda: cli.session.state == "idle")


@pytest.mark.parametrize("warm", [False, True])
def test_a_cli_that_answers_its_handshake_and_dies_is_given_up_though_each_start_succeeds(bench, warm):
    cli = bench.cli(Plan(kill_after_line=WARM_LINES) if warm else Plan())
    if warm:
        cli.run(WARM)
        until(lambda: cli.session._core.view.incarnation == 0)
    Plan(exit_after_handshake=True).write(cli.env["GREENROOM_SCRIPTED_PLAN"])
    outcome = cli.begin("SAY never").outcome()
    assert isinstance(outcome, TransportDiedError)
    assert outcome.returncode == 1
    assert "as planned" in outcome.stderr
    # A conversation that was never stored is asked for, refused, and begun again under its id: no death.
    assert 4 <= len(cli.starts) - warm <= (4 if warm else 7)
    if warm:
        assert cli.session.conversation_id == cli.conversation_ids[0]
    # Mended, and out of the window's reach for a new session: the conversation goes on.
    Plan().write(cli.env["GREENROOM_SCRIPTED_PLAN"])
    assert "SAY never" not in cli.prompts()
