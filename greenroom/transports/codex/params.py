"""What a thread and a turn are asked for, and whether the server granted it. Pure.

Overrides of a turn stay in force for the turns after it, and a resumed thread brings its old ones back (0.163 and 0.171), so what a caller
can fix is sent every time. A thread that is already loaded ignores what a resume asks for; hence the look at what the server echoes.
"""

from __future__ import annotations

import base64
import enum
import os
from typing import Any

from greenroom.attachments import images_of, texts_of
from greenroom.errors import ProviderCapabilityError
from greenroom.model import NativeMode, NativePermissions, StdioMcpServer, TurnRequest
from greenroom.transports.base import LaunchSpec
from greenroom.transports.codex.lines import Frame, obj
from greenroom.transports.marks import VARIABLE, append_mark

#: Who answers requests for leave: never a model, whatever the user's configuration says.
REVIEWER = "user"
CONTINUE_TEXT = "Continue from where you left off."
#: How much of its history a resumed thread shows: enough to find the input that a death has cut, and bounded.
HISTORY_TURNS = 8
#: So many turns with all that may be attached to each fit into a line.
LAST_TURNS = 2

_SANDBOX = {
    NativeMode.BYPASS: "danger-full-access",
    NativeMode.READ_ONLY: "read-only",
    NativeMode.WORKSPACE_WRITE: "workspace-write",
    NativeMode.ASK: "danger-full-access",
}
_POLICY = {
    NativeMode.BYPASS: "dangerFullAccess",
    NativeMode.READ_ONLY: "readOnly",
    NativeMode.WORKSPACE_WRITE: "workspaceWrite",
    NativeMode.ASK: "dangerFullAccess",
}
#: ASK has no sandbox: what a person accepted would run in it first, and outside of it only if it failed quickly (0.163 and 0.171).
_ASKS = {NativeMode.BYPASS: "never", NativeMode.ASK: "untrusted"}


def approval_policy(permissions: NativePermissions) -> str:
    """Return when the agent asks for leave."""
    return _ASKS.get(permissions.mode, "on-request")


def sandbox_policy(launch: LaunchSpec) -> Frame:
    """Return the sandbox of a turn: the only place for writable roots and the network. `/tmp` and `$TMPDIR` can always be written."""
    permissions = launch.spec.permissions
    policy: Frame = {"type": _POLICY[permissions.mode]}
    if permissions.mode is NativeMode.WORKSPACE_WRITE:
        roots = [str(launch.spec.cwd / root) for root in permissions.writable_roots]
        return {**policy, "writableRoots": roots, "networkAccess": permissions.network}
    return {**policy, "networkAccess": False} if permissions.mode is NativeMode.READ_ONLY else policy


def thread_start(launch: LaunchSpec, marks: str) -> Frame:
    """Return what a new thread is asked for."""
    asked: Frame = {
        "cwd": str(launch.spec.cwd),
        "approvalPolicy": approval_policy(launch.spec.permissions),
        "approvalsReviewer": REVIEWER,
        "sandbox": _SANDBOX[launch.spec.permissions.mode],
        "config": thread_config(launch, marks),
    }
    return asked if launch.spec.model is None else {**asked, "model": launch.spec.model}


class View(enum.Enum):
    """How much of its history a resumed thread is asked for.

    BRIEF: of each turn only the first message of the user, which after a compaction is not the one that began the turn. LAST: the same, of
    the last turns alone, since a message comes with its images. WHOLE: all of it, for a server that knows no pages.
    """

    FULL = "full"
    BRIEF = "summary"
    LAST = "last"
    WHOLE = "whole"

    @property
    def shorter(self) -> View | None:
        """What to ask for when the answer was too long for a line."""
        return {View.FULL: View.BRIEF, View.BRIEF: View.LAST}.get(self)


def thread_resume(launch: LaunchSpec, marks: str, view: View = View.FULL) -> Frame:
    """Return what an old thread is asked for: the same, and the end of its history."""
    asked = {**thread_start(launch, marks), "threadId": launch.resume_id}
    if view is View.WHOLE:
        return asked
    brief = view is not View.FULL
    page = {
        "limit": LAST_TURNS if view is View.LAST else HISTORY_TURNS,
        "sortDirection": "desc",
        "itemsView": (View.BRIEF if brief else View.FULL).value,
    }
    return {**asked, "excludeTurns": True, "initialTurnsPage": page}


def thread_config(launch: LaunchSpec, marks: str) -> Frame:
    """Return the thread's own configuration, on top of the user's.

    The mark is set for the model's shells by name, since a user's `shell_environment_policy` may keep the process's variables from them.
    """
    marked = append_mark(marks, launch.mark) if launch.mark else marks
    config: Frame = {f"mcp_servers.{server.name}": _server(server, marked) for server in launch.flags.mcp_servers}
    if launch.spec.permissions.mode is NativeMode.WORKSPACE_WRITE:
        # Said for the thread too: before its first turn, and for turns of the server's own, the user's configuration would hold.
        policy = sandbox_policy(launch)
        config["sandbox_workspace_write.network_access"] = policy["networkAccess"]
        config["sandbox_workspace_write.writable_roots"] = policy["writableRoots"]
    return {**config, f"shell_environment_policy.set.{VARIABLE}": marked} if marked else config


def _server(server: StdioMcpServer, marks: str) -> Frame:
    # Codex passes only a few variables on to a server, so the mark must be among the given ones.
    env = {**server.env, **({VARIABLE: marks} if marks else {})}
    return {"command": server.command, "args": list(server.args), "env": env}


def turn_start(launch: LaunchSpec, thread_id: str, given: list[Frame], **fields: Any) -> Frame:
    """Return what a turn is asked for; fields that are None are left out. Without input (`given`) the history is answered as it is."""
    return {
        "threadId": thread_id,
        "input": given,
        "approvalPolicy": approval_policy(launch.spec.permissions),
        "approvalsReviewer": REVIEWER,
        "sandboxPolicy": sandbox_policy(launch),
        **{name: value for name, value in fields.items() if value is not None},
    }


def user_input(text: str) -> list[Frame]:
    """Return a text as input."""
    return [{"type": "text", "text": text}]


def request_input(request: TurnRequest) -> list[Frame]:
    """Return a request as input: what is attached, and the prompt behind it. An image goes as bytes: a file could have changed since."""
    images = [{"type": "image", "url": f"data:{kind};base64,{base64.b64encode(data).decode()}"} for kind, data in images_of(request)]
    return [*images, *(item for text in texts_of(request) for item in user_input(text)), *user_input(request.prompt)]


def said_by(request: TurnRequest) -> str:
    """Return the text of a request as the thread's history has it: its texts, joined."""
    return "".join([*texts_of(request), request.prompt])


def differing(launch: LaunchSpec, sandbox: Any, approvals: Any, reviewer: Any) -> tuple[str, str] | None:
    """Return what was asked for and what the server says instead; None: they are the same."""
    policy = obj(sandbox)
    wanted = _said(sandbox_policy(launch), approval_policy(launch.spec.permissions), REVIEWER)
    # Older servers leave out who answers.
    got = _said(policy, approvals, REVIEWER if reviewer is None else reviewer)
    return None if got == wanted else (wanted, got)


def _said(policy: Frame, approvals: Any, reviewer: Any) -> str:
    roots = policy.get("writableRoots")
    writable = sorted({os.path.normpath(root) for root in roots if isinstance(root, str)}) if isinstance(roots, list) else []
    parts = [f"the sandbox {policy.get('type')!r}", *(["the network"] if policy.get("networkAccess") is True else [])]
    return " and ".join([*parts, *(f"leave to write {root!r}" for root in writable), f"approvals {approvals!r} by {reviewer!r}"])


def refused(asked: str, reported: str) -> ProviderCapabilityError:
    """Return the error for permissions that are not the ones that were asked for."""
    hint = "look for requirements in Codex's configuration, or close the thread's other user"
    return ProviderCapabilityError(f"asked for {asked}, the server answered {reported}", provider="codex", hint=hint)
