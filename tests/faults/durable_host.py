"""A program that its tests kill: one session in a durable room, and what the command line says to do in it.

    python -m tests.faults.durable_host STATE_DIR HOME DO PROMPT

DO: prepare (and wait to be killed), run, leave (run, and never take the outcome), close (run, then close the room).
"""

from __future__ import annotations

import logging
import pathlib
import sys
import threading

from greenroom import Greenroom, TurnRequest, WaitTimeoutError
from greenroom.testing.scripted import Plan
from tests.faults.bench import Cli

PLANS = {"close": Plan(ignore_eof=True)}
KEY = "the work"


def say(word):
    print(word, flush=True)  # noqa: T201 - it is how its test hears of it


def main():
    logging.disable(logging.CRITICAL)
    state_dir, home, do, prompt = sys.argv[1:]
    room = Greenroom(state_dir=state_dir)
    times = {"close_grace_s": 60.0} if do == "close" else {}
    cli = Cli(room, pathlib.Path(home), PLANS.get(do, Plan()), transport=times, session={"session_id": "worker"})
    cli.session.run(cli.session.prepare_turn(TurnRequest(prompt="first")))
    ticket = cli.session.prepare_turn(TurnRequest(prompt=prompt), key=KEY)
    say(f"turn {ticket.turn_id}")
    if do == "leave":
        try:
            cli.session.run(ticket, wait=0.001)
        except WaitTimeoutError:
            say("left")
    elif do != "prepare":
        cli.session.run(ticket, on_event=lambda event: say(type(event).__name__))
        say("ran")
    if do == "close":
        say("closing")
        room.close(deadline_s=60.0)
    threading.Event().wait(60.0)


if __name__ == "__main__":
    main()
