"""Where does this machine keep what a program must not lose? Asks the platform's rules; makes nothing. Any thread."""

from __future__ import annotations

import pathlib

_APP = "greenroom"


def default_state_dir(name: str = "default") -> pathlib.Path:
    """Return the user's state directory for a program called `name`: for `Greenroom(state_dir=…)`, which makes it.

    `$XDG_STATE_HOME/greenroom/NAME` on Linux (without the variable under `~/.local/state`), `~/Library/Application Support/greenroom/NAME`
    on macOS. One program holds a directory at a time: give programs that run side by side different names. Raises ValueError for a name
    that is not that of one directory.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"name must be that of one directory, got {name!r}")
    # Only who asks for it pays for the import.
    import platformdirs  # noqa: PLC0415

    return platformdirs.user_state_path(_APP, appauthor=False) / name
