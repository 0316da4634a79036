"""The rules of a session, one by one: what is told, and what follows."""

from __future__ import annotations

import uuid

import attrs
import pytest

from greenroom.errors import (
    CliExitError,
    ContinuityError,
    GreenroomError,
    ProviderCapabilityError,
    SessionResumeError,
    SessionStateError,
    TransportDiedError,
    TurnFailedError,
    TurnTimeoutError,
)
from greenroom.model import Checkpoint, Continuity, FailureKind, OnDeath, ProviderUsage, RenewalBudget, TokenUsage, TurnRequest, TurnResult
from greenroom.policy.commands import (
    AdoptVerdict,
    Execute,
    Fail,
    Finish,
    Grant,
    How,
    Ignored,
    InterruptAttempt,
    Open,
    Refusal,
    Refuse,
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
    DeadlinePassed,
    Died,
    Failed,
    Interrupted,
    Named,
    Opened,
    Prepare,
    Release,
    RunBegan,
    Start,
    Succeeded,
    Swallowed,
    WaitDone,
    WaitedForPerson,
)
from greenroom.policy.restart import IN_USE_DELAYS_S, RestartPolicy
from greenroom.policy.session import Phase, Settings, initial, public_snapshot, step
from greenroom.policy.table import told
from greenroom.policy.wire_ids import proposed_conversation, receipt

NONCE = "00000000-0000-4000-8000-000000000001"
DEFAULTS = Settings(session_nonce=NONCE, retry_delays=(30.0, 60.0), checkpointing=True, chooses_ids=True, retries_in_place=True)
C1 = Checkpoint("c1", ProviderUsage(raw={"total": 7}))


def nonce_of(turn_id: str) -> str:
    return str(uuid.uuid5(uuid.UUID(NONCE), turn_id))


class Play:
    """A session and what it is told; each method is an event aimed at what the session has, unless told otherwise."""

    def __init__(self, start: Checkpoint | None = None, **settings):
        self.state = initial(attrs.evolve(DEFAULTS, **settings))
        self.now_s = 0.0
        self.seen: list = []
        self.last: tuple = ()
        self.told(Start, checkpoint=start)

    def told(self, event_type, **fields):
        self.state, self.last = step(self.state, event_type(now_s=self.now_s, **fields))
        self.seen += self.last
        return self

    @property
    def words(self) -> str:
        return told(self.last)

    @property
    def incarnation(self) -> int:
        return self.state.process.incarnation if self.state.process else self.state.incarnations

    @property
    def turn_id(self) -> str:
        return self.state.ticket.turn_id if self.state.ticket else "t0"

    def all(self, command_type) -> list:
        return [command for command in self.seen if isinstance(command, command_type)]

    def latest(self, command_type):
        return self.all(command_type)[-1]

    @property
    def turn(self):
        return self.latest(Finish).turn

    @property
    def error(self) -> GreenroomError:
        return self.latest(Fail).error

    def after(self, seconds: float):
        self.now_s += seconds
        return self

    def prepare(self, turn_id="t1", *, expect=None, pin=False, timeout=None):
        request = TurnRequest("do it", timeout=timeout)
        return self.told(Prepare, turn_id=turn_id, nonce=nonce_of(turn_id), request=request, expect_conversation=expect, pin=pin)

    def run(self, turn_id=None, *, flags="a"):
        return self.told(RunBegan, turn_id=turn_id or self.turn_id, flags=flags)

    def opened(self, conversation_id=None, *, slot_wait_s=0.0):
        return self.told(Opened, incarnation=self.incarnation, conversation_id=conversation_id, slot_wait_s=slot_wait_s)

    def named(self, conversation_id="c1"):
        return self.told(Named, incarnation=self.incarnation, conversation_id=conversation_id)

    def ok(self, *, usage=None, cost_usd=None, duration_ms=0, interrupted=False, forced=False, cumulative=None, session_id=None):
        result = TurnResult(
            text="ok", usage=usage, cost_usd=cost_usd, duration_ms=duration_ms, interrupted=interrupted, session_id=session_id
        )
        return self.told(Succeeded, turn_id=self.turn_id, incarnation=self.incarnation, result=result, cumulative=cumulative, forced=forced)

    def failed(self, error=FailureKind.TRANSIENT, **fields):
        error = TurnFailedError(error, "as told") if isinstance(error, FailureKind) else error
        return self.told(Failed, turn_id=self.turn_id, incarnation=self.incarnation, error=error, **fields)

    def start_failed(self, error, **fields):
        return self.told(Failed, turn_id=None, incarnation=self.incarnation, error=error, **fields)

    def died(self, incarnation=None, **fields):
        return self.told(Died, incarnation=incarnation or self.incarnation, error=TransportDiedError(signal=9), **fields)

    def swallowed(self):
        return self.told(Swallowed, turn_id=self.turn_id, incarnation=self.incarnation)

    def waited(self):
        wait = self.latest(Wait)
        return self.after(wait.delay_s).told(WaitDone, wait_id=wait.wait_id)

    def interrupted(self):
        return self.told(Interrupted, turn_id=self.turn_id)

    # whole passages

    def running(self, turn_id="t1", name="c1", **prepare):
        self.prepare(turn_id, **prepare).run()
        if self.state.phase is Phase.OPENING:
            self.opened()
        return self.named(name) if name else self

    def turn_done(self, turn_id="t1", **prepare):
        return self.running(turn_id, **prepare).ok()

    def restarted(self, *, sent=True):
        return self.died(sent=sent).waited().opened()


# --- tickets ----------------------------------------------------------------------------------------------------------------


def test_a_first_turn_opens_a_fresh_conversation_under_our_id_and_ends_in_the_named_one():
    play = Play().prepare().run()
    assert play.last == (Open(incarnation=1, resume_id=None, proposed_id=proposed_conversation(NONCE, 1), flags="a"),)
    play.opened()
    assert play.last == (Execute(turn_id="t1", incarnation=1, how=How.PROMPT, receipt=receipt(nonce_of("t1"), 1), attempt=1, probe=False),)
    assert play.state.conversation_id is None
    play.named("c1")
    assert play.state.conversation_id == "c1"
    play.ok()
    assert play.words == "SaveCheckpoint(c1), Finish(continued)"
    assert (play.turn.turn_id, play.turn.conversation_id, play.state.last_turn_conversation_id) == ("t1", "c1", "c1")


def test_the_next_turn_runs_in_the_living_process():
    assert Play().turn_done().prepare("t2").run().words == "Execute(prompt, attempt 1)"


def test_a_provider_that_chooses_its_ids_is_proposed_none():
    assert Play(chooses_ids=False).prepare().run().latest(Open).proposed_id is None


def test_a_newer_ticket_supersedes_and_the_older_one_is_stale():
    play = Play().prepare("t1").prepare("t2")
    assert play.last == (Grant(turn_id="t2", expected_conversation=None, superseded="t1"),)
    refused = play.run("t1").latest(Refuse)
    assert (refused.refusal, type(refused.error)) == (Refusal.STALE, SessionStateError)
    assert play.state.phase is Phase.PREPARED


def test_no_ticket_while_a_turn_runs_not_even_in_a_wait():
    for play in (Play().running(), Play().running().failed(), Play().prepare().run()):
        assert play.prepare("t2").latest(Refuse).refusal is Refusal.BUSY


@pytest.mark.parametrize(("start", "actual"), [(None, None), (C1, "c1")])
def test_another_conversation_than_expected_is_refused_and_the_older_ticket_stays(start, actual):
    play = Play(start).prepare("t1").prepare("t2", expect="c9")
    refused = play.latest(Refuse)
    assert refused.refusal is Refusal.CONTINUITY
    assert isinstance(refused.error, ContinuityError)
    assert (refused.error.expected, refused.error.actual) == ("c9", actual)
    assert play.turn_id == "t1"


def test_a_cancelled_ticket_never_runs():
    play = Play().prepare().told(Cancelled, turn_id="t1").run("t1")
    assert play.latest(Refuse).refusal is Refusal.STALE
    assert not play.all(Open)


def test_a_ticket_that_was_superseded_cannot_be_cancelled_any_more():
    assert Play().prepare("t1").prepare("t2").told(Cancelled, turn_id="t1").words == "Ignored"


def test_the_same_ticket_twice_is_ignored():
    play = Play().prepare().prepare()
    assert (play.words, play.turn_id) == ("Ignored", "t1")


def test_a_second_run_of_the_running_turn_is_ignored():
    assert Play().running().run("t1").words == "Ignored"


def test_a_repeated_run_of_a_turn_that_is_being_closed_settles_nothing():
    assert Play().running().told(Close).run("t1").words == "Ignored"


def test_start_comes_once():
    play = Play(C1).told(Start, checkpoint=Checkpoint("c9"))
    assert (play.words, play.state.conversation_id) == ("Ignored", "c1")
    assert Play().turn_done().told(Start, checkpoint=Checkpoint("c9")).state.conversation_id == "c1"


# --- processes between turns ------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_resumed_with_its_usage():
    opening = Play(C1).prepare().run().latest(Open)
    assert (opening.resume_id, opening.previous_usage, opening.proposed_id) == ("c1", C1.usage, None)


def test_other_flags_close_in_order_and_resume():
    play = Play().turn_done().prepare("t2").run(flags="b")
    assert play.words == "CloseConversation(the turn needs a process with other flags), Open(resume c1)"
    assert play.latest(Open).flags == "b"
    play.died(1, expected=True)
    assert play.last == ()
    assert play.opened().ok().turn.continuity is Continuity.CONTINUED


def test_other_flags_wait_where_a_resume_would_lose_the_history():
    assert Play(supports_resume=False).turn_done().prepare("t2").run(flags="b").words == "Execute(prompt, attempt 1)"


def test_a_death_between_turns_is_only_the_end_of_the_process():
    play = Play().turn_done().died()
    assert (play.last, play.state.deaths) == ((), ())
    play.prepare("t2").run()
    assert play.words == "Open(resume c1)"
    assert play.opened().ok().turn.continuity is Continuity.CONTINUED


def test_a_death_between_turns_of_what_cannot_be_resumed_is_known_at_prepare():
    play = Play(supports_resume=False).turn_done().died().prepare("t2", expect="c1")
    assert play.latest(Refuse).refusal is Refusal.CONTINUITY
    assert play.prepare("t3").run().words == "Open(fresh)"


def test_a_conversation_that_is_lost_between_prepare_and_run_fails_a_turn_that_demands_it():
    play = Play(supports_resume=False).turn_done().prepare("t2", pin=True).died().run()
    assert isinstance(play.error, SessionResumeError)
    assert len(play.all(Open)) == 1


@pytest.mark.parametrize(("idle_s", "expected"), [(99.0, "Grant"), (100.0, "CloseConversation(idle), Grant")])
def test_idle_release_happens_at_prepare(idle_s, expected):
    play = Play(idle_release_after_s=100.0).turn_done().after(idle_s).prepare("t2")
    assert play.words == expected
    play.run()
    if idle_s >= 100:
        assert play.words == "Open(resume c1)"
        play.opened()
    assert play.ok().turn.continuity is Continuity.CONTINUED


def test_idle_release_needs_a_conversation_that_can_be_found_again():
    assert Play(idle_release_after_s=1.0, supports_resume=False).turn_done().after(9).prepare("t2").words == "Grant"


def test_release_closes_an_idle_process_only():
    play = Play().running()
    assert play.told(Release).words == "Ignored"
    assert play.ok().told(Release).words == "CloseConversation(released)"
    assert play.told(Release).words == "Ignored"
    assert Play(supports_resume=False).turn_done().told(Release).words == "Ignored"


@pytest.mark.parametrize(
    ("play", "accepted"),
    [
        (Play(), True),
        (Play().turn_done(), False),
        (Play(C1), False),
        (Play().prepare(), False),
        (Play().running(name=None), False),
        (Play().turn_done(name=None), False),
        (Play(supports_resume=False), False),
        (Play(renewal=RenewalBudget(max_turns=1)).turn_done(), True),
        (Play().told(Close), False),
    ],
    ids=["new", "newer history", "checkpoint", "prepared", "running", "unnamed history", "no resume", "after a reset", "closed"],
)
def test_adopt(play, accepted):
    play.told(Adopt, request_id="r", checkpoint=Checkpoint("c9"))
    assert play.last == (AdoptVerdict(request_id="r", accepted=accepted),)
    if accepted:
        assert play.prepare("t2", expect="c9").run().words == "Open(resume c9)"


def test_a_name_that_is_told_before_anything_was_sent_becomes_public_with_the_attempt():
    play = Play().prepare().run().named("c1")
    assert play.state.conversation_id is None
    assert play.opened().state.conversation_id == "c1"
    play = Play(supports_resume=False).prepare().run().named("c1").interrupted().prepare("t2", pin=True)
    assert play.latest(Grant).expected_conversation is None


def test_a_name_that_comes_after_the_turn_is_kept_and_checkpointed():
    play = Play().turn_done(name=None).named("c1")
    assert (play.words, play.state.conversation_id) == ("SaveCheckpoint(c1)", "c1")


def test_a_rename_between_turns_is_checkpointed():
    play = Play().turn_done().named("c2")
    assert (play.words, play.state.conversation_id) == ("SaveCheckpoint(c2)", "c2")


# --- resumes that are refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_open", [True, False])
def test_a_conversation_that_is_gone_is_replaced_once(at_open):
    play = Play(C1).prepare().run()
    play = play.start_failed(SessionResumeError("c1")) if at_open else play.opened().failed(SessionResumeError("c1"))
    assert "ClearCheckpoint" in play.words
    assert play.latest(Open).resume_id is None
    assert play.state.conversation_id is None
    turn = play.opened().named("c2").ok().turn
    assert (turn.continuity, turn.conversation_id) == (Continuity.REPLACED, "c2")


def test_a_second_refusal_propagates():
    play = Play(C1).prepare().run().start_failed(SessionResumeError("c1")).start_failed(SessionResumeError(None))
    assert play.words == "Fail(SessionResumeError)"
    assert play.prepare("t2").run().words == "Open(fresh)"


@pytest.mark.parametrize("demand", [{"expect": "c1"}, {"pin": True}])
def test_a_turn_that_demands_its_conversation_never_gets_another(demand):
    play = Play(C1).prepare(**demand).run().start_failed(SessionResumeError("c1"))
    assert play.words == "Fail(SessionResumeError)"
    assert play.state.conversation_id == "c1"


@pytest.mark.parametrize("demand", [{"expect": "c1"}, {"pin": True}])
@pytest.mark.parametrize("told_by", ["opened", "named"])
def test_a_resume_that_is_answered_with_another_conversation_ends_such_a_turn(demand, told_by):
    play = Play(C1).prepare(**demand).run()
    play = play.opened("c2") if told_by == "opened" else play.opened().named("c2")
    assert play.words.startswith("CloseConversation(kill: ")
    assert isinstance(play.error, SessionResumeError)
    assert play.state.conversation_id == "c1"


def test_a_resume_that_is_answered_with_another_conversation_is_told_to_others():
    assert Play(C1).prepare().run().opened("c2").named("c2").ok().turn.continuity is Continuity.REPLACED


def test_a_conversation_in_use_is_waited_for_bounded_and_kept():
    play = Play(C1).prepare().run()
    for _ in range(5):
        assert play.start_failed(SessionResumeError("c1", in_use=True)).latest(Wait).reason is WaitReason.IN_USE
        assert play.waited().words == "Open(resume c1)"
    assert [wait.delay_s for wait in play.all(Wait)] == [0.5, 1.0, 2.0, 4.0, 8.0]
    play.start_failed(SessionResumeError("c1", in_use=True))
    assert play.error.in_use
    assert play.state.conversation_id == "c1"


def test_an_attempts_time_begins_when_a_process_has_it_and_what_comes_before_has_bounds_of_its_own():
    play = Play(C1).prepare(timeout=3.0).run()
    for delay_s in IN_USE_DELAYS_S:
        play.after(60.0).start_failed(SessionResumeError("c1", in_use=True))
        assert play.latest(Wait).delay_s == delay_s
        play.after(delay_s).told(WaitDone, wait_id=play.state.waiting.wait_id)
    assert play.all(SetDeadline) == []
    play.told(DeadlinePassed, turn_id="t1", attempt=0)
    assert play.all(Fail) == []
    play.after(60.0).opened("c1", slot_wait_s=100.0)
    assert play.latest(Execute).deadline_s == play.now_s + 3.0
    # Once it has begun it goes on over a death, a restart and a conversation in use.
    deadline_s = play.now_s + 3.0
    play.after(1.0).died(sent=True)
    assert play.latest(SetDeadline).deadline_s == deadline_s
    play.waited().start_failed(SessionResumeError("c1", in_use=True))
    assert play.latest(SetDeadline).deadline_s == deadline_s
    play.now_s = deadline_s
    play.told(DeadlinePassed, turn_id="t1", attempt=1)
    assert isinstance(play.error, TurnTimeoutError)


def test_a_turn_whose_conversation_is_in_use_gives_up_its_process():
    play = Play(C1).running().failed(SessionResumeError("c1", in_use=True))
    assert play.words == "CloseConversation(its conversation is in use), Wait(in use, 0.5 s)"


def test_a_conversation_in_use_does_not_make_an_unsent_attempt_doubtful():
    play = Play(C1).running().died(sent=False).waited().start_failed(SessionResumeError("c1", in_use=True)).waited()
    assert not play.opened().latest(Execute).probe


def test_our_own_id_in_use_means_that_the_conversation_exists():
    play = Play().prepare().run().opened().died(sent=False).waited()
    assert play.latest(Open).resume_id is None
    play.start_failed(SessionResumeError(None, in_use=True)).waited()
    assert play.latest(Open).resume_id == proposed_conversation(NONCE, 1)
    assert play.opened().latest(Execute).probe


# --- deaths in a turn ---------------------------------------------------------------------------------------------------------


def test_an_attempt_that_was_not_sent_is_sent_after_the_restart_under_the_same_receipt():
    play = Play(C1).running().died(sent=False)
    assert play.words == "ReportDeath, Wait(restart, 0 s)"
    assert play.waited().words == "Open(resume c1, after a death)"
    assert play.opened().words == "ReportRestart, Execute(prompt, attempt 1)"
    first, second = play.all(Execute)
    assert first.receipt == second.receipt
    assert play.ok().turn.restarts == 1


def test_an_attempt_that_may_have_been_taken_is_asked_about_even_if_the_asking_is_cut():
    play = Play(C1).running().restarted(sent=True)
    assert play.words == "ReportRestart, Execute(prompt, attempt 1, probe)"
    play.restarted(sent=False)
    assert play.words == "ReportRestart, Execute(prompt, attempt 1, probe)"


@pytest.mark.parametrize(
    ("on_death", "expected"),
    [
        (OnDeath.CONTINUE, "Execute(continue, attempt 2)"),
        (OnDeath.RESEND, "Execute(prompt, attempt 2)"),
        (OnDeath.FAIL, "SaveCheckpoint(c1), Fail(TransportDiedError)"),
    ],
)
def test_what_follows_a_probe_that_was_swallowed(on_death, expected):
    play = Play(C1, restart=RestartPolicy(on_death=on_death)).running().restarted().swallowed()
    assert play.words == expected
    assert play.swallowed().words == "Ignored"


def test_a_continuation_that_is_cut_is_asked_about_as_a_continuation():
    play = Play(C1).running().restarted().swallowed().restarted()
    assert play.words == "ReportRestart, Execute(continue, attempt 2, probe)"


@pytest.mark.parametrize(
    ("on_death", "supports_resume", "expected"),
    [
        (OnDeath.CONTINUE, True, "Execute(continue, attempt 2)"),
        (OnDeath.CONTINUE, False, None),
        (OnDeath.RESEND, True, "Execute(prompt, attempt 2)"),
        (OnDeath.RESEND, False, "Execute(prompt, attempt 2)"),
        (OnDeath.FAIL, True, None),
    ],
)
def test_a_transport_that_cannot_find_out_goes_by_on_death(on_death, supports_resume, expected):
    play = Play(probes=False, supports_resume=supports_resume, chooses_ids=False, restart=RestartPolicy(on_death=on_death))
    play.running().died(sent=True)
    if expected is None:
        assert play.words == "ReportDeath, SaveCheckpoint(c1), Fail(TransportDiedError)"
    else:
        assert play.waited().opened().words == f"ReportRestart, {expected}"


def test_the_fourth_death_in_the_window_fails_the_turn_and_keeps_the_conversation():
    play = Play(C1).running()
    for _ in range(3):
        play.after(10).restarted()
    assert [wait.delay_s for wait in play.all(Wait)] == [0.0, 1.0, 5.0]
    play.after(10).died(sent=True)
    assert play.words == "ReportDeath, SaveCheckpoint(c1), Fail(TransportDiedError)"
    assert play.error.hint == "4 deaths within 600 s: it is restarted no more; the conversation is kept, and the next turn resumes it"
    assert play.state.conversation_id == "c1"
    assert play.prepare("t2").run().words == "Open(resume c1)"


def test_starts_that_succeed_take_no_death_away_but_time_does():
    play = Play(C1, restart=RestartPolicy(max_restarts=1, within_s=100.0))
    play.running("t1").restarted().ok()
    assert play.prepare("t2").run().died(sent=True).after(0).words == "ReportDeath, SaveCheckpoint(c1), Fail(TransportDiedError)"
    assert play.after(100).running("t3").died(sent=True).words == "ReportDeath, Wait(restart, 0 s)"


def test_a_start_that_is_killed_is_started_again_and_one_that_refuses_is_not():
    play = Play().prepare().run()
    assert play.died().words == "ReportDeath, Wait(restart, 0 s)"
    assert play.waited().words == "Open(fresh)"
    assert play.died(refused=True).words == "Fail(TransportDiedError)"


def test_our_own_kills_do_not_count():
    play = Play(C1).running().died(expected=True, sent=True)
    assert play.words == "SaveCheckpoint(c1), Fail(TransportDiedError)"
    assert play.state.deaths == ()


def test_a_death_in_a_retry_wait_is_no_death_in_a_turn():
    play = Play(C1).running().failed(nudgeable=True).died()
    assert (play.last, play.state.deaths) == ((), ())
    assert play.waited().words == "Open(resume c1)"
    assert play.opened().words == "Execute(retry, attempt 2)"
    assert play.ok().turn.restarts == 0


def test_a_death_of_another_process_is_harmless():
    play = Play().running()
    before = play.state
    assert play.died(7).words == "Ignored"
    assert play.state == before


@pytest.mark.parametrize("pin", [False, True])
def test_a_conversation_that_never_ended_a_turn_begins_again_under_its_id(pin):
    play = Play().running(pin=pin).died(sent=True).waited()
    assert play.latest(Open).resume_id == "c1"
    play.start_failed(SessionResumeError("c1"))
    assert (play.latest(Open).resume_id, play.latest(Open).proposed_id) == (None, proposed_conversation(NONCE, 1))
    assert play.opened().words == "ReportRestart, Execute(prompt, attempt 1)"
    assert play.named("c1").ok().turn.continuity is Continuity.CONTINUED


def test_a_cut_first_attempt_without_a_name_is_looked_for_under_our_id():
    play = Play().running(name=None).died(sent=True).waited()
    assert play.latest(Open).resume_id == proposed_conversation(NONCE, 1)
    assert play.opened().latest(Execute).probe
    assert play.state.conversation_id is None


def test_a_failed_first_attempt_without_a_name_is_looked_for_under_our_id():
    play = Play().running(name=None).failed(FailureKind.AUTH).died().prepare("t2").run()
    assert play.latest(Open).resume_id == proposed_conversation(NONCE, 1)


def test_a_fresh_conversation_has_no_name_until_it_is_told_one():
    play = Play(supports_resume=False).running().died(sent=False).waited()
    assert (play.words, play.state.conversation_id) == ("Open(fresh, after a death)", None)


def test_a_cut_first_attempt_is_looked_for_under_the_id_that_the_transport_told():
    play = Play(chooses_ids=False).prepare().run().opened("thread-1").died(sent=True).waited()
    assert play.latest(Open).resume_id == "thread-1"


def test_a_settled_conversation_that_is_gone_after_a_death_is_replaced_or_fails():
    assert Play(C1).running().died(sent=True).waited().start_failed(SessionResumeError("c1")).latest(Open).resume_id is None
    play = Play(C1).running(pin=True).died(sent=True).waited().start_failed(SessionResumeError("c1"))
    assert isinstance(play.error, SessionResumeError)


def test_a_fresh_conversation_gets_the_prompt_whatever_was_cut():
    play = Play(C1).running().failed(nudgeable=True).waited().died(sent=True).waited().start_failed(SessionResumeError("c1"))
    assert play.opened().words == "ReportRestart, Execute(prompt, attempt 3)"


# --- retries ------------------------------------------------------------------------------------------------------------------


def test_transient_failures_are_retried_in_place_and_then_propagate():
    play = Play().running()
    for attempt in (2, 3):
        play.failed(nudgeable=True).waited()
        assert play.words == f"Execute(retry, attempt {attempt})"
    assert [wait.delay_s for wait in play.all(Wait)] == [30.0, 60.0]
    assert play.failed(nudgeable=True).words == "SaveCheckpoint(c1), Fail(TurnFailedError)"
    assert len({command.receipt for command in play.all(Execute)}) == 3
    assert play.state.conversation_id == "c1"


def test_retries_are_counted_in_the_turn():
    assert Play().running().failed().waited().ok().turn.retries == 1


@pytest.mark.parametrize(("asked_s", "waited_s"), [(None, 30.0), (5.0, 30.0), (300.0, 300.0), (float("inf"), 30.0)])
def test_a_retry_is_never_earlier_than_the_provider_asked_for(asked_s, waited_s):
    play = Play().running().failed(TurnFailedError(FailureKind.TRANSIENT, "busy", retry_after_s=asked_s))
    assert play.latest(Wait).delay_s == waited_s


@pytest.mark.parametrize(
    ("in_place", "nudgeable", "how"), [(True, True, How.RETRY), (True, False, How.CONTINUE), (False, False, How.RETRY)]
)
def test_what_a_retry_sends(in_place, nudgeable, how):
    assert Play(retries_in_place=in_place).running().failed(nudgeable=nudgeable).waited().latest(Execute).how is how


def test_what_was_never_sent_is_the_prompt():
    play = Play().prepare().run().start_failed(TurnFailedError(FailureKind.TRANSIENT, "overloaded"))
    assert play.words == "Wait(retry, 30 s)"
    assert play.waited().opened().words == "Execute(prompt, attempt 1)"


def test_a_process_that_was_killed_with_the_failure_is_opened_again_for_the_nudge():
    play = Play(C1).running().failed(nudgeable=True, killed=True).died(1, expected=True).waited()
    assert play.words == "Open(resume c1)"
    assert play.opened().words == "Execute(retry, attempt 2)"


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.TRANSIENT])
def test_nothing_else_is_retried(kind):
    assert not Play().running().failed(kind).all(Wait)


# --- the backstop -------------------------------------------------------------------------------------------------------------

OTHER = TurnFailedError(FailureKind.OTHER, "who knows")
OVERFLOW = TurnFailedError(FailureKind.CONTEXT_OVERFLOW, "full")


@pytest.mark.parametrize(
    ("error", "resumed", "demand", "fields", "kept"),
    [
        (OTHER, True, {}, {}, False),
        (OTHER, False, {}, {}, True),
        (OTHER, True, {"pin": True}, {}, True),
        (OTHER, True, {"expect": "c1"}, {}, True),
        (OTHER, True, {}, {"keeps_conversation": True}, True),
        (OVERFLOW, True, {}, {}, False),
        (OVERFLOW, False, {}, {}, False),
        (OVERFLOW, True, {"pin": True}, {}, True),
        (CliExitError(returncode=1), True, {}, {}, True),
        (TurnFailedError(FailureKind.USAGE_LIMIT, "spent"), True, {}, {}, True),
        (TurnFailedError(FailureKind.AUTH, "key"), True, {}, {}, True),
        (TurnFailedError(FailureKind.SCHEMA, "shape"), True, {}, {}, True),
        (TurnTimeoutError(5.0), True, {}, {}, True),
        (ProviderCapabilityError("no"), True, {}, {}, True),
    ],
)
def test_which_failures_forget_the_conversation(error, resumed, demand, fields, kept):
    play = Play(C1 if resumed else None).running(**demand).failed(error, **fields)
    assert play.state.conversation_id == ("c1" if kept else None)
    assert play.state.last_turn_conversation_id == "c1"
    assert ("SaveCheckpoint" in play.words, "ClearCheckpoint" in play.words) == (kept, not kept)
    expected = "Open(fresh)" if not kept else "Execute(prompt, attempt 1)"
    assert play.prepare("t2").run().words == expected


def test_a_restart_of_ours_does_not_make_a_turn_a_resumed_one():
    assert Play().running().restarted().failed(OTHER).state.conversation_id == "c1"


# --- renewal ------------------------------------------------------------------------------------------------------------------


def spent(tokens: int = 0, *, cost: float | None = None, known: bool = True) -> ProviderUsage:
    return ProviderUsage(tokens=TokenUsage(input=tokens), total_cost_usd=cost, increment_known=known)


def test_a_conversation_is_retired_after_its_last_turn():
    play = Play(renewal=RenewalBudget(max_turns=2)).turn_done("t1").turn_done("t2")
    assert play.words == "CloseConversation(the conversation's budget is spent), ClearCheckpoint, Finish(reset)"
    assert (play.state.conversation_id, play.state.last_turn_conversation_id, play.turn.conversation_id) == (None, "c1", "c1")
    opening = play.prepare("t3").run().latest(Open)
    assert (opening.resume_id, opening.proposed_id) == (None, proposed_conversation(NONCE, 2))


def test_interrupted_turns_do_not_count_and_demands_are_exempt():
    budget = RenewalBudget(max_turns=1)
    assert Play(renewal=budget).running().interrupted().ok(interrupted=True).turn.continuity is Continuity.CONTINUED
    assert Play(renewal=budget).running(pin=True).ok().turn.continuity is Continuity.CONTINUED
    assert Play(C1, renewal=budget).running(expect="c1").ok().turn.continuity is Continuity.CONTINUED


@pytest.mark.parametrize("budget", [RenewalBudget(max_turn_input_tokens=100), RenewalBudget(max_turn_duration_ms=900)])
def test_renewal_counts_a_tickets_attempts_together_without_the_waits(budget):
    play = Play(renewal=budget).running().failed(usage=spent(60), duration_ms=400).waited()
    assert play.ok(usage=spent(39), duration_ms=499).turn.continuity is Continuity.CONTINUED
    play.running("t2").failed(usage=spent(60), duration_ms=400).waited()
    assert play.ok(usage=spent(40), duration_ms=500).turn.continuity is Continuity.RESET


# --- interrupts ---------------------------------------------------------------------------------------------------------------


def test_an_interrupt_of_a_running_turn_is_passed_on_once():
    play = Play().running().interrupted()
    assert play.last == (InterruptAttempt(turn_id="t1", incarnation=1),)
    assert play.interrupted().words == "Ignored"
    turn = play.ok(interrupted=True).turn
    assert (turn.result.interrupted, turn.forced) == (True, False)


def test_an_interrupt_that_lost_the_race_gives_the_plain_turn():
    assert not Play().running().interrupted().ok().turn.result.interrupted


def test_an_interrupted_failure_is_not_retried():
    assert Play().running().interrupted().failed().words == "SaveCheckpoint(c1), Fail(TurnFailedError)"


def test_a_forced_interrupt_opens_again_by_id_and_counts_no_death():
    play = Play().running().interrupted().ok(interrupted=True, forced=True)
    assert play.turn.forced
    assert (play.died(1, expected=True).last, play.state.deaths) == ((), ())
    assert play.prepare("t2").run().words == "Open(resume c1)"


def test_a_death_after_an_interrupt_ends_the_turn_as_interrupted():
    play = Play().running().interrupted().died(sent=True)
    assert play.turn.result.interrupted
    assert not play.turn.result.usage.increment_known
    assert not play.all(Wait)


def test_an_interrupted_probe_that_was_swallowed_ends_the_turn():
    play = Play(C1).running().restarted().interrupted().swallowed()
    assert play.words == "SaveCheckpoint(c1), Finish(interrupted, continued)"


def test_before_anything_was_sent_an_interrupt_ends_the_turn_at_once():
    play = Play().prepare().run().interrupted()
    assert play.words == "CloseConversation(kill: the turn was interrupted), Finish(interrupted, continued)"
    assert play.opened().words == "Ignored"
    assert play.died(1, expected=True).last == ()
    assert play.prepare("t2").run().words == "Open(fresh)"
    assert play.latest(Open).proposed_id == proposed_conversation(NONCE, 1)


def test_an_interrupt_may_overtake_the_run_that_it_means():
    play = Play().prepare().interrupted()
    assert play.last == ()
    assert play.run().words == "Finish(interrupted, continued)"
    assert play.prepare("t2").run().words == "Open(fresh)"


def test_an_interrupt_in_a_restart_wait_ends_the_turn_and_the_next_one_opens_plainly():
    play = Play(C1).running().died(sent=True).interrupted()
    assert play.words == "CancelWait, SaveCheckpoint(c1), Finish(interrupted, continued)"
    assert play.told(WaitDone, wait_id=1).words == "Ignored"
    assert play.prepare("t2").run().words == "Open(resume c1)"


def test_an_interrupt_kills_a_continuation_that_has_been_spawned():
    play = Play(C1).running().died(sent=True).waited().interrupted()
    assert play.words == "CloseConversation(kill: the turn was interrupted), SaveCheckpoint(c1), Finish(interrupted, continued)"
    assert len(play.state.deaths) == 1
    play.died(2, expected=True)
    assert len(play.state.deaths) == 1


def test_an_interrupt_in_a_retry_wait_raises_the_transient_error():
    play = Play().running().failed().interrupted()
    assert play.words == "CancelWait, SaveCheckpoint(c1), Fail(TurnFailedError)"
    assert play.error.kind is FailureKind.TRANSIENT
    assert play.prepare("t2").run().words == "Execute(prompt, attempt 1)"


def test_an_interrupt_for_another_turn_does_nothing():
    play = Play().turn_done("t1").running("t2")
    assert play.told(Interrupted, turn_id="t1").words == "Ignored"


# --- deadlines ----------------------------------------------------------------------------------------------------------------


def test_the_deadline_counts_from_the_first_execute_and_goes_on_over_a_restart():
    play = Play().prepare(timeout=60.0).run().after(5).opened()
    assert play.latest(Execute).deadline_s == 65.0
    play.after(10).died(sent=True)
    assert play.latest(SetDeadline).deadline_s == 65.0
    play.waited().after(2).opened(slot_wait_s=7.0)
    assert play.latest(Execute).deadline_s == 72.0
    assert play.swallowed().latest(Execute).deadline_s == 72.0


def test_a_retry_has_a_deadline_of_its_own():
    play = Play().running(timeout=60.0).failed(nudgeable=True)
    assert not play.all(SetDeadline)
    assert play.waited().latest(Execute).deadline_s == 90.0


@pytest.mark.parametrize("opening", [False, True])
def test_a_deadline_that_passes_without_a_process_fails_the_turn(opening):
    play = Play(C1).running(timeout=60.0).died(sent=True)
    if opening:
        play.waited()
    play.after(60).told(DeadlinePassed, turn_id="t1", attempt=1)
    assert isinstance(play.error, TurnTimeoutError)
    assert (play.error.timeout, play.error.turn_id) == (60.0, "t1")
    assert ("kill" in play.words) is opening
    assert play.state.conversation_id == "c1"


def test_a_deadline_that_comes_too_early_is_set_again_and_one_for_elsewhere_is_ignored():
    play = Play().running(timeout=60.0)
    assert play.told(DeadlinePassed, turn_id="t1", attempt=1).words == "Ignored"
    play.died(sent=True).told(DeadlinePassed, turn_id="t1", attempt=1)
    assert play.last == (SetDeadline(turn_id="t1", attempt=1, deadline_s=60.0),)
    assert play.after(60).told(DeadlinePassed, turn_id="t1", attempt=2).words == "Ignored"
    assert play.told(DeadlinePassed, turn_id="t0", attempt=1).words == "Ignored"


def test_a_wait_for_a_person_puts_the_deadline_off():
    play = Play().running(timeout=60.0)
    assert play.told(WaitedForPerson, turn_id="t0", waited_s=30.0).words == "Ignored"
    play.told(WaitedForPerson, turn_id="t1", waited_s=30.0).died(sent=True)
    assert SetDeadline(turn_id="t1", attempt=1, deadline_s=90.0) in play.last
    play.after(60).told(DeadlinePassed, turn_id="t1", attempt=1)
    assert play.last == (SetDeadline(turn_id="t1", attempt=1, deadline_s=90.0),)
    play.after(30).told(DeadlinePassed, turn_id="t1", attempt=1)
    assert isinstance(play.error, TurnTimeoutError)


def test_without_a_timeout_there_is_nothing_to_put_off():
    assert Play().running().told(WaitedForPerson, turn_id="t1", waited_s=30.0).words == "Ignored"
    assert Play().told(WaitedForPerson, turn_id="t1", waited_s=30.0).words == "Ignored"


# --- money --------------------------------------------------------------------------------------------------------------------


def test_a_tickets_attempts_are_summed():
    play = Play().running().failed(usage=spent(10, cost=0.25), duration_ms=5).waited()
    result = play.ok(usage=spent(5, cost=0.5), cost_usd=0.5, duration_ms=7).turn.result
    assert (result.usage.tokens.input, result.usage.total_cost_usd, result.cost_usd, result.duration_ms) == (15, 0.75, 0.75, 12)
    assert result.usage.increment_known


def test_a_single_attempt_keeps_its_usage_and_unknown_stays_unknown():
    usage = spent(5, cost=0.5)
    assert Play().running().ok(usage=usage).turn.result.usage == usage
    assert Play().running().ok().turn.result.usage is None
    assert not Play().running().failed().waited().ok(usage=usage).turn.result.usage.increment_known


def test_an_incarnation_that_was_lost_in_mid_turn_makes_the_sum_a_lower_bound():
    result = Play().running().died(sent=True, usage=spent(3)).waited().opened().ok(usage=spent(5)).turn.result
    assert (result.usage.tokens.input, result.usage.increment_known) == (8, False)
    result = Play().running().restarted(sent=False).ok(usage=spent(5)).turn.result
    assert result.usage.increment_known


def test_an_error_carries_what_the_whole_ticket_consumed_and_the_reported_one_stays_as_it_was():
    limit = TurnFailedError(FailureKind.USAGE_LIMIT, "spent", usage=spent(5))
    play = Play().running().failed(usage=spent(10)).waited().failed(limit)
    assert play.error.usage.tokens.input == 15
    assert limit.usage == spent(5)
    assert (type(play.error), str(play.error), play.error.kind) == (TurnFailedError, str(limit), limit.kind)


# --- checkpoints --------------------------------------------------------------------------------------------------------------


def test_the_checkpoint_remembers_the_providers_cumulative_record():
    cumulative = ProviderUsage(raw={"total": 9})
    assert Play().running().ok(cumulative=cumulative).latest(SaveCheckpoint).checkpoint == Checkpoint("c1", cumulative)
    play = Play().running().failed(FailureKind.AUTH, cumulative=cumulative)
    assert play.latest(SaveCheckpoint).checkpoint == Checkpoint("c1", cumulative)


def test_without_a_store_nothing_is_saved_and_without_a_name_neither():
    assert Play(checkpointing=False).turn_done().words == "Finish(continued)"
    assert Play().turn_done(name=None).words == "Finish(continued)"


def test_the_results_own_id_names_the_conversation():
    assert Play().running(name=None).ok(session_id="c5").turn.conversation_id == "c5"


# --- close --------------------------------------------------------------------------------------------------------------------


def test_close_in_a_running_turn_interrupts_it_and_stops_when_the_process_is_gone():
    play = Play().running().told(Close)
    assert play.words == "InterruptAttempt, CloseConversation(closed)"
    assert play.ok(interrupted=True).words == "SaveCheckpoint(c1), Finish(interrupted, continued)"
    assert play.died(1, expected=True).last == (Stop(),)
    assert play.died(1, expected=True).words == "Ignored"


def test_close_in_a_running_turn_whose_result_never_comes():
    play = Play().running().told(Close).died(expected=True, sent=True)
    assert play.words == "SaveCheckpoint(c1), Finish(interrupted, continued), Stop"
    assert play.turn.forced


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        (Play(), "Stop"),
        (Play().prepare(), "Fail(SessionStateError), Stop"),
        (Play().turn_done(), "CloseConversation(closed)"),
        (Play().prepare().run(), "CloseConversation(kill: the turn was interrupted), Finish(interrupted, continued)"),
        (Play().running().failed(), "CancelWait, SaveCheckpoint(c1), Fail(TurnFailedError), CloseConversation(closed)"),
        (Play().running().died(), "CancelWait, SaveCheckpoint(c1), Finish(interrupted, continued), Stop"),
        (Play().running().interrupted(), "CloseConversation(closed)"),
    ],
    ids=["idle", "prepared", "live", "opening", "retry", "restart", "interrupted"],
)
def test_close(play, expected):
    assert play.told(Close).words == expected
    assert play.told(Close).words == "Ignored"
    assert [refused.refusal for refused in play.prepare("t9").last] == [Refusal.CLOSED]
    if play.state.phase is Phase.CLOSED:
        assert [refused.refusal for refused in play.run("t9").last] == [Refusal.CLOSED]


def test_stop_waits_for_every_process_that_is_still_ending():
    play = Play().turn_done().prepare("t2").run(flags="b").told(Close)
    assert not play.all(Stop)
    assert not play.died(1, expected=True).all(Stop)
    assert play.died(2, expected=True).all(Stop)


# --- what others see ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("play", "phase", "reason"),
    [
        (Play(), Phase.IDLE, None),
        (Play().prepare(), Phase.PREPARED, None),
        (Play().prepare().run(), Phase.OPENING, "start slot"),
        (Play().running(), Phase.RUNNING, None),
        (Play().running().failed(), Phase.WAITING, "retry"),
        (Play().running().died(), Phase.WAITING, "restart"),
        (Play(C1).prepare().run().start_failed(SessionResumeError("c1", in_use=True)), Phase.WAITING, "in use"),
        (Play().told(Close), Phase.CLOSED, None),
    ],
)
def test_the_view(play, phase, reason):
    view = public_snapshot(play.state)
    assert (view.phase, view.waiting_reason, view.closed) == (phase, reason, phase is Phase.CLOSED)


def test_the_view_names_the_turn_and_its_process():
    view = public_snapshot(Play().running().state)
    assert (view.turn_id, view.incarnation, view.conversation_id) == ("t1", 1, "c1")


def test_an_ignored_event_changes_nothing_but_says_why():
    play = Play().running()
    before = play.state
    for event, fields in ((WaitDone, {"wait_id": 9}), (Opened, {"incarnation": 1}), (Named, {"incarnation": 9, "conversation_id": "x"})):
        assert isinstance(play.told(event, **fields).last[0], Ignored)
        assert play.last[0].reason
        assert play.state == before
