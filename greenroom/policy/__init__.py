"""The rules, pure: what a session does about what happened. Imports model and errors only."""
