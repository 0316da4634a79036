"""The model and the permission mode of a turn: asked for before its message is written, held against what the CLI says, and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from greenroom.errors import ProviderCapabilityError
from greenroom.events import PermissionsDiffer
from greenroom.model import FailureKind, InteractionMode, TurnRequest
from greenroom.transports.base import AttemptEnded, AttemptSwallowed, Kill
from greenroom.transports.claude.modes import width
from greenroom.transports.home_models import HomeModels
from tests.unit.transports.claude.claude_wire import SESSION, U1, U2, U3, Cli, control_response, init, life, result

BYPASS = "bypassPermissions"
PLAN = TurnRequest("plan it", interaction_mode=InteractionMode.PLAN)


def own(model: str) -> TurnRequest:
    return TurnRequest("prompt", model=model)


def ready(**config: Any) -> Cli:
    return Cli(**{"permission_mode": BYPASS, "proposed_id": SESSION, **config}).ready()


def asked(cli: Cli) -> list[tuple[Any, ...]]:
    """The model and mode requests so far."""
    rows = [frame["request"] for frame in cli.written("control_request")]
    return [tuple(row.values()) for row in rows if row["subtype"] in {"set_model", "set_permission_mode", "get_settings"}]


def sent(cli: Cli) -> list[str]:
    return [frame["uuid"] for frame in cli.written("user")]


def runs(cli: Cli, uuid: str, mode: str = BYPASS, **fields: Any) -> None:
    cli.feed(life(uuid, "queued"), life(uuid, "started"), init(uuid, permissionMode=mode), result(uuid, **fields), life(uuid, "completed"))


def error_response(cli: Cli, subtype: str, text: str, code: str) -> None:
    request_id = [frame["request_id"] for frame in cli.written("control_request") if frame["request"]["subtype"] == subtype][-1]
    response = {"subtype": "error", "request_id": request_id, "error": text, "error_code": code}
    cli.feed({"type": "control_response", "response": response})


# --- models


def test_a_turn_without_a_wish_asks_for_nothing() -> None:
    cli = ready()
    cli.start()
    assert (asked(cli), sent(cli)) == ([], [U1])


def test_the_message_waits_for_the_model_and_the_next_turn_has_the_sessions_again() -> None:
    cli = ready(model="home")
    cli.start(U1, request=own("other"))
    assert (asked(cli), sent(cli)) == ([("set_model", "other")], [])
    cli.answer("set_model", model="other")
    assert sent(cli) == [U1]
    runs(cli, U1)
    cli.start(U2, request=own("other"))
    assert sent(cli) == [U1, U2], "it has that model already"
    runs(cli, U2)
    cli.start(U3)
    assert asked(cli)[1:] == [("set_model", "home")]
    cli.answer("set_model", model="home")
    assert sent(cli) == [U1, U2, U3]


def test_a_session_without_a_model_goes_back_to_the_one_that_the_process_had() -> None:
    cli = ready()
    cli.start(U1, request=own("other"))
    cli.answer("get_settings", applied={"model": "found"})
    cli.answer("set_model", model="other")
    runs(cli, U1)
    cli.start(U2)
    cli.answer("set_model", model="found")
    assert asked(cli) == [("get_settings",), ("set_model", "other"), ("set_model", "found")]
    assert sent(cli) == [U1, U2]


def test_a_resumed_process_takes_the_models_of_its_last_turn_and_is_told_otherwise() -> None:
    homes = HomeModels()
    homes.keep(SESSION, "found")
    cli = ready(resume_id=SESSION, home_models=homes)
    cli.start(U1)
    assert asked(cli) == [("set_model", "found")]
    other = ready(resume_id="another", home_models=homes)
    other.start(U1)
    assert (asked(other), sent(other)) == ([], [U1])


def test_a_process_that_does_not_say_its_model_gets_no_other() -> None:
    cli = ready()
    cli.start(U1, request=own("other"))
    cli.answer("get_settings", applied=None)
    assert isinstance(cli.ended.error, ProviderCapabilityError)
    assert not sent(cli)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("check_server_error", FailureKind.TRANSIENT),
        ("check_unreachable", FailureKind.TRANSIENT),
        ("rate_limit", FailureKind.TRANSIENT),
        ("auth_failed", FailureKind.AUTH),
        ("not_found", FailureKind.OTHER),
        ("", FailureKind.OTHER),
    ],
)
def test_a_model_that_is_not_set_fails_the_turn_before_anything_is_sent_and_the_process_stays(code: str, kind: FailureKind) -> None:
    cli = ready(model="home")
    cli.start(U1, request=own("other"))
    error_response(cli, "set_model", "not today", code)
    assert "not today" in str(cli.ended.error)
    assert cli.ended.error.kind is kind
    assert (cli.ended.keeps_conversation, cli.ended.forced, cli.ended.sent) == (True, False, False)
    assert not cli.of(Kill)
    cli.start(U2)
    assert sent(cli) == [U2]


def test_a_mode_that_is_refused_fails_the_turn_and_ends_the_process() -> None:
    cli = ready()
    cli.start(U1, request=PLAN)
    error_response(cli, "set_permission_mode", "not today", "bypass_not_launched")
    assert isinstance(cli.ended.error, ProviderCapabilityError)
    assert (cli.ended.forced, cli.ended.sent, len(cli.of(Kill))) == (True, False, 1)
    assert not sent(cli)


def test_without_an_answer_the_turn_does_not_run_and_the_process_goes() -> None:
    cli = ready(model="home", startup_timeout_s=30.0)
    cli.start(U1, request=own("other"))
    cli.later(29)
    assert not cli.of(AttemptEnded)
    cli.later(2)
    assert "no answer to set_model within 30 s" in str(cli.ended.error)
    assert (len(cli.of(Kill)), cli.ended.sent) == (1, False)
    assert not sent(cli)


def test_an_interrupt_does_not_wait_for_the_answer() -> None:
    cli = ready(model="home")
    cli.start(U1, request=own("other"))
    cli.interrupt()
    assert cli.ended.result is not None
    assert cli.ended.result.interrupted
    cli.answer("set_model", model="other")
    cli.start(U2)
    assert (asked(cli), sent(cli)) == ([("set_model", "other"), ("set_model", "home")], [])
    cli.answer("set_model", model="home")
    assert sent(cli) == [U2]


def test_a_late_answer_counts_for_what_it_answers() -> None:
    cli = ready(model="home")
    cli.start(U1, request=own("other"))
    cli.interrupt()
    cli.start(U2, request=own("other"))
    assert not sent(cli), "a request of the turn before is open"
    cli.answer("set_model", model="other")
    assert (asked(cli), sent(cli)) == ([("set_model", "other")], [U2])


def test_a_timeout_counts_while_the_answer_is_due() -> None:
    cli = ready(model="home")
    cli.start(U1, request=own("other"), deadline_s=cli.now_s + 5, timeout_s=5.0)
    cli.later(6)
    assert "did not finish within 5 s" in str(cli.ended.error)
    assert not cli.of(Kill)


def test_a_turn_found_on_disk_needs_no_model() -> None:
    cli = ready(model="home", taken_receipt=U1)
    cli.start(U1, request=own("other"), probe=True)
    assert (asked(cli), cli.of(AttemptSwallowed)) == ([], [AttemptSwallowed("turn-1")])


# --- permission modes


def planned(cli: Cli, uuid: str = U1) -> Cli:
    cli.start(uuid, request=PLAN)
    cli.answer("set_permission_mode", mode="plan")
    return cli


def test_a_plan_turn_is_in_plan_mode_and_the_next_one_is_not() -> None:
    cli = planned(ready())
    assert (asked(cli), sent(cli)) == ([("set_permission_mode", "plan")], [U1])
    runs(cli, U1, mode="plan")
    cli.start(U2)
    assert sent(cli) == [U1]
    cli.answer("set_permission_mode", mode=BYPASS)
    runs(cli, U2)
    cli.start(U3)
    assert asked(cli) == [("set_permission_mode", "plan"), ("set_permission_mode", BYPASS)]
    assert (sent(cli), len(cli.of(AttemptEnded))) == ([U1, U2, U3], 2)


def test_both_wishes_are_met_one_after_the_other() -> None:
    cli = ready(model="home")
    cli.start(U1, request=TurnRequest("x", model="other", interaction_mode=InteractionMode.PLAN))
    cli.answer("set_permission_mode", mode="plan")
    assert not sent(cli)
    cli.answer("set_model", model="other")
    assert sent(cli) == [U1]


@pytest.mark.parametrize(
    ("request_", "mode"), [(PLAN, BYPASS), (PLAN, "default"), (TurnRequest("x"), "default"), (TurnRequest("x"), "what")]
)
def test_a_turn_that_begins_in_another_mode_is_ended_and_its_process_too(request_: TurnRequest, mode: str) -> None:
    cli = ready()
    cli.start(U1, request=request_)
    if request_ is PLAN:
        cli.answer("set_permission_mode", mode="plan")
    cli.feed(life(U1, "queued"), life(U1, "started"), init(U1, permissionMode=mode))
    assert isinstance(cli.ended.error, ProviderCapabilityError)
    assert mode in cli.of(PermissionsDiffer)[0].reported
    assert cli.ended.keeps_conversation
    assert len(cli.of(Kill)) == 1
    cli.feed(result(U1))
    assert len(cli.of(AttemptEnded)) == 1


@pytest.mark.parametrize("mode", [BYPASS, "auto", "newer"])
def test_a_mode_wider_than_the_sessions_ends_it_whenever_it_is_told(mode: str) -> None:
    told = {"type": "system", "subtype": "status", "status": None, "permissionMode": mode}
    running = ready(permission_mode="acceptEdits").running()
    running.feed(told)
    assert isinstance(running.ended.error, ProviderCapabilityError)
    idle = ready(permission_mode="acceptEdits")
    idle.feed(told)
    for cli in (running, idle):
        assert cli.of(PermissionsDiffer)[0].asked == "acceptEdits"
        assert cli.of(Kill)


def test_a_plan_that_was_accepted_brings_the_sessions_own_mode_back_and_the_next_turn_needs_no_request() -> None:
    cli = planned(ready())
    cli.feed(life(U1, "queued"), life(U1, "started"), init(U1, permissionMode="plan"))
    cli.feed({"type": "system", "subtype": "status", "status": None, "permissionMode": BYPASS})
    cli.feed(result(U1), life(U1, "completed"))
    cli.start(U2)
    assert (asked(cli), sent(cli)) == ([("set_permission_mode", "plan")], [U1, U2])
    assert not cli.of(PermissionsDiffer)


def test_a_turn_behind_one_that_entered_plan_mode_by_itself_leaves_it() -> None:
    cli = ready().running(U1)
    cli.feed({"type": "system", "subtype": "status", "status": None, "permissionMode": "plan"}, result(U1), life(U1, "completed"))
    cli.start(U2)
    assert asked(cli) == [("set_permission_mode", BYPASS)]


def test_a_turn_of_the_clis_own_is_not_held_against_a_wish_of_ours() -> None:
    cli = planned(ready())
    cli.feed(init("somebody", permissionMode=BYPASS))
    assert not cli.of(PermissionsDiffer)


def test_widths() -> None:
    order = ["plan", "default", "acceptEdits", "auto", BYPASS, "unheard of"]
    assert sorted(order, key=width) == order
    assert width("manual") == width("default")


def test_answers_to_nothing_change_nothing() -> None:
    cli = ready()
    cli.feed(control_response("greenroom-77", mode="plan"))
    cli.start(U1)
    assert (asked(cli), sent(cli)) == ([], [U1])


def test_the_memory_of_models_is_bounded_and_keeps_the_first() -> None:
    homes = HomeModels(kept=2)
    for name in ("a", "b", "a", "c"):
        homes.keep(name, f"model of {name}")
    homes.keep("c", "later")
    homes.keep(None, "x")
    assert [homes.of(name) for name in ("a", "b", "c", None)] == [None, "model of b", "model of c", None]
