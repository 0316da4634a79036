"""Where a caller waits for its events: nothing is lost, in whatever way he is woken; and every wait ends, or goes on, as it should."""

import concurrent.futures
import errno
import os
import signal
import threading
import time

import pytest

from greenroom.actors import letterbox
from greenroom.actors.letterbox import Letterbox

PATIENCE_S = 10.0


@pytest.fixture(params=["descriptor", "queue"])
def box(request, monkeypatch):
    """One of each kind."""
    if request.param == "queue":
        monkeypatch.delattr(os, "eventfd", raising=False)
    elif not hasattr(os, "eventfd"):
        pytest.skip("the system has no eventfd")
    box = Letterbox()
    yield box
    box.close()


class Taker:
    """A thread that takes `count`, each within `wait_s`."""

    def __init__(self, box, count=1, wait_s=None):
        self._box = box
        with_a_thread = concurrent.futures.ThreadPoolExecutor(1)
        self._taken = with_a_thread.submit(lambda: [box.take(wait_s) for _ in range(count)])
        with_a_thread.shutdown(wait=False)

    def is_asleep(self):
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._box._asleep:
            assert time.monotonic() < deadline_s

    def result(self):
        return self._taken.result(PATIENCE_S)


def test_what_is_put_is_taken_in_order(box):
    for number in range(3):
        box.put(number)
    assert [box.take(), box.take(0.0), box.take(-1.0)] == [0, 1, 2]
    with pytest.raises(TimeoutError):
        box.take(0.0)


@pytest.mark.parametrize("wait_s", [None, PATIENCE_S, 30 * 86_400.0, threading.TIMEOUT_MAX, float("inf")])
def test_who_waits_is_woken_however_long_he_would_have_waited(box, wait_s):
    taker = Taker(box, 2, wait_s)
    taker.is_asleep()
    box.put("one")
    box.put("two")
    assert taker.result() == ["one", "two"]


@pytest.mark.parametrize("wait_s", [0.01, 1e-9, 0.0, -5.0, float("-inf"), float("nan")])
def test_a_wait_ends_in_time(box, wait_s):
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        box.take(wait_s)
    assert 0.01 * (wait_s == 0.01) <= time.monotonic() - began_s < PATIENCE_S
    box.put("late")
    assert box.take(0.0) == "late"


def test_a_ring_for_nothing_ends_no_wait(box):
    """As of one who put in when the taker was about to sleep, and rings when it has gone on."""
    for _ in range(3):
        box._bell.ring()
    with pytest.raises(TimeoutError):
        box.take(0.01)
    taker = Taker(box)
    taker.is_asleep()
    box._bell.ring()
    box.put("one")
    assert taker.result() == ["one"]


def test_none_is_lost_of_what_many_put_at_once(box):
    def put(name):
        for number in range(500):
            box.put((name, number))

    taker = Taker(box, 8 * 500, PATIENCE_S)
    threads = [threading.Thread(target=put, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    taken = taker.result()
    for thread in threads:
        thread.join()
    for name in range(8):
        assert [number for who, number in taken if who == name] == list(range(500))


class Signals:
    """A thread that sends SIGUSR1 to the caller's until its handler has run `count` times; the last time it raises `error`, if any."""

    def __init__(self, box, count, error=None):
        self._box, self._left, self._error = box, count, error
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self):
        self._before = signal.signal(signal.SIGUSR1, self._handle)
        self._thread.start()

    def _send(self):
        while not self._box._asleep:
            pass
        while self._left > 0:
            signal.pthread_kill(self._main, signal.SIGUSR1)
            time.sleep(0.001)  # one that comes just before the wait is seen with the next
        self._box.put("one")

    def _handle(self, *_):
        self._left -= 1
        if self._left == 0 and self._error is not None:
            raise self._error

    def __exit__(self, *exc_info):
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)


@pytest.mark.parametrize("wait_s", [None, PATIENCE_S])
def test_a_signal_that_is_handled_ends_no_wait(box, wait_s):
    """As SIGWINCH or SIGCHLD, for who has a handler for them."""
    with Signals(box, 10):
        assert box.take(wait_s) == "one"


@pytest.mark.parametrize("wait_s", [None, PATIENCE_S])
def test_ctrl_c_ends_the_wait(box, wait_s):
    with Signals(box, 1, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        box.take(wait_s)
    assert box.take() == "one"


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="the system has no eventfd")
def test_it_does_without_a_descriptor_where_none_is_left(monkeypatch):
    def none_left(*_):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "eventfd", none_left)
    box = Letterbox()
    taker = Taker(box)
    taker.is_asleep()
    box.put("one")
    assert taker.result() == ["one"]
    box.close()


def test_a_put_after_the_close_touches_no_descriptor(box):
    """Its number may be another's by then."""
    box._asleep = True  # as of a taker whom Ctrl-C got out of its wait
    box.close()
    box.close()
    read_fd, write_fd = os.pipe()
    try:
        os.set_blocking(read_fd, False)
        box.put("late")
        with pytest.raises(BlockingIOError):
            os.read(read_fd, 1)
    finally:
        os.close(read_fd)
        os.close(write_fd)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="the system has no eventfd")
def test_a_take_after_the_close_fails_instead_of_turning_round_for_ever():
    box = Letterbox()
    box.close()
    for wait_s in (None, PATIENCE_S):
        with pytest.raises((OSError, ValueError)):
            box.take(wait_s)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="the system has no eventfd")
def test_where_the_system_has_descriptors_one_is_used():
    box = Letterbox()
    assert isinstance(box._bell, letterbox._DescriptorBell)
    box.close()
