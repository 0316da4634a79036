from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from greenroom.transports.claude.launch import WRITE_HOOK
from greenroom.transports.claude.writehook import refusal


def call(path: object, key: str = "file_path") -> dict[str, object]:
    return {"tool_name": "Write", "tool_input": {key: path}}


def test_inside_and_outside(tmp_path: pathlib.Path) -> None:
    cwd, root, out = tmp_path / "cwd", tmp_path / "root", tmp_path / "out"
    for directory in (cwd, root, out):
        directory.mkdir()
    roots = [str(cwd), str(root)]
    (cwd / "link").symlink_to(out)
    (out / "back").symlink_to(root)
    allowed = [str(cwd / "a"), "relative", str(root / "x" / "y"), str(out / "back" / "z"), str(cwd), str(cwd / "b" / ".." / "c")]
    denied = [
        str(out / "a"),
        "../up",
        str(cwd / "link" / "a"),
        str(cwd / ".." / "out" / "a"),
        str(tmp_path / "cwd-2" / "a"),
        "/etc/passwd",
        "~/x",
    ]
    assert [path for path in allowed if refusal(call(path), roots)] == []
    assert [path for path in denied if not refusal(call(path), roots)] == []
    assert refusal(call(str(out / "n.ipynb"), "notebook_path"), roots)


def test_a_root_that_is_a_link(tmp_path: pathlib.Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert refusal(call(str(tmp_path / "real" / "a")), [str(tmp_path / "link")]) is None


@pytest.mark.parametrize("junk", [None, [], {}, {"tool_input": None}, {"tool_input": {}}, call(None), call(""), call(5)])
def test_what_it_does_not_understand_is_denied(junk: object) -> None:
    assert refusal(junk, ["/tmp"]) is not None  # noqa: S108


@pytest.mark.parametrize(("text", "status"), [("{", 2), ("", 2), (json.dumps(call("a\x00b")), 2), (json.dumps(call("a")), 0)])
def test_as_a_process(tmp_path: pathlib.Path, text: str, status: int) -> None:
    command = [sys.executable, "-S", "-E", str(WRITE_HOOK), str(tmp_path)]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False, timeout=20)
    assert done.returncode == status
    assert (done.stderr != b"") == (status == 2)
