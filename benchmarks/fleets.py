"""The same scripted CLIs, reached in three ways: a raw loop, greenroom from threads, greenroom from asyncio.

The raw loop is the least that can be done: the thread that wants the turn writes the prompt, reads lines until the result, and decodes
each with the types that greenroom decodes with. It has no timeouts, no restarts, no retries, and looks at nothing but texts and results.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import msgspec

from greenroom import ApprovalPolicy, AssistantText, ClaudeStreamTransport, Greenroom, NativePermissions, Session, SessionEvent, TurnRequest
from greenroom.testing.scripted import write_scripted_claude
from greenroom.transports.claude.frames import Frame

OnText = Callable[[str], None]
Join = Callable[[], None]
FLAGS = ("--print", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
FLAGS += ("--replay-user-messages", "--permission-prompts", "none", "--permission-mode", "bypassPermissions")


class Player:
    """The end of one session's turns: takes the texts, and says whether to run another turn."""

    def on_text(self, text: str) -> None:
        """Take a text of the model; on the thread that runs the turn."""

    def again(self) -> bool:
        """A turn has ended: run one more?"""
        return False


class Fleet(Protocol):
    """Live sessions, by number."""

    name: str

    def turn(self, number: int, prompt: str, on_text: OnText) -> None:
        """Run one turn; from any thread, one at a time for a session."""

    def play(self, prompt: str, players: Sequence[Player]) -> Join:
        """Have each session run turns for its player, all at once; return what waits for the last to end."""
        ...

    def interrupt(self, number: int) -> None:
        """End the session's turn."""

    def close(self) -> None:
        """End every process."""


def out_of_step_s(number: int) -> float:
    """Return when a session begins: agents do not tick in unison, and a burst of 64 is another measurement."""
    return number * 0.618 % 1 * 0.1


class Stage:
    """A directory with the executable, a working directory, and an environment for either kind of fleet."""

    def __init__(self, folder: Path) -> None:
        self.binary = write_scripted_claude(folder / "bin")
        self.cwd = folder / "work"
        self.cwd.mkdir()
        self.env = {"PATH": os.defpath, "HOME": str(folder), "IS_SANDBOX": "1"}

    def state(self, name: str) -> dict[str, str]:
        """Return the environment, with a state directory of its own."""
        return {**self.env, "GREENROOM_SCRIPTED_STATE": str(Path(self.env["HOME"]) / f"state-{name}")}


class RawSession:
    """One process; whoever calls `turn` reads it."""

    def __init__(self, binary: Path, cwd: Path, env: Mapping[str, str]) -> None:
        argv = (str(binary), *FLAGS, "--session-id", str(uuid.uuid4()))
        self._process = subprocess.Popen(argv, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._lock = threading.Lock()
        self._decode = msgspec.json.Decoder(Frame).decode
        self._write({"type": "control_request", "request_id": "1", "request": {"subtype": "initialize"}})
        self._until("control_response", lambda _text: None)

    def _write(self, value: Mapping[str, Any]) -> None:
        data = json.dumps(value).encode() + b"\n"
        with self._lock:
            self._process.stdin.write(data)  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _until(self, last: str, on_text: OnText) -> None:
        decode, readline = self._decode, self._process.stdout.readline  # type: ignore[union-attr]
        while line := readline():
            frame = decode(line)
            if frame.type == "assistant":
                for block in frame.message.content:
                    if block.type == "text":
                        on_text(block.text)
            elif frame.type == last:
                return

    def turn(self, prompt: str, on_text: OnText) -> None:
        """Write the prompt and read up to the result."""
        message = {"role": "user", "content": prompt}
        self._write({"type": "user", "uuid": str(uuid.uuid4()), "message": message, "parent_tool_use_id": None})
        self._until("result", on_text)

    def interrupt(self) -> None:
        """Ask for the end of the turn."""
        self._write({"type": "control_request", "request_id": str(uuid.uuid4()), "request": {"subtype": "interrupt"}})

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]


class _Threads:
    """A thread for each session."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size)

    def turn(self, number: int, prompt: str, on_text: OnText) -> None:
        raise NotImplementedError

    def play(self, prompt: str, players: Sequence[Player]) -> Join:
        """Have each session run turns for its player, all at once."""
        return _joining([self._pool.submit(self._play, number, prompt, player) for number, player in enumerate(players)])

    def _play(self, number: int, prompt: str, player: Player) -> None:
        time.sleep(out_of_step_s(number))
        self.turn(number, prompt, player.on_text)
        while player.again():
            self.turn(number, prompt, player.on_text)


def _joining(started: Sequence[Future[None]]) -> Join:
    def join() -> None:
        for future in started:
            future.result()

    return join


class RawFleet(_Threads):
    """A thread a pipe."""

    name = "raw"

    def __init__(self, stage: Stage, size: int) -> None:
        super().__init__(size)
        env = stage.state(self.name)
        self._sessions = [RawSession(stage.binary, stage.cwd, env) for _ in range(size)]

    def turn(self, number: int, prompt: str, on_text: OnText) -> None:
        """Run one turn."""
        self._sessions[number].turn(prompt, on_text)

    def interrupt(self, number: int) -> None:
        """End the session's turn."""
        self._sessions[number].interrupt()

    def close(self) -> None:
        """End every process."""
        for session in self._sessions:
            session.close()
        self._pool.shutdown()


def open_sessions(room: Greenroom, stage: Stage, size: int) -> list[Session]:
    """Return `size` new sessions; no process runs yet."""
    transport = ClaudeStreamTransport(binary=stage.binary, env=stage.state("greenroom"))
    agent = room.agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    return [agent.session(stage.cwd) for _ in range(size)]


def texts_to(on_text: OnText) -> Callable[[Any], None]:
    """Return an `on_event` that passes on the texts."""

    def on_event(event: Any) -> None:
        if type(event) is SessionEvent:
            event = event.event
        if type(event) is AssistantText:
            on_text(event.text)

    return on_event


class ThreadsFleet(_Threads):
    """Greenroom: `run` on a thread for each session."""

    name = "threads"

    def __init__(self, stage: Stage, size: int) -> None:
        super().__init__(size)
        self.room = Greenroom()
        self.sessions = open_sessions(self.room, stage, size)
        self.play("SAY ready", [Player()] * size)()

    def turn(self, number: int, prompt: str, on_text: OnText) -> None:
        """Run one turn."""
        session = self.sessions[number]
        session.run(session.prepare_turn(TurnRequest(prompt=prompt)), on_event=texts_to(on_text))

    def interrupt(self, number: int) -> None:
        """End the session's turn."""
        self.sessions[number].interrupt()

    def close(self) -> None:
        """End every process."""
        self.room.close()
        self._pool.shutdown()


class AsyncioFleet:
    """Greenroom: `arun` of all sessions in one event loop, on a thread of its own."""

    name = "asyncio"

    def __init__(self, stage: Stage, size: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.room = Greenroom()
        self.sessions = open_sessions(self.room, stage, size)
        self.play("SAY ready", [Player()] * size)()

    async def _arun(self, number: int, prompt: str, on_text: OnText) -> None:
        session = self.sessions[number]
        await session.arun(session.prepare_turn(TurnRequest(prompt=prompt)), on_event=texts_to(on_text))

    def turn(self, number: int, prompt: str, on_text: OnText) -> None:
        """Run one turn."""
        asyncio.run_coroutine_threadsafe(self._arun(number, prompt, on_text), self._loop).result()

    def play(self, prompt: str, players: Sequence[Player]) -> Join:
        """Have each session run turns for its player, all at once."""
        coroutines = (self._play(number, prompt, player) for number, player in enumerate(players))
        return _joining([asyncio.run_coroutine_threadsafe(coroutine, self._loop) for coroutine in coroutines])

    async def _play(self, number: int, prompt: str, player: Player) -> None:
        await asyncio.sleep(out_of_step_s(number))
        await self._arun(number, prompt, player.on_text)
        while player.again():
            await self._arun(number, prompt, player.on_text)

    def interrupt(self, number: int) -> None:
        """End the session's turn."""
        self.sessions[number].interrupt()

    def close(self) -> None:
        """End every process."""
        self.room.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
