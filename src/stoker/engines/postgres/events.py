"""Events and metric points. A server crash may lose the newest of them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.event_log import EventLog
from stoker.engines.sql.exchanges import Exchange
from stoker.model.event_blocks import pack
from stoker.model.events import Event, EventCount, Latency, Point, Window
from stoker.model.time import Instant, Span

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_RECORD_CHUNK = sql("record_chunk")
_RECORD_EVENTS = sql("record_events")
_RECORD_POINTS = sql("record_points")
_POINTS, _MERGED = sql("points"), sql("points_merged")
_SUMMED = sql("points_summed")
"""All points of a window in one bucket: grouped by less, in two thirds of the time."""
_OF_QUEUES, _OF_QUEUES_MERGED = sql("points_of_queues"), sql("points_of_queues_merged")
_LOG = EventLog(sql("events"), sql("events_latest"), sql("events_removed"), sql("events_late"), list)
_MEASURED = ("sum", "p50", "p95", "p99", "max")


async def record(
    store: Store, events_: Sequence[Event], points_: Sequence[Point], now: Instant, chunk: bytes | None
) -> int:
    """Append events, shifted to the store's clock, and overwrite points; nothing if the chunk was written."""
    store.inside()
    if not events_ and not points_:
        return 0
    return await store.write(lambda unit: _record(unit, events_, points_, now, chunk), lane="desk", lax=True)


def _record(
    unit: Unit, events_: Sequence[Event], points_: Sequence[Point], recorded: Instant, chunk: bytes | None
) -> Exchange[int]:
    if chunk is not None and not (yield _RECORD_CHUNK, (chunk, unit.now)):
        return 0
    if blocks := pack(events_, unit.now - recorded):
        rows = [(one.first, one.last, one.low, one.high, one.count, one.body) for one in blocks]
        yield _RECORD_EVENTS, tuple(list(column) for column in zip(*rows, strict=True))
    # A statement cannot write one row twice: the last of several values wins.
    if newest := {(one.bucket, one.queue, one.metric): one for one in points_}:
        chosen = list(newest.values())
        columns = [list(column) for column in zip(*newest, strict=True)]
        measured = [[float(value) for value in map(attrgetter(name), chosen)] for name in _MEASURED]
        yield _RECORD_POINTS, (*columns, [one.count for one in chosen], *measured)
    return len(events_)


async def events(store: Store, window: Window) -> list[Event]:
    """Events of the half-open window, oldest first."""
    return await store.read(lambda _: _LOG.events(window))


async def counts(store: Store, since: Instant, until: Instant) -> list[EventCount]:
    """How many events of each type each queue has in the half-open window."""
    return await store.read(lambda _: _LOG.counts(since, until))


async def late_minutes(store: Store, since: Instant) -> list[Instant]:
    """The minutes before into which events were written late, oldest first."""
    return await store.read(lambda _: _LOG.late_minutes(since))


async def latencies(store: Store, window: Window) -> list[Latency]:
    """The times of completed jobs of the half-open window, latest first."""
    return await store.read(lambda _: _LOG.latencies(window))


async def points(
    store: Store, since: Instant, until: Instant, metrics: Sequence[str], queues: frozenset[str], width: Span | None
) -> list[Point]:
    """Points of the closed window, by bucket, queue and metric; with a width, merged."""
    return await store.read(lambda _: _points(since, until, list(metrics), sorted(queues), width)) if metrics else []


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
