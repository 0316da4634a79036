"""Entry of the `greenroom` command and of `python -m greenroom`. Decides only where it can run at all; runs on the main thread."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command and exit with its status."""
    if sys.platform == "win32":
        print("error: Windows is not supported\nhint: use WSL 2", file=sys.stderr)  # noqa: T201
        raise SystemExit(2)
    from greenroom.cli.app import run_command  # noqa: PLC0415 - it needs modules that Windows does not have

    run_command()


if __name__ == "__main__":
    main()
