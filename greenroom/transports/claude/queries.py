"""What Claude Code is asked beside its turns: to rewind, to fork, who pays. Scripts for a short-lived process; no model is called.

A rewind lasts once the process has ended by EOF, which it is made to; killed before, nothing of it is on disk (2.1.332). A fork is on
disk once something was said in it: a message of blanks is answered by the CLI itself, and the model never sees it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from greenroom.errors import QueryFailedError, SessionResumeError, SessionStateError
from greenroom.history import Account, ItemKind, Thread
from greenroom.ids import new_nonce
from greenroom.model import Checkpoint, ProviderUsage
from greenroom.transports.claude import history, lines
from greenroom.transports.claude.account import PROVIDER, account_of
from greenroom.transports.pipes import Oversized
from greenroom.transports.query import Line, Place, Script, ask

_LATER = frozenset({"stale_target", "unseen_later_turn"})
_STREAM = ("--print", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
_ALONE = ("--permission-prompts", "none", "--strict-mcp-config", "--settings", '{"disableAllHooks":true}')
_BLANK = "  "

Facts = dict[str, Any]
_Frames = Generator[bytes | None, Line, Facts]


def arguments(binary: str, *more: str) -> tuple[str, ...]:
    """Return the command line of a process that runs no turn: without the user's hooks and MCP servers."""
    return (binary, *_STREAM, *_ALONE, *more)


# --- the transcript ----------------------------------------------------------------------------------------------------------


def find(home: Path, conversation_id: str) -> Path | None:
    """Return the conversation's transcript, the newest where there are several; None: there is none."""
    if not conversation_id or "/" in conversation_id:
        return None
    found = [path for folder in home.glob("projects/*") if (path := folder / f"{conversation_id}.jsonl").is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def read_thread(home: Path, conversation_id: str, *, running: bool = False) -> Thread:
    """Return the conversation's past. Raises SessionResumeError when there is no transcript of it, QueryFailedError when it cannot be read.

    In a conversation in which a turn runs (`running`) there need not be one yet.
    """
    path = find(home, conversation_id)
    thread = None if path is None else read_file(path, conversation_id, running=running)
    if thread is None and not running:
        raise SessionResumeError(conversation_id, detail=f"there is no transcript of it in {home}")
    return thread or Thread(thread_id=conversation_id)


def read_file(path: Path, conversation_id: str, *, running: bool = False) -> Thread | None:
    """Return what the transcript tells; None when it has just vanished. Raises QueryFailedError when it cannot be read."""
    try:
        return history.read(path, conversation_id, running=running)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise QueryFailedError(f"conversation {conversation_id!r} cannot be read", str(error)) from error


# --- back ------------------------------------------------------------------------------------------------------------------------


def rollback(place: Place, home: Path, conversation_id: str, num_turns: int) -> None:
    """Take the last turns out of the conversation, for good. Nothing else may write it meanwhile.

    Raises SessionStateError when there are fewer turns, QueryFailedError when the CLI refuses or the rewind did not last.
    """
    before = read_thread(home, conversation_id)
    check_enough(before, num_turns)
    keep, target = before.turns[:-num_turns], before.turns[-num_turns]
    ask(place, rewind(target.turn_id, _last_said(before), conversation_id))
    left = [turn.turn_id for turn in read_thread(home, conversation_id).turns]
    if left != [turn.turn_id for turn in keep]:
        raise QueryFailedError(place.what, f"the CLI rewound, and still has {len(left)} turns on record")


def check_enough(thread: Thread, num_turns: int) -> None:
    """Raise SessionStateError when the thread has fewer turns than that."""
    if num_turns > len(thread.turns):
        raise SessionStateError(f"cannot go back by {num_turns} turns: conversation {thread.thread_id!r} has {len(thread.turns)}")


def _last_said(thread: Thread) -> tuple[str, ...]:
    """Return what the CLI may take for the last message of the user, likeliest first: a steered text counts, and a retry does."""
    last = thread.turns[-1]
    said = [item.item_id for item in last.items if item.kind in {ItemKind.USER_TEXT, ItemKind.ATTACHMENT}]
    return tuple(dict.fromkeys([*said[-1:], *last.attempt_ids[::-1]]))


def rewind(target: str, last_said: Iterable[str], conversation_id: str) -> Script[None]:
    """Rewind to before the message `target`. The CLI wants to hear which message it saw last."""
    yield from _handshake(conversation_id)
    reason = "no message was tried"
    for number, uuid in enumerate(last_said, 1):
        request = lines.control_request(
            f"rewind-{number}", "rewind_conversation", target_message_uuid=target, last_seen_user_message_uuid=uuid
        )
        response = yield from _answer(request, f"rewind-{number}")
        answer = response.get("response")
        told = answer if isinstance(answer, dict) else response
        if told.get("rewound") is True:
            return
        reason = str(told.get("error") or "it gave no reason")
        if told.get("reason") not in _LATER:
            break
    hint = "turns before a compaction cannot be taken back" if reason == "target not found" else None
    raise QueryFailedError(f"conversation {conversation_id!r} was not rolled back", reason, hint=hint)


# --- aside -----------------------------------------------------------------------------------------------------------------------


def fork_arguments(thread: Thread, fork_id: str) -> tuple[str, ...]:
    """Return the arguments of a process that forks the conversation where it stands now, also if a turn begins in it meanwhile."""
    last = thread.turns[-1].items[-1] if thread.turns and thread.turns[-1].items else None
    at = ("--resume-session-at", last.item_id) if last is not None and last.kind is ItemKind.ASSISTANT_TEXT else ()
    return ("--resume", str(thread.thread_id), "--fork-session", "--session-id", fork_id, *at)


def fork(place: Place, home: Path, conversation_id: str, fork_id: str) -> Checkpoint:
    """Have the fork written, and return it. What it has consumed by itself begins at nothing. Raises QueryFailedError."""
    ask(place, settle_fork(conversation_id, fork_id))
    if find(home, fork_id) is None:
        raise QueryFailedError(place.what, "the CLI answered, and has no transcript of the fork")
    return Checkpoint(fork_id, ProviderUsage(provider=PROVIDER, raw={"total_cost_usd": 0.0, "modelUsage": {}}))


def settle_fork(conversation_id: str, fork_id: str) -> Script[None]:
    """Say something that reaches no model, so that the fork is written."""
    yield from _handshake(conversation_id)
    line = yield lines.user_message(_BLANK, new_nonce())
    while (frame := _frame(line)).get("type") != "result":
        line = yield None
    if frame.get("session_id") != fork_id:
        raise QueryFailedError(f"conversation {conversation_id!r} was not forked", f"the CLI answered as {frame.get('session_id')!r}")


# --- who pays --------------------------------------------------------------------------------------------------------------------


def whose() -> Script[Account]:
    """Ask for the account."""
    facts = yield from _handshake(None)
    return account_of(facts)


# --- frames ------------------------------------------------------------------------------------------------------------------------


def _handshake(conversation_id: str | None) -> _Frames:
    response = yield from _answer(lines.control_request("hello", "initialize"), "hello", resumes=conversation_id)
    if response.get("subtype") != "success":
        raise QueryFailedError("the handshake was refused", str(response.get("error")))
    facts = response.get("response")
    return facts if isinstance(facts, dict) else {}


def _answer(request: bytes, request_id: str, *, resumes: str | None = None) -> _Frames:
    line = yield request
    while True:
        frame = _frame(line)
        response = frame.get("response")
        if frame.get("type") == "control_response" and isinstance(response, dict) and response.get("request_id") == request_id:
            return response
        if frame.get("type") == "result" and resumes is not None:
            raise SessionResumeError(resumes, detail="; ".join(map(str, frame.get("errors") or ())) or "the CLI refused it")
        line = yield None


def _frame(line: Line) -> Facts:
    if isinstance(line, Oversized):
        return {}
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
