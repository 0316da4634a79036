"""Names: ids that users see, and ids on the wire. The only place that draws random ids. Any thread."""

from __future__ import annotations

import secrets
import uuid
from typing import Protocol


class IdAllocator(Protocol):
    """Gives ids that users see. Must be safe on any thread."""

    def new_id(self, prefix: str) -> str:
        """Return a new id that starts with `prefix` and a hyphen."""
        ...


class RandomIds:
    """The default: `turn-` and 16 hexadecimal digits."""

    def new_id(self, prefix: str) -> str:
        """Return a new random id."""
        return f"{prefix}-{secrets.token_hex(8)}"


def new_nonce() -> str:
    """Return a random UUID, from which the wire ids of a ticket or a session are derived."""
    return str(uuid.uuid4())
