"""A question to a process that runs no turn: its answer, and every way in which there is none. Nothing is left running."""

from __future__ import annotations

import os
import pathlib
import sys
import textwrap
import threading

import psutil
import pytest

from greenroom.errors import QueryFailedError, SessionStateError
from greenroom.transports.pipes import Oversized
from greenroom.transports.query import MAX_QUERIES, Place, QueryCodec, ask

ECHO = "for line in sys.stdin: print(line.strip().upper(), flush=True)"


def place(tmp_path: pathlib.Path, program: str, **fields) -> Place:
    argv = (sys.executable, "-c", "import sys, os, time, subprocess\n" + textwrap.dedent(program))
    plain = {"what": "the weather is not known", "timeout_s": 20.0, "close_grace_s": 2.0}
    return Place(argv=argv, cwd=tmp_path, env_for=lambda mark: {**os.environ, "GREENROOM_MARK": mark}, **{**plain, **fields})


def is_alive(pid: str) -> bool:
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def two_questions():
    first = yield b"one\n"
    second = yield b"two\n"
    return [first, second]


def patient():
    line = yield b"go\n"
    while line != b"YES":
        line = yield None
    return "yes"


def test_a_script_is_played_and_the_process_ends_by_eof(tmp_path):
    program = f"{ECHO}\nopen('ended', 'w').close()"
    assert ask(place(tmp_path, program), two_questions()) == [b"ONE", b"TWO"]
    assert (tmp_path / "ended").exists()


def test_what_is_not_the_answer_is_passed_over(tmp_path):
    assert ask(place(tmp_path, "sys.stdin.readline(); print('junk\\n\\n{\\nYES\\nlate', flush=True); sys.stdin.read()"), patient()) == "yes"


def test_a_line_without_its_end_is_read_too(tmp_path):
    assert ask(place(tmp_path, "sys.stdin.readline(); sys.stdout.write('YES')"), patient()) == "yes"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("sys.exit('no such conversation')", "status 1.*no such conversation"),
        ("sys.stdin.readline(); print('half', flush=True); os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("sys.stdin.readline(); sys.stdout.close(); os.close(1); sys.stdin.read()", "ended|closed its standard output"),
    ],
)
def test_a_process_that_ends_first(tmp_path, program, why):
    with pytest.raises(QueryFailedError, match=f"the weather is not known: .*({why})"):
        ask(place(tmp_path, program), patient())


def test_a_process_that_is_silent_is_killed_with_what_it_started(tmp_path):
    program = """
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        open("pids", "w").write(f"{os.getpid()} {child.pid}")
        sys.stdin.readline()
        time.sleep(60)
    """
    with pytest.raises(QueryFailedError, match=r"no answer within 1\.5 s"):
        ask(place(tmp_path, program, timeout_s=1.5), patient())
    assert not any(map(is_alive, (tmp_path / "pids").read_text().split()))


def test_a_process_that_ignores_eof_is_ended_and_the_answer_stands(tmp_path):
    program = "import signal; signal.signal(15, signal.SIG_IGN); sys.stdin.readline(); print('YES', flush=True); time.sleep(60)"
    assert ask(place(tmp_path, program, close_grace_s=0.2), patient()) == "yes"
    assert not psutil.Process().children()


def test_what_the_script_raises_is_raised_when_the_process_has_ended(tmp_path):
    def refused():
        yield b"one\n"
        raise SessionStateError("no")

    with pytest.raises(SessionStateError, match="no"):
        ask(place(tmp_path, f"{ECHO}\nopen('ended', 'w').close()"), refused())
    assert (tmp_path / "ended").exists()


def test_a_line_that_is_too_long_is_told_as_such(tmp_path):
    def long():
        line = yield b"one\n"
        return isinstance(line, Oversized)

    assert ask(place(tmp_path, "sys.stdin.readline(); print('x' * 40_000_000, flush=True); sys.stdin.read()"), long())


def test_what_cannot_be_started(tmp_path):
    broken = Place(what="the weather is not known", argv=(str(tmp_path),), cwd=tmp_path, env_for=lambda mark: {"GREENROOM_MARK": mark})
    with pytest.raises(Exception, match=str(tmp_path)) as raised:
        ask(broken, patient())
    assert not isinstance(raised.value, OSError)


def test_an_interrupted_caller_leaves_nothing(tmp_path):
    def interrupting():
        yield b""
        raise KeyboardInterrupt

    program = "open('pid', 'w').write(str(os.getpid())); print('x', flush=True); sys.stdin.read()"
    with pytest.raises(KeyboardInterrupt):
        ask(place(tmp_path, program), interrupting())
    assert not is_alive((tmp_path / "pid").read_text())


def test_no_more_than_a_few_at_once(tmp_path):
    program = """
        sys.stdin.readline()
        mine = f"{os.getpid()}.on"
        open(mine, "w").close()
        time.sleep(0.2)
        print(len([name for name in os.listdir() if name.endswith(".on")]), flush=True)
        os.remove(mine)
    """

    def count():
        line = yield b"go\n"
        return int(line)

    seen: list[int] = []
    workers = [threading.Thread(target=lambda: seen.append(ask(place(tmp_path, program), count()))) for _ in range(MAX_QUERIES * 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(seen) == MAX_QUERIES * 2
    assert max(seen) <= MAX_QUERIES


def test_a_codec_is_over_once():
    codec = QueryCodec(two_questions(), what="x", timeout_s=5.0)
    assert codec.deadline_s is None
    codec.opened(1.0)
    assert codec.deadline_s == 6.0
    assert not codec.tick(5.9)
    codec.receive(b"a", 2.0)
    codec.receive(b"b", 3.0)
    assert codec.over
    assert codec.answer == [b"a", b"b"]
    assert not codec.receive(b"c", 4.0)
    assert not codec.tick(99.0)
    assert codec.deadline_s is None
