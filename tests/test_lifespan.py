from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.model.errors import StokerError
from stoker.worker import Worker
from tests.harness.apps import PATIENCE, drain, working


@pytest.mark.spec("CONTEXT-05")
async def test_a_lifespan_is_opened_once_per_worker_and_closed_last(jobs: Stoker) -> None:
    log: list[str] = []

    @jobs.lifespan
    async def pool() -> AsyncIterator[list[str]]:
        log.append("pool opens")
        yield log
        log.append("pool closes")

    @jobs.lifespan
    async def client() -> AsyncIterator[str]:
        log.append("client opens")
        yield "client"
        log.append("client closes")

    @jobs.task
    async def work(n: int) -> None:
        pool.state.append(f"{client.state} {n}")
        assert current().state is pool.state

    @jobs.task
    def threaded() -> str:
        return client.state

    await jobs.enqueue_many([work.draft(n) for n in (1, 2)])
    job = await threaded.enqueue()
    await drain(jobs, queues={"default": 1})
    assert log == ["pool opens", "client opens", "client 1", "client 2", "client closes", "pool closes"]
    assert await job.result(0) == "client"
    log.clear()
    await drain(jobs)
    assert log == ["pool opens", "client opens", "client closes", "pool closes"]


@pytest.mark.spec("CONTEXT-05")
async def test_a_lifespan_that_fails_to_open_keeps_the_worker_from_starting(jobs: Stoker) -> None:
    log: list[str] = []

    @jobs.lifespan
    async def first() -> AsyncIterator[None]:
        log.append("open")
        yield
        log.append("closed")

    @jobs.lifespan
    async def second() -> AsyncIterator[None]:
        if len(log) < 2:
            raise ConnectionError("no database")
        yield

    worker = Worker(jobs)
    with pytest.raises(ConnectionError, match="no database"):
        await worker.start()
    assert log == ["open", "closed"]
    assert worker.state == "new"
    await worker.stop()
    await worker.start()
    await worker.stop()
    assert worker.state == "stopped"


@pytest.mark.spec("CONTEXT-05")
async def test_a_lifespan_that_fails_to_close_does_not_leave_the_worker_hanging(jobs: Stoker) -> None:
    @jobs.lifespan
    async def sticky() -> AsyncIterator[None]:
        yield
        raise ConnectionError("will not close")

    worker = Worker(jobs)
    await worker.start()
    with pytest.raises(ConnectionError, match="will not close"):
        await worker.stop()
    assert worker.state == "stopped"
    await asyncio.wait_for(worker.join(), PATIENCE)


@pytest.mark.spec("CONTEXT-06")
async def test_state_is_only_there_inside_a_handler(jobs: Stoker) -> None:
    @jobs.lifespan
    async def pool() -> AsyncIterator[int]:
        yield 1

    @jobs.task
    async def work() -> int:
        late = jobs.lifespan(other)
        with pytest.raises(StokerError, match="'other' is not open"):
            late.state
        return pool.state

    async def other() -> AsyncIterator[int]:
        yield 2

    with pytest.raises(StokerError, match="only meaningful inside a handler"):
        pool.state
    with pytest.raises(StokerError, match="only meaningful inside a handler"):
        current()
    job = await work.enqueue()
    async with working(jobs):
        assert await job.result(PATIENCE) == 1
