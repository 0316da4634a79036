"""What a turn may ask for: images and texts, plan mode, a model of its own. Run it: python examples/turn_requests.py [--real]"""

from __future__ import annotations

import base64

from offline import play, use_scripted_claude

from greenroom import (
    Agent,
    ApprovalPolicy,
    AttachmentError,
    ImageAttachment,
    InteractionMode,
    NativePermissions,
    TextAttachment,
    TurnRequest,
)

RED = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")  # a PNG of one pixel


def main() -> None:
    work = use_scripted_claude()
    log = work / "build.log"
    log.write_text("lamp: expected green, got red\n")
    asked = (
        TurnRequest(
            play("What is wrong with the build?", "SAY The lamp is red."),
            attachments=(ImageAttachment(data=RED), TextAttachment(path=log)),
        ),
        TurnRequest(play("How would you mend it?", "SAY By a green lamp."), interaction_mode=InteractionMode.PLAN),
        TurnRequest(play("Say it in a word.", "SAY Green."), model="haiku"),
        TurnRequest(play("And in two?", "SAY Green lamp.")),  # with the session's model and mode again
    )
    agent = Agent("claude", permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    with agent.session(work) as session:
        for request in asked:
            turn = session.run(session.prepare_turn(request))
            print(f"{request.model or 'the model'}, {request.interaction_mode.value}: {turn.result.text!r}")
        try:
            session.prepare_turn(TurnRequest("Look.", attachments=(ImageAttachment(path=log),)))
        except AttachmentError as error:  # before anything is sent
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
