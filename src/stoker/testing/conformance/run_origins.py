"""Origins of runs: each failure and the end of a job name the worker that ran it."""

from __future__ import annotations

import pytest

from stoker.engines.base import LEASE, Feature
from stoker.model.job import Options, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.outcome import Canceled, Crashed, Done, Failed, HandedBack, Rejected
from stoker.model.query import Cancel, Clone, Discard, Requeue, Restore, Selection
from stoker.model.run_origins import number
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store, needs

A, B = "worker-a", "worker-b"


@pytest.mark.core
@pytest.mark.spec("SETTLE-24")
async def test_a_failure_and_the_end_name_their_workers(store: Store) -> None:
    """A waiting job has no origin; each entry of the history and the success have that of their own run."""
    job = await store.add()
    assert (await store.job(job)).origin == 0
    await store.finish(await store.take(A), Failed("boom", after=0))
    assert (await store.job(job)).origin == 0
    await store.finish(await store.take(B), Failed("boom", after=0))
    await store.finish(await store.take(A), Done(b"1"))
    record = await store.job(job)
    assert [one.origin for one in record.history] == [number(A), number(B)]
    assert (record.status, record.origin) == (Status.DONE, number(A))


@pytest.mark.spec("SETTLE-24")
async def test_jobs_of_several_workers_end_in_one_call(store: Store) -> None:
    """Of a batch each success names its own worker: plain ones, members of limits, and those with a key or result."""
    limited = Options(limit=Slot("l", "k", 9))
    for options in ({}, {}, {"options": limited}, {"unique": Unique("k")}, {}):
        await store.add(**options)
    claims = [*await store.claim(A, 2), *await store.claim(B, 3)]
    results = (None, b"1", None, None, b"2")
    settled = await store.settle(*(conclude(one, Done(result)) for one, result in zip(claims, results, strict=True)))
    assert settled == [Verdict.APPLIED] * 5
    for claim in claims:
        assert (await store.job(claim.id)).origin == number(claim.worker)


@pytest.mark.core
@pytest.mark.spec("SETTLE-24")
async def test_a_crash_names_the_worker_that_died(store: Store) -> None:
    """The worker that took the claim over settles it; the run was the other one's."""
    again, last = await store.add(), await store.add(attempts=1)
    await store.claim(A, 2)
    store.pass_time(LEASE + 1)
    await store.enlist(B)
    for taken in await store.engine.jobs.reap(B, 10):
        await store.finish(taken, Crashed("killed"))
    assert [one.origin for one in (await store.job(again)).history] == [number(A)]
    record = await store.job(last)
    assert (record.status, record.origin, record.history[-1].origin) == (Status.DEAD, number(A), number(A))


@pytest.mark.spec("SETTLE-24")
async def test_what_no_run_ended_has_no_origin(store: Store) -> None:
    """A job that is canceled while it waits, handed back, requeued or cloned; one whose run was canceled has one."""
    waiting, running = await store.add(queue="other"), await store.add()
    alter = store.engine.operator.alter
    await alter(Selection((waiting,)), Cancel())
    assert (await store.job(waiting)).origin == 0
    await store.finish(await store.take(A), HandedBack())
    assert (await store.job(running)).origin == 0
    await store.finish(await store.take(A), Canceled("no"))
    assert (await store.job(running)).origin == number(A)
    dead = await store.add()
    await store.finish(await store.take(B), Rejected("no"))
    await alter(Selection((dead,)), Requeue())
    assert (await store.job(dead)).origin == 0
    await store.finish(await store.take(B), Rejected("no"))
    tally = await alter(Selection((dead,)), Clone((store.mint(),)))
    assert [(await store.job(one)).origin for one in (dead, *tally.created)] == [number(B), 0]


@pytest.mark.spec("SETTLE-24")
async def test_a_dead_job_keeps_its_origin_through_a_discard_and_its_undoing(store: Store) -> None:
    """Both change the status of an ended job, not who ended it."""
    dead = await store.add()
    await store.finish(await store.take(B), Rejected("no"))
    alter = store.engine.operator.alter
    tally = await alter(Selection((dead,)), Discard())
    assert (await store.job(dead)).origin == number(B)
    await alter(Selection((dead,)), Restore(tuple(tally.former)))
    record = await store.job(dead)
    assert (record.status, record.origin, record.history[-1].origin) == (Status.DEAD, number(B), number(B))


@pytest.mark.spec("SETTLE-24")
async def test_a_transaction_names_the_worker_too(store: Store) -> None:
    """Whichever way a success takes inside a transaction."""
    needs(store, Feature.OWN_TRANSACTION)
    one, two = await store.add(), await store.add()
    claims = await store.claim(A, 2)
    async with store.engine.transaction() as tx:
        await store.engine.jobs.settle([conclude(claims[0], Done())], tx=tx)
    assert (await store.job(one)).origin == number(A)
    if store.engine.outbox is None:
        return
    async with store.engine.transaction() as tx:
        held = await store.engine.outbox.hold(claims[1], tx=tx)
        assert held is not None
        assert await store.engine.outbox.settle_last(conclude(held, Done(b"2")), tx=tx)
    assert (await store.job(two)).origin == number(A)
