"""What a job costs as everything around it grows: processes, queues, backlog, sleeping jobs, payloads.

The points of a row of sizes take turns, round by round, and each is compared with the smallest of its round. The clock
counts, because a part of the work is the server's. What one job costs a server is measured here as well: from it
`benchmarks.simulation` computes what more than one machine would do.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import doors, postgres_cost
from benchmarks.app import NOOP, PAYLOAD, QUEUE, make_app
from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.durable_cost import beside_suspended
from benchmarks.grounds import NAMES, Name, Place, open_bare
from benchmarks.group_cost import servers
from benchmarks.rows import Bar, Row, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import FEWEST_ROUNDS, Meter
from benchmarks.stores import build
from stoker.engines.base import Engine
from stoker.engines.url import engine_from_url
from stoker.model.job import Demand, Draft
from stoker.model.time import HOUR
from stoker.registry import mint
from stoker.worker import Worker

PROCESSES = (1, 2, 4)
QUEUES = (1, 10, 100, 1_000)
BACKLOGS = (1_000, 10_000, 100_000, 1_000_000, 5_000_000)
PAYLOADS = (100, 1_000, 10_000, 64_000)
SLEEPERS = 1_000_000
BATCH = 100
SLICE = 1_000
FLAT = at_most(1.2, "ratio")
"""A job costs at most a fifth more than beside the smallest size."""


def compared(name: str, rounds: Sequence[dict[int, float]], bars: Mapping[int, Bar], note: str = "") -> Iterator[Row]:
    """A row per size: its cost, beside that of the smallest size in the same rounds."""
    first = min(rounds[0])
    for size in sorted(rounds[0]):
        ratios = sorted(one[size] / one[first] for one in rounds)
        spread = f"{len(rounds)} rounds {ratios[0]:.2f}–{ratios[-1]:.2f}"
        value, limit = (median(one[at] for one in rounds) for at in (size, first))
        told = f"{spread}; {note}" if note else spread
        yield Row(f"{name}.{size}", "µs/job", value, limit, median(ratios), bars.get(size), note=told)


def in_order(sizes: Sequence[int], number: int) -> Sequence[int]:
    """Every other round the largest goes first."""
    return sizes if number % 2 else sizes[::-1]


# --- processes and queues: whole workers ------------------------------------------------------------------------


def drained_by(url: str, processes: int) -> Meter:
    """Let so many worker processes with default settings drain a store."""
    children = [Child("drainer", url=url, batch=None) for _ in range(processes)]
    try:
        for child in children:
            child.ready()
        for child in children:
            child.go()
        figures = [child.figures() for child in children]
    finally:
        for child in children:
            child.close()
    meter = Meter()
    meter.jobs = sum(one["done"] for one in figures)
    meter.wall = (max(one["ended"] for one in figures) - min(one["began"] for one in figures)) / 1e9
    meter.cpu = sum(one["cpu"] for one in figures)
    return meter


def processes(session: Session, name: str) -> Iterator[Row]:
    """Drain with default settings by 1, 2 and 4 processes."""
    fresh, drop = stores(session, name)
    jobs, rounds = session.sized(10_000, 40_000), []
    for number in range(FEWEST_ROUNDS):
        found = {}
        for count in in_order(PROCESSES, number):
            url = fresh()
            asyncio.run(filled(url, jobs))
            found[count] = drained_by(url, count).pace
            drop(url)
        rounds.append(found)
    yield from compared(f"scale.{name}.processes", rounds, {2: FLAT, 4: FLAT}, f"{os.cpu_count()} cores")


async def _drain_queues(url: str, queues: int, jobs: int) -> float:
    names = [QUEUE if n == 0 else f"q{n}" for n in range(queues)]
    async with opened(url) as engine:
        for start in range(0, jobs, SLICE):
            drafts = [Draft(mint(), NOOP, PAYLOAD, names[n % queues]) for n in range(start, start + SLICE)]
            await engine.jobs.insert(drafts)
    app, meter = make_app(engine_from_url(url)), Meter()
    async with app:
        worker = Worker(app, dict.fromkeys(names, 10), drain=True)
        await worker.start()
        with meter:
            await worker.join()
        await worker.stop()
    meter.jobs = jobs
    return meter.pace


def queues(session: Session, name: str) -> Iterator[Row]:
    """Drain jobs that are spread over queues, which one worker serves."""
    fresh, drop = stores(session, name)
    jobs, rounds = session.sized(20_000, 100_000), []
    for number in range(FEWEST_ROUNDS):
        found = {}
        for count in in_order(QUEUES, number):
            url = fresh()
            found[count] = asyncio.run(_drain_queues(url, count, jobs))
            drop(url)
        rounds.append(found)
    bars = dict.fromkeys(QUEUES[1:], FLAT)
    yield from compared(f"scale.{name}.queues", rounds, bars, "one worker, 10 slots for each queue")


# --- backlog and payload: calls of an engine --------------------------------------------------------------------


async def _behind(urls: dict[int, str], rounds: int, slices: int) -> list[dict[int, float]]:
    async with AsyncExitStack() as stack:
        drains = {}
        for size, url in urls.items():
            engine = engine_from_url(url)
            await engine.open()
            stack.push_async_callback(engine.close)
            drains[size] = doors.Drain(engine, BATCH)
            await drains[size].run(SLICE // 2)  # the first calls find nothing prepared
        found = []
        for number in range(rounds):
            paces: dict[int, list[float]] = {size: [] for size in drains}
            for _ in range(slices):
                for size in in_order(sorted(drains), number):
                    engine = drains[size].engine
                    await engine.jobs.insert(doors.drafts([mint() for _ in range(BATCH)]))  # as much as is taken
                    paces[size].append((await drains[size].run(BATCH)).pace)
            found.append({size: median(some) for size, some in paces.items()})
    return found


def backlog(session: Session, name: str) -> Iterator[Row]:
    """Settle jobs and claim the next ones before a backlog of 1,000 to 5,000,000 others."""
    sizes = [size for size in BACKLOGS if size <= session.sized(100_000, BACKLOGS[-1])]
    fresh, drop = stores(session, name)
    urls = {size: fresh() for size in sizes}
    for size, url in urls.items():
        piled_up(name, url, size)
    rounds = asyncio.run(_behind(urls, FEWEST_ROUNDS, session.sized(5, 10)))
    for url in urls.values():
        drop(url)
    bars = dict.fromkeys(sizes[1:], FLAT)
    yield from compared(f"scale.{name}.backlog", rounds, bars, f"{BATCH} jobs a call")


async def _carried(url: str, sizes: Sequence[int], rounds: int, repeats: int) -> list[dict[int, float]]:
    found = []
    async with opened(url) as engine:
        for number in range(rounds + 1):
            meters = {size: Meter() for size in sizes}
            for _ in range(repeats):
                for size in in_order(sizes, number):
                    payload = b'{"text":"%b"}' % (b"x" * (size - len(b'{"text":""}')))
                    drafts = [Draft(mint(), NOOP, payload, QUEUE) for _ in range(BATCH)]
                    with meters[size]:
                        await engine.jobs.insert(drafts)
                        claims = await engine.jobs.claim(Demand(doors.WORKER, ((QUEUE, BATCH),), BATCH))
                        await engine.jobs.settle(doors.successes(claims))
                    meters[size].jobs += len(claims)
            found.append({size: meter.pace for size, meter in meters.items()})
    return found[1:]  # the first round finds nothing prepared


def payload(session: Session, name: str) -> Iterator[Row]:
    """Enqueue, claim and settle jobs whose arguments have 100 to 64,000 bytes."""
    fresh, drop = stores(session, name)
    url = fresh()
    rounds = asyncio.run(_carried(url, PAYLOADS, FEWEST_ROUNDS, session.sized(3, 10)))
    drop(url)
    yield from compared(
        f"scale.{name}.payload", rounds, {PAYLOADS[1]: FLAT}, f"bytes of arguments, {BATCH} jobs a call"
    )


def sleepers(session: Session, name: str) -> Iterator[Row]:
    """Claim beside a million durable jobs that wait."""
    n = session.sized(10_000, SLEEPERS)
    found = beside_suspended(name, stores(session, name), n, FEWEST_ROUNDS)
    claims = found.claims[1:]
    ratios = sorted(pair.value / pair.limit for pair in claims)
    note = f"{n:,} wait; rounds {ratios[0]:.2f}–{ratios[-1]:.2f}; storing each took {found.stored * 1e6:.0f} µs"
    value, limit = (median(pair[side] for pair in claims) for side in (0, 1))
    yield Row(f"scale.{name}.sleepers.{n}", "ms/claim", value, limit, median(ratios), FLAT, note=note)
    yield Row(
        f"scale.{name}.census.{n}",
        "ms",
        median(found.censuses[1:]),
        note=f"a count of all jobs beside {n:,} that wait",
    )


# --- what a job costs a server ----------------------------------------------------------------------------------


class Spent(NamedTuple):
    """CPU seconds of a server, and on Postgres bytes of log, commits and transaction ids."""

    cpu: float
    log: int = 0
    commits: int = 0
    xids: int = 0


async def _spent(name: Name, url: str, pid: int) -> Spent:
    if name == "redis":
        return Spent(_cpu_of(pid))
    import asyncpg

    link = await asyncpg.connect(url)
    try:
        log, commits = await postgres_cost.written(link)
        xids = int(await link.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))
    finally:
        await link.close()
    return Spent(_cpu_of(pid), log, commits, xids)


def _cpu_of(pid: int) -> float:
    """CPU seconds of a process, its living children, and those that have ended."""
    ticks = 0.0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(entry.name) == pid:
                ticks += sum(map(int, words[11:15]))
            elif int(words[1]) == pid:
                ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _sync(path: Path) -> float:
    """Milliseconds that the disk takes for a commit's worth of log."""
    took = []
    with path.open("wb") as file:
        for _ in range(200):
            file.write(bytes(8_192))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1e3)
    return median(took)


def server(session: Session, name: Name) -> Iterator[Row]:
    """What a job costs the server, and the worker beside it, with default settings."""
    ground, jobs = session.ground(name), session.sized(20_000, 60_000)
    pid = ground.server.pid
    enqueued: list[float] = []
    drained: list[float] = []
    own: list[float] = []
    logs, commits, xids = [], [], []
    for _ in range(FEWEST_ROUNDS):
        place = ground.waiting(0)
        before = asyncio.run(_spent(name, place.server, pid))
        asyncio.run(filled(place.url, jobs))
        between = asyncio.run(_spent(name, place.server, pid))
        meter = drained_by(place.url, 1)
        after = asyncio.run(_spent(name, place.server, pid))
        ground.drop(place)
        enqueued.append((between.cpu - before.cpu) / jobs * 1e6)
        drained.append((after.cpu - between.cpu) / jobs * 1e6)
        own.append(meter.cost)
        logs.append((after.log - before.log) / jobs)
        commits.append((after.commits - before.commits) / jobs)
        xids.append((after.xids - before.xids) / jobs)
    note = f"{jobs:,} jobs, enqueued by {SLICE:,}"
    yield Row(f"scale.{name}.server.enqueue", "µs CPU/job", median(enqueued), note=note)
    yield Row(f"scale.{name}.server.drain", "µs CPU/job", median(drained), note="one worker with default settings")
    yield Row(f"scale.{name}.worker.drain", "µs CPU/job", median(own), note="of the worker process")
    if name == "postgres":
        yield Row("scale.postgres.server.log", "B/job", median(logs), note="write-ahead log, from enqueue to done")
        yield Row("scale.postgres.server.commits", "commits/job", median(commits))
        yield Row("scale.postgres.server.xids", "transaction ids/job", median(xids))
        yield Row("scale.postgres.server.sync", "ms", _sync(session.fresh()), note="a write of 8 KiB and its fdatasync")


# --- stores -----------------------------------------------------------------------------------------------------


def stores(session: Session, name: str) -> tuple[Callable[[], str], Callable[[str], None]]:
    """How to make an empty store, and how to drop it."""
    if name in NAMES:
        return servers(session, name)

    def fresh() -> str:
        path = session.fresh()
        shutil.copyfile(empty(session), path)
        return f"sqlite:///{path}"

    return fresh, lambda url: session.discard(_path(url))


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    """An engine with a worker that never falls silent."""
    engine = engine_from_url(url)
    await engine.open()
    try:
        await engine.jobs.renew(doors.WORKER, [], first=True, lease=HOUR)
        yield engine
    finally:
        await engine.jobs.renew(doors.WORKER, [], lease=0)
        await engine.close()


async def filled(url: str, jobs: int) -> None:
    """Store no-op jobs, 1,000 a call."""
    engine = engine_from_url(url)
    await engine.open()
    try:
        for start in range(0, jobs, SLICE):
            await engine.jobs.insert(doors.drafts([mint() for _ in range(min(SLICE, jobs - start))]))
    finally:
        await engine.close()


def piled_up(name: str, url: str, jobs: int) -> None:
    """Store a backlog in the quickest way that there is."""
    if name == "sqlite":
        build(_path(url), ready=jobs)
    elif name == "postgres":
        address, _, part = url.partition("?schema=")
        asyncio.run(postgres_cost.build(Place(address, part, url, open_bare("postgres")), 0, jobs))
    else:
        asyncio.run(filled(url, jobs))


ENGINES = ("sqlite", *NAMES)
BENCHMARKS = [
    *(
        Benchmark(f"scale.{name}.{measure.__name__}", (name,), partial(measure, name=name))
        for name in ENGINES
        for measure in (processes, queues, payload, backlog, sleepers)
    ),
    *(Benchmark(f"scale.{name}.server", (name,), partial(server, name=name)) for name in NAMES),
]
