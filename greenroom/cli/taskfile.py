"""Reads a task file: TOML with `[[task]]` tables, or one JSON object a line. Decides where a value stands, never what it means.

Runs on the main thread before anything starts. `tomllib` keeps no line numbers, so headers and keys are found in the text.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from greenroom.cli.spelling import did_you_mean
from greenroom.errors import TaskFileError

STDIN = "-"
_HEADER = re.compile(r"\s*\[\[\s*[\"']?task[\"']?\s*\]\]")
_DEFAULTS = re.compile(r"\s*\[\s*[\"']?defaults[\"']?\s*\]")
_LINE = re.compile(r"line (\d+)")
_LEXEMES = re.compile(r'"""|\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*')


@attrs.frozen(kw_only=True)
class Entry:
    """One table of the file as it stands there. `line` is where it begins, `lines` where each of its keys is."""

    values: Mapping[str, Any]
    line: int | None = None
    lines: Mapping[str, int] = attrs.field(factory=dict)

    def line_of(self, key: str | None) -> int | None:
        """Return the line of `key`, or where the table begins."""
        return self.lines.get(key, self.line) if key else self.line


@attrs.frozen(kw_only=True)
class TaskSource:
    """A file that could be read. `base` is the directory that relative paths in it mean."""

    name: str
    base: Path
    entries: tuple[Entry, ...]
    defaults: Entry = Entry(values={})

    def problem(self, entry: Entry, why: str, *, key: str | None = None, hint: str | None = None) -> TaskFileError:
        """Return the error that points at `key` of `entry`."""
        return TaskFileError(self.name, why, line=entry.line_of(key), key=key, hint=hint)


def read_source(where: str) -> TaskSource:
    """Read the task file `where` (`-`: standard input). Raises TaskFileError when it cannot be read or is malformed."""
    name, base = ("<stdin>", Path.cwd()) if where == STDIN else (where, Path(where).resolve().parent)
    text = _text(where, name)
    if not text.strip():
        raise TaskFileError(name, "is empty", hint="a task file has [[task]] tables (TOML), or one JSON object a line (JSONL)")
    read = _read_jsonl if _is_jsonl(where, text) else _read_toml
    source = read(name, base, text)
    if not source.entries:
        raise TaskFileError(name, "has no task", hint="begin each task with a line [[task]]")
    return source


def _text(where: str, name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if where == STDIN else Path(where).read_bytes()
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise TaskFileError(name, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise TaskFileError(name, "is not UTF-8", line=line) from error


def _is_jsonl(where: str, text: str) -> bool:
    suffix = Path(where).suffix.lower()
    if suffix in {".jsonl", ".ndjson"}:
        return True
    if suffix == ".toml":
        return False
    if where != STDIN:
        raise TaskFileError(where, f"unknown kind of file {suffix!r}", hint="name it .toml or .jsonl, or give - and pipe it in")
    return text.lstrip().startswith("{")


# --- JSON lines ------------------------------------------------------------------------------------------------------------


def _read_jsonl(name: str, base: Path, text: str) -> TaskSource:
    # split("\n"), because splitlines() also splits at characters that JSON strings may hold unescaped.
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return TaskSource(name=name, base=base, entries=tuple(_json_entry(name, number, line) for number, line in numbered))


def _json_entry(name: str, number: int, line: str) -> Entry:
    try:
        values = json.loads(line, object_pairs_hook=lambda pairs: _no_twins(name, number, pairs))
    except (ValueError, RecursionError) as error:
        why = _why_unparsed(error)
        raise TaskFileError(name, f"not a JSON object: {why}", line=number, hint="each line is one task, a whole JSON object") from error
    if not isinstance(values, dict):
        raise TaskFileError(name, "not a JSON object", line=number, hint="each line is one task, a whole JSON object")
    return Entry(values=values, line=number)


def _why_unparsed(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (column {error.colno})"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def _no_twins(name: str, number: int, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise TaskFileError(name, "is given twice", line=number, key=key)
        values[key] = value
    return values


# --- TOML --------------------------------------------------------------------------------------------------------------------


def _read_toml(name: str, base: Path, text: str) -> TaskSource:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = _LINE.search(str(error))
        why = error if isinstance(error, tomllib.TOMLDecodeError) else _why_unparsed(error)
        raise TaskFileError(name, f"not TOML: {why}", line=int(found[1]) if found else None) from error
    lines = _logical_lines(text)
    _refuse_other_tables(name, document, lines)
    tasks, defaults = document.get("task", []), document.get("defaults", {})
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise TaskFileError(name, "must be tables", line=_find(lines, "task"), key="task", hint="begin each task with a line [[task]]")
    if not isinstance(defaults, dict):
        raise TaskFileError(name, "must be a table", line=_find(lines, "defaults"), key="defaults", hint="begin it with a line [defaults]")
    headers = [index for index, (_, line) in enumerate(lines) if _HEADER.match(line)]
    entries = (_toml_entry(task, lines, headers[place] if place < len(headers) else None) for place, task in enumerate(tasks))
    start = next((index for index, (_, line) in enumerate(lines) if _DEFAULTS.match(line)), None)
    return TaskSource(name=name, base=base, entries=tuple(entries), defaults=_toml_entry(defaults, lines, start))


def _refuse_other_tables(name: str, document: Mapping[str, Any], lines: list[tuple[int, str]]) -> None:
    known = ("task", "defaults")
    for key in document:
        if key not in known:
            hint = did_you_mean(key, known) or "a task file has [[task]] tables and one [defaults] table"
            raise TaskFileError(name, "unknown key", line=_find(lines, key), key=key, hint=hint)


def _toml_entry(values: Mapping[str, Any], lines: list[tuple[int, str]], header: int | None) -> Entry:
    if header is None:  # written inline (task = [{…}]): the keys have no lines of their own
        return Entry(values=values, line=_find(lines, "task") if values else None)
    after = header + 1
    end = next((i for i in range(after, len(lines)) if _HEADER.match(lines[i][1]) or _DEFAULTS.match(lines[i][1])), len(lines))
    own = lines[after:end]
    found = {key: _find(own, key) for key in values}
    return Entry(values=values, line=lines[header][0], lines={key: line for key, line in found.items() if line is not None})


def _find(lines: list[tuple[int, str]], key: str) -> int | None:
    """Return the line where `key` is set, as a key or as a table's header (`[task.env]`)."""
    word = rf"(?:{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}')"
    pattern = re.compile(rf"\s*(?:{word}\s*[=.]|\[+\s*(?:task\s*\.\s*|defaults\s*\.\s*)?{word}\s*[\].])")
    return next((number for number, line in lines if pattern.match(line)), None)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return the numbered lines that do not begin inside a multi-line string: a prompt may well hold a line `[[task]]`."""
    lines, closing = [], ""
    for number, line in enumerate(text.split("\n"), 1):
        if not closing:
            lines.append((number, line))
        closing = _open_string(line, closing)
    return lines


def _open_string(line: str, closing: str) -> str:
    """Return the delimiter of the multi-line string that is still open after `line`, or an empty text."""
    place = 0
    while True:
        if closing:
            place = _closed_at(line, closing, place)
            if place < 0:
                return closing
            closing = ""
        found = _LEXEMES.search(line, place)
        if found is None:
            return ""
        place = found.end()
        closing = found[0] if found[0] in {'"""', "'''"} else ""


def _closed_at(line: str, closing: str, place: int) -> int:
    skip = r"(?:\\.|[^\\])*?" if closing == '"""' else r".*?"
    # Up to two quotes may stand directly before the closing three.
    found = re.compile(rf"{skip}{closing}{closing[0]}{{0,2}}").match(line, place)
    return found.end() if found else -1
