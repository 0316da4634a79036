"""A small world of processes that die, answer late and name their conversations as they like; the policy must keep its promises in it.

The world keeps the shell's side of the bargain: process n+1 is started only once n is dead, and every process that was told to end ends.
"""

from __future__ import annotations

import random
import uuid

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from greenroom.errors import CliExitError, SessionResumeError, TransportDiedError, TurnFailedError, TurnTimeoutError
from greenroom.model import Checkpoint, Continuity, FailureKind, OnDeath, ProviderUsage, RenewalBudget, TokenUsage, TurnRequest, TurnResult
from greenroom.policy.commands import (
    AdoptVerdict,
    BeginRollback,
    CancelWait,
    ClearCheckpoint,
    CloseConversation,
    Execute,
    Fail,
    Finish,
    Grant,
    Ignored,
    InterruptAttempt,
    Open,
    Refuse,
    RefuseRollback,
    ReportStall,
    SaveCheckpoint,
    SetDeadline,
    Stop,
    Wait,
    WaitReason,
)
from greenroom.policy.events import (
    Adopt,
    Cancelled,
    Close,
    Connect,
    DeadlinePassed,
    Died,
    Failed,
    Interrupted,
    Named,
    Opened,
    Prepare,
    Release,
    Reopened,
    RollBackAsked,
    RolledBack,
    RunBegan,
    Start,
    Succeeded,
    Swallowed,
    WaitDone,
    WaitedForPerson,
    WentSilent,
)
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.session import Phase, Settings, initial, public_snapshot, step
from greenroom.policy.stall import StallAction, StallPolicy
from greenroom.policy.state import BEGUN
from greenroom.policy.table import told

NONCE = "00000000-0000-4000-8000-000000000001"
LIMITS = settings(max_examples=120, stateful_step_count=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
KINDS = st.sampled_from(FailureKind)
USAGE = st.sampled_from([None, ProviderUsage(tokens=TokenUsage(input=5), total_cost_usd=0.5)])

STALLS = [None, *(StallPolicy(action=action) for action in StallAction)]

SETTINGS = st.builds(
    Settings,
    session_nonce=st.just(NONCE),
    retry_delays=st.sampled_from([(), (1.0,), (1.0, 2.0)]),
    restart=st.builds(
        RestartPolicy, max_restarts=st.integers(0, 3), within_s=st.sampled_from([5.0, 600.0]), on_death=st.sampled_from(OnDeath)
    ),
    stall=st.sampled_from(STALLS),
    renewal=st.sampled_from([None, RenewalBudget(max_turns=2)]),
    idle_release_after_s=st.sampled_from([None, 5.0]),
    checkpointing=st.booleans(),
    supports_resume=st.booleans(),
    chooses_ids=st.booleans(),
    probes=st.booleans(),
    retries_in_place=st.booleans(),
)

PASSAGES = [
    "probe)",
    "continue, attempt",
    "retry, attempt",
    "Finish(reset)",
    "Finish(replaced)",
    "in use",
    "after a death",
    "given up",
    "Stop",
    "BeginRollback(",
    "RefuseRollback(",
]
WHATEVER = ["time", "prepare", "other", "run", "cancel", "overtake", "release", "adopt", "host dies", "connect", "connect", "back"]


@attrs.define
class Child:
    """A process of the world: asked for, ready, or gone; `told` to end; the attempt that it runs."""

    opening: Open
    ready: bool = False
    gone: bool = False
    told: bool = False
    running: Execute | None = None


class World(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.state = initial(Settings(session_nonce=NONCE))
        self.events = []
        self.children: dict[int, Child] = {}
        self.given_ids: set[str] = set()
        self.tickets: dict[str, Prepare] = {}
        self.grants: dict[str, Grant] = {}
        self.begun: set[str] = set()
        self.ended: dict[str, Finish | Fail] = {}
        self.superseded: set[str] = set()
        self.interrupted: set[str] = set()
        self.maybe_taken: set[str] = set()
        self.sent: dict[str, Execute] = {}
        self.wait: Wait | None = None
        self.deadline: SetDeadline | None = None
        self.borrowed: str | None = None
        self.stops = 0
        self.names = 0
        self.told = ""

    @initialize(config=SETTINGS, checkpoint=st.booleans(), head=st.sampled_from(["running", "turn done", "cut", ""]), pin=st.booleans())
    def begin(self, config, checkpoint, head, pin):
        self.first = self.state = initial(config)
        self.given_ids.add("c-stored")
        self.tell(Start, checkpoint=Checkpoint("c-stored") if checkpoint else None)
        if head:
            self.prepare(pin=pin, demanded=None, timeout=3.0)
            self.run("a")
            self.go_on()
            self.go_on()
        if head == "turn done":
            self.succeed("plain", None)
        if head == "cut":
            self.die(sent=True)

    # --- the shell

    def tell(self, event_type, **fields):
        known = attrs.has(type(event_type))
        event = attrs.evolve(event_type, now_s=self.now_s, **fields) if known else event_type(now_s=self.now_s, **fields)
        before = self.state
        self.events.append(event)
        self.state, commands = step(self.state, event)
        self.told += told(commands)
        for command in commands:
            self.perform(command)
        assert commands or self.state != before, f"{event} was neither answered nor ignored"
        if any(isinstance(command, Ignored) for command in commands):
            assert commands == (Ignored(reason=commands[0].reason),)
            assert self.state == before
        return commands

    def perform(self, command):  # noqa: PLR0915 - a case each
        after_stop = isinstance(command, Ignored | Refuse | RefuseRollback) or command == AdoptVerdict(request_id="r", accepted=False)
        assert self.stops == 0 or after_stop, f"{command} after Stop"
        match command:
            case Grant():
                self.grants[command.turn_id] = command
                if command.superseded:
                    assert command.superseded not in self.begun
                    self.superseded.add(command.superseded)
            case BeginRollback():
                assert all(child.gone for child in self.children.values()), "a process has it"
                assert self.borrowed is None
                assert command.checkpoint.conversation_id in self.given_ids
                self.borrowed = command.request_id
            case Open():
                self.opens(command)
            case Execute():
                self.executes(command)
            case InterruptAttempt():
                child = self.children[command.incarnation]
                assert child.told or child.running is not None
                assert child.running is None or child.running.turn_id == command.turn_id
            case CloseConversation():
                child = self.children[command.incarnation]
                assert not child.gone
                assert not child.told, "told to end twice"
                child.told = True
            case Wait():
                assert command.turn_id in self.begun - set(self.ended)
                self.wait = command
            case CancelWait():
                assert self.wait is not None
                assert self.wait.wait_id == command.wait_id
                self.wait = None
            case SetDeadline():
                self.deadline = command
            case SaveCheckpoint():
                assert self.first.settings.checkpointing
                assert command.checkpoint.conversation_id in self.given_ids
            case ClearCheckpoint():
                assert self.first.settings.checkpointing
            case Finish():
                self.ends(command.turn.turn_id, command)
            case Fail():
                self.ends(command.turn_id, command)
            case Stop():
                self.stops += 1
                assert self.stops == 1
                assert all(child.gone or not child.told for child in self.children.values())
                assert set(self.ended) >= self.begun
            case _:
                pass

    def opens(self, command):
        assert self.borrowed is None, "a process in a conversation that is being rolled back"
        for child in self.children.values():
            assert child.gone or child.told, "a second live process"
        assert command.incarnation == len(self.children) + 1
        assert command.resume_id is None or self.first.settings.supports_resume
        ticket = self.state.ticket
        if self.connecting:
            assert self.state.phase not in BEGUN
            assert ticket is None or not ticket.keepsake or command.resume_id in (None, ticket.expected_conversation)
            self.children[command.incarnation] = Child(command)
            return
        turn_id = ticket.turn_id
        assert turn_id in self.begun - set(self.ended)
        prepare, grant = self.tickets[turn_id], self.grants[turn_id]
        demands = (prepare.pin or prepare.expect_conversation) and grant.expected_conversation
        assert not demands or command.resume_id is not None, "a demanded conversation was replaced"
        if command.resume_id is None:
            self.maybe_taken.clear()
        self.children[command.incarnation] = Child(command)

    def executes(self, command):
        assert not any(child.running for child in self.children.values() if not child.gone), "two attempts at once"
        child = self.children[command.incarnation]
        assert child.ready
        assert not child.gone
        assert not child.told
        assert command.turn_id in self.begun - set(self.ended)
        assert command.turn_id not in self.interrupted
        uuid.UUID(command.receipt)
        assert command.probe or command.receipt not in self.maybe_taken, "sent twice without asking"
        child.running = self.sent[command.turn_id] = command

    def ends(self, turn_id, command):
        assert turn_id not in self.ended, "a second end"
        assert turn_id in self.begun or self.state.closing
        self.ended[turn_id] = command
        if isinstance(command, Finish):
            turn, expected = command.turn, self.grants[turn_id].expected_conversation
            assert (turn.continuity is Continuity.REPLACED) == (expected not in (None, turn.conversation_id))
            assert turn.conversation_id is None or turn.conversation_id in self.given_ids

    # --- what the world has

    @property
    def current(self) -> Child | None:
        """The process that may be started or runs now: the youngest, once all others are dead."""
        older = [child for number, child in self.children.items() if number != len(self.children)]
        if not self.children or any(not child.gone for child in older):
            return None
        child = self.children[len(self.children)]
        return None if child.gone else child

    def waiting_to_open(self):
        return self.current is not None and not self.current.ready and not self.current.told

    def executing(self):
        return self.current is not None and self.current.running is not None

    @property
    def connecting(self) -> bool:
        process = self.state.process
        return process is not None and not process.ready and self.state.phase not in BEGUN

    def fresh_name(self):
        self.names += 1
        self.given_ids.add(f"c-{self.names}")
        return f"c-{self.names}"

    def gone(self, child):
        child.gone, child.running = True, None

    # --- callers

    @precondition(lambda self: self.state.phase not in BEGUN | {Phase.REWINDING} and not self.state.closing)
    @rule(pin=st.booleans(), expect=st.booleans(), timeout=st.sampled_from([None, 3.0]), flags=st.sampled_from("aab"))
    def take_a_turn(self, pin, expect, timeout, flags):
        self.prepare(pin=pin, demanded=self.state.conversation_id if expect else None, timeout=timeout)
        self.run(flags)

    @rule(what=st.sampled_from(WHATEVER), data=st.data())
    def anything_else(self, what, data):
        match what:
            case "time":
                self.now_s += data.draw(st.sampled_from([0.5, 2.0, 10.0, 700.0]))
            case "prepare":
                self.prepare(pin=data.draw(st.booleans()), demanded=None, timeout=None)
            case "other":
                self.prepare(pin=False, demanded="c-other", timeout=None)
            case "run" if self.tickets:
                old = data.draw(st.sampled_from(sorted(self.tickets)))
                self.run("a", self.state.ticket.turn_id if self.state.ticket else old)
            case "cancel" if self.state.phase is Phase.PREPARED and self.state.ticket.turn_id not in self.interrupted:
                self.tell(Cancelled, turn_id=self.state.ticket.turn_id)
            case "overtake" if self.state.phase is Phase.PREPARED:
                self.interrupt_overtakes_the_run(self.state.ticket.turn_id)
            case "release":
                self.tell(Release)
            case "connect":
                self.tell(Connect, flags=data.draw(st.sampled_from("ab")))
            case "adopt":
                self.given_ids.add("c-adopted")
                self.tell(Adopt, request_id="r", checkpoint=Checkpoint("c-adopted"))
            case "back":
                self.tell(RollBackAsked, request_id=f"b{len(self.events)}")
            case "host dies" if not self.state.closing:
                self.host_dies(take_up=data.draw(st.booleans()))
            case _:
                pass

    def host_dies(self, *, take_up):
        """Everything of the host is gone; its begun turn is open, and taken up or not."""
        ticket = self.state.ticket if self.state.phase in BEGUN else None
        for child in self.children.values():
            self.gone(child)
        self.wait = self.deadline = self.borrowed = None
        self.tell(Reopened, settings=self.state.settings)
        assert self.state.phase is Phase.IDLE
        assert self.state.ticket is None
        if ticket is None:
            return
        self.begun.discard(ticket.turn_id)
        sent = self.sent.get(ticket.turn_id)
        if not take_up or ticket.turn_id in self.interrupted:
            return
        if sent is not None:
            self.maybe_taken.add(sent.receipt)
        fields = {"sent_attempt": sent.attempt, "sent_how": sent.how} if sent is not None else {}
        # What was expected was judged before; from now on the turn demands no more than its pin.
        self.tickets[ticket.turn_id] = attrs.evolve(self.tickets[ticket.turn_id], expect_conversation=None)
        self.tell(self.tickets[ticket.turn_id], **fields)
        self.run("a", ticket.turn_id)

    def prepare(self, *, pin, demanded, timeout):
        turn_id = f"t{len(self.tickets) + 1}"
        nonce = str(uuid.uuid5(uuid.UUID(NONCE), turn_id))
        fields = {"turn_id": turn_id, "nonce": nonce, "request": TurnRequest("x", timeout=timeout), "pin": pin}
        self.tickets[turn_id] = Prepare(now_s=self.now_s, expect_conversation=demanded, **fields)
        self.tell(Prepare, expect_conversation=demanded, **fields)

    def run(self, flags, turn_id=None):
        turn_id = turn_id or self.state.ticket.turn_id
        if self.state.phase is Phase.PREPARED and self.state.ticket.turn_id == turn_id:
            self.begun.add(turn_id)
        self.tell(RunBegan, turn_id=turn_id, flags=flags)

    def interrupt_overtakes_the_run(self, turn_id):
        self.begun.add(turn_id)
        self.interrupted.add(turn_id)
        self.tell(Interrupted, turn_id=turn_id)
        self.tell(RunBegan, turn_id=turn_id, flags="a")
        assert turn_id in self.ended

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), current=st.sampled_from([True, False, False]))
    def interrupt(self, data, current):
        open_turns = sorted(self.begun - set(self.ended))
        turn_id = open_turns[0] if open_turns and current else data.draw(st.sampled_from(sorted(self.begun)))
        if turn_id not in self.ended:
            self.interrupted.add(turn_id)
        self.tell(Interrupted, turn_id=turn_id)

    @rule(how_likely=st.integers(0, 29))
    def close(self, how_likely):
        if how_likely == 7 or self.state.closing:
            self.tell(Close)

    @rule(times=st.integers(1, 4))
    def goes_well(self, times):
        for _ in range(times):
            self.go_on()

    def go_on(self):
        """What happens when nothing goes wrong, so that long stories come about."""
        if self.waiting_to_open():
            child = self.current
            child.ready = True
            self.tell(Opened, incarnation=child.opening.incarnation)
        elif self.wait is not None:
            self.wait_is_done()
        elif self.executing() and self.current.running.probe:
            self.probe_is_swallowed()
        elif self.executing() and self.state.conversation_id is None:
            self.tell(Named, incarnation=self.current.running.incarnation, conversation_id=self.fresh_name())

    # --- processes

    @precondition(waiting_to_open)
    @rule(answer=st.sampled_from(["same", "none", "other"]), slot_wait_s=st.sampled_from([0.0, 4.0]))
    def open_succeeds(self, answer, slot_wait_s):
        child = self.current
        child.ready = True
        asked = child.opening.resume_id or child.opening.proposed_id
        told = {"same": asked, "other": self.fresh_name(), "none": None}[answer]
        self.tell(Opened, incarnation=child.opening.incarnation, conversation_id=told, slot_wait_s=slot_wait_s)

    @precondition(waiting_to_open)
    @rule(why=st.sampled_from(["gone", "in use", "transient", "other", "timeout"]), killed=st.booleans())
    def open_fails(self, why, killed):
        child = self.current
        errors = {
            "gone": SessionResumeError(child.opening.resume_id),
            "in use": SessionResumeError(child.opening.resume_id, in_use=True),
            "transient": TurnFailedError(FailureKind.TRANSIENT, "busy"),
            "other": CliExitError(returncode=2),
            "timeout": TurnTimeoutError(60.0),
        }
        child.told, child.gone = killed, not killed
        self.tell(Failed, turn_id=None, incarnation=child.opening.incarnation, error=errors[why], killed=killed)

    @precondition(lambda self: self.current is not None and self.current.ready)
    @rule(again=st.booleans())
    def is_named(self, again):
        child = self.current
        known = self.state.conversation_id if again else None
        resumed = child.opening.resume_id if child.opening.resume_id in self.given_ids else None
        self.tell(Named, incarnation=child.opening.incarnation, conversation_id=known or resumed or self.fresh_name())

    @precondition(executing)
    @rule(usage=USAGE, how=st.sampled_from(["plain", "plain", "interrupted", "forced"]))
    def attempt_succeeds(self, usage, how):
        self.succeed(how, usage)

    def succeed(self, how, usage):
        child = self.current
        attempt, child.running = child.running, None
        child.told = child.told or how == "forced"
        result = TurnResult(text="ok", usage=usage, interrupted=how != "plain")
        fields = {"turn_id": attempt.turn_id, "incarnation": attempt.incarnation, "result": result, "forced": how == "forced"}
        self.tell(Succeeded, **fields)
        assert isinstance(self.ended[attempt.turn_id], Finish)
        assert self.tell(Succeeded, **fields) == (Ignored(reason="that attempt does not run any more"),)

    @precondition(executing)
    @rule(kind=KINDS, nudgeable=st.booleans(), killed=st.booleans(), gone=st.booleans(), keeps=st.booleans())
    def attempt_fails(self, kind, nudgeable, killed, gone, keeps):
        child = self.current
        attempt, child.running = child.running, None
        child.told = child.told or killed
        error = SessionResumeError("c") if gone and not nudgeable else TurnFailedError(kind, "no")
        fields = {"nudgeable": nudgeable, "killed": killed, "keeps_conversation": keeps}
        self.tell(Failed, turn_id=attempt.turn_id, incarnation=attempt.incarnation, error=error, **fields)

    @precondition(lambda self: self.executing() and self.current.running.probe)
    @rule()
    def the_attempt_had_been_taken(self):
        self.probe_is_swallowed()

    def probe_is_swallowed(self):
        child = self.current
        attempt, child.running = child.running, None
        self.tell(Swallowed, turn_id=attempt.turn_id, incarnation=attempt.incarnation)

    @precondition(lambda self: self.current is not None)
    @rule(sent=st.booleans(), refused=st.sampled_from([False, False, True]), usage=USAGE)
    def dies(self, sent, refused, usage):
        self.die(sent=sent, refused=refused, usage=usage)

    def die(self, *, sent, refused=False, usage=None):
        child = self.current
        if sent and child.running:
            self.maybe_taken.add(child.running.receipt)
        fields = {"sent": sent and child.running is not None, "refused": refused and not child.ready, "usage": usage}
        self.gone(child)
        self.tell(Died, incarnation=child.opening.incarnation, error=TransportDiedError(signal=9), expected=child.told, **fields)

    @precondition(executing)
    @rule()
    def goes_silent(self):
        self.silence()

    def silence(self):
        attempt, stall = self.current.running, self.state.settings.stall
        fields = {"turn_id": attempt.turn_id, "incarnation": attempt.incarnation, "attempt": attempt.attempt, "quiet_s": 900.0}
        was_told, unwanted = self.current.told, self.state.closing or attempt.turn_id in self.interrupted
        commands = self.tell(WentSilent, reason="model at work", **fields)
        if stall is None or unwanted or was_told:
            assert isinstance(commands[0], Ignored)
            return
        assert isinstance(commands[0], ReportStall)
        assert self.current.told == (stall.action is StallAction.RESTART)
        if stall.action is StallAction.INTERRUPT:
            self.interrupted.add(attempt.turn_id)

    @precondition(lambda self: self.current is not None)
    @rule()
    def is_evicted(self):
        child = self.current
        self.gone(child)
        self.tell(Died, incarnation=child.opening.incarnation, error=TransportDiedError(), expected=True, evicted=True)

    @precondition(lambda self: any(child.told and not child.gone for child in self.children.values()))
    @rule(sent=st.booleans())
    def ends_as_told(self, sent):
        number, child = next((number, child) for number, child in self.children.items() if child.told and not child.gone)
        fields = {"expected": True, "sent": sent and child.running is not None}
        self.gone(child)
        self.tell(Died, incarnation=number, error=TransportDiedError(returncode=0), **fields)

    @precondition(lambda self: self.borrowed is not None)
    @rule(done=st.booleans(), usage=USAGE)
    def a_rollback_ends(self, done, usage):
        request_id, self.borrowed = self.borrowed, None
        self.given_ids.add("c-back")
        changed = Checkpoint("c-back", usage) if done else None
        self.tell(RolledBack, request_id=request_id, num_turns=1, checkpoint=changed)
        assert self.state.phase in {Phase.IDLE, Phase.CLOSED}
        assert self.state.conversation_id == "c-back" or not done
        assert self.tell(RolledBack, request_id=request_id)[0] == Ignored(reason="that rollback is not under way")

    # --- time

    @precondition(lambda self: self.wait is not None)
    @rule()
    def a_wait_ends(self):
        self.wait_is_done()

    def wait_is_done(self):
        wait, self.wait = self.wait, None
        self.now_s += wait.delay_s
        self.tell(WaitDone, wait_id=wait.wait_id)
        assert self.tell(WaitDone, wait_id=wait.wait_id)[0] == Ignored(reason="nobody waits for that any more")

    @precondition(lambda self: self.deadline is not None)
    @rule()
    def deadline_passes(self):
        deadline, self.deadline = self.deadline, None
        self.now_s = max(self.now_s, deadline.deadline_s)
        self.tell(DeadlinePassed, turn_id=deadline.turn_id, attempt=deadline.attempt)

    # --- noise

    @rule(data=st.data())
    def stale_event(self, data):
        """Tell again what an older process or an ended turn said; nothing may come of it."""
        number = len(self.children)
        old = [
            event
            for event in self.events
            if (getattr(event, "turn_id", None) in self.ended and not isinstance(event, Prepare | RunBegan))
            or (isinstance(event, Opened | Named | Died) and event.incarnation < number and self.children[event.incarnation].gone)
            or isinstance(event, Start)
        ]
        if old:
            event = attrs.evolve(data.draw(st.sampled_from(old)), now_s=self.now_s)
            before = self.state
            self.state, commands = step(self.state, event)
            self.events.append(event)
            assert self.state == before
            assert all(isinstance(command, Ignored) for command in commands)

    # --- what always holds

    @invariant()
    def the_state_is_consistent(self):
        state = self.state
        assert (state.ticket is not None) == (state.phase in BEGUN or state.phase is Phase.PREPARED)
        assert (state.waiting is not None) == (state.phase is Phase.WAITING)
        assert (state.rewinding is not None) == (state.phase is Phase.REWINDING)
        assert self.borrowed == (state.rewinding.request_id if state.rewinding is not None and state.rewinding.begun else None)
        assert state.process is None or not self.children[state.process.incarnation].gone
        assert state.phase not in {Phase.OPENING, Phase.RUNNING} or state.process is not None
        assert state.phase is not Phase.OPENING or not state.process.ready
        assert state.phase is not Phase.RUNNING or state.process.ready
        assert state.process is None or state.process.ready == self.children[state.process.incarnation].ready
        assert state.process is None or state.phase is not Phase.CLOSED
        assert state.stopped == (self.stops == 1)
        view = public_snapshot(state)
        assert view.conversation_id is None or view.conversation_id in self.given_ids, "an invented conversation"
        assert (self.wait is not None) == (state.phase is Phase.WAITING)

    @invariant()
    def a_begun_turn_runs_or_has_ended(self):
        open_turns = self.begun - set(self.ended)
        running = {self.state.ticket.turn_id} if self.state.phase in BEGUN else set()
        assert open_turns == running

    @invariant()
    def only_a_retry_wait_of_an_unwanted_turn_is_left(self):
        if self.state.phase is Phase.WAITING and self.state.waiting.reason is not WaitReason.RETRY:
            assert not self.state.ticket.interrupted

    def teardown(self):
        if not self.events:
            return
        self.tell(Close)
        for _ in range(3):
            for number, child in self.children.items():
                if not child.gone:
                    sent, told = child.running is not None, child.told
                    self.gone(child)
                    self.tell(Died, incarnation=number, error=TransportDiedError(), expected=told, sent=sent)
        if self.borrowed is not None:
            self.a_rollback_ends(done=True, usage=None)
        assert self.stops == 1, "it never stopped"
        assert set(self.ended) >= self.begun
        again = self.first
        for event in self.events:
            again, _ = step(again, event)
        assert again == self.state, "the replay differs"


World.TestCase.settings = LIMITS
TestWorld = World.TestCase


# --- the same world, walked at random for longer than a search for small examples likes ---------------------------------------


def config_of(rng):
    return Settings(
        session_nonce=NONCE,
        retry_delays=rng.choice([(), (1.0,), (1.0, 2.0, 3.0)]),
        restart=RestartPolicy(max_restarts=rng.randint(0, 3), within_s=rng.choice([5.0, 600.0]), on_death=rng.choice(list(OnDeath))),
        stall=rng.choice(STALLS),
        renewal=rng.choice([None, RenewalBudget(max_turns=2)]),
        idle_release_after_s=rng.choice([None, 5.0]),
        checkpointing=rng.random() < 0.5,
        supports_resume=rng.random() < 0.8,
        chooses_ids=rng.random() < 0.5,
        probes=rng.random() < 0.7,
        retries_in_place=rng.random() < 0.5,
    )


def possible(world, rng):
    """Yield what may happen next and how likely it is."""
    state, child = world.state, world.current
    yield 2, lambda: world.stale_event(Draw(rng))
    yield 1, lambda: world.anything_else(rng.choice(WHATEVER), Draw(rng))
    if state.phase not in BEGUN | {Phase.REWINDING} and not state.closing:
        yield 10, lambda: world.take_a_turn(rng.random() < 0.2, rng.random() < 0.2, rng.choice([None, 3.0]), rng.choice("aaab"))
    if world.borrowed is not None:
        yield 5, lambda: world.a_rollback_ends(rng.random() < 0.5, None)
    if state.phase in BEGUN:
        yield 20, world.go_on
        yield 1, lambda: world.interrupt(Draw(rng), current=rng.random() < 0.5)
        yield 0.2, lambda: world.tell(Close)
    if child is not None:
        yield 3, lambda: world.die(sent=rng.random() < 0.7, refused=rng.random() < 0.2)
    if world.waiting_to_open():
        yield 3, lambda: world.open_fails(rng.choice(["gone", "in use", "transient", "other", "timeout"]), rng.random() < 0.3)
        yield 2, lambda: world.open_succeeds(rng.choice(["same", "other"]), rng.choice([0.0, 4.0]))
    if world.executing():
        yield 1, world.silence
        yield 4, lambda: world.succeed(rng.choice(["plain", "plain", "plain", "interrupted", "forced"]), None)
        yield (
            4,
            lambda: world.attempt_fails(
                kind=rng.choice([*FailureKind, *[FailureKind.TRANSIENT] * 6]),
                nudgeable=rng.random() < 0.5,
                killed=rng.random() < 0.2,
                gone=rng.random() < 0.1,
                keeps=rng.random() < 0.2,
            ),
        )
    if world.deadline is not None:
        yield 0.5, world.deadline_passes
    if child is not None and child.ready:
        yield 1, lambda: world.is_named(rng.random() < 0.5)
    if any(each.told and not each.gone for each in world.children.values()):
        yield 8, lambda: world.ends_as_told(rng.random() < 0.5)


class Draw:
    """Stands in for hypothesis's data: draws by the walk's own generator."""

    def __init__(self, rng):
        self.rng = rng

    def draw(self, strategy):
        elements = strategy.wrapped_strategy if hasattr(strategy, "wrapped_strategy") else strategy
        return self.rng.choice(list(elements.elements)) if hasattr(elements, "elements") else self.rng.random() < 0.5


def walk(seed, steps=120):
    rng = random.Random(seed)
    world = World()
    world.begin(config_of(rng), rng.random() < 0.5, "", pin=False)
    for _ in range(steps):
        weights, moves = zip(*possible(world, rng), strict=True)
        rng.choices(moves, weights)[0]()
        world.the_state_is_consistent()
        world.a_begun_turn_runs_or_has_ended()
        world.only_a_retry_wait_of_an_unwanted_turn_is_left()
    world.teardown()
    return world


@pytest.mark.parametrize("seed", range(0, 300, 20))
def test_long_walks(seed):
    for each in range(seed, seed + 20):
        walk(each)


def test_the_walks_meet_what_they_are_there_for():
    seen = " ".join(world.told for world in map(walk, range(60)))
    assert [passage for passage in PASSAGES if passage not in seen] == []


# --- any events at all, in any order: nothing raises -------------------------------------------------------------------------

TURN = st.sampled_from(["t1", "t2"])
NUMBER = st.integers(0, 3)
NAME = st.sampled_from(["c1", "c2"])
NOW = st.floats(0, 50)
ERROR = st.one_of(
    KINDS.map(lambda kind: TurnFailedError(kind, "no")),
    st.booleans().map(lambda in_use: SessionResumeError("c1", in_use=in_use)),
    st.just(TurnTimeoutError(1.0)),
)
ANY_EVENT = st.one_of(
    st.builds(Start, now_s=NOW, checkpoint=st.none() | NAME.map(Checkpoint)),
    st.builds(Adopt, now_s=NOW, request_id=st.just("r"), checkpoint=NAME.map(Checkpoint)),
    st.builds(
        Prepare,
        now_s=NOW,
        turn_id=TURN,
        nonce=st.just(NONCE),
        request=st.sampled_from([TurnRequest("x"), TurnRequest("x", timeout=5.0)]),
        expect_conversation=st.none() | NAME,
        pin=st.booleans(),
    ),
    st.builds(Cancelled, now_s=NOW, turn_id=TURN),
    st.builds(RunBegan, now_s=NOW, turn_id=TURN, flags=st.sampled_from("ab")),
    st.builds(Connect, now_s=NOW, flags=st.sampled_from("ab")),
    st.builds(Opened, now_s=NOW, incarnation=NUMBER, conversation_id=st.none() | NAME, slot_wait_s=NOW),
    st.builds(Named, now_s=NOW, incarnation=NUMBER, conversation_id=NAME),
    st.builds(
        Succeeded,
        now_s=NOW,
        turn_id=TURN,
        incarnation=NUMBER,
        result=st.builds(TurnResult, usage=USAGE, interrupted=st.booleans(), session_id=st.none() | NAME),
        forced=st.booleans(),
    ),
    st.builds(
        Failed,
        now_s=NOW,
        turn_id=st.none() | TURN,
        incarnation=NUMBER,
        error=ERROR,
        usage=USAGE,
        nudgeable=st.booleans(),
        killed=st.booleans(),
    ),
    st.builds(Swallowed, now_s=NOW, turn_id=TURN, incarnation=NUMBER),
    st.builds(
        Died,
        now_s=NOW,
        incarnation=NUMBER,
        error=st.builds(TransportDiedError),
        expected=st.booleans(),
        sent=st.booleans(),
        refused=st.booleans(),
        evicted=st.booleans(),
        usage=USAGE,
    ),
    st.builds(WaitDone, now_s=NOW, wait_id=NUMBER),
    st.builds(DeadlinePassed, now_s=NOW, turn_id=TURN, attempt=NUMBER),
    st.builds(WaitedForPerson, now_s=NOW, turn_id=TURN, waited_s=NOW),
    st.builds(WentSilent, now_s=NOW, turn_id=TURN, incarnation=NUMBER, attempt=NUMBER, quiet_s=NOW, reason=st.just("x")),
    st.builds(Interrupted, now_s=NOW, turn_id=TURN),
    st.builds(RollBackAsked, now_s=NOW, request_id=TURN),
    st.builds(RolledBack, now_s=NOW, request_id=TURN, num_turns=NUMBER, checkpoint=st.none() | NAME.map(Checkpoint)),
    st.builds(Release, now_s=NOW),
    st.builds(Close, now_s=NOW),
)


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(config=SETTINGS, events=st.lists(ANY_EVENT, max_size=40))
def test_step_is_total(config, events):
    state = initial(config)
    ends, grants = 0, 0
    for event in events:
        was_stopped = state.stopped
        state, commands = step(state, event)
        if was_stopped:
            assert all(isinstance(command, Ignored | Refuse | RefuseRollback | AdoptVerdict) for command in commands)
        grants += sum(isinstance(command, Grant) for command in commands)
        ends += sum(isinstance(command, Finish | Fail) for command in commands)
        assert (state.ticket is not None) == (state.phase in BEGUN or state.phase is Phase.PREPARED)
        assert ends <= grants


def test_the_world_can_fail():
    """The machine sees what it is there to see: a policy that restarts without asking would be caught."""
    world = World()
    world.maybe_taken.add("00000000-0000-4000-8000-00000000000a")
    world.begun.add("t1")
    world.children[1] = Child(Open(incarnation=1, resume_id=None), ready=True)
    attempt = Execute(turn_id="t1", incarnation=1, how=None, receipt="00000000-0000-4000-8000-00000000000a", attempt=1)
    with pytest.raises(AssertionError, match="sent twice"):
        world.executes(attempt)
