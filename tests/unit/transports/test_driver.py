"""The driver's ladder on a process that nothing ends, and on a codec that says nothing."""

import os
import pathlib

import pytest

from greenroom.errors import GreenroomError
from greenroom.transports.base import Launch, Ready, StartFailed
from greenroom.transports.driver import MAX_KILLS, Driver, Ended


class Mute:
    """A codec with no deadline and no words."""

    deadline_s = None
    sent = False

    def opened(self, now_s):
        return []

    def receive(self, line, now_s):
        return []

    def exited(self, exit_, stderr_tail, now_s):
        return []

    def consumed(self):
        return None

    def tick(self, now_s):
        return []


class Undying:
    """A process that hangs in the kernel."""

    pid = 1
    argv = ("undying",)
    mark = exit_fd = None

    def __init__(self):
        self.ends = [os.pipe() for _ in range(3)]
        (_, self.stdin_fd), (self.stdout_fd, _), (self.stderr_fd, _) = self.ends
        for fd in (self.stdin_fd, self.stdout_fd, self.stderr_fd):
            os.set_blocking(fd, False)
        self.signals = []

    def poll(self):
        return None

    def close_stdin(self):
        self.signals.append("eof")

    def terminate(self):
        self.signals.append("term")

    def kill(self):
        self.signals.append("kill")

    def close(self):
        for fd in {fd for pair in self.ends for fd in pair}:
            os.close(fd)


def test_a_process_that_nothing_ends_is_given_up_in_bounded_time():
    process = Undying()
    driver = Driver(Launch(argv=("undying",), cwd=pathlib.Path("/"), env={}, codec=Mute(), close_grace_s=5.0), process)
    driver.begin(0.0)
    driver.shutdown(0.0)
    now_s, outputs = 0.0, []
    while driver.deadline_s is not None and now_s < 100:
        now_s = driver.deadline_s
        outputs += driver.tick(now_s)
    assert driver.ended
    assert now_s < 20
    assert process.signals == ["eof", "term", *["kill"] * MAX_KILLS]
    (ended,) = [output for output in outputs if isinstance(output, Ended)]
    assert ended.expected
    assert ended.exit_.returncode is None
    driver.release()


def test_a_repeated_shutdown_only_hastens():
    process = Undying()
    driver = Driver(Launch(argv=("undying",), cwd=pathlib.Path("/"), env={}, codec=Mute(), close_grace_s=5.0), process)
    driver.begin(0.0)
    driver.shutdown(0.0)
    driver.shutdown(1.0)
    assert process.signals == ["eof"]
    driver.shutdown(2.0, kill=True)
    assert process.signals == ["eof", "kill"]
    driver.release()


class Saying(Mute):
    """A codec that answers a tick with what it is given."""

    def __init__(self, *outputs):
        self.outputs = list(outputs)

    def tick(self, now_s):
        self.deadline_s = None
        return self.outputs

    deadline_s = 0.0


def started(codec, settled):
    process = Undying()
    launch = Launch(argv=("x",), cwd=pathlib.Path("/"), env={}, codec=codec, settled=lambda: settled.append(codec))
    driver = Driver(launch, process)
    driver.begin(0.0)
    return driver


@pytest.mark.parametrize("output", [Ready(None), StartFailed(GreenroomError("no"))])
def test_a_start_is_settled_by_its_answer(output):
    settled = []
    driver = started(Saying(output), settled)
    assert not settled
    driver.tick(0.0)
    assert settled
    driver.process.kill()
    driver.release()


def test_a_start_is_settled_by_the_end_of_its_process_and_by_its_owners_crash():
    for end in (
        lambda driver: [driver.shutdown(0.0, kill=True), *(driver.tick(float(n)) for n in range(20))],
        lambda driver: driver.abandon(),
    ):
        settled = []
        driver = started(Mute(), settled)
        assert not settled
        end(driver)
        assert settled
        driver.release()
