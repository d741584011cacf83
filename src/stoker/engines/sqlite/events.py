"""Events and points: record them, and read them back."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stoker.engines.sql.steps import Many, Steps
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.events import Event, EventCount, EventType, Latency, Point, Window
from stoker.model.time import Instant, Span

_CHUNK = sql("record_chunk")
_EVENT = sql("record_event")
_POINT = sql("record_point")
_EVENTS = sql("events")
_OF_QUEUE = sql("events_of_queue")
_OF_JOB = sql("events_of_job")
_POINTS, _MERGED = sql("points"), sql("points_merged")
_SUMMED = sql("points_summed")
"""All points of a window in one bucket: grouped by less, in two thirds of the time."""
_OF_QUEUES, _OF_QUEUES_MERGED = sql("points_of_queues"), sql("points_of_queues_merged")
_COUNTS = sql("event_counts")
_LATENCIES = sql("latencies")


def record(
    unit: Unit, events: Sequence[Event], points: Sequence[Point], recorded: Instant, chunk: bytes | None
) -> Steps[int]:
    """Append events, shifted to the store's clock, and overwrite points.

    Skip a chunk that was written before.
    """
    if chunk is not None and not (yield _CHUNK, (chunk, unit.now)):
        return 0
    shift, written = unit.now - recorded, 0
    if events:
        written = yield Many(
            _EVENT,
            [
                (one.at + shift, one.type.value, one.job, one.queue, one.kind, one.attempt, one.duration, one.total)
                for one in events
            ],
        )
    if points:
        yield Many(
            _POINT,
            [
                (one.bucket, one.queue, one.metric, one.count, one.sum, one.p50, one.p95, one.p99, one.max)
                for one in points
            ],
        )
    return written


def events(window: Window) -> Steps[list[Event]]:
    """Return events of the half-open window, oldest first."""
    statement = _OF_JOB if window.job is not None else _OF_QUEUE if window.queue is not None else _EVENTS
    values = (window.since, window.until, max(window.limit, 0), window.queue, window.job)
    needed = 5 if statement is _OF_JOB else 4 if statement is _OF_QUEUE else 3
    rows = yield statement, values[:needed]
    return [Event(at, EventType(type_), *rest) for at, type_, *rest in rows]


def counts(since: Instant, until: Instant) -> Steps[list[EventCount]]:
    """Return how many events of each type each queue has in the half-open window."""
    return [EventCount(queue, EventType(type_), n) for queue, type_, n in (yield _COUNTS, (since, until))]


def latencies(window: Window) -> Steps[list[Latency]]:
    """Return the times of completed jobs of the half-open window, latest first."""
    values = (window.since, window.until, max(window.limit, 0), window.queue, window.job)
    return [Latency(*row) for row in (yield _LATENCIES, values)]


def points(
    since: Instant, until: Instant, metrics: Sequence[str], queues: frozenset[str], width: Span | None
) -> Steps[list[Point]]:
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
