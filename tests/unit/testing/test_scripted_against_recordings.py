"""The scripted CLI against frames of Claude Code 2.1.332: the same frames in the same order with the same keys."""

from __future__ import annotations

import json
import pathlib
import time

import pytest

from .scripted_peer import Peer, kind

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "scripted"
ARGS = {"unknown_resume": ("--resume", "00000099-aaaa-4aaa-8aaa-aaaaaaaaaaaa")}
FREE_KEYS = {"ttft_ms", "abandoned_blocks", "context_management"}


def recorded(name):
    lines = (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(record["d"], record["f"]) for record in map(json.loads, lines)]


def is_delta(frame):
    return frame.get("event", {}).get("type") == "content_block_delta" or frame.get("subtype") == "thinking_tokens"


def shape(frame):
    keys = tuple(key for key in frame if key not in FREE_KEYS)
    if frame.get("type") == "stream_event":
        keys = tuple(key for key in keys if key != "thinking_display")
    if frame.get("type") == "assistant":
        keys = tuple(key for key in keys if not key.startswith("thinking_"))
    return kind(frame), keys


def replayed(name, tmp_path):
    """Send the recorded input, each line when the scripted CLI has said as much as the real one had."""
    script = recorded(name)
    partial = any(frame.get("type") == "stream_event" for _, frame in script)
    args = [*ARGS.get(name, ()), *(["--include-partial-messages"] if partial else [])]
    with Peer(tmp_path / name, *args, replay=any("isReplay" in frame for _, frame in script)) as peer:
        said = wanted = 0
        streaming = False
        for direction, frame in script:
            if direction == "out":
                wanted += not is_delta(frame)
                streaming = is_delta(frame)
                continue
            while said < wanted or (streaming and not is_delta(peer.frames[-1])):
                said += not is_delta(peer.frame())
            if frame["type"] == "control_response":
                frame["response"]["request_id"] = peer.frames[-1]["request_id"]
            if frame.get("request", {}).get("subtype") == "interrupt":
                time.sleep(0.15)  # so that there is some text: pieces of it are not seen without partial messages
            peer.send(frame)
        peer.rest()
        return compared(peer.frames), compared(frame for direction, frame in script if direction == "out")


def compared(frames):
    """The frames that must agree: without pieces of text, and one text for several (the scripted model answers each of two prompts)."""
    kept = []
    for frame in frames:
        again = bool(kept) and kind(frame) == kind(kept[-1]) == ("assistant", "text")
        if not is_delta(frame) and not again:
            kept.append(frame)
    return kept


NAMES = ("num_turns", "user_message_uuid", "user_message_uuids", "result_index", "terminal_reason", "stop_reason", "api_error_status")


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.jsonl")))
def test_frames_are_those_of_the_recording(name, tmp_path):
    ours, theirs = replayed(name, tmp_path)
    assert [kind(frame) for frame in ours] == [kind(frame) for frame in theirs]
    for mine, real in zip(ours, theirs, strict=True):
        assert shape(mine) == shape(real)
        assert {key: mine.get(key) for key in NAMES} == {key: real.get(key) for key in NAMES}
        assert mine.get("command_uuid") == real.get("command_uuid")
