"""A room with one scripted Codex home, as many sessions in it as a test likes, and what is asked afterwards."""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
import threading

import psutil

from greenroom import ApprovalPolicy, CodexAppServerTransport, Greenroom, NativePermissions, RestartPolicy, RetryPolicy, TurnRequest
from greenroom.testing import write_scripted_codex
from greenroom.testing.scripted import Plan, codex_history, codex_requests, conversations, starts
from tests.faults.bench import PATIENCE_S, Begun, until

AT_ONCE = RestartPolicy(delays=(0,))


@functools.cache
def binary() -> pathlib.Path:
    """One executable a test run: its version is asked once."""
    path = write_scripted_codex(tempfile.mkdtemp(prefix="scripted-codex-"))
    CodexAppServerTransport(env={"PATH": os.environ["PATH"]}, binary=path).check()
    return path


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class One:
    """A session and what its caller has heard."""

    def __init__(self, session):
        self.session = session
        self.events = []
        self.react = None
        self.heard = threading.Condition()

    def on_event(self, event):
        with self.heard:
            self.events.append(event)
            self.heard.notify_all()
        if self.react is not None:
            self.react(event)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def wait_for(self, kind, count=1):
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.of(kind)) >= count, PATIENCE_S), f"no {kind.__name__} in {self.events}"

    def run(self, prompt, *, prepare=None, **request):
        ticket = self.session.prepare_turn(TurnRequest(prompt=prompt, **request), **(prepare or {}))
        return self.session.run(ticket, on_event=self.on_event, wait=PATIENCE_S)

    def begin(self, prompt, *, prepare=None, **request):
        """Run on a thread of its own; returns the ticket and what joins."""
        ticket = self.session.prepare_turn(TurnRequest(prompt=prompt, **request), **(prepare or {}))
        thread = threading.Thread(target=self._quietly, args=(ticket,), name=f"caller-{ticket.turn_id}", daemon=True)
        thread.start()
        return Begun(ticket=ticket, thread=thread)

    def _quietly(self, ticket):
        try:
            self.session.run(ticket, on_event=self.on_event)
        except BaseException:  # noqa: BLE001 - the ticket has it
            return


class CodexBench:
    """A room, a home and its sessions."""

    def __init__(self, directory, plan=None, *, shared=True, room=None, **transport):
        self.directory = directory
        self.home = directory / "codex"
        self.home.mkdir(parents=True, exist_ok=True)
        self.state = directory / "state"
        self.env = {"HOME": str(directory), "CODEX_HOME": str(self.home), "PATH": os.environ["PATH"], **(plan or Plan()).env(directory)}
        times = {"interrupt_grace_s": 2.0, "close_grace_s": 1.0}
        self.transport = CodexAppServerTransport(binary=binary(), env=self.env, shared=shared, **{**times, **transport})
        self.room = Greenroom(**(room or {}))
        self.ones = []

    def agent(self, *, transport=None, **options):
        defaults = {
            "permissions": NativePermissions.bypass(),
            "approvals": ApprovalPolicy.DENY,
            "restart": AT_ONCE,
            "retry": RetryPolicy(delays=(0.01,)),
        }
        return self.room.agent(transport or self.transport, **{**defaults, **options})

    def one(self, *, agent=None, session=None, cwd=None, **options):
        work = cwd or self.directory / f"work-{len(self.ones)}"
        if cwd is None:
            work.mkdir(exist_ok=True)
        one = One((agent or self.agent(**options)).session(work, **(session or {})))
        self.ones.append(one)
        return one

    def many(self, count, **options):
        agent = self.agent(**options)
        return [self.one(agent=agent) for _ in range(count)]

    def close(self):
        return self.room.close()

    # --- what is there, and what was seen

    @property
    def starts(self):
        return starts(self.state)

    @property
    def pids(self):
        """The servers that live, oldest first."""
        started = [record["pid"] for record in self.starts]
        return [pid for pid in started if _lives(pid)]

    def requests(self, method=None):
        return [row for row in codex_requests(self.state) if method in (None, row["method"])]

    def kill(self, index=0):
        psutil.Process(self.pids[index]).kill()

    def prompts(self):
        """What the model was told by users, over all threads."""
        return [seen.text for thread in conversations(self.state) for seen in codex_history(self.state, thread) if seen.role == "user"]

    def history(self, thread_id):
        return codex_history(self.state, thread_id)


def together(calls):
    """Make the calls at once, each on a thread; return what they returned, or raise what one raised."""
    answers, raised = [None] * len(calls), []

    def work(index):
        try:
            answers[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if raised:
        raise raised[0]
    return answers


__all__ = ["AT_ONCE", "PATIENCE_S", "CodexBench", "One", "together", "until"]
