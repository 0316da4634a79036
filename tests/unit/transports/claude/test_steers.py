from __future__ import annotations

import pytest
from claude_wire import S1, S2, U1, U2, Cli, aborted, background_result, echo, failed_result, init, life, result, says

from greenroom.events import SteerConsumed, SteerDelivered, SteerRejected
from greenroom.model import FailureKind
from greenroom.transports.base import AttemptEnded

STEER_EVENTS = (SteerDelivered, SteerConsumed, SteerRejected)


def names(cli: Cli) -> list[str]:
    return [type(item).__name__.removeprefix("Steer") for item in cli.of(*STEER_EVENTS)]


def test_none_when_there_is_nothing_to_steer() -> None:
    cli = Cli().ready()
    assert cli.steer() is None
    cli.start()
    assert cli.steer() is None
    cli.feed(life(U1, "queued"))
    assert cli.steer() is None
    cli.feed(life(U1, "started"))
    assert cli.steer() is not None
    cli.interrupt()
    assert cli.steer(uuid=S2) is None
    cli.feed(aborted(U1))
    assert cli.steer(uuid=S2) is None


def test_a_steer_that_begins_with_a_slash_is_no_command() -> None:
    cli = Cli().ready().running()
    cli.steer("/clear")
    assert cli.written("user")[-1]["message"]["content"][1] == {"type": "text", "text": " "}
    assert cli.written("user")[-1]["uuid"] == S1


def test_a_steer_that_fits_no_line_is_rejected_unsent() -> None:
    cli = Cli().ready().running()
    cli.steer("\n" * 16_000_000)
    assert names(cli) == ["Rejected"]
    assert len(cli.written("user")) == 1
    cli.feed(result(U1))
    assert cli.ended.result.text == "answer"


def test_folded_into_the_running_turn() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(life(S1, "queued"), echo(S1, "steer"), life(S1, "started"), says("both"), life(S1, "completed"), result(U1, S1, text="both"))
    assert names(cli) == ["Delivered", "Consumed"]
    assert cli.ended.result.text == "both"
    assert cli.codec.deadline_s is None


def test_delivery_comes_before_consumption_even_when_its_frame_is_late_or_missing() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(result(U1, S1), life(S1, "queued"))
    assert names(cli) == ["Delivered", "Consumed"]


def test_run_as_a_turn_of_its_own() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(life(S1, "queued"), result(U1, text="first", uuid="r1"), life(U1, "completed"))
    assert not cli.of(AttemptEnded)
    assert cli.steer(uuid=S2) is None  # finishing
    cli.feed(life(S1, "started"), init(S1))
    cli.later(100)
    assert cli.steer("more", S2) is not None
    cli.feed(echo(S2), life(S2, "started"), result(S1, S2, text="second", uuid="r2"), life(S1, "completed"))
    assert cli.ended.result.text == "second"
    assert cli.ended.usage.tokens.input == 200
    assert cli.ended.duration_ms == 14
    assert names(cli) == ["Delivered", "Consumed", "Delivered", "Consumed"]


def test_a_background_turn_in_between_is_kept_apart() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(life(S1, "queued"), result(U1, uuid="r1"), init(), says("theirs"), background_result(uuid="r2"))
    assert not cli.of(AttemptEnded)
    cli.feed(life(S1, "started"), init(S1), result(S1, text="second", uuid="r3"))
    assert cli.ended.result.text == "second"


def test_not_taken_up_in_time() -> None:
    cli = Cli(steer_grace_s=10).ready().running()
    cli.steer()
    cli.feed(life(S1, "queued"), result(U1))
    cli.later(11)
    assert cli.requests() == ["cancel_async_message"]
    assert not cli.of(AttemptEnded)
    cli.feed(life(S1, "cancelled"))
    cli.answer("cancel_async_message", cancelled=True)
    assert names(cli) == ["Delivered", "Rejected"]
    assert cli.ended.result.text == "answer"


def test_taken_up_just_as_it_is_taken_back() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(result(U1, uuid="r1"))
    cli.later(11)
    cli.feed(life(S1, "started"))
    cli.answer("cancel_async_message", cancelled=False)
    cli.later(100)
    assert not cli.of(AttemptEnded)
    cli.feed(init(S1), result(S1, text="second", uuid="r2"))
    assert cli.ended.result.text == "second"
    assert names(cli) == ["Delivered", "Consumed"]


def test_nobody_says_whether_it_was_dropped() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(result(U1))
    cli.later(30)
    assert cli.ended.result.text == "answer"
    (rejected,) = cli.of(SteerRejected)
    assert rejected.reason.startswith("delivery unknown")


def test_a_failed_turn_takes_its_steers_back() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(failed_result(U1))
    assert cli.requests() == ["cancel_async_message"]
    cli.answer("cancel_async_message", cancelled=True)
    assert cli.ended.error.kind is FailureKind.TRANSIENT
    assert names(cli) == ["Rejected"]


def test_dropped_by_an_interrupt() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.interrupt()
    cli.feed(life(S1, "cancelled"), aborted(U1))
    assert cli.of(SteerRejected)[0].reason == "dropped by the interrupt"
    cli2 = Cli().ready().running()
    cli2.steer()
    cli2.interrupt()
    cli2.feed(aborted(U1))
    assert names(cli2) == ["Rejected"]


def test_an_interrupt_while_only_a_steer_is_outstanding_keeps_the_answer() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(result(U1, text="done"))
    cli.interrupt()
    assert cli.requests() == ["interrupt"]
    cli.feed(life(S1, "cancelled"))
    assert (cli.ended.result.text, cli.ended.result.interrupted) == ("done", False)


@pytest.mark.parametrize("answered", [True, False])
def test_a_timeout_while_only_a_steer_is_outstanding_keeps_the_answer(answered: bool) -> None:
    cli = Cli(steer_grace_s=60).ready().running(deadline_s=110.0, timeout_s=10.0)
    cli.steer()
    cli.feed(result(U1, text="done"))
    cli.later(11)
    if answered:
        cli.answer("interrupt", still_queued=[], cancelled=[S1])
    else:
        cli.later(11)
    assert cli.ended.result.text == "done"
    assert names(cli) == ["Rejected"]


def test_an_interrupt_of_the_turn_that_a_steer_opened() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(result(U1, text="done", uuid="r1"), life(S1, "started"), init(S1))
    cli.interrupt()
    cli.feed(aborted(S1, uuid="r2"))
    assert cli.ended.result.interrupted


def test_the_result_of_the_turn_that_a_steer_opened_is_lost() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.feed(result(U1, text="done"), life(S1, "started"), init(S1), life(S1, "completed"))
    cli.later(5)
    assert cli.ended.result.text == "done"


def test_the_process_dies() -> None:
    cli = Cli().ready().running()
    cli.steer("one", S1)
    cli.steer("two", S2)
    cli.feed(life(S1, "queued"), life(S1, "started"), life(S2, "queued"))
    cli.exit(signal=9)
    assert cli.of(SteerRejected) == [SteerRejected("two", "delivery unknown: the process ended")]
    assert not cli.of(AttemptEnded)
    assert cli.exit(signal=9) == []


def test_nothing_leaks_into_the_next_turn() -> None:
    cli = Cli().ready().running()
    cli.steer()
    cli.interrupt()
    cli.feed(aborted(U1, uuid="r1"))
    cli.start(U2)
    cli.feed(life(S1, "started"), echo(S1), life(S1, "cancelled"), result(S1, text="steer's", uuid="r2"))
    assert len(cli.of(AttemptEnded)) == 1
    assert names(cli) == ["Rejected"]
