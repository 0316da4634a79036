"""The agent asks, and a person on another thread answers. Run it: python examples/approve.py [--real]"""

from __future__ import annotations

import queue
import threading

from offline import play, say, use_scripted_claude

from greenroom import (
    Accept,
    AgentEvent,
    Answer,
    ApprovalPolicy,
    ApprovalRequested,
    ApprovalResolved,
    AskPolicy,
    CancelTurn,
    Decline,
    Greenroom,
    NativePermissions,
    PendingApproval,
    PendingQuestion,
    QuestionAsked,
    Reply,
    TurnRequest,
)

PROMPT = play(
    "Ask me with the AskUserQuestion tool whether the file is to be red or blue; then create it with `touch`; then delete everything here.",
    'CAN_USE_TOOL AskUserQuestion {"questions":[{"question":"Which colour?","options":[{"label":"red"},{"label":"blue"}]}]}',
    'CAN_USE_TOOL Bash {"command":"touch blue"}',
    'CAN_USE_TOOL Bash {"command":"rm -rf ."}',
    "SAY It is there, and all the rest is too.",
)


def decide(pending: PendingApproval | PendingQuestion) -> Answer:
    """What a person would click."""
    if isinstance(pending, PendingQuestion):
        return Reply({question.id: question.options[-1].label for question in pending.questions})
    return Accept() if "touch" in str(pending.input) else Decline("leave the rest alone")


def main() -> None:
    work = use_scripted_claude()
    desk: queue.SimpleQueue[PendingApproval | PendingQuestion | None] = queue.SimpleQueue()

    def show(event: AgentEvent) -> None:
        """Runs on the thread of the turn: passes on what is asked, and waits for nothing."""
        if isinstance(event, ApprovalRequested | QuestionAsked):
            desk.put(event.pending)
        elif isinstance(event, ApprovalResolved):
            say(f"  {event.verdict} by {event.by}")

    with Greenroom() as room:

        def person() -> None:
            while (pending := desk.get()) is not None:
                answer = decide(pending)
                what = pending.tool if isinstance(pending, PendingApproval) else pending.questions[0].text
                say(f"asked: {what} -> {answer}, in time: {room.answer(pending.request_id, answer)}")
                say(f"  once more: {room.answer(pending.request_id, CancelTurn())}")

        thread = threading.Thread(target=person)
        thread.start()
        asks = AskPolicy(deadline_s=3600, default=Decline("nobody was there"))
        agent = room.agent("claude", permissions=NativePermissions.ask(), approvals=ApprovalPolicy.ASK, asks=asks)
        with agent.session(work) as session:
            turn = session.run(session.prepare_turn(TurnRequest(PROMPT)), on_event=show)
        desk.put(None)
        thread.join()
        say(f"{turn.continuity.value}: {turn.result.text!r}; waiting: {len(room.pending())}")


if __name__ == "__main__":
    main()
