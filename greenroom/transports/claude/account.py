"""Who pays for a Claude Code process, from its own answer to the handshake. Decides the kind of account. Pure."""

from __future__ import annotations

from typing import Any

from greenroom.history import Account, AccountKind

PROVIDER = "claude"
_OWN_API = frozenset({"firstParty", "", None})
#: A bearer token for whatever ANTHROPIC_BASE_URL leads to: who pays behind it cannot be known.
_GATEWAY = "ANTHROPIC_AUTH_TOKEN"


def account_of(facts: dict[str, Any]) -> Account:
    """Return the account that the handshake's answer names."""
    given = facts.get("account")
    told = given if isinstance(given, dict) else {}
    key, token = _named(told.get("apiKeySource")), _named(told.get("tokenSource"))
    plan = _named(told.get("subscriptionType"))
    return Account(
        provider=PROVIDER,
        kind=_kind(told, key=key, token=token, plan=plan),
        plan=plan,
        source=key or token or (_named(told.get("apiProvider")) if told.get("apiProvider") not in _OWN_API else None),
        who=_named(told.get("email")) or _named(told.get("organization")),
    )


def _kind(told: dict[str, Any], *, key: str | None, token: str | None, plan: str | None) -> AccountKind:
    if told.get("apiProvider") not in _OWN_API:
        return AccountKind.CLOUD
    if key is not None:
        return AccountKind.API_KEY
    if token == _GATEWAY or not told:
        return AccountKind.UNKNOWN
    return AccountKind.NONE if token is None and plan is None else AccountKind.SUBSCRIPTION


def _named(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in {"", "none"} else None
