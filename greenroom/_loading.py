"""Ctrl-C while the command is still being loaded: it ends without a traceback. Imported first; touches nothing in any other program.

The package takes a good part of a second to import, and `greenroom.__main__` has no say before that is done.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, NoReturn

_INTERRUPTED = 130


def _is_the_command() -> bool:
    """Whether this interpreter was started as `greenroom` or `python -m greenroom`, and nothing else has its hands on Ctrl-C."""
    as_script = os.path.basename(sys.argv[0] if sys.argv else "") == "greenroom"  # noqa: PTH119 - pathlib is slow to load
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return (_as_module or as_script) and mine


def _end(*_: Any) -> NoReturn:
    os._exit(_INTERRUPTED)


_as_module = sys.argv[:1] == ["-m"] and "greenroom" in sys.orig_argv
_taken = _is_the_command()
if _taken:
    signal.signal(signal.SIGINT, _end)


def done() -> None:
    """Give Ctrl-C back: the package is there, and who imported it decides. With `-m` that is `main`, some way off."""
    if not _as_module:
        give_back()


def give_back() -> None:
    """Give Ctrl-C back."""
    if _taken:
        signal.signal(signal.SIGINT, signal.default_int_handler)
