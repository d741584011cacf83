"""What all viewers share: one reading of the store, however many look.

A page takes the shared reading if it is young enough, and so do live streams: while anybody looks, the hub makes one
store call every two seconds, the census and the rest in turn. When the store does not answer, the last good reading
stays, with its time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from stoker.admin.overview import failed_schedules
from stoker.app import Stoker
from stoker.engines.base import Engine, Feature, outbox_of
from stoker.model.control import Presence, Queue
from stoker.model.derived import ErrorGroup, deliveries
from stoker.model.errors import StokerError
from stoker.model.findings import Deaths, Delivery
from stoker.model.query import Census
from stoker.model.schedule import Schedule
from stoker.model.time import DAY, HOUR, MINUTE, SECOND

logger = logging.getLogger("stoker.web")

EVERY = 2.0
"""Seconds between two store calls of the hub."""

YOUNG = 2.0
"""A page is made from the shared reading if it is no older than this."""

LIMIT = 2.0
"""Seconds after which a question to the store is given up."""

RARELY = 30.0
"""Seconds after which schedules, streams and the deaths of the day are read again."""

STEPS = ("census", "queues", "census", "workers")


class Reading(NamedTuple):
    """Counts, settings and workers, as one page needs them."""

    census: Census
    queues: Sequence[Queue]
    presences: Sequence[Presence]


class Flow(NamedTuple):
    """Jobs per minute: enqueued, completed, dead."""

    enqueued: float
    completed: float
    failed: float


class Hub:
    """The shared reading of one store, on one loop."""

    def __init__(self, store: Stoker, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._read_at = -1e9
        self._reading: Reading | None = None
        self._lock = asyncio.Lock()
        self._past: deque[Census] = deque(maxlen=40)
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._rarely_at = -1e9
        self.schedules: Sequence[Schedule] = ()
        self.deliveries: Sequence[Delivery] = ()
        self.deaths = Deaths(0, 0)
        self.away_since: float | None = None
        self.generation = 0
        self.calls = 0

    @property
    def last(self) -> Reading | None:
        """The last good reading, if there was one."""
        return self._reading

    def forget(self) -> None:
        """Read anew for the next page: something was changed."""
        self._read_at = -1e9

    async def reading(self) -> Reading:
        """A reading that is young enough; concurrent pages share one."""
        async with self._lock:
            if self._reading is None or self._clock() - self._read_at > YOUNG:
                engine = await self._store.engine()
                census = await engine.census()
                self._take(Reading(census, await engine.queues(), await engine.workers()))
                self.calls += 3
                self._read_at = self._clock()
                if self._clock() - self._rarely_at > RARELY:
                    await self._read_rarely(engine, census)
            assert self._reading is not None
            return self._reading

    async def _read_rarely(self, engine: Engine, census: Census) -> None:
        self.schedules = await engine.schedules()
        if Feature.OUTBOX in engine.features:
            self.deliveries = deliveries(await outbox_of(engine).streams(), census.at)
        points = await engine.points(census.at - DAY, census.at, ("failed",))
        hour = sum(one.count for one in points if one.bucket >= census.at - HOUR)
        self.deaths = msgspec.structs.replace(self.deaths, hour=hour, day=sum(one.count for one in points))
        self.calls += 3
        self._rarely_at = self._clock()

    def tell_errors(self, groups: Sequence[ErrorGroup]) -> None:
        """Keep the commonest error for the sentence about deaths."""
        if not groups:
            return
        first = groups[0]
        self.deaths = msgspec.structs.replace(
            self.deaths, same=first.count, error=first.error, kind=first.kind, sample=first.sample
        )

    def facts(self) -> dict[str, Any]:
        """What is read rarely, as findings take it."""
        return {
            "deaths": self.deaths,
            "failed_schedules": failed_schedules(self.schedules),
            "deliveries": self.deliveries,
        }

    def _take(self, reading: Reading) -> None:
        self._reading = reading
        if not self._past or self._past[-1].at < reading.census.at:
            self._past.append(reading.census)
        self.away_since = None

    def flow(self) -> Flow | None:
        """What came and went per minute, from totals some seconds apart; None before there are two."""
        if not self._past:
            return None
        now = self._past[-1]
        before = next((one for one in self._past if now.at - one.at <= MINUTE), now)
        apart = now.at - before.at
        if apart < 3 * SECOND:
            return None
        per = MINUTE / apart
        enqueued, completed, failed = (_sum(now, name) - _sum(before, name) for name in Flow._fields)
        return Flow(max(enqueued, 0) * per, max(completed, 0) * per, max(failed, 0) * per)

    # --- live -------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """One more viewer; the first one starts the beat."""
        self._viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._beat(), name="stoker-dashboard")

    def leave(self) -> None:
        """One viewer less; without any the hub asks nothing."""
        self._viewers -= 1
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return self._viewers

    async def news(self, seen: int, timeout: float) -> int:
        """Wait for a newer generation than the one seen, or for the time-out; returns the present one."""
        try:
            async with asyncio.timeout(timeout):
                while self.generation == seen:
                    await self._news.wait()
        except TimeoutError:
            pass
        return self.generation

    async def close(self) -> None:
        """End the beat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _beat(self) -> None:
        step = 0
        while True:
            await asyncio.sleep(EVERY)
            try:
                async with asyncio.timeout(LIMIT):
                    await self._refresh(STEPS[step % len(STEPS)])
            except (StokerError, TimeoutError) as error:
                if self.away_since is None:
                    logger.warning("the dashboard cannot read the store: %s Trying again.", type(error).__name__)
                    self.away_since = self._clock()
            step += 1
            self.generation += 1
            self._news.set()
            self._news.clear()

    async def _refresh(self, part: str) -> None:
        if self._reading is None:
            await self.reading()
            return
        engine = await self._store.engine()
        self.calls += 1
        if part == "census":
            self._take(self._reading._replace(census=await engine.census()))
        elif part == "queues":
            self._take(self._reading._replace(queues=await engine.queues()))
        else:
            self._take(self._reading._replace(presences=await engine.workers()))


def _sum(census: Census, name: str) -> int:
    return sum(getattr(total, name) for total in census.totals.values())
