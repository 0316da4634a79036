"""Callers that race, hang, raise, go away, fork or forget to close; stores and handlers that do not answer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from greenroom import (
    ApprovalPolicy,
    Greenroom,
    GreenroomError,
    NativePermissions,
    NoRunningTurnError,
    SessionStateError,
    Turn,
    TurnCancelledError,
    TurnFailedError,
    TurnRequest,
    WaitTimeoutError,
)
from greenroom.actors import engine, record, worker
from greenroom.events import AssistantText, ToolCall
from greenroom.testing import FakeCheckpointStore, FakeTransport, FakeTurn, RecordingEventHandler
from tests.faults.bench import AT_ONCE, PATIENCE_S, outcome_of, until
from tests.faults.test_poison import bounded

OPTIONS = {"permissions": NativePermissions.bypass(), "approvals": ApprovalPolicy.DENY, "restart": AT_ONCE}


@pytest.fixture
def room():
    with Greenroom() as room:
        yield room


@pytest.fixture
def fake(room, tmp_path):
    """Make a session on outcomes."""

    def make(*outcomes, steerable=True, **options):
        transport = FakeTransport(outcomes or None, steerable=steerable)
        session = room.agent(transport, **OPTIONS, **options.pop("agent", {})).session(tmp_path, **options)
        session.transport = transport
        return session

    return make


def prepare(session, prompt="p"):
    return session.prepare_turn(TurnRequest(prompt=prompt))


def in_thread(call, *args, **kwargs):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(outcome_of(call, *args, **kwargs)), daemon=True)
    thread.start()

    def answer():
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{call} was not answered"
        return answers[0]

    return answer


# --- tickets ---------------------------------------------------------------------------------------------------------------------


def test_a_ticket_runs_once_and_a_second_run_settles_nothing(fake):
    turn = FakeTurn("one", waits=True)
    session = fake(turn)
    ticket = prepare(session)
    first = in_thread(session.run, ticket)
    assert turn.started.wait(PATIENCE_S)
    with pytest.raises(SessionStateError, match="was run already"):
        session.run(ticket)
    assert not ticket.ended
    turn.release()
    assert first().result.text == "one"
    with pytest.raises(SessionStateError):
        session.run(ticket)
    assert ticket.wait(0).result.text == "one"


def test_a_ticket_of_another_session_is_refused_and_still_good_for_its_own(fake):
    mine, other = fake(), fake()
    ticket = prepare(mine)
    with pytest.raises(SessionStateError, match="belongs to"):
        other.run(ticket)
    other.interrupt(ticket)
    assert mine.run(ticket).result.text == "echo: p"


def test_a_superseded_ticket_and_a_cancelled_one_end_by_name(fake):
    session = fake()
    old, new = prepare(session), prepare(session)
    with pytest.raises(SessionStateError, match="superseded"):
        session.run(old)
    session.interrupt(old)
    session.interrupt(new)
    with pytest.raises(TurnCancelledError):
        session.run(new)
    assert session.run(prepare(session)).result.text == "echo: p"


def test_patience_that_ends_leaves_the_turn_to_go_on(fake):
    turn = FakeTurn("late", waits=True)
    session = fake(turn)
    ticket = prepare(session)
    for call in (lambda: session.run(ticket, wait=0.05), lambda: ticket.wait(0.05)):
        with pytest.raises(WaitTimeoutError):
            call()
    with pytest.raises(TimeoutError):
        ticket.wait(0)
    assert session.state == "running"
    turn.release()
    assert ticket.wait(PATIENCE_S).result.text == "late"


# --- events ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["close", "interrupt", "raise", "steer", "run"])
def test_a_listener_may_call_its_own_session(bench, act):
    cli = bench.cli()
    answers = []

    def react(event):
        if not isinstance(event, (AssistantText, ToolCall)):
            return
        cli.react = None
        if act == "raise":
            raise ZeroDivisionError
        call = {
            "close": cli.session.close,
            "interrupt": cli.session.interrupt,
            "steer": lambda: cli.session.steer("x"),
            "run": lambda: cli.session.run(ticket),
        }[act]
        answers.append(outcome_of(call))

    cli.react = react
    ticket = cli.ticket("SAY a\nSLEEP 0.2\nSAY b" if act in {"raise", "run", "steer"} else "SAY a\nHANG")
    outcome = in_thread(cli.session.run, ticket, on_event=cli.on_event)()
    if act == "raise":
        assert isinstance(outcome, ZeroDivisionError)
        assert ticket.wait(PATIENCE_S).result.text == "b"
    elif act in {"close", "interrupt"}:
        assert outcome.result.interrupted
        assert cli.session.closed == (act == "close")
    else:
        assert isinstance(outcome, Turn)
    if act == "run":
        assert isinstance(answers[0], SessionStateError)


def test_a_slow_listener_pauses_its_own_session_only_and_can_still_be_interrupted(bench):
    slow, sibling = bench.cli(), bench.cli()
    stuck, free = threading.Event(), threading.Event()

    def react(event):
        if isinstance(event, AssistantText) and not free.is_set():
            stuck.set()
            free.wait(PATIENCE_S)

    slow.react = react
    begun = slow.begin("SAY loud\n" * 20_000 + "HANG")
    assert stuck.wait(PATIENCE_S)
    sink = begun.ticket._core.sink
    until(lambda: sink.held, "the pause")
    for _ in range(5):
        sibling.run("SAY quick")
    assert sink.outstanding < 20_000, "nothing was paused"  # an interrupt lifts the pause
    slow.session.interrupt()
    assert begun.ticket.wait(PATIENCE_S).result.interrupted
    assert not free.is_set()  # all that while the listener was stuck
    free.set()
    begun.outcome()
    slow.react = None
    assert slow.run("SAY after").result.text == "after"


def test_handlers_that_raise_or_are_slow_cost_no_turn_anything(fake):
    heard = RecordingEventHandler()
    free = threading.Event()

    def raising(event):
        raise ZeroDivisionError

    def slow(event):
        free.wait(PATIENCE_S)

    session = fake(agent={"event_handlers": (raising, heard, slow)})
    began = time.monotonic()
    for _ in range(3):
        session.run(prepare(session))
    assert time.monotonic() - began < PATIENCE_S / 2
    free.set()
    assert heard.wait_for(AssistantText, 3)


@pytest.mark.parametrize("how", ["handler", "store"])
def test_what_never_returns_on_a_side_thread_holds_up_no_close(tmp_path, monkeypatch, how):
    monkeypatch.setattr(record, "STORE_PATIENCE_S", 0.3)
    free = threading.Event()

    class Hanging(FakeCheckpointStore):
        def save(self, key, checkpoint):
            free.wait(PATIENCE_S)

    room = Greenroom()
    handlers = (lambda event: free.wait(PATIENCE_S),) if how == "handler" else ()
    kept = {"checkpoints": Hanging(), "checkpoint_key": "k"} if how == "store" else {}
    session = room.agent(FakeTransport(), **OPTIONS, event_handlers=handlers).session(tmp_path, **kept)
    ticket = prepare(session)
    outcome = in_thread(session.run, ticket)()
    assert outcome.result.text == "echo: p"
    if how == "store":
        assert "has not answered" in session.degraded
    try:
        assert bounded(room.close) == ()
    finally:
        free.set()


def test_a_store_that_raises_degrades_the_session_and_keeps_the_result(fake):
    store = FakeCheckpointStore()
    session = fake(checkpoints=store, checkpoint_key="k")
    store.error = OSError("disk full")
    assert session.run(prepare(session)).result.text == "echo: p"
    assert "disk full" in session.degraded
    store.error = None
    session.run(prepare(session))
    assert store.load("k").conversation_id == session.conversation_id


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), BaseException("x")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["turn", "open", "steer", "interrupt", "close", "save"])
def test_user_code_that_raises_anything_gets_its_turn_an_end(room, tmp_path, where, error):
    started = threading.Event()

    class Own:
        conversation_id = "own-1"

        def turn(self, request, emit):
            started.set()
            if where == "turn":
                raise error
            emit(AssistantText("said"))
            return FakeTransport().open(spec).turn(request, emit)

        def interrupt(self):
            if where == "interrupt":
                raise error

        def steer(self, text):
            if where == "steer":
                raise error

        def close(self):
            if where == "close":
                raise error

    class OwnTransport(FakeTransport):
        def open(self, spec_):
            nonlocal spec
            spec = spec_
            if where == "open":
                raise error
            return Own()

    class Store(FakeCheckpointStore):
        def save(self, key, checkpoint):
            if where == "save":
                raise error

    spec = None
    agent = room.agent(OwnTransport(steerable=True), **OPTIONS)
    session = agent.session(tmp_path, checkpoints=Store(), checkpoint_key="k")
    ticket = prepare(session)
    outcome = in_thread(session.run, ticket)()
    if where in {"turn", "open"}:
        assert isinstance(outcome, TurnFailedError)
        assert outcome.__cause__ is error
    else:
        assert isinstance(outcome, Turn)
    if where == "save":
        assert "store failed" in session.degraded
    bounded(session.close)


# --- races -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_", range(3))
def test_eight_threads_on_one_session_and_each_call_is_answered(bench, round_):
    cli = bench.cli(transport={"interrupt_grace_s": 5.0})
    over = threading.Event()
    outcomes, unexpected = [], []

    def note(call, *expected):
        answer = outcome_of(call)
        if isinstance(answer, BaseException) and not isinstance(answer, expected):
            unexpected.append(answer)
        return answer

    def runner():
        while not over.is_set():
            ticket = note(lambda: cli.ticket("SAY a\nTOOL_SLEEP 0.02 x\nSAY b"), SessionStateError)
            if hasattr(ticket, "turn_id"):
                outcomes.append((ticket, note(lambda ticket=ticket: cli.session.run(ticket), GreenroomError)))

    def steerer():
        while not over.wait(0.001):
            note(lambda: cli.session.steer("more"), NoRunningTurnError)

    def interrupter():
        while not over.is_set():
            over.wait(0.01)
            note(cli.session.interrupt)

    threads = [threading.Thread(target=work, daemon=True) for work in (runner, runner, runner, steerer, steerer, interrupter)]
    for thread in threads:
        thread.start()
    until(lambda: len(outcomes) >= 5, "some turns")
    closers = [in_thread(cli.session.close) for _ in range(2)]
    for answer in closers:
        assert answer() is None
    over.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert not unexpected, unexpected[:3]
    assert outcomes
    for ticket, _ in outcomes:
        assert ticket.ended
        assert type(outcome_of(ticket.wait, 0)) is type(outcome_of(ticket.wait, 0))


def test_sessions_that_begin_while_the_room_closes_are_refused_or_closed(tmp_path):
    for _ in range(10):
        room = Greenroom()
        agent = room.agent(FakeTransport(), **OPTIONS)
        gate = threading.Barrier(5)
        made = []

        def make(agent=agent, gate=gate, made=made):
            gate.wait()
            for _ in range(20):
                session = outcome_of(agent.session, tmp_path)
                made.append(session)
                if isinstance(session, BaseException):
                    return

        makers = [in_thread(make) for _ in range(4)]
        gate.wait()
        bounded(room.close)
        for answer in makers:
            answer()
        for session in made:
            if isinstance(session, BaseException):
                assert isinstance(session, SessionStateError), session
            else:
                bounded(session.close)
                assert isinstance(bounded(lambda session=session: prepare(session)), SessionStateError)


def test_two_rooms_share_a_loop_and_the_claims(tmp_path):
    transport = FakeTransport()
    with Greenroom() as one, Greenroom() as two:
        assert one._engine is two._engine
        first = one.agent(transport, **OPTIONS).session(tmp_path, resume_id="conv-shared")
        with pytest.raises(SessionStateError, match="conv-shared"):
            two.agent(transport, **OPTIONS).session(tmp_path, resume_id="conv-shared")
        other = two.agent(transport, **OPTIONS).session(tmp_path)
        with pytest.raises(SessionStateError, match="conv-shared"):
            other.adopt("conv-shared")
        first.close()
        assert other.adopt("conv-shared")
        one.close()
        assert other.run(prepare(other)).result.session_id == "conv-shared"
    assert engine._engine is None


def test_sessions_of_one_name_in_two_rooms_do_not_share_a_conversation(tmp_path):
    transport = FakeTransport()
    with Greenroom() as one, Greenroom() as two:
        first = one.agent(transport, **OPTIONS).session(tmp_path, session_id="name", resume_id="conv-shared")
        with pytest.raises(SessionStateError, match="held by session 'name'"):
            two.agent(transport, **OPTIONS).session(tmp_path, session_id="name", resume_id="conv-shared")
        two.agent(transport, **OPTIONS).session(tmp_path, session_id="name").close()
        with pytest.raises(SessionStateError, match="held by session 'name'"):
            two.agent(transport, **OPTIONS).session(tmp_path, resume_id="conv-shared")
        with pytest.raises(SessionStateError, match="is open already"):
            one.agent(transport, **OPTIONS).session(tmp_path, session_id="name", resume_id="conv-other")
        with pytest.raises(SessionStateError, match="held by session 'name'"):
            two.agent(transport, **OPTIONS).session(tmp_path, resume_id="conv-shared")
        assert first.run(prepare(first)).result.session_id == "conv-shared"


# --- asyncio ---------------------------------------------------------------------------------------------------------------------


def test_several_event_loops_and_abandoned_streams(fake):
    sessions = [fake(*[FakeTurn(f"t{number}", events=[AssistantText("x")] * 50) for number in range(4)]) for _ in range(3)]

    async def course(session):
        half = session.stream(prepare(session))
        async for _ in half:
            break
        ticket = half._ticket
        del half
        await asyncio.to_thread(ticket.wait, PATIENCE_S)
        events = [event async for event in session.stream(prepare(session))]
        assert len(events) >= 50
        assert [event.sequence for event in events] == sorted(event.sequence for event in events)
        task = asyncio.create_task(session.arun(prepare(session)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        until(lambda: session.state == "idle")
        return (await session.arun(prepare(session))).result.text

    answers = [in_thread(asyncio.run, course(session)) for session in sessions]
    assert [answer() for answer in answers] == ["t3"] * 3


def test_an_event_loop_that_closed_meanwhile_costs_the_turn_nothing(fake):
    turn = FakeTurn("end", waits=True)
    session = fake(turn)
    ticket = prepare(session)

    async def leave():
        session.stream(ticket)
        await asyncio.to_thread(turn.started.wait, PATIENCE_S)

    asyncio.run(leave())
    turn.release()
    assert ticket.wait(PATIENCE_S).result.text == "end"


# --- signals, forks, exits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listening", [True, False])
def test_ctrl_c_in_run_only_detaches(fake, listening):
    turn = FakeTurn("end", waits=True)
    session = fake(turn)
    ticket = prepare(session)

    def strike():
        turn.started.wait(PATIENCE_S)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=strike, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        session.run(ticket, on_event=(lambda event: None) if listening else None)
    assert not ticket.ended
    turn.release()
    assert ticket.wait(PATIENCE_S).result.text == "end"


def script(tmp_path, body, *, expect=0, timeout_s=30):
    """Run a program of a user in a process of its own; return its output and how long it took to end after `MARK`."""
    head = """
        import os, sys, threading, time, pathlib
        from greenroom import *
        from greenroom.testing import FakeTransport, FakeTurn, Plan, write_scripted_claude
        home = pathlib.Path(sys.argv[1])
        binary = write_scripted_claude(home)
        env = {"HOME": str(home), "PATH": os.environ["PATH"], **Plan().env(home)}
        options = {"permissions": NativePermissions.bypass(), "approvals": ApprovalPolicy.DENY}
        def session(prompt=None, **kw):
            agent = Agent(ClaudeStreamTransport(env=env, binary=binary), **options, **kw)
            return agent.session(home)
        def mark():
            print("MARK", time.monotonic(), flush=True)
    """
    source = textwrap.dedent(head) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source, str(tmp_path)], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    ended_s = time.monotonic()
    assert done.returncode == expect, done.stderr
    marks = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("MARK")]
    return done, (ended_s - marks[-1] if marks else None)


@pytest.mark.parametrize(
    "course",
    [
        "s.run(s.prepare_turn(TurnRequest(prompt='SAY a')))",
        "begin(s, 'SAY a\\nHANG')",
        "begin(s, 'IGNORE_INTERRUPT\\nSAY a\\nHANG')",
        "begin(s, 'SPAWN 60\\nSAY a\\nHANG')",
        "s.prepare_turn(TurnRequest(prompt='never'))",
        "hung(s)",
    ],
    ids=["idle", "running", "deaf", "grandchild", "prepared", "hung-handler"],
)
def test_a_script_that_forgets_to_close_ends_soon_and_leaves_nothing(tmp_path, course):
    """Within 5 s on a machine that does nothing else; what hangs here would hang for 60."""
    body = f"""
        def begin(s, prompt):
            said = threading.Event()
            ticket = s.prepare_turn(TurnRequest(prompt=prompt))
            on_event = lambda event: isinstance(event, AssistantText) and said.set()
            threading.Thread(target=s.run, args=(ticket,), kwargs={{"on_event": on_event}}, daemon=True).start()
            assert said.wait(20)
        def hung(s):
            h = session(event_handlers=(lambda event: threading.Event().wait(60),))
            h.run(h.prepare_turn(TurnRequest(prompt='SAY a')))
        s = session()
        {course}
        mark()
    """
    done, took_s = script(tmp_path, body)
    assert took_s < 20, (took_s, done.stderr)
    assert not left_in(tmp_path), done.stderr


def left_in(home):
    """Processes whose working directory is the session's."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(home):
                found.append((process.pid, process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("when", ["idle", "running"])
def test_a_fork_in_the_middle_is_refused_by_name_in_the_child_and_harmless_to_the_parent(tmp_path, when):
    body = f"""
        import signal, warnings
        s = session()
        stream, listener = s._room.events(after=0), s._room.subscribe(lambda event: None)
        s.run(s.prepare_turn(TurnRequest(prompt='SAY a')))
        ticket = s.prepare_turn(TurnRequest(prompt='SLOW 20 0.05\\nSAY b'))
        if {when!r} == "running":
            runner = threading.Thread(target=s.run, args=(ticket,))
            runner.start()
            while s.state != "running" and not ticket.ended:
                time.sleep(0.01)
        pid = os.fork()
        if pid == 0:
            import faulthandler
            faulthandler.dump_traceback_later(10, exit=True)
            code = 0
            calls = [lambda: s.prepare_turn(TurnRequest(prompt='x')), lambda: s.run(ticket), lambda: s.steer('x'), s.release,
                     lambda: s.adopt('x'), lambda: ticket.wait(), lambda: ticket.wait(1), stream.get,
                     lambda: next(iter(stream))]
            for number, call in enumerate(calls):
                try:
                    call()
                except SessionStateError as error:
                    continue
                except BaseException as error:
                    print("call", number, repr(error), file=sys.stderr)
                code = 10 + number
                break
            s._room._audience.hub._lock = None  # whoever held it is not there
            stream.close()
            listener.close()
            s.interrupt()
            s.close()
            if code == 0:
                with Greenroom() as room:
                    own = room.agent(FakeTransport(), **options).session(home)
                    assert own.run(own.prepare_turn(TurnRequest(prompt='x'))).result.text == "echo: x"
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        if {when!r} == "running":
            runner.join()
            assert ticket.wait().result.text == "b"
        else:
            assert s.run(ticket).result.text == "b"
        began = time.monotonic()
        s.close()
        assert time.monotonic() - began < 20, time.monotonic() - began
        mark()
    """
    script(tmp_path, body.replace("warnings\n", "warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"))
    assert not left_in(tmp_path)


# --- idle ------------------------------------------------------------------------------------------------------------------------


def test_an_idle_room_costs_nothing(bench):
    clis = [bench.cli() for _ in range(4)]
    for cli in clis:
        cli.run("SAY a")
    loop = bench.room._engine.loop
    until(lambda: sleeps(loop), "a second in which the loop's thread is not woken")


def sleeps(loop, for_s=1.0):
    before = counts(loop)
    time.sleep(for_s)
    return counts(loop) == before


def counts(loop):
    """The context switches and the CPU time of the loop's thread: a system call that waits again shows as a switch."""
    with open(f"/proc/self/task/{loop._thread.native_id}/status") as status:
        switches = [line.split()[1] for line in status if line.startswith(("voluntary_ctxt", "nonvoluntary_ctxt"))]
    with open(f"/proc/self/task/{loop._thread.native_id}/stat") as stat:
        times = stat.read().rsplit(")", 1)[1].split()[11:13]
    return switches[:1], times


@pytest.mark.parametrize("act", ["release", "close"])
def test_a_conversation_is_over_only_when_its_close_has_returned(room, tmp_path, act):
    """Two writers on one conversation, or a session that says "closed" before it is, otherwise."""
    live, order = [], []

    class Transport(FakeTransport):
        def open(self, spec):
            assert not live, "the one before is still closing"
            conversation = super().open(spec)
            live.append(conversation)
            close = conversation.close

            def slowly():
                time.sleep(0.2)
                close()
                live.remove(conversation)
                order.append("closed")

            conversation.close = slowly
            return conversation

    session = room.agent(Transport(), **OPTIONS).session(tmp_path)
    session.run(prepare(session))
    if act == "release":
        session.release()
        assert session.run(prepare(session)).continuity.value == "continued"
    session.close()
    assert not live
    assert len(order) == (2 if act == "release" else 1)


def test_a_close_that_never_returns_holds_up_its_session_for_a_grace_only(room, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "CLOSE_GRACE_S", 0.3)
    free = threading.Event()

    class Transport(FakeTransport):
        def open(self, spec):
            conversation = super().open(spec)
            conversation.close = lambda: free.wait(PATIENCE_S)
            return conversation

    session = room.agent(Transport(), **OPTIONS).session(tmp_path)
    session.run(prepare(session))
    bounded(session.close)
    free.set()
