"""What a job costs a Postgres server, and what must not make it dearer: a held snapshot, history, a backlog."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import nullcontext

import asyncpg

from benchmarks import doors
from benchmarks.app import NOOP, PAYLOAD, QUEUE, make_app
from benchmarks.catalog import Benchmark
from benchmarks.grounds import Place
from benchmarks.rows import Row, absolute, at_least, at_most
from benchmarks.session import Session
from benchmarks.stats import Meter, Pair, pace_row
from benchmarks.worker_cost import run_dry
from stoker.engines.base import Engine
from stoker.model.job import Status
from stoker.model.query import Expired, Retention
from stoker.model.time import DAY
from stoker.registry import mint
from stoker.worker import janitor

BATCH = 100


async def written(link: asyncpg.Connection) -> tuple[int, int]:
    """Bytes of log so far, and commits. Sessions tell their commits when they end, or after a second."""
    await asyncio.sleep(1.5)
    await link.execute("SELECT pg_stat_clear_snapshot()")
    lsn: int = await link.fetchval("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
    commits: int = await link.fetchval("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    return int(lsn), commits


async def _life(place: Place, jobs: int) -> int:
    """Enqueue by 100 and let a worker drain it, timeline off; how many jobs."""
    engine = place.engine()
    await engine.open()
    await doors.fill(engine, [[mint() for _ in range(BATCH)] for _ in range(jobs // BATCH)])
    await engine.close()
    return (await run_dry(make_app(place.engine()), BATCH)).jobs


async def _log(place: Place, jobs: int) -> tuple[float, float]:
    link = await asyncpg.connect(place.server)
    try:
        await _life(place, 1_000)
        first = await written(link)
        done = await _life(place, jobs)
        last = await written(link)
    finally:
        await link.close()
    return (last[0] - first[0]) / done, (last[1] - first[1]) / done


def log(session: Session) -> Iterator[Row]:
    """Write-ahead log and commits per job from enqueue to done, by 100, without a timeline."""
    ground, jobs = session.ground("postgres"), session.sized(10_000, 50_000)
    place = ground.waiting(0)
    size, commits = asyncio.run(_log(place, jobs))
    ground.drop(place)
    yield absolute("postgres.wal", "B/job", size, at_most(1_100.0), f"over {jobs:,} jobs")
    yield absolute("postgres.wal.commits", "commits/job", commits, at_most(0.05))


# --- a held snapshot --------------------------------------------------------------------------------------------


class Lives:
    """Enqueues, claims and settles batch after batch."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._drain = doors.Drain(engine, BATCH)

    async def run(self, jobs: int) -> Meter:
        meter = await doors.fill(self._engine, [[mint() for _ in range(BATCH)] for _ in range(jobs // BATCH)])
        drained = await self.drain(jobs)
        meter.cpu += drained.cpu
        meter.wall += drained.wall
        return meter

    async def drain(self, jobs: int) -> Meter:
        return await self._drain.run(jobs)


async def _held(place: Place, seconds: float, window: float) -> Pair[Meter]:
    engine = place.engine()
    await engine.open()
    link = await asyncpg.connect(place.server)
    turns: list[tuple[float, Meter]] = []
    try:
        lives = Lives(engine)
        await lives.run(2_000)
        async with link.transaction(isolation="repeatable_read"):
            await link.fetchval("SELECT pg_current_snapshot()")
            began = time.monotonic()
            while (at := time.monotonic() - began) < seconds:
                turns.append((at, await lives.run(500)))
    finally:
        await link.close()
        await engine.close()
    first = [meter for at, meter in turns if at < window]
    last = [meter for at, meter in turns if at >= seconds - window]
    return Pair(_sum(last), _sum(first))


def _sum(meters: list[Meter]) -> Meter:
    total = Meter()
    total.jobs = sum(meter.jobs for meter in meters)
    total.wall = sum(meter.wall for meter in meters)
    total.cpu = sum(meter.cpu for meter in meters)
    return total


def snapshot(session: Session) -> Iterator[Row]:
    """Another session holds a REPEATABLE READ transaction open: the last seconds against the first."""
    seconds, window, rounds = session.sized(10, 60), session.sized(2, 10), session.sized(3, 5)
    ground, pairs = session.ground("postgres"), []
    for _ in range(rounds):
        place = ground.waiting(0)
        pairs.append(asyncio.run(_held(place, seconds, window)))
        ground.drop(place)
    note = f"held for {seconds} s, {window} s at either end"
    yield pace_row("postgres.snapshot", pairs, at_least(0.80), note)


# --- size -------------------------------------------------------------------------------------------------------

_BODIES = """
INSERT INTO "{schema}".job (id, created, due, budget, priority, queue, kind, payload)
SELECT ('{mark}' || lpad(to_hex(i), 28, '0'))::uuid, $1::bigint + i, $1::bigint + i, 5, 0, $2, $3, $4
FROM generate_series($5::bigint, $6::bigint) AS i
"""
_DONE = """
INSERT INTO "{schema}".done (id, finished, expires, token, started, attempts, status, settled, cancel, queue)
SELECT id, created, created + $1::bigint, created, created, 1, 3, 3, false, queue FROM "{schema}".job
WHERE id BETWEEN ('{mark}' || lpad(to_hex($2::bigint), 28, '0'))::uuid
    AND ('{mark}' || lpad(to_hex($3::bigint), 28, '0'))::uuid
"""
_READY = """
INSERT INTO "{schema}".ready (due, token, id, attempts, priority, status, settled, past, queue)
SELECT due, 0, id, 0, priority, 0, -1, false, queue FROM "{schema}".job
WHERE id BETWEEN ('{mark}' || lpad(to_hex($1::bigint), 28, '0'))::uuid
    AND ('{mark}' || lpad(to_hex($2::bigint), 28, '0'))::uuid
"""
_COUNTED = (
    'INSERT INTO "{schema}".delta (queue, kind, pending, done, enqueued, completed) VALUES ($1, $2, $3, $4, $5, $4)'
)
PORTION = 250_000


async def build(place: Place, done: int, ready: int, *, kept: int = 7) -> None:
    """Finished jobs of yesterday, kept for some days, and a backlog that is due: as so many calls would leave them."""
    link = await asyncpg.connect(place.server)
    start = time.time_ns() // 1000 - DAY
    try:
        await link.execute("SET synchronous_commit = off")
        for mark, n in (("0180", done), ("0181", ready)):

            def text(statement: str, mark: str = mark) -> str:
                return statement.format(schema=place.part, mark=mark)

            for first in range(1, n + 1, PORTION):
                last = min(first + PORTION - 1, n)
                await link.execute(text(_BODIES), start, QUEUE, NOOP, PAYLOAD.decode(), first, last)
                if mark == "0180":
                    await link.execute(text(_DONE), kept * DAY, first, last)
                else:
                    await link.execute(text(_READY), first, last)
        await link.execute(_COUNTED.format(schema=place.part), QUEUE, NOOP, ready, done, done + ready)
        for table in ("job", "done", "ready"):
            await link.execute(f'VACUUM (ANALYZE) "{place.part}".{table}')
        await link.execute("CHECKPOINT")
    finally:
        await link.close()


async def _compare(big: Place, small: Place, rounds: int, jobs: int) -> list[Pair[Meter]]:
    engines = [place.engine() for place in (big, small)]
    for engine in engines:
        await engine.open()
    try:
        lives = [Lives(engine) for engine in engines]
        for one in lives:
            await one.run(jobs)
        pairs = []
        for number in range(rounds):
            order = lives if number % 2 else lives[::-1]
            meters = {one: await one.run(jobs) for one in order}
            pairs.append(Pair(meters[lives[0]], meters[lives[1]]))
        return pairs
    finally:
        for engine in engines:
            await engine.close()


def history(session: Session) -> Iterator[Row]:
    """Enqueue, claim and settle beside many finished jobs and a long backlog, against an empty store."""
    done, ready = session.sized(50_000, 5_000_000), session.sized(20_000, 1_000_000)
    ground = session.ground("postgres")
    big, small = ground.waiting(0), ground.waiting(0)
    asyncio.run(build(big, done, ready))
    pairs = asyncio.run(_compare(big, small, session.sized(8, 24), 1_000))
    ground.drop(big)
    ground.drop(small)
    note = f"{done:,} finished and {ready:,} due, against an empty store"
    yield pace_row("postgres.history", pairs, at_least(0.80), note)


# --- pruning ----------------------------------------------------------------------------------------------------


class Pruner:
    """A worker's janitor beside the work, for as long as it is entered."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tidying: asyncio.Task[Expired] | None = None

    async def __aenter__(self) -> None:
        self._tidying = asyncio.create_task(janitor.clean(self._engine, Retention()))
        await asyncio.sleep(0.05)

    async def __aexit__(self, *exc: object) -> None:
        assert self._tidying is not None
        if self._tidying.done():
            raise RuntimeError("everything was removed before the measurement was over: its store was too small")
        self._tidying.cancel()
        await asyncio.gather(self._tidying, return_exceptions=True)


async def _beside_pruning(place: Place, rounds: int, jobs: int) -> tuple[list[Pair[Meter]], int]:
    """Pairs of work with and without pruning, and how many jobs the pruner removed."""
    engine, other = place.engine(), place.engine()
    await engine.open()
    await other.open()
    try:
        lives, pruner, pairs = Lives(engine), Pruner(other), []
        await lives.run(jobs)
        before = await _finished(engine)
        for number in range(rounds):
            meters = {}
            for pruning in (True, False) if number % 2 else (False, True):
                async with pruner if pruning else nullcontext():
                    meters[pruning] = await lives.run(jobs)
            pairs.append(Pair(meters[True], meters[False]))
        return pairs, before + rounds * 2 * jobs - await _finished(engine)
    finally:
        await other.close()
        await engine.close()


async def _finished(engine: Engine) -> int:
    return (await engine.operator.census()).by_status()[Status.DONE]


def pruning(session: Session) -> Iterator[Row]:
    """Enqueue, claim and settle while a janitor removes finished jobs as fast as it may, against the same without."""
    done, rounds = session.sized(100_000, 400_000), session.sized(8, 24)
    ground = session.ground("postgres")
    place = ground.waiting(0)
    asyncio.run(build(place, done, 0, kept=0))
    pairs, removed = asyncio.run(_beside_pruning(place, rounds, 2_000))
    ground.drop(place)
    pruned = removed / sum(pair.value.wall for pair in pairs)
    yield pace_row("postgres.pruning", pairs, at_least(0.80), f"{pruned:,.0f} jobs/s were removed meanwhile")


BENCHMARKS = [
    Benchmark("postgres.wal", ("postgres",), log),
    Benchmark("postgres.snapshot", ("postgres",), snapshot),
    Benchmark("postgres.history", ("postgres",), history),
    Benchmark("postgres.pruning", ("postgres",), pruning),
]
