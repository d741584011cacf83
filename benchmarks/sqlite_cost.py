"""What the SQLite engine's doors cost beside a bare loop of the same statements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from benchmarks import doors, stores
from benchmarks.bare import Bare
from benchmarks.catalog import Benchmark
from benchmarks.rows import Row, at_least
from benchmarks.session import Session
from benchmarks.stats import Meter, Pair, cost_row, in_turns
from stoker.engines.sqlite import SqliteEngine
from stoker.model.ids import JobId
from stoker.registry import mint

Durability: TypeAlias = Literal["power", "process"]
WORDS: dict[Durability, str] = {"power": "full", "process": "normal"}
BATCHES = (100, 500)


SLICE = 2_500
"""Jobs that one side does before it is the other's turn: some tens of milliseconds, in which the neighbours change
little, and long enough to meet the log being written back now and then."""


@asynccontextmanager
async def opened(path: Path, durability: Durability) -> AsyncIterator[SqliteEngine]:
    """An engine on a store."""
    engine = SqliteEngine(path, durability=durability)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def waiting(session: Session, n: int) -> Path:
    """A store with so many jobs to be drained; to be copied."""
    return session.built(f"ready-{n}", partial(stores.build, ready=n))


def empty(session: Session) -> Path:
    """A store that knows its queue and is empty otherwise; to be copied."""
    return session.built("empty", stores.build)


def drain_bare(session: Session, original: Path, durability: Durability, batch: int) -> Meter:
    with session.copies(original) as [path], Bare(path, durability) as bare:
        return bare.drain(batch)


async def _drain(paths: list[Path], durability: Durability, batch: int, rounds: int) -> list[Pair[Meter]]:
    pairs = []
    with Bare(paths[1], durability) as bare:
        async with opened(paths[0], durability) as engine:
            doorway = doors.Drain(engine, batch)
            for number in range(rounds + 1):
                if number % 2:
                    value, limit = await doorway.run(SLICE), bare.drain(batch, SLICE)
                else:
                    limit, value = bare.drain(batch, SLICE), await doorway.run(SLICE)
                pairs.append(Pair(value, limit))
    return pairs[1:]  # the first round warms up


def drain(session: Session, durability: Durability, batch: int) -> Iterator[Row]:
    """Claim and settle fused: the way a busy worker uses the store."""
    rounds = session.sized(8, 24)
    with session.copies(waiting(session, (rounds + 2) * SLICE), 2) as paths:
        pairs = asyncio.run(_drain(paths, durability, batch, rounds))
    bar = at_least(0.70 if durability == "power" else 0.75)
    yield cost_row(f"drain.{WORDS[durability]}.{batch}", pairs, bar)


async def _bulk(paths: list[Path], durability: Durability, batch: int, rounds: int) -> list[Pair[Meter]]:
    def some() -> list[list[JobId]]:
        return [[mint() for _ in range(batch)] for _ in range(SLICE // batch)]

    pairs = []
    with Bare(paths[1], durability) as bare:
        async with opened(paths[0], durability) as engine:
            for number in range(rounds + 1):
                if number % 2:
                    value, limit = await doors.fill(engine, some()), bare.fill(some())
                else:
                    limit, value = bare.fill(some()), await doors.fill(engine, some())
                pairs.append(Pair(value, limit))
    return pairs[1:]


def bulk(session: Session, durability: Durability, batch: int) -> Iterator[Row]:
    """Bulk enqueue, each batch awaited."""
    with session.copies(empty(session), 2) as paths:
        pairs = asyncio.run(_bulk(paths, durability, batch, session.sized(8, 24)))
    yield cost_row(f"bulk.{WORDS[durability]}.{batch}", pairs, at_least(0.60))


def counters(session: Session) -> Iterator[Row]:
    """The bare loop with and without the statements that keep counts exact: insert, claim and settle by 100."""

    def life(bare: Bare) -> Meter:
        inserted = bare.fill([[mint() for _ in range(100)] for _ in range(SLICE // 100)])
        meter = bare.drain(100)
        meter.cpu += inserted.cpu
        meter.wall += inserted.wall
        return meter

    with (
        session.copies(empty(session), 2) as (one, other),
        Bare(one, "process") as counted,
        Bare(other, "process", counters=False) as bare,
    ):
        pairs = in_turns(session.sized(12, 60), partial(life, counted), partial(life, bare))
    yield cost_row("counters.100", pairs, at_least(0.95), "bare loop with counters against without")


BENCHMARKS = [
    *(
        Benchmark(f"drain.{WORDS[durability]}.{batch}", ("sqlite",), partial(drain, durability=durability, batch=batch))
        for durability in WORDS
        for batch in BATCHES
    ),
    *(
        Benchmark(f"bulk.{WORDS[durability]}.{batch}", ("sqlite",), partial(bulk, durability=durability, batch=batch))
        for durability in WORDS
        for batch in BATCHES
    ),
    Benchmark("counters.100", ("sqlite",), counters),
]
