"""What is a task's request, and can its provider do it at all? Found out before anything starts; reads the files that are attached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from greenroom.attachments import attachment_from, load
from greenroom.cli.spelling import did_you_mean
from greenroom.cli.tasks import MODES, Task
from greenroom.errors import GreenroomError, SchemaDialectError
from greenroom.model import (
    ApprovalPolicy,
    Attachment,
    ConversationSpec,
    InteractionMode,
    NativePermissions,
    OutputSchema,
    TurnRequest,
)
from greenroom.transports.catalog import PROVIDERS
from greenroom.transports.claude.transport import EFFORTS
from greenroom.transports.refusals import refuse_schema


@attrs.frozen(kw_only=True)
class Wrong:
    """What is wrong with a task, at which key."""

    key: str | None
    why: str
    hint: str | None = None


def request_of(task: Task) -> TurnRequest:
    """Return what the task asks for."""
    return TurnRequest(
        task.prompt,
        timeout=task.timeout,
        output_schema=OutputSchema(task.schema) if task.schema is not None else None,
        reasoning_effort=task.effort,
        attachments=task.attachments,
        interaction_mode=InteractionMode(task.interaction_mode),
    )


def read_attachments(paths: list[str], base: Path) -> tuple[Attachment, ...]:
    """Return what the files hold: images by their first bytes, else texts. Raises AttachmentError."""
    found = tuple(attachment_from(base / Path(path).expanduser()) for path in paths)
    return load(TurnRequest("x", attachments=found)).attachments


def wrong_with(task: Task) -> Iterator[Wrong]:
    """Say what the task's provider cannot do of what it asks for."""
    found = [*_wrong_permissions(task), *_wrong_effort(task), *_wrong_schema(task)]
    yield from found or _refused(task)


def _refused(task: Task) -> Iterator[Wrong]:
    # Whatever else the provider refuses; what the agent may do is looked at when it is made, for it depends on the machine.
    spec = ConversationSpec(cwd=task.settings.cwd, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    try:
        PROVIDERS[task.settings.provider](env={}).validate(spec, request_of(task))
    except GreenroomError as error:
        yield Wrong(key=None, why=str(error), hint=error.hint)


def _wrong_permissions(task: Task) -> Iterator[Wrong]:
    mode, profile = MODES[task.settings.permissions], PROVIDERS[task.settings.provider](env={}).profile
    if mode not in profile.native_permission_modes:
        can = ", ".join(name for name, known in MODES.items() if known in profile.native_permission_modes)
        yield Wrong(key="permissions", why=f"{profile.name} has no {task.settings.permissions!r}", hint=f"one of: {can}")


def _wrong_effort(task: Task) -> Iterator[Wrong]:
    effort = task.effort
    if effort is not None and task.settings.provider == "claude" and effort not in EFFORTS:
        yield Wrong(key="effort", why=f"unknown value {effort!r}", hint=did_you_mean(effort, EFFORTS) or "one of: " + ", ".join(EFFORTS))


def _wrong_schema(task: Task) -> Iterator[Wrong]:
    try:
        if task.schema is not None:
            refuse_schema(OutputSchema(task.schema), provider=task.settings.provider)
    except SchemaDialectError as error:
        yield from (Wrong(key="schema", why=problem) for problem in error.problems)
