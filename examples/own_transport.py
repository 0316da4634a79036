"""A provider of your own: a blocking transport for a command that answers one prompt per process.

Run it: python examples/own_transport.py. Check it against the contract: pytest examples/own_transport.py

The command here is a small Python program. Sessions give it everything that a transport must not do itself: retries, a fresh start
after a refused resume, interrupts from other threads, outcomes that come exactly once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from greenroom import (
    Agent,
    AgentEvent,
    ApprovalPolicy,
    AssistantText,
    CliExitError,
    Conversation,
    ConversationSpec,
    FailureKind,
    NativePermissions,
    ProviderCapabilityError,
    ProviderProfile,
    SessionStarted,
    SessionStateError,
    Transport,
    TurnFailedError,
    TurnInterrupted,
    TurnRequest,
    TurnResult,
    TurnTimeoutError,
)
from greenroom.testing import ConversationContract, TransportContract

PROGRAM = "import sys, time; text = sys.stdin.read(); time.sleep(60 * text.startswith('wait')); print(text.upper())"
ARGV = (sys.executable, "-c", PROGRAM)
OVERLOADED = 75  # EX_TEMPFAIL: a status by which a program may say "try again"


class CommandConversation:
    """Starts a process for each turn. greenroom calls `turn` on one thread of its own; `interrupt` and `close` may come from any other."""

    def __init__(self, spec: ConversationSpec) -> None:
        self._spec = spec
        self._id = spec.resume_id or str(uuid.uuid4())
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._interrupted = False
        self._closed = False

    @property
    def conversation_id(self) -> str | None:
        return self._id

    def turn(self, request: TurnRequest, emit: Callable[[AgentEvent], None]) -> TurnResult:
        process = self._start()
        emit(SessionStarted(self._id))
        try:
            stdout, stderr = process.communicate(request.prompt, timeout=request.timeout)
        except subprocess.TimeoutExpired:
            raise TurnTimeoutError(request.timeout or 0) from None
        finally:
            self._end()
        if self._interrupted:
            emit(TurnInterrupted())
            return TurnResult(session_id=self._id, interrupted=True)
        if process.returncode == OVERLOADED:
            raise TurnFailedError(FailureKind.TRANSIENT, stderr.strip())
        if process.returncode != 0:
            raise CliExitError(ARGV, process.returncode, stdout, stderr)
        emit(AssistantText(stdout.strip()))
        return TurnResult(text=stdout.strip(), session_id=self._id)

    def interrupt(self) -> None:
        with self._lock:
            if self._process is not None:
                self._interrupted = True
                self._process.kill()

    def close(self) -> None:
        self._closed = True
        self.interrupt()

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise SessionStateError("the conversation is closed")
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(ARGV, cwd=self._spec.cwd, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            self._interrupted = False
            return self._process

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.kill()
            process.communicate()


class CommandTransport:
    """Opens conversations. `profile` says what the provider can do; what it does not declare is refused."""

    @property
    def profile(self) -> ProviderProfile:
        return ProviderProfile(name="upper", supports_resume=False)

    def open(self, spec: ConversationSpec) -> CommandConversation:
        if spec.permissions.mode not in self.profile.native_permission_modes:
            raise ProviderCapabilityError(f"no permission mode {spec.permissions.mode.value!r}", provider="upper")
        return CommandConversation(spec)


class TestCommandTransport(TransportContract):
    """pytest runs the checks that are inherited."""

    def make_transport(self) -> Transport:
        return CommandTransport()


class TestCommandConversation(ConversationContract):
    """The same for what it opens."""

    def make_conversation(self) -> Conversation:
        spec = ConversationSpec(cwd=Path(tempfile.gettempdir()), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
        return CommandTransport().open(spec)


def main() -> None:
    agent = Agent(CommandTransport(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    with agent.session(Path.cwd()) as session:
        turn = session.run(session.prepare_turn(TurnRequest("hello")))
        print(f"{turn.turn_id}: {turn.result.text!r}")
        ticket = session.prepare_turn(TurnRequest("wait for ever"))
        threading.Timer(0.5, session.interrupt, (ticket,)).start()
        turn = session.run(ticket)
        print(f"{turn.turn_id}: {'interrupted' if turn.result.interrupted else turn.result.text}")


if __name__ == "__main__":
    main()
