"""The model server's default script: it plays the directives of the last prompt, for either API.

Keeps only how often each ERROR was given, over all conversations; what was done already is read from the request. One thread at a time.
"""

from __future__ import annotations

import re
from typing import Any

import attrs

from greenroom.testing import model_messages, model_responses
from greenroom.testing.model_reply import Block, Pieces, Reply, Step, split, text_block

_TOOL_WORDS = frozenset(("BASH", "ASK", "WRITE", "TOOL", "STRUCTURED"))
_WORDS = _TOOL_WORDS | {"SAY", "THINK", "SLOW", "SLEEP", "HANG", "CUT", "TOO_LONG", "ERROR", "FAILED"}
_NO_PROMPTS = frozenset(("", "(no content)", "Tool loaded."))
_NO_PROMPT_BEGINNINGS = ("Continue from where you left off", "[Request interrupted", "[Image: source: ")


def is_responses(body: dict[str, Any]) -> bool:
    """Return whether a request is one of the Responses API."""
    return "input" in body


class Rules:
    """The default script: plays the directives of the last prompt. Keeps only how often an ERROR was given. One thread at a time."""

    def __init__(self) -> None:
        self._errors: dict[Step, int] = {}

    def __call__(self, body: dict[str, Any]) -> Reply:
        """Answer a request."""
        responses = is_responses(body)
        waiting = model_responses.unfinished(body) if responses else None
        if waiting:
            return Reply(content=(waiting,))
        happened = model_responses.events(body) if responses else model_messages.events(body)
        steps, calls = _position(happened)
        chunk = _chunks(steps, ends=_TOOL_WORDS - {"STRUCTURED"} if responses else _TOOL_WORDS)[calls:][:1]
        return self._reply(chunk[0] if chunk else [("SAY", "done")], responses=responses)

    def _reply(self, chunk: list[Step], *, responses: bool) -> Reply:
        reply = Reply()
        for word, rest in chunk:
            if word in ("ERROR", "FAILED"):
                error = self._error((word, rest))
                if error:
                    return attrs.evolve(error, content=reply.content)
            else:
                reply = _extended(reply, word, rest, responses=responses)
        says = reply.blocks() or reply.refuses or reply.hang or reply.cut or reply.failed
        return reply if says else _with(reply, text_block("done"))

    def _error(self, step: Step) -> Reply | None:
        """Return the error that a step gives, or None if it has been given often enough."""
        failed = step[0] == "FAILED"
        status, kind, message = ("200", *split(step[1], 2)) if failed else split(step[1], 3)
        found = re.fullmatch(r"(.*?)(?:\s+(\d+))?(?:\s+(\d+))?", message, re.DOTALL)
        text, times, retry_after = found.groups() if found else (message, None, None)
        self._errors[step] = self._errors.get(step, 0) + 1
        if times is not None and self._errors[step] > int(times):
            return None
        headers = {"retry-after": retry_after} if retry_after else {}
        return Reply(status=int(status), error_type=kind, message=text, headers=headers, failed=failed)


def _extended(reply: Reply, word: str, rest: str, *, responses: bool) -> Reply:
    match word:
        case "SAY":
            return _with(reply, text_block(rest.replace("\\n", "\n")))
        case "THINK":
            return _with(reply, {"type": "thinking", "thinking": rest, "signature": "c2ln"})
        case "SLOW":
            count, interval_s, text = split(rest, 3)
            pieces = tuple(f"{' ' if number else ''}{text or 'w'}{number}" for number in range(int(count)))
            return _with(reply, Pieces(pieces, float(interval_s)))
        case "SLEEP":
            return attrs.evolve(reply, delay_s=float(rest))
        case "HANG":
            return attrs.evolve(reply, hang=True)
        case "CUT":
            return attrs.evolve(reply, cut=True)
        case "TOO_LONG":
            return model_responses.TOO_LONG if responses else model_messages.TOO_LONG
        case _:
            return _with(reply, model_responses.call(word, rest) if responses else model_messages.call(word, rest))


def _with(reply: Reply, block: Block | Pieces) -> Reply:
    return attrs.evolve(reply, content=(*reply.content, block))


def _steps(text: str) -> list[Step]:
    parts = (line.strip().partition(" ") for line in text.splitlines())
    return [(word, rest.strip()) for word, _, rest in parts if word in _WORDS]


def _chunks(steps: list[Step], ends: frozenset[str]) -> list[list[Step]]:
    """Split the directives into answers: each ends with its tool call, the calls after one another in one prompt."""
    chunks: list[list[Step]] = [[]]
    for step in steps:
        chunks[-1].append(step)
        if step[0] in ends:
            chunks.append([])
    return chunks if chunks[-1] else chunks[:-1]


def _position(happened: list[tuple[str, str]]) -> tuple[list[Step], int]:
    """Return the directives that are being played and how many tools were called for them."""
    steps: list[Step] = [("SAY", "done")]
    calls = 0
    for kind, text in happened:
        found = None if kind == "call" else _prompt(text, system=kind == "system")
        calls += kind == "call"
        if found:
            steps, calls = found, 0
    return steps, calls


def _prompt(text: str, *, system: bool) -> list[Step] | None:
    """Return the directives of a text, its echo, or None if it is no prompt: a reminder, a continuation, nothing."""
    steps = _steps(text)
    if steps or system or text in _NO_PROMPTS or text.startswith(_NO_PROMPT_BEGINNINGS):
        return steps or None
    return [("SAY", "echo: " + text)]
