"""The PreToolUse hook of WORKSPACE_WRITE: denies an edit outside the roots given as arguments. Run by Claude Code, a process per edit.

Standard library only, started with `-S -E`. Reads the tool call on standard input; status 0 lets it pass, 2 denies it. It denies
whatever it does not understand.
"""

from __future__ import annotations

import json
import os
import sys

_PATH_KEYS = ("file_path", "notebook_path", "path")


def refusal(call: object, roots: list[str]) -> str | None:
    """Return why the call is denied, or None."""
    given = call.get("tool_input") if isinstance(call, dict) else None
    arguments = given if isinstance(given, dict) else {}
    paths = [arguments[key] for key in _PATH_KEYS if key in arguments]
    if not paths or not all(isinstance(path, str) and path for path in paths):
        return "the call names no file"
    outside = [path for path in paths if not _is_inside(path, roots)]
    return f"{outside[0]} is outside the writable directories: {', '.join(roots)}" if outside else None


def _is_inside(path: str, roots: list[str]) -> bool:
    # Symbolic links are followed on both sides: what counts is the file that would change.
    target = os.path.realpath(os.path.join(roots[0], os.path.expanduser(path)))  # noqa: PTH111, PTH118
    return any(os.path.commonpath((target, root)) == root for root in map(os.path.realpath, roots))


def main() -> int:
    """Decide about the call on standard input."""
    try:
        why = refusal(json.load(sys.stdin), sys.argv[1:])
    except Exception as error:  # noqa: BLE001 - a hook that fails lets the call pass, so nothing may fail
        why = f"the write hook failed: {error!r}"
    if why is None:
        return 0
    sys.stderr.write(why + "\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
