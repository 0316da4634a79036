"""What a quiet session is at, and what is done about one that hangs. Run it: python examples/stalls.py [--real]"""

from __future__ import annotations

from offline import play, use_scripted_claude

from greenroom import (
    Agent,
    AgentEvent,
    ApprovalPolicy,
    NativePermissions,
    Session,
    StallAction,
    Stalled,
    StallPolicy,
    ToolCall,
    TurnRequest,
)


def run(session: Session, prompt: str) -> None:
    def show(event: AgentEvent) -> None:
        if isinstance(event, ToolCall):
            print(f"  it is at: {session.liveness}")
        elif isinstance(event, Stalled):
            print(f"  nothing was heard for {event.quiet_s:g} s ({event.reason}): {event.action}")

    turn = session.run(session.prepare_turn(TurnRequest(prompt, timeout=120)), on_event=show)
    print("interrupted" if turn.result.interrupted else repr(turn.result.text))


def main() -> None:
    work = use_scripted_claude()
    stall = StallPolicy(after_s=1.0, action=StallAction.INTERRUPT)
    agent = Agent("claude", permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY, stall=stall)
    with agent.session(work) as session:
        print(f"before the first turn it is {session.liveness}")
        run(session, play("Sleep for two seconds with the Bash tool.", "TOOL_SLEEP 2", "SAY A long tool is no stall."))
        run(session, play("Think very hard about everything.", "SAY Let me see.", "HANG"))
        run(session, play("Say that you are there.", "SAY I am here."))


if __name__ == "__main__":
    main()
