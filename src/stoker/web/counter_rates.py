"""How fast counters grow: readings of the last minute, and what lies between the oldest and the newest."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from stoker.model.operator_metrics import per_second

K = TypeVar("K")

WINDOW = 60.0
"""Seconds over which a pace is taken."""

APART = 1.0
"""Seconds that two readings must be apart."""


class Pace(Generic[K]):
    """Counters as they were read, and their pace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._past: deque[tuple[float, Mapping[K, int]]] = deque()

    def take(self, counts: Mapping[K, int]) -> dict[K, float]:
        """Remember a reading; returns how many came in a second, of each counter that was read before."""
        now = self._clock()
        while self._past and now - self._past[0][0] > WINDOW:
            self._past.popleft()
        if not self._past or now - self._past[-1][0] >= APART:
            self._past.append((now, counts))
        at, before = self._past[0]
        return per_second(before, counts, now - at) if now - at >= APART else {}
