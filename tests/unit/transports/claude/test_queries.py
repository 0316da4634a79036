"""The scripts that ask a Claude Code process beside the turns, played by hand."""

from __future__ import annotations

import json

import pytest

from greenroom.errors import QueryFailedError, SessionResumeError
from greenroom.history import ItemKind, Thread, ThreadItem, ThreadTurn
from greenroom.transports.claude import queries
from greenroom.transports.pipes import Oversized

HELLO = {"subtype": "success", "response": {"account": {"apiKeySource": "ANTHROPIC_API_KEY", "apiProvider": "firstParty"}}}
YES = {"subtype": "success", "response": {"rewound": True}}


def no(error, reason=None):
    return {"subtype": "success", "response": {"rewound": False, "error": error, "reason": reason}}


def play(script, *answers):
    """Answer each request of the script in turn; return what it asked and what it returned."""
    asked, left, line = [], list(answers), None
    try:
        data = next(script)
        while True:
            if data is not None:
                row = json.loads(data)
                asked.append(row)
                answer = left.pop(0)
                line = json.dumps(answer if "type" in answer else _response(row, answer)).encode()
            data = script.send(line)
    except StopIteration as stop:
        return asked, stop.value


def _response(row, answer):
    return {"type": "control_response", "response": {**answer, "request_id": row["request_id"]}}


def test_who_pays():
    _, account = play(queries.whose(), HELLO)
    assert (account.kind.value, account.source) == ("apiKey", "ANTHROPIC_API_KEY")


def test_a_rewind_names_the_message_that_was_seen_last():
    asked, _ = play(queries.rewind("t", ["s"], "c"), HELLO, YES)
    assert asked[1]["request"] == {
        "subtype": "rewind_conversation",
        "target_message_uuid": "t",
        "last_seen_user_message_uuid": "s",
    }


@pytest.mark.parametrize("reason", ["stale_target", "unseen_later_turn"])
def test_another_one_is_tried_where_the_cli_saw_something_else(reason):
    asked, _ = play(queries.rewind("t", ["s", "p"], "c"), HELLO, no("…", reason), YES)
    assert [row["request"].get("last_seen_user_message_uuid") for row in asked] == [None, "s", "p"]


def test_a_refusal_ends_it():
    with pytest.raises(QueryFailedError, match="target not found") as refused:
        play(queries.rewind("t", ["s", "p"], "c"), HELLO, no("target not found", "target_not_found"))
    assert "compaction" in refused.value.hint
    with pytest.raises(QueryFailedError, match="turn running"):
        play(queries.rewind("t", ["s"], "c"), HELLO, no("turn running", "turn_running"))
    with pytest.raises(QueryFailedError, match="no reason"):
        play(queries.rewind("t", ["s"], "c"), HELLO, {"subtype": "error"})
    with pytest.raises(QueryFailedError, match="no message"):
        play(queries.rewind("t", [], "c"), HELLO)


def test_a_refused_handshake_and_a_refused_resume():
    with pytest.raises(QueryFailedError, match="handshake"):
        play(queries.whose(), {"subtype": "error", "error": "no"})
    with pytest.raises(SessionResumeError, match="gone"):
        play(queries.rewind("t", ["s"], "c"), {"type": "result", "errors": ["gone"]})


def test_a_fork_is_settled_by_a_message_of_blanks():
    asked, _ = play(queries.settle_fork("c", "f"), HELLO, {"type": "result", "session_id": "f"})
    assert not asked[1]["message"]["content"].strip()
    with pytest.raises(QueryFailedError, match="answered as 'c'"):
        play(queries.settle_fork("c", "f"), HELLO, {"type": "result", "session_id": "c"})


def test_junk_is_passed_over():
    script = queries.whose()
    next(script)
    for line in (b"junk", b"[]", b"null", b"{}", b'{"type":"control_response"}', Oversized(9), b'{"type":"result"}'):
        assert script.send(line) is None


def test_the_last_message_of_the_user_is_a_steered_one_or_a_retry():
    items = [ThreadItem(kind=kind, item_id=name) for kind, name in ((ItemKind.USER_TEXT, "p"), (ItemKind.ASSISTANT_TEXT, "a"))]
    steer = ThreadItem(kind=ItemKind.USER_TEXT, item_id="s")
    assert queries._last_said(_thread(items, ["p"])) == ("p",)
    assert queries._last_said(_thread([*items, steer], ["p"])) == ("s", "p")
    assert set(queries._last_said(_thread(items, ["p", "retry"]))) == {"p", "retry"}


def _thread(items, attempts):
    return Thread(thread_id="c", turns=[ThreadTurn(turn_id="p", items=items, attempt_ids=attempts)])
