"""Which file a program's name means."""

import os
from pathlib import Path

import pytest

from greenroom.errors import CliNotFoundError
from greenroom.transports.binaries import find_binary


def program(directory, name="cli", mode=0o755):
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_a_name_is_the_first_match_on_the_path_and_a_link_stays_a_link(tmp_path):
    target = program(tmp_path / "versions", "cli-2")
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "cli"
    link.symlink_to(target)
    program(tmp_path / "later")
    assert find_binary("cli", f"{tmp_path}/none{os.pathsep}{tmp_path}/bin{os.pathsep}{tmp_path}/later") == link


def test_the_path_of_this_process_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary(program(tmp_path, "cli-x").name) == tmp_path / "cli-x"


def test_a_path_is_taken_as_it_is(tmp_path, monkeypatch):
    path = program(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_binary(path) == find_binary("./cli") == find_binary("~/cli") == path


def test_a_program_in_the_working_directory_is_not_on_the_path(tmp_path, monkeypatch):
    program(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CliNotFoundError, match="not found on PATH"):
        find_binary("cli", f"{os.pathsep}/nowhere")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: None, "no such file"),
        (Path.mkdir, "a directory"),
        (Path.touch, "not executable"),
        (lambda p: p.symlink_to("gone"), "no such"),
    ],
)
def test_why_a_path_cannot_be_used(tmp_path, make, why):
    make(tmp_path / "cli")
    with pytest.raises(CliNotFoundError, match=why) as caught:
        find_binary(tmp_path / "cli")
    assert caught.value.binary == str(tmp_path / "cli")


def test_a_match_that_cannot_be_used_is_named_when_there_is_no_better(tmp_path):
    program(tmp_path / "a", mode=0o644)
    good = program(tmp_path / "b")
    assert find_binary("cli", f"{tmp_path}/a{os.pathsep}{tmp_path}/b") == good
    with pytest.raises(CliNotFoundError, match=f"{tmp_path}/a/cli is not executable"):
        find_binary("cli", f"{tmp_path}/a")


def test_no_name_is_not_found():
    with pytest.raises(CliNotFoundError):
        find_binary("", "/usr/bin")
