"""The contract suites, run on the doubles and on what is ours."""

from __future__ import annotations

import os
import pathlib
import queue
import subprocess
import threading
import unittest

import pytest

from greenroom.clock import SystemClock
from greenroom.errors import ProcessClosedError
from greenroom.model import ApprovalPolicy, ConversationSpec, NativeMode, NativePermissions
from greenroom.testing import (
    CheckpointStoreContract,
    ClockContract,
    ConversationContract,
    FakeCheckpointStore,
    FakeClock,
    FakeTransport,
    FakeTurn,
    ProcessContract,
    SteerableConversationContract,
    TransportContract,
    fake_profile,
)
from greenroom.transports.base import ProcessExit
from greenroom.transports.checkpoints import CheckpointStore, InMemoryCheckpointStore

SPEC = ConversationSpec(cwd=pathlib.Path(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)


class TestSystemClock(ClockContract):
    def make_clock(self):
        return SystemClock()


class TestFakeClock(ClockContract):
    def make_clock(self):
        return FakeClock()


class TestInMemoryCheckpointStore(CheckpointStoreContract):
    def make_store(self):
        return InMemoryCheckpointStore()


class TestFakeCheckpointStore(CheckpointStoreContract):
    def make_store(self):
        store = FakeCheckpointStore()
        assert isinstance(store, CheckpointStore)
        return store


class TestFakeConversation(ConversationContract):
    def make_conversation(self):
        return FakeTransport().open(SPEC)


class TestSteerableFakeConversation(SteerableConversationContract):
    def make_conversation(self):
        return FakeTransport(steerable=True).open(SPEC)

    def make_steerable(self):
        return FakeTransport([FakeTurn("steered", waits=True), FakeTurn("next")], steerable=True).open(SPEC)

    def make_steerable_request(self):
        return self.make_request()


class TestFakeTransport(TransportContract):
    def make_transport(self):
        return FakeTransport()


class TestFakeTransportWithEveryMode(TransportContract):
    def make_transport(self):
        return FakeTransport(profile=fake_profile(native_permission_modes=frozenset(NativeMode)))

    def test_a_mode_that_is_not_declared_is_refused(self):
        with pytest.raises(unittest.SkipTest):
            super().test_a_mode_that_is_not_declared_is_refused()


class ThreadedProcess:
    """A process with blocking calls in the plainest way: a thread for each stream."""

    def __init__(self, argv):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        self.output = queue.Queue()
        pipes = {"stdout": self.process.stdout, "stderr": self.process.stderr}
        self.threads = [threading.Thread(target=self.pump, args=pipe) for pipe in pipes.items()]
        for thread in self.threads:
            thread.start()
        self.left = 2

    def pump(self, kind, pipe):
        while data := os.read(pipe.fileno(), 65536):
            self.output.put((kind, data))
        self.output.put(None)

    def write(self, data):
        if self.process.stdin.closed or self.process.poll() is not None:
            raise ProcessClosedError
        self.process.stdin.write(data)

    def read(self, timeout_s):
        while self.left:
            try:
                output = self.output.get(timeout=timeout_s or 0.001)
            except queue.Empty:
                return None
            if output is not None:
                return output
            self.left -= 1
        code = self.process.wait(30)
        return "exit", ProcessExit(returncode=code) if code >= 0 else ProcessExit(signal=-code)

    def close_stdin(self):
        self.process.stdin.close()

    def terminate(self):
        self.process.terminate()

    def kill(self):
        self.process.kill()

    def close(self):
        self.kill()
        self.process.wait(30)
        for thread in self.threads:
            thread.join(30)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


class TestThreadedProcess(ProcessContract):
    def start(self, argv):
        return ThreadedProcess(argv)


@pytest.mark.parametrize(
    ("suite", "count"),
    [
        (ProcessContract, 10),
        (ClockContract, 5),
        (ConversationContract, 6),
        (SteerableConversationContract, 11),
        (TransportContract, 4),
        (CheckpointStoreContract, 5),
    ],
)
def test_the_suites_have_their_number_of_checks(suite, count):
    assert len([name for name in dir(suite) if name.startswith("test_")]) == count
