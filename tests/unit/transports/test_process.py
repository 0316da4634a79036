"""Starting, reading, ending and reaping real children."""

import errno
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from greenroom.errors import CliNotFoundError, ProcessClosedError, WorkingDirectoryError
from greenroom.transports.base import ProcessExit
from greenroom.transports.process import BlockingProcess, LocalExecutor

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def python(script):
    return (sys.executable, "-I", "-S", "-c", script)


def open_fds():
    return {int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.exists()}


@pytest.fixture
def start(tmp_path):
    started = []

    def start(*argv, cwd=tmp_path, env=ENV):
        process = BlockingProcess(LocalExecutor().start(argv, cwd, env))
        started.append(process)
        return process

    before = open_fds()
    yield start
    for process in started:
        process.close()
        assert process.process.poll() is not None
    assert open_fds() == before


def everything(process, timeout_s=20):
    """Read to the exit; return stdout, stderr and the exit."""
    got = {"stdout": b"", "stderr": b""}
    while (item := process.read(timeout_s)) is not None:
        kind, data = item
        if kind == "exit":
            return got["stdout"], got["stderr"], data
        got[kind] += data
    raise AssertionError(f"silent after {got}")


# --- the blocking face ---


def test_what_is_written_can_be_read_back(start):
    process = start("cat")
    process.write(b"hello\n")
    assert process.read(5) == ("stdout", b"hello\n")
    process.close_stdin()
    assert process.read(5) == ("exit", ProcessExit(returncode=0))
    assert process.read(0) == ("exit", ProcessExit(returncode=0))


def test_output_comes_before_the_exit_and_stays_on_its_stream(start):
    assert everything(start("sh", "-c", "echo out; echo err >&2; exit 7")) == (b"out\n", b"err\n", ProcessExit(returncode=7))


def test_silence_gives_none(start):
    assert start("cat").read(0.05) is None


@pytest.mark.parametrize(("end", "number"), [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)])
def test_a_signal_ends_it_and_is_the_cause(start, end, number):
    process = start("cat")
    getattr(process, end)()
    assert process.read(5) == ("exit", ProcessExit(signal=number))
    getattr(process, end)()  # harmless


def test_writing_after_close_or_exit_raises(start):
    process = start("cat")
    process.close_stdin()
    with pytest.raises(ProcessClosedError):
        process.write(b"late")
    process = start("true")
    assert everything(process)[2] == ProcessExit(returncode=0)
    with pytest.raises(ProcessClosedError):
        process.write(b"late")


def test_reading_goes_on_when_one_stream_ends_early(start):
    script = "import os; os.close(1); os.write(2, b'alive'); os.read(0, 1); os.write(2, b'!')"
    process = start(*python(script))
    assert process.read(5) == ("stderr", b"alive")
    assert process.read(0.05) is None
    process.write(b"x")
    assert everything(process) == (b"", b"!", ProcessExit(returncode=0))


# --- what the child gets ---


def test_the_child_leads_a_session_and_a_group_and_has_exactly_the_environment(start, tmp_path):
    script = "import os, sys; print(os.getsid(0) == os.getpgid(0) == os.getpid(), os.getcwd(), sorted(os.environ))"
    out, _, _ = everything(start(*python(script), env={**ENV, "LC_ALL": "C.UTF-8"}))
    assert out.decode().strip() == f"True {tmp_path} {['LC_ALL', 'PATH']}"


def test_no_descriptor_but_three_reaches_the_child(start):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        out, _, _ = everything(start(*python("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])")))
        assert out.strip() == b"[0, 1, 2]"
    finally:
        os.close(read)
        os.close(write)


_SIGNALS = """
import signal
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if line.startswith("Sig"))
print(int(status["SigBlk"], 16), [s for s in (1, 2, 3, 15, 17) if int(status["SigIgn"], 16) >> (s - 1) & 1])
"""


def test_blocked_signals_of_the_starting_thread_do_not_reach_the_child(start):
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        process = start(*python(_SIGNALS))
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    assert everything(process)[0].startswith(b"0 ")


_IGNORING_HOST = """
import signal, sys, pathlib, select
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
from greenroom.errors import CliNotFoundError
from greenroom.transports.process import BlockingProcess, LocalExecutor
directory, script = pathlib.Path(sys.argv[1]), sys.argv[2]
process = BlockingProcess(LocalExecutor().start((sys.executable, "-I", "-S", "-c", script), directory, {"A": "b"}))
print(process.read(10))
process.close()
(directory / "junk").write_bytes(b"\\x7fELF junk")
(directory / "junk").chmod(0o755)
try:
    LocalExecutor().start((str(directory / "junk"),), directory, {})
except CliNotFoundError as error:
    print(error)
"""


def test_signals_that_the_host_ignores_are_not_ignored_by_the_child(tmp_path):
    script = _SIGNALS + "import os; print(dict(os.environb))"
    done = subprocess.run(
        [sys.executable, "-c", _IGNORING_HOST, str(tmp_path), script], capture_output=True, text=True, check=True, timeout=30
    )
    output, refusal = done.stdout.splitlines()
    assert "0 []" in output
    assert "{b'A': b'b'}" in output or "{b'A': b'b', b'LC_CTYPE'" in output  # the script's own interpreter may add it
    assert "exec format error" in refusal


_BARE_HOST = """
import os, pathlib, sys
os.closerange(0, 3)
from greenroom.transports.process import BlockingProcess, LocalExecutor
process = BlockingProcess(LocalExecutor().start(("sh", "-c", "cat; echo err >&2"), pathlib.Path("/"), {"PATH": "/usr/bin:/bin"}))
process.write(b"hello")
process.close_stdin()
items = [process.read(10) for _ in range(3)]
pathlib.Path(sys.argv[1]).write_text(repr(items))
"""


def test_a_host_without_standard_streams_of_its_own(tmp_path):
    out = tmp_path / "out"
    subprocess.run([sys.executable, "-c", _BARE_HOST, str(out)], check=True, timeout=30)
    assert out.read_text() == "[('stdout', b'hello'), ('stderr', b'err\\n'), ('exit', ProcessExit(returncode=0, signal=None))]"


def test_the_mark_is_the_last_of_the_list(start):
    assert start("cat", env={**ENV, "GREENROOM_MARK": "outer:gr/h/r/s/1"}).process.mark == "gr/h/r/s/1"
    assert start("cat").process.mark is None


def test_a_bare_name_is_looked_up_on_the_childs_path_and_a_relative_one_from_its_directory(start, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("#!/bin/sh\necho $0\n")
    (tmp_path / "bin" / "tool").chmod(0o755)
    for name in ("tool", "bin/tool"):
        out, _, _ = everything(start(name, env={"PATH": str(tmp_path / "bin")}))
        assert out.strip().decode() == str(tmp_path / "bin" / "tool")


# --- what cannot be started ---


def file(path, text, mode=0o755):
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        ("no-such-cli", lambda path: "no-such-cli", "not found on PATH"),
        ("gone", str, "no such file"),
        ("plain", lambda path: file(path, "x", 0o644), "not executable"),
        ("junk", lambda path: file(path, "\x7fELF no"), "exec format error"),
        ("script", lambda path: file(path, "#!/no/such/interpreter\n"), "interpreter is missing"),
    ],
)
def test_a_program_that_cannot_be_run_is_named_with_the_reason(start, tmp_path, name, make, why):
    with pytest.raises(CliNotFoundError, match=why):
        start(make(tmp_path / name))


@pytest.mark.parametrize(("make", "why"), [(lambda p: None, "No such file"), (Path.touch, "not a directory")])
def test_a_directory_that_cannot_be_entered_is_named(start, tmp_path, make, why):
    make(tmp_path / "cwd")
    with pytest.raises(WorkingDirectoryError, match=why) as caught:
        start("true", cwd=tmp_path / "cwd")
    assert caught.value.path == str(tmp_path / "cwd")


@pytest.mark.parametrize(
    ("argv", "env", "number"),
    [(("true", "x" * 3_000_000), ENV, errno.E2BIG), (("true", "nul\0"), ENV, errno.EINVAL), (("true",), {**ENV, "a=b": "c"}, errno.EINVAL)],
)
def test_anything_else_is_an_oserror(start, argv, env, number):
    with pytest.raises(OSError) as caught:
        start(*argv, env=env)
    assert caught.value.errno == number


def test_a_binary_that_is_being_written_is_waited_for(start, tmp_path):
    path = tmp_path / "busy"
    path.write_bytes(Path("/bin/true").read_bytes())
    path.chmod(0o755)
    writer = path.open("r+b")
    timer = threading.Timer(0.1, writer.close)
    timer.start()
    try:
        assert everything(start(str(path)))[2] == ProcessExit(returncode=0)
    finally:
        timer.join()


class ImpatientClock:
    """Waits take no time and are counted."""

    def __init__(self):
        self.waited_s = 0.0

    def wait(self, seconds, stop=None):
        self.waited_s += seconds
        return False


def test_a_binary_that_stays_busy_is_given_up(tmp_path):
    path = tmp_path / "busy"
    path.write_bytes(Path("/bin/true").read_bytes())
    path.chmod(0o755)
    clock = ImpatientClock()
    with path.open("r+b"), pytest.raises(CliNotFoundError, match="busy"):
        LocalExecutor(clock).start((str(path),), tmp_path, ENV)
    assert 1 < clock.waited_s < 3


def test_too_few_descriptors_leave_nothing_behind(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_fds()
    lowest = max(before) + 1
    try:
        for spare in range(8):  # runs out in each of the pipes, and in those of the start itself
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, hard))
            try:
                process = LocalExecutor().start(("true",), tmp_path, ENV)
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017 - either way is right
            else:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                BlockingProcess(process).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_fds() == before


# --- ends ---


def test_the_exit_descriptor_tells_the_end(start):
    process = start("cat").process
    assert process.poll() is None
    process.close_stdin()
    assert select.select([process.exit_fd], [], [], 5)[0]
    assert process.poll() == ProcessExit(returncode=0)


def test_a_process_that_somebody_else_reaped_has_an_unknown_end_and_gets_no_signal(start, monkeypatch):
    signals = []
    monkeypatch.setattr(os, "killpg", lambda *call: signals.append(call))
    process = start("true").process
    os.waitpid(process.pid, 0)
    process.kill()  # the number may be anybody's by now
    assert signals == []
    assert process.poll() == ProcessExit()


def test_an_unreaped_leader_still_ends_its_group(start):
    process = start("sh", "-c", "sleep 60 & echo $!").process
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    sleeper = os.pidfd_open(int(os.read(process.stdout_fd, 20)))
    try:
        assert not select.select([sleeper], [], [], 0)[0]
        process.kill()
        assert select.select([sleeper], [], [], 5)[0]
    finally:
        os.close(sleeper)


def test_close_ends_nothing_and_the_end_is_still_reaped(start):
    blocking = start("sleep", "60")
    process = blocking.process
    process.close()
    process.close()
    assert process.poll() is None
    assert (process.stdin_fd, process.stdout_fd, process.stderr_fd, process.exit_fd) == (None,) * 4


def test_a_forked_copy_of_the_host_holds_no_pipe_and_sends_no_signal(start):
    process = start("cat")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests
        pid = os.fork()
    if pid == 0:
        process.process.kill()
        kept = process.process.stdin_fd is None and process.process.poll() is None
        signal.pause() if kept else os._exit(1)
    try:
        process.close_stdin()
        assert process.read(5) == ("exit", ProcessExit(returncode=0))
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
