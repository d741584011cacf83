"""What a job costs a Redis server: time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import redis.asyncio as redis

from benchmarks import doors
from benchmarks.catalog import Benchmark
from benchmarks.grounds import Place, fill
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from stoker.registry import mint

BATCH = 100


async def _asked(url: str, *command: str) -> Any:
    client: Any = redis.Redis.from_url(url)
    try:
        return await client.execute_command(*command)
    finally:
        await client.aclose()


async def _server_time(place: Place, jobs: int) -> tuple[float, float]:
    """Microseconds of server time per job from enqueue to done: in scripts, and of the main thread's CPU."""
    engine = place.engine()
    await engine.open()
    try:
        await doors.fill(engine, [[mint() for _ in range(BATCH)] for _ in range(5)])
        await doors.Drain(engine, BATCH).run()
        await _asked(place.server, "CONFIG", "RESETSTAT")
        before = await _asked(place.server, "INFO", "cpu")
        await doors.fill(engine, [[mint() for _ in range(BATCH)] for _ in range(jobs // BATCH)])
        meter = await doors.Drain(engine, BATCH).run()
        after = await _asked(place.server, "INFO", "cpu")
        stats = await _asked(place.server, "INFO", "commandstats")
    finally:
        await engine.close()
    # What scripts call is listed by itself as well, and is theirs already.
    scripts = sum(one["usec"] for name, one in stats.items() if name.lower() in ("cmdstat_evalsha", "cmdstat_eval"))
    main = sum(
        after[f"used_cpu_{kind}_main_thread"] - before[f"used_cpu_{kind}_main_thread"] for kind in ("user", "sys")
    )
    return scripts / meter.jobs, main * 1e6 / meter.jobs


def server(session: Session) -> Iterator[Row]:
    """Enqueue, claim and settle by 100: the server's time in the scripts."""
    ground = session.ground("redis")
    rounds = []
    for _ in range(session.sized(6, 12)):
        place = ground.place()
        rounds.append(asyncio.run(_server_time(place, session.sized(10_000, 30_000))))
        ground.drop(place)
    scripts, main = min(rounds)
    note = f"best of {len(rounds)} rounds; CPU of the server's main thread {main:.1f} µs/job, sockets and log included"
    yield absolute("redis.server", "µs server/job", scripts, at_most(12.0), note)


async def _memory(place: Place, jobs: int) -> float:
    await fill(place, 1_000)
    before = (await _asked(place.server, "INFO", "memory"))["used_memory"]
    await fill(place, jobs)
    after = (await _asked(place.server, "INFO", "memory"))["used_memory"]
    return float(after - before) / jobs


def memory(session: Session) -> Iterator[Row]:
    """What a queued job of 110 bytes of payload takes."""
    ground, jobs = session.ground("redis"), session.sized(20_000, 200_000)
    place = ground.place()
    size = asyncio.run(_memory(place, jobs))
    ground.drop(place)
    yield absolute("redis.memory", "B/queued job", size, at_most(500.0), f"over {jobs:,} jobs")


BENCHMARKS = [
    Benchmark("redis.server", ("redis",), server),
    Benchmark("redis.memory", ("redis",), memory),
]
