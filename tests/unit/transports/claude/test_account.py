"""Who pays for a Claude Code process: what its answer to the handshake means."""

from __future__ import annotations

import pytest

from greenroom.history import Account, AccountKind
from greenroom.transports.claude.account import account_of


@pytest.mark.parametrize(
    ("told", "kind", "more"),
    [
        ({"tokenSource": "none", "apiKeySource": "ANTHROPIC_API_KEY"}, AccountKind.API_KEY, {"source": "ANTHROPIC_API_KEY"}),
        ({"tokenSource": "none"}, AccountKind.NONE, {}),
        ({"tokenSource": "ANTHROPIC_AUTH_TOKEN"}, AccountKind.UNKNOWN, {"source": "ANTHROPIC_AUTH_TOKEN"}),
        (
            {"tokenSource": "claude.ai", "subscriptionType": "max", "email": "a@b.c"},
            AccountKind.SUBSCRIPTION,
            {"source": "claude.ai", "plan": "max", "who": "a@b.c"},
        ),
        ({"tokenSource": "none", "apiProvider": "bedrock"}, AccountKind.CLOUD, {"source": "bedrock"}),
        ({"apiKeySource": 7, "tokenSource": ["x"]}, AccountKind.NONE, {}),
    ],
)
def test_what_the_answer_means(told, kind, more):
    facts = {"account": {"apiProvider": "firstParty", **told}}
    assert account_of(facts) == Account(provider="claude", kind=kind, **more)


@pytest.mark.parametrize("facts", [{}, {"account": None}, {"account": "junk"}])
def test_an_answer_without_one_says_nothing(facts):
    assert account_of(facts).kind is AccountKind.UNKNOWN
