"""How late an idle worker with default settings starts jobs that only time makes due."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from functools import partial
from statistics import median

from benchmarks.app import QUEUE, STAMP
from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.grounds import NAMES, Name
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import percentile
from stoker.engines.url import engine_from_url
from stoker.model.job import Draft
from stoker.model.time import SECOND
from stoker.registry import mint

LATEST = 25.0
"""Milliseconds behind the due time, at p95."""

SHORTEST, LONGEST = 0.05, 4.0
"""Seconds of delay: some are shorter than what a worker sleeps between two looks, some longer."""


async def _enqueue(url: str, n: int) -> None:
    """Enqueue for later, now and then; a job carries the time at which it should start."""
    engine = engine_from_url(url)
    await engine.open()
    chance = random.Random(14)
    for _ in range(n):
        delay = chance.uniform(SHORTEST, LONGEST)
        due = time.monotonic_ns() + round(delay * 1e9)
        await engine.jobs.insert([Draft(mint(), STAMP, b'{"sent":%d}' % due, QUEUE, delay=round(delay * SECOND))])
        await asyncio.sleep(chance.uniform(0.02, 0.2))
    await asyncio.sleep(LONGEST + 1)
    await engine.close()


def lateness(url: str, name: str, n: int) -> Iterator[Row]:
    """From the due time to the handler's first line in another process that was idle."""
    with Child("worker", url=url) as child:
        asyncio.run(_enqueue(url, n))
        late: list[float] = child.stop()["stamps"]
    note = (
        f"p50 {median(late):.1f} ms, latest {max(late):.0f} ms of {len(late)} jobs delayed by {SHORTEST} to {LONGEST} s"
    )
    yield Row(f"{name}.pickup.due", "ms p50 late", median(late))
    yield absolute(f"{name}.pickup.due.p95", "ms p95 late", percentile(late, 95), at_most(LATEST), note)


def on_sqlite(session: Session) -> Iterator[Row]:
    with session.copies(empty(session)) as [path]:
        yield from lateness(f"sqlite:///{path}", "sqlite", session.sized(80, 300))


def on_server(session: Session, name: Name) -> Iterator[Row]:
    ground = session.ground(name)
    place = ground.waiting(0)
    yield from lateness(place.url, name, session.sized(80, 300))
    ground.drop(place)


BENCHMARKS = [
    Benchmark("sqlite.pickup.due", ("sqlite",), on_sqlite),
    *(Benchmark(f"{name}.pickup.due", (name,), partial(on_server, name=name)) for name in NAMES),
]
