"""Whether this machine can run agents at all. Imported before everything else, which needs what Windows does not have."""

import sys

if sys.platform == "win32":
    raise ImportError("greenroom does not run on Windows, only on Linux and macOS; use WSL 2")
