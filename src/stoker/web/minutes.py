"""The points of the last hour, minute by minute: a minute that no roll-up computes again is read once.

With hundreds of queues an hour has tens of thousands of points, and every page draws from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from stoker.engines.base import Engine
from stoker.model.events import Point
from stoker.model.stats import BUCKET, LOOK_BACK, merge
from stoker.model.time import HOUR, Instant
from stoker.web import charts

SETTLED = (LOOK_BACK + 2) * BUCKET
"""So long after its beginning the points of a minute stay as they are."""


class Minute(NamedTuple):
    """Points of a minute: all of them, those of all queues together, and how many jobs each queue completed."""

    every: list[Point]
    together: list[Point]
    completed: list[Point]


class Minutes:
    """The minutes that were read."""

    def __init__(self) -> None:
        self._known: dict[Instant, Minute] = {}
        self._settled: Instant = 0
        """Minutes before this one do not change any more."""

    async def read(self, engine: Engine, now: Instant) -> None:
        """Read what is not known for good of the last hour of closed minutes, in one store call."""
        until = now // BUCKET * BUCKET
        since = until - HOUR
        kept = {at: minute for at, minute in self._known.items() if since <= at < min(until, self._settled)}
        start = max(kept) + BUCKET if since in kept else since
        found: defaultdict[Instant, list[Point]] = defaultdict(list)
        for point in await engine.points(start, until - 1, charts.METRICS):
            found[point.bucket // BUCKET * BUCKET].append(point)
        self._known = kept | {at: _made(at, found[at]) for at in range(start, until, BUCKET)}
        self._settled = until - SETTLED + BUCKET

    def every(self, since: Instant, until: Instant) -> list[Point]:
        """All points of a period."""
        return [point for at, minute in self._known.items() if since <= at < until for point in minute.every]

    def together(self, since: Instant, until: Instant) -> list[Point]:
        """The points of all queues together, one per minute and metric."""
        return [point for at, minute in self._known.items() if since <= at < until for point in minute.together]

    def completed(self, since: Instant, until: Instant) -> list[Point]:
        """How many jobs each queue completed, one point per minute and queue."""
        return [point for at, minute in self._known.items() if since <= at < until for point in minute.completed]


def _made(at: Instant, points: Sequence[Point]) -> Minute:
    anonymous = [Point("", one.metric, at, one.count, one.sum, one.p50, one.p95, one.p99, one.max) for one in points]
    return Minute(list(points), merge(anonymous, at, BUCKET), [one for one in points if one.metric == "completed"])
