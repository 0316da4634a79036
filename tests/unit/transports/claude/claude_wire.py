"""Frames as the CLI writes them, a codec with a clock in hand, and recordings played into it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from greenroom.model import ApprovalPolicy, TurnRequest
from greenroom.policy.commands import How
from greenroom.transports.base import Attempt, AttemptEnded, Output, ProcessExit, Ready, Write
from greenroom.transports.claude.codec import ClaudeCodec
from greenroom.transports.claude.config import CodecConfig

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures" / "claude"
SESSION = "11111111-0000-4000-8000-000000000001"
U1, U2, U3 = (f"0000000{n}-aaaa-4aaa-8aaa-aaaaaaaaaaaa" for n in (1, 2, 3))
S1, S2 = (f"0000000{n}-bbbb-4bbb-8bbb-bbbbbbbbbbbb" for n in (1, 2))


def model_usage(tokens_in: int = 100, tokens_out: int = 8, cost: float = 0.5) -> dict[str, Any]:
    return {"m": {"inputTokens": tokens_in, "outputTokens": tokens_out, "costUSD": cost, "costBasis": "list"}}


def init(*uuids: str, session: str = SESSION, **fields: Any) -> dict[str, Any]:
    named = {"user_message_uuids": list(uuids)} if uuids else {}
    return {"type": "system", "subtype": "init", "session_id": session, **named, **fields}


def life(uuid: str, state: str) -> dict[str, Any]:
    return {"type": "command_lifecycle", "command_uuid": uuid, "state": state, "session_id": SESSION}


def echo(uuid: str, text: str = "prompt") -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": text}, "uuid": uuid, "isReplay": True, "parent_tool_use_id": None}


def says(text: str, *uuids: str, **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 100, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 20, "output_tokens": 1}
    message = {"id": "msg_1", "model": "m", "role": "assistant", "content": [{"type": "text", "text": text}], "usage": usage}
    named = {"user_message_uuids": list(uuids)} if uuids else {}
    return {"message": message, "parent_tool_use_id": None, "session_id": SESSION, **named, **fields, "type": "assistant"}


def calls(tool: str, tool_id: str = "tool-1", arguments: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": tool_id, "name": tool, "input": arguments or {}}
    message = {"id": "msg_2", "model": "m", "role": "assistant", "content": [block]}
    return {"type": "assistant", "message": message, "parent_tool_use_id": None, **fields}


def result(*uuids: str, text: str = "answer", since: Any = None, **fields: Any) -> dict[str, Any]:
    named = {"user_message_uuids": list(uuids)} if uuids else {}
    base = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": text,
        "terminal_reason": "completed",
        "stop_reason": "end_turn",
        "session_id": SESSION,
        "num_turns": 1,
        "duration_ms": 7,
        "total_cost_usd": 0.5,
        "modelUsage": model_usage(),
        "model_usage_since_last_result": model_usage() if since is None else since,
        "permission_denials": [],
    }
    return {**base, **named, **fields}


def aborted(*uuids: str, **fields: Any) -> dict[str, Any]:
    ended = {"subtype": "error_during_execution", "is_error": True, "terminal_reason": "aborted_tools", "result": None, "errors": ["x"]}
    return result(*uuids, **{**ended, **fields})


def background_result(**fields: Any) -> dict[str, Any]:
    return result(text="background", origin={"kind": "task-notification"}, **fields)


def api_error(status: int = 529, text: str = "API Error: 529 Overloaded.") -> dict[str, Any]:
    return {**says(text, error="server_error", is_api_error_message=True, api_error_status=status), "message": _synthetic(text)}


def _synthetic(text: str) -> dict[str, Any]:
    return {"id": "x", "model": "<synthetic>", "role": "assistant", "content": [{"type": "text", "text": text}]}


def failed_result(*uuids: str, status: int = 529, text: str = "API Error: 529 Overloaded.", **fields: Any) -> dict[str, Any]:
    ended = {"is_error": True, "terminal_reason": "api_error", "stop_reason": "stop_sequence", "api_error_status": status}
    return result(*uuids, text=text, since={}, **{**ended, **fields})


def attempt(receipt: str = U1, prompt: str = "prompt", **fields: Any) -> Attempt:
    request = fields.pop("request", None) or TurnRequest(prompt)
    return Attempt(turn_id="turn-1", request=request, how=fields.pop("how", How.PROMPT), receipt=receipt, **fields)


class Cli:
    """A codec and the time. Every call returns what follows from it, and keeps it in `out`."""

    def __init__(self, **config: Any) -> None:
        self.codec = ClaudeCodec(CodecConfig(**config))
        self.now_s = 100.0
        self.out: list[Output] = []

    def _keep(self, outputs: list[Output] | None) -> list[Output]:
        self.out += outputs or []
        return list(outputs or [])

    def open(self) -> list[Output]:
        return self._keep(self.codec.opened(self.now_s))

    def ready(self) -> Cli:
        self.open()
        self.answer("initialize", account={"apiKeySource": "ANTHROPIC_API_KEY", "apiProvider": "firstParty"})
        assert self.of(Ready)
        return self

    def feed(self, *frames: dict[str, Any] | bytes) -> list[Output]:
        outputs: list[Output] = []
        for frame in frames:
            line = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
            outputs += self._keep(self.codec.receive(line, self.now_s))
        return outputs

    def start(self, receipt: str = U1, **fields: Any) -> list[Output]:
        return self._keep(self.codec.start_turn(attempt(receipt, **fields), self.now_s))

    def running(self, receipt: str = U1, **fields: Any) -> Cli:
        self.start(receipt, **fields)
        self.feed(life(receipt, "queued"), life(receipt, "started"), init(receipt))
        return self

    def steer(self, text: str = "steer", uuid: str = S1) -> list[Output] | None:
        outputs = self.codec.steer(text, uuid, self.now_s)
        self._keep(outputs)
        return outputs

    def interrupt(self) -> list[Output]:
        return self._keep(self.codec.interrupt(self.now_s))

    def oversized(self, size: int = 40_000_000) -> list[Output]:
        return self._keep(self.codec.oversized(size, self.now_s))

    def exit(self, returncode: int | None = None, signal: int | None = None, stderr: str = "") -> list[Output]:
        return self._keep(self.codec.exited(ProcessExit(returncode=returncode, signal=signal), stderr, self.now_s))

    def later(self, seconds: float) -> list[Output]:
        """Let time pass, ticking whenever the codec asks for it."""
        end_s, outputs = self.now_s + seconds, []
        for _ in range(100):
            due_s = self.codec.deadline_s
            if due_s is None or due_s > end_s:
                break
            self.now_s = max(self.now_s, due_s)
            outputs += self._keep(self.codec.tick(self.now_s))
        else:
            raise AssertionError("the codec asks for a tick again and again")
        self.now_s = end_s
        return outputs

    def answer(self, subtype: str, **response: Any) -> list[Output]:
        """Answer the last control request of that kind."""
        request_id = [frame["request_id"] for frame in self.written("control_request") if frame["request"]["subtype"] == subtype][-1]
        return self.feed(control_response(request_id, **response))

    def written(self, type_: str) -> list[dict[str, Any]]:
        return [frame for frame in map(json.loads, b"".join(item.data for item in self.of(Write)).splitlines()) if frame["type"] == type_]

    def requests(self) -> list[str]:
        return [frame["request"]["subtype"] for frame in self.written("control_request")][1:]

    def of(self, *kinds: type) -> list[Any]:
        return [item for item in self.out if isinstance(item, kinds)]

    @property
    def ended(self) -> AttemptEnded:
        (end,) = self.of(AttemptEnded)
        return end


def control_response(request_id: str, **response: Any) -> dict[str, Any]:
    return {"type": "control_response", "response": {"subtype": "success", "request_id": request_id, "response": response}}


class Recording(Cli):
    """A recording, played: what the driver did then is done to the codec, what the CLI wrote is fed to it.

    `name_messages`: the recorded messages had no uuid; they and the frames that answer them get one.
    """

    def __init__(self, name: str, *, name_messages: bool = False, probe: tuple[str, ...] = (), **config: Any) -> None:
        super().__init__(**config)
        self._rows = [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text().splitlines()]
        self._naming = name_messages
        self._probe = probe
        self._ids: dict[str, str] = {}
        self._count = 0
        self._current = ""

    def play(self, rows: int | None = None) -> Recording:
        for _ in self.steps(rows):
            pass
        return self

    def steps(self, rows: int | None = None) -> Iterator[list[Output]]:
        for row in self._rows[:rows]:
            self.now_s += 0.01
            yield self._driver_did(row["f"]) if row["d"] == "in" else self._cli_wrote(row["f"])

    def __len__(self) -> int:
        return len(self._rows)

    def _driver_did(self, frame: dict[str, Any]) -> list[Output]:
        if frame["type"] == "user":
            return self._message(frame)
        if frame["type"] == "control_response":
            return []
        return self._control(frame)

    def _message(self, frame: dict[str, Any]) -> list[Output]:
        content = frame["message"]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        self._count += 1
        self._current = frame.get("uuid") or f"{self._count:08}-cccc-4ccc-8ccc-cccccccccccc"
        if self.codec.sent:
            return self.steer(text, self._current) or []
        outputs = self.start(self._current, prompt=text, probe=text in self._probe)
        return outputs + (self.feed(life(self._current, "queued"), life(self._current, "started")) if self._naming else [])

    def _control(self, frame: dict[str, Any]) -> list[Output]:
        subtype = frame["request"]["subtype"]
        before = len(self.written("control_request"))
        outputs = self.interrupt() if subtype != "initialize" else [] if before else self.open()
        for written in self.written("control_request"):
            if written["request"]["subtype"] == subtype:
                self._ids[frame["request_id"]] = written["request_id"]
        return outputs

    def _cli_wrote(self, frame: dict[str, Any]) -> list[Output]:
        if frame["type"] == "control_response":
            response = frame["response"]
            response["request_id"] = self._ids.get(response["request_id"], "unknown")
        if self._naming and frame["type"] in {"result", "assistant"} and not frame.get("origin"):
            frame["user_message_uuids"] = [self._current]
        if self._naming and frame.get("subtype") == "init" and self.codec.sent:
            frame["user_message_uuids"] = [self._current]
        return self.feed(frame)

    @property
    def ends(self) -> list[AttemptEnded]:
        return self.of(AttemptEnded)


__all__ = [
    "FIXTURES",
    "S1",
    "S2",
    "SESSION",
    "U1",
    "U2",
    "U3",
    "ApprovalPolicy",
    "Cli",
    "Recording",
    "aborted",
    "api_error",
    "attempt",
    "background_result",
    "calls",
    "control_response",
    "echo",
    "failed_result",
    "init",
    "life",
    "model_usage",
    "result",
    "says",
]
