"""What a group costs its members: settling grouped jobs, against jobs without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.app import QUEUE
from benchmarks.catalog import Benchmark
from benchmarks.doors import drafts
from benchmarks.grounds import NAMES, Name
from benchmarks.rows import Row, at_least
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import FEWEST_ROUNDS, Meter, cost_row, in_turns, pace_row
from stoker.engines.base import Engine
from stoker.engines.url import engine_from_url
from stoker.model.groups import into_group, new_group
from stoker.model.job import Demand
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.registry import mint

BATCH = 100
MEMBERS = 100
"""Jobs of one group: each batch ends the members of two groups, and closes one."""

BAR = at_least(0.8)


async def _settled(engine: Engine, jobs: int, *, grouped: bool) -> Meter:
    """Settle jobs in batches, which close their groups; only settlements count. There are no callbacks to store."""
    await engine.open()
    try:
        for _ in range(jobs // MEMBERS):
            group, members = mint(), drafts([mint() for _ in range(MEMBERS)])
            if grouped:
                await engine.jobs.insert(into_group(group, members), group=new_group(group, sealed=True))
            else:
                await engine.jobs.insert(members)
        await engine.jobs.renew("bench", [], first=True)
        await engine.jobs.claim(Demand("bench", ((QUEUE, BATCH // 2),)))
        meter = Meter()
        while claims := await engine.jobs.claim(Demand("bench", ((QUEUE, BATCH),))):
            settlements = [conclude(claim, Done()) for claim in claims]
            with meter:
                await engine.jobs.settle(settlements)
            meter.jobs += len(claims)
        await engine.jobs.renew("bench", [], lease=0)
    finally:
        await engine.close()
    return meter


def measured(session: Session, name: str, fresh: Callable[[], str], drop: Callable[[str], None]) -> Row:
    jobs = session.sized(2_000, 10_000)

    def run(*, grouped: bool) -> Meter:
        url = fresh()
        try:
            return asyncio.run(_settled(engine_from_url(url), jobs, grouped=grouped))
        finally:
            drop(url)

    pairs = in_turns(session.rounds, partial(run, grouped=True), partial(run, grouped=False))
    row = pace_row if name in NAMES else cost_row
    return row(f"flow.group.{name}", pairs, BAR, f"groups of {MEMBERS}, batches of {BATCH}")


def in_memory(session: Session) -> Iterator[Row]:
    yield measured(session, "memory", lambda: "memory://", lambda _: None)


def on_sqlite(session: Session) -> Iterator[Row]:
    with session.copies(empty(session), 2 * max(session.rounds, FEWEST_ROUNDS)) as paths:
        waiting = [f"sqlite:///{path}" for path in paths]
        yield measured(session, "sqlite", waiting.pop, lambda _: None)


def servers(session: Session, name: Name) -> tuple[Callable[[], str], Callable[[str], None]]:
    """How to make an empty store on a server, and how to drop it."""
    ground = session.ground(name)
    places = {}

    def fresh() -> str:
        place = ground.waiting(0)
        places[place.url] = place
        return place.url

    return fresh, lambda url: ground.drop(places.pop(url))


def on_server(session: Session, name: Name) -> Iterator[Row]:
    yield measured(session, name, *servers(session, name))


BENCHMARKS = [
    Benchmark("flow.group.memory", ("memory",), in_memory),
    Benchmark("flow.group.sqlite", ("sqlite",), on_sqlite),
    *(Benchmark(f"flow.group.{name}", (name,), partial(on_server, name=name)) for name in NAMES),
]
