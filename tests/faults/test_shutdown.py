"""The end of a room: in order within a grace, by force, at a signal; who began a turn is given what it came to."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import textwrap
import threading

import attrs
import pytest

from greenroom import ApprovalPolicy, Greenroom, NativePermissions, SessionStateError, TurnRequest
from greenroom.testing import FakeTransport, FakeTurn
from greenroom.testing.scripted import Plan
from tests.faults.bench import AT_ONCE, PATIENCE_S, Cli, outcome_of, until
from tests.faults.test_callers import left_in

OPTIONS = {"permissions": NativePermissions.bypass(), "approvals": ApprovalPolicy.DENY, "restart": AT_ONCE}


def in_thread(call, *args, **kwargs):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(outcome_of(call, *args, **kwargs)))
    thread.start()

    def answer():
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{call} was not answered"
        return answers[0]

    return answer


@attrs.define
class House:
    """A room in which one turn runs, one ticket waits to be run and one session is idle."""

    room: Greenroom
    turn: FakeTurn
    busy: object
    result: object
    prepared: object
    waiting: object
    idle: object

    @classmethod
    def make(cls, tmp_path, turn, **room):
        room = Greenroom(**room)
        busy, waiting, idle = (room.agent(FakeTransport([one]), **OPTIONS).session(tmp_path) for one in (turn, FakeTurn(), FakeTurn()))
        result = in_thread(busy.run, busy.prepare_turn(TurnRequest(prompt="p")))
        assert turn.started.wait(PATIENCE_S)
        return cls(room, turn, busy, result, waiting.prepare_turn(TurnRequest(prompt="p")), waiting, idle)

    def closing(self, **times):
        """Begin to close; return once those without a turn are closed."""
        answer = in_thread(self.room.close, **times)
        until(lambda: self.waiting._core.closed.settled and self.idle._core.closed.settled, "the end of those that have nothing to do")
        return answer


@pytest.mark.parametrize("durable", [False, True])
def test_a_turn_that_runs_may_end_within_the_grace_and_nothing_else_begins(tmp_path, durable):
    house = House.make(tmp_path, FakeTurn("whole", waits=True), **({"state_dir": tmp_path / "state"} if durable else {}))
    killed = house.closing(deadline_s=60.0, grace_s=50.0)
    with pytest.raises(SessionStateError, match="closed before"):
        house.waiting.run(house.prepared)
    for session in (house.busy, house.idle):
        with pytest.raises(SessionStateError, match="the room is closed"):
            session.prepare_turn(TurnRequest(prompt="more"))
    house.turn.release()
    turn = house.result()
    assert (turn.result.text, turn.result.interrupted) == ("whole", False)
    assert killed() == ()


def test_a_turn_that_outlasts_the_grace_is_interrupted(tmp_path):
    house = House.make(tmp_path, FakeTurn("half", waits=True))
    killed = house.closing(deadline_s=60.0, grace_s=0.05)
    assert house.result().result.interrupted
    assert killed() == ()


def test_without_a_grace_a_turn_is_interrupted_at_once(tmp_path):
    house = House.make(tmp_path, FakeTurn("half", waits=True))
    assert house.room.close(deadline_s=60.0) == ()
    assert house.result().result.interrupted


def test_another_close_ends_the_grace(tmp_path):
    house = House.make(tmp_path, FakeTurn("half", waits=True))
    killed = house.closing(deadline_s=600.0, grace_s=600.0)
    assert house.room.close(deadline_s=60.0) == ()
    assert house.result().result.interrupted
    assert killed() == ()


def test_who_had_to_be_killed_is_told(tmp_path):
    room = Greenroom()
    deaf = Cli(room, tmp_path / "deaf", Plan(ignore_eof=True), transport={"close_grace_s": 60.0})
    tame = Cli(room, tmp_path / "tame", Plan())
    deaf.run("SAY a")
    tame.run("SAY a")
    assert room.close(deadline_s=1.0) == (deaf.session.id,)


@pytest.mark.parametrize(("deadline_s", "grace_s"), [(1.0, 2.0), (1.0, -1.0), (1.0, float("nan"))])
def test_a_grace_that_cannot_be_is_refused_and_the_room_stays_open(deadline_s, grace_s):
    with Greenroom() as room:
        with pytest.raises(ValueError, match="grace_s must be from 0 to deadline_s"):
            room.close(deadline_s=deadline_s, grace_s=grace_s)
        with pytest.raises(ValueError, match="grace_s must be from 0 to deadline_s"):
            room.close_on_signals(deadline_s=deadline_s, grace_s=grace_s)
        room._check()


# --- signals


HEAD = """
    import asyncio, logging, os, pathlib, signal, sys, threading
    from greenroom import *
    from greenroom.testing import Plan, write_scripted_claude
    logging.basicConfig(level=logging.WARNING)
    home, grace_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    env = {"HOME": str(home), "PATH": os.environ["PATH"], **Plan().env(home)}
    def say(*words):
        print(*words, flush=True)
    def session(room):
        transport = ClaudeStreamTransport(env=env, binary=write_scripted_claude(home), interrupt_grace_s=60)
        return room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY).session(home)
    def on_event(event):
        event = getattr(event, "event", event)
        if isinstance(event, AssistantText):
            say("event", event.text)
    def tell_close(room):
        threading.Event().wait(0.01)
        say("closing") if room._closed else tell_close(room)
"""
BODY = """
    with Greenroom() as room, room.close_on_signals(deadline_s=60, grace_s=grace_s) as closing:
        s = session(room)
        threading.Thread(target=tell_close, args=(room,), daemon=True).start()
        turn = s.run(s.prepare_turn(TurnRequest(prompt=PROMPT)), on_event=on_event)
        say("turn", turn.result.text, turn.result.interrupted)
        AFTER
"""


class Program:
    """A user's program in a process of its own, line by line."""

    def __init__(self, home, prompt, *, grace_s=0.0, after="pass", body=BODY):
        source = textwrap.dedent(HEAD) + textwrap.dedent(body).replace("PROMPT", repr(prompt)).replace("AFTER", after)
        argv = [sys.executable, "-W", "error", "-c", source, str(home), str(grace_s)]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=pathlib.Path(__file__).parents[2]
        )
        self.lines = []

    def until(self, word):
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith(word):
                return line.strip()
        raise AssertionError(f"no {word!r} in {self.lines}: {self.process.stderr.read()}")

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out.splitlines(), err

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def program(tmp_path):
    programs = []

    def start(*args, **kwargs):
        programs.append(Program(tmp_path, *args, **kwargs))
        return programs[-1]

    yield start
    for one in programs:
        one.kill()
    assert not left_in(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_turn_end_in_its_grace_and_the_program_ends_as_told(program, number):
    running = program("SAY begun\nSLEEP 1\nSAY ended", grace_s=50, after="s.prepare_turn(TurnRequest(prompt='never'))")
    running.until("event begun")
    running.send(number)
    code, lines, err = running.end()
    assert code == 128 + number, err
    assert [line for line in lines if line.startswith("turn")] == ["turn ended False"]
    assert not err


def test_a_signal_without_a_grace_interrupts_and_the_program_has_the_turn(program):
    running = program("SAY begun\nHANG")
    running.until("event begun")
    running.send(signal.SIGTERM)
    code, lines, err = running.end()
    assert code == 128 + signal.SIGTERM, err
    assert [line.split()[-1] for line in lines if line.startswith("turn")] == ["True"]


def test_a_second_signal_forces(program):
    running = program("IGNORE_INTERRUPT\nSAY begun\nHANG", grace_s=50)
    running.until("event begun")
    running.send(signal.SIGTERM)
    running.until("closing")
    running.send(signal.SIGTERM)
    code, lines, err = running.end()
    assert code == 128 + signal.SIGTERM, err
    assert not [line for line in lines if line.startswith("turn")]
    assert "SIGTERM: had to kill the processes of" in err


def test_a_second_signal_forces_also_when_only_the_blocks_end_waits(program):
    body = """
    with Greenroom() as room, room.close_on_signals(deadline_s=60, grace_s=grace_s):
        s = session(room)
        ticket = s.prepare_turn(TurnRequest(prompt=PROMPT))
        threading.Thread(target=s.run, args=(ticket,), kwargs={"on_event": on_event}, daemon=True).start()
        tell_close(room)
    """
    running = program("SAY begun\nHANG", grace_s=50, body=body)
    running.until("event begun")
    running.send(signal.SIGTERM)
    running.until("closing")
    running.send(signal.SIGTERM)
    code, _, err = running.end()
    assert code == 128 + signal.SIGTERM, err


def test_an_event_loop_is_given_its_turn_too(program):
    body = """
    async def main(room):
        s = session(room)
        turn = await s.arun(s.prepare_turn(TurnRequest(prompt=PROMPT)), on_event=on_event)
        say("turn", turn.result.text, turn.result.interrupted)
    with Greenroom() as room, room.close_on_signals(deadline_s=60, grace_s=grace_s):
        asyncio.run(main(room))
    """
    running = program("SAY begun\nSLEEP 1\nSAY ended", grace_s=50, body=body)
    running.until("event begun")
    running.send(signal.SIGINT)
    code, lines, err = running.end()
    assert code == 128 + signal.SIGINT, err
    assert lines[-1] == "turn ended False"


def test_an_exception_of_the_program_passes(program):
    running = program("SAY begun\nSLEEP 1\nSAY ended", grace_s=50, after="raise LookupError('mine')")
    running.until("event begun")
    running.send(signal.SIGTERM)
    code, _, err = running.end()
    assert code == 1
    assert "LookupError: mine" in err


def test_without_a_signal_nothing_is_closed_and_the_handlers_are_as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Greenroom() as room:
        with room.close_on_signals() as closing:
            assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
        assert closing.received is None
        assert {number: signal.getsignal(number) for number in before} == before
        room._check()


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Greenroom() as room, room.close_on_signals() as closing:
            signal.raise_signal(signal.SIGTERM)
            assert closing.received is None
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_is_refused():
    with Greenroom() as room:
        assert isinstance(in_thread(room.close_on_signals().__enter__)(), RuntimeError)


def test_signals_come_while_the_program_is_in_the_middle_of_anything(program):
    """The handler may interrupt any step of the main thread, one that holds a lock of `threading` or of a cell included."""
    body = """
    with Greenroom() as room, room.close_on_signals(deadline_s=60):
        say("event")
        while True:
            threading.Thread(target=str).start()
            s = session(room)
            s.close()
    """
    running = program("", body=body)
    running.until("event")
    running.send(signal.SIGTERM)
    code, _, err = running.end()
    assert code == 128 + signal.SIGTERM, err


def test_a_signal_ends_the_demo_in_order():
    demo = subprocess.Popen(
        [sys.executable, "-m", "greenroom", "demo", "--sessions", "4", "--seconds-cap", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=pathlib.Path(__file__).parents[2],
    )
    assert demo.stdout.readline()
    demo.send_signal(signal.SIGTERM)
    out, err = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 128 + signal.SIGTERM, out + err
    assert out.splitlines()[-1] == "stopped"
    assert not err


# --- the host is killed while it ends something

KILLED_IN_A_CLOSE = """
    from greenroom.actors import engine
    from greenroom.actors.runtime import LoopActor, tell
    from greenroom.transports.environment import child_env
    from greenroom.transports.guard import host_id
    from greenroom.transports.marks import make_mark
    from greenroom.transports.process import BlockingProcess, LocalExecutor

    class Killer(LoopActor):
        def handle(self, message):
            os.kill(os.getpid(), signal.SIGKILL)

    told = engine.Engine.tell_sids
    def tell_and_die(self, sids):
        TOLD
        tell(Killer.start(self.loop), signal)  # behind what the guardian was just told
    engine.Engine.tell_sids = tell_and_die

    # A tool: its parent carries our mark, itself it has a cleared environment and a session of its own, and is deaf to SIGTERM.
    TOOL = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid(); print(os.getpid(), flush=True);" \\
        "os.execve('/bin/sleep', ['sleep', '60'], {})"
    PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"
    room = Greenroom()
    s = session(room)
    s.run(s.prepare_turn(TurnRequest(prompt="SAY a")))
    environment = child_env(None, mark=make_mark(host_id(), room.id, s.id, 1), ours={})
    family = LocalExecutor().start((sys.executable, "-c", PARENT, TOOL), home, environment)
    say("tool", BlockingProcess(family).read(10)[1].decode())
    s.close()
    say("closed")
"""


def test_a_tool_with_a_cleared_environment_whose_marked_parent_is_gone_is_ended_when_the_host_is_killed(program):
    running = program("", body=KILLED_IN_A_CLOSE.replace("TOLD", "told(self, sids)"))
    tool = int(running.until("tool").split()[1])
    fd = os.pidfd_open(tool)
    try:
        code, lines, err = running.end()
        assert code == -signal.SIGKILL, (lines, err)
        assert select.select([fd], [], [], 5.0)[0], "the tool outlives its host"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)
