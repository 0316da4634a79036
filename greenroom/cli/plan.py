"""In which order may tasks run? `after` and the order within a session, checked for contradictions. Pure; any thread."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import attrs

from greenroom.cli.fields import BadInputError
from greenroom.cli.spelling import did_you_mean
from greenroom.cli.tasks import Task
from greenroom.errors import TaskFileError


@attrs.frozen(kw_only=True)
class Plan:
    """Tasks in file order. `previous` is the task before in the same session."""

    tasks: tuple[Task, ...]
    by_id: Mapping[str, Task]
    previous: Mapping[str, str]

    def before(self, task: Task) -> tuple[str, ...]:
        """Return the ids of all tasks that must have ended before `task` begins."""
        previous = self.previous.get(task.id)
        return (*task.after, *((previous,) if previous else ()))

    def waves(self) -> tuple[tuple[Task, ...], ...]:
        """Return the tasks by the earliest round in which each could run, were there no bound on how many run at once."""
        depth: dict[str, int] = {}
        for task in self._in_order():
            depth[task.id] = 1 + max((depth[other] for other in self.before(task)), default=-1)
        count = 1 + max(depth.values(), default=-1)
        return tuple(tuple(task for task in self.tasks if depth[task.id] == wave) for wave in range(count))

    def _in_order(self) -> Iterable[Task]:
        missing = {task.id: len(set(self.before(task))) for task in self.tasks}
        behind: dict[str, list[Task]] = {}
        for task in self.tasks:
            for other in set(self.before(task)):
                behind.setdefault(other, []).append(task)
        ready = [task for task in self.tasks if not missing[task.id]]
        for task in ready:  # grows while it is read
            yield task
            for follower in behind.get(task.id, ()):
                missing[follower.id] -= 1
                if not missing[follower.id]:
                    ready.append(follower)


def make_plan(name: str, tasks: tuple[Task, ...]) -> Plan:
    """Return the plan of the task file `name`. Raises BadInputError for an order that cannot be kept."""
    plan = Plan(tasks=tasks, by_id={task.id: task for task in tasks}, previous=_session_order(tasks))
    problems = [problem for task in tasks for problem in _bad_references(name, plan, task)]
    if not problems and (cycle := _cycle(plan)):
        problems = [_cycle_problem(name, plan, cycle)]
    if problems:
        raise BadInputError(problems)
    return plan


def _session_order(tasks: tuple[Task, ...]) -> dict[str, str]:
    last: dict[str, str] = {}
    previous: dict[str, str] = {}
    for task in tasks:
        if task.session is not None:
            if task.session in last:
                previous[task.id] = last[task.session]
            last[task.session] = task.id
    return previous


def _bad_references(name: str, plan: Plan, task: Task) -> Iterable[TaskFileError]:
    place = {other.id: index for index, other in enumerate(plan.tasks)}
    for other_id in task.after:
        other = plan.by_id.get(other_id)
        if other is None:
            why, hint = f"no task has the id {other_id!r}", did_you_mean(other_id, plan.by_id)
        elif other is task:
            why, hint = f"task {task.id!r} waits for itself", None
        elif task.session is not None and other.session == task.session and place[other_id] > place[task.id]:
            why = f"{task.id!r} comes before {other_id!r} in session {task.session!r}, and cannot wait for it"
            hint = "the tasks of a session run in file order; move the task behind the one that it waits for"
        else:
            continue
        yield TaskFileError(name, why, line=task.line, key="after", hint=hint)


def _cycle(plan: Plan) -> tuple[str, ...]:
    """Return a cycle as ids, each waiting for the next, the first again at the end; or nothing. Not recursive: files may be long."""
    done: set[str] = set()
    for root in plan.tasks:
        path: list[str] = []
        on_path: set[str] = set()
        stack = [(root.id, False)]
        while stack:
            task_id, leaving = stack.pop()
            if leaving:
                on_path.discard(path.pop())
                done.add(task_id)
            elif task_id in on_path:
                return (*path[path.index(task_id) :], task_id)
            elif task_id not in done:
                path.append(task_id)
                on_path.add(task_id)
                stack.append((task_id, True))
                stack.extend((other, False) for other in reversed(plan.before(plan.by_id[task_id])))
    return ()


def _cycle_problem(name: str, plan: Plan, cycle: tuple[str, ...]) -> TaskFileError:
    steps = [_step(plan.by_id[one], other) for one, other in itertools.pairwise(cycle)]
    first = next(plan.by_id[one] for one, other in itertools.pairwise(cycle) if other in plan.by_id[one].after)
    why = "tasks wait for each other: " + ", ".join(steps)
    return TaskFileError(name, why, line=first.line, key="after", hint="take one of these out of its after")


def _step(task: Task, other: str) -> str:
    how = "waits for" if other in task.after else "follows in its session"
    return f"{task.id!r} {how} {other!r}"
