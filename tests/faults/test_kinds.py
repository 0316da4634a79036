"""Kinds of fault that people meet, one line of the table in README.md each, on the scripted CLI."""

from __future__ import annotations

import threading
import time

import pytest

from greenroom import (
    CliExitError,
    Continuity,
    FailureKind,
    GreenroomError,
    NoRunningTurnError,
    RetryPolicy,
    SessionResumeError,
    TransportDiedError,
    Turn,
    TurnCancelledError,
    TurnFailedError,
    TurnTimeoutError,
)
from greenroom.events import AssistantText, Lifecycle, SteerConsumed, SteerRejected, ToolCall
from greenroom.testing.scripted import Plan
from tests.faults.bench import outcome_of, until

NEVER = RetryPolicy(delays=())


# --- whose result ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("SAY mine\nUNPROMPTED theirs", "mine"),
        ("SAY mine\nLATE_FRAMES", "mine"),
        ("SUBAGENT theirs\nSAY mine", "mine"),
        ("SAY mine\nUNPROMPTED SLEEP 0.2", "mine"),
    ],
    ids=["unprompted", "late-frames", "subagent", "unprompted-slow"],
)
def test_a_turn_gets_its_own_result_and_the_next_one_its_own(bench, prompt, text):
    cli = bench.cli()
    assert cli.run(prompt).result.text == text
    for number in range(3):
        assert cli.run(f"SAY next {number}").result.text == f"next {number}"


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("SAY half\nNO_RESULT_EXIT", TransportDiedError),
        ("SAY half\nEXIT 0", TransportDiedError),
        ("API_ERROR 400 invalid_request API Error: 400 prose", TurnFailedError),
    ],
    ids=["no-result", "exit-0", "failure-dressed-as-success"],
)
def test_no_result_and_a_result_that_is_an_error_are_never_done(bench, prompt, error):
    cli = bench.cli(retry=NEVER)
    assert isinstance(outcome_of(cli.run, prompt), error)
    assert cli.prompts().count(prompt) == 1


# --- stop --------------------------------------------------------------------------------------------------------------------------


def test_a_stop_before_the_agent_is_ready_is_remembered(bench):
    cli = bench.cli(Plan(slow_start_s=3.0))
    begun = cli.begin("SAY never")
    until(lambda: cli.session.state not in {"idle", "prepared"}, "the turn's beginning")
    cli.session.interrupt()
    assert begun.outcome().result.interrupted
    until(lambda: cli.session.state == "idle")
    assert cli.prompts() == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_stop_that_is_never_answered_is_forced_and_the_next_turn_resumes(bench, times):
    cli = bench.cli(transport={"interrupt_grace_s": 0.3})
    begun = cli.begin("IGNORE_INTERRUPT\nSAY a\nHANG")
    cli.wait_for(AssistantText)
    for _ in range(times):
        cli.session.interrupt()
    turn = begun.outcome()
    assert turn.result.interrupted
    assert turn.forced
    later = cli.run("SAY later")
    assert (later.result.text, later.continuity, later.result.resumed) == ("later", Continuity.CONTINUED, True)


def test_a_stop_in_a_retry_wait_settles_at_once_and_nothing_is_tried_again(bench):
    cli = bench.cli(retry=RetryPolicy(delays=(60,)))
    begun = cli.begin("API_ERROR 529 server_error API Error: 529 Overloaded")
    until(lambda: cli.session.state == "waiting")
    began_s = time.monotonic()
    cli.session.interrupt()
    outcome = begun.outcome()
    assert isinstance(outcome, TurnFailedError)
    assert outcome.kind is FailureKind.TRANSIENT
    assert time.monotonic() - began_s < 30
    assert len(cli.prompts()) == 1


def test_stops_that_race_with_the_end_hit_their_own_turn_or_nothing(bench):
    cli = bench.cli()
    for number in range(25):
        ticket = cli.ticket(f"SAY {number}")
        racer = threading.Timer(number * 0.0005, cli.session.interrupt, (ticket,))
        racer.start()
        turn = outcome_of(cli.session.run, ticket)
        racer.join()
        assert isinstance(turn, TurnCancelledError) or turn.result.interrupted or turn.result.text == str(number)
    assert cli.run("SAY last").result.text == "last"


def test_a_timeout_interrupts_and_keeps_the_conversation(bench):
    cli = bench.cli()
    cli.run("SAY a")
    assert isinstance(outcome_of(cli.run, "SAY b\nHANG", timeout=0.3), TurnTimeoutError)
    assert cli.run("SAY c").continuity is Continuity.CONTINUED


# --- steer -------------------------------------------------------------------------------------------------------------------------


def test_steers_from_many_threads_are_each_whole_and_each_told_of(bench):
    cli = bench.cli()
    begun = cli.begin("AWAIT_STEER\nTOOL_SLEEP 0.3 x\nSAY end")
    cli.wait_for(ToolCall)
    texts = [f"text {number} " + "é" * 2000 for number in range(8)]
    answers = []
    threads = [
        threading.Thread(target=lambda text=text: answers.append(outcome_of(cli.session.steer, text)), daemon=True) for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(begun.outcome(), Turn)
    accepted = answers.count(None)
    assert accepted + sum(isinstance(answer, NoRunningTurnError) for answer in answers) == len(texts)
    assert len(cli.of(SteerConsumed)) + len(cli.of(SteerRejected)) == accepted
    seen = [line for prompt in cli.prompts() for line in prompt.splitlines()]
    assert all(seen.count(event.text) == 1 for event in cli.of(SteerConsumed))


def test_steers_that_race_with_the_end_are_delivered_once_or_refused(bench):
    cli = bench.cli()
    for number in range(15):
        answers = []
        racer = threading.Timer(
            number * 0.001, lambda number=number, answers=answers: answers.append(outcome_of(cli.session.steer, f"s{number}"))
        )
        racer.start()
        cli.run(f"SAY a\nTOOL Bash {{}} -> x\nSAY {number}")
        racer.join()
        assert answers == [None] or isinstance(answers[0], NoRunningTurnError)
    assert cli.run("SAY last").result.text == "last"
    told = len(cli.of(SteerConsumed)) + len(cli.of(SteerRejected))
    assert told == sum(cli.prompts().count(f"s{number}") for number in range(15)) + len(cli.of(SteerRejected))


# --- which conversation --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "options", "continuity"),
    [
        (Plan(in_use_times=2), {}, Continuity.CONTINUED),
        (Plan(refuse_resume=True), {}, Continuity.REPLACED),
        (Plan(refuse_resume=True), {"pin": True}, SessionResumeError),
        (Plan(refuse_resume=True), {"expect": True}, SessionResumeError),
        (Plan(resume_as="new"), {"pin": True}, SessionResumeError),
    ],
    ids=["in-use", "gone", "gone-pinned", "gone-strict", "answered-with-another"],
)
def test_a_resume_that_fails_is_waited_for_replaced_once_or_refused(bench, plan, options, continuity):
    cli = bench.cli()
    first = cli.run("SAY a").conversation_id
    cli.session.release()
    until(lambda: cli.session._core.view.incarnation == 0)
    plan.write(cli.env["GREENROOM_SCRIPTED_PLAN"])
    demands = {"expect_conversation": first} if options.get("expect") else dict(options)
    from greenroom import TurnRequest

    ticket = cli.session.prepare_turn(TurnRequest(prompt="SAY b"), **demands)
    outcome = outcome_of(cli.session.run, ticket)
    if isinstance(continuity, type):
        assert isinstance(outcome, continuity)
        assert len(cli.starts) <= 3
    else:
        assert (outcome.continuity, outcome.result.text) == (continuity, "b")
    # Which conversation answers is only told once it has the prompt.
    assert cli.prompts().count("SAY b") == (plan.resume_as == "new" if isinstance(continuity, type) else 1)


# --- processes -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "plan"),
    [
        ("SPAWN 60\nSAY a", Plan()),
        ("HOLD_PIPE 60\nSAY a", Plan()),
        ("IGNORE_SIGTERM\nSAY a", Plan(ignore_eof=True)),
        ("IGNORE_INTERRUPT\nIGNORE_SIGTERM\nSAY a\nHANG", Plan(ignore_eof=True)),
    ],
    ids=["grandchild", "grandchild-holds-the-pipe", "deaf-to-eof-and-term", "deaf-to-all"],
)
def test_closing_ends_what_does_not_want_to_end_and_its_grandchildren(bench, prompt, plan):
    cli = bench.cli(plan, transport={"close_grace_s": 0.2, "interrupt_grace_s": 0.2})
    begun = cli.begin(prompt)
    cli.wait_for(AssistantText)
    began_s = time.monotonic()
    cli.session.close()
    assert time.monotonic() - began_s < 30
    assert isinstance(begun.outcome(), (Turn, GreenroomError))


@pytest.mark.parametrize("how", ["CRASH 9", "CLOSE_STDOUT", "HALF_LINE"])
def test_a_death_says_why_when_no_restart_is_allowed(bench, how):
    from greenroom import RestartPolicy

    cli = bench.cli(restart=RestartPolicy(max_restarts=0))
    error = outcome_of(cli.run, f"STDERR 300\nSAY a\n{how}")
    assert isinstance(error, TransportDiedError)
    assert error.signal == 9 or error.returncode == 1
    assert "eee" in error.stderr


def test_a_start_that_never_answers_fails_in_time_and_leaves_no_process(bench):
    cli = bench.cli(Plan(no_handshake=True), transport={"startup_timeout_s": 0.3})
    began_s = time.monotonic()
    assert isinstance(outcome_of(cli.run, "SAY never"), GreenroomError)
    assert time.monotonic() - began_s < 20
    cli.session.close()


def test_a_process_that_dies_while_a_large_prompt_is_written_costs_no_turn(bench):
    cli = bench.cli(Plan(kill_after_line=1))
    prompt = "SAY got it\n" + "x" * 5_000_000
    turn = cli.run(prompt)
    assert turn.result.text == "got it"
    assert cli.prompts().count(prompt) == 1


# --- pipes ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt", ["GARBAGE", "BAD_UTF8", "STDERR 2000000", "UNKNOWN_REQUEST odd", "CAN_USE_TOOL Bash {}", "HUGE_LINE 20000000"]
)
def test_noise_in_a_turn_costs_it_nothing(bench, prompt):
    cli = bench.cli()
    assert cli.run(prompt + "\nSAY a").result.text == "a"
    assert cli.run("SAY b").result.text == "b"


@pytest.mark.parametrize("plan", [Plan(stderr_at_start=2_000_000), Plan(garbage_at_start=True)], ids=["2-MB-of-stderr", "banner"])
def test_noise_before_the_first_line_costs_the_start_nothing(bench, plan):
    assert bench.cli(plan).run("SAY a").result.text == "a"


def test_a_line_over_the_limit_fails_its_turn_and_the_stream_is_in_step_again(bench):
    cli = bench.cli(retry=NEVER)
    error = outcome_of(cli.run, f"HUGE_LINE {33 * 1024 * 1024}\nSAY a")
    assert isinstance(error, TurnFailedError), error
    turn = cli.run("SAY b")
    assert (turn.result.text, turn.continuity) == ("b", Continuity.CONTINUED)


def test_a_loud_neighbour_delays_nobody(bench):
    loud, quiet = bench.cli(), bench.cli()
    begun = loud.begin("SAY x\nFLOOD 30000 300\nHANG")
    loud.wait_for(AssistantText)
    quiet.run("SAY warm")
    quiet.run("SAY a")  # ends, although the loud one's turn never does
    assert not begun.ticket.ended
    loud.session.interrupt()
    assert isinstance(begun.outcome(), Turn)


# --- errors, environment -----------------------------------------------------------------------------------------------------------------


def test_retries_in_place_show_the_prompt_once_and_repeat_no_tool(bench):
    cli = bench.cli(retry=RetryPolicy(delays=(0.01, 0.01, 0.01)))
    prompt = f"APPEND {cli.session.cwd}/log line\nAPI_ERROR 529 server_error API Error: 529 Overloaded 2\nSAY end"
    turn = cli.run(prompt)
    assert (turn.result.text, turn.retries) == ("end", 2)
    assert cli.prompts().count(prompt) == 1
    assert (cli.session.cwd / "log").read_text() == "line\n"


def test_a_start_that_is_refused_carries_the_reason(bench):
    cli = bench.cli(Plan(die_at_start=True, stderr_at_start="Error: the reason"))
    error = outcome_of(cli.run, "SAY never")
    assert isinstance(error, CliExitError), error
    assert "the reason" in error.stderr
    assert error.returncode


@pytest.mark.timeout(120)
def test_sixty_starts_at_once_with_room_for_eight_and_a_third_of_them_failing(bench):
    clis = [bench.cli(Plan(die_at_start=True) if number % 3 == 0 else Plan()) for number in range(60)]
    begun = [cli.begin(f"SAY {number}") for number, cli in enumerate(clis)]
    for number, one in enumerate(begun):
        outcome = one.outcome(60)
        if number % 3 == 0:
            assert isinstance(outcome, GreenroomError)
        else:
            assert outcome.result.text == str(number)
    waited = [cli for cli in clis if any(isinstance(event, Lifecycle) and event.detail == "start slot" for event in cli.events)]
    assert 10 < len(waited) <= 52
