"""A storm over blocks: workers whose handlers write and settle in one commit, killed and frozen at random instants.

Every job writes one row and enqueues one job, inside its block: in a transaction of the engine's own, of a driver on
the loop, of a driver in a thread, or in a process of its own. `judge` compares: every job is done, and has exactly one
row and one follower.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import asyncpg
import psycopg

from stoker.app import Stoker
from stoker.context import current
from stoker.model.job import Status
from stoker.model.retry import Fixed
from stoker.worker import Worker
from tests.faults.members import Members

LEASE = 1.0
FROZEN = 1.6
"""Seconds: longer than a lease, so that others take over what a frozen one held."""

MEMBERS = 3
SLOTS = 4
MANY_SLOTS = 16
"""Slots of a member where there are thousands of jobs."""

FAULTS = 60
"""How many parts of the work are done between two faults each: so a storm ends, however slow the machine is."""

LONGEST_LULL = 2.0
"""Seconds after which a fault falls all the same."""
FORMS = ("own", "driver", "thread")


class Site(NamedTuple):
    """Where jobs and rows are: one SQLite file, or one schema of a Postgres database, by the engine's URL."""

    url: str

    @property
    def schema(self) -> str:
        """On Postgres, where it is the last option of the URL."""
        return self.url.partition("schema=")[2]

    @property
    def database(self) -> str:
        """The URL for a driver of Postgres."""
        return self.url.partition("schema=")[0][:-1]

    def app(self) -> Stoker:
        where = self.url if self.schema else f"{self.url}?durability=process"
        jobs = Stoker(where, attempts=1_000, backoff=Fixed(0.01), timeline=False)
        ship = jobs.task(name="ship", queue="ship")(_ship)

        @jobs.task(crashes=None)
        async def own(n: int) -> None:
            await asyncio.sleep(random.random() * 0.03)
            mark = "$1" if self.schema else "?"
            async with current().transaction() as tx:
                await tx.execute(f"insert into {self.table} values ({mark})", n)
                await ship.enqueue(n)
                await asyncio.sleep(random.random() * 0.004)
            await asyncio.sleep(random.random() * 0.02)

        @jobs.task(crashes=None)
        async def driver(n: int) -> None:
            await asyncio.sleep(random.random() * 0.03)
            async with current().transaction(self.on_loop) as handle:
                await ship.enqueue(n)
                answer = handle.execute(f"insert into {self.table} values ({n})")
                if self.schema:
                    await answer

        @jobs.task(crashes=None)
        def thread(n: int) -> None:
            time.sleep(random.random() * 0.03)
            with current().transaction(self.in_thread) as handle:
                handle.execute(f"insert into {self.table} values ({n})")
                ship.enqueue_sync(n)
                time.sleep(random.random() * 0.004)

        return jobs

    @property
    def table(self) -> str:
        return f"{self.schema}.effects" if self.schema else "effects"

    @property
    def path(self) -> str:
        return self.url.removeprefix("sqlite:///")

    @asynccontextmanager
    async def on_loop(self) -> AsyncIterator[Any]:
        if not self.schema:
            with self.in_thread() as handle:
                yield handle
            return
        connection = await asyncpg.connect(self.database)
        try:
            async with connection.transaction():
                yield connection
        finally:
            connection.terminate()

    @contextmanager
    def in_thread(self) -> Iterator[Any]:
        raw: Any = psycopg.connect(self.database) if self.schema else sqlite3.connect(self.path, timeout=30)
        with closing(raw), raw:
            yield raw

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        with self.in_thread() as raw:
            cursor = raw.execute(text)
            return cursor.fetchall() if cursor.description else []


def _ship(n: int) -> None:
    """Stand for what follows a charge; no worker runs it here."""


# --- the storm ------------------------------------------------------------------------------------------------------


def storm(url: str, jobs: int, seed: int) -> dict[str, Any]:
    """Run the jobs under kills; returns how many members were killed and frozen, and what is wrong."""
    site, chance = Site(url), random.Random(seed)
    asyncio.run(_enqueue(site, jobs))
    work = partial(_work, site, SLOTS if jobs < 1_000 else MANY_SLOTS)
    members = Members([work] * MEMBERS, chance, freezing=0.08, frozen_for=FROZEN)
    while (done := _effects(site)) < jobs:
        end = time.monotonic() + LONGEST_LULL
        while time.monotonic() < end and _effects(site) < min(done + jobs // FAULTS, jobs):
            time.sleep(chance.uniform(0.02, 0.15))
        members.fault()
    members.thaw()
    found = asyncio.run(_settled(site, jobs))
    members.end()
    return {**members.tally, **found, "wrong": judge(site, found, jobs)}


def _effects(site: Site) -> int:
    return int(site.rows(f"select count(*) from {site.table}")[0][0])


async def _enqueue(site: Site, jobs: int) -> None:
    site.rows(f"create table if not exists {site.table} (n integer)")
    app = site.app()
    async with app:
        tasks = [app.tasks[name] for name in FORMS]
        await app.enqueue_many([tasks[n % len(tasks)].draft(n) for n in range(jobs)])


async def _work(site: Site, slots: int) -> None:
    app = site.app()
    async with app, Worker(app, {"default": slots}, lease=LEASE, poll=0.05):
        await asyncio.Event().wait()


async def _settled(site: Site, jobs: int) -> dict[str, Any]:
    """Wait until every job has ended; return what there is."""
    app, end = site.app(), time.monotonic() + 240
    async with app:
        engine = await app.engine()
        while (counts := (await engine.operator.census()).by_status("default"))[Status.DONE] < jobs:
            if time.monotonic() > end:
                break
            await asyncio.sleep(0.1)
        ships = sum((await engine.operator.census()).by_status("ship").values())
    return {"statuses": {str(status): n for status, n in counts.items() if n}, "ships": ships}


def judge(site: Site, found: dict[str, Any], jobs: int) -> list[str]:
    """Everything that is not as it must be."""
    effects = Counter(n for (n,) in site.rows(f"select n from {site.table}"))
    complaints = [f"job {n} has {effects[n]} effects" for n in range(jobs) if effects[n] != 1]
    if found["statuses"] != {"done": jobs}:
        complaints.append(f"jobs are {found['statuses']}")
    if found["ships"] != jobs:
        complaints.append(f"{found['ships']} followers of {jobs} jobs")
    return complaints
