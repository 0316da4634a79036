"""What became of each task, and the file that remembers it. Decides when a task of an earlier run counts as done.

`ResultLog` blocks on the disk: the runner calls it off its loop. One run at a time holds the file.
"""

from __future__ import annotations

import enum
import fcntl
import io
import json
import os
import stat
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from greenroom.cli.tasks import Task
from greenroom.errors import SessionStateError, TaskFileError, TurnCancelledError, TurnFailedError
from greenroom.model import FailureKind, ProviderUsage, Turn


class Outcome(enum.Enum):
    """How a task ended."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    NOT_STARTED = "not_started"


@attrs.frozen(kw_only=True)
class TaskRecord:
    """One line of the result file. `duration_ms` is the wall time of the task, waits included; `cost_usd` None: unknown."""

    id: str
    session: str
    outcome: Outcome
    text: str = ""
    structured_output: Any = attrs.field(default=None, hash=False)
    continuity: str | None = None
    conversation_id: str | None = None
    turn_id: str | None = None
    usage: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    cost_usd: float | None = None
    duration_ms: int = 0
    retries: int = 0
    restarts: int = 0
    error: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    hash: str = ""

    def to_line(self) -> bytes:
        """Return the JSON line, ASCII only: a lone surrogate in an answer must not cost the record."""
        values = {**{field.name: getattr(self, field.name) for field in attrs.fields(TaskRecord)}, "outcome": self.outcome.value}
        return json.dumps(values, default=str).encode() + b"\n"


@attrs.frozen(kw_only=True)
class Tally:
    """What the run itself saw of a task: all there is where the task ends in an error. `text` is what the agent said last."""

    turn_id: str | None = None
    conversation_id: str | None = None
    retries: int = 0
    restarts: int = 0
    duration_ms: int = 0
    text: str = ""


def record_of_turn(task: Task, turn: Turn, duration_ms: int, *, said: str = "") -> TaskRecord:
    """Return the record of a task whose turn ended well, or was interrupted: then `said` stands in where its process died with the text."""
    result = turn.result
    return TaskRecord(
        id=task.id,
        session=task.session_name,
        outcome=Outcome.INTERRUPTED if result.interrupted else Outcome.DONE,
        text=result.text or (said if result.interrupted else ""),
        structured_output=result.structured_output,
        continuity=turn.continuity.value,
        conversation_id=turn.conversation_id,
        turn_id=turn.turn_id,
        usage=_usage(result.usage),
        cost_usd=_cost(result.cost_usd, result.usage),
        duration_ms=duration_ms,
        retries=turn.retries,
        restarts=turn.restarts,
        hash=task.hash,
    )


def record_of_error(task: Task, error: BaseException, tally: Tally, *, stopping: bool = False) -> TaskRecord:
    """Return the record of a task that ended with `error`. `stopping`: the user had asked the run to stop."""
    usage = getattr(error, "usage", None)
    if isinstance(error, TurnFailedError):
        tally = attrs.evolve(tally, text=error.text)  # it knows better than the events
    return TaskRecord(
        id=task.id,
        session=task.session_name,
        outcome=_outcome_of(error, stopping=stopping),
        usage=_usage(usage),
        cost_usd=_cost(None, usage),
        error=describe(error),
        hash=task.hash,
        **attrs.asdict(tally),
    )


def record_without_turn(task: Task, outcome: Outcome, why: str) -> TaskRecord:
    """Return the record of a task that never began."""
    error = {"type": None, "kind": None, "message": why, "hint": None}
    return TaskRecord(id=task.id, session=task.session_name, outcome=outcome, error=error, hash=task.hash)


def describe(error: BaseException) -> dict[str, Any]:
    """Return the error as the result file has it."""
    kind = error.kind.value if isinstance(error, TurnFailedError) else None
    message = str(error) or type(error).__name__
    return {"type": type(error).__name__, "kind": kind, "message": message, "hint": getattr(error, "hint", None)}


def _outcome_of(error: BaseException, *, stopping: bool) -> Outcome:
    if isinstance(error, TurnCancelledError):
        return Outcome.CANCELLED
    # An interrupt that comes in a retry wait gives the error that was to be retried.
    waiting = isinstance(error, TurnFailedError) and error.kind is FailureKind.TRANSIENT
    closed = isinstance(error, SessionStateError) or not isinstance(error, Exception)
    return Outcome.INTERRUPTED if stopping and (waiting or closed) else Outcome.FAILED


def _usage(usage: ProviderUsage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {**attrs.asdict(usage), "raw": dict(usage.raw), "cost_source": usage.cost_source.value}


def _cost(cost_usd: float | None, usage: ProviderUsage | None) -> float | None:
    return cost_usd if cost_usd is not None or usage is None else usage.total_cost_usd


# --- the file ----------------------------------------------------------------------------------------------------------------


class ResultLog:
    """The `--out` file: JSON lines, appended. Each record is on the disk when `append` returns. Any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: io.FileIO | None = None

    def open(self) -> dict[str, Mapping[str, Any]]:
        """Take the file, repair a half last line, and return the last record of each id.

        Raises TaskFileError when it cannot be written, is not a result file, or belongs to another run that goes on.
        """
        try:
            self._file = io.FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
            _refuse_endless(self._path, os.fstat(self._file.fileno()))
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._read_and_repair(self._file)
        except BlockingIOError as error:
            self.close()
            raise TaskFileError(str(self._path), "another run is writing to it", key="--out") from error
        except OSError as error:
            self.close()
            raise TaskFileError(str(self._path), f"cannot be written: {error.strerror or error}", key="--out") from error
        except TaskFileError:
            self.close()
            raise

    def _read_and_repair(self, file: io.FileIO) -> dict[str, Mapping[str, Any]]:
        """Cut a half line off; end a whole one that lacks its newline."""
        data = file.readall()
        records, kept = parse_results(str(self._path), data)
        file.truncate(kept)
        file.seek(kept)
        if kept and data[kept - 1 : kept] != b"\n":
            file.write(b"\n")
        return records

    def append(self, record: TaskRecord) -> None:
        """Write the record and force it to the disk. Raises OSError; what was written before is then still whole."""
        with self._lock:
            if self._file is None:
                raise OSError("the result file is closed")
            self._write(self._file, record.to_line())

    def _write(self, file: io.FileIO, line: bytes) -> None:
        start = file.tell()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[file.write(rest) or 0 :]
            os.fsync(file)
        except OSError:
            file.truncate(start)
            file.seek(start)
            raise

    def close(self) -> None:
        """Give the file up. Idempotent."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _refuse_endless(path: Path, status: os.stat_result) -> None:
    """Refuse a pipe and a device: they would be read without an end."""
    if not stat.S_ISREG(status.st_mode):
        raise TaskFileError(str(path), "is not a regular file", key="--out")


def read_results(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the last record of each id without touching the file; nothing where there is none."""
    try:
        _refuse_endless(path, path.stat())
        return parse_results(str(path), path.read_bytes())[0]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TaskFileError(str(path), f"cannot be read: {error.strerror or error}", key="--out") from error


def parse_results(name: str, data: bytes) -> tuple[dict[str, Mapping[str, Any]], int]:
    """Return the last record of each id, and how many bytes of `data` are whole lines."""
    records: dict[str, Mapping[str, Any]] = {}
    place = 0
    for number, line in enumerate(data.split(b"\n"), 1):
        end = place + len(line)
        record = _parsed(line)
        if record is not None:
            records[record["id"]] = record
        elif line.strip():
            if end == len(data) and _is_half(line):
                return records, place
            hint = "name a new file; results are only added to a file of results"
            raise TaskFileError(name, "is not a result of greenroom run", line=number, key="--out", hint=hint)
        place = end + 1
    return records, len(data)


def _is_half(line: bytes) -> bool:
    """Whether a line without a newline is what a run that died left, and not the end of somebody's other file."""
    start = b'{"id": '
    return line.startswith(start) or start.startswith(line) or not line.strip(b"\0")


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_record = isinstance(value, dict) and isinstance(value.get("id"), str) and isinstance(value.get("outcome"), str)
    return value if is_record else None


def done_before(tasks: Iterable[Task], records: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the records of the tasks that an earlier run did as they are now: same id, same content, outcome done."""
    return {
        task.id: record
        for task in tasks
        if (record := records.get(task.id)) is not None and record["outcome"] == Outcome.DONE.value and record.get("hash") == task.hash
    }


def exit_status(outcomes: Iterable[Outcome], *, stopped: int | None) -> int:
    """Return the exit status of a run: 0 all well, 1 something is not, `stopped` where it was told to stop."""
    if all(outcome is Outcome.DONE for outcome in outcomes):
        return 0
    return 1 if stopped is None else stopped
