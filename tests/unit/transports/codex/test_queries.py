"""The scripts that ask an app-server beside the turns, played by hand: pages, refusals, lines that are too long; what its turns mean."""

from __future__ import annotations

import json

import pytest

from greenroom.errors import QueryFailedError, SessionResumeError, SessionStateError
from greenroom.history import Clipper, ItemKind, TurnStatus
from greenroom.model import ProviderUsage, TokenUsage
from greenroom.transports.codex import queries
from greenroom.transports.codex.history import Teller
from greenroom.transports.pipes import Oversized


def message(text, kind="userMessage", **fields):
    if kind == "userMessage":
        return {"type": kind, "id": f"i-{text}", "content": [{"type": "text", "text": text}], **fields}
    return {"type": kind, "id": f"i-{text}", "text": text, **fields}


def wire(turn_id, *items, status="completed", **fields):
    return {"id": turn_id, "items": list(items), "status": status, "completedAt": 1, "startedAt": 5, **fields}


def said(turn_id, prompt, **fields):
    return wire(turn_id, message(prompt), message(f"re {prompt}", "agentMessage"), **fields)


class Played:
    """A script and a server that answers from a list; `asked` is what it was asked."""

    def __init__(self, script, *answers):
        self.asked: list[tuple[str, dict]] = []
        self.script, self.answers = script, [{}, *answers]
        self.answer = self._play()

    def _play(self):
        try:
            data = next(self.script)
            while True:
                data = self.script.send(self._reply(data))
        except StopIteration as stop:
            return stop.value

    def _reply(self, data):
        request = json.loads(data.splitlines()[-1])
        self.asked.append((request["method"], request["params"]))
        reply = self.answers.pop(0)
        if reply is None:
            return Oversized(40_000_000)
        body = {"error": reply} if isinstance(reply, Exception) else {"result": reply}
        body = {"error": {"code": -32600, "message": str(reply)}} if isinstance(reply, Exception) else body
        return json.dumps({"id": request["id"], **body}).encode()


def page(*turns, cursor=None):
    return {"data": list(turns), "nextCursor": cursor}


def test_a_thread_comes_page_by_page():
    played = Played(queries.read_thread("t"), page(said("1", "one"), cursor="c"), page(said("2", "two")))
    assert [turn.turn_id for turn in played.answer.turns] == ["1", "2"]
    first, second = (params for method, params in played.asked if method == "thread/turns/list")
    assert "cursor" not in first
    assert (second["cursor"], second["limit"], second["sortDirection"]) == ("c", queries.PAGE_TURNS, "asc")


def test_a_page_that_is_too_long_is_asked_for_turn_by_turn_and_then_in_brief():
    played = Played(queries.read_thread("t"), None, None, page(said("1", "one"), cursor="c"), page(said("2", "two")))
    asked = [(params["limit"], params["itemsView"]) for method, params in played.asked if method == "thread/turns/list"]
    assert asked == [(8, "full"), (1, "full"), (1, "summary"), (8, "full")]
    assert len(played.answer.turns) == 2


def test_a_turn_that_no_line_holds_is_an_error():
    with pytest.raises(QueryFailedError, match="longer than a line may be"):
        Played(queries.read_thread("t"), None, None, None)


def test_a_thread_that_is_gone():
    gone = ValueError("thread not loaded: t")
    with pytest.raises(SessionResumeError) as refused:
        Played(queries.read_thread("t"), gone)
    assert str(refused.value) == "conversation 't' cannot be resumed: thread not loaded: t"  # no turn has failed
    assert Played(queries.read_thread("t", running=True), gone).answer.turns == ()


def test_another_refusal_is_no_lost_thread():
    with pytest.raises(QueryFailedError, match="disk on fire"):
        Played(queries.read_thread("t"), ValueError("disk on fire"))


def test_the_servers_own_questions_and_junk_are_passed_over():
    script = queries.whose()
    next(script)
    question = script.send(b'{"id":1,"result":{}}')
    assert question.splitlines()[0] == b'{"method":"initialized"}'
    refusal = script.send(b'{"id":7,"method":"item/tool/requestUserInput","params":{}}')
    assert json.loads(refusal)["error"]
    assert script.send(b"junk") is None
    assert script.send(b'{"method":"warning","params":{}}') is None
    with pytest.raises(StopIteration) as ended:
        script.send(b'{"id":2,"result":{"account":{"type":"apiKey"}}}')
    assert ended.value.value.kind.value == "apiKey"


USAGE = ProviderUsage(tokens=TokenUsage(input=9), provider="codex", raw={"total": {"inputTokens": 900}})


def test_a_rollback_reverts_to_before_the_first_turn_that_goes():
    turns = [said(str(number), f"p{number}") for number in range(4)]
    played = Played(queries.rollback("t", 2, USAGE), {}, page(*turns), {}, page(*turns[:2]))
    assert ("thread/revert", {"threadId": "t", "beforeTurnId": "2"}) in played.asked
    assert played.answer.raw == {"rolledBack": True}
    assert played.answer.tokens == USAGE.tokens


def test_after_a_rollback_of_everything_the_totals_are_nothing():
    played = Played(queries.rollback("t", 1, USAGE), {}, page(said("1", "one")), {}, page())
    assert played.answer.raw == {"total": {}}


def test_a_rollback_of_too_many_turns_reverts_nothing():
    with pytest.raises(SessionStateError, match="has 1"):
        Played(queries.rollback("t", 2, None), {}, page(said("1", "one")))


def test_a_revert_that_did_not_take_is_seen():
    turns = [said("1", "one"), said("2", "two")]
    with pytest.raises(QueryFailedError, match="still has 2 turns"):
        Played(queries.rollback("t", 1, None), {}, page(*turns), {}, page(*turns))


def test_a_thread_in_the_archive_is_taken_out_first():
    archived = ValueError("session t is archived. Run `codex unarchive t`")
    played = Played(queries.rollback("t", 1, None), archived, {}, {}, page(said("1", "one")), {}, page())
    assert [method for method, _ in played.asked][1:4] == ["thread/resume", "thread/unarchive", "thread/resume"]
    fork = Played(queries.fork("t"), archived, {}, {"thread": {"id": "f"}})
    assert fork.answer == "f"


def test_a_fork_that_has_no_name():
    with pytest.raises(QueryFailedError, match="named no thread"):
        Played(queries.fork("t"), {"thread": {}})


# --- what turns mean ----------------------------------------------------------------------------------------------------------------


def turns_of(wire_turns, *, running=False):
    teller = Teller(Clipper())
    for turn in wire_turns:
        teller.take(turn)
    return teller.turns(running=running)


def test_items_of_all_kinds():
    command = {
        "type": "commandExecution",
        "id": "c",
        "command": "ls",
        "cwd": "/",
        "aggregatedOutput": "x",
        "exitCode": 0,
        "status": "completed",
    }
    declined = {"type": "fileChange", "id": "f", "changes": [], "status": "declined"}
    image = {
        "type": "userMessage",
        "id": "u",
        "content": [{"type": "localImage", "path": "/a.png"}, {"type": "image", "url": "data:image/png;base64,AA"}],
    }
    (turn,) = turns_of(
        [
            wire(
                "1",
                image,
                {"type": "reasoning", "id": "r", "summary": ["hm"]},
                command,
                declined,
                {"type": "contextCompaction", "id": "k"},
                {"type": "new"},
            )
        ]
    )
    assert [(item.kind, item.text or item.tool) for item in turn.items] == [
        (ItemKind.ATTACHMENT, "localImage /a.png"),
        (ItemKind.ATTACHMENT, "image image/png"),
        (ItemKind.REASONING, "hm"),
        (ItemKind.TOOL_CALL, "shell"),
        (ItemKind.TOOL_CALL, "apply_patch"),
        (ItemKind.COMPACTION, ""),
        (ItemKind.OTHER, "new"),
    ]
    assert [(item.result, item.exit_code, item.failed) for item in turn.items[3:5]] == [("x", 0, False), ("declined", None, True)]
    assert turn.started_at == 5


def test_the_status_of_turns():
    turns = turns_of(
        [
            said("1", "a"),
            said("2", "b", status="failed", error={"message": "busy"}),
            said("3", "c", status="interrupted"),
            said("4", "d", status="inProgress"),
            said("5", "e", status="news"),
        ]
    )
    assert [turn.status for turn in turns] == [
        TurnStatus.COMPLETED,
        TurnStatus.ERROR,
        TurnStatus.INTERRUPTED,
        TurnStatus.RUNNING,
        TurnStatus.INTERRUPTED,
    ]
    assert turns[1].error == "busy"


@pytest.mark.parametrize(("completed_at", "status"), [(None, TurnStatus.RUNNING), (7, TurnStatus.INTERRUPTED)])
def test_a_turn_that_runs_elsewhere_is_told_as_interrupted_without_an_end(completed_at, status):
    cut = said("1", "a", status="interrupted") | {"completedAt": completed_at}
    assert turns_of([cut], running=True)[0].status is status
    assert turns_of([cut])[0].status is TurnStatus.INTERRUPTED


def test_retries_and_what_goes_on_belong_to_their_turn():
    (turn,) = turns_of(
        [
            wire("1", message("one"), status="failed", error={"message": "busy"}),
            wire("2", status="interrupted"),
            wire("3", message("Continue from where you left off."), message("done", "agentMessage")),
        ]
    )
    assert (turn.turn_id, turn.attempt_ids, turn.status, turn.error) == ("1", ("1", "2", "3"), TurnStatus.COMPLETED, None)
    assert [item.kind for item in turn.items] == [ItemKind.USER_TEXT, ItemKind.OTHER, ItemKind.ASSISTANT_TEXT]


def test_a_turn_that_was_cut_before_anything_of_it_was_written_is_the_one_that_is_sent_again():
    first, second = turns_of([said("0", "zero"), wire("1", status="interrupted"), said("2", "one")])
    assert (second.turn_id, second.attempt_ids, [item.text for item in second.items]) == ("1", ("1", "2"), ["one", "re one"])
    assert first.turn_id == "0"


def test_a_prompt_after_a_turn_that_failed_is_a_turn():
    assert len(turns_of([said("1", "one", status="failed"), said("2", "two")])) == 2
