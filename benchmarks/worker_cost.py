"""What a job costs in the worker: with a store that costs nothing, in memory, and on SQLite beside the bare loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from statistics import median

from benchmarks import doors
from benchmarks.app import make_app
from benchmarks.catalog import Benchmark
from benchmarks.rows import Row, absolute, at_least, at_most
from benchmarks.session import Session
from benchmarks.sqlite_cost import BATCHES, WORDS, Durability, drain_bare, waiting
from benchmarks.stats import Meter, cost_row, in_turns, pace_row
from benchmarks.watched import Nothing
from stoker.app import Stoker
from stoker.engines.base import Timeline
from stoker.engines.memory import MemoryEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.event_buffer import EventBuffer
from stoker.model.job import Status
from stoker.registry import mint
from stoker.settings import TimelineSettings
from stoker.worker import Worker


class Timed(Worker):
    """A worker that is measured from its start until nothing is due any more; starting and parting are once a day."""

    meter: Meter

    def ask_stop(self) -> None:
        self.meter.__exit__()
        self.meter.jobs = self.counts[Status.DONE]
        super().ask_stop()


TUNED = 500
"""The batch that a worker with default settings is compared with."""


class CountedEvents(EventBuffer):
    """Events whose writes are measured also after the drain, which is over before a worker writes its first ones."""

    meter: Meter | None = None

    async def flush(self, store: Timeline) -> int:
        if self.meter is None or self.meter.running:
            return await super().flush(store)
        with self.meter:
            return await super().flush(store)


async def run_dry(app: Stoker, batch: int | None = None, *, measured: bool = False) -> Meter:
    """Let a worker drain a store; without a batch with default settings. Writing events counts, with metrics."""
    events = CountedEvents(chunk=TimelineSettings().event_chunk)
    if measured and app.timeline is not None:
        app.timeline = events
    async with app:
        worker = Timed(app, drain=True, claim_batch=batch, settle_batch=batch)
        if measured:
            worker.measure()
        await worker.start()
        with Meter() as worker.meter:
            events.meter = worker.meter
            await worker.join()
    return worker.meter


def own(session: Session, batch: int, *, dressed: bool) -> Iterator[Row]:
    """Everything but the store. `dressed`: with a timeout, a middleware and a listener."""
    costs = [
        asyncio.run(run_dry(make_app(Nothing(10_000), dressed=dressed), batch)).cost
        for _ in range(session.sized(7, 25))
    ]
    name = f"worker.{'dressed' if dressed else 'plain'}.{batch}"
    # There is no limit to compare with, and neighbours can only add to a cost: the best round is nearest to the truth.
    note = f"best of {len(costs)} rounds, median {median(costs):.1f}"
    yield absolute(name, "µs CPU/job", min(costs), at_most(12.0 if dressed else 8.0), note)


def in_memory(session: Session, batch: int) -> Iterator[Row]:
    """A whole worker on the memory engine, against the same drain without a worker."""
    jobs = session.sized(5_000, 30_000)
    pairs = in_turns(
        session.rounds,
        lambda: asyncio.run(_whole_in_memory(jobs, batch)),
        lambda: asyncio.run(_drain_in_memory(jobs, batch)),
    )
    yield cost_row(f"worker.memory.{batch}", pairs, None, "against the engine's doors alone")


async def _filled(jobs: int) -> MemoryEngine:
    engine = MemoryEngine()
    await engine.open()
    await doors.fill(engine, [[mint() for _ in range(500)] for _ in range(jobs // 500)])
    return engine


async def _whole_in_memory(jobs: int, batch: int) -> Meter:
    return await run_dry(make_app(await _filled(jobs)), batch)


async def _drain_in_memory(jobs: int, batch: int) -> Meter:
    return await doors.Drain(await _filled(jobs), batch).run()


def on_sqlite(session: Session, durability: Durability, batch: int, *, timeline: bool = False) -> Iterator[Row]:
    """A whole worker, from claim to settlement, against the bare loop of claim and settle."""
    original = waiting(session, session.sized(8_000, 25_000))

    def whole() -> Meter:
        with session.copies(original) as [path]:
            return asyncio.run(run_dry(make_app(SqliteEngine(path, durability=durability), timeline=timeline), batch))

    pairs = in_turns(session.rounds, whole, lambda: drain_bare(session, original, durability, batch))
    bar = at_least(0.45 if batch < 500 else 0.50)
    name = f"worker.sqlite.{WORDS[durability]}.{batch}"
    if timeline:
        yield cost_row(f"{name}.timeline", pairs, None, "with an event per claim and per outcome")
    else:
        yield cost_row(name, pairs, bar)


def observed(session: Session) -> Iterator[Row]:
    """A worker with timeline and process metrics, against the same worker with neither."""
    original = waiting(session, session.sized(8_000, 25_000))

    def whole(*, on: bool) -> Meter:
        with session.copies(original) as [path]:
            return asyncio.run(run_dry(make_app(SqliteEngine(path), timeline=on), 500, measured=on))

    pairs = in_turns(session.rounds, lambda: whole(on=True), lambda: whole(on=False))
    yield cost_row("worker.sqlite.full.500.observed", pairs, at_least(0.90), "timeline and metrics on against off")


def defaults(session: Session) -> Iterator[Row]:
    """A worker with default settings against one whose batches are set to what suits jobs that do nothing."""
    original = waiting(session, session.sized(20_000, 40_000))

    def whole(batch: int | None) -> Meter:
        with session.copies(original) as [path]:
            return asyncio.run(run_dry(make_app(SqliteEngine(path)), batch))

    pairs = in_turns(session.rounds, lambda: whole(None), lambda: whole(TUNED))
    yield pace_row("sqlite.worker.defaults", pairs, at_least(0.90))


BENCHMARKS = [
    Benchmark("sqlite.worker.defaults", ("worker", "sqlite"), defaults),
    *(
        Benchmark(
            f"worker.{'dressed' if dressed else 'plain'}.{batch}",
            ("worker",),
            partial(own, batch=batch, dressed=dressed),
        )
        for dressed in (False, True)
        for batch in BATCHES
    ),
    *(Benchmark(f"worker.memory.{batch}", ("worker", "memory"), partial(in_memory, batch=batch)) for batch in BATCHES),
    *(
        Benchmark(
            f"worker.sqlite.{WORDS[durability]}.{batch}",
            ("worker",),
            partial(on_sqlite, durability=durability, batch=batch),
        )
        for durability in WORDS
        for batch in BATCHES
    ),
    Benchmark("worker.sqlite.full.500.observed", ("worker",), observed),
    Benchmark(
        "worker.sqlite.full.100.timeline",
        ("worker",),
        partial(on_sqlite, durability="power", batch=100, timeline=True),
    ),
]
