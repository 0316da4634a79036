"""Entry of the `greenroom` command and of `python -m greenroom`. Decides nothing; runs on the main thread."""

from __future__ import annotations

from greenroom.cli.app import main

if __name__ == "__main__":
    main()
