"""What is read of a thread's file: the messages of its last turn, however the file ends."""

from __future__ import annotations

import json
import pathlib

import pytest

from greenroom.transports.codex.rollout import last_messages

THREAD = "01a22eb0-37fe-70c1-a61c-049511afe1fc"


def row(kind: str, **payload: object) -> str:
    return json.dumps({"timestamp": "2026-11-30T23:00:00Z", "type": kind, "payload": payload}, separators=(",", ":"))


def began(turn: str) -> str:
    return row("event_msg", type="task_started", turn_id=turn)


def said(text: str, turn: str | None, role: str = "user") -> str:
    origin = {"internal_chat_message_metadata_passthrough": {"turn_id": turn}} if turn else {}
    return row("response_item", type="message", role=role, content=[{"type": "input_text", "text": text}], **origin)


def written(home: pathlib.Path, *rows: str, end: str = "\n") -> tuple[str, ...]:
    folder = home / "sessions" / "2026" / "11" / "30"
    folder.mkdir(parents=True)
    (folder / f"rollout-2026-11-30T23-00-00-{THREAD}.jsonl").write_text("\n".join(rows) + end)
    return last_messages(str(home), THREAD)


def test_the_messages_of_the_last_turn(tmp_path: pathlib.Path) -> None:
    rows = (began("t1"), said("one", "t1"), began("t2"), said("context", None), said("two", "t2"), said("steer", "t2"))
    assert written(tmp_path, *rows, said("an answer", "t2", role="assistant")) == ("two", "steer")


@pytest.mark.parametrize("rest", ["", "{", '{"type":"response_item","payload":{"type":"message","role":"user","content":[{"te', "\xff\x00"])
def test_a_turn_that_has_only_begun(tmp_path: pathlib.Path, rest: str) -> None:
    assert written(tmp_path, began("t1"), said("one", "t1"), began("t2"), rest, end="") == ()


@pytest.mark.parametrize(
    "odd", ['{"payload":{"role":"user","content":3,"type":"message"}}', '[{"role":"user"}]', '{"payload":null,"x":"task_started"}']
)
def test_rows_of_another_shape(tmp_path: pathlib.Path, odd: str) -> None:
    assert written(tmp_path, began("t1"), odd, said("one", "t1")) == ("one",)


def test_a_thread_that_is_not_there(tmp_path: pathlib.Path) -> None:
    assert last_messages(str(tmp_path), THREAD) == ()
