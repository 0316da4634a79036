from __future__ import annotations

import json
import re

import pytest

from greenroom.cli.doctor import Status, Surroundings, as_json, as_lines, examine, exit_status
from greenroom.errors import CliCheckError, CliNotFoundError, QueryFailedError
from greenroom.history import Account, AccountKind

LOGIN = {"claudeAiOauth": {"accessToken": "secret-token", "expiresAt": 1}}


def here(tmp_path, **changes):
    fine = {
        "env": {"ANTHROPIC_API_KEY": "secret-key"},
        "home": tmp_path,
        "system": "Linux",
        "machine": "x86_64",
        "python": (3, 12, 1),
        "uid": 1000,
        "open_files": lambda: (1024, 4096),
        "which": lambda name: f"/usr/bin/{name}",
        "find": lambda wanted: str(wanted or "/opt/claude"),
        "version_of": lambda binary: "2.1.332",
        "account_of": lambda binary: Account(provider="claude", kind=AccountKind.API_KEY, source="ANTHROPIC_API_KEY"),
        "codex_account_of": lambda binary: Account(provider="codex", kind=AccountKind.CHATGPT, plan="plus", who="a@b.c"),
    }
    return Surroundings(**{**fine, **changes})


def raising(error):
    def call(argument):
        raise error

    return call


def named(checks, name):
    return next((check for check in checks if check.name == name), None)


def test_a_machine_that_is_ready(tmp_path):
    checks = examine(here(tmp_path), provider="claude")
    assert {check.status for check in checks} == {Status.OK}
    assert exit_status(checks) == 0
    assert named(checks, "claude").detail == "/opt/claude"
    assert json.loads(as_json(checks))["ok"] is True


CASES = {
    "no binary": ({"find": raising(CliNotFoundError("claude", hint="get it"))}, "claude", "fail", "not found on PATH"),
    "too old": ({"version_of": raising(CliCheckError("/c", "found 2.0.1"))}, "claude version", "fail", "found 2.0.1"),
    "windows": ({"system": "Windows"}, "platform", "fail", "not supported"),
    "mac": ({"system": "Darwin"}, "platform", "warn", "best effort"),
    "few open files": ({"open_files": lambda: (256, 256)}, "open files", "warn", "about 25 live sessions"),
    "old python": ({"python": (3, 10, 0)}, "python", "fail", "3.10.0"),
    "no credential": ({"env": {}}, "credential", "fail", "none in the environment"),
    "no credential to see on a mac": ({"env": {}, "system": "Darwin"}, "credential", "warn", "keychain"),
    "empty key": ({"env": {"ANTHROPIC_API_KEY": ""}}, "credential", "fail", "none"),
    "key and token": (
        {"env": {"ANTHROPIC_API_KEY": "x", "ANTHROPIC_AUTH_TOKEN": "y"}},
        "who pays",
        "warn",
        "AUTH_TOKEN overrides ANTHROPIC_API_KEY",
    ),
    "cloud": ({"env": {"CLAUDE_CODE_USE_BEDROCK": "1"}}, "credential", "ok", "Amazon Bedrock"),
    "no sandbox": ({"which": lambda name: None if name == "socat" else name}, "sandbox", "warn", "socat not found"),
    "root": ({"uid": 0}, "user", "warn", "refuses"),
    "root in a sandbox": ({"uid": 0, "env": {"IS_SANDBOX": "1"}}, "user", "ok", "IS_SANDBOX=1"),
    "root, said otherwise": ({"uid": 0, "env": {"IS_SANDBOX": "yes"}}, "user", "warn", "IS_SANDBOX is 'yes', which does not count"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_it_says_about_other_machines(name, tmp_path):
    changes, which, status, words = CASES[name]
    checks = examine(here(tmp_path, **changes))
    check = named(checks, which)
    assert check.status.value == status
    assert words in check.detail
    assert check.status is Status.OK or check.hint or which == "claude version"
    assert exit_status(checks) == (1 if any(one.status is Status.FAIL for one in checks) else 0)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_key_that_overrides_a_login_is_named_and_neither_is_shown(elsewhere, tmp_path):
    folder = tmp_path / ("elsewhere" if elsewhere else ".claude")
    folder.mkdir()
    (folder / ".credentials.json").write_text(json.dumps(LOGIN))
    env = {"ANTHROPIC_API_KEY": "secret-key", **({"CLAUDE_CONFIG_DIR": str(folder)} if elsewhere else {})}
    checks = examine(here(tmp_path, env=env))
    assert named(checks, "credential").detail == "ANTHROPIC_API_KEY is used"
    assert named(checks, "who pays").detail == f"ANTHROPIC_API_KEY overrides the login in {folder}/.credentials.json"
    shown = as_json(checks) + "".join(as_lines(checks))
    assert "secret" not in shown
    del env["ANTHROPIC_API_KEY"]
    assert "the login in" in named(examine(here(tmp_path, env=env)), "credential").detail


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"claudeAiOauth": null}', '{"claudeAiOauth": {"accessToken": ""}}'])
def test_a_credential_file_without_a_login_is_none(content, tmp_path):
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text(content)
    assert named(examine(here(tmp_path, env={})), "credential").status is Status.FAIL


def test_lines_name_the_check_and_its_hint(tmp_path):
    lines = list(as_lines(examine(here(tmp_path, env={}))))
    at = lines.index(f"fail  credential: none in the environment or in {tmp_path}/.claude")
    assert lines[at + 1].startswith("      hint: run `claude` once")


# --- Codex


def codex_here(tmp_path, *, config=None, login=None, **changes):
    (tmp_path / ".codex").mkdir()
    if config is not None:
        (tmp_path / ".codex" / "config.toml").write_text(config)
    if login is not None:
        (tmp_path / ".codex" / "auth.json").write_text(json.dumps(login))
    fine = {"find_codex": lambda wanted: str(wanted or "/opt/codex"), "codex_version_of": lambda binary: "0.171.0"}
    return here(tmp_path, **{**fine, **changes})


OWN = 'model_provider = "own"\n[model_providers.own]\nname = "own"\n'
CODEX_CASES = {
    "a login": ({"login": {"tokens": {"access_token": "secret-token"}}}, "codex credential", "ok", "the login in"),
    "a key": ({"login": {"auth_mode": "apikey", "OPENAI_API_KEY": "secret-key"}}, "codex credential", "ok", "the API key in"),
    "nothing": ({}, "codex credential", "warn", "none in"),
    "a variable that is not looked at": (
        {"env": {"OPENAI_API_KEY": "secret-key"}},
        "codex credential",
        "warn",
        "not used by the app-server",
    ),
    "a provider's variable": ({"config": OWN + 'env_key = "OWN"\n', "env": {"OWN": "secret-key"}}, "codex credential", "ok", "OWN is used"),
    "a provider's variable that is not set": ({"config": OWN + 'env_key = "OWN"\n'}, "codex credential", "fail", "OWN, which is not set"),
    "a provider without one": ({"config": OWN}, "codex credential", "ok", "needs none"),
    "a broken file": ({"config": "no toml ["}, "codex credential", "fail", "config.toml"),
    "a file of odd shape": ({"config": "model_provider = 3\nmodel_providers = 4\n", "login": [1]}, "codex credential", "warn", "none in"),
    "no home": ({"env": {"CODEX_HOME": "/nowhere/at/all"}}, "codex home", "fail", "does not exist"),
    "no binary": ({"find_codex": raising(CliNotFoundError("codex", hint="get it"))}, "codex", "fail", "not found on PATH"),
    "too old": ({"codex_version_of": raising(CliCheckError("/c", "found 0.1.0"))}, "codex version", "fail", "found 0.1.0"),
}


@pytest.mark.parametrize("case", CODEX_CASES)
def test_codex(tmp_path, case):
    changes, name, status, detail = CODEX_CASES[case]
    place = codex_here(tmp_path, **changes)
    checks = examine(place, provider="codex")
    check = named(checks, name)
    assert (check.status.value, detail in check.detail) == (status, True), check
    assert exit_status(checks) == (status == "fail")
    assert named(checks, "claude") is None
    assert "secret" not in as_json(checks)
    # Beside Claude, what Codex lacks is a warning; of one's own provider alone nothing is said of the other.
    assert named(examine(place), name).status.value == ("warn" if status == "fail" else status)
    assert named(examine(place, provider="claude"), "codex") is None


def test_each_cli_is_asked_which_account_it_uses(tmp_path):
    (tmp_path / ".codex").mkdir()
    checks = examine(here(tmp_path, find_codex=lambda _: "/opt/codex", codex_version_of=lambda _: "0.171.0"))
    assert named(checks, "claude account").detail == "apiKey, from ANTHROPIC_API_KEY"
    assert named(checks, "codex account").detail == "chatgpt, plan plus"
    assert "a@b.c" not in as_json(checks)


@pytest.mark.parametrize(
    ("account_of", "said"),
    [
        (raising(QueryFailedError("the account is not known", "no answer within 15 s")), "it does not say: .*no answer"),
        (lambda _: Account(provider="claude", kind=AccountKind.NONE), "none"),
    ],
)
def test_an_account_that_is_not_there_is_a_warning(tmp_path, account_of, said):
    check = named(examine(here(tmp_path, account_of=account_of), provider="claude"), "claude account")
    assert check.status is Status.WARN
    assert re.match(said, check.detail)


def test_a_cli_that_cannot_be_used_is_not_asked(tmp_path):
    checks = examine(
        here(tmp_path, version_of=raising(CliCheckError("/c", "old")), account_of=raising(AssertionError())), provider="claude"
    )
    assert named(checks, "claude account") is None
