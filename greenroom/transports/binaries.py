"""Where is the program? Decides which file a name means and why none can be used; starts nothing. Any thread."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from greenroom.errors import CliNotFoundError


@attrs.frozen(kw_only=True)
class Program:
    """A provider's program. `carried`: its place in the Python package that may bring it; `minimum`: the oldest version that will do."""

    name: str
    package: str
    carried: str
    minimum: tuple[int, int, int]
    hint: str

    @property
    def needed(self) -> str:
        """The oldest version that will do, in writing."""
        return ".".join(map(str, self.minimum))

    def find(self, env: Mapping[str, str], explicit: str | Path | None = None) -> str:
        """Return its absolute path: `explicit` if given, else the first on PATH in `env`, else the one that the package carries.

        Raises CliNotFoundError.
        """
        try:
            return str(find_binary(self.name if explicit is None else explicit, env.get("PATH", os.defpath), hint=self.hint))
        except CliNotFoundError:
            found = self.bundled() if explicit is None else None
            if found is None:
                raise
            return found

    def bundled(self) -> str | None:
        """Return the one that the package carries, if it is installed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin).parent / self.carried
        return str(path) if os.access(path, os.X_OK) else None


def find_binary(name_or_path: str | Path, path: str | None = None, *, hint: str | None = None) -> Path:
    """Return the absolute path of a program: `name_or_path` itself if it has a slash, else the first match on `path`.

    `path` is a PATH-like list (None: PATH of this process). Links are not resolved: an update may turn them meanwhile.
    Raises CliNotFoundError, with `hint`, when it is missing, a directory or not executable.
    """
    text = os.fspath(name_or_path)
    if os.sep in text:
        found = Path(text).expanduser().absolute()
        why = _why_not(found)
        if why is not None:
            raise CliNotFoundError(text, why=why, hint=hint)
        return found
    return _search(text, os.environ.get("PATH", os.defpath) if path is None else path, hint)


def _search(name: str, path: str, hint: str | None) -> Path:
    reason = "not found on PATH"
    # An empty entry means the working directory to a shell; a repository must not choose the agent's binary.
    for directory in filter(None, path.split(os.pathsep)):
        candidate = Path(directory).absolute() / name
        why = _why_not(candidate) if name else reason
        if why is None:
            return candidate
        if candidate.is_file():
            reason = f"{candidate} is {why}"
    raise CliNotFoundError(name, why=reason, hint=hint)


def _why_not(candidate: Path) -> str | None:
    try:
        if candidate.is_dir():
            return "a directory"
        if not candidate.exists():
            return "no such file"
    except OSError as error:
        return error.strerror or str(error)
    return None if os.access(candidate, os.X_OK) else "not executable"
