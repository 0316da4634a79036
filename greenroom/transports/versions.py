"""Is a program new enough? Starts it with `--version`; blocking, bounded, on the caller's thread. Asked once per file as it is now."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from greenroom.errors import CliCheckError, CliNotFoundError
from greenroom.transports.binaries import Program

_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_SAID_CHARS = 500

_checked: dict[tuple[str, int, int], str] = {}
_lock = threading.Lock()


def check_version(path: str, env: Mapping[str, str], timeout_s: float, program: Program) -> str:
    """Return the version of `program` at `path`.

    Raises CliNotFoundError when it has gone; CliCheckError when it does not answer in time, answers something else, or is too old.
    """
    key = _identity(path, program)
    with _lock:
        version = _checked.get(key)
    if version is None:
        version = _accept(path, _ask(path, env, timeout_s, program), program)
        with _lock:
            _checked[key] = version
    return version


def _identity(path: str, program: Program) -> tuple[str, int, int]:
    try:
        status = Path(path).stat()
    except OSError as error:
        raise CliNotFoundError(path, why=error.strerror or "cannot be read", hint=program.hint) from None
    return path, status.st_mtime_ns, status.st_size


def _ask(path: str, env: Mapping[str, str], timeout_s: float, program: Program) -> str:
    try:
        process = subprocess.Popen(  # noqa: S603 - the path is the user's own choice of binary
            (path, "--version"),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        # What this machine has run out of, no installation cures.
        hint = None if error.errno in _SHORTAGES else program.hint
        raise CliCheckError(path, f"it cannot be started: {error.strerror}", hint=hint) from None
    with contextlib.ExitStack() as stack:
        stack.callback(_end, process)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise CliCheckError(path, f"--version did not answer within {timeout_s:g} s") from None
    return _answer(path, process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with its group, and do not read on: a grandchild may hold the pipes open."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _answer(path: str, status: int, stdout: bytes, stderr: bytes) -> str:
    output = stdout.decode("utf-8", "replace").strip()
    if status != 0:
        why = stderr.decode("utf-8", "replace").strip() or output
        raise CliCheckError(path, f"--version ended with status {status}: {why[-_SAID_CHARS:] or 'it said nothing'}")
    return output


def _accept(path: str, output: str, program: Program) -> str:
    found = _VERSION.search(output)
    if found is None:
        raise CliCheckError(path, f"--version answered {output[:100]!r}, which is no version", needed=program.needed)
    if tuple(map(int, found.groups())) < program.minimum:
        why = f"found version {found[0]}, needed {program.needed} or newer"
        raise CliCheckError(path, why, found=found[0], needed=program.needed, hint=program.hint)
    return found[0]
