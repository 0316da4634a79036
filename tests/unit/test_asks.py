"""What a well-formed answer is, and what time gives in its place."""

from __future__ import annotations

import datetime as dt

import pytest

from greenroom.asks import (
    Accept,
    AcceptForSession,
    Approval,
    AskPolicy,
    CancelTurn,
    Decline,
    Inquiry,
    PendingApproval,
    PendingQuestion,
    Question,
    Reply,
    check_answer,
    pending_of,
    title_of,
)

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ABOUT = {"request_id": "ask-1", "session_id": "s", "turn_id": "t", "asked_at": AT}
APPROVAL = pending_of(Approval(tool="Bash", input={"command": "ls"}, reason="why"), deadline_s=None, **ABOUT)
QUESTION = pending_of(Inquiry(questions=(Question(id="Which?", text="Which?"),)), deadline_s=60, **ABOUT)


def test_what_waits_says_what_was_asked_and_until_when():
    assert isinstance(APPROVAL, PendingApproval)
    assert (APPROVAL.tool, APPROVAL.input, APPROVAL.reason, APPROVAL.expires_at) == ("Bash", {"command": "ls"}, "why", None)
    assert isinstance(QUESTION, PendingQuestion)
    assert QUESTION.expires_at == AT + dt.timedelta(seconds=60)


@pytest.mark.parametrize("answer", [Accept(), AcceptForSession(), Decline("no"), CancelTurn()])
def test_an_approval_takes_these(answer):
    check_answer(APPROVAL, answer)


@pytest.mark.parametrize("answer", [Reply({"Which?": "A"}), Reply({"Which?": ("A", "B")}), Decline(), CancelTurn()])
def test_a_question_takes_these(answer):
    check_answer(QUESTION, answer)


@pytest.mark.parametrize(
    ("pending", "answer", "said"),
    [
        (APPROVAL, Reply({"Which?": "A"}), "an approval is answered with Accept, AcceptForSession, Decline, CancelTurn"),
        (QUESTION, Accept(), "a question is answered with Reply, Decline, CancelTurn"),
        (QUESTION, AcceptForSession(), "a question is answered with"),
        (APPROVAL, "yes", "got 'yes'"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_refused(pending, answer, said):
    with pytest.raises(TypeError, match=said):
        check_answer(pending, answer)


def test_a_reply_answers_what_was_asked():
    with pytest.raises(ValueError, match=r"'Who\?', which was not asked; asked was 'Which\?'"):
        check_answer(QUESTION, Reply({"Who?": "A"}))
    with pytest.raises(ValueError, match="the reply is empty"):
        check_answer(QUESTION, Reply())


def test_a_page_to_be_visited_takes_an_empty_reply():
    check_answer(pending_of(Inquiry(url="https://x.example"), deadline_s=None, **ABOUT), Reply())


def test_nothing_that_accepts_answers_a_question():
    lenient = AskPolicy(deadline_s=1, default=Accept())
    assert lenient.verdict_on(APPROVAL) == Accept()
    assert lenient.verdict_on(QUESTION) == Decline()
    assert AskPolicy(default=CancelTurn()).verdict_on(QUESTION) == CancelTurn()


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan")])
def test_a_deadline_that_cannot_be_meant_is_refused(deadline_s):
    with pytest.raises(ValueError, match="deadline_s must be more than 0"):
        AskPolicy(deadline_s=deadline_s)


@pytest.mark.parametrize("default", [Reply({"q": "A"}), None, "no"])
def test_a_default_that_is_no_verdict_is_refused(default):
    with pytest.raises(TypeError, match="default must be one of"):
        AskPolicy(default=default)


def test_the_title_says_what_is_waited_for():
    assert title_of(Approval(tool="Bash")) == "approval: Bash"
    assert title_of(Inquiry(questions=(Question(id="1", text="Which?"), Question(id="2", text="Who?")))) == "question: Which?, Who?"
    assert title_of(Inquiry(message="Where to?", source="travel")) == "question: Where to?"


@pytest.mark.parametrize("deadline_s", [float("inf"), 1e12, 1e300])
def test_a_deadline_beyond_all_dates_is_never(deadline_s):
    assert pending_of(Approval(tool="Bash"), deadline_s=AskPolicy(deadline_s=deadline_s).deadline_s, **ABOUT).expires_at is None


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "error"), [(object(), TypeError), (b"A", TypeError), ({"A"}, TypeError), (float("nan"), ValueError), (ENDLESS, ValueError)]
)
def test_a_reply_that_cannot_be_sent_is_refused(value, error):
    with pytest.raises(error, match=r"the reply to 'Which\?' must be made of what JSON has"):
        check_answer(QUESTION, Reply({"Which?": value}))


def test_answers_of_another_type_are_refused():
    with pytest.raises(TypeError, match="message"):
        Decline(5)
    with pytest.raises(TypeError, match="answers"):
        Reply(["A"])
