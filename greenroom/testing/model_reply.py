"""What the scripted model answers, in no provider's words but those of the Messages API's blocks. Pure; any thread."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import attrs

Block = dict[str, Any]
Step = tuple[str, str]


class CutError(Exception):
    """Thrown out of an answer, so that the server drops the connection."""


@attrs.frozen
class Pieces:
    """A text block that is streamed piece by piece, with `interval_s` before each."""

    texts: tuple[str, ...]
    interval_s: float = 0.0


@attrs.frozen(kw_only=True)
class Reply:
    """One answer of the model. `content` are blocks of the Messages API, or `Pieces`; a `status` other than 200 makes it an error.

    `delay_s` passes before the first byte; `hang` never ends, `cut` drops the connection after the beginning; `headers` go with an error;
    `failed` makes it an error within the stream, after its beginning.
    On the Responses side the blocks are translated: a text is a message, a thinking a reasoning summary, a tool_use a function call (or a
    custom tool call, if its input is {"input": text} and its name `apply_patch`).
    """

    content: tuple[Block | Pieces, ...] = ()
    delay_s: float = 0.0
    status: int = HTTPStatus.OK
    error_type: str = "api_error"
    message: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    hang: bool = False
    cut: bool = False
    failed: bool = False

    @property
    def refuses(self) -> bool:
        """Whether it is an error from its first byte."""
        return self.status != HTTPStatus.OK

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


Script = Callable[[dict[str, Any]], Reply]


def text_block(text: str) -> Block:
    """Return a text block."""
    return {"type": "text", "text": text}


def tool_block(name: str, tool_input: Mapping[str, Any]) -> Block:
    """Return a tool call with a fresh id."""
    return {"type": "tool_use", "id": f"toolu_{secrets.token_hex(10)}", "name": name, "input": dict(tool_input)}


def split(rest: str, count: int) -> list[str]:
    """Split into exactly `count` parts; the last one keeps its spaces, missing ones are empty."""
    parts = rest.split(None, count - 1)
    return parts + [""] * (count - len(parts))
