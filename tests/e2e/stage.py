"""Where a test of the real CLI plays: a model server on loopback, a fresh HOME, a room, a directory to work in.

    with Stage(tmp_path, binary) as stage, stage.session() as session:
        running = stage.begin(session, "BASH echo hi\nSAY done")
        running.join().result.text

Nothing of the developer's own environment reaches the CLI. Waits are for conditions, each with a bound; a bound that is hit fails.
No test waits for a time to pass: what is long (a SLEEP, a SLOW, a tool) lasts until the test has done what it must do meanwhile, which
`Stage.go_on` and `LONG_TOOL` are for.
"""

from __future__ import annotations

import concurrent.futures
import pathlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

import psutil

from greenroom import (
    Agent,
    AgentEvent,
    ApprovalPolicy,
    ClaudeStreamTransport,
    Greenroom,
    NativePermissions,
    RestartPolicy,
    RetryPolicy,
    Session,
    ToolCall,
    Turn,
    TurnRequest,
    TurnTicket,
)
from greenroom.testing.model_server import ModelServer, Script

BOUND_S = 60.0  # of a machine that does other things as well
# A tool call that runs until it is ended, or until the test lets it go on; run again, it ends at once. Says when it runs.
LONG_TOOL = "BASH echo x >> side; if mkdir once 2>/dev/null; then until [ -e go ]; do sleep 0.02; done; fi"
QUICK_RETRY = RetryPolicy(delays=(0.1,), jitter=0)
QUICK_RESTART = RestartPolicy(delays=(0.0, 0.1, 0.1))


def until(condition: Callable[[], Any], what: str, bound_s: float = BOUND_S) -> Any:
    """Wait for a condition, and return what it gave."""
    deadline_s = time.monotonic() + bound_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"not within {bound_s:g} s: {what}"
        time.sleep(0.01)
    return found


def ended(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def has_no_process(session: Session) -> None:
    """Wait until the session knows that its process has ended."""
    until(lambda: session._core.view.incarnation == 0, "the end of the process to be noticed")


class Running:
    """A turn that runs on a thread of its own."""

    def __init__(self, session: Session, ticket: TurnTicket) -> None:
        self.session = session
        self.ticket = ticket
        self.events: list[AgentEvent] = []
        self.turn: Turn | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="e2e-turn", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.turn = self.session.run(self.ticket, on_event=self.events.append)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def saw(self, *kinds: type[AgentEvent]) -> list[Any]:
        """Return the events of these kinds so far."""
        return [event for event in self.events if isinstance(event, kinds)]

    def wait_for(self, kind: type[AgentEvent], count: int = 1) -> Any:
        """Wait until so many events of this kind have come, and return the first."""
        until(lambda: len(self.saw(kind)) >= count or not self._thread.is_alive(), f"{count} {kind.__name__} in {self.events}")
        assert len(self.saw(kind)) >= count, f"the turn ended without {kind.__name__}: {self.turn or self.error!r}; {self.events}"
        return self.saw(kind)[0]

    def ended(self) -> Self:
        """Wait for the end, whatever it is."""
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), f"the turn did not end within {BOUND_S:g} s: {self.events}"
        return self

    def join(self) -> Turn:
        """Wait for the end, and return the turn or raise its error."""
        self.ended()
        if self.error is not None:
            raise self.error
        assert self.turn is not None
        return self.turn


class Stage:
    """A model server, a home, a room and a working directory, all of one test."""

    def __init__(
        self,
        folder: pathlib.Path,
        binary: str | pathlib.Path,
        *,
        script: Script | None = None,
        env: dict[str, str] | None = None,
        cwd: str = "work",
        **transport: Any,
    ) -> None:
        self.folder = folder
        self.cwd = folder / cwd
        self.home = folder / "home"
        self.binary = binary
        self.server = ModelServer(script=script)
        self.room = Greenroom()
        self._env = {"CLAUDE_CODE_MAX_RETRIES": "0", **(env or {})}
        self._transport = transport

    def __enter__(self) -> Self:
        self.cwd.mkdir(parents=True, exist_ok=True)
        self.server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        # The server first: a CLI that waits for an answer would have its end delayed.
        self.room.close()
        self.server.stop()
        assert not self.server.failures

    @property
    def env(self) -> dict[str, str]:
        """The environment of the CLIs."""
        return {**self.server.env(self.home), **self._env}

    def transport(self, **options: Any) -> ClaudeStreamTransport:
        """Return a transport to this stage's model."""
        return ClaudeStreamTransport(**{"binary": self.binary, "env": self.env, **self._transport, **options})

    def agent(self, *, transport: ClaudeStreamTransport | None = None, **options: Any) -> Agent:
        """Return an agent that retries and restarts quickly."""
        defaults = {
            "permissions": NativePermissions.bypass(),
            "approvals": ApprovalPolicy.DENY,
            "retry": QUICK_RETRY,
            "restart": QUICK_RESTART,
        }
        return self.room.agent(transport or self.transport(), **{**defaults, **options})

    def session(self, *, cwd: pathlib.Path | None = None, agent: Agent | None = None, **options: Any) -> Session:
        """Begin a session; `options` are those of `Agent.session`."""
        return (agent or self.agent()).session(cwd or self.cwd, **options)

    @staticmethod
    def begin(session: Session, prompt: str, *, prepare: dict[str, Any] | None = None, **request: Any) -> Running:
        """Begin a turn on a thread of its own."""
        return Running(session, session.prepare_turn(TurnRequest(prompt, **request), **(prepare or {})))

    def run(self, session: Session, prompt: str, *, prepare: dict[str, Any] | None = None, **request: Any) -> Turn:
        """Run a turn to its end."""
        return self.begin(session, prompt, prepare=prepare, **request).join()

    # --- what is there, and what the model saw

    def processes(self, cwd: pathlib.Path | None = None) -> list[psutil.Process]:
        """Return the CLIs that we started and that work in `cwd`."""
        wanted, found = str(cwd or self.cwd), []
        for child in psutil.Process().children():
            try:
                if child.cwd() == wanted and "--input-format" in child.cmdline():
                    found.append(child)
            except psutil.Error:
                continue
        return found

    def kill(self, cwd: pathlib.Path | None = None) -> None:
        """Kill the CLI that works in `cwd`, waiting for one to be there."""
        until(lambda: self.processes(cwd), "a CLI to kill")[0].kill()

    def streams(self, pieces: int = 3) -> None:
        """Wait until the model has sent so many pieces of its slow texts, over all turns."""
        until(lambda: self.server.pieces_sent >= pieces, f"{pieces} pieces of text, got {self.server.pieces_sent}")

    def in_a_tool(self, running: Running) -> None:
        """Wait until LONG_TOOL runs, and until the CLI has written down that it called it."""
        running.wait_for(ToolCall)
        until((self.cwd / "once").exists, "the tool to run")
        self.wrote(self.CALL)

    def go_on(self) -> None:
        """Let the model pause no more, and LONG_TOOL end."""
        self.server.hurry()
        (self.cwd / "go").touch()

    CALL = '"type":"tool_use"'
    RESULT = '"type":"tool_result"'

    def transcripts(self) -> Iterable[pathlib.Path]:
        """Return what the CLIs keep of their conversations."""
        return self.home.glob(".claude/projects/*/*.jsonl")

    def wrote(self, text: str) -> None:
        """Wait until a CLI has written this down: it writes behind its own frames, by a tenth of a second and on a busy machine more."""
        until(lambda: any(text in path.read_text(errors="replace") for path in self.transcripts()), f"{text!r} in a transcript")

    def asked(self, count: int) -> None:
        """Wait until the model was asked `count` times in all."""
        until(lambda: len(self.server.requests) >= count, f"{count} requests, got {len(self.server.requests)}")

    def shown(self, text: str) -> list[int]:
        """Return how often each request showed the model a text of the user's that contains `text`."""
        return [self._count(index, text) for index in range(len(self.server.requests))]

    def _count(self, index: int, text: str) -> int:
        return sum(said.count(text) for role, said in self.server.seen(index) if role == "user")


def together(cases: Iterable[tuple[Any, ...]], play: Callable[..., None], width: int = 5) -> None:
    """Play cases that have nothing to do with one another, some at once; raise what failed, each with its case."""

    def attempt(case: tuple[Any, ...]) -> Exception | None:
        try:
            play(*case)
        except Exception as error:  # noqa: BLE001 - it is raised below
            error.add_note(f"in case {case}")
            return error
        return None

    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        errors = [error for error in pool.map(attempt, cases) if error is not None]
    if errors:
        raise ExceptionGroup("cases that failed", errors)
