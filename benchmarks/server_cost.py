"""What jobs cost on a server, Postgres or Redis: the engine and whole workers beside a bare loop.

A part of the work is the server's, so these rows go by the clock. Both sides take turns on stores of the same size.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from benchmarks import doors
from benchmarks.app import make_app
from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.grounds import NAMES, Bare, Name, Place
from benchmarks.rows import Row, at_least
from benchmarks.session import Session
from benchmarks.sqlite_cost import BATCHES
from benchmarks.stats import Cores, Meter, Pair, in_turns, pace_row
from benchmarks.worker_cost import TUNED, run_dry
from stoker.model.ids import JobId
from stoker.registry import mint

SLICE = 1_000
"""Jobs that one side does before it is the other's turn."""

LONGEST = 60.0
"""Seconds after which a worker that is not done has failed."""

WHOLE = {"postgres": 0.50, "redis": 0.45}
"""The part of the bare loop's speed that a whole worker must reach."""

TWICE = 1.3
"""Two workers must reach so many times as much of it."""


async def drain_bare(bare: Bare, batch: int, jobs: int | None = None) -> Meter:
    """Claim and settle: everything there is, or so many jobs and the rest at another call."""
    meter = Meter()
    await bare.prepare(batch)
    if not bare.holding:
        await bare.turn(batch)
    while bare.holding and (jobs is None or meter.jobs < jobs):
        with meter:
            meter.jobs += await bare.turn(batch)
    return meter


async def fill_bare(bare: Bare, batches: Sequence[list[JobId]]) -> Meter:
    """Store batch after batch."""
    meter = Meter()
    for batch in batches:
        await bare.prepare(len(batch))
        meter.jobs += len(batch)
        with meter:
            await bare.insert(batch)
    return meter


async def _drain(mine: Place, other: Place, batch: int, rounds: int) -> list[Pair[Meter]]:
    pairs = []
    engine = mine.engine()
    await engine.open()
    try:
        async with other.bare() as bare:
            doorway = doors.Drain(engine, batch)
            for number in range(rounds + 1):
                if number % 2:
                    value, limit = await doorway.run(SLICE), await drain_bare(bare, batch, SLICE)
                else:
                    limit, value = await drain_bare(bare, batch, SLICE), await doorway.run(SLICE)
                pairs.append(Pair(value, limit))
    finally:
        await engine.close()
    return pairs[1:]  # the first round warms up


def drain(session: Session, name: Name, batch: int) -> Iterator[Row]:
    """Claim and settle in one call, as a busy worker does."""
    ground, rounds = session.ground(name), session.sized(8, 24)
    mine, other = ground.waiting((rounds + 2) * SLICE), ground.waiting((rounds + 2) * SLICE)
    pairs = asyncio.run(_drain(mine, other, batch, rounds))
    ground.drop(mine)
    ground.drop(other)
    yield pace_row(f"{name}.drain.{batch}", pairs, at_least(0.60))


async def _bulk(mine: Place, other: Place, batch: int, rounds: int) -> list[Pair[Meter]]:
    def some() -> list[list[JobId]]:
        return [[mint() for _ in range(batch)] for _ in range(SLICE // batch)]

    pairs = []
    engine = mine.engine()
    await engine.open()
    try:
        async with other.bare() as bare:
            for number in range(rounds + 1):
                if number % 2:
                    value, limit = await doors.fill(engine, some()), await fill_bare(bare, some())
                else:
                    limit, value = await fill_bare(bare, some()), await doors.fill(engine, some())
                pairs.append(Pair(value, limit))
    finally:
        await engine.close()
    return pairs[1:]


def bulk(session: Session, name: Name, batch: int) -> Iterator[Row]:
    """Bulk enqueue, each batch awaited."""
    ground = session.ground(name)
    mine, other = ground.waiting(0), ground.waiting(0)
    pairs = asyncio.run(_bulk(mine, other, batch, session.sized(8, 24)))
    ground.drop(mine)
    ground.drop(other)
    yield pace_row(f"{name}.bulk.{batch}", pairs, at_least(0.60))


# --- whole workers ----------------------------------------------------------------------------------------------


def worker(session: Session, name: Name, batch: int) -> Iterator[Row]:
    """A whole worker with a no-op handler, against the bare loop of claim and settle."""
    ground, jobs = session.ground(name), session.sized(10_000, 30_000)

    def whole() -> Meter:
        place = ground.waiting(jobs)
        meter = asyncio.run(asyncio.wait_for(run_dry(make_app(place.engine()), batch), LONGEST))
        ground.drop(place)
        return meter

    def limit() -> Meter:
        place = ground.waiting(jobs)
        meter = asyncio.run(_dry_bare(place, batch))
        ground.drop(place)
        return meter

    yield pace_row(f"{name}.worker.{batch}", in_turns(session.rounds, whole, limit), at_least(WHOLE[name]))


def defaults(session: Session, name: Name) -> Iterator[Row]:
    """A worker with default settings against one whose batches are set to what suits jobs that do nothing."""
    ground, jobs = session.ground(name), session.sized(15_000, 30_000)

    def whole(batch: int | None) -> Meter:
        place = ground.waiting(jobs)
        meter = asyncio.run(asyncio.wait_for(run_dry(make_app(place.engine()), batch), LONGEST))
        ground.drop(place)
        return meter

    pairs = in_turns(session.rounds, lambda: whole(None), lambda: whole(TUNED))
    yield pace_row(f"{name}.worker.defaults", pairs, at_least(0.90))


async def _dry_bare(place: Place, batch: int) -> Meter:
    async with place.bare() as bare:
        return await drain_bare(bare, batch)


def two(session: Session, name: Name) -> Iterator[Row]:
    """Two workers, each a process, on one store, against the bare loop, and beside it against one."""
    ground, jobs = session.ground(name), session.sized(20_000, 40_000)
    shares: dict[int, list[float]] = {1: [], 2: []}

    def dry(processes: int) -> Meter:
        place = ground.waiting(jobs)
        children = [Child("drainer", url=place.url, batch=100) for _ in range(processes)]
        try:
            for child in children:
                child.ready()
            cpu = time.process_time()
            with Cores() as cores:
                for child in children:
                    child.go()
                figures = [child.figures() for child in children]
            shares[processes].append(cores.share)
        finally:
            for child in children:
                child.close()
        ground.drop(place)
        meter = Meter()
        meter.jobs = sum(one["done"] for one in figures)
        meter.wall = (max(one["ended"] for one in figures) - min(one["began"] for one in figures)) / 1e9
        meter.cpu = time.process_time() - cpu
        return meter

    def limit() -> Meter:
        place = ground.waiting(jobs)
        meter = asyncio.run(_dry_bare(place, 100))
        ground.drop(place)
        return meter

    rounds = session.sized(5, 7)
    pairs, beside = in_turns(rounds, partial(dry, 2), limit), in_turns(rounds, partial(dry, 2), partial(dry, 1))
    more = median(pair.limit.pace / pair.value.pace for pair in beside)
    bar = at_least(TWICE * WHOLE[name]) if name == "postgres" else None
    note = (
        f"{more:.2f} times as fast as one; the machine's {os.cpu_count()} cores, the server's too, were busy by "
        f"{median(shares[1]):.0%} with one worker and by {median(shares[2]):.0%} with two"
    )
    yield pace_row(f"{name}.worker.two", pairs, bar, note)


BENCHMARKS = [
    benchmark
    for name in NAMES
    for benchmark in (
        *(Benchmark(f"{name}.drain.{batch}", (name,), partial(drain, name=name, batch=batch)) for batch in BATCHES),
        *(Benchmark(f"{name}.bulk.{batch}", (name,), partial(bulk, name=name, batch=batch)) for batch in BATCHES),
        *(Benchmark(f"{name}.worker.{batch}", (name,), partial(worker, name=name, batch=batch)) for batch in BATCHES),
        Benchmark(f"{name}.worker.defaults", (name,), partial(defaults, name=name)),
        Benchmark(f"{name}.worker.two", (name,), partial(two, name=name)),
    )
]
