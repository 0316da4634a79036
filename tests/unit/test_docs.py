"""The documents say what the code says. Run as a program, this file brings the made parts of docs/testing.md up to date."""

from __future__ import annotations

import pathlib
import re

import attrs
import pytest

import greenroom
from greenroom import Liveness, LivenessReason, StallAction, events, testing
from greenroom.actors import hub
from greenroom.cli import fields
from greenroom.cli.results import Outcome, TaskRecord
from greenroom.directory import SessionRecord
from greenroom.front import ById
from greenroom.testing import contracts, model_rules, model_server, scripted, scripted_claude
from greenroom.transports import environment
from greenroom.transports.claude import launch, transport
from greenroom.transports.codex import items, params
from greenroom.transports.codex import transport as codex_transport

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def directives(doc: str) -> str:
    """Return the indented block of a docstring that begins with SAY."""
    return re.search(r"^(    SAY .*?)\n\n(?!    )", doc, re.MULTILINE | re.DOTALL)[1] + "\n"


MADE = {"scripted directives": directives(scripted_claude.__doc__), "model server directives": directives(model_server.__doc__)}


def with_made_parts(page: str) -> str:
    for name, text in MADE.items():
        lines = "".join(line.removeprefix("    ") for line in text.splitlines(keepends=True))
        page = re.sub(
            rf"(<!-- {name}: .*? -->\n```text\n).*?(```\n)", lambda found, lines=lines: found[1] + lines + found[2], page, flags=re.DOTALL
        )
    return page


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def first_column(page: str, heading: str) -> set[str]:
    """Return the words in code style in the first column of the table under `heading`."""
    table = re.search(rf"^\| {heading}.*\n\|[-| ]+\n((?:\|.*\n)+)", page, re.MULTILINE)[1]
    return {word for row in table.splitlines() for word in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_the_directives_are_those_of_the_code():
    assert read("testing.md") == with_made_parts(read("testing.md")), "run: python tests/unit/test_docs.py"


def test_every_directive_is_in_the_docstring():
    words = {name.removeprefix("do_").upper() for name in dir(scripted_claude.Turn) if name.startswith("do_")}
    assert {word for word in words if not re.search(rf"\b{word}\b", MADE["scripted directives"])} == set()
    assert {word for word in model_rules._WORDS if not re.search(rf"\b{word}\b", MADE["model server directives"])} == set()


def test_the_plan_and_the_contracts():
    page = read("testing.md")
    listed = page[page.index("`Plan` says") : page.index("`history(")]
    assert set(re.findall(r"`(\w+)`", listed)) - {"Plan"} == {field.name for field in attrs.fields(scripted.Plan)}
    suites = {name: getattr(testing, name) for name in testing.__all__ if name.endswith("Contract")}
    rows = dict(re.findall(r"^\| `(\w+Contract)` \| (\d+)", page, re.MULTILINE))
    assert rows == {name: str(sum(check.startswith("test_") for check in dir(suite))) for name, suite in suites.items()}
    assert contracts.__doc__


def test_the_task_file():
    page = read("tasks.md")
    assert first_column(page, "Key") == set(fields._OF_TASK)
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (yes|no) \|", page, re.MULTILINE)
    assert {key for key, in_defaults in rows if in_defaults == "yes"} == set(fields._COMMON)
    assert first_column(page, "Field") == {field.name for field in attrs.fields(TaskRecord)}
    assert first_column(page, "Outcome") == {outcome.value for outcome in Outcome}
    assert all(f"`{effort}`" in page for effort in transport.EFFORTS)


def test_claude():
    page = read("claude.md")
    assert transport.PROGRAM.needed in page
    removed = page[page.index("Removed:") : page.index("`IS_SANDBOX`")]
    named = set(re.findall(r"`([A-Z_]+)`", removed))
    assert named == environment.PARENT_MARKERS | set(environment.PARENT_PREFIXES)
    used = set(re.findall(r'"(--[a-z-]+)"', pathlib.Path(launch.__file__).read_text(encoding="utf-8")))
    assert used - set(re.findall(r"--[a-z-]+", page)) == set()


@pytest.mark.parametrize("provider", ["claude", "codex"])
def test_every_lifecycle_kind_is_told(provider):
    source = pathlib.Path(greenroom.__file__).parent
    files = [*(source / "transports" / provider).glob("*.py"), *(source.glob("actors/*.py") if provider == "claude" else ())]
    kinds = {kind for file in files for kind in re.findall(r'Lifecycle\("([^"]+)"', file.read_text(encoding="utf-8"))}
    kinds |= set(items._NOTICES.values()) if provider == "codex" else set()
    assert kinds
    assert kinds == first_column(read(f"{provider}.md"), "`Lifecycle` kind")


def test_every_reason_of_a_quiet_session_is_told():
    assert first_column(read("liveness.md"), "`reason` \\| When") == {reason.name for reason in LivenessReason}
    assert first_column(read("liveness.md"), "`action`") == {action.name for action in StallAction}
    shown = {name for name in first_column(read("liveness.md"), "Field") if "(" not in name}
    assert shown == {*(field.name for field in attrs.fields(Liveness)), "left_s", "tool"}


def test_sessions_by_id():
    page = read("sessions.md")
    assert first_column(page, "Field") == {field.name for field in attrs.fields(SessionRecord)}
    named = {cls.method: cls.__name__ for cls in vars(events).values() if isinstance(getattr(cls, "method", None), str)}
    assert dict(re.findall(r"^\| `([a-zA-Z/]+)` \| `(\w+)` \|", page, re.MULTILINE)) == named
    calls = {name for name in vars(ById) if f"a{name}" in vars(ById)}
    told = {re.split(r"\(", call)[0] for call in first_column(page, "Call of a room")}
    assert len(calls) > 5
    assert calls - told == set()
    for number in (hub.HISTORY_EVENTS, hub.BUFFER_EVENTS, hub.LOSSLESS_EVENTS):
        assert f"{number:,}".replace(",", " ") in page


def test_codex():
    page = read("codex.md")
    assert codex_transport.PROGRAM.needed in page
    assert f"{codex_transport.MAX_PROMPT_CHARS:,}".replace(",", " ") in page
    assert all(f"`{sandbox}`" in page for sandbox in params._SANDBOX.values())


@pytest.mark.parametrize("number", range(3))
def test_the_programs_run(number, tmp_path, monkeypatch):
    program = re.findall(r"^```python\n(.*?)^```$", read("testing.md"), re.MULTILINE | re.DOTALL)[number]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(program, f"docs/testing.md, program {number + 1}", "exec"), names)  # noqa: S102 - it is our own page
    if "TestMyStore" in names:
        suite = names["TestMyStore"]
        for check in (check for check in dir(suite) if check.startswith("test_")):
            getattr(suite(), check)()


def test_the_program_about_history_runs(capsys):
    (program,) = re.findall(r"^```python\n(.*?)^```$", read("history.md"), re.MULTILINE | re.DOTALL)
    exec(compile(program, "docs/history.md", "exec"), {})  # noqa: S102 - it is our own page
    said = capsys.readouterr().out
    assert said == "completed ['plan it', 'echo: plan it']\ncompleted ['do it', 'echo: do it']\napiKey\n"


if __name__ == "__main__":
    (DOCS / "testing.md").write_text(with_made_parts(read("testing.md")), encoding="utf-8")
