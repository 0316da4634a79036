"""Threads for what may block: the starter of a dispatcher, the worker of a blocking conversation. They answer with messages only."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import pykka

from greenroom.actors.runtime import Message, log, tell

Ref = pykka.ActorRef[Any]
Job = Callable[[], Message]


class Starter:
    """The thread for jobs that block for milliseconds. A job that raises is a defect: it is logged, its asker is told nothing."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Ref] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, ref: Ref) -> None:
        """Queue a job; `ref` gets its message."""
        self._jobs.put((job, ref))

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, ref = item
            try:
                message = job()
            except BaseException as error:  # noqa: BLE001
                log(logging.ERROR, "a job of the starter thread failed", error=error)
                continue
            tell(ref, message)
            del item, job, ref, message  # an idle thread must keep no actor alive

    def stop(self) -> None:
        """End the thread once its jobs are done."""
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()


class Worker(Protocol):
    """Runs blocking jobs one after the other."""

    def submit(self, job: Job) -> None:
        """Run `job` and tell the owner its message."""

    def aside(self, job: Callable[[], object]) -> None:
        """Run a short job beside the running one; what it raises is logged."""

    def stop(self) -> None:
        """Take no more jobs."""


class ThreadWorker:
    """One daemon thread for jobs, and a passing one for each call aside."""

    def __init__(self, owner: Ref, name: str) -> None:
        self._owner = owner
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def aside(self, job: Callable[[], object]) -> None:
        """Run a job on a passing thread."""
        threading.Thread(target=logged(job), name="greenroom-aside", daemon=True).start()

    def stop(self) -> None:
        """End the thread once its job is done."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            tell(self._owner, job())
            del job


class InlineWorker:
    """For a dispatcher that is stepped by hand: jobs run when it steps."""

    def __init__(self, offload: Callable[[Job, Ref], None], owner: Ref) -> None:
        self._offload = offload
        self._owner = owner

    def submit(self, job: Job) -> None:
        """Leave the job to the dispatcher."""
        self._offload(job, self._owner)

    def aside(self, job: Callable[[], object]) -> None:
        """Run it now."""
        logged(job)()

    def stop(self) -> None:
        """Nothing to stop."""


def logged(job: Callable[[], object]) -> Callable[[], None]:
    """Return `job` made safe to run where nobody would see what it raises."""

    def run() -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001
            log(logging.ERROR, "a call of the user's conversation failed", error=error)

    return run


def described(error: BaseException) -> str:
    """Return its `repr`; of a user's exception even that may raise."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001
        return f"<{type(error).__name__} without a repr>"
