"""What the model's side and the surroundings do wrong, as the real Codex reports it: retried, told by kind, replaced or refused."""

from __future__ import annotations

import pathlib

import pytest

from greenroom import (
    CliNotFoundError,
    Continuity,
    ContinuityError,
    FailureKind,
    GreenroomError,
    InMemoryCheckpointStore,
    ProviderError,
    RetryPolicy,
    SessionResumeError,
    TurnFailedError,
)
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import Running

UNKNOWN = "0197a1b2-0000-7000-8000-00000000000{}"


def error_of(running: Running) -> TurnFailedError:
    """Wait for the end and return the error of it."""
    running.ended()
    assert isinstance(running.error, TurnFailedError), running.turn or running.error
    return running.error


# --- retried in place: the model is shown the prompt once


@pytest.mark.parametrize("error", ["500 server_error Internal", "429 rate_limit_exceeded slow-down", "503 server_error Unavailable"])
def test_an_overload_is_retried_in_place(codex_stage: CodexStage, error: str) -> None:
    stage = codex_stage
    with stage.session(agent=stage.agent(retry=RetryPolicy(delays=(0.05, 0.05, 0.05)))) as session:
        running = stage.begin(session, f"ERROR {error} 2\nSAY recovered")
        turn = running.join()
        assert (turn.result.text, turn.retries, turn.restarts) == ("recovered", 2, 0)
        assert stage.run(session, "SAY next", prepare={"pin": True}).result.text == "next"
        assert len(stage.processes()) == 1
    assert running.saw(ProviderError)
    assert stage.shown("SAY recovered") == [1, 1, 1, 1]
    assert turn.continuity is Continuity.CONTINUED


def test_an_overload_behind_a_tool_does_not_run_the_tool_again(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        turn = stage.run(session, "BASH echo x >> side\nERROR 500 server_error Overloaded 1\nSAY recovered")
    assert (turn.result.text, turn.retries) == ("recovered", 1)
    assert (stage.cwd / "side").read_text() == "x\n"
    assert stage.shown("SAY recovered")[-1] == 1
    assert turn.result.usage.tokens.input == 2 * 70


def test_an_overload_that_lasts_keeps_the_conversation(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        kept = stage.run(session, "SAY one").conversation_id
        error = error_of(stage.begin(session, "ERROR 500 server_error Overloaded", prepare={"pin": True}))
        assert error.kind is FailureKind.TRANSIENT
        after = stage.run(session, "SAY next", prepare={"pin": True})
    assert after.conversation_id == kept
    assert stage.shown("SAY one")[-1] == 1


def test_codexs_own_retries_end_nothing(codex: str, tmp_path: pathlib.Path) -> None:
    with CodexStage(tmp_path, codex, retries=2) as stage, stage.session() as session:
        running = stage.begin(session, "FAILED rate_limit_exceeded wait 1\nSAY recovered")
        turn = running.join()
    assert (turn.result.text, turn.retries) == ("recovered", 0)
    assert running.saw(ProviderError)


# --- told by kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("401 invalid_api_key nope", FailureKind.AUTH),
        ("400 context_length_exceeded too-many-tokens", FailureKind.CONTEXT_OVERFLOW),
        ("429 insufficient_quota used-up", FailureKind.USAGE_LIMIT),
        ("429 usage_limit_reached used-up", FailureKind.USAGE_LIMIT),
        ("400 invalid_request_error nonsense", FailureKind.OTHER),
    ],
)
def test_a_failure_has_its_kind(codex_stage: CodexStage, error: str, kind: FailureKind) -> None:
    stage = codex_stage
    with stage.session() as session:
        failed = error_of(stage.begin(session, f"ERROR {error}"))
        assert failed.kind is kind, failed
        assert len(stage.server.requests) == 1
        assert stage.run(session, "SAY next").result.text == "next"


# --- threads that are gone, or held


def test_an_unknown_thread_is_replaced_once_or_refused(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session(resume_id=UNKNOWN.format(0)) as session:
        turn = stage.run(session, "SAY hi")
        assert turn.continuity is Continuity.REPLACED
        assert stage.run(session, "SAY more").conversation_id == turn.conversation_id
    with stage.session(resume_id=UNKNOWN.format(1)) as session, pytest.raises(SessionResumeError):
        stage.run(session, "SAY hi", prepare={"pin": True})
    with stage.session(resume_id=UNKNOWN.format(2)) as session, pytest.raises((SessionResumeError, ContinuityError)):
        stage.run(session, "SAY hi", prepare={"expect_conversation": UNKNOWN.format(2)})


def test_a_thread_whose_file_is_gone(codex_stage: CodexStage) -> None:
    stage = codex_stage
    with stage.session() as session:
        stage.run(session, "SAY one")
        session.release()
        # In one step: the server that is just ending may still write there.
        (stage.codex_home / "sessions").rename(stage.codex_home / "gone")
        turn = stage.run(session, "SAY two")
    assert turn.continuity is Continuity.REPLACED


def test_a_thread_moves_between_servers(codex_stage: CodexStage) -> None:
    """One writer a thread: the next server waits until the first has let go."""
    stage = codex_stage
    with stage.session() as session:
        one = stage.run(session, "SAY one")
        with stage.session() as keeps_the_server_up:
            stage.run(keeps_the_server_up, "SAY hi")
            session.close()
            alone = stage.agent(transport=stage.transport(shared=False))
            with stage.session(agent=alone, resume_id=one.conversation_id) as moved:
                two = stage.run(moved, "SAY two")
                assert len(stage.processes()) == 2
    assert (two.result.text, two.conversation_id) == ("two", one.conversation_id)


def test_a_checkpoint_is_taken_up_by_another_session(codex_stage: CodexStage) -> None:
    stage = codex_stage
    store = InMemoryCheckpointStore()
    kept = {"checkpoints": store, "checkpoint_key": "k"}
    with stage.session(**kept) as session:
        one = stage.run(session, "SAY one")
    with stage.session(**kept) as session:
        two = stage.run(session, "SAY two")
    assert (two.conversation_id, two.continuity) == (one.conversation_id, Continuity.CONTINUED)
    assert two.result.usage.increment_known
    assert two.result.usage.tokens.input == 70


# --- surroundings that are wrong: the error names what to mend


def test_a_broken_configuration_names_the_file(codex: str, tmp_path: pathlib.Path) -> None:
    with CodexStage(tmp_path, codex, config="this is no toml [\n") as stage, stage.session() as session:
        with pytest.raises(GreenroomError, match=r"config\.toml"):
            stage.run(session, "SAY hi")
        assert not stage.server.requests


def test_a_home_that_is_not_there_is_named(codex_stage: CodexStage) -> None:
    stage = codex_stage
    transport = stage.transport(env={**stage.env, "CODEX_HOME": str(stage.folder / "nowhere")})
    with stage.session(agent=stage.agent(transport=transport)) as session, pytest.raises(GreenroomError, match="CODEX_HOME"):
        stage.run(session, "SAY hi")


def test_a_key_that_is_not_there_is_named(codex_stage: CodexStage) -> None:
    stage = codex_stage
    env = {name: value for name, value in stage.env.items() if name != "GREENROOM_SCRIPTED_KEY"}
    with stage.session(agent=stage.agent(transport=stage.transport(env=env))) as session:
        failed = error_of(stage.begin(session, "SAY hi"))
    assert failed.kind is FailureKind.AUTH
    assert "GREENROOM_SCRIPTED_KEY" in str(failed)


def test_a_binary_that_is_not_there(codex_stage: CodexStage) -> None:
    stage = codex_stage
    agent = stage.agent(transport=stage.transport(binary=stage.folder / "none"))
    with pytest.raises(CliNotFoundError):
        stage.session(agent=agent)
