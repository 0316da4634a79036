from __future__ import annotations

import json
import time

import pytest
from claude_wire import says
from hypothesis import given, settings
from hypothesis import strategies as st

from greenroom.transports.claude.frames import Frame, decode


@pytest.mark.parametrize(
    "line", [b"", b"not json", b"{", b"[1]", b"3", b'"x"', b"null", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000, b'{"a":' * 5000]
)
def test_junk_is_no_frame(line: bytes) -> None:
    assert decode(line) is None


def test_an_object_without_a_type_is_a_frame_of_no_type() -> None:
    assert decode(b'{"a": 1}').type == ""


def test_fields_of_another_type_are_left_out_and_the_rest_is_kept() -> None:
    frame = decode(b'{"type":"result","result":5,"is_error":"yes","uuid":"u","user_message_uuids":["a",7],"num_turns":2,"message":[]}')
    assert (frame.type, frame.result, frame.is_error, frame.uuid) == ("result", None, False, "u")
    assert frame.user_message_uuids == ["a"]
    assert frame.num_turns == 2
    assert frame.message is None


def test_content_blocks_of_another_shape_are_left_out() -> None:
    content = [{"type": "text", "text": "a"}, 5, {"type": "text", "text": None}, {"type": "new", "odd": 1}]
    frame = decode(json.dumps({"type": "assistant", "message": {"id": 4, "content": content}}).encode())
    assert [(block.type, block.text) for block in frame.message.content] == [("text", "a"), ("text", ""), ("new", "")]


def test_lone_surrogates_and_bad_utf8_are_replaced() -> None:
    assert decode(b'{"type":"result","result":"a\\ud800b"}').result == "a\ufffdb"
    assert decode(b'{"type":"result","result":"a\xffb"}').result == "a\ufffdb"
    assert decode(b'{"type":"result","result":"\\u0000\\ud83d\\ude00"}').result == "\x00\U0001f600"


def test_numbers_that_are_none_become_nothing() -> None:
    assert decode(b'{"type":"result","total_cost_usd":NaN,"usage":{"a":Infinity}}').usage == {"a": None}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise(line: bytes) -> None:
    assert decode(line) is None or isinstance(decode(line), Frame)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["type", "subtype", "uuid", "message", "event", "user_message_uuids", "response", "errors", "is_error", "isReplay", "skills"]
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, JSON))
def test_no_object_raises(value: dict[str, object]) -> None:
    assert isinstance(decode(json.dumps(value).encode()), Frame)


def test_a_small_frame_takes_microseconds() -> None:
    line = json.dumps(says("x" * 60)).encode()
    rounds = 2000
    best = min(_seconds(line, rounds) for _ in range(5)) / rounds
    assert best < 50e-6  # about 2 µs on an idle machine


def _seconds(line: bytes, rounds: int) -> float:
    began = time.perf_counter()
    for _ in range(rounds):
        decode(line)
    return time.perf_counter() - began
