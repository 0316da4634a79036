"""Bytes of a child process: lines out of its output, a tail of its stderr, a buffer before its input.

Never blocks, never waits, owns no selector and no thread: whoever owns a `ProcessIO` calls it when a descriptor is ready (the loop
thread, or a blocking caller), always one thread at a time.
"""

from __future__ import annotations

import codecs
import os
from collections import deque

import attrs

from greenroom.errors import ProcessClosedError
from greenroom.transports.base import Process, ProcessExit

LINE_LIMIT = 32 * 1024 * 1024
STDERR_LINES = 40
STDERR_LINE_BYTES = 4096
_READ_BYTES = 64 * 1024
_WRITE_BYTES = 1024 * 1024


@attrs.frozen
class Oversized:
    """A line that passed the limit and is dropped; `size` is what had come of it when it did."""

    size: int


class LineSplitter:
    """Cuts a stream of bytes into lines at LF, without their end (CR LF counts as one). Pure.

    A line is held once, whatever the size of the pieces. One that passes `limit` bytes is reported as soon as it does, since it
    may never end; what is left of it is skipped, and the next line comes whole.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._half = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | Oversized]:
        """Take the next bytes; return the lines that they complete."""
        *ended, rest = data.split(b"\n")
        found: list[bytes | Oversized] = []
        if ended and not self._half and not self._skipping:
            for piece in ended:
                self._take(piece, found)
        elif ended:
            self._grow(ended[0], found)
            self._end(found)
            for piece in ended[1:]:
                self._take(piece, found)
        if rest:
            self._grow(rest, found)
        return found

    def finish(self) -> bytes | None:
        """Return the line that lacks its end, if there is one, and forget it."""
        half, self._half, self._skipping = self._half, bytearray(), False
        return bytes(half.removesuffix(b"\r")) or None

    def _take(self, piece: bytes, found: list[bytes | Oversized]) -> None:
        """Take a line that came whole: it need not be put together."""
        found.append(piece.removesuffix(b"\r") if len(piece) <= self._limit else Oversized(len(piece)))

    def _grow(self, piece: bytes, found: list[bytes | Oversized]) -> None:
        if self._skipping:
            return
        size = len(self._half) + len(piece)
        if size <= self._limit:
            self._half += piece
            return
        found.append(Oversized(size))
        self._half = bytearray()
        self._skipping = True

    def _end(self, found: list[bytes | Oversized]) -> None:
        if not self._skipping:
            found.append(bytes(self._half).removesuffix(b"\r"))
            self._half.clear()
        self._skipping = False


class StderrTail:
    """The last lines of a process's stderr, as text. Pure, and bounded: `lines` lines of at most `line_bytes` each."""

    def __init__(self, lines: int = STDERR_LINES, line_bytes: int = STDERR_LINE_BYTES) -> None:
        self._line_bytes = line_bytes
        self._lines: deque[str] = deque(maxlen=lines)
        self._half = bytearray()
        self._cut = False

    @property
    def text(self) -> str:
        """The lines kept, the unfinished one included."""
        half = [self._decoded()] if self._half else []
        return "\n".join([*self._lines, *half])

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the lines that they complete."""
        *ended, rest = data.split(b"\n")
        found = []
        for piece in ended:
            self._grow(piece)
            found.append(self._end())
        self._grow(rest)
        return found

    def finish(self) -> list[str]:
        """End the line that lacks its end, if there is one."""
        return [self._end()] if self._half else []

    def _grow(self, piece: bytes) -> None:
        room = self._line_bytes - len(self._half)
        self._cut = self._cut or len(piece) > room
        self._half += piece[:room]

    def _end(self) -> str:
        line = self._decoded()
        self._lines.append(line)
        self._half.clear()
        self._cut = False
        return line

    def _decoded(self) -> str:
        # A cut line may end in half a character: that half is dropped, not shown as damage.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(bytes(self._half), final=not self._cut).removesuffix("\r")


class WriteBuffer:
    """Bytes that wait for a non-blocking descriptor. Nothing is copied, however often a write is partial."""

    def __init__(self) -> None:
        self._chunks: deque[memoryview] = deque()
        self.pending_bytes = 0
        self.broken = False

    def append(self, data: bytes) -> None:
        """Put `data` behind what waits. After a broken pipe it is dropped."""
        if data and not self.broken:
            self._chunks.append(memoryview(bytes(data)))
            self.pending_bytes += len(data)

    def flush(self, fd: int, max_bytes: int = _WRITE_BYTES) -> bool:
        """Write what `fd` takes now, up to about `max_bytes`; return True when nothing waits any more.

        When nobody reads the other end any more, what waits is dropped and `broken` is set.
        """
        while self._chunks and max_bytes > 0:
            written = self._write(fd)
            if written is None:
                return False
            max_bytes -= written
        return not self._chunks

    def _write(self, fd: int) -> int | None:
        try:
            written = os.write(fd, self._chunks[0])
        except BlockingIOError:
            return None
        except OSError:
            self._break()
            return 0
        self._advance(written)
        return written

    def _advance(self, written: int) -> None:
        self.pending_bytes -= written
        rest = self._chunks.popleft()[written:]
        if rest:
            self._chunks.appendleft(rest)

    def _break(self) -> None:
        self.broken = True
        self.pending_bytes = 0
        self._chunks.clear()


class ProcessIO:
    """The three pipes and the end of one process, for an owner that knows when a descriptor is ready.

    The owner registers `process.stdout_fd`, `stderr_fd`, `exit_fd`, and `stdin_fd` while `wants_write`. It unregisters a
    descriptor as soon as `stdout_eof`, `stderr_eof` or not `wants_write` says so: the input's may be closed by then, and its
    number free for another process. After the exit it reads on until `drained`, for a short time at most (a grandchild that
    holds a pipe and goes on writing must not delay the end), and calls `finish_stdout`.
    """

    def __init__(self, process: Process, *, line_limit: int = LINE_LIMIT, stderr_lines: int = STDERR_LINES) -> None:
        self.process = process
        self.exit: ProcessExit | None = None
        self.stdout_eof = process.stdout_fd is None
        self.stderr_eof = process.stderr_fd is None
        self.stdout_bytes = 0
        self.stderr_bytes = 0
        self._splitter = LineSplitter(line_limit)
        self._tail = StderrTail(stderr_lines)
        self._buffer = WriteBuffer()
        self._stdin_ends = process.stdin_fd is None
        self._stdout_empty = False
        self._stderr_empty = False

    # --- output ---

    def read_stdout(self, max_bytes: int = 4 * _READ_BYTES) -> list[bytes | Oversized]:
        """Read what is there, up to `max_bytes`; return the lines completed. At the end of the stream a last half line counts."""
        lines: list[bytes | Oversized] = []
        exited = self.exit is not None
        while max_bytes > 0 and not self.stdout_eof:
            data = read_available(self.process.stdout_fd, max_bytes)
            if data is None:
                self._stdout_empty = exited
                break
            max_bytes -= len(data)
            self.stdout_bytes += len(data)
            lines += self._splitter.feed(data) if data else self.finish_stdout()
            if len(data) < _READ_BYTES and not exited:
                break  # it was all there was; a read to see nothing costs as much as this one
        return lines

    def finish_stdout(self) -> list[bytes | Oversized]:
        """Expect no more output; return the half line, if there is one. Idempotent."""
        self.stdout_eof = True
        half = self._splitter.finish()
        return [] if half is None else [half]

    def read_stderr(self, max_bytes: int = 4 * _READ_BYTES) -> list[str]:
        """Read what is there, up to `max_bytes`; return the lines completed. At the end of the stream a last half line counts."""
        lines: list[str] = []
        exited = self.exit is not None
        while max_bytes > 0 and not self.stderr_eof:
            data = read_available(self.process.stderr_fd, max_bytes)
            if data is None:
                self._stderr_empty = exited
                break
            max_bytes -= len(data)
            self.stderr_bytes += len(data)
            self.stderr_eof = not data
            lines += self._tail.feed(data) if data else self._tail.finish()
        return lines

    @property
    def stderr_tail(self) -> str:
        """The last lines of stderr."""
        return self._tail.text

    # --- input ---

    def write(self, data: bytes) -> None:
        """Queue `data` and write what goes through at once. Raises ProcessClosedError when the input is closed or closing."""
        if self._stdin_ends:
            raise ProcessClosedError(f"process {self.process.pid} takes no more input")
        self._buffer.append(data)
        self.flush()

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for the input to take them."""
        return self._buffer.pending_bytes > 0 and self.process.stdin_fd is not None

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait."""
        return self._buffer.pending_bytes

    def flush(self) -> bool:
        """Write what the input takes now; return True when nothing waits. A broken pipe closes the input: the exit will say why."""
        fd = self.process.stdin_fd
        if fd is None:
            return True
        flushed = self._buffer.flush(fd)
        self._stdin_ends = self._stdin_ends or self._buffer.broken
        if flushed and self._stdin_ends:
            self.process.close_stdin()
        return flushed

    def close_stdin_when_flushed(self) -> None:
        """Take no more input; close it once all that waits is written. Idempotent."""
        self._stdin_ends = True
        self.flush()

    # --- the end ---

    def poll(self) -> ProcessExit | None:
        """Reap the process if it has ended; its end stays in `exit`."""
        if self.exit is None:
            self.exit = self.process.poll()
        return self.exit

    @property
    def drained(self) -> bool:
        """Whether the process has ended and all that it wrote has been read: both streams were empty, or at their end, after it."""
        stdout_done = self.stdout_eof or self._stdout_empty
        stderr_done = self.stderr_eof or self._stderr_empty
        return self.exit is not None and stdout_done and stderr_done

    def close(self) -> None:
        """Close every descriptor. Idempotent; does not end the process."""
        self._stdin_ends = self.stdout_eof = self.stderr_eof = True
        self.process.close()


def read_available(fd: int | None, max_bytes: int = _READ_BYTES) -> bytes | None:
    """Read once, without waiting: return bytes, b"" at the end of the stream, None when nothing is there now."""
    if fd is None:
        return b""
    try:
        return os.read(fd, min(max_bytes, _READ_BYTES))
    except BlockingIOError:
        return None
    except OSError:
        # EIO and its kind: whatever it is, no more can come from here.
        return b""
