"""What the SQLite engine's doors cost beside a bare loop of the same statements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks import doors, stores
from benchmarks.bare import Bare
from benchmarks.catalog import Benchmark
from benchmarks.rows import Row, at_least
from benchmarks.session import Session
from benchmarks.stats import Meter, cost_row, in_turns
from stoker.app import mint
from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.ids import JobId

WORDS = {"power": "full", "process": "normal"}
BATCHES = (100, 500)


async def on_engine(path: Path, durability: str, work: Callable[[Engine], Awaitable[Meter]]) -> Meter:
    """Open an engine on a store for some measured work."""
    engine = SqliteEngine(path, durability="power" if durability == "power" else "process")
    await engine.open()
    try:
        return await work(engine)
    finally:
        await engine.close()


def waiting(session: Session, n: int) -> Path:
    """A store with so many jobs to be drained; to be copied."""
    return session.built(f"ready-{n}", partial(stores.build, ready=n))


def empty(session: Session) -> Path:
    """A store that knows its queue and is empty otherwise; to be copied."""
    return session.built("empty", stores.build)


def drain_bare(session: Session, original: Path, durability: str, batch: int) -> Meter:
    path = session.copy(original)
    with Bare(path, durability) as bare:
        meter = bare.drain(batch)
    session.discard(path)
    return meter


def drain_engine(session: Session, original: Path, durability: str, batch: int) -> Meter:
    path = session.copy(original)
    meter = asyncio.run(on_engine(path, durability, lambda engine: doors.drain(engine, batch)))
    session.discard(path)
    return meter


def drain(session: Session, durability: str, batch: int) -> Iterator[Row]:
    """Claim and settle fused: the way a busy worker uses the store."""
    original = waiting(session, session.sized(6_000, 30_000))
    pairs = in_turns(
        session.rounds,
        lambda: drain_engine(session, original, durability, batch),
        lambda: drain_bare(session, original, durability, batch),
    )
    bar = at_least(0.70 if durability == "power" else 0.75)
    yield cost_row(f"drain.{WORDS[durability]}.{batch}", pairs, bar)


def bulk(session: Session, durability: str, batch: int) -> Iterator[Row]:
    """Bulk enqueue, each batch awaited."""
    count = session.sized(6_000, 30_000) // batch

    def batches() -> list[list[JobId]]:
        return [[mint() for _ in range(batch)] for _ in range(count)]

    def engine() -> Meter:
        path = session.copy(empty(session))
        work = batches()
        meter = asyncio.run(on_engine(path, durability, lambda engine: doors.fill(engine, work)))
        session.discard(path)
        return meter

    def bare() -> Meter:
        path = session.copy(empty(session))
        with Bare(path, durability) as loop:
            meter = loop.fill(batches())
        session.discard(path)
        return meter

    yield cost_row(f"bulk.{WORDS[durability]}.{batch}", in_turns(session.rounds, engine, bare), at_least(0.60))


def counters(session: Session) -> Iterator[Row]:
    """The bare loop with and without the statements that keep counts exact: insert, claim and settle of 100."""
    count = session.sized(60, 300)

    def life(*, counted: bool) -> Meter:
        path = session.copy(empty(session))
        with Bare(path, "process", counters=counted) as bare:
            inserted = bare.fill([[mint() for _ in range(100)] for _ in range(count)])
            meter = bare.drain(100)
        session.discard(path)
        meter.cpu += inserted.cpu
        meter.wall += inserted.wall
        return meter

    # Twice as many rounds: the difference is smaller than what one round can show.
    pairs = in_turns(2 * session.rounds, partial(life, counted=True), partial(life, counted=False))
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
