"""The past of a conversation: read it, take a turn back, try another way beside it. Run it: python examples/history.py

Runs against a scripted Codex, which is a real process, without an account.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from greenroom import ApprovalPolicy, CodexAppServerTransport, Greenroom, ItemKind, NativePermissions, Session, TurnRequest
from greenroom.testing import write_scripted_codex


def say(session: Session, text: str) -> None:
    # Codex starts a fresh conversation every two turns unless it is told to keep this one.
    session.run(session.prepare_turn(TurnRequest(f"SAY {text}", timeout=60), pin=True))


def show(name: str, session: Session) -> None:
    for number, turn in enumerate(session.read_thread().turns, 1):
        said = [item.text for item in turn.items if item.kind is ItemKind.ASSISTANT_TEXT]
        print(f"{name} {number} ({turn.status.value}): {' '.join(said)}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="greenroom-example-") as folder, Greenroom() as room:
        transport = CodexAppServerTransport(binary=write_scripted_codex(Path(folder, "bin")))
        agent = room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
        print(f"paid by: {agent.account().kind.value}")
        session = agent.session(folder)
        for text in ("the plan", "a first try", "a mistake"):
            say(session, text)

        session.rollback(1)  # as if the last turn had never been: the model does not see it any more
        show("rolled back", session)

        other = session.fork()  # the same past, and from here on two conversations
        say(session, "this way")
        say(other, "that way")
        show("parent", session)
        show("fork", other)


if __name__ == "__main__":
    main()
