"""What an agent asks a person, and what can be answered. Decides only what a well-formed answer is; frozen values, safe on any thread.

A request is either an approval (may this tool run?) or a question (which of these?). It waits until somebody answers it, its deadline
passes, or its turn, its process or its session ends. The first answer wins.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

# --- what is asked, as a provider says it ---------------------------------------------------------------------------------


@attrs.frozen
class Option:
    """One of the answers that the agent offers."""

    label: str
    description: str = ""


@attrs.frozen(kw_only=True)
class Question:
    """One question. `id` is its key in `Reply.answers`; `multiple`: several options may be chosen; `secret`: the answer is not to be shown.

    `schema`: the JSON schema of the answer, where an MCP server gave one.
    """

    id: str
    text: str
    header: str = ""
    options: tuple[Option, ...] = ()
    multiple: bool = False
    secret: bool = False
    schema: Mapping[str, Any] | None = attrs.field(default=None, hash=False)


@attrs.frozen(kw_only=True)
class Approval:
    """The agent wants leave for a tool. `reason`: why it needs it, as far as the provider says.

    `suggestions`: what the provider offers to allow from now on, in its own words; `AcceptForSession` takes what is about this call.
    `each_time`: it is for a person to decide each time (to leave plan mode), so that `AcceptForSession` is no more than `Accept`.
    """

    tool: str
    input: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    reason: str = ""
    suggestions: tuple[Mapping[str, Any], ...] = attrs.field(default=(), hash=False)
    each_time: bool = False


@attrs.frozen(kw_only=True)
class Inquiry:
    """The agent, or an MCP server (`source` is its name), asks the user. `url`: a page where the user is to do something instead."""

    questions: tuple[Question, ...] = ()
    message: str = ""
    source: str = ""
    url: str | None = None


# --- what waits -----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PendingApproval:
    """An approval that waits for a person. `turn_id` None: for work that the provider began by itself. Times are wall time with a zone.

    `expires_at`: when the default verdict of the agent's `AskPolicy` is given; None: never. The rest is as `Approval` has it.
    """

    request_id: str
    session_id: str
    turn_id: str | None
    tool: str
    input: Mapping[str, Any] = attrs.field(hash=False)
    reason: str
    suggestions: tuple[Mapping[str, Any], ...] = attrs.field(hash=False)
    asked_at: dt.datetime
    expires_at: dt.datetime | None = None
    each_time: bool = False


@attrs.frozen(kw_only=True)
class PendingQuestion:
    """A question that waits for a person: `questions`, and for one of an MCP server its `message`, its name (`source`), or a `url`."""

    request_id: str
    session_id: str
    turn_id: str | None
    questions: tuple[Question, ...]
    asked_at: dt.datetime
    expires_at: dt.datetime | None = None
    message: str = ""
    source: str = ""
    url: str | None = None


Pending = PendingApproval | PendingQuestion


# --- answers --------------------------------------------------------------------------------------------------------------


class Answer:
    """Base of all answers."""

    __slots__ = ()


@attrs.frozen
class Accept(Answer):
    """This call may run."""


@attrs.frozen
class AcceptForSession(Answer):
    """This call may run, and the session is not asked for it again."""


@attrs.frozen
class Decline(Answer):
    """It may not; the model is told so, with `message`, and goes on without. A question stays unanswered."""

    message: str = attrs.field(default="", validator=attrs.validators.instance_of(str))


@attrs.frozen
class CancelTurn(Answer):
    """It may not, and the turn ends as interrupted."""


def _check_answers(_: object, __: object, answers: object) -> None:
    if not isinstance(answers, Mapping):
        raise TypeError(f"answers must be a mapping, got {type(answers).__name__}")


@attrs.frozen
class Reply(Answer):
    """The answers to a question, by the ids of its parts: a text, or several where several may be chosen; what a schema wants otherwise."""

    answers: Mapping[str, Any] = attrs.field(factory=dict, hash=False, validator=_check_answers)


OF_APPROVALS = (Accept, AcceptForSession, Decline, CancelTurn)
OF_QUESTIONS = (Reply, Decline, CancelTurn)


def check_answer(pending: Pending, answer: object) -> None:
    """Raise TypeError for an answer of another kind than `pending` takes, ValueError for one that answers nothing that was asked."""
    allowed = OF_APPROVALS if isinstance(pending, PendingApproval) else OF_QUESTIONS
    if not isinstance(answer, allowed):
        what = "an approval" if isinstance(pending, PendingApproval) else "a question"
        raise TypeError(f"{what} is answered with {_names(allowed)}, got {answer!r}")
    if isinstance(answer, Reply) and isinstance(pending, PendingQuestion):
        _check_reply(pending, answer)


def _check_reply(pending: PendingQuestion, reply: Reply) -> None:
    ids = [question.id for question in pending.questions]
    unknown = [key for key in reply.answers if key not in ids]
    if unknown:
        raise ValueError(f"the reply answers {unknown[0]!r}, which was not asked; asked was {', '.join(map(repr, ids)) or 'nothing'}")
    if ids and not reply.answers:
        raise ValueError("the reply is empty; a question that is not to be answered takes Decline")
    for key, value in reply.answers.items():
        _check_sendable(key, value)


def _check_sendable(key: str, value: object) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except TypeError as error:
        raise TypeError(f"the reply to {key!r} must be made of what JSON has: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the reply to {key!r} must be made of what JSON has: {error}") from None


def _names(kinds: Iterable[type]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def _check_deadline(_: object, __: object, deadline_s: float | None) -> None:
    if deadline_s is not None and not deadline_s > 0:
        raise ValueError(f"deadline_s must be more than 0 seconds, got {deadline_s}")


def _check_default(_: object, __: object, default: object) -> None:
    if not isinstance(default, OF_APPROVALS):
        raise TypeError(f"default must be one of {_names(OF_APPROVALS)}, got {default!r}")


@attrs.frozen(kw_only=True)
class AskPolicy:
    """How long a request waits for a person (seconds; None: without end), and the verdict after that.

    Nothing that accepts answers a question: where `default` accepts, questions are declined when their time is over.
    """

    deadline_s: float | None = attrs.field(default=None, validator=_check_deadline)
    default: Answer = attrs.field(default=Decline(), validator=_check_default)

    def verdict_on(self, pending: Pending) -> Answer:
        """Return the verdict when time is over."""
        if isinstance(pending, PendingQuestion) and not isinstance(self.default, OF_QUESTIONS):
            return Decline()
        return self.default


def pending_of(
    ask: Approval | Inquiry, *, request_id: str, session_id: str, turn_id: str | None, asked_at: dt.datetime, deadline_s: float | None
) -> Pending:
    """Return what waits, for something that was asked at `asked_at`."""
    expires_at = None if deadline_s is None else _expiry(asked_at, deadline_s)
    fields: dict[str, Any] = {field.name: getattr(ask, field.name) for field in attrs.fields(type(ask))}
    fields |= {"request_id": request_id, "session_id": session_id, "turn_id": turn_id, "asked_at": asked_at, "expires_at": expires_at}
    return PendingApproval(**fields) if isinstance(ask, Approval) else PendingQuestion(**fields)


def _expiry(asked_at: dt.datetime, deadline_s: float) -> dt.datetime | None:
    """Return when time is over; None: beyond what a date can say, as good as never."""
    try:
        return asked_at + dt.timedelta(seconds=deadline_s)
    except OverflowError:
        return None


def title_of(ask: Approval | Inquiry) -> str:
    """Return what is asked, in a few words."""
    if isinstance(ask, Approval):
        return f"approval: {ask.tool}"
    return f"question: {ask.message or ask.source or ', '.join(question.text for question in ask.questions)}"
