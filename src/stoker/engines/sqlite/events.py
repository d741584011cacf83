"""Events and points: record them, and read them back."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stoker.engines.call_times import timed
from stoker.engines.sql.event_log import EventLog
from stoker.engines.sql.exchanges import Exchange, Many
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.event_blocks import pack
from stoker.model.events import Event, EventCount, Latency, Point, Timings, Window
from stoker.model.time import Instant, Span

_CHUNK = sql("record_chunk")
_EVENTS = sql("record_events")
_POINT = sql("record_point")
_POINTS, _MERGED = sql("points"), sql("points_merged")
_SUMMED = sql("points_summed")
"""All points of a window in one bucket: grouped by less, in two thirds of the time."""
_OF_QUEUES, _OF_QUEUES_MERGED = sql("points_of_queues"), sql("points_of_queues_merged")

LOG = EventLog(sql("events"), sql("events_latest"), sql("events_removed"), sql("events_late"), b"".join)


class Timeline(Facet):
    """Events and points."""

    @timed(write=True)
    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        return await self._store.write(lambda unit: record(unit, events, points, now, chunk))

    @timed(write=False)
    async def events(self, window: Window) -> list[Event]:
        return await self._store.read(lambda _: LOG.events(window))

    @timed(write=False)
    async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
        return await self._store.read(lambda _: LOG.counts(since, until))

    @timed(write=False)
    async def late_minutes(self, since: Instant) -> list[Instant]:
        return await self._store.read(lambda _: LOG.late_minutes(since))

    @timed(write=False)
    async def latencies(self, window: Window) -> list[Latency]:
        return await self._store.read(lambda _: LOG.latencies(window))

    @timed(write=False)
    async def points(
        self,
        since: Instant,
        until: Instant,
        metrics: Sequence[str],
        queues: frozenset[str] = frozenset(),
        *,
        width: Span | None = None,
    ) -> list[Point]:
        return await self._store.read(lambda _: points(since, until, metrics, queues, width))

    def timings(self) -> Timings:
        return self.call_times.drain()


def record(
    unit: Unit, events: Sequence[Event], points: Sequence[Point], recorded: Instant, chunk: bytes | None
) -> Exchange[int]:
    """Append events, shifted to the store's clock, and overwrite points.

    Skip a chunk that was written before.
    """
    if chunk is not None and not (yield _CHUNK, (chunk, unit.now)):
        return 0
    for one in pack(events, unit.now - recorded):
        yield _EVENTS, (one.first, one.last, one.low, one.high, one.count, one.body)
    if points:
        yield Many(
            _POINT,
            [
                (one.bucket, one.queue, one.metric, one.count, one.sum, one.p50, one.p95, one.p99, one.max)
                for one in points
            ],
        )
    return len(events)


def points(
    since: Instant, until: Instant, metrics: Sequence[str], queues: frozenset[str], width: Span | None
) -> Exchange[list[Point]]:
    """Return points of the closed window, by bucket, queue and metric; with a width, merged."""
    values: tuple[object, ...] = (since, until, json.dumps(list(metrics)))
    if queues:
        values = (*values, json.dumps(sorted(queues)))
        rows = yield (_OF_QUEUES, values) if width is None else (_OF_QUEUES_MERGED, (*values, width))
    elif width is None:
        rows = yield _POINTS, values
    elif until - since < width:
        rows = yield _SUMMED, values
    else:
        rows = yield _MERGED, (*values, width)
    return [Point(*row) for row in rows]
