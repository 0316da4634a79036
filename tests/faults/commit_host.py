"""A program that kills itself, again and again, at one commit of its journal after the other, and judges what each death has left.

    python -m tests.faults.commit_host DIRECTORY 1:before 1:after 2:before …        (or `all`: until the story ends before its death)

Each point is a fork of its own: a host that plays the story of four sessions on scripted CLIs and is killed by SIGKILL at the n-th
commit, before it or behind it, and then a judge that opens what is left. It prints a line of JSON for each point. What the journal must
say is not taken from the journal: the host notes what it is told, and what its commits held, in a file of its own.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import signal
import sys
import threading
import traceback

from greenroom import Greenroom, RetryPolicy, ToolCall, TurnRequest
from greenroom.journal import Verdict
from greenroom.journal import records as r
from greenroom.testing.scripted import Plan
from greenroom.transports.marks import scan
from tests.faults.bench import PATIENCE_S, Cli, binary, outcome_of
from tests.faults.test_durable import cwd_of

STORY = {
    "plain": "SAY one\nTOOL Bash {} -> ok\nSAY done",
    "steered": "SAY one\nAWAIT_STEER\nSAY done",
    "retried": "API_ERROR 529 overloaded_error busy 1\nSAY done",
    "restarted": "SAY one\nCRASH_ONCE 9\nSAY done",
}
AT_ONCE = 2


class Stage:
    """The folders of one point."""

    def __init__(self, folder):
        self.folder = folder
        self.state_dir = folder / "journal"
        self.notes = folder / "notes"

    def cli(self, room, name, **session):
        return Cli(room, self.folder / name, Plan(), retry=RetryPolicy(delays=(0.01,)), session=session)

    def told(self):
        """What the host noted, as far as it got."""
        return [json.loads(line) for line in self.notes.read_bytes().split(b"\n")[:-1]] if self.notes.exists() else []


# --- the host


class Notes:
    """A file that outlives a SIGKILL: one write a line."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, *words):
        os.write(self._fd, json.dumps(words).encode() + b"\n")


class Killer:
    """Stands between the journal's owner and the journal, and dies at commit number `number`."""

    def __init__(self, journal, number, where, notes):
        self._journal, self._number, self._where, self._notes = journal, number, where, notes
        self._begin, self._put, self._commit = journal.begin, journal.put, journal.commit
        journal.begin, journal.put, journal.commit = self.begin, self.put, self.commit
        self._held = []
        self._count = 0

    def begin(self):
        self._held = []
        self._begin()

    def put(self, record):
        self._put(record)
        if isinstance(record, (r.TicketPrepared, r.TicketSent, r.TicketEnded, r.TicketReported, r.TicketDecided)):
            self._held.append((type(record).__name__, record.turn_id))

    def commit(self):
        self._count += 1
        self._dies_if("before")
        self._commit()
        self._notes.add("committed", self._held)
        self._dies_if("after")

    def _dies_if(self, where):
        if (self._count, where) == (self._number, self._where):
            os.kill(os.getpid(), signal.SIGKILL)


def play(cli, name, notes):
    ticket = cli.session.prepare_turn(TurnRequest(prompt=STORY[name]), key=name)
    notes.add("prepared", name, ticket.turn_id)
    turn = run(cli, ticket)
    notes.add("ran", name, turn.result.text)


def run(cli, ticket):
    def steer(event):
        if isinstance(event, ToolCall) and ticket.request.prompt == STORY["steered"]:
            outcome_of(cli.session.steer, "go on")  # too late is as good

    return cli.session.run(ticket, on_event=steer, wait=PATIENCE_S)


def host(stage, number, where):
    notes = Notes(stage.notes)
    room = Greenroom(state_dir=stage.state_dir)
    Killer(room._keeper.journal, number, where, notes)
    clis = {name: stage.cli(room, name, session_id=name) for name in STORY}
    threads = [threading.Thread(target=play, args=(cli, name, notes)) for name, cli in clis.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    room.close()
    notes.add("finished")


# --- the judge


AFTER = {
    "TicketPrepared": Verdict.NEVER_SENT,
    "TicketSent": Verdict.UNKNOWN,
    "TicketEnded": Verdict.FINISHED_UNREPORTED,
    "TicketReported": None,
    "TicketDecided": None,
}


def expected(told):
    """What is to be said of each ticket, by what was committed."""
    verdicts = {}
    for words in told:
        for kind, turn_id in words[1] if words[0] == "committed" else ():
            verdicts[turn_id] = AFTER[kind]
    return {turn_id: verdict for turn_id, verdict in verdicts.items() if verdict is not None}, set(verdicts)


def judge(stage, number):
    told = stage.told()
    verdicts, on_record = expected(told)
    prepared = {words[1]: words[2] for words in told if words[0] == "prepared"}
    ran = {words[1]: words[2] for words in told if words[0] == "ran"}
    assert set(prepared.values()) <= on_record, "a ticket was given out that is not on record"
    for _ in range(2):
        with Greenroom(state_dir=stage.state_dir) as room:
            check_processes(stage)
            assert {found.turn_id: found.verdict for found in room.recovered()} == verdicts
    with Greenroom(state_dir=stage.state_dir) as room:
        for name, text in ran.items():
            outcome = room._consult("outcome", prepared[name])
            assert outcome.result.text == text == "done"
        by_key = number % 2 == 0
        for name in STORY:
            go_on(stage, room, name, prepared.get(name), verdicts, by_key=by_key)
        assert room.recovered() == ()
    with Greenroom(state_dir=stage.state_dir) as room:
        assert room.recovered() == ()
    return sorted(verdict.name for verdict in verdicts.values())


def go_on(stage, room, name, turn_id, verdicts, *, by_key):
    found = next((found for found in room.recovered() if found.session.id == name), None)
    if found is not None and not by_key:
        cli = stage.cli(room, name, session_id=f"other {name}")
        check_unseen(cli, name, found)
        cli.session, ticket = found.resume(cli.agent)
    else:
        cli = stage.cli(room, name, session_id=name)
        check_unseen(cli, name, found)
        ticket = cli.session.prepare_turn(TurnRequest(prompt=STORY[name]), key=name)
    assert turn_id is None or ticket.turn_id == turn_id
    assert run(cli, ticket).result.text == "done"
    assert cli.prompts().count(STORY[name]) == 1, cli.prompts()


def check_unseen(cli, name, found):
    if found is not None and found.verdict is Verdict.NEVER_SENT:
        assert STORY[name] not in cli.prompts(), "it was sent"


def check_processes(stage):
    left = [found.pid for found in scan().matching(["gr/"]) if str(stage.folder) in " ".join(cwd_of(found.pid))]
    assert left == [], f"left of the dead host: {left}"


# --- the points


def point(folder, number, where):
    """In a fork: play, die, judge; print what came of it."""
    stage = Stage(folder)
    folder.mkdir()
    pid = os.fork()
    if pid == 0:
        try:
            host(stage, number, where)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    said = {"point": f"{number}:{where}", "killed": ["finished"] not in stage.told()}
    try:
        said["verdicts"] = judge(stage, number)
    except BaseException:  # noqa: BLE001 - it is the report
        said["error"] = traceback.format_exc()[-3000:]
    print(json.dumps(said), flush=True)  # noqa: T201
    return said


def fork_point(folder, number, where):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if point(folder / f"{number}-{where}", number, where)["killed"] else 7
        finally:
            os._exit(status)
    return pid


def points(words):
    if words == ["all"]:
        return ((number, where) for number in range(1, 200) for where in ("before", "after"))
    return ((int(word.split(":")[0]), word.split(":")[1]) for word in words)


def main():
    logging.disable(logging.CRITICAL)
    folder = pathlib.Path(sys.argv[1])
    binary()
    running = set()
    for number, where in points(sys.argv[2:]):
        if len(running) == AT_ONCE:
            pid, status = os.wait()
            running.discard(pid)
            if os.waitstatus_to_exitcode(status) == 7:  # the story is shorter than that
                break
        running.add(fork_point(folder, number, where))
    while running:
        running.discard(os.wait()[0])


if __name__ == "__main__":
    main()
