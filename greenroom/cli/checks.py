"""One thing that the doctor looked at, and how it is shown."""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs

from greenroom.errors import GreenroomError
from greenroom.history import Account, AccountKind


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


def account_check(name: str, binary: str, account_of: Callable[[str], Account]) -> Check:
    """Ask the CLI itself which account it uses. Who that is, is not shown."""
    try:
        account = account_of(binary)
    except GreenroomError as error:
        return Check(name=name, status=Status.WARN, detail=f"it does not say: {error}", hint=error.hint)
    parts = (account.kind.value, account.source and f"from {account.source}", account.plan and f"plan {account.plan}", account.detail)
    status = Status.WARN if account.kind is AccountKind.NONE else Status.OK
    return Check(name=name, status=status, detail=", ".join(part for part in parts if part))
