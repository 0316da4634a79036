"""The doctor's look at Codex: its binary, its version, its home, and who pays. Reads files for their shape only; shows no secret.

Codex's app-server takes a credential from its login (`auth.json`) or from the variable that the configured provider names (`env_key`); a
variable like OPENAI_API_KEY by itself does nothing (seen on 0.163 and 0.171). Decides what is told, not how bad it is without Codex.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from greenroom.cli.checks import Check, Status, account_check
from greenroom.errors import CliCheckError, CliNotFoundError
from greenroom.history import Account

_IGNORED = ("OPENAI_API_KEY", "CODEX_API_KEY")
_LOGIN_HINT = "run `codex login`, or name a provider with an env_key in config.toml"


@attrs.frozen(kw_only=True)
class CodexPlace:
    """Where the checks look."""

    env: Mapping[str, str]
    home: Path
    find: Callable[[Path | None], str]
    version_of: Callable[[str], str]
    account_of: Callable[[str], Account]

    @property
    def codex_home(self) -> Path:
        """Where Codex keeps its threads and its login."""
        return Path(self.env.get("CODEX_HOME") or self.home / ".codex")


def codex_checks(place: CodexPlace, codex_binary: Path | None) -> Iterator[Check]:
    """Make all checks of Codex; without a binary the first is the last."""
    try:
        binary = place.find(codex_binary)
    except CliNotFoundError as error:
        yield Check(name="codex", status=Status.FAIL, detail=str(error), hint=error.hint)
        return
    yield Check(name="codex", status=Status.OK, detail=binary)
    version = _version(place, binary)
    yield version
    yield _home(place)
    if version.status is Status.OK and place.codex_home.is_dir():
        yield account_check("codex account", binary, place.account_of)
    yield from _credential(place)


def _version(place: CodexPlace, binary: str) -> Check:
    try:
        return Check(name="codex version", status=Status.OK, detail=place.version_of(binary))
    except (CliCheckError, CliNotFoundError) as error:
        return Check(name="codex version", status=Status.FAIL, detail=str(error), hint=error.hint)


def _home(place: CodexPlace) -> Check:
    if place.codex_home.is_dir():
        return Check(name="codex home", status=Status.OK, detail=str(place.codex_home))
    if place.env.get("CODEX_HOME"):
        detail = f"CODEX_HOME is {place.codex_home}, which does not exist"
        return Check(name="codex home", status=Status.FAIL, detail=detail, hint="make the directory, or unset CODEX_HOME")
    return Check(name="codex home", status=Status.OK, detail=f"{place.codex_home} is not there yet")


def _credential(place: CodexPlace) -> Iterator[Check]:
    config = place.codex_home / "config.toml"
    try:
        settings = tomllib.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    except (OSError, ValueError) as error:
        yield Check(name="codex credential", status=Status.FAIL, detail=f"{config} cannot be read: {error}", hint="mend the file")
        return
    provider = _provider(settings)
    variable = provider.get("env_key")
    if isinstance(variable, str) and not place.env.get(variable):
        detail = f"{config} takes it from {variable}, which is not set"
        yield Check(name="codex credential", status=Status.FAIL, detail=detail, hint=f"set {variable}")
    elif isinstance(variable, str):
        yield Check(name="codex credential", status=Status.OK, detail=f"{variable} is used, as {config} says")
    elif provider and provider.get("requires_openai_auth") is not True:
        yield Check(name="codex credential", status=Status.OK, detail=f"the provider in {config} needs none")
    else:
        yield _login(place)


def _provider(settings: dict[str, Any]) -> dict[str, Any]:
    providers = settings.get("model_providers")
    found = providers.get(settings.get("model_provider")) if isinstance(providers, dict) else None
    return found if isinstance(found, dict) else {}


def _login(place: CodexPlace) -> Check:
    path = place.codex_home / "auth.json"
    try:
        login = json.loads(path.read_bytes())
    except (OSError, ValueError):
        login = None
    if isinstance(login, dict) and login.get("OPENAI_API_KEY"):
        return Check(name="codex credential", status=Status.OK, detail=f"the API key in {path} is used")
    if isinstance(login, dict) and login.get("tokens"):
        return Check(name="codex credential", status=Status.OK, detail=f"the login in {path} is used")
    ignored = [name for name in _IGNORED if place.env.get(name)]
    detail = f"none in {path}" + (f"; {' and '.join(ignored)} in the environment is not used by the app-server" if ignored else "")
    hint = "run `codex login --with-api-key`" if ignored else _LOGIN_HINT
    return Check(name="codex credential", status=Status.WARN, detail=f"{detail}; a login in a keyring cannot be seen from here", hint=hint)
