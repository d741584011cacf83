"""Events and metric points. A server crash may lose the newest of them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from stoker.engines.call_times import timed
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.event_log import EventLog
from stoker.engines.sql.exchanges import Exchange
from stoker.model.event_blocks import pack
from stoker.model.events import Event, EventCount, Latency, Point, Timings, Window
from stoker.model.time import Instant, Span

_RECORD_CHUNK = sql("record_chunk")
_RECORD_EVENTS = sql("record_events")
_RECORD_POINTS = sql("record_points")
_POINTS, _MERGED = sql("points"), sql("points_merged")
_SUMMED = sql("points_summed")
"""All points of a window in one bucket: grouped by less, in two thirds of the time."""
_OF_QUEUES, _OF_QUEUES_MERGED = sql("points_of_queues"), sql("points_of_queues_merged")
_LOG = EventLog(sql("events"), sql("events_latest"), sql("events_removed"), sql("events_late"), list)
_MEASURED = ("sum", "p50", "p95", "p99", "max")


class Timeline(Facet):
    """Events and points."""

    @timed(write=True)
    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        self._store.inside()
        if not events and not points:
            return 0
        return await self._store.write(lambda unit: _record(unit, events, points, now, chunk), lane="admin", lax=True)

    @timed(write=False)
    async def events(self, window: Window) -> list[Event]:
        return await self._store.read(lambda _: _LOG.events(window))

    @timed(write=False)
    async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
        return await self._store.read(lambda _: _LOG.counts(since, until))

    @timed(write=False)
    async def late_minutes(self, since: Instant) -> list[Instant]:
        return await self._store.read(lambda _: _LOG.late_minutes(since))

    @timed(write=False)
    async def latencies(self, window: Window) -> list[Latency]:
        return await self._store.read(lambda _: _LOG.latencies(window))

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
        if not metrics:
            return []
        return await self._store.read(lambda _: _points(since, until, list(metrics), sorted(queues), width))

    def timings(self) -> Timings:
        return self.call_times.drain()


def _record(
    unit: Unit, events: Sequence[Event], points: Sequence[Point], recorded: Instant, chunk: bytes | None
) -> Exchange[int]:
    if chunk is not None and not (yield _RECORD_CHUNK, (chunk, unit.now)):
        return 0
    if blocks := pack(events, unit.now - recorded):
        rows = [(one.first, one.last, one.low, one.high, one.count, one.body) for one in blocks]
        yield _RECORD_EVENTS, tuple(list(column) for column in zip(*rows, strict=True))
    # A statement cannot write one row twice: the last of several values wins.
    if newest := {(one.bucket, one.queue, one.metric): one for one in points}:
        chosen = list(newest.values())
        columns = [list(column) for column in zip(*newest, strict=True)]
        measured = [[float(value) for value in map(attrgetter(name), chosen)] for name in _MEASURED]
        yield _RECORD_POINTS, (*columns, [one.count for one in chosen], *measured)
    return len(events)


def _points(
    since: Instant, until: Instant, metrics: list[str], queues: list[str], width: Span | None
) -> Exchange[list[Point]]:
    values: tuple[object, ...] = (since, until, metrics)
    if queues:
        values = (*values, queues)
        rows = yield (_OF_QUEUES, values) if width is None else (_OF_QUEUES_MERGED, (*values, width))
    elif width is None:
        rows = yield _POINTS, values
    elif until - since < width:
        rows = yield _SUMMED, values
    else:
        rows = yield _MERGED, (*values, width)
    return [Point(*row) for row in rows]
