"""How many files this process may have open, which bounds how many sessions can be live. Decides only whether to raise its own soft limit.

Many systems begin with 1,024 (macOS with 256), which is enough for two hundred sessions and not for three.
"""

from __future__ import annotations

import resource

PER_SESSION = 5
"""A process of its own: three pipes and its exit; and one while somebody waits for its events."""

BESIDE = 128
"""The program itself, the journal, the guard, and what starts take for a moment."""


def sessions_that_fit(limit: int) -> int:
    """Return how many sessions can be live under a limit of open files."""
    return max(0, (limit - BESIDE) // PER_SESSION)


def limits() -> tuple[int, int]:
    """Return the soft and the hard limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _counted(soft), _counted(hard)


def _counted(limit: int) -> int:
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


def make_room(sessions: int) -> str | None:
    """Raise the soft limit to what so many live sessions need, for us and what we start; return what is to be said if that cannot be."""
    needed = sessions * PER_SESSION + BESIDE
    soft, hard = limits()
    if needed <= soft:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    except (OSError, ValueError):
        hard = soft
    if needed <= hard:
        return None
    return f"{sessions} sessions at once may need {needed:,} open files, and {hard:,} are allowed (`ulimit -Hn`): some may fail to start"
