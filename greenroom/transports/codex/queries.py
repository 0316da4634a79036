"""What an app-server is asked beside its turns: a thread's past, to revert, to fork, who pays. Scripts for a short-lived server of its own.

A thread can be read and forked while another server holds it, also in mid-turn; it can be reverted only by the server that holds it. A
revert is on disk with its answer (0.163 and 0.171). No model is called. Pure.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs

from greenroom.errors import GreenroomError, QueryFailedError, SessionResumeError, SessionStateError
from greenroom.history import Account, Clipper, Thread, ThreadTurn
from greenroom.model import ProviderUsage
from greenroom.transports.codex import lines
from greenroom.transports.codex.account import PROVIDER, WHOSE, account_of
from greenroom.transports.codex.classify import ARCHIVED, refused_open
from greenroom.transports.codex.history import Teller
from greenroom.transports.codex.lines import Frame, obj, rows, text
from greenroom.transports.codex.usage import ROLLED_BACK
from greenroom.transports.pipes import Oversized
from greenroom.transports.query import Line, Script

PAGE_TURNS = 8


@attrs.frozen
class Reply:
    """An answer of the server's: a result, or an error; or one that was too long to be read."""

    result: Frame
    error: Any = None
    too_long: bool = False


_Replies = Generator[bytes | None, Line, Reply]


class Server:
    """Asks one server; each question gets the next id."""

    def __init__(self) -> None:
        self._count = 0

    def hello(self, client_version: str = "0") -> Generator[bytes | None, Line, None]:
        """Make the handshake."""
        asked = {
            "clientInfo": {"name": "greenroom", "title": "Greenroom", "version": client_version},
            "capabilities": {"experimentalApi": True},
        }
        reply = yield from self.ask("initialize", asked)
        if reply.error is not None:
            raise QueryFailedError("the handshake was refused", text(obj(reply.error).get("message")))

    def ask(self, method: str, params: Frame) -> _Replies:
        """Ask for something, and wait for its answer. A line that is too long can only be an answer."""
        self._count += 1
        data = lines.request(self._count, method, params)
        if method != "initialize" and self._count == _FIRST_QUESTION:
            data = lines.notification("initialized") + data
        line = yield data
        while True:
            if isinstance(line, Oversized):
                return Reply({}, too_long=True)
            frame = lines.decode(line) or {}
            if frame.get("id") == self._count and "method" not in frame:
                return Reply(obj(frame.get("result")), frame.get("error"))
            # The server's own questions are about turns, which there are none of; one is refused all the same.
            line = yield (lines.refusal(frame["id"], "greenroom only asks here") if "method" in frame and "id" in frame else None)


_FIRST_QUESTION = 2


# --- the past --------------------------------------------------------------------------------------------------------------------


def read_thread(thread_id: str, *, running: bool = False) -> Script[Thread]:
    """Read a thread's turns, page by page."""
    server = Server()
    yield from server.hello()
    turns = yield from _turns(server, thread_id, running=running, missing_is_empty=running)
    return Thread(thread_id=thread_id, turns=turns)


def _turns(
    server: Server, thread_id: str, *, view: str = "full", running: bool = False, missing_is_empty: bool = False
) -> Generator[bytes | None, Line, tuple[ThreadTurn, ...]]:
    teller, pages = Teller(Clipper()), 0
    cursor, limit, view_now = None, PAGE_TURNS, view
    while True:
        asked = {"threadId": thread_id, "limit": limit, "sortDirection": "asc", "itemsView": view_now}
        reply = yield from server.ask("thread/turns/list", asked if cursor is None else {**asked, "cursor": cursor})
        if reply.too_long and (limit, view_now) != (1, "summary"):
            # Smaller pages; and of a turn that fills a line by itself, what was said.
            limit, view_now = (1, view_now) if limit > 1 else (1, "summary")
            continue
        if reply.error is not None or reply.too_long:
            if missing_is_empty and not pages:
                return ()
            raise _refused(reply, thread_id, f"thread {thread_id!r} cannot be read")
        pages += 1
        for wire in rows(reply.result.get("data")):
            teller.take(wire)
        cursor = reply.result.get("nextCursor")
        limit, view_now = PAGE_TURNS, view
        if not isinstance(cursor, str) or not cursor:
            return teller.turns(running=running)


def _refused(reply: Reply, thread_id: str, what: str) -> GreenroomError:
    if reply.too_long:
        return QueryFailedError(what, "one turn of it is longer than a line may be")
    error = refused_open(reply.error, resume_id=thread_id, argv=())
    if isinstance(error, SessionResumeError):
        return error
    return QueryFailedError(what, text(obj(reply.error).get("message")) or "the server gave no reason")


# --- back ------------------------------------------------------------------------------------------------------------------------


def rollback(thread_id: str, num_turns: int, usage: ProviderUsage | None) -> Script[ProviderUsage | None]:
    """Take the last turns out of the thread, for good; return the thread's usage as the next process wants it back."""
    server = Server()
    yield from server.hello()
    yield from _load(server, thread_id)
    before = yield from _turns(server, thread_id, view="summary")
    if num_turns > len(before):
        raise SessionStateError(f"cannot go back by {num_turns} turns: conversation {thread_id!r} has {len(before)}")
    keep, target = before[:-num_turns], before[-num_turns]
    what = f"thread {thread_id!r} was not rolled back"
    reply = yield from server.ask("thread/revert", {"threadId": thread_id, "beforeTurnId": target.turn_id})
    if reply.error is not None or reply.too_long:
        raise _refused(reply, thread_id, what)
    after = yield from _turns(server, thread_id, view="summary", missing_is_empty=not keep)
    if _ids(after) != _ids(keep):
        raise QueryFailedError(what, f"the server reverted it, and still has {len(after)} turns on record")
    return _rebased(usage, empty=not keep)


def _ids(turns: tuple[ThreadTurn, ...]) -> list[str]:
    return [turn.turn_id for turn in turns]


def _rebased(usage: ProviderUsage | None, *, empty: bool) -> ProviderUsage | None:
    """The server's totals go back with the turns: what they are now is told when the thread is next resumed, unless there are none."""
    if usage is None and not empty:
        return None
    given = usage or ProviderUsage(provider=PROVIDER, increment_known=False)
    return attrs.evolve(given, raw={"total": {}} if empty else {ROLLED_BACK: True})


def _load(server: Server, thread_id: str) -> Generator[bytes | None, Line, None]:
    """Take the thread. One that another server holds is refused, as in use."""
    asked = {"threadId": thread_id, "excludeTurns": True}
    reply = yield from server.ask("thread/resume", asked)
    if _is_archived(reply):
        yield from server.ask("thread/unarchive", {"threadId": thread_id})
        reply = yield from server.ask("thread/resume", asked)
    if reply.error is not None or reply.too_long:
        raise _refused(reply, thread_id, f"thread {thread_id!r} was not rolled back")


def _is_archived(reply: Reply) -> bool:
    """Whether the thread is in the archive, by way of which one is given up: a death in between leaves it there."""
    return reply.error is not None and ARCHIVED.search(text(obj(reply.error).get("message"))) is not None


# --- aside -----------------------------------------------------------------------------------------------------------------------


def fork(thread_id: str) -> Script[str]:
    """Fork the thread as it stands now; return the fork's id."""
    server = Server()
    yield from server.hello()
    reply = yield from server.ask("thread/fork", {"threadId": thread_id, "excludeTurns": True})
    if _is_archived(reply):
        yield from server.ask("thread/unarchive", {"threadId": thread_id})
        reply = yield from server.ask("thread/fork", {"threadId": thread_id, "excludeTurns": True})
    if reply.error is not None or reply.too_long:
        raise _refused(reply, thread_id, f"thread {thread_id!r} was not forked")
    fork_id = text(obj(reply.result.get("thread")).get("id"))
    if not fork_id:
        raise QueryFailedError(f"thread {thread_id!r} was not forked", "the server named no thread")
    return fork_id


# --- who pays --------------------------------------------------------------------------------------------------------------------


def whose() -> Script[Account]:
    """Ask for the account."""
    server = Server()
    yield from server.hello()
    reply = yield from server.ask(WHOSE, {})
    return account_of(reply.result, reply.error)
