"""Values for the journal's tests: a small vocabulary of records, and arbitrary values of every class that the codec knows."""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import math
import pathlib
import types
import typing
from collections import abc

import attrs
from hypothesis import strategies as st

from greenroom.asks import Accept, AcceptForSession, AskPolicy, CancelTurn, Decline
from greenroom.events import AssistantText
from greenroom.journal import STANDARD
from greenroom.journal.records import AgentEvents, Input, SessionOpened, TicketPrepared, TicketSent
from greenroom.model import (
    ApprovalPolicy,
    Continuity,
    ConversationSpec,
    ImageAttachment,
    NativePermissions,
    TextAttachment,
    Turn,
    TurnRequest,
    TurnResult,
)
from greenroom.policy.commands import How
from greenroom.policy.events import Named
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.stall import StallAction, StallPolicy
from greenroom.policy.state import Settings

NONCE = "00000000-0000-4000-8000-000000000001"
SPEC = ConversationSpec(cwd=pathlib.Path("/repo"), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)


def opened(session_id="s-1", **fields):
    plain = {"nonce": NONCE, "provider": "claude", "state_home": "/home", "spec": SPEC, "at_s": 1.0}
    return SessionOpened(session_id=session_id, settings=Settings(session_nonce=NONCE), **{**plain, **fields})


def prepared(turn_id="t-1", session_id="s-1", prompt="do it", **fields):
    request = TurnRequest(prompt)
    return TicketPrepared(
        turn_id=turn_id, session_id=session_id, nonce=NONCE, request=request, request_hash=STANDARD.fingerprint(request), **fields
    )


def sent(turn_id="t-1", attempt=1, **fields):
    plain = {"receipt": f"receipt-{attempt}", "how": How.PROMPT, "conversation_id": "c-1", "incarnation": 1}
    return TicketSent(turn_id=turn_id, attempt=attempt, **{**plain, **fields})


def turn(turn_id="t-1", conversation_id="c-1", text="done"):
    return Turn(TurnResult(text=text), Continuity.CONTINUED, turn_id, conversation_id)


def named(n, session_id="s-1", conversation_id="c-1"):
    return Input(session_id=session_id, n=n, event=Named(now_s=float(n), incarnation=1, conversation_id=conversation_id))


def spoken(first, count=1, session_id="s-1", at_wall_s=100.0, text="word"):
    events = tuple(AssistantText(f"{text} {number}") for number in range(first, first + count))
    return AgentEvents(
        session_id=session_id,
        first_sequence=first,
        turn_id="t-1",
        incarnation=1,
        at_monotonic_s=1.0,
        at_wall_s=at_wall_s,
        events=events,
    )


def write(journal, *records):
    journal.begin()
    for record in records:
        journal.put(record)
    journal.commit()


# --- arbitrary values

TEXT = st.text(st.characters(exclude_categories=())) | st.sampled_from(["\0", "\ud83d\ude00", "\ud800", "😀", "$", "$x", "é\udcff"])
FLOATS = st.floats(width=64)
SCALARS = st.none() | st.booleans() | st.integers() | FLOATS | TEXT
DATES = st.datetimes(timezones=st.just(dt.UTC) | st.none() | st.just(dt.timezone(dt.timedelta(minutes=-90))))
PATHS = st.builds(pathlib.Path, st.text(st.characters(exclude_characters="\0", exclude_categories=())))
HASHABLE = st.recursive(SCALARS | st.binary(), lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2), max_leaves=4)
ANY = st.recursive(
    SCALARS | st.binary() | DATES | PATHS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3) | st.dictionaries(HASHABLE, inner, max_size=2),
    max_leaves=6,
)
_PLAIN = {
    str: TEXT,
    int: st.integers(),
    float: FLOATS,
    bool: st.booleans(),
    bytes: st.binary(),
    type(None): st.none(),
    pathlib.Path: PATHS,
    dt.datetime: DATES,
    typing.Any: ANY,
    abc.Hashable: HASHABLE,
    ImageAttachment: st.builds(ImageAttachment, data=st.binary(), media_type=st.none() | TEXT) | st.builds(ImageAttachment, path=PATHS),
    TextAttachment: st.builds(TextAttachment, text=TEXT, name=TEXT.map("n".__add__)) | st.builds(TextAttachment, path=PATHS, name=TEXT),
    StallPolicy: st.builds(
        StallPolicy, after_s=st.floats(1, 9), action=st.sampled_from(StallAction), tool_after_s=st.none() | st.floats(1, 9)
    ),
    RestartPolicy: st.builds(RestartPolicy, max_restarts=st.integers(0, 9), delays=st.lists(st.floats(0, 9), max_size=3)),
}


_ARGUMENTS = st.lists(st.text(st.characters(exclude_characters="\0")), max_size=3).map(tuple)

# What the class itself refuses.
_NARROWER = {
    AskPolicy: {
        "deadline_s": st.none() | st.floats(min_value=0, exclude_min=True),
        "default": st.sampled_from([Accept(), AcceptForSession(), Decline("no"), CancelTurn()]),
    },
    TurnRequest: {
        "timeout": st.none() | st.floats(min_value=0, exclude_min=True),
        "model": st.none() | TEXT.map("m".__add__),
        "extra_args": _ARGUMENTS,
        "env": st.none() | st.dictionaries(st.text("ABC_", min_size=1), st.text(st.characters(exclude_characters="\0"))),
    },
}


def values_of(hint):
    """Return arbitrary values of a type as our classes are annotated with."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(arg) for arg in args])
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=2).map(tuple)
    if origin is frozenset:
        return st.frozensets(values_of(args[0]), max_size=3)
    if origin in (abc.Mapping, dict):
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    family = [cls for cls in STANDARD.classes.values() if issubclass(cls, hint)]
    return st.deferred(lambda: st.one_of([instances(cls) for cls in family]))


def instances(cls):
    """Return arbitrary instances of exactly this class."""
    if issubclass(cls, enum.Enum):
        return st.sampled_from(cls)
    if cls in _PLAIN:
        return _PLAIN[cls]
    if issubclass(cls, BaseException) and not inspect.isfunction(cls.__init__):
        return st.lists(SCALARS, max_size=2).map(lambda args: cls(*args))
    hints = typing.get_type_hints(cls.__init__)
    hints.pop("return", None)
    if attrs.has(cls):
        resolved = typing.get_type_hints(cls)
        hints = {field.alias: resolved[field.name] for field in attrs.fields(cls) if field.init}
    made = st.builds(cls, **{name: values_of(hint) for name, hint in hints.items()} | _NARROWER.get(cls, {}))
    return st.builds(_caused, made, st.none() | TEXT) if issubclass(cls, BaseException) else made


def _caused(error, text):
    error.__cause__ = None if text is None else ValueError(text)
    return error


def same(one, other):
    """Whether two values are equal, errors and odd floats inside them included."""
    if isinstance(one, BaseException):
        causes = (one.__cause__ is None) == (other.__cause__ is None)
        return type(one) is type(other) and causes and same(one.args, other.args) and same(one.__dict__, other.__dict__)
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if type(one) is not type(other):
        return False
    if attrs.has(type(one)):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in attrs.fields(type(one)))
    if isinstance(one, dict):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one.items(), other.items(), strict=True))
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, frozenset):
        return len(one) == len(other) and all(any(same(item, found) for found in other) for item in one)
    return one == other
