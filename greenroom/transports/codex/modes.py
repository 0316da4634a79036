"""With which model, effort and collaboration mode is a turn asked for? All of them stay in force, on disk too (0.163 and 0.171). Pure.

So once a turn had its own, each later one says what it wants. "No effort" has no name, and plan mode no other way in or out: both go by
`collaborationMode`, whose three settings must all be there. Codex is told to plan; it is not kept from acting: that is the sandbox's part.
"""

from __future__ import annotations

from greenroom.model import InteractionMode, TurnRequest
from greenroom.transports.base import LaunchSpec
from greenroom.transports.codex.lines import Frame, obj, text
from greenroom.transports.home_models import HomeModels

PLAN, DEFAULT = "plan", "default"


class Modes:
    """What one thread was told last, and what it had before."""

    def __init__(self, launch: LaunchSpec, homes: HomeModels) -> None:
        self.model: str | None = None
        self._spec = launch.spec
        self._homes = homes
        self._thread_id: str | None = None
        self._home: str | None = None
        self._effort_before: str | None = None
        self._effort_sent = False
        self._plan_used = False

    def learn(self, thread_id: str, reply: Frame) -> None:
        """Take up what an opened thread has."""
        self._thread_id = thread_id
        self._effort_before, self.model = text(reply.get("reasoningEffort")) or None, text(reply.get("model")) or None
        self._home = self._spec.model or self._homes.of(thread_id) or self.model
        self._plan_used = obj(reply.get("collaborationMode")).get("mode") == PLAN

    def fields(self, request: TurnRequest) -> Frame:
        """Return what a turn is asked for; what is None need not be said."""
        if request.model is not None and self._spec.model is None:
            self._homes.keep(self._thread_id, self._home)
        strayed = self._homes.of(self._thread_id) is not None
        model = request.model or self._spec.model or (self._home if strayed else None)
        self.model = model or self.model
        return {"model": model, **self._mode(request)}

    def _mode(self, request: TurnRequest) -> Frame:
        effort = request.reasoning_effort or self._spec.reasoning_effort
        sent, self._effort_sent = self._effort_sent, effort is not None
        plans = wants_plan(request)
        self._plan_used = self._plan_used or plans
        back = effort is None and sent
        if self.model is not None and (self._plan_used or (back and self._effort_before is None)):
            settings = {"model": self.model, "reasoning_effort": effort or self._effort_before, "developer_instructions": None}
            return {"effort": effort, "collaborationMode": {"mode": PLAN if plans else DEFAULT, "settings": settings}}
        return {"effort": self._effort_before if back else effort}


def wants_plan(request: TurnRequest) -> bool:
    """Whether the turn is to plan."""
    return request.interaction_mode is InteractionMode.PLAN
