"""The real Claude Code and the real Codex, or a failure: these tests are never skipped for want of them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from greenroom import CliNotFoundError
from greenroom.transports.claude.transport import PROGRAM
from greenroom.transports.codex.transport import PROGRAM as CODEX
from greenroom.transports.versions import check_version
from tests.e2e.codex_stage import CodexStage
from tests.e2e.stage import Stage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this directory."""
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture(scope="session")
def claude(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The real binary: on PATH, or the one that the package claude-agent-sdk carries."""
    try:
        path = PROGRAM.find({"PATH": os.environ.get("PATH", os.defpath)})
    except CliNotFoundError as error:
        pytest.fail(f"the tests of the real CLI need it: {error}; {error.hint}")
    home = tmp_path_factory.mktemp("version-home")
    check_version(path, {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home)}, 30.0, PROGRAM)
    return path


@pytest.fixture(scope="session")
def codex(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The real Codex: on PATH, or the one that the package openai-codex-cli-bin carries."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(tmp_path_factory.mktemp("codex-version-home"))}
    try:
        path = CODEX.find(env)
    except CliNotFoundError as error:
        pytest.fail(f"the tests of the real CLI need it: {error}; {error.hint}")
    check_version(path, env, 30.0, CODEX)
    return path


@pytest.fixture
def codex_stage(codex: str, tmp_path: pathlib.Path) -> Iterator[CodexStage]:
    """A stage of this test's own, for Codex."""
    with CodexStage(tmp_path, codex) as stage:
        yield stage


@pytest.fixture
def stage(claude: str, tmp_path: pathlib.Path) -> Iterator[Stage]:
    """A stage of this test's own."""
    with Stage(tmp_path, claude) as stage:
        yield stage
