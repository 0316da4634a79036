"""Real children that misbehave, and hosts that die. Each test ends what it started, and nothing else."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
import warnings
from pathlib import Path

import pytest

from greenroom.transports import guard_script
from greenroom.transports.environment import child_env
from greenroom.transports.guard import Guard, host_id
from greenroom.transports.marks import Sweep, host_prefix, make_mark, scan
from greenroom.transports.pipes import Oversized, ProcessIO
from greenroom.transports.process import BlockingProcess, LocalExecutor

PATIENCE_S = 30
BASE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
# Leaves: a child that ignores SIGTERM, a daemon (double fork, own session), a child with a cleared environment in the same session,
# and one with a cleared environment in a session of its own. Says when all run, then ignores everything itself.
FAMILY = """
import os, signal, sys, subprocess
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sleeper = ["sleep", "300"]
pids = [os.getpid(), subprocess.Popen(sleeper).pid]
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        os.execvp("sleep", sleeper)
    os._exit(0)
os.wait()
pids.append(int(os.read(read, 20)))
pids.append(subprocess.Popen(sleeper, env={}).pid)
pids.append(subprocess.Popen(sleeper, env={}, start_new_session=True).pid)
print(*pids, flush=True)
while True:
    signal.pause()
"""

# Starts a child with a cleared environment in its own session, and returns from that only when the child has let go of the mark.
UNMARKED = """
import os, subprocess
print(subprocess.Popen(["sleep", "300"], env={}).pid, flush=True)
os.execvp("sleep", ["sleep", "300"])
"""


def python(script):
    return (sys.executable, "-I", "-S", "-c", script)


def gone(fds, timeout_s):
    """Wait until the processes behind these pidfds have ended; return how many have not."""
    left, deadline_s = set(fds), time.monotonic() + timeout_s
    while left and time.monotonic() < deadline_s:
        left -= set(select.select(list(left), [], [], max(0.0, deadline_s - time.monotonic()))[0])
    return len(left)


@pytest.fixture
def mark():
    """A mark of this test alone; what carries it at the end is ended."""
    mark = make_mark(str(uuid.uuid4()), "room", "session", 1)
    yield mark
    end_all(mark)


def end_all(mark, sids=None):
    sweep = Sweep([mark], sids)
    while not (sweep.done or sweep.given_up):
        sweep.round(signal.SIGKILL)
        select.select([], [], [], 0.01)
    assert sweep.done
    return sweep


@pytest.fixture
def start(mark, tmp_path):
    started = []

    def start(*argv, env=BASE):
        process = LocalExecutor().start(argv, tmp_path, child_env(env, mark=mark, ours={}))
        started.append(BlockingProcess(process))
        return process

    yield start
    end_all(mark)  # while the parents of the unmarked live
    for blocking in started:
        blocking.close()


@pytest.fixture
def watched():
    """Pidfds for pids, closed at the end."""
    fds = []

    def watch(*pids):
        fds.extend(os.pidfd_open(pid) for pid in pids)
        return fds

    yield watch
    for fd in fds:
        os.close(fd)


class Owner:
    """What a loop does with a ProcessIO, in a few lines."""

    def __init__(self, process, **options):
        self.io = ProcessIO(process, **options)
        self.lines = []
        self.errors = []

    def run(self, *, until=lambda owner: False, timeout_s=30):
        deadline_s = time.monotonic() + timeout_s
        while not (until(self) or self.io.drained):
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"stuck after {len(self.lines)} lines, {len(self.errors)} of stderr"
            self.round(left_s)
        return self

    def round(self, timeout_s):
        process, io = self.io.process, self.io
        ends = ((process.stdout_fd, io.stdout_eof), (process.stderr_fd, io.stderr_eof), (process.exit_fd, io.exit))
        select.select([fd for fd, over in ends if not over], [process.stdin_fd] if io.wants_write else [], [], timeout_s)
        io.poll()
        io.flush()
        self.lines += io.read_stdout()
        self.errors += io.read_stderr()


# --- pipes ---


def test_two_megabytes_of_stderr_come_before_the_first_line(start):
    script = "import sys; sys.stderr.write(('e' * 99 + '\\n') * 20_000); sys.stderr.flush(); print('ready')"
    owner = Owner(start(*python(script))).run()
    assert owner.lines == [b"ready"]
    assert len(owner.errors) == 20_000
    assert owner.io.stderr_tail.count("\n") == 39


@pytest.mark.parametrize("size", [64 * 1024, 1024 * 1024, 20_000_000])
def test_long_lines_come_whole_and_the_stream_stays_in_step(start, size):
    script = f"import os, sys; sys.stdout.write('a\\n' + 'x' * {size} + '\\nb\\n')"
    lines = Owner(start(*python(script))).run().lines
    assert [len(line) for line in lines] == [1, size, 1]


def test_a_line_over_the_limit_is_one_marker(start):
    lines = Owner(start(*python("print('a\\n' + 'x' * 3_000_000 + '\\nb')")), line_limit=1_000_000).run().lines
    assert lines[0::2] == [b"a", b"b"]
    assert isinstance(lines[1], Oversized)
    assert lines[1].size > 1_000_000


def test_a_line_without_an_end_is_reported_while_it_grows(start):
    owner = Owner(start(*python("import sys\nwhile True: sys.stdout.write('x' * 4096)")), line_limit=100_000)
    owner.run(until=lambda owner: owner.io.stdout_bytes > 1_000_000)
    assert len(owner.lines) == 1


def test_junk_nul_crlf_and_a_half_line_at_the_end(start):
    script = "import os; os.write(1, b'\\xff\\xfe banner\\r\\n\\0\\n{\"a\":1}\\r\\nhalf')"
    assert Owner(start(*python(script))).run().lines == [b"\xff\xfe banner", b"\0", b'{"a":1}', b"half"]


def test_characters_written_byte_by_byte(start):
    script = "import os\nfor byte in 'ä🚀漢\\n'.encode(): os.write(1, bytes([byte])); os.write(2, bytes([byte]))"
    owner = Owner(start(*python(script))).run()
    assert owner.lines == ["ä🚀漢".encode()]
    assert owner.errors == ["ä🚀漢"]


def test_both_sides_write_at_once(start):
    script = "import sys\nfor line in sys.stdin: sys.stdout.write(line * 2)"
    owner = Owner(start(*python(script)))
    sent = [b"%07d" % number + b"x" * 1000 for number in range(5000)]  # 5 MB in, 10 MB out
    for line in sent:
        owner.io.write(line + b"\n")
    owner.io.close_stdin_when_flushed()
    assert owner.run().lines == [line for line in sent for _ in (1, 2)]


def test_a_child_that_does_not_read_delays_nobody(start):
    process = start("sleep", "300")
    io = ProcessIO(process)
    began_s = time.monotonic()
    for _ in range(50):
        io.write(b"x" * 100_000 + b"\n")
    assert time.monotonic() - began_s < PATIENCE_S
    assert io.wants_write
    process.kill()
    owner = Owner(process)
    owner.io = io
    owner.run()
    assert owner.io.exit.signal == signal.SIGKILL


def test_it_dies_while_a_prompt_is_being_written(start):
    owner = Owner(start(*python("import os; os.read(0, 70_000); os.kill(os.getpid(), 9)")))
    owner.io.write(b"x" * 5_000_000)
    owner.run()
    assert owner.io.exit.signal == signal.SIGKILL
    assert not owner.io.flush() or not owner.io.wants_write


def test_a_grandchild_that_holds_the_pipes_does_not_delay_the_end(start):
    owner = Owner(start("sh", "-c", "sleep 300 & echo last words; echo why >&2; exit 3")).run()
    assert (owner.lines, owner.errors) == ([b"last words"], ["why"])
    assert owner.io.exit.returncode == 3
    assert not owner.io.stdout_eof


def test_a_closed_stdout_is_seen_though_the_process_lives(start):
    owner = Owner(start("sh", "-c", "exec >&-; sleep 300"))
    owner.run(until=lambda owner: owner.io.stdout_eof)
    assert owner.io.poll() is None


def test_ctrl_c_in_the_hosts_group_reaches_no_child(start):
    process = start("sleep", "300")
    assert os.getpgid(process.pid) == os.getsid(process.pid) == process.pid != os.getpgid(0)


# --- what a session leaves behind ---


def test_the_whole_family_is_found_and_ended(start, mark, watched):
    process = start(*python(FAMILY))
    pids = list(map(int, BlockingProcess(process).read(PATIENCE_S)[1].split()))
    fds = watched(*pids)
    assert {found.pid for found in scan().matching([mark])} == set(pids[:3])  # two have a cleared environment
    process.terminate()
    assert gone(fds, 0.2) == 5  # all ignore it, or do not hear it
    sweep = end_all(mark)
    assert gone(fds, PATIENCE_S) == 0
    assert sweep.unended == ()


def test_after_its_death_a_cleared_environment_is_found_by_the_session_seen_before(start, mark, watched):
    process = start(*python(UNMARKED))
    orphan = int(BlockingProcess(process).read(PATIENCE_S)[1])
    fds = watched(orphan)
    before = scan()
    sids = before.sids_of(before.matching([mark]))
    assert set(sids) == {process.pid}
    os.kill(process.pid, signal.SIGKILL)
    Owner(process).run()
    assert scan().matching([mark]) == []
    end_all(mark)
    assert gone(fds, 0.1) == 1  # the mark alone does not lead to it
    end_all(mark, sids)
    assert gone(fds, PATIENCE_S) == 0


def test_one_session_is_ended_and_its_neighbour_is_not(start, mark, tmp_path):
    other_mark = mark.replace("/session/", "/session2/")
    neighbour = BlockingProcess(LocalExecutor().start(("sleep", "300"), tmp_path, child_env(BASE, mark=other_mark, ours={})))
    try:
        process = start("sleep", "300")
        end_all(mark)
        assert Owner(process).run().io.exit.signal == signal.SIGKILL
        assert neighbour.process.poll() is None
        assert [found.pid for found in scan().matching([mark.rsplit("/", 2)[0] + "/"])] == [neighbour.process.pid]
    finally:
        neighbour.close()


def test_a_room_inside_a_tool_is_found_by_the_marks_of_both(start, mark, monkeypatch):
    monkeypatch.setenv("GREENROOM_MARK", "gr/outer/r/s/1")
    process = start("sleep", "300")
    outer = [found for found in scan().matching(["gr/outer/r/s/1"]) if found.pid == process.pid]
    assert len(outer) == 1
    assert process.mark == mark


def test_a_process_is_found_as_soon_as_it_is_started(start, mark):
    for _ in range(50):
        process = start("sleep", "300")
        assert process.pid in {found.pid for found in scan().matching([mark])}
        process.kill()


def test_zombies_are_not_alive(start, mark):
    process = start("true")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert scan().matching([mark]) == []


# --- the guard ---

HOST = """
import pathlib, sys, signal, json, os
from greenroom.transports.environment import child_env
from greenroom.transports.guard import Guard, host_id
from greenroom.transports.marks import host_prefix, make_mark, scan
from greenroom.transports.process import BlockingProcess, LocalExecutor
prefix = host_prefix(host_id())
guard = Guard.start([prefix])
process = LocalExecutor().start((sys.executable, "-I", "-S", "-c", sys.argv[1]), pathlib.Path("/"),
    child_env(None, mark=make_mark(host_id(), "r", "s", 1), ours={}))
family = BlockingProcess(process).read(30)[1].decode().split()
if "fork" in sys.argv:  # a copy that does not run the hooks after a fork, as one made in C would not
    import ctypes
    if ctypes.CDLL(None).fork() == 0:
        os.setsid()
        signal.pause()
print(json.dumps({"prefix": prefix, "guard": guard.pid, "family": [int(pid) for pid in family]}), flush=True)
if "exit" in sys.argv:
    sys.exit()
signal.pause()
"""


class Host:
    """A host of its own, with a guard and a family of children."""

    def __init__(self, *options):
        argv = [sys.executable, "-c", HOST, FAMILY, *options]
        self.popen = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
        told = json.loads(self.popen.stdout.readline())
        self.prefix, self.guard, self.family = told["prefix"], told["guard"], told["family"]
        self.fds = [os.pidfd_open(pid) for pid in (*self.family, self.guard)]

    def close(self):
        self.popen.kill()
        self.popen.stdout.close()
        self.popen.wait()
        end_all(self.prefix)
        gone(self.fds, 10)
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def host(request):
    host = Host(*getattr(request, "param", ()))
    yield host
    host.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_host_that_dies_leaves_nothing(host, number):
    host.popen.send_signal(number)
    assert gone(host.fds, PATIENCE_S) == 0
    assert scan().matching([host.prefix]) == []


def test_the_guard_holds_no_output_of_the_host_open(host):
    ours = f"pipe:[{os.fstat(host.popen.stdout.fileno()).st_ino}]"
    assert ours in outputs(host.popen.pid)
    assert ours not in outputs(host.guard)


def outputs(pid):
    return {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}


def test_a_host_that_forgets_to_close_leaves_nothing():
    host = Host("exit")
    try:
        assert host.popen.stdout.read() == b""
        assert gone(host.fds, PATIENCE_S) == 0
    finally:
        host.close()


def test_a_forked_copy_that_holds_the_lifeline_hides_no_death(watched):
    host = Host("fork")
    copy = next(
        entry for entry in scan()._entries.values() if entry.parent == host.popen.pid and entry.pid not in (*host.family, host.guard)
    )
    try:
        host.popen.kill()
        assert gone(host.fds, PATIENCE_S) == 0
    finally:
        os.kill(copy.pid, signal.SIGKILL)
        host.close()


@pytest.mark.parametrize("reaped", [True, False])
def test_a_guard_that_starts_when_its_host_is_dead_does_not_wait_for_a_lifeline_that_a_copy_holds(reaped):
    host = subprocess.Popen(["true"])
    os.waitid(os.P_PID, host.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        host.wait()
    script = Path(guard_script.__file__)
    argv = [sys.executable, "-I", "-S", str(script), str(host.pid), "", f"gr/{uuid.uuid4()}"]
    guard = subprocess.Popen(argv, stdin=subprocess.PIPE)
    try:
        assert guard.wait(PATIENCE_S) == 0
    finally:
        guard.kill()
        guard.stdin.close()
        guard.wait()
        host.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1])
def test_the_guard_outlives_what_a_terminal_or_a_service_manager_sends(guard, mark, start, number):
    process = start("sleep", "300")
    wait_ready(guard)
    os.kill(guard.pid, number)
    assert gone([guard.exit_fd], 0.1) == 1
    guard.abandon()
    assert gone([guard.exit_fd, process.exit_fd], PATIENCE_S) == 0


def wait_ready(guard):
    """Wait until the guard ignores signals."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        ignored = Path(f"/proc/{guard.pid}/status").read_text().partition("SigIgn:")[2].split()[0]
        if int(ignored, 16) >> (signal.SIGTERM - 1) & 1:
            return
        select.select([], [], [], 0.01)
    raise AssertionError("the guard is not ready")


@pytest.fixture
def guard(mark):
    guard = Guard.start([mark.rsplit("/", 3)[0] + "/"])
    yield guard
    guard.close()
    if guard.exit_fd is not None:
        assert gone([guard.exit_fd], PATIENCE_S) == 0
    assert guard.poll() is not None
    guard.release()


def test_an_orderly_close_ends_the_guard_and_nothing_else(guard, mark, start):
    process = start("sleep", "300")
    guard.close()
    guard.close()
    assert gone([guard.exit_fd], PATIENCE_S) == 0
    assert guard.poll().returncode == 0
    assert process.poll() is None


def test_a_guard_that_dies_is_noticed_and_its_successor_knows_what_it_knew(mark, start, watched):
    process = start(*python(UNMARKED))
    fds = watched(int(BlockingProcess(process).read(PATIENCE_S)[1]))
    first = Guard.start([mark])
    before = scan()
    first.tell_sids(before.sids_of(before.matching([mark])))
    assert first.poll() is None
    os.kill(first.pid, signal.SIGKILL)
    assert gone([first.exit_fd], PATIENCE_S) == 0
    assert first.poll().signal == signal.SIGKILL
    second = first.restart()
    first.release()
    os.kill(process.pid, signal.SIGKILL)  # not the group: the orphan has no mark, and its session no other member
    Owner(process).run()
    second.abandon()
    assert gone([*fds, second.exit_fd], PATIENCE_S) == 0
    assert second.poll().returncode == 0
    second.release()


def test_nonsense_on_the_lifeline_does_not_end_the_guard(guard, mark, start):
    process = start("sleep", "300")
    for order in (b"junk\n", b"[]\n", b'{"sids": 3}\n', b'{"sids": {"x": "y"}}\n', b'{"prefixes": 5}\n', b"\xff\0\n"):
        os.write(guard._process.stdin_fd, order)
    guard.abandon()
    assert gone([guard.exit_fd, process.exit_fd], PATIENCE_S) == 0
    assert guard.poll().returncode == 0


def test_a_guard_for_others_ends_nothing_of_ours(start):
    process, guard = start("sleep", "300"), Guard.start([host_prefix(str(uuid.uuid4()))])
    guard.abandon()
    assert gone([guard.exit_fd], PATIENCE_S) == 0
    assert guard.poll().returncode == 0
    guard.release()
    assert process.poll() is None


def test_a_forked_copy_has_another_host_id_and_lets_go_of_the_guard(guard):
    read, write = os.pipe()
    ours = host_id()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests
        pid = os.fork()
    if pid == 0:
        os.write(write, host_id().encode() + (b" gone" if guard._process.stdin_fd is None else b" held"))
        os._exit(0)
    os.waitpid(pid, 0)
    theirs, lifeline = os.read(read, 100).decode().split()
    os.close(read)
    os.close(write)
    assert ours == host_id() != theirs
    assert lifeline == "gone"
    assert guard.poll() is None
