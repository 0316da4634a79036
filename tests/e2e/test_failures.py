"""What the model's side does wrong, as the real Claude Code reports it: retried in place, told by kind, forgotten or kept."""

from __future__ import annotations

import pathlib
import shutil
import socket
import time
import uuid

import pytest

from greenroom import (
    ApprovalDenied,
    ApprovalPolicy,
    CliNotFoundError,
    Continuity,
    ContinuityError,
    FailureKind,
    InMemoryCheckpointStore,
    McpConfigError,
    NativeMode,
    NativePermissions,
    ProviderCapabilityError,
    ProviderError,
    RetryPolicy,
    SessionResumeError,
    SessionStateError,
    StdioMcpServer,
    ToolResult,
    TurnFailedError,
    TurnRequest,
)
from greenroom.testing.model_reply import Reply, text_block
from greenroom.transports.claude.launch import ClaudeHook
from tests.e2e.stage import Running, Stage, until


def error_of(running: Running) -> TurnFailedError:
    """Wait for the end and return the error of it."""
    running.ended()
    assert isinstance(running.error, TurnFailedError), running.turn or running.error
    return running.error


# --- retried in place: the model is shown the prompt once


@pytest.mark.parametrize("error", ["529 overloaded_error Overloaded", "500 api_error Internal server error", "503 api_error Unavailable"])
def test_an_overload_is_retried_in_place(stage: Stage, error: str) -> None:
    prompt = f"ERROR {error} 2\nSAY recovered"
    with stage.session(agent=stage.agent(retry=RetryPolicy(delays=(0.05, 0.05, 0.05)))) as session:
        running = stage.begin(session, prompt)
        turn = running.join()
        assert (turn.result.text, turn.retries, turn.restarts) == ("recovered", 2, 0)
        assert len(stage.processes()) == 1
        assert stage.run(session, "SAY next").result.text == "next"
    assert len(running.saw(ProviderError)) == 2
    assert stage.shown("SAY recovered") == [1, 1, 1, 1]
    assert turn.continuity is Continuity.CONTINUED


def test_an_overload_behind_a_tool_does_not_run_the_tool_again(stage: Stage) -> None:
    with stage.session() as session:
        turn = stage.run(session, "BASH echo x >> side\nERROR 529 overloaded_error Overloaded 1\nSAY recovered")
    assert (turn.result.text, turn.retries) == ("recovered", 1)
    assert (stage.cwd / "side").read_text() == "x\n"
    assert stage.server.seen(-1) == stage.server.seen(-2)
    assert stage.shown("SAY recovered")[-1] == 1


def test_an_overload_that_lasts_keeps_the_conversation(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        kept = session.conversation_id
        error = error_of(stage.begin(session, "ERROR 529 overloaded_error Overloaded"))
        assert error.kind is FailureKind.TRANSIENT
        assert session.conversation_id == kept
        after = stage.run(session, "SAY next")
    assert after.conversation_id == kept
    assert stage.shown("SAY one")[-1] == 1


def test_the_clis_own_retries_hide_a_blip(claude: str, tmp_path: pathlib.Path) -> None:
    with Stage(tmp_path, claude, env={"CLAUDE_CODE_MAX_RETRIES": "3"}) as stage, stage.session() as session:
        turn = stage.run(session, "ERROR 529 overloaded_error Overloaded 1\nSAY recovered")
    assert (turn.result.text, turn.retries) == ("recovered", 0)


def test_a_rate_limit_is_waited_for(stage: Stage) -> None:
    began_s = time.monotonic()
    with stage.session() as session:
        turn = stage.run(session, "ERROR 429 rate_limit_error Slow down, try again in 1 second 1 1\nSAY recovered")
    assert (turn.result.text, turn.retries) == ("recovered", 1)
    assert time.monotonic() - began_s > 1
    assert stage.shown("SAY recovered")[-1] == 1


def test_the_wait_that_a_header_asks_for_is_told_where_the_cli_waits_for_it_too(claude: str, tmp_path: pathlib.Path) -> None:
    answer = "ERROR 429 rate_limit_error Slow down! 9 1"  # a second: more than Claude Code's own first wait
    for retries, told in (("1", True), ("0", False)):
        env = {"CLAUDE_CODE_MAX_RETRIES": retries}
        with Stage(tmp_path / retries, claude, env=env) as stage, stage.session(agent=stage.agent(retry=RetryPolicy(delays=()))) as session:
            asked_s = error_of(stage.begin(session, answer)).retry_after_s
            assert (asked_s is not None and asked_s >= 1) is told


def test_a_stream_that_is_cut_is_transient(claude: str, tmp_path: pathlib.Path) -> None:
    with Stage(tmp_path, claude) as stage, stage.session() as session:
        error = error_of(stage.begin(session, "CUT"))
        assert error.kind is FailureKind.TRANSIENT
        assert stage.run(session, "SAY next").result.text == "next"


def test_an_error_within_the_stream_is_retried_in_place(stage: Stage) -> None:
    """Claude Code asks for the answer as a whole then, by itself: two requests fail before the turn does."""
    with stage.session() as session:
        turn = stage.run(session, "FAILED overloaded_error Overloaded 2\nSAY recovered")
        error = error_of(stage.begin(session, "FAILED overloaded_error Overloaded"))
    assert (turn.result.text, turn.retries) == ("recovered", 1)
    assert error.kind is FailureKind.TRANSIENT


def test_an_answer_that_breaks_off_is_gone_on_with_and_nothing_empty_is_shown(stage: Stage) -> None:
    """Claude Code has the rest sent three times by itself; an empty block behind half an answer would be "(no content)" to the model."""
    with stage.session() as session:
        turn = stage.run(session, "SAY half\nFAILED overloaded_error Overloaded 4\nSAY recovered")
    assert (turn.result.text, turn.retries) == ("recovered", 1)
    assert stage.shown("SAY recovered") == [1] * 5
    assert stage.shown("(no content)") == [0] * 5
    assert stage.shown("Continue from where you left off") == [0, 0, 0, 0, 1]


def test_an_answer_that_the_cli_had_gone_on_with_is_whole(stage: Stage) -> None:
    with stage.session() as session:
        turn = stage.run(session, "SAY half\\n\nFAILED overloaded_error Overloaded 1\nSAY rest")
    assert turn.result.text.split() == ["half", "half", "rest"]  # this model begins again, where a real one goes on


def test_the_pieces_of_an_answer_are_joined_as_they_were_written(claude: str, tmp_path: pathlib.Path) -> None:
    said = ["The ans", "wer, at ", "last."]
    replies = [Reply(content=(text_block(text),), failed=text != "last.", error_type="overloaded_error") for text in said]
    with Stage(tmp_path, claude, script=lambda body: replies.pop(0)) as stage, stage.session() as session:
        assert stage.run(session, "tell me").result.text == "The answer, at last."


def test_no_server_at_all_is_transient(claude: str, tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:  # and does not listen: the port is refused, and nobody else gets it meanwhile
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with Stage(tmp_path, claude, env={"ANTHROPIC_BASE_URL": url}) as stage, stage.session() as session:
            error = error_of(stage.begin(session, "SAY never"))
    assert error.kind is FailureKind.TRANSIENT
    assert "refused" in error.detail.lower()


# --- told by kind


@pytest.mark.parametrize(
    ("answer", "kind", "keeps"),
    [
        ("ERROR 401 authentication_error invalid x-api-key", FailureKind.AUTH, True),
        ("ERROR 403 permission_error Not allowed", FailureKind.AUTH, True),
        ("ERROR 400 invalid_request_error Your credit balance is too low to access the API", FailureKind.USAGE_LIMIT, True),
        ("ERROR 400 invalid_request_error messages: strange", FailureKind.OTHER, False),
        ("ERROR 404 not_found_error model: no such model", FailureKind.OTHER, False),
        ("TOO_LONG", FailureKind.CONTEXT_OVERFLOW, False),
    ],
)
def test_a_refusal_is_told_by_kind_and_not_retried(stage: Stage, answer: str, kind: FailureKind, keeps: bool) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        first = session.conversation_id
        error = error_of(stage.begin(session, answer))
        assert error.kind is kind
        assert session.conversation_id == (first if keeps else None)
        after = stage.run(session, "SAY next")
        assert after.result.text == "next"
        assert (after.conversation_id == first) is keeps


def test_a_pinned_turn_keeps_an_overflowing_conversation(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        kept = session.conversation_id
        assert error_of(stage.begin(session, "TOO_LONG", prepare={"pin": True})).kind is FailureKind.CONTEXT_OVERFLOW
        assert session.conversation_id == kept


# --- conversations that are gone


def lost(stage: Stage, session: object) -> str:
    """Give up the process and remove the conversation from the disk, and return its id."""
    session.release()
    until(lambda: not stage.processes(), "the process to end")
    for path in stage.home.glob(f".claude/projects/*/{session.conversation_id}.jsonl"):
        path.unlink()
    return session.conversation_id


def test_a_conversation_that_is_gone_is_replaced(stage: Stage) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        gone = lost(stage, session)
        turn = stage.run(session, "SAY two")
        assert turn.continuity is Continuity.REPLACED
        assert turn.conversation_id == session.conversation_id != gone
        assert stage.run(session, "SAY three").continuity is Continuity.CONTINUED


@pytest.mark.parametrize("how", ["pin", "expect"])
def test_a_demanded_conversation_that_is_gone_is_an_error(stage: Stage, how: str) -> None:
    with stage.session() as session:
        stage.run(session, "SAY one")
        gone = lost(stage, session)
        prepare = {"pin": True} if how == "pin" else {"expect_conversation": gone}
        error = error_of(stage.begin(session, "SAY two", prepare=prepare))
        assert isinstance(error, SessionResumeError)
        assert error.session_id == gone
        assert len(stage.server.requests) == 1
        with pytest.raises(ContinuityError):
            session.prepare_turn(TurnRequest("SAY x"), expect_conversation=str(uuid.uuid4()))


def test_an_unknown_id_is_replaced_and_a_known_one_resumed(stage: Stage) -> None:
    with stage.session(resume_id=str(uuid.uuid4())) as session:
        turn = stage.run(session, "SAY one")
        assert turn.continuity is Continuity.REPLACED
    with stage.session(resume_id=turn.conversation_id) as session:
        again = stage.run(session, "SAY two")
        assert (again.continuity, again.conversation_id) == (Continuity.CONTINUED, turn.conversation_id)
        with pytest.raises(SessionStateError):
            stage.session(resume_id=turn.conversation_id)
    assert stage.shown("SAY one")[-1] == stage.shown("SAY two")[-1] == 1


def test_adoption(stage: Stage) -> None:
    with stage.session() as session:
        old = stage.run(session, "SAY one").conversation_id
    with stage.session() as session:
        assert session.adopt(old)
        turn = stage.run(session, "SAY two")
        assert (turn.conversation_id, turn.continuity) == (old, Continuity.CONTINUED)
        assert not session.adopt(str(uuid.uuid4()))
    assert stage.shown("SAY one")[-1] == 1


def test_checkpoints_carry_a_conversation_over_rooms(claude: str, tmp_path: pathlib.Path) -> None:
    store = InMemoryCheckpointStore()
    costs, texts = [], []
    for number in range(3):
        with Stage(tmp_path, claude) as stage, stage.session(checkpoints=store, checkpoint_key="job") as session:
            turn = stage.run(session, f"SAY text-{number}")
            costs.append(turn.result.cost_usd)
            texts.append(turn.conversation_id)
            assert store.load("job").conversation_id == turn.conversation_id
            assert stage.shown("SAY text-0") == [1]
            assert turn.result.usage.increment_known
    assert len(set(texts)) == 1
    assert costs[1] == pytest.approx(costs[2]) == pytest.approx(costs[0])


# --- starts that fail


def test_no_binary(stage: Stage) -> None:
    with pytest.raises(CliNotFoundError):
        stage.session(agent=stage.agent(transport=stage.transport(binary=stage.folder / "nothing")))


def test_an_argument_that_the_cli_does_not_know(stage: Stage) -> None:
    with stage.session() as session:
        running = stage.begin(session, "SAY x", extra_args=("--no-such-option",)).ended()
        assert "no-such-option" in str(running.error)
        assert stage.run(session, "SAY next").result.text == "next"


def test_mcp_servers_of_one_name(stage: Stage) -> None:
    with pytest.raises(McpConfigError):
        stage.session(mcp_servers=(StdioMcpServer("a", "true"), StdioMcpServer("a", "false")))


# --- permissions


DENIED = ClaudeHook(event="PreToolUse", matcher="Bash", command="echo not this one >&2; exit 2")


def test_a_hook_that_refuses_a_tool_is_told(claude: str, tmp_path: pathlib.Path) -> None:
    with Stage(tmp_path, claude, hooks=(DENIED,)) as stage, stage.session() as session:
        running = stage.begin(session, "BASH echo x >> side\nSAY done")
        assert running.join().result.text == "done"
        assert not (stage.cwd / "side").exists()
    assert [event.kind for event in running.saw(ApprovalDenied)] == ["Bash"]
    assert "not this one" in running.saw(ToolResult)[0].stderr


def asking(stage: Stage) -> None:
    """Have the CLI ask about commands, which nobody can answer here."""
    settings = stage.home / ".claude" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('{"permissions": {"ask": ["Bash"]}}')


@pytest.mark.parametrize("approvals", [ApprovalPolicy.DENY, ApprovalPolicy.FAIL_TURN])
def test_a_call_that_needs_approval_is_denied(stage: Stage, approvals: ApprovalPolicy) -> None:
    asking(stage)
    with stage.session(agent=stage.agent(approvals=approvals)) as session:
        stage.run(session, "SAY one")
        kept = session.conversation_id
        running = stage.begin(session, "BASH echo x >> side\nSAY done").ended()
        assert [event.kind for event in running.saw(ApprovalDenied)] == ["Bash"]
        if approvals is ApprovalPolicy.DENY:
            assert running.turn.result.text == "done"
        else:
            assert error_of(running).kind is FailureKind.OTHER
        after = stage.run(session, "SAY next")
        assert (after.result.text, after.conversation_id) == ("next", kept)
    assert not (stage.cwd / "side").exists()


def workspace_write(stage: Stage) -> object:
    return stage.agent(permissions=NativePermissions(NativeMode.WORKSPACE_WRITE, (stage.folder / "root",)))


def test_workspace_write_confines_commands_and_edits_or_is_refused_by_name(stage: Stage) -> None:
    outside, root = stage.folder / "outside", stage.folder / "root"
    outside.mkdir()
    root.mkdir()
    if not (shutil.which("bwrap") and shutil.which("socat")):
        with pytest.raises(ProviderCapabilityError, match="OS sandbox") as refused:
            stage.session(agent=workspace_write(stage))
        assert "bubblewrap" in refused.value.hint
        return
    lines = [
        f"BASH echo x > {stage.cwd}/command",
        f"BASH echo x > {root}/command",
        f"BASH echo x > {outside}/command",
        f"WRITE {stage.cwd}/edit x",
        f"WRITE {root}/edit x",
        f"WRITE {outside}/edit x",
        "SAY done",
    ]
    with stage.session(agent=workspace_write(stage)) as session:
        running = stage.begin(session, "\n".join(lines)).ended()
    if isinstance(running.error, ProviderCapabilityError):  # the tools are there, but the machine lets nobody use them
        assert "sandbox" in str(running.error)
        return
    assert running.join().result.text == "done"
    made = sorted(str(path.relative_to(stage.folder)) for folder in (stage.cwd, root, outside) for path in folder.glob("[a-z]*"))
    assert made == ["root/command", "root/edit", "work/command", "work/edit"], running.saw(ToolResult)


@pytest.mark.parametrize(
    "permissions", [NativePermissions(NativeMode.READ_ONLY), NativePermissions(NativeMode.WORKSPACE_WRITE, network=True)]
)
def test_what_claude_cannot_promise_is_refused(stage: Stage, permissions: NativePermissions) -> None:
    with pytest.raises(ProviderCapabilityError):
        stage.session(agent=stage.agent(permissions=permissions))
