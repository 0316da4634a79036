"""What a transcript tells of a conversation: which rows count, what became of each turn, and that junk and size do no harm."""

from __future__ import annotations

import json
import os
import threading
import time
import tracemalloc
import uuid

import pytest

from greenroom.errors import QueryFailedError, SessionResumeError
from greenroom.history import Clipper, ItemKind, TurnStatus
from greenroom.transports.claude import history, queries

ID = "00000000-0000-4000-8000-0000000000aa"


class Transcript:
    """Writes rows as Claude Code 2.1.332 does, each after the one before."""

    def __init__(self):
        self.rows: list[bytes] = []
        self.last = None

    def row(self, kind, *, parent="", **fields):
        row_id = str(uuid.uuid4())
        row = {"parentUuid": self.last if parent == "" else parent, "isSidechain": False, "type": kind, "uuid": row_id, **fields}
        self.raw({**row, "timestamp": "2026-12-01T01:33:34.000Z"})
        if not row["isSidechain"]:
            self.last = row_id
        return row_id

    def raw(self, row):
        self.rows.append(row if isinstance(row, bytes) else json.dumps(row).encode())

    def user(self, content, **fields):
        return self.row("user", message={"role": "user", "content": content}, **fields)

    def assistant(self, *blocks, stop="end_turn", message_id=None, **fields):
        message = {"role": "assistant", "content": list(blocks), "stop_reason": stop, "id": message_id or str(uuid.uuid4())}
        return self.row("assistant", message={**message, **fields.pop("message", {})}, **fields)

    def says(self, text, **fields):
        return self.assistant({"type": "text", "text": text}, **fields)

    def calls(self, call_id, **fields):
        block = {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": call_id}}
        return self.assistant(block, stop="tool_use", **fields)

    def answers(self, call_id, text="out", **fields):
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return self.user([block], **{"sourceToolAssistantUUID": self.last, **fields})

    def turn(self, word):
        prompt = self.user(word)
        self.says(f"re {word}")
        return prompt

    def rewound(self, leaf):
        self.raw({"type": "last-prompt", "leafUuid": leaf, "explicit": True, "rewound": True})
        self.last = leaf

    def write(self, path, tail=b""):
        path.write_bytes(b"".join(row + b"\n" for row in self.rows) + tail)
        return path


@pytest.fixture
def script():
    return Transcript()


@pytest.fixture
def read(script, tmp_path):
    def read(tail=b"", **options):
        return history.read(script.write(tmp_path / "t.jsonl", tail), ID, **options)

    return read


def told(thread):
    return [[item.text or item.tool for item in turn.items] for turn in thread.turns]


def test_turns_with_their_items_and_ids(script, read):
    script.raw({"type": "queue-operation", "operation": "enqueue", "content": "one"})
    first = script.user("one")
    script.row("attachment", attachment={"type": "environment"})
    script.assistant({"type": "thinking", "thinking": "hm"}, stop="tool_use")
    script.calls("a")
    script.answers("a", [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}])
    script.says("done")
    script.row("system", subtype="informational", content="notice")
    thread = read()
    (turn,) = thread.turns
    assert (thread.thread_id, thread.unread) == (ID, 0)
    assert (turn.turn_id, turn.status, turn.attempt_ids) == (first, TurnStatus.COMPLETED, (first,))
    assert turn.started_at == 1796088814.0
    assert [item.kind for item in turn.items] == [ItemKind.USER_TEXT, ItemKind.REASONING, ItemKind.TOOL_CALL, ItemKind.ASSISTANT_TEXT]
    assert (turn.items[2].args, turn.items[2].result, turn.items[2].item_id) == ({"command": "a"}, "x\ny", "a")


def test_an_empty_file_and_a_file_of_junk(script, read):
    assert read().turns == ()
    script.raw(b"junk")
    script.raw(b'{"type": 7}')
    script.raw(b"\xff\xfe")
    script.raw(b"[]")
    script.raw(b"null")
    script.turn("one")
    script.raw(b'{"type":"user","uuid":"u","message":"no object"}')
    thread = read()
    assert told(thread) == [["one", "re one"]]
    assert thread.unread >= 5


def test_a_half_last_line_is_none(script, read):
    script.turn("one")
    thread = read(tail=b'{"parentUuid":null,"type":"user","uuid":"half","message":{"role":"user","con')
    assert told(thread) == [["one", "re one"]]
    assert thread.unread == 1


def test_several_calls_of_one_answer_and_their_results_are_all_told(script, read):
    script.user("one")
    script.assistant({"type": "text", "text": "both"}, stop="tool_use", message_id="m")
    first = script.calls("a", message_id="m")
    script.answers("a", parent=first, sourceToolAssistantUUID=first)
    second = script.calls("b", message_id="m", parent=first)
    script.answers("b", parent=second, sourceToolAssistantUUID=second)
    script.says("done")
    (turn,) = read().turns
    assert [(item.tool or item.text, item.result) for item in turn.items[1:]] == [
        ("both", None),
        ("Bash", "out"),
        ("Bash", "out"),
        ("done", None),
    ]


def test_a_sub_agents_rows_are_left_out(script, read):
    script.user("one")
    script.row("user", isSidechain=True, parent=None, message={"role": "user", "content": "for the sub-agent"})
    script.row("assistant", isSidechain=True, message={"content": [{"type": "text", "text": "sub"}]})
    script.says("done")
    assert told(read()) == [["one", "done"]]


def test_a_branch_that_was_rewound_is_not_shown(script, read):
    script.turn("one")
    kept = script.last
    script.turn("two")
    script.rewound(kept)
    assert told(read()) == [["one", "re one"]]
    script.turn("three")
    assert told(read()) == [["one", "re one"], ["three", "re three"]]


def test_a_conversation_that_was_rewound_to_its_beginning_is_empty(script, read):
    script.turn("one")
    script.rewound(None)
    assert read().turns == ()
    script.user("two", parent=None)
    assert told(read()) == [["two"]]


def test_what_came_before_a_compaction_is_told(script, read):
    script.turn("one")
    script.row("system", parent=None, logicalParentUuid=script.last, subtype="compact_boundary")
    script.user("the summary", isCompactSummary=True, isVisibleInTranscriptOnly=True)
    script.turn("two")
    thread = read()
    assert told(thread) == [["one", "re one", "the summary"], ["two", "re two"]]
    assert thread.turns[0].items[2].kind is ItemKind.COMPACTION


def test_the_status_of_a_turn(script, read):
    script.turn("completed")
    script.user("interrupted")
    script.calls("a")
    script.answers("a")
    script.user([{"type": "text", "text": "[Request interrupted by user]"}])
    script.user("failed")
    script.says("API Error: 529", isApiErrorMessage=True, stop="stop_sequence", message={"model": "<synthetic>"})
    script.user("cut")
    script.calls("b")
    assert [turn.status for turn in read().turns] == [
        TurnStatus.COMPLETED,
        TurnStatus.INTERRUPTED,
        TurnStatus.ERROR,
        TurnStatus.INTERRUPTED,
    ]
    assert read().turns[2].error == "API Error: 529"
    assert read(running=True).turns[-1].status is TurnStatus.RUNNING


def test_a_turn_that_has_ended_is_not_called_running(script, read):
    script.turn("one")
    assert read(running=True).turns[0].status is TurnStatus.COMPLETED


def test_an_answer_by_a_tool_is_an_end(script, read):
    script.user("one")
    script.assistant({"type": "tool_use", "id": "s", "name": "StructuredOutput", "input": {"n": 7}}, stop="tool_use")
    script.answers("s", "ok")
    assert read().turns[0].status is TurnStatus.COMPLETED


def test_a_retry_in_place_belongs_to_its_turn(script, read):
    first = script.user("one")
    script.says("API Error: 529", isApiErrorMessage=True)
    again = script.user([{"type": "text", "text": ""}])
    script.says("done")
    (turn,) = read().turns
    assert (turn.status, turn.error, turn.attempt_ids) == (TurnStatus.COMPLETED, None, (first, again))
    assert [item.text for item in turn.items] == ["one", "done"]


def test_going_on_after_a_death_belongs_to_its_turn(script, read):
    script.user("one")
    script.calls("a")
    script.assistant({"type": "text", "text": "No response requested."}, message={"model": "<synthetic>"})
    script.user("Continue from where you left off.")
    script.says("done")
    (turn,) = read().turns
    assert turn.status is TurnStatus.COMPLETED
    assert [item.kind for item in turn.items] == [ItemKind.USER_TEXT, ItemKind.TOOL_CALL, ItemKind.OTHER, ItemKind.ASSISTANT_TEXT]


def test_the_same_words_after_a_turn_that_ended_are_a_prompt(script, read):
    script.turn("one")
    script.turn("Continue from where you left off.")
    assert len(read().turns) == 2


def test_steered_texts_and_attachments_are_the_users(script, read):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "…"}}
    script.user([{"type": "text", "text": "look"}, image])
    script.row("attachment", attachment={"type": "queued_command", "prompt": "faster", "source_uuid": "s", "commandMode": "prompt"})
    script.row("attachment", attachment={"type": "queued_command", "prompt": "a task", "commandMode": "task-notification"})
    script.says("done")
    (turn,) = read().turns
    assert [(item.kind, item.text) for item in turn.items[:3]] == [
        (ItemKind.USER_TEXT, "look"),
        (ItemKind.ATTACHMENT, "image image/png"),
        (ItemKind.USER_TEXT, "faster"),
    ]
    assert turn.items[2].item_id == "s"
    assert len(turn.items) == 4


def test_what_the_cli_tells_the_model_is_not_the_users(script, read):
    script.turn("one")
    script.user("<local-command-caveat>…", isMeta=True)
    script.user("<command-name>/cost</command-name>")
    script.user("<local-command-stdout>0</local-command-stdout>")
    thread = read()
    assert [turn.status for turn in thread.turns] == [TurnStatus.COMPLETED, TurnStatus.COMPLETED]
    assert told(thread)[1] == ["<command-name>/cost</command-name>", "<local-command-stdout>0</local-command-stdout>"]


def test_a_circle_of_rows_ends(script, read):
    first = script.user("one", parent="b")
    script.raw({"type": "assistant", "uuid": "b", "parentUuid": first, "message": {"content": [{"type": "text", "text": "x"}]}})
    assert told(read()) == [["one", "x"]]


def test_long_texts_are_cut_and_say_so(script, read):
    script.turn("x" * 5000)
    script.turn("y" * 5000)
    thread = read(clipper=Clipper(max_item_chars=1000))
    assert [len(item.text) for item in thread.turns[0].items] == [1000, 1000]
    assert all(item.truncated for turn in thread.turns for item in turn.items)
    short = read(clipper=Clipper(max_item_chars=4000, max_thread_chars=4000))
    assert [len(item.text) for turn in short.turns for item in turn.items] == [4000, 2000, 2000, 2000]


# --- the file ---------------------------------------------------------------------------------------------------------------------


def home_with(script, tmp_path):
    folder = tmp_path / "projects" / "-repo"
    folder.mkdir(parents=True)
    return script.write(folder / f"{ID}.jsonl")


def test_the_newest_of_several_is_read(script, tmp_path):
    old = home_with(script, tmp_path)
    os.utime(old, (1, 1))
    newer = Transcript()
    newer.turn("new")
    (tmp_path / "projects" / "-other").mkdir()
    newer.write(tmp_path / "projects" / "-other" / f"{ID}.jsonl")
    assert told(queries.read_thread(tmp_path, ID)) == [["new", "re new"]]


@pytest.mark.parametrize("name", [ID, "", "../../etc/passwd", "*"])
def test_a_conversation_that_is_not_there(tmp_path, name):
    with pytest.raises(SessionResumeError):
        queries.read_thread(tmp_path, name)


def test_in_mid_turn_there_need_not_be_a_file_yet(tmp_path):
    assert queries.read_thread(tmp_path, ID, running=True).turns == ()


def test_a_file_that_has_vanished_and_one_that_cannot_be_read(tmp_path):
    assert queries.read_file(tmp_path / "gone.jsonl", ID) is None
    with pytest.raises(QueryFailedError, match="cannot be read"):
        queries.read_file(tmp_path, ID)


def test_a_file_that_is_cut_between_the_two_readings(script, tmp_path):
    script.turn("one")
    script.turn("two")
    path = home_with(script, tmp_path)
    tree = history._index(path)
    assert len(tree.branch()) == 4
    path.write_bytes(path.read_bytes()[:400])
    assert len(list(history._shown(path, tree.branch()))) <= 1


def test_a_file_that_grows_meanwhile(script, tmp_path):
    script.turn("one")
    path = home_with(script, tmp_path)
    stop = threading.Event()

    def grow():
        while not stop.is_set():
            with path.open("ab") as rows:
                rows.write(b'{"type":"queue-operation"}\n{"type":"us')
                rows.flush()
                rows.write(b'er"}\n')

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(50):
            assert told(queries.read_thread(tmp_path, ID)) == [["one", "re one"]]
    finally:
        stop.set()
        writer.join()


def test_fifty_megabytes_take_seconds_and_little_memory(script, tmp_path):
    for number in range(50):
        script.user(f"turn {number}")
        script.calls(f"c{number}")
        script.answers(f"c{number}", "x" * 1_000_000)
        script.says("done")
    path = home_with(script, tmp_path)
    size = path.stat().st_size
    script.rows.clear()
    assert size > 50_000_000
    tracemalloc.start()
    began = time.monotonic()
    thread = history.read(path, ID, clipper=Clipper(max_item_chars=10_000))
    took_s, (_, peak) = time.monotonic() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(thread.turns) == 50
    assert took_s < 20
    assert peak < size / 3
