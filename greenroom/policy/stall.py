"""When is a running turn taken for stalled, and what is done then? `StallPolicy`. Pure.

What is silence and what is not (a running tool, a wait, somebody who is asked) is decided in `greenroom/liveness.py`.
"""

from __future__ import annotations

import enum

import attrs

DEFAULT_AFTER_S = 900.0


class StallAction(enum.Enum):
    """What is done about a running turn that has gone silent, beside the event `Stalled`.

    INTERRUPT: the turn ends as an interrupted one. RESTART: its process is killed, which counts as a death: the next one resumes the
    conversation, and `RestartPolicy` says how often, and what is sent.
    """

    REPORT = "report"
    INTERRUPT = "interrupt"
    RESTART = "restart"


@attrs.frozen(kw_only=True)
class StallPolicy:
    """A running turn is stalled when the model has said nothing for `after_s` seconds, or nothing was heard for `tool_after_s` of a tool.

    `tool_after_s=None`: a running tool is no stall, however long it takes. Raises ValueError for numbers that cannot be meant.
    """

    after_s: float = DEFAULT_AFTER_S
    action: StallAction = StallAction.REPORT
    tool_after_s: float | None = None

    def __attrs_post_init__(self) -> None:
        for name, value in (("after_s", self.after_s), ("tool_after_s", self.tool_after_s)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be finite and more than 0, got {value}")
        if not isinstance(self.action, StallAction):
            raise TypeError(f"action must be a StallAction, got {self.action!r}")

    @property
    def shortest_s(self) -> float:
        """The shortest silence that may be a stall."""
        return self.after_s if self.tool_after_s is None else min(self.after_s, self.tool_after_s)
