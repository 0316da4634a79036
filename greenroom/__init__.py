"""Supervised coding-agent sessions in parallel, from one process."""
