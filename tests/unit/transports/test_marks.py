"""Marks, snapshots and sweeps on made-up processes; real ones are in tests/faults."""

import os
import resource
import signal

import pytest

from greenroom.transports import marks
from greenroom.transports.marks import Found, Snapshot, Sweep, append_mark, host_prefix, make_mark, room_prefix, send, split_marks

OURS = "gr/h/r/s/1"


def entry(pid, *, sid=None, parent=1, start=100, mark=None):
    return marks._Entry(pid, start, pid if sid is None else sid, parent, tuple(split_marks(mark)))


def snapshot(*entries, at=1000, unsure=False):
    me = marks._Entry(os.getpid(), 5, 70, 60, ())
    shell = marks._Entry(60, 4, 70, 1, ())
    return Snapshot([me, shell, *entries], taken_at=at, unsure=unsure)


def pids(found):
    return sorted(one.pid for one in found)


class Outbox(list):
    """Where signals go: made-up pids may be somebody's."""

    def send(self, found, sig):
        self.append((found.pid, sig))
        return True


@pytest.fixture
def sent():
    return Outbox()


# --- names ---


def test_a_mark_names_host_room_session_and_incarnation():
    mark = make_mark("h", "r", "s", 3)
    assert mark == "gr/h/r/s/3"
    assert mark.startswith(room_prefix("h", "r"))
    assert room_prefix("h", "r").startswith(host_prefix("h"))
    assert not make_mark("h", "r2", "s", 3).startswith(room_prefix("h", "r"))


@pytest.mark.parametrize("session_id", ["a:b", "a/b", "ä b", "", "a\0b"])
def test_any_id_makes_one_item_and_one_part(session_id):
    mark = make_mark("h", "r", session_id, 1)
    assert split_marks(append_mark("outer", mark)) == ["outer", mark]
    assert mark.count("/") == 4
    assert "\0" not in mark


def test_a_list_takes_a_mark_once():
    assert append_mark(None, "m") == append_mark("m", "m") == "m"
    assert append_mark("a:m:b", "m") == "a:b:m"


# --- snapshots ---


def test_a_mark_matches_an_item_exactly_and_a_prefix_by_its_beginning():
    snap = snapshot(
        entry(201, mark=f"outer:{OURS}"),
        entry(202, mark=OURS + "0"),
        entry(203, mark=f"{OURS}:inner"),
        entry(204, mark="gr/h/r2/s/1"),
        entry(205),
    )
    assert pids(snap.matching([OURS])) == [201, 203]
    assert pids(snap.matching(["gr/h/r/"])) == [201, 202, 203]
    assert pids(snap.matching(["gr/h/r2/", OURS])) == [201, 203, 204]
    assert snap.matching([]) == snap.matching([""]) == []


def test_this_process_and_its_ancestors_are_never_found():
    me, shell = os.getpid(), 60
    entries = [
        marks._Entry(me, 5, 70, shell, (OURS,)),
        marks._Entry(shell, 4, 70, 1, (OURS,)),
        entry(1, mark=OURS),
        entry(300, sid=70, mark=OURS),
    ]
    snap = Snapshot(entries, taken_at=1000)
    assert pids(snap.matching([OURS])) == [300]
    assert snap.sids_of(snap.matching([OURS])) == {}  # its session is ours: a reason to end it, not the session
    assert snap.in_sessions({70: 1000}) == []
    assert snap.descendants([Found(1, 1, 1, None)]) == [Found(300, 100, 70, None)]


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ([entry(400, start=500), entry(401, sid=400, start=90_000)], [400, 401]),  # the leader lives since before the sighting
        ([entry(401, sid=400, start=500), entry(402, sid=400, start=90_000)], [401, 402]),  # an old member proves the session
        ([entry(400, start=90_000), entry(401, sid=400, start=90_001)], []),  # the number is another session's by now
        ([entry(401, sid=400, start=1000 + 50)], [401]),  # too soon for the number to have come round
        ([entry(401, sid=400, start=90_000)], []),  # not provable: left alone
    ],
)
def test_a_session_counts_only_while_it_is_the_one_that_was_seen(members, found):
    assert pids(snapshot(*members).in_sessions({400: 1000})) == found


def test_descendants_are_found_over_generations():
    snap = snapshot(entry(500, mark=OURS), entry(501, parent=500), entry(502, parent=501), entry(503))
    assert pids(snap.descendants(snap.matching([OURS]))) == [501, 502]


def test_a_process_that_is_becoming_another_program_makes_the_snapshot_unsure():
    assert snapshot(marks._Entry(700, 1, 700, 1, (), sure=False)).unsure
    assert not snapshot(entry(700)).unsure


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (["A=b"], b"A=b"),
        (["", "sleep", ""], b""),  # a cleared environment
        (["", "", "A=b"], b"A=b"),
        (["", "sleep", "A=b"], b"A=b"),  # the exec ended between the two looks
        (["", ""] * 50, None),
    ],
)
def test_an_empty_environment_counts_only_after_a_command_line_was_seen(reads, expected):
    left = iter(reads)
    assert marks._environ(1, lambda path: next(left).encode()) == expected


def test_an_environment_that_may_not_be_read_is_empty():
    def refuse(path):
        raise PermissionError

    assert marks._environ(1, refuse) == b""


# --- identity ---


def test_a_recycled_pid_gets_no_signal():
    me = marks.scan()._entries[os.getpid()]
    assert not send(Found(me.pid, me.start_time - 1, me.sid, OURS), 0)


def test_a_pid_that_is_gone_gets_no_signal():
    assert not send(Found(2**22 + 1, 1, 1, OURS), signal.SIGKILL)


def test_a_signal_reaches_the_very_process():
    me = marks.scan()._entries[os.getpid()]
    assert send(me.found(), 0)


# --- sweeps ---


def test_a_sweep_learns_sessions_and_ends_what_has_no_mark(sent):
    sweep = Sweep([OURS], send=sent.send)
    sweep.round(signal.SIGTERM, snapshot(entry(600, sid=599, mark=OURS), entry(601, sid=599), entry(602)))
    assert sorted(sent) == [(600, signal.SIGTERM), (601, signal.SIGTERM)]
    sweep.round(signal.SIGKILL, snapshot(entry(601, sid=599), at=1001))
    assert sent[-1] == (601, signal.SIGKILL)
    assert sweep.unended == (601,)
    assert not sweep.done
    sweep.round(signal.SIGKILL, snapshot(at=1002))
    assert sweep.done
    assert sweep.unended == ()


def test_what_was_once_a_child_is_remembered_by_pid_and_start_time(sent):
    sweep = Sweep([OURS], send=sent.send)
    sweep.round(signal.SIGTERM, snapshot(entry(600, mark=OURS), entry(601, parent=600)))  # a cleared environment, its own session
    assert pids(sweep.round(signal.SIGKILL, snapshot(entry(601)))) == [601]
    assert sweep.round(signal.SIGKILL, snapshot(entry(601, start=5000))) == []  # recycled


def test_sigterm_is_sent_once_and_sigkill_again(sent):
    sweep = Sweep([OURS], send=sent.send)
    for sig in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        sweep.round(sig, snapshot(entry(600, mark=OURS)))
    assert [sig for _, sig in sent] == [signal.SIGTERM, signal.SIGKILL, signal.SIGKILL]


def test_a_scan_that_may_have_missed_something_is_repeated(sent):
    sweep = Sweep([OURS], send=sent.send)
    sweep.round(signal.SIGTERM, snapshot(unsure=True))
    assert not sweep.done
    sweep.round(signal.SIGTERM, snapshot(unsure=True))
    assert sweep.done
    assert Sweep([OURS]).done is False


def test_sessions_of_the_host_are_left_alone_by_its_guard(sent):
    sweep = Sweep([OURS], {650: 1000}, protected_sids=[650, 651], send=sent.send)
    sweep.round(signal.SIGTERM, snapshot(entry(650), entry(652, sid=651, mark=OURS), entry(653, sid=651)))
    assert sent == [(652, signal.SIGTERM)]


def test_what_may_not_be_signalled_is_reported():
    def refuse(found, sig):
        raise PermissionError

    sweep = Sweep([OURS], send=refuse)
    sweep.round(signal.SIGKILL, snapshot(entry(600, mark=OURS)))
    assert sweep.unended == (600,)


def test_a_sweep_is_bounded(sent):
    sweep = Sweep([OURS], send=sent.send, max_rounds=2)
    for _ in range(2):
        assert not sweep.given_up
        sweep.round(signal.SIGKILL, snapshot(entry(600, mark=OURS)))
    assert sweep.given_up


def test_a_scan_without_descriptors_fails_instead_of_seeing_nothing():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            marks.scan()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (b"A=b\0GREENROOM_MARK=x:y\0", ("x", "y")),
        (b"GREENROOM_MARK=x", ("x",)),
        (b"MY_GREENROOM_MARK=x\0", ()),
        (b"A=GREENROOM_MARK=x\0GREENROOM_MARK=\0", ()),
        (b"", ()),
    ],
)
def test_marks_are_read_from_the_variable_alone(environ, expected):
    assert marks._marks_in(environ) == expected
