"""Where is the program? Decides which file a name means and why none can be used; starts nothing. Any thread."""

from __future__ import annotations

import os
from pathlib import Path

from greenroom.errors import CliNotFoundError


def find_binary(name_or_path: str | Path, path: str | None = None) -> Path:
    """Return the absolute path of a program: `name_or_path` itself if it has a slash, else the first match on `path`.

    `path` is a PATH-like list (None: PATH of this process). Links are not resolved: an update may turn them meanwhile.
    Raises CliNotFoundError when it is missing, a directory or not executable.
    """
    text = os.fspath(name_or_path)
    if os.sep in text:
        found = Path(text).expanduser().absolute()
        why = _why_not(found)
        if why is not None:
            raise CliNotFoundError(text, why=why)
        return found
    return _search(text, os.environ.get("PATH", os.defpath) if path is None else path)


def _search(name: str, path: str) -> Path:
    reason = "not found on PATH"
    # An empty entry means the working directory to a shell; a repository must not choose the agent's binary.
    for directory in filter(None, path.split(os.pathsep)):
        candidate = Path(directory).absolute() / name
        why = _why_not(candidate) if name else reason
        if why is None:
            return candidate
        if candidate.is_file():
            reason = f"{candidate} is {why}"
    raise CliNotFoundError(name, why=reason)


def _why_not(candidate: Path) -> str | None:
    try:
        if candidate.is_dir():
            return "a directory"
        if not candidate.exists():
            return "no such file"
    except OSError as error:
        return error.strerror or str(error)
    return None if os.access(candidate, os.X_OK) else "not executable"
