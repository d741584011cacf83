"""How a worker on a server behaves over time: quick to start, and idle. Each in a process of its own, as in life."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from statistics import median

from benchmarks.app import QUEUE, STAMP
from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.grounds import NAMES, Name, Place
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.stats import percentile
from benchmarks.worker_life import at_rest
from stoker.model.job import Draft
from stoker.registry import mint

PICKUP = {"postgres": 3.5, "redis": 2.0}
LATEST = {"postgres": 15.0}


def pickup(session: Session, name: Name) -> Iterator[Row]:
    """From the enqueue call in one process to the handler's first line in an idle worker's."""
    ground = session.ground(name)
    place, other = ground.waiting(0), ground.waiting(0)
    with (
        Child("worker", url=place.url) as child,
        Child("bare_worker", name=name, server=other.server, part=other.part) as beside,
    ):
        calls, sent = asyncio.run(_one_by_one(place, other, session.sized(100, 400)))
        waits: list[float] = child.stop()["stamps"]
        limit = median((took - began) / 1e6 for began, took in zip(sent, beside.stop()["taken"], strict=True))
    ground.drop(place)
    ground.drop(other)
    note = f"of {len(waits)}; the enqueue call itself took p50 {median(calls):.2f} ms"
    value = median(waits)
    yield Row(f"{name}.pickup", "ms p50", value, limit, value / limit, at_most(PICKUP[name]), note=note)
    late = percentile(waits, 99)
    if name in LATEST:
        yield absolute(f"{name}.pickup.p99", "ms p99", late, at_most(LATEST[name]))
    else:
        yield Row(f"{name}.pickup.p99", "ms p99", late)


async def _one_by_one(place: Place, other: Place, n: int) -> tuple[list[float], list[int]]:
    """Enqueue now and then; how long each call took, in ms, and when each bare one in between was begun."""
    engine = place.engine()
    await engine.open()
    calls, began = [], []
    async with other.bare() as bare:
        await bare.prepare(1)
        for _ in range(n):
            await asyncio.sleep(0.03)
            sent = time.monotonic_ns()
            await engine.jobs.insert([Draft(mint(), STAMP, b'{"sent":%d}' % sent, QUEUE)])
            calls.append((time.monotonic_ns() - sent) / 1e6)
            await asyncio.sleep(0.03)
            began.append(time.monotonic_ns())
            await bare.insert([mint()])
        await asyncio.sleep(0.5)
    await engine.close()
    return calls, began


def idle(session: Session, name: Name) -> Iterator[Row]:
    """A worker on an empty queue, with everything it does now and then."""
    ground = session.ground(name)
    place = ground.waiting(0)
    percent, note = at_rest(session, place.url)
    ground.drop(place)
    yield Row(f"{name}.idle", "% CPU", percent, note=note)


BENCHMARKS = [
    benchmark
    for name in NAMES
    for benchmark in (
        Benchmark(f"{name}.pickup", (name,), partial(pickup, name=name)),
        Benchmark(f"{name}.idle", (name,), partial(idle, name=name)),
    )
]
