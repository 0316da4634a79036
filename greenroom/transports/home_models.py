"""Which model does a conversation have when no turn names one? Remembered where a turn named its own: it stays in force, on disk too.

Kept by a transport, for the conversations of its sessions, so that a process that resumes one finds the model that is the session's.
"""

from __future__ import annotations

KEPT = 10_000


class HomeModels:
    """The models of conversations on which a turn had another one. Any thread: each call is one step of a dict."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._models: dict[str, str] = {}

    def of(self, conversation_id: str | None) -> str | None:
        """Return the conversation's model; None: no turn of ours had another one."""
        return self._models.get(conversation_id or "")

    def keep(self, conversation_id: str | None, model: str | None) -> None:
        """Remember the model that a conversation had before a turn brought its own. The first one counts."""
        if conversation_id and model and conversation_id not in self._models:
            while len(self._models) >= self._kept:
                self._models.pop(next(iter(self._models)), None)
            self._models[conversation_id] = model
