"""How long after the end of a job a caller in another process holds its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from statistics import median

from benchmarks.app import ENDING, QUEUE, make_app
from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.grounds import NAMES, Name
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import percentile
from stoker.engines.url import engine_from_url
from stoker.model.job import Draft
from stoker.registry import mint

LATEST = 5.0
"""Milliseconds from the end to the value in the caller's hands, at p50."""

RUN = 0.06
"""Seconds a handler takes: long enough that a caller waits, and that polling would be seldom by then."""


async def _wait(url: str, n: int) -> list[int]:
    """Enqueue, wait for the result, rest; when each result was there."""
    held: list[int] = []
    async with make_app(engine_from_url(url)) as jobs:
        engine = await jobs.engine()
        for _ in range(n):
            job = mint()
            await engine.jobs.insert([Draft(job, ENDING, b'{"seconds":%g}' % RUN, QUEUE)])
            await jobs.handle(job).result(10)
            held.append(time.monotonic_ns())
            await asyncio.sleep(0.02)
    return held


def wait(url: str, name: str, n: int) -> Iterator[Row]:
    """From the store's acknowledgement of the end to the value in the hands of a caller in another process."""
    with Child("worker", url=url, noting=True) as child:
        held = asyncio.run(_wait(url, n))
        ended = child.stop()["ends"]
    late = [(there - end) / 1e6 for there, end in zip(held, ended, strict=True)]
    note = f"p99 {percentile(late, 99):.1f} ms of {len(late)}"
    yield absolute(f"{name}.result.wait", "ms p50", median(late), at_most(LATEST), note)


def on_sqlite(session: Session) -> Iterator[Row]:
    with session.copies(empty(session)) as [path]:
        yield from wait(f"sqlite:///{path}", "sqlite", session.sized(60, 300))


def on_server(session: Session, name: Name) -> Iterator[Row]:
    ground = session.ground(name)
    place = ground.waiting(0)
    yield from wait(place.url, name, session.sized(60, 300))
    ground.drop(place)


BENCHMARKS = [
    Benchmark("sqlite.result.wait", ("sqlite",), on_sqlite),
    *(Benchmark(f"{name}.result.wait", (name,), partial(on_server, name=name)) for name in NAMES),
]
