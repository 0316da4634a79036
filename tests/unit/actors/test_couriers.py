"""Threads for subscribers: one is enough, until one of them does not return."""

from __future__ import annotations

import threading

from greenroom.actors.couriers import MAX_THREADS, Couriers

PATIENCE_S = 20


def test_jobs_run_in_order_and_one_at_a_time():
    couriers, seen, done = Couriers(), [], threading.Event()
    for number in range(200):
        couriers.give(lambda number=number: seen.append(number))
    couriers.give(lambda: done.set() or False)
    assert done.wait(PATIENCE_S)
    assert seen == list(range(200))
    assert couriers.close(PATIENCE_S)


def test_one_that_is_stuck_holds_nobody_up():
    couriers, stuck, release, served = Couriers(), threading.Event(), threading.Event(), threading.Event()

    def never():
        stuck.set()
        release.wait(PATIENCE_S)
        return False

    couriers.give(never)
    assert stuck.wait(PATIENCE_S)
    couriers.give(lambda: served.set() or False)
    assert served.wait(PATIENCE_S)
    assert not couriers.close(0.0)
    release.set()
    assert couriers.close(PATIENCE_S)


def test_threads_are_bounded_however_many_are_stuck():
    couriers, release = Couriers(), threading.Event()
    for _ in range(MAX_THREADS * 2):
        couriers.give(lambda: not release.wait(PATIENCE_S))
    assert couriers._threads <= MAX_THREADS
    release.set()
    assert couriers.close(PATIENCE_S)


def test_a_job_that_wants_more_runs_behind_the_others():
    couriers, seen, begun, done = Couriers(), [], threading.Event(), threading.Event()

    def twice():
        begun.wait(PATIENCE_S)
        seen.append("again")
        return seen.count("again") < 2

    couriers.give(twice)
    couriers.give(lambda: seen.append("other") or False)
    couriers.give(lambda: done.set() or False)
    begun.set()
    assert couriers.close(PATIENCE_S)
    assert seen == ["again", "other", "again"]


def test_a_job_that_raises_ends_no_thread(caplog):
    couriers, done = Couriers(), threading.Event()
    couriers.give(lambda: 1 / 0)
    couriers.give(lambda: done.set() or False)
    assert done.wait(PATIENCE_S)
    assert "could not be served" in caplog.text
    assert couriers.close(PATIENCE_S)


def test_what_was_given_before_the_end_is_done():
    couriers, seen = Couriers(), []
    for number in range(50):
        couriers.give(lambda number=number: seen.append(number))
    assert couriers.close(PATIENCE_S)
    assert seen == list(range(50))
    couriers.give(lambda: seen.append("late"))
    assert "late" not in seen


def test_where_no_thread_is_to_be_had_the_job_waits_for_the_next(monkeypatch):
    couriers, seen = Couriers(), []

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        couriers.give(lambda: seen.append("first") or False)
    couriers.give(lambda: seen.append("second") or False)
    assert couriers.close(PATIENCE_S)
    assert seen == ["first", "second"]
