"""Requests of Codex that wait for a person: what is asked, what is written, and what happens to one that nobody answers."""

from __future__ import annotations

from typing import Any

import pytest
from codex_wire import T2, Server, asks, begins, command, ends, item, launch, note, took

from greenroom.asks import Accept, AcceptForSession, Answer, Approval, CancelTurn, Decline, Inquiry, Option, Question, Reply
from greenroom.errors import TurnTimeoutError
from greenroom.events import ApprovalDenied, SteerConsumed, SteerRejected
from greenroom.model import ApprovalPolicy, NativeMode
from greenroom.transports.base import Asked, AttemptEnded, Kill, Withdrawn

COMMAND = "item/commandExecution/requestApproval"
PATCH = "item/fileChange/requestApproval"
PERMISSIONS = "item/permissions/requestApproval"
FORM = "mcpServer/elicitation/request"
USER_INPUT = "item/tool/requestUserInput"
MCP_CALL = {
    "serverName": "travel",
    "message": 'Allow the travel MCP server to run tool "book"?',
    "_meta": {"codex_approval_kind": "mcp_tool_call", "persist": ["session", "always"], "tool_params": {"x": "y"}},
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome"]}, "n": {"type": "integer", "description": "How many?"}},
}
QUESTIONS = {
    "questions": [{"id": "q1", "header": "H", "question": "Which?", "isSecret": True, "options": [{"label": "A", "description": "a"}]}]
}
SPEC = launch(NativeMode.ASK, ApprovalPolicy.ASK)


@pytest.fixture
def server() -> Server:
    return Server().attached(spec=SPEC).running()


def answer(server: Server, given: Answer, request_id: str = "0", key: str = "a") -> list[dict[str, Any]]:
    """Answer, and return what the server was told."""
    before = len(server.written())
    assert server.keep(server.codec.answer(key, request_id, given, server.now_s))
    return server.written()[before:]


def result_of(server: Server, given: Answer) -> Any:
    (frame,) = answer(server, given)
    assert frame["id"] == 0
    return frame["result"]


def test_a_command_waits_and_nothing_is_written(server: Server) -> None:
    server.feed(
        command("t1"), asks(COMMAND, command="/bin/bash -lc 'touch x'", cwd="/project", reason="why", proposedExecpolicyAmendment=["touch"])
    )
    (asked,) = server.of(Asked, key="a")
    given = {"command": "/bin/bash -lc 'touch x'", "cwd": "/project"}
    suggestions = ({"type": "execpolicyAmendment", "prefix": ["touch"]},)
    assert (asked.request_id, asked.ask) == ("0", Approval(tool="shell", input=given, reason="why", suggestions=suggestions))
    assert not server.answered()
    assert not server.of(ApprovalDenied)


def test_a_file_change_shows_what_would_change(server: Server) -> None:
    row = {"type": "fileChange", "id": "c1", "changes": [{"path": "/project/a", "diff": "x"}], "status": "inProgress"}
    server.feed(item("t1", row, done=False), asks(PATCH, reason=None, grantRoot="/elsewhere"))
    assert server.of(Asked)[0].ask == Approval(tool="apply_patch", input={"changes": row["changes"], "grantRoot": "/elsewhere"})


def test_an_mcp_tool_is_an_approval(server: Server) -> None:
    server.feed(asks(FORM, **MCP_CALL))
    assert server.of(Asked)[0].ask == Approval(tool="travel.book", input={"x": "y"}, reason=MCP_CALL["message"])


def decided(word: str) -> dict[str, Any]:
    return {"decision": word}


ANSWERS = [
    (COMMAND, {"command": "rm"}, [decided("accept"), decided("acceptForSession"), decided("decline"), decided("cancel")]),
    (PATCH, {}, [decided("accept"), decided("acceptForSession"), decided("decline"), decided("cancel")]),
    ("execCommandApproval", {"command": ["rm", "x"]}, [decided(word) for word in ("approved", "approved_for_session", "denied", "abort")]),
    ("applyPatchApproval", {"fileChanges": {}}, [decided(word) for word in ("approved", "approved_for_session", "denied", "abort")]),
    (
        PERMISSIONS,
        {"permissions": {"network": {"enabled": True}}},
        [
            {"permissions": {"network": {"enabled": True}}, "scope": "turn"},
            {"permissions": {"network": {"enabled": True}}, "scope": "session"},
            {"permissions": {}, "scope": "turn"},
            {"permissions": {}, "scope": "turn"},
        ],
    ),
    (
        FORM,
        MCP_CALL,
        [
            {"action": "accept", "content": {}},
            {"action": "accept", "content": {}, "_meta": {"persist": "session"}},
            {"action": "decline"},
            {"action": "cancel"},
        ],
    ),
]


@pytest.mark.parametrize(("method", "fields", "results"), ANSWERS)
@pytest.mark.parametrize("number", range(4))
def test_each_answer_is_what_the_request_understands(server: Server, method: str, fields: dict, results: list, number: int) -> None:
    server.feed(asks(method, **fields))
    assert result_of(server, (Accept(), AcceptForSession(), Decline(), CancelTurn())[number]) == results[number]


def test_the_words_of_a_refusal_go_before_it_as_a_steer_that_nobody_reports(server: Server) -> None:
    server.feed(asks(COMMAND))
    steer, refusal = answer(server, Decline("use make"))
    assert (steer["method"], steer["params"]["input"][0]["text"], steer["params"]["expectedTurnId"]) == ("turn/steer", "use make", "t1")
    assert refusal == {"id": 0, "result": {"decision": "decline"}}
    server.reply("turn/steer", {"turnId": "t1"})
    server.feed(took("t1", "nobody's", "use make"), ends("t1", text="done"))
    assert not server.of(SteerConsumed, SteerRejected)
    assert server.ended.result.text == "done"


def test_a_question_of_the_model(server: Server) -> None:
    server.feed(asks(USER_INPUT, **QUESTIONS))
    question = Question(id="q1", text="Which?", header="H", options=(Option("A", "a"),), secret=True)
    assert server.of(Asked)[0].ask == Inquiry(questions=(question,))
    assert result_of(server, Reply({"q1": ("A", "B")})) == {"answers": {"q1": {"answers": ["A", "B"]}}}


@pytest.mark.parametrize("given", [Decline(), CancelTurn()])
def test_a_question_is_never_answered_empty(server: Server, given: Answer) -> None:
    server.feed(asks(USER_INPUT, **QUESTIONS))
    (frame,) = answer(server, given)
    assert "result" not in frame
    assert frame["error"]["message"] == "the user did not answer"


def test_a_form_of_an_mcp_server_is_a_question(server: Server) -> None:
    server.feed(asks(FORM, serverName="travel", message="Where to?", requestedSchema=SCHEMA, _meta=None))
    city, number = SCHEMA["properties"]["city"], SCHEMA["properties"]["n"]
    questions = (
        Question(id="city", text="city", options=(Option("Rome"),), schema=city),
        Question(id="n", text="How many?", schema=number),
    )
    assert server.of(Asked)[0].ask == Inquiry(questions=questions, message="Where to?", source="travel")
    assert result_of(server, Reply({"city": "Rome", "n": 2})) == {"action": "accept", "content": {"city": "Rome", "n": 2}}


def test_the_server_may_end_a_cancelled_turn_before_it_is_interrupted(server: Server) -> None:
    server.feed(asks(COMMAND))
    answer(server, CancelTurn())
    server.feed(ends("t1", status="interrupted"))
    assert server.ended.error is None
    assert server.ended.result.interrupted


def test_a_turn_that_only_declined_something_is_not_interrupted_by_us(server: Server) -> None:
    server.feed(asks(COMMAND))
    answer(server, Decline())
    server.feed(ends("t1", status="interrupted"))
    assert "not by us" in str(server.ended.error)


def test_the_first_answer_is_the_only_one(server: Server) -> None:
    server.feed(asks(COMMAND))
    answer(server, Accept())
    for key, request_id in (("a", "0"), ("a", "1"), ("nobody", "0")):
        assert server.codec.answer(key, request_id, Accept(), server.now_s) is None


def test_an_answer_goes_to_the_conversation_that_asked(server: Server) -> None:
    server.attached("b", T2, spec=SPEC)
    server.running("t2", "r-2", "b", T2)
    server.feed(asks(COMMAND, 7, T2))
    assert server.codec.answer("a", "7", Accept(), server.now_s) is None
    assert answer(server, Accept(), "7", "b") == [{"id": 7, "result": {"decision": "accept"}}]


def test_what_the_server_has_resolved_is_withdrawn_once(server: Server) -> None:
    server.feed(asks(COMMAND), note("serverRequest/resolved", requestId=0), note("serverRequest/resolved", requestId=0))
    assert server.of(Withdrawn) == [Withdrawn(request_id="0")]
    assert server.codec.answer("a", "0", Accept(), server.now_s) is None


def test_what_we_have_answered_is_not_withdrawn(server: Server) -> None:
    server.feed(asks(COMMAND))
    answer(server, Accept())
    server.feed(note("serverRequest/resolved", requestId=0))
    assert not server.of(Withdrawn)


def test_an_interrupt_withdraws_it_at_once(server: Server) -> None:
    server.feed(asks(COMMAND))
    server.interrupt()
    assert server.of(Withdrawn) == [Withdrawn(request_id="0")]
    server.reply("turn/interrupt")
    server.feed(ends("t1", "interrupted"), note("serverRequest/resolved", requestId=0))
    assert server.of(Withdrawn) == [Withdrawn(request_id="0")]
    assert server.ended.result.interrupted


def test_what_is_asked_while_the_turn_is_being_stopped_is_declined(server: Server) -> None:
    server.interrupt()
    server.feed(asks(COMMAND))
    assert not server.of(Asked)
    assert server.answered() == [{"id": 0, "result": {"decision": "decline"}}]


def test_a_turn_that_ends_leaves_nothing_open(server: Server) -> None:
    server.feed(asks(COMMAND), ends("t1", text="done"))
    kinds = [type(output) for output in server.of(Withdrawn, AttemptEnded)]
    assert kinds == [Withdrawn, AttemptEnded]


def test_a_server_that_does_not_stop_is_left_with_nothing_open(server: Server) -> None:
    server.feed(asks(COMMAND))
    server.interrupt()
    server.later(30)
    assert len(server.of(Withdrawn)) == len(server.of(Kill)) == 1


def test_the_wait_for_a_person_does_not_count_in_the_timeout() -> None:
    server = Server().attached(spec=SPEC)
    server.running(deadline_s=server.now_s + 60, timeout_s=60)
    server.later(20)
    server.feed(asks(COMMAND, 0), asks(PATCH, 1))
    assert server.codec.deadline_s is None
    server.later(5000)
    answer(server, Accept(), "0")
    server.later(5000)
    server.feed(note("serverRequest/resolved", requestId=1))
    assert server.codec.deadline_s == server.now_s + 40
    server.later(41)
    server.feed(ends("t1", "interrupted"))
    assert isinstance(server.ended.error, TurnTimeoutError)


def test_a_sub_agent_asks_for_its_parent(server: Server) -> None:
    activity = {"type": "subAgentActivity", "id": "s", "agentThreadId": "child", "kind": "started"}
    server.feed(item("t1", activity), asks(COMMAND, 3, "child"))
    assert [asked.request_id for asked in server.of(Asked, key="a")] == ["3"]
    assert answer(server, Accept(), "3") == [{"id": 3, "result": {"decision": "accept"}}]


def test_a_turn_of_the_servers_own_asks_too() -> None:
    server = Server().attached(spec=SPEC)
    server.feed(begins("own"), asks(COMMAND))
    assert len(server.of(Asked)) == 1
    assert result_of(server, Accept()) == {"decision": "accept"}


def test_what_nobody_can_answer_is_refused_as_ever(server: Server) -> None:
    server.feed(asks("item/tool/call", 4), asks(COMMAND, 5, "a thread of nobody"))
    assert not server.of(Asked)
    assert [frame.get("error", frame.get("result")) and frame["id"] for frame in server.answered()] == [4, 5]


def test_a_process_that_ended_takes_no_answer(server: Server) -> None:
    server.feed(asks(COMMAND))
    server.exit(signal=9)
    assert server.codec.answer("a", "0", Accept(), server.now_s) is None


@pytest.mark.parametrize("method", [COMMAND, PATCH, PERMISSIONS, FORM, USER_INPUT])
@pytest.mark.parametrize("junk", [{}, {"permissions": 1, "_meta": 2, "questions": 3, "requestedSchema": [4], "command": 5, "reason": 6}])
def test_odd_requests_are_asked_all_the_same(server: Server, method: str, junk: dict) -> None:
    server.feed(asks(method, **junk))
    assert len(server.of(Asked)) == 1
    assert answer(server, Decline())
