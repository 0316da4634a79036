"""Claude Code over stream-json."""
