from __future__ import annotations

import json

import pytest

from greenroom.transports.codex import lines


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "é\U0001f600", "\x00\n\u2028", "plain"])
def test_whatever_a_text_holds_the_line_is_one_that_a_strict_reader_takes(text: str) -> None:
    line = lines.request(1, "m", {"text": text, text: [text]})
    assert line.isascii()
    assert line.count(b"\n") == 1
    got = json.loads(line)["params"]["text"]
    got.encode()
    assert got == text or "\ud800" in text or "\udfff" in text


def test_numbers_that_are_none_in_json_become_null() -> None:
    assert json.loads(lines.answer("x", {"n": float("nan"), "t": (1, 2)})) == {"id": "x", "result": {"n": None, "t": [1, 2]}}


@pytest.mark.parametrize("line", [b"", b"x", b"[]", b"3", b"{", b"\xff{}", b"null", b"[" * 100_000])
def test_what_is_no_object_is_no_frame(line: bytes) -> None:
    assert lines.decode(line) is None


def test_bytes_that_are_no_utf8_and_lone_surrogates_are_replaced() -> None:
    assert lines.decode(b'{"a":"\xff"}') == {"a": "\ufffd"}
    assert lines.decode(b'{"a":"\\ud800"}') == {"a": "\ufffd"}
    assert lines.decode(b'{"a":1e999}') in ({"a": None}, None)
