"""What happened: series for charts, events and run times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from stoker.admin.context import Noun
from stoker.admin.details import EventView, event_view
from stoker.model import ids
from stoker.model.errors import InvalidArgument
from stoker.model.events import EventType, Point, Window
from stoker.model.operator_metrics import Flow
from stoker.model.stats import (
    BUCKET,
    METRICS,
    MOST_BUCKETS,
    OF_ALL,
    STORE,
    TIMES,
    TOGETHER,
    counted_minutes,
    of_all,
    width_for,
)
from stoker.model.time import MINUTE, Instant, Seconds, Span, instant, moment, span

RECENT = 15
"""Closed minutes over which rates are measured."""

_SECONDS = frozenset({*TIMES, *map(of_all, TIMES), "lag", "store_read", "store_write"})


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket of a series, which begins at `at`. Counts have `count` alone; times are in seconds."""

    at: datetime
    queue: str
    count: int
    sum: float = 0
    p50: float = 0
    p95: float = 0
    p99: float = 0
    max: float = 0


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """How long a completed job took: its last run, and from the enqueue on."""

    queue: str
    finished_at: datetime
    processing: timedelta
    total: timedelta


class EventPage(msgspec.Struct, frozen=True):
    """Events, oldest first. If it is not `complete` there are later ones: ask for less time, or with a higher limit."""

    events: list[EventView]
    complete: bool = True


class HistoryAdmin(Noun):
    """Questions about the past."""

    async def series(
        self,
        metric: str,
        window: Seconds = 3600,
        *,
        width: Seconds = 60,
        queue: str | None = None,
        until: datetime | None = None,
    ) -> list[SeriesPoint]:
        """A metric over a window that ends now (or at `until`), in buckets of `width`, for each queue.

        `all_completed` and the like are those of all queues together, under the empty name.

        Buckets are whole minutes, at least one and at most 2,000 of them: a width that would make more is refused.
        Counts and sums add up, medians are weighted by count, of p95 and p99 the worst part counts. Only closed
        minutes are in it. Empty: nothing happened.
        """
        if metric not in METRICS:
            raise InvalidArgument("metric", metric, f"must be one of {', '.join(METRICS)}")
        wide, length = span(width, "width", InvalidArgument), span(window, "window", InvalidArgument)
        if wide < BUCKET:
            raise InvalidArgument("width", width, "must be at least 60 seconds")
        if length > wide * MOST_BUCKETS:
            least = width_for(length) // MINUTE * 60
            raise InvalidArgument("width", width, f"must be at least {least} seconds for this window")
        engine = await self._context.engine()
        end = await engine.now() if until is None else instant(until, "until")
        # Buckets begin at multiples of the width, so that a chart does not change its steps while time passes.
        start = (end - length) // wide * wide
        queues = frozenset({queue}) if queue is not None else OF_ALL if metric in (*STORE, *TOGETHER) else frozenset()
        points = await engine.timeline.points(start, end - 1, [metric], queues, width=wide)
        scale = 1e6 if metric in _SECONDS else 1.0
        return [_point(one, scale) for one in points]

    async def events(
        self,
        window: Seconds = 3600,
        *,
        queue: str | None = None,
        job: str | None = None,
        until: datetime | None = None,
        limit: int = 1_000,
    ) -> EventPage:
        """Events of a window that ends now (or at `until`), oldest first: the first `limit` of them."""
        engine = await self._context.engine()
        end = await engine.now() + 1 if until is None else instant(until, "until")
        one = None if job is None else ids.parse(job)
        found = await engine.timeline.events(
            Window(end - span(window, "window", InvalidArgument), end, queue, one, limit + 1)
        )
        return EventPage([event_view(event) for event in found[:limit]], len(found) <= limit)

    async def latencies(
        self, window: Seconds = 3600, *, queue: str | None = None, until: datetime | None = None, limit: int = 1_000
    ) -> list[LatencyView]:
        """How long the jobs took that were completed in a window, both ends included, latest first."""
        engine = await self._context.engine()
        end = await engine.now() if until is None else instant(until, "until")
        found = await engine.timeline.latencies(
            Window(end - span(window, "window", InvalidArgument), end + 1, queue, None, limit)
        )
        return [
            LatencyView(
                queue=one.queue,
                finished_at=moment(one.finished),
                processing=timedelta(microseconds=one.processing),
                total=timedelta(microseconds=one.total),
            )
            for one in found
        ]


def _point(one: Point, scale: float) -> SeriesPoint:
    return SeriesPoint(
        at=moment(one.bucket),
        queue=one.queue,
        count=one.count,
        sum=one.sum / scale,
        p50=one.p50 / scale,
        p95=one.p95 / scale,
        p99=one.p99 / scale,
        max=one.max / scale,
    )


def flows(points: Sequence[Point], since: Instant) -> dict[str, Flow]:
    """What went in and out of each queue, in the minutes that were counted."""
    minutes = counted_minutes(one for one in points if one.bucket >= since)
    sums: dict[str, dict[str, int]] = {}
    for one in points:
        if one.bucket >= since and one.metric in _FLOWS:
            counts = sums.setdefault(one.queue, {})
            counts[one.metric] = counts.get(one.metric, 0) + one.count
    return {queue: Flow(minutes=minutes, **counts) for queue, counts in sums.items()}


_FLOWS = frozenset(one.value for one in (EventType.ENQUEUED, EventType.COMPLETED, EventType.FAILED, EventType.RETRIED))


def closed(now: Instant, minutes: Span = RECENT) -> tuple[Instant, Instant]:
    """The last closed minutes: where the first of them begins, and the last instant of the last one."""
    end = now // MINUTE * MINUTE
    return end - minutes * MINUTE, end - 1
