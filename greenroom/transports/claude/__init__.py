"""Claude Code over stream-json: `ClaudeStreamTransport`, and `ClaudeHook` for command hooks in every process."""

from greenroom.transports.claude.launch import ClaudeHook
from greenroom.transports.claude.transport import ClaudeStreamTransport

__all__ = ["ClaudeHook", "ClaudeStreamTransport"]
