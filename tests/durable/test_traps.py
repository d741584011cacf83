"""Traps that designs of durable jobs fell into: each of these tests failed with one of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker import JobFailed, Status, Stoker, Unique, current, outage
from stoker.durable import suspension
from stoker.engines.base import Feature
from stoker.model.errors import CorruptRecord, EngineUnavailable
from stoker.model.job import Verdict
from stoker.model.retry import Fixed
from stoker.model.steps import Save
from stoker.testing import TestKit
from stoker.testing.clock import VirtualClock
from stoker.worker import Worker
from tests.harness.apps import PATIENCE, becomes, drain, working

HOUR = 3_600
IN_MEMORY = pytest.mark.parametrize("new_engine", ["memory"], indirect=True)


@pytest.mark.spec("DURABLE-02", "DURABLE-14")
async def test_a_run_that_opened_a_transaction_leaves_its_steps_to_the_next(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    """Only a job that no worker ever had may skip the reading."""
    jobs, ran = timed_jobs, list[str]()
    transactional = Feature.OUTBOX in (await jobs.engine()).features

    async def pay(tx: Any = None) -> str:
        ran.append("pay")
        return "paid"

    @jobs.task(attempts=3, backoff=Fixed(60))
    async def flow() -> str:
        run = current()
        found: str = await (run.step("pay", pay, tx=True) if transactional else run.step("pay", pay))
        if run.attempt < 3:
            raise ValueError("not yet")
        return found

    job = await flow.enqueue()
    for _ in range(3):
        await drain(jobs)
        clock.advance(61)
    assert await job.result() == "paid"
    assert ran == ["pay"]


@IN_MEMORY
@pytest.mark.spec("DURABLE-02")
async def test_a_task_that_is_canceled_while_rows_are_read_cancels_no_other(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    """Steps of one run share the reading of its rows."""

    def zero() -> int:
        return 0

    @timed_jobs.task(attempts=2, backoff=Fixed(60))
    async def flow() -> int:
        run = current()
        if not run.is_retry:
            raise ValueError("the next run has to read its rows")
        first, second = (asyncio.ensure_future(run.step(name, zero)) for name in ("a", "b"))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    job = await flow.enqueue()
    await drain(timed_jobs)
    clock.advance(61)
    await drain(timed_jobs)
    assert await job.result() == 0


@IN_MEMORY
@pytest.mark.spec("DURABLE-16")
@pytest.mark.parametrize("shape", ["wait", "call"])
async def test_what_goes_wrong_in_the_background_is_raised_where_the_handler_waits(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    @jobs.task
    async def child() -> None: ...

    async def beside() -> None:
        await asyncio.Event().wait()

    @jobs.task(attempts=1)
    async def flow() -> None:
        run = current()
        waits = run.wait("go") if shape == "wait" else run.call(child.draft())
        await asyncio.gather(waits, asyncio.create_task(beside()))

    async def broken(_: Worker, __: Any) -> Any:
        raise CorruptRecord("step go cannot be read")

    monkeypatch.setattr(suspension, "LOOK_AGAIN", 0.01)
    job = await flow.enqueue()
    async with working(jobs):
        await becomes(job, Status.RUNNING)
        monkeypatch.setattr(Worker, "read_steps", broken)
        monkeypatch.setattr(Worker, "save_steps", broken)
        if shape == "call":
            job = await flow.enqueue()
        with pytest.raises(JobFailed, match="step go cannot be read"):
            await job.result(PATIENCE)


@IN_MEMORY
@pytest.mark.spec("DURABLE-02")
async def test_a_step_waits_for_a_store_that_is_away_or_holds_it_up(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is a lost claim."""
    ran = 0
    answers: list[EngineUnavailable | Verdict | None] = [EngineUnavailable("away"), Verdict.HELD, None]
    saved = Worker.save_steps

    async def save(worker: Worker, one: Save) -> Verdict:
        told = answers.pop(0)
        if isinstance(told, EngineUnavailable):
            raise told
        return told or await saved(worker, one)

    def count() -> int:
        nonlocal ran
        ran += 1
        return ran

    @jobs.task(attempts=1)
    async def flow() -> int:
        return await current().step("a", count)

    monkeypatch.setattr(outage, "SHORTEST_PAUSE", 0.001)
    monkeypatch.setattr(Worker, "save_steps", save)
    job = await flow.enqueue()
    await drain(jobs)
    assert (await job.result(), ran) == (1, 1)


@pytest.mark.spec("DURABLE-06")
async def test_a_run_that_goes_on_before_its_called_jobs_have_ended_waits_for_them_again(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    """Several calls of one group, and a sleep that ends before the children do: each gets its result."""
    jobs = timed_jobs

    @jobs.task
    async def child(n: int) -> int:
        await current().wait("go")
        return 2 * n

    @jobs.task
    async def flow() -> list[Any]:
        run = current()
        return list(await asyncio.gather(run.sleep(60), *(run.call(child.draft(n)) for n in range(3))))

    job = await flow.enqueue()
    await drain(jobs)
    clock.advance(61)
    await drain(jobs)
    assert (await job.refresh()).status is Status.PENDING
    for step in await job.steps():
        if step.state == "called":
            assert step.job is not None
            assert await jobs.handle(step.job).signal("go")
    await drain(jobs)
    assert await job.result() == [None, 0, 2, 4]


@pytest.mark.spec("DURABLE-03")
async def test_an_idle_worker_resumes_a_sleep_in_time(jobs: Stoker) -> None:
    """By its timer: the next poll would be in an hour."""

    @jobs.task
    async def flow() -> str:
        await current().sleep(0.3)
        return "slept"

    async with working(jobs, poll=HOUR):
        assert await (await flow.enqueue()).result(PATIENCE) == "slept"


@pytest.mark.spec("DURABLE-03", "DURABLE-05")
async def test_no_time_passes_on_a_clock_that_stands_still(timed_jobs: Stoker, clock: VirtualClock) -> None:
    """However short a sleep or a time limit is: elsewhere the run would keep its slot for it."""
    jobs = timed_jobs

    @jobs.task
    async def flow() -> str:
        run = current()
        await run.sleep(0.02)
        try:
            await run.wait("go", timeout=0.02)
        except TimeoutError:
            return "late"
        return "in time"

    job = await flow.enqueue()
    for state in ({"sleep": "waiting"}, {"sleep": "done", "go": "waiting"}):
        await drain(jobs)
        assert {step.name: step.state for step in await job.steps()} == state
        clock.advance(0.02)
    await drain(jobs)
    assert await job.result() == "late"


@pytest.mark.spec("DURABLE-12", "DURABLE-15")
async def test_a_suspension_that_meets_a_cancel_is_a_cancel(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task
    async def flow() -> None:
        run = current()
        await run.step("cancel", jobs.handle(run.id).cancel)
        await run.wait("go")

    job = await flow.enqueue()
    await drain(jobs)
    assert (await job.refresh()).status is Status.CANCELED


@pytest.mark.spec("STEP-11")
async def test_a_newer_draft_does_not_replace_a_job_that_waits(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task
    async def flow(n: int) -> int:
        await current().wait("go")
        return n

    first = await flow.using(unique=Unique("k", mode="replace")).enqueue(1)
    await drain(jobs)
    again = await flow.using(unique=Unique("k", mode="replace")).enqueue(2)
    assert (again.id, again.stored) == (first.id, "existing")
    assert await first.signal("go")
    await drain(jobs)
    assert await first.result() == 1


@pytest.mark.spec("DURABLE-03", "DURABLE-05")
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_the_kit_lets_sleeps_and_waits_pass(store: str) -> None:
    app = Stoker("memory://")

    @app.task
    async def child(n: int) -> int:
        await current().sleep(2 * HOUR)
        return n

    @app.task
    async def flow() -> list[Any]:
        run = current()
        await run.sleep(HOUR)
        try:
            await run.wait("approval", timeout=24 * HOUR)
        except TimeoutError:
            return [await run.call(child.draft(5)), await run.step("last", int)]
        return []

    async with TestKit(app, store) as kit:
        job = await flow.enqueue()
        assert await kit.advance(HOUR - 1) == {Status.PENDING: 1}
        assert [step.state for step in await job.steps()] == ["waiting"]
        await kit.advance(1)
        assert {step.name: step.state for step in await job.steps()} == {"sleep": "done", "approval": "waiting"}
        await kit.advance(24 * HOUR)
        await kit.advance(2 * HOUR)
        assert await job.result() == [5, 0]
