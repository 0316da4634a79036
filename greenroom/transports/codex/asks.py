"""What Codex asks a person: its requests as values, the answers as it wants them, and which ones are open in a thread. Pure.

Seen on 0.163 and 0.171: a request waits without end; the end of its turn, or an interrupt, makes an answer moot; a refusal has no words,
so the ones of `Decline` are sent as a steer right before it, and the model is shown both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from greenroom.asks import AcceptForSession, Answer, Approval, CancelTurn, Decline, Inquiry, Option, Question, Reply
from greenroom.transports.base import Asked, Output, Withdrawn
from greenroom.transports.codex import lines
from greenroom.transports.codex.lines import Frame, obj, rows, text

USER_INPUT = "item/tool/requestUserInput"
ELICITATION = "mcpServer/elicitation/request"
PERMISSIONS = "item/permissions/requestApproval"
COMMAND = "item/commandExecution/requestApproval"
FILE_CHANGE = "item/fileChange/requestApproval"
_OLD = ("execCommandApproval", "applyPatchApproval")
SERVED = frozenset({USER_INPUT, ELICITATION, PERMISSIONS, COMMAND, FILE_CHANGE, *_OLD})

_DECISIONS = {"Accept": "accept", "AcceptForSession": "acceptForSession", "CancelTurn": "cancel"}
_OLD_DECISIONS = {"Accept": "approved", "AcceptForSession": "approved_for_session", "CancelTurn": "abort"}
_TOOL_NAME = re.compile(r'run tool "([^"]*)"')


@attrs.frozen(kw_only=True)
class _Open:
    wire_id: Any
    method: str
    asked: Frame


class Asks:
    """The requests of one thread that wait for an answer, by the text of their wire ids."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def ask(self, method: str, wire_id: Any, asked: Frame, changes: Mapping[str, Any]) -> Asked:
        """A request came. `changes`: the arguments of the calls that are under way, by item."""
        request_id = str(wire_id)
        self._open[request_id] = _Open(wire_id=wire_id, method=method, asked=asked)
        return Asked(request_id=request_id, ask=as_ask(method, asked, changes))

    def take(self, request_id: str) -> _Open | None:
        """Return the request, once."""
        return self._open.pop(request_id, None)

    def withdraw(self, wire_id: Any) -> Iterator[Output]:
        """The server wants no answer any more."""
        if self._open.pop(str(wire_id), None) is not None:
            yield Withdrawn(request_id=str(wire_id))

    def end(self) -> Iterator[Output]:
        """No turn is there any more that could get an answer."""
        for request_id in list(self._open):
            yield from self.withdraw(request_id)


# --- requests as values ---------------------------------------------------------------------------------------------------


def as_ask(method: str, asked: Frame, calls: Mapping[str, Any]) -> Approval | Inquiry:
    """Return what a request asks."""
    if method == USER_INPUT:
        return Inquiry(questions=tuple(_question(row) for row in rows(asked.get("questions"))))
    if method == ELICITATION:
        return _elicited(asked)
    return _READERS[method](asked, obj(calls.get(text(asked.get("itemId")))))


def _question(row: Frame) -> Question:
    return Question(
        id=text(row.get("id")),
        text=text(row.get("question")),
        header=text(row.get("header")),
        options=tuple(Option(text(option.get("label")), text(option.get("description"))) for option in rows(row.get("options"))),
        secret=row.get("isSecret") is True,
    )


def _elicited(asked: Frame) -> Approval | Inquiry:
    meta, server, message = obj(asked.get("_meta")), text(asked.get("serverName")), text(asked.get("message"))
    if meta.get("codex_approval_kind") == "mcp_tool_call":
        found = _TOOL_NAME.search(message)
        tool = text(meta.get("tool_name")) or (found[1] if found else "")
        return Approval(tool=f"{server}.{tool}", input=obj(meta.get("tool_params")), reason=message)
    fields = obj(obj(asked.get("requestedSchema")).get("properties"))
    questions = tuple(_field(name, obj(schema)) for name, schema in fields.items())
    return Inquiry(questions=questions, message=message, source=server, url=text(asked.get("url")) or None)


def _field(name: str, schema: Frame) -> Question:
    choices = schema.get("enum")
    options = tuple(Option(choice) for choice in choices if isinstance(choice, str)) if isinstance(choices, list) else ()
    said = text(schema.get("description")) or text(schema.get("title")) or name
    return Question(id=name, text=said, header=text(schema.get("title")), options=options, schema=schema)


def _command(asked: Frame, call: Frame) -> Approval:
    del call
    command = asked.get("command")
    said = " ".join(map(str, command)) if isinstance(command, list) else text(command)
    amendment = asked.get("proposedExecpolicyAmendment")
    suggestions = ({"type": "execpolicyAmendment", "prefix": amendment},) if isinstance(amendment, list) else ()
    given = {"command": said, "cwd": text(asked.get("cwd"))}
    return Approval(tool="shell", input=given, reason=text(asked.get("reason")), suggestions=suggestions)


def _change(asked: Frame, call: Frame) -> Approval:
    root = text(asked.get("grantRoot"))
    given = {**({"changes": asked["fileChanges"]} if "fileChanges" in asked else call), **({"grantRoot": root} if root else {})}
    return Approval(tool="apply_patch", input=given, reason=text(asked.get("reason")))


def _permissions(asked: Frame, call: Frame) -> Approval:
    del call
    return Approval(tool="request_permissions", input=obj(asked.get("permissions")), reason=text(asked.get("reason")))


_READERS: dict[str, Callable[[Frame, Frame], Approval]] = {
    COMMAND: _command,
    FILE_CHANGE: _change,
    PERMISSIONS: _permissions,
    "execCommandApproval": _command,
    "applyPatchApproval": _change,
}


# --- answers ----------------------------------------------------------------------------------------------------------------


def line_of(request: _Open, answer: Answer) -> bytes:
    """Return the line that answers."""
    if request.method == USER_INPUT and not isinstance(answer, Reply):
        # An error is the refusal: the model is shown that nothing was answered.
        return lines.refusal(request.wire_id, "the user did not answer", code=lines.REFUSED)
    return lines.answer(request.wire_id, _result(request, answer))


def _result(request: _Open, answer: Answer) -> Frame:
    kind = type(answer).__name__
    if isinstance(answer, Reply):
        return _reply(request, answer)
    if request.method == ELICITATION:
        return _elicitation_result(answer)
    if request.method == PERMISSIONS:
        granted = obj(request.asked.get("permissions")) if kind in {"Accept", "AcceptForSession"} else {}
        return {"permissions": granted, "scope": "session" if isinstance(answer, AcceptForSession) else "turn"}
    if request.method in _OLD:
        return {"decision": _OLD_DECISIONS.get(kind, "denied")}
    return {"decision": _DECISIONS.get(kind, "decline")}


def _reply(request: _Open, reply: Reply) -> Frame:
    if request.method == ELICITATION:
        return {"action": "accept", "content": dict(reply.answers)}
    return {"answers": {key: {"answers": _several(value)} for key, value in reply.answers.items()}}


def _several(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def _elicitation_result(answer: Answer) -> Frame:
    if isinstance(answer, Decline | CancelTurn):
        return {"action": "cancel" if isinstance(answer, CancelTurn) else "decline"}
    persist = {"_meta": {"persist": "session"}} if isinstance(answer, AcceptForSession) else {}
    return {"action": "accept", "content": {}, **persist}
