"""Doubles, contract suites, scripted CLIs and the model server: shipped, and importable without pytest."""
