"""How are our values written down? To JSON and back, exactly, for a closed set of classes. Pure, any thread.

Everything that JSON has not becomes an object with the key `$`: `{"$": "Turn", "result": …}`. Written are attrs classes (every field,
so that a default that changes later does not change the past), enums, errors of ours, tuples, frozensets, mappings with any keys, paths,
bytes, dates, floats that are no numbers, and text that is not Unicode. The text is ASCII and may be compared: equal values give equal
text, except that mappings keep their order. Read back is only what was declared: an unknown class is a JournalError, an unknown field
(of a newer version) is ignored, a missing one gets its default. An error comes back as its class with its fields; its cause as text.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import hashlib
import inspect
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Final

import attrs

from greenroom import asks, errors, events, history, model
from greenroom.errors import GreenroomError, JournalError
from greenroom.journal import records
from greenroom.policy import bill, commands, restart, stall, state
from greenroom.policy import events as inputs

MAX_DEPTH = 120
"""How deep values may be nested; deeper ones could be written, but not be read back on every stack."""

_TAG: Final = "$"
_MODULES = (asks, model, history, events, inputs, commands, state, bill, restart, stall, errors, records)
# Two halves of a surrogate pair, each a character of its own: JSON would join them.
_SPLIT_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")

_Writer = Callable[[Any, int], Any]
_PlainWriter = Callable[[Any], Any]
_Reader = Callable[[dict[str, Any]], Any]


class RecordedCauseError(GreenroomError):
    """The cause of a recorded error, of which only the text was kept."""


def declared(modules: Iterable[ModuleType] = _MODULES) -> tuple[type, ...]:
    """Return the classes that these modules define and that can be written: attrs classes, enums, errors."""
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and _writable(value)
    )


def _writable(cls: type) -> bool:
    return attrs.has(cls) or issubclass(cls, (GreenroomError, enum.Enum))


class Codec:
    """Writes and reads values of a closed set of classes, each known by its bare name."""

    def __init__(self, classes: Iterable[type]) -> None:
        self.classes: dict[str, type] = {}
        self._writers: dict[type, _Writer] = {}
        self._readers: dict[str, _Reader] = {**_READERS}
        self._writers.update({dict: self._write_mapping, list: self._write_list, tuple: self._write_tuple})
        self._writers.update({frozenset: self._write_set, set: self._write_set})
        for cls in classes:
            self._add(cls)

    def _add(self, cls: type) -> None:
        name = cls.__name__
        if not _writable(cls) or name in self._readers:
            raise TypeError(f"{cls!r} cannot be declared: " + ("its name is taken" if name in self._readers else "unknown kind of class"))
        self.classes[name] = cls
        if issubclass(cls, enum.Enum):
            self._writers[cls], self._readers[name] = _enum_writer(name), _enum_reader(cls)
        elif issubclass(cls, GreenroomError):
            self._writers[cls], self._readers[name] = self._error_writer(name), _error_reader(cls)
        else:
            self._writers[cls], self._readers[name] = self._record_writer(cls), _record_reader(cls)

    def extended(self, classes: Iterable[type]) -> Codec:
        """Return a codec that knows `classes` too. Raises TypeError for a name that is taken or a class of another kind."""
        return Codec((*self.classes.values(), *classes))

    def encode(self, value: Any) -> str:
        """Return `value` as one line of ASCII. Raises JournalError for what cannot be written."""
        try:
            return json.dumps(self._write(value, 0), separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise JournalError(f"cannot record a {type(value).__name__}: {error}") from error

    def decode(self, text: str | bytes) -> Any:
        """Return the value. Raises JournalError for what was not written by `encode`, or by a version that knows other classes."""
        try:
            return json.loads(text, object_hook=self._read)
        except JournalError:
            raise
        except Exception as error:
            # Constructors may check what they are given, and raise what they like.
            raise JournalError(f"cannot read a record: {error!r}") from error

    def fingerprint(self, value: Any) -> str:
        """Return a digest that equal values share: 64 hexadecimal digits."""
        return hashlib.sha256(self.encode(value).encode("ascii")).hexdigest()

    # --- writing

    def _write(self, value: Any, depth: int) -> Any:
        plain = _PLAIN.get(type(value))
        if plain is not None:
            return plain(value)
        writer = self._writers.get(type(value))
        if writer is None:
            return self._write_subclass(value, depth)
        if depth > MAX_DEPTH:
            raise JournalError(f"cannot record a value that is nested more than {MAX_DEPTH} deep")
        return writer(value, depth + 1)

    def _write_subclass(self, value: Any, depth: int) -> Any:
        """Write what is derived from something plain as that, which is equal to it."""
        if isinstance(value, Mapping):
            return self._write(dict(value), depth)
        for base, write in _BASES:
            if isinstance(value, base) and not isinstance(value, enum.Enum):
                return write(value)
        raise JournalError(f"cannot record a {type(value).__qualname__}: the class is not declared")

    def _write_list(self, value: list[Any], depth: int) -> Any:
        return [self._write(item, depth) for item in value]

    def _write_tuple(self, value: tuple[Any, ...], depth: int) -> Any:
        return {_TAG: "tuple", "of": [self._write(item, depth) for item in value]}

    def _write_set(self, value: frozenset[Any], depth: int) -> Any:
        return {_TAG: "set", "of": sorted((self._write(item, depth) for item in value), key=_sort_key)}

    def _write_mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        if all(type(key) is str and not key.startswith(_TAG) and not _SPLIT_PAIR.search(key) for key in value):
            return {key: self._write(item, depth) for key, item in value.items()}
        return {_TAG: "map", "of": [[self._write(key, depth), self._write(item, depth)] for key, item in value.items()]}

    def _record_writer(self, cls: type) -> _Writer:
        name, fields = cls.__name__, tuple((field.name, field.alias or field.name) for field in attrs.fields(cls) if field.init)
        write = self._write

        def writer(value: Any, depth: int) -> Any:
            tree: dict[str, Any] = {_TAG: name}
            for attribute, alias in fields:
                item = getattr(value, attribute)
                tree[alias] = item if item is None else write(item, depth)
            return tree

        return writer

    def _error_writer(self, name: str) -> _Writer:
        def writer(value: GreenroomError, depth: int) -> Any:
            tree = {_TAG: name, "args": self._write(value.args, depth), "fields": self._write(value.__dict__, depth)}
            if value.__cause__ is not None:
                tree["cause"] = _write_text(_cause_text(value.__cause__))
            return tree

        return writer

    # --- reading

    def _read(self, tree: dict[str, Any]) -> Any:
        name = tree.get(_TAG)
        if name is None:
            return tree
        reader = self._readers.get(name) if isinstance(name, str) else None
        if reader is None:
            raise JournalError(f"cannot read a record of the unknown class {name!r}; a newer version may have written it")
        return reader(tree)


def _sort_key(tree: Any) -> str:
    return json.dumps(tree)


# --- plain values


def _write_same(value: Any) -> Any:
    return value


def _write_int(value: int) -> Any:
    return int(value)


def _write_float(value: float) -> Any:
    return float(value) if math.isfinite(value) else {_TAG: "float", "is": repr(float(value))}


def _write_text(value: str) -> Any:
    if value.isascii() or not _SPLIT_PAIR.search(value):
        return str(value)
    return {_TAG: "text", "of": _SPLIT_PAIR.split(value)}


def _write_bytes(value: bytes) -> Any:
    return {_TAG: "bytes", "is": base64.b64encode(value).decode("ascii")}


def _write_path(value: pathlib.PurePath) -> Any:
    return {_TAG: "path", "is": _write_text(str(value))}


def _write_datetime(value: dt.datetime) -> Any:
    return {_TAG: "datetime", "is": value.isoformat()}


_PLAIN: dict[type, _PlainWriter] = {
    type(None): _write_same,
    bool: _write_same,
    int: _write_same,
    float: _write_float,
    str: _write_text,
    bytes: _write_bytes,
    dt.datetime: _write_datetime,
}

_BASES: tuple[tuple[type, _PlainWriter], ...] = (
    (pathlib.PurePath, _write_path),
    (dt.datetime, _write_datetime),
    (bytearray, _write_bytes),
    (str, _write_text),
    (int, _write_int),
    (float, _write_float),
)

_READERS: dict[str, _Reader] = {
    "tuple": lambda tree: tuple(tree["of"]),
    "set": lambda tree: frozenset(tree["of"]),
    "map": lambda tree: {key: item for key, item in tree["of"]},  # noqa: C416 - dict() would take pairs of any shape
    "float": lambda tree: float(tree["is"]),
    "text": lambda tree: "".join(tree["of"]),
    "bytes": lambda tree: base64.b64decode(tree["is"], validate=True),
    "path": lambda tree: pathlib.Path(tree["is"]),
    "datetime": lambda tree: dt.datetime.fromisoformat(tree["is"]),
}


# --- classes


def _enum_writer(name: str) -> _Writer:
    return lambda value, _depth: {_TAG: name, "is": value.name}


def _enum_reader(cls: type[enum.Enum]) -> _Reader:
    return lambda tree: cls[tree["is"]]


def _record_reader(cls: type) -> _Reader:
    known = frozenset(field.alias or field.name for field in attrs.fields(cls) if field.init)
    return lambda tree: cls(**{name: item for name, item in tree.items() if name in known})


def _field_defaults(cls: type[GreenroomError]) -> dict[str, Any]:
    """Return the defaults of the fields that the constructor keeps under the name of its argument."""
    made_by: Any = cls.__init__
    if not inspect.isfunction(made_by):
        return {}
    kept = made_by.__code__.co_names
    parameters = inspect.signature(made_by).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty and one.name in kept}


def _error_reader(cls: type[GreenroomError]) -> _Reader:
    """Build an error by its fields, without its constructor, which makes a message of them; a field that is missing has its default."""
    defaults = _field_defaults(cls)

    def reader(tree: dict[str, Any]) -> GreenroomError:
        error = cls.__new__(cls)
        error.args = tree["args"]
        error.__dict__.update(tree["fields"])
        for name, default in defaults.items():
            error.__dict__.setdefault(name, default)
        if "cause" in tree:
            error.__cause__ = RecordedCauseError(tree["cause"])
        return error

    return reader


def _cause_text(cause: BaseException) -> str:
    return str(cause) if isinstance(cause, RecordedCauseError) else f"{type(cause).__name__}: {cause}"


STANDARD = Codec((*declared(), RecordedCauseError))
"""Knows every value of the model, the agent events, the policy, the errors and the records."""
