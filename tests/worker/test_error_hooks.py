"""`jobs.on_error`: what a hook gets, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker import FailedRun
from stoker.app import Stoker
from stoker.model.chunk import Chunk
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Demand, Settled, Status, Verdict
from stoker.model.outcome import Reject, Snooze
from stoker.model.retry import Fixed
from stoker.worker import Worker
from tests.harness.apps import becomes, drain, until, working
from tests.harness.doubles import Double
from tests.worker.apps import risky


@pytest.mark.spec("ERRHOOK-01")
async def test_a_hook_gets_the_job_the_attempt_and_the_exception_after_the_store_agreed(jobs: Stoker) -> None:
    seen: list[tuple[FailedRun, Any]] = []

    @jobs.task(attempts=2, backoff=Fixed(0), queue="mail")
    async def send() -> None:
        raise ValueError("no luck")

    @jobs.on_error
    def report(failed: FailedRun) -> None:
        seen.append((failed, asyncio.ensure_future(jobs.handle(failed.job).refresh())))

    job = await send.using(tenant="acme", metadata={"who": "ada"}).enqueue()
    async with working(jobs):
        await becomes(job, Status.DEAD)
        await until(lambda: len(seen) == 2)  # the hook comes after the store agreed
        stored = [await record for _, record in seen]
    assert [one.status for one in stored][-1] is Status.DEAD
    first, last = (failed for failed, _ in seen)
    assert (first.job, first.kind, first.queue, first.tenant) == (job.id, "send", "mail", "acme")
    assert [(one.attempt, one.attempts, one.dead) for one in (first, last)] == [(1, 2, False), (2, 2, True)]
    assert isinstance(last.exception, ValueError)
    assert last.error.startswith("ValueError: no luck")
    assert last.metadata["who"] == "ada"


@pytest.mark.spec("ERRHOOK-01")
async def test_success_and_what_a_handler_asks_for_call_no_hook(jobs: Stoker) -> None:
    seen: list[FailedRun] = []
    jobs.on_error(seen.append)

    @jobs.task
    async def work(what: str) -> None:
        if what == "snooze":
            raise Snooze(60)
        if what == "reject":
            raise Reject("no such customer")

    for what in ("fine", "snooze", "reject"):
        await work.enqueue(what)
    await drain(jobs)
    assert [(one.error, type(one.exception)) for one in seen] == [("no such customer", Reject)]


@pytest.mark.spec("ERRHOOK-01")
async def test_each_job_of_a_chunk_is_one_call(jobs: Stoker) -> None:
    seen: list[FailedRun] = []
    jobs.on_error(seen.append)

    @jobs.task(chunk=Chunk(10, within=0.05), attempts=1)
    async def index(items: list[int]) -> None:
        raise ValueError("no luck")

    sent = {(await index.enqueue(n)).id for n in range(3)}
    await drain(jobs)
    assert {one.job for one in seen} == sent
    assert {type(one.exception) for one in seen} == {ValueError}


class Refusing(Double):
    """Another worker has the claim: every settlement is lost."""

    async def settle(self, settlements: Any, *, tx: Any = None, demand: Demand | None = None) -> Settled:
        return Settled([Verdict.LOST] * len(settlements), [])


@pytest.mark.spec("ERRHOOK-02")
async def test_an_outcome_that_the_store_refused_calls_no_hook() -> None:
    jobs = Stoker(Refusing())
    seen: list[FailedRun] = []
    jobs.on_error(seen.append)

    @jobs.task
    async def work() -> None:
        raise ValueError

    async with jobs:
        await work.enqueue()
        worker = await drain(jobs)
    assert worker.lost == 1
    assert seen == []
    assert not worker.failures._raised


@pytest.mark.spec("ERRHOOK-02")
async def test_a_hook_that_raises_hinders_nothing(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task(attempts=1)
    async def work() -> None:
        raise ValueError

    @jobs.on_error
    def broken(failed: FailedRun) -> None:
        raise EngineUnavailable("the tracker is away")

    found = [await work.enqueue() for _ in range(2)]
    await drain(jobs)
    assert [(await job.refresh()).status for job in found] == [Status.DEAD] * 2
    assert sum("broken raised" in one.getMessage() for one in caplog.records) == 1


@pytest.mark.spec("ERRHOOK-01")
async def test_of_an_error_in_a_process_there_is_its_text() -> None:
    seen: list[FailedRun] = []
    hook = risky.jobs.on_error(seen.append)
    try:
        async with risky.jobs, Worker(risky.jobs, {"default": 1}, poll=0.02):
            await becomes(await risky.not_worth_it.enqueue(), Status.DEAD)
    finally:
        risky.jobs.errors.remove(hook)
    assert seen[0].exception is None
    assert seen[0].error
