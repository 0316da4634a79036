"""Sessions and turns by id: what a front end calls, what it reads, and what it is told when it is wrong."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading

import attrs
import pytest

from greenroom import (
    Agent,
    ApprovalPolicy,
    AttachmentError,
    Greenroom,
    ImageAttachment,
    InteractionMode,
    LivenessReason,
    NativeMode,
    NativePermissions,
    NoRunningTurnError,
    ProviderCapabilityError,
    RuntimeMode,
    SessionDirectory,
    SessionRecord,
    SessionStateError,
    SessionStatus,
    TurnRequest,
    UnknownSessionError,
    WorkingDirectoryError,
)
from greenroom.actors.cell import Cell
from greenroom.actors.core import NO_FLAGS
from greenroom.actors.messages import Connect
from greenroom.actors.runtime import tell
from greenroom.testing import FakeTransport, FakeTurn, RememberingTransport, fake_profile, resume_refused, turn_failed

PATIENCE_S = 20
EVERY_MODE = fake_profile(native_permission_modes=frozenset(NativeMode), supports_asks=True)


@pytest.fixture
def room():
    with Greenroom() as room:
        yield room


def start(room, tmp_path, thread_id="t", *outcomes, transport=None, **options):
    transport = transport or FakeTransport(outcomes or None, profile=EVERY_MODE)
    return room.start_session(thread_id, transport, **{"runtime_mode": "full-access", "cwd": tmp_path, **options})


def methods(stream):
    """Return the session's and the turns' events up to the end of the room or of what is there."""
    found = []
    while True:
        try:
            event = stream.get(timeout=0.3)
        except TimeoutError:
            return found
        if event is None:
            return found
        if event.method is not None:
            found.append(event.method)


def reach(room, thread_id, status):
    """Wait until the session has the status, by its events."""
    with room.events(thread_id, after=0) as stream:
        while room.directory.get(thread_id).status is not status:
            assert stream.get(PATIENCE_S) is not None
    return room.directory.get(thread_id)


# --- start


def test_it_is_connected_and_ready_before_there_is_a_turn(room, tmp_path):
    stream = room.events()
    transport = FakeTransport()
    record = start(room, tmp_path, transport=transport, model="small")
    assert record.liveness.reason is LivenessReason.IDLE
    assert attrs.asdict(record) | {"created_at": None, "updated_at": None, "liveness": None} == {
        "thread_id": "t",
        "provider": "fake",
        "status": SessionStatus.READY,
        "runtime_mode": RuntimeMode.FULL_ACCESS,
        "cwd": tmp_path,
        "model": "small",
        "resume_cursor": None,
        "active_turn_id": None,
        "created_at": None,
        "updated_at": None,
        "last_error": None,
        "liveness": None,
    }
    assert record.created_at <= record.updated_at <= dt.datetime.now(dt.UTC)
    assert len(transport.conversations) == 1
    assert methods(stream) == ["session/connecting", "session/threadOpenRequested", "session/ready"]
    assert room.directory.list() == (record,)


def test_the_turn_runs_in_the_connected_process(room, tmp_path):
    transport = FakeTransport()
    start(room, tmp_path, transport=transport)
    sent = room.send_turn("t", "hello")
    assert sent.wait(PATIENCE_S).result.text == "echo: hello"
    assert (sent.thread_id, sent.ended, sent.resume_cursor) == ("t", True, {"threadId": "conv-1"})
    assert len(transport.conversations) == 1
    assert room.directory.get("t").resume_cursor == {"threadId": "conv-1"}


def test_a_resumed_conversation_that_is_gone_gives_way_to_a_new_one(room, tmp_path):
    stream = room.events("t")
    transport = FakeTransport(opens=[resume_refused("abc123")])
    record = start(room, tmp_path, transport=transport, resume_cursor={"threadId": "abc123"})
    assert (record.status, record.resume_cursor) == (SessionStatus.READY, None)
    assert [spec.resume_id for spec in transport.specs] == ["abc123", None]
    assert "session/threadResumeFallback" in methods(stream)
    assert room.send_turn("t", "x").wait(PATIENCE_S).result.text == "echo: x"


def test_a_resume_is_told_in_the_words_of_the_page(room, tmp_path):
    with room.events("t") as stream:
        start(room, tmp_path, resume_cursor={"threadId": "abc123"})
        assert [stream.get(PATIENCE_S).event.message for _ in range(3)] == [
            "Starting fake",
            "Attempting to resume thread abc123.",
            "Connected to thread abc123",
        ]


@pytest.mark.parametrize("error", [turn_failed(), resume_refused("abc123", in_use=True)])
def test_what_cannot_be_made_good_is_an_error_and_the_next_turn_tries_again(room, tmp_path, error):
    transport = FakeTransport(opens=[error])
    record = start(room, tmp_path, transport=transport, resume_cursor={"threadId": "abc123"})
    assert (record.status, record.last_error) == (SessionStatus.ERROR, str(error))
    assert room.directory.get("t") == record
    assert room.send_turn("t", "x").wait(PATIENCE_S).result.text == "echo: x"
    assert room.directory.get("t").status is SessionStatus.READY


def test_approval_required_is_no_bypass(room, tmp_path):
    transport = FakeTransport(profile=EVERY_MODE)
    assert start(room, tmp_path, transport=transport, runtime_mode=RuntimeMode.APPROVAL_REQUIRED).runtime_mode.value == "approval-required"
    assert transport.specs[0].permissions.mode is not NativeMode.BYPASS


def test_patience_ends_and_the_start_goes_on(room, tmp_path):
    begun, release = threading.Event(), threading.Event()

    class Slow(FakeTransport):
        def open(self, spec):
            begun.set()
            release.wait(PATIENCE_S)
            return super().open(spec)

    assert start(room, tmp_path, transport=Slow(), timeout=0.0).status is SessionStatus.CONNECTING
    assert begun.wait(PATIENCE_S)
    assert room.directory.get("t").status is SessionStatus.CONNECTING
    sent = room.send_turn("t", "x")  # waits for the start that is on
    assert room.directory.get("t").status is SessionStatus.RUNNING
    release.set()
    assert sent.wait(PATIENCE_S).result.text == "echo: x"


def test_a_stop_ends_a_start(room, tmp_path):
    begun, release, got = threading.Event(), threading.Event(), []

    class Slow(FakeTransport):
        def open(self, spec):
            begun.set()
            release.wait(PATIENCE_S)
            return super().open(spec)

    starter = threading.Thread(target=lambda: got.append(start(room, tmp_path, transport=Slow())))
    starter.start()
    assert begun.wait(PATIENCE_S)
    stopper = threading.Thread(target=lambda: got.append(room.stop_session("t")))
    stopper.start()
    release.set()
    starter.join(PATIENCE_S)
    stopper.join(PATIENCE_S)
    assert sorted(one if one is True else one.status.value for one in got if one is not True) == ["closed"]
    assert True in got
    assert room.directory.list() == ()


def test_conversations_are_not_renewed(room, tmp_path):
    profile = fake_profile(renewal=__import__("greenroom").RenewalBudget(max_turns=1))
    start(room, tmp_path, transport=FakeTransport(profile=profile))
    first, second = (room.send_turn("t", "x").wait(PATIENCE_S) for _ in range(2))
    assert first.conversation_id == second.conversation_id


# --- turns


def test_a_turn_that_runs(room, tmp_path):
    turn = FakeTurn("done", waits=True)
    start(room, tmp_path, "t", turn)
    sent = room.send_turn("t", "x")
    record = room.directory.get("t")
    assert (record.status, record.active_turn_id) == (SessionStatus.RUNNING, sent.turn_id)
    assert turn.started.wait(PATIENCE_S)
    with pytest.raises(SessionStateError, match=f"turn '{sent.turn_id}' is running"):
        room.send_turn("t", "another")
    assert room.interrupt_turn("t", sent.turn_id)
    assert sent.wait(PATIENCE_S).result.interrupted
    record = room.directory.get("t")
    assert (record.status, record.active_turn_id) == (SessionStatus.READY, None)


def test_an_interrupt_without_a_turn_is_a_stated_nothing(room, tmp_path):
    start(room, tmp_path)
    assert room.interrupt_turn("t") is False


def test_another_turn_than_the_running_one_is_not_interrupted(room, tmp_path):
    turn = FakeTurn("done", waits=True)
    start(room, tmp_path, "t", FakeTurn("first"), turn)
    first = room.send_turn("t", "x")
    first.wait(PATIENCE_S)
    with pytest.raises(NoRunningTurnError, match="no turn runs"):
        room.interrupt_turn("t", first.turn_id)
    second = room.send_turn("t", "x")
    assert turn.started.wait(PATIENCE_S)
    with pytest.raises(NoRunningTurnError, match=f"turn '{second.turn_id}' does"):
        room.interrupt_turn("t", first.turn_id)
    turn.release()
    assert second.wait(PATIENCE_S).result.text == "done"


def test_a_turn_that_fails_leaves_an_error_until_the_next_goes_well(room, tmp_path):
    start(room, tmp_path, "t", turn_failed(detail="no such model"), FakeTurn("well"))
    with pytest.raises(Exception, match="no such model"):
        room.send_turn("t", "x").wait(PATIENCE_S)
    record = room.directory.get("t")
    assert record.status is SessionStatus.ERROR
    assert "no such model" in record.last_error
    room.send_turn("t", "x").wait(PATIENCE_S)
    assert (room.directory.get("t").status, room.directory.get("t").last_error) == (SessionStatus.READY, None)


def test_two_faces_of_one_session(room, tmp_path):
    start(room, tmp_path)
    session = room.session("t")
    turn = session.run(session.prepare_turn(TurnRequest("by hand")))
    assert room.directory.get("t").resume_cursor == {"threadId": turn.conversation_id}
    agent = room.agent(FakeTransport(), permissions=session._core.spec.permissions, approvals=session._core.spec.approvals)
    other = agent.session(tmp_path, session_id="other")
    assert room.session("other") is other
    assert room.send_turn("other", "by id").wait(PATIENCE_S).result.text == "echo: by id"
    assert [record.thread_id for record in room.directory.list()] == ["t", "other"]


# --- stop


def test_stop_is_in_the_order_of_the_page(room, tmp_path):
    turn = FakeTurn("done", waits=True)
    transport = FakeTransport([turn])
    start(room, tmp_path, transport=transport)
    sent, seen, done = room.send_turn("t", "x"), [], threading.Event()
    assert turn.started.wait(PATIENCE_S)

    def see(event):
        seen.append((event.method, room.directory.get("t") is not None, transport.conversations[0].closed))
        if event.method == "session/closed":
            done.set()

    room.subscribe(see, "t")
    assert room.stop_session("t") is True
    assert sent.wait(0).result.interrupted
    assert done.wait(PATIENCE_S)
    told = [method for method, *_ in seen]
    assert told.index("turn/completed") < told.index("session/closed") == len(told) - 1
    assert seen[-1] == ("session/closed", False, True)
    assert room.directory.list() == ()


def test_stopped_is_stopped(room, tmp_path):
    start(room, tmp_path)
    room.send_turn("t", "x").wait(PATIENCE_S)
    cursor = room.directory.get("t").resume_cursor
    assert [room.stop_session("t"), room.stop_session("t")] == [True, False]
    with pytest.raises(SessionStateError, match="was stopped; start another one, which may take its resume cursor"):
        start(room, tmp_path)
    for call in (room.send_turn, room.interrupt_turn):
        with pytest.raises(UnknownSessionError, match="no session 't' is there"):
            call("t", "x")
    assert start(room, tmp_path, "t2", resume_cursor=cursor).resume_cursor == cursor


# --- bad input


def test_ids_that_nobody_has(room, tmp_path):
    for call in (room.session, room.stop_session, room.interrupt_turn, lambda thread_id: room.send_turn(thread_id, "x")):
        with pytest.raises(UnknownSessionError, match="no session 'nobody' is there"):
            call("nobody")
    assert room.directory.get("nobody") is None


def test_an_id_is_started_once(room, tmp_path):
    start(room, tmp_path)
    with pytest.raises(SessionStateError, match="session 't' is open already"):
        start(room, tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"runtime_mode": "everything"}, ValueError, "runtime_mode must be one of 'full-access', 'approval-required', got 'everything'"),
        ({"resume_cursor": {"thread": "x"}}, ValueError, "resume_cursor must be"),
        ({"resume_cursor": "x"}, ValueError, "resume_cursor must be"),
        ({"cwd": "/nowhere"}, WorkingDirectoryError, "nowhere"),
        ({"transport": "gemini"}, ProviderCapabilityError, "unknown provider 'gemini'"),
        ({"transport": "codex", "provider_options": {"codex": {"binaryPath": "x"}}}, ProviderCapabilityError, "no option 'binaryPath'"),
        ({"transport": "codex", "provider_options": {"gemini": {}}}, ProviderCapabilityError, "no such provider"),
        ({"provider_options": {"codex": {}}}, ProviderCapabilityError, "a ready one has its own"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_leaves_nothing(room, tmp_path, options, error, match):
    with pytest.raises(error, match=match):
        start(room, tmp_path, **options)
    assert room.directory.list() == ()
    start(room, tmp_path)


@pytest.mark.parametrize(("thread_id", "error"), [("", ValueError), (" ", ValueError), (7, TypeError), (None, TypeError)])
def test_an_id_that_is_none(room, tmp_path, thread_id, error):
    with pytest.raises(error, match="thread_id must"):
        start(room, tmp_path, thread_id)


@pytest.mark.parametrize(("text", "error"), [("", ValueError), (" \n", ValueError), (None, TypeError)])
def test_an_empty_input(room, tmp_path, text, error):
    start(room, tmp_path)
    with pytest.raises(error, match="input must"):
        room.send_turn("t", text)
    assert room.directory.get("t").status is SessionStatus.READY


def test_a_missing_binary_is_said_at_once(room, tmp_path):
    with pytest.raises(Exception, match="no such file"):
        start(room, tmp_path, transport="codex", provider_options={"codex": {"binary_path": "/nowhere/codex"}})
    assert room.directory.list() == ()


def test_the_options_reach_the_provider(tmp_path):
    from greenroom.front import _transport

    options = {"binary_path": "/x/codex", "home_path": tmp_path, "env": {"HOME": "/h"}}
    transport = _transport("codex", {"codex": options, "claude": {"home_path": "/other"}})
    assert (transport._binary, transport.state_home, transport.env) == (
        "/x/codex",
        str(tmp_path),
        {"HOME": "/h", "CODEX_HOME": str(tmp_path)},
    )
    assert _transport("claude", {"claude": {"home_path": tmp_path}}).env["CLAUDE_CONFIG_DIR"] == str(tmp_path)
    assert _transport("claude", {"claude": {"partial_messages": True}}).partial_messages is True
    with pytest.raises(ProviderCapabilityError, match="no option 'partial_messages'"):
        _transport("codex", {"codex": {"partial_messages": True}})


def test_a_closed_room(tmp_path):
    with Greenroom() as room:
        start(room, tmp_path)
    with pytest.raises(SessionStateError, match="the room is closed"):
        start(room, tmp_path, "other")
    with pytest.raises(UnknownSessionError):
        room.send_turn("t", "x")


@pytest.mark.parametrize(
    "call",
    [
        lambda room: room.read_thread("t"),
        lambda room: room.rollback_thread("t", 1),
        lambda room: room.fork_thread("t", "t2"),
        lambda room: room.account(FakeTransport()),
    ],
)
def test_what_the_provider_cannot_is_refused_by_name(room, tmp_path, call):
    start(room, tmp_path)
    room.send_turn("t", "x").wait(PATIENCE_S)
    with pytest.raises(ProviderCapabilityError):
        call(room)
    assert [one.thread_id for one in room.directory.list()] == ["t"]


# --- the conversation

FULL_ACCESS = frozenset({NativeMode.BYPASS})


def remembering():
    abilities = {"supports_history": True, "supports_rollback": True, "supports_fork": True}
    return RememberingTransport(profile=fake_profile(native_permission_modes=FULL_ACCESS, **abilities))


def said(thread):
    return [turn.items[0].text for turn in thread.turns]


def test_its_past_is_read_taken_back_and_forked(room, tmp_path):
    transport = remembering()
    start(room, tmp_path, transport=transport)
    for prompt in ("one", "two"):
        room.send_turn("t", prompt).wait(PATIENCE_S)
    room.rollback_thread("t", 1)
    assert said(room.read_thread("t")) == ["one"]
    record = room.fork_thread("t", "other")
    assert (record.thread_id, record.status) == ("other", SessionStatus.READY)
    room.send_turn("other", "three").wait(PATIENCE_S)
    assert (said(room.read_thread("t")), said(room.read_thread("other"))) == (["one"], ["one", "three"])
    assert room.account(transport) == transport.account_in_use


def test_its_past_in_an_event_loop(room, tmp_path):
    transport = remembering()
    start(room, tmp_path, transport=transport)
    for prompt in ("one", "two"):
        room.send_turn("t", prompt).wait(PATIENCE_S)

    async def play():
        await room.arollback_thread("t", 1)
        record = await room.afork_thread("t", "other")
        return record.thread_id, said(await room.aread_thread("other")), await room.aaccount(transport)

    assert asyncio.run(play()) == ("other", ["one"], transport.account_in_use)


# --- asynchronous


def test_the_same_in_an_event_loop(room, tmp_path):
    async def play():
        record = await room.astart_session("t", FakeTransport(), runtime_mode="full-access", cwd=tmp_path, timeout=PATIENCE_S)
        sent = await room.asend_turn("t", "hello")
        turn = await sent.await_turn()
        interrupted = await room.ainterrupt_turn("t")
        return record.status, turn.result.text, interrupted, await room.astop_session("t"), await room.astop_session("t")

    assert asyncio.run(play()) == (SessionStatus.READY, "echo: hello", False, True, False)


# --- the directory


def record(thread_id="x", **fields):
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    given = {
        "provider": "codex",
        "status": SessionStatus.READY,
        "runtime_mode": RuntimeMode.FULL_ACCESS,
        "created_at": now,
        "updated_at": now,
    }
    return SessionRecord(thread_id=thread_id, **{**given, **fields})


def test_a_directory_by_itself():
    directory = SessionDirectory()
    directory.register(record("a"))
    directory.register(record("b"))
    with pytest.raises(SessionStateError, match="'a' is in the directory already"):
        directory.register(record("a"))
    assert directory.update("a", status=SessionStatus.RUNNING, active_turn_id="1") == directory.get("a")
    assert directory.get("a").active_turn_id == "1"
    assert [one.thread_id for one in directory.list()] == ["a", "b"]
    assert [directory.remove("a"), directory.remove("a")] == [True, False]
    with pytest.raises(UnknownSessionError):
        directory.update("a", model="m")
    with pytest.raises(TypeError):
        directory.update("b", colour="red")
    with pytest.raises(TypeError, match="must be a SessionRecord"):
        directory.register("b")


def test_what_a_session_does_alone_says_where_it_stands(room, tmp_path):
    start(room, tmp_path)
    with pytest.raises(SessionStateError, match="follows from what it does"):
        room.directory.update("t", status=SessionStatus.CLOSED)
    with pytest.raises(SessionStateError, match="lives; stop it"):
        room.directory.remove("t")
    with pytest.raises(SessionStateError, match="in the directory already"):
        room.directory.register(record("t"))
    room.session("t").close()
    assert room.directory.get("t") is None


# --- over a restart of the program


def test_sessions_are_found_again_and_go_on_under_their_ids(tmp_path):
    transport = FakeTransport(profile=EVERY_MODE)
    with Greenroom(state_dir=tmp_path / "state") as room:
        for thread_id in ("kept", "stopped"):
            start(room, tmp_path, thread_id, transport=transport, model="small")
            room.send_turn(thread_id, "x").wait(PATIENCE_S)
        before = room.directory.get("kept")
        room.stop_session("stopped")
        assert [one.thread_id for one in room.directory.list()] == ["kept"]
    with Greenroom(state_dir=tmp_path / "state") as room:
        (found,) = room.directory.list()
        assert (found.thread_id, found.status, found.resume_cursor) == ("kept", SessionStatus.CLOSED, before.resume_cursor)
        assert (found.created_at, found.model, found.cwd) == (before.created_at, "small", tmp_path)
        with pytest.raises(UnknownSessionError, match="on record, but not started"):
            room.send_turn("kept", "x")
        with pytest.raises(SessionStateError, match="was stopped"):
            start(room, tmp_path, "stopped", transport=transport)
        again = room.start_session("kept", transport, runtime_mode="full-access")
        assert (again.status, again.resume_cursor, again.created_at, again.model) == (
            SessionStatus.READY,
            before.resume_cursor,
            before.created_at,
            "small",
        )
        assert room.send_turn("kept", "y").wait(PATIENCE_S).conversation_id == before.resume_cursor["threadId"]


def test_a_stopped_session_is_opened_again_for_the_outcome_that_nobody_has_and_for_nothing_else(tmp_path):
    transport, state_dir = FakeTransport(profile=EVERY_MODE), tmp_path / "state"
    with Greenroom(state_dir=state_dir) as room:
        start(room, tmp_path, transport=transport)
        sent = room.send_turn("t", "x")
        reach(room, "t", SessionStatus.READY)
        room.stop_session("t")
    for _ in range(2):
        with Greenroom(state_dir=state_dir) as room:
            agent = room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
            for _ in range(2):
                with pytest.raises(SessionStateError, match="session 't' was stopped; start another one"):
                    agent.session(tmp_path, session_id="t")
                for found in room.recovered():
                    session, ticket = found.resume(agent)
                    assert (ticket.turn_id, session.run(ticket).result.text) == (sent.turn_id, "echo: x")
                    session.close()
            assert room.directory.list() == ()


def test_a_record_that_was_removed_is_not_found_again(tmp_path):
    for listed in (0, 1, 0):
        with Greenroom(state_dir=tmp_path / "state") as room:
            assert len(room.directory.list()) == listed
            if listed:
                assert room.directory.remove("t")
            elif room._consult("session", "t") is None:
                start(room, tmp_path)


def test_a_session_that_was_closed_by_hand_stays_on_record(tmp_path):
    transport = FakeTransport()
    with Greenroom(state_dir=tmp_path / "state") as room:
        start(room, tmp_path, transport=transport)
        room.session("t").close()
        assert room.directory.get("t").status is SessionStatus.CLOSED
        assert start(room, tmp_path, transport=transport).status is SessionStatus.READY


def test_a_turn_may_bring_images_and_have_a_model_and_a_mode_of_its_own(room, tmp_path):
    able = fake_profile(native_permission_modes=frozenset(NativeMode), attachments=True, turn_model=True, plan_mode=True)
    transport = FakeTransport(profile=able)
    start(room, tmp_path, transport=transport)
    image = ImageAttachment(data=b"\x89PNG\r\n\x1a\n0")
    room.send_turn("t", "look", attachments=[image], model="other", interaction_mode="plan").wait(PATIENCE_S)
    request = transport.requests[-1]
    assert [given.data for given in request.attachments] == [image.data]
    assert (request.model, request.interaction_mode) == ("other", InteractionMode.PLAN)
    with pytest.raises(ValueError, match="interaction_mode must be one of 'default', 'plan', got 'plann'"):
        room.send_turn("t", "look", interaction_mode="plann")
    with pytest.raises(AttachmentError, match="is not an image"):
        room.send_turn("t", "look", attachments=[ImageAttachment(data=b"x")])
    assert room.directory.get("t").status is SessionStatus.READY


# --- names, and what cannot be meant


class SlowToClose(FakeTransport):
    """Its conversations do not end before they are let go."""

    def __init__(self):
        super().__init__(profile=EVERY_MODE)
        self.closing, self.let_go = threading.Event(), threading.Event()

    def open(self, spec):
        conversation = super().open(spec)
        close = conversation.close

        def slowly(**options):
            self.closing.set()
            self.let_go.wait(PATIENCE_S)
            close(**options)

        conversation.close = slowly
        return conversation


def test_the_name_of_a_session_that_is_ending_stays_taken_when_another_begins(room, tmp_path):
    transport = SlowToClose()
    start(room, tmp_path, transport=transport)
    stops = [threading.Thread(target=room.stop_session, args=("t",)) for _ in range(2)]
    try:
        stops[0].start()
        assert transport.closing.wait(PATIENCE_S)
        start(room, tmp_path, "another")
        with pytest.raises(SessionStateError, match="is open already"):
            Agent(FakeTransport(), room=room, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY).session(
                tmp_path, session_id="t"
            )
        stops[1].start()
        stops[1].join(0.2)
        assert stops[1].is_alive()
    finally:
        transport.let_go.set()
        for stop in stops:
            stop.join(PATIENCE_S)
    assert room.directory.get("t") is None


def test_a_name_that_no_process_could_be_marked_with_is_refused(room, tmp_path):
    with pytest.raises(ValueError, match="must be Unicode text"):
        start(room, tmp_path, "\ud800")
    start(room, tmp_path, "a\nb\0" + "x" * 10_000)


@pytest.mark.parametrize("options", [[1], "claude", {"claude": None}, {"claude": []}])
def test_provider_options_that_are_no_mapping_are_refused(room, tmp_path, options):
    with pytest.raises(TypeError, match="must be a mapping"):
        room.start_session("t", "claude", runtime_mode="full-access", cwd=tmp_path, provider_options=options)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"provider": 5}, "provider"),
        ({"provider": 0}, "provider"),
        ({"cwd": 5}, "cwd"),
        ({"model": 5}, "model"),
        ({"timeout": "5"}, "timeout"),
        ({"asks": None}, "asks"),
        ({"provider_options": {"claude": {"binary_path": 5}}}, r"provider_options\['claude'\]\['binary_path'\]"),
        ({"provider_options": {"claude": {"home_path": 5}}}, r"provider_options\['claude'\]\['home_path'\]"),
        ({"provider_options": {"claude": {"env": 5}}}, r"provider_options\['claude'\]\['env'\]"),
        ({"provider_options": {"claude": {"partial_messages": "no"}}}, r"provider_options\['claude'\]\['partial_messages'\]"),
    ],
)
def test_a_start_with_what_is_of_another_type_is_refused_by_name(room, tmp_path, wrong, name):
    asked = {"provider": "claude", "runtime_mode": "full-access", "cwd": tmp_path, **wrong}
    with pytest.raises(TypeError, match=f"^{name} must be"):
        room.start_session("t", **asked)
    with pytest.raises(TypeError, match=f"^{name} must be"):
        asyncio.run(room.astart_session("t", **asked))
    assert room.directory.list() == ()


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_start_with_a_timeout_that_cannot_be_meant_is_refused(room, tmp_path, timeout):
    with pytest.raises(ValueError, match="timeout must be 0 seconds or more"):
        start(room, tmp_path, timeout=timeout)
    assert room.directory.list() == ()


def test_calls_with_what_is_of_another_type_are_refused_by_name(room, tmp_path):
    start(room, tmp_path)
    for call in (room.session, room.stop_session, room.interrupt_turn, room.read_thread):
        for wrong in (5, []):
            with pytest.raises(TypeError, match="thread_id must be a str"):
                call(wrong)
    with pytest.raises(TypeError, match="turn_id must be a str"):
        room.interrupt_turn("t", 5)
    with pytest.raises(TypeError, match="attachments must be"):
        room.send_turn("t", "x", 5)
    with pytest.raises(ValueError, match="model must be"):
        room.send_turn("t", "x", model=5)
    with pytest.raises(TypeError, match="provider must be"):
        room.account(5)
    assert room.send_turn("t", "x").wait(PATIENCE_S).result.text == "echo: x"


def test_a_fork_in_a_closed_room_is_refused_by_name(tmp_path):
    with Greenroom(state_dir=tmp_path / "state") as room:
        start(room, tmp_path)
    with pytest.raises(SessionStateError, match="the room is closed"):
        room.fork_thread("t", "other")


def test_who_waits_for_a_start_that_crashes_finds_the_session_closed(room, tmp_path):
    room.id = "\ud800"  # no process can be marked with it
    session = Agent(FakeTransport(), room=room, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY).session(tmp_path)
    connected, found = Cell(), []
    connected.when_settled(lambda: found.append(room.directory.get(session.id)))
    tell(session._ref, Connect(flags=NO_FLAGS, reply_to=connected))
    session.close()
    assert found == [None]
