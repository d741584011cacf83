"""What an operator waits for: the overview, and a page of jobs, on a store with many jobs and queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import median
from typing import Any

from benchmarks.catalog import Benchmark
from benchmarks.grounds import Name
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from stoker.admin import Admin
from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.control import Presence
from stoker.model.events import Point
from stoker.model.job import Demand, Draft, Settlement, Status
from stoker.model.time import MINUTE, SECOND
from stoker.registry import mint

QUEUES = 200
DEAD = 2_000
MINUTES = 60
WORKER = "bench"
OVERVIEW, PAGE = 100.0, 200.0
"""Milliseconds that the overview and a page of jobs may take."""


async def _filled(engine: Engine, jobs: int) -> None:
    """Jobs in all queues, some of them dead, and an hour of points."""
    await engine.open()
    names = [f"q{n}" for n in range(QUEUES)]
    for start in range(0, jobs, 1_000):
        await engine.insert(
            [Draft(mint(), "bench", b"{}", queue=names[n % QUEUES]) for n in range(start, start + 1_000)]
        )
    await engine.renew(WORKER, [], first=True, lease=600 * SECOND)
    for start in range(0, DEAD, 500):
        claims = await engine.claim(Demand(WORKER, tuple((name, 3) for name in names), 500))
        ends = [Settlement(one.id, WORKER, one.token, Status.DEAD, error=f"Timeout: {start} s") for one in claims]
        await engine.settle(ends)
    await engine.beat(Presence(worker=WORKER, host="", pid=1, queues=dict.fromkeys(names, 5)))
    minute = (await engine.now()) // MINUTE * MINUTE
    for ago in range(1, MINUTES + 1):
        at = minute - ago * MINUTE
        points = [
            Point(name, metric, at, 50, 5e6, 1e5, 2e5, 3e5, 4e5)
            for name in names
            for metric in ("enqueued", "completed", "processing", "total")
        ]
        await engine.record([], points, now=minute)


async def _timed(call: Callable[[], Awaitable[Any]], times: int = 9) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        took.append((time.perf_counter() - began) * 1e3)
    return median(took)


async def _measured(engine: Engine, jobs: int) -> dict[str, float]:
    await _filled(engine, jobs)
    app = Stoker(engine)
    admin = Admin(app)
    async with app:
        found = {
            "overview": await _timed(lambda: admin.overview(900)),
            "overview of an hour": await _timed(lambda: admin.overview(3600)),
            "is:ready": await _timed(lambda: admin.jobs.find("is:ready")),
            "is:dead order:finished": await _timed(lambda: admin.jobs.find("is:dead order:finished")),
            "queue:q7 order:oldest": await _timed(lambda: admin.jobs.find("queue:q7 order:oldest")),
        }
    await engine.close()
    return found


def _rows(name: str, found: dict[str, float], jobs: int) -> Iterator[Row]:
    note = f"{jobs:,} jobs in {QUEUES} queues; with the points of an hour {found['overview of an hour']:.0f} ms"
    yield absolute(f"{name}.operator.overview", "ms p50", found["overview"], at_most(OVERVIEW), note)
    pages = {words: took for words, took in found.items() if not words.startswith("overview")}
    slowest = max(pages, key=lambda words: pages[words])
    listed = ", ".join(f"{words} {took:.1f}" for words, took in pages.items())
    yield absolute(f"{name}.operator.page", "ms p50", pages[slowest], at_most(PAGE), f"25 jobs: {listed}")


def sqlite(session: Session) -> Iterator[Row]:
    jobs = session.sized(20_000, 1_000_000)
    with session.copies(empty(session)) as [path]:
        yield from _rows("sqlite", asyncio.run(_measured(SqliteEngine(path, durability="process"), jobs)), jobs)


def server(name: Name) -> Callable[[Session], Iterator[Row]]:
    def measure(session: Session) -> Iterator[Row]:
        jobs = session.sized(20_000, 1_000_000)
        ground = session.ground(name)
        place = ground.waiting(0)
        yield from _rows(name, asyncio.run(_measured(place.engine(), jobs)), jobs)
        ground.drop(place)

    return measure


BENCHMARKS = [
    Benchmark("sqlite.operator", ("sqlite",), sqlite),
    Benchmark("postgres.operator", ("postgres",), server("postgres")),
    Benchmark("redis.operator", ("redis",), server("redis")),
]
