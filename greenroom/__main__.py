"""Entry of the `greenroom` command and of `python -m greenroom`. Runs on the main thread."""

from __future__ import annotations

from typing import NoReturn

from greenroom.cli.app import run_command


def main() -> NoReturn:
    """Run the command and exit with its status."""
    run_command()


if __name__ == "__main__":
    main()
