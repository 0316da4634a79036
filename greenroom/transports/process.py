"""Starting, ending and reaping one child process. Decides nothing about when; never waits but for a binary that is being replaced.

`LocalExecutor.start` runs on the starter thread (a fork and exec takes milliseconds). A `LocalProcess` has one owner at a time;
`poll`, `terminate` and `kill` may come from any thread. `BlockingProcess` is for tests and scripts without a loop.
"""

from __future__ import annotations

import errno
import os
import pathlib
import selectors
import signal
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Literal

from greenroom.clock import Clock, SystemClock
from greenroom.errors import CliNotFoundError, ProcessClosedError, ProviderCapabilityError, WorkingDirectoryError
from greenroom.transports.base import Process, ProcessExit
from greenroom.transports.binaries import find_binary
from greenroom.transports.marks import VARIABLE, split_marks
from greenroom.transports.pipes import ProcessIO, read_available

_BUSY_DELAYS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
_RESTORED_BY_POPEN = {signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE), signal.SIGKILL, signal.SIGSTOP}

# Started in place of the program when this process ignores signals: an ignored signal stays ignored over an exec, and nothing but the
# child can change that. Then it becomes the program, or tells by the pipe why it cannot.
_RELAY = """
import os, signal, sys
fd, keeps_ctype, path = int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3]
os.set_inheritable(fd, False)
if not keeps_ctype:
    os.environb.pop(b"LC_CTYPE", None)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        pass
try:
    os.execve(path, sys.argv[4:], os.environb)
except OSError as error:
    os.write(fd, str(error.errno).encode())
os._exit(127)
"""

_Stream = Literal["stdout", "stderr"]
_CLOSE_S = 5.0
_NO_PIDFD_S = 0.05
_live: weakref.WeakSet[LocalProcess] = weakref.WeakSet()


def spawn(
    binary: pathlib.Path,
    argv: tuple[str, ...],
    cwd: pathlib.Path,
    env: Mapping[str, str],
    stdio: tuple[int | IO[bytes], int | IO[bytes], int | IO[bytes]],
) -> int:
    """Start a process in a session of its own, with no descriptor but `stdio`, no signal blocked and none ignored; return its pid.

    Raises OSError. The caller reaps it.
    """
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN} - _RESTORED_BY_POPEN
    # The mask of the thread that forks is inherited over the exec.
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        start = _popen_by_relay if ignored and _has_interpreter() else _popen
        return start(str(binary), argv, cwd, env, stdio)
    except ValueError as error:  # a NUL in an argument, a variable's name with "="
        raise OSError(errno.EINVAL, str(error), argv[0]) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _popen(
    binary: str, argv: tuple[str, ...], cwd: pathlib.Path, env: Mapping[str, str], stdio: tuple[int | IO[bytes], ...], *keep: int
) -> int:
    stdin, stdout, stderr = stdio
    popen = subprocess.Popen(  # noqa: S603 - the whole point; no shell
        argv,
        executable=binary,
        cwd=cwd,
        env=dict(env),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=keep,
        start_new_session=True,
    )
    # Popen's destructor would reap the process behind our back, at any later Popen of anybody. We reap, so it is told that it is over.
    popen.returncode = 0
    return popen.pid


def _popen_by_relay(
    binary: str, argv: tuple[str, ...], cwd: pathlib.Path, env: Mapping[str, str], stdio: tuple[int | IO[bytes], ...]
) -> int:
    reading, writing = os.pipe()
    try:
        keeps_ctype = "1" if "LC_CTYPE" in env else "0"
        relay = (sys.executable, "-I", "-S", "-c", _RELAY, str(writing), keeps_ctype, binary, *argv)
        pid = _popen(sys.executable, relay, cwd, env, stdio, writing)
        os.close(writing)
        writing = -1
        why = os.read(reading, 16)  # ends at the exec, which closes the other end
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if not why:
        return pid
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    raise OSError(int(why), os.strerror(int(why)), binary)


def _has_interpreter() -> bool:
    return bool(sys.executable) and not getattr(sys, "frozen", False)  # a frozen program would start itself


class LocalExecutor:
    """Starts processes on this machine. Linux first, macOS as well as it goes; Windows is refused."""

    def __init__(self, clock: Clock | None = None) -> None:
        if os.name != "posix":
            raise ProviderCapabilityError(f"cannot run agents on {sys.platform}: only Linux and macOS are supported")
        self._clock = clock or SystemClock()

    def start(self, argv: tuple[str, ...], cwd: pathlib.Path, env: Mapping[str, str]) -> LocalProcess:
        """Start `argv` in `cwd` with exactly `env`, in a session of its own.

        Raises CliNotFoundError when the program is missing or cannot be executed, WorkingDirectoryError for `cwd`, OSError when the
        machine refuses (no memory, no descriptors, arguments too long). Nothing is left behind then.
        """
        directory = check_directory(cwd)
        binary = _program(argv[0], directory, env)
        pipes = _Pipes()
        try:
            pid = self._spawn_patiently(binary, argv, directory, env, pipes.childs)
        except BaseException:
            pipes.close_ours()
            raise
        finally:
            pipes.close_childs()
        marks = split_marks(env.get(VARIABLE))
        return LocalProcess(pid, argv, marks[-1] if marks else None, pipes.ours)

    def _spawn_patiently(
        self, binary: pathlib.Path, argv: tuple[str, ...], cwd: pathlib.Path, env: Mapping[str, str], stdio: tuple[int, int, int]
    ) -> int:
        for delay_s in _BUSY_DELAYS_S:
            try:
                return spawn(binary, argv, cwd, env, stdio)
            except OSError as error:
                if error.errno != errno.ETXTBSY:
                    raise _explained(error, binary, cwd) from error
            self._clock.wait(delay_s)
        raise CliNotFoundError(str(binary), why="is being written to (text file busy)", hint="try again when its update is done")


class LocalProcess:
    """A child of this process that leads a session and a group of its own. See the `Process` port."""

    def __init__(self, pid: int, argv: tuple[str, ...], mark: str | None, fds: tuple[int | None, int | None, int | None]) -> None:
        self.pid = pid
        self.argv = argv
        self.mark = mark
        self.stdin_fd: int | None
        self.stdout_fd: int | None
        self.stderr_fd: int | None
        self.stdin_fd, self.stdout_fd, self.stderr_fd = fds
        self.exit_fd = _open_pidfd(pid)
        self._exit: ProcessExit | None = None
        self._parent = os.getpid()
        self._lock = threading.Lock()
        _live.add(self)

    def __repr__(self) -> str:
        return f"<LocalProcess {self.pid} {self.argv[0]!r}>"

    def poll(self) -> ProcessExit | None:
        """Reap it if it has ended; never blocks. An empty ProcessExit: somebody else has reaped it."""
        with self._lock:
            if self._exit is None and os.getpid() == self._parent:
                self._exit = _reap(self.pid)
            return self._exit

    def close_stdin(self) -> None:
        """Close its standard input. Idempotent."""
        fd, self.stdin_fd = self.stdin_fd, None
        _close(fd)

    def terminate(self) -> None:
        """Send SIGTERM to its group. Harmless after its end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to its group. Harmless after its end."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Close every descriptor that is left. Idempotent; does not end the process, and `poll` still reaps it."""
        fds = (self.stdin_fd, self.stdout_fd, self.stderr_fd, self.exit_fd)
        self.stdin_fd = self.stdout_fd = self.stderr_fd = self.exit_fd = None
        for fd in fds:
            _close(fd)

    def _signal(self, number: int) -> None:
        # Under the lock nobody reaps meanwhile, and an unreaped process keeps its number, alive or not.
        with self._lock:
            if self._exit is None and os.getpid() == self._parent and self._is_unreaped():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def _is_unreaped(self) -> bool:
        if not hasattr(os, "waitid"):
            return True
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._exit = ProcessExit()
            return False
        return True


class BlockingProcess:
    """A process with blocking calls, for contract suites and scripts. One thread at a time."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._io = ProcessIO(process)
        self._open_streams: set[_Stream] = {"stdout", "stderr"}

    def write(self, data: bytes) -> None:
        """Write `data`; what the process does not take at once goes out during `read`. Raises ProcessClosedError after close or exit."""
        if self._io.poll() is not None:
            raise ProcessClosedError(f"process {self.process.pid} has ended")
        self._io.write(data)

    def read(self, timeout_s: float) -> tuple[_Stream, bytes] | tuple[Literal["exit"], ProcessExit] | None:
        """Return the next output, or the exit once all output was returned (then again and again), or None after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            exited = self._io.poll()  # before the look at the pipes: what it wrote is there by then
            output = self._take("stdout") or self._take("stderr")
            if output is not None:
                return output
            if exited is not None:
                return "exit", exited
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self._wait(left_s)

    def close_stdin(self) -> None:
        """Close its input once all that was written has gone out."""
        self._io.close_stdin_when_flushed()

    def terminate(self) -> None:
        """Send SIGTERM to its group."""
        self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to its group."""
        self.process.kill()

    def close(self) -> None:
        """End the process, if it still runs, and close every descriptor. Idempotent."""
        self.process.kill()
        deadline_s = time.monotonic() + _CLOSE_S
        while self._io.poll() is None and time.monotonic() < deadline_s:
            _select([self.process.exit_fd], [], _CLOSE_S)
        self._io.close()

    def _take(self, stream: _Stream) -> tuple[_Stream, bytes] | None:
        data = read_available(self._fd(stream))
        if data == b"":
            self._open_streams.discard(stream)
        return (stream, data) if data else None

    def _wait(self, timeout_s: float) -> None:
        writers = [self.process.stdin_fd] if self._io.wants_write else []
        _select([self.process.exit_fd, *map(self._fd, self._open_streams)], writers, timeout_s)
        self._io.flush()

    def _fd(self, stream: _Stream) -> int | None:
        return self.process.stdout_fd if stream == "stdout" else self.process.stderr_fd


def _select(readers: list[int | None], writers: list[int | None], timeout_s: float) -> None:
    """Wait until one is ready. Without a descriptor for the exit (no pidfd here) only for a moment, since it could end unseen."""
    if readers[0] is None:
        timeout_s = min(timeout_s, _NO_PIDFD_S)
    with selectors.DefaultSelector() as selector:
        for fds, event in ((readers, selectors.EVENT_READ), (writers, selectors.EVENT_WRITE)):
            for fd in fds:
                if fd is not None:
                    selector.register(fd, event)
        selector.select(timeout_s)


class _Pipes:
    """Three pipes for one start: `childs` ends go to the child, `ours` (non-blocking) stay. All close on exec."""

    def __init__(self) -> None:
        opened: list[tuple[int, int]] = []
        try:
            for _ in range(3):
                opened.append(os.pipe())  # noqa: PERF401 - what was opened must be known when a later one fails
        except OSError:
            for fd in (fd for pair in opened for fd in pair):
                _close(fd)
            raise
        stdin, stdout, stderr = opened
        self.childs = (stdin[0], stdout[1], stderr[1])
        self.ours = (stdin[1], stdout[0], stderr[0])
        for fd in self.ours:
            os.set_blocking(fd, False)

    def close_childs(self) -> None:
        for fd in self.childs:
            _close(fd)

    def close_ours(self) -> None:
        for fd in self.ours:
            _close(fd)


def check_directory(cwd: pathlib.Path) -> pathlib.Path:
    """Return the absolute path of a directory to work in. Raises WorkingDirectoryError."""
    directory = pathlib.Path(cwd).absolute()
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        raise WorkingDirectoryError(str(cwd), error.strerror or str(error)) from error
    if not stat.S_ISDIR(mode):
        raise WorkingDirectoryError(str(cwd), "not a directory")
    if not os.access(directory, os.X_OK):
        raise WorkingDirectoryError(str(cwd), "permission denied")
    return directory


def _program(name: str, cwd: pathlib.Path, env: Mapping[str, str]) -> pathlib.Path:
    """Find the program as an exec in the child would: a bare name on its PATH, a relative path from its directory."""
    if os.sep in name and not name.startswith("~"):
        return find_binary(cwd / name)
    return find_binary(name, env.get("PATH", os.defpath))


def _explained(error: OSError, binary: pathlib.Path, cwd: pathlib.Path) -> Exception:
    if error.filename == str(cwd):
        return WorkingDirectoryError(str(cwd), error.strerror or str(error))
    reasons = {
        errno.ENOENT: "its interpreter is missing" if binary.exists() else "no such file",
        errno.EACCES: "permission denied",
        errno.ENOEXEC: "not a program for this machine (exec format error)",
    }
    why = reasons.get(error.errno or 0)
    return CliNotFoundError(str(binary), why=why) if why else error


def _open_pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # gone already (children are reaped by the kernel here), an old kernel, no descriptor left
        return None


def _reap(pid: int) -> ProcessExit | None:
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return ProcessExit()
    if not reaped:
        return None
    code = os.waitstatus_to_exitcode(status)
    return ProcessExit(signal=-code) if code < 0 else ProcessExit(returncode=code)


def _close(fd: int | None) -> None:
    if fd is not None:
        with suppress(OSError):
            os.close(fd)


def _forget_after_fork() -> None:
    # A forked copy of the host must not hold the pipes: a CLI would never see the end of its input.
    for process in list(_live):
        process.close()


os.register_at_fork(after_in_child=_forget_after_fork)
