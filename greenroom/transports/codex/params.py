"""What a thread and a turn are asked for, and whether the server granted it. Pure.

Overrides of a turn stay in force for the turns after it, and a resumed thread brings its old ones back (0.163 and 0.171), so what a caller
can fix is sent every time. A thread that is already loaded ignores what a resume asks for; hence the look at what the server echoes.
"""

from __future__ import annotations

import enum
from typing import Any

from greenroom.errors import ProviderCapabilityError
from greenroom.model import NativeMode, NativePermissions, StdioMcpServer
from greenroom.transports.base import LaunchSpec
from greenroom.transports.codex.lines import Frame, obj
from greenroom.transports.marks import VARIABLE, append_mark

CONTINUE_TEXT = "Continue from where you left off."
#: How much of its history a resumed thread shows: enough to find the input that a death has cut, and bounded.
HISTORY_TURNS = 8

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
        "sandbox": _SANDBOX[launch.spec.permissions.mode],
        "config": thread_config(launch, marks),
    }
    return asked if launch.spec.model is None else {**asked, "model": launch.spec.model}


class View(enum.Enum):
    """How much of its history a resumed thread is asked for.

    BRIEF: of each turn only the first message of the user, which after a compaction is not the one that began the turn. WHOLE: all of it,
    for a server that knows no pages.
    """

    FULL = "full"
    BRIEF = "summary"
    WHOLE = "whole"


def thread_resume(launch: LaunchSpec, marks: str, view: View = View.FULL) -> Frame:
    """Return what an old thread is asked for: the same, and the end of its history."""
    asked = {**thread_start(launch, marks), "threadId": launch.resume_id}
    if view is View.WHOLE:
        return asked
    page = {"limit": HISTORY_TURNS, "sortDirection": "desc", "itemsView": view.value}
    return {**asked, "excludeTurns": True, "initialTurnsPage": page}


def thread_config(launch: LaunchSpec, marks: str) -> Frame:
    """Return the thread's own configuration, on top of the user's.

    The mark is set for the model's shells by name, since a user's `shell_environment_policy` may keep the process's variables from them.
    """
    marked = append_mark(marks, launch.mark) if launch.mark else marks
    config: Frame = {f"mcp_servers.{server.name}": _server(server, marked) for server in launch.flags.mcp_servers}
    return {**config, f"shell_environment_policy.set.{VARIABLE}": marked} if marked else config


def _server(server: StdioMcpServer, marks: str) -> Frame:
    # Codex passes only a few variables on to a server, so the mark must be among the given ones.
    env = {**server.env, **({VARIABLE: marks} if marks else {})}
    return {"command": server.command, "args": list(server.args), "env": env}


def turn_start(launch: LaunchSpec, thread_id: str, prompt: str | None, **fields: Any) -> Frame:
    """Return what a turn is asked for; fields that are None are left out. `prompt` None: the model is asked again, history as it is."""
    return {
        "threadId": thread_id,
        "input": user_input(prompt),
        "approvalPolicy": approval_policy(launch.spec.permissions),
        "sandboxPolicy": sandbox_policy(launch),
        **{name: value for name, value in {"model": launch.spec.model, **fields}.items() if value is not None},
    }


def user_input(text: str | None) -> list[Frame]:
    """Return a text as input."""
    return [] if text is None else [{"type": "text", "text": text}]


def check_echo(launch: LaunchSpec, reply: Frame) -> ProviderCapabilityError | None:
    """Return what is wrong with the permissions that a thread got, or None when they are the ones that were asked for."""
    wanted = (_POLICY[launch.spec.permissions.mode], approval_policy(launch.spec.permissions))
    got = (obj(reply.get("sandbox")).get("type"), reply.get("approvalPolicy"))
    if got == wanted:
        return None
    what = f"asked for the sandbox {wanted[0]!r} with approvals {wanted[1]!r}, the server answered {got[0]!r} with {got[1]!r}"
    return ProviderCapabilityError(
        what, provider="codex", hint="look for requirements in Codex's configuration, or close the thread's other user"
    )
