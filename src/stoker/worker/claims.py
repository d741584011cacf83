"""The claims a worker holds, and until when its lease makes them safe."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from math import inf

from stoker.model.ids import JobId

lease_clock: Callable[[], float] = functools.partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
"""Returns seconds of a clock that also runs while the machine sleeps, as leases do; where there is one."""


class HeldClaims:
    """`tokens`: every claim of this worker, running or prefetched: its fence by job.

    `safe_until`: the end of the current lease by `lease_clock`; written by the lease keeper.
    `unstarted`: the claims that were handed back when the lease had passed.
    """

    def __init__(self) -> None:
        self.tokens: dict[JobId, int] = {}
        self.safe_until = inf
        self.unstarted: frozenset[tuple[JobId, int]] = frozenset()
