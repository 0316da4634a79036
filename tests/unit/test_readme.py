"""Everything in the README runs: its programs and commands on the scripted CLI, and its tables name what there is."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import attrs
import pytest

import greenroom
from greenroom import errors
from greenroom.cli.results import Outcome, TaskRecord
from greenroom.model import FailureKind
from greenroom.testing import write_scripted_claude

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = pathlib.Path(greenroom.__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


PROGRAMS = blocks("python")
COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("greenroom ")]
SAYS = (
    r"about to run turn-.*\nRunStarted.*echo: Fix the failing test Continuity\.CONTINUED 0\.0",
    r"turn-\w+ echo: Write the missing docstrings of api\nturn-.*\nturn-\w+ echo: .* of cli",
    r"\d+ echo: What does this project do\?\nContinuity\.CONTINUED",
    r"ready None\nturn-\w+ (running|ready)\necho: What does this project do\? .'thr.*\nreview-7 1 session/connecting\n.*session/closed\n$",
    r"^echo: What does this project do\?\n$",
    r"",
)


@pytest.fixture
def stage(tmp_path):
    """A directory to stand in, and an environment with a scripted `claude` first on PATH."""
    binary = write_scripted_claude(tmp_path / "bin")
    work = tmp_path / "work"
    work.mkdir()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "CLAUDE_"))},
        "PATH": f"{binary.parent}{os.pathsep}{os.environ['PATH']}",
        "GREENROOM_SCRIPTED_STATE": str(tmp_path / "state"),
        "PYTHONPATH": str(SOURCE),
        "ANTHROPIC_API_KEY": "not-a-key",
        "HOME": str(tmp_path),
    }

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run((sys.executable, *argv), check=False, cwd=work, env=env, capture_output=True, text=True, timeout=50)

    run.work = work
    return run


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program(stage, number):
    ended = stage("-c", PROGRAMS[number])
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    assert re.search(SAYS[number], ended.stdout, re.DOTALL), ended.stdout


def test_the_program_of_the_page_on_approvals(stage):
    page = (ROOT / "docs" / "approvals.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    asking = 'CAN_USE_TOOL Bash {\\"command\\":\\"git status\\"}\\nCAN_USE_TOOL Bash {\\"command\\":\\"rm x\\"}'
    ended = stage("-c", program.replace("Tidy up the branches", asking) + "\nprint(ticket.wait().result.text)")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_commands(stage):
    (stage.work / "tasks.toml").write_text(blocks("toml")[0], encoding="utf-8")
    assert len(COMMANDS) == 4
    for command in COMMANDS:
        if command == "greenroom demo":
            continue  # it has tests of its own, and is the README's first command
        ended = stage("-m", *command.split())
        assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
    assert len((stage.work / "results.jsonl").read_text().splitlines()) == 2


def test_every_option_of_run_is_named(stage):
    told = stage("-m", "greenroom", "run", "--help").stdout
    table = README[README.index("| Option of `run`") : README.index("A task counts as done")]
    assert set(re.findall(r"--[a-z][a-z-]+", told)) - {"--help"} == set(re.findall(r"--[a-z][a-z-]+", table))


def test_every_field_and_outcome_of_the_results_is_named():
    text = README[README.index("A task counts as done") : README.index("Exit status of `run`")]
    for name in (*(field.name for field in attrs.fields(TaskRecord)), *(outcome.value for outcome in Outcome)):
        assert f"`{name}`" in text


def test_every_error_that_a_caller_of_this_version_meets_is_named():
    text = README[README.index("| Error |") :]
    elsewhere = {"GreenroomError", "TaskFileError"}  # the root, and one of the command
    later = {"CliTimeoutError", "ProcessClosedError", "ReapError", "AuthUnavailableError", "HostAuthUnplannableError"}
    known = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.GreenroomError)}
    assert {name for name in known if f"`{name}`" not in text} == elsewhere | later
    assert {kind.name for kind in FailureKind} == set(re.findall(r"^\| `([A-Z_]+)`", text, re.MULTILINE))


def test_every_page_and_every_example_is_in_the_index():
    linked = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    examples = {f"../examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert pages | examples <= linked


def test_links_lead_somewhere():
    for path in ROOT.glob("*.md"), (ROOT / "docs").glob("*.md"):
        for page in path:
            for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
                assert (page.parent / target).exists(), (page.name, target)
