"""An older journal becomes a current one, step by step, and a step that fails leaves the version before it."""

from __future__ import annotations

import sqlite3

import pytest

from greenroom.errors import StateDirError
from greenroom.journal import STANDARD, Journal, Recovery, Retention, Verdict
from greenroom.journal.records import TicketReported
from greenroom.journal.schema import APPLICATION_ID, CORE_TABLES, MIGRATIONS, migrate, version_of
from greenroom.journal.tables import Writer
from greenroom.model import StateDirProblem
from tests.unit.journal.values import named, opened, prepared, sent, spoken, write

# Version 1 word for word, as it was made: what the code says today must not change what a test of yesterday's file means.
VERSION_1 = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, at_s REAL NOT NULL);
CREATE TABLE session (seq INTEGER PRIMARY KEY, session_id NOT NULL UNIQUE, opened TEXT NOT NULL, closed_at_s REAL, last_conversation);
CREATE TABLE ticket (
    seq INTEGER PRIMARY KEY, turn_id NOT NULL UNIQUE, session_id NOT NULL, key, attempt INTEGER NOT NULL DEFAULT 0, receipt, how TEXT,
    conversation_id, incarnation INTEGER NOT NULL DEFAULT 0, taken_attempt INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0,
    reported INTEGER NOT NULL DEFAULT 0, decision TEXT, at_s REAL NOT NULL);
CREATE INDEX ticket_by_key ON ticket (session_id, key) WHERE key IS NOT NULL;
CREATE INDEX ticket_unfinished ON ticket (seq) WHERE reported = 0 AND decision IS NULL;
CREATE TABLE request (turn_id PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE outcome (turn_id PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE checkpoint (key PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE process (pid INTEGER, start_time INTEGER, mark, body TEXT NOT NULL, PRIMARY KEY (pid, start_time, mark)) WITHOUT ROWID;
CREATE TABLE spent (session_id PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE probe (id INTEGER PRIMARY KEY, body BLOB);
CREATE TABLE input (session INTEGER NOT NULL, n INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (session, n)) WITHOUT ROWID;
CREATE TABLE agent_events (
    seq INTEGER PRIMARY KEY, session INTEGER NOT NULL, first_sequence INTEGER NOT NULL, last_sequence INTEGER NOT NULL, turn_id,
    incarnation INTEGER NOT NULL, at_monotonic_s REAL NOT NULL, at_wall_s REAL NOT NULL, body TEXT NOT NULL,
    UNIQUE (session, first_sequence));
INSERT INTO schema_version VALUES (1, 5.0);
"""


@pytest.fixture
def old(state_dir):
    """A directory with a journal of version 1, the first events of whose second session are gone already."""
    state_dir.mkdir(mode=0o700)
    connection = sqlite3.connect(state_dir / "journal.db", isolation_level=None)
    connection.executescript(f"PRAGMA application_id = {APPLICATION_ID}; {VERSION_1}")
    for name in ("s-1", "s-2"):
        connection.execute("INSERT INTO session (session_id, opened) VALUES (?, ?)", (name, STANDARD.encode(opened(name))))
    writer = Writer(connection, STANDARD)
    for record in (prepared(), sent(), named(1), spoken(1, 2), spoken(5, 2, session_id="s-2")):
        writer.write(record, 7.0)
    connection.close()
    return state_dir


def test_an_old_journal_is_brought_up_to_date_and_keeps_what_is_in_it(old):
    for _ in range(2):
        with Journal.open(old, clock_wall=lambda: 9.0) as journal:
            assert journal.rows("SELECT * FROM schema_version") == [(1, 5.0), *((n, 9.0) for n in range(2, len(MIGRATIONS) + 1))]
            recovery = Recovery(journal)
            assert [(ticket.turn_id, ticket.verdict, ticket.at_s) for ticket in recovery.unfinished()] == [("t-1", Verdict.UNKNOWN, 7.0)]
            assert recovery.inputs("s-1") == (named(1).event,)
            assert (recovery.events("s-1").batches, recovery.events("s-1").gaps) == ((spoken(1, 2),), ())
            assert [(gap.first_sequence, gap.last_sequence) for gap in recovery.events("s-2").gaps] == [(1, 4)]
    with Journal.open(old) as journal:
        write(journal, TicketReported(turn_id="t-1"), spoken(7, 1, session_id="s-2"))
        journal.trim(Retention(max_age_s=0.0, max_bytes=10**9))
        assert Recovery(journal).events("s-2").gaps[-1].last_sequence == 7


def schema_of(connection):
    return sorted(" ".join(sql.split()) for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))


def test_version_1_is_what_it_was(tmp_path):
    then, now = sqlite3.connect(":memory:", isolation_level=None), sqlite3.connect(":memory:", isolation_level=None)
    then.executescript(VERSION_1)
    migrate(now, 5.0, MIGRATIONS[:1])
    drop = str.maketrans("", "", " \n")

    def plain(connection):
        return [sql.translate(drop).replace("IFNOTEXISTS", "") for sql in schema_of(connection)]

    assert plain(then) == plain(now)
    then.close()
    now.close()


def test_an_old_journal_and_a_new_one_are_alike(old, tmp_path):
    schemas = []
    for directory in (old, tmp_path / "new"):
        with Journal.open(directory) as journal:
            schemas.append([sql.replace(" ", "").replace("IFNOTEXISTS", "") for sql in schema_of(journal._connection)])
    assert schemas[0] == schemas[1]
    assert len(CORE_TABLES) < len(schemas[0])


STEPS = (("CREATE TABLE a (x)", "INSERT INTO a VALUES (1)"), ("CREATE TABLE b (y)", "INSERT INTO missing VALUES (1)"))


def test_a_step_that_fails_leaves_the_version_before_it():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="missing"):
        migrate(connection, 1.0, STEPS)
    assert version_of(connection) == 1
    assert not connection.in_transaction
    assert not any("TABLE b" in sql for sql in schema_of(connection))
    mended = (STEPS[0], ("CREATE TABLE b (y)",), ("ALTER TABLE a ADD COLUMN z",))
    assert migrate(connection, 2.0, mended) == 1
    assert migrate(connection, 3.0, mended) == 3
    assert connection.execute("SELECT version, at_s FROM schema_version").fetchall() == [(1, 1.0), (2, 2.0), (3, 2.0)]
    connection.close()


def test_a_newer_version_is_refused_and_left_as_it_is(state_dir):
    with Journal.open(state_dir) as journal:
        write(journal, opened())
        journal._connection.execute("INSERT INTO schema_version VALUES (99, 1.0)")
    before = (state_dir / "journal.db").read_bytes()
    for _ in range(2):
        with pytest.raises(StateDirError, match=f"version 99, and this program knows up to version {len(MIGRATIONS)}") as caught:
            Journal.open(state_dir)
        assert caught.value.problem is StateDirProblem.NEWER_VERSION
    assert (state_dir / "journal.db").read_bytes() == before
    assert caught.value.hint


def test_another_programs_database_is_refused(state_dir):
    state_dir.mkdir(mode=0o700)
    path = state_dir / "journal.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StateDirError, match="another program's database") as caught:
        Journal.open(state_dir)
    assert caught.value.problem is StateDirProblem.FOREIGN
    assert path.read_bytes() == before


def test_a_journal_without_tables_is_refused(state_dir):
    state_dir.mkdir(mode=0o700)
    connection = sqlite3.connect(state_dir / "journal.db")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.close()
    with pytest.raises(StateDirError, match="no tables") as caught:
        Journal.open(state_dir)
    assert caught.value.problem is StateDirProblem.DAMAGED


def spoil(path, marker):
    """Damage the bookkeeping of every page that holds `marker`, so that SQLite reads it without a word."""
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        if marker in data[start : start + 4096]:
            data[start + 8 : start + 40] = b"\x0f" * 32
    path.write_bytes(data)


@pytest.mark.parametrize("whole_up_to", [0, 10**9])
@pytest.mark.parametrize(("marker", "checked_always"), [(b"do it", True), (b"Named", False)])
def test_a_small_journal_is_checked_whole_and_of_a_large_one_the_core(state_dir, monkeypatch, whole_up_to, marker, checked_always):
    monkeypatch.setattr("greenroom.journal.files.FULL_CHECK_BYTES", whole_up_to)
    with Journal.open(state_dir) as journal:
        write(journal, opened(), prepared(), *(named(n) for n in range(50)))
    spoil(state_dir / "journal.db", marker)
    if not checked_always and whole_up_to == 0:
        Journal.open(state_dir).close()
        return
    with pytest.raises(StateDirError, match=r"database main .* page") as caught:
        Journal.open(state_dir)
    assert caught.value.problem is StateDirProblem.DAMAGED
    assert "\n" not in str(caught.value)
