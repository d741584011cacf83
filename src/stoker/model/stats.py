"""Statistics: from events and run times to points, and from fine points to coarse ones.

Called by the janitor once a minute and by the operator's side for charts. The rule it keeps: a point is a function of
its closed minute alone, so computing it again, by any process, changes nothing. Times are microseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stoker.model.errors import InvalidOption
from stoker.model.events import Event, EventType, Point
from stoker.model.time import MINUTE, Instant, Span

BUCKET: Span = MINUTE
LOOK_BACK = 3
"""Closed minutes computed anew each time, so that events flushed late still count."""

MOST_BUCKETS = 2_000
COUNTS = frozenset({EventType.ENQUEUED, EventType.COMPLETED, EventType.FAILED})
RANKS = (50, 95, 99)


class Latency(msgspec.Struct, frozen=True):
    """A job that is done: how long its last run took, and how long it took from the enqueue."""

    queue: str
    finished: Instant
    processing: Span
    total: Span


def latency(queue: str, enqueued: Instant, started: Instant, finished: Instant) -> Latency:
    """Measure a job that is done; a clock that stepped back counts as no time at all."""
    return Latency(queue, finished, max(finished - started, 0), max(finished - enqueued, 0))


def percentile(values: Sequence[int], rank: int) -> int:
    """Nearest rank: the smallest value that at least `rank` per cent do not exceed; 0 if there is none."""
    if not values:
        return 0
    return sorted(values)[max(-(-rank * len(values) // 100), 1) - 1]


def closed_buckets(now: Instant, count: int = LOOK_BACK) -> list[Instant]:
    """The starts of the last minutes that are over, oldest first."""
    current = now // BUCKET * BUCKET
    return [current - BUCKET * ago for ago in range(count, 0, -1)]


def roll_up(start: Instant, events: Iterable[Event], latencies: Iterable[Latency]) -> list[Point]:
    """All points of the minute that begins at `start`; what lies outside it, and what would be zero, is left out."""
    inside = range(start, start + BUCKET)
    counts = Counter((one.queue, one.type) for one in events if one.type in COUNTS and one.at in inside)
    points = [Point(queue, type_.value, start, count) for (queue, type_), count in counts.items()]
    times: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    for one in latencies:
        if one.finished in inside:
            times[one.queue, "processing"].append(one.processing)
            times[one.queue, "total"].append(one.total)
    for (queue, name), spans in times.items():
        points += [Point(queue, f"{name}_p{rank}", start, percentile(spans, rank)) for rank in RANKS]
    return sorted(points, key=_place)


def width_for(window: Span, wanted: Span = BUCKET) -> Span:
    """A bucket width in whole minutes, not below what is wanted, that keeps a window drawable."""
    least = max(wanted, -(-window // MOST_BUCKETS), BUCKET)
    return -(-least // BUCKET) * BUCKET


def coarsen(points: Iterable[Point], start: Instant, end: Instant, width: Span) -> list[Point]:
    """Merge points of [start, end) into buckets of `width` from `start` on.

    Counts add up; medians are weighted by how many jobs were completed; for p95 and p99 the worst part counts.
    """
    if width < BUCKET:
        raise InvalidOption("width", width, "must be at least one minute")
    if end - start > width * MOST_BUCKETS:
        raise InvalidOption("width", width, f"must be wider: at most {MOST_BUCKETS} buckets are drawn")
    inside = [one for one in points if start <= one.bucket < end]
    weights = {(one.bucket, one.queue): one.value for one in inside if one.metric == EventType.COMPLETED}
    parts: defaultdict[tuple[str, str, Instant], list[Point]] = defaultdict(list)
    for one in inside:
        parts[one.queue, one.metric, start + (one.bucket - start) // width * width].append(one)
    merged = (Point(*place, _merged(place[1], part, weights)) for place, part in parts.items())
    return sorted(merged, key=_place)


def _merged(metric: str, part: Sequence[Point], weights: Mapping[tuple[Instant, str], float]) -> float:
    if metric in COUNTS:
        return sum(one.value for one in part)
    if not metric.endswith("_p50"):
        return max(one.value for one in part)
    # A median whose completions were never counted (a lost flush) still deserves one vote.
    votes = [max(weights.get((one.bucket, one.queue), 1), 1) for one in part]
    return sum(one.value * vote for one, vote in zip(part, votes, strict=True)) / sum(votes)


def _place(point: Point) -> tuple[Instant, str, str]:
    return (point.bucket, point.queue, point.metric)
