"""What an operator waits for: the overview, and a page of jobs, on a store with many jobs and queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import full_store
from benchmarks.catalog import Benchmark
from benchmarks.grounds import Name, Place
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from stoker.admin import Admin
from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.worker.rollup import write_points

OVERVIEW, PAGE, ROLL_UP = 100.0, 200.0, 600.0
"""Milliseconds that the overview, a page of jobs and a roll-up may take: the last one is done once a minute."""

WINDOW = 3600
FILTERS = (
    "is:ready",
    "is:dead order:finished",
    "is:done order:finished",
    "is:pending order:due",
    "queue:q7",
    "queue:q7 order:oldest",
    "queue:q7 is:done",
    "tenant:nobody",
    "error:nowhere",
    "payload:nowhere",
)
"""The last four walk over ten thousand records, or over those of all queues, and find few or none."""


class Took(NamedTuple):
    """Milliseconds of a call at the median, by the clock and of this process's own work: other programs slow a call."""

    wall: float
    cpu: float


async def _timed(call: Callable[[], Awaitable[Any]], times: int = 9) -> Took:
    took = []
    for _ in range(times):
        began, work = time.perf_counter(), time.process_time()
        await call()
        took.append(Took((time.perf_counter() - began) * 1e3, (time.process_time() - work) * 1e3))
    return Took(median(one.wall for one in took), median(one.cpu for one in took))


async def _measured(engine: Engine) -> dict[str, Took]:
    app = Stoker(engine)
    admin = Admin(app)
    async with app:
        found = {words: await _timed(lambda words=words: admin.jobs.find(words)) for words in FILTERS}  # type: ignore[misc]
        found["overview"] = await _timed(lambda: admin.overview(WINDOW))
        found["roll-up"] = await _timed(lambda: write_points(engine))
    await engine.close()
    return found


def _rows(name: str, found: dict[str, Took], jobs: int) -> Iterator[Row]:
    note = f"{jobs:,} jobs in {full_store.QUEUES} queues, with the points of an hour"
    wall, cpu = found["overview"]
    yield absolute(f"{name}.operator.overview", "ms p50", wall, at_most(OVERVIEW), f"{cpu:.0f} ms of work here; {note}")
    pages = {words: took for words, took in found.items() if words in FILTERS}
    listed = ", ".join(f"{words} {took.wall:.0f} ({took.cpu:.0f})" for words, took in pages.items())
    slowest = max(took.wall for took in pages.values())
    yield absolute(f"{name}.operator.page", "ms p50", slowest, at_most(PAGE), f"25 jobs (work here): {listed}")
    wall, cpu = found["roll-up"]
    yield absolute(f"{name}.operator.rollup", "ms p50", wall, at_most(ROLL_UP), f"{cpu:.0f} ms of work here; {note}")


def sqlite(session: Session) -> Iterator[Row]:
    jobs = session.sized(20_000, 1_000_000)
    with session.copies(empty(session)) as [path]:
        yield from _rows("sqlite", asyncio.run(_on_sqlite(path, jobs)), jobs)


async def _on_sqlite(path: Path, jobs: int) -> dict[str, Took]:
    await full_store.sqlite(path, jobs)
    return await _measured(SqliteEngine(path, durability="process"))


def server(name: Name) -> Callable[[Session], Iterator[Row]]:
    def measure(session: Session) -> Iterator[Row]:
        jobs = session.sized(20_000, 1_000_000)
        ground = session.ground(name)
        place = ground.waiting(0)
        yield from _rows(name, asyncio.run(_on_server(place, jobs)), jobs)
        ground.drop(place)

    return measure


async def _on_server(place: Place, jobs: int) -> dict[str, Took]:
    engine = place.engine()
    await full_store.seed(engine)
    await full_store.fill(place, engine, jobs)
    await engine.close()
    return await _measured(place.engine())


BENCHMARKS = [
    Benchmark("sqlite.operator", ("sqlite",), sqlite),
    Benchmark("postgres.operator", ("postgres",), server("postgres")),
    Benchmark("redis.operator", ("redis",), server("redis")),
]
