"""Why did a process end before the handshake? The reason is on its standard error only. Pure; a table, read from the top."""

from __future__ import annotations

import re

from greenroom.errors import (
    CliCheckError,
    CliExitError,
    GreenroomError,
    McpConfigError,
    ProviderCapabilityError,
    SchemaDialectError,
    SessionResumeError,
)
from greenroom.transports.base import ProcessExit
from greenroom.transports.claude.classify import kind_of_text

_IN_USE = re.compile(r"session id .*already in use", re.IGNORECASE)
_GONE = re.compile(r"no conversation found|--resume requires a valid session|invalid session id|no message found with", re.IGNORECASE)
_ROOT = re.compile(r"cannot be used with root", re.IGNORECASE)
_OPTION = re.compile(r"error: unknown option", re.IGNORECASE)
_SCHEMA = re.compile(r"--json-schema is not", re.IGNORECASE)
_MCP = re.compile(r"invalid mcp configuration|mcp config", re.IGNORECASE)
_SANDBOX = re.compile(
    r"sandbox .*(unavailable|not available|required|dependencies)|failIfUnavailable|bubblewrap|\bbwrap\b|socat", re.IGNORECASE
)

_ROOT_HINT = "run as another user, or set IS_SANDBOX=1 in env= if this machine is a sandbox of its own"
_SANDBOX_HINT = "install bubblewrap and socat"


def _known(said: str, binary: str) -> GreenroomError | None:
    """Return the error for a reason that we know."""
    if _ROOT.search(said):
        return ProviderCapabilityError(said, provider="claude", hint=_ROOT_HINT)
    if _OPTION.search(said):
        return CliCheckError(binary, said, hint="check extra_args, or update Claude Code")
    if _SCHEMA.search(said):
        return SchemaDialectError((said,), provider="claude")
    if _MCP.search(said):
        return McpConfigError(said)
    if _SANDBOX.search(said):
        return ProviderCapabilityError(said, provider="claude", hint=_SANDBOX_HINT)
    return None


def refusal(exit_: ProcessExit, stderr_tail: str, *, argv: tuple[str, ...], conversation_id: str | None) -> GreenroomError | None:
    """Return what the process's own exit says, or None when it was killed: that is a death, not an answer."""
    if exit_.signal is not None or exit_.returncode is None or exit_.returncode < 0:
        return None
    said = stderr_tail.strip()[-1000:]
    in_use = _IN_USE.search(said) is not None
    if in_use or _GONE.search(said):
        detail = said.rsplit("\n", 1)[-1]
        return SessionResumeError(conversation_id, detail=detail, in_use=in_use, argv=argv, returncode=exit_.returncode, stderr=stderr_tail)
    known = _known(said, argv[0] if argv else "claude")
    return known or CliExitError(argv, exit_.returncode, stderr=stderr_tail, kind=kind_of_text(said))
