"""The journal's files under faults: hosts killed at every point, files cut at every byte, disks that are full, read-only or broken.

What is committed is there afterwards, what is not is not, and nothing is there by half. Each test ends what it started, and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from greenroom.errors import StateDirError, StoreFailedError
from greenroom.journal import Journal, JournalCheckpointStore, Recovery, Verdict
from greenroom.journal.records import CheckpointSaved, Snapshot, TicketEnded
from greenroom.model import Checkpoint, StateDirProblem, StoreFault
from greenroom.policy.state import State
from tests.unit.journal.values import named, opened, prepared, sent, spoken, turn, write

ROOT = os.geteuid() == 0


# --- the story that is told: each transaction makes one whole ticket, so that a half one is seen


def story(number, size=10):
    turn_id = f"t-{number}"
    return (
        prepared(turn_id, prompt="x" * size),
        named(number),
        Snapshot(session_id="s-1", n=number - 1, state=State(settings=opened().settings, waits=number)),
        sent(turn_id, receipt=f"receipt-{number}"),
        spoken(number),
        CheckpointSaved(key="k", checkpoint=Checkpoint(f"c-{number}")),
        TicketEnded(turn_id=turn_id, outcome=turn(turn_id)),
    )


def told(state_dir):
    """Reopen and return how many transactions are there. Fails for a half one, and for a second look that sees something else."""
    counts = []
    for _ in range(2):
        with Journal.open(state_dir) as journal:
            recovery = Recovery(journal)
            tickets = recovery.unfinished()
            count = len(tickets)
            assert [ticket.turn_id for ticket in tickets] == [f"t-{number}" for number in range(1, count + 1)]
            assert {ticket.verdict for ticket in tickets} <= {Verdict.FINISHED_UNREPORTED}
            assert [ticket.receipt for ticket in tickets] == [f"receipt-{number}" for number in range(1, count + 1)]
            history = recovery.history("s-1")
            assert (history.state.waits if history.state else 0) == count
            assert history.inputs == ((named(count).event,) if count else ())
            assert [batch.first_sequence for batch in recovery.events("s-1").batches] == list(range(1, count + 1))
            assert recovery.checkpoint("k") == (Checkpoint(f"c-{count}") if count else None)
            counts.append(count)
    assert counts[0] == counts[1]
    return counts[0]


def begin_story(state_dir, **options):
    with Journal.open(state_dir, **options) as journal:
        write(journal, opened())


# --- killed


def run_and_die_at(state_dir, point, sync):
    """In a forked child: tell three transactions, and die by SIGKILL at step number `point`. Returns how many were committed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            steps = 0

            def step():
                nonlocal steps
                if steps == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                steps += 1

            step()
            journal = Journal.open(state_dir, sync=sync)
            for number in range(1, 4):
                step()
                journal.begin()
                for record in story(number):
                    step()
                    journal.put(record)
                step()
                journal.commit()
                os.write(writing, b".")
            step()
            journal.close()
            os.write(writing, b"!")
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.parametrize("sync", ["process", "full"])
def test_a_host_killed_at_any_step_leaves_what_it_had_committed(tmp_path, sync):
    deaths = 0
    for point in range(100):
        state_dir = tmp_path / f"state-{point}"
        begin_story(state_dir)
        said = run_and_die_at(state_dir, point, sync)
        assert told(state_dir) == said.count(b".")
        if b"!" in said:
            break
        deaths += 1
    assert deaths == 1 + 3 * (1 + 7 + 1) + 1


WRITER = """
import sys
from greenroom.journal import Journal
from tests.faults.test_journal_files import story
from tests.unit.journal.values import write
sync, state_dir, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Journal.open(state_dir, sync=sync) as journal:
    for number in range(1, 100_000):
        write(journal, *story(number, size))
        print(number, flush=True)
"""


def start_writer(state_dir, *, sync="process", size=10):
    root = pathlib.Path(__file__).parents[2]
    argv = [sys.executable, "-c", WRITER, sync, str(state_dir), str(size)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})


@contextlib.contextmanager
def writer(state_dir, **options):
    process = start_writer(state_dir, **options)
    try:
        with process.stdout:
            yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("sync", "size", "lines"),
    # The larger ones have the log moved into the database again and again, so that some deaths fall into that.
    [("process", 10, 1), ("process", 10, 57), ("process", 200_000, 21), ("process", 200_000, 45), ("full", 10, 13), ("full", 100_000, 41)],
)
def test_a_host_killed_in_full_swing_leaves_what_it_had_said(tmp_path, sync, size, lines):
    state_dir = tmp_path / "state"
    begin_story(state_dir)
    with writer(state_dir, sync=sync, size=size) as process:
        for _ in range(lines):
            assert process.stdout.readline()
        process.kill()
        said = lines + len(process.stdout.read().splitlines())
        process.wait()
    assert said <= told(state_dir) <= said + 1


def test_a_new_journal_whose_maker_is_killed_is_whole_or_not_there(tmp_path):
    """The kill falls at random: into the making of the file, before it or behind it."""
    rng = random.Random(4)
    for attempt in range(25):
        state_dir = tmp_path / f"state-{attempt}"
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the test's own timeout has a handler; this one kills
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + rng.random() * 0.01)
            try:
                Journal.open(state_dir)
                signal.pause()
            finally:
                os._exit(1)
        os.waitpid(pid, 0)
        begin_story(state_dir)
        assert told(state_dir) == 0
        assert not list(state_dir.glob("*.new*"))


# --- who may open


def test_a_second_host_is_refused_while_the_first_lives_and_welcome_when_it_was_killed(tmp_path):
    state_dir = tmp_path / "state"
    begin_story(state_dir)
    with writer(state_dir) as process:
        process.stdout.readline()
        with pytest.raises(StateDirError, match=f"process {process.pid} on host") as caught:
            Journal.open(state_dir)
        assert caught.value.problem is StateDirProblem.IN_USE
        assert process.stdout.readline(), "it goes on undisturbed"
        process.kill()
        process.wait()
        assert told(state_dir) >= 2


def test_a_forked_child_that_lives_on_does_not_keep_the_directory(tmp_path):
    """And neither does its end disturb the next host."""
    state_dir = tmp_path / "state"
    begin_story(state_dir)
    told_us, tell_us = os.pipe()
    go, let_go = os.pipe()
    host = os.fork()
    if host == 0:
        os.close(let_go)
        journal = Journal.open(state_dir)
        store = JournalCheckpointStore(journal)
        store.load("k")
        child = os.fork()
        if child == 0:
            os.read(go, 1)
            journal.close()
            del journal, store
            os._exit(0)
        write(journal, *story(1))
        os.write(tell_us, str(child).encode())
        os.close(tell_us)
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(tell_us)
    os.close(go)
    os.waitpid(host, 0)
    assert int(os.read(told_us, 20)) > 0
    with Journal.open(state_dir) as journal:
        write(journal, *story(2))
        os.close(let_go)
        os.read(told_us, 1)  # its end, by the last copy of the pipe
        write(journal, *story(3))
    os.close(told_us)
    assert told(state_dir) == 3


# --- cut


def killed_with_a_log(tmp_path, transactions):
    """Return the files of a host that was killed: a database, and all transactions in the log. The last one begins at the offset."""
    state_dir = tmp_path / "state"
    begin_story(state_dir)
    offset = 0
    journal = Journal.open(state_dir)
    for number in range(1, transactions + 1):
        offset = (state_dir / "journal.db-wal").stat().st_size if number > 1 else 0
        write(journal, *story(number))
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    for name in ("journal.db", "journal.db-wal"):
        shutil.copyfile(state_dir / name, copy / name)
    journal.close()
    return copy, offset


def again(tmp_path, copy, length):
    state_dir = tmp_path / "cut"
    shutil.rmtree(state_dir, ignore_errors=True)
    shutil.copytree(copy, state_dir)
    state_dir.chmod(0o700)
    os.truncate(state_dir / "journal.db-wal", length)
    return state_dir


def check_cuts(tmp_path, lengths_of):
    copy, start = killed_with_a_log(tmp_path, 3)
    end = (copy / "journal.db-wal").stat().st_size
    assert end - start < 100_000
    for length in lengths_of(start, end):
        assert told(again(tmp_path, copy, length)) == (3 if length == end else 2), length


FRAME = 4096 + 24


def near_the_edges(start, end):
    edges = range(start, end + 1, FRAME)
    return sorted({length for edge in edges for length in (*range(edge - 2, edge + 3), edge + 24, edge + 1000) if start <= length <= end})


def test_a_log_that_is_cut_in_its_last_transaction_loses_that_and_nothing_else(tmp_path):
    check_cuts(tmp_path, near_the_edges)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_log_that_is_cut_at_every_byte_of_its_last_transaction(tmp_path):
    """A transaction of one small record: it fills few pages, and all of their bytes are tried."""
    state_dir, copy = tmp_path / "state", tmp_path / "copy"
    begin_story(state_dir)
    with Journal.open(state_dir) as journal:
        write(journal, *story(1))
        start = (state_dir / "journal.db-wal").stat().st_size
        write(journal, CheckpointSaved(key="k", checkpoint=Checkpoint("last")))
        end = (state_dir / "journal.db-wal").stat().st_size
        copy.mkdir()
        for name in ("journal.db", "journal.db-wal"):
            shutil.copyfile(state_dir / name, copy / name)
    assert start < end < start + 5 * FRAME
    for length in range(start, end + 1):
        with Journal.open(again(tmp_path, copy, length)) as journal:
            assert Recovery(journal).checkpoint("k") == Checkpoint("last" if length == end else "c-1"), length
            assert len(Recovery(journal).unfinished()) == 1


def test_a_log_with_a_wrong_byte_in_its_last_transaction_loses_that_and_nothing_else(tmp_path):
    copy, start = killed_with_a_log(tmp_path, 3)
    end = (copy / "journal.db-wal").stat().st_size
    for offset in range(start, end, 397):
        state_dir = again(tmp_path, copy, end)
        with (state_dir / "journal.db-wal").open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 0x10]))
        assert told(state_dir) == 2, offset


@pytest.mark.parametrize("length", [0, 1, 15, 16, 99, 100, 4095, 4096, 4097, 20_000])
def test_a_database_that_is_cut_is_refused_and_left_as_it_is(tmp_path, length):
    state_dir = tmp_path / "state"
    begin_story(state_dir)
    path = state_dir / "journal.db"
    os.truncate(path, length)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StateDirError) as caught:
            Journal.open(state_dir)
        assert caught.value.problem is StateDirProblem.DAMAGED
        assert caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("contents", [b"not a database\n" * 1000, b"SQLite format 3\0" + b"\xff" * 10_000, b"SQLite format 3\0"])
def test_garbage_is_refused_and_left_as_it_is_with_its_log(tmp_path, contents):
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    files = {"journal.db": contents, "journal.db-wal": b"also junk" * 100}
    for name, data in files.items():
        (state_dir / name).write_bytes(data)
    with pytest.raises(StateDirError) as caught:
        Journal.open(state_dir)
    assert caught.value.problem is StateDirProblem.DAMAGED
    assert {name: (state_dir / name).read_bytes() for name in files} == files


def test_a_refused_journal_keeps_its_log(tmp_path):
    """A database that is damaged below a log: moving the log into it would be the end of what could be saved."""
    copy, _ = killed_with_a_log(tmp_path, 3)
    data = bytearray((copy / "journal.db").read_bytes())
    log = (copy / "journal.db-wal").read_bytes()
    in_the_log = {int.from_bytes(log[frame : frame + 4]) for frame in range(32, len(log), FRAME)}
    for page in set(range(3, len(data) // 4096 + 1)) - in_the_log:
        data[4096 * (page - 1) : 4096 * page] = b"\xa5" * 4096
    (copy / "journal.db").write_bytes(data)
    with pytest.raises(StateDirError) as caught:
        Journal.open(copy)
    assert caught.value.problem is StateDirProblem.DAMAGED
    assert (copy / "journal.db").read_bytes() == data
    assert (copy / "journal.db-wal").read_bytes() == log


# --- full and broken disks


@contextlib.contextmanager
def room_for(size):
    """No file may grow beyond `size` bytes: a write that would is cut short, and then fails (EFBIG, which SQLite takes for EIO)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def offsets(start, end):
    return sorted({*range(start, end, 1501), *(edge + by for edge in range(start, end, FRAME) for by in (0, 1, 23, 24, 25)), end - 1})


def test_a_write_that_fails_after_k_bytes_loses_its_transaction_as_a_whole_and_the_journal_heals(tmp_path):
    probe = tmp_path / "probe"
    begin_story(probe)
    with Journal.open(probe) as journal:
        write(journal, *story(1))
        start = (probe / "journal.db-wal").stat().st_size
        write(journal, *story(2))
        end = (probe / "journal.db-wal").stat().st_size
    kinds = set()
    for k in offsets(start, end):
        state_dir = tmp_path / f"state-{k}"
        begin_story(state_dir)
        with Journal.open(state_dir) as journal:
            write(journal, *story(1))
            with room_for(k), pytest.raises(StoreFailedError) as caught:
                write(journal, *story(2))
            kinds.add(caught.value.kind)
            assert not journal.healthy
            with room_for(100):
                assert not journal.try_heal()
            assert journal.try_heal()
            assert len(Recovery(journal).unfinished()) == 1
            write(journal, *story(2))
        assert told(state_dir) == 2
        shutil.rmtree(state_dir)
    assert kinds <= {StoreFault.FULL, StoreFault.IO}


def test_a_host_that_dies_of_the_full_disk_leaves_what_it_had_committed(tmp_path):
    state_dir = tmp_path / "state"
    begin_story(state_dir)
    journal = Journal.open(state_dir)
    write(journal, *story(1))
    with room_for((state_dir / "journal.db-wal").stat().st_size + 5000), pytest.raises(StoreFailedError):
        write(journal, *story(2))
    copy = tmp_path / "copy"
    shutil.copytree(state_dir, copy)
    copy.chmod(0o700)
    journal.close()
    assert told(copy) == told(state_dir) == 1


@contextlib.contextmanager
def tmpfs(directory, options):
    """A small disk of its own. Needs root and leave to mount: without them the test is skipped, and says so."""
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(directory)], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip() or 'no leave'}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.skipif(not ROOT, reason="mounting needs root; RLIMIT_FSIZE and max_page_count stand for the full disk elsewhere")
def test_a_disk_that_fills_up_and_gets_room_again(tmp_path):
    with tmpfs(tmp_path / "disk", "size=2m") as disk:
        begin_story(disk / "state")
        with Journal.open(disk / "state") as journal:
            for number in range(1, 6):
                write(journal, *story(number, 20_000))
            ballast = disk / "ballast"
            fill_up(ballast)
            with pytest.raises(StoreFailedError) as caught:
                # The log may have some room left in it.
                write_on(journal, range(6, 1000))
            assert caught.value.kind is StoreFault.FULL
            assert not journal.try_heal()
            assert not journal.healthy
            ballast.unlink()
            assert journal.try_heal()
            following = len(Recovery(journal).unfinished()) + 1
            write(journal, *story(following))
        assert told(disk / "state") == following >= 6


def write_on(journal, numbers):
    for number in numbers:
        write(journal, *story(number, 20_000))


def fill_up(path):
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.writelines(itertools.repeat(b"x" * 4096))


@pytest.mark.skipif(not ROOT, reason="mounting needs root; a directory without leave to write stands for it elsewhere")
def test_a_read_only_disk_is_refused_and_one_that_becomes_it_fails_by_name(tmp_path):
    with tmpfs(tmp_path / "disk", "size=4m") as disk:
        state_dir = disk / "state"
        begin_story(state_dir)
        remount(disk, "ro")
        for place in (state_dir, disk / "new"):
            with pytest.raises(StateDirError) as caught:
                Journal.open(place)
            assert (caught.value.problem, caught.value.path) == (StateDirProblem.READ_ONLY, str(place))
        remount(disk, "rw")
        assert told(state_dir) == 0


def remount(disk, mode):
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)


# --- rights


def opened_by_another_user(state_dir):
    """Try to open it as a user who may not do everything (as root: as nobody; else as ourselves)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if ROOT:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(writing, outcome_of_opening(state_dir).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def outcome_of_opening(state_dir):
    try:
        Journal.open(state_dir)
    except StateDirError as error:
        return f"{error.problem.name} | {error.hint}"
    return "opened"


@pytest.fixture
def open_place():
    """A directory that every user can reach."""
    place = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o755)
    yield place
    for path in place.rglob("*"):
        if path.is_dir():
            path.chmod(0o700)
    shutil.rmtree(place)


def own(path):
    if ROOT:
        os.chown(path, 65534, 65534)


def test_a_directory_that_must_not_be_written_is_refused(open_place):
    state_dir = open_place / "state"
    state_dir.mkdir()
    own(state_dir)
    state_dir.chmod(0o500)
    assert opened_by_another_user(state_dir).startswith("READ_ONLY | give a directory that can be written")
    assert opened_by_another_user(state_dir / "deeper").startswith("READ_ONLY")
    assert list(state_dir.iterdir()) == []


def test_a_journal_that_must_not_be_written_is_refused(open_place):
    state_dir = open_place / "state"
    begin_story(state_dir)
    for path in (state_dir, *state_dir.iterdir()):
        own(path)
    (state_dir / "journal.db").chmod(0o400)
    assert opened_by_another_user(state_dir).startswith("READ_ONLY")
    (state_dir / "journal.db").chmod(0o600)
    assert opened_by_another_user(state_dir).startswith("opened")


@pytest.mark.skipif(not ROOT, reason="only root can give a file to another user")
@pytest.mark.parametrize("name", [".", "lock", "journal.db"])
def test_what_belongs_to_another_user_is_refused(tmp_path, name):
    state_dir = tmp_path / "state"
    begin_story(state_dir)
    os.chown(state_dir / name, 65534, 65534)
    before = (state_dir / "journal.db").stat()
    with pytest.raises(StateDirError, match="belongs to user 65534") as caught:
        Journal.open(state_dir)
    assert caught.value.problem is StateDirProblem.OTHER_USER
    assert (state_dir / "journal.db").stat().st_mtime_ns == before.st_mtime_ns


def test_a_directory_of_ours_becomes_ours_alone(tmp_path):
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    state_dir.chmod(0o777)
    begin_story(state_dir)
    assert state_dir.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_serves_other_ends_keeps_its_mode_unless_others_may_write(tmp_path):
    state_dir = tmp_path / "project"
    state_dir.mkdir()
    (state_dir / "theirs.txt").write_text("x")
    state_dir.chmod(0o777)
    with pytest.raises(StateDirError, match="others may write") as caught:
        Journal.open(state_dir)
    assert caught.value.problem is StateDirProblem.EXPOSED
    assert sorted(path.name for path in state_dir.iterdir()) == ["theirs.txt"]
    state_dir.chmod(0o755)
    begin_story(state_dir)
    assert state_dir.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("name", ["journal.db", "lock", "."])
def test_a_link_or_a_file_in_place_of_what_is_ours_is_refused(tmp_path, name):
    state_dir, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    elsewhere.write_text("theirs")
    if name == ".":
        state_dir.write_text("a file")
    else:
        state_dir.mkdir(mode=0o700)
        (state_dir / name).symlink_to(elsewhere)
    with pytest.raises(StateDirError) as caught:
        Journal.open(state_dir)
    assert caught.value.problem in {StateDirProblem.FOREIGN, StateDirProblem.UNUSABLE}
    assert elsewhere.read_text() == "theirs"


def test_a_directory_that_is_removed_and_made_anew_while_the_host_lives(tmp_path):
    """The first host's lock is worth nothing then, and it must not go on as if it wrote something."""
    state_dir = tmp_path / "state"
    begin_story(state_dir)
    with Journal.open(state_dir) as first:
        shutil.rmtree(state_dir)
        with Journal.open(state_dir) as second:
            write(second, opened(), *story(1))
            with pytest.raises(StoreFailedError) as caught:
                write(first, *story(1))
            assert caught.value.kind is StoreFault.GONE
            assert not first.try_heal()
        assert told(state_dir) == 1
