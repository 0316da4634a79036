"""Which wait does a provider's text name? The one place that reads durations in words. Pure."""

from __future__ import annotations

import re

_NAMED = re.compile(
    r"(?:retry[- ]after|(?:try|retry)(?: again)? in)\D{0,3}(\d+(?:\.\d+)?) ?(ms|milliseconds?|m(?:in(?:ute)?s?)?\b|h(?:ours?)?\b|s|)",
    re.IGNORECASE,
)


def retry_after_s(said: str) -> float | None:
    """Return the wait that a text names ("try again in 5 minutes"), in seconds. A time of day ("at 6:04 PM") is none."""
    found = _NAMED.search(said)
    if found is None:
        return None
    unit = found[2].lower()
    scale = 0.001 if unit.startswith(("ms", "milli")) else 3600 if unit.startswith("h") else 60 if unit.startswith("m") else 1
    return float(found[1]) * scale
