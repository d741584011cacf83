"""Run the benchmarks: `scripts/bench`."""

from __future__ import annotations

print("Nothing to measure yet: the benchmarks arrive with the first durable engine. See benchmarks/README.md.")
