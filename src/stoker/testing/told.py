"""What the kit did by itself in this test; the pytest plugin prints it with a failure."""

from __future__ import annotations

from typing import Final

lines: Final[dict[str, str]] = {}
"""By what was done: which run of `crash_everywhere` it was, the seed of an order."""
