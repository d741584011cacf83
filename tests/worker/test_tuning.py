"""What people tune while workers are at work: slots of a queue across all workers, and retention."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.model.control import Tuning
from stoker.model.job import Status
from stoker.model.lifecycle import KEEP_DONE
from stoker.model.query import Query
from stoker.model.time import HOUR, SECOND
from stoker.worker import Worker
from tests.harness.apps import PATIENCE, drain, until, working


class Crowded:
    """A task whose runs are counted and wait until they are let go."""

    def __init__(self, jobs: Stoker, queue: str = "default") -> None:
        self.now = self.most = self.ended = 0
        self.gate = asyncio.Event()
        self.task = jobs.task(name=f"on_{queue}", queue=queue)(self.work)

    async def work(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.gate.wait()
            await asyncio.sleep(0.001)
        finally:
            self.now -= 1
            self.ended += 1

    async def put(self, n: int) -> None:
        for _ in range(n):
            await self.task.enqueue()


async def attuned(*workers: Worker) -> None:
    """As after a few seconds: each has heard of the others."""
    for _ in range(2):
        for worker in workers:
            await worker.maintenance.show_and_tune()


@pytest.mark.spec("WORKER-27")
@pytest.mark.parametrize("order", ["own", "strict", "weighted"])
async def test_a_limited_queue_runs_no_more_jobs_at_once_than_its_slots(jobs: Stoker, order: Any) -> None:
    limited, free = Crowded(jobs, "mail"), Crowded(jobs, "default")
    await (await jobs.engine()).control.tune("mail", Tuning(workers=3))
    await limited.put(20)
    await free.put(8)
    async with working(jobs, {"mail": 8, "default": 8}, order=order) as worker:
        await until(lambda: limited.now == 3 and free.now == 8)
        limited.gate.set()
        free.gate.set()
        await until(lambda: limited.ended == 20 and free.ended == 8)
        assert limited.most == 3
        assert worker.lanes[0].busy == 0


@pytest.mark.spec("WORKER-27")
async def test_workers_share_the_slots_of_a_limited_queue(jobs: Stoker) -> None:
    crowded = Crowded(jobs)
    engine = await jobs.engine()
    await engine.control.tune("default", Tuning(workers=3))
    await crowded.put(30)
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(working(jobs, {"default": 5})) for _ in range(2)]
        await attuned(*workers)
        assert sorted(worker.limits.caps["default"] for worker in workers) == [1, 2]
        await until(lambda: crowded.now >= 3)
        crowded.gate.set()
        await until(lambda: crowded.ended >= 10)
        crowded.most = crowded.now
        await until(lambda: crowded.ended == 30)
        assert crowded.most <= 3, "since both know of each other"
        await workers[1].stop()
        await attuned(workers[0])
        assert workers[0].limits.caps == {"default": 3}, "who has stopped has no share"
        await engine.control.tune("default", Tuning(workers=0))
        await attuned(workers[0])
        await crowded.put(1)
        workers[0].fetcher.wake()
        await workers[0].store_loop.call()
        assert (await engine.operator.census()).by_status()[Status.PENDING] == 1, "no slot at all is a pause"


@pytest.mark.spec("WORKER-27")
async def test_a_share_that_shrinks_hands_back_what_waits(jobs: Stoker) -> None:
    crowded = Crowded(jobs)
    await crowded.put(8)
    engine = await jobs.engine()
    async with working(jobs, {"default": 2}) as worker:
        [lane] = worker.lanes
        lane.rate = 1_000.0  # so fast so far that the lane takes in advance
        worker.fetcher.wake()
        worker.store_loop.wakeup.set()
        await until(lambda: len(lane.buffer) == 6)
        await engine.control.tune("default", Tuning(workers=4))
        await attuned(worker)
        assert (crowded.now, len(lane.buffer)) == (2, 2)
        await engine.control.tune("default", Tuning(workers=1))
        await attuned(worker)
        assert (crowded.now, len(lane.buffer)) == (2, 0), "what runs may end"

        async def waiting() -> int:
            return (await engine.operator.census()).by_status()[Status.PENDING]

        async with asyncio.timeout(PATIENCE):
            while await waiting() != 6:
                await asyncio.sleep(0.002)
        crowded.gate.set()
        await until(lambda: crowded.ended == 8)
    assert worker.counts[Status.DONE] == 8
    assert all(job.attempts == 1 for job in (await engine.operator.find(Query(limit=100))).jobs)


@pytest.mark.spec("WORKER-27")
async def test_a_worker_without_a_share_still_drains(jobs: Stoker) -> None:
    crowded = Crowded(jobs)
    crowded.gate.set()
    await (await jobs.engine()).control.tune("default", Tuning(workers=0))
    await crowded.put(2)
    await drain(jobs)
    assert crowded.ended == 0


@pytest.mark.spec("WORKER-30")
async def test_the_apps_retention_speaks_after_the_queues(engine: Engine) -> None:
    jobs = Stoker(engine, keep=HOUR / SECOND)

    @jobs.task
    async def work() -> None: ...

    async with jobs:
        store = await jobs.engine()
        await store.control.tune("own", Tuning(keep_done=60 * SECOND))
        await store.control.tune("other", Tuning(paused=False))
        calls = {
            "app": work.using(queue="other"),
            "queue": work.using(queue="own"),
            "call": work.using(queue="own", keep=5),
        }
        handles = {what: await task.enqueue() for what, task in calls.items()}
        await drain(jobs, queues=["own", "other"])
        kept = {}
        for what, handle in handles.items():
            record = await handle.refresh()
            assert record.expires_at is not None
            assert record.finished_at is not None
            kept[what] = (record.expires_at - record.finished_at).total_seconds()
    assert kept == {"app": 3600, "queue": 60, "call": 5}
    assert KEEP_DONE != HOUR
