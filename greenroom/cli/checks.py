"""One thing that the doctor looked at, and how it is shown. Pure."""

from __future__ import annotations

import enum

import attrs


class Status(enum.Enum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@attrs.frozen(kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    detail: str
    hint: str | None = None
