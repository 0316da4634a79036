"""A scripted Anthropic Messages endpoint on 127.0.0.1, with which the real Claude Code runs without an account or the internet.

    with ModelServer() as server:
        subprocess.run([claude, "--print", "SAY hello"], env=server.env(home))
        server.seen(0)          # what the model was shown in the first request

It answers by the last user text, whose lines are directives like those of the scripted CLI; the rest of a prompt comes after each tool
result. It keeps no conversation (only how often each ERROR was given, over all of them): what was done already is read from the
request, so it goes on rightly after a resume.

    SAY text   THINK text   SLOW n interval_s [text]   SLEEP s   BASH command   WRITE path text   TOOL name {json}   STRUCTURED json
    HANG       CUT          TOO_LONG                   ERROR status type message [times] [retry_after_s]

`Continue from where you left off.` and an empty text go on with the prompt before; another text without directives is answered
`echo: <text>`. A callable given as `script` decides instead. Needs the extra `modelserver`. The server runs on a thread of its own;
all public methods may be called from any thread. As a command, `python -m greenroom.testing.model_server` serves until it is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import re
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import attrs
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>|\Z)", re.DOTALL)
_STEERED = re.compile(r"The user sent a new message while you were working:\n(.*?)\n\n(?:This is how|IMPORTANT: ).*", re.DOTALL)
_WORDS = frozenset(("SAY", "THINK", "SLOW", "SLEEP", "BASH", "WRITE", "TOOL", "STRUCTURED", "HANG", "CUT", "TOO_LONG", "ERROR"))
_TOOL_WORDS = frozenset(("BASH", "WRITE", "TOOL", "STRUCTURED"))
_CONTINUE = "Continue from where you left off"
_NO_PROMPTS = frozenset(("", "(no content)", "Tool loaded."))
_STOP_BOUND_S = 2.0
Block = dict[str, Any]
Step = tuple[str, str]


class _CutError(Exception):
    """Thrown out of an answer, so that the server drops the connection."""


@attrs.frozen
class Pieces:
    """A text block that is streamed piece by piece, with `interval_s` before each."""

    texts: tuple[str, ...]
    interval_s: float = 0.0


@attrs.frozen(kw_only=True)
class Reply:
    """One answer of the model. `content` are blocks of the Messages API, or `Pieces`; a `status` other than 200 makes it an error.

    `delay_s` passes before the first byte; `hang` never ends, `cut` drops the connection after the beginning; `headers` go with an error.
    """

    content: tuple[Block | Pieces, ...] = ()
    delay_s: float = 0.0
    status: int = 200
    error_type: str = "api_error"
    message: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    hang: bool = False
    cut: bool = False

    @property
    def stop_reason(self) -> str:
        """`tool_use` if a tool is called, else `end_turn`."""
        return "tool_use" if any(block["type"] == "tool_use" for block in self.blocks()) else "end_turn"

    @property
    def output_tokens(self) -> int:
        """The number of words said: usage is fixed and simple, so that a test can add it up."""
        said = " ".join(str(block.get("text", block.get("thinking", ""))) for block in self.blocks())
        return max(1, len(said.split()))

    def blocks(self) -> tuple[Block, ...]:
        """The content as blocks of the Messages API."""
        return tuple(text_block("".join(block.texts)) if isinstance(block, Pieces) else block for block in self.content)


def text_block(text: str) -> Block:
    """Return a text block."""
    return {"type": "text", "text": text}


def tool_block(name: str, tool_input: Mapping[str, Any]) -> Block:
    """Return a tool call with a fresh id."""
    return {"type": "tool_use", "id": f"toolu_{secrets.token_hex(10)}", "name": name, "input": dict(tool_input)}


Script = Callable[[dict[str, Any]], Reply]


# --- the rules: what is answered to a request -------------------------------------------------------------------------------


class Rules:
    """The default script: plays the directives of the last prompt. Keeps only how often an ERROR was given. One thread at a time."""

    def __init__(self) -> None:
        self._errors: dict[Step, int] = {}

    def __call__(self, body: dict[str, Any]) -> Reply:
        """Answer a request."""
        steps, calls = _position(body.get("messages", []))
        chunk = _chunks(steps)[calls:][:1]
        return self._reply(chunk[0] if chunk else [("SAY", "done")])

    def _reply(self, chunk: list[Step]) -> Reply:
        reply = Reply()
        for word, rest in chunk:
            if word == "ERROR":
                error = self._error((word, rest))
                if error:
                    return error
            else:
                reply = _extended(reply, word, rest)
        return reply if reply.blocks() or reply.status != 200 or reply.hang or reply.cut else _extended(reply, "SAY", "done")  # noqa: PLR2004

    def _error(self, step: Step) -> Reply | None:
        status, kind, message = _split(step[1], 3)
        found = re.fullmatch(r"(.*?)(?:\s+(\d+))?(?:\s+(\d+))?", message, re.DOTALL)
        text, times, retry_after = found.groups() if found else (message, None, None)
        self._errors[step] = self._errors.get(step, 0) + 1
        if times is not None and self._errors[step] > int(times):
            return None
        headers = {"retry-after": retry_after} if retry_after else {}
        return Reply(status=int(status), error_type=kind, message=text, headers=headers)


def _extended(reply: Reply, word: str, rest: str) -> Reply:
    match word:
        case "SAY":
            return _with(reply, text_block(rest.replace("\\n", "\n")))
        case "THINK":
            return _with(reply, {"type": "thinking", "thinking": rest, "signature": "c2ln"})
        case "SLOW":
            count, interval_s, text = _split(rest, 3)
            pieces = tuple(f"{' ' if number else ''}{text or 'w'}{number}" for number in range(int(count)))
            return _with(reply, Pieces(pieces, float(interval_s)))
        case "SLEEP":
            return attrs.evolve(reply, delay_s=float(rest))
        case "HANG":
            return attrs.evolve(reply, hang=True)
        case "CUT":
            return attrs.evolve(reply, cut=True)
        case "TOO_LONG":
            return Reply(status=400, error_type="invalid_request_error", message="prompt is too long: 250000 tokens > 200000 maximum")
        case _:
            return _with(reply, _call(word, rest))


def _call(word: str, rest: str) -> Block:
    match word:
        case "BASH":
            return tool_block("Bash", {"command": rest, "description": "run it"})
        case "WRITE":
            path, text = _split(rest, 2)
            return tool_block("Write", {"file_path": path, "content": text.replace("\\n", "\n")})
        case "STRUCTURED":
            return tool_block("StructuredOutput", json.loads(rest))
        case _:
            name, tool_input = _split(rest, 2)
            return tool_block(name, json.loads(tool_input or "{}"))


def _with(reply: Reply, block: Block | Pieces) -> Reply:
    return attrs.evolve(reply, content=(*reply.content, block))


def _split(rest: str, count: int) -> list[str]:
    parts = rest.split(None, count - 1)
    return parts + [""] * (count - len(parts))


def _steps(text: str) -> list[Step]:
    parts = (line.strip().partition(" ") for line in text.splitlines())
    return [(word, rest.strip()) for word, _, rest in parts if word in _WORDS]


def _chunks(steps: list[Step]) -> list[list[Step]]:
    """Split the directives into answers: each ends with its tool call, the calls after one another in one prompt."""
    chunks: list[list[Step]] = [[]]
    for step in steps:
        chunks[-1].append(step)
        if step[0] in _TOOL_WORDS:
            chunks.append([])
    return chunks if chunks[-1] else chunks[:-1]


def _position(messages: list[dict[str, Any]]) -> tuple[list[Step], int]:
    """Return the directives that are being played and how many tools were called for them."""
    steps: list[Step] = [("SAY", "done")]
    calls = 0
    for message in messages:
        for block in _blocks(message):
            if message.get("role") == "assistant":
                calls += block.get("type") == "tool_use"
            elif message.get("role") in ("user", "system") and block.get("type") == "text":
                found = _prompt(block["text"], system=message["role"] == "system")
                if found:
                    steps, calls = found, 0
    return steps, calls


def _prompt(text: str, *, system: bool) -> list[Step] | None:
    """Return the directives of a text, its echo, or None if it is no prompt: a reminder, a continuation, nothing."""
    text = _STEERED.sub(r"\1", _REMINDER.sub("", text)).strip()
    steps = _steps(text)
    if steps or system or text in _NO_PROMPTS or text.startswith((_CONTINUE, "[Request interrupted")):
        return steps or None
    return [("SAY", "echo: " + text)]


def _blocks(message: dict[str, Any]) -> list[Block]:
    content = message.get("content", [])
    return [text_block(content)] if isinstance(content, str) else [block for block in content if isinstance(block, dict)]


# --- the server --------------------------------------------------------------------------------------------------------------


class ModelServer:
    """The server. Starts when it is entered, stops within 2 s when it is left, and leaves no thread.

    `script` answers each request (it gets the parsed body and returns a `Reply`; called on the server's thread, so it must not block).
    `requests` holds the parsed bodies of all message requests so far, `failures` what the script raised (answered with status 500).
    """

    def __init__(self, *, script: Script | None = None, port: int = 0) -> None:
        self.script = script or Rules()
        self.requests: list[dict[str, Any]] = []
        self.failures: list[Exception] = []
        self._port = port
        self._arrived = threading.Condition()
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop it."""
        self.stop()

    def start(self) -> None:
        """Listen on 127.0.0.1 and serve on a thread; returns once connections are accepted. Raises OSError if the port is taken."""
        self._socket = socket.create_server(("127.0.0.1", self._port))
        self._port = self._socket.getsockname()[1]
        config = uvicorn.Config(self._app(), log_config=None, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="model-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop within 2 s, whatever still hangs. Idempotent."""
        if self._server is None or self._thread is None or self._socket is None:
            return
        self._server.should_exit = True
        self._thread.join(_STOP_BOUND_S)
        self._socket.close()
        self._server = self._thread = None

    @property
    def url(self) -> str:
        """The base URL, for ANTHROPIC_BASE_URL."""
        return f"http://127.0.0.1:{self._port}"

    def env(self, home: pathlib.Path | str) -> dict[str, str]:
        """Return a complete and clean environment for the real CLI: nothing of the caller's but PATH; `home` is made."""
        home = pathlib.Path(home)
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        quiet = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING")
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        access = {"ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_API_KEY": "sk-ant-fake", "IS_SANDBOX": "1"}
        return {**base, **access, **dict.fromkeys(quiet, "1"), "CLAUDE_CODE_TMPDIR": str(home / "tmp")}

    def seen(self, index: int) -> tuple[tuple[str, str], ...]:
        """Return what the model was shown in request `index`: (role, text), ("tool_use", "Name {json}"), ("tool_result", text).

        Reminders that Claude Code adds and messages of the role `system` are left out.
        """
        messages = [message for message in self.requests[index].get("messages", []) if message.get("role") != "system"]
        shown = (_shown(message["role"], block) for message in messages for block in _blocks(message))
        return tuple(one for one in shown if one is not None)

    def wait_for_requests(self, count: int, timeout: float = 10.0) -> bool:
        """Wait until at least `count` message requests have come; False after `timeout` seconds."""
        with self._arrived:
            return self._arrived.wait_for(lambda: len(self.requests) >= count, timeout)

    def _answer(self, body: dict[str, Any]) -> Reply:
        try:
            return self.script(body)
        except Exception as error:  # noqa: BLE001 - a script's mistake must not look like a model's silence
            self.failures.append(error)
            return Reply(status=500, message=f"the model server's script failed: {error!r}")

    def _serve(self) -> None:
        assert self._server is not None  # noqa: S101 - set before the thread starts
        asyncio.run(self._server.serve(sockets=[self._socket] if self._socket else None))

    def _app(self) -> Starlette:
        async def ok(_: Request) -> Response:
            return PlainTextResponse("ok")

        async def count(_: Request) -> Response:
            return JSONResponse({"input_tokens": 100})

        routes = [Route("/", ok, methods=["GET", "HEAD"]), Route("/v1/messages/count_tokens", count, methods=["POST"])]
        return Starlette(routes=[*routes, Route("/v1/messages", self._messages, methods=["POST"])])

    async def _messages(self, request: Request) -> Response:
        body = await request.json()
        with self._arrived:
            self.requests.append(body)
            self._arrived.notify_all()
        reply = self._answer(body)
        await asyncio.sleep(reply.delay_s)
        if reply.hang and not reply.blocks():
            await asyncio.Event().wait()
        if reply.status != 200:  # noqa: PLR2004
            return _refusal(reply)
        if not body.get("stream"):
            return _whole(reply, body)
        return StreamingResponse(_events(reply, body), media_type="text/event-stream", headers=_request_id())


def _shown(role: str, block: Block) -> tuple[str, str] | None:
    match block.get("type"):
        case "text":
            text = _REMINDER.sub("", block["text"]).strip("\n")
            return (role, text) if text.strip() else None
        case "tool_use":
            return ("tool_use", f"{block['name']} {json.dumps(block['input'])}")
        case "tool_result":
            content = block.get("content", "")
            return ("tool_result", content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content))
        case _:
            return None


def _request_id() -> dict[str, str]:
    return {"request-id": f"req_{secrets.token_hex(8)}"}


def _refusal(reply: Reply) -> Response:
    error = {"type": "error", "error": {"type": reply.error_type, "message": reply.message}}
    return JSONResponse(error, status_code=reply.status, headers={**_request_id(), **reply.headers})


def _whole(reply: Reply, body: dict[str, Any]) -> Response:
    if reply.cut:
        return StreamingResponse(_half(), media_type="application/json", headers={**_request_id(), "content-length": "1000"})
    message = _message(body, list(reply.blocks()), reply.stop_reason, reply.output_tokens)
    return JSONResponse(message, headers=_request_id())


def _message(body: dict[str, Any], content: list[Block], stop_reason: str | None, output_tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": 100, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30, "output_tokens": output_tokens}
    head = {"id": f"msg_{secrets.token_hex(10)}", "type": "message", "role": "assistant", "model": body.get("model", "")}
    return {**head, "content": content, "stop_reason": stop_reason, "stop_sequence": None, "usage": usage}


async def _half() -> AsyncIterator[bytes]:
    yield b"{"
    raise _CutError


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def _events(reply: Reply, body: dict[str, Any]) -> AsyncIterator[bytes]:
    """Stream an answer: each block whole, pieces with their pauses."""
    yield _event("message_start", message=_message(body, [], None, 1))
    if reply.cut:
        raise _CutError
    for index, block in enumerate(reply.content):
        async for event in _piece_events(index, block) if isinstance(block, Pieces) else _block_events(index, block):
            yield event
    if reply.hang:
        await asyncio.Event().wait()
    delta = {"stop_reason": reply.stop_reason, "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": reply.output_tokens})
    yield _event("message_stop")


async def _piece_events(index: int, pieces: Pieces) -> AsyncIterator[bytes]:
    yield _event("content_block_start", index=index, content_block=text_block(""))
    for text in pieces.texts:
        await asyncio.sleep(pieces.interval_s)
        yield _event("content_block_delta", index=index, delta={"type": "text_delta", "text": text})
    yield _event("content_block_stop", index=index)


async def _block_events(index: int, block: Block) -> AsyncIterator[bytes]:
    empty, deltas = _opened(block)
    yield _event("content_block_start", index=index, content_block=empty)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _opened(block: Block) -> tuple[Block, list[Block]]:
    """Return a block as it begins, and the deltas that fill it."""
    match block["type"]:
        case "text":
            return text_block(""), [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {"type": "thinking", "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                signature,
            ]
        case _:
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def main() -> None:
    """Serve until stopped; print the URL and the variables with which the real CLI runs against it."""
    parser = argparse.ArgumentParser(description="a scripted model server on 127.0.0.1 for the real Claude Code")
    parser.add_argument("--port", type=int, default=0, help="0 (the default): any free port")
    parser.add_argument("--home", type=pathlib.Path, default=pathlib.Path("claude-home"), help="a fresh HOME for the CLI")
    options = parser.parse_args()
    with ModelServer(port=options.port) as server:
        print(server.url)  # noqa: T201 - a command
        for name, value in server.env(options.home.resolve()).items():
            print(f"{name}={value}", flush=True)  # noqa: T201 - a command
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
