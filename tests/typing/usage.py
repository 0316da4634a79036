"""Not run: mypy reads it, and tests/typing/test_types.py compares what it says."""

import os
from typing import reveal_type

from greenroom import Agent, ApprovalPolicy, ClaudeStreamTransport, Greenroom, NativePermissions, SessionEvent, TurnRequest
from greenroom.testing import FakeTransport
from greenroom.transports.claude.launch import ClaudeHook


async def use(agent: Agent) -> None:
    session = agent.session(".")
    ticket = session.prepare_turn(TurnRequest("x"))
    reveal_type(ticket)
    reveal_type(session.run(ticket))
    stamped_events: list[SessionEvent] = []
    reveal_type(await session.arun(ticket, on_event=stamped_events.append))
    stream = session.stream(ticket)
    async for stamped in stream:
        reveal_type(stamped)
        reveal_type(stamped.event)
    reveal_type(await stream.turn())
    reveal_type(ticket.wait(1))
    reveal_type(session.spent)


with Greenroom() as room:
    agent = room.agent(FakeTransport(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    reveal_type(agent)
Agent("claude")


def with_hooks() -> ClaudeStreamTransport:
    return ClaudeStreamTransport(hooks=[ClaudeHook(event="PostToolUse", command="true")], env=os.environ)
