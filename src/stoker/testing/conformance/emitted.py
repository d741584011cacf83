"""Emitted values: pages of rows, written under the fence, read behind a number; and news of jobs."""

from __future__ import annotations

import asyncio

import pytest

from stoker.emitting import save_of
from stoker.engines.base import CONTROL, LEASE, Feature
from stoker.model.emitted import PAGES, Ring, What, entries_of, entry
from stoker.model.ids import JobId
from stoker.model.job import Claim, Verdict
from stoker.model.outcome import Done, Failed, Rejected, Snoozed
from stoker.model.query import Cancel, Clone, Delete, Fork, Requeue, Retention, Selection
from stoker.model.steps import Step
from stoker.model.time import DAY, SECOND
from stoker.testing.conformance.harness import ARRIVES, Store, heard_of_waiter, needs, twin_of
from stoker.testing.conformance.step_helpers import save, suspend


def _ring(claim: Claim) -> Ring:
    return Ring(claim.token, claim.attempt, fresh=claim.fresh)


async def _emit(store: Store, claim: Claim, ring: Ring, *values: bytes) -> Verdict:
    """Emit values and write them."""
    for value in values:
        ring.add(entry(store.now(), What.VALUE, value))
    made, _ = await save_of(store.engine, claim, ring)
    [verdict] = await store.engine.steps.save([made])
    return verdict


async def _read(store: Store, job: JobId, after: int = 0) -> list[tuple[int, int, bytes]]:
    rows = await store.engine.steps.emitted(job, after)
    return [(one.n, one.attempt, one.body) for one in entries_of(rows, after)]


@pytest.mark.core
@pytest.mark.spec("EMIT-10")
async def test_what_a_run_emits_is_read_behind_a_number(store: Store) -> None:
    """In the order of the numbers, also by another engine; never among the job's steps."""
    job = await store.add()
    claim = await store.take()
    assert await store.engine.steps.emitted(job) == await store.engine.steps.emitted(store.mint()) == []
    ring = _ring(claim)
    await save(store, claim, Step("a", value=b"1"))
    assert await _emit(store, claim, ring, b'"one"', b'{"two":2}') is Verdict.APPLIED
    assert await _emit(store, claim, ring, b"null") is Verdict.APPLIED
    assert await _read(store, job) == [(1, 1, b'"one"'), (2, 1, b'{"two":2}'), (3, 1, b"null")]
    assert await _read(store, job, 2) == [(3, 1, b"null")]
    assert await store.engine.steps.emitted(job, 3) == []
    [steps] = await store.engine.steps.get([job])
    assert [row.name for row in steps] == ["a"]


@pytest.mark.core
@pytest.mark.spec("EMIT-10")
async def test_a_ring_goes_round(store: Store) -> None:
    """After 2,000 values and some large ones, as many rows as before, and the newest values without a hole."""
    job = await store.add()
    claim = await store.take()
    ring = _ring(claim)
    for part in range(20):
        values = [b"%d" % n for n in range(100)] if part != 10 else [b'"%b"' % (b"x" * 60_000), b"1"]
        assert await _emit(store, claim, ring, *values) is Verdict.APPLIED
    numbers = [n for n, _, _ in await _read(store, job)]
    assert numbers == list(range(numbers[0], 1_903))
    assert len(numbers) > 800  # the large value is among them
    assert len(await store.engine.steps.emitted(job)) <= PAGES
    assert [n for n, _, _ in await _read(store, job, 1_900)] == [1_901, 1_902]


@pytest.mark.core
@pytest.mark.spec("EMIT-11")
async def test_a_run_that_lost_its_claim_emits_nothing(store: Store) -> None:
    """And the numbers of the next run go on behind those that were stored."""
    job = await store.add()
    claim = await store.take()
    ring = _ring(claim)
    assert await _emit(store, claim, ring, b"1", b"2") is Verdict.APPLIED
    await store.engine.jobs.renew("other", [], first=True)
    store.pass_time(LEASE + 1)
    await store.engine.jobs.renew("other", [], first=True)
    [later] = await store.engine.jobs.reap("other", 1)
    assert await _emit(store, claim, ring, b"3") is Verdict.LOST
    newer = _ring(later)
    assert await _emit(store, later, newer, b"4") is Verdict.APPLIED
    assert await _emit(store, claim, ring, b"5") is Verdict.LOST
    assert await _read(store, job) == [(1, 1, b"1"), (2, 1, b"2"), (3, later.attempt, b"4")]


@pytest.mark.spec("EMIT-11")
async def test_numbers_grow_over_attempts_and_suspensions(store: Store) -> None:
    """What was emitted stays through retries, suspensions, the end and a requeue, and goes with the job."""
    job = await store.add(attempts=5)
    for n, end in enumerate((Failed("no", after=SECOND), Snoozed(SECOND), None, Rejected("no")), 1):
        claim = await store.take()
        assert await _emit(store, claim, _ring(claim), b"%d" % n) is Verdict.APPLIED
        if end is None:
            await suspend(store, claim, after=SECOND)
        else:
            await store.finish(claim, end)
        store.pass_time(2 * SECOND)
    assert [(n, body) for n, _, body in await _read(store, job)] == [(n, b"%d" % n) for n in range(1, 5)]
    await store.engine.operator.alter(Selection((job,)), Requeue())
    claim = await store.take()
    assert await _emit(store, claim, _ring(claim), b"5") is Verdict.APPLIED
    assert (await _read(store, job))[-1][0] == 5
    await store.finish(claim, Done())
    store.pass_time(400 * DAY)
    await store.engine.operator.expire(Retention())
    assert await store.engine.steps.emitted(job) == []


@pytest.mark.spec("EMIT-12")
async def test_pages_go_with_the_job_and_not_to_its_copies(store: Store) -> None:
    job = await store.add(attempts=1)
    claim = await store.take()
    await save(store, claim, Step("a", value=b"1"))
    await _emit(store, claim, _ring(claim), b"1")
    await store.finish(claim, Failed("no"))
    clone, fork, behind = store.mint(), store.mint(), store.mint()
    await store.engine.operator.alter(Selection((job,)), Fork((fork,)))
    await store.engine.operator.alter(Selection((job,)), Fork((behind,), "a"))
    await store.engine.operator.alter(Selection((job,)), Clone((clone,)))
    for copy in (clone, fork, behind):
        assert await store.engine.steps.emitted(copy) == []
    assert await _read(store, job) == [(1, 1, b"1")]
    await store.engine.operator.alter(Selection((job,)), Delete())
    assert await store.engine.steps.emitted(job) == []


@pytest.mark.spec("EMIT-13")
async def test_pages_join_a_transaction(store: Store) -> None:
    """They exist if and only if it commits."""
    needs(store, Feature.OWN_TRANSACTION)
    job = await store.add()
    claim = await store.take()
    ring = _ring(claim)
    ring.add(entry(1, What.VALUE, b"1"))
    made, taken = await save_of(store.engine, claim, ring)
    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            assert await store.engine.steps.save([made], tx=tx) == [Verdict.APPLIED]
            raise ZeroDivisionError
    assert await store.engine.steps.emitted(job) == []
    ring.put_back(taken)
    made, _ = await save_of(store.engine, claim, ring)
    async with store.engine.transaction() as tx:
        assert await store.engine.steps.save([made], tx=tx) == [Verdict.APPLIED]
    assert await _read(store, job) == [(1, 1, b"1")]


@pytest.mark.core
@pytest.mark.spec("EMIT-14")
async def test_news_of_a_job_wake_its_watchers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves, settlements and cancels, in this engine and in another; what came between two calls is not missed."""
    known = heard_of_waiter(monkeypatch)
    job = await store.add(attempts=3)
    claim = await store.take()
    ring = _ring(claim)
    await store.engine.jobs.wait([CONTROL, "mail"], 0.01)  # as the engines of a worker do
    async with twin_of(store) as twin:
        far = await asyncio.wait_for(twin.jobs.news(job, 0, ARRIVES), ARRIVES)
        await asyncio.wait_for(known.wait(), ARRIVES)  # this engine has heard of the twin, which alone watches so far
        near = await asyncio.wait_for(store.engine.jobs.news(job, 0, ARRIVES), ARRIVES)

        async def wait() -> None:
            nonlocal far, near
            before = far, near
            theirs, mine = twin.jobs.news(job, far, 3 * ARRIVES), store.engine.jobs.news(job, near, 3 * ARRIVES)
            far, near = await asyncio.wait_for(asyncio.gather(theirs, mine), ARRIVES)
            assert (far > before[0], near > before[1]) == (True, True)

        await _emit(store, claim, ring, b"1")
        await wait()
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.02)
        await _emit(store, claim, ring, b"2")
        await waiting
        await store.finish(claim, Failed("no", after=SECOND))
        await wait()
        await store.engine.operator.alter(Selection((job,)), Cancel())
        await wait()


@pytest.mark.spec("EMIT-14")
async def test_no_news_is_told_in_time_and_closing_ends_the_wait(store: Store) -> None:
    job, other = await store.add(), await store.add()
    claims = {claim.id: claim for claim in await store.claim(n=2)}
    seen = await store.engine.jobs.news(job, 0, ARRIVES)
    await _emit(store, claims[other], _ring(claims[other]), b"1")
    assert await store.engine.jobs.news(job, seen, 0.04) == seen
    twin = store.engine.for_loop()
    await twin.open()
    seen = await twin.jobs.news(job, 0, ARRIVES)
    sleeper = asyncio.create_task(twin.jobs.news(job, seen, 3 * ARRIVES))
    await asyncio.sleep(0.02)
    await twin.close()
    await asyncio.wait_for(sleeper, ARRIVES)
