r"""A scripted Claude Code: a real process that speaks stream-json as Claude Code 2.1.332 does, without a model.

It decides nothing by itself: it plays the prompt. A prompt's lines that begin with one of the words below are *directives*, played in
order, one model answer for all of them; other lines are prose. A prompt without directives is answered `echo: <prompt>`. This file
uses the standard library alone and is started as `python -S -E scripted_claude.py <claude's arguments>`; one thread, one poll loop.

Directives (`\n` in a text is a line end):

    SAY text                        a text block                    THINK text                 a thinking block
    TOOL name {json} [-> output]    a tool call and its result      TOOL_SLEEP s [output]      a Bash call that takes s seconds
    WRITE path text                 really writes a file            APPEND path text           really appends a line to a file
    BREAK_OFF text                  text that breaks off; the CLI asks the model to go on, with the directives that follow
    SLOW n interval_s [text]        n pieces of text, streamed      SLEEP s                    the model thinks for s seconds
    RATE n per_s                    n timed texts; each is the time.monotonic_ns() of its sending
    FLOOD n bytes                   n texts of so many bytes, as fast as they are read
    HANG                            the model never answers         AWAIT_STEER                a tool that runs until a message arrives
    API_ERROR status kind text [times]     fails as an API error does (always, or the first `times` times in this conversation)
    API_RETRY n delay_s             n retries by the CLI itself     STRUCTURED json            the structured answer
    PERMISSION tool {json}          a call that is denied           CAN_USE_TOOL tool {json}   a call that asks the host
    TAKE_BACK tool {json}           a call that asks the host, and takes the question back at once
    ELICIT server {schema}          an MCP server asks the user to fill in a form
    UNKNOWN_REQUEST [subtype]       asks the host something new     SUBAGENT text              frames of a subagent
    RATE_LIMIT status type used resets_at  a rate_limit_event       COMPACT                    a compaction within the turn
    UNPROMPTED text                 a turn that nobody asked for, after this one (`text` may be a directive)
    LATE_FRAMES                     this turn's frames come again after the next prompt
    CRASH [signal]  CRASH_ONCE [signal]    kills itself (ONCE: is not played again after the resume)
    EXIT code  NO_RESULT_EXIT       ends without a result           CLOSE_STDOUT               closes its output and lives on
    HALF_LINE                       half a line, then exit 1        HUGE_LINE bytes            one line of that size
    BAD_UTF8  GARBAGE               bytes that are no frames        STDERR bytes               so much standard error
    CLEAR                           the conversation gets a new id  STOP_READING               reads no input any more
    IGNORE_INTERRUPT                leaves interrupts of this turn unanswered                  IGNORE_SIGTERM
    SPAWN s  HOLD_PIPE s            really starts a process in a session of its own that outlives this one (HOLD_PIPE: with its stdout)

`Continue from where you left off.` after a death, an interrupt or an API error, and an empty text block after an API error, go on with
the directives that were not done yet; a tool call that was cut is not repeated. Conversations are kept in GREENROOM_SCRIPTED_STATE
(default `$HOME/.scripted-claude`), one file of JSON lines each. GREENROOM_SCRIPTED_PLAN names a JSON file of things that happen
outside of turns; `greenroom.testing.scripted.Plan` writes it.
"""

# ruff: noqa: D102, D103 - a script: its face is the table above; its functions are named for what they do

from __future__ import annotations

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

VERSION = "2.1.332"
MODEL = "claude-opus-5-5"
CONTINUE = "Continue from where you left off"
CUT_CALL = (
    "[Tool call interrupted: the session ended before this call's result was recorded, so its outcome is unknown. "
    "Check whether it took effect before repeating it or running it again.]"
)
BROKE_OFF = (
    "Your response above was cut off mid-stream. Resume directly from where it stops \u2014 no apology, no recap. "
    "If none of it survived, answer the request from the start."
)
NO_RESPONSE = "No response requested."
REJECTED = "The user doesn't want to proceed with this tool use. The call was stopped while it was running."
UNATTENDED = "no approval surface in this session; permission request denied automatically"
FAST_MODE = {"fast_mode_state": "off", "fast_mode_disabled_reason": "sdk_opt_in_required"}
ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
ERROR_TYPES |= {429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}
FLOOD_BUFFER_BYTES = 1 << 20
KILL_LINE_FOREVER = 1 << 30
ORPHAN_LIFE_S = 300  # a test that died must not leave us for ever in a HANG


class Interrupted(Exception):  # noqa: N818 - it is thrown into a turn, not raised by a failure
    """The turn is to end now."""


class ApiError(Exception):
    """The turn ends as one does whose request the API refused."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        self.status = status
        self.kind = kind
        self.text = text
        super().__init__(text)


def new_uuid() -> str:
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_uuid(text: str) -> bool:
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(c in "0123456789abcdefABCDEF" for c in "".join(parts))


def new_id(prefix: str) -> str:
    return f"{prefix}_{os.urandom(10).hex()}"


def timestamp() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"


def encode(frame: Any) -> bytes:
    """Return one line as Claude Code writes it: UTF-8, no spaces, U+2028 and U+2029 escaped."""
    text = json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode("utf-8", "replace") + b"\n"


def unescaped(text: str) -> str:
    return text.replace("\\n", "\n")


def split(rest: str, count: int) -> list[str]:
    """Split into exactly `count` parts; the last one keeps its spaces, missing ones are empty."""
    parts = rest.split(None, count - 1)
    return parts + [""] * (count - len(parts))


def named_json(rest: str) -> tuple[str, Any, str]:
    """Parse `Name {json} rest`; the JSON may be missing."""
    name, tail = split(rest, 2)
    if not tail.startswith("{"):
        return name or "Bash", {}, tail
    value, end = json.JSONDecoder().raw_decode(tail)
    return name, value, tail[end:].strip()


def directives(text: str) -> list[tuple[str, str]]:
    """Return the directives of a prompt, or the one that echoes it."""
    found = []
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.isupper() and hasattr(Turn, "do_" + word.lower()):
            found.append((word.lower(), rest.strip()))
    return found or [("say", "echo: " + text)]


def own_steps(text: str) -> list[tuple[str, str]]:
    """Return the directives of a text that is said as it is if it has none."""
    word = text.split(" ", 1)[0]
    return directives(text) if word.isupper() and hasattr(Turn, "do_" + word.lower()) else [("say", text)]


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = [block for block in content or () if isinstance(block, dict)]
    text = "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    # What a driver adds for the model is no directive.
    return text.partition("<system-reminder>")[0].rstrip("\n") if "<system-reminder>" in text else text


def is_nudge(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and all(b.get("type") == "text" and b.get("text") == "" for b in content)


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


class Prompt:
    """One user message as the model has it: its directives, and how many of them are done."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.steps = directives(text)
        self.done = 0


class Store:
    """A conversation's file, and what it says: written behind by `delay_s`, lost with the process before that."""

    def __init__(self, state: str, session_id: str, delay_s: float) -> None:
        self.path = f"{state}/{session_id}.jsonl"
        self.delay_s = delay_s
        self.pending: list[tuple[float, bytes]] = []
        self.fd = -1
        self.taken: set[str] = set()
        self.old: set[str] = set()
        self.last_uuids: list[str] = []
        self.prompts: list[Prompt] = []
        self.last_end = ""
        self.open_call = False
        self.cut = False
        self.last_text = ""
        self.failures: dict[str, int] = {}
        self.bye: Frame | None = None
        self.count = 0

    def exists(self) -> bool:
        return os.path.exists(self.path)  # noqa: PTH110

    def load(self) -> None:
        with open(self.path, encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                if line.endswith("\n"):
                    self.apply(json.loads(line))
        self.old = set(self.taken)
        self.cut = self.count > 0 and not self.last_end

    def apply(self, record: Frame) -> None:
        getattr(self, "on_" + record["k"])(record)
        if record["k"] != "bye":
            self.bye = None

    def on_prompt(self, record: Frame) -> None:
        if not record["joins"]:
            self.prompts = []
        self.count += 1
        self.taken.update(record["uuids"])
        self.last_uuids = record["uuids"]
        self.prompts.insert(0, Prompt(record["n"], record["text"]))
        self.last_end = ""

    def on_go_on(self, record: Frame) -> None:
        self.taken.update(record["uuids"])
        self.last_end = ""

    def on_step(self, record: Frame) -> None:
        for prompt in self.prompts:
            if prompt.number == record["n"]:
                prompt.done = record["done"]

    def on_text(self, record: Frame) -> None:
        self.last_text = record["text"]

    def on_tool_use(self, record: Frame) -> None:
        self.open_call = True

    def on_tool_result(self, record: Frame) -> None:
        self.open_call = False

    def on_failure(self, record: Frame) -> None:
        self.failures[record["key"]] = self.failures.get(record["key"], 0) + 1

    def on_marker(self, record: Frame) -> None:
        """Nothing follows from a marker; it is there for the reader of the history."""

    def on_end(self, record: Frame) -> None:
        self.last_end = record["reason"]
        if record["reason"] == "completed":
            self.prompts = []

    def on_bye(self, record: Frame) -> None:
        self.bye = record

    def add(self, kind: str, **fields: Any) -> None:
        record = {"k": kind, **fields}
        self.apply(record)
        self.pending.append((time.monotonic() + self.delay_s, encode(record)))
        self.flush()

    def moved(self, session_id: str) -> Store:
        """Return a new conversation that begins with the prompts that are being played."""
        self.flush(everything=True)
        new = Store(os.path.dirname(self.path), session_id, self.delay_s)  # noqa: PTH120
        new.taken, new.old = set(self.taken), set(self.old)
        for prompt in reversed(self.prompts):
            new.add("prompt", n=prompt.number, uuids=self.last_uuids, text=prompt.text, joins=bool(new.prompts))
            new.add("step", n=prompt.number, done=prompt.done + 1)
        self.prompts = new.prompts
        return new

    def flush(self, *, everything: bool = False) -> None:
        now = time.monotonic()
        due = [data for at, data in self.pending if everything or at <= now]
        if not due:
            return
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(self.fd, b"".join(due))
        del self.pending[: len(due)]

    def close_cut_turn(self) -> None:
        """Say to the model what Claude Code says of a turn that a death cut."""
        if not self.cut:
            return
        self.cut = False
        if self.open_call:
            self.add("tool_result", content=CUT_CALL)
        self.add("text", text=NO_RESPONSE)
        self.last_text = ""


class Output:
    """Standard output: buffered without a bound, as Claude Code's is, so that an unread pipe blocks nothing."""

    def __init__(self, kill_after: int) -> None:
        self.buffer = bytearray()
        self.lines_left = kill_after or KILL_LINE_FOREVER
        self.closed = False
        mode = os.fstat(1).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(1, False)

    def frame(self, frame: Frame) -> None:
        self.raw(encode(frame))

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
        except OSError:  # the reader has gone: Claude Code finishes its turn all the same
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
        os.close(1)


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


class Copies:
    """Makes copies of a text's frame, each with a uuid of its own (a reader drops what it has seen), at a fiftieth of a new one's cost."""

    def __init__(self, line: bytes, text: str) -> None:
        self.head, _, rest = line.partition(text.encode())
        between, mark, tail = rest.partition(b'"uuid":"')
        self.between, self.tail = between + mark, tail[8:]

    def one(self, number: int, text: str) -> bytes:
        return b"%b%b%b%08x%b" % (self.head, text.encode(), self.between, number, self.tail)


class Message:
    """A user message that waits in the CLI."""

    def __init__(self, frame: Frame) -> None:
        self.content = frame["message"]["content"]
        self.text = text_of(self.content)
        self.given: str | None = frame.get("uuid")
        self.uuid = self.given or new_uuid()
        self.priority = frame.get("priority", "next")
        self.waited = False
        self.silent = False


class Money:
    """Counters: of the process (or over clean resumes), since the last result, of the turn, and of its answers that came to their end."""

    FIELDS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")

    def __init__(self) -> None:
        self.total = dict.fromkeys(self.FIELDS, 0)
        self.reported = dict(self.total)
        self.turn = dict(self.total)
        self.answered = dict(self.total)

    def carry(self, totals: dict[str, int]) -> None:
        self.total = dict(totals)
        self.reported = dict(totals)

    def request(self) -> None:
        self.add(inputTokens=100, cacheReadInputTokens=30, cacheCreationInputTokens=20)

    def answer_ends(self) -> None:
        self.answered = dict(self.turn)

    def turn_ends(self) -> None:
        self.turn = dict.fromkeys(self.FIELDS, 0)
        self.answered = dict(self.turn)

    def words(self, text: str) -> None:
        self.add(outputTokens=len(text.split()))

    def add(self, **counts: int) -> None:
        for key, count in counts.items():
            self.total[key] += count
            self.turn[key] += count

    @staticmethod
    def cost(counts: dict[str, int]) -> float:
        picodollars = 4_000 * counts["inputTokens"] + 20_000 * counts["outputTokens"]
        return (picodollars + 200 * counts["cacheReadInputTokens"] + 5_000 * counts["cacheCreationInputTokens"]) / 1e9

    def by_model(self, counts: dict[str, int]) -> Frame:
        if not any(counts.values()):
            return {}
        extra: Frame = {"webSearchRequests": 0, "costUSD": self.cost(counts), "contextWindow": 1000000, "maxOutputTokens": 128000}
        extra |= {"thinkingTokens": 0, "cacheCreationEphemeral5mInputTokens": 0, "cacheCreationEphemeral1hInputTokens": 0}
        extra |= {"canonicalModel": MODEL, "provider": "firstParty", "costBasis": "list"}
        return {MODEL: {**counts, **extra}}

    def report(self) -> Frame:
        """Return what came since the last result, and begin anew."""
        delta = {key: self.total[key] - self.reported[key] for key in self.FIELDS}
        self.reported = dict(self.total)
        return self.by_model(delta)


def usage_of(counts: dict[str, int], *, error: bool = False) -> Frame:
    tokens: Frame = {"input_tokens": counts["inputTokens"], "cache_creation_input_tokens": counts["cacheCreationInputTokens"]}
    tokens |= {"cache_read_input_tokens": counts["cacheReadInputTokens"], "output_tokens": counts["outputTokens"]}
    details: Frame = {"output_tokens_details": {"thinking_tokens": 0}}
    rest: Frame = {"server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0}, "service_tier": "standard"}
    rest |= {"cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0}, "inference_geo": ""}
    rest |= {"iterations": [], "speed": "standard", "fallback_credit": None}
    return {**details, **tokens, **rest} if error else {**tokens, **details, **rest}


class Turn:
    """One turn: a generator that writes frames and yields what it waits for, `(deadline or None, condition or None)`."""

    def __init__(self, cli: Cli, messages: list[Message], *, origin: str = "", steps: list[tuple[str, str]] | None = None) -> None:
        self.cli = cli
        self.out = cli.out
        self.messages = messages
        self.steered: list[Message] = []
        self.origin = origin
        self.self_steps = steps
        self.resumed_uuids = cli.store.last_uuids if any(message.silent for message in messages) else []
        self.uuids = [message.given for message in messages if message.given]
        self.echoed = False
        self.first_answer = True
        self.message_id = ""
        self.message_ids: list[str] = []
        self.index = 0
        self.open_block = ""
        self.partial = ""
        self.running_tool = ""
        self.rounds = 1
        self.last_text = ""
        self.structured: Any = None
        self.denials: list[Frame] = []
        self.deaf = False
        self.started_s = time.monotonic()
        self.frames: list[bytes] = []
        self.is_error = False
        self.unmarked: tuple[Prompt, int] | None = None

    # --- frames ---

    def common(self) -> Frame:
        return {"session_id": self.cli.session_id, "uuid": new_uuid(), "timestamp": timestamp()}

    def send(self, frame: Frame) -> None:
        data = encode(frame)
        if frame["type"] in ("assistant", "result") and len(data) < FLOOD_BUFFER_BYTES:
            self.frames = [*self.frames[-3:], data]
        self.out.raw(data)

    def lifecycle(self, message: Message, state: str) -> None:
        if message.given:
            self.cli.lifecycle(message.given, state)

    def named(self) -> Frame:
        uuids = self.uuids or self.resumed_uuids
        if not (uuids and self.first_answer):
            return {}
        return {"user_message_uuid": self.opening_uuid(uuids), "user_message_uuids": uuids}

    def opening_uuid(self, uuids: list[str]) -> str:
        """Return the uuid by which the turn is named: its last opening message's, never that of a message that joined it."""
        opening = [message.given for message in self.messages if message.given]
        return opening[-1] if opening else uuids[-1]

    def echo(self, message: Message, content: Any = None, *, short: bool = False) -> None:
        if not self.cli.replays or message.silent:
            return
        frame: Frame = {"type": "user", "message": {"role": "user", "content": message.content if content is None else content}}
        frame |= {"session_id": self.cli.session_id, "parent_tool_use_id": None, "uuid": message.uuid}
        if not short:
            frame["timestamp"] = timestamp()
        self.send({**frame, "isReplay": True})

    def answer_begins(self) -> None:
        """Write what comes with the model's first answer: Claude Code echoes the prompt no sooner."""
        if not self.echoed and self.messages:
            self.echoed = True
            self.echo(self.messages[-1], self.merged() if len(self.messages) > 1 else None)
        if not self.message_id:
            self.message_id = new_id("msg")
            self.message_ids.append(self.message_id)
            self.index = 0
            self.cli.money.request()
            self.stream({"type": "message_start", "message": self.message([])}, first=True)

    def merged(self) -> Any:
        """Return the content that several messages have as one: texts in lines, blocks one after the other."""
        contents = [message.content for message in self.messages]
        if all(isinstance(content, str) for content in contents):
            return "\n".join(contents)
        return [block for content in contents for block in ([{"type": "text", "text": content}] if isinstance(content, str) else content)]

    def message(self, content: list[Frame]) -> Frame:
        head: Frame = {"id": self.message_id, "type": "message", "role": "assistant", "model": MODEL, "content": content}
        usage = {"input_tokens": 100, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30, "output_tokens": 1}
        return {**head, "stop_reason": None, "stop_sequence": None, "usage": usage}

    def stream(self, event: Frame, *, first: bool = False) -> None:
        if not self.cli.partial:
            return
        frame: Frame = {
            "type": "stream_event",
            "event": event,
            "session_id": self.cli.session_id,
            "parent_tool_use_id": None,
            "uuid": new_uuid(),
        }
        if first:
            frame |= {"ttft_ms": 5, "thinking_display": "updates"}
        frame["api_message_id"] = self.message_id
        if first and self.named():
            frame |= {**self.named(), "owed_rows": []}
        self.send(frame)

    def start_block(self, block: Frame, kind: str) -> None:
        self.answer_begins()
        self.open_block = kind
        self.partial = ""
        self.stream({"type": "content_block_start", "index": self.index, "content_block": block})

    def delta(self, delta: Frame) -> None:
        self.stream({"type": "content_block_delta", "index": self.index, "delta": delta})

    def end_block(self, block: Frame, **extra: Any) -> None:
        self.assistant(block, **extra)
        self.stream({"type": "content_block_stop", "index": self.index})
        self.index += 1
        self.open_block = self.partial = ""

    def assistant(self, block: Frame, **extra: Any) -> None:
        self.send(self.assistant_frame(block, **extra))

    def assistant_frame(self, block: Frame, **extra: Any) -> Frame:
        """Return the frame of one block: only the first of a turn names the messages that it answers."""
        named, self.first_answer = self.named(), False
        frame: Frame = {"type": "assistant", "message": {**self.message([block]), "context_management": None}, "parent_tool_use_id": None}
        return {**frame, **self.common(), "request_id": new_id("req"), **extra, **named}

    def end_message(self, stop_reason: str, *, whole: bool = True) -> None:
        if whole:
            self.cli.money.answer_ends()
        if self.message_id:
            delta = {"stop_reason": stop_reason, "stop_sequence": None}
            self.stream({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 8}})
            self.stream({"type": "message_stop"})
        self.message_id = ""

    def tool_use(self, name: str, tool_input: Any) -> str:
        tool_id = new_id("toolu")
        block = {"type": "tool_use", "id": tool_id, "name": name, "input": tool_input}
        self.start_block({**block, "input": {}}, "tool_use")
        self.delta({"type": "input_json_delta", "partial_json": json.dumps(tool_input)})
        self.cli.money.words(json.dumps(tool_input))
        self.cli.store.add("tool_use", name=name, input=tool_input)
        self.end_block(block)
        self.end_message("tool_use")
        self.running_tool = tool_id
        return tool_id

    def tool_result(self, tool_id: str, content: str, result: Any = None, *, error: bool = False, meta: Any = None) -> None:
        block: Frame = {"tool_use_id": tool_id, "type": "tool_result", "content": content, "is_error": error}
        if error:
            block = {"type": "tool_result", "content": content, "is_error": True, "tool_use_id": tool_id}
        if result is None:
            result = {"stdout": content, "stderr": "", "interrupted": False, "isImage": False, "noOutputExpected": False}
        decision = meta or {"permission_decision": {"decision": "accept", "source": "config", "reason_type": "mode"}}
        frame: Frame = {"type": "user", "message": {"role": "user", "content": [block]}, "parent_tool_use_id": None, **self.common()}
        self.cli.store.add("tool_result", content=content)
        self.running_tool = ""
        self.send({**frame, "tool_use_result": result, "tool_result_meta": [{"id": tool_id, **decision}]})
        self.rounds += 1

    def call(self, name: str, tool_input: Any, output: str) -> None:
        self.tool_result(self.tool_use(name, tool_input), output)

    def say(self, text: str) -> None:
        self.start_block({"type": "text", "text": ""}, "text")
        self.delta({"type": "text_delta", "text": text})
        self.finish_text(text)

    def finish_text(self, text: str) -> None:
        self.last_text = text
        self.cli.money.words(text)
        self.cli.store.add("text", text=text)
        self.end_block({"type": "text", "text": text})

    # --- the course of a turn ---

    def play(self) -> Steps:
        try:
            self.prologue()
            yield from self.play_steps()
            self.finish()
        except Interrupted:
            self.abort()
        except ApiError as error:
            self.fail(error)

    def prologue(self) -> None:
        merged = len(self.messages) > 1
        if merged:
            for message in self.messages[:-1]:
                self.echo(message, short=True)
        for message in self.messages:
            self.lifecycle(message, "started")
        self.take()
        self.send(self.cli.init_frame(self.uuids or self.resumed_uuids))
        self.requesting()

    def requesting(self) -> None:
        if self.cli.partial:
            frame: Frame = {
                "type": "system",
                "subtype": "status",
                "status": "requesting",
                "session_id": self.cli.session_id,
                "uuid": new_uuid(),
            }
            self.send({**frame, **({"user_message_uuids": self.uuids} if self.uuids else {})})

    def take(self) -> None:
        """Note what the model is now asked: a prompt of its own, or going on with the one before."""
        store = self.cli.store
        if self.self_steps is not None:
            return
        texts = [message.text for message in self.messages if message.text]
        text = "\n".join(texts)
        failed = store.last_end == "api_error"
        uuids = [message.uuid for message in self.messages]
        store.close_cut_turn()
        empty = all(is_nudge(message.content) for message in self.messages)
        if empty:
            text = "(no content)"
        if store.prompts and empty and failed:
            store.add("go_on", uuids=uuids, text="")
        elif text.strip().startswith(CONTINUE):
            store.add("go_on", uuids=uuids, text=text)
        else:
            store.add("prompt", n=store.count + 1, uuids=uuids, text=text, joins=False)

    def play_steps(self) -> Steps:
        if self.self_steps is not None:
            for word, rest in self.self_steps:
                yield from self.step(word, rest)
            return
        while prompt := next((p for p in self.cli.store.prompts if p.done < len(p.steps)), None):
            yield from self.play_step(prompt)
        if not self.last_text and self.structured is None:
            self.say(self.cli.store.last_text or "done")

    def play_step(self, prompt: Prompt) -> Steps:
        word, rest = prompt.steps[prompt.done]
        self.unmarked = (prompt, prompt.done + 1)
        self.cli.step_key = f"{prompt.number}.{prompt.done + 1}"
        if word in AT_MOST_ONCE:
            self.mark()
        yield from self.step(word, rest)
        self.mark()

    def mark(self) -> None:
        """Note that the step is done: before its call for most tools, with its effect for files, else after its frames."""
        if self.unmarked:
            prompt, done = self.unmarked
            self.unmarked = None
            self.cli.store.add("step", n=prompt.number, done=done)

    def step(self, word: str, rest: str) -> Steps:
        waits = getattr(self, "do_" + word)(rest)
        if waits is not None:
            yield from waits
        if word in TOOLS:
            self.fold()
            if self.cli.partial:
                self.requesting()

    def fold(self) -> None:
        """Let messages that came while a tool ran into this turn."""
        joining = [message for message in self.cli.queue if message.priority == "next"]
        for message in joining:
            self.cli.queue.remove(message)
            self.echo(message)
        for message in joining:
            self.lifecycle(message, "started")
            self.steered.append(message)
            if message.given:
                self.uuids.append(message.given)
            self.cli.store.add("prompt", n=self.cli.store.count + 1, uuids=[message.uuid], text=message.text, joins=True)

    def pause(self, seconds: float) -> Steps:
        if seconds > 0:
            yield time.monotonic() + seconds, None

    def finish(self) -> None:
        self.end_message("end_turn")
        for message in self.steered:
            self.lifecycle(message, "completed")
        stop = "tool_use" if self.structured is not None else "end_turn"
        text = json.dumps(self.structured, separators=(",", ":")) if self.structured is not None else self.last_text
        extra: Frame = {"result": text}
        if self.structured is not None:
            extra["structured_output"] = self.structured
        self.cli.store.add("end", reason="completed")
        self.result("success", stop, "completed", {"api_error_status": None, **extra, "ttft_ms": 5})
        for message in self.messages:
            self.lifecycle(message, "completed")

    def result(self, subtype: str, stop: str | None, reason: str, middle: Frame, *, error: bool = False) -> None:
        money = self.cli.money
        aborted = subtype != "success"
        self.is_error = error
        usage = usage_of(money.answered if aborted else money.turn, error=error)
        money.turn_ends()
        named = self.result_names(error=error)
        frame: Frame = {
            "duration_api_ms": 5,
            "stop_reason": stop,
            "session_id": self.cli.session_id,
            "total_cost_usd": Money.cost(money.total),
        }
        frame |= {"usage": usage, "modelUsage": money.by_model(money.total), "permission_denials": self.denials}
        frame |= {"terminal_reason": reason, **FAST_MODE}
        if self.origin:
            frame["origin"] = {"kind": self.origin, "producer": "session-task", "runId": new_id("run")}
        frame |= {"subagent_stats": SUBAGENT_STATS, "safety_stops": 0, "is_error": error}
        frame |= {"num_turns": self.rounds, "subtype": subtype, **middle}
        if aborted and named:
            frame["user_message_uuid"] = named.pop("user_message_uuid")
        frame |= {"type": "result", "duration_ms": int((time.monotonic() - self.started_s) * 1000), "uuid": new_uuid()}
        if self.cli.partial and self.message_ids:
            frame["begun_message_ids"] = self.message_ids
        if not error:
            frame |= {"ttft_stream_ms": 4, "time_to_request_ms": 3, "first_content_frame_ms": 4}
        frame |= {**named, "queued_turn_count": 0, "result_index": self.cli.results}
        self.cli.results += 1
        self.send({**frame, "model_usage_since_last_result": money.report()})

    def result_names(self, *, error: bool) -> Frame:
        uuids = self.uuids or self.resumed_uuids
        if not uuids:
            return {}
        named: Frame = {"user_message_uuid": self.opening_uuid(uuids), "user_message_uuids": uuids}
        if not error:
            named |= {"request_sent_wall_ms": int(time.time() * 1000)}
            named |= {"first_request_input_tokens": 150, "first_request_cache_read_input_tokens": 30}
        return named

    def abort(self) -> None:
        """End by an interrupt: with the partial text, or with the running tool rejected."""
        tool = self.running_tool
        if tool:
            meta: Frame = {"non_execution_kind": "user-rejected", "permission_decision": {"decision": "accept", "source": "config"}}
            self.tool_result(tool, REJECTED, "User rejected tool use", error=True, meta=meta)
        elif self.open_block == "text" and self.partial:
            self.answer_begins()
            self.cli.money.words(self.partial)
            self.assistant({"type": "text", "text": self.partial.rstrip()}, aborted=True)
        elif not self.echoed and self.messages:
            self.echoed = True
            self.echo(self.messages[-1])
        marker = "[Request interrupted by user for tool use]" if tool else "[Request interrupted by user]"
        content = [{"type": "text", "text": marker}]
        self.send({"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None, **self.common()})
        if self.open_block:
            self.stream({"type": "content_block_stop", "index": self.index})
        if self.message_id:
            self.end_message("end_turn", whole=False)
        reason = "aborted_tools" if tool else "aborted_streaming"
        stop = "tool_use" if self.rounds > 1 else None
        self.cli.store.add("marker", text=marker)
        self.cli.store.add("end", reason=reason)
        self.rounds += 1
        why = f"[ede_diagnostic] result_type=user last_content_type=n/a stop_reason={stop or 'null'}"
        for message in self.steered:
            self.lifecycle(message, "cancelled")
        self.result("error_during_execution", stop, reason, {"errors": [why]}, error=True)
        for message in self.messages:
            self.lifecycle(message, "cancelled")

    def fail(self, error: ApiError) -> None:
        """End by an API error: a synthetic assistant frame, and a result that says success with is_error."""
        if not self.echoed and self.messages:
            self.echoed = True
            self.echo(self.messages[-1])
        status = error.status or None
        known: Frame = {"api_error_status": status, "api_error_type": ERROR_TYPES.get(error.status, "api_error")} if status else {}
        synthetic: Frame = {"diagnostics": None, "id": new_uuid(), "container": None, "model": "<synthetic>", "role": "assistant"}
        synthetic |= {"stop_details": None, "stop_reason": "stop_sequence", "stop_sequence": "", "type": "message"}
        synthetic |= {"usage": SYNTHETIC_USAGE, "content": [{"type": "text", "text": error.text}], "context_management": None}
        frame: Frame = {"type": "assistant", "message": synthetic, "parent_tool_use_id": None, **self.common(), "error": error.kind}
        if status:
            frame["request_id"] = new_id("req")
        self.send({**frame, "is_api_error_message": True, **known, **self.named()})
        for message in self.steered:
            self.lifecycle(message, "cancelled")
        self.cli.store.add("end", reason="api_error")
        reason = "prompt_too_long" if error.text.startswith("Prompt is too long") else "api_error"
        middle = {"api_error_status": status, **known, "result": error.text}
        self.result("success", "stop_sequence", reason, middle, error=True)
        for message in self.messages:
            self.lifecycle(message, "cancelled")

    # --- directives: what the model does ---

    def do_say(self, rest: str) -> None:
        self.say(unescaped(rest))

    def do_break_off(self, rest: str) -> None:
        self.say(unescaped(rest))
        self.cli.money.answer_ends()
        self.stream({"type": "message_stop"})
        self.message_id = ""
        self.rounds += 1
        content = [{"type": "text", "text": BROKE_OFF}]
        frame: Frame = {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None, **self.common()}
        self.send({**frame, "isSynthetic": True})
        if self.cli.partial:
            self.requesting()

    def do_think(self, rest: str) -> None:
        self.start_block({"type": "thinking", "thinking": "", "signature": ""}, "thinking")
        self.delta({"type": "thinking_delta", "thinking": rest})
        self.cli.money.words(rest)
        self.end_block({"type": "thinking", "thinking": rest, "signature": "c2ln"})

    def do_tool(self, rest: str) -> None:
        name, tool_input, tail = named_json(rest)
        self.call(name, tool_input, unescaped(tail.removeprefix("->").strip()) or "ok")

    def do_tool_sleep(self, rest: str) -> Steps:
        seconds, output = split(rest, 2)
        tool_id = self.tool_use("Bash", {"command": f"sleep {seconds}", "description": "run it"})
        yield from self.pause(float(seconds))
        self.tool_result(tool_id, output or "slept")

    def do_write(self, rest: str) -> None:
        self.write_file(rest, "w")

    def do_append(self, rest: str) -> None:
        self.write_file(rest + "\\n", "a")

    def write_file(self, rest: str, mode: str) -> None:
        path, text = split(rest, 2)
        text = unescaped(text)
        tool_id = self.tool_use("Write", {"file_path": path, "content": text})
        with open(path, mode, encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
        self.mark()
        done: Frame = {
            "type": "create",
            "filePath": path,
            "content": text,
            "structuredPatch": [],
            "originalFile": None,
            "userModified": False,
        }
        self.tool_result(tool_id, f"File created successfully at: {path}", done)

    def do_slow(self, rest: str) -> Steps:
        count, interval_s, text = split(rest, 3)
        pieces = [f"{text or 'w'}{number} " for number in range(int(count))]
        self.open_block = "text"
        if self.cli.partial:
            self.start_block({"type": "text", "text": ""}, "text")
        for piece in pieces:
            yield from self.pause(float(interval_s))
            self.partial += piece
            self.delta({"type": "text_delta", "text": piece})
        self.answer_begins()
        self.finish_text(self.partial.rstrip())

    def do_sleep(self, rest: str) -> Steps:
        yield from self.pause(float(rest or 1))

    def do_rate(self, rest: str) -> Steps:
        count, per_s = split(rest, 2)
        begin = time.monotonic()
        self.start_block({"type": "text", "text": ""}, "text")
        copies = None
        for number in range(int(count)):
            yield begin + number / float(per_s), None
            text = f"{time.monotonic_ns()} "
            if self.cli.partial:
                self.delta({"type": "text_delta", "text": text})
            elif copies is None:
                copies = self.copies(text)
            else:
                self.out.raw(copies.one(number, text))
        self.finish_text("rated")

    def do_flood(self, rest: str) -> Steps:
        count, size = split(rest, 2)
        self.start_block({"type": "text", "text": ""}, "text")
        text = "x" * int(size or 100)
        copies = self.copies(text)
        for first in range(1, int(count), 64):
            self.out.raw(b"".join(copies.one(number, text) for number in range(first, min(first + 64, int(count)))))
            yield None, lambda: len(self.out.buffer) < FLOOD_BUFFER_BYTES
        self.finish_text("flooded")

    def copies(self, text: str) -> Copies:
        """Send a text; return what makes more frames of its kind."""
        self.assistant({"type": "text", "text": text})
        return Copies(self.frames[-1], text)

    def do_hang(self, rest: str) -> Steps:
        yield None, None

    def do_await_steer(self, rest: str) -> Steps:
        tool_id = self.tool_use("Bash", {"command": "await-steer", "description": "wait for a message"})
        yield None, lambda: bool(self.cli.queue)
        self.tool_result(tool_id, rest or "a message came")

    def do_structured(self, rest: str) -> None:
        value = json.loads(rest)
        tool_id = self.tool_use("StructuredOutput", value)
        done = "Structured output provided successfully"
        self.tool_result(tool_id, done, done)
        self.structured = value

    def do_subagent(self, rest: str) -> None:
        tool_id = self.tool_use("Agent", {"description": "sub", "prompt": rest, "subagent_type": "general-purpose"})
        agent = {"agent_id": os.urandom(8).hex()}
        about = {"subagent_type": "general-purpose", "task_description": "sub"}
        message: Frame = {**self.message([{"type": "text", "text": rest}]), "id": new_id("msg"), "context_management": None}
        frame: Frame = {"type": "assistant", "message": message, "parent_tool_use_id": tool_id, **agent, **self.common()}
        self.send({**frame, "request_id": new_id("req"), **about})
        self.tool_result(tool_id, "[Subagent hand-back] " + rest, {"status": "completed", "content": rest})

    def do_unprompted(self, rest: str) -> None:
        self.cli.unprompted.append(own_steps(rest))

    def do_late_frames(self, rest: str) -> None:
        self.cli.late = self

    # --- directives: what goes wrong at the API, and what the host is asked ---

    def do_api_error(self, rest: str) -> None:
        status, kind, text = split(rest, 3)
        head, _, tail = text.rpartition(" ")
        limit, text = (int(tail), head) if tail.isdigit() and head else (None, text)
        key = self.cli.step_key
        if limit is None or self.cli.store.failures.get(key, 0) < limit:
            self.cli.store.add("failure", key=key)
            raise ApiError(int(status), kind, text)

    def do_api_retry(self, rest: str) -> Steps:
        count, delay_s = split(rest, 2)
        for number in range(int(count)):
            frame: Frame = {"type": "system", "subtype": "api_retry", "attempt": number + 1, "max_retries": 10}
            frame |= {"retry_delay_ms": int(float(delay_s or 0) * 1000), "error_status": 529, "error": "overloaded"}
            self.send({**frame, "session_id": self.cli.session_id, "uuid": new_uuid()})
            yield from self.pause(float(delay_s or 0))

    def do_rate_limit(self, rest: str) -> None:
        status, kind, used, resets = split(rest, 4)
        resets_at = int(resets or time.time() + 3600)
        window = {"utilization": float(used or 0), "resetsAt": resets_at, "status": status or "allowed"}
        info: Frame = {"status": status or "allowed", "resetsAt": resets_at, "rateLimitType": kind or "five_hour"}
        info |= {"overageStatus": "rejected", "isUsingOverage": False, "unifiedWindows": {kind or "five_hour": window}}
        self.send({"type": "rate_limit_event", "rate_limit_info": info, "uuid": new_uuid(), "session_id": self.cli.session_id})

    def do_compact(self, rest: str) -> None:
        tail = {"session_id": self.cli.session_id, "uuid": new_uuid()}
        self.send({"type": "system", "subtype": "status", "status": "compacting", **tail})
        self.send({"type": "system", "subtype": "status", "status": None, "compact_result": "success", **tail, "uuid": new_uuid()})
        meta: Frame = {"trigger": "auto", "pre_tokens": 150000, "post_tokens": 5000, "duration_ms": 10}
        frame: Frame = {"type": "system", "subtype": "compact_boundary", "uuid": new_uuid(), "compact_metadata": meta}
        self.send({**frame, "logical_parent_uuid": new_uuid(), "session_id": self.cli.session_id})

    def do_permission(self, rest: str) -> None:
        name, tool_input, _ = named_json(rest)
        tool_id = self.tool_use(name, tool_input)
        why = "Permission for this tool use was denied. It requires approval, and this session has no approval surface."
        frame: Frame = {"type": "system", "subtype": "permission_denied", "tool_name": name, "tool_use_id": tool_id}
        frame |= {"decision_reason_type": "asyncAgent", "decision_reason": UNATTENDED, "message": why}
        self.send({**frame, "uuid": new_uuid(), "session_id": self.cli.session_id})
        self.deny(tool_id, name, tool_input, why, "config")

    def deny(self, tool_id: str, name: str, tool_input: Any, why: str, source: str) -> None:
        self.denials.append({"tool_name": name, "tool_use_id": tool_id, "tool_input": tool_input})
        meta: Frame = {"non_execution_kind": "permission-rule", "permission_decision": {"decision": "reject", "source": source}}
        self.tool_result(tool_id, why, "Error: " + why, error=True, meta=meta)

    def permission_request(self, name: str, tool_input: Any, tool_id: str) -> Frame:
        """Return the request, with what Claude Code suggests: a rule for a command, another mode for an edit, nothing for the rest."""
        rule = {"toolName": name, "ruleContent": str(tool_input.get("command"))}
        rows: list[Frame] = [{"type": "addRules", "rules": [rule], "behavior": "allow", "destination": "localSettings"}]
        if name != "Bash":
            rows = [{"type": "setMode", "mode": "acceptEdits", "destination": "session"}] if name in ("Write", "Edit") else []
        request: Frame = {"subtype": "can_use_tool", "tool_name": name, "display_name": name, "input": tool_input}
        request |= {"description": "run it", "permission_suggestions": rows, "tool_use_id": tool_id}
        return request | ({"requires_user_interaction": True} if name in ("AskUserQuestion", "ExitPlanMode") else {})

    def do_can_use_tool(self, rest: str) -> Steps:
        name, tool_input, _ = named_json(rest)
        tool_id = self.tool_use(name, tool_input)
        if self.cli.allows(name, tool_input):
            self.tool_result(tool_id, "ok")
            return
        reply = yield from self.ask(self.permission_request(name, tool_input, tool_id))
        verdict = reply.get("response") or {}
        if verdict.get("behavior") == "allow":
            self.cli.rules += [rule for row in verdict.get("updatedPermissions") or [] for rule in row.get("rules", [])]
            answers = (verdict.get("updatedInput") or {}).get("answers")
            said = ", ".join(f'"{question}"="{answer}"' for question, answer in (answers or {}).items())
            self.tool_result(tool_id, f"Your questions have been answered: {said}." if answers else "ok")
        elif verdict.get("interrupt"):
            self.denials.append({"tool_name": name, "tool_use_id": tool_id, "tool_input": tool_input})
            raise Interrupted
        elif reply.get("subtype") == "error":
            self.deny(tool_id, name, tool_input, f"Tool permission request failed: Error: {reply.get('error')}", "user_reject")
        else:
            self.deny(tool_id, name, tool_input, str(verdict.get("message", "denied")), "user_reject")

    def do_take_back(self, rest: str) -> None:
        name, tool_input, _ = named_json(rest)
        tool_id, request_id = self.tool_use(name, tool_input), new_uuid()
        request = self.permission_request(name, tool_input, tool_id)
        self.send({"type": "control_request", "request_id": request_id, "request": request})
        self.send({"type": "control_cancel_request", "request_id": request_id})
        self.tool_result(tool_id, "ok")

    def do_elicit(self, rest: str) -> Steps:
        server, schema, _ = named_json(rest)
        request: Frame = {"subtype": "elicitation", "mcp_server_name": server, "message": "Please say", "mode": "form"}
        reply = yield from self.ask({**request, "requested_schema": schema})
        self.say(f"elicited: {json.dumps(reply.get('response') or reply.get('error'))}")

    def do_unknown_request(self, rest: str) -> Steps:
        reply = yield from self.ask({"subtype": rest or "a_request_of_tomorrow"})
        self.say(f"answered: {reply.get('subtype')}")

    def ask(self, request: Frame) -> Generator[Wait, None, Frame]:
        """Ask the host and wait for its answer; an interrupt withdraws the question."""
        request_id = new_uuid()
        self.send({"type": "control_request", "request_id": request_id, "request": request})
        try:
            yield None, lambda: request_id in self.cli.answers
        except Interrupted:
            self.send({"type": "control_cancel_request", "request_id": request_id})
            raise
        return self.cli.answers.pop(request_id)

    # --- directives: what goes wrong with the process and its pipes ---

    def do_crash(self, rest: str) -> None:
        self.cli.die(signal.Signals["SIG" + rest.removeprefix("SIG")] if rest and not rest.isdigit() else int(rest or signal.SIGKILL))

    def do_crash_once(self, rest: str) -> None:
        if self.cli.plan.claim(f"crash_once.{self.cli.session_id}.{self.cli.step_key}", 1):
            self.do_crash(rest)

    def do_exit(self, rest: str) -> None:
        self.cli.leave(int(rest or 0))

    def do_no_result_exit(self, rest: str) -> None:
        self.cli.leave(0)

    def do_half_line(self, rest: str) -> None:
        line = encode({"type": "assistant", "message": self.message([{"type": "text", "text": rest or "half"}])})
        self.out.raw(line[: len(line) // 2])
        self.cli.leave(1)

    def do_huge_line(self, rest: str) -> None:
        self.say("x" * int(rest))

    def do_bad_utf8(self, rest: str) -> None:
        self.answer_begins()
        frame = self.assistant_frame({"type": "text", "text": "bad <> bytes"})
        self.out.raw(encode(frame).replace(b"<>", b"\xff\xc3"))

    def do_garbage(self, rest: str) -> None:
        self.out.raw(b"Warning: this line is no JSON\n[1,2,3]\n\n42\r\n" + encode({"type": "of_tomorrow", "subtype": "x"}) + b"\x00\n")

    def do_clear(self, rest: str) -> None:
        old, self.cli.session_id = self.cli.session_id, new_uuid()
        frame = {"type": "conversation_reset", "new_conversation_id": self.cli.session_id, "uuid": new_uuid(), "trigger": "clear"}
        self.send({**frame, "timestamp": timestamp(), "session_id": old})
        self.cli.store = self.cli.store.moved(self.cli.session_id)

    def do_stop_reading(self, rest: str) -> None:
        self.cli.reads = False

    def do_stderr(self, rest: str) -> None:
        write_stderr(error_lines(int(rest or 80)))

    def do_ignore_interrupt(self, rest: str) -> None:
        self.deaf = True

    def do_ignore_sigterm(self, rest: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_close_stdout(self, rest: str) -> None:
        self.out.close()

    def do_spawn(self, rest: str) -> None:
        self.spawn(rest, keep_output=False)

    def do_hold_pipe(self, rest: str) -> None:
        self.spawn(rest, keep_output=True)

    def spawn(self, seconds: str, *, keep_output: bool) -> None:
        tool_id = self.tool_use("Bash", {"command": f"sleep {seconds or 60} &", "run_in_background": True})
        pid = os.fork()
        if pid == 0:
            detach(seconds or "60", keep_output=keep_output)
        until = time.monotonic() + 2
        while os.getsid(pid) != pid and time.monotonic() < until:  # it is detached when it is told of
            select.select([], [], [], 0.001)
        self.tool_result(tool_id, f"spawned {pid}")
        self.say(f"spawned {pid}")


SUBAGENT_STATS = {
    "spawned": 0,
    "requested": {"background": 0, "foreground": 0, "unset": 0},
    "started_in_background": 0,
    "max_depth": 0,
    "spawned_by_subagents": 0,
    "completed": 0,
    "failed": 0,
    "killed": {"parent": 0, "user": 0, "system": 0},
    "refused": {"depth_limit": 0, "concurrency_limit": 0, "budget": 0},
    "by_type": {},
}
SYNTHETIC_USAGE = {
    "output_tokens_details": None,
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
    "service_tier": None,
    "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
    "inference_geo": None,
    "iterations": None,
    "speed": None,
    "fallback_credit": None,
}
TOOLS = frozenset(
    (
        "tool",
        "tool_sleep",
        "write",
        "append",
        "await_steer",
        "permission",
        "can_use_tool",
        "take_back",
        "subagent",
        "spawn",
        "hold_pipe",
        "structured",
    )
)
AT_MOST_ONCE = (TOOLS - {"write", "append"}) | {"unprompted", "late_frames"}


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


class Cli:
    """The process: its arguments, its input, its queue, and one turn at a time."""

    def __init__(self, argv: list[str]) -> None:
        self.flags = parse_flags(argv)
        self.state = os.environ.get("GREENROOM_SCRIPTED_STATE") or os.path.expanduser("~/.scripted-claude")  # noqa: PTH111
        os.makedirs(self.state, mode=0o700, exist_ok=True)  # noqa: PTH103
        self.plan = Plan(self.state)
        self.version = str(self.plan.get("version", VERSION))
        self.partial = "--include-partial-messages" in self.flags
        self.replays = "--replay-user-messages" in self.flags
        self.resume = self.flags.get("--resume") or self.flags.get("-r")
        self.session_id = self.resume or self.flags.get("--session-id") or new_uuid()
        self.out = Output(self.kill_line())
        self.store = Store(self.state, self.session_id, float(self.plan.get("transcript_delay_s", 0)))
        self.money = Money()
        self.queue: list[Message] = []
        self.answers: dict[str, Frame] = {}
        self.rules: list[Frame] = []
        self.unprompted: list[list[tuple[str, str]]] = []
        self.turn: Turn | None = None
        self.player: Steps | None = None
        self.deadline_s: float | None = None
        self.condition: Callable[[], bool] | None = None
        self.late: Turn | None = None
        self.step_key = ""
        self.results = 0
        self.failed = False
        self.eof = False
        self.reads = not self.plan.get("stop_reading")
        self.lock = -1
        self.asked_to_stop = False
        self.silent_until_s = 0.0
        self.held: list[Frame] = []
        self.input = bytearray()
        self.received = 0

    def kill_line(self) -> int:
        after = int(self.plan.get("kill_after_line", 0))
        return after if after and self.plan.claim("kill_times", int(self.plan.get("kill_times", 1))) else 0

    # --- before the first line ---

    def start(self) -> None:
        self.note_start()
        self.plan_for_start()
        for name, value in (("--resume", self.resume), ("--session-id", self.flags.get("--session-id"))):
            if value and not is_uuid(value):
                self.refuse_id(name, value)
        if self.resume:
            self.open_old()
        elif self.store.exists():
            self.stop(1, f"Error: Session ID {self.session_id} is already in use.")
        self.note_overlap()
        self.wake_reader, self.wake_writer = os.pipe()
        os.set_blocking(self.wake_writer, False)
        for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            signal.signal(number, lambda *_, code=code: self.hang_up(code))
        signal.signal(signal.SIGINT, lambda *_: self.ask_to_stop())
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def note_start(self) -> None:
        record: Frame = {"pid": os.getpid(), "session_id": self.session_id, "resumed": bool(self.resume), "argv": sys.argv[1:]}
        record |= {"at": time.time(), "cwd": os.getcwd(), "env": sorted(os.environ)}  # noqa: PTH109
        self.append_log("starts.log", record)

    def note_overlap(self) -> None:
        """Note in `overlaps.log` when another process lives on this conversation: Claude Code itself would not notice."""
        os.makedirs(f"{self.state}/locks", exist_ok=True)  # noqa: PTH103
        self.lock = os.open(f"{self.state}/locks/{self.session_id}", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.append_log("overlaps.log", {"pid": os.getpid(), "session_id": self.session_id, "at": time.time()})

    def append_log(self, name: str, record: Frame) -> None:
        fd = os.open(f"{self.state}/{name}", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(fd, encode(record))
        os.close(fd)

    def plan_for_start(self) -> None:
        noise = self.plan.get("stderr_at_start", "")
        write_stderr(noise.encode() if isinstance(noise, str) else error_lines(int(noise)))
        if self.plan.get("garbage_at_start"):
            self.out.raw(b"Welcome to a banner\n")
        if self.plan.claim("die_at_start"):
            self.stop(1, "Error: died at start, as planned")
        if self.plan.claim("in_use_times"):
            self.stop(1, f"Error: Session ID {self.session_id} is already in use.")
        self.silent_until_s = time.monotonic() + float(self.plan.get("slow_start_s", 0))
        if self.plan.get("unprompted_between"):
            self.unprompted.append(own_steps(self.plan.get("unprompted_between")))

    def refuse_id(self, name: str, value: str) -> None:
        if name == "--session-id":
            self.stop(1, "Error: Invalid session ID. Must be a valid UUID.")
        self.refuse_resume("Error: --resume requires a valid session ID or session title when used with --print.")

    def open_old(self) -> None:
        if self.plan.claim("refuse_resume") or not self.store.exists():
            self.refuse_resume(f"No conversation found with session ID: {self.resume}")
        self.store.load()
        if self.store.bye:
            self.money.carry(self.store.bye["totals"])
        if self.plan.get("resume_as"):
            self.session_id = new_uuid() if self.plan.get("resume_as") == "new" else str(self.plan.get("resume_as"))
        if os.environ.get("CLAUDE_CODE_RESUME_INTERRUPTED_TURN") == "1" and (self.store.cut or self.store.last_end == "api_error"):
            message = Message({"message": {"content": CONTINUE + "."}})
            message.silent = True
            self.queue.append(message)

    def refuse_resume(self, why: str) -> None:
        frame: Frame = {"type": "result", "subtype": "error_during_execution", "duration_ms": 0, "duration_api_ms": 0, "is_error": True}
        frame |= {"num_turns": 0, "stop_reason": None, "session_id": self.resume, "total_cost_usd": 0}
        frame |= {"usage": usage_of(dict.fromkeys(Money.FIELDS, 0), error=True), "modelUsage": {}, "permission_denials": []}
        self.out.frame({**frame, "uuid": new_uuid(), "errors": [why], "result_index": 0})
        self.stop(1, why)

    def stop(self, code: int, why: str) -> None:
        write_stderr(why.encode() + b"\n")
        self.out.drain()
        os._exit(code)

    # --- ends ---

    def farewell(self) -> None:
        """End gracefully: what waits is written, and the next process goes on with the cost."""
        if self.store.exists() or self.store.pending:
            self.store.add("bye", totals=self.money.total)
        self.store.flush(everything=True)

    def leave(self, code: int) -> None:
        self.farewell()
        self.out.drain()
        os._exit(code)

    def hang_up(self, code: int) -> None:
        self.farewell()
        os._exit(code)

    def die(self, number: int) -> None:
        self.out.drain()
        signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), number)

    def ask_to_stop(self) -> None:
        self.asked_to_stop = True
        os.write(self.wake_writer, b"x")

    # --- input ---

    def read(self) -> None:
        data = os.read(0, 1 << 16)
        if not data:
            self.eof = True
            signal.alarm(ORPHAN_LIFE_S)
            if self.input:
                self.bad_input(bytes(self.input))
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
            if line.strip():
                self.take_line(line)

    def bad_input(self, line: bytes) -> None:
        self.stop(1, f"Error parsing streaming input line (type=unknown, {len(line)} chars): SyntaxError")

    def take_line(self, line: bytes) -> None:
        try:
            frame = json.loads(line.decode("utf-8", "replace"))
        except ValueError:
            return self.bad_input(line)
        if not isinstance(frame, dict):
            return None
        kind = frame.get("type")
        if kind == "user":
            return self.take_message(frame, line)
        if kind == "control_request":
            return self.take_request(frame, line)
        if kind == "control_response":
            response = frame.get("response") or {}
            self.answers[str(response.get("request_id"))] = response
        return None

    def take_message(self, frame: Frame, line: bytes) -> None:
        message = frame.get("message")
        if not isinstance(message, dict) or message.get("role", "user") != "user" or "content" not in message:
            self.bad_input(line)
        queued = Message(frame)
        if queued.uuid in self.store.taken:
            self.swallow(queued)
            return
        if any(waiting.uuid == queued.uuid for waiting in self.queue):
            return
        if queued.given:
            self.lifecycle(queued.given, "queued")
        queued.waited = self.turn is not None or bool(self.queue)
        self.queue.append(queued)

    def swallow(self, message: Message) -> None:
        """Drop a message whose uuid was taken before: an echo, and `completed` if an earlier process had taken it."""
        Turn(self, [message]).echo(message, short=True)
        if message.uuid in self.store.old:
            self.lifecycle(message.uuid, "completed")

    def take_request(self, frame: Frame, line: bytes) -> None:
        request = frame.get("request")
        if not isinstance(request, dict):
            self.bad_input(line)
            return
        handler = getattr(self, "on_" + str(request.get("subtype")), None)
        if handler:
            handler(frame.get("request_id"), request)
            return
        why = f"Unsupported control request subtype: {request.get('subtype')}"
        reply: Frame = {"subtype": "error", "request_id": frame.get("request_id"), "error": why, "error_code": "unsupported_request"}
        self.out.frame({"type": "control_response", "response": reply})

    def reply(self, request_id: str | None, response: Frame, **more: Any) -> None:
        reply: Frame = {"subtype": "success", "request_id": request_id, "response": response}
        self.out.frame({"type": "control_response", "response": {**reply, **more}})

    def on_initialize(self, request_id: str | None, request: Frame) -> None:
        if self.plan.claim("no_handshake"):
            return
        if self.silent_until_s > time.monotonic():
            self.held.append({"request_id": request_id, "request": request})
            return
        self.reply(request_id, self.handshake(), pending_permission_requests=[], pending_user_dialog_requests=[])
        if self.plan.claim("exit_after_handshake"):
            self.stop(1, "Error: ended after the handshake, as planned")

    def handshake(self) -> Frame:
        home = os.environ.get("HOME", "")
        lists: Frame = {"commands": [{"name": "cost"}], "agents": [{"name": "claude"}], "output_style": "default"}
        lists |= {"available_output_styles": ["default"], "user_output_styles_dir": home + "/.claude/output-styles", "models": []}
        account = {"tokenSource": "none", "apiKeySource": api_key_source(), "apiProvider": "firstParty"}
        mode = self.flags.get("--permission-mode", "default")
        about: Frame = {"account": account, "pid": os.getpid(), "claude_code_version": self.version, "current_permission_mode": mode}
        about |= {"sandbox_enabled": False, **FAST_MODE, "session_state": "idle"}
        return {**lists, **about, "capabilities": ["ui_surface_v1", "mcp_call_result_not_for_model_v1"]}

    def on_interrupt(self, request_id: str | None, request: Frame) -> None:
        if self.turn and self.turn.deaf:
            return
        waiting = [message.uuid for message in self.queue]
        response: Frame = {"still_queued": waiting}
        if request.get("cancel_queued"):
            for message in self.queue:
                if message.given:
                    self.lifecycle(message.given, "cancelled")
            self.queue.clear()
            response = {"still_queued": [], "cancelled": waiting}
        self.reply(request_id, response)
        self.break_off()

    def break_off(self) -> None:
        if self.turn:
            self.advance(Interrupted())

    def on_cancel_async_message(self, request_id: str | None, request: Frame) -> None:
        wanted = request.get("message_uuid")
        found = next((message for message in self.queue if message.uuid == wanted), None)
        if not found:
            self.reply(request_id, {"cancelled": False})
            return
        self.queue.remove(found)
        if found.given:
            self.lifecycle(found.given, "cancelled")
        self.reply(request_id, {"cancelled": True, "message_uuid": wanted})

    def on_set_permission_mode(self, request_id: str | None, request: Frame) -> None:
        self.flags["--permission-mode"] = str(request.get("mode"))
        self.reply(request_id, {"mode": request.get("mode")})
        told: Frame = {"type": "system", "subtype": "status", "status": None, "permissionMode": request.get("mode")}
        self.out.frame({**told, "uuid": new_uuid(), "session_id": self.session_id})

    def on_set_model(self, request_id: str | None, request: Frame) -> None:
        self.flags["--model"] = str(request.get("model") or MODEL)
        self.reply(request_id, {"model": self.flags["--model"]})

    def on_get_settings(self, request_id: str | None, request: Frame) -> None:
        self.reply(request_id, {"effective": {}, "sources": [], "applied": {"model": self.flags.get("--model") or MODEL}})

    def on_mcp_status(self, request_id: str | None, request: Frame) -> None:
        self.reply(request_id, {"mcpServers": []})

    def on_get_binary_version(self, request_id: str | None, request: Frame) -> None:
        self.reply(request_id, {"version": self.version})

    def allows(self, name: str, tool_input: Any) -> bool:
        """Whether a rule that this process was given lets the call pass unasked."""
        about = {str(tool_input.get("command")), f"/{tool_input.get('file_path')}"}
        edits = {"Edit"} if name in ("Write", "Edit") else set()
        return any(rule.get("toolName") in {name} | edits and rule.get("ruleContent", "") in about | {""} for rule in self.rules)

    # --- frames that belong to no turn ---

    def lifecycle(self, uuid: str, state: str) -> None:
        frame: Frame = {"type": "command_lifecycle", "command_uuid": uuid, "state": state}
        self.out.frame({**frame, "uuid": new_uuid(), "session_id": self.session_id})

    def init_frame(self, uuids: list[str]) -> Frame:
        cwd = os.getcwd()  # noqa: PTH109
        home = os.environ.get("HOME", "")
        frame: Frame = {"type": "system", "subtype": "init", "cwd": cwd, "session_id": self.session_id, "tools": ["Task", "Bash", "Write"]}
        frame |= {"mcp_servers": [], "model": self.flags.get("--model") or MODEL}
        frame |= {"permissionMode": self.flags.get("--permission-mode", "default"), "slash_commands": ["cost"]}
        frame |= {"terminal_slash_commands": ["doctor"], "apiKeySource": api_key_source(), "claude_code_version": self.version}
        frame |= {"output_style": "default", "agents": ["claude"], "skills": ["dataviz"], "plugins": []}
        frame |= {"capabilities": ["interrupt_receipt_v1", "interrupt_cancel_queued_v1"], "analytics_disabled": True}
        frame |= {"product_feedback_disabled": True, "served_by_anthropic": False, "uuid": new_uuid(), "sandbox_enabled": False}
        frame |= {"memory_paths": {"auto": home + "/.claude/memory/"}, "original_cwd": cwd, "additional_directories": []}
        frame |= {"messaging_socket_path": f"/tmp/cc-socks/{os.getpid()}.sock", **FAST_MODE}  # noqa: S108 - a name in a frame
        frame |= {"per_turn_effort_active": True, "ultrathink_available": False, "ultrathink_typed_raises": False}
        frame["view_mode"] = "default"
        return {**frame, "user_message_uuids": uuids} if uuids else frame

    # --- the loop ---

    def startable(self) -> bool:
        waiting = self.queue or (self.unprompted and self.results)
        return bool(waiting) and not self.turn and time.monotonic() >= self.silent_until_s

    def begin(self) -> None:
        """Start the next turn: of the messages that wait, or one of our own."""
        if self.queue:
            self.begin_queued()
        else:
            self.run(Turn(self, [], origin="task-notification", steps=self.unprompted.pop(0)))

    def begin_queued(self) -> None:
        count = 1
        while self.merges(count):
            count += 1
        messages, self.queue = self.queue[:count], self.queue[count:]
        if self.late:
            self.replay_late()
        self.run(Turn(self, messages))

    def merges(self, count: int) -> bool:
        """Whether the first message is merged with the one at `count`: both came during a turn, or behind another message."""
        if count >= len(self.queue):
            return False
        return all(message.waited and message.priority == "next" for message in (self.queue[0], self.queue[count]))

    def replay_late(self) -> None:
        late, self.late = self.late, None
        for line in late.frames if late else ():
            self.out.raw(line)

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
            self.failed = bool(self.turn and self.turn.is_error)
            self.turn = self.player = None
            quiet_s = float(self.plan.get("pause_after_turn_s", 0))
            self.silent_until_s = max(self.silent_until_s, time.monotonic() + quiet_s)

    def due(self) -> bool:
        if self.deadline_s is not None and time.monotonic() >= self.deadline_s:
            return True
        return bool(self.condition and self.condition())

    def timeout_ms(self) -> float | None:
        if self.startable() or (self.turn and self.due()):
            return 0
        waits = [at for at, _ in self.store.pending[:1]]
        if self.turn and self.deadline_s is not None:
            waits.append(self.deadline_s)
        if self.silent_until_s > time.monotonic():
            waits.append(self.silent_until_s)
        return max(0.0, (min(waits) - time.monotonic()) * 1000 + 0.2) if waits else None

    def wait(self) -> None:
        poller = select.poll()
        poller.register(self.wake_reader, select.POLLIN)
        if not self.eof and self.reads:
            poller.register(0, select.POLLIN)
        if self.out.buffer:
            poller.register(1, select.POLLOUT)
        ready = dict(poller.poll(self.timeout_ms()))
        if 1 in ready:
            self.out.pump()
        if 0 in ready:
            self.read()
        self.store.flush()

    def finished(self) -> bool:
        if self.asked_to_stop:
            self.break_off()
            self.leave(0)
        over = self.eof and not self.turn and not self.queue and not (self.unprompted and self.results)
        return over and not self.plan.get("ignore_eof")

    def loop(self) -> None:
        while not self.finished():
            if self.turn and self.due():
                self.advance()
            elif self.startable():
                self.begin()
            if not self.finished():
                self.wait()
            self.release_held()
        select.select((), (), (), float(self.plan.get("exit_delay_s", 0)))
        self.leave(1 if self.failed else 0)

    def release_held(self) -> None:
        if self.held and time.monotonic() >= self.silent_until_s:
            held, self.held = self.held, []
            for frame in held:
                self.on_initialize(frame["request_id"], frame["request"])


def api_key_source() -> str:
    return "ANTHROPIC_API_KEY" if os.environ.get("ANTHROPIC_API_KEY") else "none"


VALUED = frozenset(("--resume", "-r", "--session-id", "--permission-mode", "--model", "--json-schema", "--input-format", "--output-format"))


def parse_flags(argv: list[str]) -> dict[str, str]:
    """Return the options that matter; the others are taken and mean nothing here."""
    flags: dict[str, str] = {}
    rest = list(argv)
    while rest:
        name, joined, value = rest.pop(0).partition("=")
        if name in VALUED and not joined and rest:
            value = rest.pop(0)
        flags[name] = value
    return flags


def main() -> None:
    """Run as Claude Code would with these arguments."""
    argv = sys.argv[1:]
    cli = Cli(argv)
    if "--version" in argv or "-v" in argv:
        cli.out.raw(f"{cli.version} (Claude Code)\n".encode())
        cli.out.drain()
        return
    cli.start()
    cli.loop()


if __name__ == "__main__":
    main()
