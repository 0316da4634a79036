"""How tests, demos and examples start the scripted CLIs, plan their faults, and look at what their "models" saw.

    binary = write_scripted_claude(tmp_path)            # an executable named `claude`: put it on PATH, or give it as `binary=`
    binary = write_scripted_codex(tmp_path)             # one named `codex`, for `codex app-server`
    env = Plan(in_use_times=1).env(tmp_path)            # faults outside of turns; those in a turn are directives in its prompt
    history(tmp_path / "state", conversation_id)        # what the model saw, whatever was killed in between
    codex_history(tmp_path / "state", thread_id)

The words that a prompt may contain are in the docstrings of `greenroom.testing.scripted_claude` and `scripted_codex`; for Codex
`greenroom.testing.codex_script.CodexScript` writes them. Any thread; Linux and macOS.
"""

from __future__ import annotations

import json
import pathlib
import shlex
import sys
from typing import Any

import attrs

_FOLDER = str(pathlib.Path(__file__).parent)
_SHEBANG_LIMIT = 120
_PYTHON_FLAGS = ("-S", "-E", "-P")  # fast, and blind to the environment and to modules in the agent's working directory


def scripted_claude_argv() -> tuple[str, ...]:
    """Return the command that stands for `claude`; append Claude Code's own arguments.

    It imports the script instead of running it, so that Python's cache of compiled code halves the start-up time (to about 10 ms).
    """
    return (sys.executable, *_PYTHON_FLAGS, "-c", _launch("scripted_claude"))


def replayed_claude_argv(recording: pathlib.Path | str) -> tuple[str, ...]:
    """Return a command that stands for `claude` and plays a recording; see `greenroom.testing.replay_claude`."""
    return (sys.executable, *_PYTHON_FLAGS, "-c", _launch("replay_claude"), str(recording))


def write_scripted_claude(directory: pathlib.Path | str, name: str = "claude") -> pathlib.Path:
    """Write an executable that behaves as `claude`, and return its path. The directory is made if it is missing."""
    return _write(pathlib.Path(directory) / name, _launch("scripted_claude"))


def write_replayed_claude(directory: pathlib.Path | str, recording: pathlib.Path | str, name: str = "claude") -> pathlib.Path:
    """Write an executable named `claude` that plays a recording, and return its path."""
    return _write(pathlib.Path(directory) / name, _launch("replay_claude", str(pathlib.Path(recording).absolute())))


def scripted_codex_argv() -> tuple[str, ...]:
    """Return the command that stands for `codex`; append `app-server`, or `--version`."""
    return (sys.executable, *_PYTHON_FLAGS, "-c", _launch("scripted_codex"))


def write_scripted_codex(directory: pathlib.Path | str, name: str = "codex") -> pathlib.Path:
    """Write an executable that behaves as `codex app-server` does, and return its path. The directory is made if it is missing.

    Its threads are kept in GREENROOM_SCRIPTED_STATE, else in `$CODEX_HOME/scripted`; CODEX_HOME must exist, as the real one asks.
    """
    return _write(pathlib.Path(directory) / name, _launch("scripted_codex"))


def _launch(module: str, *arguments: str) -> str:
    """Return the code that runs a script of this folder, with arguments put before those of the command."""
    before = f"sys.argv[1:1] = {list(arguments)!r}; " if arguments else ""
    return f"import sys; sys.path.append({_FOLDER!r}); {before}from {module} import main; main()"


def _write(path: pathlib.Path, code: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_wrapper(code), encoding="utf-8")
    path.chmod(0o755)
    return path


def _wrapper(code: str) -> str:
    shebang = f"#!{sys.executable} -SEP"
    if len(shebang) <= _SHEBANG_LIMIT and " " not in sys.executable:
        return f"{shebang}\n{code}\n"
    # the kernel cuts long first lines and splits none: a shell starts what does not fit
    return f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -SEP -c {shlex.quote(code)} "$@"\n'


@attrs.frozen(kw_only=True)
class Plan:
    """Things that a scripted CLI does before and between turns. Fields left alone change nothing.

    Those that count (`*_times`, and where True or a number is taken) are counted over all processes that share a state directory:
    `die_at_start=2` lets the first two starts die, True all of them. Times are in seconds, sizes in bytes. The first `kill_times`
    processes are killed (SIGKILL) after they wrote line number `kill_after_line`, or read `die_after_input_bytes`.

    Codex alone: `echo_wrong_sandbox` and `echo_wrong_approvals` are what thread/start and thread/resume say instead of what was asked;
    `resume_error` refuses thread/resume with that text (`{id}` is the thread), `resume_error_times` times; `overload_times` refuses
    turn/start; the next request of each method in `no_reply` gets no reply; `ask_always` asks under the policy `never` too. Claude
    alone: `resume_as`, `unprompted_between`, `pause_after_turn_s`, `transcript_delay_s`.
    """

    version: str | None = None
    refuse_resume: bool | int = 0
    in_use_times: int = 0
    die_at_start: bool | int = 0
    slow_start_s: float = 0.0
    no_handshake: bool | int = 0
    exit_after_handshake: bool | int = 0
    stderr_at_start: str | int = ""
    garbage_at_start: bool = False
    resume_as: str | None = None
    unprompted_between: str | None = None
    pause_after_turn_s: float = 0.0
    transcript_delay_s: float = 0.0
    kill_after_line: int = 0
    kill_times: int = 1
    ignore_eof: bool = False
    exit_delay_s: float = 0.0
    stop_reading: bool = False
    die_after_input_bytes: int = 0
    echo_wrong_sandbox: str | None = None
    echo_wrong_approvals: str | None = None
    resume_error: str | None = None
    resume_error_times: bool | int = 0
    overload_times: bool | int = 0
    no_reply: tuple[str, ...] = ()
    ask_always: bool = False

    def write(self, path: pathlib.Path | str) -> pathlib.Path:
        """Write the plan as a file for GREENROOM_SCRIPTED_PLAN, and return its path."""
        values = attrs.asdict(self, filter=lambda field, value: value != field.default)
        path = pathlib.Path(path)
        path.write_text(json.dumps(values), encoding="utf-8")
        return path

    def env(self, directory: pathlib.Path | str) -> dict[str, str]:
        """Write the plan into `directory` and return the variables that name it and a state directory beside it."""
        directory = pathlib.Path(directory)
        state = directory / "state"
        return {"GREENROOM_SCRIPTED_STATE": str(state), "GREENROOM_SCRIPTED_PLAN": str(self.write(directory / "plan.json"))}


@attrs.frozen(kw_only=True)
class Seen:
    """One thing that the model saw: `role` is user, assistant, tool_use or tool_result; `text` its words (JSON for a tool's input)."""

    role: str
    text: str
    tool: str | None = None


def history(state_dir: pathlib.Path | str, session_id: str) -> tuple[Seen, ...]:
    """Return what the model saw in a conversation, in order, or nothing if the conversation was never stored.

    An empty text block (a retry in place) is not there, as Claude Code does not show it to the model; the half text of a turn that was
    killed is not there either.
    """
    seen = (_seen(record) for record in _records(pathlib.Path(state_dir) / f"{session_id}.jsonl"))
    return tuple(one for one in seen if one is not None)


def codex_history(state_dir: pathlib.Path | str, thread_id: str) -> tuple[Seen, ...]:
    """Return what the model saw in a thread of the scripted Codex, in order, or nothing if the thread never had a turn.

    `input: []` is not there, as Codex sends nothing for it; half texts are not there either. An interrupt is `<turn_aborted>`.
    """
    seen = (_codex_seen(record) for record in _records(pathlib.Path(state_dir) / f"{thread_id}.jsonl"))
    return tuple(one for one in seen if one is not None)


def codex_requests(state_dir: pathlib.Path | str) -> tuple[dict[str, Any], ...]:
    """Return the requests that scripted Codex processes got, in order: pid, at (Unix time), method, params."""
    return tuple(_records(pathlib.Path(state_dir) / "requests.log"))


def prompts_seen(state_dir: pathlib.Path | str, session_id: str) -> tuple[str, ...]:
    """Return the texts of the user messages that the model saw: a prompt that is there twice was sent twice."""
    return tuple(one.text for one in history(state_dir, session_id) if one.role == "user")


def conversations(state_dir: pathlib.Path | str) -> tuple[str, ...]:
    """Return the ids of the conversations that are stored."""
    return tuple(sorted(path.stem for path in pathlib.Path(state_dir).glob("*.jsonl")))


def starts(state_dir: pathlib.Path | str) -> tuple[dict[str, Any], ...]:
    """Return one record for each process that was started.

    Its keys: pid, argv, cwd, session_id, resumed, at (Unix time), env (the names of its variables, no values).
    """
    return tuple(_records(pathlib.Path(state_dir) / "starts.log"))


def overlaps(state_dir: pathlib.Path | str) -> tuple[dict[str, Any], ...]:
    """Return one record (pid, session_id, at) for each process that came to a conversation on which another one still lived."""
    return tuple(_records(pathlib.Path(state_dir) / "overlaps.log"))


def _records(path: pathlib.Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    # Not splitlines: it also splits at characters that a prompt may hold. The last piece is empty, or half a line.
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _codex_seen(record: dict[str, Any]) -> Seen | None:
    match record["k"]:
        case "prompt" | "go_on" | "marker":
            return Seen(role="user", text=record["text"])
        case "item" if record["item"]["type"] == "agentMessage":
            return Seen(role="assistant", text=record["item"]["text"])
        case "call":
            return Seen(role="tool_use", text=json.dumps(record["input"]), tool=record["name"])
        case "output":
            return Seen(role="tool_result", text=record["content"])
        case _:
            return None


def _seen(record: dict[str, Any]) -> Seen | None:
    match record["k"]:
        case "prompt" | "go_on" | "marker":
            return Seen(role="user", text=record["text"]) if record["text"] else None
        case "text":
            return Seen(role="assistant", text=record["text"])
        case "tool_use":
            return Seen(role="tool_use", text=json.dumps(record["input"]), tool=record["name"])
        case "tool_result":
            return Seen(role="tool_result", text=record["content"])
        case _:
            return None
