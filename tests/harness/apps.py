"""Runs an app on each engine, and a worker to its end, for tests of the API and the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.handle import JobHandle
from stoker.model.job import Status
from stoker.testing.clock import VirtualClock
from stoker.views import Job
from stoker.worker import Worker

T = TypeVar("T")

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite")]
PATIENCE = 60.0
"""Seconds after which a test gives up waiting for what should take milliseconds."""


def make_engine(name: str, folder: Path, clock: VirtualClock | None = None) -> Engine:
    """A fresh store."""
    if name == "memory":
        return MemoryEngine(clock)
    return SqliteEngine(folder / "jobs.db", clock=clock, durability="process")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return make_engine(request.param, tmp_path)


@pytest.fixture
async def jobs(engine: Engine) -> AsyncIterator[Stoker]:
    """An app on the real clock."""
    app = Stoker(engine)
    yield app
    await app.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=ENGINES)
async def timed_jobs(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Stoker]:
    """An app whose store goes by `clock`."""
    app = Stoker(make_engine(request.param, tmp_path, clock))
    yield app
    await app.close()


async def drain(jobs: Stoker, **settings: Any) -> Worker:
    """Run everything that is due, and what it brings about at once."""
    worker = Worker(jobs, drain=True, **settings)
    await worker.start()
    try:
        await asyncio.wait_for(worker.join(), PATIENCE)
    finally:
        await worker.stop(0)
    return worker


@asynccontextmanager
async def working(jobs: Stoker, queues: Any = None, **settings: Any) -> AsyncIterator[Worker]:
    """A worker beside the test, stopped without grace."""
    worker = Worker(jobs, queues, **settings)
    await worker.start()
    try:
        yield worker
    finally:
        await asyncio.wait_for(worker.stop(0), PATIENCE)


async def until(seen: Callable[[], Any]) -> None:
    """Wait for something that happens elsewhere, at most `PATIENCE`."""
    async with asyncio.timeout(PATIENCE):
        while not seen():
            await asyncio.sleep(0.002)


async def becomes(job: JobHandle[Any], *statuses: Status) -> Job:
    """The record, as soon as it has one of these statuses."""
    async with asyncio.timeout(PATIENCE):
        while (record := await job.refresh()).status not in statuses:
            await asyncio.sleep(0.002)
    return record


def within(awaitable: Awaitable[T], seconds: float = PATIENCE) -> Awaitable[T]:
    return asyncio.wait_for(awaitable, seconds)
