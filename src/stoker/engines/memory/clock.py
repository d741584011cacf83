"""The store's clock: it never goes back by a little, and it forgets a mark that was clearly wrong.

Called once per store call. The highest instant ever shown is kept as a mark: while the clock underneath lags behind,
the mark is shown instead. A mark more than a minute ahead was set by a clock that was wrong (a bad time server, a
virtual machine that woke up); holding on to it would freeze time, so it is dropped.
"""

from __future__ import annotations

import time

from stoker.engines.base import Clock
from stoker.model.time import MINUTE, Instant, Span

FURTHEST_AHEAD: Span = MINUTE


def system_clock() -> Instant:
    """This machine's clock."""
    return time.time_ns() // 1_000


class SteadyClock:
    """A clock with a high-water mark. `dropped` counts the marks that were given up."""

    __slots__ = ("_mark", "_source", "dropped")

    def __init__(self, source: Clock | None = None) -> None:
        self._source = source or system_clock
        self._mark: Instant = 0
        self.dropped = 0

    def __call__(self) -> Instant:
        shown = self._source()
        if shown < self._mark:
            if self._mark - shown <= FURTHEST_AHEAD:
                return self._mark
            self.dropped += 1
        self._mark = shown
        return shown
