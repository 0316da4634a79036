"""The real Claude Code asks, and a person answers: from another thread, later, or never. What Codex does alike is tried on both."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
import textwrap
from collections.abc import Callable

import pytest

from greenroom import (
    Accept,
    AcceptForSession,
    Answer,
    ApprovalDenied,
    ApprovalPolicy,
    ApprovalRequested,
    ApprovalResolved,
    AskPolicy,
    CancelTurn,
    Decline,
    Lifecycle,
    NativeMode,
    NativePermissions,
    PendingApproval,
    PendingQuestion,
    ProviderCapabilityError,
    QuestionResolved,
    Reply,
    Session,
    StdioMcpServer,
)
from tests.e2e.stage import Running, Stage, until

ASKING = {"permissions": NativePermissions.ask(), "approvals": ApprovalPolicy.ASK}
QUESTION = {
    "questions": [
        {
            "question": "Which one?",
            "header": "Choice",
            "options": [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}],
            "multiSelect": False,
        }
    ]
}
ELICITING = textwrap.dedent(
    """
    import json, sys
    def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
    form = {"type": "object", "properties": {"city": {"type": "string", "title": "City"}}, "required": ["city"]}
    tool = {"name": "book", "description": "books", "inputSchema": {"type": "object", "properties": {}}}
    for line in sys.stdin:
        message = json.loads(line)
        method, id_ = message.get("method"), message.get("id")
        if method == "initialize":
            about = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            send(id=id_, result={**about, "serverInfo": {"name": "travel", "version": "1"}})
        elif method == "tools/list":
            send(id=id_, result={"tools": [tool]})
        elif method == "tools/call":
            called = id_
            send(id="ask", method="elicitation/create", params={"message": "Where to?", "requestedSchema": form})
        elif method is None and id_ == "ask":
            send(id=called, result={"content": [{"type": "text", "text": "elicited " + json.dumps(message.get("result"))}]})
        elif id_ is not None:
            send(id=id_, result={})
    """
)


@pytest.fixture(params=["stage", "codex_stage"])
def either(request: pytest.FixtureRequest) -> Stage:
    """A stage for the one CLI, and for the other."""
    stage: Stage = request.getfixturevalue(request.param)
    return stage


def asking(stage: Stage, **options: object) -> Session:
    """Begin a session whose agent asks."""
    session = options.pop("session", {})
    return stage.session(agent=stage.agent(**{**ASKING, **options}), **session)


def pending(stage: Stage, running: Running | None = None) -> PendingApproval | PendingQuestion:
    """Wait until something waits for a person, and return it."""
    until(lambda: stage.room.pending() or (running is not None and running.ticket.ended), f"a request: {running and running.events}")
    assert stage.room.pending(), f"the turn ended without asking: {running and running.events}"
    return stage.room.pending()[0]


def answering(stage: Stage, running: Running, *answers: Answer) -> list[PendingApproval | PendingQuestion]:
    """Give one answer after the other, each to the request that comes; return the requests."""
    asked = []
    for answer in answers:
        asked.append(pending(stage, running))
        assert stage.room.answer(asked[-1].request_id, answer)
        until(lambda: asked[-1] not in stage.room.pending(), "the end of the wait")
    return asked


def shown_results(stage: Stage) -> list[str]:
    return [text for role, text in stage.server.seen(-1) if role == "tool_result"]


def test_what_is_accepted_runs_and_what_is_declined_does_not_and_the_model_is_told(stage: Stage) -> None:
    with asking(stage) as session:
        running = stage.begin(session, "BASH ls\nBASH touch yes.txt\nBASH touch no.txt\nWRITE written.txt hello\nSAY done")
        requests = answering(stage, running, Accept(), Decline("use a comment instead"), Accept())
        assert running.join().result.text == "done"
    assert [(request.tool, request.turn_id) for request in requests] == [
        ("Bash", running.ticket.turn_id),
        ("Bash", running.ticket.turn_id),
        ("Write", running.ticket.turn_id),
    ]
    assert requests[0].input["command"] == "touch yes.txt"
    assert {row["type"] for row in requests[0].suggestions} >= {"addRules"}
    assert sorted(path.name for path in stage.cwd.iterdir()) == ["written.txt", "yes.txt"]
    assert "use a comment instead" in shown_results(stage)
    assert [event.by for event in running.saw(ApprovalResolved)] == ["answer"] * 3
    assert not running.saw(ApprovalDenied)


def test_accepted_for_the_session_it_is_not_asked_again(stage: Stage) -> None:
    with asking(stage) as session:
        running = stage.begin(session, "BASH echo 1 >> log\nBASH echo 1 >> log\nWRITE a.txt one\nWRITE a.txt two\nSAY done")
        answering(stage, running, AcceptForSession(), AcceptForSession())
        assert running.join().result.text == "done"
        assert len(running.saw(ApprovalRequested)) == 2
        session.release()  # another process, which knows none of the rules
        again = stage.begin(session, "BASH echo 1 >> log\nSAY again")
        assert again.join().result.text == "again"
    assert not again.saw(ApprovalRequested)
    assert any(event.kind == "accepted for the session" for event in again.saw(Lifecycle))
    assert (stage.cwd / "log").read_text() == "1\n1\n1\n"
    assert (stage.cwd / "a.txt").read_text() == "two"


def test_for_the_session_is_for_this_file_only(stage: Stage) -> None:
    with asking(stage) as session:
        running = stage.begin(session, "WRITE a.txt one\nWRITE b.txt two\nBASH touch c\nSAY done")
        requests = answering(stage, running, AcceptForSession(), Decline(), Decline())
        running.join()
    assert [request.input.get("file_path", "")[-5:] for request in requests] == ["a.txt", "b.txt", ""]
    assert [path.name for path in stage.cwd.iterdir()] == ["a.txt"]


def test_cancelling_ends_the_turn_and_the_conversation_goes_on(either: Stage) -> None:
    with asking(either) as session:
        running = either.begin(session, "BASH touch no.txt\nSAY never")
        answering(either, running, CancelTurn())
        turn = running.join()
        assert (turn.result.interrupted, turn.forced) == (True, False)
        assert either.run(session, "SAY next").result.text == "next"
        assert session.last_turn_conversation_id == turn.conversation_id
    assert not list(either.cwd.iterdir())


def test_the_users_answer_reaches_the_model(stage: Stage) -> None:
    with asking(stage) as session:
        running = stage.begin(session, f"TOOL AskUserQuestion {json.dumps(QUESTION)}\nSAY done")
        request = pending(stage, running)
        assert isinstance(request, PendingQuestion)
        (question,) = request.questions
        assert (question.text, [option.label for option in question.options]) == ("Which one?", ["Red", "Blue"])
        assert session.answer(request.request_id, Reply({question.id: "Blue"}))
        running.join()
    assert '"Which one?"="Blue"' in shown_results(stage)[-1]


def test_a_question_that_nobody_answers_is_declined_not_answered(stage: Stage) -> None:
    agent = {"asks": AskPolicy(deadline_s=0.3, default=Accept())}
    with asking(stage, **agent) as session:
        running = stage.begin(session, f"TOOL AskUserQuestion {json.dumps(QUESTION)}\nBASH touch yes.txt\nSAY done")
        running.join()
    assert "answered" not in shown_results(stage)[0]
    assert [(event.verdict, event.by) for event in running.saw(QuestionResolved)] == [(Decline(), "deadline")]
    assert [(event.verdict, event.by) for event in running.saw(ApprovalResolved)] == [(Accept(), "deadline")]
    assert (stage.cwd / "yes.txt").exists()


def test_with_everything_allowed_only_what_needs_a_person_is_asked(stage: Stage) -> None:
    with asking(stage, permissions=NativePermissions.bypass()) as session:
        running = stage.begin(session, f"BASH touch yes.txt\nTOOL AskUserQuestion {json.dumps(QUESTION)}\nSAY done")
        (request,) = answering(stage, running, Reply({"Which one?": "Red"}))
        running.join()
    assert isinstance(request, PendingQuestion)
    assert (stage.cwd / "yes.txt").exists()


def test_leaving_plan_mode_is_an_approval(stage: Stage) -> None:
    with asking(stage) as session:
        running = stage.begin(session, 'TOOL EnterPlanMode {}\nTOOL ExitPlanMode {"plan": "do it"}\nBASH touch yes.txt\nSAY done')
        requests = answering(stage, running, Accept(), Accept())
        running.join()
    assert [request.tool for request in requests] == ["ExitPlanMode", "Bash"]
    assert (stage.cwd / "yes.txt").exists()


def test_a_form_of_an_mcp_server_is_a_question(stage: Stage) -> None:
    server = StdioMcpServer("travel", sys.executable, ("-c", ELICITING))
    with asking(stage, session={"mcp_servers": (server,)}) as session:
        running = stage.begin(session, "TOOL mcp__travel__book {}\nTOOL mcp__travel__book {}\nSAY done")
        tool, first, second = answering(stage, running, AcceptForSession(), Reply({"city": "Rome"}), Decline())
        running.join()
    assert (tool.tool, first.source, first.message) == ("mcp__travel__book", "travel", "Where to?")
    assert [question.id for question in second.questions] == ["city"]
    assert 'elicited {"action": "accept", "content": {"city": "Rome"}}' in shown_results(stage)[0]
    assert '"action": "decline"' in shown_results(stage)[1]


def interrupt(session: Session) -> None:
    session.interrupt()


def close(session: Session) -> None:
    session.close()


@pytest.mark.parametrize(("end", "by"), [(interrupt, "interrupt"), (close, "closed")])
def test_a_stop_takes_back_what_waits(either: Stage, end: Callable[[Session], None], by: str) -> None:
    with asking(either) as session:
        running = either.begin(session, "BASH touch no.txt\nSAY never")
        request = pending(either, running)
        end(session)
        assert running.join().result.interrupted
        assert either.room.answer(request.request_id, Accept()) is False
        assert [event.by for event in running.saw(ApprovalResolved)] == [by]
    assert not list(either.cwd.iterdir())


def test_a_kill_while_it_waits_and_the_turn_goes_on(either: Stage) -> None:
    with asking(either) as session:
        running = either.begin(session, "BASH touch yes.txt\nSAY done")
        request = pending(either, running)
        either.kill()
        until(lambda: request not in either.room.pending(), "the end of the wait")
        assert either.room.answer(request.request_id, Accept()) is False
        for _ in range(2):
            until(lambda: either.room.pending() or running.ticket.ended, "the end, or the request again")
            if either.room.pending():
                either.room.answer(either.room.pending()[0].request_id, Accept())
        assert running.join().restarts == 1
    assert running.saw(ApprovalResolved)[0].by == "died"


def test_steers_and_others_go_on_while_one_waits(stage: Stage, tmp_path: pathlib.Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    agent = stage.agent(**ASKING)
    with stage.session(agent=agent) as waiting, stage.session(agent=agent, cwd=elsewhere) as other:
        running = stage.begin(waiting, "BASH touch yes.txt\nSAY done", timeout=60)
        request = pending(stage, running)
        waiting.steer("SAY steered")
        assert stage.run(other, "SAY hello").result.text == "hello"
        assert stage.room.pending() == (request,)
        assert stage.room.answer(request.request_id, Accept())
        running.join()
    assert (stage.cwd / "yes.txt").exists()


def test_in_the_sandbox_what_goes_beyond_it_is_asked(stage: Stage) -> None:
    permissions = NativePermissions(NativeMode.WORKSPACE_WRITE)
    if not all(map(shutil.which, ("bwrap", "socat"))):
        with pytest.raises(ProviderCapabilityError, match="WORKSPACE_WRITE needs the OS sandbox"):
            asking(stage, permissions=permissions)
        return
    outside = stage.folder / "outside"
    outside.mkdir()
    beyond = json.dumps({"command": f"echo x > {outside}/x", "dangerouslyDisableSandbox": True})
    prompt = f'WRITE in.txt hello\nTOOL Bash {beyond}\nTOOL WebFetch {{"url": "http://127.0.0.1:1/", "prompt": "p"}}\nSAY done'
    with asking(stage, permissions=permissions) as session:
        running = stage.begin(session, prompt)
        until(lambda: running.error or stage.room.pending(), "a request, or a refusal")
        if running.error:  # the tools are there, but the machine lets nobody use them
            assert isinstance(running.error, ProviderCapabilityError)
            return
        (request,) = answering(stage, running, Decline("offline"))
        running.join()
    assert request.tool == "WebFetch"
    assert (stage.cwd / "in.txt").exists()
    assert list(outside.iterdir()) == []  # the sandbox did not ask, and let nothing through
