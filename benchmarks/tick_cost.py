"""What a tick of a worker's ticker costs when a thousand schedules are stored and none is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from statistics import median

from benchmarks.app import NOOP, PAYLOAD, QUEUE
from benchmarks.catalog import Benchmark
from benchmarks.grounds import NAMES, Name
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from stoker.app import Stoker
from stoker.model.job import Draft
from stoker.model.schedule import NO_ID, Schedule
from stoker.services import ServiceContext
from stoker.worker.schedules import Ticker

SCHEDULES = 1_000
COSTLIEST = 5.0
"""Milliseconds of CPU time per tick."""


async def _ticks(app: Stoker, n: int) -> list[float]:
    """Milliseconds of CPU time of each tick: lock, clock, every schedule read and looked at."""
    async with app:
        engine = await app.engine()
        template = Draft(NO_ID, NOOP, PAYLOAD, queue=QUEUE)
        for number in range(SCHEDULES):
            expression = f"{number % 60} {number % 24} 1 1 *"
            await engine.schedules.put(
                Schedule(name=f"s{number}", expression=expression, tz="Europe/Paris", template=template)
            )
        ticker, context = Ticker(), ServiceContext(app, engine, lambda: "bench")
        await ticker.turn(context)  # seeds them all
        costs = []
        for _ in range(n):
            began = time.process_time_ns()
            await ticker.turn(context)
            costs.append((time.process_time_ns() - began) / 1e6)
    return costs


def measured(url: str, name: str, n: int) -> Row:
    costs = asyncio.run(_ticks(Stoker(url), n))
    note = f"{SCHEDULES:,} schedules, none due; best of {n} ticks, median {median(costs):.2f}"
    # Neighbours can only add to a cost: the best tick is nearest to the truth.
    return absolute(f"flow.tick.{name}", "ms CPU/tick", min(costs), at_most(COSTLIEST), note)


def in_memory(session: Session) -> Iterator[Row]:
    yield measured("memory://", "memory", session.sized(20, 100))


def on_sqlite(session: Session) -> Iterator[Row]:
    with session.copies(empty(session)) as [path]:
        yield measured(f"sqlite:///{path}", "sqlite", session.sized(20, 100))


def on_server(session: Session, name: Name) -> Iterator[Row]:
    ground = session.ground(name)
    place = ground.waiting(0)
    yield measured(place.url, name, session.sized(20, 100))
    ground.drop(place)


BENCHMARKS = [
    Benchmark("flow.tick.memory", ("memory",), in_memory),
    Benchmark("flow.tick.sqlite", ("sqlite",), on_sqlite),
    *(Benchmark(f"flow.tick.{name}", (name,), partial(on_server, name=name)) for name in NAMES),
]
