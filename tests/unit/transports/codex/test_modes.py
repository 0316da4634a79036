"""The model and the collaboration mode of a turn, and what the thread's settings say of them and of its permissions."""

from __future__ import annotations

from typing import Any

import pytest
from codex_wire import R1, R2, R3, T1, T2, Server, ends, launch, note, opened, past

from greenroom.errors import ProviderCapabilityError
from greenroom.events import PermissionsDiffer
from greenroom.model import InteractionMode, NativeMode, TurnRequest
from greenroom.transports.base import AttemptEnded, Kill, StartFailed
from greenroom.transports.home_models import HomeModels

PLAN = TurnRequest("plan it", interaction_mode=InteractionMode.PLAN)
PLAIN = TurnRequest("prompt")


def asked(server: Server) -> list[tuple[Any, Any, Any]]:
    """The model, the effort and the collaboration mode that each turn was asked for."""
    rows = [frame["params"] for frame in server.asked("turn/start")]
    return [(row.get("model"), row.get("effort"), row.get("collaborationMode")) for row in rows]


def mode(name: str, model: str = "m", effort: str | None = None) -> dict[str, Any]:
    return {"mode": name, "settings": {"model": model, "reasoning_effort": effort, "developer_instructions": None}}


def turns(server: Server, *requests: TurnRequest, thread: str = T1, key: str = "a") -> Server:
    for number, request in enumerate(requests):
        turn = f"{thread} {len(server.asked('turn/start'))} {number}"
        server.running(turn, (R1, R2, R3)[number], key, thread, request=request)
        server.feed(ends(turn, text="x", thread=thread))
    return server


def settings(server: Server, mode_name: str = "default", **fields: Any) -> list[Any]:
    told = {"approvalPolicy": "never", "approvalsReviewer": "user", "sandboxPolicy": {"type": "dangerFullAccess"}, **fields}
    return server.feed(note("thread/settings/updated", threadSettings={**told, "collaborationMode": mode(mode_name)}))


def test_a_turn_without_a_wish_asks_for_nothing() -> None:
    server = turns(Server().attached(), PLAIN)
    assert asked(server) == [(None, None, None)]


def test_a_model_is_the_turns_own_and_the_next_one_has_the_sessions() -> None:
    server = turns(Server().attached(spec=launch(model="home")), TurnRequest("x", model="other"), PLAIN)
    assert [row[0] for row in asked(server)] == ["other", "home"]


def test_a_session_without_a_model_goes_back_to_the_one_that_the_thread_had() -> None:
    server = turns(Server().attached(), PLAIN, TurnRequest("x", model="other"), PLAIN)
    assert [row[0] for row in asked(server)] == [None, "other", "m"]


def test_a_thread_that_is_opened_again_with_the_last_turns_model_is_told_otherwise() -> None:
    homes = HomeModels()
    turns(Server(home_models=homes).attached(), TurnRequest("x", model="other"))
    again = Server(home_models=homes).attached(spec=launch(resume=T1), reply=past(model="other"))
    assert [row[0] for row in asked(turns(again, PLAIN))] == ["m"]
    neighbour = Server(home_models=homes).attached(thread=T2, spec=launch(resume=T2), reply=past(thread=T2, model="other"))
    assert [row[0] for row in asked(turns(neighbour, PLAIN, thread=T2))] == [None]


def test_plan_mode_is_the_turns_own() -> None:
    server = turns(Server().attached(), PLAIN, PLAN, PLAIN)
    assert [row[2] for row in asked(server)] == [None, mode("plan"), mode("default")]


def test_plan_mode_takes_model_and_effort_along() -> None:
    request = TurnRequest("x", model="other", reasoning_effort="high", interaction_mode=InteractionMode.PLAN)
    server = turns(Server().attached(), request, PLAIN)
    assert asked(server) == [("other", "high", mode("plan", "other", "high")), ("m", None, mode("default"))]


def test_a_thread_that_a_death_left_in_plan_mode_leaves_it() -> None:
    server = Server().attached(spec=launch(resume=T1), reply=past(collaborationMode=mode("plan")))
    assert [row[2] for row in asked(turns(server, PLAIN))] == [mode("default")]


def test_permissions_are_said_with_every_turn_also_behind_a_plan() -> None:
    server = turns(Server().attached(spec=launch(NativeMode.READ_ONLY)), PLAN, PLAIN)
    said = [(row["params"]["approvalPolicy"], row["params"]["sandboxPolicy"]["type"]) for row in server.asked("turn/start")]
    assert said == [("on-request", "readOnly")] * 2


# --- what the server says


WIDER = [
    {"sandboxPolicy": {"type": "dangerFullAccess"}},
    {"approvalPolicy": "never"},
    {"approvalsReviewer": "auto_review"},
    {"sandboxPolicy": {"type": "readOnly", "networkAccess": True}},
]
READ_ONLY = {"approvalPolicy": "on-request", "sandboxPolicy": {"type": "readOnly", "networkAccess": False}}


@pytest.mark.parametrize("wider", WIDER)
def test_permissions_that_change_end_the_turn_and_the_conversation_here(wider: dict[str, Any]) -> None:
    server = Server().attached(spec=launch(NativeMode.READ_ONLY)).running()
    settings(server, **READ_ONLY)
    assert not server.of(PermissionsDiffer)
    settings(server, **{**READ_ONLY, **wider})
    assert isinstance(server.ended.error, ProviderCapabilityError)
    assert (server.ended.forced, len(server.of(Kill)), len(server.of(PermissionsDiffer))) == (True, 1, 1)
    server.feed(ends("t1", text="x"))
    assert len(server.of(AttemptEnded)) == 1


def test_permissions_that_change_between_turns_end_the_conversation_here() -> None:
    server = Server().attached(spec=launch(NativeMode.READ_ONLY))
    settings(server)
    assert len(server.of(PermissionsDiffer)) == len(server.of(Kill)) == 1
    assert not server.ends()


@pytest.mark.parametrize(("request_", "told"), [(PLAN, "default"), (PLAIN, "plan")])
def test_a_turn_in_another_mode_than_its_own_does_not_go_on(request_: TurnRequest, told: str) -> None:
    server = Server().attached().running(request=request_)
    settings(server, told)
    assert told in str(server.ended.error)


def test_the_mode_that_was_asked_for_is_no_difference() -> None:
    server = Server().attached()
    server.start(request=PLAN)
    settings(server, "plan")
    server.reply("turn/start", {"turn": {"id": "t1"}})
    assert not server.of(PermissionsDiffer, Kill)


@pytest.mark.parametrize("resume", [None, T1])
@pytest.mark.parametrize(
    "wider", [{"sandbox": {"type": "dangerFullAccess"}}, {"approvalPolicy": "never"}, {"approvalsReviewer": "auto_review"}]
)
def test_a_thread_that_opens_with_other_permissions_is_not_used(resume: str | None, wider: dict[str, Any]) -> None:
    server = Server().ready()
    server.attach("a", launch(NativeMode.READ_ONLY, resume=resume))
    reply = {**opened(mode=NativeMode.READ_ONLY, initialTurnsPage={"data": []}), **wider}
    server.reply("thread/start" if resume is None else "thread/resume", reply)
    (failed,) = server.of(StartFailed)
    assert isinstance(failed.error, ProviderCapabilityError)
    assert len(server.of(PermissionsDiffer)) == 1
