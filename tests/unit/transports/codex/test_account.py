"""Who pays for a Codex server: what its answer means, and who is told."""

from __future__ import annotations

import pytest

from greenroom.events import AccountInUse
from greenroom.history import Account, AccountKind
from greenroom.transports.codex.account import account_of
from tests.unit.transports.codex.codex_wire import T2, Server

KEY = {"account": {"type": "apiKey"}, "requiresOpenaiAuth": True}


@pytest.mark.parametrize(
    ("reply", "error", "kind", "more"),
    [
        (KEY, None, AccountKind.API_KEY, {"source": "apiKey"}),
        (
            {"account": {"type": "chatgpt", "email": "a@b.c", "planType": "plus", "workspaceName": "w"}},
            None,
            AccountKind.CHATGPT,
            {"source": "chatgpt", "plan": "plus", "who": "a@b.c"},
        ),
        ({"account": {"type": "amazonBedrock"}}, None, AccountKind.CLOUD, {"source": "amazonBedrock"}),
        ({"account": {"type": "something new"}}, None, AccountKind.UNKNOWN, {"source": "something new"}),
        ({"account": None, "requiresOpenaiAuth": True}, None, AccountKind.NONE, {"detail": "nobody is logged in"}),
        (
            {"account": None, "requiresOpenaiAuth": False},
            None,
            AccountKind.UNKNOWN,
            {"detail": "the configured provider brings a credential of its own"},
        ),
        (
            {},
            {"code": -32603, "message": "workspace routing discovery failed"},
            AccountKind.UNKNOWN,
            {"detail": "workspace routing discovery failed"},
        ),
        ({"account": "junk"}, "junk", AccountKind.UNKNOWN, {}),
    ],
)
def test_what_an_answer_means(reply, error, kind, more):
    assert account_of(reply, error) == Account(provider="codex", kind=kind, **more)


def answer(server: Server, result=None, error=None):
    server.feed({"id": "account", **({"result": result} if error is None else {"error": error})})


def test_every_conversation_is_told_once_whenever_it_comes():
    server = Server().ready()
    (asked,) = server.asked("account/read")
    assert asked["id"] == "account"
    server.attached("a")
    assert not server.of(AccountInUse, key="a")
    answer(server, KEY)
    answer(server, KEY)
    server.attached("b", T2)
    for key in ("a", "b"):
        (told,) = server.of(AccountInUse, key=key)
        assert told.account.kind is AccountKind.API_KEY


def test_a_refusal_is_told_as_unknown_and_hurts_nobody():
    server = Server().ready()
    server.attached("a")
    answer(server, error={"message": "no network"})
    (told,) = server.of(AccountInUse, key="a")
    assert (told.account.kind, told.account.detail) == (AccountKind.UNKNOWN, "no network")
    server.running()


def test_no_answer_delays_nothing():
    server = Server().ready()
    server.attached("a").running()
    server.later(1000)
    assert not server.of(AccountInUse)
