"""One session, two turns. Run it: python examples/one_session.py [--real]"""

from __future__ import annotations

from offline import play, use_scripted_claude

from greenroom import Agent, AgentEvent, ApprovalPolicy, AssistantText, NativePermissions, ToolCall, TurnRequest


def show(event: AgentEvent) -> None:
    """Runs on the thread that called `run`."""
    if isinstance(event, AssistantText):
        print(f"  says {event.text!r}")
    elif isinstance(event, ToolCall):
        print(f"  calls {event.tool} {dict(event.args)}")


def main() -> None:
    work = use_scripted_claude()
    agent = Agent("claude", permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    first = play(
        "List the files here with the Bash tool, then say in one sentence what you see.",
        'TOOL Bash {"command":"ls"} -> nothing here',
        "SAY The directory is empty.",
    )
    with agent.session(work) as session:
        for prompt in (first, play("Say it again in French.", "SAY Le dossier est vide.")):
            ticket = session.prepare_turn(TurnRequest(prompt, timeout=120))
            print(f"{ticket.turn_id} is named, and nothing runs yet")
            turn = session.run(ticket, on_event=show)
            print(f"{turn.turn_id} {turn.continuity.value} in {turn.conversation_id}: {turn.result.text!r}")
        assert session.spent is not None
        print(f"the session has cost ${session.spent.total_cost_usd:.6f}")


if __name__ == "__main__":
    main()
