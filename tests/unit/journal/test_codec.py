"""What is written is read back as it was, and what is not ours is refused by name."""

from __future__ import annotations

import collections
import enum
import json
import pathlib
import types

import attrs
import pytest
from hypothesis import HealthCheck, given, settings

from greenroom import events
from greenroom.errors import CliNotFoundError, JournalError, TransportDiedError, WaitTimeoutError
from greenroom.events import AssistantText
from greenroom.journal.codec import MAX_DEPTH, STANDARD, Codec, declared
from greenroom.journal.records import SessionOpened
from greenroom.model import FailureKind, NativeMode, OutputSchema, ProviderUsage, TurnRequest, TurnResult
from greenroom.policy.commands import Execute
from greenroom.policy.events import Prepare
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.state import Phase, Settings
from tests.unit.journal.values import ANY, instances, same

LIMITS = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", sorted(STANDARD.classes))
def test_every_class_comes_back_as_it_was(name):
    @LIMITS
    @given(instances(STANDARD.classes[name]))
    def check(value):
        text = STANDARD.encode(value)
        back = STANDARD.decode(text)
        assert text.isascii()
        assert "\n" not in text
        assert same(value, back), (value, back)
        assert STANDARD.encode(back) == text

    check()


@settings(LIMITS, max_examples=60)
@given(ANY)
def test_plain_values_come_back_as_they_were(value):
    assert same(value, STANDARD.decode(STANDARD.encode(value)))


def test_every_public_value_is_known():
    """Nobody has to remember to declare a new class: what is defined in these modules is."""
    for cls in (TurnResult, AssistantText, Prepare, Execute, Settings, SessionOpened, TransportDiedError, Phase):
        assert STANDARD.classes[cls.__name__] is cls
    assert {cls for cls in vars(events).values() if isinstance(cls, type) and attrs.has(cls)} <= {*declared(), ProviderUsage}


@pytest.mark.parametrize(
    "value",
    ["\ud83d\ude00", "a\ud83d\ude00b\ud83d\ude00", "x\ude00\ud83d", "\0", "😀", "\udcff", {"\ud83d\ude00": 1}, {"$": 1}, {"$x": {"$": 2}}],
)
def test_odd_text_survives(value):
    assert STANDARD.decode(STANDARD.encode(value)) == value


def test_tuples_and_lists_stay_apart():
    value = ((1, [2, (3,)]), [])
    back = STANDARD.decode(STANDARD.encode(value))
    assert back == value
    assert isinstance(back[0][1], list)


def test_what_is_derived_from_something_plain_comes_back_plain_and_equal():
    value = (types.MappingProxyType({"a": 1}), collections.OrderedDict(b=2), pathlib.PurePosixPath("/x"), bytearray(b"y"))
    assert STANDARD.decode(STANDARD.encode(value)) == ({"a": 1}, {"b": 2}, pathlib.Path("/x"), b"y")


def test_equal_sets_give_equal_text():
    names = [f"name-{number}" for number in range(50)]
    assert STANDARD.encode(frozenset(names)) == STANDARD.encode(frozenset(reversed(names)))
    assert STANDARD.fingerprint(TurnRequest("a")) == STANDARD.fingerprint(TurnRequest("a")) != STANDARD.fingerprint(TurnRequest("b"))


def test_an_error_keeps_its_class_fields_and_message_and_its_cause_as_text():
    error = TransportDiedError(("claude",), None, stderr="gone\n", signal=9)
    error.__cause__ = OSError(5, "I/O")
    back = STANDARD.decode(STANDARD.encode(error))
    assert type(back) is TransportDiedError
    assert (back.signal, back.argv, back.kind, str(back)) == (9, ("claude",), FailureKind.OTHER, str(error))
    assert str(back.__cause__) == "OSError: [Errno 5] I/O"
    again = STANDARD.decode(STANDARD.encode(back))
    assert str(again.__cause__) == "OSError: [Errno 5] I/O"


def test_an_error_that_is_an_oserror_too_keeps_its_message():
    back = STANDARD.decode(STANDARD.encode(WaitTimeoutError("t-1", 2.0)))
    assert (str(back), back.wait) == ("turn 't-1' has not ended after 2 s; it goes on", 2.0)


# --- other versions


def test_fields_of_a_newer_version_are_ignored():
    tree = json.loads(STANDARD.encode(TurnRequest("hello")))
    assert STANDARD.decode(json.dumps({**tree, "mood": "good"})) == TurnRequest("hello")


def test_fields_that_an_older_version_had_not_get_their_defaults():
    assert STANDARD.decode('{"$":"TurnRequest","prompt":"hello"}') == TurnRequest("hello")
    error = STANDARD.decode('{"$":"TurnFailedError","args":{"$":"tuple","of":["x"]},"fields":{"detail":"y"}}')
    assert (error.detail, error.usage, error.text, str(error)) == ("y", None, "", "x")
    assert vars(STANDARD.decode(STANDARD.encode(CliNotFoundError("claude")))) == {"binary": "claude", "hint": None}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"$":"Turnip"}', "unknown class 'Turnip'"),
        ('{"$":["x"]}', "unknown class ['x']"),
        ('{"$":"TurnRequest"}', "missing 1 required positional argument: 'prompt'"),
        ('{"$":"NativeMode","is":"FLYING"}', "FLYING"),
        ('{"$":"RestartPolicy","max_restarts":-1}', "must be 0 or more"),
        ('{"$":"bytes","is":"?"}', "cannot read"),
        ('{"$":"tuple"}', "of"),
        ("", "cannot read"),
        ('{"a":', "cannot read"),
        ("[" * 100_000, "cannot read"),
        (b"\xff", "cannot read"),
    ],
)
def test_what_cannot_be_read_is_a_journal_error(text, says):
    with pytest.raises(JournalError) as caught:
        STANDARD.decode(text)
    assert says in str(caught.value)


# --- what cannot be written


class Stranger:
    pass


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize("value", [Stranger(), Colour.RED, Number.ONE, ValueError("x"), {1: Stranger()}, [object], 1j])
def test_what_is_not_declared_is_refused_by_name(value):
    with pytest.raises(JournalError, match="not declared"):
        STANDARD.encode(value)


def test_what_is_too_deep_is_refused_and_the_deepest_allowed_is_read_back():
    deep: object = 1
    for _ in range(MAX_DEPTH):
        deep = (deep,)
    assert STANDARD.decode(STANDARD.encode(deep)) == deep
    with pytest.raises(JournalError, match="nested"):
        STANDARD.encode(((deep,),))
    ring: list[object] = []
    ring.append(ring)
    with pytest.raises(JournalError, match="nested"):
        STANDARD.encode(ring)


@attrs.frozen
class Extra:
    key: object


def test_a_codec_can_be_told_more_classes():
    more = STANDARD.extended([Extra, Colour])
    assert more.decode(more.encode(Extra(("a", Colour.RED)))) == Extra(("a", Colour.RED))
    with pytest.raises(JournalError, match="'Extra'"):
        STANDARD.decode(more.encode(Extra(1)))


@pytest.mark.parametrize("classes", [[RestartPolicy], [Extra, Extra], [Stranger]])
def test_a_name_has_one_meaning(classes):
    with pytest.raises(TypeError, match="cannot be declared"):
        STANDARD.extended(classes)


def test_a_codec_of_a_few_classes_knows_no_others():
    few = Codec([NativeMode])
    assert few.decode(few.encode(NativeMode.BYPASS)) is NativeMode.BYPASS
    with pytest.raises(JournalError):
        few.encode(OutputSchema({}))
