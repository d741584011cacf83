"""Points of kinds by the hour: one small record per hour, for the days after their minutes are gone.

A minute of a hundred busy kinds has six hundred points: a week of them would be six million, more than a store in
memory can hold. So minutes are kept for a day, as far as the store has room, and the roll-up writes a record of each
hour that stays for a week. A chart takes each hour from where it counts more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from stoker.model.events import Point
from stoker.model.stats import BUSIEST, BY_KIND, COUNTS, Values, blended, closed_buckets, merge, of_kind
from stoker.model.time import DAY, HOUR, Instant, Span

KEPT: Span = 7 * DAY
"""A record is kept for so long."""

CAUGHT_UP: Final = 24
"""Hours of which a record is made later, if it is missing and their minutes are there."""

_COUNTS: Final = frozenset(map(of_kind, COUNTS))


class KindHour(msgspec.Struct, frozen=True, array_like=True):
    """What the busiest kinds did in the hour that begins at `at`: for each metric of `BY_KIND` its values.

    A metric that only counts has one value, one that nothing was measured of has none.
    """

    at: Instant
    kinds: dict[str, tuple[tuple[int, ...], ...]] = {}

    @property
    def name(self) -> str:
        """Under which it is stored."""
        return str(self.at // HOUR)

    def points(self, kind: str) -> list[Point]:
        """What one kind did; nothing, if it was not among the busiest."""
        parts = zip(BY_KIND, self.kinds.get(kind, ()), strict=False)
        return [Point(kind, metric, self.at, *values) for metric, values in parts if values]


def missing(known: Collection[Instant], now: Instant) -> list[Instant]:
    """The hours that are over, also for events that come late, and are not known; the latest first."""
    last = closed_buckets(now)[0] // HOUR - 1
    return [hour * HOUR for hour in range(last, last - CAUGHT_UP, -1) if hour * HOUR not in known]


def summed_up(at: Instant, points: Iterable[Point]) -> KindHour | None:
    """The record of an hour, from the points of its minutes; None: no kind did anything.

    Counts and sums add up; percentiles weigh each minute by its values.
    """
    found: defaultdict[str, defaultdict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    busy: Counter[str] = Counter()
    for one in points:
        if one.metric in BY_KIND and at <= one.bucket < at + HOUR:
            found[one.queue][one.metric].append(one)
            busy[one.queue] += one.count if one.metric in _COUNTS else 0
    kinds = {
        kind: tuple(tuple(_values(metric, found[kind][metric])) for metric in BY_KIND)
        for kind, _ in busy.most_common(BUSIEST)
    }
    return KindHour(at, kinds) if kinds else None


def _values(metric: str, parts: list[Point]) -> Iterator[int]:
    if not parts:
        return
    yield sum(one.count for one in parts)
    if metric not in _COUNTS:
        yield from map(round, (sum(one.sum for one in parts), *blended(parts), max(one.max for one in parts)))


def filled(
    minutes: Iterable[Point], hours: Iterable[KindHour], kind: str, since: Instant, until: Instant, width: Span
) -> list[Point]:
    """Points of a kind in [since, until), merged into buckets of `width`, also of hours whose minutes are gone.

    An hour whose record counts more than its minutes, which may be gone in part, is spread evenly over its time.
    """
    parts = list(minutes)
    here: Counter[Instant] = Counter()
    for one in parts:
        if one.metric in _COUNTS:
            here[one.bucket // HOUR * HOUR] += one.count
    gone: set[Instant] = set()
    spread: list[Point] = []
    for hour in hours:
        points = hour.points(kind)
        counted = sum(one.count for one in points if one.metric in _COUNTS)
        cut = hour.at < since or hour.at + HOUR > until  # of an hour at an edge not all minutes were read
        if hour.at + HOUR > since and hour.at < until and counted > here[hour.at] and not (cut and here[hour.at]):
            gone.add(hour.at)
            spread += [part for one in points for part in _spread(one, since, until, width)]
    kept = [one for one in parts if one.metric not in BY_KIND or one.bucket // HOUR * HOUR not in gone]
    return merge([*kept, *spread], since, width)


def _spread(point: Point, since: Instant, until: Instant, width: Span) -> Iterator[Point]:
    """The parts of an hour's point in the buckets that it lies in."""
    start, end = max(point.bucket, since), min(point.bucket + HOUR, until)
    while start < end:
        stop = min(since + ((start - since) // width + 1) * width, end)
        first, last = ((edge - point.bucket) * point.count // HOUR for edge in (start, stop))
        if last > first:
            share = (last - first) / point.count
            values: Values = (last - first, point.sum * share, point.p50, point.p95, point.p99, point.max)
            yield Point(point.queue, point.metric, start, *values)
        start = stop
