"""A defect of ours, in any handler of any actor: everybody who waits gets an answer, siblings live, and nothing is left behind.

Each message that an actor handles is sent to it with fields that raise when they are touched; what the message has to answer (cells,
tickets) is real.
"""

from __future__ import annotations

import threading

import attrs
import pykka
import pytest

from greenroom import Greenroom, GreenroomError, NativePermissions, SessionCrashedError, Turn, TurnRequest
from greenroom.actors import conversation, guardian, messages, undertaker, worker
from greenroom.actors.cell import Cell
from greenroom.actors.dispatcher import LoopFailed, PipeReady, TimerFired
from greenroom.actors.guardian import GuardianActor
from greenroom.actors.runtime import tell
from greenroom.actors.supervisor import SupervisorActor
from greenroom.actors.ticket import TicketCore
from greenroom.actors.worker import WorkerConversationActor
from greenroom.model import ApprovalPolicy
from greenroom.testing import FakeTransport, FakeTurn, Plan
from tests.faults.bench import PATIENCE_S, outcome_of, until

BOUND_S = 30.0
TO_SESSION = """PrepareTurn Run CancelTurn Steer Interrupt AdoptConversation ReleaseConversation ReleaseIfIdle CloseSession DrainSession
    CreditReturned Detach StartWaits Admitted ConversationOpened ConversationNamed OpenFailed TurnEvent TurnEnded
    TurnSwallowed Spent Down Stored
    AnswerAsk AskArrived AskWithdrawn AskAnswered"""
TO_CONVERSATION = "RunAttempt SteerAttempt AnswerRequest InterruptTurn HoldReading EndConversation"
TO_SUPERVISOR = """StartConversation WithdrawStart StartSettled ProcessGone ReapProcess TurnOver RetireSession SessionBegan CloseRoom
    LinkReady LinkRetired LinkGone"""


class Boom:
    """Raises whatever is done with it."""

    def _raise(self, *args):
        raise ValueError("poisoned")

    __getattr__ = __eq__ = __hash__ = __bool__ = __str__ = __repr__ = __iter__ = __len__ = __lt__ = __gt__ = __add__ = _raise
    __float__ = __index__ = __radd__ = __call__ = _raise


def poisoned(kind):
    """A message of which every field raises, but those that must answer."""
    real = {"reply_to": Cell, "closed": Cell, "ticket": lambda: TicketCore("turn-poisoned")}
    return kind(**{field.name: real.get(field.name, Boom)() for field in attrs.fields(kind)})


def cells_of(message):
    """What somebody waits for; the ticket of a PrepareTurn is nobody's yet."""
    fields = attrs.asdict(message, recurse=False)
    if "reply_to" in fields:
        fields.pop("ticket", None)
    return [fields[name] if name != "ticket" else fields[name].cell for name in ("reply_to", "closed", "ticket") if name in fields]


def named(module, names):
    return [getattr(module, name) for name in names.split()]


SESSION = [*named(messages, TO_SESSION), TimerFired]
CONVERSATION = [*named(messages, TO_CONVERSATION), *named(conversation, "Launched LaunchFailed"), TimerFired, PipeReady, LoopFailed]
WORKER = [*named(messages, TO_CONVERSATION), *named(worker, "WorkerOpened WorkerFailed WorkerResult"), TimerFired]
SUPERVISOR = [*named(messages, TO_SUPERVISOR), *named(undertaker, "ProvenDead"), TimerFired]
GUARDIAN = [*named(guardian, "GuardStarted SidsSeen"), TimerFired, PipeReady, LoopFailed]


def the(kind):
    return pykka.ActorRegistry.get_by_class(kind)


def answered(message):
    for cell in cells_of(message):
        until(lambda cell=cell: cell.settled, f"the answer to {type(message).__name__}", BOUND_S)


def ends(session, ticket):
    """The ticket has its one outcome, and every later call is answered."""
    outcome = outcome_of(ticket.wait, BOUND_S)
    assert isinstance(outcome, (Turn, GreenroomError)), outcome
    assert not isinstance(outcome, TimeoutError)
    calls = (
        lambda: session.prepare_turn(TurnRequest(prompt="SAY more")),
        session.release,
        lambda: session.adopt("5f0c2b16-6f3a-4f6f-8d2e-0d6c0a3a7a11"),
        lambda: session.steer("x"),
        session.interrupt,
        session.close,
    )
    for call in calls:
        bounded(call)
    assert session.closed
    return outcome


def bounded(call):
    """Make a call that must be answered within the bound; by a refusal, if it likes."""
    done = threading.Event()
    answers = []

    def work():
        answers.append(outcome_of(call))
        done.set()

    threading.Thread(target=work, daemon=True, name="bounded").start()
    assert done.wait(BOUND_S), f"{call} was not answered"
    assert not isinstance(answers[0], BaseException) or isinstance(answers[0], GreenroomError), answers[0]
    return answers[0]


# --- with processes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(bench):
    """Two sessions in a turn, on two processes: the victim's never ends by itself."""
    victim, sibling = bench.cli(), bench.cli()
    theirs = sibling.begin("SLOW 10 0.02\nSAY lives")
    mine = victim.begin("TOOL Bash {} -> x\nSAY said\nHANG")
    victim.wait_for(object, 6)
    until(lambda: victim.session.state == "running")
    yield victim, mine, sibling, theirs
    bounded(bench.close)


@pytest.mark.parametrize("kind", SESSION, ids=lambda kind: kind.__name__)
def test_a_poisoned_session_answers_everybody(pair, kind):
    victim, mine, sibling, theirs = pair
    message = poisoned(kind)
    tell(victim.session._ref, message)
    answered(message)
    if kind in {messages.Interrupt, messages.CreditReturned, messages.Detach, messages.ReleaseConversation, messages.ReleaseIfIdle}:
        victim.session.interrupt()
    if not victim.session._ref.is_alive():
        assert isinstance(outcome_of(mine.ticket.wait, BOUND_S), (SessionCrashedError, Turn))
    else:
        victim.session.interrupt()
    ends(victim.session, mine.ticket)
    assert theirs.outcome().result.text == "lives"
    assert sibling.run("SAY again").result.text == "again"


@pytest.mark.parametrize("kind", CONVERSATION, ids=lambda kind: kind.__name__)
def test_a_poisoned_conversation_is_a_death_like_any_other(pair, kind):
    victim, mine, sibling, theirs = pair
    ref = victim.session._ref.actor_inbox._actor._conversation[1]
    message = poisoned(kind)
    tell(ref, message)
    answered(message)
    if not ref.is_alive():
        until(lambda: len(victim.starts) > 1 or mine.ticket.ended, "the restart")
    victim.session.interrupt()
    ends(victim.session, mine.ticket)
    assert victim.prompts()[:1] == ["TOOL Bash {} -> x\nSAY said\nHANG"]
    assert theirs.outcome().result.text == "lives"
    assert sibling.run("SAY again").result.text == "again"


@pytest.mark.parametrize("kind", SUPERVISOR, ids=lambda kind: kind.__name__)
def test_a_poisoned_supervisor_leaves_nobody_waiting(bench, kind):
    victim, idle, queued = bench.cli(), bench.cli(), bench.cli(Plan(slow_start_s=0.5))
    mine = victim.begin("SAY said\nHANG")
    idle.run("SAY before")
    until(lambda: victim.session.state == "running")
    starting = queued.begin("SAY late")
    ref = bench.room._supervisor
    message = poisoned(kind)
    tell(ref, message)
    answered(message)
    if ref.is_alive():
        bounded(bench.close)
    for session, ticket in ((victim.session, mine.ticket), (queued.session, starting.ticket)):
        ends(session, ticket)
    bounded(idle.session.close)
    bounded(bench.close)
    assert mine.outcome()
    assert starting.outcome()


@pytest.mark.parametrize("kind", GUARDIAN, ids=lambda kind: kind.__name__)
def test_a_poisoned_guardian_takes_its_guard_along_and_nothing_else(bench, kind):
    cli = bench.cli()
    cli.run("SAY before")
    (ref,) = the(GuardianActor)
    tell(ref, poisoned(kind))
    assert cli.run("SAY after").result.text == "after"
    bounded(bench.close)


# --- with a user's own conversation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WORKER, ids=lambda kind: kind.__name__)
def test_a_poisoned_worker_conversation_is_a_death_like_any_other(kind, tmp_path):
    turn = FakeTurn("x", waits=True)
    transport = FakeTransport([turn, *[FakeTurn("again") for _ in range(4)]], steerable=True)
    with Greenroom() as room:
        agent = room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
        session = agent.session(tmp_path)
        ticket = session.prepare_turn(TurnRequest(prompt="p"))
        stream = threading.Thread(target=outcome_of, args=(session.run, ticket), daemon=True)
        stream.start()
        assert turn.started.wait(PATIENCE_S)
        (ref,) = the(WorkerConversationActor)
        message = poisoned(kind)
        tell(ref, message)
        answered(message)
        if ref.is_alive():
            session.interrupt()
        ends(session, ticket)
        turn.release()  # a conversation that the poison has replaced is nobody's
        stream.join(PATIENCE_S)
    assert not the(SupervisorActor)
