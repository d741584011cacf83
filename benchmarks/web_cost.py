"""What a viewer waits for: every page of the dashboard, and how large it is, on a store with many jobs."""

from __future__ import annotations

import asyncio
import gc
import gzip
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks import full_store
from benchmarks.catalog import Benchmark
from benchmarks.grounds import Name, Place
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import percentile
from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.model import ids
from stoker.model.job import Demand
from stoker.model.query import Query
from stoker.web import Dashboard, Limits, Open, dashboard
from stoker.web.start import prepare

OVERVIEW, PAGE, SIZE = 200.0, 300.0, 60.0
"""Milliseconds that the overview and any other page may take; kilobytes of a page, compressed."""

TIMES = 12
PAGES = {
    "overview": "/",
    "overview of a day": "/?range=24h",
    "jobs": "/jobs",
    "jobs ready": "/jobs?q=is:ready",
    "jobs dead": "/jobs?q=is:dead",
    "jobs of a queue": "/jobs?q=queue:q7",
    "jobs oldest": "/jobs?q=is:ready+order:oldest",
    "jobs by error": "/jobs?q=is:dead&group=error",
    "jobs by text": "/jobs?q=error:Timeout",
    "jobs by text that none has": "/jobs?q=payload:zebra",
    "queues": "/queues",
    "queue": "/queues/q7",
    "kinds": "/kinds?sort=p95",
    "kind": "/kinds/bench",
    "workers": "/workers",
    "worker": f"/workers/{full_store.WORKER}",
    "jobs of a worker": f"/jobs?q=worker:{full_store.WORKER}",
    "questions": "/waits",
    "groups": "/groups",
    "schedules": "/schedules",
    "outbox": "/outbox",
    "limits": "/limits",
    "health": "/health",
    "audit": "/audit",
    "operations": "/operations",
    "preview": "/operations/new?do=requeue&q=is:dead",
}


class Seen(NamedTuple):
    """A page: p95 in milliseconds, by the clock and of this process's own work, and kilobytes compressed."""

    wall: float
    work: float
    size: float


async def _page(client: httpx.AsyncClient, board: Dashboard, path: str) -> Seen:
    """Ask for a page again and again, each time without the shared reading, as the first viewer does."""
    wall, work, size = list[float](), list[float](), 0.0
    for _ in range(TIMES):
        board.hub.forget()
        began, worked = time.perf_counter(), time.process_time()
        answer = await client.get(path)
        wall.append((time.perf_counter() - began) * 1e3)
        work.append((time.process_time() - worked) * 1e3)
        if answer.status_code != 200:
            raise AssertionError(f"{path} answered {answer.status_code}")
        size = len(gzip.compress(answer.content)) / 1e3
    return Seen(percentile(wall, 95), percentile(work, 95), size)


async def _measured(engine: Engine) -> dict[str, Seen]:
    app = Stoker(engine)
    board = dashboard(app, auth=Open(), limits=Limits(seconds=60))
    transport = httpx.ASGITransport(board)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        await engine.jobs.claim(Demand(full_store.WORKER, tuple((name, 2) for name in full_store.NAMES), 100))
        [newest] = (await engine.operator.find(Query(limit=1))).jobs
        prepare()  # as `stoker serve` does
        found = {name: await _page(client, board, path) for name, path in PAGES.items()}
        found["job"] = await _page(client, board, f"/jobs/{ids.text(newest.id)}")
        await board.close()
    gc.unfreeze()
    return found


def _rows(name: str, found: dict[str, Seen], jobs: int) -> Iterator[Row]:
    where = f"{jobs:,} jobs in {full_store.QUEUES} queues, with the points of an hour"
    first = found["overview"]
    note = f"{first.work:.0f} ms of work here; {where}"
    yield absolute(f"{name}.web.overview", "ms p95", first.wall, at_most(OVERVIEW), note)
    slowest = max(seen.wall for seen in found.values())
    listed = ", ".join(f"{page} {seen.wall:.0f} ({seen.work:.0f})" for page, seen in found.items())
    yield absolute(f"{name}.web.page", "ms p95", slowest, at_most(PAGE), f"(work here): {listed}")
    largest = max(found, key=lambda page: found[page].size)
    yield absolute(f"{name}.web.size", "kB gzip", found[largest].size, at_most(SIZE), f"the largest page: {largest}")


def sqlite(session: Session) -> Iterator[Row]:
    """On SQLite."""
    jobs = session.sized(20_000, 1_000_000)
    with session.copies(empty(session)) as [path]:
        yield from _rows("sqlite", asyncio.run(_on_sqlite(path, jobs)), jobs)


async def _on_sqlite(path: Path, jobs: int) -> dict[str, Seen]:
    await full_store.sqlite(path, jobs)
    return await _measured(SqliteEngine(path, durability="process"))


def server(name: Name) -> Callable[[Session], Iterator[Row]]:
    """On a server."""

    def measure(session: Session) -> Iterator[Row]:
        jobs = session.sized(20_000, 1_000_000)
        ground = session.ground(name)
        place = ground.waiting(0)
        yield from _rows(name, asyncio.run(_on_server(place, jobs)), jobs)
        ground.drop(place)

    return measure


async def _on_server(place: Place, jobs: int) -> dict[str, Seen]:
    engine = place.engine()
    await full_store.seed(engine)
    await full_store.fill(place, engine, jobs)
    await engine.close()
    return await _measured(place.engine())


BENCHMARKS = [
    Benchmark("sqlite.web", ("sqlite",), sqlite),
    Benchmark("postgres.web", ("postgres",), server("postgres")),
    Benchmark("redis.web", ("redis",), server("redis")),
]
