"""The back end of a front end: sessions by id, a window on each, a restart in between. Run it: python examples/frontend.py [--real]"""

from __future__ import annotations

import tempfile
import threading

from offline import play, say, use_scripted_claude

from greenroom import Greenroom, SessionEvent

QUICK = play("Say hello.", "SAY hello")
LONG = play("Count slowly to a thousand, aloud.", "SAY one\nSLEEP 60")


def main() -> None:
    work = use_scripted_claude()
    with tempfile.TemporaryDirectory() as state_dir:
        with Greenroom(state_dir=state_dir) as room:
            begun, over = threading.Event(), threading.Event()

            def window(event: SessionEvent) -> None:
                """Runs on a thread of the subscribers; a slow one slows nobody."""
                if event.method is not None:
                    say(f"  {event.session_id} {event.sequence}: {event.method}")
                if event.method == "item/agentMessage/delta" and event.session_id == "second":
                    begun.set()
                if event.method == "session/closed":
                    over.set()

            room.subscribe(window)
            for name in ("first", "second"):
                record = room.start_session(name, "claude", runtime_mode="full-access", cwd=work)
                say(f"{record.thread_id} is {record.status.value}")
            say(f"answered: {room.send_turn('first', QUICK).wait(120).result.text}")

            sent = room.send_turn("second", LONG)
            begun.wait(120)
            running = [record.thread_id for record in room.directory.list() if record.active_turn_id == sent.turn_id]
            say(f"running: {running}")
            room.interrupt_turn("second", sent.turn_id)
            say(f"interrupted: {sent.wait(120).result.interrupted}")
            room.stop_session("second")
            over.wait(120)
            say(f"in the directory: {[record.thread_id for record in room.directory.list()]}")

        with Greenroom(state_dir=state_dir) as room:  # the program was started again
            (found,) = room.directory.list()
            say(f"found again: {found.thread_id}, {found.status.value}")
            again = room.start_session(found.thread_id, "claude", runtime_mode="full-access")
            say(f"goes on in its conversation: {again.resume_cursor == found.resume_cursor}")
            again_sent = room.send_turn(found.thread_id, QUICK)
            say(f"answered: {again_sent.wait(120).result.text}")
            turns = []
            for event in room.events(found.thread_id, after=0):  # from the first event on, over both programs
                turns += [event.turn_id] if event.method == "turn/completed" else []
                if again_sent.turn_id in turns:
                    break
            say(f"turns in its history: {len(turns)}")


if __name__ == "__main__":
    main()
