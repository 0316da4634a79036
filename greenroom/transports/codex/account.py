"""Who pays for a Codex server, from its answer to `account/read`. Decides the kind of account. Pure."""

from __future__ import annotations

from typing import Any

from greenroom.history import Account, AccountKind
from greenroom.transports.codex.lines import Frame, obj, text

PROVIDER = "codex"
#: What the server is asked.
WHOSE = "account/read"
_KINDS = {
    "apiKey": AccountKind.API_KEY,
    "chatgpt": AccountKind.CHATGPT,
    "amazonBedrock": AccountKind.CLOUD,
    "gcp": AccountKind.CLOUD,
}
_DETAIL_CHARS = 300


def account_of(reply: Frame, error: Any = None) -> Account:
    """Return the account that the server names; `error` is its refusal to say.

    Without one, a provider that needs OpenAI's login has none; any other brings a credential of its own, or needs none.
    """
    if error is not None:
        return Account(provider=PROVIDER, kind=AccountKind.UNKNOWN, detail=text(obj(error).get("message"))[:_DETAIL_CHARS])
    told = obj(reply.get("account"))
    if not told:
        if reply.get("requiresOpenaiAuth") is True:
            return Account(provider=PROVIDER, kind=AccountKind.NONE, detail="nobody is logged in")
        return Account(provider=PROVIDER, kind=AccountKind.UNKNOWN, detail="the configured provider brings a credential of its own")
    kind = _KINDS.get(text(told.get("type")), AccountKind.UNKNOWN)
    return Account(
        provider=PROVIDER,
        kind=kind,
        plan=text(told.get("planType")) or None,
        source=text(told.get("type")) or None,
        who=text(told.get("email")) or text(told.get("workspaceName")) or None,
    )
