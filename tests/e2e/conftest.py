"""The real Claude Code, or a failure: these tests are never skipped for want of it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from greenroom import CliNotFoundError
from greenroom.transports.claude.transport import PROGRAM
from greenroom.transports.versions import check_version
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


@pytest.fixture
def stage(claude: str, tmp_path: pathlib.Path) -> Iterator[Stage]:
    """A stage of this test's own."""
    with Stage(tmp_path, claude) as stage:
        yield stage
