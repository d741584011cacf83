"""Copies of a job that keep some of its steps, and the end of the jobs that a job called."""

from __future__ import annotations

import asyncio

import pytest

from stoker import Status, Stoker, current, handle
from stoker.admin import Admin
from stoker.admin import jobs as admin_jobs
from stoker.errors import InvalidInput, InvalidPayload, NotFound, WrongStatus
from stoker.testing.clock import VirtualClock
from tests.harness.apps import drain


@pytest.mark.spec("DURABLE-20")
async def test_a_fork_goes_on_behind_a_step_and_leaves_the_job_alone(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs, ran = timed_jobs, list[str]()

    @jobs.task
    async def flow(who: str) -> str:
        run = current()
        for name in ("quote", "charge", "ship"):
            await run.step(name, ran.append, f"{name} {who}")
            clock.advance(1)
        return f"shipped to {who}"

    job = await flow.enqueue("ada")
    await drain(jobs)
    ran.clear()
    behind = await job.fork("charge")
    anew = await Admin(jobs).jobs.fork(job.id)
    other = await job.fork("quote", {"who": "bob"})
    await drain(jobs)
    assert sorted(ran) == ["charge ada", "charge bob", "quote ada", "ship ada", "ship ada", "ship bob"]
    assert await behind.result() == "shipped to ada"
    assert await other.result() == "shipped to bob"
    assert [one.name for one in await behind.steps()] == ["quote", "charge", "ship"]
    assert anew.changed == 1
    assert (await job.refresh()).status is Status.DONE


@pytest.mark.spec("DURABLE-20")
async def test_a_fork_behind_what_is_no_finished_step_is_refused(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task
    async def flow(n: int) -> None:
        await current().step("quote", int)
        await current().wait("go")

    job = await flow.enqueue(1)
    await drain(jobs)
    for after in ("qoute", "go"):
        with pytest.raises(InvalidInput, match=f"no finished step of job {job.id}: its .* quote; got '{after}'"):
            await job.fork(after)
        with pytest.raises(InvalidInput, match="its finished steps are quote; got"):
            await Admin(jobs).jobs.fork(job.id, after=after)
    with pytest.raises(InvalidPayload, match="n"):
        await job.fork(payload={"n": "one"})
    with pytest.raises(NotFound):
        await jobs.handle("0190f3c2-0000-7000-8000-000000000001").fork()
    assert len((await Admin(jobs).jobs.find("is:waiting")).jobs) == 1


@pytest.mark.spec("DURABLE-21")
async def test_a_cancel_reaches_the_called_jobs(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task
    async def leaf() -> None:
        await current().wait("never")

    @jobs.task
    async def branch() -> None:
        await current().call(leaf.draft())

    @jobs.task
    async def root() -> None:
        await current().call(branch.draft())

    admin = Admin(jobs).jobs
    alone, whole, ours = await root.enqueue(), await root.enqueue(), await root.enqueue()
    await drain(jobs)
    assert await alone.cancel()
    assert len((await admin.find("is:canceled")).jobs) == 1
    assert await whole.cancel(children=True)
    found = (await admin.find("is:canceled")).jobs
    assert sorted(one.kind for one in found) == ["branch", "leaf", "root", "root"]
    assert (await admin.cancel(ours.id, children=True)).changed == 3
    assert (await admin.cancel(alone.id, children=True)).changed == 2, "it had ended, and the jobs it called had not"
    assert [one.kind for one in (await admin.find("is:active")).jobs] == []
    with pytest.raises(WrongStatus):
        await admin.cancel(alone.id, children=True)
    with pytest.raises(InvalidInput, match="children: goes with the id of one job"):
        await admin.cancel([alone.id, ours.id], children=True)


@pytest.mark.spec("DURABLE-21")
async def test_a_cancel_reaches_more_called_jobs_than_one_call_takes(
    timed_jobs: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = timed_jobs
    monkeypatch.setattr(handle, "LARGEST_BATCH", 2)

    @jobs.task
    async def leaf() -> None:
        await current().wait("never")

    @jobs.task
    async def root() -> None:
        await asyncio.gather(*(current().call(leaf.draft()) for _ in range(5)))

    monkeypatch.setattr(admin_jobs, "LARGEST_BATCH", 2)
    job, other = await root.enqueue(), await root.enqueue()
    await drain(jobs)
    assert await job.cancel(children=True)
    assert (await Admin(jobs).jobs.cancel(other.id, children=True)).changed == 6
    assert len((await Admin(jobs).jobs.find("is:canceled kind:leaf")).jobs) == 10
