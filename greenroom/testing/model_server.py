"""A scripted model on 127.0.0.1, with which the real Claude Code and the real Codex run without an account or the internet.

    with ModelServer() as server:
        subprocess.run([claude, "--print", "SAY hello"], env=server.env(home))
        subprocess.Popen([codex, "app-server"], env=server.codex_env(home), ...)
        server.seen(0)          # what the model was shown in the first request

It speaks the Anthropic Messages API (`/v1/messages`) and the OpenAI Responses API (`/v1/responses`), and answers by the last user text,
whose lines are directives like those of the scripted CLIs; the rest of a prompt comes after each tool result. It keeps no conversation
(only how often each ERROR was given, over all of them): what was done already is read from the request, so it goes on rightly after a
resume.

    SAY text   THINK text   SLOW n interval_s [text]   SLEEP s   BASH command   WRITE path text   TOOL name {json}   STRUCTURED json
    HANG       CUT          TOO_LONG                   ERROR status type message [times] [retry_after_s]               ASK command
    FAILED type message [times]     an error within the stream, after its beginning

For Codex, BASH is a call of `exec_command` (and of `write_stdin` while it runs), WRITE one of `apply_patch` that adds a file, ASK an
`exec_command` that asks to run outside of the sandbox, TOOL `namespace/name` an MCP tool, STRUCTURED a text; `type` of an ERROR is also
its `code`. For Claude Code, ASK is BASH.

A test that waits for no clock lets a SLEEP or a SLOW be long, acts when `requests` or `pieces_sent` say so, and calls `hurry()`.

`Continue from where you left off.` and an empty text go on with the prompt before; another text without directives is answered
`echo: <text>`. A callable given as `script` decides instead. Needs the extra `modelserver`. The server runs on a thread of its own;
all public methods may be called from any thread. As a command, `python -m greenroom.testing.model_server` serves until it is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import pathlib
import socket
import threading
from types import TracebackType
from typing import Any, Self

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"the model server needs {error.name}: pip install 'greenroom[modelserver]'", name=error.name) from None

from greenroom.testing import model_messages, model_responses
from greenroom.testing.model_pace import Pace
from greenroom.testing.model_reply import Pieces, Reply, Script, text_block, tool_block
from greenroom.testing.model_rules import Rules, is_responses

__all__ = ["ModelServer", "Pieces", "Reply", "Rules", "Script", "text_block", "tool_block"]

_STOP_BOUND_S = 2.0
_CODEX_CONFIG = """\
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false
web_search = "disabled"
cli_auth_credentials_store = "file"
[analytics]
enabled = false
[feedback]
enabled = false
[otel]
exporter = "none"
[history]
persistence = "none"
[features]
apps = false
plugins = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "GREENROOM_SCRIPTED_KEY"
requires_openai_auth = false
"""


class ModelServer:
    """The server. Starts when it is entered, stops within 2 s when it is left, and leaves no thread.

    `script` answers each request (it gets the parsed body and returns a `Reply`; called on the server's thread, so it must not block).
    `requests` holds the parsed bodies of all model requests so far, `failures` what the script raised (answered with status 500).
    """

    def __init__(self, *, script: Script | None = None, port: int = 0) -> None:
        self.script = script or Rules()
        self.requests: list[dict[str, Any]] = []
        self.failures: list[Exception] = []
        self._port = port
        self._pace = Pace()
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
        # Made here: a loop that its thread made a moment later would look like a leak of the test that began meanwhile.
        loop = asyncio.new_event_loop()
        self._pace.bind(loop)
        serve = functools.partial(self._serve, self._server, loop)
        self._thread = threading.Thread(target=serve, name="model-server", daemon=True)
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
        """The base URL, for ANTHROPIC_BASE_URL; the Responses API is under `/v1` of it."""
        return f"http://127.0.0.1:{self._port}"

    def env(self, home: pathlib.Path | str) -> dict[str, str]:
        """Return a complete and clean environment for the real Claude Code: nothing of the caller's but PATH; `home` is made."""
        home = pathlib.Path(home)
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        quiet = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING")
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        access = {"ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_API_KEY": "sk-ant-fake", "IS_SANDBOX": "1"}
        return {**base, **access, **dict.fromkeys(quiet, "1"), "CLAUDE_CODE_TMPDIR": str(home / "tmp")}

    def codex_env(self, home: pathlib.Path | str, *, retries: int | None = 0, extra: str = "") -> dict[str, str]:
        """Return a complete and clean environment for the real Codex: nothing of the caller's but PATH.

        Makes `home` and a CODEX_HOME in it, and writes a config.toml with which Codex asks nobody but this server. `retries` bounds its
        own retries of a request and of a stream; None leaves Codex's (which take half a minute for a 500). `extra` is TOML, put at the end.
        """
        home = pathlib.Path(home)
        for folder in (home / "codex", home / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        bounds = "" if retries is None else f"request_max_retries = {retries}\nstream_max_retries = {retries}\n"
        config = _CODEX_CONFIG.format(url=self.url) + bounds + extra
        (home / "codex" / "config.toml").write_text(config, encoding="utf-8")
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        places = {"CODEX_HOME": str(home / "codex"), "TMPDIR": str(home / "tmp"), "NO_PROXY": "127.0.0.1,localhost"}
        return {**base, **places, "GREENROOM_SCRIPTED_KEY": "sk-fake"}

    def seen(self, index: int) -> tuple[tuple[str, str], ...]:
        """Return what the model was shown in request `index`: (role, text), ("tool_use", "Name {json}"), ("tool_result", text).

        What the CLI adds is left out: reminders and messages of the role `system` of Claude Code, instructions and context of Codex.
        """
        body = self.requests[index]
        return model_responses.seen(body) if is_responses(body) else model_messages.seen(body)

    def wait_for_requests(self, count: int, timeout: float = 10.0) -> bool:
        """Wait until at least `count` model requests have come; False after `timeout` seconds."""
        with self._arrived:
            return self._arrived.wait_for(lambda: len(self.requests) >= count, timeout)

    @property
    def pieces_sent(self) -> int:
        """How many pieces of SLOW texts have been sent so far, over all answers."""
        return self._pace.pieces_sent

    def hurry(self) -> None:
        """Let nothing be slow any more: what SLEEP and SLOW wait for comes at once, now and in later answers. HANG still hangs."""
        self._pace.hurry()

    def _answer(self, body: dict[str, Any]) -> Reply:
        try:
            return self.script(body)
        except Exception as error:  # noqa: BLE001 - a script's mistake must not look like a model's silence
            self.failures.append(error)
            return Reply(status=500, message=f"the model server's script failed: {error!r}")

    def _serve(self, server: uvicorn.Server, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(server.serve(sockets=[self._socket] if self._socket else None))

    def _app(self) -> Starlette:
        async def ok(_: Request) -> Response:
            return PlainTextResponse("ok")

        async def count(_: Request) -> Response:
            return JSONResponse({"input_tokens": 100})

        models = [Route(f"/v1/{name}", self._model, methods=["POST"]) for name in ("messages", "responses")]
        routes = [Route("/", ok, methods=["GET", "HEAD"]), Route("/v1/messages/count_tokens", count, methods=["POST"])]
        return Starlette(routes=[*routes, *models])

    async def _model(self, request: Request) -> Response:
        body = await request.json()
        with self._arrived:
            self.requests.append(body)
            self._arrived.notify_all()
        reply = self._answer(body)
        await self._pace.pause(reply.delay_s)
        if reply.hang and not reply.blocks():
            await asyncio.Event().wait()
        return model_responses.respond(reply, self._pace) if is_responses(body) else model_messages.respond(reply, body, self._pace)


def main() -> None:
    """Serve until stopped; print the URL and the variables with which the real CLI runs against it."""
    parser = argparse.ArgumentParser(description="a scripted model server on 127.0.0.1 for the real Claude Code and Codex")
    parser.add_argument("--port", type=int, default=0, help="0 (the default): any free port")
    parser.add_argument("--home", type=pathlib.Path, default=pathlib.Path("cli-home"), help="a fresh HOME for the CLIs")
    options = parser.parse_args()
    with ModelServer(port=options.port) as server:
        print(server.url)  # noqa: T201 - a command
        home = options.home.resolve()
        for name, value in {**server.codex_env(home), **server.env(home)}.items():
            print(f"{name}={value}", flush=True)  # noqa: T201 - a command
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
