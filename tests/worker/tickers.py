"""Tickers that are paused, doubled and killed: on a virtual clock within one process, and as processes of their own."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from typing import Any

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.url import engine_from_url
from stoker.model.errors import StokerError
from stoker.model.job import Draft
from stoker.model.query import Query
from stoker.model.schedule import NO_ID, OCCURRENCE, SCHEDULE, Edit, Schedule
from stoker.model.time import DAY, MINUTE, SECOND, Instant
from stoker.testing.clock import VirtualClock
from stoker.worker.schedules import fire_due, fire_one
from tests.faults.fork_server import forked


def planned(name: str, expression: str, **more: Any) -> Schedule:
    return Schedule(**{"name": name, "expression": expression, "template": Draft(NO_ID, "work"), **more})


async def fired(engine: Engine) -> dict[str, list[str]]:
    """The occurrences of which there are jobs, by schedule, in the order of their ids."""
    found: dict[str, list[str]] = defaultdict(list)
    cursor = None
    while True:
        page = await engine.operator.find(Query(order="oldest", limit=1_000, cursor=cursor))
        for job in page.jobs:
            metadata = job.options.metadata or {}
            found[metadata[SCHEDULE]].append(metadata[OCCURRENCE])
        cursor = page.cursor
        if cursor is None:
            return found


# --- on a virtual clock -----------------------------------------------------------------------------------------


class Ticking:
    """So many tickers on one store, each with an engine of its own and a clock that may be a day wrong."""

    def __init__(self, app: Stoker, engine: Engine, clock: VirtualClock, tickers: int, chance: random.Random) -> None:
        self.app = app
        self.engine = engine
        self.clock = clock
        self.chance = chance
        self.tickers = tickers
        self.kills = self.pauses = 0
        self._engines: list[Engine] = []
        self._stale: list[list[Schedule]] = []

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()

    async def for_a_week(self, longest: int) -> None:
        """Let a week pass in steps of up to so many minutes; at each, some tickers tick at the same time."""
        end = self.clock() + 7 * DAY
        while self.clock() < end:
            self.clock.set(
                min(end, self.clock() + self.chance.randrange(1, longest) * MINUTE + self.chance.randrange(MINUTE))
            )
            if self.chance.random() < 0.05:
                await self._edit()
            await asyncio.gather(*(self._tick() for _ in range(self.chance.randrange(self.tickers + 1))))
        while await self._due():
            await fire_due(self.app, self.engine, await self.engine.schedules.read())

    async def _due(self) -> list[Schedule]:
        return [one for one in await self.engine.schedules.read() if one.is_due(self.clock())]

    async def _edit(self) -> None:
        stored = await self.engine.schedules.read()
        await self.engine.schedules.put(
            Edit(name=self.chance.choice(stored).name, jitter=self.chance.randrange(MINUTE))
        )

    async def _tick(self) -> None:
        """One ticker: it may know only what was stored long ago, have a wrong clock, and die at any moment."""
        engine = await self._engine()
        if self._stale and self.chance.random() < 0.3:
            stored = self.chance.choice(self._stale)
            self.pauses += 1
        else:
            stored = await engine.schedules.read()
            self._stale = [*self._stale[-5:], stored]
        now = self.clock() + self.chance.choice((0, 0, DAY, -DAY, MINUTE))
        work = asyncio.ensure_future(self._fire(engine, stored, now))
        if self.chance.random() < 0.3:
            await self._kill(work, engine)
        else:
            await work
            self._engines.append(engine)

    async def _fire(self, engine: Engine, stored: list[Schedule], now: Instant) -> None:
        for one in stored:
            if one.is_due(now) or one.is_due(self.clock()):
                await fire_one(self.app, engine, one, now)

    async def _kill(self, work: asyncio.Future[None], engine: Engine) -> None:
        """Cut a ticker off, wherever it is: between two statements, or before it has the answer to the last."""
        for _ in range(self.chance.randrange(12)):
            await asyncio.sleep(self.chance.choice((0, 0, 0.0005)))
        work.cancel()
        self.kills += 1
        await asyncio.wait([work])
        if not work.cancelled() and (error := work.exception()) is not None and not isinstance(error, StokerError):
            raise error
        await engine.close()

    async def _engine(self) -> Engine:
        if self._engines:
            return self._engines.pop(self.chance.randrange(len(self._engines)))
        engine = self.engine.for_loop()
        await engine.open()
        return engine


# --- as processes -----------------------------------------------------------------------------------------------

EVERY_SECOND = ("each", "other")
FEWEST = 3
"""A storm has more kills than these."""


async def _prepare(url: str) -> dict[str, Instant]:
    """Store and seed the schedules; returns their first fires."""
    async with Stoker(engine_from_url(url)) as app:
        engine = await app.engine()
        for name in EVERY_SECOND:
            await engine.schedules.put(planned(name, "* * * * * *", misfire="all"))
        await fire_due(app, engine, await engine.schedules.read())
        return {one.name: one.next_fire or 0 for one in await engine.schedules.read()}


async def _tick_for_ever(url: str) -> None:
    async with Stoker(engine_from_url(url)) as app:
        engine = await app.engine()
        while True:
            await fire_due(app, engine, await engine.schedules.read())


async def _finish(url: str) -> tuple[dict[str, Instant], dict[str, list[str]]]:
    """Fire what is left; the last fires, and all occurrences that have jobs."""
    async with Stoker(engine_from_url(url)) as app:
        engine = await app.engine()
        await fire_due(app, engine, await engine.schedules.read())
        return {one.name: one.last_fire or 0 for one in await engine.schedules.read()}, await fired(engine)


def storm(url: str, seconds: float, tickers: int, seed: int) -> dict[str, Any]:
    """Kill tickers at random, stop others for a while, and start new ones; runs in a process that may fork."""
    chance = random.Random(seed)
    first = asyncio.run(_prepare(url))
    alive: list[int] = []
    kills = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or kills <= FEWEST:  # a busy machine takes longer over them
        while len(alive) < tickers:
            alive.append(forked(lambda: asyncio.run(_tick_for_ever(url))))
        time.sleep(chance.uniform(0.01, 0.25))
        victim = alive.pop(chance.randrange(len(alive)))
        if chance.random() < 0.3:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(chance.uniform(0.0, 0.3))
            os.kill(victim, signal.SIGCONT)
            alive.append(victim)
        else:
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            kills += 1
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    last, jobs = asyncio.run(_finish(url))
    return {"first": first, "last": last, "jobs": jobs, "kills": kills, "second": SECOND}
