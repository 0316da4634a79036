from __future__ import annotations

import pytest
from claude_wire import Cli, attempt, control_response, failed_result, init, result

from greenroom.errors import (
    CliCheckError,
    CliExitError,
    McpConfigError,
    ProviderCapabilityError,
    SchemaDialectError,
    SessionResumeError,
    SessionStateError,
    TurnFailedError,
)
from greenroom.events import Lifecycle, PermissionsDiffer, RawOutput
from greenroom.model import FailureKind
from greenroom.transports.base import Kill, Ready, StartFailed


def test_ready_comes_with_the_answer() -> None:
    cli = Cli(resume_id="r")
    cli.open()
    assert cli.written("control_request")[0]["request"] == {"subtype": "initialize"}
    assert not cli.of(Ready)
    cli.answer("initialize", account={"tokenSource": "oauth", "apiKeySource": "none", "apiProvider": "firstParty"})
    assert cli.of(Ready) == [Ready("r")]
    assert cli.of(Lifecycle) == [Lifecycle("credential", "oauth (firstParty)")]
    assert cli.codec.deadline_s is None


def test_an_id_of_ours_is_not_public_before_the_first_turn() -> None:
    assert Cli(proposed_id="p").ready().of(Ready) == [Ready(None)]


def test_the_answer_comes_twice() -> None:
    cli = Cli().ready()
    assert cli.answer("initialize") == []


@pytest.mark.parametrize("account", [None, 5, {}, {"apiKeySource": 5}])
def test_an_account_of_another_shape(account: object) -> None:
    cli = Cli()
    cli.open()
    cli.answer("initialize", account=account)
    assert cli.of(Lifecycle) == [Lifecycle("credential", "none (unknown provider)")]


def test_a_refused_handshake() -> None:
    cli = Cli()
    cli.open()
    request_id = cli.written("control_request")[0]["request_id"]
    cli.feed({"type": "control_response", "response": {"subtype": "error", "request_id": request_id, "error": "no"}})
    (failed,) = cli.of(StartFailed)
    assert "no" in str(failed.error)
    assert not cli.exit(1)


def test_a_refused_resume_is_told_once() -> None:
    cli = Cli(resume_id="r")
    cli.open()
    cli.feed(
        {"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": ["No conversation found with session ID: r"]}
    )
    cli.exit(1, stderr="No conversation found with session ID: r")
    (failed,) = cli.of(StartFailed)
    assert isinstance(failed.error, SessionResumeError)
    assert (failed.error.session_id, failed.error.in_use) == ("r", False)


def test_an_error_before_the_answer_of_a_fresh_start() -> None:
    cli = Cli()
    cli.open()
    cli.feed(failed_result(status=401, text="Invalid API key"))
    (failed,) = cli.of(StartFailed)
    assert failed.error.kind is FailureKind.AUTH


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("Error: Session ID x is already in use.", SessionResumeError),
        ("No conversation found with session ID: x", SessionResumeError),
        ("Error: Invalid session ID. Must be a valid UUID.", SessionResumeError),
        ("--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons", ProviderCapabilityError),
        ("error: unknown option '--permission-prompts'", CliCheckError),
        ("Error: --json-schema is not valid JSON: JSON Parse error", SchemaDialectError),
        ("Error: Invalid MCP configuration: x", McpConfigError),
        ("Error: sandbox is required but unavailable", ProviderCapabilityError),
        ("segfault or so", CliExitError),
        ("", CliExitError),
    ],
)
def test_the_reason_is_on_standard_error_only(stderr: str, kind: type) -> None:
    cli = Cli(proposed_id="p")
    cli.open()
    cli.exit(1, stderr="a warning\n" + stderr)
    (failed,) = cli.of(StartFailed)
    assert type(failed.error) is kind
    assert getattr(failed.error, "in_use", False) is ("already in use" in stderr)


def test_a_hint_for_root() -> None:
    cli = Cli()
    cli.open()
    (failed,) = cli.exit(1, stderr="--dangerously-skip-permissions cannot be used with root/sudo privileges")
    assert "IS_SANDBOX=1" in failed.error.hint


@pytest.mark.parametrize("death", [{"signal": 9}, {"returncode": -9}, {}])
def test_a_start_that_is_killed_is_a_death_and_no_answer(death: dict[str, int]) -> None:
    cli = Cli()
    cli.open()
    assert cli.exit(**death) == []


def test_a_start_that_never_answers() -> None:
    cli = Cli(startup_timeout_s=60)
    cli.open()
    assert cli.codec.deadline_s == 160.0
    cli.later(59)
    assert not cli.of(StartFailed)
    cli.later(2)
    (failed,) = cli.of(StartFailed)
    assert isinstance(failed.error, CliCheckError)
    assert cli.of(Kill)
    assert cli.answer("initialize") == []
    assert cli.exit(signal=9) == []
    assert cli.codec.deadline_s is None


def test_banners_and_junk_before_the_answer() -> None:
    cli = Cli()
    cli.open()
    out = cli.feed(b"Welcome!", b"\xff\x00", b"", b"   ", b'{"half":', b'{"type":"new_thing"}')
    assert [type(item) for item in out] == [RawOutput] * 4
    assert cli.codec.junk_lines == 3
    cli.answer("initialize")
    assert cli.of(Ready)


def test_a_turn_cannot_begin_before_ready_nor_twice() -> None:
    cli = Cli()
    with pytest.raises(SessionStateError):
        cli.codec.start_turn(attempt(), 0)
    cli.ready().start()
    with pytest.raises(SessionStateError):
        cli.start("other")


def test_calls_before_anything_ran_are_harmless() -> None:
    cli = Cli()
    assert cli.interrupt() == []
    assert cli.steer() is None
    assert cli.codec.consumed() is None
    assert cli.codec.tick(1e9) == []
    assert cli.feed(init(), result()) != []


def test_a_long_schema_goes_by_the_handshake() -> None:
    cli = Cli(handshake_schema={"type": "object"})
    cli.open()
    assert cli.written("control_request")[0]["request"] == {"subtype": "initialize", "jsonSchema": {"type": "object"}}


@pytest.mark.parametrize("request_id", ["r", 7, None, [1], {"a": 1}])
@pytest.mark.parametrize("subtype", ["hook_callback", "mcp_message", "nonsense", None, "can_use_tool"])
@pytest.mark.parametrize("phase", ["starting", "between", "running"])
def test_every_request_is_answered_in_every_phase(request_id: object, subtype: object, phase: str) -> None:
    cli = Cli()
    cli.open()
    if phase != "starting":
        cli.answer("initialize")
    if phase == "running":
        cli.running()
    cli.feed({"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, "tool_name": "Bash", "input": {}}})
    (answer,) = cli.written("control_response")
    assert answer["response"]["request_id"] == request_id
    assert answer["response"]["subtype"] == ("success" if subtype == "can_use_tool" else "error")


def test_an_answer_to_nothing() -> None:
    cli = Cli().ready()
    assert (
        cli.feed(control_response("unknown"), {"type": "control_response"}, {"type": "control_response", "response": {"request_id": [1]}})
        == []
    )


def test_an_error_type_of_a_start() -> None:
    assert issubclass(SessionResumeError, TurnFailedError)


@pytest.mark.parametrize(
    ("config", "facts", "words"),
    [
        ({"permission_mode": "acceptEdits"}, {"current_permission_mode": "bypassPermissions"}, "bypassPermissions"),
        ({"permission_mode": "bypassPermissions"}, {"current_permission_mode": "default"}, "default"),
        ({"sandboxed": True}, {"sandbox_enabled": False}, "without its sandbox"),
    ],
)
def test_permissions_that_are_not_the_ones_asked_for(config: dict[str, object], facts: dict[str, object], words: str) -> None:
    cli = Cli(**config)
    cli.open()
    cli.answer("initialize", **facts)
    (failed,) = cli.of(StartFailed)
    assert isinstance(failed.error, ProviderCapabilityError)
    assert words in str(failed.error)
    assert not cli.of(Ready)
    assert words in cli.of(PermissionsDiffer)[0].reported


@pytest.mark.parametrize("facts", [{}, {"current_permission_mode": "acceptEdits", "sandbox_enabled": True}, {"current_permission_mode": 5}])
def test_permissions_as_asked_for(facts: dict[str, object]) -> None:
    cli = Cli(permission_mode="acceptEdits", sandboxed=True)
    cli.open()
    cli.answer("initialize", **facts)
    assert cli.of(Ready)
