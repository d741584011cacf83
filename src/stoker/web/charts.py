"""Charts from points: what is drawn, what its axes say, and what it says to people who do not see it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from stoker.admin.kinds import read_points
from stoker.engines.base import Engine
from stoker.model.errors import InvalidArgument
from stoker.model.events import Point
from stoker.model.humanize import span
from stoker.model.stats import BUCKET, COUNTED, OF_ALL, of_all, of_kind, width_for
from stoker.model.time import DAY, HOUR, LATEST, MINUTE, SECOND, Instant, Span, instant, moment
from stoker.web.humanize import time
from stoker.web.request import RequestContext
from stoker.web.svg import nice_top

SPANS: Final[dict[str, Span]] = {"1h": HOUR, "6h": 6 * HOUR, "24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY}
LONGEST: Final = 90 * DAY
METRICS: Final = ("enqueued", "completed", "failed", "processing", "total")
TOGETHER: Final = tuple(map(of_all, METRICS))
"""The same of all queues together."""

OF_KIND: Final = tuple(map(of_kind, ("enqueued", "completed", "failed", "processing", "wait")))
"""What the charts of a kind are drawn from."""

_NAMED: Final = {name: metric for metric in (*METRICS, "wait") for name in (metric, of_all(metric), of_kind(metric))}

TITLES: Final = {"total": "Enqueue to done", "processing": "Run time", "wait": "Wait, once due"}
"""What a chart of times shows."""

BARS = 90
"""About how many points a chart has."""

SPARK = 30
NO_BARS: Final = (0.0,) * SPARK


class Range(NamedTuple):
    """A period of closed minutes, in equal buckets."""

    name: str
    since: Instant
    until: Instant
    width: Span

    @property
    def buckets(self) -> list[Instant]:
        """Where each bucket begins."""
        return list(range(self.since, self.until, self.width))

    @property
    def place(self) -> str:
        """What tells the range from others; a named one moves on with time."""
        return self.name or f"{self.since}-{self.until}"

    @property
    def merging(self) -> Span | None:
        """The width that points are merged to: minutes are stored as they are drawn."""
        return None if self.width == BUCKET else self.width

    @property
    def window(self) -> tuple[Instant, Instant] | None:
        """Where it begins and ends, of one that people chose; None of one that moves on with time."""
        return None if self.name else (self.since, self.until)

    @property
    def query(self) -> dict[str, str]:
        """The range as parameters of an address."""
        if self.name:
            return {"range": self.name}
        return {"since": _text(self.since), "until": _text(self.until)}


def range_of(visit: RequestContext, now: Instant) -> Range:
    """The range that the address names; an unknown or endless one is refused."""
    since, until = visit.parameter("since"), visit.parameter("until")
    closed = now // BUCKET * BUCKET
    if since or until:
        start = _moment("since", since or _text(closed - HOUR)) // BUCKET * BUCKET
        end = min(-(-_moment("until", until or _text(closed)) // BUCKET) * BUCKET, closed)
        if end - start > LONGEST:
            raise InvalidArgument("since", since, "must be 90 days before until at most")
        return _ranged("", min(start, end - BUCKET), end)
    name = visit.parameter("range", "1h")
    if name not in SPANS:
        raise InvalidArgument("range", name, f"must be one of {', '.join(SPANS)}")
    return _ranged(name, closed - SPANS[name], closed)


def _ranged(name: str, since: Instant, until: Instant) -> Range:
    width = width_for(until - since, (until - since) // BARS)
    return Range(name, until - -(-(until - since) // width) * width, until, width)


def _moment(field: str, text: str) -> Instant:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(field, text, "must be a time such as 2026-11-16T14:00:00Z") from None
    at = instant(found if found.tzinfo is not None else found.replace(tzinfo=UTC), field)
    if not 0 <= at <= LATEST:
        raise InvalidArgument(field, text, "must be between 1970 and 2255")
    return at


def _text(at: Instant) -> str:
    return f"{moment(at):%Y-%m-%dT%H:%M:%SZ}"


class PerMinute(NamedTuple):
    """Jobs per minute: enqueued, completed, dead."""

    enqueued: float
    completed: float
    failed: float


class Series(NamedTuple):
    """What the charts of one range show; counts are per minute, times in seconds, None where nothing ended.

    `hollow`: the last count is that of the running minute, as fast as it goes now.
    """

    at: list[Instant]
    completed: list[float | None]
    enqueued: list[float | None]
    failed: list[float | None]
    p50: list[float | None]
    p95: list[float | None]
    p99: list[float | None]
    hollow: bool = False

    def going_on(self, drawn: Range, now: PerMinute | None) -> Series:
        """The same with the running minute behind it, where single minutes are drawn up to now."""
        if now is None or drawn.window is not None or drawn.width != BUCKET:
            return self
        return Series(
            [*self.at, drawn.until],
            [*self.completed, now.completed],
            [*self.enqueued, now.enqueued],
            [*self.failed, now.failed],
            [*self.p50, None],
            [*self.p95, None],
            [*self.p99, None],
            hollow=True,
        )


async def read(
    engine: Engine, drawn: Range, now: Instant, queue: str | None = None, kind: str | None = None
) -> list[Point]:
    """The points that the charts of a queue, a kind, or all queues together are drawn from."""
    if kind:
        metrics = (*OF_KIND, COUNTED)
        return await read_points(engine, kind, metrics, drawn.since, drawn.until, drawn.merging, now=now)
    metrics, names = ((*METRICS, COUNTED), OF_ALL | {queue}) if queue else ((*TOGETHER, COUNTED), OF_ALL)
    return await engine.timeline.points(drawn.since, drawn.until - 1, metrics, names, width=drawn.merging)


def times_of(visit: RequestContext, kind: str | None = None) -> str:
    """Which times the address asks for."""
    first, second = ("processing", "wait") if kind else ("total", "processing")
    return second if visit.parameter("times") == second else first


def series(points: Iterable[Point], drawn: Range, times: str = "total") -> Series:
    """The points of a queue, or of all queues together, bucket by bucket.

    Of points of one bucket counts add up, medians are weighted by count, of p95 and p99 the worst one counts. Behind
    the last minute that was counted nothing is known: the newest one is counted some seconds after it has closed.
    """
    at, since, until, width = drawn.buckets, drawn.since, drawn.until, drawn.width
    counts = {metric: [0.0] * len(at) for metric in ("completed", "enqueued", "failed", times)}
    middle, p95, p99 = ([0.0] * len(at) for _ in range(3))
    known = 0
    for one in points:
        metric = _NAMED.get(one.metric, "")
        if one.metric == COUNTED and since <= one.bucket < until:
            known = max(known, (one.bucket - since) // width + 1)
        found = counts.get(metric)
        if found is None or not since <= one.bucket < until:
            continue
        place = (one.bucket - since) // width
        found[place] += one.count
        if metric == times:
            middle[place] += one.p50 * one.count
            p95[place] = max(p95[place], one.p95)
            p99[place] = max(p99[place], one.p99)
    per, ended = MINUTE / width, counts[times]
    last = max((n + 1 for values in counts.values() for n, value in enumerate(values) if value), default=0)
    known = max(known, last) if known else len(at)

    def counted(name: str, scale: float) -> list[float | None]:
        return [n * scale if place < known else None for place, n in enumerate(counts[name])]

    def timed(values: list[float]) -> list[float | None]:
        return [value / SECOND if n else None for value, n in zip(values, ended, strict=True)]

    return Series(
        at,
        counted("completed", per),
        counted("enqueued", per),
        counted("failed", 1),
        timed([value / max(n, 1) for value, n in zip(middle, ended, strict=True)]),
        timed(p95),
        timed(p99),
    )


def sparks(points: Iterable[Point], drawn: Range) -> dict[str, Sequence[float]]:
    """Thirty bars over a range for each queue that completed jobs."""
    step = -(-(drawn.until - drawn.since) // SPARK)
    found: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * SPARK)
    for one in points:
        found[one.queue][min((one.bucket - drawn.since) // step, SPARK - 1)] += one.count
    return dict(found)


def newest_flow(points: Sequence[Point], drawn: Range, since: Instant) -> PerMinute | None:
    """What went in and out of all queues in the newest bucket that has points and ends after `since`.

    None: no minute of that time was counted yet.
    """
    newest = max((one.bucket for one in points if one.bucket + drawn.width > since), default=None)
    if newest is None:
        return None
    counts = {_NAMED.get(one.metric): one.count for one in points if one.bucket == newest}
    return PerMinute(*(counts.get(name, 0) * MINUTE / drawn.width for name in PerMinute._fields))


def context(
    found: Series, drawn: Range, visit: RequestContext, times: str, queue: str | None = None, kind: str | None = None
) -> dict[str, Any]:
    """Everything the chart macro needs."""
    first, second = ("processing", "wait") if kind else ("total", "processing")
    top = nice_top(max(_values(found.completed) + _values(found.enqueued), default=0))
    spans = _values(found.p50) + _values(found.p95) + _values(found.p99)
    low = 10.0 ** min(math.floor(math.log10(max(min(spans, default=0.1), 0.001))), -1)
    high = 10.0 ** max(math.ceil(math.log10(max(max(spans, default=1), 1.01))), 1)
    place = {name: value for name, value in (("queue", queue), ("kind", kind)) if value is not None}
    query = drawn.query | place | ({} if times == first else {"times": times})
    other = second if times == first else first
    path = visit.request.url.path.removeprefix(visit.root) if place else ""
    return {
        "completed": found.completed,
        "enqueued": found.enqueued,
        "failed": found.failed,
        "p50": found.p50,
        "p95": found.p95,
        "p99": found.p99,
        "marks": deploys(visit, drawn),
        "top": top,
        "low": low,
        "high": high,
        "query": query,
        "flow_axis": [_axis(top * part / 3) for part in (3, 2, 1, 0)],
        "times_axis": _decades(low, high),
        "time_axis": axis(drawn),
        "hollow": found.hollow,
        "most_failed": max(_values(found.failed), default=0),
        "last_completed": _newest(found.completed),
        "last_enqueued": _newest(found.enqueued),
        "last_failed": _newest(found.failed),
        "last_p50": _span(_newest(found.p50)),
        "last_p95": _span(_newest(found.p95)),
        "last_p99": _span(_newest(found.p99)),
        "times_title": TITLES[times],
        "switch_label": TITLES[other].lower(),
        "switch_url": visit.url(path, **drawn.query, times="" if other == first else other),
        "flow_label": f"Jobs per minute: completed {_extent(found.completed)}, enqueued {_extent(found.enqueued)}",
        "dead_label": f"Dead jobs: at most {max(_values(found.failed), default=0):,.0f} at a time",
        "times_label": f"p50 {_spoken(found.p50)}, p95 {_spoken(found.p95)}, p99 {_spoken(found.p99)}",
    }


def deploys(visit: RequestContext, drawn: Range) -> list[dict[str, Any]]:
    """The releases that workers showed first in a range: when, their names, and where on a drawing 1,000 wide."""
    wide = max(drawn.until - drawn.since - drawn.width, 1)
    return [
        {"at": one.first, "seconds": one.first / SECOND, "name": one.name, "x": 1000 * (one.first - drawn.since) / wide}
        for one in reversed(visit.board.hub.releases)
        if drawn.since <= one.first <= drawn.until - drawn.width
    ]


def as_json(found: Series, look: str) -> list[list[float | None]]:
    """The columns that a chart is drawn from in the browser."""
    failed: list[float | None] = found.failed
    running: list[float | None] = [None] * len(found.at)
    if found.hollow:
        failed, running = [*found.failed[:-1], None], [*running[:-1], found.failed[-1]]
    columns = {
        "throughput": [found.completed, found.enqueued],
        "dead": [failed, running],
        "latency": [found.p50, found.p95, found.p99],
    }
    if look not in columns:
        raise InvalidArgument("look", look, f"must be one of {', '.join(columns)}")
    return [[at / SECOND for at in found.at], *columns[look]]


def _values(given: Sequence[float | None]) -> list[float]:
    return [one for one in given if one is not None]


def _newest(given: Sequence[float | None]) -> float | None:
    """The newest that is known: the running minute has no times, and the one before is counted some seconds late."""
    return next((one for one in reversed(given[-3:]) if one is not None), None)


def _span(value: float | None) -> Span | None:
    return None if value is None else round(value * SECOND)


def _axis(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def _decades(low: float, high: float) -> list[str]:
    steps = round(math.log10(high / low))
    return [_seconds(high / 10**step) for step in range(steps + 1)]


def _seconds(value: float) -> str:
    return f"{value:g} s" if value < 1_000 else f"{value / 1_000:g}k s"


def axis(drawn: Range) -> list[Markup]:
    """Five moments of a range, evenly spread."""
    long = drawn.until - drawn.since > DAY
    places = [drawn.since + (drawn.until - drawn.since) * part // 4 for part in range(5)]
    return [time(at, f"{moment(at).day} {moment(at):%b}" if long else f"{moment(at):%H:%M}") for at in places]


def _extent(given: Sequence[float | None]) -> str:
    known = _values(given)
    return f"between {min(known):,.0f} and {max(known):,.0f}" if known else "unknown"


def _spoken(given: Sequence[float | None]) -> str:
    known = _values(given)
    return f"between {span(_span(min(known)))} and {span(_span(max(known)))}" if known else "unknown"
