"""The scripted Codex against frames of codex-cli 0.171.0: the same frames in the same order, with the same keys in the same order."""

from __future__ import annotations

import json
import pathlib

import pytest

from .codex_peer import CodexPeer

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "scripted_codex"
TELLING = ("type", "status", "willRetry", "source", "itemsView", "phase", "approvalPolicy", "codexErrorInfo", "kind", "activeFlags", "code")
UUID_CHARS = 36


def recorded(name):
    lines = (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(record["d"], record["f"]) for record in map(json.loads, lines)]


def shape(value, key=""):
    """What a frame is made of: its keys in their order, and the values that tell what it is."""
    if isinstance(value, dict):
        return tuple((name, shape(inner, name)) for name, inner in value.items())
    if isinstance(value, list):
        return tuple(shape(inner, key) for inner in value)
    return value if key in TELLING else ""


def is_passed_over(frame):
    """Pieces of output depend on timing and size; the state of the remote control comes whenever it likes."""
    method = str(frame.get("method", ""))
    return method.lower().endswith("delta") or method.startswith("remoteControl/")


def summary(frame):
    if "method" not in frame:
        return "error" if "error" in frame else "reply", shape(frame)
    return frame["method"], shape(frame)


def learn(known, theirs, ours):
    """Remember which of our ids stands for which of theirs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs:
            learn(known, theirs[key], ours.get(key))
    elif isinstance(theirs, list) and isinstance(ours, list):
        for their, our in zip(theirs, ours, strict=False):
            learn(known, their, our)
    elif isinstance(theirs, str) and isinstance(ours, str) and len(theirs) == UUID_CHARS == len(ours):
        known.setdefault(theirs, ours)


def ours(known, frame, cwd):
    text = json.dumps(frame).replace("/rig/tree", str(cwd))
    for their, our in known.items():
        text = text.replace(their, our)
    return json.loads(text)


def played(peer, script, known):
    """Send the recorded input, each line when the scripted server has said as much as the real one had; return both outputs."""
    expected, got = [], []
    for direction, frame in script:
        if direction == ">":
            peer.raw(json.dumps(ours(known, frame, peer.home)).encode() + b"\n")
        elif not is_passed_over(frame):
            expected.append(frame)
            mine = peer.where(lambda one: not is_passed_over(one), frame.get("method"))
            got.append(mine)
            learn(known, frame, mine)
    return expected, got


def in_order(frames):
    """Frames as they came, but for replies and thread/started: those race with the next request even in the real server."""
    return [summary(frame) for frame in frames if not races(frame)], sorted(map(str, (summary(one) for one in frames if races(one))))


def races(frame):
    return "method" not in frame or frame["method"] in (
        "thread/started",
        "configWarning",
        "remoteControl/status/changed",
        "thread/goal/cleared",
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.jsonl") if not path.stem.startswith("resume_")))
def test_the_same_frames_as_the_real_one(name, tmp_path):
    with CodexPeer(tmp_path) as peer:
        expected, got = played(peer, recorded(name), {})
    assert in_order(got) == in_order(expected)


def test_a_thread_that_was_killed_is_read_and_resumed_as_the_real_one_is(tmp_path):
    known = {}
    for name in ("resume_before", "resume_after"):
        with CodexPeer(tmp_path) as peer:
            expected, got = played(peer, recorded(name), known)
            peer.kill()
        assert in_order(got) == in_order(expected), name


def test_what_is_unknown_is_refused_as_the_real_one_refuses(tmp_path):
    with CodexPeer(tmp_path) as peer:
        expected, got = played(peer, recorded("resume_unknown"), {})
    assert [frame["error"] for frame in got if "error" in frame] == [frame["error"] for frame in expected if "error" in frame]
