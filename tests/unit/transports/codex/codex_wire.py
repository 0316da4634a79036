"""Frames as the server writes them, a codec with a clock in hand, and recordings played into it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from greenroom.model import (
    ApprovalPolicy,
    ConversationSpec,
    NativeMode,
    NativePermissions,
    OutputSchema,
    ProviderUsage,
    StdioMcpServer,
    TurnRequest,
)
from greenroom.policy.commands import How
from greenroom.transports.base import Addressed, Attempt, AttemptEnded, Flags, LaunchSpec, Output, ProcessExit, Ready, Write
from greenroom.transports.codex.config import CodecConfig
from greenroom.transports.codex.link import CodexLinkCodec

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures" / "codex"
VERSIONS = ("163", "171")
T1, T2 = "thread-1", "thread-2"
R1, R2, R3 = "receipt-1", "receipt-2", "receipt-3"
S1, S2 = "steer-1", "steer-2"

_ECHO = {
    NativeMode.BYPASS: ("dangerFullAccess", "never"),
    NativeMode.READ_ONLY: ("readOnly", "on-request"),
    NativeMode.WORKSPACE_WRITE: ("workspaceWrite", "on-request"),
    NativeMode.ASK: ("dangerFullAccess", "untrusted"),
}


def launch(
    mode: NativeMode = NativeMode.BYPASS,
    approvals: ApprovalPolicy = ApprovalPolicy.DENY,
    *,
    resume: str | None = None,
    model: str | None = None,
    effort: str | None = None,
    roots: tuple[str, ...] = (),
    network: bool = False,
    servers: tuple[StdioMcpServer, ...] = (),
    previous: ProviderUsage | None = None,
    after_death: bool = False,
    mark: str = "r/h/2",
) -> LaunchSpec:
    spec = ConversationSpec(
        cwd=pathlib.Path("/project"),
        permissions=NativePermissions(mode, roots, network),
        approvals=approvals,
        model=model,
        reasoning_effort=effort,
    )
    flags = Flags(key=None, mcp_servers=servers)
    return LaunchSpec(spec=spec, flags=flags, incarnation=1, mark=mark, resume_id=resume, previous_usage=previous, after_death=after_death)


def attempt(receipt: str = R1, prompt: str = "prompt", **fields: Any) -> Attempt:
    request = fields.pop("request", None) or TurnRequest(prompt)
    turn_id = fields.pop("turn_id", f"turn of {receipt}")
    return Attempt(turn_id=turn_id, request=request, how=fields.pop("how", How.PROMPT), receipt=receipt, **fields)


def opened(thread: str = T1, mode: NativeMode = NativeMode.BYPASS, **fields: Any) -> dict[str, Any]:
    sandbox, approvals = _ECHO[mode]
    row = {"id": thread, "status": {"type": "idle"}, "turns": []}
    base = {
        "thread": row,
        "model": "m",
        "modelProvider": "p",
        "sandbox": {"type": sandbox},
        "approvalPolicy": approvals,
        "reasoningEffort": None,
    }
    return {**base, **fields}


def past(*turns: dict[str, Any], thread: str = T1, **fields: Any) -> dict[str, Any]:
    """The answer to a resume, `turns` with the newest first."""
    return opened(thread, initialTurnsPage={"data": list(turns)}, **fields)


def old_turn(receipt: str, status: str = "completed", prompt: str = "prompt", turn: str = "old") -> dict[str, Any]:
    return {"id": turn, "status": status, "items": [user_item(receipt, prompt)]}


def user_item(receipt: str, prompt: str = "prompt") -> dict[str, Any]:
    return {"type": "userMessage", "id": f"u-{receipt}", "clientId": receipt, "content": [{"type": "text", "text": prompt}]}


def note(method: str, thread: str = T1, **fields: Any) -> dict[str, Any]:
    return {"method": method, "params": {"threadId": thread, **fields}}


def begins(turn: str, thread: str = T1) -> dict[str, Any]:
    return note("turn/started", thread, turn={"id": turn, "status": "inProgress"})


def item(turn: str, row: dict[str, Any], thread: str = T1, *, done: bool = True) -> dict[str, Any]:
    return note("item/completed" if done else "item/started", thread, turnId=turn, item=row)


def took(turn: str, receipt: str = R1, prompt: str = "prompt", thread: str = T1) -> dict[str, Any]:
    return item(turn, user_item(receipt, prompt), thread, done=False)


def says(turn: str, text: str, thread: str = T1, **fields: Any) -> dict[str, Any]:
    return item(turn, {"type": "agentMessage", "id": f"m-{text}", "text": text, **fields}, thread)


def command(turn: str, item_id: str = "c1", *, done: bool = False, thread: str = T1, **fields: Any) -> dict[str, Any]:
    row = {"type": "commandExecution", "id": item_id, "command": "ls", "cwd": "/project", "status": "inProgress", **fields}
    return item(turn, row, thread, done=done)


def ends(turn: str, status: str = "completed", text: str | None = None, thread: str = T1, error: Any = None) -> dict[str, Any]:
    items = [] if text is None else [{"type": "agentMessage", "id": "m", "text": text}]
    return note("turn/completed", thread, turn={"id": turn, "status": status, "items": items, "error": error, "durationMs": 7})


def total(turn: str, tokens_in: int, cached: int = 0, out: int = 0, *, thread: str = T1, last: int = 100) -> dict[str, Any]:
    row = {
        "inputTokens": tokens_in,
        "cachedInputTokens": cached,
        "cacheWriteInputTokens": 0,
        "outputTokens": out,
        "reasoningOutputTokens": 0,
    }
    return note("thread/tokenUsage/updated", thread, turnId=turn, tokenUsage={"total": row, "last": {"inputTokens": last}})


def asks(method: str, request_id: Any = 0, thread: str = T1, **fields: Any) -> dict[str, Any]:
    return {"method": method, "id": request_id, "params": {"threadId": thread, "turnId": "t1", "itemId": "c1", **fields}}


def limits(used: float, **fields: Any) -> dict[str, Any]:
    window = {"usedPercent": used, "windowDurationMins": 300, "resetsAt": 1_796_061_843}
    return {
        "method": "account/rateLimits/updated",
        "params": {"rateLimits": {"limitId": "codex", "primary": window, "secondary": None, **fields}},
    }


class Server:
    """A codec and the time. Every call returns what follows from it, and keeps it in `out`."""

    def __init__(self, **config: Any) -> None:
        self.codec = CodexLinkCodec(CodecConfig(marks="r/h/1", **config))
        self.now_s = 100.0
        self.out: list[Output] = []

    def keep(self, outputs: list[Output] | None) -> list[Output]:
        self.out += outputs or []
        return list(outputs or [])

    def open(self) -> list[Output]:
        return self.keep(self.codec.opened(self.now_s))

    def ready(self) -> Server:
        self.open()
        self.reply("initialize", {"userAgent": "x"})
        return self

    def attach(self, key: str = "a", spec: LaunchSpec | None = None) -> list[Output]:
        return self.keep(self.codec.attach(key, spec or launch(), self.now_s))

    def attached(self, key: str = "a", thread: str = T1, spec: LaunchSpec | None = None, reply: Any = None) -> Server:
        if not self.of(Ready, bare=True):
            self.ready()
        spec = spec or launch()
        self.attach(key, spec)
        method = "thread/start" if spec.resume_id is None else "thread/resume"
        self.reply(method, reply or opened(thread, spec.spec.permissions.mode, initialTurnsPage={"data": []}))
        assert self.of(Ready, key=key)
        return self

    def start(self, receipt: str = R1, key: str = "a", **fields: Any) -> list[Output]:
        return self.keep(self.codec.start_turn(key, attempt(receipt, **fields), self.now_s))

    def running(self, turn: str = "t1", receipt: str = R1, key: str = "a", thread: str = T1, **fields: Any) -> Server:
        self.start(receipt, key, **fields)
        self.reply("turn/start", {"turn": {"id": turn}})
        self.feed(begins(turn, thread), took(turn, receipt, thread=thread))
        return self

    def steer(self, text: str = "steer", steer_id: str = S1, key: str = "a") -> list[Output] | None:
        outputs = self.codec.steer(key, text, steer_id, self.now_s)
        self.keep(outputs)
        return outputs

    def interrupt(self, key: str = "a") -> list[Output]:
        return self.keep(self.codec.interrupt(key, self.now_s))

    def detach(self, key: str = "a") -> list[Output]:
        return self.keep(self.codec.detach(key, self.now_s))

    def exit(self, returncode: int | None = None, signal: int | None = None, stderr: str = "") -> list[Output]:
        return self.keep(self.codec.exited(ProcessExit(returncode=returncode, signal=signal), stderr, self.now_s))

    def feed(self, *frames: dict[str, Any] | bytes) -> list[Output]:
        outputs: list[Output] = []
        for frame in frames:
            line = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
            outputs += self.keep(self.codec.receive(line, self.now_s))
        return outputs

    def reply(self, method: str, result: Any = None, *, error: str | None = None, code: int = -32600) -> list[Output]:
        """Answer the last request of that kind."""
        request_id = self.asked(method)[-1]["id"]
        answer = {"result": result or {}} if error is None else {"error": {"code": code, "message": error}}
        return self.feed({"id": request_id, **answer})

    def later(self, seconds: float) -> list[Output]:
        """Let time pass, ticking whenever the codec asks for it."""
        end_s, outputs = self.now_s + seconds, []
        for _ in range(200):
            due_s = self.codec.deadline_s
            if due_s is None or due_s > end_s:
                break
            self.now_s = max(self.now_s, due_s)
            outputs += self.keep(self.codec.tick(self.now_s))
        else:
            raise AssertionError("the codec asks for a tick again and again")
        self.now_s = end_s
        return outputs

    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for write in self.out if isinstance(write, Write) for line in write.data.splitlines()]

    def asked(self, method: str) -> list[dict[str, Any]]:
        return [frame for frame in self.written() if frame.get("method") == method]

    def answered(self) -> list[dict[str, Any]]:
        return [frame for frame in self.written() if "method" not in frame]

    def of(self, *kinds: type, key: str | None = None, bare: bool = False) -> list[Any]:
        """Return what came of these kinds: for `key`, for anybody (None), or without an address."""
        if bare:
            return [output for output in self.out if isinstance(output, kinds)]
        rows = [output for output in self.out if isinstance(output, Addressed)]
        return [row.output for row in rows if isinstance(row.output, kinds) and key in {None, row.key}]

    def ends(self, key: str | None = None) -> list[AttemptEnded]:
        return self.of(AttemptEnded, key=key)

    @property
    def ended(self) -> AttemptEnded:
        (end,) = self.ends()
        return end


class Recording(Server):
    """A recording of a real server, played: what was done to the codec then is done again, what the server wrote is fed to it.

    `differences`: where the codec writes something else than it wrote then, the two lists of methods.
    """

    def __init__(self, name: str, version: str, **config: Any) -> None:
        super().__init__(**{"interrupt_grace_s": 5.0, **config})
        self._rows = [json.loads(line) for line in (FIXTURES / f"{name}_{version}.jsonl").read_text().splitlines()]

    def __len__(self) -> int:
        return len(self._rows)

    def play(self, rows: int | None = None) -> Recording:
        for _ in self.steps(rows):
            pass
        return self

    def steps(self, rows: int | None = None) -> Iterator[list[Output]]:
        for row in self._rows[:rows]:
            self.now_s += 0.01
            if row["d"] == "act":
                yield self._act(*row["f"][:-1], **row["f"][-1])
            elif row["d"] == "out":
                yield self.feed(row["f"])

    @property
    def recorded(self) -> list[dict[str, Any]]:
        return [row["f"] for row in self._rows if row["d"] == "in"]

    def _act(self, name: str, key: str = "", *rest: str, **options: Any) -> list[Output]:
        if name == "attach":
            return self.attach(key, _recorded_launch(**options))
        if name == "start":
            schema, how = options.pop("schema", None), How(options.pop("how", "prompt"))
            request = TurnRequest(
                rest[1], output_schema=None if schema is None else OutputSchema(schema), reasoning_effort=options.pop("effort", None)
            )
            return self.start(rest[0], key, request=request, how=how, **options)
        if name == "steer":
            return self.steer(rest[0], rest[1], key) or []
        return {"opened": self.open, "interrupt": lambda: self.interrupt(key), "detach": lambda: self.detach(key)}[name]()


def _recorded_launch(
    mode: str = "bypass", approvals: str = "deny", resume: str | None = None, cut: str | None = None, death: bool = False
) -> LaunchSpec:
    return launch(NativeMode(mode), ApprovalPolicy(approvals), resume=resume, after_death=death)
