"""Which failed turns of a consumer are worth a warning: a target that is away fails every turn of every partition."""

from __future__ import annotations

PAUSE = 10.0
"""Seconds between two warnings of a consumer in one process."""


class FailedTurns:
    """Counts failed turns between two warnings."""

    def __init__(self) -> None:
        self._warned: float | None = None
        self._untold = 0

    def failed(self, now: float) -> int | None:
        """Count a failed turn. Returns how many failed before it without a warning, None if it gets none either."""
        if self._warned is not None and now - self._warned < PAUSE:
            self._untold += 1
            return None
        untold, self._untold, self._warned = self._untold, 0, now
        return untold
