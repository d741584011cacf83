"""What a job costs a Redis server: time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

import msgspec
import redis.asyncio as redis

from benchmarks import doors
from benchmarks.app import QUEUE, make_app
from benchmarks.catalog import Benchmark
from benchmarks.grounds import Place, fill
from benchmarks.rows import Row, absolute, at_most
from benchmarks.session import Session
from benchmarks.stats import percentile
from stoker.model.job import Claim, Demand, Options
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.outcome import Lost
from stoker.model.time import HOUR
from stoker.registry import mint
from stoker.worker import Worker

T = TypeVar("T")

BATCH = 100
SLICE = 1_000
HELD = 16_000
"""Jobs of the worker that falls silent."""


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


async def _drained(place: Place, *, timeline: bool) -> None:
    async with make_app(place.engine(), timeline=timeline) as app:
        await Worker(app, drain=True).serve()


async def _keyed(place: Place, jobs: int) -> None:
    """Store jobs of which each has a limit key of its own."""
    engine = place.engine()
    async with make_app(engine):
        for start in range(0, jobs, SLICE):
            ids = [mint() for _ in range(SLICE)]
            limits = [Options(limit=Slot("bench", f"key {start + n}", 1, "running", None)) for n in range(SLICE)]
            await engine.jobs.insert(
                [
                    msgspec.structs.replace(one, options=more)
                    for one, more in zip(doors.drafts(ids), limits, strict=True)
                ]
            )


async def _memory(place: Place, jobs: int) -> dict[str, float]:
    """Bytes of a job that waits, of one that is done, of its events, and of a limit key with a job that waits."""

    async def used() -> int:
        return int((await _asked(place.server, "INFO", "memory"))["used_memory"])

    await fill(place, SLICE)
    await _drained(place, timeline=True)  # the first jobs bring scripts and counters along
    empty = await used()
    await fill(place, jobs)
    waiting = await used()
    await _drained(place, timeline=False)
    done = await used()
    for _ in range(0, jobs, SLICE):  # few at a time: a fast drain drops events
        await fill(place, SLICE)
        await _drained(place, timeline=True)
    told = await used()
    await _keyed(place, jobs)
    keyed = await used()
    found = {"job": waiting - empty, "done": done - empty, "events": told - done - (done - empty)}
    found["key"] = keyed - told - found["job"]
    return {name: size / jobs for name, size in found.items()}


def memory(session: Session) -> Iterator[Row]:
    """What a job of 110 bytes of payload takes while it waits and when it is done, and its events and limit key."""
    ground, jobs = session.ground("redis"), session.sized(20_000, 200_000)
    place = ground.place()
    sizes = asyncio.run(_memory(place, jobs))
    ground.drop(place)
    note = f"over {jobs:,} jobs"
    yield absolute("redis.memory", "B/queued job", sizes["job"], at_most(500.0), note)
    yield Row("redis.memory.done", "B/done job", sizes["done"], note=note)
    yield Row("redis.memory.events", "B/done job", sizes["events"], note=f"its events, {note}")
    yield Row("redis.memory.key", "B/limit key", sizes["key"], note=f"beside its job, {note}")


async def _scripts(place: Place, held: int, at_once: int) -> dict[str, list[float]]:
    """Call by call the longest script in ms, while a worker renews many claims and, silent then, is reaped of them."""
    engine = place.engine()
    await engine.open()
    times: dict[str, list[float]] = {"renew": [], "reap": [], "settle": []}

    async def timed(name: str, call: Awaitable[T]) -> T:
        await _asked(place.server, "SLOWLOG", "RESET")
        answer = await call
        entries = await _asked(place.server, "SLOWLOG", "GET", "128")
        took = [0.0, *(micros / 1_000 for _, _, micros, *_ in entries)]
        # A renewal is many scripts, all alike: of so many, one is always interrupted.
        times[name].append(percentile(took, 90) if name == "renew" else max(took))
        return answer

    reaped = 0
    try:
        await engine.jobs.renew("silent", [], lease=HOUR, first=True)
        await engine.jobs.renew("heir", [], lease=HOUR, first=True)
        claims: list[Claim] = []
        while len(claims) < held:
            await doors.fill(engine, [[mint() for _ in range(1_000)]])
            for _ in range(0, 1_000, at_once):
                claims += await engine.jobs.claim(Demand("silent", ((QUEUE, at_once),)))
        # Not lower: then the commands inside a script would be logged as well, which takes longer than they do.
        await _asked(place.server, "CONFIG", "SET", "slowlog-log-slower-than", "100")
        for _ in range(5):
            await timed("renew", engine.jobs.renew("silent", [(claim.id, claim.token) for claim in claims], lease=HOUR))
        while taken := await timed("reap", engine.jobs.reap("heir", 100, dead=["silent"])):
            reaped += len(taken)
            await timed("settle", engine.jobs.settle([conclude(claim, Lost()) for claim in taken]))
    finally:
        await _asked(place.server, "CONFIG", "SET", "slowlog-log-slower-than", "10000")
        await engine.close()
    assert reaped == held
    return times


def reap(session: Session) -> Iterator[Row]:
    """Taking over from a worker that held 16,000 jobs, by 100: the longest time one script blocks the server."""
    ground = session.ground("redis")
    for at_once in (1, 1_000):
        rounds = []
        for _ in range(session.sized(3, 5)):
            place = ground.place()
            rounds.append(asyncio.run(_scripts(place, HELD, at_once)))
            ground.drop(place)
        # Every round makes the same calls. Where the machine took the CPU away from the server, the clock went on: so
        # the shortest time counts that a call took in any round, and of these the longest.
        longest = {
            name: max(min(calls) for calls in zip(*(one[name] for one in rounds), strict=True))
            for name in ("renew", "reap", "settle")
        }
        told = ", ".join(f"{name} {ms:.2f} ms" for name, ms in longest.items())
        note = f"{HELD:,} jobs claimed by {at_once:,}; {len(rounds)} rounds; longest {told}"
        blocked = max(longest["reap"], longest["renew"])
        yield absolute(f"redis.reap.{at_once}", "ms longest script", blocked, at_most(5.0), note)


BENCHMARKS = [
    Benchmark("redis.reap", ("redis",), reap),
    Benchmark("redis.server", ("redis",), server),
    Benchmark("redis.memory", ("redis",), memory),
]
