from __future__ import annotations

import asyncio
import dataclasses
import time
from datetime import timedelta
from pathlib import Path

import pytest

from stoker.app import Stoker
from stoker.model import ids
from stoker.model.errors import InvalidInput, JobCanceled, JobFailed, NotFound, PayloadMismatch
from stoker.model.events import Transition, Window
from stoker.model.job import Status
from stoker.model.outcome import Reject
from stoker.model.query import Delete, Selection
from tests.harness.apps import PATIENCE, drain, working


@dataclasses.dataclass
class Point:
    x: int
    y: float


@pytest.mark.spec("HANDLE-01")
async def test_a_result_comes_back_with_its_type(jobs: Stoker) -> None:
    @jobs.task
    async def locate(n: int) -> list[Point]:
        return [Point(n, n / 2)]

    @jobs.task
    def nothing() -> None: ...

    job, other = await locate.enqueue(3), await nothing.enqueue()
    async with working(jobs):
        assert await job.result(timeout=PATIENCE) == [Point(3, 1.5)]
        nothing_at_all: object = await other.result(timedelta(seconds=PATIENCE))  # type: ignore[func-returns-value]
        assert nothing_at_all is None
    assert await job.result(0) == [Point(3, 1.5)]
    assert await jobs.handle(job.id).result(0) == [Point(3, 1.5)]
    stranger = Stoker((await jobs.engine()).for_loop())
    assert await stranger.handle(job.id).result(0) == [{"x": 3, "y": 1.5}]
    await stranger.close()


@pytest.mark.spec("HANDLE-02")
async def test_dead_and_canceled_jobs_raise_with_their_reason(jobs: Stoker) -> None:
    @jobs.task
    async def work() -> None:
        raise Reject("no such customer")

    dead, canceled = await work.enqueue(), await work.using(delay=60).enqueue()
    assert await canceled.cancel(reason="changed my mind")
    await drain(jobs)
    with pytest.raises(JobFailed, match=rf"{dead.id} \(work\) is dead: no such customer") as failed:
        await dead.result()
    error = failed.value
    assert (error.job_id, error.kind, error.status, error.attempt) == (dead.id, "work", Status.DEAD, 1)
    assert error.error == "no such customer"
    with pytest.raises(JobCanceled, match="changed my mind") as stopped:
        await canceled.result()
    assert (stopped.value.job_id, stopped.value.kind, stopped.value.attempt) == (canceled.id, "work", 0)
    assert stopped.value.error == "changed my mind"


@pytest.mark.spec("HANDLE-03")
async def test_a_job_that_is_not_kept_is_gone(jobs: Stoker) -> None:
    @jobs.task(keep=0)
    async def work() -> int:
        return 1

    job = await work.enqueue()
    await drain(jobs)
    with pytest.raises(NotFound, match="keep=") as gone:
        await job.result()
    assert gone.value.job_id == job.id
    with pytest.raises(NotFound):
        await job.refresh()
    assert not await job.cancel()


@pytest.mark.spec("HANDLE-04")
async def test_waiting_ends_in_time_and_the_job_goes_on(jobs: Stoker) -> None:
    @jobs.task
    async def work() -> None: ...

    job = await work.using(delay=3600).enqueue()
    began = time.monotonic()
    for limit in (0, 0.05):
        with pytest.raises(TimeoutError, match=f"has not ended within {limit:g} s; it goes on"):
            await job.result(timeout=limit)
    assert time.monotonic() - began < 60
    assert (await job.refresh()).status is Status.PENDING
    with pytest.raises(InvalidInput):
        await job.result(timeout=-1)
    waiting = asyncio.ensure_future(job.result())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.spec("HANDLE-05")
async def test_canceling_a_waiting_job_emits_one_event(jobs: Stoker) -> None:
    received: list[Transition] = []

    @jobs.task
    async def work() -> None: ...

    job = await work.enqueue()
    jobs.listener(received.append)
    assert await job.cancel()
    assert not await job.cancel()
    assert (await job.refresh()).status is Status.CANCELED
    assert [(one.job, one.before, one.after) for one in received] == [(job.id, Status.PENDING, Status.CANCELED)]
    assert jobs.timeline is not None
    engine = await jobs.engine()
    await jobs.timeline.flush(engine.timeline)
    assert [event.type for event in await engine.timeline.events(Window(0, 1 << 60))] == ["enqueued", "canceled"]


@pytest.mark.spec("HANDLE-06")
async def test_a_handle_is_only_an_id(jobs: Stoker) -> None:
    @jobs.task
    async def work() -> None: ...

    job = await work.enqueue()
    again = jobs.handle(job.id)
    assert again == job
    assert len({again, job}) == 1
    assert job.id in repr(job)
    assert job != object()
    assert jobs.handle(ids.parse(job.id)) == job
    for wrong in ("seven", b"seven"):
        with pytest.raises(InvalidInput, match="job id: must be a UUID"):
            jobs.handle(wrong)
        with pytest.raises(InvalidInput, match="group id: must be a UUID"):
            jobs.group_handle(wrong)
    await (await jobs.engine()).operator.alter(Selection((ids.parse(job.id),)), Delete())
    with pytest.raises(NotFound):
        await again.result()


@pytest.mark.spec("HANDLE-01")
async def test_a_result_that_no_longer_fits_its_hint_raises(jobs: Stoker) -> None:
    @jobs.task
    async def work() -> int:
        return "text"  # type: ignore[return-value]

    job = await work.enqueue()
    await drain(jobs)
    with pytest.raises(PayloadMismatch, match="work result"):
        await job.result()


@pytest.mark.spec("HANDLE-08")
def test_code_without_a_loop_waits_reads_and_cancels(tmp_path: Path) -> None:
    app = Stoker(f"sqlite:///{tmp_path}/jobs.db", durability="process")

    @app.task
    def double(n: int) -> int:
        return 2 * n

    job, late = double.enqueue_sync(4), double.using(delay=60).enqueue_sync(5)
    assert job.refresh_sync().status is Status.PENDING
    with pytest.raises(TimeoutError):
        job.result_sync(timeout=0)
    assert late.cancel_sync(reason="not needed")
    assert not late.cancel_sync()
    with pytest.raises(JobCanceled, match="not needed"):
        late.result_sync()
    app.run(drain(app))
    assert job.result_sync(timeout=PATIENCE) == 8
    app.run(app.close())
