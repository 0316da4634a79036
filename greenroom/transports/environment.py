"""What a CLI's environment is: the caller's, less what a parent session left in it, plus ours. Pure but for reading `os.environ`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

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
        "CLAUDE_CODE_CHILD_SESSION",
        "CLAUDE_CODE_CHILD_NOTES_DIR",
        "CLAUDE_CODE_MESSAGING_SOCKET",
        "CLAUDE_CODE_MESSAGING_TOKEN",
        "CLAUDE_CODE_EXECPATH",
        "CLAUDE_PID",
        "CLAUDE_EFFORT",
        "CLAUDE_CODE_RESUME_INTERRUPTED_TURN",
        "CLAUDE_CODE_RESUME_SHOWS_CUT_OFF_CALLS",
        "CLAUDE_CODE_RESUME_PROMPT",
        "CODEX_THREAD_ID",
        "CODEX_SESSION_ID",
        "CODEX_TOOL_CALL_ID",
        "CODEX_CI",
        "CODEX_VERSION",
        "CODEX_SANDBOX",
        "CODEX_SANDBOX_NETWORK_DISABLED",
    }
)


def child_env(
    env: Mapping[str, str] | None, *, mark: str, ours: Mapping[str, str], markers: Collection[str] = PARENT_MARKERS
) -> dict[str, str]:
    """Return the environment of a CLI: `env`, or with None that of this process, without `markers`.

    `ours` is added where the caller has not named the variable. `mark` becomes the last item of GREENROOM_MARK, behind those of
    rooms around this one, whether or not `env` passes them on: they must find what runs inside them.
    """
    given = os.environ if env is None else env
    kept = {name: value for name, value in given.items() if name not in markers}
    return {**ours, **kept, VARIABLE: _marks(given, mark)}


def _marks(given: Mapping[str, str], mark: str) -> str:
    outer = split_marks(os.environ.get(VARIABLE))
    more = [item for item in split_marks(given.get(VARIABLE)) if item not in outer]
    return append_mark(":".join([*outer, *more]), mark)
