"""What does the policy do where? Runs `step` over representative states and writes the answers as Markdown.

`python -m greenroom.policy.table > docs/transitions.md` renews the checked-in table; a test compares the two. Pure but for that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import attrs

from greenroom.errors import SessionResumeError, TransportDiedError, TurnFailedError
from greenroom.model import Checkpoint, FailureKind, OnDeath, TurnRequest, TurnResult
from greenroom.policy.commands import (
    AdoptVerdict,
    BeginRollback,
    CloseConversation,
    Command,
    Execute,
    Fail,
    Finish,
    Grant,
    Ignored,
    Open,
    Refuse,
    RefuseRollback,
    ReportStall,
    SaveCheckpoint,
    Wait,
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
    SessionInput,
    Start,
    Succeeded,
    Swallowed,
    WaitDone,
    WaitedForPerson,
    WentSilent,
)
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.session import Settings, State, initial, step
from greenroom.policy.stall import StallAction, StallPolicy
from greenroom.policy.state import BEGUN

_NONCE = "00000000-0000-4000-8000-000000000001"
_SETTINGS = Settings(
    session_nonce=_NONCE,
    retry_delays=(30.0,),
    stall=StallPolicy(action=StallAction.RESTART),
    checkpointing=True,
    chooses_ids=True,
    retries_in_place=True,
)
_REQUEST = TurnRequest("…", timeout=60.0)

_PREPARE = Prepare(now_s=0, turn_id="t1", nonce=_NONCE, request=_REQUEST)
_RUN = RunBegan(now_s=0, turn_id="t1", flags="a")
_CONNECT = Connect(now_s=0, flags="a")
_OPENED = Opened(now_s=0, incarnation=1)
_NAMED = Named(now_s=0, incarnation=1, conversation_id="c1")
_DONE = Succeeded(now_s=0, turn_id="t1", incarnation=1, result=TurnResult(text="ok"))
_SILENT = WentSilent(now_s=0, turn_id="t1", incarnation=1, attempt=1, quiet_s=900.0, reason="model at work")
_DEATH = TransportDiedError(signal=9)
_DIED = Died(now_s=0, incarnation=1, error=_DEATH, sent=True)
_OVERLOADED = TurnFailedError(FailureKind.TRANSIENT, "overloaded")
_BUSY = SessionResumeError("c1", in_use=True)
_BACK = RollBackAsked(now_s=0, request_id="b")

_OPENING = (_PREPARE, _RUN)
_RUNNING = (*_OPENING, _OPENED, _NAMED)
_RESTART_WAIT = (*_RUNNING, _DIED)
_REOPENING = (*_RESTART_WAIT, WaitDone(now_s=0, wait_id=1))
_TAKEN_UP = Start(now_s=0, checkpoint=Checkpoint("c1"))

SITUATIONS: tuple[tuple[str, tuple[SessionInput, ...]], ...] = (
    ("idle: nothing has happened", ()),
    ("idle: a turn has ended, its process lives", (*_RUNNING, _DONE)),
    ("idle: connecting to a fresh conversation", (_CONNECT,)),
    ("idle: connecting to a conversation that is resumed", (_TAKEN_UP, _CONNECT)),
    ("idle: connected, and nothing was sent", (_CONNECT, _OPENED)),
    ("prepared: no process", (_PREPARE,)),
    ("prepared: connecting", (_TAKEN_UP, _CONNECT, _PREPARE)),
    ("prepared: a process lives", (*_RUNNING, _DONE, attrs.evolve(_PREPARE, turn_id="t2"))),
    ("opening: a fresh conversation", _OPENING),
    ("opening: a conversation is resumed", (_TAKEN_UP, *_OPENING)),
    ("opening: after a death in the turn", _REOPENING),
    ("running: the first turn", _RUNNING),
    ("running: a turn in a resumed conversation", (_TAKEN_UP, *_RUNNING)),
    ("running: a probe after a restart", (*_REOPENING, Opened(now_s=0, incarnation=2))),
    ("running: given up for its silence", (*_RUNNING, _SILENT)),
    ("running: interrupted", (*_RUNNING, Interrupted(now_s=0, turn_id="t1"))),
    ("running: closed", (*_RUNNING, Close(now_s=0))),
    ("waiting: retry", (*_RUNNING, Failed(now_s=0, turn_id="t1", incarnation=1, error=_OVERLOADED, nudgeable=True))),
    ("waiting: restart", _RESTART_WAIT),
    ("waiting: in use", (_TAKEN_UP, *_OPENING, Failed(now_s=0, turn_id=None, incarnation=1, error=_BUSY))),
    ("rewinding: the process is ending", (*_RUNNING, _DONE, _BACK)),
    ("rewinding: begun", (_TAKEN_UP, _BACK)),
    ("rewinding: closed", (_TAKEN_UP, _BACK, Close(now_s=0))),
    ("closed: the process is ending", (*_RUNNING, _DONE, Close(now_s=0))),
    ("closed: stopped", (Close(now_s=0),)),
)


def _happenings(state: State) -> Iterable[tuple[str, SessionInput]]:
    """Yield every kind of event, aimed at what `state` has; the time is late enough for any deadline."""
    turn_id = state.ticket.turn_id if state.ticket else "t1"
    incarnation = state.process.incarnation if state.process else max(state.incarnations, 1)
    failed = Failed(now_s=99, turn_id=turn_id, incarnation=incarnation, error=_OVERLOADED)
    died = Died(now_s=99, incarnation=incarnation, error=_DEATH)
    done = Succeeded(now_s=99, turn_id=turn_id, incarnation=incarnation, result=TurnResult())
    yield "Start(checkpoint)", attrs.evolve(_TAKEN_UP, now_s=99)
    yield "Reopened", Reopened(now_s=99, settings=_SETTINGS)
    yield "Adopt", Adopt(now_s=99, request_id="r", checkpoint=Checkpoint("c9"))
    yield "Prepare", attrs.evolve(_PREPARE, turn_id="t9")
    yield "Prepare(expects another)", attrs.evolve(_PREPARE, turn_id="t9", expect_conversation="c9")
    yield "Prepare(sent by a dead host)", attrs.evolve(_PREPARE, turn_id="t9", sent_attempt=1)
    yield "Cancelled", Cancelled(now_s=99, turn_id=turn_id)
    yield "RunBegan", RunBegan(now_s=99, turn_id=turn_id, flags="a")
    yield "RunBegan(other flags)", RunBegan(now_s=99, turn_id=turn_id, flags="b")
    yield "RunBegan(another ticket)", RunBegan(now_s=99, turn_id="t0")
    yield "Connect", attrs.evolve(_CONNECT, now_s=99)
    yield "Opened", Opened(now_s=99, incarnation=incarnation)
    yield "Named", Named(now_s=99, incarnation=incarnation, conversation_id="c1")
    yield "Succeeded", done
    yield "Succeeded(interrupted)", attrs.evolve(done, result=TurnResult(interrupted=True))
    yield "Succeeded(interrupted, forced)", attrs.evolve(done, result=TurnResult(interrupted=True), forced=True)
    yield "Failed(transient, nudgeable)", attrs.evolve(failed, nudgeable=True)
    yield "Failed(usage limit)", attrs.evolve(failed, error=TurnFailedError(FailureKind.USAGE_LIMIT, "…"))
    yield "Failed(context overflow)", attrs.evolve(failed, error=TurnFailedError(FailureKind.CONTEXT_OVERFLOW, "…"))
    yield "Failed(other)", attrs.evolve(failed, error=TurnFailedError(FailureKind.OTHER, "…"))
    yield "Failed(cannot be resumed)", attrs.evolve(failed, error=SessionResumeError("c1"))
    yield "Failed(in use)", attrs.evolve(failed, error=_BUSY)
    yield "Swallowed", Swallowed(now_s=99, turn_id=turn_id, incarnation=incarnation)
    yield "Died(sent)", attrs.evolve(died, sent=True)
    yield "Died(not sent)", died
    yield "Died(refused)", attrs.evolve(died, refused=True)
    yield "Died(expected)", attrs.evolve(died, expected=True)
    yield "Died(evicted)", attrs.evolve(died, expected=True, evicted=True)
    yield "WaitDone", WaitDone(now_s=99, wait_id=state.waiting.wait_id if state.waiting else 0)
    yield "DeadlinePassed", DeadlinePassed(now_s=99, turn_id=turn_id, attempt=state.ticket.attempt if state.ticket else 1)
    yield "WaitedForPerson", WaitedForPerson(now_s=99, turn_id=turn_id, waited_s=30)
    attempt = state.ticket.attempt if state.ticket else 1
    yield "WentSilent", attrs.evolve(_SILENT, now_s=99, turn_id=turn_id, incarnation=incarnation, attempt=attempt)
    yield "Interrupted", Interrupted(now_s=99, turn_id=turn_id)
    yield "RollBackAsked", attrs.evolve(_BACK, now_s=99)
    yield "RolledBack", RolledBack(now_s=99, request_id="b", num_turns=1, checkpoint=Checkpoint("c1"))
    yield "RolledBack(as it was)", RolledBack(now_s=99, request_id="b")
    yield "Release", Release(now_s=99)
    yield "Close", Close(now_s=99)


def reach(events: Iterable[SessionInput], settings: Settings = _SETTINGS) -> State:
    """Return the state after `events`."""
    state = initial(settings)
    for event in events:
        state, _ = step(state, event)
    return state


def render() -> str:
    """Return the whole table as Markdown."""
    lines = [
        "# Transitions",
        "",
        "Made from the code by `python -m greenroom.policy.table > docs/transitions.md`; a test fails if it is out of date.",
        "",
        "Each section is a representative state of a session: one retry after 30 s, checkpoints on, ids of our own, `on_death` CONTINUE,",
        "a `StallPolicy` with RESTART.",
        "Each row is an event and what `step` answers. Events that are not listed are ignored there, with a reason.",
    ]
    for title, events in SITUATIONS:
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", *_section(reach(events))]
    lines += ["", "## The probe's answer, by `on_death`", "", *_on_death_section()]
    lines += ["", "## A silence, by `StallPolicy.action`", "", *_silence_section()]
    return "\n".join(lines) + "\n"


def _section(state: State) -> list[str]:
    rows, ignored = [], []
    for name, event in _happenings(state):
        after, commands = step(state, event)
        if commands and all(isinstance(command, Ignored) for command in commands):
            ignored.append(name)
        else:
            rows.append(f"| {name} | {told(commands)} | {_where(after)} |")
    table = ["| Event | Commands | Then |", "|---|---|---|", *rows] if rows else []
    return [*table, *([""] if rows and ignored else []), *([f"Ignored: {', '.join(ignored)}."] if ignored else [])]


def _on_death_section() -> list[str]:
    rows = ["| `on_death` | Commands | Then |", "|---|---|---|"]
    for on_death in OnDeath:
        settings = attrs.evolve(_SETTINGS, restart=RestartPolicy(on_death=on_death))
        state = reach((*_REOPENING, Opened(now_s=0, incarnation=2)), settings)
        after, commands = step(state, Swallowed(now_s=0, turn_id="t1", incarnation=2))
        rows.append(f"| {on_death.name} | {told(commands)} | {_where(after)} |")
    return rows


def _silence_section() -> list[str]:
    rows = ["| `action` | Commands | Then |", "|---|---|---|"]
    for action in StallAction:
        after, commands = step(reach(_RUNNING, attrs.evolve(_SETTINGS, stall=StallPolicy(action=action))), _SILENT)
        rows.append(f"| {action.name} | {told(commands)} | {_where(after)} |")
    return rows


def _where(state: State) -> str:
    process = "no process" if state.process is None else f"process {state.process.incarnation}"
    connecting = state.process is not None and not state.process.ready and state.phase not in BEGUN
    return f"{state.phase.value}, {process}{' connecting' if connecting else ''}{', an error' if state.failure is not None else ''}"


def told(commands: Iterable[Command]) -> str:
    """Return the commands in a few words each."""
    return ", ".join(words(command) for command in commands) or "-"


def words(command: Command) -> str:  # noqa: C901 - one case a command
    """Return the command in a few words."""
    match command:
        case Open():
            details = [f"resume {command.resume_id}" if command.resume_id else "fresh", *(["after a death"] if command.after_death else [])]
        case Execute():
            details = [command.how.value, f"attempt {command.attempt}", *(["probe"] if command.probe else [])]
        case ReportStall():
            details = [f"{command.quiet_s:g} s", command.reason]
        case Wait():
            details = [command.reason.value, f"{command.delay_s:g} s"]
        case CloseConversation():
            details = [*(["kill: "] if command.kill else []), command.reason]
            details = ["".join(details)]
        case Finish():
            details = [*(["interrupted"] if command.turn.result.interrupted else []), command.turn.continuity.value]
        case Fail() | Refuse() | RefuseRollback():
            details = [type(command.error).__name__]
        case Grant():
            details = [f"supersedes {command.superseded}"] if command.superseded else []
        case AdoptVerdict():
            details = ["accepted" if command.accepted else "refused"]
        case SaveCheckpoint() | BeginRollback():
            details = [command.checkpoint.conversation_id]
        case _:
            details = []
    return type(command).__name__ + (f"({', '.join(details)})" if details else "")


if __name__ == "__main__":
    sys.stdout.write(render())
