"""Every error that a user can meet. Decides only the wording; code branches on type and fields, never on text.

GreenroomError
├── CliNotFoundError            the binary is not there, or cannot be executed
├── WorkingDirectoryError       the directory to work in is missing or cannot be entered
├── CliCheckError               the binary is there but does not answer, or is too old
├── TurnFailedError             the turn failed; `kind` says what the caller can do
│   └── CliExitError            the process ended where it should not have
│       ├── SessionResumeError  the conversation cannot be resumed (gone, or `in_use`)
│       └── TransportDiedError  the process died in a turn and restarting did not help
├── TurnTimeoutError            the attempt did not finish in time
│   └── CliTimeoutError         the same, from a one-shot process
├── ProviderCapabilityError     the provider cannot do what was asked
│   └── SchemaDialectError      the provider cannot take this JSON schema
├── AttachmentError             an image or text that cannot be shown to the model (also a ValueError)
├── ContinuityError             the session holds another conversation than the caller demands
├── SessionStateError           the call does not fit the state of the session or the ticket
│   ├── NoRunningTurnError      there is no turn to steer, or to interrupt
│   └── UnknownSessionError     there is no session under that id, or it has not been started again
├── UnknownRequestError         nothing was ever asked under this id
├── TurnCancelledError          the ticket was cancelled before it ran
├── QueryFailedError            the provider's program gave no usable answer to a question beside the turns
├── SessionCrashedError         an actor of ours failed; a defect, please report it
├── WaitTimeoutError            the caller's patience ended; the turn goes on (also a TimeoutError)
├── TaskFileError               the task file cannot be used
├── StateDirError               the state directory cannot be used; its journal is left as it is
├── StoreFailedError            the journal could not write or read; `kind` says why
├── StoreUnavailableError       work that must be recorded first was refused: the journal is not well
├── JournalError                a value that cannot be recorded, or a record that cannot be read; a defect, or a newer version's
├── ProcessClosedError, ReapError
└── McpConfigError, AuthUnavailableError, HostAuthUnplannableError
"""

from __future__ import annotations

from typing import Any

from greenroom.model import FailureKind, ProviderUsage, StateDirProblem, StoreFault


def _rebuild(cls: type[GreenroomError], args: tuple[Any, ...], fields: dict[str, Any]) -> GreenroomError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(fields)
    return error


class GreenroomError(Exception):
    """The root of the tree. `hint`, where there is one, says what to do next; a traceback shows it below the message."""

    hint: str | None = None
    _notes: tuple[str, ...] = ()

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override] # what a traceback reads; the hint stays apart from the message
        return [*self._notes, *([] if self.hint is None else [f"hint: {self.hint}"])]

    def add_note(self, note: str) -> None:
        """Add a line below the message of a traceback."""
        self._notes = (*self._notes, note)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields, so that a subclass may build its message from them."""
        return _rebuild, (type(self), self.args, self.__dict__)


class UnknownRequestError(GreenroomError):
    """No request of an agent has this id."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"nothing was asked under the id {request_id!r}")


class CliNotFoundError(GreenroomError):
    """The binary is missing or not executable."""

    def __init__(self, binary: str, *, why: str = "not found on PATH", hint: str | None = None) -> None:
        self.binary = binary
        self.hint = hint
        super().__init__(f"{binary!r}: {why}")


class WorkingDirectoryError(GreenroomError):
    """The directory that a process was to work in is missing, is none, or cannot be entered. Nothing was started."""

    def __init__(self, path: str, why: str, *, hint: str | None = None) -> None:
        self.path = path
        self.why = why
        self.hint = hint
        super().__init__(f"cannot work in {path!r}: {why}")


class CliCheckError(GreenroomError):
    """The binary is there but cannot be used: it does not answer in time, answers junk, or is too old."""

    def __init__(self, binary_path: str, why: str, *, found: str | None = None, needed: str | None = None, hint: str | None = None) -> None:
        self.binary_path = binary_path
        self.found = found
        self.needed = needed
        self.hint = hint
        super().__init__(f"{binary_path!r} cannot be used: {why}")


class TurnFailedError(GreenroomError):
    """The turn failed. `retry_after_s` is what the provider asked for; `usage` what the failed attempts consumed, where known."""

    def __init__(
        self,
        kind: FailureKind,
        detail: str,
        *,
        retry_after_s: float | None = None,
        usage: ProviderUsage | None = None,
        text: str = "",
    ) -> None:
        self.kind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.usage = usage
        self.text = text
        if kind is FailureKind.AUTH:
            self.hint = "`greenroom doctor` shows which credential is used"
        super().__init__(f"turn failed ({kind.value}): {detail}")


class CliExitError(TurnFailedError):
    """The process ended where it should not have. `stderr` is the tail of its standard error."""

    def __init__(
        self,
        argv: tuple[str, ...] = (),
        returncode: int | None = None,
        stdout: str = "",
        stderr: str = "",
        *,
        kind: FailureKind = FailureKind.OTHER,
        detail: str | None = None,
        usage: ProviderUsage | None = None,
    ) -> None:
        self.argv = argv
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        last_line = stderr.strip().rsplit("\n", 1)[-1]
        super().__init__(
            kind, detail or f"process ended with status {returncode}" + (f"; stderr: {last_line}" if last_line else ""), usage=usage
        )


class SessionResumeError(CliExitError):
    """The conversation `session_id` cannot be resumed. `in_use`: only because another process still holds it."""

    def __init__(
        self,
        session_id: str | None,
        *,
        detail: str = "the provider does not have it",
        in_use: bool = False,
        argv: tuple[str, ...] = (),
        returncode: int | None = None,
        stderr: str = "",
    ) -> None:
        self.session_id = session_id
        self.in_use = in_use
        super().__init__(argv, returncode, "", stderr, detail=f"conversation {session_id!r} cannot be resumed: {detail}")
        self.args = (self.detail,)  # it comes without a turn as well: of a history that is read, a fork, a start


class TransportDiedError(CliExitError):
    """The process died in a turn. `signal` is the number of the signal that ended it, if one did."""

    def __init__(
        self,
        argv: tuple[str, ...] = (),
        returncode: int | None = None,
        stdout: str = "",
        stderr: str = "",
        *,
        signal: int | None = None,
        reason: str = "the process ended before the turn's result",
        usage: ProviderUsage | None = None,
    ) -> None:
        self.signal = signal
        self.reason = reason
        how = f"killed by signal {signal}" if signal else f"status {returncode}"
        tail = stderr.strip().rsplit("\n", 1)[-1]
        super().__init__(argv, returncode, stdout, stderr, detail=f"{reason} ({how})" + (f"; stderr: {tail}" if tail else ""), usage=usage)


class TurnTimeoutError(GreenroomError):
    """An attempt took longer than `timeout` seconds; its conversation is kept."""

    def __init__(self, timeout: float, *, turn_id: str = "", usage: ProviderUsage | None = None) -> None:
        self.timeout = timeout
        self.turn_id = turn_id
        self.usage = usage
        super().__init__(f"turn {turn_id!r} did not finish within {timeout:g} s; its conversation is kept")


class CliTimeoutError(TurnTimeoutError):
    """A one-shot process took longer than `timeout` seconds; `partial` is what it had written."""

    def __init__(self, timeout: float, *, argv: tuple[str, ...] = (), partial: str = "", turn_id: str = "") -> None:
        super().__init__(timeout, turn_id=turn_id)
        self.argv = argv
        self.partial = partial


class ProviderCapabilityError(GreenroomError):
    """The provider cannot do what was asked. Nothing was started."""

    def __init__(self, detail: str, *, provider: str = "", hint: str | None = None) -> None:
        self.provider = provider
        self.detail = detail
        self.hint = hint
        super().__init__(f"{provider}: {detail}" if provider else detail)


class SchemaDialectError(ProviderCapabilityError):
    """The provider cannot take this JSON schema."""

    def __init__(self, problems: tuple[str, ...], *, provider: str = "") -> None:
        self.problems = tuple(problems)
        super().__init__("unusable output schema: " + "; ".join(problems), provider=provider)


class AttachmentError(GreenroomError, ValueError):
    """An attachment cannot be given to the model: `name` says which, `why` what is wrong with it. Nothing was sent."""

    def __init__(self, name: str, why: str, *, hint: str | None = None) -> None:
        self.name = name
        self.why = why
        self.hint = hint
        super().__init__(f"attachment {name!r} {why}")


class QueryFailedError(GreenroomError):
    """A question beside the turns (history, rollback, fork, account) got no usable answer from the provider. Nothing was spent."""

    def __init__(self, what: str, why: str, *, hint: str | None = None) -> None:
        self.what = what
        self.why = why
        self.hint = hint
        super().__init__(f"{what}: {why}")


class ContinuityError(GreenroomError):
    """The caller demands conversation `expected`; the session holds `actual`. No ticket was made."""

    def __init__(self, expected: str | None, actual: str | None) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"expected conversation {expected!r}, but the session holds {actual!r}")


class SessionStateError(GreenroomError):
    """The call does not fit the state of the session or the ticket; nothing was done."""


class NoRunningTurnError(SessionStateError):
    """There is no turn that could take the text; nothing was queued."""


class UnknownSessionError(SessionStateError):
    """No session of the room has that id. `on_record`: it is in the state directory, and can be started."""

    def __init__(self, thread_id: str, *, on_record: bool = False) -> None:
        self.thread_id = thread_id
        self.on_record = on_record
        self.hint = "start it again with start_session" if on_record else None
        super().__init__(f"session {thread_id!r} is on record, but not started" if on_record else f"no session {thread_id!r} is there")


class TurnCancelledError(GreenroomError):
    """The ticket was cancelled before it ran; the provider was not asked."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        super().__init__(f"turn {turn_id!r} was cancelled before it ran")


class SessionCrashedError(GreenroomError):
    """An actor of ours failed in the middle of its work. A defect: the log has the report."""

    def __init__(self, session_id: str, reason: str) -> None:
        self.session_id = session_id
        self.reason = reason
        super().__init__(f"session {session_id!r} crashed: {reason}")


class WaitTimeoutError(GreenroomError, TimeoutError):
    """The caller waited `wait` seconds in vain; the turn goes on and `ticket.wait` still gives its outcome."""

    def __init__(self, turn_id: str, wait: float) -> None:
        self.turn_id = turn_id
        self.wait = wait
        super().__init__(f"turn {turn_id!r} has not ended after {wait:g} s; it goes on")


class TaskFileError(GreenroomError):
    """A task file cannot be used. Names the file, the line or the position of the task, and the key."""

    def __init__(self, path: str, why: str, *, line: int | None = None, key: str | None = None, hint: str | None = None) -> None:
        self.path = path
        self.line = line
        self.key = key
        self.hint = hint
        where = f"{path}:{line}" if line is not None else path
        super().__init__(f"{where}: {f'key {key!r}: ' if key else ''}{why}")


class StateDirError(GreenroomError):
    """The state directory at `path` cannot be used. The journal in it, if there is one, is left as it is."""

    def __init__(self, path: str, problem: StateDirProblem, why: str, *, hint: str | None = None) -> None:
        self.path = path
        self.problem = problem
        self.why = why
        self.hint = hint
        super().__init__(f"cannot use the state directory {path!r}: {why}")


class StoreFailedError(GreenroomError):
    """The journal could not write or read: what was not committed is lost, and it is closed until it is healed."""

    def __init__(self, kind: StoreFault, detail: str, *, path: str = "", hint: str | None = None) -> None:
        self.kind = kind
        self.detail = detail
        self.path = path
        self.hint = hint
        super().__init__(f"the journal {path!r} failed ({kind.value}): {detail}")


class StoreUnavailableError(GreenroomError):
    """Something that must be recorded before it is done was not done: the journal is not well. It is tried again every second."""

    def __init__(self, what: str, why: str, *, kind: StoreFault = StoreFault.OTHER, path: str = "", hint: str | None = None) -> None:
        self.what = what
        self.why = why
        self.kind = kind
        self.path = path
        self.hint = hint
        super().__init__(f"{what}: {why}")


class JournalError(GreenroomError):
    """A value cannot be recorded, or a record cannot be read, or the journal is used out of order. Nothing was changed."""


class ProcessClosedError(GreenroomError):
    """Something was written to a process whose input is closed."""


class ReapError(GreenroomError):
    """Processes that should have ended could not be ended; `pids` names them."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self.pids = tuple(pids)
        super().__init__("processes that could not be ended: " + ", ".join(map(str, self.pids)))


class McpConfigError(GreenroomError):
    """An MCP server's configuration cannot be used."""


class AuthUnavailableError(GreenroomError):
    """No usable credential for the provider was found."""


class HostAuthUnplannableError(GreenroomError):
    """The host's credentials cannot be handed to the provider."""
