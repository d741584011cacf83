"""Statistics: from events and run times to points, and from fine points to coarse ones.

Called by the roll-up of each worker once a minute and by the operator's side for charts. The rule it keeps: counts and
times of a closed minute are a function of that minute alone, so computing them again, by any process, changes nothing.
Counts of a minute only grow: late events are added, and deletions change nothing.
What only exists now (how deep a queue is, how large the store is) is sampled once, for the minute that has just closed.
Times are microseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import mul
from typing import Final, TypeAlias

from stoker.model.errors import InvalidOption
from stoker.model.events import EventCount, EventType, Latency, Point, Timings
from stoker.model.query import Census
from stoker.model.time import MINUTE, Instant, Span

BUCKET: Span = MINUTE
LOOK_BACK = 3
"""Closed minutes computed anew each time, so that events flushed late still count."""

MOST_LATE = 120
"""Of older minutes into which something was written since, so many are computed at once: the latest."""

Values: TypeAlias = tuple[int, float, float, float, float, float]
"""What a point holds: count, sum, p50, p95, p99 and maximum."""

MOST_BUCKETS = 2_000
MOST_RUNS = 50_000
"""Of a minute with more completed jobs, the times of its last ones are measured."""

COUNTS: Final = frozenset({EventType.ENQUEUED, EventType.COMPLETED, EventType.FAILED, EventType.RETRIED})
"""Metrics that carry a count alone."""

TIMES: Final = ("processing", "total")
DEPTHS: Final = ("ready", "running", "lag")
STORE: Final = ("store_read", "store_write", "database_size", "log_size")
"""Metrics of the store itself; their queue is the empty text."""


def of_all(metric: str) -> str:
    """The metric of all queues together that goes with one of each queue; its queue is the empty text."""
    return f"all_{metric}"


def of_kind(metric: str) -> str:
    """The metric of a kind, in all queues, that goes with one of each queue; the kind stands in place of the queue."""
    return f"kind_{metric}"


COUNTS_BY_KIND: Final = tuple(map(of_kind, sorted(COUNTS)))
TIMES_BY_KIND: Final = (of_kind("processing"), of_kind("wait"))
BY_KIND: Final = (*COUNTS_BY_KIND, *TIMES_BY_KIND)
"""Counts and times by kind. The wait is how long a job was due before its last run."""

BUSIEST: Final = 100
"""Kinds of which a minute is kept: those with the most ends and enqueues."""


TOGETHER: Final = tuple(of_all(metric) for metric in (*sorted(COUNTS), *TIMES))
"""Counts and times of all queues together: what a chart of a busy store is drawn from without reading every queue."""

OF_ALL: Final = frozenset({""})
"""Under which queue points of all queues together, and of the store, are stored."""

COUNTED = "counted"
"""Says of a minute that it was rolled up, also if nothing happened in it; its queue is the empty text."""

METRICS: Final = (*sorted(COUNTS), *TIMES, *TOGETHER, COUNTED, *DEPTHS, *STORE)

HAPPENED: Final = (*sorted(COUNTS), *TIMES, *TOGETHER, COUNTED, *BY_KIND)
"""What is computed from events."""


def percentile(ordered: Sequence[int], rank: int) -> int:
    """Nearest rank: the smallest of some ordered values that at least `rank` per cent of them do not exceed."""
    return ordered[max(-(-rank * len(ordered) // 100), 1) - 1]


def measured(queue: str, metric: str, bucket: Instant, values: Sequence[int]) -> Point:
    """The point of some measured values, at least one."""
    return _measured_in_order(queue, metric, bucket, sorted(values))


def _measured_in_order(queue: str, metric: str, bucket: Instant, ordered: Sequence[int]) -> Point:
    ranked = percentile(ordered, 50), percentile(ordered, 95), percentile(ordered, 99)
    return Point(queue, metric, bucket, len(ordered), sum(ordered), *ranked, ordered[-1])


def closed_buckets(now: Instant, count: int = LOOK_BACK) -> list[Instant]:
    """The starts of the last minutes that are over, oldest first."""
    current = now // BUCKET * BUCKET
    return [current - BUCKET * ago for ago in range(count, 0, -1)]


def uncounted(minutes: Sequence[Instant], stored: Iterable[Point]) -> list[Instant]:
    """Those of the minutes that were not counted, each with the one before: a worker that stopped counted a part of it.

    Where none was counted, all of them.
    """
    counted = {one.bucket for one in stored if one.metric == COUNTED}
    gaps = {minute for minute in minutes if minute not in counted}
    return [minute for minute in minutes if minute in gaps or minute + BUCKET in gaps]


def roll_up(start: Instant, counts: Iterable[EventCount], latencies: Iterable[Latency]) -> list[Point]:
    """The points of the minute that begins at `start`, from what happened in it; what would be zero is left out.

    Those of each queue and of the busiest kinds, and those of all queues together, whose percentiles are exact too; and
    that it was counted.
    """
    sums: Counter[tuple[str, EventType]] = Counter()
    by_kind: Counter[tuple[str, EventType]] = Counter()
    for one in counts:
        if one.type in COUNTS:
            sums[one.queue, one.type] += one.n
            by_kind[one.kind, one.type] += one.n
    points = [Point(queue, type_.value, start, n) for (queue, type_), n in sums.items() if n]
    together: Counter[str] = Counter()
    for point in points:
        together[of_all(point.metric)] += point.count
    points += [Point("", name, start, n) for name, n in together.items()]
    points.append(Point("", COUNTED, start, 1))
    places: defaultdict[tuple[str, str], tuple[list[Span], list[Span], list[Span]]]
    places = defaultdict(lambda: ([], [], []))
    for run in latencies:
        processing, total, wait = places[run.queue, run.kind]
        processing.append(run.processing)
        total.append(run.total)
        if run.wait is not None:
            wait.append(run.wait)
    points += _measured(start, places, 0, dict(zip(TIMES, (0, 1), strict=True)), "")
    busiest = _busiest(by_kind)
    points += [Point(kind, of_kind(type_), start, n) for (kind, type_), n in by_kind.items() if n and kind in busiest]
    chosen = {place: spans for place, spans in places.items() if place[1] in busiest}
    points += _measured(start, chosen, 1, {of_kind("processing"): 0, of_kind("wait"): 2})
    return sorted(points, key=_place)


def _busiest(counts: Mapping[tuple[str, EventType], int]) -> set[str]:
    """The kinds with the most events; those without a name are none."""
    sums: Counter[str] = Counter()
    for (kind, _), n in counts.items():
        if kind:
            sums[kind] += n
    return {kind for kind, _ in sums.most_common(BUSIEST)}


def _measured(
    start: Instant,
    places: Mapping[tuple[str, str], tuple[list[Span], list[Span], list[Span]]],
    part: int,
    metrics: Mapping[str, int],
    together: str | None = None,
) -> Iterator[Point]:
    """The points of measured times, for each queue (`part` 0) or kind (1), and of all of them together."""
    named: defaultdict[str, list[tuple[list[Span], list[Span], list[Span]]]] = defaultdict(list)
    for place, spans in places.items():
        named[place[part]].append(spans)
    for metric, which in metrics.items():
        everything: list[Span] = []
        for name, parts in named.items():
            values = parts[0][which] if len(parts) == 1 else [*chain.from_iterable(spans[which] for spans in parts)]
            values.sort()
            everything += values
            if values:
                yield _measured_in_order(name, metric, start, values)
        if together is not None and everything:
            yield measured(together, of_all(metric), start, everything)


def counted_minutes(points: Iterable[Point]) -> int:
    """How many of the minutes that points were read of were rolled up."""
    return sum(one.count for one in points if one.metric == COUNTED)


def news(computed: Iterable[Point], stored: Iterable[Point]) -> list[Point]:
    """The computed points that are not stored. One that counts less is none: some of its events are gone since."""
    known = {_place(one): one for one in stored}
    return [
        one for one in computed if (old := known.get(_place(one))) is None or (one.count >= old.count and one != old)
    ]


def depths(bucket: Instant, census: Census) -> list[Point]:
    """How many jobs of each queue are ready and running, and how long the oldest waits; zeros are left out."""
    found: list[Point] = []
    for queue in sorted({count.queue for count in census.counts}):
        running = sum(one.n for one in census.counts if one.queue == queue and one.status == "running")
        values = {"ready": census.ready(queue), "running": running, "lag": census.lag(queue)}
        found += [measured(queue, name, bucket, [value]) for name, value in values.items() if value > 0]
    return sorted(found, key=_place)


def store_points(bucket: Instant, timings: Timings, sizes: Mapping[str, int | None]) -> list[Point]:
    """How long an engine's store calls took, and how large the store is, as far as it is known."""
    samples = {"store_read": timings.reads, "store_write": timings.writes}
    found = [measured("", name, bucket, values) for name, values in samples.items() if values]
    found += [measured("", name, bucket, [size]) for name, size in sizes.items() if size is not None]
    return sorted(found, key=_place)


DAILY: Final = ("lag", EventType.COMPLETED.value)
"""Of what the usual wait of a queue is made."""


def usual_wait(points: Iterable[Point]) -> Span:
    """The p95 of how long the jobs of one queue waited, from its points of a day; 0 where nothing was completed.

    A claim takes the oldest due job: one that is completed waited about as long as the oldest due one of its minute.
    """
    lags: Counter[Instant] = Counter()
    jobs: Counter[Instant] = Counter()
    for one in points:
        if one.metric == "lag":
            lags[one.bucket] = round(one.max)
        elif one.metric == EventType.COMPLETED:
            jobs[one.bucket] += one.count
    left = sum(jobs.values()) * 5 // 100
    for bucket in sorted(jobs, key=lambda bucket: lags[bucket], reverse=True):
        left -= jobs[bucket]
        if left < 0:
            return lags[bucket]
    return 0


def width_for(window: Span, wanted: Span = BUCKET) -> Span:
    """A bucket width in whole minutes, not below what is wanted, that keeps a window drawable."""
    least = max(wanted, -(-window // MOST_BUCKETS), BUCKET)
    return -(-least // BUCKET) * BUCKET


def coarsen(points: Iterable[Point], start: Instant, end: Instant, width: Span) -> list[Point]:
    """Merge points of [start, end) into buckets of `width` from `start` on.

    Counts and sums add up; medians are weighted by count; of p95, p99 and the maximum the worst part counts.
    """
    if width < BUCKET:
        raise InvalidOption("width", width, "must be at least one minute")
    if end - start > width * MOST_BUCKETS:
        raise InvalidOption("width", width, f"must be wider: at most {MOST_BUCKETS} buckets are drawn")
    return merge((one for one in points if start <= one.bucket < end), start, width)


def merge(points: Iterable[Point], start: Instant, width: Span) -> list[Point]:
    """Merge points, none of which is before `start`, as `coarsen` does: by bucket, queue and metric."""
    parts: defaultdict[tuple[str, str, Instant], list[Point]] = defaultdict(list)
    for one in points:
        parts[one.queue, one.metric, start + (one.bucket - start) // width * width].append(one)
    return sorted((_merged(place, part) for place, part in parts.items()), key=_place)


def _merged(place: tuple[str, str, Instant], part: Sequence[Point]) -> Point:
    return merged(place, [(one.count, one.sum, one.p50, one.p95, one.p99, one.max) for one in part])


def merged(place: tuple[str, str, Instant], values: Sequence[Values]) -> Point:
    """One point of the values of several."""
    counts, sums, medians, p95, p99, most = zip(*values, strict=True)
    votes = sum(counts)
    weighted = sum(map(mul, medians, counts))
    return Point(*place, votes, sum(sums), weighted / max(votes, 1), max(p95), max(p99), max(most))


def blended(points: Iterable[Point]) -> tuple[float, float, float]:
    """About the p50, p95 and p99 of all values that some points were measured from; at least one.

    Of a single point they are its own: a quarter of its values counts as half of the p50, a half as the p50, and so on
    up to the largest one. Each minute counts as much as it has values: a slow minute with few of them does not speak
    for an hour, as the worst part does in `merge`.
    """
    parts: list[tuple[float, float]] = []
    for one in points:
        n, p50, p95 = one.count, one.p50, one.p95
        parts += (
            *((p50 / 2, 0.25 * n), (p50, 0.5 * n), ((p50 + p95) / 2, 0.15 * n)),
            *((p95, 0.07 * n), (one.p99, 0.025 * n), (one.max, 0.005 * n)),
        )
    parts.sort()
    whole, found, passed = sum(weight for _, weight in parts), list[float](), 0.0
    ranks = iter((0.5, 0.95, 0.99))
    rank = next(ranks, None)
    for value, weight in parts:
        passed += weight
        while rank is not None and passed >= rank * whole:
            found.append(value)
            rank = next(ranks, None)
    return found[0], found[1], found[2]


def _place(point: Point) -> tuple[Instant, str, str]:
    return (point.bucket, point.queue, point.metric)
