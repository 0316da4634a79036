"""A room with scripted CLIs, each with its own plan and state, and what its tests ask afterwards."""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
import threading
import time

import attrs

from greenroom import ApprovalPolicy, ClaudeStreamTransport, Greenroom, NativePermissions, RestartPolicy, RetryPolicy, TurnRequest
from greenroom.testing.scripted import Plan, conversations, history, prompts_seen, starts, write_scripted_claude

PATIENCE_S = 30.0
AT_ONCE = RestartPolicy(delays=(0,))


@functools.cache
def binary() -> pathlib.Path:
    """One executable a test run: its version is asked once."""
    path = write_scripted_claude(tempfile.mkdtemp(prefix="scripted-"))
    # Without a plan: the question for the version would count as a start, and be killed like one.
    ClaudeStreamTransport(env={"PATH": os.environ["PATH"]}, binary=path).check()
    return path


class Cli:
    """One session on a scripted CLI of its own."""

    def __init__(
        self, room, home, plan, *, restart=AT_ONCE, retry=None, executor=None, handlers=(), transport=None, session=None, **options
    ):
        home.mkdir(parents=True, exist_ok=True)
        self.state = home / "state"
        self.env = {"HOME": str(home), "PATH": os.environ["PATH"], **plan.env(home)}
        times = {"interrupt_grace_s": 2.0, "close_grace_s": 1.0, **(transport or {})}
        self.transport = ClaudeStreamTransport(env=self.env, binary=binary(), executor=executor, **times)
        self.agent = room.agent(
            self.transport,
            permissions=NativePermissions.bypass(),
            restart=restart,
            retry=retry or RetryPolicy(delays=(0.01,)),
            event_handlers=handlers,
            **{"approvals": ApprovalPolicy.DENY, **options},
        )
        self.session = self.agent.session(home, **(session or {}))
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

    def ticket(self, prompt, **request):
        return self.session.prepare_turn(TurnRequest(prompt=prompt, **request))

    def run(self, prompt, **request):
        ticket = self.ticket(prompt, **request)
        return self.session.run(ticket, on_event=self.on_event, wait=PATIENCE_S)

    def begin(self, prompt, **request):
        """Run on a thread of its own; returns the ticket and what joins."""
        ticket = self.ticket(prompt, **request)
        thread = threading.Thread(target=self._quietly, args=(ticket,), name=f"caller-{ticket.turn_id}", daemon=True)
        thread.start()
        return Begun(ticket=ticket, thread=thread)

    def _quietly(self, ticket):
        try:
            self.session.run(ticket, on_event=self.on_event)
        except BaseException:  # noqa: BLE001 - the ticket has it
            return

    @property
    def conversation_ids(self):
        return conversations(self.state)

    @property
    def starts(self):
        return starts(self.state)

    def prompts(self):
        return [text for one in self.conversation_ids for text in prompts_seen(self.state, one)]

    def history(self):
        return [seen for one in self.conversation_ids for seen in history(self.state, one)]


@attrs.frozen(kw_only=True)
class Begun:
    ticket: object
    thread: threading.Thread

    def outcome(self, timeout_s=PATIENCE_S):
        """The Turn, or the error that ended it."""
        try:
            return self.ticket.wait(timeout_s)
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            return error
        finally:
            self.thread.join(PATIENCE_S)
            assert not self.thread.is_alive()


class Bench:
    """A room, and CLIs in it."""

    def __init__(self, directory, **room):
        self.directory = directory
        self.room = Greenroom(**room)
        self.clis = []

    def cli(self, plan=None, **options):
        cli = Cli(self.room, self.directory / f"cli-{len(self.clis)}", plan or Plan(), **options)
        self.clis.append(cli)
        return cli

    def close(self):
        return self.room.close()


def outcome_of(call, *args, **kwargs):
    """What a call returned or raised."""
    try:
        return call(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001
        return error


def until(condition, what="it", timeout_s=PATIENCE_S):
    """Wait, in real time, for what another thread or process does."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not come"
        time.sleep(0.005)
