"""What a CLI's environment is: the caller's, less what a parent session left in it, plus ours. Pure but for reading `os.environ`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from greenroom.transports.marks import VARIABLE, append_mark, split_marks

#: Set by a CLI for the tools it runs (seen in a Bash tool of Claude Code 2.1.332, and in Codex 0.171), or for one restart of it.
#: A CLI that finds them takes itself for a part of that session, talks to its socket, or goes on with its cut turn.
PARENT_MARKERS = frozenset(
    {
        "CLAUDECODE",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_SSE_PORT",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_CODE_SESSION_ATTENDED",
        "CLAUDE_CODE_PARENT_SESSION_ID",
        "CLAUDE_CODE_CHILD_SESSION",
        "CLAUDE_CODE_CHILD_NOTES_DIR",
        "CLAUDE_CODE_EXECPATH",
        "CLAUDE_PID",
        "CLAUDE_EFFORT",
        "AI_AGENT",
        "CODEX_THREAD_ID",
        "CODEX_SESSION_ID",
        "CODEX_TOOL_CALL_ID",
        "CODEX_CI",
        "CODEX_VERSION",
        "CODEX_SANDBOX",
        "CODEX_SANDBOX_NETWORK_DISABLED",
    }
)
PARENT_PREFIXES = ("CLAUDE_CODE_RESUME_", "CLAUDE_CODE_MESSAGING_")


def without_parent(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` without the variables that say that we run inside another session."""
    return {name: value for name, value in env.items() if name not in PARENT_MARKERS and not name.startswith(PARENT_PREFIXES)}


def child_env(env: Mapping[str, str] | None, *, mark: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a CLI: `env`, or with None that of this process, without the markers of a parent session.

    `ours` is added where the caller has not named the variable. `mark` becomes the last item of GREENROOM_MARK, behind those of
    rooms around this one, whether or not `env` passes them on: they must find what runs inside them.
    """
    given = os.environ if env is None else env
    return {**ours, **without_parent(given), VARIABLE: _marks(given, mark)}


def _marks(given: Mapping[str, str], mark: str) -> str:
    outer = split_marks(os.environ.get(VARIABLE))
    more = [item for item in split_marks(given.get(VARIABLE)) if item not in outer]
    return append_mark(":".join([*outer, *more]), mark)
