from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from greenroom.cli.engine import Agents
from greenroom.cli.tasks import AgentSettings
from greenroom.model import ApprovalPolicy, NativeMode


class Room:
    def __init__(self):
        self.made = []

    def agent(self, provider, **options):
        self.made.append((provider, options))
        return object()


PLAIN = AgentSettings(cwd=Path("/"), provider="claude", model=None, permissions="bypass", approvals="deny")


def test_words_of_a_task_file_become_values_of_the_library(monkeypatch):
    monkeypatch.setenv("FROM_OUTSIDE", "1")
    room = Room()
    wanted = attrs.evolve(PLAIN, model="m", permissions="workspace-write", approvals="fail-turn", env=(("A", "2"),))
    Agents(room)(wanted)
    ((provider, options),) = room.made
    assert (provider, options["model"], options["approvals"]) == ("claude", "m", ApprovalPolicy.FAIL_TURN)
    assert options["permissions"].mode is NativeMode.WORKSPACE_WRITE
    assert (options["env"]["A"], options["env"]["FROM_OUTSIDE"]) == ("2", "1")


def test_without_additions_the_environment_is_left_to_the_library():
    room = Room()
    Agents(room)(PLAIN)
    assert room.made[0][1]["env"] is None


@pytest.mark.parametrize(("change", "agents"), [({"cwd": Path("/usr")}, 1), ({"model": "m"}, 2), ({"env": (("A", "1"),)}, 2)])
def test_one_agent_serves_all_directories_and_only_its_own_settings(change, agents):
    room = Room()
    make = Agents(room)
    assert (make(PLAIN) is make(attrs.evolve(PLAIN, **change))) == (agents == 1)
    assert len(room.made) == agents


def test_each_provider_has_its_own_binary(monkeypatch):
    room = Room()
    make = Agents(room, claude_binary=Path("/c"), codex_binary=Path("/x"))
    make(PLAIN)
    make(attrs.evolve(PLAIN, provider="codex"))
    assert [transport.profile.name for transport, _ in room.made] == ["claude", "codex"]
    Agents(room)(attrs.evolve(PLAIN, provider="codex"))
    assert room.made[-1][0] == "codex"
