"""Run everything and print the table: `python -m benchmarks [--smoke] [--only one|many|resources] [--repetitions N]`.

Exits with 1 when a target is missed; with --smoke nothing is judged, and everything is small.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs

from benchmarks.figures import Figure, table
from benchmarks.resources import resources
from benchmarks.scenarios import SMOKE, Size, many_sessions, one_session


def main(argv: list[str]) -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What the engine costs beside a raw loop.")
    parser.add_argument("--smoke", action="store_true", help="small and quick; nothing is judged")
    parser.add_argument("--only", choices=("one", "many", "resources"), help="one part")
    parser.add_argument("--repetitions", type=int, help="of each measurement; the median counts")
    options = parser.parse_args(argv)
    size = SMOKE if options.smoke else Size()
    if options.repetitions:
        size = attrs.evolve(size, repetitions=options.repetitions)
    before = os.getloadavg()[0]
    figures = run(size, options.only)
    print(table(figures))
    print(
        f"{os.cpu_count()} cores, load average {before:.1f} before and {os.getloadavg()[0]:.1f} after; Python {platform.python_version()}"
    )
    return 0 if options.smoke or all(figure.met for figure in figures) else 1


def run(size: Size, only: str | None = None) -> list[Figure]:
    """Return every figure, or those of one part."""
    parts: dict[str, Callable[[Path], list[Figure]]] = {
        "one": lambda folder: one_session(folder, size),
        "many": lambda folder: many_sessions(folder, size),
        "resources": lambda _folder: resources(size),
    }
    figures: list[Figure] = []
    for name, part in parts.items():
        if only in (None, name):
            with tempfile.TemporaryDirectory(prefix="greenroom-benchmark-") as folder:
                figures += part(Path(folder))
    return figures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
