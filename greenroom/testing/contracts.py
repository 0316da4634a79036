"""What every implementation of a port must do, as classes of tests: of ours, of the doubles, and of yours.

Subclass one as `Test<Yours>`, implement its factories, and pytest runs the inherited checks:

    class TestMyTransport(TransportContract):
        def make_transport(self):
            return MyTransport()

Importable without pytest; a check that does not apply raises `unittest.SkipTest`. Each check makes what it needs by the factories and
closes it again. Times are bounded: a peer that never answers fails a check after `bound_s` seconds.
"""

# ruff: noqa: S101 - a contract asserts

from __future__ import annotations

import pathlib
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from greenroom.clock import Clock
from greenroom.errors import GreenroomError, NoRunningTurnError, ProcessClosedError, ProviderCapabilityError
from greenroom.events import AgentEvent, SteerConsumed, SteerDelivered, SteerRejected
from greenroom.model import (
    ApprovalPolicy,
    Checkpoint,
    ConversationSpec,
    NativeMode,
    NativePermissions,
    ProviderUsage,
    TurnRequest,
    TurnResult,
)
from greenroom.transports.base import Conversation, ProcessExit, SteerableConversation, Transport
from greenroom.transports.checkpoints import CheckpointStore

_SILENCE_S = 0.05
Output = tuple[Literal["stdout", "stderr"], bytes] | tuple[Literal["exit"], ProcessExit]


@contextmanager
def _raises(*errors: type[BaseException]) -> Iterator[None]:
    try:
        yield
    except errors:
        return
    names = " or ".join(error.__name__ for error in errors)
    raise AssertionError(f"{names} was not raised")


class BlockingProcessPort(Protocol):
    """A process with blocking calls, as `greenroom.transports.process.BlockingProcess` gives it."""

    def write(self, data: bytes) -> None:
        """Write to its standard input. Raises ProcessClosedError after `close_stdin` or its end."""

    def read(self, timeout_s: float) -> Output | None:
        """Return the next output or, once all was read, the exit; None after `timeout_s`."""
        ...

    def close_stdin(self) -> None:
        """Close its standard input."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def close(self) -> None:
        """End it and close every descriptor."""


_ECHO = "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()"
_FINITE = "import sys\nsys.stdout.write('one\\n')\nsys.stderr.write('two\\n')\nsys.stdout.flush()\nsys.stdout.write('three\\n')"


class ProcessContract:
    """10 checks of a started process. Implement `start`."""

    bound_s = 30.0

    def start(self, argv: tuple[str, ...]) -> BlockingProcessPort:
        """Start `argv` (a Python of this machine with a small script) with pipes on its three streams."""
        raise NotImplementedError

    @contextmanager
    def _process(self, code: str) -> Iterator[BlockingProcessPort]:
        process = self.start((sys.executable, "-S", "-E", "-c", code))
        try:
            yield process
        finally:
            process.close()

    def _until_exit(self, process: BlockingProcessPort) -> tuple[dict[str, bytes], ProcessExit]:
        """Read everything; return the output of each stream, and the exit."""
        output: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        while True:
            match process.read(self.bound_s):
                case None:
                    raise AssertionError(f"neither output nor exit within {self.bound_s:g} s")
                case ("exit", ProcessExit() as exit_):
                    return output, exit_
                case (str(kind), bytes(data)):
                    output[kind] += data

    def _line(self, process: BlockingProcessPort) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            match process.read(self.bound_s):
                case ("stdout", bytes(data)):
                    line += data
                case other:
                    raise AssertionError(f"no line came, but {other!r}")
        return line

    def test_what_is_written_is_read_back(self) -> None:
        """Input reaches it, and its output comes back unchanged."""
        with self._process(_ECHO) as process:
            process.write("ä line\n".encode())
            assert self._line(process) == "ä line\n".encode()

    def test_output_comes_in_order_and_the_exit_last(self) -> None:
        """Nothing is lost at the end, and no output follows the exit."""
        with self._process(_FINITE) as process:
            output, exit_ = self._until_exit(process)
        assert output == {"stdout": b"one\nthree\n", "stderr": b"two\n"}
        assert exit_ == ProcessExit(returncode=0)

    def test_closing_its_input_ends_it(self) -> None:
        """A process that reads to the end of its input ends well."""
        with self._process(_ECHO) as process:
            process.close_stdin()
            process.close_stdin()
            assert self._until_exit(process)[1] == ProcessExit(returncode=0)

    def test_kill_ends_it_with_a_failure(self) -> None:
        """Even one that ignores SIGTERM."""
        with self._process("import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)") as process:
            self._line(process)
            process.kill()
            exit_ = self._until_exit(process)[1]
        assert exit_.signal == 9 or exit_.returncode not in (0, None)  # noqa: PLR2004 - SIGKILL

    def test_terminate_ends_it(self) -> None:
        """One that does not ignore SIGTERM."""
        with self._process("import time\nprint('up', flush=True)\ntime.sleep(60)") as process:
            self._line(process)
            process.terminate()
            assert self._until_exit(process)[1] != ProcessExit(returncode=0)

    def test_the_exit_is_told_again(self) -> None:
        """A second look after the end gives the same end."""
        with self._process("raise SystemExit(3)") as process:
            first = self._until_exit(process)[1]
            assert process.read(self.bound_s) == ("exit", first) == process.read(0)
            assert first == ProcessExit(returncode=3)
            process.kill()
            process.terminate()

    def test_silence_times_out(self) -> None:
        """No output is None, soon enough."""
        with self._process(_ECHO) as process:
            begin_s = time.monotonic()
            assert process.read(_SILENCE_S) is None
            assert time.monotonic() - begin_s < self.bound_s / 2

    def test_writing_to_a_closed_input_raises(self) -> None:
        """ProcessClosedError, not a silent loss."""
        with self._process(_ECHO) as process:
            process.close_stdin()
            with _raises(ProcessClosedError):
                process.write(b"late\n")

    def test_writing_after_its_end_raises(self) -> None:
        """ProcessClosedError, not a broken pipe."""
        with self._process("") as process:
            self._until_exit(process)
            with _raises(ProcessClosedError):
                process.write(b"late\n")

    def test_only_known_kinds_of_output_come(self) -> None:
        """The words stdout, stderr and exit, and bytes for the first two."""
        with self._process(_FINITE) as process:
            while (output := process.read(self.bound_s)) is not None and output[0] != "exit":
                assert output[0] in ("stdout", "stderr")
                assert isinstance(output[1], bytes)
            assert output is not None


class ClockContract:
    """5 checks of a clock. Implement `make_clock`."""

    def make_clock(self) -> Clock:
        """Return a clock."""
        raise NotImplementedError

    def test_time_does_not_go_back(self) -> None:
        """Later readings are not smaller."""
        clock = self.make_clock()
        readings = [clock.monotonic() for _ in range(100)]
        assert readings == sorted(readings)

    def test_a_stop_that_is_set_ends_a_wait_at_once(self) -> None:
        """It returns True, and does not wait."""
        stop = threading.Event()
        stop.set()
        begin_s = time.monotonic()
        assert self.make_clock().wait(60.0, stop) is True
        assert time.monotonic() - begin_s < 10  # noqa: PLR2004

    def test_a_wait_of_nothing_completes(self) -> None:
        """It returns False: nothing stopped it."""
        assert self.make_clock().wait(0.0) is False
        assert self.make_clock().wait(0.0, threading.Event()) is False

    def test_time_does_not_go_back_over_a_wait(self) -> None:
        """Afterwards it is not earlier than before."""
        clock = self.make_clock()
        before_s = clock.monotonic()
        clock.wait(0.01)
        assert clock.monotonic() >= before_s

    def test_waiting_does_not_set_the_stop(self) -> None:
        """The event belongs to the caller."""
        stop = threading.Event()
        self.make_clock().wait(0.01, stop)
        assert not stop.is_set()


class ConversationContract:
    """6 checks of a conversation. Implement `make_conversation`; `make_request` where the prompt matters."""

    bound_s = 30.0

    def make_conversation(self) -> Conversation:
        """Open a conversation whose turns end well by themselves."""
        raise NotImplementedError

    def make_request(self) -> TurnRequest:
        """Return the request of an ordinary turn."""
        return TurnRequest("Say hello.")

    @contextmanager
    def _conversation(self) -> Iterator[Conversation]:
        conversation = self.make_conversation()
        try:
            yield conversation
        finally:
            conversation.close()

    def test_a_turn_gives_a_result_and_the_conversation_an_id(self) -> None:
        """The result names the conversation, and so does the conversation."""
        with self._conversation() as conversation:
            result = conversation.turn(self.make_request(), _ignore)
            assert isinstance(result, TurnResult)
            assert not result.interrupted
            assert conversation.conversation_id
            assert result.session_id == conversation.conversation_id

    def test_events_come_on_the_calling_thread(self) -> None:
        """`emit` is called where `turn` was called, and not after its return."""
        threads: list[int] = []
        with self._conversation() as conversation:
            conversation.turn(self.make_request(), lambda _: threads.append(threading.get_ident()))
            count = len(threads)
        assert set(threads) <= {threading.get_ident()}
        assert len(threads) == count > 0

    def test_turns_follow_one_another_in_the_same_conversation(self) -> None:
        """A second turn continues the first."""
        with self._conversation() as conversation:
            first = conversation.turn(self.make_request(), _ignore)
            second = conversation.turn(self.make_request(), _ignore)
            assert first.session_id == second.session_id == conversation.conversation_id

    def test_an_interrupt_without_a_turn_does_nothing(self) -> None:
        """The turn after it is not interrupted, and events are agent events."""
        events: list[AgentEvent] = []
        with self._conversation() as conversation:
            conversation.interrupt()
            assert not conversation.turn(self.make_request(), events.append).interrupted
            conversation.interrupt()
            assert not conversation.turn(self.make_request(), events.append).interrupted
        assert all(isinstance(event, AgentEvent) for event in events)

    def test_close_may_be_repeated_and_an_interrupt_may_follow(self) -> None:
        """Neither raises."""
        conversation = self.make_conversation()
        conversation.close()
        conversation.close()
        conversation.interrupt()

    def test_a_turn_after_close_raises(self) -> None:
        """An error of the tree, and no hang."""
        conversation = self.make_conversation()
        conversation.close()
        with _raises(GreenroomError):
            conversation.turn(self.make_request(), _ignore)


class SteerableConversationContract(ConversationContract):
    """5 more checks, of a conversation that takes text in mid-turn. Implement `make_steerable_request` too.

    Override `make_steerable` if the conversation must be another one than `make_conversation` gives.
    """

    text = "Use the cache instead."

    def make_steerable(self) -> SteerableConversation:
        """Open a conversation for a turn with `make_steerable_request`, and ordinary turns after it."""
        conversation = self.make_conversation()
        assert isinstance(conversation, SteerableConversation)
        return conversation

    def make_steerable_request(self) -> TurnRequest:
        """Return a request whose turn goes on until some text was steered into it, and then ends well."""
        raise NotImplementedError

    def _steered(self, conversation: SteerableConversation) -> tuple[TurnResult, list[AgentEvent]]:
        """Run a turn on another thread and steer as soon as that is possible; return its result and its events."""
        events: list[AgentEvent] = []
        results: list[TurnResult] = []
        request = self.make_steerable_request()
        thread = threading.Thread(target=lambda: results.append(conversation.turn(request, events.append)), daemon=True)
        thread.start()
        self._steer_when_possible(conversation, thread)
        thread.join(self.bound_s)
        assert results, f"the steered turn did not end well within {self.bound_s:g} s"
        return results[0], events

    def _steer_when_possible(self, conversation: SteerableConversation, thread: threading.Thread) -> None:
        deadline_s = time.monotonic() + self.bound_s
        pause = threading.Event()
        while thread.is_alive() and time.monotonic() < deadline_s:
            try:
                return conversation.steer(self.text)
            except NoRunningTurnError:
                pause.wait(0.005)
        raise AssertionError("the turn never took the text")

    @contextmanager
    def _steerable(self) -> Iterator[SteerableConversation]:
        conversation = self.make_steerable()
        try:
            yield conversation
        finally:
            conversation.close()

    def test_steering_without_a_turn_raises(self) -> None:
        """NoRunningTurnError: nothing is queued."""
        with self._steerable() as conversation, _raises(NoRunningTurnError):
            conversation.steer(self.text)

    def test_a_steered_turn_gives_one_ordinary_result(self) -> None:
        """Not interrupted, and named as always."""
        with self._steerable() as conversation:
            result, _ = self._steered(conversation)
            assert not result.interrupted
            assert result.session_id == conversation.conversation_id

    def test_delivery_comes_first_and_names_the_text(self) -> None:
        """One SteerDelivered, before consumption or refusal."""
        with self._steerable() as conversation:
            _, events = self._steered(conversation)
        told = [event for event in events if isinstance(event, SteerDelivered | SteerConsumed | SteerRejected)]
        assert [type(event) for event in told[:1]] == [SteerDelivered]
        assert {event.text for event in told} == {self.text}
        assert len(told) == len({type(event) for event in told})

    def test_nothing_of_it_leaks_into_the_next_turn(self) -> None:
        """The next turn is an ordinary one, without events of steering."""
        events: list[AgentEvent] = []
        with self._steerable() as conversation:
            self._steered(conversation)
            result = conversation.turn(self.make_request(), events.append)
        assert not result.interrupted
        assert not [event for event in events if isinstance(event, SteerDelivered | SteerConsumed | SteerRejected)]

    def test_steering_after_the_end_raises(self) -> None:
        """NoRunningTurnError again."""
        with self._steerable() as conversation:
            self._steered(conversation)
            with _raises(NoRunningTurnError):
                conversation.steer(self.text)


class TransportContract:
    """4 checks of a transport. Implement `make_transport`; `make_request` where the prompt matters."""

    def make_transport(self) -> Transport:
        """Return a transport whose turns end well."""
        raise NotImplementedError

    def make_request(self) -> TurnRequest:
        """Return the request of an ordinary turn."""
        return TurnRequest("Say hello.")

    def make_spec(self, cwd: pathlib.Path, mode: NativeMode) -> ConversationSpec:
        """Return what a conversation is opened with."""
        return ConversationSpec(cwd=cwd, permissions=NativePermissions(mode), approvals=ApprovalPolicy.DENY)

    @contextmanager
    def _cwd(self) -> Iterator[pathlib.Path]:
        with tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)

    def test_an_opened_conversation_runs_turns(self) -> None:
        """`open` and `turn` are enough."""
        with self._cwd() as cwd:
            conversation = self.make_transport().open(self.make_spec(cwd, NativeMode.BYPASS))
            try:
                assert conversation.turn(self.make_request(), _ignore).session_id == conversation.conversation_id
            finally:
                conversation.close()

    def test_conversations_are_independent(self) -> None:
        """Two have two ids, and one goes on when the other is closed."""
        transport = self.make_transport()
        with self._cwd() as cwd:
            one, two = (transport.open(self.make_spec(cwd, NativeMode.BYPASS)) for _ in range(2))
            try:
                ids = {one.turn(self.make_request(), _ignore).session_id, two.turn(self.make_request(), _ignore).session_id}
                assert len(ids) == 2  # noqa: PLR2004
                one.close()
                two.turn(self.make_request(), _ignore)
            finally:
                one.close()
                two.close()

    def test_the_profile_declares_bypass(self) -> None:
        """The one mode that each provider has."""
        assert NativeMode.BYPASS in self.make_transport().profile.native_permission_modes

    def test_a_mode_that_is_not_declared_is_refused(self) -> None:
        """ProviderCapabilityError at `open`, before anything is started."""
        transport = self.make_transport()
        missing = [mode for mode in NativeMode if mode not in transport.profile.native_permission_modes]
        if not missing:
            raise unittest.SkipTest("every mode is supported")
        with self._cwd() as cwd, _raises(ProviderCapabilityError):
            transport.open(self.make_spec(cwd, missing[0]))


class CheckpointStoreContract:
    """5 checks of a checkpoint store. Implement `make_store`."""

    def make_store(self) -> CheckpointStore:
        """Return an empty store."""
        raise NotImplementedError

    def test_what_is_missing_is_none(self) -> None:
        """Not an error."""
        assert self.make_store().load("nobody") is None

    def test_what_was_saved_is_loaded(self) -> None:
        """The usage with it."""
        store = self.make_store()
        checkpoint = Checkpoint("conv-1", ProviderUsage(total_cost_usd=0.5, provider="fake", raw={"total": {"n": 1}}))
        store.save("key", checkpoint)
        assert store.load("key") == checkpoint

    def test_saving_again_replaces(self) -> None:
        """The last one counts."""
        store = self.make_store()
        store.save("key", Checkpoint("conv-1"))
        store.save("key", Checkpoint("conv-2"))
        assert store.load("key") == Checkpoint("conv-2")

    def test_keys_are_independent(self) -> None:
        """Clearing one keeps the other, also where keys look like paths."""
        store = self.make_store()
        store.save("a/b", Checkpoint("conv-1"))
        store.save("a", Checkpoint("conv-2"))
        store.clear("a")
        assert (store.load("a"), store.load("a/b")) == (None, Checkpoint("conv-1"))

    def test_clearing_nothing_is_fine(self) -> None:
        """Also twice."""
        store = self.make_store()
        store.clear("nobody")
        store.save("key", Checkpoint("conv-1"))
        store.clear("key")
        store.clear("key")
        assert store.load("key") is None


def _ignore(event: Any) -> None:
    """Take an event and do nothing with it."""
