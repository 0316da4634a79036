"""Ids on the wire, derived and not drawn, so that the pure policy can name them and that the same attempt can be asked about
under the same id after a death, even the host's. Pure.
"""

from __future__ import annotations

import uuid


def derived_uuid(nonce: str, label: str) -> str:
    """Return the UUID that belongs to `label` under the random UUID `nonce`: always the same one, and no one else's."""
    return str(uuid.uuid5(uuid.UUID(nonce), label))


def receipt(turn_nonce: str, attempt: int) -> str:
    """Return the wire id of a ticket's attempt number `attempt` (from 1)."""
    return derived_uuid(turn_nonce, f"attempt-{attempt}")


def proposed_conversation(session_nonce: str, generation: int) -> str:
    """Return the id that the session's fresh conversation number `generation` (from 1) asks for."""
    return derived_uuid(session_nonce, f"conversation-{generation}")
