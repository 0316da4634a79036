"""Looks at the machine and says whether agents can run here. Decides what is a failure and what a warning; changes nothing.

Runs on the main thread. It asks each CLI which account it uses, in a process that calls no model, and looks for itself too. It names
where a credential comes from, and never shows one.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from greenroom.cli.checks import Check, Status, account_check
from greenroom.cli.descriptors import limits, sessions_that_fit
from greenroom.cli.doctor_codex import CodexPlace, codex_checks
from greenroom.errors import CliCheckError, CliNotFoundError
from greenroom.history import Account
from greenroom.transports.claude.transport import ClaudeStreamTransport
from greenroom.transports.codex.transport import CodexAppServerTransport

_MINIMUM_PYTHON = (3, 11)
_MANY_SESSIONS = 100
_ACCOUNT_S = 15.0
# The order in which Claude Code takes them when nobody can be asked: the first that is there pays.
_CREDENTIALS = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")
_CLOUDS = {
    "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock",
    "CLAUDE_CODE_USE_VERTEX": "Google Vertex AI",
    "CLAUDE_CODE_USE_FOUNDRY": "Microsoft Foundry",
}


def _found(claude_binary: Path | None) -> str:
    return ClaudeStreamTransport(binary=claude_binary).find_binary()


def _checked(binary: str) -> str:
    return ClaudeStreamTransport(binary=binary).check()


def _codex_found(codex_binary: Path | None) -> str:
    return CodexAppServerTransport(binary=codex_binary).find_binary()


def _codex_checked(binary: str) -> str:
    return CodexAppServerTransport(binary=binary).check()


def _account(binary: str) -> Account:
    return ClaudeStreamTransport(binary=binary, startup_timeout_s=_ACCOUNT_S).account()


def _codex_account(binary: str) -> Account:
    return CodexAppServerTransport(binary=binary, startup_timeout_s=_ACCOUNT_S).account()


@attrs.frozen(kw_only=True)
class Surroundings:
    """What the checks look at, so that tests can put another machine in its place."""

    env: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))
    home: Path = attrs.field(factory=Path.home)
    system: str = attrs.field(factory=platform.system)
    machine: str = attrs.field(factory=platform.machine)
    python: tuple[int, int, int] = sys.version_info[:3]
    uid: int = attrs.field(factory=lambda: os.getuid() if hasattr(os, "getuid") else -1)
    which: Callable[[str], str | None] = shutil.which
    open_files: Callable[[], tuple[int, int]] = limits
    find: Callable[[Path | None], str] = _found
    version_of: Callable[[str], str] = _checked
    find_codex: Callable[[Path | None], str] = _codex_found
    codex_version_of: Callable[[str], str] = _codex_checked
    account_of: Callable[[str], Account] = _account
    codex_account_of: Callable[[str], Account] = _codex_account


def examine(
    here: Surroundings, *, claude_binary: Path | None = None, codex_binary: Path | None = None, provider: str | None = None
) -> tuple[Check, ...]:
    """Make the checks of one provider, or of both: then what Codex lacks is no failure, for nobody may mean to use it."""
    checks = [_platform(here), _python(here), _open_files(here)]
    if provider != "codex":
        checks += [*_claude(here, claude_binary), *_credential(here), _sandbox(here), *_root(here)]
    if provider != "claude":
        place = CodexPlace(
            env=here.env,
            home=here.home,
            find=here.find_codex,
            version_of=here.codex_version_of,
            account_of=here.codex_account_of,
        )
        checks += [_softened(check, provider) for check in codex_checks(place, codex_binary)]
    return tuple(checks)


def _softened(check: Check, provider: str | None) -> Check:
    is_soft = provider is None and check.status is Status.FAIL
    return attrs.evolve(check, status=Status.WARN) if is_soft else check


def exit_status(checks: tuple[Check, ...]) -> int:
    """Return 0 unless something failed."""
    return 1 if any(check.status is Status.FAIL for check in checks) else 0


def as_json(checks: tuple[Check, ...]) -> str:
    """Return the checks as one JSON object."""
    plain = [{**attrs.asdict(check), "status": check.status.value} for check in checks]
    return json.dumps({"ok": exit_status(checks) == 0, "checks": plain}, indent=2)


def as_lines(checks: tuple[Check, ...]) -> Iterator[str]:
    """Return the checks as lines for people."""
    for check in checks:
        yield f"{check.status.value:<5} {check.name}: {check.detail}"
        if check.hint:
            yield f"      hint: {check.hint}"


def _platform(here: Surroundings) -> Check:
    detail = f"{here.system} {here.machine}"
    if here.system == "Linux":
        return Check(name="platform", status=Status.OK, detail=detail)
    if here.system == "Darwin":
        hint = "use Linux where nothing may be left running"
        return Check(name="platform", status=Status.WARN, detail=f"{detail}: best effort", hint=hint)
    return Check(name="platform", status=Status.FAIL, detail=f"{detail} is not supported", hint="use Linux, or WSL 2 on Windows")


def _python(here: Surroundings) -> Check:
    enough = here.python[:2] >= _MINIMUM_PYTHON
    detail = ".".join(map(str, here.python))
    hint = None if enough else "install Python 3.11 or later"
    return Check(name="python", status=Status.OK if enough else Status.FAIL, detail=detail, hint=hint)


def _open_files(here: Surroundings) -> Check:
    """Say how many sessions fit: the library leaves the limit as it is, `greenroom run` raises the soft one."""
    soft, hard = here.open_files()
    detail = f"{soft:,} allowed, up to {hard:,}: about {sessions_that_fit(soft):,} live sessions, or {sessions_that_fit(hard):,}"
    if sessions_that_fit(soft) >= _MANY_SESSIONS:
        return Check(name="open files", status=Status.OK, detail=detail)
    hint = f"for more than {sessions_that_fit(soft)} at once in a program of your own: `ulimit -n {min(hard, 4096)}` before it starts"
    return Check(name="open files", status=Status.WARN, detail=detail, hint=hint)


def _claude(here: Surroundings, claude_binary: Path | None) -> Iterator[Check]:
    """Look for the binary as the transport does, and ask for its version."""
    try:
        binary = here.find(claude_binary)
    except CliNotFoundError as error:
        yield Check(name="claude", status=Status.FAIL, detail=str(error), hint=error.hint)
        return
    real = str(Path(binary).resolve())
    yield Check(name="claude", status=Status.OK, detail=binary if real == binary else f"{binary} -> {real}")
    try:
        yield Check(name="claude version", status=Status.OK, detail=here.version_of(binary))
    except (CliCheckError, CliNotFoundError) as error:
        yield Check(name="claude version", status=Status.FAIL, detail=str(error), hint=error.hint)
        return
    yield account_check("claude account", binary, here.account_of)


# --- who pays ------------------------------------------------------------------------------------------------------------------


def _credential(here: Surroundings) -> Iterator[Check]:
    """Say which credential is used, and which ones it overrides."""
    sources = [*_from_clouds(here), *(name for name in _CREDENTIALS if here.env.get(name)), *_from_files(here)]
    if not sources:
        yield _no_credential(here)
        return
    yield Check(name="credential", status=Status.OK, detail=f"{sources[0]} is used")
    if len(sources) > 1:
        hint = f"unset {sources[0]} if the other one is to pay"
        yield Check(name="who pays", status=Status.WARN, detail=f"{sources[0]} overrides {', '.join(sources[1:])}", hint=hint)


def _from_clouds(here: Surroundings) -> list[str]:
    return [f"{name} ({cloud})" for name, cloud in _CLOUDS.items() if here.env.get(name)]


def _from_files(here: Surroundings) -> list[str]:
    """Return the login's file, if it holds one. It is read for its shape only."""
    path = _config_dir(here) / ".credentials.json"
    try:
        value: Any = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    login = value.get("claudeAiOauth") if isinstance(value, dict) else None
    return [f"the login in {path}"] if isinstance(login, dict) and login.get("accessToken") else []


def _config_dir(here: Surroundings) -> Path:
    named = here.env.get("CLAUDE_CONFIG_DIR")
    return Path(named) if named else here.home / ".claude"


def _no_credential(here: Surroundings) -> Check:
    hint = "run `claude` once and log in, or set ANTHROPIC_API_KEY"
    if here.system == "Darwin":
        detail = "none in the environment or in files; a login in the keychain cannot be seen from here"
        return Check(name="credential", status=Status.WARN, detail=detail, hint=hint)
    return Check(name="credential", status=Status.FAIL, detail=f"none in the environment or in {_config_dir(here)}", hint=hint)


# --- what agents may do -------------------------------------------------------------------------------------------------------


def _sandbox(here: Surroundings) -> Check:
    if here.system != "Linux":
        return Check(name="sandbox", status=Status.OK, detail="part of the system")
    missing = [name for name in ("bwrap", "socat") if here.which(name) is None]
    if not missing:
        return Check(name="sandbox", status=Status.OK, detail="bwrap and socat are there")
    hint = "install bubblewrap and socat, if agents are to run with workspace-write; bypass needs neither"
    return Check(name="sandbox", status=Status.WARN, detail=f"{' and '.join(missing)} not found: workspace-write is refused", hint=hint)


def _root(here: Surroundings) -> Iterator[Check]:
    if here.uid != 0:
        return
    if here.env.get("IS_SANDBOX") == "1":
        yield Check(name="user", status=Status.OK, detail="root, with IS_SANDBOX=1")
        return
    hint = "run as another user, or set IS_SANDBOX=1 where this machine is itself a sandbox"
    given = f" (IS_SANDBOX is {here.env['IS_SANDBOX']!r}, which does not count)" if here.env.get("IS_SANDBOX") else ""
    yield Check(name="user", status=Status.WARN, detail=f"root: Claude Code refuses to run with permissions bypass{given}", hint=hint)
