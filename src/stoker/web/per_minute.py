"""Points of the last hour, minute by minute: a minute that does not change is read once.

With hundreds of queues or kinds an hour has tens of thousands of points, and their tables draw from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from stoker.engines.base import Engine
from stoker.model.events import EventType, Point
from stoker.model.stats import BUCKET, LOOK_BACK
from stoker.model.time import HOUR, Instant

COMPLETED: Final = (EventType.COMPLETED.value,)
SETTLED = (LOOK_BACK + 2) * BUCKET
"""How long after its beginning the points of a minute may still change."""


class Minutes:
    """The minutes that were read."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = metrics
        self._known: dict[Instant, list[Point]] = {}
        self._settled: Instant = 0
        """Minutes before this one do not change any more."""

    async def read(self, engine: Engine, now: Instant) -> None:
        """Read what is not known for good of the last hour of closed minutes, in one store call."""
        until = now // BUCKET * BUCKET
        since = until - HOUR
        kept = {at: points for at, points in self._known.items() if since <= at < min(until, self._settled)}
        start = max(kept) + BUCKET if since in kept else since
        found: defaultdict[Instant, list[Point]] = defaultdict(list)
        for point in await engine.timeline.points(start, until - 1, self._metrics):
            found[point.bucket // BUCKET * BUCKET].append(point)
        self._known = kept | {at: found[at] for at in range(start, until, BUCKET)}
        self._settled = until - SETTLED + BUCKET

    def points(self, since: Instant, until: Instant) -> list[Point]:
        """The points of some of its minutes."""
        return [point for at, points in self._known.items() if since <= at < until for point in points]
