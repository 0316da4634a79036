"""Turns the entries of a task file into tasks, and says what is wrong with them: all of it at once, each with line and key.

Runs on the main thread before anything starts; reads prompt and schema files, starts nothing.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from greenroom.cli.requests import read_attachments, wrong_with
from greenroom.cli.spelling import did_you_mean
from greenroom.cli.taskfile import Entry, TaskSource
from greenroom.cli.tasks import APPROVALS, INTERACTION_MODES, PERMISSIONS, PROVIDERS, AgentSettings, Given, Task, content_hash
from greenroom.errors import AttachmentError, GreenroomError, TaskFileError
from greenroom.model import Attachment

_SHORT_HASH = 12


class BadInputError(Exception):
    """The input cannot be used; `problems` says why, one error for each place."""

    def __init__(self, problems: Sequence[GreenroomError]) -> None:
        self.problems = problems
        super().__init__("; ".join(map(str, problems)))


# --- what a value may be: each check returns what is wrong, and a hint -----------------------------------------------------

_Wrong = tuple[str, str | None]
_Check = Callable[[Any], _Wrong | None]
_KINDS = ((bool, "a boolean"), (str, "a string"), (int, "an integer"), (float, "a number"), (list, "an array"), (dict, "a table"))


def _kind(value: Any) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "null" if value is None else type(value).__name__)


def _expected(what: str, value: Any) -> _Wrong:
    return f"expected {what}, got {_kind(value)}", None


def _string(value: Any) -> _Wrong | None:
    if not isinstance(value, str):
        return _expected("a string", value)
    if not value.strip():
        return "is empty", None
    return ("holds a NUL character", None) if "\0" in value else None


def _word(value: Any) -> _Wrong | None:
    """A text that is to be part of a path or a command line, which a lone surrogate cannot."""
    wrong = _string(value)
    return wrong or (None if _is_encodable(value) else ("cannot be encoded: it holds half a character", None))


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _name(value: Any) -> _Wrong | None:
    wrong = _string(value)
    return wrong or (None if value.isprintable() else ("holds control characters", None))


def _one_of(known: tuple[str, ...]) -> _Check:
    def check(value: Any) -> _Wrong | None:
        if not isinstance(value, str):
            return _expected("a string", value)
        if value in known:
            return None
        return f"unknown value {value!r}", did_you_mean(value, known) or "one of: " + ", ".join(known)

    return check


def _seconds(value: Any) -> _Wrong | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _expected("a number of seconds", value)
    try:
        good = math.isfinite(value) and value > 0
    except OverflowError:  # an integer beyond every float
        return "is too large", None
    return None if good else (f"must be more than 0 seconds, got {value}", None)


def _ids(value: Any) -> _Wrong | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return f"expected an array of task ids, got {_kind(value)}", 'write after = ["id"]'
    return None


def _files(value: Any) -> _Wrong | None:
    if not isinstance(value, list):
        return f"expected an array of paths, got {_kind(value)}", 'write attachments = ["picture.png"]'
    return next((wrong for item in value if (wrong := _word(item)) is not None), None)


def _environment(value: Any) -> _Wrong | None:
    if not isinstance(value, dict):
        return _expected("a table of strings", value)
    for name, text in value.items():
        if not isinstance(text, str):
            return f"{name!r}: expected a string, got {_kind(text)}", None
        if not name or "=" in name or "\0" in name + text or not _is_encodable(name + text):
            return f"{name!r} cannot be a variable of the environment", None
    return None


def _schema(value: Any) -> _Wrong | None:
    if isinstance(value, str):
        return _word(value)
    return None if isinstance(value, dict) else _expected("a table or the path of a JSON file", value)


_COMMON: Mapping[str, _Check] = {
    "cwd": _word,
    "provider": _one_of(PROVIDERS),
    "model": _word,
    "permissions": _one_of(PERMISSIONS),
    "approvals": _one_of(APPROVALS),
    "timeout": _seconds,
    "effort": _word,
    "schema": _schema,
    "env": _environment,
    "interaction_mode": _one_of(INTERACTION_MODES),
}
_OF_TASK: Mapping[str, _Check] = {
    "id": _name,
    "prompt": _string,
    "prompt_file": _word,
    "session": _name,
    "after": _ids,
    "attachments": _files,
    **_COMMON,
}


# --- from entries to tasks -----------------------------------------------------------------------------------------------------


def build_tasks(source: TaskSource, given: Given) -> tuple[Task, ...]:
    """Return the tasks in file order. What a task says wins over `[defaults]`, and that over the command line.

    Raises BadInputError with every problem that was found.
    """
    builder = _Builder(source, given)
    tasks = builder.build()
    if builder.problems:  # a mistake in [defaults] shows up once for every task
        raise BadInputError(list({str(problem): problem for problem in builder.problems}.values()))
    return tasks


class _Builder:
    """Collects the tasks and the problems of one source."""

    def __init__(self, source: TaskSource, given: Given) -> None:
        self.problems: list[TaskFileError] = []
        self._source = source
        self._flags = Entry(values=attrs.asdict(given, filter=lambda _, value: value is not None))
        self._defaults = source.defaults

    def build(self) -> tuple[Task, ...]:
        """Build all of them."""
        self._defaults = attrs.evolve(self._defaults, values=self._check(self._defaults, _COMMON, "in [defaults]"))
        tasks = [task for entry in self._source.entries if (task := self._task(entry)) is not None]
        self._refuse_twins(tasks)
        self._refuse_mixed_sessions(tasks)
        return tuple(tasks)

    def _report(self, entry: Entry, why: str, *, key: str | None = None, hint: str | None = None) -> None:
        self.problems.append(self._source.problem(entry, why, key=key, hint=hint))

    def _check(self, entry: Entry, known: Mapping[str, _Check], where: str) -> dict[str, Any]:
        """Report what is wrong with an entry, and return the values that are well."""
        good = {}
        for key, value in entry.values.items():
            if key not in known:
                self._report(entry, f"unknown key {where}", key=key, hint=did_you_mean(key, known) or "known keys: " + ", ".join(known))
            elif (wrong := known[key](value)) is not None:
                self._report(entry, wrong[0], key=key, hint=wrong[1])
            else:
                good[key] = value
        return good

    def _task(self, entry: Entry) -> Task | None:
        before = len(self.problems)
        self._check(entry, _OF_TASK, "in a task")
        if len(self.problems) > before:
            return None
        prompt, schema, cwd, attached = self._prompt(entry), self._schema_of(entry), self._cwd(entry), self._attachments(entry)
        if self._setting(entry, "permissions") is None:
            self._miss_permissions(entry)
            return None
        if len(self.problems) > before:
            return None
        task = self._assemble(entry, prompt, schema, cwd, attached)
        for wrong in wrong_with(task):
            place = entry if wrong.key is None else self._place(entry, wrong.key)
            self._report(place, wrong.why, key=wrong.key, hint=wrong.hint)
        return None if len(self.problems) > before else task

    def _assemble(self, entry: Entry, prompt: str, schema: Mapping[str, Any] | None, cwd: Path, attached: tuple[Attachment, ...]) -> Task:
        task = Task(
            id=entry.values.get("id", ""),
            prompt=prompt,
            settings=self._settings(entry, cwd),
            session=entry.values.get("session"),
            after=tuple(dict.fromkeys(entry.values.get("after", ()))),
            timeout=self._setting(entry, "timeout"),
            effort=self._setting(entry, "effort"),
            schema=schema,
            attachments=attached,
            interaction_mode=self._setting(entry, "interaction_mode") or "default",
            line=entry.line,
        )
        digest = content_hash(task)
        return attrs.evolve(task, hash=digest, id=task.id or digest[:_SHORT_HASH])

    def _settings(self, entry: Entry, cwd: Path) -> AgentSettings:
        env = {**self._defaults.values.get("env", {}), **entry.values.get("env", {})}
        return AgentSettings(
            cwd=cwd,
            provider=self._setting(entry, "provider") or "claude",
            model=self._setting(entry, "model"),
            permissions=self._setting(entry, "permissions"),
            approvals=self._setting(entry, "approvals") or "deny",
            env=tuple(sorted(env.items())),
        )

    def _miss_permissions(self, entry: Entry) -> None:
        if "permissions" in self._source.defaults.values:  # and wrong there, which was told
            return
        words = " or ".join(map(repr, PERMISSIONS))
        hint = f"say what the agent may do: permissions = {words} in the task or [defaults], or --permissions"
        self._report(entry, "is missing, and has no default", key="permissions", hint=hint)

    def _setting(self, entry: Entry, key: str) -> Any:
        return self._place(entry, key).values.get(key)

    def _place(self, entry: Entry, key: str) -> Entry:
        """Return where `key` is set: the task, or else the defaults, or else the command line."""
        return next((layer for layer in (entry, self._defaults) if key in layer.values), self._flags)

    def _prompt(self, entry: Entry) -> str:
        if ("prompt" in entry.values) == ("prompt_file" in entry.values):
            both = "prompt" in entry.values
            why = "is given beside 'prompt'" if both else "is missing"
            self._report(entry, why, key="prompt_file" if both else "prompt", hint="give either prompt or prompt_file")
            return ""
        return str(entry.values["prompt"]) if "prompt" in entry.values else self._prompt_from_file(entry)

    def _prompt_from_file(self, entry: Entry) -> str:
        text = self._read(entry, entry, "prompt_file", entry.values["prompt_file"])
        if text is not None and (wrong := _string(text)) is not None:
            self._report(entry, f"{entry.values['prompt_file']!r} {wrong[0]}", key="prompt_file")
        return text or ""

    def _read(self, entry: Entry, place: Entry, key: str, path: str) -> str | None:
        try:
            return (self._source.base / path).read_text(encoding="utf-8-sig")
        except OSError as error:
            self._report(place if key in place.lines else entry, f"{path!r} cannot be read: {error.strerror or error}", key=key)
        except UnicodeDecodeError:
            self._report(entry, f"{path!r} is not UTF-8", key=key)
        return None

    def _attachments(self, entry: Entry) -> tuple[Attachment, ...]:
        try:
            return read_attachments(entry.values.get("attachments", []), self._source.base)
        except AttachmentError as error:
            self._report(entry, f"{error.name!r} {error.why}", key="attachments", hint=error.hint)
            return ()

    def _schema_of(self, entry: Entry) -> Mapping[str, Any] | None:
        place = self._place(entry, "schema")
        value = place.values.get("schema")
        if not isinstance(value, str):
            return value if isinstance(value, dict) else None
        text = self._read(entry, place, "schema", value)
        return None if text is None else self._parsed_schema(place, value, text)

    def _parsed_schema(self, place: Entry, path: str, text: str) -> Mapping[str, Any] | None:
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:  # not JSONDecodeError alone: a number may have too many digits
            self._report(place, f"{path!r} is not JSON: {error}", key="schema")
            return None
        if not isinstance(schema, dict):
            self._report(place, f"{path!r} holds {_kind(schema)}, not a JSON schema", key="schema")
            return None
        return schema

    def _cwd(self, entry: Entry) -> Path:
        place = self._place(entry, "cwd")
        value = place.values.get("cwd")
        path = (self._source.base / Path(value).expanduser()).resolve() if isinstance(value, str) else Path.cwd()
        if not path.is_dir():
            self._report(place, f"{str(path)!r} is not a directory", key="cwd")
        return path

    def _refuse_twins(self, tasks: list[Task]) -> None:
        first: dict[str, Task] = {}
        for task in tasks:
            twin = first.setdefault(task.id, task)
            if twin is not task:
                where = f" (first in line {twin.line})" if twin.line else ""
                hint = "tasks without an id get one from their content; two that are alike need ids of their own"
                self.problems.append(
                    TaskFileError(self._source.name, f"duplicate id {task.id!r}{where}", line=task.line, key="id", hint=hint)
                )

    def _refuse_mixed_sessions(self, tasks: list[Task]) -> None:
        first: dict[str, Task] = {}
        for task in tasks:
            if task.session is None:
                continue
            leader = first.setdefault(task.session, task)
            if (key := _first_difference(leader.settings, task.settings)) is not None:
                why = f"differs from task {leader.id!r} in the same session {task.session!r}"
                hint = "what a conversation works with is fixed for its life; use another session"
                self.problems.append(TaskFileError(self._source.name, why, line=task.line, key=key, hint=hint))


def _first_difference(one: AgentSettings, other: AgentSettings) -> str | None:
    names = (field.name for field in attrs.fields(AgentSettings))
    return next((name for name in names if getattr(one, name) != getattr(other, name)), None)
