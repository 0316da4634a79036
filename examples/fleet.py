"""Many sessions at once, one of them steered and one interrupted from other threads. Run it: python examples/fleet.py [--real]

A thread per session is the caller's choice, for code that blocks; greenroom itself needs none. `asyncio_stream.py` has the other way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from offline import REAL, play, say, use_scripted_claude

from greenroom import (
    Agent,
    AgentEvent,
    ApprovalPolicy,
    Greenroom,
    GreenroomError,
    NativePermissions,
    Session,
    SteerConsumed,
    ToolCall,
    Turn,
    TurnRequest,
    TurnTicket,
)

SESSIONS = 4 if REAL else 20

ORDINARY = play("Say hello.", "SAY hello")
STEERED = play(
    "Run `timeout 15 tail -f /dev/null` with the Bash tool, then say what you were told meanwhile.",
    "AWAIT_STEER",  # a tool call that goes on until a message arrives
    "SAY I use the cache.",
)
INTERRUPTED = play("Run `timeout 100 tail -f /dev/null` with the Bash tool.", "TOOL_SLEEP 600")


def steer(session: Session, _: TurnTicket) -> None:
    session.steer("Use the cache instead.")


def interrupt(session: Session, ticket: TurnTicket) -> None:
    session.interrupt(ticket)  # names the turn, so that it cannot hit the one after it


def work(agent: Agent, folder: Path, prompt: str, act: Callable[[Session, TurnTicket], None] | None = None) -> Turn:
    """Run one turn in a session of its own; `act` is called on another thread once a tool runs."""
    acted = threading.Event()
    with agent.session(folder) as session:
        ticket = session.prepare_turn(TurnRequest(prompt, timeout=300))

        def on_event(event: AgentEvent) -> None:
            if isinstance(event, ToolCall) and act is not None and not acted.is_set():
                acted.set()
                threading.Thread(target=act, args=(session, ticket)).start()
            elif isinstance(event, SteerConsumed):
                say(f"the running turn has taken {event.text!r}")

        return session.run(ticket, on_event=on_event)


def main() -> None:
    folder = use_scripted_claude()
    with Greenroom(max_starting=8) as room, ThreadPoolExecutor(SESSIONS) as pool:
        agent = room.agent("claude", permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
        futures = {
            "steered": pool.submit(work, agent, folder, STEERED, steer),
            "interrupted": pool.submit(work, agent, folder, INTERRUPTED, interrupt),
        }
        futures |= {f"ordinary {number}": pool.submit(work, agent, folder, ORDINARY) for number in range(SESSIONS - 2)}
        for name, future in futures.items():
            try:
                turn = future.result()
            except GreenroomError as error:
                say(f"{name}: {error}")
                continue
            say(f"{name}: {'interrupted' if turn.result.interrupted else turn.result.text}")
    say(f"sessions that are still open: {len(room.sessions())}")


if __name__ == "__main__":
    main()
