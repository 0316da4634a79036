"""Requests of Claude Code that wait for a person: what is asked, what is written, and what happens to one that nobody answers."""

from __future__ import annotations

from typing import Any

import pytest
from claude_wire import U1, U2, ApprovalPolicy, Cli, aborted, life, result

from greenroom.asks import Accept, AcceptForSession, Answer, Approval, CancelTurn, Decline, Inquiry, Option, Question, Reply
from greenroom.errors import TurnTimeoutError
from greenroom.events import ApprovalDenied, RawOutput
from greenroom.model import TurnRequest
from greenroom.transports.base import Asked, AttemptEnded, Withdrawn

RULE = {"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "touch *"}], "behavior": "allow", "destination": "localSettings"}
WIDER = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
FOLDER = {"type": "addDirectories", "directories": ["/work"], "destination": "session"}
QUESTIONS = {
    "questions": [
        {"question": "Which?", "header": "H", "options": [{"label": "A", "description": "a"}, {"label": "B"}, 7], "multiSelect": False},
        {"question": "Many?", "options": [], "multiSelect": True},
        "junk",
    ]
}
FORM = {"type": "object", "properties": {"city": {"type": "string", "title": "City", "enum": ["Rome", "Oslo"]}, "n": {"type": "integer"}}}


def asks(request_id: Any = "q1", tool: str = "Bash", given: Any = None, **fields: Any) -> dict[str, Any]:
    request = {"subtype": "can_use_tool", "tool_name": tool, "tool_use_id": f"call-{request_id}", "input": given or {}, **fields}
    return {"type": "control_request", "request_id": request_id, "request": request}


def elicits(request_id: str = "q1", **fields: Any) -> dict[str, Any]:
    request = {"subtype": "elicitation", "mcp_server_name": "travel", "message": "Where to?", "mode": "form", **fields}
    return {"type": "control_request", "request_id": request_id, "request": request}


def takes_back(request_id: str = "q1") -> dict[str, Any]:
    return {"type": "control_cancel_request", "request_id": request_id}


@pytest.fixture
def cli() -> Cli:
    return Cli(approvals=ApprovalPolicy.ASK).ready().running()


def answered(cli: Cli, answer: Answer, request_id: str = "q1") -> dict[str, Any]:
    """Answer, and return what the CLI was told."""
    outputs = cli._keep(cli.codec.answer(request_id, answer, cli.now_s))
    assert len(outputs) == 1
    response = cli.written("control_response")[-1]["response"]
    assert (response["subtype"], response["request_id"]) == ("success", request_id)
    return response["response"]


def test_a_request_waits_and_nothing_is_written(cli: Cli) -> None:
    cli.feed(asks(given={"command": "touch x"}, description="make it", blocked_path="/repo/x", permission_suggestions=[RULE, WIDER]))
    (asked,) = cli.of(Asked)
    expected = Approval(tool="Bash", input={"command": "touch x"}, reason="make it; /repo/x", suggestions=(RULE, WIDER))
    assert (asked.request_id, asked.ask) == ("q1", expected)
    assert not cli.written("control_response")
    assert not cli.of(ApprovalDenied)


def test_to_leave_plan_mode_is_asked_each_time(cli: Cli) -> None:
    cli.feed(asks(tool="ExitPlanMode", given={"plan": "do it"}, requires_user_interaction=True))
    assert cli.of(Asked)[0].ask == Approval(tool="ExitPlanMode", input={"plan": "do it"}, each_time=True)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Accept(), {"behavior": "allow", "updatedInput": {"command": "touch x"}}),
        (Decline("use make"), {"behavior": "deny", "message": "use make"}),
        (Decline(), {"behavior": "deny", "message": "The user declined this."}),
        (CancelTurn(), {"behavior": "deny", "message": "The user declined this.", "interrupt": True}),
    ],
)
def test_each_answer_is_what_the_cli_understands(cli: Cli, answer: Answer, told: dict[str, Any]) -> None:
    cli.feed(asks(given={"command": "touch x"}))
    assert answered(cli, answer) == told


def rules(*rows: tuple[str, str]) -> list[dict[str, Any]]:
    made = [{"toolName": tool, "ruleContent": content} for tool, content in rows]
    return [{"type": "addRules", "rules": made, "behavior": "allow", "destination": "session"}]


@pytest.mark.parametrize(
    ("tool", "given", "suggestions", "expected"),
    [
        ("Bash", {"command": "touch x"}, [RULE, FOLDER, WIDER], rules(("Bash", "touch *"))),
        ("Write", {"file_path": "/repo/a", "content": ""}, [WIDER], rules(("Edit", "//repo/a"))),
        ("NotebookEdit", {"notebook_path": "/repo/n"}, [], rules(("Edit", "//repo/n"))),
        ("Write", {"file_path": "relative"}, [WIDER], []),
        ("ExitPlanMode", {}, [], []),
        ("Bash", {"command": "x"}, [WIDER, {**RULE, "behavior": "deny"}, "junk"], []),
        ("Bash", {"command": "x"}, "junk", []),
    ],
)
def test_for_the_session_a_rule_about_this_call_is_added_and_nothing_wider(
    cli: Cli, tool: str, given: dict, suggestions: Any, expected: list
) -> None:
    cli.feed(asks(tool=tool, given=given, permission_suggestions=suggestions))
    assert answered(cli, AcceptForSession()) == {"behavior": "allow", "updatedInput": given, "updatedPermissions": expected}


def test_a_question_is_no_approval_and_its_answers_go_by_its_words(cli: Cli) -> None:
    cli.feed(asks(tool="AskUserQuestion", given=QUESTIONS, requires_user_interaction=True))
    first = Question(id="Which?", text="Which?", header="H", options=(Option("A", "a"), Option("B")))
    assert cli.of(Asked)[0].ask == Inquiry(questions=(first, Question(id="Many?", text="Many?", multiple=True)))
    told = answered(cli, Reply({"Which?": "A", "Many?": ("X", "Y")}))
    assert told == {"behavior": "allow", "updatedInput": {**QUESTIONS, "answers": {"Which?": "A", "Many?": "X, Y"}}}


def test_a_form_of_an_mcp_server_is_a_question(cli: Cli) -> None:
    cli.feed(elicits(requested_schema=FORM))
    city, number = FORM["properties"]["city"], FORM["properties"]["n"]
    options = (Option("Rome"), Option("Oslo"))
    assert cli.of(Asked)[0].ask == Inquiry(
        message="Where to?",
        source="travel",
        questions=(
            Question(id="city", text="City", header="City", options=options, schema=city),
            Question(id="n", text="n", schema=number),
        ),
    )
    assert answered(cli, Reply({"city": "Rome", "n": 2})) == {"action": "accept", "content": {"city": "Rome", "n": 2}}


@pytest.mark.parametrize(("answer", "action"), [(Decline("no"), "decline"), (CancelTurn(), "cancel")])
def test_a_form_that_is_not_filled_in(cli: Cli, answer: Answer, action: str) -> None:
    cli.feed(elicits(mode="url", url="https://x.example/"))
    assert cli.of(Asked)[0].ask.url == "https://x.example/"
    assert answered(cli, answer) == {"action": action}


def test_the_cli_may_end_a_cancelled_turn_before_it_is_interrupted(cli: Cli) -> None:
    cli.feed(asks())
    answered(cli, CancelTurn())
    cli.feed(aborted(U1))
    (end,) = cli.of(AttemptEnded)
    assert end.error is None
    assert end.result.interrupted


def test_a_turn_that_only_declined_something_is_not_interrupted_by_us(cli: Cli) -> None:
    cli.feed(asks())
    answered(cli, Decline())
    cli.feed(aborted(U1))
    (end,) = cli.of(AttemptEnded)
    assert end.error is not None


def test_the_first_answer_is_the_only_one(cli: Cli) -> None:
    cli.feed(asks())
    answered(cli, Accept())
    assert cli.codec.answer("q1", Decline(), cli.now_s) is None
    assert cli.codec.answer("nobody asked", Accept(), cli.now_s) is None
    assert len(cli.written("control_response")) == 1


def test_several_wait_at_once_and_are_answered_in_any_order(cli: Cli) -> None:
    cli.feed(asks("q1"), asks("q2"), elicits("q3"))
    for request_id, answer in (("q3", Reply({})), ("q1", Accept()), ("q2", Decline())):
        answered(cli, answer, request_id)
    assert [asked.request_id for asked in cli.of(Asked)] == ["q1", "q2", "q3"]


def test_what_the_cli_takes_back_is_withdrawn_once(cli: Cli) -> None:
    cli.feed(asks(), takes_back(), takes_back(), takes_back("never asked"), {"type": "control_cancel_request"})
    assert cli.of(Withdrawn) == [Withdrawn(request_id="q1")]
    assert cli.codec.answer("q1", Accept(), cli.now_s) is None
    assert not cli.of(RawOutput)


def test_an_interrupt_withdraws_it_at_once(cli: Cli) -> None:
    cli.feed(asks())
    cli.interrupt()
    assert cli.of(Withdrawn) == [Withdrawn(request_id="q1")]
    assert cli.codec.answer("q1", Accept(), cli.now_s) is None
    cli.feed(takes_back(), aborted(U1))
    assert cli.of(Withdrawn) == [Withdrawn(request_id="q1")]
    assert cli.ended.result.interrupted


def test_what_is_asked_while_the_turn_is_being_stopped_is_refused(cli: Cli) -> None:
    cli.interrupt()
    cli.feed(asks())
    assert not cli.of(Asked)
    assert cli.written("control_response")[0]["response"]["response"]["behavior"] == "deny"


def test_a_turn_that_ends_leaves_nothing_open(cli: Cli) -> None:
    cli.feed(asks(), result(U1))
    kinds = [type(item) for item in cli.out if isinstance(item, Withdrawn | AttemptEnded)]
    assert kinds == [Withdrawn, AttemptEnded]
    assert cli.written("control_response")[0]["response"]["response"]["message"] == "The turn has ended."
    assert cli.codec.answer("q1", Accept(), cli.now_s) is None


def test_the_wait_for_a_person_does_not_count_in_the_timeout() -> None:
    cli = Cli(approvals=ApprovalPolicy.ASK).ready()
    cli.running(request=TurnRequest("x", timeout=60), deadline_s=cli.now_s + 60, timeout_s=60)
    cli.later(20)
    cli.feed(asks("q1"), asks("q2"))
    assert cli.codec.deadline_s is None
    cli.later(5000)
    answered(cli, Accept(), "q1")
    cli.later(5000)
    answered(cli, Accept(), "q2")
    assert cli.codec.deadline_s == cli.now_s + 40
    cli.later(39)
    assert cli.requests() == []
    cli.later(2)
    assert cli.requests() == ["interrupt"]
    cli.feed(aborted(U1))
    assert isinstance(cli.ended.error, TurnTimeoutError)


def test_a_request_that_is_taken_back_lets_the_time_go_on() -> None:
    cli = Cli(approvals=ApprovalPolicy.ASK).ready()
    cli.running(deadline_s=cli.now_s + 60)
    cli.feed(asks())
    cli.later(100)
    cli.feed(takes_back())
    assert cli.codec.deadline_s == cli.now_s + 60


def test_a_turn_of_the_clis_own_asks_too_and_outlives_ours() -> None:
    cli = Cli(approvals=ApprovalPolicy.ASK).ready()
    cli.feed(asks("own"))
    cli.start(U2, deadline_s=cli.now_s + 60)
    assert cli.codec.deadline_s == cli.now_s + 60  # it is not ours that waits
    cli.feed(life(U2, "queued"), life(U2, "started"), asks("ours"), result(U2))
    assert cli.of(Withdrawn) == [Withdrawn(request_id="ours")]
    assert answered(cli, Accept(), "own")["behavior"] == "allow"


def test_a_person_who_declines_is_not_told_of_it_again(cli: Cli) -> None:
    cli.feed(asks())
    answered(cli, Decline())
    denied = {"tool_name": "Bash", "tool_use_id": "call-q1", "tool_input": {}}
    other = {"tool_name": "Write", "tool_use_id": "by-a-rule", "tool_input": {}}
    cli.feed(result(U1, permission_denials=[denied, other]))
    assert [event.kind for event in cli.of(ApprovalDenied)] == ["Write"]


@pytest.mark.parametrize("approvals", [ApprovalPolicy.DENY, ApprovalPolicy.FAIL_TURN])
def test_without_a_person_nothing_waits(approvals: ApprovalPolicy) -> None:
    cli = Cli(approvals=approvals).ready().running()
    cli.feed(asks(), elicits("q2"))
    assert not cli.of(Asked)
    assert [frame["response"]["subtype"] for frame in cli.written("control_response")] == ["success", "error"]


@pytest.mark.parametrize("request_id", [5, None])
def test_a_request_without_a_proper_name_is_denied(cli: Cli, request_id: Any) -> None:
    cli.feed(asks(request_id))
    assert not cli.of(Asked)
    assert cli.written("control_response")[0]["response"]["response"]["behavior"] == "deny"


@pytest.mark.parametrize(
    "request_",
    [
        {"subtype": "can_use_tool"},
        {"subtype": "can_use_tool", "tool_name": 7, "input": [], "permission_suggestions": {}, "description": 3},
        {"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": {"questions": "x"}},
        {"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": {"questions": [{"question": "Q", "options": 1}]}},
        {"subtype": "elicitation", "requested_schema": {"properties": {"a": 1, "b": {"enum": [1]}}}},
    ],
)
def test_odd_requests_are_asked_all_the_same(cli: Cli, request_: dict[str, Any]) -> None:
    cli.feed({"type": "control_request", "request_id": "q1", "request": request_})
    assert len(cli.of(Asked)) == 1
    answered(cli, Decline())


def test_a_process_that_ended_takes_no_answer(cli: Cli) -> None:
    cli.feed(asks())
    cli.exit(signal=9)
    assert cli.codec.answer("q1", Accept(), cli.now_s) is None
