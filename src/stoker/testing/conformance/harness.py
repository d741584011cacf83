"""What every case uses: a fresh store, a clock that only the test moves, and a few helpers.

A case asks for `store`. It is one opened engine plus shorthands that keep the cases short enough to be read as the
contract they are. `make_engine` is the one fixture an engine has to provide; all engines it makes inside one test
share one fresh store. It also provides `miscount`, a `Miscount`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import pytest

from stoker.engines.base import LEASE, Clock, Engine, Feature
from stoker.engines.shared import job_end_waiters
from stoker.model.control import Queue
from stoker.model.ids import JobId, Mint
from stoker.model.job import Claim, Demand, Draft, Job, Settlement, Status, Verdict
from stoker.model.lifecycle import PLAIN_RULES, Rules, conclude
from stoker.model.outcome import Outcome
from stoker.model.query import Totals
from stoker.model.time import Instant, Span
from stoker.model.unique import Scope
from stoker.testing.clock import VirtualClock

MakeEngine: TypeAlias = Callable[[Clock | None], Engine]
"""Makes an engine that is not opened yet; None means the store's own clock."""

Miscount: TypeAlias = Callable[[Engine, str, str, int], Awaitable[None]]
"""Makes a number wrong behind the back of an opened engine: queue, subqueue, how many of its jobs run."""

T = TypeVar("T")
Work: TypeAlias = Callable[[Engine], Awaitable[T]]

START: Instant = 1_800_000_000_000_000
QUEUE = "default"
ARRIVES = 30.0
"""Real seconds within which a wake-up that was sent has to arrive; never waited in full unless it is lost."""


class Store:
    """An opened engine and the helpers of the suite."""

    def __init__(self, engine: Engine, clock: VirtualClock, make_engine: MakeEngine) -> None:
        self.engine = engine
        self.clock = clock
        self.make_engine = make_engine
        self._entropy = itertools.count(1)
        self.mint = Mint(clock, lambda n: next(self._entropy).to_bytes(n))

    # --- time ---------------------------------------------------------------------------------------------------

    def now(self) -> Instant:
        """The one clock of the test, which is also the store's."""
        return self.clock()

    def pass_time(self, span: Span) -> None:
        """Let microseconds pass."""
        self.clock.set(self.clock() + span)

    @property
    def scope(self) -> Scope:
        """The widest scope of a unique key that the engine has."""
        return "global" if Feature.KEYS_ACROSS_QUEUES in self.engine.features else "kind"

    # --- calls --------------------------------------------------------------------------------------------------

    def draft(self, kind: str = "work", **options: Any) -> Draft:
        """A draft with a fresh id."""
        return Draft(job_id=options.pop("job_id", None) or self.mint(), kind=kind, **options)

    async def insert(self, *drafts: Draft) -> list[JobId]:
        """Insert drafts; return the ids of the receipts."""
        return [receipt.id for receipt in await self.engine.jobs.insert(drafts)]

    async def add(self, kind: str = "work", **options: Any) -> JobId:
        """Insert one new draft."""
        return (await self.insert(self.draft(kind, **options)))[0]

    async def quiet(self, *topics: str) -> None:
        """Use up every wake-up that is remembered or on its way.

        Wake-ups arrive in their order and are remembered once. So when the last one is there, all are, and one wait
        takes what is remembered of its topic.
        """
        for topic in topics:
            await self.engine.jobs.wait([topic], 0)  # control wake-ups are remembered from the first wait on
            await self.engine.jobs.wake([topic])
            await self.engine.jobs.wake(["last"])
            await self.engine.jobs.wait(["last"], ARRIVES)
            await self.engine.jobs.wait([topic], ARRIVES)

    async def enlist(self, worker: str, lease: Span = LEASE) -> str:
        """Give a worker its first lease."""
        assert (await self.engine.jobs.renew(worker, [], lease=lease, first=True)).known
        return worker

    async def claim(self, worker: str = "w1", n: int = 1, queue: str = QUEUE) -> list[Claim]:
        """Claim for a worker, enlisting or renewing it first."""
        if not (await self.engine.jobs.renew(worker, [])).known:
            await self.enlist(worker)
        return await self.engine.jobs.claim(Demand(worker, ((queue, n),)))

    async def take(self, worker: str = "w1", queue: str = QUEUE) -> Claim:
        """Claim exactly one job."""
        [claim] = await self.claim(worker, 1, queue)
        return claim

    async def settle(self, *settlements: Settlement) -> list[Verdict]:
        """Settle; return the verdicts."""
        return (await self.engine.jobs.settle(settlements)).verdicts

    async def finish(self, claim: Claim, outcome: Outcome, rules: Rules = PLAIN_RULES) -> Verdict:
        """Conclude a claim by the rule book and settle it."""
        [verdict] = await self.settle(conclude(claim, outcome, rules))
        return verdict

    # --- looking ------------------------------------------------------------------------------------------------

    async def job(self, job: JobId) -> Job:
        """The record; fails when there is none."""
        [found] = await self.engine.operator.get([job])
        assert found is not None
        return found

    async def gone(self, job: JobId) -> bool:
        """Is there no record any more?"""
        return (await self.engine.operator.get([job])) == [None]

    async def status(self, job: JobId) -> Status:
        """The job's status."""
        return (await self.job(job)).status

    async def counts(self, queue: str | None = None) -> dict[Status, int]:
        """The census by status, zeros left out."""
        census = await self.engine.operator.census()
        return {status: n for status, n in census.by_status(queue).items() if n}

    async def snapshot(
        self, jobs: Sequence[JobId]
    ) -> tuple[list[Job | None], dict[Status, int], dict[str, Totals], list[Queue]]:
        """Everything a case compares to prove that nothing changed."""
        totals = (await self.engine.operator.census()).totals
        return await self.engine.operator.get(jobs), await self.counts(), totals, await self.engine.control.queues()


@pytest.fixture
def clock() -> VirtualClock:
    """The test's clock; the store's too."""
    return VirtualClock(START)


@pytest.fixture
async def store(make_engine: MakeEngine, clock: VirtualClock) -> AsyncIterator[Store]:
    """A fresh store, opened."""
    engine = make_engine(clock)
    await engine.open()
    yield Store(engine, clock, make_engine)
    await engine.close()


def needs(store: Store, feature: Feature) -> None:
    """Skip the case on an engine without this feature, naming it."""
    if feature not in store.engine.features:
        pytest.skip(f"{store.engine.name} gives up: {feature.value}")


@asynccontextmanager
async def twin_of(store: Store) -> AsyncIterator[Engine]:
    """Another engine on the same store, open for as long as the block."""
    twin = store.engine.for_loop()
    await twin.open()
    try:
        yield twin
    finally:
        await twin.close()


def heard_of_waiter(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return what is set when an engine hears that another one waits for the end of a job, or watches it."""
    known, loop, note = asyncio.Event(), asyncio.get_running_loop(), job_end_waiters.Interest.note

    def noted(interest: job_end_waiters.Interest, jobs: Iterable[JobId], *message: job_end_waiters.Message) -> None:
        note(interest, jobs, *message)
        loop.call_soon_threadsafe(known.set)

    monkeypatch.setattr(job_end_waiters.Interest, "note", noted)
    return known


async def at_once(store: Store, works: Sequence[Work[T]]) -> list[T]:
    """Run each piece of work on an engine, thread and loop of its own, all starting at the same moment."""
    start = threading.Barrier(len(works), timeout=30)

    async def drive(twin: Engine, work: Work[T]) -> T:
        await twin.open()
        try:
            start.wait()
            return await work(twin)
        finally:
            await twin.close()

    def run(twin: Engine, work: Work[T]) -> T:
        return asyncio.run(drive(twin, work))

    twins = [store.engine.for_loop() for _ in works]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(works)) as threads:
        return await asyncio.gather(
            *(loop.run_in_executor(threads, run, twin, work) for twin, work in zip(twins, works, strict=True))
        )
