"""What Claude Code asks a person: its requests as values, the answers as it wants them, and which ones are open. Pure.

Seen on 2.1.332: a request waits without end; an interrupt takes it back (`control_cancel_request`); an answer to none is ignored. A rule
with the destination `session` holds until the process ends; the suggested `setMode` would allow every edit, and is never taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from greenroom.asks import Accept, AcceptForSession, Answer, Approval, CancelTurn, Decline, Inquiry, Option, Question, Reply
from greenroom.transports.base import Asked, Output, Withdrawn, Write
from greenroom.transports.claude import lines

ASK_USER = "AskUserQuestion"
DECLINED = "The user declined this."
_EDITS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})
_PATH_KEYS = ("file_path", "notebook_path")

Request = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class _Open:
    request_id: str
    request: Request
    receipt: str | None


class Asks:
    """The requests that wait for an answer. `receipt` is that of the attempt that a request belongs to, None: to none."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def waits(self, receipt: str) -> bool:
        """Whether a request of the attempt is open."""
        return any(row.receipt == receipt for row in self._open.values())

    def receipt_of(self, request_id: str) -> str | None:
        """Return the attempt that an open request belongs to."""
        row = self._open.get(request_id)
        return None if row is None else row.receipt

    def call_of(self, request_id: str) -> str:
        """Return the id of the tool call that an open request is about."""
        row = self._open.get(request_id)
        return "" if row is None else text(row.request.get("tool_use_id"))

    def ask(self, request_id: str, request: Request, receipt: str | None) -> Asked:
        """A request came."""
        self._open[request_id] = _Open(request_id=request_id, request=request, receipt=receipt)
        return Asked(request_id=request_id, ask=asked(request))

    def answer(self, request_id: str, answer: Answer) -> Write | None:
        """Return the line that answers; None when the request is not open."""
        row = self._open.pop(request_id, None)
        return None if row is None else Write(lines.answer(request_id, response(row.request, answer)))

    def taken_back(self, request_id: Any) -> Iterator[Output]:
        """The CLI wants no answer any more."""
        if isinstance(request_id, str) and self._open.pop(request_id, None) is not None:
            yield Withdrawn(request_id=request_id)

    def drop(self, receipt: str) -> Iterator[Output]:
        """The attempt is being stopped: the CLI takes its requests back by itself."""
        for row in [row for row in self._open.values() if row.receipt == receipt]:
            yield from self.taken_back(row.request_id)

    def end(self, receipt: str) -> Iterator[Output]:
        """The attempt has ended without its requests: nobody will answer them, so that what waits for them must be told."""
        for row in [row for row in self._open.values() if row.receipt == receipt]:
            yield Write(lines.answer(row.request_id, response(row.request, Decline("The turn has ended."))))
            yield from self.taken_back(row.request_id)


def serves(request: Request) -> bool:
    """Whether the request is one that a person can answer."""
    return request.get("subtype") in {"can_use_tool", "elicitation"}


# --- requests as values ---------------------------------------------------------------------------------------------------


def asked(request: Request) -> Approval | Inquiry:
    """Return what a request asks."""
    if request.get("subtype") == "elicitation":
        return _elicited(request)
    given = mapping(request.get("input"))
    if request.get("tool_name") == ASK_USER and (questions := _questions(given)):
        return Inquiry(questions=questions)
    suggestions = request.get("permission_suggestions")
    return Approval(
        tool=text(request.get("tool_name")),
        input=given,
        reason=_reason(request),
        suggestions=tuple(row for row in suggestions if isinstance(row, dict)) if isinstance(suggestions, list) else (),
        each_time=request.get("requires_user_interaction") is True,
    )


def _reason(request: Request) -> str:
    said = (text(request.get(name)) for name in ("description", "decision_reason", "blocked_path"))
    return "; ".join(dict.fromkeys(part for part in said if part))


def _questions(given: Request) -> tuple[Question, ...]:
    rows = given.get("questions")
    return tuple(_question(row) for row in rows if isinstance(row, dict) and text(row.get("question"))) if isinstance(rows, list) else ()


def _question(row: Request) -> Question:
    options = row.get("options")
    return Question(
        id=text(row.get("question")),
        text=text(row.get("question")),
        header=text(row.get("header")),
        options=tuple(_option(option) for option in options if isinstance(option, dict)) if isinstance(options, list) else (),
        multiple=row.get("multiSelect") is True,
    )


def _option(row: Request) -> Option:
    return Option(text(row.get("label")), text(row.get("description")))


def _elicited(request: Request) -> Inquiry:
    source, url = text(request.get("mcp_server_name")), text(request.get("url")) or None
    fields = mapping(mapping(request.get("requested_schema")).get("properties"))
    questions = tuple(of_schema(name, mapping(schema)) for name, schema in fields.items())
    return Inquiry(questions=questions, message=text(request.get("message")), source=source, url=url)


def of_schema(name: str, schema: Request) -> Question:
    """Return a field of a form as a question."""
    choices = schema.get("enum")
    options = tuple(Option(choice) for choice in choices if isinstance(choice, str)) if isinstance(choices, list) else ()
    said = text(schema.get("description")) or text(schema.get("title")) or name
    return Question(id=name, text=said, header=text(schema.get("title")), options=options, schema=schema)


# --- answers ----------------------------------------------------------------------------------------------------------------


def response(request: Request, answer: Answer) -> dict[str, Any]:
    """Return an answer as the request wants it."""
    if request.get("subtype") == "elicitation":
        return _elicitation_response(answer)
    given = mapping(request.get("input"))
    match answer:
        case Accept():
            return {"behavior": "allow", "updatedInput": given}
        case AcceptForSession():
            return {"behavior": "allow", "updatedInput": given, "updatedPermissions": session_rules(request)}
        case Reply():
            return {"behavior": "allow", "updatedInput": {**given, "answers": {key: _said(value) for key, value in answer.answers.items()}}}
        case CancelTurn():
            return {"behavior": "deny", "message": DECLINED, "interrupt": True}
        case _:
            return {"behavior": "deny", "message": getattr(answer, "message", "") or DECLINED}


def _elicitation_response(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, Reply):
        return {"action": "accept", "content": dict(answer.answers)}
    return {"action": "cancel" if isinstance(answer, CancelTurn) else "decline"}


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def session_rules(request: Request) -> list[dict[str, Any]]:
    """Return the rules that let this call, and no more than the CLI suggests, pass for the rest of the process."""
    suggestions = request.get("permission_suggestions")
    rows = suggestions if isinstance(suggestions, list) else []
    rules = [{**row, "destination": "session"} for row in rows if _is_allowing(row)]
    return rules or _edit_rules(text(request.get("tool_name")), mapping(request.get("input")))


def _is_allowing(row: Any) -> bool:
    return isinstance(row, dict) and row.get("type") == "addRules" and row.get("behavior") == "allow"


def _edit_rules(tool: str, given: Request) -> list[dict[str, Any]]:
    """For edits the CLI suggests to allow them all; here it is this file. `//` begins an absolute path in a rule."""
    paths = [text(given.get(key)) for key in _PATH_KEYS if text(given.get(key)).startswith("/")]
    if tool not in _EDITS or not paths:
        return []
    rule = {"toolName": "Edit", "ruleContent": f"/{paths[0]}"}
    return [{"type": "addRules", "rules": [rule], "behavior": "allow", "destination": "session"}]


def mapping(value: Any) -> dict[str, Any]:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """Return `value` if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""
