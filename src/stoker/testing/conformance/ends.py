"""Waiting for the end of a job. Waits are long and end early where an end must be noticed, short where none comes."""

from __future__ import annotations

import asyncio

import pytest

from stoker.engines.base import CONTROL
from stoker.engines.shared import job_end_waiters
from stoker.model.job import Status
from stoker.model.outcome import Done, Failed, Outcome, Rejected, Snoozed
from stoker.model.query import Cancel, Delete, Selection
from stoker.model.time import HOUR
from stoker.testing.conformance.harness import ARRIVES, Store, heard_of_waiter, twin_of

_NEVER = 0.04


@pytest.mark.core
@pytest.mark.spec("END-01")
async def test_a_job_that_has_ended_is_not_waited_for(store: Store) -> None:
    """Done, dead, canceled, deleted and unknown jobs return at once."""
    job = await store.add()
    await store.finish(await store.take(), Done())
    dead = await store.add()
    await store.finish(await store.take(), Rejected("no"))
    canceled, deleted = await store.add(), await store.add()
    await store.engine.operator.alter(Selection((canceled,)), Cancel())
    await store.engine.operator.alter(Selection((deleted,)), Delete())
    for each in (job, dead, canceled, deleted, store.mint()):
        assert await store.engine.jobs.ended(each, ARRIVES)


@pytest.mark.core
@pytest.mark.spec("END-01")
async def test_a_job_that_goes_on_is_waited_for_in_vain(store: Store) -> None:
    """Pending, running, scheduled, retrying and snoozed jobs have not ended."""
    waiting, later = await store.add(queue="mail"), await store.add(queue="mail", delay=HOUR)
    running, retrying, snoozed = await store.add(), await store.add(), await store.add()
    one, two, three = await store.claim(n=3)
    assert [one.id, two.id, three.id] == [running, retrying, snoozed]
    await store.finish(two, Failed("boom", after=HOUR))
    await store.finish(three, Snoozed(HOUR))
    for job in (waiting, later, running, retrying, snoozed):
        assert not await store.engine.jobs.ended(job, _NEVER)


@pytest.mark.core
@pytest.mark.spec("END-02")
@pytest.mark.parametrize("outcome", [Done(), Rejected("no")])
async def test_every_engine_that_waits_is_woken_by_the_end(store: Store, outcome: Outcome) -> None:
    """Waiters of this engine and of another one, several for one job, long before their time is over."""
    job = await store.add()
    claim = await store.take()
    async with twin_of(store) as twin:
        waiters = [asyncio.create_task(each.jobs.ended(job, ARRIVES)) for each in (store.engine, store.engine, twin)]
        await asyncio.sleep(0.02)
        assert not any(waiter.done() for waiter in waiters)
        await store.finish(claim, outcome)
        assert await asyncio.wait_for(asyncio.gather(*waiters), ARRIVES - 1) == [True] * 3


@pytest.mark.core
@pytest.mark.spec("END-04")
async def test_an_end_is_told_and_not_found_by_looking(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where waiters look only once a minute, the settlement wakes them all the same, across engines."""
    monkeypatch.setattr(job_end_waiters, "FIRST_PAUSE", 2 * ARRIVES)
    known = heard_of_waiter(monkeypatch)
    job = await store.add()
    claim = await store.take()
    await store.engine.jobs.wait([CONTROL, "mail"], 0.01)  # as the engines of a worker do
    async with twin_of(store) as twin:
        waiters = [asyncio.create_task(twin.jobs.ended(job, ARRIVES))]
        await asyncio.wait_for(known.wait(), ARRIVES)
        waiters.append(asyncio.create_task(store.engine.jobs.ended(job, ARRIVES)))
        await store.finish(claim, Done())
        assert await asyncio.wait_for(asyncio.gather(*waiters), ARRIVES) == [True] * 2


@pytest.mark.spec("END-02")
async def test_waiters_for_many_jobs_are_woken_each_for_its_own(store: Store) -> None:
    jobs = await store.insert(*(store.draft() for _ in range(30)))
    claims = {claim.id: claim for claim in await store.claim(n=30)}
    async with twin_of(store) as twin:
        waiters = {job: asyncio.create_task(twin.jobs.ended(job, ARRIVES)) for job in jobs}
        await asyncio.sleep(0.02)
        for job in jobs[::2]:
            await store.finish(claims[job], Done())
        assert await asyncio.wait_for(asyncio.gather(*(waiters[job] for job in jobs[::2])), ARRIVES - 1) == [True] * 15
        assert not any(waiters[job].done() for job in jobs[1::2])
        for job in jobs[1::2]:
            await store.finish(claims[job], Done())
        assert await asyncio.wait_for(asyncio.gather(*(waiters[job] for job in jobs[1::2])), ARRIVES - 1) == [True] * 15


@pytest.mark.spec("END-03")
async def test_a_cancel_wakes_who_waits(store: Store) -> None:
    """Also from an engine that does not know the waiter, and by taking the claim away."""
    for force in (False, True):
        job = await store.add()
        if force:
            await store.take()
        sleeper = asyncio.create_task(store.engine.jobs.ended(job, ARRIVES))
        await asyncio.sleep(0.02)
        async with twin_of(store) as twin:
            await twin.operator.alter(Selection((job,)), Cancel(force=force))
            assert await asyncio.wait_for(sleeper, ARRIVES - 1)
        assert await store.status(job) is Status.CANCELED


@pytest.mark.spec("END-03")
async def test_closing_sends_waiters_home(store: Store) -> None:
    job = await store.add()
    twin = store.engine.for_loop()
    await twin.open()
    sleeper = asyncio.create_task(twin.jobs.ended(job, ARRIVES))
    await asyncio.sleep(0.02)
    await twin.close()
    assert not await asyncio.wait_for(sleeper, ARRIVES - 1)
