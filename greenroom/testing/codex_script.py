"""Builds prompts for the scripted Codex: frozen steps instead of directives written by hand.

    CodexScript([Say("on it"), RunCommand("make test"), Spend(120, 30), Fail("usageLimitExceeded", "used up", times=1)]).prompt()

Each step is one or more directives of `greenroom.testing.scripted_codex`, where their meaning is told; a script is played in order. Texts
may have several lines. Pure; any thread. For directives that have no step, write the prompt by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import attrs

_ALWAYS = 1 << 30


class Step(Protocol):
    """A step of a script."""

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        ...


def _steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(steps)


@attrs.frozen
class CodexScript:
    """What the scripted Codex does in one turn."""

    steps: tuple[Step, ...] = attrs.field(converter=_steps)

    def prompt(self) -> str:
        """Return the prompt that plays the steps in order."""
        return "\n".join(line for step in self.steps for line in step.directives())

    def then(self, steps: Iterable[Step]) -> CodexScript:
        """Return a script that goes on with more steps."""
        return CodexScript((*self.steps, *steps))


def _inline(text: str) -> str:
    """Return a text as one line, as the scripted Codex reads it."""
    return text.replace("\n", "\\n")


def _one_line(what: str, text: str) -> str:
    if "\n" in text:
        raise ValueError(f"{what} must be one line, got {text!r}")
    return text


def _with_output(text: str, output: str | None) -> str:
    return text if output is None else f"{text} -> {_inline(output)}"


@attrs.frozen
class Say:
    """A message; in `pieces` pieces with `interval_s` before each, if given."""

    text: str
    pieces: int = 1
    interval_s: float = 0.0

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        if self.pieces == 1 and not self.interval_s:
            return (f"SAY {_inline(self.text)}",)
        return (f"SLOW {self.pieces} {self.interval_s} {_inline(self.text)}",)


@attrs.frozen
class Think:
    """A reasoning summary."""

    text: str

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        return (f"THINK {_inline(self.text)}",)


@attrs.frozen
class RunCommand:
    """A command of one line: really run unless its `output` is given; `seconds` makes it a command that takes so long."""

    command: str
    output: str | None = None
    seconds: float | None = None

    def directives(self) -> tuple[str, ...]:
        """Return its lines. Raises ValueError for a command of several lines."""
        if self.seconds is not None:
            return (f"RUN_SLEEP {self.seconds} {_inline(self.output or '')}".rstrip(),)
        return (f"RUN {_with_output(_one_line('a command', self.command), self.output)}",)


@attrs.frozen
class ChangeFile:
    """A file that is really written, with a line's end behind the text. `ask` makes it ask for approval first."""

    path: str
    text: str
    ask: bool = False

    def directives(self) -> tuple[str, ...]:
        """Return its lines. Raises ValueError for a path with white space."""
        if len(self.path.split()) != 1:
            raise ValueError(f"a path must have no white space, got {self.path!r}")
        return (f"{'ASK_PATCH' if self.ask else 'CHANGE_FILE'} {self.path} {_inline(self.text)}",)


@attrs.frozen
class CallMcp:
    """A call of an MCP server's tool; nothing but the frames is real."""

    server: str
    tool: str
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    output: str = "ok"

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        return (_with_output(f"CALL_MCP {self.server} {self.tool} {json.dumps(dict(self.arguments))}", self.output),)


@attrs.frozen
class Ask:
    """A command that asks for approval before it runs; without a command, a question to the user."""

    command: str | None = None
    output: str | None = None
    question: str = "Which?"

    def directives(self) -> tuple[str, ...]:
        """Return its lines. Raises ValueError for a command of several lines."""
        if self.command is None:
            return (f"ASK_USER {_inline(self.question)}",)
        return (f"ASK {_with_output(_one_line('a command', self.command), self.output)}",)


@attrs.frozen
class Spend:
    """The tokens of the model call that it stands in: a call ends with each tool, and with the turn."""

    input_tokens: int
    output_tokens: int = 0
    cached_input_tokens: int = 0

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        return (f"SPEND {self.input_tokens} {self.output_tokens} {self.cached_input_tokens}",)


@attrs.frozen
class ReportRateLimits:
    """The primary limit, as it is told now and after every later model call. `resets_at` is Unix time; by default in an hour."""

    used_percent: int
    window_mins: int = 300
    resets_at: int | None = None

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        return (f"RATE_LIMIT {self.used_percent} {self.window_mins} {self.resets_at or ''}".rstrip(),)


@attrs.frozen
class Retrying:
    """Retries by Codex itself: so many notes, with `delay_s` after each; the turn goes on."""

    times: int = 1
    delay_s: float = 0.0

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        return (f"RETRY_NOTICE {self.times} {self.delay_s}",)


@attrs.frozen
class Fail:
    """The turn fails: always, or the first `times` times in its thread. `info` is the codexErrorInfo, a word or a mapping."""

    info: str | Mapping[str, Any]
    message: str = "the scripted model failed"
    times: int | None = None

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        info = self.info if isinstance(self.info, str) else json.dumps(self.info, separators=(",", ":"))
        # a number at the end of the message would be taken for how often it is to fail
        times = _ALWAYS if self.times is None and self.message.split()[-1:] and self.message.split()[-1].isdigit() else self.times
        count = "" if times is None else f" {times}"
        return (f"FAIL {info} {_inline(self.message)}{count}",)


@attrs.frozen
class Hang:
    """The model never answers."""

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        return ("HANG",)


@attrs.frozen
class AwaitSteer:
    """A command that runs until a steer comes."""

    output: str = "a message came"

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        return (f"AWAIT_STEER {_inline(self.output)}",)


@attrs.frozen
class Crash:
    """The server kills itself, with all its threads. `once` is not played again after the resume."""

    once: bool = False
    signal: str = "KILL"

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        return (f"{'CRASH_ONCE' if self.once else 'CRASH'} {self.signal}",)


@attrs.frozen
class Complain:
    """So many bytes on standard error, and (`garbage`) lines on standard output that are no frames; the turn goes on."""

    stderr_bytes: int = 80
    garbage: bool = False

    def directives(self) -> tuple[str, ...]:
        """Return its lines."""
        return (f"STDERR {self.stderr_bytes}", *(("GARBAGE",) if self.garbage else ()))
