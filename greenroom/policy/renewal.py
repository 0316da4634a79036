"""When is a conversation retired? Decides on the budget alone. Pure."""

from __future__ import annotations

from greenroom.model import RenewalBudget
from greenroom.policy.bill import Bill


def renewal_due(budget: RenewalBudget | None, *, successful_turns: int, ticket: Bill) -> bool:
    """Say whether the conversation has reached its budget, after its turn number `successful_turns`, which cost `ticket`.

    The ticket's attempts count together, waits excluded; cached input is input too.
    """
    if budget is None:
        return False
    return (
        _reached(budget.max_turns, successful_turns)
        or _reached(budget.max_turn_input_tokens, ticket.tokens.total_input)
        or _reached(budget.max_turn_duration_ms, ticket.duration_ms)
    )


def _reached(limit: int | None, value: int) -> bool:
    return limit is not None and value >= limit
