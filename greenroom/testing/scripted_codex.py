r"""A scripted Codex: a real process that speaks JSON-RPC as `codex app-server` of codex-cli 0.171.0 does, without a model.

It decides nothing by itself: it plays the prompt. A prompt's lines that begin with one of the words below are *directives*, played in
order; each that calls a tool is a model call of its own, the others before it belong to the same call. Other lines are prose. A prompt
without directives is answered `echo: <prompt>`. This file uses the standard library alone and is started as
`python -S -E scripted_codex.py app-server`; one thread and one poll loop for all conversations, whose turns run in parallel.

Directives (`\n` in a text is a line end; a word that ends all conversations says so):

    SAY text                        a message                       THINK text                 a reasoning summary
    SLOW n interval_s [text]        n pieces of text, streamed      SLEEP s                    the model thinks for s seconds
    RATE n per_s                    n timed deltas; each is the time.monotonic_ns() of its sending
    FLOOD n bytes                   n deltas of so many bytes, as fast as they are read
    STRUCTURED json                 the answer to an output schema  HANG                       the model never answers
    RUN command [-> output]         a command, really run unless its output is given          RUN_SLEEP s [output]  one that takes s seconds
    AWAIT_STEER [output]            a command that runs until a message comes
    LATE_ITEM [s] [output]          a command that nobody waits for: it ends s seconds after its start, and after the turn's end
    CHANGE_FILE path text           really writes a file            CALL_MCP server tool {json} [-> output]   an MCP tool
    ASK command [-> output]         a command that asks first       ASK_PATCH path text        a file change that asks first
    ASK_USER question               asks the user                   UNKNOWN_REQUEST [method]   asks something new
    ELICIT server {schema}          an MCP server asks the user to fill in a form
    TAKE_BACK command               a command that asks first, and needs no answer any more at once
    SPEND input output [cached]     what this model call costs (1000 50 400 if not said)
    REPLAY_USAGE                    repeats the last usage, as an answer without usage does
    RATE_LIMIT used_percent window_mins [resets_at]                 what every later account/rateLimits/updated says
    RETRY_NOTICE n delay_s          n `error` notes with willRetry
    FAIL codexErrorInfo message [times]    the turn fails (always, or the first `times` times in this thread); the info is a word or JSON
    FOREIGN_THREAD text             frames of a sub-agent's thread  LOSE_STEER                 steers of this turn are accepted and lost
    LATE_STARTED items              `turn/started` comes after the prompt's item             LATE_STARTED reply   the reply comes after it
    SLOW_START s                    s seconds between the reply and `turn/started`: an interrupt fails meanwhile
    DEAD_TURN                       the reply names a turn that never lives
    OVERLOAD_REFUSAL [times]        `turn/start` is refused as a server that is overloaded refuses it (once)
    NO_REPLY method                 the next request of that method gets no reply, and has no effect
    IGNORE_INTERRUPT                leaves interrupts of this turn unanswered
    CRASH [signal]  CRASH_ONCE [signal]    kills the server (ONCE: is not played again after the resume)
    CRASH_AT reply|started|input    kills the server, once a thread, right after that much of this turn was written
    EXIT code                       ends the server                 CLOSE_STDOUT               closes its output and lives on
    HALF_LINE                       half a line, then exit 1        HUGE_LINE bytes            one message of that size
    BAD_UTF8  GARBAGE               bytes that are no frames        STDERR bytes               so much standard error
    STOP_READING  IGNORE_SIGTERM    of the whole server
    SPAWN s  HOLD_PIPE s            really starts a process in a session of its own that outlives this one (HOLD_PIPE: with its stdout)

`"input": []` and a text that begins with `Continue from where you left off` go on with the directives that a failed, interrupted or
killed turn did not get to; a tool call that was cut is not repeated, and a streamed text that a steer cut is dropped, as Codex does.
A steer is played before the rest of the prompt that it joins. Commands that are really run live in a session of their own and survive
an interrupt and a SIGKILL of the server, not its ordinary end.

Threads are kept in GREENROOM_SCRIPTED_STATE (default `$CODEX_HOME/scripted`), one file of JSON lines each, locked by the process that
has it open. GREENROOM_SCRIPTED_PLAN names a JSON file of things outside of turns; `greenroom.testing.scripted.Plan` writes it. A planned
`version` below 0.171 makes it leave out the fields that 0.163.0 does not know.
"""

# ruff: noqa: D102, D103 - a script: its face is the table above; its functions are named for what they do

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False  # importing typing would cost a third of the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    Frame = dict[str, Any]
    Wait = tuple[float | None, Callable[[], bool] | None]
    Steps = Generator[Wait, None, None]

VERSION = "0.171.0"
MODEL = "gpt-5.5"
CONTINUE = "Continue from where you left off"
TURN_ABORTED = "<turn_aborted>"
BWRAP = (
    "Codex could not find bubblewrap on PATH. Install bubblewrap with your OS package manager. See the sandbox prerequisites: "
    "https://developers.openai.com/codex/concepts/sandboxing#prerequisites. Codex will use the bundled bubblewrap in the meantime."
)
HYDRATION = "Full-history hydration is deprecated for paginated threads; "
HOW_TO_PAGE = "page with `thread/turns/list` and `thread/items/list`."
SANDBOXES: Frame = {
    "read-only": {"type": "readOnly", "networkAccess": False},
    "workspace-write": {
        "type": "workspaceWrite",
        "writableRoots": [],
        "networkAccess": False,
        "excludeTmpdirEnvVar": False,
        "excludeSlashTmp": False,
    },
    "danger-full-access": {"type": "dangerFullAccess"},
}
APPROVALS = ("untrusted", "on-request", "granular", "never")
TOKEN_FIELDS = ("totalTokens", "inputTokens", "cachedInputTokens", "cacheWriteInputTokens", "outputTokens", "reasoningOutputTokens")
LIMIT_FIELDS = ("limitName", "normalModelSlug", "primary", "secondary", "credits", "individualLimit", "spendControlReached", "planType")
OLDER_LACKS = frozenset(("contentTokenCount", "attachedToThreadId"))
OLDER_ITEM_LACKS = frozenset(("startedAtMs", "completedAtMs", "moderation"))
INPUT_LIMIT_CHARS = 1 << 20
FLOOD_BUFFER_BYTES = 1 << 20
KILL_LINE_FOREVER = 1 << 30
ORPHAN_LIFE_S = 300  # a test that died must not leave us for ever in a HANG
INSTANT_S = 0.1  # the output of a command that ends within this comes with its end alone


class Interrupted(Exception):  # noqa: N818 - it is thrown into a turn, not raised by a failure
    """The turn is to end now."""


class ModelError(Exception):
    """The turn ends as one does whose model request failed for good."""

    def __init__(self, info: Any, message: str) -> None:
        self.info = info
        super().__init__(message)


class RpcError(Exception):
    """A request is answered with an error."""

    def __init__(self, message: str, code: int = -32600, data: Any = None) -> None:
        self.error: Frame = {"code": code, "message": message, **({"data": data} if data is not None else {})}
        super().__init__(message)


# --- small things ---


def new_uuid() -> str:
    """Return a UUID of version 7: its beginning is the time, as Codex's ids begin."""
    raw = bytearray(int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10))
    raw[6] = raw[6] & 0x0F | 0x70
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_uuid(text: str) -> bool:
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(c in "0123456789abcdefABCDEF" for c in "".join(parts))


def now_ms() -> int:
    return int(time.time() * 1000)


def encode(frame: Any) -> bytes:
    return json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def unescaped(text: str) -> str:
    return text.replace("\\n", "\n")


def split(rest: str, count: int) -> list[str]:
    """Split into exactly `count` parts; the last one keeps its spaces, missing ones are empty."""
    parts = rest.split(None, count - 1)
    return parts + [""] * (count - len(parts))


def leading_json(rest: str) -> tuple[Any, str]:
    """Parse a JSON value that a text begins with; without one the value is None."""
    if not rest.startswith(("{", "[", '"')):
        return None, rest
    value, end = json.JSONDecoder().raw_decode(rest)
    return value, rest[end:].strip()


def with_output(rest: str) -> tuple[str, str | None]:
    """Split `what -> output`; without an arrow there is no output."""
    what, arrow, output = (rest + " ").partition(" -> ")
    return what.strip(), unescaped(output.rstrip()) if arrow else None


def counted(text: str) -> tuple[str, int | None]:
    """Split a number off the end of a text."""
    head, _, tail = text.rpartition(" ")
    return (head, int(tail)) if tail.isdigit() and head else (text, None)


def directives(text: str) -> list[tuple[str, str]]:
    """Return the directives of a prompt, or the one that echoes it."""
    found = []
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.isupper() and hasattr(Turn, "do_" + word.lower()):
            found.append((word.lower(), rest.strip()))
    return found or [("say", "echo: " + text)]


def text_of(content: Any) -> str:
    return "\n".join(str(block.get("text", "")) for block in content or () if isinstance(block, dict) and block.get("type") == "text")


def error_lines(size: int) -> bytes:
    line = b"e" * 79 + b"\n"
    return line[80 - size % 80 :] * bool(size % 80) + line * (size // 80)


def write_stderr(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(2, data[:65536]) :]
        except BlockingIOError:
            select.select((), (2,), ())
        except OSError:
            return


def log_error(text: str) -> None:
    write_stderr(f"\x1b[2m{time.strftime('%Y-%m-%dT%H:%M:%S')}Z\x1b[0m \x1b[31mERROR\x1b[0m {text}\n".encode())


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def as_older(value: Any) -> Any:
    """Return a frame as codex-cli 0.163.0 writes it: it knows a few fields less."""
    if isinstance(value, list):
        return [as_older(one) for one in value]
    if not isinstance(value, dict):
        return value
    unknown = OLDER_ITEM_LACKS if "type" in value else OLDER_LACKS
    return {key: as_older(inner) for key, inner in value.items() if key not in unknown}


def merged(base: Frame, more: Frame) -> Frame:
    return {**base, **{key: value for key, value in more.items() if value is not None}}


class Plan:
    """What happens outside of turns. Counted things are counted over all processes of one state directory."""

    def __init__(self, state: str) -> None:
        self.state = state
        path = os.environ.get("GREENROOM_SCRIPTED_PLAN")
        self.values: Frame = {}
        if path:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib would double the start-up time
                self.values = json.load(file)

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def claim(self, key: str, times: int | None = None) -> bool:
        """Return whether this process is one of the first `times` that ask: true means for ever."""
        wanted = self.values.get(key, 0) if times is None else times
        if wanted is True:
            return True
        folder = os.path.join(self.state, "claims")  # noqa: PTH118
        for number in range(int(wanted)):
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            try:
                os.close(os.open(f"{folder}/{key}.{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                continue
            return True
        return False


class Output:
    """Standard output: buffered without a bound, so that an unread pipe stops no conversation but one that floods."""

    def __init__(self, kill_after: int, *, older: bool = False) -> None:
        self.older = older
        self.buffer = bytearray()
        self.lines_left = kill_after or KILL_LINE_FOREVER
        self.closed = False
        mode = os.fstat(1).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(1, False)

    def frame(self, frame: Frame) -> None:
        self.raw(encode(as_older(frame) if self.older else frame))

    def raw(self, data: bytes) -> None:
        if self.closed:
            return
        self.buffer += data
        self.lines_left -= data.count(b"\n")
        if self.lines_left <= 0:
            self.drain()
            os.kill(os.getpid(), signal.SIGKILL)
        self.pump()

    def pump(self) -> None:
        try:
            while self.buffer:
                del self.buffer[: os.write(1, memoryview(self.buffer)[: 1 << 20])]
        except BlockingIOError:
            return
        except OSError:  # the reader has gone: Codex lives on until its input ends
            self.closed = True
            self.buffer.clear()

    def drain(self) -> None:
        self.pump()
        while self.buffer:
            select.select((), (1,), ())
            self.pump()

    def close(self) -> None:
        self.drain()
        self.closed = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)  # a closed descriptor 1 would be the next file's
        os.close(null)


# --- what is kept ---


class Prompt:
    """One user message as the model has it: its directives, and how many of them are done."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.steps = directives(text)
        self.done = 0


class Store:
    """A thread's file, and what it says. It does not exist before the thread's first turn, and is empty until that turn begins."""

    def __init__(self, state: str, thread_id: str, *, ephemeral: bool = False) -> None:
        self.path = f"{state}/{thread_id}.jsonl"
        self.lock_path = f"{state}/locks/{thread_id}"
        self.archived_path = f"{state}/archived/{thread_id}"
        self.ephemeral = ephemeral
        self.fd = -1
        self.lock_fd = -1
        self.meta: Frame = {}
        self.turns: list[Frame] = []
        self.prompts: list[Prompt] = []
        self.count = 0
        self.last_end = ""
        self.last_text = ""
        self.open_call = False
        self.failures: dict[str, int] = {}
        self.total = dict.fromkeys(TOKEN_FIELDS, 0)
        self.last = dict(self.total)
        self.usage_turn = ""
        self.reverted = False

    def locked(self) -> bool:
        """Take the thread for this process; False if another one has it."""
        os.makedirs(os.path.dirname(self.lock_path), exist_ok=True)  # noqa: PTH103, PTH120
        self.lock_fd = os.open(self.lock_path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.lockf(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.unlock()
            return False
        return True

    def unlock(self) -> None:
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def archived(self) -> bool:
        return os.path.exists(self.archived_path)  # noqa: PTH110

    def archive(self) -> None:
        os.makedirs(os.path.dirname(self.archived_path), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(self.archived_path, os.O_CREAT | os.O_WRONLY, 0o600))

    def size(self) -> int:
        try:
            return os.stat(self.path).st_size  # noqa: PTH116
        except FileNotFoundError:
            return -1

    def load(self) -> None:
        with open(self.path, encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                if line.endswith("\n"):
                    self.apply(json.loads(line))
        for turn in self.turns:
            if turn["status"] == "inProgress":
                turn["status"] = "interrupted"

    def create(self) -> None:
        """Make the file of a first turn, empty."""
        if self.fd < 0 and not self.ephemeral:
            self.fd = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def add(self, kind: str, **fields: Any) -> None:
        record = {"k": kind, **fields}
        self.apply(record)
        self.create()
        if self.fd >= 0:
            os.write(self.fd, encode(record))

    def apply(self, record: Frame) -> None:
        getattr(self, "on_" + record["k"])(record)

    def on_meta(self, record: Frame) -> None:
        self.meta = record["meta"]

    def on_turn(self, record: Frame) -> None:
        self.turns.append(turn_object(record["id"], startedAt=record["at"]))
        self.last_end = ""

    def on_item(self, record: Frame) -> None:
        for turn in self.turns:
            if turn["id"] == record["turn"]:
                turn["items"] = [item for item in turn["items"] if item["id"] != record["item"]["id"]] + [record["item"]]
        if record["item"]["type"] == "agentMessage":
            self.last_text = record["item"]["text"]

    def on_prompt(self, record: Frame) -> None:
        if not record["joins"]:
            self.prompts = []
        self.count += 1
        self.prompts.insert(0, Prompt(record["n"], record["text"]))

    def on_go_on(self, record: Frame) -> None:
        """Nothing follows from a text that goes on; it is there for the reader of the history."""

    on_marker = on_go_on

    def on_revert(self, record: Frame) -> None:
        """Turns were taken out of the file: one without any is a thread all the same."""
        self.reverted = True

    def on_step(self, record: Frame) -> None:
        for prompt in self.prompts:
            if prompt.number == record["n"]:
                prompt.done = record["done"]

    def on_call(self, record: Frame) -> None:
        self.open_call = True

    def on_output(self, record: Frame) -> None:
        self.open_call = False

    def on_failure(self, record: Frame) -> None:
        self.failures[record["key"]] = self.failures.get(record["key"], 0) + 1

    def on_usage(self, record: Frame) -> None:
        self.total, self.last, self.usage_turn = record["total"], record["last"], record["turn"]

    def on_end(self, record: Frame) -> None:
        self.last_end = record["status"]
        for turn in self.turns:
            if turn["id"] == record["turn"]:
                turn |= {"status": record["status"], "error": record["error"], "completedAt": record["at"]}
                turn["durationMs"] = record["ms"]
        if record["status"] == "completed":
            self.prompts = []

    def cut(self, turn_id: str) -> None:
        """Take a turn and all behind it out of the file."""
        kept = []
        with open(self.path, encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                record = json.loads(line)
                if record["k"] == "turn" and record["id"] == turn_id:
                    break
                kept.append(line)
        with open(self.path + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.writelines([*kept, encode({"k": "revert"}).decode()])
        os.replace(self.path + ".new", self.path)  # noqa: PTH105

    def copied(self, state: str, thread_id: str) -> None:
        """Make another thread's file of this one."""
        with open(self.path, encoding="utf-8") as old, open(f"{state}/{thread_id}.jsonl", "w", encoding="utf-8") as new:  # noqa: PTH123
            new.write(old.read())

    def close_cut_call(self) -> None:
        """Give the model the output that Codex gives of a call that was cut."""
        if self.open_call:
            self.add("output", content="aborted" if not self.last_end else "aborted by user")


def turn_object(turn_id: str, **fields: Any) -> Frame:
    turn: Frame = {"id": turn_id, "rootTurnId": turn_id, "items": [], "itemsView": "notLoaded", "status": "inProgress", "error": None}
    return {**turn, "startedAt": None, "completedAt": None, "durationMs": None, **fields}


# --- commands ---


class Command:
    """A command of a turn. It is really run, or ends at a time; it may outlive its turn."""

    def __init__(self, turn: Turn, item: Frame, *, ends_s: float | None = None, output: str = "") -> None:
        self.turn = turn
        self.item = item
        self.ends_s = ends_s
        self.output = output
        self.pending = b""
        self.exit_code: int | None = None
        self.pid = 0
        self.fd = -1
        self.started_s = time.monotonic()
        self.awaited = True
        self.not_before_end = False

    def start(self, command: str, cwd: str, env: dict[str, str]) -> None:
        self.fd, writer = os.pipe()
        os.set_blocking(self.fd, False)
        self.pid = os.fork()
        if self.pid == 0:
            become_shell(command, cwd, env, writer)
        os.close(writer)

    def poll(self) -> bool:
        """Read what there is; return whether the command has ended."""
        if self.pid:
            self.read()
            self.reap()
        elif self.exit_code is None and self.ends_s is not None and time.monotonic() >= self.ends_s:
            self.exit_code = 0
            self.tell(self.output)
        over = self.exit_code is not None
        return over and (self.turn.over or not self.not_before_end)

    def read(self) -> None:
        try:
            while self.fd >= 0 and (data := os.read(self.fd, 1 << 16)):
                self.output += (text := data.decode("utf-8", "replace"))
                self.tell(text)
        except BlockingIOError:
            return

    def tell(self, text: str) -> None:
        if text and time.monotonic() - self.started_s > INSTANT_S:
            self.turn.conversation.notify("item/commandExecution/outputDelta", **self.turn.ids(), itemId=self.item["id"], delta=text)

    def reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return
        self.read()
        self.exit_code = os.waitstatus_to_exitcode(status)
        self.forget()

    def forget(self) -> None:
        self.pid = 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def kill(self) -> None:
        """End it and what is in its process group."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # it may not lead its group yet
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.read()
            self.forget()
        self.exit_code = -1

    def ended(self) -> Frame:
        status = "completed" if self.exit_code == 0 else "failed"
        ms = int((time.monotonic() - self.started_s) * 1000)
        return {**self.item, "status": status, "aggregatedOutput": self.output, "exitCode": self.exit_code, "durationMs": ms}


def become_shell(command: str, cwd: str, env: dict[str, str], writer: int) -> None:
    """In the forked child: become the shell, in a session of its own."""
    try:
        os.setsid()
        if os.path.isdir(cwd):  # noqa: PTH112
            os.chdir(cwd)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (writer, 1), (writer, 2)):
            os.dup2(source, target)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # what is ignored here would be ignored by its pipelines
        os.execve("/bin/bash", ("bash", "-c", command), env)  # noqa: S606 - the directive says so
    finally:
        os._exit(127)


def detach(seconds: str, *, keep_output: bool) -> None:
    """In the forked child: become a `sleep` in a session of its own, with the environment (and so the mark) of its parent."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0,) if keep_output else (0, 1, 2):
            os.dup2(null, fd)
        os.execvp("sleep", ("sleep", seconds))  # noqa: S606, S607 - the directive says so
    finally:
        os._exit(127)


# --- a turn ---


class Steer:
    """A message for a turn that runs."""

    def __init__(self, content: list[Frame], client_id: str | None) -> None:
        self.content = content
        self.client_id = client_id


class Turn:
    """One turn: a generator that writes frames and yields what it waits for, `(deadline or None, condition or None)`."""

    def __init__(self, conversation: Conversation, message: Steer, request_id: Any) -> None:
        self.conversation = conversation
        self.store = conversation.store
        self.server = conversation.server
        self.id = new_uuid()
        self.message = message
        self.request_id = request_id
        self.started = False
        self.over = False
        self.deaf = False
        self.loses_steers = False
        self.interrupts: list[Any] = []
        self.asked: int | None = None
        self.in_call = False
        self.streaming = False
        self.spend = (1000, 50, 400)
        self.answer: Frame | None = None
        self.diff = ""
        self.unmarked: tuple[Prompt, int] | None = None
        self.step_key = ""
        self.began_s = time.time()
        self.ahead = dict(directives(text_of(message.content)))

    # --- frames ---

    def ids(self) -> Frame:
        return {"threadId": self.conversation.id, "turnId": self.id}

    def notify(self, method: str, **params: Any) -> None:
        self.conversation.notify(method, **params)

    def start_item(self, item: Frame) -> Frame:
        """Announce an item, and return it as it is when it ends."""
        at = now_ms()
        self.notify("item/started", item={**item, "startedAtMs": at, "completedAtMs": None}, **self.ids(), startedAtMs=at)
        return {**item, "startedAtMs": at, "completedAtMs": None}

    def end_item(self, item: Frame) -> Frame:
        item = {**item, "completedAtMs": now_ms()}
        self.store.add("item", turn=self.id, item=item)
        self.notify("item/completed", item=item, **self.ids(), contentTokenCount=None, completedAtMs=item["completedAtMs"])
        return item

    def user_item(self, message: Steer) -> None:
        """Write a user message: it is durable when its item starts."""
        content = [{**block, "text_elements": []} if block.get("type") == "text" else block for block in message.content]
        item: Frame = {"type": "userMessage", "id": new_uuid(), "clientId": message.client_id, "content": content}
        self.store.add("item", turn=self.id, item={**item, "startedAtMs": now_ms(), "completedAtMs": now_ms()})
        self.end_item(self.start_item(item))

    def message_item(self, text: str) -> Frame:
        item: Frame = {"type": "agentMessage", "moderation": None, "id": f"msg_{os.urandom(5).hex()}", "text": text, "phase": None}
        return {**item, "memoryCitation": None, "delivery": None, "questions": None}

    def delta(self, item: Frame, text: str) -> None:
        self.notify("item/agentMessage/delta", **self.ids(), itemId=item["id"], delta=text)

    def say(self, text: str) -> None:
        item = self.start_item(self.message_item(""))
        self.delta(item, text)
        self.end_message(item, text)

    def end_message(self, item: Frame, text: str) -> None:
        self.answer = self.end_item({**item, "text": text})
        self.in_call = True

    def count_call(self, *, repeat: bool = False) -> None:
        """Report the usage of a model call that ended; one that was cut, or had no usage, repeats the last."""
        store = self.store
        if not repeat:
            inputs, outputs, cached = self.spend
            last = dict(zip(TOKEN_FIELDS, (inputs + outputs, inputs, cached, 0, outputs, min(10, outputs)), strict=True))
            store.add("usage", turn=self.id, total={key: store.total[key] + last[key] for key in TOKEN_FIELDS}, last=last)
        self.spend = (1000, 50, 400)
        self.in_call = self.streaming = False
        if self.store.usage_turn:
            self.conversation.tell_usage(self.id)
        self.notify("account/rateLimits/updated", rateLimits=self.server.limits)

    # --- the course of a turn ---

    def play(self) -> Steps:
        try:
            yield from self.begin()
            yield from self.play_steps()
            self.finish()
        except Interrupted:
            self.abort()
        except ModelError as error:
            self.fail(error)

    def begin(self) -> Steps:
        late = self.ahead.get("late_started", "")
        self.store.create()
        if late != "reply":
            self.reply()
        self.crash_at("reply")
        # Codex starts a turn some 10 ms after its reply: what was sent behind turn/start is taken first
        yield time.monotonic() + float(self.ahead.get("slow_start", 0)), None
        if not self.store.meta:
            self.store.add("meta", meta=self.conversation.settings)
        self.store.close_cut_call()
        failed = self.store.last_end in ("failed", "interrupted", "")
        self.store.add("turn", id=self.id, at=int(time.time()))
        if late == "items":
            self.take(goes_on=failed)
        self.started = True
        self.conversation.status("active", activeFlags=[])
        self.notify("turn/started", threadId=self.conversation.id, turn=turn_object(self.id, startedAt=int(time.time())))
        self.crash_at("started")
        if late == "reply":
            self.reply()
        if late != "items":
            self.take(goes_on=failed)
        self.crash_at("input")
        self.fold()

    def reply(self) -> None:
        named = new_uuid() if "dead_turn" in self.ahead else self.id
        self.server.reply(self.request_id, {"turn": turn_object(named)})

    def crash_at(self, point: str) -> None:
        if self.ahead.get("crash_at") == point and self.server.plan.claim(f"crash_at.{self.conversation.id}", 1):
            self.server.die(signal.SIGKILL)

    def take(self, *, goes_on: bool) -> None:
        """Note what the model is now asked: a prompt of its own, or going on with the one before. No input at all has no item."""
        store, text = self.store, text_of(self.message.content)
        goes_on = goes_on and bool(store.prompts) and (not text.strip() or text.startswith(CONTINUE))
        if goes_on or not self.message.content:
            store.add("go_on", text=text) if self.message.content else None
        else:
            store.add("prompt", n=store.count + 1, text=text, joins=False)
        if self.message.content:
            self.user_item(self.message)

    def play_steps(self) -> Steps:
        while True:
            while prompt := next((p for p in self.store.prompts if p.done < len(p.steps)), None):
                yield from self.play_step(prompt)
            if not self.answer:
                self.say("done")
            if self.in_call:
                self.count_call()
            if not self.conversation.steers:
                return
            self.fold()

    def play_step(self, prompt: Prompt) -> Steps:
        word, rest = prompt.steps[prompt.done]
        self.unmarked = (prompt, prompt.done + 1)
        self.step_key = f"{prompt.number}.{prompt.done + 1}"
        if word in AT_MOST_ONCE:
            self.mark()
        waits = getattr(self, "do_" + word)(rest)
        if waits is not None:
            yield from waits
        self.mark()
        if word in TOOLS:
            self.count_call()
            self.answer = None
        if self.conversation.steers and (word in TOOLS or not self.in_call):
            self.fold()

    def mark(self) -> None:
        """Note that the step is done: before its call for most tools, with its effect for files, else after its frames."""
        if self.unmarked:
            prompt, done = self.unmarked
            self.unmarked = None
            self.store.add("step", n=prompt.number, done=done)

    def fold(self) -> None:
        """Let messages that came into this turn: between two model calls."""
        steers, self.conversation.steers = self.conversation.steers, []
        for steer in steers if not self.loses_steers else ():
            self.store.add("prompt", n=self.store.count + 1, text=text_of(steer.content), joins=True)
            self.user_item(steer)
            self.answer = None

    def pause(self, seconds: float) -> Steps:
        if seconds > 0:
            yield time.monotonic() + seconds, None

    def finish(self) -> None:
        if self.diff:
            self.tell_diff()
        self.end("completed")

    def abort(self) -> None:
        """End by an interrupt: a text that was streamed is dropped, a command that runs goes on."""
        command = next((one for one in self.conversation.commands if one.turn is self and one.awaited), None)
        if command or self.asked is not None:
            self.count_call()
        elif self.streaming:
            self.count_call(repeat=True)
        for request_id in self.interrupts:
            self.server.reply(request_id, {})
        if command:
            command.awaited = False
        self.conversation.steers = []
        self.store.add("marker", text=TURN_ABORTED)
        self.answer = None
        self.end("interrupted")
        if self.asked is not None:
            self.notify("serverRequest/resolved", threadId=self.conversation.id, requestId=self.asked)
            self.server.answers.pop(self.asked, None)

    def fail(self, error: ModelError) -> None:
        details = {"message": str(error), "codexErrorInfo": error.info, "additionalDetails": None, "misalignment": None}
        self.conversation.steers = []
        self.conversation.status("systemError")
        self.notify("error", error=details, willRetry=False, **self.ids())
        self.answer = None
        self.end("failed", details)

    def end(self, status: str, error: Any = None) -> None:
        if status != "interrupted":
            self.conversation.tell_read_state(self.id)
        if status != "failed":
            self.conversation.status("idle")
        self.over = True
        self.started = False
        ms = int((time.time() - self.began_s) * 1000)
        at = int(time.time())
        self.store.add("end", turn=self.id, status=status, error=error, at=at, ms=ms)
        seen: Frame = {"items": [self.answer], "itemsView": "summary"} if self.answer else {}
        turn = turn_object(self.id, status=status, error=error, startedAt=int(self.began_s), completedAt=at, durationMs=ms)
        self.conversation.idle = "systemError" if status == "failed" else "idle"
        self.notify("turn/completed", threadId=self.conversation.id, turn={**turn, **seen})

    # --- directives: what the model says ---

    def do_say(self, rest: str) -> None:
        self.say(unescaped(rest))

    def do_think(self, rest: str) -> None:
        item = self.start_item({"type": "reasoning", "id": f"rs_{os.urandom(4).hex()}", "summary": [], "content": []})
        self.notify("item/reasoning/summaryPartAdded", **self.ids(), itemId=item["id"], summaryIndex=0)
        self.notify("item/reasoning/summaryTextDelta", **self.ids(), itemId=item["id"], delta=rest, summaryIndex=0)
        self.end_item({**item, "summary": [unescaped(rest)]})
        self.in_call = True

    def do_slow(self, rest: str) -> Steps:
        count, interval_s, text = split(rest, 3)
        pieces = [f"{text or 'w'}{number} " for number in range(int(count))]
        item = self.start_item(self.message_item(""))
        self.streaming = True
        for piece in pieces:
            yield time.monotonic() + float(interval_s), self.is_cut
            if self.is_cut():
                return self.count_call(repeat=True)
            self.delta(item, piece)
        self.streaming = False
        self.end_message(item, "".join(pieces).rstrip())
        return None

    def is_cut(self) -> bool:
        """Whether a steer ends the text that is being streamed."""
        return bool(self.conversation.steers) and self.conversation.instant_interrupt()

    def do_sleep(self, rest: str) -> Steps:
        yield from self.pause(float(rest or 1))

    def do_rate(self, rest: str) -> Steps:
        count, per_s = split(rest, 2)
        begin = time.monotonic()
        item = self.start_item(self.message_item(""))
        for number in range(int(count)):
            yield begin + number / float(per_s), None
            self.delta(item, f"{time.monotonic_ns()} ")
        self.end_message(item, "rated")

    def do_flood(self, rest: str) -> Steps:
        count, size = split(rest, 2)
        item = self.start_item(self.message_item(""))
        params = {**self.ids(), "itemId": item["id"], "delta": "x" * int(size or 100)}
        line = encode({"method": "item/agentMessage/delta", "params": params, "emittedAtMs": now_ms()})
        for left in range(int(count), 0, -64):
            self.server.out.raw(line * min(left, 64))
            yield None, lambda: len(self.server.out.buffer) < FLOOD_BUFFER_BYTES
        self.end_message(item, "flooded")

    def do_structured(self, rest: str) -> None:
        self.say(json.dumps(json.loads(rest), separators=(",", ":")))

    def do_hang(self, rest: str) -> Steps:
        yield None, None

    def do_huge_line(self, rest: str) -> None:
        self.say("x" * int(rest))

    # --- directives: tools ---

    def command_item(self, command: str, *, source: str = "unifiedExecStartup") -> Frame:
        item: Frame = {"type": "commandExecution", "id": f"call_{os.urandom(5).hex()}", "pluginId": None, "scriptPath": None}
        quoted = "'" + command.replace("'", "'\\''") + "'"
        item |= {"command": f"/bin/bash -lc {quoted}", "cwd": self.conversation.settings["cwd"]}
        item["processId"] = None if source == "agent" else process_id()
        item |= {"source": source, "status": "inProgress", "commandActions": [{"type": "unknown", "command": command}]}
        return {**item, "aggregatedOutput": None, "exitCode": None, "durationMs": None}

    def begin_call(self, name: str, tool_input: Any) -> None:
        self.store.add("call", name=name, input=tool_input)
        self.in_call = True

    def launch(self, command: str, output: str | None, *, seconds: float = 0.0, item: Frame | None = None) -> Command:
        """Begin a command: really if it has no output yet."""
        started = item or self.start_item(self.command_item(command))
        running = Command(self, started, output=output or "", ends_s=time.monotonic() + seconds if output is not None else None)
        if output is None:
            running.start(command, self.conversation.settings["cwd"], self.conversation.shell_env(started["id"]))
        self.conversation.commands.append(running)
        return running

    def await_command(self, running: Command) -> Steps:
        yield None, running.poll
        self.end_command(running)

    def end_command(self, running: Command) -> None:
        self.conversation.commands.remove(running)
        self.store.add("output", content=running.output)
        self.end_item(running.ended())

    def run(self, command: str, output: str | None, *, seconds: float = 0.0, item: Frame | None = None) -> Steps:
        if item is None:
            self.begin_call("exec_command", {"cmd": command})
        yield from self.await_command(self.launch(command, output, seconds=seconds, item=item))

    def do_run(self, rest: str) -> Steps:
        command, output = with_output(rest)
        if self.conversation.settings["approvalPolicy"] == "untrusted":
            yield from self.do_ask(rest)
        else:
            yield from self.run(command, output)

    def do_run_sleep(self, rest: str) -> Steps:
        seconds, output = split(rest, 2)
        yield from self.run(f"sleep {seconds}", unescaped(output) or "slept", seconds=float(seconds))

    def do_await_steer(self, rest: str) -> Steps:
        self.begin_call("exec_command", {"cmd": "await-steer"})
        running = self.launch("await-steer", unescaped(rest) or "a message came", seconds=ORPHAN_LIFE_S)
        yield None, lambda: bool(self.conversation.steers)
        running.exit_code = 0
        self.end_command(running)

    def do_late_item(self, rest: str) -> None:
        seconds, output = split(rest, 2)
        self.begin_call("exec_command", {"cmd": "late"})
        running = self.launch("late", unescaped(output) or "late", seconds=float(seconds or 0))
        running.awaited = False
        running.not_before_end = True
        self.store.add("output", content="Process running with session ID 1")

    def do_change_file(self, rest: str) -> Steps:
        readonly = self.conversation.settings["sandbox"]["type"] == "readOnly"
        if readonly or self.conversation.settings["approvalPolicy"] == "untrusted":
            yield from self.do_ask_patch(rest)
            return
        path, text = self.patch(rest)
        self.begin_call("apply_patch", {"path": path, "text": text})
        self.apply_patch(self.start_item(self.patch_item(path, text)), path, text)

    def patch(self, rest: str) -> tuple[str, str]:
        path, text = split(rest, 2)
        return os.path.join(self.conversation.settings["cwd"], path), unescaped(text) + "\n"  # noqa: PTH118

    def patch_item(self, path: str, text: str) -> Frame:
        if os.path.exists(path):  # noqa: PTH110
            kind: Frame = {"type": "update", "move_path": None}
            text = "@@ -1 +1 @@\n" + "".join(f"+{line}\n" for line in text.splitlines())
        else:
            kind = {"type": "add"}
        change = {"path": path, "kind": kind, "diff": text}
        return {"type": "fileChange", "id": f"call_{os.urandom(5).hex()}", "changes": [change], "status": "inProgress"}

    def apply_patch(self, item: Frame, path: str, text: str) -> None:
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
        self.mark()
        self.store.add("output", content="Success. Updated the following files:\nA " + path)
        self.end_item({**item, "status": "completed"})
        name = os.path.relpath(path, self.conversation.settings["cwd"])
        lines = "".join(f"+{line}\n" for line in text.splitlines())
        self.diff += f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n{lines}"
        self.tell_diff()

    def tell_diff(self) -> None:
        self.notify("turn/diff/updated", **self.ids(), diff=self.diff)

    def do_call_mcp(self, rest: str) -> Steps:
        server, tool, tail = split(rest, 3)
        arguments, tail = leading_json(tail)
        output = unescaped(tail.removeprefix("->").strip()) or "ok"
        item: Frame = {"type": "mcpToolCall", "id": f"call_{os.urandom(5).hex()}", "server": server, "environmentId": None, "tool": tool}
        item |= {"status": "inProgress", "arguments": arguments or {}, "appContext": None, "mcpAppUi": None, "pluginId": None}
        item |= {"readOnlyHint": None, "result": None, "error": None, "durationMs": None}
        self.begin_call(f"mcp__{server}__{tool}", arguments or {})
        started = self.start_item(item)
        if self.conversation.settings["approvalPolicy"] != "never":
            answer = yield from self.elicit(server, tool, arguments or {})
            if answer.get("result", {}).get("action") != "accept":
                return self.end_mcp(started, None, "user rejected MCP tool call")
        return self.end_mcp(started, output, None)

    def end_mcp(self, item: Frame, output: str | None, error: str | None) -> None:
        result = None if output is None else {"content": [{"type": "text", "text": output}], "structuredContent": None, "_meta": None}
        self.store.add("output", content=output or error)
        done: Frame = {"result": result, "error": {"message": error} if error else None, "durationMs": 1}
        self.end_item({**item, "status": "failed" if error else "completed", **done})

    # --- directives: what the client is asked ---

    def ask(self, method: str, params: Frame, flag: str | None = None) -> Generator[Wait, None, Frame]:
        """Ask the client and wait for its answer, however long."""
        if flag:
            self.conversation.status("active", activeFlags=[flag])
        self.asked = self.server.ask(method, params)
        asked = self.asked
        yield None, lambda: self.server.answers.get(asked) is not None
        self.asked = None
        self.notify("serverRequest/resolved", threadId=self.conversation.id, requestId=asked)
        answer = self.server.answers.pop(asked)
        assert answer is not None  # noqa: S101 - it was waited for
        return answer

    def unflag(self) -> None:
        self.conversation.status("active", activeFlags=[])

    def elicit(self, server: str, tool: str, arguments: Any) -> Generator[Wait, None, Frame]:
        meta: Frame = {"codex_approval_kind": "mcp_tool_call", "persist": ["session", "always"], "tool_name": tool}
        shown = [{"name": key, "value": value, "display_name": key} for key, value in arguments.items()]
        meta |= {"tool_description": tool, "tool_params": arguments, "tool_params_display": shown}
        params: Frame = {**self.ids(), "serverName": server, "environmentId": None, "mode": "form", "_meta": meta}
        params["message"] = f'Allow the {server} MCP server to run tool "{tool}"?'
        params["requestedSchema"] = {"type": "object", "properties": {}}
        answer = yield from self.ask("mcpServer/elicitation/request", params, "waitingOnApproval")
        self.unflag()
        return answer

    def rejects_silently(self, name: str, tool_input: Any, why: str) -> bool:
        """Under the policy `never` Codex asks nobody and shows nothing: the model alone is told."""
        if self.conversation.settings["approvalPolicy"] != "never" or self.server.plan.get("ask_always"):
            return False
        self.begin_call(name, tool_input)
        self.store.add("output", content=why)
        return True

    def do_ask(self, rest: str) -> Steps:
        command, output = with_output(rest)
        if self.rejects_silently("exec_command", {"cmd": command}, "approval policy is Never; reject command"):
            return
        self.begin_call("exec_command", {"cmd": command})
        if command in self.conversation.allowed:
            yield from self.run(command, output, item=self.start_item(self.command_item(command)))
            return
        self.conversation.status("active", activeFlags=["waitingOnApproval"])
        item = self.start_item(self.command_item(command, source="agent"))
        answer = yield from self.ask("item/commandExecution/requestApproval", self.approval(item, command))
        decision = decided(answer)
        if decision in ("accept", "acceptForSession", "acceptWithExecpolicyAmendment"):
            if decision != "accept":
                self.conversation.allowed.add(command)
            self.unflag()
            running = {**item, "processId": process_id(), "source": "unifiedExecStartup"}
            yield from self.run(command, output, item=running)
            return
        why = "rejected by user" if decision in ("decline", "cancel") else "approval request failed"
        self.store.add("output", content=f'exec_command failed: CreateProcess {{ message: "Rejected(\\"{why}\\")" }}')
        self.end_item({**item, "status": "declined" if decision in ("decline", "cancel") else "failed"})
        self.unflag()
        self.cancelled(decision)

    def approval(self, item: Frame, command: str) -> Frame:
        amendment = command.split()[:2]
        choices = ["accept", {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": amendment}}, "cancel"]
        params: Frame = {"kind": "command", **self.ids(), "itemId": item["id"], "startedAtMs": now_ms(), "environmentId": "local"}
        params |= {"reason": "the script wants it", "command": item["command"], "cwd": item["cwd"]}
        params |= {"commandActions": item["commandActions"], "proposedExecpolicyAmendment": amendment}
        return {**params, "availableDecisions": choices}

    def cancelled(self, decision: str) -> None:
        if decision == "cancel":
            self.count_call()
            self.asked = None
            raise Interrupted

    def do_ask_patch(self, rest: str) -> Steps:
        path, text = self.patch(rest)
        why = "patch rejected: writing is blocked by read-only sandbox"
        if self.rejects_silently("apply_patch", {"path": path, "text": text}, why):
            return
        self.begin_call("apply_patch", {"path": path, "text": text})
        item = self.start_item(self.patch_item(path, text))
        if path not in self.conversation.allowed:
            params: Frame = {**self.ids(), "itemId": item["id"], "startedAtMs": now_ms(), "reason": None, "grantRoot": None}
            answer = yield from self.ask("item/fileChange/requestApproval", params, "waitingOnApproval")
            decision = decided(answer)
            self.unflag()
            if decision == "acceptForSession":
                self.conversation.allowed.add(path)
            elif decision != "accept":
                self.store.add("output", content="patch rejected by user")
                self.cancelled(decision)
                self.end_item({**item, "status": "declined" if decision == "decline" else "failed"})
                return
        self.apply_patch(item, path, text)

    def do_ask_user(self, rest: str) -> Steps:
        options = [{"label": label, "description": label.lower()} for label in ("A", "B")]
        question: Frame = {"id": "q1", "header": "H", "question": unescaped(rest) or "Which?", "isOther": True, "isSecret": False}
        params: Frame = {**self.ids(), "itemId": f"call_{os.urandom(5).hex()}", "questions": [{**question, "options": options}]}
        self.begin_call("request_user_input", params["questions"])
        params |= {"isBlocking": True, "autoResolutionMs": None}
        answer = yield from self.ask("item/tool/requestUserInput", params, "waitingOnUserInput")
        self.unflag()
        self.store.add("output", content=json.dumps(answer.get("result") or {"answers": {}}))

    def do_elicit(self, rest: str) -> Steps:
        server, _, schema = rest.partition(" ")
        params: Frame = {**self.ids(), "serverName": server, "mode": "form", "_meta": None, "message": "Please say"}
        params["requestedSchema"] = json.loads(schema)
        answer = yield from self.ask("mcpServer/elicitation/request", params, "waitingOnApproval")
        self.unflag()
        self.say(f"elicited: {json.dumps(answer.get('result') or answer.get('error'))}")

    def do_take_back(self, rest: str) -> None:
        asked = self.server.ask("item/commandExecution/requestApproval", self.approval(self.command_item(rest), rest))
        self.notify("serverRequest/resolved", threadId=self.conversation.id, requestId=asked)

    def do_unknown_request(self, rest: str) -> Steps:
        answer = yield from self.ask(rest or "item/tool/requestOfTomorrow", {**self.ids(), "itemId": f"call_{os.urandom(5).hex()}"})
        self.say("answered: " + ("error" if "error" in answer else "result"))

    # --- directives: money, limits, failures ---

    def do_spend(self, rest: str) -> None:
        inputs, outputs, cached = split(rest, 3)
        self.spend = (int(inputs), int(outputs or 0), int(cached or 0))

    def do_replay_usage(self, rest: str) -> None:
        self.conversation.tell_usage(self.store.usage_turn or self.id)

    def do_rate_limit(self, rest: str) -> None:
        used, minutes, resets = split(rest, 3)
        window: Frame = {"usedPercent": int(used or 0), "windowDurationMins": int(minutes or 300)}
        window["resetsAt"] = int(resets or time.time() + 3600)
        self.server.limits = {**self.server.limits, "primary": window}
        self.notify("account/rateLimits/updated", rateLimits=self.server.limits)

    def do_retry_notice(self, rest: str) -> Steps:
        count, delay_s = split(rest, 2)
        for number in range(1, int(count or 1) + 1):
            error: Frame = {
                "message": f"Reconnecting... {number}/5",
                "codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": 503}},
            }
            error |= {"additionalDetails": "unexpected status 503 Service Unavailable", "misalignment": None}
            self.notify("error", error=error, willRetry=True, **self.ids())
            yield from self.pause(float(delay_s or 0))

    def do_fail(self, rest: str) -> None:
        info, text = leading_json(rest)
        if info is None:
            info, text = split(rest, 2)
        text, times = counted(text)
        if times is None or self.store.failures.get(self.step_key, 0) < times:
            self.store.add("failure", key=self.step_key)
            raise ModelError(info, unescaped(text) or "the scripted model failed")

    # --- directives: order, other threads, other requests ---

    def do_foreign_thread(self, rest: str) -> None:
        thread_id, turn_id = new_uuid(), new_uuid()
        activity: Frame = {"type": "subAgentActivity", "model": MODEL, "reasoningEffort": "low", "id": f"call_{os.urandom(5).hex()}"}
        activity |= {"kind": "started", "agentThreadId": thread_id, "agentPath": "/root/sub"}
        ids = {"threadId": thread_id, "turnId": turn_id}
        self.end_item(self.start_item(activity))
        self.notify("thread/status/changed", threadId=thread_id, status={"type": "active", "activeFlags": []})
        turn = turn_object(turn_id, rootTurnId=self.id, startedAt=int(time.time()))
        self.notify("turn/started", threadId=thread_id, turn=turn)
        item = {**self.message_item(unescaped(rest) or "from the sub-agent"), "startedAtMs": now_ms(), "completedAtMs": None}
        self.notify("item/started", item={**item, "text": ""}, **ids, startedAtMs=now_ms())
        item["completedAtMs"] = now_ms()
        self.notify("item/completed", item=item, **ids, contentTokenCount=None, completedAtMs=now_ms())
        counts = dict.fromkeys(TOKEN_FIELDS, 7)
        usage = {"total": counts, "last": counts, "modelContextWindow": 258400}
        self.notify("thread/tokenUsage/updated", **ids, tokenUsage=usage)
        self.notify("thread/status/changed", threadId=thread_id, status={"type": "idle"})
        done = {**turn, "items": [item], "itemsView": "summary", "status": "completed", "completedAt": int(time.time()), "durationMs": 1}
        self.notify("turn/completed", threadId=thread_id, turn=done)

    def do_lose_steer(self, rest: str) -> None:
        self.loses_steers = True

    def do_no_reply(self, rest: str) -> None:
        self.server.silent.append(rest or "turn/interrupt")

    def do_late_started(self, rest: str) -> None:
        """Was seen when the turn began."""

    do_slow_start = do_dead_turn = do_overload_refusal = do_crash_at = do_late_started

    # --- directives: what goes wrong with the process and its pipes ---

    def do_ignore_interrupt(self, rest: str) -> None:
        self.deaf = True

    def do_crash(self, rest: str) -> None:
        self.server.die(signal.Signals["SIG" + rest.removeprefix("SIG")] if rest and not rest.isdigit() else int(rest or signal.SIGKILL))

    def do_crash_once(self, rest: str) -> None:
        if self.server.plan.claim(f"crash_once.{self.conversation.id}.{self.step_key}", 1):
            self.do_crash(rest)

    def do_exit(self, rest: str) -> None:
        self.server.leave(int(rest or 0))

    def do_half_line(self, rest: str) -> None:
        line = encode({"method": "item/completed", "params": {"item": self.message_item(rest or "half"), **self.ids()}})
        self.server.out.raw(line[: len(line) // 2])
        self.server.leave(1)

    def do_bad_utf8(self, rest: str) -> None:
        params = {**self.ids(), "itemId": "msg_bad", "delta": "bad <> bytes"}
        frame = {"method": "item/agentMessage/delta", "params": params, "emittedAtMs": now_ms()}
        self.server.out.raw(encode(frame).replace(b"<>", b"\xff\xc3"))

    def do_garbage(self, rest: str) -> None:
        unknown = encode({"method": "of/tomorrow", "params": {"threadId": self.conversation.id}, "emittedAtMs": now_ms()})
        self.server.out.raw(b"Warning: this line is no JSON\n[1,2,3]\n\n42\r\n" + unknown + b"\x00\n")

    def do_stderr(self, rest: str) -> None:
        write_stderr(error_lines(int(rest or 80)))

    def do_stop_reading(self, rest: str) -> None:
        self.server.reads = False

    def do_ignore_sigterm(self, rest: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_close_stdout(self, rest: str) -> None:
        self.server.out.close()

    def do_spawn(self, rest: str) -> None:
        self.spawn(rest, keep_output=False)

    def do_hold_pipe(self, rest: str) -> None:
        self.spawn(rest, keep_output=True)

    def spawn(self, seconds: str, *, keep_output: bool) -> None:
        pid = os.fork()
        if pid == 0:
            detach(seconds or "60", keep_output=keep_output)
        self.say(f"spawned {pid}")


TOOLS = frozenset(("run", "run_sleep", "await_steer", "late_item", "change_file", "call_mcp", "ask", "ask_patch", "ask_user"))
AT_MOST_ONCE = (TOOLS - {"change_file"}) | {"foreign_thread"}


def process_id() -> str:
    return str(10000 + int.from_bytes(os.urandom(2), "big"))


def decided(answer: Frame) -> str:
    """Return the decision in an answer: an error, or one that is no decision, is none."""
    decision = (answer.get("result") or {}).get("decision")
    return next(iter(decision), "") if isinstance(decision, dict) else str(decision or "")


def in_brief(turn: Frame) -> Frame:
    """Return a turn with its first message and its answer alone."""
    asked = [item for item in turn["items"] if item["type"] == "userMessage"][:1]
    answers = [item for item in turn["items"] if item["type"] == "agentMessage"][-1:]
    return {**turn, "items": asked + answers, "itemsView": "summary"}


# --- a thread ---


class Conversation:
    """A thread that this process has open: its settings, its turn, its commands."""

    def __init__(self, server: Server, thread_id: str, settings: Frame) -> None:
        self.server = server
        self.id = thread_id
        self.settings = settings
        self.store = Store(server.state, thread_id, ephemeral=bool(settings.get("ephemeral")))
        self.turn: Turn | None = None
        self.player: Steps | None = None
        self.deadline_s: float | None = None
        self.condition: Callable[[], bool] | None = None
        self.steers: list[Steer] = []
        self.commands: list[Command] = []
        self.allowed: set[str] = set()
        self.subscribed = True
        self.idle = "idle"
        self.flags: list[str] = []

    # --- frames ---

    def notify(self, method: str, **params: Any) -> None:
        if self.subscribed or method in ("thread/status/changed", "thread/readState/changed"):
            self.server.notify(method, params)

    def status(self, kind: str, **more: Any) -> None:
        self.flags = more.get("activeFlags", [])
        self.notify("thread/status/changed", threadId=self.id, status={"type": kind, **more})

    def tell_usage(self, turn_id: str) -> None:
        usage = {"total": self.store.total, "last": self.store.last, "modelContextWindow": 258400}
        self.notify("thread/tokenUsage/updated", threadId=self.id, turnId=turn_id, tokenUsage=usage)

    def read_state(self, ending: str = "") -> Frame:
        """Return what nobody has read: from the first turn that was not interrupted."""
        unread = [turn["id"] for turn in self.store.turns if turn["status"] in ("completed", "failed") or turn["id"] == ending]
        return {"firstUnread": {"type": "turn", "turnId": unread[0]} if unread else None, "revision": new_uuid()}

    def tell_read_state(self, turn_id: str) -> None:
        self.notify("thread/readState/changed", threadId=self.id, readState=self.read_state(turn_id))

    def status_object(self) -> Frame:
        if self.turn and self.turn.started:
            return {"type": "active", "activeFlags": self.flags}
        return {"type": self.idle}

    def thread_object(self, *, turns: bool, status: Frame | None = None) -> Frame:
        settings, store, loaded = self.settings, self.store, status is None
        environment = {"environmentId": "local", "cwd": settings["cwd"], "runtimeWorkspaceRoots": [settings["cwd"]]}
        thread: Frame = {"id": self.id, "environments": [environment] if loaded else None, "extra": None, "sessionId": self.id}
        thread |= {
            "forkedFromId": None,
            "attachedToThreadId": None,
            "parentThreadId": None,
            "preview": self.preview(),
            "ephemeral": store.ephemeral,
        }
        thread |= {"section": None, "sectionEnteredAt": None, "projectId": None, "historyMode": "paginated"}
        thread |= {"modelProvider": settings["modelProvider"], "model": settings["model"], "reasoningEffort": settings["reasoningEffort"]}
        thread |= {"createdAt": settings["createdAt"], "updatedAt": int(time.time()), "recencyAt": int(time.time())}
        thread |= {"status": status or self.status_object(), "path": None if store.ephemeral else store.path, "cwd": settings["cwd"]}
        thread |= {"cliVersion": self.server.version, "originator": self.server.originator, "source": "vscode"}
        thread |= {"canAcceptDirectInput": loaded or None, "threadSource": None, "agentNickname": None, "agentRole": None, "gitInfo": None}
        shown = [{**turn, "itemsView": "full"} for turn in store.turns] if turns else []
        return {**thread, "name": None, "daybreakEnabled": None, "turns": shown}

    def preview(self) -> str:
        items = [item for turn in self.store.turns for item in turn["items"] if item["type"] == "userMessage"]
        return text_of(items[0]["content"]) if items else ""

    def page(self, params: Frame) -> Frame:
        """Return a page of the history: newest first and in brief unless asked otherwise. A cursor is a number of turns to pass over."""
        turns = [{**turn, "itemsView": "full"} for turn in self.store.turns]
        if params.get("sortDirection") != "asc":
            turns.reverse()
        if params.get("itemsView", "summary") != "full":
            turns = [in_brief(turn) for turn in turns]
        first = int(params.get("cursor") or 0)
        last = first + int(params.get("limit") or 25)
        return {
            "data": turns[first:last],
            "nextCursor": str(last) if turns[last:] else None,
            "backwardsCursor": str(first) if turns else None,
        }

    def opened(self, *, turns: bool = False, resumed: bool = False) -> Frame:
        """Return the reply to thread/start and thread/resume: what the server will do, which the client should check."""
        settings, plan = self.settings, self.server.plan
        sandbox, approvals = plan.get("echo_wrong_sandbox"), plan.get("echo_wrong_approvals")
        reply: Frame = {"thread": self.thread_object(turns=turns), "model": settings["model"], "modelProvider": settings["modelProvider"]}
        reply |= {"serviceTier": None, "disabledPluginIds": [], "cwd": settings["cwd"], "runtimeWorkspaceRoots": [settings["cwd"]]}
        reply |= {"instructionSources": [], "approvalPolicy": approvals or settings["approvalPolicy"], "approvalsReviewer": "user"}
        reply |= {"sandbox": SANDBOXES[sandbox] if sandbox else settings["sandbox"], "activePermissionProfile": None}
        reply["reasoningEffort"] = settings["reasoningEffort"]
        if resumed:
            reply["collaborationMode"] = self.collaboration()
        reply["multiAgentMode"] = "explicitRequestOnly"
        cursors = {"initialTurnsPage": None, "turnsBackwardsCursor": "{}", "itemsBackwardsCursor": "{}"} if resumed else {}
        return {**reply, **cursors}

    def collaboration(self) -> Frame:
        settings = self.settings
        mode = {"model": settings["model"], "reasoning_effort": settings["reasoningEffort"], "developer_instructions": None}
        return {"mode": "default", "settings": mode}

    def tell_settings(self) -> None:
        settings = self.settings
        environment = {"environmentId": "local", "cwd": settings["cwd"], "runtimeWorkspaceRoots": [settings["cwd"]]}
        shown: Frame = {"disabledPluginIds": [], "cwd": settings["cwd"], "environments": [environment]}
        shown |= {"approvalPolicy": settings["approvalPolicy"], "approvalsReviewer": "user", "sandboxPolicy": settings["sandbox"]}
        shown |= {"activePermissionProfile": None, "model": settings["model"], "modelProvider": settings["modelProvider"]}
        shown |= {"serviceTier": None, "effort": settings["reasoningEffort"], "summary": None}
        shown |= {"collaborationMode": self.collaboration(), "multiAgentMode": "explicitRequestOnly", "personality": None}
        self.notify("thread/settings/updated", threadId=self.id, threadSettings=shown)

    # --- configuration ---

    def configured(self, dotted: str) -> Any:
        """Return a per-thread override of config.toml, given flat or nested."""
        config = self.settings.get("config") or {}
        if dotted in config:
            return config[dotted]
        for part in dotted.split("."):
            config = config.get(part) if isinstance(config, dict) else None
        return config

    def instant_interrupt(self) -> bool:
        return self.configured("features.instant_interrupt") is not False

    def shell_env(self, item_id: str) -> dict[str, str]:
        own = {"CODEX_THREAD_ID": self.id, "CODEX_SESSION_ID": self.id, "CODEX_TOOL_CALL_ID": item_id, "CODEX_CI": "1", "NO_COLOR": "1"}
        dotted = "shell_environment_policy.set."
        config = (self.settings.get("config") or {}).items()
        flat = {key.removeprefix(dotted): value for key, value in config if key.startswith(dotted)}
        return {**os.environ, **own, **(self.configured("shell_environment_policy.set") or {}), **flat}

    # --- the course ---

    def run(self, turn: Turn) -> None:
        self.turn = turn
        self.player = turn.play()
        self.advance()

    def advance(self, error: Exception | None = None) -> None:
        """Play on until the turn waits for something or ends."""
        assert self.player is not None  # noqa: S101 - for the type checker
        try:
            self.deadline_s, self.condition = self.player.throw(error) if error else next(self.player)
        except StopIteration:
            self.turn = self.player = None

    def due(self) -> bool:
        if not self.turn:
            return False
        if self.turn.interrupts:
            return True
        if self.deadline_s is not None and time.monotonic() >= self.deadline_s:
            return True
        return bool(self.condition and self.condition())

    def step(self) -> bool:
        """Do what is due; return whether anything was."""
        self.end_commands()
        if not self.due():
            return False
        self.advance(Interrupted() if self.turn and self.turn.interrupts else None)
        return True

    def end_commands(self) -> None:
        """Tell of commands that nobody waits for any more and that ended by themselves."""
        for command in [one for one in self.commands if not one.awaited and one.poll()]:
            self.commands.remove(command)
            command.turn.end_item(command.ended())

    def kill_commands(self) -> None:
        for command in list(self.commands):
            command.kill()
            self.commands.remove(command)
            command.turn.end_item(command.ended())

    def hang_up(self) -> None:
        """The server ends in order: what runs is interrupted, on disk too, and no more is said of it."""
        self.subscribed = False
        self.kill_commands()
        if self.turn and self.turn.started:
            ms = int((time.time() - self.turn.began_s) * 1000)
            self.store.add("end", turn=self.turn.id, status="interrupted", error=None, at=int(time.time()), ms=ms)

    def deadlines(self) -> list[float]:
        times = [command.ends_s for command in self.commands if command.ends_s is not None and command.exit_code is None]
        return [*times, self.deadline_s] if self.turn and self.deadline_s is not None else times


# --- the server ---

EXPERIMENTAL = ("thread/backgroundTerminals/list", "thread/backgroundTerminals/clean")
METHODS = {
    "initialize": "initialize",
    "thread/start": "start_thread",
    "thread/resume": "resume_thread",
    "thread/read": "read_thread",
    "thread/list": "list_threads",
    "thread/loaded/list": "list_loaded",
    "thread/turns/list": "list_turns",
    "thread/archive": "archive",
    "thread/unarchive": "unarchive",
    "thread/unsubscribe": "unsubscribe",
    "thread/revert": "revert",
    "thread/fork": "fork",
    "thread/backgroundTerminals/list": "list_terminals",
    "thread/backgroundTerminals/clean": "clean_terminals",
    "turn/start": "start_turn",
    "turn/steer": "steer_turn",
    "turn/interrupt": "interrupt_turn",
    "model/list": "list_models",
    "account/read": "read_account",
    "account/rateLimits/read": "read_limits",
}
WITHOUT_PARAMS = ("account/rateLimits/read",)


class Server:
    """The process: its arguments, its input, its threads."""

    def __init__(self) -> None:
        home = os.environ.get("CODEX_HOME")
        self.home = home or os.path.expanduser("~/.codex")  # noqa: PTH111
        if home and not os.path.isdir(home):  # noqa: PTH112
            write_stderr(f'Error: CODEX_HOME points to "{home}", but that path does not exist\n'.encode())
            sys.exit(1)
        self.state = os.environ.get("GREENROOM_SCRIPTED_STATE") or self.home + "/scripted"
        os.makedirs(self.state, mode=0o700, exist_ok=True)  # noqa: PTH103
        self.plan = Plan(self.state)
        self.version = str(self.plan.get("version", VERSION))
        self.out = Output(self.kill_line(), older=version_of(self.version) < (0, 171))
        self.threads: dict[str, Conversation] = {}
        self.answers: dict[int, Frame | None] = {}
        self.asked = 0
        self.limits: Frame = {"limitId": "codex", **dict.fromkeys(LIMIT_FIELDS), "rateLimitReachedType": None}
        self.initialized = False
        self.experimental = False
        self.opted_out: tuple[str, ...] = ()
        self.originator = "codex"
        self.silent: list[str] = list(self.plan.get("no_reply", ()))
        self.reads = not self.plan.get("stop_reading")
        self.silent_until_s = 0.0
        self.eof = False
        self.input = bytearray()
        self.received = 0

    def kill_line(self) -> int:
        after = int(self.plan.get("kill_after_line", 0))
        return after if after and self.plan.claim("kill_times", int(self.plan.get("kill_times", 1))) else 0

    # --- start and ends ---

    def start(self) -> None:
        record: Frame = {"pid": os.getpid(), "session_id": None, "resumed": False, "argv": sys.argv[1:]}
        record |= {"at": time.time(), "cwd": os.getcwd(), "env": sorted(os.environ)}  # noqa: PTH109
        self.append_log("starts.log", record)
        log_error(BWRAP)
        noise = self.plan.get("stderr_at_start", "")
        write_stderr(noise.encode() if isinstance(noise, str) else error_lines(int(noise)))
        if self.plan.get("garbage_at_start"):
            self.out.raw(b"Welcome to a banner\n")
        if self.plan.claim("die_at_start"):
            self.stop(1, "Error: died at start, as planned")
        self.silent_until_s = time.monotonic() + float(self.plan.get("slow_start_s", 0))
        self.wake_reader, wake_writer = os.pipe()
        os.set_blocking(wake_writer, False)
        os.set_blocking(self.wake_reader, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.leave(0))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def append_log(self, name: str, record: Frame) -> None:
        fd = os.open(f"{self.state}/{name}", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(fd, encode(record))
        os.close(fd)

    def stop(self, code: int, why: str) -> None:
        write_stderr(why.encode() + b"\n")
        self.out.drain()
        os._exit(code)

    def leave(self, code: int) -> None:
        """End in order."""
        for conversation in self.threads.values():
            conversation.hang_up()
        self.out.drain()
        os._exit(code)

    def die(self, number: int) -> None:
        self.out.drain()
        signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), number)

    # --- output ---

    def notify(self, method: str, params: Frame) -> None:
        if method not in self.opted_out:
            self.out.frame({"method": method, "params": params, "emittedAtMs": now_ms()})

    def reply(self, request_id: Any, result: Frame) -> None:
        self.out.frame({"id": request_id, "result": result})

    def ask(self, method: str, params: Frame) -> int:
        request_id, self.asked = self.asked, self.asked + 1
        self.answers[request_id] = None
        self.out.frame({"method": method, "id": request_id, "params": params})
        return request_id

    # --- input ---

    def read(self) -> None:
        data = os.read(0, 1 << 16)
        if not data:
            self.eof = True
            signal.alarm(ORPHAN_LIFE_S)
            return
        self.input += data
        self.received += len(data)
        limit = int(self.plan.get("die_after_input_bytes", 0))
        if limit and self.received >= limit and self.plan.claim("kill_times", int(self.plan.get("kill_times", 1))):
            self.die(signal.SIGKILL)
        if b"\n" not in data:
            return
        *lines, rest = bytes(self.input).split(b"\n")
        self.input = bytearray(rest)
        for line in lines:
            self.take_line(line)

    def take_line(self, line: bytes) -> None:
        try:
            frame = json.loads(line.decode())
        except UnicodeDecodeError:
            log_error("Failed reading stdin: stream did not contain valid UTF-8")
            self.leave(0)
        except ValueError as error:
            log_error(f"Failed to deserialize JSONRPCMessage: {error}")
        else:
            self.take_frame(frame)

    def take_frame(self, frame: Any) -> None:
        """Take one message: what is no message, or has an id that is none, gets no reply at all."""
        request_id = frame.get("id") if isinstance(frame, dict) else None
        if not isinstance(request_id, (int, str)) or isinstance(request_id, bool):
            if not isinstance(frame, dict) or not isinstance(frame.get("method"), str) or "id" in frame:
                log_error("Failed to deserialize JSONRPCMessage: data did not match any variant of untagged enum JSONRPCMessage")
        elif "method" in frame:
            self.take_request(request_id, frame)
        elif isinstance(request_id, int) and request_id in self.answers:
            self.answers[request_id] = frame

    def take_request(self, request_id: Any, frame: Frame) -> None:
        method = str(frame["method"])
        self.append_log("requests.log", {"pid": os.getpid(), "at": time.time(), "method": method, "params": frame.get("params")})
        if method in self.silent:
            self.silent.remove(method)
            return
        try:
            handler = self.handler(method, frame)
            result = handler(request_id, frame.get("params") or {})
        except RpcError as error:
            self.out.frame({"error": error.error, "id": request_id})
        else:
            if result is not None:
                self.reply(request_id, result)

    def handler(self, method: str, frame: Frame) -> Any:
        if method not in METHODS:
            known = ", ".join(f"`{name}`" for name in METHODS)
            raise RpcError(f"Invalid request: unknown variant `{method}`, expected one of {known}")
        if "params" not in frame and method not in WITHOUT_PARAMS:
            raise RpcError("Invalid request: missing field `params`")
        if method != "initialize" and not self.initialized:
            raise RpcError("Not initialized")
        if method in EXPERIMENTAL and not self.experimental:
            raise RpcError(f"{method} requires experimentalApi capability")
        return getattr(self, METHODS[method])

    # --- requests: the process ---

    def initialize(self, request_id: Any, params: Frame) -> None:
        if self.plan.claim("no_handshake"):
            return
        if self.initialized:
            raise RpcError("Already initialized")
        client, able = field(params, "clientInfo", dict), params.get("capabilities") or {}
        self.initialized = True
        self.experimental = bool(able.get("experimentalApi"))
        self.opted_out = tuple(able.get("optOutNotificationMethods") or ())
        self.originator = field(client, "name", str)
        about = f"{self.originator}/{self.version} (Debian 12.0.0; x86_64) unknown ({self.originator}; {client.get('version')})"
        self.reply(request_id, {"userAgent": about, "codexHome": self.home, "platformFamily": "unix", "platformOs": "linux"})
        if self.plan.claim("exit_after_handshake"):
            self.stop(1, "Error: ended after the handshake, as planned")
        self.notify("configWarning", {"summary": BWRAP, "details": None})
        remote = {"status": "disabled", "serverName": "vm", "installationId": new_uuid(), "environmentId": None}
        self.notify("remoteControl/status/changed", remote)

    def list_models(self, request_id: Any, params: Frame) -> Frame:
        efforts = [{"reasoningEffort": effort, "description": effort} for effort in ("low", "medium", "high", "xhigh")]
        model: Frame = {"id": MODEL, "model": MODEL, "displayName": "GPT-5.5", "description": "scripted", "hidden": False}
        model |= {"supportedReasoningEfforts": efforts, "defaultReasoningEffort": "medium", "isDefault": True}
        return {"data": [model], "nextCursor": None}

    def read_account(self, request_id: Any, params: Frame) -> Frame:
        return {"account": None, "userId": None, "requiresOpenaiAuth": False, "workspaceRouting": None}

    def read_limits(self, request_id: Any, params: Frame) -> Frame:
        raise RpcError("codex account authentication required to read rate limits")

    # --- requests: threads ---

    def settings(self, params: Frame) -> Frame:
        approval, sandbox = params.get("approvalPolicy"), params.get("sandbox")
        check_variant(next(iter(approval)) if isinstance(approval, dict) else approval, APPROVALS)
        check_variant(sandbox, tuple(SANDBOXES))
        given: Frame = {"cwd": params.get("cwd") and os.path.abspath(params["cwd"]), "model": params.get("model")}  # noqa: PTH100
        given |= {
            "modelProvider": params.get("modelProvider"),
            "approvalPolicy": approval,
            "sandbox": SANDBOXES[sandbox] if sandbox else None,
        }
        config = params.get("config") or {}
        given["reasoningEffort"] = config.get("model_reasoning_effort")
        return {**given, "config": params.get("config"), "ephemeral": params.get("ephemeral")}

    def start_thread(self, request_id: Any, params: Frame) -> None:
        base: Frame = {"cwd": os.getcwd(), "model": MODEL, "modelProvider": "fake", "approvalPolicy": "on-request"}  # noqa: PTH109
        base |= {"sandbox": SANDBOXES["read-only"], "reasoningEffort": None, "createdAt": int(time.time())}
        conversation = Conversation(self, new_uuid(), merged(base, self.settings(params)))
        conversation.store.locked()
        self.threads[conversation.id] = conversation
        self.reply(request_id, conversation.opened())
        self.start_mcp(conversation)
        self.notify("thread/started", {"thread": conversation.thread_object(turns=False)})

    def start_mcp(self, conversation: Conversation) -> None:
        servers = conversation.configured("mcp_servers") or {}
        for status in ("starting", "ready"):
            for name in servers:
                params = {"threadId": conversation.id, "name": name, "environmentId": None, "status": status}
                self.notify("mcpServer/startupStatus/updated", {**params, "error": None, "failureReason": None})

    def resume_thread(self, request_id: Any, params: Frame) -> None:
        thread_id = field(params, "threadId", str)
        overrides = self.settings(params)
        if not is_uuid(thread_id):
            raise RpcError(
                "invalid session id: invalid character: expected an optional prefix of `urn:uuid:` followed by [0-9a-fA-F-], "
                f"found `{thread_id[:1]}` at 1"
            )
        self.refuse_as_planned(thread_id)
        conversation = self.threads.get(thread_id) or self.open_old(thread_id)
        if not (conversation.store.turns or conversation.store.reverted) or conversation.store.ephemeral:
            raise RpcError(f"no rollout found for thread id {thread_id}")
        turns = not params.get("excludeTurns")
        if turns:
            self.notify("deprecationNotice", {"summary": f"{HYDRATION}use `excludeTurns: true`, then {HOW_TO_PAGE}", "details": None})
        conversation.settings = merged(conversation.settings, overrides)
        conversation.subscribed = True
        if thread_id not in self.threads:
            self.threads[thread_id] = conversation
            conversation.status("idle")
        opened = conversation.opened(turns=turns, resumed=True)
        if params.get("initialTurnsPage"):
            opened["initialTurnsPage"] = conversation.page(params["initialTurnsPage"])
        self.reply(request_id, opened)
        if conversation.store.usage_turn:
            conversation.tell_usage(conversation.store.usage_turn)
        conversation.notify("thread/goal/cleared", threadId=thread_id)

    def refuse_as_planned(self, thread_id: str) -> None:
        if self.plan.claim("resume_error_times"):
            raise RpcError(str(self.plan.get("resume_error")).replace("{id}", thread_id))
        if self.plan.claim("refuse_resume"):
            raise RpcError(f"no rollout found for thread id {thread_id}")
        if self.plan.claim("in_use_times"):
            raise RpcError(f"thread {thread_id} already has an active writer")

    def open_old(self, thread_id: str) -> Conversation:
        conversation = Conversation(self, thread_id, {})
        store = conversation.store
        if store.size() < 0:
            raise RpcError(f"no rollout found for thread id {thread_id}")
        if store.archived():
            raise RpcError(f"session {thread_id} is archived. Run `codex unarchive {thread_id}` to unarchive it first.")
        if not store.locked():
            log_error(f"Failed to create session: thread-store conflict: thread {thread_id} already has an active writer")
            raise RpcError(f"thread {thread_id} already has an active writer")
        if not store.size():
            store.unlock()
            why = f"thread-store internal error: failed to read session metadata {store.path}: rollout at {store.path} is empty"
            raise RpcError(f"failed to read thread: {why}", -32603)
        store.load()
        conversation.settings = store.meta
        return conversation

    def read_thread(self, request_id: Any, params: Frame) -> Frame:
        thread_id, turns = field(params, "threadId", str), bool(params.get("includeTurns"))
        conversation, status = self.threads.get(thread_id), None
        if not conversation:
            conversation, status = Conversation(self, thread_id, {}), {"type": "notLoaded"}
            if conversation.store.size() <= 0:
                raise RpcError(f"thread not loaded: {thread_id}")
            conversation.store.load()
            conversation.settings = conversation.store.meta
        if turns:
            self.notify("deprecationNotice", {"summary": f"{HYDRATION}omit `includeTurns`, then {HOW_TO_PAGE}", "details": None})
        return {
            "thread": conversation.thread_object(turns=turns, status=status),
            "readState": conversation.read_state(),
        }

    def list_threads(self, request_id: Any, params: Frame) -> Frame:
        known = [name.removesuffix(".jsonl") for name in sorted(os.listdir(self.state), reverse=True) if name.endswith(".jsonl")]  # noqa: PTH208
        data = []
        for thread_id in known:
            conversation = self.threads.get(thread_id) or Conversation(self, thread_id, {})
            if conversation.store.size() > 0:
                if thread_id not in self.threads:
                    conversation.store.load()
                    conversation.settings, conversation.idle = conversation.store.meta, "notLoaded"
                data.append(conversation.thread_object(turns=False))
        return {"data": data, "nextCursor": None, "backwardsCursor": None}

    def list_turns(self, request_id: Any, params: Frame) -> Frame:
        thread_id = field(params, "threadId", str)
        conversation = self.threads.get(thread_id) or Conversation(self, thread_id, {})
        if thread_id not in self.threads:
            if conversation.store.size() <= 0:
                raise RpcError(f"thread not loaded: {thread_id}")
            conversation.store.load()
        return conversation.page(params)

    def archive(self, request_id: Any, params: Frame) -> None:
        """Let go of a thread: what runs in it ends, and another process may have it once it is unarchived."""
        thread_id = field(params, "threadId", str)
        conversation = self.threads.get(thread_id) or Conversation(self, thread_id, {})
        if thread_id not in self.threads:
            if conversation.store.size() < 0:
                raise RpcError(f"no rollout found for thread id {thread_id}")
            if not conversation.store.locked():
                raise RpcError(f"thread {thread_id} already has an active writer")
        if conversation.turn:
            conversation.advance(Interrupted())
        conversation.status("notLoaded")
        conversation.subscribed = False
        conversation.kill_commands()
        conversation.store.archive()
        conversation.store.unlock()
        self.threads.pop(thread_id, None)
        self.reply(request_id, {})
        self.notify("thread/archived", {"threadId": thread_id})

    def unarchive(self, request_id: Any, params: Frame) -> None:
        thread_id = field(params, "threadId", str)
        conversation = Conversation(self, thread_id, {})
        store = conversation.store
        if not store.archived():
            raise RpcError(f"no archived rollout found for thread id {thread_id}")
        os.unlink(store.archived_path)  # noqa: PTH108
        if store.size() > 0:
            store.load()
        conversation.settings = store.meta
        self.reply(
            request_id,
            {"thread": conversation.thread_object(turns=False, status={"type": "notLoaded"}) if store.meta else {"id": thread_id}},
        )
        self.notify("thread/unarchived", {"threadId": thread_id})

    def revert(self, request_id: Any, params: Frame) -> None:
        """Drop a turn and all after it; a turn that runs is ended first."""
        old = self.loaded(params)
        before = field(params, "beforeTurnId", str)
        if not any(turn["id"] == before for turn in old.store.turns):
            raise RpcError(f"turn not found: {before}")
        if old.turn:
            old.advance(Interrupted())
        old.notify("thread/goal/cleared", threadId=old.id)
        old.status("notLoaded")
        old.store.cut(before)
        new = Conversation(self, old.id, old.settings)
        new.store.lock_fd, old.store.lock_fd = old.store.lock_fd, -1
        new.store.load()
        self.threads[old.id] = new
        new.status("idle")
        self.reply(request_id, {"thread": new.thread_object(turns=False)})
        new.notify("thread/reverted", threadId=new.id)

    def fork(self, request_id: Any, params: Frame) -> None:
        """Make a thread with the same turns, whoever has the old one; turns behind `lastTurnId` are left out."""
        thread_id, last = field(params, "threadId", str), params.get("lastTurnId")
        old = Conversation(self, thread_id, {})
        if old.store.size() <= 0:
            raise RpcError(f"no rollout found for thread id {thread_id}")
        fork_id = new_uuid()
        old.store.copied(self.state, fork_id)
        new = Conversation(self, fork_id, {})
        new.store.load()
        turns = [turn["id"] for turn in new.store.turns]
        if last in turns[:-1]:
            new.store.cut(turns[turns.index(last) + 1])
            new = Conversation(self, fork_id, {})
            new.store.load()
        new.store.locked()
        new.settings = merged(new.store.meta, self.settings(params))
        self.threads[fork_id] = new
        opened = new.opened(turns=not params.get("excludeTurns"))
        self.reply(request_id, {**opened, "thread": {**opened["thread"], "forkedFromId": thread_id}})

    def list_loaded(self, request_id: Any, params: Frame) -> Frame:
        return {"data": list(self.threads), "nextCursor": None}

    def unsubscribe(self, request_id: Any, params: Frame) -> Frame:
        conversation = self.threads.get(field(params, "threadId", str))
        if not conversation:
            return {"status": "notLoaded"}
        conversation.subscribed = False
        return {"status": "unsubscribed"}

    def loaded(self, params: Frame) -> Conversation:
        thread_id = field(params, "threadId", str)
        if thread_id not in self.threads:
            raise RpcError(f"thread not found: {thread_id}")
        return self.threads[thread_id]

    def list_terminals(self, request_id: Any, params: Frame) -> Frame:
        data = []
        for one in self.loaded(params).commands:
            about = {"itemId": one.item["id"], "processId": one.item["processId"], "command": one.item["commandActions"][0]["command"]}
            data.append({**about, "cwd": one.item["cwd"], "osPid": None, "cpuPercent": None, "rssKb": None})
        return {"data": data, "nextCursor": None}

    def clean_terminals(self, request_id: Any, params: Frame) -> None:
        conversation = self.loaded(params)
        self.reply(request_id, {})
        conversation.kill_commands()

    # --- requests: turns ---

    def start_turn(self, request_id: Any, params: Frame) -> Frame | None:
        conversation, content = self.loaded(params), field(params, "input", list)
        self.check_size(content)
        self.refuse_turn(conversation, content)
        self.override(conversation, params)
        message = Steer(content, params.get("clientUserMessageId"))
        if conversation.turn is None:
            conversation.run(Turn(conversation, message, request_id))
            return None
        # a busy thread takes the input into its turn, also one that has not started yet
        conversation.steers.append(message)
        return {"turn": turn_object(conversation.turn.id)}

    def check_size(self, content: list[Frame]) -> None:
        size = len(text_of(content))
        if size > INPUT_LIMIT_CHARS:
            data = {"input_error_code": "input_too_large", "max_chars": INPUT_LIMIT_CHARS, "actual_chars": size}
            raise RpcError(f"Input exceeds the maximum length of {INPUT_LIMIT_CHARS} characters.", -32602, data)

    def refuse_turn(self, conversation: Conversation, content: list[Frame]) -> None:
        refusals = [rest for word, rest in directives(text_of(content)) if word == "overload_refusal"]
        planned = self.plan.claim("overload_times")
        if planned or (refusals and self.plan.claim(f"overload.{conversation.id}", int(refusals[0] or 1))):
            raise RpcError("Server overloaded; retry later.", -32001)

    def override(self, conversation: Conversation, params: Frame) -> None:
        given: Frame = {"model": params.get("model"), "reasoningEffort": params.get("effort"), "cwd": params.get("cwd")}
        given |= {"approvalPolicy": params.get("approvalPolicy"), "sandbox": params.get("sandboxPolicy")}
        settings = merged(conversation.settings, given)
        if settings != conversation.settings:
            conversation.settings = settings
            conversation.tell_settings()

    def steer_turn(self, request_id: Any, params: Frame) -> Frame:
        conversation = self.loaded(params)
        wanted, content = field(params, "expectedTurnId", str), field(params, "input", list)
        if not content:
            raise RpcError("input must not be empty")
        self.check_size(content)
        turn = conversation.turn
        if not turn:
            raise RpcError("no active turn to steer")
        if turn.id != wanted:
            raise RpcError(f"expected active turn id `{wanted}` but found `{turn.id}`")
        if not turn.loses_steers:
            conversation.steers.append(Steer(content, params.get("clientUserMessageId")))
        return {"turnId": turn.id}

    def interrupt_turn(self, request_id: Any, params: Frame) -> Frame | None:
        conversation, wanted = self.loaded(params), field(params, "turnId", str)
        turn = conversation.turn
        if not turn or not turn.started:
            if not wanted:
                return {}
            raise RpcError("no active turn to interrupt")
        if wanted and turn.id != wanted:
            raise RpcError(f"expected active turn id {wanted} but found {turn.id}")
        if not turn.deaf:
            turn.interrupts.append(request_id)
        return None

    # --- the loop ---

    def step(self) -> bool:
        """Let each thread do what is due, one after the other; return whether any did."""
        return any([conversation.step() for conversation in list(self.threads.values())])  # noqa: C419 - each of them

    def timeout_ms(self) -> float | None:
        waits = [at for conversation in self.threads.values() for at in conversation.deadlines()]
        if self.silent_until_s > time.monotonic():
            waits.append(self.silent_until_s)
        return max(0.0, (min(waits) - time.monotonic()) * 1000 + 0.2) if waits else None

    def wait(self, *, at_once: bool) -> None:
        poller = select.poll()
        poller.register(self.wake_reader, select.POLLIN)
        if not self.eof and self.reads and time.monotonic() >= self.silent_until_s:
            poller.register(0, select.POLLIN)
        if self.out.buffer:
            poller.register(1, select.POLLOUT)
        for conversation in self.threads.values():
            for command in conversation.commands:
                if command.fd >= 0:
                    poller.register(command.fd, select.POLLIN)
        ready = dict(poller.poll(0 if at_once else self.timeout_ms()))
        if self.wake_reader in ready:
            drain_pipe(self.wake_reader)
        if 1 in ready:
            self.out.pump()
        if 0 in ready:
            self.read()

    def loop(self) -> None:
        while not self.eof or self.plan.get("ignore_eof"):
            self.wait(at_once=self.step())
        select.select((), (), (), float(self.plan.get("exit_delay_s", 0)))
        self.leave(0)


def drain_pipe(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 1 << 12)


def field(params: Frame, name: str, kind: type) -> Any:
    """Return a field that a request must have."""
    if name not in params:
        raise RpcError(f"Invalid request: missing field `{name}`")
    value = params[name]
    if not isinstance(value, kind):
        wanted = {"str": "a string", "list": "a sequence", "dict": "a map"}[kind.__name__]
        shown = f"{'integer' if isinstance(value, int) else 'value'} `{value}`"
        raise RpcError(f"Invalid request: invalid type: {shown}, expected {wanted}")
    return value


def check_variant(value: Any, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        known = ", ".join(f"`{name}`" for name in allowed)
        raise RpcError(f"Invalid request: unknown variant `{value}`, expected one of {known}")


def main() -> None:
    """Run as Codex would with these arguments."""
    argv = sys.argv[1:]
    if "--version" in argv or "-V" in argv:
        plan = Plan(os.environ.get("GREENROOM_SCRIPTED_STATE", ""))
        os.write(1, f"codex-cli {plan.get('version', VERSION)}\n".encode())
        return
    if "app-server" not in argv:
        write_stderr(b"error: the scripted codex knows `codex app-server` and `codex --version` alone\n")
        sys.exit(2)
    server = Server()
    server.start()
    server.loop()


if __name__ == "__main__":
    main()
