"""What the engine costs beside a raw loop over the same processes. `python -m benchmarks` prints a table; nothing here is a timed test."""
