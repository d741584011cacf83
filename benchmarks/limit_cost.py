"""What limits by key and fair queues cost: a drain of keys or tenants, against a plain one; and what blocked jobs cost.

Every row drains jobs in batches as a busy worker does, which settles a batch and takes the next in one call. What
stands in the store beforehand is stored outside the measured stretches, except in `flow.keys`, a job's whole life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import TypeAlias

import msgspec

from benchmarks.app import QUEUE
from benchmarks.catalog import Benchmark
from benchmarks.children import Child
from benchmarks.doors import WORKER, drafts, successes
from benchmarks.grounds import NAMES, Name
from benchmarks.group_cost import servers
from benchmarks.rows import Bar, Row, at_least
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import FEWEST_ROUNDS, Meter, cost_row, in_turns, pace_row
from stoker.engines.base import Engine
from stoker.engines.url import engine_from_url
from stoker.model.control import Tuning
from stoker.model.job import Claim, Demand, Draft, Options
from stoker.model.limit import Slot
from stoker.model.time import HOUR
from stoker.registry import mint

BATCH = 100
CALL = 1_000
"""Jobs that one call stores."""

Fill: TypeAlias = Callable[[Engine], Awaitable[None]]
"""Brings a store into the state that is measured."""


def jobs_of(n: int, key: Callable[[int], str | None] | None = None, **changes: object) -> Iterator[list[Draft]]:
    """So many no-op jobs in calls; with `key` under a limit of one for each key."""
    for start in range(0, n, CALL):
        found = drafts([mint() for _ in range(min(CALL, n - start))])
        for place, draft in enumerate(found, start):
            more = dict(changes)
            if key is not None:
                more["options"] = Options(limit=Slot("bench", key(place), 1, "running", None))
            found[place - start] = msgspec.structs.replace(draft, **more) if more else draft
        yield found


async def store(engine: Engine, calls: Iterable[list[Draft]]) -> None:
    for call in calls:
        await engine.jobs.insert(call)


async def drain(engine: Engine, jobs: int) -> Meter:
    """Settle and take until so many jobs are done; only the calls count."""
    await engine.jobs.renew(WORKER, [], lease=HOUR, first=True)
    demand, meter = Demand(WORKER, ((QUEUE, BATCH),), BATCH), Meter()
    claims: list[Claim] = []
    while meter.jobs < jobs:
        settlements = successes(claims)
        with meter:
            claims = (await engine.jobs.settle(settlements, demand=demand)).claims
        meter.jobs += len(settlements)
        if not claims and not settlements:
            raise RuntimeError(f"only {meter.jobs} of {jobs} jobs could be claimed")
    await engine.jobs.settle(successes(claims))
    return meter


# --- what stands in the store -----------------------------------------------------------------------------------


def plain(n: int) -> Fill:
    return lambda engine: store(engine, jobs_of(n))


def tenants(n: int, tenants_: int, behind: int = 0) -> Fill:
    """A fair queue: jobs of as many tenants in turn, and one tenant with many more."""

    async def fill(engine: Engine) -> None:
        await engine.control.tune(QUEUE, Tuning(fair=True))
        for tenant in range(tenants_):
            await store(engine, jobs_of(-(-n // tenants_), tenant=f"tenant {tenant}"))
        await store(engine, jobs_of(behind, tenant="tenant 0"))

    return fill


def blocked(n: int, behind: int, priority: int) -> Fill:
    """Jobs of a hundred keys, and many of one that is full, before or behind them."""

    async def fill(engine: Engine) -> None:
        await engine.jobs.renew("other", [], lease=HOUR, first=True)
        await store(engine, jobs_of(1, lambda _: "full"))
        assert len(await engine.jobs.claim(Demand("other", ((QUEUE, 1),)))) == 1
        await store(engine, jobs_of(behind, lambda _: "full", priority=priority))
        await store(engine, _hundred_keys(n + BATCH))
        await engine.jobs.claim(Demand("other", ((QUEUE, 1),)))  # looks at what is new

    return fill


def full_keys(n: int, keys: int) -> Fill:
    """Jobs of a hundred keys, and as many keys that are full, each with a job that waits."""

    async def fill(engine: Engine) -> None:
        await engine.jobs.renew("other", [], lease=HOUR, first=True)
        for _ in range(2):
            await store(engine, jobs_of(keys, lambda place: f"full {place}", priority=-1))
            while await engine.jobs.claim(Demand("other", ((QUEUE, CALL),))):
                pass
        await store(engine, _hundred_keys(n + BATCH))
        await engine.jobs.claim(Demand("other", ((QUEUE, 1),)))  # looks at what is new

    return fill


def _hundred_keys(n: int) -> Iterator[list[Draft]]:
    for call in jobs_of(n):
        yield [
            msgspec.structs.replace(
                draft, options=Options(limit=Slot("bench", f"open {place % 100}", 100, "running", None))
            )
            for place, draft in enumerate(call)
        ]


# --- how it is measured -----------------------------------------------------------------------------------------


async def _drained(url: str, fill: Fill, jobs: int) -> Meter:
    async with _opened(url) as engine:
        await fill(engine)
        return await drain(engine, jobs)


async def _lived(url: str, jobs: int, *, keyed: bool) -> Meter:
    """Store all jobs, then drain them; both count."""
    async with _opened(url) as engine:
        meter = Meter()
        for call in jobs_of(jobs, (lambda place: f"key {place}") if keyed else None):
            with meter:
                await engine.jobs.insert(call)
        drained = await drain(engine, jobs)
        meter.wall += drained.wall
        meter.cpu += drained.cpu
        meter.jobs = jobs
        return meter


async def _by_four(url: str, fill: Fill, jobs: int) -> Meter:
    """Four processes drain together; the time from the first one's beginning to the last one's end counts."""
    async with _opened(url) as engine:
        await fill(engine)
    with ExitStack() as stack:
        crew = [stack.enter_context(closing(Child("taker", url=url, name=f"w{n}", batch=BATCH))) for n in range(4)]
        for one in crew:
            one.ready()
        for one in crew:
            one.go()
        figures = [one.figures() for one in crew]
    meter = Meter()
    meter.jobs, meter.cpu = (sum(one[what] for one in figures) for what in ("done", "cpu"))
    if meter.jobs != jobs:
        raise RuntimeError(f"{meter.jobs} of {jobs} jobs were done")
    meter.wall = (max(one["ended"] for one in figures) - min(one["began"] for one in figures)) / 1e9
    return meter


class _opened:  # noqa: N801 - read as a verb
    def __init__(self, url: str) -> None:
        self._engine = engine_from_url(url)

    async def __aenter__(self) -> Engine:
        await self._engine.open()
        return self._engine

    async def __aexit__(self, *exc: object) -> None:
        await self._engine.close()


Measure: TypeAlias = Callable[[str], Awaitable[Meter]]


def shapes(session: Session, *, redis: bool) -> dict[str, tuple[Measure, Measure, Bar, str]]:
    """What is measured against what, by the name of the row."""
    n, crew = session.sized(3_000, 10_000), session.sized(10_000, 30_000)
    many, keys = session.sized(30_000, 1_000_000), session.sized(3_000, 100_000)
    two, thousand = tenants(n, 2, behind=many), tenants(n, 1_000)
    return {
        "blocked": (
            partial(_drained, fill=blocked(n, many, -1), jobs=n),
            partial(_drained, fill=blocked(n, many, 1), jobs=n),
            at_least(0.75 if redis else 0.8),
            f"behind {many} jobs of a full key, against the same standing last",
        ),
        "wide": (
            partial(_drained, fill=full_keys(n, keys), jobs=n),
            partial(_drained, fill=full_keys(n, 0), jobs=n),
            at_least(0.8),
            f"beside {keys} full keys, against none",
        ),
        "fair2": (
            partial(_drained, fill=two, jobs=n),
            partial(_drained, fill=plain(n + many), jobs=n),
            at_least(0.5 if redis else 0.65),
            f"two tenants with {n + many} jobs, against a plain queue",
        ),
        "fair1000": (
            partial(_drained, fill=thousand, jobs=n),
            partial(_drained, fill=plain(n), jobs=n),
            at_least(0.25),
            "a thousand tenants, against a plain queue",
        ),
        "keys": (
            partial(_lived, jobs=n, keyed=True),
            partial(_lived, jobs=n, keyed=False),
            at_least(0.2),
            "one job per key, stored, claimed and settled, against jobs without a limit",
        ),
        "crew": (
            partial(_by_four, fill=lambda engine: store(engine, _hundred_keys(crew)), jobs=crew),
            partial(_by_four, fill=plain(crew), jobs=crew),
            at_least(0.5),
            "four worker processes on a queue of a hundred keys, against a plain queue",
        ),
    }


def measured(
    session: Session, shape: str, name: str, fresh: Callable[[], str], drop: Callable[[str], None]
) -> Iterator[Row]:
    value, limit, bar, note = shapes(session, redis=name == "redis")[shape]

    def run(measure: Measure) -> Meter:
        url = fresh()
        try:
            return asyncio.run(measure(url))  # type: ignore[arg-type]
        finally:
            drop(url)

    pairs = in_turns(session.rounds, partial(run, value), partial(run, limit))
    row = pace_row if name in NAMES or shape == "crew" else cost_row
    yield row(f"flow.{shape}.{name}", pairs, bar, note)


def in_memory(session: Session, shape: str) -> Iterator[Row]:
    return measured(session, shape, "memory", lambda: "memory://", lambda _: None)


def on_sqlite(session: Session, shape: str) -> Iterator[Row]:
    with session.copies(empty(session), 2 * max(session.rounds, FEWEST_ROUNDS)) as paths:
        waiting = [f"sqlite:///{path}" for path in paths]
        yield from measured(session, shape, "sqlite", waiting.pop, lambda _: None)


def on_server(session: Session, shape: str, name: Name) -> Iterator[Row]:
    return measured(session, shape, name, *servers(session, name))


SHAPES = ("blocked", "wide", "fair2", "fair1000", "keys", "crew")
BENCHMARKS = [
    *(Benchmark(f"flow.{shape}.memory", ("memory",), partial(in_memory, shape=shape)) for shape in SHAPES[:-1]),
    *(Benchmark(f"flow.{shape}.sqlite", ("sqlite",), partial(on_sqlite, shape=shape)) for shape in SHAPES),
    *(
        Benchmark(f"flow.{shape}.{name}", (name,), partial(on_server, shape=shape, name=name))
        for name in NAMES
        for shape in SHAPES
    ),
]
