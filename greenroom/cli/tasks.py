"""What a task is, and when two are the same one. Pure values; any thread."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from greenroom.model import Attachment, ImageAttachment, InteractionMode, NativeMode

PROVIDERS = ("claude", "codex")
MODES = {"bypass": NativeMode.BYPASS, "workspace-write": NativeMode.WORKSPACE_WRITE, "read-only": NativeMode.READ_ONLY}
PERMISSIONS = tuple(MODES)
APPROVALS = ("deny", "fail-turn")
INTERACTION_MODES = tuple(mode.value for mode in InteractionMode)


@attrs.frozen(kw_only=True)
class Given:
    """What the command line says for tasks that do not say it themselves."""

    permissions: str | None = None
    model: str | None = None
    provider: str | None = None
    timeout: float | None = None


@attrs.frozen(kw_only=True)
class AgentSettings:
    """What is fixed for a conversation's life: tasks that share a session must agree on it."""

    cwd: Path
    provider: str
    model: str | None
    permissions: str
    approvals: str
    env: tuple[tuple[str, str], ...] = ()


@attrs.frozen(kw_only=True)
class Task:
    """One prompt with all that is needed to run it. `session` is None for a conversation of its own; `timeout` is in seconds."""

    id: str
    prompt: str
    settings: AgentSettings
    session: str | None = None
    after: tuple[str, ...] = ()
    timeout: float | None = None
    effort: str | None = None
    schema: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    attachments: tuple[Attachment, ...] = ()
    interaction_mode: str = "default"
    hash: str = ""
    line: int | None = None

    @property
    def session_name(self) -> str:
        """The name that people see: a task without a session has one under its own id."""
        return self.session or self.id

    @property
    def session_key(self) -> tuple[str, str]:
        """What tells sessions apart: a session named like another task's id is still not that task's own."""
        return ("shared", self.session) if self.session else ("own", self.id)


def content_hash(task: Task) -> str:
    """Return the hash of all that decides what the task asks for and where; not its id, order or patience."""
    content = {
        "prompt": task.prompt,
        "session": task.session,
        "effort": task.effort,
        "schema": task.schema,
        # What is not there leaves the hash as it was before there were such things.
        **({"attachments": _digests_of(task.attachments)} if task.attachments else {}),
        **({"interaction_mode": task.interaction_mode} if task.interaction_mode != "default" else {}),
        **attrs.asdict(attrs.evolve(task.settings, cwd=Path())),
        "cwd": str(task.settings.cwd),
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _digests_of(attachments: tuple[Attachment, ...]) -> list[str]:
    return [hashlib.sha256(_content(attachment)).hexdigest() for attachment in attachments]


def _content(attachment: Attachment) -> bytes:
    if isinstance(attachment, ImageAttachment):
        return attachment.data or b""
    return f"{attachment.name}\0{attachment.text}".encode(errors="surrogatepass")
