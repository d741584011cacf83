"""Services: what a worker runs beside jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from stoker.app import Stoker
from stoker.model.errors import EngineUnavailable, InvalidInput, InvalidName
from stoker.services import ServiceContext
from stoker.worker import Worker, maintenance
from tests.harness.apps import PATIENCE, until


class Recorded:
    """A service that records its starts and whether it was canceled."""

    def __init__(self, work: Callable[[int], Awaitable[object]], name: str = "recorded") -> None:
        self.name = name
        self.contexts: list[ServiceContext] = []
        self.canceled = False
        self._work = work

    async def run(self, context: ServiceContext) -> None:
        self.contexts.append(context)
        try:
            await self._work(len(self.contexts))
        except asyncio.CancelledError:
            self.canceled = True
            raise


async def for_ever(_start: int) -> None:
    await asyncio.Event().wait()


@pytest.mark.spec("SERVICE-01")
async def test_a_worker_runs_and_cancels_the_services_of_its_app(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    """An app that has only services, such as one that relays messages, is not missing its tasks."""
    service = jobs.services.add(Recorded(for_ever))
    async with Worker(jobs) as worker:
        await until(lambda: service.contexts)
        assert "no tasks" not in caplog.text
        [context] = service.contexts
        assert (context.app, context.engine, context.worker_id()) == (jobs, worker.engine, worker.id)
        assert not service.canceled
    assert service.canceled


@pytest.mark.spec("SERVICE-02")
@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError()])
async def test_a_service_that_fails_starts_again_after_a_pause(
    jobs: Stoker, error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "SHORTEST_PAUSE", 0.001)
    ran = asyncio.Event()

    @jobs.task
    async def work() -> None:
        ran.set()

    async def fails_twice(start: int) -> None:
        if start < 3:
            raise error
        await for_ever(start)

    service, other = jobs.services.add(Recorded(fails_twice)), jobs.services.add(Recorded(for_ever, "other"))
    async with Worker(jobs):
        await until(lambda: len(service.contexts) == 3)
        await work.enqueue()
        await asyncio.wait_for(ran.wait(), PATIENCE)
    assert len(other.contexts) == 1
    lines = [record for record in caplog.records if "service recorded failed" in record.getMessage()]
    assert len(lines) == 2
    assert all("It starts again in" in record.getMessage() for record in lines)
    assert bool(lines[0].exc_info) == isinstance(error, ValueError), "our own errors need no traceback"


@pytest.mark.spec("SERVICE-02")
async def test_a_store_that_is_away_is_no_warning(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "SHORTEST_PAUSE", 0.001)

    async def away(start: int) -> None:
        if start == 1:
            raise EngineUnavailable("gone for a moment.")
        await for_ever(start)

    service = jobs.services.add(Recorded(away))
    with caplog.at_level(logging.DEBUG, "stoker.worker"):
        async with Worker(jobs):
            await until(lambda: len(service.contexts) == 2)
    [line] = [record for record in caplog.records if "service recorded failed" in record.getMessage()]
    assert line.levelno == logging.DEBUG


@pytest.mark.spec("SERVICE-02")
async def test_a_service_that_waits_for_its_next_start_holds_up_no_stop(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the store kept it from its work, for which a worker that drains would wait."""
    monkeypatch.setattr(maintenance, "SHORTEST_PAUSE", 2 * PATIENCE)

    async def away(_start: int) -> None:
        raise EngineUnavailable("gone for a moment.")

    service = jobs.services.add(Recorded(away))
    with caplog.at_level(logging.DEBUG, "stoker.worker"):
        async with Worker(jobs) as worker:
            await until(lambda: "service recorded failed" in caplog.text)
            await asyncio.wait_for(worker.stop(2 * PATIENCE), PATIENCE)
    assert len(service.contexts) == 1


@pytest.mark.spec("SERVICE-03")
async def test_a_service_that_returns_is_over_until_the_next_start(jobs: Stoker) -> None:
    async def returns(_start: int) -> None: ...

    service = jobs.services.add(Recorded(returns))
    worker = Worker(jobs)
    for starts in (1, 2):
        async with worker:
            await until(lambda starts=starts: len(service.contexts) == starts)  # type: ignore[misc]
            await asyncio.sleep(0)
            assert worker.state == "running"
    assert len(service.contexts) == 2


@pytest.mark.spec("SERVICE-04")
def test_a_name_is_good_and_taken_once() -> None:
    jobs = Stoker("memory://")
    first = jobs.services.add(Recorded(for_ever))
    with pytest.raises(InvalidInput, match="is registered already"):
        jobs.services.add(Recorded(for_ever))
    with pytest.raises(InvalidName):
        jobs.services.add(Recorded(for_ever, "no name"))
    assert list(jobs.services) == [first]
    assert len(jobs.services) == 1
