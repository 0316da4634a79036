"""Which binary, and is it new enough? Looks at files and starts `codex --version`; blocking, on the caller's thread."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from greenroom.errors import CliNotFoundError
from greenroom.transports import binaries
from greenroom.transports.versions import Requirement

NAME = "codex"
_HINT = "install it with: npm install -g @openai/codex (or pip install openai-codex-cli-bin)"
NEEDED = Requirement(minimum=(0, 163, 0), hint=_HINT)


def find_binary(env: Mapping[str, str], explicit: str | Path | None = None) -> str:
    """Return the absolute path of the binary: the explicit one, else from PATH in `env`, else the one in openai-codex-cli-bin.

    Raises CliNotFoundError.
    """
    try:
        return str(binaries.find_binary(NAME if explicit is None else explicit, env.get("PATH", os.defpath)))
    except CliNotFoundError as error:
        found = bundled() if explicit is None else None
        if found is None:
            raise CliNotFoundError(error.binary, why=str(error).partition(": ")[2], hint=_HINT) from None
        return found


def bundled() -> str | None:
    """Return the binary that the package openai-codex-cli-bin carries, if it is installed."""
    spec = importlib.util.find_spec("codex_cli_bin")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / NAME
    return str(path) if os.access(path, os.X_OK) else None
