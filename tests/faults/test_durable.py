"""A program that dies by SIGKILL at each boundary of a turn, and what the next one finds in the state directory."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import threading

import psutil
import pytest

from greenroom import (
    Greenroom,
    GreenroomError,
    RetryPolicy,
    SessionCrashedError,
    SessionStateError,
    StateDirError,
    SystemClock,
    ToolCall,
    TurnRequest,
)
from greenroom.actors import messages as m
from greenroom.actors.runtime import tell
from greenroom.journal import STANDARD, Journal, Recovery, Verdict
from greenroom.model import FailureKind
from greenroom.policy.session import replay_on
from greenroom.testing import FakeTransport, FakeTurn, turn_failed
from greenroom.testing.scripted import Plan
from greenroom.transports.base import Flags
from greenroom.transports.marks import scan
from tests.faults.bench import PATIENCE_S, Cli, outcome_of, until
from tests.faults.durable_host import KEY
from tests.faults.test_callers import OPTIONS

ROOT = pathlib.Path(__file__).parents[2]
HANG = "SLEEP 300"


class Host:
    """The program under test, the journal that it leaves, and its CLI."""

    def __init__(self, directory):
        self.state_dir = directory / "journal"
        self.home = directory / "home"
        self.process = None
        self.lines = []
        self.heard = threading.Condition()

    def start(self, do, prompt):
        command = (sys.executable, "-m", "tests.faults.durable_host", str(self.state_dir), str(self.home), do, prompt)
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.heard:
                self.lines.append(line.strip())
                self.heard.notify_all()

    def hears(self, word):
        with self.heard:
            assert self.heard.wait_for(lambda: any(line.split()[0] == word for line in self.lines), PATIENCE_S), self.lines
            return next(line for line in self.lines if line.split()[0] == word)

    def turn_id(self):
        return self.hears("turn").split()[1]

    def reads(self, sql, *values):
        with contextlib.closing(sqlite3.connect(f"file:{self.state_dir}/journal.db?mode=ro", uri=True, timeout=5)) as connection:
            return connection.execute(sql, values).fetchall()

    def waits_for(self, column):
        sql = f"SELECT {column} FROM ticket WHERE turn_id = ?"  # noqa: S608 - our own words
        until(lambda: self.reads(sql, self.turn_id())[0][0], column)

    def kill(self):
        """End it as the kernel would; its guard sees to its CLIs meanwhile, and so will whoever opens the journal."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()

    def clis(self):
        return [found for found in scan().matching(["gr/"]) if str(self.home) in " ".join(cwd_of(found.pid))]

    @contextlib.contextmanager
    def opened(self):
        with Greenroom(state_dir=self.state_dir) as room:
            assert self.clis() == [], "a CLI of the dead host lives"
            yield room

    def cli(self, room, **options):
        return Cli(room, self.home, Plan(), **options)


def cwd_of(pid):
    try:
        return [psutil.Process(pid).cwd()]
    except psutil.Error:
        return []


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path)
    yield host
    if host.process is not None and host.process.poll() is None:
        host.kill()


def agent_of(host, room):
    """An agent on the CLI of the dead host."""
    return Cli(room, host.home, Plan(), session={"session_id": "other"}).agent


def judged(host, *, verdict):
    """Open twice: the same answer, and the verdict that is due."""
    for _ in range(2):
        with host.opened() as room:
            (found,) = room.recovered()
            assert (found.turn_id, found.key, found.session.id) == (host.turn_id(), KEY, "worker")
            assert found.verdict is verdict
    return found


def asked(host, prompt):
    """How often the model was shown the prompt."""
    cli = Cli.__new__(Cli)
    cli.state = host.home / "state"
    return cli.prompts().count(prompt)


# --- each boundary of a turn


def test_killed_before_anything_was_sent(host):
    host.start("prepare", "SAY done")
    host.turn_id()
    host.kill()
    judged(host, verdict=Verdict.NEVER_SENT)
    with host.opened() as room:
        session, ticket = room.recovered()[0].resume(agent_of(host, room))
        assert ticket.turn_id == host.turn_id()
        assert room.recovered() == ()
        turn = session.run(ticket, wait=PATIENCE_S)
        assert (turn.result.text, turn.turn_id) == ("done", host.turn_id())
        assert asked(host, "SAY done") == 1
    with host.opened() as room:
        assert room.recovered() == ()


@pytest.mark.parametrize(("prompt", "sign"), [(f"{HANG}\nSAY done", "attempt"), (f"SAY a word\n{HANG}\nSAY done", "taken_attempt")])
def test_killed_while_the_provider_works(host, prompt, sign):
    host.start("run", prompt)
    host.waits_for(sign)
    host.kill()
    judged(host, verdict=Verdict.UNKNOWN)
    with host.opened() as room:
        conversation_id = room.recovered()[0].session.conversation_id
        session, ticket = room.recovered()[0].resume(agent_of(host, room))
        assert session.conversation_id == conversation_id
        begun = threading.Thread(target=outcome_of, args=(session.run, ticket), daemon=True)
        begun.start()
        until(lambda: session.state == "running", "the turn")
        session.interrupt(ticket)
        turn = ticket.wait(PATIENCE_S)
        begun.join()
        assert (turn.turn_id, turn.conversation_id) == (host.turn_id(), conversation_id)


def test_killed_in_a_tool_the_work_goes_on_and_the_prompt_is_shown_once(host):
    prompt = "SAY one\nTOOL_SLEEP 300\nSAY done"
    host.start("run", prompt)
    host.hears("ToolCall")
    host.waits_for("taken_attempt")
    host.kill()
    judged(host, verdict=Verdict.UNKNOWN)
    with host.opened() as room:
        session, ticket = room.recovered()[0].resume(agent_of(host, room))
        turn = session.run(ticket, wait=PATIENCE_S)
        assert turn.result.text == "done"
        assert asked(host, prompt) == 1
        again = session.prepare_turn(TurnRequest(prompt=prompt), key=KEY)
        assert session.run(again) == turn
        assert session.run(session.prepare_turn(TurnRequest(prompt="next"))).conversation_id == turn.conversation_id


def test_killed_after_the_result_and_before_its_commit(host):
    host.start("run", "SAY one\nSLEEP 3\nSAY done")
    host.waits_for("taken_attempt")
    # Nobody else can write now: the result comes and cannot be recorded.
    with contextlib.closing(sqlite3.connect(host.state_dir / "journal.db", isolation_level=None, timeout=5)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        host.hears("UsageReport")
        assert "ran" not in host.lines
        host.kill()
    found = judged(host, verdict=Verdict.UNKNOWN)
    assert found.outcome is None
    with host.opened() as room:
        session, ticket = room.recovered()[0].resume(agent_of(host, room))
        session.run(ticket, wait=PATIENCE_S)
        assert asked(host, "SAY one\nSLEEP 3\nSAY done") == 1


def test_killed_after_the_commit_and_before_anybody_has_the_outcome(host):
    host.start("leave", "SLEEP 1\nSAY done")
    host.hears("left")
    host.waits_for("ended")
    host.kill()
    found = judged(host, verdict=Verdict.FINISHED_UNREPORTED)
    assert found.outcome.result.text == "done"
    with host.opened() as room:
        session, ticket = room.recovered()[0].resume(agent_of(host, room))
        assert session.run(ticket) == found.outcome
        assert asked(host, "SLEEP 1\nSAY done") == 1
    with host.opened() as room:
        assert room.recovered() == ()


def test_killed_in_a_close(host):
    host.start("close", "SAY done")
    host.hears("closing")
    host.waits_for("reported")
    host.kill()
    with host.opened() as room:
        assert room.recovered() == ()
        session = agent_of(host, room).session(host.home, session_id="worker")
        ticket = session.prepare_turn(TurnRequest(prompt="SAY done"), key=KEY)
        assert (ticket.turn_id, ticket.ended) == (host.turn_id(), True)
        assert session.run(ticket).result.text == "done"
        assert asked(host, "SAY done") == 1


# --- what can be decided


def cut(host, prompt=f"SAY a word\n{HANG}\nSAY done"):
    host.start("run", prompt)
    host.waits_for("taken_attempt")
    host.kill()


def test_what_is_discarded_is_listed_no_more(host):
    cut(host)
    with host.opened() as room:
        (found,) = room.recovered()
        found.discard()
        assert room.recovered() == ()
        with pytest.raises(SessionStateError, match="decided upon"):
            found.resume()
    with host.opened() as room:
        assert room.recovered() == ()


def test_what_is_run_again_is_another_turn_under_the_same_key(host):
    cut(host, "SAY a word\nCRASH_ONCE 15\nSLEEP 2\nSAY done")
    with host.opened() as room:
        (found,) = room.recovered()
        session, ticket = found.rerun(agent_of(host, room))
        assert ticket.turn_id != found.turn_id
        assert session.prepare_turn(found.request, key=KEY).turn_id == ticket.turn_id
    with host.opened() as room:
        assert [one.turn_id for one in room.recovered()] == []  # closed in order before it ran: nothing is open


def test_the_same_key_takes_up_what_was_cut(host):
    prompt = "SAY one\nTOOL_SLEEP 300\nSAY done"
    host.start("run", prompt)
    host.hears("ToolCall")
    host.waits_for("taken_attempt")
    host.kill()
    with host.opened() as room:
        session = agent_of(host, room).session(host.home, session_id="worker")
        with pytest.raises(SessionStateError, match="another request"):
            session.prepare_turn(TurnRequest(prompt="something else"), key=KEY)
        ticket = session.prepare_turn(TurnRequest(prompt=prompt), key=KEY)
        assert ticket.turn_id == host.turn_id()
        assert room.recovered() == ()
        assert session.run(ticket, wait=PATIENCE_S).result.text == "done"
        assert asked(host, prompt) == 1


def test_the_default_agent_is_refused_where_it_would_not_find_the_conversation(host):
    cut(host)
    with host.opened() as room, pytest.raises(GreenroomError, match=r"give its agent|not found"):
        room.recovered()[0].resume()


# --- keys, in one life


@pytest.fixture(params=[True, False], ids=["durable", "in memory"])
def room(request, tmp_path):
    with Greenroom(state_dir=tmp_path / "journal" if request.param else None) as room:
        yield room


def fake(room, tmp_path, *outcomes, **options):
    transport = FakeTransport(outcomes or None, state_home="home")
    session = room.agent(transport, **OPTIONS, retry=RetryPolicy(delays=(0.01,))).session(tmp_path, **options)
    session.transport = transport
    return session


def prepare(session, prompt="p", key="k"):
    return session.prepare_turn(TurnRequest(prompt=prompt), key=key)


def test_a_key_is_one_turn(room, tmp_path):
    session = fake(room, tmp_path)
    ticket = prepare(session)
    assert prepare(session).turn_id == ticket.turn_id
    turn = session.run(ticket)
    for _ in range(2):
        assert session.run(prepare(session), on_event=lambda _: pytest.fail("no event")) == turn
    with pytest.raises(SessionStateError, match="another request"):
        prepare(session, "q")
    assert session.run(prepare(session, "q", key="other")).turn_id != turn.turn_id


def test_the_key_of_a_turn_that_failed_gives_its_error(room, tmp_path):
    session = fake(room, tmp_path, turn_failed(FailureKind.AUTH), FakeTurn("ok"))
    errors = [outcome_of(session.run, prepare(session)) for _ in range(2)]
    assert [error.kind for error in errors] == [FailureKind.AUTH] * 2


@pytest.mark.parametrize("how", ["superseded", "cancelled"])
def test_the_key_of_a_turn_that_never_ran_prepares_the_same_turn_again(room, tmp_path, how):
    session = fake(room, tmp_path)
    ticket = prepare(session)
    if how == "cancelled":
        session.interrupt(ticket)
    else:
        session.prepare_turn(TurnRequest(prompt="x"))
    again = prepare(session)
    assert again.turn_id == ticket.turn_id
    assert session.run(again).result.text == "echo: p"


def test_the_key_of_a_running_turn_is_that_turn(room, tmp_path):
    turn = FakeTurn("one", waits=True)
    session = fake(room, tmp_path, turn)
    ticket = prepare(session)
    begun = threading.Thread(target=session.run, args=(ticket,), daemon=True)
    begun.start()
    turn.started.wait(PATIENCE_S)
    same = prepare(session)
    turn.release()
    assert same.wait(PATIENCE_S).result.text == "one"
    begun.join()


# --- a session goes on


def test_a_session_of_a_name_goes_on_in_its_conversation(tmp_path):
    with Greenroom(state_dir=tmp_path / "j") as room:
        session = fake(room, tmp_path, session_id="s")
        first = session.run(prepare(session))
        with pytest.raises(SessionStateError, match="open already"):
            fake(room, tmp_path, session_id="s")
        session.close()
        again = fake(room, tmp_path, session_id="s")
        assert again.conversation_id == first.conversation_id
    for number in range(2):
        with Greenroom(state_dir=tmp_path / "j") as room:
            session = fake(room, tmp_path, session_id="s")
            assert session.conversation_id == first.conversation_id
            assert session.run(prepare(session)) == first
            turn = session.run(prepare(session, key=f"k{number}"))
            assert turn.conversation_id == first.conversation_id
            session.close()
            with pytest.raises(ValueError, match="takes no resume_id"):
                fake(room, tmp_path, session_id="s", resume_id="c")


@pytest.mark.parametrize("every", [1, 7, 200])
def test_what_is_on_record_replays_to_the_live_state_in_each_life(tmp_path, every):
    codec = STANDARD.extended([Flags])
    for number in range(3):
        with Greenroom(state_dir=tmp_path / "j") as room:
            session = fake(room, tmp_path, turn_failed(FailureKind.TRANSIENT), FakeTurn("ok"), session_id="s")
            session._core.ledger.snapshot_every = every
            session.run(prepare(session, key=f"k{number}"))
            prepare(session, key="open")
            history, opened = room._consult("history", "s"), room._consult("session", "s").opened
            assert (history.state is None) == (every == 200)
            replayed = replay_on(history.origin(opened.settings), history.inputs)
            assert codec.encode(replayed) == codec.encode(session._ref._actor_weakref()._state)


def test_events_are_numbered_on(tmp_path):
    for number in range(2):
        with Greenroom(state_dir=tmp_path / "j") as room:
            session = fake(room, tmp_path, session_id="s")
            session.run(prepare(session, key=f"k{number}"), on_event=lambda _: None)
    with Journal.open(tmp_path / "j", classes=[Flags]) as journal:
        history = Recovery(journal).events("s")
        assert history.gaps == ()
        assert len({batch.turn_id for batch in history.batches} - {None}) == 2
        assert history.batches[-1].last_sequence == sum(len(batch.events) for batch in history.batches)


def test_a_state_directory_has_one_host(tmp_path):
    with Greenroom(state_dir=tmp_path / "j"), pytest.raises(StateDirError):
        Greenroom(state_dir=tmp_path / "j")
    Greenroom(state_dir=tmp_path / "j").close()


# --- actors of ours that crash


def poison(session):
    """A defect of ours: a message that cannot be handled."""
    for _ in range(2):
        tell(session._core.ref, m.Spent(incarnation=1, usage=object()))


def crashed(session):
    ref = session._core.ref
    poison(session)
    until(lambda: session._core.ref is not ref, "its successor")


@pytest.fixture
def durable(tmp_path):
    with Greenroom(state_dir=tmp_path / "j") as room:
        yield room


def test_a_session_that_crashes_in_a_turn_goes_on_under_its_id_and_ends_it_once(durable, tmp_path):
    cli = Cli(durable, tmp_path / "cli", Plan())
    cli.run("first")
    prompt = "SAY one\nTOOL_SLEEP 3\nSAY done"
    begun = cli.begin(prompt)
    cli.wait_for(ToolCall)
    crashed(cli.session)
    turn = begun.outcome()
    assert (turn.result.text, turn.restarts) == ("done", 1)
    assert cli.prompts().count(prompt) == 1
    assert cli.run("SAY next").conversation_id == turn.conversation_id
    numbers = [(batch.first_sequence, batch.last_sequence) for batch in durable._consult("events", cli.session.id).batches]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(numbers))


def test_a_session_that_crashes_between_turns_keeps_its_prepared_ticket_and_its_conversation(durable, tmp_path):
    cli = Cli(durable, tmp_path / "cli", Plan())
    first, ticket = cli.run("first"), cli.ticket("SAY second")
    crashed(cli.session)
    turn = cli.session.run(ticket, wait=PATIENCE_S)
    assert (turn.result.text, turn.conversation_id) == ("second", first.conversation_id)
    assert len(cli.starts) == 2


def test_a_session_whose_inputs_were_dropped_for_a_snapshot_goes_on_after_a_crash_in_a_turn(durable, tmp_path):
    cli = Cli(durable, tmp_path / "cli", Plan())
    cli.session._core.ledger.snapshot_every = 3
    first, ran = cli.run("first"), cli.session.prepare_turn(TurnRequest(prompt="SAY second"), key="k")
    second = cli.session.run(ran, wait=PATIENCE_S)
    begun = cli.begin("SAY one\nTOOL_SLEEP 2\nSAY done")
    cli.wait_for(ToolCall)
    assert durable._consult("history", cli.session.id).state is not None
    crashed(cli.session)
    turn = begun.outcome()
    assert (turn.result.text, turn.conversation_id) == ("done", first.conversation_id)
    assert ran.wait(0) == second


def test_a_session_that_crashes_in_a_wait_goes_on_waiting(durable, tmp_path):
    cli = Cli(durable, tmp_path / "cli", Plan(), retry=RetryPolicy(delays=(0.5,)))
    begun = cli.begin("API_ERROR 529 overloaded_error busy 1\nSAY done")
    until(lambda: cli.session.state == "waiting", "the wait")
    crashed(cli.session)
    assert begun.outcome().result.text == "done"


def test_a_session_that_keeps_crashing_is_given_up(durable, tmp_path):
    cli = Cli(durable, tmp_path / "cli", Plan())
    begun = cli.begin("TOOL_SLEEP 60")
    cli.wait_for(ToolCall)
    for _ in range(3):
        crashed(cli.session)
    poison(cli.session)
    assert isinstance(begun.outcome(), SessionCrashedError)
    assert cli.session._core.closed.wait(PATIENCE_S, SystemClock())
    assert cli.session.closed


def test_a_session_that_crashes_as_it_is_closed_closes(durable, tmp_path):
    cli = Cli(durable, tmp_path / "cli", Plan())
    begun = cli.begin("TOOL_SLEEP 60")
    cli.wait_for(ToolCall)
    poison(cli.session)
    cli.session.close()
    outcome = begun.outcome()
    assert getattr(outcome, "result", None) is None or outcome.result.interrupted
    assert cli.session.closed


def test_without_a_journal_a_crash_ends_the_session(tmp_path):
    with Greenroom() as room:
        session = fake(room, tmp_path)
        ticket = prepare(session)
        poison(session)
        assert isinstance(outcome_of(ticket.wait, PATIENCE_S), SessionCrashedError)
