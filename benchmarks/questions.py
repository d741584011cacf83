"""What questions and idle looks cost on a store that has grown, against the same on a small one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import median
from typing import Any

import asyncpg

from benchmarks import doors
from benchmarks.catalog import Benchmark
from benchmarks.grounds import Place
from benchmarks.postgres_cost import Lives
from benchmarks.rows import Row, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import Pair
from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.control import Presence
from stoker.model.job import Demand, Draft, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Failed
from stoker.model.query import Query
from stoker.model.time import HOUR
from stoker.registry import mint

MOST = 3.0
"""So many times as long as on a small store a question may take."""

WORKER = "bench"
SMALL, LARGE = 10, 1_000
"""Queues of one claim."""

PAGE = 25


async def _timed(call: Callable[[], Awaitable[Any]], times: int = 15) -> float:
    """Milliseconds that a call takes, at the median."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        took.append((time.perf_counter() - began) * 1e3)
    return median(took)


async def _put(engine: Engine, n: int) -> None:
    for start in range(0, n, 1_000):
        await engine.jobs.insert([Draft(mint(), "bench", b"{}") for _ in range(min(1_000, n - start))])


async def _retrying(engine: Engine, waiting: int) -> tuple[float, float]:
    """Find a page of jobs that wait for a retry: alone, and then behind many that wait."""
    await engine.open()
    await engine.jobs.renew(WORKER, [], first=True)
    await _put(engine, 2 * PAGE)
    claims = await engine.jobs.claim(Demand(WORKER, (("default", 2 * PAGE),)))
    await engine.jobs.settle([conclude(claim, Failed("boom", after=HOUR)) for claim in claims])

    async def page() -> None:
        query = Query(statuses=frozenset({Status.RETRYING}), limit=PAGE)
        assert len((await engine.operator.find(query)).jobs) == PAGE

    alone = await _timed(page)
    await _put(engine, waiting)
    behind = await _timed(page)
    await engine.close()
    return alone, behind


def retrying(session: Session) -> Iterator[Row]:
    waiting = session.sized(30_000, 300_000)
    with session.copies(empty(session)) as [path]:
        alone, behind = asyncio.run(_retrying(SqliteEngine(path, durability="process"), waiting))
    note = f"a page of {PAGE} jobs that wait for a retry, behind {waiting:,} that wait"
    yield Row("sqlite.find.retrying", "ms p50", behind, alone, behind / alone, at_most(MOST, "ratio"), note=note)


async def _idle_claims(engine: Engine) -> dict[int, float]:
    """Microseconds per queue of a claim that finds nothing."""
    await engine.open()
    await engine.jobs.renew(WORKER, [], first=True)
    found = {}
    for queues in (SMALL, LARGE):
        demand = Demand(WORKER, tuple((f"bench{n}", 10) for n in range(queues)), total=10)
        found[queues] = await _timed(lambda demand=demand: engine.jobs.claim(demand)) * 1e3 / queues  # type: ignore[misc]
    await engine.close()
    return found


def many_queues(session: Session) -> Iterator[Row]:
    ground = session.ground("postgres")
    place = ground.waiting(0)
    cost = asyncio.run(_idle_claims(place.engine()))
    ground.drop(place)
    note = f"an idle claim over {LARGE:,} queues takes {cost[LARGE] * LARGE / 1e3:.1f} ms; the limit is of {SMALL}"
    ratio = cost[LARGE] / cost[SMALL]
    yield Row("postgres.claim.queues", "µs/queue", cost[LARGE], cost[SMALL], ratio, at_most(MOST, "ratio"), note=note)


# --- a census under a held snapshot -----------------------------------------------------------------------------


PRESENCE = Presence(worker=WORKER, host="", pid=0, queues={})
WAITING = 100


async def _held_censuses(large: Place, small: Place, seconds: int) -> list[Pair[float]]:
    """Milliseconds of a census after each second of load under a held snapshot, and of one on a small store."""
    engine, other = large.engine(), small.engine()
    await engine.open()
    await other.open()
    link = await asyncpg.connect(large.server)
    try:
        lives, waiting = Lives(engine), range(WAITING)
        await Lives(other).run(500)
        await doors.fill(other, [[mint() for _ in waiting]])
        pairs = []
        async with link.transaction(isolation="repeatable_read"):
            await link.fetchval("SELECT pg_current_snapshot()")
            for second in range(seconds):
                if second % 5 == 0:
                    await engine.control.beat(PRESENCE)  # as a worker does: it folds the counters
                until = time.monotonic() + 1
                while time.monotonic() < until:
                    await lives.run(500)
                await doors.fill(engine, [[mint() for _ in waiting]])
                order = (engine, other) if second % 2 else (other, engine)
                took = {store: await _timed(store.operator.census, 1) for store in order}
                pairs.append(Pair(took[engine], took[other]))
                await lives.drain(WAITING)
        return pairs
    finally:
        await link.close()
        await engine.close()
        await other.close()


def held_census(session: Session) -> Iterator[Row]:
    seconds = session.sized(12, 60)
    ground = session.ground("postgres")
    large, small = ground.waiting(0), ground.waiting(0)
    pairs = asyncio.run(_held_censuses(large, small, seconds))
    ground.drop(large)
    ground.drop(small)
    last = pairs[len(pairs) // 2 :]
    late, limit = median(pair.value for pair in last), median(pair.limit for pair in last)
    dearest = max(pair.value for pair in last)
    note = f"the second half of {seconds} s of load; the dearest, which read from the start, {dearest:.0f} ms"
    yield Row("postgres.census.snapshot", "ms p50", late, limit, late / limit, at_most(MOST, "ratio"), note=note)


BENCHMARKS = [
    Benchmark("sqlite.find.retrying", ("sqlite",), retrying),
    Benchmark("postgres.claim.queues", ("postgres",), many_queues),
    Benchmark("postgres.census.snapshot", ("postgres",), held_census),
]
