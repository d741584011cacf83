"""What operators read of keys, and how a store repairs a wrong number."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stoker.model.job import Status, Verdict
from stoker.model.outcome import Done, Snoozed
from stoker.model.query import Expired, Query, Repair, Retention, Sweep
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Miscount, Store
from stoker.testing.conformance.limit_helpers import ids, limited, running


@pytest.mark.spec("LIMIT-31")
async def test_subqueues_name_what_runs_and_who_holds(store: Store) -> None:
    """By name, page by page, with the number, the first due time and the holders."""
    jobs = await store.insert(*(limited(store, key, 2) for key in ("a", "b") for _ in range(3)))
    await store.insert(limited(store, None, 1, name="late", delay=HOUR), store.draft())
    await store.claim(n=9)
    views = await store.engine.control.subqueues(QUEUE)
    assert [msgspec.structs.replace(one, due=None) for one in views] == [
        SubqueueView(QUEUE, "api/a", "api", "a", 2, 2, holders=tuple(jobs[:2])),
        SubqueueView(QUEUE, "api/b", "api", "b", 2, 2, holders=tuple(jobs[3:5])),
        SubqueueView(QUEUE, "late", "late", None, 0, 1),
    ]
    assert [one.due for one in views] == [store.now(), store.now(), store.now() + HOUR]
    assert [one.name for one in await store.engine.control.subqueues(QUEUE, after="api/a", limit=1)] == ["api/b"]
    assert [one.name for one in await store.engine.control.subqueues(QUEUE, names=["late", "none"])] == ["late"]
    assert await store.engine.control.subqueues("other") == []


@pytest.mark.spec("LIMIT-49")
async def test_subqueues_count_the_jobs_that_are_due_and_wait(store: Store) -> None:
    """Whatever their priority, with retries, without those that run or are not due yet."""
    rate = Rate(1, per=60)
    await store.insert(*(limited(store, "a", 1, priority=n % 3) for n in range(120)))
    await store.insert(limited(store, "a", 1, delay=HOUR), store.draft())
    await store.insert(*(limited(store, "b", None, rate=rate) for _ in range(2)), limited(store, "c", delay=HOUR))
    claims = await store.claim(n=9)
    for claim in claims:
        if claim.options.limit is not None and claim.options.limit.key == "a":
            await store.finish(claim, Snoozed(0))
    views = {one.key: one for one in await store.engine.control.subqueues(QUEUE, counted=True)}
    assert {key: one.waiting for key, one in views.items()} == {"a": 120, "b": 1, "c": 0}
    assert [one.bucket and one.bucket.rate for one in views.values()] == [None, rate, None]
    assert [one.waiting for one in await store.engine.control.subqueues(QUEUE, names=["api/a"], counted=True)] == [120]
    assert {one.waiting for one in await store.engine.control.subqueues(QUEUE)} == {None}


@pytest.mark.core
@pytest.mark.spec("LIMIT-32")
async def test_a_number_that_is_wrong_is_repaired_after_a_minute(store: Store, request: pytest.FixtureRequest) -> None:
    """A slot comes back: `expire` counts what has been full for a minute, reports it, wakes a waiter."""
    jobs = await store.insert(*(limited(store) for _ in range(3)), limited(store, "b"), limited(store, "b"))
    first, other = await store.claim(n=9)
    await _miscount(store, request, "api/a", 2)
    await store.finish(first, Done())
    store.pass_time(MINUTE - 1)
    assert await store.claim(n=9) == []
    assert await _recount(store) == ()
    store.pass_time(1)
    await store.quiet(QUEUE)
    waiting = asyncio.create_task(store.engine.jobs.wait([QUEUE], ARRIVES))
    await asyncio.sleep(0)
    assert await _recount(store) == (Repair(QUEUE, "api/a", 1, 0),)
    assert await waiting == {QUEUE}
    assert await _recount(store) == ()
    assert ids(await store.claim(n=9)) == jobs[1:2]
    assert await running(store) == {"api/a": 1, "api/b": 1}
    store.pass_time(MINUTE)
    assert await _recount(store) == ()
    await store.enlist("w1")
    assert await store.finish(other, Done()) is Verdict.APPLIED
    assert ids(await store.claim(n=9)) == jobs[4:]


@pytest.mark.spec("LIMIT-32")
async def test_a_recount_knows_the_slots_that_waiting_jobs_keep(store: Store, request: pytest.FixtureRequest) -> None:
    """And no more wrong numbers are repaired at once than its limit says."""
    keys = ("a", "b", "c")
    await store.insert(*(limited(store, key, 2, hold="retrying") for key in keys for _ in range(3)))
    for claim in await store.claim(n=9):
        await store.finish(claim, Snoozed(HOUR))
    for key in keys:
        await _miscount(store, request, f"api/{key}", 3)
    store.pass_time(MINUTE)
    assert await _recount(store, limit=0) == ()
    found = [await _recount(store, limit=2), await _recount(store, limit=2)]
    assert [len(repairs) for repairs in found] == [2, 1]
    assert await _recount(store) == ()
    repairs = sorted((*found[0], *found[1]), key=lambda one: one.name)
    assert repairs == [Repair(QUEUE, f"api/{key}", 3, 2) for key in keys]
    assert await running(store) == {f"api/{key}": 2 for key in keys}
    assert await store.claim(n=9) == []


async def _miscount(store: Store, request: pytest.FixtureRequest, name: str, running: int) -> None:
    """Make a number wrong with the fixture that every engine provides."""
    miscount: Miscount = request.getfixturevalue("miscount")
    await miscount(store.engine, QUEUE, name, running)


async def _recount(store: Store, limit: int = 9) -> tuple[Repair, ...]:
    """Sweep the limits alone."""
    expired = await store.engine.operator.expire(Retention(sweeps=frozenset({Sweep.LIMITS}), limit=limit))
    assert expired == Expired(repairs=expired.repairs)
    assert expired.limits == len(expired.repairs)
    return expired.repairs


@pytest.mark.core
@pytest.mark.spec("LIMIT-37")
async def test_counts_and_records_do_not_know_of_subqueues(store: Store) -> None:
    """Census, pages and records of limited jobs are those of any job."""
    drafts = [limited(store, "a"), limited(store, "a"), limited(store, "b", delay=HOUR), store.draft()]
    jobs = await store.insert(*drafts)
    store.pass_time(SECOND)
    await store.claim(n=9)
    census = await store.engine.operator.census()
    assert await store.counts(QUEUE) == {Status.PENDING: 2, Status.RUNNING: 2}
    assert census.later == {QUEUE: 1}
    assert census.oldest_ready == {QUEUE: store.now() - SECOND}
    found = [await store.job(job) for job in jobs]
    assert [job.queue for job in found] == [QUEUE] * 4
    assert [job.options.limit for job in found] == [one.options.limit for one in drafts]
    assert [job.status for job in found] == [Status.RUNNING, Status.PENDING, Status.PENDING, Status.RUNNING]
    for queues in (frozenset[str](), frozenset({QUEUE})):
        page = await store.engine.operator.find(Query(order="due", queues=queues))
        assert [job.id for job in page.jobs] == jobs[1:3]
        page = await store.engine.operator.find(
            Query(order="oldest", statuses=frozenset({Status.PENDING}), queues=queues)
        )
        assert [job.id for job in page.jobs] == jobs[1:3]
