"""Entry of the `greenroom` command and of `python -m greenroom`. Runs on the main thread."""

from __future__ import annotations

from typing import NoReturn

from greenroom import _loading


def main() -> NoReturn:
    """Run the command and exit with its status."""
    try:
        _loading.give_back()
        # Takes a good part of a second: Ctrl-C meanwhile ends the command like any later one.
        from greenroom.cli.app import run_command  # noqa: PLC0415
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run_command()


if __name__ == "__main__":
    main()
