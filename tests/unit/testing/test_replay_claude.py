from __future__ import annotations

import json
import pathlib
import signal
import subprocess

import pytest

from greenroom.testing.scripted import replayed_claude_argv, write_replayed_claude

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "scripted"
ID = "0b5f4c1e-0000-4000-8000-00000000000a"


def replay(recording, *args, lines=(), env=None):
    argv = [*replayed_claude_argv(recording), *args]
    given = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    done = subprocess.run(argv, input=given, capture_output=True, timeout=20, check=False, env=env or {})
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def initialize(request_id="mine"):
    return {"type": "control_request", "request_id": request_id, "request": {"subtype": "initialize"}}


def user(text, uuid):
    return {"type": "user", "uuid": uuid, "message": {"role": "user", "content": text}}


def control(subtype, **fields):
    return {"type": "control_request", "request_id": subtype, "request": {"subtype": subtype, **fields}}


def test_the_drivers_names_stand_in_the_recorded_frames():
    lines = [initialize(), user("my prompt", "u1"), user("my steer", "u2"), control("cancel_async_message", message_uuid="u2")]
    status, frames, _ = replay(FIXTURES / "tool_and_cancelled_message.jsonl", "--session-id", ID, lines=lines)
    assert status == 0
    assert frames[0]["response"]["request_id"] == "mine"
    assert [frame["command_uuid"] for frame in frames if frame["type"] == "command_lifecycle"] == ["u1", "u1", "u2", "u2"]
    assert [frame["message"]["content"] for frame in frames if frame.get("isReplay")] == ["my prompt"]
    assert {frame["session_id"] for frame in frames if "session_id" in frame} == {ID}
    assert frames[-1]["response"]["response"] == {"cancelled": True, "message_uuid": "u2"}


def test_it_stops_where_the_input_ends_and_does_not_run_ahead():
    status, frames, _ = replay(FIXTURES / "steer_at_tool.jsonl", lines=[initialize()])
    assert (status, [frame["type"] for frame in frames]) == (0, ["control_response"])


def test_another_line_than_the_recorded_one_is_told():
    status, _, stderr = replay(FIXTURES / "steer_at_tool.jsonl", lines=[initialize(), control("interrupt")])
    assert status == 3
    assert "expects ('user', '')" in stderr
    assert "('control_request', 'interrupt')" in stderr


@pytest.mark.parametrize(("end", "status"), [({"exit": 1}, 1), ({"signal": 9}, -signal.SIGKILL), ({"exit": 0}, 0)])
def test_it_ends_as_the_recorded_process_did_and_plays_the_one_that_was_asked_for(tmp_path, end, status):
    records = [
        {"p": 0, "d": "out", "f": {"type": "x"}},
        {"p": 1, "d": "proc", "f": {"argv": []}},
        {"p": 1, "d": "out", "f": {"type": "y", "text": "é"}},
        {"p": 1, "d": "proc", "f": "stdin EOF"},
        {"p": 1, "d": "proc", "f": end},
    ]
    recording = tmp_path / "it's a recording.jsonl"
    recording.write_text("\n".join(map(json.dumps, records)))
    code, frames, _ = replay(recording, env={"GREENROOM_REPLAY_PROCESS": "1"})
    assert (code, frames) == (status, [{"type": "y", "text": "é"}])


def test_the_wrapper_plays_its_recording(tmp_path, monkeypatch):
    for limit in (120, 1):
        monkeypatch.setattr("greenroom.testing.scripted._SHEBANG_LIMIT", limit)
        path = write_replayed_claude(tmp_path / str(limit), FIXTURES / "unknown_resume.jsonl")
        done = subprocess.run(
            [path, "--resume", ID], input=json.dumps(initialize()) + "\n", capture_output=True, text=True, timeout=20, check=True
        )
        assert json.loads(done.stdout)["session_id"] == ID
