"""What exactly once costs: jobs that write a row in their block, against jobs that write it by themselves.

The limit is the same worker and the same row, committed by a connection that the handler keeps; the job is settled the
usual way. There a death between the two commits does the work twice.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.catalog import Benchmark
from benchmarks.group_cost import servers
from benchmarks.rows import Row, at_least
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import FEWEST_ROUNDS, Meter, in_turns, pace_row
from stoker.app import Stoker
from stoker.context import current
from stoker.worker import Worker

BAR = at_least(0.5)
SLOTS = 10
WARMING = 10 * SLOTS
"""Jobs before the measured ones, on both sides: a pool of connections is filled once in the life of a worker."""


async def _drained(jobs: Stoker, number: int) -> Meter:
    """Run so many jobs of the app's one task; only the run counts, after some that open and warm every connection."""
    async with jobs:
        await _run(jobs, WARMING)
        return await _run(jobs, number)


async def _run(jobs: Stoker, number: int) -> Meter:
    [task] = jobs.tasks.values()
    for start in range(0, number, 1_000):
        await jobs.enqueue_many([task.draft(n) for n in range(start, min(start + 1_000, number))])
    worker = Worker(jobs, {"default": SLOTS}, drain=True)
    meter = Meter()
    await worker.start()
    with meter:
        await worker.join()
    await worker.stop()
    meter.jobs = number
    return meter


async def _sqlite(url: str, number: int, *, block: bool) -> Meter:
    path = url.removeprefix("sqlite:///")
    jobs = Stoker(url, timeline=False)
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("pragma synchronous = full")
    db.execute("create table effects (n integer)")

    async def once(n: int) -> None:
        async with current().transaction() as tx:
            await tx.execute("insert into effects values (?)", n)

    async def by_itself(n: int) -> None:
        db.execute("insert into effects values (?)", (n,))

    jobs.task(name="write")(once if block else by_itself)
    try:
        return await _drained(jobs, number)
    finally:
        db.close()


async def _postgres(url: str, number: int, *, block: bool) -> Meter:
    import asyncpg

    server, _, schema = url.partition("?schema=")
    jobs = Stoker(url, timeline=False)
    pool = await asyncpg.create_pool(server, min_size=SLOTS, max_size=SLOTS)
    await pool.execute(f"create table {schema}.effects (n integer)")
    insert = f"insert into {schema}.effects values ($1)"

    async def once(n: int) -> None:
        async with current().transaction() as tx:
            await tx.execute(insert, n)

    async def by_itself(n: int) -> None:
        await pool.execute(insert, n)

    jobs.task(name="write")(once if block else by_itself)
    try:
        return await _drained(jobs, number)
    finally:
        await pool.close()


def measured(session: Session, name: str, fresh: Callable[[], str], drop: Callable[[str], None]) -> Row:
    number = session.sized(500, 3_000)
    measure = _sqlite if name == "sqlite" else _postgres

    def run(*, block: bool) -> Meter:
        url = fresh()
        try:
            return asyncio.run(measure(url, number, block=block))
        finally:
            drop(url)

    pairs = in_turns(session.rounds, partial(run, block=True), partial(run, block=False))
    return pace_row(f"block.{name}", pairs, BAR, f"{SLOTS} slots")


def on_sqlite(session: Session) -> Iterator[Row]:
    with session.copies(empty(session), 2 * max(session.rounds, FEWEST_ROUNDS)) as paths:
        waiting = [f"sqlite:///{path}" for path in paths]
        yield measured(session, "sqlite", waiting.pop, lambda _: None)


def on_postgres(session: Session) -> Iterator[Row]:
    yield measured(session, "postgres", *servers(session, "postgres"))


BENCHMARKS = [
    Benchmark("block.sqlite", ("sqlite",), on_sqlite),
    Benchmark("block.postgres", ("postgres",), on_postgres),
]
