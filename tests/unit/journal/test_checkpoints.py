"""The checkpoint store in the journal: the contract, other threads, the owner's transaction, failures."""

from __future__ import annotations

import os
import sqlite3
import threading

import pytest

from greenroom.errors import JournalError, StoreFailedError
from greenroom.journal import Journal, JournalCheckpointStore, Recovery
from greenroom.model import Checkpoint, ProviderUsage, StoreFault, TokenUsage
from greenroom.testing import CheckpointStoreContract
from greenroom.transports.checkpoints import CheckpointStore
from tests.unit.journal.values import opened, prepared, write


class TestJournalCheckpointStore(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _journal(self, journal):
        self.journal = journal

    def make_store(self):
        store = JournalCheckpointStore(self.journal)
        assert isinstance(store, CheckpointStore)
        return store


@pytest.fixture
def store(journal):
    return JournalCheckpointStore(journal)


def test_a_checkpoint_is_there_for_the_next_host_usage_and_all(state_dir):
    usage = ProviderUsage(tokens=TokenUsage(input=3), total_cost_usd=0.1, raw={"total": [1, {"x": None}]})
    with Journal.open(state_dir) as journal:
        JournalCheckpointStore(journal).save("k", Checkpoint("c-1", usage))
    with Journal.open(state_dir) as journal:
        assert JournalCheckpointStore(journal).load("k") == Checkpoint("c-1", usage) == Recovery(journal).checkpoint("k")


def test_a_reader_does_not_wait_for_the_owners_transaction(journal, store):
    store.save("k", Checkpoint("c-1"))
    found = []
    journal.begin()
    journal.put(opened())
    reader = threading.Thread(target=lambda: found.append(store.load("k")))
    reader.start()
    reader.join(1.0)
    assert found == [Checkpoint("c-1")]
    journal.commit()


def test_on_the_owners_thread_a_write_joins_the_open_transaction(journal, store):
    journal.begin()
    store.save("k", Checkpoint("c-1"))
    assert store.load("k") is None, "not committed yet"
    journal.rollback()
    assert store.load("k") is None
    journal.begin()
    store.save("k", Checkpoint("c-2"))
    journal.commit()
    assert store.load("k") == Checkpoint("c-2")


def test_a_writer_on_another_thread_waits_until_the_owner_commits(journal, store):
    journal.begin()
    journal.put(opened())
    writer = threading.Thread(target=store.save, args=("k", Checkpoint("c-1")))
    writer.start()
    journal.put(prepared())
    journal.commit()
    writer.join(5.0)
    assert store.load("k") == Checkpoint("c-1")


def test_a_writer_that_waits_too_long_fails_by_name_and_the_next_write_succeeds(journal, store):
    store.load("k")
    store._connection.execute("PRAGMA busy_timeout = 20")
    journal.begin()
    journal.put(opened())
    caught = []

    def save():
        try:
            store.save("k", Checkpoint("c-1"))
        except StoreFailedError as error:
            caught.append(error.kind)

    writer = threading.Thread(target=save)
    writer.start()
    writer.join(5.0)
    assert caught == [StoreFault.BUSY]
    journal.commit()
    store.save("k", Checkpoint("c-2"))
    assert store.load("k") == Checkpoint("c-2")
    assert journal.healthy


def test_many_threads_write_and_the_owner_too(journal, store):
    def save(number):
        for turn in range(20):
            store.save(f"k-{number}", Checkpoint(f"c-{turn}"))

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    write(journal, opened())
    for number in range(20):
        write(journal, prepared(f"t-{number}"))
    for thread in threads:
        thread.join()
    assert [store.load(f"k-{number}") for number in range(4)] == [Checkpoint("c-19")] * 4
    assert len(Recovery(journal).unfinished()) == 20


def test_when_the_journal_is_closed_the_store_says_so(journal, store):
    store.save("k", Checkpoint("c-1"))
    journal.close()
    for call in (lambda: store.load("k"), lambda: store.save("k", Checkpoint("c-2")), lambda: store.clear("k")):
        with pytest.raises(StoreFailedError) as caught:
            call()
        assert caught.value.kind is StoreFault.CLOSED


def test_a_checkpoint_that_cannot_be_written_or_read_is_a_journal_error(journal, store):
    store.save("k", Checkpoint("c-1"))
    with pytest.raises(JournalError, match="not declared"):
        store.save("k", Checkpoint(object()))
    assert store.load("k") == Checkpoint("c-1")
    journal._connection.execute("UPDATE checkpoint SET body = '1'")
    with pytest.raises(JournalError, match="a int is kept"):
        store.load("k")


def test_in_a_fork_the_store_refuses(journal, store):
    store.save("k", Checkpoint("c-1"))
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            store.load("k")
        except StoreFailedError as error:
            os.write(writing, error.kind.value.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        assert told.read() == "forked"
    os.waitpid(pid, 0)


def test_a_failure_of_the_store_leaves_the_journal_well(journal, store):
    store.load("k")
    store._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreFailedError) as caught:
        store.save("k", Checkpoint("c-1"))
    assert caught.value.kind is StoreFault.READ_ONLY
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    store.save("k", Checkpoint("c-1"))
    assert journal.healthy
