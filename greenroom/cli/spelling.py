"""Finds the word that was probably meant. Pure; any thread."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return a hint that names the nearest of `known`, or None when nothing is near."""
    near = difflib.get_close_matches(word.lower().replace("_", "-"), {name.replace("_", "-"): None for name in known}, n=1)
    return f"did you mean {_as_written(near[0], known)!r}?" if near else None


def _as_written(plain: str, known: Iterable[str]) -> str:
    return next(name for name in known if name.replace("_", "-") == plain)
