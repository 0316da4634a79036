"""The real Codex asks, and a person answers: what is its own. What is alike is in test_asks.py."""

from __future__ import annotations

import json
import pathlib
import sys

from greenroom import (
    Accept,
    AcceptForSession,
    ApprovalPolicy,
    ApprovalRequested,
    AskPolicy,
    Decline,
    Lifecycle,
    NativeMode,
    NativePermissions,
    PendingQuestion,
    Reply,
    Session,
    StdioMcpServer,
    SteerConsumed,
)
from tests.e2e.codex_stage import CodexStage
from tests.e2e.test_asks import ASKING, ELICITING, answering, asking, pending, shown_results


def test_what_is_accepted_runs_and_what_is_declined_does_not_and_the_model_is_told(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with asking(stage) as session:
        running = stage.begin(session, "BASH touch yes.txt\nWRITE written.txt hello\nBASH touch no.txt\nSAY done")
        requests = answering(stage, running, Accept(), Accept(), Decline("use a comment instead"))
        turn = running.join()
    assert [(request.tool, request.turn_id) for request in requests] == [
        ("shell", running.ticket.turn_id),
        ("apply_patch", running.ticket.turn_id),
        ("shell", running.ticket.turn_id),
    ]
    assert "touch yes.txt" in requests[0].input["command"]
    assert requests[1].input["changes"][0]["path"].endswith("written.txt")
    assert sorted(path.name for path in stage.cwd.iterdir()) == ["written.txt", "yes.txt"]
    assert "rejected by user" in shown_results(stage)[-1]
    assert stage.server.seen(-1)[-1] == ("user", "use a comment instead")
    assert turn.result.text == "echo: use a comment instead"
    assert not running.saw(SteerConsumed)


def test_accepted_for_the_session_it_is_not_asked_again(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with asking(stage) as session:
        running = stage.begin(session, "BASH echo 1 >> log\nBASH echo 1 >> log\nBASH touch other\nSAY done")
        answering(stage, running, AcceptForSession(), Decline())
        running.join()
        assert len(running.saw(ApprovalRequested)) == 2
        session.release()  # the thread is given back, and opened again
        again = stage.begin(session, "BASH echo 1 >> log\nSAY again")
        assert again.join().result.text == "again"
    assert not again.saw(ApprovalRequested)
    assert any(event.kind == "accepted for the session" for event in again.saw(Lifecycle))
    assert (stage.cwd / "log").read_text() == "1\n1\n1\n"
    assert not (stage.cwd / "other").exists()
    assert not (stage.codex_home / "rules").exists()  # nothing is allowed to anybody else


def test_in_the_sandbox_what_goes_beyond_it_is_asked(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with asking(stage, permissions=NativePermissions(NativeMode.WORKSPACE_WRITE)) as session:
        running = stage.begin(session, "BASH touch in.txt\nASK touch .git-like\nASK touch never\nSAY done")
        requests = answering(stage, running, Accept(), Decline())
        running.join()
    assert [request.reason for request in requests] == ["the script wants it"] * 2
    assert sorted(path.name for path in stage.cwd.iterdir()) == [".git-like", "in.txt"]


def test_an_mcp_tool_and_a_form_of_its_server(codex_stage: CodexStage) -> None:
    stage = codex_stage
    server = StdioMcpServer("travel", sys.executable, ("-c", ELICITING))
    with asking(stage, session={"mcp_servers": (server,)}) as session:
        running = stage.begin(session, "TOOL mcp__travel/book {}\nTOOL mcp__travel/book {}\nSAY done")
        tool, first, second = answering(stage, running, AcceptForSession(), Reply({"city": "Rome"}), Decline())
        running.join()
    assert (tool.tool, first.source, first.message) == ("travel.book", "travel", "Where to?")
    assert [question.id for question in second.questions] == ["city"]
    results = shown_results(stage)
    assert '"city": "Rome"' in results[0]
    assert '"decline"' in results[1]


QUESTION = {
    "questions": [
        {
            "id": "pick",
            "header": "Choice",
            "question": "Which one?",
            "options": [{"label": name, "description": name} for name in ("Red", "Blue")],
        }
    ]
}


def asking_with(stage: CodexStage, feature: str) -> Session:
    """Begin a session whose agent asks, with a feature of Codex that is off by itself."""
    agent, config = stage.agent(**ASKING), stage.codex_home / "config.toml"
    config.write_text(config.read_text().replace("[features]", f"[features]\n{feature} = true"))
    return stage.session(agent=agent)


def test_more_permissions_are_given_as_asked(codex_stage: CodexStage) -> None:
    stage = codex_stage
    call = 'TOOL request_permissions {"reason": "to download", "permissions": {"network": {"enabled": true}}}'
    with asking_with(stage, "request_permissions_tool") as session:
        running = stage.begin(session, f"{call}\n{call}\nTOOL request_permissions {WRITING}\nSAY done")
        first, _, third = answering(stage, running, Accept(), Decline(), AcceptForSession())
        running.join()
    assert (first.tool, first.reason, first.input["network"]) == ("request_permissions", "to download", {"enabled": True})
    assert third.input["fileSystem"]["write"] == ["/data"]
    once, never, always = (json.loads(result) for result in shown_results(stage))
    assert (once["permissions"]["network"], once["scope"]) == ({"enabled": True}, "turn")
    assert never["permissions"] == {"network": None, "file_system": None}
    assert always["scope"] == "session"
    assert "/data" in json.dumps(always["permissions"]["file_system"])


WRITING = '{"reason": "to write", "permissions": {"file_system": {"write": ["/data"]}}}'


def test_the_users_answer_reaches_the_model(codex_stage: CodexStage) -> None:
    stage = codex_stage
    # Otherwise the model has the tool in plan mode alone.
    with asking_with(stage, "default_mode_request_user_input") as session:
        question = f"TOOL request_user_input {json.dumps(QUESTION)}"
        running = stage.begin(session, f"{question}\n{question}\nSAY done")
        first, _ = answering(stage, running, Reply({"pick": "Blue"}), Decline())
        running.join()
    assert isinstance(first, PendingQuestion)
    assert [(question.id, question.text, len(question.options)) for question in first.questions] == [("pick", "Which one?", 2)]
    assert [json.loads(result) for result in shown_results(stage)] == [{"answers": {"pick": {"answers": ["Blue"]}}}, {"answers": {}}]


def test_the_others_on_the_server_go_on_while_one_waits_past_its_timeout(codex_stage: CodexStage, tmp_path: pathlib.Path) -> None:
    stage, elsewhere = codex_stage, tmp_path / "elsewhere"
    elsewhere.mkdir()
    agent = stage.agent(permissions=NativePermissions.ask(), approvals=ApprovalPolicy.ASK, asks=AskPolicy(deadline_s=60))
    with stage.session(agent=agent) as waiting, stage.session(agent=agent, cwd=elsewhere) as other:
        running = stage.begin(waiting, "BASH touch yes.txt\nSAY done", timeout=6)
        request = pending(stage, running)
        assert request.expires_at is not None
        assert stage.run(other, "SAY hello").result.text == "hello"
        slow = stage.begin(other, "SLOW 80 0.1\nSAY late")
        slow.ended()  # longer than the timeout of the one that waits
        assert len(stage.processes()) == 1
        assert stage.room.pending() == (request,)
        assert stage.room.answer(request.request_id, Accept())
        assert running.join().result.text == "done"
    assert (stage.cwd / "yes.txt").exists()
