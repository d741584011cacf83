"""The roll-up: turns what happened into points by queue, kind and minute, and records of errors and of hours.

One worker of a store does it, the one that holds the lock `stoker.rollup`; when it is gone, another one follows within
two minutes, and no minute is missed because each round computes the last three again, and older ones into which
something was written since: events of jobs enqueued with `tx=` are recorded at their first claim. Where there was no
worker for a while, the first round of the next one computes what was not counted, and a worker that stops computes what
it knows of the running minute: after it there may be none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import random
from typing import TypeAlias, TypeVar

import msgspec

from stoker.documents import readable
from stoker.engines.base import ERRORS, KIND_HOURS, Engine
from stoker.model.error_records import ErrorRecord, add_failures
from stoker.model.errors import AWAY
from stoker.model.events import EventCount, Point, Window
from stoker.model.kind_hours import KEPT, KindHour, missing, summed_up
from stoker.model.stats import (
    BUCKET,
    COUNTED,
    COUNTS_BY_KIND,
    HAPPENED,
    MOST_LATE,
    MOST_RUNS,
    OF_ALL,
    TIMES_BY_KIND,
    closed_buckets,
    depths,
    news,
    roll_up,
    store_points,
    uncounted,
)
from stoker.model.time import HOUR, SECOND, Instant
from stoker.services import ServiceContext

T = TypeVar("T")

logger = logging.getLogger("stoker.worker")

LOCK = "stoker.rollup"
LEASE = 100 * SECOND
"""Longer than a minute, so that the same worker goes on as long as it lives."""

SPREAD = 5.0
"""Workers wait up to so many seconds after a full minute, at random, also so that buffered events have arrived."""


PARTS = 6
"""In so many parts the times of an hour are read, so that no single answer is large."""

Counted: TypeAlias = dict[Instant, list[EventCount]]
"""The events of closed minutes, by queue and type."""


class RollUp:
    """Rolls up shortly after every full minute of the store's clock."""

    name = "rollup"

    def __init__(self) -> None:
        self._counted: Counted = {}
        self._hours: set[Instant] | None = None

    async def run(self, context: ServiceContext) -> None:
        """Roll up again and again."""
        while True:
            try:
                now = await context.engine.now()
                await asyncio.sleep((BUCKET - now % BUCKET) / SECOND + 1 + SPREAD * random())
                if await context.engine.control.lock(LOCK, context.worker_id(), LEASE):
                    await self._round(context.engine)
            except AWAY:  # the store loop logs that once; the next round computes the minutes that were missed
                await asyncio.sleep(SPREAD)

    async def _round(self, engine: Engine) -> None:
        if self._hours is None:
            self._hours = {one.at for one, _ in await readable(engine, KIND_HOURS, KindHour)}
            await catch_up(engine)
        await write_points(engine, self._counted, self._hours)
        for hour in missing(self._hours, await engine.now())[:1]:  # one a round: an hour has many points
            await write_hour(engine, hour)
            self._hours.add(hour)


async def close(engine: Engine, worker: str) -> None:
    """Compute the last minutes, and what happened in the running one so far, for a worker that stops.

    Where another worker rolls up, it does so. A minute without events is left to the next one.
    """
    if not await engine.control.lock(LOCK, worker, LEASE):
        return
    try:
        now = await engine.now()
        await _compute(engine, [*closed_buckets(now), now // BUCKET * BUCKET], now)
    finally:
        await engine.control.unlock(LOCK, worker)


async def catch_up(engine: Engine) -> None:
    """Compute the minutes of the last two hours that were not counted, where anything happened in them."""
    now = await engine.now()
    minutes = closed_buckets(now, MOST_LATE)
    stored = await engine.timeline.points(minutes[0], now, [COUNTED], OF_ALL)
    await _compute(engine, uncounted(minutes, stored), now)


async def _compute(engine: Engine, minutes: list[Instant], now: Instant) -> None:
    """Compute minutes in which something happened, and the errors of these."""
    if not minutes or not await engine.timeline.event_counts(minutes[0], minutes[-1] + BUCKET):
        return
    points: list[Point] = []
    found: Counted = {}
    for start in minutes:
        points += await _answer(partial(_minute, engine, start, {start: []}, found))
    if points:
        await engine.timeline.record([], points, now=now)
    if failed := {start: counts for start, counts in found.items() if _failures(counts)}:
        await _answer(partial(_errors, engine, failed, now))


async def write_points(engine: Engine, counted: Counted | None = None, hours: set[Instant] | None = None) -> int:
    """Compute the minutes that have just closed, and older ones that gained events; store what is new, return how much.

    A question that the store cannot answer is left out quietly: charts have a gap there, and the rest is stored.
    `counted` holds what the last call counted in each minute: one in which nothing came in since is not computed again.
    `hours` are those whose records are stored: one that gained points is taken out, so that its record is made anew.
    """
    now = await engine.now()
    buckets = closed_buckets(now)
    points: list[Point] = []
    before, counted = counted or {}, {} if counted is None else counted
    found: Counted = {}
    late = await _answer(partial(engine.timeline.late_minutes, buckets[0]))
    for question in (
        *(partial(_minute, engine, start, before, found) for start in (*late[-MOST_LATE:], *buckets)),
        partial(_depths, engine, buckets[-1]),
        partial(_store, engine, buckets[-1]),
    ):
        points += await _answer(question)
    if points:
        await engine.timeline.record([], points, now=now)
        if hours is not None:
            hours.difference_update(one.bucket // HOUR * HOUR for one in points)
    failed = {start: counts for start, counts in found.items() if counts != before.get(start) and _failures(counts)}
    if failed:
        stored = await _answer(partial(_errors, engine, failed, now))
        for start in failed.keys() - stored:  # the next round counts them again
            del found[start]
    counted.clear()
    counted.update(found)
    return len(points)


async def _answer(question: Callable[[], Awaitable[list[T]]]) -> list[T]:
    try:
        return await question()
    except AWAY:
        raise
    except Exception as error:  # noqa: BLE001 - the other questions must be asked
        logger.debug("a part of the last minutes was not rolled up: %s", error)
        return []


async def _minute(engine: Engine, start: Instant, before: Counted, found: Counted) -> list[Point]:
    """What happened in a closed minute; nothing if it was counted before with the same result."""
    end = start + BUCKET
    counts = await engine.timeline.event_counts(start, end)
    if before.get(start) == counts:
        found[start] = counts
        return []
    computed = roll_up(start, counts, await engine.timeline.latencies(Window(start, end, limit=MOST_RUNS)))
    points = news(computed, await engine.timeline.points(start, start, HAPPENED))
    found[start] = counts
    return points


def _failures(counts: list[EventCount]) -> bool:
    return any(one.error for one in counts)


async def _errors(engine: Engine, failed: Counted, now: Instant) -> list[Instant]:
    """Add the failures of some minutes to the records of their errors; returns the minutes, none if others did so.

    A record is changed only as it was read: of two workers that roll up at once, one adds. One that this release cannot
    read stays as it is, and the others are changed all the same.
    """
    stored = {record.id: (record, raw) for record, raw in await readable(engine, ERRORS, ErrorRecord)}
    known = {name: record for name, (record, _) in stored.items()}
    changes: dict[str, ErrorRecord | None] = {}
    for start, counts in sorted(failed.items()):
        more = add_failures(known, start, counts, now)
        changes |= more
        known = {name: one for name, one in (known | more).items() if one is not None}
    whole = True
    for name, changed in changes.items():
        before = stored[name][1] if name in stored else None
        after = None if changed is None else msgspec.json.encode(changed)
        if before != after and not await engine.documents.swap(ERRORS, name, before, after):
            whole = False
    return list(failed) if whole else []


async def write_hour(engine: Engine, hour: Instant) -> None:
    """Store what kinds did in an hour, and remove the records of hours long ago."""
    points = await engine.timeline.points(hour, hour + HOUR - 1, COUNTS_BY_KIND, width=HOUR)
    for start in range(hour, hour + HOUR, HOUR // PARTS):
        points += await engine.timeline.points(start, start + HOUR // PARTS - 1, TIMES_BY_KIND)
    made, stored = summed_up(hour, points), await readable(engine, KIND_HOURS, KindHour)
    before = next((raw for one, raw in stored if one.at == hour), None)
    if made is not None:
        await engine.documents.swap(KIND_HOURS, made.name, before, msgspec.json.encode(made))
    for one, raw in stored:
        if one.at < hour - KEPT:
            await engine.documents.swap(KIND_HOURS, one.name, raw, None)


async def _depths(engine: Engine, bucket: Instant) -> list[Point]:
    """How deep queues are now."""
    return depths(bucket, await engine.operator.census())


async def _store(engine: Engine, bucket: Instant) -> list[Point]:
    """How fast and how large the store is now."""
    about = await engine.describe()
    return store_points(bucket, engine.call_times.drain(), {"database_size": about.size, "log_size": about.log_size})
