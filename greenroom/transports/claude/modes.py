"""What is a turn run with: which model, which permission mode? And may the CLI be in the mode that it says it is in? Pure.

Both are asked for by control requests before the turn's message is written, and stay in force (2.1.332). A model is tried out first, by a
request for one token; a name that the CLI does not know is passed on. "None" does not bring back the model that a process began with: it
gives the CLI's default, whatever `--model`, `ANTHROPIC_MODEL` or the settings said, and a resumed process begins with the model of the
last turn. So what a session without a model had is asked for (`get_settings`) before the first other one is set, and remembered. A mode
wider than the one at the start is refused by the CLI itself.
"""

from __future__ import annotations

from typing import Any

from greenroom.errors import GreenroomError, ProviderCapabilityError, TurnFailedError
from greenroom.model import FailureKind, InteractionMode, TurnRequest
from greenroom.transports.base import Write
from greenroom.transports.claude.config import CodecConfig
from greenroom.transports.claude.control import ControlDesk
from greenroom.transports.claude.state import Pending

PLAN = "plan"
SUBTYPES = frozenset({"get_settings", "set_model", "set_permission_mode"})
_KINDS = {
    "check_server_error": FailureKind.TRANSIENT,
    "check_unreachable": FailureKind.TRANSIENT,
    "rate_limit": FailureKind.TRANSIENT,
    "auth_failed": FailureKind.AUTH,
}
_SAME = {"manual": "default"}
_WIDTHS = ("plan", "dontAsk", "default", "acceptEdits", "auto", "bypassPermissions")


def width(mode: str | None) -> int:
    """Return how much a permission mode allows; one that is not known here, more than all."""
    known = _SAME.get(mode or "", mode)
    return _WIDTHS.index(known) if known in _WIDTHS else len(_WIDTHS)


class Modes:
    """The model and the permission mode of one process, as far as it was asked and has answered."""

    def __init__(self, config: CodecConfig, desk: ControlDesk) -> None:
        self.mode = config.permission_mode
        self._own_mode = config.permission_mode
        self._own_model = config.model
        self._model = config.model
        self._homes = config.home_models
        self._conversation_id = config.resume_id or config.proposed_id
        self._patience_s = config.startup_timeout_s
        self._desk = desk

    def ask(self, request: TurnRequest, now_s: float) -> Write | None:
        """Return the next request whose answer the turn must wait for; None: all is as the turn wants it."""
        mode = self._mode_for(request)
        if mode != self.mode and mode is not None:
            return self._ask("set_permission_mode", mode, now_s, mode=mode)
        if request.model is not None and self._home is None:
            return self._ask("get_settings", "", now_s)
        model = request.model or self._home
        return self._ask("set_model", model, now_s, model=model) if model is not None and model != self._model else None

    def _ask(self, subtype: str, target: str, now_s: float, **fields: Any) -> Write:
        return self._desk.ask(subtype, target=target, until_s=now_s + self._patience_s, **fields)

    @property
    def _home(self) -> str | None:
        return self._own_model or self._homes.of(self._conversation_id)

    def _mode_for(self, request: TurnRequest) -> str | None:
        return PLAN if request.interaction_mode is InteractionMode.PLAN else self._own_mode

    def answered(self, pending: Pending, response: dict[str, Any]) -> GreenroomError | None:
        """Take up the answer to one of these requests; return why the turn cannot run, if it cannot."""
        if response.get("subtype") != "success":
            return _refusal(pending, response)
        given = response.get("response")
        answer = given if isinstance(given, dict) else {}
        if pending.subtype == "set_permission_mode":
            self.mode = pending.target
        elif pending.subtype == "set_model":
            self._model = pending.target
        else:
            applied = answer.get("applied")
            model = applied.get("model") if isinstance(applied, dict) else None
            if not isinstance(model, str) or not model:
                return unable("it does not say which model it uses, so that the session's could not be had again")
            self._model = model
            self._homes.keep(self._conversation_id, model)
        return None

    def told(self, mode: str) -> str | None:
        """The process says which permission mode it is in; return what is wrong with that, if anything: it allows more than the session."""
        self.mode = mode
        return None if width(mode) <= width(self._own_mode) else f"it went into permission mode {mode!r}, wider than {self._own_mode!r}"

    def begins(self, request: TurnRequest, mode: str) -> str | None:
        """A turn begins in `mode`, as the process says; return what is wrong with that, if anything."""
        wanted, self.mode = self._mode_for(request), mode
        same = wanted is None or _SAME.get(mode, mode) == _SAME.get(wanted, wanted)
        return None if same else f"the turn runs in permission mode {mode!r}, not in {wanted!r}"

    @property
    def asked(self) -> str:
        """The session's own permission mode."""
        return self._own_mode or ""


def unable(what: str) -> ProviderCapabilityError:
    """Return the error for a wish that cannot be met, or permissions that are not the ones asked for."""
    return ProviderCapabilityError(what, provider="claude")


def _refusal(pending: Pending, response: dict[str, Any]) -> GreenroomError:
    """A model is tried out on the API first, so its refusal may be one of the API's."""
    why = str(response.get("error"))
    if pending.subtype == "set_model":
        kind = _KINDS.get(str(response.get("error_code")), FailureKind.OTHER)
        return TurnFailedError(kind, f"model {pending.target!r} was not set: {why}")
    return unable(f"it refused permission mode {pending.target!r}: {why}" if pending.target else f"it refused to say its settings: {why}")
