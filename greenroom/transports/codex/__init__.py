"""Codex as a provider: `codex app-server`, one process that carries many conversations. `transport.py` is the way in."""
