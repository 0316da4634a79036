"""The command line: its options, its help, and what is printed. Decides nothing else; runs on the main thread."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import attrs
import typer

from greenroom import __version__
from greenroom.cli import demo as demo_command
from greenroom.cli import doctor as doctor_command
from greenroom.cli.descriptors import make_room
from greenroom.cli.engine import Engine, RoomPort
from greenroom.cli.fields import BadInputError, build_tasks
from greenroom.cli.offload import Lane, Threads
from greenroom.cli.plan import Plan, make_plan
from greenroom.cli.progress import Board
from greenroom.cli.reporter import Reporter, Screen
from greenroom.cli.results import Outcome, ResultLog, TaskRecord, done_before, exit_status, read_results
from greenroom.cli.runner import FORCED_DEADLINE_S, Limits, Runner, Unknown
from greenroom.cli.safe_text import one_line
from greenroom.cli.spelling import did_you_mean
from greenroom.cli.stopping import StopRequest, signals_to
from greenroom.cli.taskfile import read_source
from greenroom.cli.tasks import PERMISSIONS, PROVIDERS, Given
from greenroom.cli.view import totals
from greenroom.errors import GreenroomError, TaskFileError
from greenroom.places import default_state_dir

_FAILED = 1
_BAD_INPUT = 2
_INTERRUPTED = 130
_SHUTDOWN_S = 10.0

app = typer.Typer(
    name="greenroom",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run many coding-agent sessions in parallel, supervised.\n\n"
    "First steps: `greenroom demo` shows it without an account; `greenroom doctor` tells whether this machine is ready; "
    "`greenroom run tasks.toml` does your own work.",
)

_RUN_HELP = """Run the tasks of a file, several at a time.

TASKS is a .toml file with one [[task]] table for each task, a .jsonl file with one JSON object a line, or - for standard input.

\b
A small one:
  [defaults]
  permissions = "workspace-write"
  [[task]]
  id = "fix"
  prompt = "Fix the failing test"
  cwd = "services/api"
  [[task]]
  id = "review"
  prompt = "Review the last commit"
  after = ["fix"]

\b
Keys of a task:
  prompt, prompt_file  what to do, or the file that says it (one of them is needed)
  permissions          "bypass", "workspace-write" or, on Codex, "read-only" (needed, here or by --permissions)
  id                   its name in results and in `after` (a hash of its content)
  cwd                  where the agent works (the current directory)
  session              tasks that name the same one share a conversation, in file order
  after                ids of tasks that must have ended well before
  model, effort, timeout (seconds of one attempt), env (added to the environment)
  approvals            "deny" what the agent asks leave for, or "fail-turn"
  schema               a JSON schema for the answer: a table, or the path of a file
  provider             "claude" (unless said otherwise) or "codex"
  attachments          an array of paths: images and texts for the model
  interaction_mode     "plan": say what would be done, and leave everything as it is

Paths are relative to the task file. A task wins over [defaults], and [defaults] over the options below.

\b
Ctrl-C and SIGTERM stop in order: no further task begins, running turns have --grace seconds to end, are then interrupted, and
their results are kept. A second one forces it.
Exit status: 0 all tasks are done, 1 some are not, 2 bad input (nothing was started), 130 stopped by Ctrl-C, 143 by SIGTERM.
"""


def run_command() -> NoReturn:
    """Run the command and exit with its status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # in a C locale an answer must not end the run
    try:
        _run_and_flush()
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except OSError as error:  # a full disk under our output, no descriptor left, a working directory that is gone
        _tell_trouble(error)
        raise SystemExit(_FAILED) from None
    raise SystemExit(0)


def _run_and_flush() -> None:
    try:
        app(prog_name="greenroom")
    finally:
        if sys.stdout is not None:  # closed by who started us
            sys.stdout.flush()


def _tell_trouble(error: OSError) -> None:
    """Say what the system refused, and give up on what standard output still holds: the interpreter would try again at its end."""
    if sys.stdout is not None:
        sys.stdout = io.StringIO()
    if not isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError):
            _complain(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error), None)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"greenroom {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)] = False,
) -> None:
    pass


# --- run -------------------------------------------------------------------------------------------------------------------------


@app.command("run", help=_RUN_HELP)
def _run(  # noqa: PLR0917 - typer reads the options from here
    context: typer.Context,
    tasks: Annotated[str, typer.Argument(metavar="TASKS", help="A .toml or .jsonl file, or - for standard input.")],
    out: Annotated[Path | None, typer.Option(help="Append results to this JSON Lines file; run again to do only what is not done.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Journal the run here; after a crash, run again to go on.")] = None,
    durable: Annotated[
        bool, typer.Option("--durable", help="The same in the user's state directory, in a place of this task file's own.")
    ] = False,
    unknown: Annotated[
        Unknown | None,
        typer.Option(
            help="With --state-dir or --durable: tasks that a run which died had sent, without seeing their end.", show_default="continue"
        ),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="How many turns run at once.")] = 8,
    max_starting: Annotated[int, typer.Option(min=1, help="How many processes may be starting at once.")] = 8,
    max_cost_usd: Annotated[float | None, typer.Option(help="Begin no further task once this much is spent.")] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running turns have to end by themselves after Ctrl-C or SIGTERM.")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, in which order; start nothing.")] = False,
    permissions: Annotated[str | None, typer.Option(help=f"For tasks that do not say: {' or '.join(PERMISSIONS)}.")] = None,
    model: Annotated[str | None, typer.Option(help="For tasks that do not say.")] = None,
    provider: Annotated[str | None, typer.Option(help=f"For tasks that do not say: {' or '.join(PROVIDERS)}.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that one attempt may take, for tasks that do not say.")] = None,
    claude_binary: Annotated[str | None, typer.Option(help="The claude executable, if not the one on PATH.")] = None,
    codex_binary: Annotated[str | None, typer.Option(help="The codex executable, if not the one on PATH.")] = None,
) -> None:
    try:
        given = Given(permissions=permissions, model=model, provider=provider, timeout=timeout)
        binary, codex = _path_of(claude_binary), _path_of(codex_binary)
        _check_options(given, max_cost_usd, {"--claude-binary": binary, "--codex-binary": codex})
        if durable:
            state_dir = _place_for(tasks, state_dir)
        if unknown is not None and state_dir is None:
            hint = "give --state-dir or --durable"
            raise TaskFileError("command line", "without a journal nothing is known of an earlier run", key="--unknown", hint=hint)
        unknown = (unknown or Unknown.CONTINUE) if state_dir is not None else None
        source = read_source(tasks)
        plan = make_plan(source.name, build_tasks(source, given))
        if dry_run:
            _print_plan(plan, done_before(plan.tasks, read_results(out) if out else {}))
            return
        log = ResultLog(out) if out else None
        done = done_before(plan.tasks, log.open() if log else {})
    except BadInputError as error:
        _refuse(error.problems)
    except GreenroomError as error:
        _refuse([error])
    run = _Run(
        plan=plan,
        limits=Limits(
            parallel=parallel,
            max_cost_usd=max_cost_usd,
            unknown=(unknown or Unknown.CONTINUE) if state_dir is not None else None,
            grace_s=grace,
        ),
        state_dir=state_dir,
        durable=durable,
        log=log,
        done=done,
        max_starting=max_starting,
        claude_binary=binary,
        codex_binary=codex,
        engine=context.obj or Engine(),
    )
    scarce = make_room(min(parallel, len(plan.tasks)))
    if scarce is not None:
        _hint(scarce)
    try:
        status = asyncio.run(_go(run))
    except BadInputError as error:
        _refuse(error.problems)
    except GreenroomError as error:
        _refuse([error])
    finally:
        if log is not None:
            log.close()
    raise typer.Exit(status)


def _place_for(tasks: str, state_dir: Path | None) -> Path:
    """Return where the runs of a task file are journalled when the user does not say: each file has its own, so that two can run."""
    if state_dir is not None:
        raise TaskFileError("command line", "--durable and --state-dir exclude one another", key="--durable")
    if tasks == "-":
        hint = "give --state-dir, or a file"
        raise TaskFileError("command line", "tasks from standard input have no place of their own", key="--durable", hint=hint)
    path = Path(tasks).absolute()
    return default_state_dir(f"run-{path.stem}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}")


def _path_of(binary: str | None) -> Path | None:
    """Return what the user named: a path that was `./claude` must not become a name that is looked up on PATH."""
    if binary is None:
        return None
    return Path(binary).expanduser().absolute() if os.sep in binary else Path(binary)


def _check_options(given: Given, max_cost_usd: float | None, binaries: Mapping[str, Path | None]) -> None:
    for option, value, known in (("--permissions", given.permissions, PERMISSIONS), ("--provider", given.provider, PROVIDERS)):
        if value is not None and value not in known:
            hint = did_you_mean(value, known) or "one of: " + ", ".join(known)
            raise TaskFileError("command line", f"unknown value {value!r}", key=option, hint=hint)
    for option, number in (("--timeout", given.timeout), ("--max-cost-usd", max_cost_usd)):
        if number is not None and not (math.isfinite(number) and number > 0):
            raise TaskFileError("command line", f"must be more than 0, got {number:g}", key=option)
    for option, binary in binaries.items():
        if binary is not None and shutil.which(str(binary)) is None:
            raise TaskFileError("command line", f"{str(binary)!r} is not an executable file", key=option)


@attrs.frozen(kw_only=True)
class _Run:
    """All that one run needs."""

    plan: Plan
    limits: Limits
    log: ResultLog | None
    done: Mapping[str, Any]
    state_dir: Path | None
    durable: bool
    max_starting: int
    claude_binary: Path | None
    codex_binary: Path | None
    engine: Engine

    def refuse_unfit(self) -> None:
        """Raise BadInputError where a task that is to run has an agent that cannot: nothing is begun then. Blocks."""
        wanted = dict.fromkeys(task.settings for task in self.plan.tasks if task.id not in self.done)
        problems = self.engine.unfit(wanted, claude_binary=self.claude_binary, codex_binary=self.codex_binary)
        if problems:
            raise BadInputError(problems)

    def open_room(self) -> RoomPort:
        """Open the room; may block for seconds."""
        durable = {} if self.state_dir is None else {"state_dir": self.state_dir}
        return self.engine.open_room(max_starting=self.max_starting, **durable)


async def _go(run: _Run) -> int:
    """Run the plan on this loop, and end everything whatever happens. Returns the exit status."""
    stop, offload = StopRequest(), Threads()
    board = Board(((task.id, task.session_name) for task in run.plan.tasks), title="greenroom run")
    for task_id in run.done:
        board.done_before(task_id)
    reporter = Reporter(board, Screen())
    with signals_to(stop.ask), contextlib.closing(offload):
        await offload(Lane.ROOM, run.refuse_unfit)
        room = await offload(Lane.ROOM, run.open_room)
        try:
            agents = run.engine.agents(room, claude_binary=run.claude_binary, codex_binary=run.codex_binary)
            runner = Runner(
                run.plan,
                room=room,
                agents=agents,
                progress=reporter,
                offload=offload,
                stop=stop,
                limits=run.limits,
                log=run.log,
                done=run.done,
            )
            async with reporter.showing():
                records = await runner.run()
        finally:
            await offload(Lane.ROOM, room.close, FORCED_DEADLINE_S if stop.by_force.is_set() else _SHUTDOWN_S)
    _print_summary(board, records, runner, len(run.done))
    if run.log is None and run.state_dir is None and Outcome.DONE in runner.outcomes.values():
        _hint("the answers were not kept; with --out FILE they are, and a second run does only the rest")
    if run.durable:
        _hint(f"the run is journalled in {run.state_dir}; remove that to have all tasks run anew")
    status = exit_status(runner.outcomes.values(), stopped=stop.status if stop.asked else None)
    return status or (1 if runner.trouble else 0)


# --- what is printed ----------------------------------------------------------------------------------------------------------


def _print_plan(plan: Plan, done: Mapping[str, Any]) -> None:
    for number, wave in enumerate(plan.waves(), 1):
        print(f"wave {number}")
        for task in wave:
            notes = [f"session {task.session}"] if task.session else []
            notes += [f"after {', '.join(task.after)}"] if task.after else []
            notes += ["done in an earlier run"] if task.id in done else []
            settings = task.settings
            told = "; ".join([f"{task.id}: {settings.provider}, {settings.permissions}, {settings.cwd}", *notes])
            print(f"  {one_line(told)}")
    sessions = {task.session_key for task in plan.tasks}
    counts = f"{_counted(len(plan.tasks), 'task')}, {_counted(len(sessions), 'session')}"
    print(f"{counts}, {len(done)} done in an earlier run; nothing was started")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _print_summary(board: Board, records: Mapping[str, TaskRecord], runner: Runner, earlier: int) -> None:
    print(totals(board) + (f" ({earlier} done in an earlier run)" if earlier else ""))
    for record in records.values():
        if record.outcome in {Outcome.FAILED, Outcome.INTERRUPTED} and record.error:
            _complain(f"{record.id}: {record.error['message']}", record.error["hint"])
    for trouble in runner.trouble:
        _complain(trouble, None)


def _refuse(problems: Iterable[GreenroomError]) -> NoReturn:
    for problem in problems:
        _complain(str(problem), problem.hint)
    raise typer.Exit(_BAD_INPUT)


def _complain(message: str, hint: str | None) -> None:
    print(f"error: {one_line(message, 2000)}", file=sys.stderr)
    if hint:
        _hint(hint)


def _hint(hint: str) -> None:
    print(f"hint: {one_line(hint, 2000)}", file=sys.stderr)


# --- doctor and demo ----------------------------------------------------------------------------------------------------------


@app.command("doctor")
def _doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
    provider: Annotated[str | None, typer.Option(help=f"Only one of them: {' or '.join(PROVIDERS)}.")] = None,
    claude_binary: Annotated[str | None, typer.Option(help="The claude executable, if not the one on PATH.")] = None,
    codex_binary: Annotated[str | None, typer.Option(help="The codex executable, if not the one on PATH.")] = None,
) -> None:
    """Check whether agents can run on this machine.

    Looks at the CLIs and their versions, the credentials in use, and the sandbox. Without --provider, what Codex lacks is a warning.
    Nothing is changed, and no credential is shown. Exit status: 0, or 1 if a check failed.
    """
    if provider is not None and provider not in PROVIDERS:
        hint = did_you_mean(provider, PROVIDERS) or "one of: " + ", ".join(PROVIDERS)
        _refuse([TaskFileError("command line", f"unknown value {provider!r}", key="--provider", hint=hint)])
    checks = doctor_command.examine(
        doctor_command.Surroundings(), claude_binary=_path_of(claude_binary), codex_binary=_path_of(codex_binary), provider=provider
    )
    if as_json:
        print(doctor_command.as_json(checks))
    else:
        for line in doctor_command.as_lines(checks):
            print(one_line(line) if not line.startswith(" ") else "      " + one_line(line))
    raise typer.Exit(doctor_command.exit_status(checks))


@app.command("demo")
def _demo(
    context: typer.Context,
    sessions: Annotated[int, typer.Option(min=4, max=200, help="How many sessions run at once.")] = 12,
    seconds_cap: Annotated[float, typer.Option(min=1, help="Give up after this many seconds.")] = 20,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live table.")] = False,
) -> None:
    """Show it without an account, in seconds.

    Runs sessions in parallel over scripted CLIs, which are real processes.
    One turn is steered, one interrupted, one retries an overload, and one process is killed and comes back.
    Exit status: 0, or 1 if something did not happen as it should; 130 after Ctrl-C, 143 after SIGTERM.
    """
    engine = context.obj or Engine()
    raise typer.Exit(demo_command.run_demo(engine, sessions=sessions, seconds_cap=seconds_cap, plain=plain))
