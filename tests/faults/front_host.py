"""A program that its test kills: sessions by id in a durable room, on a scripted CLI.

python -m tests.faults.front_host STATE_DIR HOME
"""

from __future__ import annotations

import logging
import pathlib
import sys
import threading

from greenroom import Greenroom
from tests.faults.bench import binary


def options(home, *, plan=None):
    """Return the arguments of `start_session` for the scripted CLI."""
    home.mkdir(parents=True, exist_ok=True)
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "GREENROOM_SCRIPTED_STATE": str(home / "state"), **(plan.env(home) if plan else {})}
    return {
        "provider": "claude",
        "runtime_mode": "full-access",
        "cwd": home,
        "provider_options": {"claude": {"binary_path": binary(), "env": env}},
    }


def main():
    logging.disable(logging.CRITICAL)
    state_dir, home = map(pathlib.Path, sys.argv[1:])
    room = Greenroom(state_dir=state_dir)
    for thread_id in ("kept", "stopped", "busy"):
        room.start_session(thread_id, **options(home))
        room.send_turn(thread_id, "SAY first").wait(50.0)
    room.stop_session("stopped")
    sent = room.send_turn("busy", "SAY on\nSLEEP 300")
    with room.events("busy") as stream:
        while (event := stream.get(50.0)) is not None and event.method != "item/agentMessage/delta":
            pass
    print(sent.turn_id, flush=True)  # noqa: T201 - it is how its test hears of it
    threading.Event().wait(60.0)


if __name__ == "__main__":
    main()
