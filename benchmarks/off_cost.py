"""What rates, schedules and groups cost a queue that uses none of them: they stand beside it, or nothing does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.app import QUEUE
from benchmarks.catalog import Benchmark
from benchmarks.doors import drafts
from benchmarks.grounds import NAMES, Name
from benchmarks.group_cost import BATCH, MEMBERS, servers
from benchmarks.rows import Row, at_least
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import FEWEST_ROUNDS, Meter, cost_row, in_turns, pace_row
from stoker.engines.base import Engine
from stoker.engines.url import engine_from_url
from stoker.model.control import Tuning
from stoker.model.groups import into_group, new_group
from stoker.model.job import Demand, Draft
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.schedule import NO_ID, Schedule
from stoker.model.throttle import Rate
from stoker.registry import mint

SCHEDULES = 100
GROUPS = 10

BAR = at_least(0.9)


async def _furnish(engine: Engine) -> None:
    """Put other queues with settings, schedules that are never due, and open groups beside the plain queue."""
    await engine.control.tune("rated", Tuning(rate=Rate(1, per=3600)))
    await engine.control.tune("shared", Tuning(workers=10))
    for n in range(SCHEDULES):
        await engine.schedules.put(
            Schedule(name=f"s{n}", expression="0 0 1 1 *", template=Draft(NO_ID, "work", queue="other"))
        )
    for _ in range(GROUPS):
        group = mint()
        members = [Draft(mint(), "work", queue="other") for _ in range(MEMBERS)]
        await engine.jobs.insert(into_group(group, members), group=new_group(group, sealed=True))


async def lived(engine: Engine, jobs: int, *, beside: bool = False, result: bytes | None = None) -> Meter:
    """Insert, claim and settle plain jobs in batches; all three count."""
    await engine.open()
    try:
        if beside:
            await _furnish(engine)
        await engine.jobs.renew("bench", [], first=True)
        meter = Meter()
        for _ in range(jobs // BATCH):
            made = drafts([mint() for _ in range(BATCH)])
            with meter:
                await engine.jobs.insert(made)
                claims = await engine.jobs.claim(Demand("bench", ((QUEUE, BATCH),)))
                await engine.jobs.settle([conclude(claim, Done(result)) for claim in claims])
            meter.jobs += len(claims)
        await engine.jobs.renew("bench", [], lease=0)
    finally:
        await engine.close()
    return meter


def measured(session: Session, name: str, fresh: Callable[[], str], drop: Callable[[str], None]) -> Row:
    jobs = session.sized(3_000, 20_000)

    def run(*, beside: bool) -> Meter:
        url = fresh()
        try:
            return asyncio.run(lived(engine_from_url(url), jobs, beside=beside))
        finally:
            drop(url)

    pairs = in_turns(session.rounds, partial(run, beside=True), partial(run, beside=False))
    row = pace_row if name in NAMES else cost_row
    note = f"{SCHEDULES} schedules, {GROUPS} groups and a rate beside it, batches of {BATCH}"
    return row(f"flow.off.{name}", pairs, BAR, note)


def in_memory(session: Session) -> Iterator[Row]:
    yield measured(session, "memory", lambda: "memory://", lambda _: None)


def on_sqlite(session: Session) -> Iterator[Row]:
    with session.copies(empty(session), 2 * max(session.rounds, FEWEST_ROUNDS)) as paths:
        waiting = [f"sqlite:///{path}" for path in paths]
        yield measured(session, "sqlite", waiting.pop, lambda _: None)


def on_server(session: Session, name: Name) -> Iterator[Row]:
    yield measured(session, name, *servers(session, name))


BENCHMARKS = [
    Benchmark("flow.off.memory", ("memory",), in_memory),
    Benchmark("flow.off.sqlite", ("sqlite",), on_sqlite),
    *(Benchmark(f"flow.off.{name}", (name,), partial(on_server, name=name)) for name in NAMES),
]
