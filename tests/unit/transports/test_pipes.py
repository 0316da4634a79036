"""Lines, stderr tails and write buffers, without a process."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.errors import ProcessClosedError
from greenroom.transports.base import ProcessExit
from greenroom.transports.pipes import LineSplitter, Oversized, ProcessIO, StderrTail, WriteBuffer, read_available


class PipedProcess:
    """A process made of pipes alone; the test holds the other ends."""

    pid = 1
    argv = ("peer",)
    mark = None
    exit_fd = None

    def __init__(self):
        self.peer_in, self.stdin_fd = os.pipe()
        self.stdout_fd, self.peer_out = os.pipe()
        self.stderr_fd, self.peer_err = os.pipe()
        self.ended = None
        for fd in (self.stdin_fd, self.stdout_fd, self.stderr_fd, self.peer_in):
            os.set_blocking(fd, False)

    def poll(self):
        return self.ended

    def close_stdin(self):
        fd, self.stdin_fd = self.stdin_fd, None
        if fd is not None:
            os.close(fd)

    def terminate(self): ...

    def kill(self): ...

    def close(self):
        self.close_stdin()
        for name in ("stdout_fd", "stderr_fd", "peer_in", "peer_out", "peer_err"):
            self.close_end(name)

    def close_end(self, name):
        fd = getattr(self, name)
        setattr(self, name, None)
        if fd is not None:
            os.close(fd)


@pytest.fixture
def process():
    process = PipedProcess()
    yield process
    process.close()


# --- LineSplitter ---


@given(lines=st.lists(st.binary().map(lambda line: line.replace(b"\n", b"").rstrip(b"\r"))), cuts=st.lists(st.integers(1, 7), min_size=1))
def test_lines_are_the_same_wherever_the_stream_is_cut(lines, cuts):
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter()
    found = []
    position = turn = 0
    while position < len(stream):
        step = cuts[turn % len(cuts)]
        found += splitter.feed(stream[position : position + step])
        position, turn = position + step, turn + 1
    assert found == lines
    assert splitter.finish() is None


@pytest.mark.parametrize(
    ("stream", "lines", "half"),
    [
        (b"a\r\nb\n", [b"a", b"b"], None),
        (b"\n\n", [b"", b""], None),
        (b"a\rb\x0bc\x85\n", [b"a\rb\x0bc\x85"], None),
        (b"nul\0inside\n", [b"nul\0inside"], None),
        (b"a\nhalf", [b"a"], b"half"),
        (b"half\r", [], b"half"),
        ("Zeile\u2028eins\n".encode(), ["Zeile\u2028eins".encode()], None),
    ],
)
def test_only_a_line_feed_ends_a_line(stream, lines, half):
    splitter = LineSplitter()
    assert splitter.feed(stream) == lines
    assert splitter.finish() == half
    assert splitter.finish() is None


def test_utf8_cut_at_every_byte_comes_out_whole():
    text = "äöü 🚀 漢字"
    splitter = LineSplitter()
    found = [line for byte in text.encode() + b"\n" for line in splitter.feed(bytes([byte]))]
    assert [line.decode() for line in found] == [text]


def test_a_line_at_the_limit_passes_and_one_more_byte_does_not():
    splitter = LineSplitter(limit=5)
    assert splitter.feed(b"12345\n123456\nnext\n") == [b"12345", Oversized(6), b"next"]


def test_a_line_without_an_end_is_reported_once_and_at_once_and_the_next_comes_whole():
    splitter = LineSplitter(limit=100)
    assert splitter.feed(b"x" * 101) == [Oversized(101)]
    assert [splitter.feed(b"x" * 1000) for _ in range(100)] == [[]] * 100
    assert len(splitter._half) == 0
    assert splitter.feed(b"tail\nnext\nhalf") == [b"next"]
    assert splitter.finish() == b"half"


def test_the_rest_of_a_dropped_line_is_no_half_line():
    splitter = LineSplitter(limit=3)
    assert splitter.feed(b"12345") == [Oversized(5)]
    assert splitter.finish() is None
    assert splitter.feed(b"new\n") == [b"new"]


@pytest.mark.parametrize("piece", [1, 64 * 1024])
def test_a_long_line_takes_linear_time(piece):
    size = 20_000_000 if piece > 1 else 1_000_000
    splitter = LineSplitter()
    data = b"x" * piece
    began_s = time.perf_counter()
    for _ in range(size // piece):
        assert splitter.feed(data) == []
    (line,) = splitter.feed(b"\n")
    assert len(line) == size // piece * piece
    assert time.perf_counter() - began_s < 5  # quadratic copying takes minutes


# --- StderrTail ---


def test_the_tail_keeps_the_last_lines_and_the_unfinished_one():
    tail = StderrTail(lines=2)
    assert tail.feed(b"one\ntwo\r\nthr") == ["one", "two"]
    assert tail.text == "one\ntwo\nthr"
    assert tail.feed(b"ee\nfour\n") == ["three", "four"]
    assert tail.text == "three\nfour"
    assert tail.finish() == []


def test_a_long_stderr_line_is_cut_between_characters_and_the_next_is_whole():
    tail = StderrTail(line_bytes=5)
    assert tail.feed("ääää\nnext\n".encode()) == ["ää", "next"]
    tail.feed(b"x" * 1_000_000)
    assert tail.text.endswith("\nxxxxx")
    assert tail.finish() == ["xxxxx"]
    assert tail.finish() == []


def test_stderr_that_is_not_utf8_is_shown_with_replacements():
    assert StderrTail().feed(b"caf\xe9 \xff\n") == ["caf\ufffd \ufffd"]


# --- WriteBuffer ---


def test_partial_writes_keep_order_and_lose_nothing(process):
    buffer = WriteBuffer()
    sent = b"".join(b"%06d\n" % number for number in range(700_000))  # about 5 MB
    buffer.append(sent[:10])
    buffer.append(b"")
    buffer.append(sent[10:])
    assert not buffer.flush(process.stdin_fd)
    received = bytearray()
    while not buffer.flush(process.stdin_fd):
        received += read_available(process.peer_in) or b""
    while data := read_available(process.peer_in):
        received += data
    assert buffer.pending_bytes == 0
    assert received == sent


def test_nobody_reads_any_more(process):
    buffer = WriteBuffer()
    buffer.append(b"x" * 1_000_000)
    assert not buffer.flush(process.stdin_fd)
    process.close_end("peer_in")
    assert buffer.flush(process.stdin_fd)
    assert buffer.broken
    buffer.append(b"more")
    assert buffer.pending_bytes == 0


# --- ProcessIO ---


def test_a_half_line_at_the_end_of_the_stream_counts(process):
    io = ProcessIO(process)
    os.write(process.peer_out, b"one\nhalf")
    assert io.read_stdout() == [b"one"]
    process.close_end("peer_out")
    assert io.read_stdout() == [b"half"]
    assert io.stdout_eof
    assert io.read_stdout() == []


def test_a_share_of_a_loud_stream_is_bounded(process):
    io = ProcessIO(process)
    os.write(process.peer_out, b"12345678\n" * 100)
    os.write(process.peer_err, b"12345678\n" * 100)
    assert len(io.read_stdout(90)) == 10
    assert len(io.read_stderr(90)) == 10


@pytest.mark.parametrize("order", [("read_stdout", "read_stderr"), ("read_stderr", "read_stdout")])
def test_drained_needs_a_look_at_both_streams_after_the_exit(process, order):
    io = ProcessIO(process)
    assert io.read_stdout() == io.read_stderr() == []  # empty, but before the exit: proves nothing
    os.write(process.peer_out, b"last words")
    os.write(process.peer_err, b"why\n")
    process.ended = ProcessExit(returncode=0)
    assert io.poll() == ProcessExit(returncode=0)
    got = []
    for read in order:
        assert not io.drained
        got += getattr(io, read)()
    assert got == ["why"]
    assert io.drained  # though both pipes are still held open (by us)
    assert io.finish_stdout() == [b"last words"]
    assert io.finish_stdout() == []
    assert io.stderr_tail == "why"


def test_the_input_closes_after_what_was_written(process):
    io = ProcessIO(process)
    io.write(b"x" * 200_000)
    assert io.wants_write
    io.close_stdin_when_flushed()
    assert process.stdin_fd is not None
    with pytest.raises(ProcessClosedError):
        io.write(b"late")
    received = 0
    while data := read_available(process.peer_in):
        received += len(data)
        io.flush()
    assert received == 200_000
    assert data == b""
    assert not io.wants_write
    assert process.stdin_fd is None


def test_a_broken_input_ends_writing_and_nothing_else(process):
    io = ProcessIO(process)
    process.close_end("peer_in")
    io.write(b"into the void")
    assert not io.wants_write
    with pytest.raises(ProcessClosedError):
        io.write(b"more")
    os.write(process.peer_out, b"still here\n")
    assert io.read_stdout() == [b"still here"]


def test_close_is_idempotent_and_final(process):
    io = ProcessIO(process)
    io.close()
    io.close()
    assert io.read_stdout() == io.read_stderr() == []
    assert not io.wants_write
    with pytest.raises(ProcessClosedError):
        io.write(b"late")
