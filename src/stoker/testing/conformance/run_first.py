"""A job that an operator puts first: before all others of its queue, and before the next token of its rate."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stoker.model.control import Tuning
from stoker.model.ids import JobId
from stoker.model.job import FIRST, OWN_PRIORITY, PRIORITIES, Status
from stoker.model.outcome import Done, Failed, Rejected, Throttled
from stoker.model.query import Clone, Requeue, RunNow, Selection
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.alter_helpers import alter, each_status, retrying_job
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store
from stoker.testing.conformance.limit_helpers import ids, limited

HOURLY = Rate(1, per=3_600)


async def _put_first(store: Store, *jobs: JobId) -> None:
    assert (await alter(store, RunNow(first=True), *jobs)).changed == len(jobs)


async def _tokens(store: Store) -> float:
    [queue] = [one for one in await store.engine.control.queues() if one.name == QUEUE]
    assert queue.bucket is not None
    return queue.bucket.tokens


@pytest.mark.core
@pytest.mark.spec("FIRST-01")
async def test_a_job_that_is_put_first_starts_before_every_other(store: Store) -> None:
    """Before the lowest priority and the oldest job; due now, with its own priority noted, and nothing else changed."""
    others = await store.insert(store.draft(), store.draft(priority=PRIORITIES[0]), store.draft())
    job = await store.add(delay=HOUR, priority=7)
    before = await store.job(job)
    store.pass_time(SECOND)
    await _put_first(store, job)
    noted = {**before.metadata, OWN_PRIORITY: "7"}
    assert await store.job(job) == msgspec.structs.replace(
        before, scheduled_at=store.now(), priority=FIRST, metadata=noted
    )
    assert ids(await store.claim(n=4)) == [job, others[1], others[0], others[2]]


@pytest.mark.spec("FIRST-01")
async def test_only_a_waiting_job_is_put_first(store: Store) -> None:
    """A retrying one keeps its status and its attempts; those that run or have ended are refused."""
    jobs = await each_status(store)
    for status, job in jobs.items():
        tally = await alter(store, RunNow(first=True), job)
        waits = status in (Status.PENDING, Status.RETRYING)
        assert (tally.changed, tally.refused) == ((1, {}) if waits else (0, {status: 1}))
    again = await retrying_job(store, queue="again")
    await _put_first(store, again)
    stored = await store.job(again)
    assert (stored.status, stored.attempts, stored.scheduled_at) == (Status.RETRYING, 1, store.now())
    assert (await store.take(queue="again")).id == again


@pytest.mark.core
@pytest.mark.spec("FIRST-02")
async def test_a_job_that_is_put_first_takes_one_token_ahead(store: Store) -> None:
    """It alone starts without a token, whatever is asked for; the next one waits until that token is paid back."""
    await store.engine.control.tune(QUEUE, Tuning(rate=HOURLY))
    jobs = await store.insert(*(store.draft(priority=-5) for _ in range(5)))
    assert ids(await store.claim(n=9)) == jobs[:1]
    assert await store.claim(n=9) == []
    await _put_first(store, jobs[4])
    assert ids(await store.claim(n=9)) == jobs[4:]
    assert await _tokens(store) == -1
    await _put_first(store, jobs[3], jobs[2])
    assert await store.claim(n=9) == []
    store.pass_time(HOUR - 1)
    assert await store.claim(n=9) == []
    store.pass_time(1)
    assert ids(await store.claim(n=9)) == jobs[2:3], "the longest due of both, at zero tokens"
    store.pass_time(2 * HOUR)
    assert ids(await store.claim(n=9)) == jobs[3:4]
    assert await _tokens(store) == 0
    assert await store.claim(n=9) == []


@pytest.mark.core
@pytest.mark.spec("FIRST-03")
async def test_a_job_that_is_put_first_passes_no_pause_and_no_cool_down(store: Store) -> None:
    """Its queue hands out nothing; it is the first when the queue opens."""
    await store.engine.control.tune(QUEUE, Tuning(rate=HOURLY))
    await store.insert(store.draft(), store.draft())
    job = await store.add()
    throttled = await store.take()
    await _put_first(store, job)
    await store.engine.control.tune(QUEUE, Tuning(paused=True))
    assert await store.claim(n=9) == []
    await store.engine.control.tune(QUEUE, Tuning(paused=False))
    await store.finish(throttled, Throttled(retry_after=MINUTE))
    assert await store.claim(n=9) == []
    store.pass_time(2 * MINUTE)
    assert ids(await store.claim(n=9)) == [job]


@pytest.mark.core
@pytest.mark.spec("FIRST-03")
@pytest.mark.parametrize("fair", [False, True])
async def test_a_job_that_is_put_first_passes_no_limit(store: Store, fair: bool) -> None:
    """While its key is full it waits, and lets others pass; with a free place it is first, also without a token."""
    await store.engine.control.tune(QUEUE, Tuning(fair=fair, rate=Rate(1, per=3_600, burst=2)))
    [holder, waits, *others] = await store.insert(
        limited(store, "a"), limited(store, "a"), limited(store, "b"), limited(store, "c")
    )
    [claim] = await store.claim(n=1)
    assert claim.id == holder
    await _put_first(store, waits)
    assert ids(await store.claim(n=1)) == others[:1]
    assert await store.claim(n=9) == [], "no token, and the key is full"
    await store.finish(claim, Done())
    assert ids(await store.claim(n=9)) == [waits]
    assert await _tokens(store) == -1


@pytest.mark.core
@pytest.mark.spec("FIRST-04")
@pytest.mark.parametrize("tokens", [False, True])
async def test_a_job_that_is_put_first_starts_before_all_tenants_of_a_fair_queue(store: Store, tokens: bool) -> None:
    """With and without a token; its tenant has had its turn then, and the others go on with theirs."""
    await store.engine.control.tune(QUEUE, Tuning(fair=True, rate=Rate(1, per=3_600, burst=6)))
    tenants = ("a", "b", "c")
    jobs = await store.insert(*(store.draft(tenant=tenants[n % 3]) for n in range(9)))
    assert ids(await store.claim(n=1)) == jobs[:1]
    if not tokens:
        assert len(await store.claim(n=5)) == 5
    await _put_first(store, jobs[8])
    assert ids(await store.claim(n=1)) == [jobs[8]]
    if tokens:
        assert ids(await store.claim(n=2)) == [jobs[1], jobs[3]], "b and a; c had its turn"


@pytest.mark.spec("FIRST-05")
async def test_a_job_that_is_put_first_wakes_a_sleeper(store: Store) -> None:
    """Also where it was due already and waited for a token."""
    await store.engine.control.tune(QUEUE, Tuning(rate=HOURLY))
    jobs = await store.insert(store.draft(), store.draft())
    await store.take()
    await store.quiet(QUEUE)
    sleeper = asyncio.create_task(store.engine.jobs.wait([QUEUE], ARRIVES))
    await asyncio.sleep(0.01)
    await store.engine.operator.alter(Selection((jobs[1],)), RunNow(first=True))
    assert await asyncio.wait_for(sleeper, ARRIVES - 1) == {QUEUE}


@pytest.mark.spec("FIRST-06")
async def test_a_requeue_and_a_copy_have_the_own_priority_again(store: Store) -> None:
    """First it is until its end: also when it is tried again, and no longer when it is requeued or copied."""
    job = await store.add(priority=7)
    await _put_first(store, job)
    await _put_first(store, job)
    await store.finish(await store.take(), Failed("x", after=0))
    assert (await store.job(job)).priority == FIRST
    await store.finish(await store.take(), Rejected("no"))
    await alter(store, Requeue(), job)
    assert (await store.job(job)).priority == 7
    await _put_first(store, job)
    await store.finish(await store.take(), Rejected("no"))
    copy = store.mint()
    assert (await alter(store, Clone((copy,)), job)).changed == 1
    assert (await store.job(copy)).priority == 7
