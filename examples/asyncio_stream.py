"""Sessions from asyncio: events as an asynchronous iterator, three sessions in one task group.

Run it: python examples/asyncio_stream.py [--real]
"""

from __future__ import annotations

import asyncio

from offline import play, use_scripted_claude

from greenroom import Agent, ApprovalPolicy, AssistantText, NativePermissions, Session, Turn, TurnRequest


async def ask(session: Session, prompt: str) -> Turn:
    """Print what the turn says while it runs. Leaving the loop early would only detach: the turn would go on."""
    stream = session.stream(session.prepare_turn(TurnRequest(prompt, timeout=120)))
    async for stamped in stream:
        if isinstance(stamped.event, AssistantText):
            print(f"{stamped.at:%H:%M:%S} #{stamped.sequence} {session.id}: {stamped.event.text!r}")
    return await stream.turn()


async def main() -> None:
    work = use_scripted_claude()
    agent = Agent("claude", permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    prompts = [
        play(f"Say the number {n} in words, nothing else.", f"SAY one half of {n},", "SLEEP 0.2", f"SAY the other half of {n}")
        for n in (1, 2, 3)
    ]
    async with agent.session(work) as one, agent.session(work) as two, agent.session(work) as three:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(session, prompt)) for session, prompt in zip((one, two, three), prompts, strict=True)]
        for task in tasks:
            turn = task.result()
            print(f"{turn.turn_id} {turn.continuity.value}: {turn.result.text!r}, ${turn.result.cost_usd:.6f}")


if __name__ == "__main__":
    asyncio.run(main())
