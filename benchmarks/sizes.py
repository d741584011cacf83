"""Speed must not depend on history, nor on jobs that are not due: big stores against an empty one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import doors, stores
from benchmarks.catalog import Benchmark
from benchmarks.rows import Row, at_least
from benchmarks.session import Session
from benchmarks.sqlite_cost import SLICE, empty
from benchmarks.stats import Meter, Pair, cost_row
from stoker.engines.sqlite import SqliteEngine
from stoker.registry import mint

BATCH = 100


async def whole_lives(engine: SqliteEngine, jobs: int) -> Meter:
    """Enqueue, claim and settle so many jobs."""
    inserted = await doors.fill(engine, [[mint() for _ in range(BATCH)] for _ in range(jobs // BATCH)])
    meter = await doors.Drain(engine, BATCH).run()
    meter.cpu += inserted.cpu
    meter.wall += inserted.wall
    return meter


async def compare(big: Path, small: Path, rounds: int, jobs: int) -> list[Pair[Meter]]:
    """Both stores stay open; the same work in turns."""
    engines = [SqliteEngine(path, durability="process") for path in (big, small)]
    for engine in engines:
        await engine.open()
    try:
        for engine in engines:
            await whole_lives(engine, jobs)
        pairs = []
        for number in range(rounds):
            order = engines if number % 2 else engines[::-1]
            meters = {engine: await whole_lives(engine, jobs) for engine in order}
            pairs.append(Pair(meters[engines[0]], meters[engines[1]]))
        return pairs
    finally:
        for engine in engines:
            await engine.close()


def size(session: Session, name: str, **rows: int) -> Iterator[Row]:
    big = session.fresh()
    stores.build(big, **rows)
    megabytes = big.stat().st_size / 1e6
    with session.copies(empty(session)) as [small]:
        pairs = asyncio.run(compare(big, small, session.sized(8, 24), session.sized(1_500, SLICE)))
    session.discard(big)
    [(what, n)] = rows.items()
    yield cost_row(name, pairs, at_least(0.80), f"{n:,} {what}, {megabytes:.0f} MB, against an empty store")


def history(session: Session) -> Iterator[Row]:
    """Finished jobs share no index with those that wait."""
    yield from size(session, "history", done=session.sized(100_000, 2_000_000))


def delayed(session: Session) -> Iterator[Row]:
    """Jobs that are not due, of a better priority than those that are."""
    yield from size(session, "delayed", delayed=session.sized(50_000, 1_000_000))


BENCHMARKS = [
    Benchmark("delayed", ("sqlite",), partial(delayed)),
    Benchmark("history", ("sqlite",), partial(history)),
]
