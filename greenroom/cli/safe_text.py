"""Makes text of agents harmless for a terminal. Pure; any thread.

What an agent says may hold escape sequences, carriage returns or characters that reverse the reading order: none of them
may reach the screen, or a log that somebody will print later.
"""

from __future__ import annotations

import re
import unicodedata

from rich.cells import cell_len, set_cell_size

# CSI and OSC sequences whole, so that "[31m" does not stay behind; then any other escape with its one character.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?")
# Cc control, Cf format (bidi overrides, zero width), Cs lone surrogates, Zl and Zp line separators.
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINER = "\u200d"


def one_line(text: str, limit: int = 400) -> str:
    """Return `text` on one line of at most `limit` characters, without control characters."""
    spaced = " ".join(_ESCAPES.sub("", text[: limit * 4]).split())
    return "".join(char for char in spaced if _harmless(char))[:limit]


def fit(text: str, width: int) -> str:
    """Return the line cut to `width` terminal cells, with an ellipsis where something is missing."""
    line = one_line(text)
    if cell_len(line) <= width:
        return line
    return set_cell_size(line, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def _harmless(char: str) -> bool:
    return char == _JOINER or unicodedata.category(char) not in _HARMFUL
