"""The roll-up: a service that turns what happened into points, one set per queue and minute, and records of errors.

One worker of a store does it, the one that holds the lock `stoker.rollup`; when it is gone, another one follows within
two minutes, and no minute is missed because each round computes the last three again, and older ones into which
something was written since: events of jobs enqueued with `tx=` are recorded at their first claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import random
from typing import TypeAlias, TypeVar

import msgspec

from stoker.engines.base import ERRORS, Engine
from stoker.model.error_records import ErrorRecord, add_failures
from stoker.model.errors import AWAY
from stoker.model.events import EventCount, Point, Window
from stoker.model.stats import (
    BUCKET,
    HAPPENED,
    MOST_LATE,
    MOST_RUNS,
    closed_buckets,
    depths,
    news,
    roll_up,
    store_points,
)
from stoker.model.time import SECOND, Instant
from stoker.services import ServiceContext

T = TypeVar("T")

logger = logging.getLogger("stoker.worker")

LOCK = "stoker.rollup"
LEASE = 100 * SECOND
"""Longer than a minute, so that the same worker goes on as long as it lives."""

SPREAD = 5.0
"""Workers wait up to so many seconds after a full minute, at random, also so that buffered events have arrived."""


Counted: TypeAlias = dict[Instant, list[EventCount]]
"""The events of closed minutes, by queue and type."""


class RollUp:
    """Rolls up shortly after every full minute of the store's clock."""

    name = "rollup"

    def __init__(self) -> None:
        self._counted: Counted = {}

    async def run(self, context: ServiceContext) -> None:
        """Roll up again and again."""
        while True:
            try:
                now = await context.engine.now()
                await asyncio.sleep((BUCKET - now % BUCKET) / SECOND + 1 + SPREAD * random())
                if await context.engine.control.lock(LOCK, context.worker_id(), LEASE):
                    await write_points(context.engine, self._counted)
            except AWAY:  # the store loop logs that once; the next round computes the minutes that were missed
                await asyncio.sleep(SPREAD)


async def write_points(engine: Engine, counted: Counted | None = None) -> int:
    """Compute the minutes that have just closed, and older ones that gained events; store what is new, return how much.

    A question that the store cannot answer is left out quietly: charts have a gap there, and the rest is stored.
    `counted` holds what the last call counted in each minute: one in which nothing came in since is not computed again.
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

    A record is changed only as it was read: of two workers that roll up at once, one adds.
    """
    stored = {}
    for document in await engine.documents.read(ERRORS):
        raw = document.encode() if isinstance(document, str) else document
        record = msgspec.json.decode(raw, type=ErrorRecord)
        stored[record.id] = raw, record
    known = {name: record for name, (_, record) in stored.items()}
    changes: dict[str, ErrorRecord | None] = {}
    for start, counts in sorted(failed.items()):
        more = add_failures(known, start, counts, now)
        changes |= more
        known = {name: one for name, one in (known | more).items() if one is not None}
    for name, changed in changes.items():
        before = stored[name][0] if name in stored else None
        after = None if changed is None else msgspec.json.encode(changed)
        if before != after and not await engine.documents.swap(ERRORS, name, before, after):
            return []
    return list(failed)


async def _depths(engine: Engine, bucket: Instant) -> list[Point]:
    """How deep queues are now."""
    return depths(bucket, await engine.operator.census())


async def _store(engine: Engine, bucket: Instant) -> list[Point]:
    """How fast and how large the store is now."""
    about = await engine.describe()
    return store_points(bucket, engine.call_times.drain(), {"database_size": about.size, "log_size": about.log_size})
