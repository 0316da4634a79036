"""The journal as its owner uses it: transactions, records that are refused, faults, healing, forgetting."""

from __future__ import annotations

import os
import pathlib
import sqlite3
import subprocess
import sys
import threading

import pytest

from greenroom.errors import JournalError, StateDirError, StoreFailedError
from greenroom.journal import Decision, Journal, Recovery, Retention
from greenroom.journal.records import (
    CheckpointSaved,
    Input,
    ProcessEnded,
    ProcessStarted,
    Record,
    SessionClosed,
    Spent,
    TicketDecided,
    TicketEnded,
    TicketPrepared,
    TicketReported,
    TicketTaken,
)
from greenroom.model import Checkpoint, OutputSchema, StateDirProblem, StoreFault, TurnRequest
from greenroom.policy.events import RunBegan, Start
from greenroom.transports.base import Flags
from tests.unit.journal.values import NONCE, named, opened, prepared, sent, spoken, turn, write

ODD = TurnRequest(prompt="x", output_schema=OutputSchema({"x": object()}))


def rows(journal):
    return {table: journal.rows(f"SELECT * FROM {table}") for table in TABLES}  # noqa: S608 - our words


TABLES = ("session", "ticket", "request", "outcome", "checkpoint", "process", "spent", "input", "agent_events")


def test_what_was_committed_is_there_after_a_reopening_and_what_was_not_is_not(state_dir):
    with Journal.open(state_dir) as journal:
        write(journal, opened(), prepared())
        journal.begin()
        journal.put(prepared("t-2"))
        journal.rollback()
        journal.begin()
        journal.put(prepared("t-3"))
    with Journal.open(state_dir) as journal:
        assert [ticket.turn_id for ticket in Recovery(journal).unfinished()] == ["t-1"]


@pytest.mark.parametrize("sync", ["process", "full"])
def test_the_mode_of_sync_is_what_was_asked_for(state_dir, sync):
    with Journal.open(state_dir, sync=sync) as journal:
        assert journal.rows("PRAGMA synchronous") == [({"process": 1, "full": 2}[sync],)]
        assert journal.rows("PRAGMA journal_mode") == [("wal",)]


def test_calls_out_of_order_are_refused_and_change_nothing(journal):
    for call in (journal.commit, lambda: journal.put(opened())):
        with pytest.raises(JournalError, match="no transaction is open"):
            call()
    journal.rollback()
    journal.begin()
    with pytest.raises(JournalError, match="open already"):
        journal.begin()
    with pytest.raises(JournalError, match="a transaction is open"):
        journal.trim(Retention(max_age_s=1, max_bytes=1))
    journal.put(opened())
    journal.commit()
    assert journal.healthy


BAD = [
    prepared(session_id="nobody"),
    sent("nobody"),
    TicketTaken(turn_id="nobody", attempt=1),
    TicketEnded(turn_id="nobody", outcome=turn("nobody")),
    TicketReported(turn_id="nobody"),
    TicketDecided(turn_id="nobody", decision=Decision.DISCARD),
    named(1, session_id="nobody"),
    spoken(1, session_id="nobody"),
    SessionClosed(session_id="nobody"),
    Record(),
    "no record",
    spoken(1, at_wall_s=float("nan")),
    spoken(2**63),
    sent(attempt=2**63),
    sent(incarnation=None),
    prepared("t-9", key=object()),
    Input(session_id="s-1", n=7, event=RunBegan(now_s=1.0, turn_id="t-1", flags=object())),
    TicketPrepared(
        turn_id="t-9",
        session_id="s-1",
        nonce=NONCE,
        request=TurnRequest(prompt="x", output_schema=OutputSchema({"x": object()})),
        request_hash="",
    ),
    TicketEnded(turn_id="t-1", outcome=object()),
]


@pytest.mark.parametrize("record", BAD, ids=lambda record: type(record).__name__)
def test_a_bad_record_is_refused_whole_and_the_transaction_goes_on_without_it(journal, record):
    write(journal, opened(), prepared())
    journal.begin()
    before = rows(journal)
    with pytest.raises(JournalError):
        journal.put(record)
    assert rows(journal) == before
    journal.put(prepared("t-2"))
    journal.commit()
    assert journal.healthy
    assert [ticket.turn_id for ticket in Recovery(journal).unfinished()] == ["t-1", "t-2"]


def test_a_transaction_may_be_repeated(journal):
    """Its commit may have failed in doubt; the owner repeats it."""
    usage = None
    records = [
        opened(),
        prepared(key="k"),
        named(1),
        named(2),
        sent(),
        TicketTaken(turn_id="t-1", attempt=1),
        spoken(1, 3),
        CheckpointSaved(key="c", checkpoint=Checkpoint("c-1")),
        ProcessStarted(pid=1, start_time=2, pgid=1, mark="m", session_id="s-1", incarnation=1, host_id="h"),
        ProcessStarted(pid=2, start_time=2, pgid=2, mark="m", session_id="s-1", incarnation=2, host_id="h"),
        ProcessEnded(pid=1, start_time=2, mark="m"),
        TicketEnded(turn_id="t-1", outcome=turn()),
        TicketReported(turn_id="t-1"),
        Spent(session_id="s-1", usage=usage),
        SessionClosed(session_id="s-1"),
    ]
    write(journal, *records)
    before = rows(journal)
    write(journal, *records)
    assert rows(journal) == before


def test_classes_of_the_callers_are_recorded_too(state_dir):
    flags = Flags(key=("a", None, ("b",)), extra_args=("--x",))
    event = RunBegan(now_s=1.0, turn_id="t-1", flags=flags)
    with Journal.open(state_dir, classes=[Flags]) as journal:
        write(journal, opened(), Input(session_id="s-1", n=1, event=event))
        (back,) = Recovery(journal).inputs("s-1")
        assert back == event
        assert back.flags.extra_args == ("--x",)


# --- who may open


def test_a_directory_has_one_opener_in_this_process_too(state_dir):
    with Journal.open(state_dir):
        with pytest.raises(StateDirError, match=f"process {os.getpid()} on host") as caught:
            Journal.open(state_dir)
        assert (caught.value.problem, caught.value.path) == (StateDirProblem.IN_USE, str(state_dir))
        assert caught.value.hint
    Journal.open(state_dir).close()


def test_looking_at_the_lock_file_does_not_free_it(state_dir):
    with Journal.open(state_dir):
        (state_dir / "lock").read_bytes()
        with pytest.raises(StateDirError, match="holds it"):
            Journal.open(state_dir)


def test_a_lock_file_without_a_name_holds_all_the_same(state_dir):
    with Journal.open(state_dir):
        (state_dir / "lock").write_bytes(b"\xff{")
        with pytest.raises(StateDirError, match="another process holds it"):
            Journal.open(state_dir)


def test_a_refused_opening_holds_nothing(state_dir):
    state_dir.mkdir()
    (state_dir / "journal.db").write_bytes(b"x" * 5000)
    for _ in range(2):
        with pytest.raises(StateDirError, match="does not begin like a database"):
            Journal.open(state_dir)


def test_a_home_directory_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with Journal.open("~/state") as journal:
        assert journal.directory == tmp_path / "state"


# --- faults


def test_a_closed_journal_says_so_and_is_not_healed(journal):
    journal.close()
    journal.close()
    for call in (journal.begin, journal.commit, journal.rollback, lambda: journal.put(opened()), Recovery(journal).unfinished):
        with pytest.raises(StoreFailedError) as caught:
            call()
        assert caught.value.kind is StoreFault.CLOSED
    assert not journal.try_heal()
    assert not journal.healthy


def fill(journal):
    """Make the file as large as SQLite may make it: what a full disk does, without one."""
    journal._connection.execute(f"PRAGMA max_page_count = {journal.rows('PRAGMA page_count')[0][0]}")


def test_a_full_disk_loses_the_transaction_as_a_whole_and_the_journal_heals(journal):
    write(journal, opened())
    fill(journal)
    journal.begin()
    journal.put(prepared("t-1"))
    with pytest.raises(StoreFailedError) as caught:
        journal.put(prepared("t-2", prompt="long " * 100_000))
    assert caught.value.kind is StoreFault.FULL
    assert not journal.healthy
    assert not journal.in_transaction
    with pytest.raises(StoreFailedError, match="has not been healed") as again:
        journal.begin()
    assert again.value.kind is StoreFault.FULL
    assert journal.try_heal()
    assert Recovery(journal).unfinished() == ()
    write(journal, prepared("t-1"))
    assert len(Recovery(journal).unfinished()) == 1


def test_a_journal_that_another_program_locks_fails_in_bounded_time_and_heals(journal, monkeypatch):
    monkeypatch.setattr("greenroom.journal.files.BUSY_TIMEOUT_S", 0.05)
    journal._connection.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(journal.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailedError) as caught:
        journal.begin()
    assert caught.value.kind is StoreFault.BUSY
    assert not journal.try_heal()
    assert journal.fault is StoreFault.BUSY
    other.execute("ROLLBACK")
    other.close()
    assert journal.try_heal()
    assert journal.fault is None
    write(journal, opened())


@pytest.mark.parametrize("name", ["journal.db", "lock"])
def test_a_journal_whose_files_were_removed_says_so(journal, name):
    write(journal, opened())
    journal.begin()
    journal.put(prepared())
    (journal.directory / name).unlink()
    with pytest.raises(StoreFailedError, match="removed or replaced") as caught:
        journal.commit()
    assert caught.value.kind is StoreFault.GONE
    assert not journal.try_heal()


def test_a_damaged_row_names_itself_and_spares_the_others(journal):
    write(journal, opened(), prepared("t-1"), prepared("t-2"))
    journal._connection.execute("UPDATE request SET body = '{\"$\":\"Unheard\"}' WHERE turn_id = 't-1'")
    recovery = Recovery(journal)
    with pytest.raises(JournalError, match="'Unheard'"):
        recovery.ticket("t-1")
    assert recovery.ticket("t-2").turn_id == "t-2"
    assert journal.healthy


def test_a_forked_child_is_refused_and_leaves_the_parents_journal_alone(journal):
    write(journal, opened())
    journal.begin()
    journal.put(prepared())
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kinds = []
            for call in (journal.begin, lambda: journal.put(opened()), journal.commit, Recovery(journal).unfinished):
                try:
                    call()
                    kinds.append("none")
                except StoreFailedError as error:
                    kinds.append(error.kind.value)
            try:
                Journal.open(journal.directory)
                kinds.append("opened")
            except StateDirError as error:
                kinds.append(error.problem.value)
            journal.close()
            os.write(writing, ",".join([*kinds, str(journal.healthy), str(journal.try_heal())]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        assert told.read() == "forked,forked,forked,forked,in use,False,False"
    os.waitpid(pid, 0)
    journal.commit()
    assert len(Recovery(journal).unfinished()) == 1


def test_the_owner_may_be_another_thread_than_the_opener(journal):
    thread = threading.Thread(target=lambda: write(journal, opened()))
    thread.start()
    thread.join()
    assert len(Recovery(journal).sessions()) == 1


# --- forgetting


def trim_all(journal, **bounds):
    rounds = 0
    while journal.trim(Retention(**bounds)).more:
        rounds += 1
        assert rounds < 1000
    return rounds


def test_old_events_go_and_the_reader_is_told(journal, wall):
    write(journal, opened(), *(spoken(first, 2, at_wall_s=float(first)) for first in range(1, 21, 2)))
    wall.now_s = 1010.0
    trim_all(journal, max_age_s=1000.0, max_bytes=10**12)
    history = Recovery(journal).events("s-1")
    assert [batch.first_sequence for batch in history.batches] == [11, 13, 15, 17, 19]
    assert [(gap.first_sequence, gap.last_sequence) for gap in history.gaps] == [(1, 10)]
    assert Recovery(journal).events("s-1", 11).gaps == ()
    wall.now_s = 9999.0
    trim_all(journal, max_age_s=0.0, max_bytes=10**12)
    gone = Recovery(journal).events("s-1")
    assert (gone.batches, gone.gaps[0].last_sequence, gone.complete) == ((), 20, True)
    assert Recovery(journal).events("s-1", 20).gaps == ()


def test_how_far_events_went_is_not_forgotten_when_the_clock_was_set_back(journal, wall):
    write(journal, opened(), spoken(1, at_wall_s=500.0), spoken(2, at_wall_s=100.0))
    wall.now_s = 200.0
    trim_all(journal, max_age_s=0.0, max_bytes=10**12)
    assert [batch.first_sequence for batch in Recovery(journal).events("s-1").batches] == [1]
    wall.now_s = 600.0
    trim_all(journal, max_age_s=0.0, max_bytes=10**12)
    assert [(gap.first_sequence, gap.last_sequence) for gap in Recovery(journal).events("s-1").gaps] == [(1, 2)]


def test_the_inputs_of_an_open_session_stay_and_those_of_a_closed_one_go_whole(journal, wall):
    write(journal, opened("s-1"), opened("s-2"), *(named(n, name) for n in range(1, 4) for name in ("s-1", "s-2")))
    write(journal, SessionClosed(session_id="s-2"))
    trim_all(journal, max_age_s=10.0, max_bytes=10**12)
    assert len(Recovery(journal).inputs("s-2")) == 3
    wall.now_s += 11
    trim_all(journal, max_age_s=10.0, max_bytes=10**12)
    assert len(Recovery(journal).inputs("s-1")) == 3
    assert Recovery(journal).inputs("s-2") is None
    assert Recovery(journal).session("s-2").closed_at_s == 1000.0


def test_a_journal_that_is_too_large_becomes_small_in_bounded_rounds_and_keeps_its_tickets(journal):
    write(journal, opened("s-1"), opened("s-2"), prepared(), SessionClosed(session_id="s-2"))
    write(journal, *(Input(session_id="s-2", n=n, event=Start(now_s=float(n))) for n in range(1, 3001)))
    write(journal, *(spoken(first, at_wall_s=2000.0, text="long " * 100) for first in range(1, 3001)))
    size = journal.path.with_name("journal.db-wal").stat().st_size
    assert size > 1_000_000
    rounds = trim_all(journal, max_age_s=10**9, max_bytes=300_000)
    assert rounds > 2
    journal.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    assert journal.path.stat().st_size < 400_000
    assert Recovery(journal).inputs("s-2") is None
    history = Recovery(journal).events("s-1")
    assert history.batches
    assert history.gaps[0].first_sequence == 1
    assert history.batches[0].first_sequence == history.gaps[0].last_sequence + 1
    assert len(Recovery(journal).unfinished()) == 1
    assert not journal.trim(Retention(max_age_s=10**9, max_bytes=300_000)).more


def test_what_cannot_be_made_small_enough_ends_the_rounds(journal):
    write(journal, opened(), prepared())
    assert trim_all(journal, max_age_s=10**9, max_bytes=0) <= 1


def test_the_files_are_ours_alone_whatever_the_umask(tmp_path):
    before = os.umask(0o777)
    try:
        with Journal.open(tmp_path / "state") as journal:
            write(journal, opened())
            modes = {path.name: path.stat().st_mode & 0o777 for path in pathlib.Path(tmp_path / "state").iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["journal.db", "journal.db-wal", "journal.db-shm", "lock"], 0o600)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_what_was_being_forked_when_its_owner_died_holds_the_directory_for_a_moment(tmp_path):
    """Between fork and exec a child has the descriptor of the lock; an owner that is killed then leaves the lock with the child."""
    program = """
import fcntl, json, os, socket, subprocess, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX)
os.write(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
subprocess.Popen(["sleep", "0.3"], pass_fds=[fd])
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=True)
    Journal.open(tmp_path).close()
