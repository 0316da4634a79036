"""The default state directory: the platform's, one for each name, and one program at a time in it."""

import pathlib
import sys

import pytest

from greenroom import Greenroom, Retention, StateDirError, TurnRequest, default_state_dir
from greenroom.errors import StateDirProblem
from tests.faults.bench import until
from tests.faults.test_durable import fake

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="XDG is Linux's")


@LINUX
def test_it_is_where_the_platform_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert default_state_dir() == tmp_path / "xdg/greenroom/default"
    assert default_state_dir("mine") == tmp_path / "xdg/greenroom/mine"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / ".local/state/greenroom/default"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "\0"])
def test_a_name_that_leads_elsewhere_is_refused(name):
    with pytest.raises(ValueError, match="name must be"):
        default_state_dir(name)


@LINUX
def test_a_second_program_is_told_who_has_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Greenroom(state_dir=default_state_dir()):
        with pytest.raises(StateDirError, match=r"process \d+ on host .* holds it") as caught:
            Greenroom(state_dir=default_state_dir())
        assert caught.value.problem is StateDirProblem.IN_USE
        Greenroom(state_dir=default_state_dir("other")).close()
    assert pathlib.Path(tmp_path, "greenroom/default/journal.db").exists()
    assert pathlib.Path(tmp_path, "greenroom/default").stat().st_mode & 0o777 == 0o700


def test_a_room_forgets_as_its_retention_says_and_keeps_its_outcomes(tmp_path):
    retention = Retention(max_age_s=0.0)
    with Greenroom(state_dir=tmp_path / "j", retention=retention) as room:
        session = fake(room, tmp_path, session_id="s")
        turn = session.run(session.prepare_turn(TurnRequest(prompt="p"), key="k"))
    with Greenroom(state_dir=tmp_path / "j", retention=retention) as room:
        until(lambda: room._consult("events", "s").batches == (), "the forgetting")
        assert room._consult("events", "s").gaps
        again = fake(room, tmp_path, session_id="s")
        assert again.run(again.prepare_turn(TurnRequest(prompt="p"), key="k")) == turn
        assert again.conversation_id == turn.conversation_id
