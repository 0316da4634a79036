"""What a CLI's environment is made of."""

import pytest

from greenroom.transports.environment import PARENT_MARKERS, PARENT_PREFIXES, child_env, without_parent


def test_none_is_the_callers_environment_less_parent_markers(monkeypatch):
    monkeypatch.setenv("MINE", "1")
    monkeypatch.delenv("GREENROOM_MARK", raising=False)
    markers = PARENT_MARKERS | {f"{prefix}X" for prefix in PARENT_PREFIXES}
    for name in markers:
        monkeypatch.setenv(name, "x")
    env = child_env(None, mark="gr/h/r/s/1", ours={})
    assert env["MINE"] == "1"
    assert env["GREENROOM_MARK"] == "gr/h/r/s/1"
    assert not markers & env.keys()


def test_ordinary_settings_are_no_markers():
    ordinary = dict.fromkeys(
        ("CLAUDE_CONFIG_DIR", "CLAUDE_CODE_MAX_RETRIES", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_TMPDIR", "CODEX_HOME"), "x"
    )
    assert without_parent(ordinary) == ordinary


def test_a_given_environment_is_exactly_that(monkeypatch):
    monkeypatch.setenv("MINE", "1")
    monkeypatch.delenv("GREENROOM_MARK", raising=False)
    assert child_env({"A": "b", "CLAUDECODE": "1"}, mark="m", ours={"LIMIT": "3"}) == {"A": "b", "LIMIT": "3", "GREENROOM_MARK": "m"}


def test_the_caller_wins_over_ours_but_not_with_a_marker():
    ours = {"LIMIT": "3", "CLAUDE_CODE_ENTRYPOINT": "greenroom"}
    env = child_env({"LIMIT": "7", "CLAUDE_CODE_ENTRYPOINT": "cli"}, mark="m", ours=ours)
    assert (env["LIMIT"], env["CLAUDE_CODE_ENTRYPOINT"]) == ("7", "greenroom")


@pytest.mark.parametrize(
    ("outer", "given", "expected"),
    [
        (None, {}, "m"),
        ("o", {}, "o:m"),  # an exact environment does not hide the process from the room around us
        ("o", {"GREENROOM_MARK": "o"}, "o:m"),
        ("o", {"GREENROOM_MARK": "x:o"}, "o:x:m"),
        ("o::p:", {"GREENROOM_MARK": ""}, "o:p:m"),
        ("m:o", {}, "o:m"),
    ],
)
def test_the_mark_is_the_last_item_of_the_list(monkeypatch, outer, given, expected):
    monkeypatch.delenv("GREENROOM_MARK", raising=False)
    if outer is not None:
        monkeypatch.setenv("GREENROOM_MARK", outer)
    assert child_env(given, mark="m", ours={"GREENROOM_MARK": "ignored"})["GREENROOM_MARK"] == expected


def test_neither_argument_is_changed():
    given, ours = {"A": "b"}, {"C": "d"}
    child_env(given, mark="m", ours=ours)
    assert (given, ours) == ({"A": "b"}, {"C": "d"})
