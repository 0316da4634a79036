"""What every provider refuses alike, before anything is started. What one provider can do is for it to say. Pure, but for `realpath`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from greenroom.errors import McpConfigError, ProviderCapabilityError, SchemaDialectError
from greenroom.model import ConversationSpec, InteractionMode, OutputSchema, ProviderProfile, StdioMcpServer, TurnRequest


def refuse_scopes(spec: ConversationSpec, *, provider: str) -> None:
    """Raise ProviderCapabilityError for scopes other than ALL."""
    if (spec.skill_scope, spec.mcp_scope, spec.config_scope) != ("ALL", "ALL", "ALL"):
        raise ProviderCapabilityError("scopes other than ALL are not supported", provider=provider)


def refuse_moves(spec: ConversationSpec, request: TurnRequest, *, provider: str) -> None:
    """Raise ProviderCapabilityError for a turn in another directory than its session's, or with an MCP workspace."""
    if request.cwd is not None and os.path.realpath(spec.cwd / request.cwd) != os.path.realpath(spec.cwd):
        what = f"the working directory is fixed for a session: {str(request.cwd)!r} is not {str(spec.cwd)!r}"
        raise ProviderCapabilityError(what, provider=provider)
    if request.mcp_workspace is not None:
        raise ProviderCapabilityError("mcp_workspace is not supported", provider=provider, hint="give the servers with mcp_servers=")


def refuse_undeclared(profile: ProviderProfile, request: TurnRequest) -> None:
    """Raise ProviderCapabilityError for what a turn may ask for only where the profile says so."""
    asked = (
        (bool(request.attachments), profile.attachments, "it takes no attachments"),
        (request.model is not None, profile.turn_model, "it takes no model for a single turn"),
        (request.interaction_mode is not InteractionMode.DEFAULT, profile.plan_mode, "it has no plan mode"),
    )
    for wanted, able, why in asked:
        if wanted and not able:
            raise ProviderCapabilityError(why, provider=profile.name)


def refuse_repeated(servers: Iterable[StdioMcpServer]) -> None:
    """Raise McpConfigError for two servers of the same name."""
    names = [server.name for server in servers]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise McpConfigError(f"MCP servers with the same name: {', '.join(sorted(repeated))}")


def refuse_schema(schema: OutputSchema, *, provider: str) -> None:
    """Raise SchemaDialectError for a schema that is no JSON, or of an answer that is no object."""
    problems: list[str] = []
    if schema.schema.get("type", "object") != "object":
        problems.append(f"the root must be of type 'object', not {schema.schema['type']!r}")
    try:
        json.dumps(dict(schema.schema), allow_nan=False)
    except (TypeError, ValueError) as error:
        problems.append(f"it is no JSON: {error}")
    if problems:
        raise SchemaDialectError(tuple(problems), provider=provider)
