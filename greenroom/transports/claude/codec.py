"""What is written to Claude Code, and what its lines mean: the state machine of one process.

Decides what each line is for: the handshake, the open attempt, a request of the CLI's. Never waits, looks at no clock, does no I/O, and
never raises on what the process says. Called by one thread at a time.

Frames are matched by the uuids of our messages (`user_message_uuids`, `command_lifecycle`), never by their position: the CLI starts
turns by itself when a background task ends, folds a steered text into the running turn or runs it afterwards, and swallows a uuid that
the conversation has seen before. All of this is as 2.1.332 does it; the recordings are in `tests/fixtures/claude`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from greenroom.asks import Answer
from greenroom.errors import CliCheckError, GreenroomError, ProviderCapabilityError, SessionResumeError, SessionStateError, TurnFailedError
from greenroom.events import (
    AccountInUse,
    ApprovalDenied,
    Lifecycle,
    PermissionsDiffer,
    RawOutput,
    SessionStarted,
    SkillsDiscovered,
)
from greenroom.model import ApprovalPolicy, FailureKind, ProviderUsage
from greenroom.transports.base import Attempt, Kill, Output, ProcessExit, Ready, Renamed, StartFailed, Write, soonest
from greenroom.transports.claude import asks, exits, lines, mapping, outcome
from greenroom.transports.claude.account import account_of
from greenroom.transports.claude.classify import Failure
from greenroom.transports.claude.config import CodecConfig
from greenroom.transports.claude.control import ControlDesk
from greenroom.transports.claude.frames import Frame, decode
from greenroom.transports.claude.modes import SUBTYPES
from greenroom.transports.claude.state import Phase
from greenroom.transports.claude.turns import Turns

_Handler = Callable[[Frame, float], Iterable[Output]]

# Known, and of no use to anybody: progress marks that another frame tells better.
_QUIET = frozenset(
    {
        *("keep_alive", "tool_progress", "tool_use_summary", "auth_status", "prompt_suggestion"),
        *("system/task_updated", "system/task_progress"),
        *("system/session_state_changed", "system/hook_started", "system/hook_progress", "system/hook_response"),
        *("system/files_persisted", "system/local_command_output"),
    }
)


class ClaudeCodec:
    """The codec of one Claude Code process. `greenroom.transports.base.Codec` says what each method is for."""

    def __init__(self, config: CodecConfig) -> None:
        self._config = config
        self._phase = Phase.NEW
        self._startup_until_s: float | None = None
        self._desk = ControlDesk()
        self._turns = Turns(config, self._desk)
        self._skills_told = False
        self.junk_lines = 0
        self._handlers: dict[str, _Handler] = {
            "assistant": self._assistant,
            "user": self._user,
            "stream_event": self._stream_event,
            "result": self._result,
            "command_lifecycle": self._command_lifecycle,
            "control_response": self._control_response,
            "control_request": self._control_request,
            "control_cancel_request": self._request_taken_back,
            "rate_limit_event": self._rate_limit_event,
            "conversation_reset": self._conversation_reset,
            "system/init": self._init,
            "system/status": self._status,
            "system/permission_denied": self._permission_denied,
            "system/api_retry": self._api_retry,
            "system/compact_boundary": self._compact_boundary,
            "system/informational": self._informational,
            "system/model_fallback": self._model_fallback,
            "system/background_tasks_changed": self._background_tasks,
            "system/task_started": self._task,
            "system/thinking_tokens": self._thinking_tokens,
            "system/task_notification": self._task,
        }

    # --- the port ------------------------------------------------------------------------------------------------------

    @property
    def deadline_s(self) -> float | None:
        """When `tick` is due."""
        if self._phase is Phase.ENDED:
            return None
        return soonest(self._startup_until_s, self._turns.deadline_s, self._desk.until_s)

    @property
    def sent(self) -> bool:
        """Whether an attempt is open whose message has been handed out."""
        return self._turns.open is not None and self._turns.open.written

    def opened(self, now_s: float) -> list[Output]:
        """Begin the handshake."""
        self._phase = Phase.STARTING
        self._startup_until_s = now_s + self._config.startup_timeout_s
        schema = self._config.handshake_schema
        fields: dict[str, Any] = {} if schema is None else {"jsonSchema": schema}
        return [self._desk.ask("initialize", until_s=None, **fields)]

    def receive(self, line: bytes, now_s: float) -> list[Output]:
        """Take one line of standard output."""
        if self._phase is Phase.ENDED or not line.strip():
            return []
        frame = decode(line)
        if frame is None:
            self.junk_lines += 1
            return [_raw(line)]
        name = f"system/{frame.subtype}" if frame.type == "system" else frame.type
        handler = self._handlers.get(name)
        if handler is None:
            return [] if name in _QUIET else [_raw(line)]
        return self._settle_phase(list(handler(frame, now_s)))

    def oversized(self, size: int, now_s: float) -> list[Output]:
        """Fail the open attempt: what was lost cannot be known. Its turn is stopped; the next one runs in the same process."""
        what = f"a line of {size} bytes is longer than the limit of {self._config.max_line_bytes} bytes"
        turn = self._turns.open
        if turn is None or not turn.written or (turn.results and not turn.is_running):
            return [Lifecycle("line too long", what)]
        turn.line_lost = True
        return list(self._turns.fail(TurnFailedError(FailureKind.OTHER, what, text=turn.text), now_s))

    def start_turn(self, attempt: Attempt, now_s: float) -> list[Output]:
        """Begin an attempt. It is written when no control request of an earlier turn is open."""
        if self._phase is not Phase.READY or self._turns.open is not None:
            raise SessionStateError(f"attempt {attempt.receipt!r} cannot begin now")
        return list(self._turns.begin(attempt, now_s))

    def steer(self, text: str, steer_id: str, now_s: float) -> list[Output] | None:
        """Send text into the running turn; None when there is none, or it is ending."""
        return self._turns.steer(text, steer_id) if self._phase is Phase.READY else None

    def interrupt(self, now_s: float) -> list[Output]:
        """End the open attempt as soon as the CLI can take it."""
        return [] if self._phase is Phase.ENDED else list(self._turns.interrupt(now_s))

    def answer(self, request_id: str, answer: Answer, now_s: float) -> list[Output] | None:
        """Answer what the CLI asked; None when it is open no more."""
        return None if self._phase is Phase.ENDED else self._turns.answer(request_id, answer, now_s)

    def exited(self, exit_: ProcessExit, stderr_tail: str, now_s: float) -> list[Output]:
        """End the start if it is open, and the steers; never the attempt."""
        was_starting = self._phase in {Phase.NEW, Phase.STARTING}
        self._end()
        if not was_starting:
            return list(self._turns.process_ended())
        error = exits.refusal(exit_, stderr_tail, argv=self._config.argv, conversation_id=self._conversation_id)
        return [] if error is None else [StartFailed(error)]

    def consumed(self) -> ProviderUsage | None:
        """What the open attempt is known to have consumed so far: a lower bound."""
        turn = self._turns.open
        return outcome.consumed(turn) if turn is not None and turn.written else None

    def tick(self, now_s: float) -> list[Output]:
        """Act on every bound that has passed."""
        if self._phase is Phase.ENDED:
            return []
        if self._startup_until_s is not None and now_s >= self._startup_until_s:
            why = f"no answer to the handshake within {self._config.startup_timeout_s:g} s"
            return [self._start_failed(CliCheckError(self._config.argv[0], why)), Kill(why)]
        out = self._settle_phase(list(self._turns.tick(now_s)))
        late = self._desk.expire(now_s)
        for pending in late:
            out += self._turns.unanswered(pending, now_s)
        if late:
            out += self._turns.write(now_s)
        return self._settle_phase(out)

    # --- the handshake -------------------------------------------------------------------------------------------------

    @property
    def _conversation_id(self) -> str | None:
        return self._config.resume_id or self._config.proposed_id

    def _end(self) -> None:
        self._phase = Phase.ENDED
        self._startup_until_s = None
        self._desk.clear()

    def _settle_phase(self, out: list[Output]) -> list[Output]:
        """A process that is to be killed is listened to no more, unless its attempt is still to be ended by its exit."""
        if self._turns.open is None and any(isinstance(item, Kill) for item in out):
            self._end()
        return out

    def _start_failed(self, error: GreenroomError) -> StartFailed:
        self._end()
        return StartFailed(error)

    def _handshake_answered(self, response: dict[str, Any]) -> Iterator[Output]:
        if response.get("subtype") != "success":
            yield self._start_failed(TurnFailedError(FailureKind.OTHER, f"the handshake was refused: {response.get('error')}"))
            return
        answer = response.get("response")
        facts = answer if isinstance(answer, dict) else {}
        widened = self._widened(facts)
        if widened is not None:
            yield PermissionsDiffer(self._asked, widened)
            yield self._start_failed(
                ProviderCapabilityError(widened, provider="claude", hint="look for settings that overrule the command line")
            )
            return
        self._phase = Phase.READY
        self._startup_until_s = None
        yield Lifecycle("credential", _credential(facts))
        yield AccountInUse(account_of(facts))
        yield Ready(self._config.resume_id)

    def _widened(self, facts: dict[str, Any]) -> str | None:
        """Say how the process's own account of its permissions differs from what was asked; settings can overrule flags."""
        mode, sandboxed = facts.get("current_permission_mode"), facts.get("sandbox_enabled")
        if isinstance(mode, str) and self._config.permission_mode not in {None, mode}:
            return f"it runs in permission mode {mode!r}, not in {self._config.permission_mode!r}"
        return "it runs without its sandbox" if self._config.sandboxed and sandboxed is False else None

    @property
    def _asked(self) -> str:
        return f"{self._config.permission_mode}{' in its sandbox' if self._config.sandboxed else ''}"

    def _start_refused(self, frame: Frame) -> StartFailed:
        """A result before the handshake's answer: the resume was refused; the process exits by itself."""
        failure = Failure.of(frame, None)
        if self._config.resume_id is not None:
            return self._start_failed(SessionResumeError(self._config.resume_id, detail=failure.text, argv=self._config.argv))
        return self._start_failed(TurnFailedError(failure.kind, failure.text or "the start was refused"))

    # --- what the model and its tools say ------------------------------------------------------------------------------

    def _assistant(self, frame: Frame, now_s: float) -> Iterable[Output]:
        if frame.parent_tool_use_id is not None:
            return self._sub_agent(frame)
        turn = self._turns.owner_of(frame)
        return mapping.assistant(turn, frame) if turn is not None and self._turns.is_first(turn, frame) else ()

    def _sub_agent(self, frame: Frame) -> Iterator[Output]:
        """A sub-agent's tools are shown, its text is not: it is no answer to the caller."""
        turn = self._turns.open
        if turn is None or frame.message is None or frame.parent_tool_use_id not in turn.tools:
            return
        yield from mapping.tool_calls(turn, mapping.blocks_of(frame.message))
        yield from mapping.tool_results(turn, frame)

    def _user(self, frame: Frame, now_s: float) -> Iterator[Output]:
        if frame.is_replay:
            yield from self._turns.echo(frame.uuid, now_s)
        elif frame.parent_tool_use_id is not None:
            yield from self._sub_agent(frame)
        elif (turn := self._turns.owner_of(frame)) is not None and self._turns.is_first(turn, frame):
            yield from mapping.user(turn, frame)

    def _thinking_tokens(self, frame: Frame, now_s: float) -> Iterable[Output]:
        if (turn := self._turns.owner_of(frame)) is not None:
            mapping.thinks(turn)
        return ()

    def _stream_event(self, frame: Frame, now_s: float) -> Iterator[Output]:
        turn = self._turns.owner_of(frame)
        if turn is not None and frame.parent_tool_use_id is None:
            yield from mapping.stream_event(turn, frame)

    # --- turns ---------------------------------------------------------------------------------------------------------

    def _init(self, frame: Frame, now_s: float) -> Iterator[Output]:
        """Every turn begins with it; it alone says which conversation this is."""
        if frame.session_id and frame.session_id != self._turns.session_id:
            self._turns.session_id = frame.session_id
            yield Renamed(frame.session_id)
            yield SessionStarted(frame.session_id)
        yield from self._turns.init(frame, now_s)
        if frame.skills and not self._skills_told:
            self._skills_told = True
            yield SkillsDiscovered(tuple(skill for skill in frame.skills if isinstance(skill, str)))

    def _result(self, frame: Frame, now_s: float) -> Iterator[Output]:
        if self._phase is Phase.STARTING:
            yield self._start_refused(frame)
        else:
            yield from self._turns.result(frame, now_s)

    def _command_lifecycle(self, frame: Frame, now_s: float) -> Iterator[Output]:
        yield from self._turns.lifecycle(frame.command_uuid, frame.state, now_s)

    # --- requests ------------------------------------------------------------------------------------------------------

    def _control_response(self, frame: Frame, now_s: float) -> Iterator[Output]:
        response = frame.response or {}
        pending = self._desk.take(response.get("request_id"))
        if pending is None:
            return
        if pending.subtype == "initialize":
            yield from self._handshake_answered(response)
        elif pending.subtype in SUBTYPES:
            yield from self._turns.mode_answered(pending, response, now_s)
        else:
            answer = response.get("response")
            yield from self._turns.answered(pending, answer if isinstance(answer, dict) else {}, now_s)

    def _control_request(self, frame: Frame, now_s: float) -> Iterator[Output]:
        """Answer at once, in every phase, or leave it to a person: a request without an answer would hold the CLI for ever."""
        request = frame.request or {}
        subtype = request.get("subtype")
        if self._config.approvals is ApprovalPolicy.ASK and asks.serves(request) and isinstance(frame.request_id, str):
            yield from self._turns.ask(frame.request_id, request, now_s)
        elif subtype == "can_use_tool":
            yield from self._deny(frame.request_id, request, now_s)
        else:
            yield Write(lines.refusal(frame.request_id, f"greenroom does not serve {subtype!r} requests"))

    def _request_taken_back(self, frame: Frame, now_s: float) -> Iterator[Output]:
        yield from self._turns.taken_back(frame.request_id, now_s)

    def _deny(self, request_id: Any, request: dict[str, Any], now_s: float) -> Iterator[Output]:
        turn = self._turns.open
        fails = self._config.approvals is ApprovalPolicy.FAIL_TURN and turn is not None and turn.is_running
        yield Write(lines.denial(request_id, "nobody can approve this here", interrupt=fails))
        tool, detail = str(request.get("tool_name") or ""), mapping.brief(request.get("input"))
        if turn is not None and turn.is_running:
            yield from self._turns.denied(turn, tool, str(request.get("tool_use_id") or ""), detail, now_s)
        else:
            yield ApprovalDenied(tool, detail)

    def _permission_denied(self, frame: Frame, now_s: float) -> Iterator[Output]:
        turn = self._turns.owner_of(frame)
        detail = str(frame.decision_reason or "")
        if turn is None:
            yield Lifecycle("background turn", f"denied {frame.tool_name}: {detail}")
        else:
            yield from self._turns.denied(turn, frame.tool_name, frame.tool_use_id, detail, now_s)

    # --- notices -------------------------------------------------------------------------------------------------------

    def _rate_limit_event(self, frame: Frame, now_s: float) -> Iterator[Output]:
        yield from mapping.rate_limits(frame)

    def _status(self, frame: Frame, now_s: float) -> Iterator[Output]:
        if isinstance(frame.permission_mode, str) and self._phase is Phase.READY:
            yield from self._turns.mode_told(frame.permission_mode, now_s)

    def _api_retry(self, frame: Frame, now_s: float) -> Iterator[Output]:
        if (turn := self._turns.owner_of(frame)) is not None:
            mapping.note_wait(turn, frame)
        yield mapping.retry_notice(frame)

    def _compact_boundary(self, frame: Frame, now_s: float) -> Iterator[Output]:
        yield mapping.compaction(frame)

    def _conversation_reset(self, frame: Frame, now_s: float) -> Iterator[Output]:
        """The conversation begins anew; its id comes with the next `init` (`new_conversation_id` is another one)."""
        yield Lifecycle("conversation reset", str(frame.trigger or ""))

    def _informational(self, frame: Frame, now_s: float) -> Iterator[Output]:
        yield Lifecycle("notice", str(frame.content or ""))

    def _model_fallback(self, frame: Frame, now_s: float) -> Iterator[Output]:
        yield Lifecycle("model fallback", f"{frame.original_model} to {frame.fallback_model}")

    def _background_tasks(self, frame: Frame, now_s: float) -> Iterator[Output]:
        yield mapping.background_tasks(frame)

    def _task(self, frame: Frame, now_s: float) -> Iterator[Output]:
        yield Lifecycle("task", f"{frame.subtype.removeprefix('task_')}: {frame.summary or frame.description or ''}")


def _raw(line: bytes) -> RawOutput:
    return RawOutput(line.decode("utf-8", "replace"))


def _credential(facts: dict[str, Any]) -> str:
    """Return what the handshake says of who pays: the key's source, else the token's, and the API."""
    given = facts.get("account")
    account = given if isinstance(given, dict) else {}
    sources = [account.get("apiKeySource"), account.get("tokenSource")]
    named = [source for source in sources if isinstance(source, str) and source != "none"]
    return f"{named[0] if named else 'none'} ({account.get('apiProvider') or 'unknown provider'})"
