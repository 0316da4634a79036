"""Sessions addressed by id on the real CLIs: connected before there is a turn, resumed, told of by name, stopped, found again."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from greenroom import (
    Accept,
    ApprovalRequested,
    ApprovalResolved,
    EventStream,
    Greenroom,
    ImageAttachment,
    ItemKind,
    RuntimeMode,
    SessionStatus,
    ToolCall,
    TurnCompleted,
)
from tests.e2e.codex_stage import CodexStage
from tests.e2e.pictures import digest, png, shown
from tests.e2e.stage import BOUND_S, LONG_TOOL, Stage, until
from tests.e2e.test_modes import OTHER, models, requests

CONNECTED = ["session/connecting", "session/threadOpenRequested", "session/ready"]
PICTURE = png()
GONE = {"claude": "11111111-2222-4333-8444-555555555555", "codex": "01901234-5678-7abc-8def-0123456789ab"}


@pytest.fixture(params=["claude", "codex"])
def stage(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Stage]:
    """A stage of this test's own, for either."""
    kind = CodexStage if request.param == "codex" else Stage
    with kind(tmp_path, request.getfixturevalue(request.param)) as stage:
        yield stage


def provider_of(stage: Stage) -> str:
    return "codex" if isinstance(stage, CodexStage) else "claude"


def start(stage: Stage, thread_id: str, room: Greenroom | None = None, **options: object):
    provider = provider_of(stage)
    given = {"binary_path": stage.binary, "env": stage.env}
    defaults = {"runtime_mode": "full-access", "cwd": stage.cwd, "provider_options": {provider: given}}
    return (room or stage.room).start_session(thread_id, provider, **{**defaults, **options})


def told(stream: EventStream, last: str) -> list[str]:
    """Return the names of the events up to and with the `last`."""
    found = []
    while not found or found[-1] != last:
        event = stream.get(BOUND_S)
        assert event is not None, found
        if event.method is not None:
            found.append(event.method)
    return found


def test_a_session_by_id(stage: Stage) -> None:
    stream = stage.room.events("mine")
    record = start(stage, "mine")
    assert (record.status, record.last_error, record.resume_cursor) == (SessionStatus.READY, None, None)
    assert told(stream, "session/ready") == CONNECTED
    (pid,) = {process.pid for process in stage.processes()}
    one = stage.room.send_turn("mine", "SAY one")
    assert one.wait(BOUND_S).result.text == "one"
    assert told(stream, "turn/completed") == ["turn/started", "item/agentMessage/delta", "turn/completed"]
    two = stage.room.send_turn("mine", "BASH true\nSAY two")
    three_before = two.wait(BOUND_S)
    assert "item/tool/started" in told(stream, "turn/completed")
    three = stage.room.send_turn("mine", "SAY three").wait(BOUND_S)
    # The conversation goes on, for a provider too that would renew it after two turns.
    assert one.resume_cursor == {"threadId": three.conversation_id} == {"threadId": three_before.conversation_id}
    assert {process.pid for process in stage.processes()} == {pid}
    assert stage.room.stop_session("mine")
    assert told(stream, "session/closed")[-1] == "session/closed"
    assert stage.room.directory.list() == ()
    until(lambda: not stage.processes(), "the end of the process")


def test_a_turn_is_interrupted_by_id(stage: Stage) -> None:
    start(stage, "mine")
    with stage.room.events("mine") as stream:
        sent = stage.room.send_turn("mine", LONG_TOOL + "\nSAY never")
        record = stage.room.directory.get("mine")
        assert record is not None
        assert (record.status, record.active_turn_id) == (SessionStatus.RUNNING, sent.turn_id)
        told(stream, "item/tool/started")
        until((stage.cwd / "side").exists, "the tool to run")
        assert stage.room.interrupt_turn("mine", sent.turn_id)
        assert sent.wait(BOUND_S).result.interrupted
        told(stream, "turn/completed")
    record = stage.room.directory.get("mine")
    assert record is not None
    assert (record.status, record.active_turn_id) == (SessionStatus.READY, None)
    assert stage.room.send_turn("mine", "SAY again").wait(BOUND_S).result.text == "again"


def test_a_turn_by_id_has_an_image_a_model_and_a_mode_of_its_own(stage: Stage) -> None:
    start(stage, "mine")
    other = OTHER[provider_of(stage)]
    asked = {"attachments": [ImageAttachment(data=PICTURE)], "model": other, "interaction_mode": "plan"}
    assert stage.room.send_turn("mine", "SAY planned", **asked).wait(BOUND_S).result.text == "planned"
    seen = len(models(stage))
    assert stage.room.send_turn("mine", "BASH touch made\nSAY done").wait(BOUND_S).result.text == "done"
    assert (stage.cwd / "made").exists()
    assert set(models(stage)[:seen]) == {other}
    assert other not in models(stage)[seen:]
    assert digest(PICTURE) in shown(requests(stage)[0])


def test_a_person_is_asked_and_answers_by_id(stage: Stage) -> None:
    record = start(stage, "mine", runtime_mode="approval-required")
    assert record.runtime_mode is RuntimeMode.APPROVAL_REQUIRED
    sent = stage.room.send_turn("mine", "BASH touch made\nSAY done")
    asked = until(lambda: stage.room.pending("mine"), "a request")[0]
    assert (asked.session_id, asked.turn_id) == ("mine", sent.turn_id)
    assert not (stage.cwd / "made").exists()
    assert stage.room.answer(asked.request_id, Accept())
    assert sent.wait(BOUND_S).result.text == "done"
    assert (stage.cwd / "made").exists()


def test_a_stop_declines_what_waits(stage: Stage) -> None:
    start(stage, "mine", runtime_mode="approval-required")
    stream = stage.room.events("mine")
    sent = stage.room.send_turn("mine", "BASH touch made\nSAY done")
    asked = until(lambda: stage.room.pending("mine"), "a request")[0]
    assert stage.room.stop_session("mine")
    assert sent.wait(0).result.interrupted
    assert stage.room.pending() == ()
    assert not stage.room.answer(asked.request_id, Accept())
    events = []
    while not events or events[-1].method != "session/closed":
        events.append(stream.get(BOUND_S))
    kinds = [type(event.event) for event in events]
    assert kinds.index(ApprovalRequested) < kinds.index(ApprovalResolved) < kinds.index(TurnCompleted) < len(kinds) - 1
    assert not (stage.cwd / "made").exists()


def test_another_session_takes_the_cursor_of_a_stopped_one(stage: Stage) -> None:
    start(stage, "first")
    stage.room.send_turn("first", "SAY one").wait(BOUND_S)
    record = stage.room.directory.get("first")
    assert record is not None
    stage.room.stop_session("first")
    second = start(stage, "second", resume_cursor=record.resume_cursor)
    assert (second.status, second.resume_cursor) == (SessionStatus.READY, record.resume_cursor)
    stage.room.send_turn("second", "SAY two").wait(BOUND_S)
    assert stage.server.seen(1) == (("user", "SAY one"), ("assistant", "one"), ("user", "SAY two"))


def test_a_cursor_that_leads_nowhere_gives_a_new_conversation_and_says_so(stage: Stage) -> None:
    gone = GONE[provider_of(stage)]
    with stage.room.events("mine") as stream:
        record = start(stage, "mine", resume_cursor={"threadId": gone})
        assert record.status is SessionStatus.READY
        names = told(stream, "session/ready")
    assert "session/threadResumeFallback" in names
    assert stage.room.send_turn("mine", "SAY one").wait(BOUND_S).result.text == "one"


def test_the_history_by_id(stage: Stage) -> None:
    start(stage, "mine")
    for word in ("one", "two"):
        stage.room.send_turn("mine", f"SAY {word}").wait(BOUND_S)
    said = [[item.text for item in turn.items if item.kind is ItemKind.USER_TEXT] for turn in stage.room.read_thread("mine").turns]
    assert said == [["SAY one"], ["SAY two"]]
    forked = stage.room.fork_thread("mine", "fork")
    assert (forked.thread_id, forked.status) == ("fork", SessionStatus.READY)
    stage.room.rollback_thread("mine", 1)
    assert len(stage.room.read_thread("mine").turns) == 1
    assert len(stage.room.read_thread("fork").turns) == 2
    stage.room.send_turn("mine", "SAY three").wait(BOUND_S)
    stage.room.send_turn("fork", "SAY four").wait(BOUND_S)
    assert stage.server.seen(2) == (("user", "SAY one"), ("assistant", "one"), ("user", "SAY three"))
    assert stage.server.seen(3)[-2:] == (("assistant", "two"), ("user", "SAY four"))


def test_who_pays(stage: Stage) -> None:
    provider = provider_of(stage)
    account = stage.room.account(provider, provider_options={provider: {"binary_path": stage.binary, "env": stage.env}})
    assert account.provider == provider
    assert account.kind is not None


def test_a_home_that_the_options_name(stage: Stage, tmp_path: pathlib.Path) -> None:
    provider, home = provider_of(stage), tmp_path / "other"
    given = {"binary_path": stage.binary, "env": stage.env, "home_path": home}
    home.mkdir()
    if isinstance(stage, CodexStage):  # says where the model is
        (home / "config.toml").write_bytes((stage.codex_home / "config.toml").read_bytes())
    start(stage, "mine", provider_options={provider: given})
    stage.room.send_turn("mine", "SAY one").wait(BOUND_S)
    until(lambda: list(home.rglob("*.jsonl")), "the conversation to be in that home")


def test_a_session_is_found_again_and_goes_on(stage: Stage, tmp_path: pathlib.Path) -> None:
    with Greenroom(state_dir=tmp_path / "state") as room:
        start(stage, "mine", room)
        room.send_turn("mine", "SAY one").wait(BOUND_S)
        before = room.directory.get("mine")
    with Greenroom(state_dir=tmp_path / "state") as room:
        (found,) = room.directory.list()
        assert before is not None
        assert (found.status, found.resume_cursor) == (SessionStatus.CLOSED, before.resume_cursor)
        assert start(stage, "mine", room).status is SessionStatus.READY
        room.send_turn("mine", "SAY two").wait(BOUND_S)
        with room.events("mine", after=0) as stream:
            events = [stream.get(BOUND_S)]
            while sum(event is not None and isinstance(event.event, TurnCompleted) for event in events) < 2:
                events.append(stream.get(BOUND_S))
    assert [event.sequence for event in events if event is not None] == list(range(1, len(events) + 1))
    assert not any(isinstance(event.event, ToolCall) for event in events if event is not None)
    assert stage.server.seen(1) == (("user", "SAY one"), ("assistant", "one"), ("user", "SAY two"))
