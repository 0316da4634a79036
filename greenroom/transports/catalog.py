"""Providers by name. Decides which transport a name means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenroom.errors import ProviderCapabilityError
from greenroom.model import TransportKind
from greenroom.transports.base import StreamTransport
from greenroom.transports.claude.transport import ClaudeStreamTransport
from greenroom.transports.codex.transport import CodexAppServerTransport

PROVIDERS: dict[str, Callable[..., StreamTransport]] = {"claude": ClaudeStreamTransport, "codex": CodexAppServerTransport}


def transport_for(name: str, kind: TransportKind, **options: Any) -> StreamTransport:
    """Return a transport for the provider `name`. Raises ProviderCapabilityError for a name or a kind that there is not."""
    factory = PROVIDERS.get(name)
    if factory is None:
        raise ProviderCapabilityError(f"unknown provider {name!r}", hint=f"known providers: {', '.join(sorted(PROVIDERS))}")
    if kind is not TransportKind.STREAM:
        raise ProviderCapabilityError(f"transport {kind.value!r} is not supported", provider=name, hint="use TransportKind.STREAM")
    return factory(**options)
