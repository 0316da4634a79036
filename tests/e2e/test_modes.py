"""A model and an interaction mode for one turn, and permissions that never widen: what the real CLIs do, and what their model is told."""

from __future__ import annotations

import json
import pathlib

import pytest

from greenroom import (
    Accept,
    ApprovalPolicy,
    Decline,
    InteractionMode,
    NativeMode,
    NativePermissions,
    PermissionsDiffer,
    ProviderCapabilityError,
    Turn,
    TurnFailedError,
)
from greenroom.testing.model_server import Reply
from greenroom.transports.claude.transport import ClaudeStreamTransport
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import Stage, until

PLAN = {"interaction_mode": InteractionMode.PLAN}
OTHER = {"claude": "claude-haiku-4-5", "codex": "gpt-5.4"}


@pytest.fixture(params=["claude", "codex"])
def each(request: pytest.FixtureRequest, tmp_path: pathlib.Path):
    """A stage of either CLI; `each.provider` says which."""
    kind = Stage if request.param == "claude" else CodexStage
    with kind(tmp_path, request.getfixturevalue(request.param)) as stage:
        stage.provider = request.param
        yield stage


def requests(stage: Stage) -> list[dict]:
    """What the model was asked for turns: not to try out whether there is such a model, for one token."""
    return [body for body in stage.server.requests if body.get("max_tokens") != 1]


def models(stage: Stage) -> list[str]:
    return [body["model"] for body in requests(stage)]


def planning(stage: Stage) -> list[bool]:
    """Whether the last word on the mode that each request shows the model is plan mode."""
    words = {"claude": ("Plan mode is active", "Exited Plan Mode"), "codex": ("Plan Mode (Conversational)", "Collaboration Mode: Default")}
    into, out_of = words[stage.provider]
    texts = [json.dumps(body.get("messages") or body.get("input")) for body in requests(stage)]
    return [text.rfind(into) > text.rfind(out_of) for text in texts]


def test_a_model_is_one_turns_own(each: Stage) -> None:
    with each.session() as session:
        for request in ({}, {"model": OTHER[each.provider]}, {}):
            assert each.run(session, "SAY x", **request).restarts == 0
    one, two, three = models(each)
    assert (two, three) == (OTHER[each.provider], one)
    assert two != one


def test_a_sessions_model_is_the_one_that_is_gone_back_to(each: Stage) -> None:
    home = {"claude": "claude-sonnet-5-5", "codex": "gpt-5.5"}[each.provider]
    with each.session(agent=each.agent(model=home)) as session:
        each.run(session, "SAY x", model=OTHER[each.provider])
        each.run(session, "SAY x")
    assert models(each) == [OTHER[each.provider], home]


def test_the_model_of_a_turn_outlives_its_process_and_not_the_turn(each: Stage) -> None:
    other = OTHER[each.provider]
    with each.session() as session:
        each.run(session, "SAY home")
        running = each.begin(session, "BASH touch begun; timeout 60 tail -f /dev/null\nSAY after", model=other)
        until((each.cwd / "begun").exists, "the command")
        each.kill()
        assert running.join().restarts == 1
        each.kill()
        until(lambda: not each.processes(), "the end of it")
        each.run(session, "SAY last")
    home, *others, last = models(each)
    assert set(others) == {other}
    assert last == home


def test_a_fork_behind_a_turn_with_its_own_model_has_the_sessions(each: Stage) -> None:
    with each.session() as session:
        each.run(session, "SAY home")
        each.run(session, "SAY other", model=OTHER[each.provider], prepare={"pin": True})
        with session.fork() as fork:
            each.run(fork, "SAY forked")
    home, other, forked = models(each)
    assert forked == home != other


def test_a_plan_turn_is_told_to_plan_and_the_next_one_is_not(each: Stage) -> None:
    with each.session() as session:
        each.run(session, "SAY one")
        each.run(session, "SAY planned", **PLAN)
        each.run(session, "BASH touch done\nSAY two")
    assert planning(each)[:3] == [False, True, False]
    assert not any(planning(each)[2:])
    assert (each.cwd / "done").exists()


def test_a_death_in_a_plan_turn_goes_on_in_plan_mode_and_the_next_turn_does_not(each: Stage) -> None:
    with each.session() as session:
        each.run(session, "SAY one")
        running = each.begin(session, "SLOW 40 0.1 w", **PLAN)
        each.asked(2)
        each.kill()
        assert running.join().restarts == 1
        each.run(session, "SAY two")
    modes = planning(each)
    assert (modes[0], all(modes[1:-1]), modes[-1]) == (False, True, False)


def test_a_plan_turn_and_a_model_go_together(each: Stage) -> None:
    with each.session() as session:
        each.run(session, "SAY x", model=OTHER[each.provider], **PLAN)
        each.run(session, "SAY x")
    assert planning(each) == [True, False]
    assert models(each)[0] == OTHER[each.provider] != models(each)[1]


def test_claude_does_not_act_in_plan_mode(stage: Stage) -> None:
    with stage.session() as session:
        turn = stage.run(session, f"BASH touch {stage.cwd}/made\nWRITE {stage.cwd}/made hello\nSAY planned", **PLAN)
    assert turn.result.text == "planned"
    assert not (stage.cwd / "made").exists()


# --- permissions


class Lenient(ClaudeStreamTransport):
    """Starts the CLI in another mode than it is asked for, as a setting of the machine could."""

    starts_in = "default"

    def launch(self, launch):
        made = super().launch(launch)
        object.__setattr__(made, "argv", tuple(self.starts_in if word == "bypassPermissions" else word for word in made.argv))
        return made


def test_claude_that_starts_with_other_permissions_is_refused_at_every_start(stage: Stage) -> None:
    transport = Lenient(binary=stage.binary, env=stage.env)
    transport.starts_in = "bypassPermissions"
    with stage.session(agent=stage.agent(transport=transport)) as session:
        stage.run(session, "SAY one")
        for starts_in in ("default", "acceptEdits"):
            transport.starts_in = starts_in
            session.release()
            running = stage.begin(session, "SAY two").ended()
            assert isinstance(running.error, ProviderCapabilityError)
            assert starts_in in running.saw(PermissionsDiffer)[0].reported
        transport.starts_in = "bypassPermissions"
        assert stage.run(session, "SAY three").conversation_id == session.conversation_id
    assert len(stage.server.requests) == 2


def test_a_restart_in_mid_turn_that_brings_other_permissions_ends_the_turn(stage: Stage) -> None:
    transport = Lenient(binary=stage.binary, env=stage.env)
    transport.starts_in = "bypassPermissions"
    with stage.session(agent=stage.agent(transport=transport)) as session:
        running = stage.begin(session, "BASH touch begun; timeout 60 tail -f /dev/null\nSAY after")
        until((stage.cwd / "begun").exists, "the command")
        transport.starts_in = "acceptEdits"
        stage.kill()
        assert isinstance(running.ended().error, ProviderCapabilityError)
        assert len(running.saw(PermissionsDiffer)) == 1
    assert len(stage.server.requests) == 1


def test_a_fresh_conversation_in_place_of_a_lost_one_gets_no_other_permissions(stage: Stage) -> None:
    transport = Lenient(binary=stage.binary, env=stage.env)
    transport.starts_in = "bypassPermissions"
    with stage.session(agent=stage.agent(transport=transport)) as session:
        stage.run(session, "SAY one")
        session.release()
        for transcript in stage.home.rglob("*.jsonl"):
            transcript.unlink()
        transport.starts_in = "default"
        running = stage.begin(session, "SAY two").ended()
        assert isinstance(running.error, ProviderCapabilityError)
        assert running.saw(PermissionsDiffer)
    assert len(stage.server.requests) == 1


WIDE = """
[sandbox_workspace_write]
network_access = true
writable_roots = ["/opt"]
"""


def test_codex_is_not_widened_by_its_configuration(codex: str, tmp_path: pathlib.Path) -> None:
    with CodexStage(tmp_path, codex, config=WIDE) as stage:
        home = pathlib.Path(stage.env["CODEX_HOME"])

        def settings() -> list[dict]:
            rows = [json.loads(line) for path in home.rglob("rollout-*.jsonl") for line in path.read_text().splitlines()]
            return [row["payload"] for row in rows if row["type"] == "turn_context"]

        agent = stage.agent(permissions=NativePermissions(NativeMode.WORKSPACE_WRITE))
        with stage.session(agent=agent) as session:
            stage.run(session, "SAY one")
            stage.kill()
            until(lambda: not stage.processes(), "the end of it")
            running = stage.begin(session, "SAY two", **PLAN)
            assert isinstance(running.join(), Turn)
            stage.run(session, "SAY three", prepare={"pin": True})
        assert not running.saw(PermissionsDiffer)
        policies = [row["sandbox_policy"] for row in settings()]
        assert len(policies) >= 2
        assert [policy.get("network_access", False) for policy in policies] == [False] * len(policies)
        assert "/opt" not in json.dumps(policies)


def test_codex_lets_no_model_approve(codex: str, tmp_path: pathlib.Path) -> None:
    with CodexStage(tmp_path, codex) as stage:
        env = stage.env
        config = pathlib.Path(env["CODEX_HOME"]) / "config.toml"
        transport = stage.transport(env=env)
        config.write_text('approvals_reviewer = "auto_review"\n' + config.read_text())
        agent = stage.agent(transport=transport, permissions=NativePermissions(NativeMode.READ_ONLY))
        with stage.session(agent=agent) as session:
            running = stage.begin(session, f"ASK touch {stage.cwd}/made\nSAY done")
            assert running.join().result.text == "done"
        assert not (stage.cwd / "made").exists()
        assert len(stage.server.requests) == 2, "nobody else was asked"


def test_a_model_that_is_not_there_fails_its_turn_and_no_other(stage: Stage) -> None:
    rules, wanted = stage.server.script, "claude-haiku-4-5"

    def script(body: dict) -> Reply:
        is_trial = body.get("max_tokens") == 1 and body["model"] == wanted
        return Reply(status=404, error_type="not_found_error", message="no such model") if is_trial else rules(body)

    stage.server.script = script
    with stage.session() as session:
        stage.run(session, "SAY one")
        running = stage.begin(session, "SAY two", model=wanted).ended()
        assert isinstance(running.error, TurnFailedError)
        assert "not found" in str(running.error)
        assert stage.run(session, "SAY three").conversation_id == session.conversation_id
    assert stage.shown("SAY two") == [0] * len(stage.server.requests)
    assert len(set(models(stage))) == 1


def test_a_model_that_cannot_be_tried_out_now_is_tried_again(stage: Stage) -> None:
    rules, trials = stage.server.script, []

    def script(body: dict) -> Reply:
        if body.get("max_tokens") == 1:
            trials.append(body["model"])
            if len(trials) == 1:
                return Reply(status=529, error_type="overloaded_error", message="busy")
        return rules(body)

    stage.server.script = script
    with stage.session() as session:
        turn = stage.run(session, "SAY one", model="claude-haiku-4-5")
    assert (turn.result.text, turn.retries) == ("one", 1)
    assert stage.shown("SAY one")[-1] == 1
    assert models(stage) == ["claude-haiku-4-5"]


def test_a_plan_that_a_person_accepts_leaves_plan_mode_and_goes_no_further_than_the_session(stage: Stage) -> None:
    """The next turn asks for leave as ever: what came back with the plan's acceptance is the session's own mode."""
    stage.provider = "claude"
    agent = stage.agent(permissions=NativePermissions.ask(), approvals=ApprovalPolicy.ASK)
    with stage.session(agent=agent) as session:
        running = stage.begin(session, "TOOL ExitPlanMode {}\nSAY planned", **PLAN)
        (pending,) = until(session.pending, "a request")
        assert pending.tool == "ExitPlanMode"
        assert session.answer(pending.request_id, Accept())
        assert running.join().result.text == "planned"
        running = stage.begin(session, "BASH touch done\nSAY two")
        (pending,) = until(session.pending, "a request")
        assert pending.tool == "Bash"
        assert session.answer(pending.request_id, Decline())
        running.join()
    assert not running.saw(PermissionsDiffer)
    assert not (stage.cwd / "done").exists()
    assert planning(stage)[0]
    assert not planning(stage)[-1]


def test_a_plan_turn_and_its_next_under_codexs_own_questions(codex_stage: CodexStage) -> None:
    agent = codex_stage.agent(permissions=NativePermissions.ask(), approvals=ApprovalPolicy.ASK)
    with codex_stage.session(agent=agent) as session:
        codex_stage.run(session, "SAY planned", **PLAN)
        running = codex_stage.begin(session, "BASH touch done\nSAY two", prepare={"pin": True})
        (pending,) = until(session.pending, "a request")
        assert session.answer(pending.request_id, Accept())
        assert running.join().result.text == "two"
    assert not running.saw(PermissionsDiffer)
    assert (codex_stage.cwd / "done").exists()
