"""What the codec of a server is told. Frozen values."""

from __future__ import annotations

import attrs

from greenroom.transports.home_models import HomeModels

MAX_LINE_BYTES = 32 * 1024 * 1024


@attrs.frozen(kw_only=True)
class CodecConfig:
    """Bounds (in seconds) and names. `argv` is for error messages; `marks`: the value of the process's mark variable.

    `home_models`: the models of threads on which a turn had its own.
    `clean_after_interrupt`: commands that an interrupted turn left running are ended.
    """

    argv: tuple[str, ...] = ("codex", "app-server")
    marks: str = ""
    home_models: HomeModels = attrs.field(factory=HomeModels)
    client_version: str = "0"
    startup_timeout_s: float = 60.0
    interrupt_grace_s: float = 10.0
    clean_after_interrupt: bool = True
    max_line_bytes: int = MAX_LINE_BYTES
