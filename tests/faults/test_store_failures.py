"""The journal of a room fails in the middle of a fleet, in each way that a disk has, and is well again. Real CLIs, a real SQLite file.

What is finished is given out, and said to be unrecorded; what must be on record first is refused by name; when the disk is well the rest
is written, and what was refused can be done.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess

import pytest

from greenroom import Greenroom, Lifecycle, RetryPolicy, StoreUnavailableError, ToolCall, TurnRequest
from greenroom.model import StoreFault
from greenroom.testing.scripted import Plan
from tests.faults.bench import PATIENCE_S, Cli, outcome_of, until
from tests.faults.test_journal_files import fill_up, tmpfs

ROOT = os.geteuid() == 0
PROMPTS = {
    "finishing": "AWAIT_STEER\nSAY done",
    "retrying": "AWAIT_STEER\nAPI_ERROR 529 overloaded_error busy 1\nSAY done",
    "prepared": "SAY done",
}


# --- faults: each strikes the journal of a living room in the block that it opens, and mends it behind that


@contextlib.contextmanager
def locked(state_dir, journal):
    with contextlib.closing(sqlite3.connect(state_dir / "journal.db", isolation_level=None, timeout=5)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextlib.contextmanager
def damaged(state_dir, journal):
    """Through other processes: closing a descriptor of ours would drop SQLite's locks."""
    copy = state_dir.with_name("copy")
    subprocess.run(["cp", "-a", state_dir, copy], check=True)
    blocks = (state_dir / "journal.db").stat().st_size // 4096
    garbage = ("dd", "if=/dev/urandom", f"of={state_dir / 'journal.db'}", "bs=4096", f"count={blocks}", "conv=notrunc", "status=none")
    subprocess.run(garbage, check=True)
    # What it has in memory would hide the damage for a while.
    journal._connection.execute("PRAGMA shrink_memory")
    yield
    assert not journal.healthy
    for name in ("journal.db-shm", "journal.db-wal"):
        (state_dir / name).unlink(missing_ok=True)
    for name in ("journal.db-wal", "journal.db"):
        (state_dir / name).touch(mode=0o600)
        subprocess.run(("dd", f"if={copy / name}", f"of={state_dir / name}", "bs=4096", "status=none"), check=True)


@contextlib.contextmanager
def read_only(state_dir, journal):
    """To SQLite it is as if: the descriptors that are open cannot be made so without the whole disk."""
    journal._connection.execute("PRAGMA query_only = ON")
    if not ROOT:
        (state_dir / "journal.db").chmod(0o400)
        yield
        (state_dir / "journal.db").chmod(0o600)
        return
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", state_dir, state_dir], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount: {mounted.stderr.strip() or 'no leave'}")
    try:
        yield
    finally:
        subprocess.run(["umount", state_dir], check=True)


@contextlib.contextmanager
def full(state_dir, journal):
    ballast = state_dir / "ballast"
    fill_up(ballast)
    yield
    ballast.unlink()


@contextlib.contextmanager
def removed(state_dir, journal):
    shutil.rmtree(state_dir)
    yield


# --- the fleet


class Fleet:
    """Sessions in the middle of what a fault can meet: two in a turn, one prepared, one idle."""

    def __init__(self, folder, state_dir):
        self.folder = folder
        self.state_dir = state_dir
        self.room = Greenroom(state_dir=state_dir)
        self.journal = self.room._keeper.journal
        self.clis = {name: self.cli(name) for name in (*PROMPTS, "idle")}
        self.tickets = {name: self.prepare(name) for name in PROMPTS}
        self.begun = {name: self.begin(name) for name in ("finishing", "retrying")}
        for name in self.begun:
            self.clis[name].wait_for(ToolCall)
        self.room._consult("sessions")  # behind it everything is on disk

    def cli(self, name):
        return Cli(self.room, self.folder / name, Plan(), retry=RetryPolicy(delays=(0.01,)), session={"session_id": name})

    def prepare(self, name):
        return self.clis[name].session.prepare_turn(TurnRequest(prompt=PROMPTS.get(name, "SAY done")), key=name)

    def begin(self, name):
        cli = self.clis[name]
        cli.ticket = lambda _prompt: self.tickets[name]
        return cli.begin(PROMPTS[name])

    def go_on(self):
        for name in self.begun:
            self.clis[name].session.steer("go on")

    def run(self, name, ticket=None):
        return self.clis[name].session.run(ticket or self.prepare(name), wait=PATIENCE_S)

    def in_the_fault(self, kind):
        """What has ended is given out; what must be on record first is refused."""
        self.go_on()
        turn = self.begun["finishing"].outcome()
        assert turn.result.text == "done"
        finishing = self.clis["finishing"]
        assert "journal failed" in finishing.session.degraded
        assert [event.kind for event in finishing.of(Lifecycle)].count("degraded") >= 1
        unsent = (self.begun["retrying"].outcome(), outcome_of(self.run, "prepared", self.tickets["prepared"]))
        for refused in (*unsent, outcome_of(self.prepare, "idle")):
            assert isinstance(refused, StoreUnavailableError), refused
            assert refused.kind is kind
            assert refused.hint
        assert self.clis["prepared"].prompts() == []
        assert [self.clis[name].prompts().count(PROMPTS[name]) for name in self.begun] == [1, 1]
        return turn

    def when_it_is_well(self, turn):
        """The rest is written, and what was refused can be done: under its name, once."""
        until(lambda: not isinstance(outcome_of(self.prepare, "idle"), StoreUnavailableError), "the journal's health")
        assert self.run("idle").result.text == "done"
        assert self.run("finishing") == turn
        for name in ("retrying", "prepared"):
            ticket = self.prepare(name)
            assert ticket.turn_id == self.tickets[name].turn_id
            assert self.run(name, ticket).result.text == "done"
        for name, prompt in PROMPTS.items():
            assert self.clis[name].prompts().count(prompt) == 1, name

    def after_all(self, turn):
        """The next host finds all of it."""
        with Greenroom(state_dir=self.state_dir) as room:
            assert room.recovered() == ()
            assert room._consult("outcome", turn.turn_id) == turn
            for name in PROMPTS:
                assert room._consult("find_key", name, name).reported
                assert room._consult("inputs", name)


def meets(folder, state_dir, fault, kind):
    fleet = Fleet(folder, state_dir)
    try:
        with fault(state_dir, fleet.journal):
            turn = fleet.in_the_fault(kind)
        fleet.when_it_is_well(turn)
    finally:
        fleet.room.close()
    fleet.after_all(turn)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        pytest.param(locked, StoreFault.BUSY, id="locked", marks=pytest.mark.full),  # each try waits two seconds for the lock
        pytest.param(damaged, StoreFault.DAMAGED, id="damaged"),
        pytest.param(read_only, StoreFault.READ_ONLY, id="read-only"),
    ],
)
def test_a_journal_that_fails_in_the_middle_of_a_fleet_costs_no_result_and_heals(tmp_path, fault, kind):
    meets(tmp_path, tmp_path / "journal", fault, kind)


@pytest.mark.skipif(not ROOT, reason="mounting needs root; test_journal_files.py has a full disk without it")
def test_a_disk_that_is_full_in_the_middle_of_a_fleet_costs_no_result_and_heals(tmp_path):
    with tmpfs(tmp_path / "disk", "size=2m") as disk:
        meets(tmp_path, disk / "journal", full, StoreFault.FULL)


def test_a_state_directory_that_is_removed_in_the_middle_of_a_fleet_costs_no_result(tmp_path):
    fleet = Fleet(tmp_path, tmp_path / "journal")
    try:
        with removed(fleet.state_dir, fleet.journal):
            fleet.in_the_fault(StoreFault.GONE)
        refused = outcome_of(fleet.prepare, "idle")
        assert isinstance(refused, StoreUnavailableError)
        assert "close the room" in refused.hint
    finally:
        fleet.room.close()
    with Greenroom(state_dir=fleet.state_dir) as room:
        assert room.recovered() == ()
