"""The order in which actions of a session wait for its writes."""

from greenroom.actors.gate import Gate


def test_without_a_write_under_way_an_action_runs_at_once():
    gate, ran = Gate(), []
    gate.hold(ran.append)
    assert ran == [None]
    assert not gate.shut


def test_an_action_waits_for_every_write_before_it_and_for_every_action_before_it():
    gate, ran = Gate(), []
    first, second = gate.begin("journal"), gate.begin("checkpoint store")
    gate.hold(lambda _: ran.append("one"))
    third = gate.begin("journal")
    gate.hold(lambda _: ran.append("two"))
    gate.settle(third, None)
    gate.settle(second, None)
    assert ran == []
    gate.settle(first, None)
    assert ran == ["one", "two"]


def test_an_action_is_told_the_error_of_the_write_that_it_needs_and_of_no_other():
    gate, told = Gate(), []
    one, two = gate.begin("journal"), gate.begin("journal")
    gate.hold(told.append, needs=one)
    gate.hold(told.append, needs=two)
    gate.hold(told.append)
    error = OSError("full")
    gate.settle(one, None)
    gate.settle(two, error)
    assert told == [None, error, None]


def test_a_write_counts_once_and_a_late_answer_is_nothing():
    gate = Gate()
    number = gate.begin("journal")
    assert gate.settle(number, None) == "journal"
    assert gate.settle(number, OSError()) is None
    assert gate.settle(99, None) is None


def test_what_an_action_holds_comes_behind_what_waits_already():
    gate, ran = Gate(), []
    number = gate.begin("journal")

    def outer(_error):
        ran.append("outer")
        assert gate.shut
        gate.hold(lambda _: ran.append("inner"))

    gate.hold(outer)
    gate.hold(lambda _: ran.append("next"))
    gate.settle(number, None)
    assert ran == ["outer", "next", "inner"]


def test_draining_runs_everything_and_says_why():
    gate, told = Gate(), []
    gate.begin("journal")
    gate.hold(told.append)
    error = RuntimeError("crashed")
    gate.drain(error)
    assert told == [error]
    assert not gate.shut
