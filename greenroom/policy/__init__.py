"""The rules, pure: what a session does about what happened. Imports model and errors only.

Start at `session.py` (`step`). `attempts.py` opens and sends, `deaths.py` and `failures.py` answer what goes wrong, `outcome.py` ends a
turn; `state.py` is what is remembered; `retry.py`, `restart.py` and `renewal.py` hold the numbers; `table.py` writes it all down.
"""
