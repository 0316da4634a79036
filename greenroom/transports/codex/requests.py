"""What is answered when the server asks. Decides the refusal that each request understands; nothing is ever allowed here. Pure.

`decline` lets the model go on without, `cancel` ends its turn as interrupted (0.163 and 0.171). An error is understood as an answer too.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from greenroom.transports.codex import lines
from greenroom.transports.codex.lines import Frame, obj, rows, text


@attrs.frozen(kw_only=True)
class Refusal:
    """How a request is refused. `kind` is empty where it asks for no leave; `cancels`: the refusal itself ends the turn."""

    line: bytes
    kind: str = ""
    detail: str = ""
    item_id: str = ""
    cancels: bool = False


def _command(asked: Frame) -> str:
    command = asked.get("command")
    said = " ".join(map(str, command)) if isinstance(command, list) else text(command)
    return "; ".join(part for part in (said, text(asked.get("reason"))) if part)


def _change(asked: Frame) -> str:
    return "; ".join(part for part in (text(asked.get("grantRoot")), text(asked.get("reason"))) if part)


def _elicitation(asked: Frame) -> str:
    return f"{text(asked.get('serverName'))}: {text(asked.get('message'))}"


def _permissions(asked: Frame) -> str:
    return text(asked.get("reason")) or str(obj(asked.get("permissions")))


_Row = tuple[str, Callable[[Frame], str], Frame, Frame, bool]

# method -> kind, detail, refusal that lets the turn go on, refusal that ends it, whether the latter really does
_LEAVE: dict[str, _Row] = {
    "item/commandExecution/requestApproval": ("command", _command, {"decision": "decline"}, {"decision": "cancel"}, True),
    "item/fileChange/requestApproval": ("file change", _change, {"decision": "decline"}, {"decision": "cancel"}, True),
    "item/permissions/requestApproval": ("permissions", _permissions, {"permissions": {}}, {"permissions": {}}, False),
    "mcpServer/elicitation/request": ("mcp", _elicitation, {"action": "decline"}, {"action": "cancel"}, False),
    "execCommandApproval": ("command", _command, {"decision": "denied"}, {"decision": "abort"}, True),
    "applyPatchApproval": ("file change", _change, {"decision": "denied"}, {"decision": "abort"}, True),
}


def refuse(method: str, request_id: object, asked: Frame, *, fails_turn: bool) -> Refusal:
    """Return the answer to a request of the server's."""
    row = _LEAVE.get(method)
    if row is None:
        return Refusal(line=lines.refusal(request_id, f"greenroom does not serve {method!r} requests"), detail=_question(method, asked))
    kind, describe, declined, cancelled, cancels = row
    return Refusal(
        line=lines.answer(request_id, cancelled if fails_turn else declined),
        kind=kind,
        detail=describe(asked),
        item_id=text(asked.get("itemId")) or f"{method} {request_id}",
        cancels=fails_turn and cancels,
    )


def _question(method: str, asked: Frame) -> str:
    asked_for = "; ".join(text(question.get("question")) for question in rows(asked.get("questions")))
    return f"{method}: {asked_for}" if asked_for else method
