"""Which binary, and is it new enough? Looks at files and starts `claude --version`; blocking, on the caller's thread."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from greenroom.errors import CliCheckError, CliNotFoundError

NAME = "claude"
MINIMUM = (2, 1, 332)
_MINIMUM_TEXT = ".".join(map(str, MINIMUM))
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
_HINT = "install it with: npm install -g @anthropic-ai/claude-code (or pip install 'greenroom[clis]')"

_checked: dict[tuple[str, int, int], str] = {}
_lock = threading.Lock()


def find_binary(env: Mapping[str, str], explicit: str | Path | None = None) -> str:
    """Return the absolute path of the binary: the explicit one, else from PATH in `env`, else the one in the package claude-agent-sdk.

    Raises CliNotFoundError.
    """
    if explicit is not None:
        return _executable(Path(explicit), env)
    found = shutil.which(NAME, path=env.get("PATH", os.defpath)) or bundled()
    if found is None:
        raise CliNotFoundError(NAME, hint=_HINT)
    return str(Path(found).absolute())


def _executable(path: Path, env: Mapping[str, str]) -> str:
    if path.name == str(path):
        found = shutil.which(str(path), path=env.get("PATH", os.defpath))
        if found is None:
            raise CliNotFoundError(str(path), hint=_HINT)
        return str(Path(found).absolute())
    if not path.is_file():
        raise CliNotFoundError(str(path), why="no such file", hint=_HINT)
    if not os.access(path, os.X_OK):
        raise CliNotFoundError(str(path), why="not executable", hint=f"chmod +x {path}")
    return str(path.absolute())


def bundled() -> str | None:
    """Return the binary that the package claude-agent-sdk carries, if it is installed."""
    spec = importlib.util.find_spec("claude_agent_sdk")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "_bundled" / NAME
    return str(path) if os.access(path, os.X_OK) else None


def check_version(path: str, env: Mapping[str, str], timeout_s: float) -> str:
    """Return the version of the binary at `path`, asked once per file as it is now.

    Raises CliCheckError when it does not answer within `timeout_s`, answers something else, or is older than 2.1.332.
    """
    key = _identity(path)
    with _lock:
        version = _checked.get(key)
    if version is None:
        version = _accept(path, _ask(path, env, timeout_s))
        with _lock:
            _checked[key] = version
    return version


def _identity(path: str) -> tuple[str, int, int]:
    try:
        status = Path(path).stat()
    except OSError as error:
        raise CliNotFoundError(path, why=error.strerror or "cannot be read", hint=_HINT) from None
    return path, status.st_mtime_ns, status.st_size


def _ask(path: str, env: Mapping[str, str], timeout_s: float) -> str:
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
        hint = None if error.errno in _SHORTAGES else _HINT
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
        raise CliCheckError(path, f"--version ended with status {status}: {why[-500:] or 'it said nothing'}")
    return output


def _accept(path: str, output: str) -> str:
    found = _VERSION.search(output)
    if found is None:
        raise CliCheckError(path, f"--version answered {output[:100]!r}, which is no version", needed=_MINIMUM_TEXT)
    if tuple(map(int, found.groups())) < MINIMUM:
        raise CliCheckError(
            path, f"found version {found[0]}, needed {_MINIMUM_TEXT} or newer", found=found[0], needed=_MINIMUM_TEXT, hint=_HINT
        )
    return found[0]
