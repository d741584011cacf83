"""Transactions: inserts and settlements exist if and only if the transaction commits."""

from __future__ import annotations

import pytest

from stoker.engines.base import Feature
from stoker.model.errors import Duplicate, EngineRefused, StokerError
from stoker.model.job import Receipt, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed
from stoker.model.query import Query
from stoker.model.time import HOUR
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import QUEUE, Store, needs


class _Trouble(Exception):
    """What a user's code raises in the middle of a transaction."""


async def _woken(store: Store) -> bool:
    """Was a waiter of the queue woken, or a wake-up remembered?"""
    return bool(await store.engine.jobs.wait([QUEUE], 0))


@pytest.mark.core
@pytest.mark.spec("TX-01")
async def test_a_committed_insert_exists(store: Store) -> None:
    """After the block ended normally the jobs are there, are claimable, and a waiter is woken."""
    needs(store, Feature.OWN_TRANSACTION)
    draft = store.draft()
    async with store.engine.transaction() as tx:
        assert await store.engine.jobs.insert([draft], tx=tx) == [Receipt(draft.job_id, Stored.INSERTED)]
    assert await store.status(draft.job_id) is Status.PENDING
    assert await store.counts() == {Status.PENDING: 1}
    assert await _woken(store)
    assert (await store.take()).id == draft.job_id


@pytest.mark.core
@pytest.mark.spec("TX-02")
async def test_a_rolled_back_insert_never_happened(store: Store) -> None:
    """When the block raises there is no job, no count, no key, no total and no wake-up; the error passes through."""
    needs(store, Feature.OWN_TRANSACTION)
    drafts = [store.draft(), store.draft(unique=Unique("k"))]
    with pytest.raises(_Trouble):
        async with store.engine.transaction() as tx:
            await store.engine.jobs.insert(drafts, tx=tx)
            raise _Trouble
    assert await store.engine.operator.get([draft.job_id for draft in drafts]) == [None, None]
    assert await store.counts() == {}
    assert (await store.engine.operator.census()).totals == {}
    assert not await _woken(store)
    assert (await store.engine.jobs.insert([store.draft(unique=Unique("k"))]))[0].stored is Stored.INSERTED


@pytest.mark.spec("TX-02")
async def test_a_rollback_restores_what_inserts_had_changed(store: Store) -> None:
    """Superseded and replaced jobs are as before."""
    needs(store, Feature.OWN_TRANSACTION)
    weak = await store.add(unique=Unique("weak"))
    await store.finish(await store.take(), Failed("boom", after=HOUR))
    pending = await store.add(unique=Unique("pending"), payload=b"1")
    before = await store.snapshot([weak, pending])
    with pytest.raises(_Trouble):
        async with store.engine.transaction() as tx:
            await store.engine.jobs.insert([store.draft(unique=Unique("weak"))], tx=tx)
            await store.engine.jobs.insert([store.draft(unique=Unique("pending", mode="replace"), payload=b"2")], tx=tx)
            raise _Trouble
    assert await store.snapshot([weak, pending]) == before


@pytest.mark.core
@pytest.mark.spec("TX-03")
async def test_a_settlement_joins_the_transaction(store: Store) -> None:
    """Committed it applied; rolled back the job still runs under the same claim and can be settled again."""
    needs(store, Feature.OWN_TRANSACTION)
    job = await store.add()
    claim = await store.take()
    settlement = conclude(claim, Done(b"1", followups=(store.draft("child"),)))
    before = await store.snapshot([job])
    with pytest.raises(_Trouble):
        async with store.engine.transaction() as tx:
            assert (await store.engine.jobs.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]
            raise _Trouble
    assert await store.snapshot([job]) == before
    async with store.engine.transaction() as tx:
        assert (await store.engine.jobs.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]
    assert await store.status(job) is Status.DONE
    assert await store.counts() == {Status.DONE: 1, Status.PENDING: 1}


@pytest.mark.spec("TX-03")
async def test_the_fence_holds_inside_a_transaction(store: Store) -> None:
    """A stale settlement is lost there too and does not spoil the rest of the transaction."""
    needs(store, Feature.OWN_TRANSACTION)
    await store.add()
    claim = await store.take()
    await store.finish(claim, Failed("boom", after=HOUR))
    other = store.draft()
    async with store.engine.transaction() as tx:
        verdicts = (await store.engine.jobs.settle([conclude(claim, Done())], tx=tx)).verdicts
        await store.engine.jobs.insert([other], tx=tx)
    assert verdicts[0] in {Verdict.LOST, Verdict.REPEATED}
    assert await store.status(claim.id) is Status.RETRYING
    assert await store.status(other.job_id) is Status.PENDING


@pytest.mark.spec("TX-04")
async def test_several_calls_commit_together(store: Store) -> None:
    """Inserts and a settlement of one transaction are all there, or none."""
    needs(store, Feature.OWN_TRANSACTION)
    await store.add()
    claim = await store.take()
    first, second = store.draft(unique=Unique("k")), store.draft(unique=Unique("k"))
    async with store.engine.transaction() as tx:
        await store.engine.jobs.insert([first], tx=tx)
        await store.engine.jobs.settle([conclude(claim, Done())], tx=tx)
        assert await store.engine.jobs.insert([second], tx=tx) == [Receipt(first.job_id, Stored.EXISTING)]
    assert await store.counts() == {Status.DONE: 1, Status.PENDING: 1}


@pytest.mark.spec("TX-04")
async def test_a_refused_call_inside_a_transaction_leaves_the_others(store: Store) -> None:
    """A Duplicate that the user catches undoes its own call only; the transaction goes on."""
    needs(store, Feature.OWN_TRANSACTION)
    holder = await store.add(unique=Unique("k"))
    first, refused, last = store.draft(), store.draft(), store.draft()
    async with store.engine.transaction() as tx:
        await store.engine.jobs.insert([first], tx=tx)
        with pytest.raises(Duplicate):
            await store.engine.jobs.insert([refused, store.draft(unique=Unique("k", mode="raise"))], tx=tx)
        await store.engine.jobs.insert([last], tx=tx)
    records = await store.engine.operator.get([holder, first.job_id, refused.job_id, last.job_id])
    assert [record is not None for record in records] == [True, True, False, True]


@pytest.mark.spec("TX-04")
async def test_an_empty_transaction_is_harmless(store: Store) -> None:
    """Nothing in, nothing out, no waiter woken."""
    needs(store, Feature.OWN_TRANSACTION)
    async with store.engine.transaction() as tx:
        assert await store.engine.jobs.insert([], tx=tx) == []
    assert await store.counts() == {}
    assert not await _woken(store)


@pytest.mark.core
@pytest.mark.spec("TX-05")
async def test_a_foreign_handle_is_refused(store: Store) -> None:
    """Something that is no transaction of this store is refused by name, and nothing is stored or settled."""
    await store.add()
    claim = await store.take()
    draft = store.draft()
    before = await store.snapshot([claim.id])
    with pytest.raises(EngineRefused, match="object"):
        await store.engine.jobs.insert([draft], tx=object())
    with pytest.raises(EngineRefused, match="object"):
        await store.engine.jobs.settle([conclude(claim, Done())], tx=object())
    with pytest.raises(EngineRefused, match="object"):
        await store.engine.operator.find(Query(), tx=object())
    assert await store.gone(draft.job_id)
    assert await store.snapshot([claim.id]) == before


@pytest.mark.spec("TX-05")
async def test_a_transaction_that_is_over_is_refused(store: Store) -> None:
    """A handle kept beyond its block stores nothing."""
    needs(store, Feature.OWN_TRANSACTION)
    async with store.engine.transaction() as tx:
        await store.engine.jobs.insert([store.draft()], tx=tx)
    late = store.draft()
    with pytest.raises(StokerError):
        await store.engine.jobs.insert([late], tx=tx)
    assert await store.gone(late.job_id)


@pytest.mark.spec("TX-06")
async def test_the_store_works_on_after_a_rollback(store: Store) -> None:
    """No lock and no half-open transaction stays behind: ordinary calls and new transactions go on."""
    needs(store, Feature.OWN_TRANSACTION)
    for _ in range(3):
        with pytest.raises(_Trouble):
            async with store.engine.transaction() as tx:
                await store.engine.jobs.insert([store.draft()], tx=tx)
                raise _Trouble
    job = await store.add()
    assert await store.finish(await store.take(), Done()) is Verdict.APPLIED
    assert await store.status(job) is Status.DONE


@pytest.mark.core
@pytest.mark.spec("TX-07")
async def test_a_transaction_finds_what_it_has_written(store: Store) -> None:
    """A page with its handle has its new jobs and their new statuses; one without it is as before the commit."""
    needs(store, Feature.OWN_TRANSACTION)
    ended = await store.add(unique=Unique("weak"))
    claim = await store.take()
    other = await store.add(unique=Unique("replaced"), payload=b"1")
    before = await store.engine.operator.find(Query(order="oldest"))
    async with store.engine.transaction() as tx:
        assert await store.engine.operator.find(Query(order="oldest"), tx=tx) == before
        new = store.draft(priority=3, tenant="t", payload=b'"\xc3\xa9"')
        await store.engine.jobs.insert([new], tx=tx)
        await store.engine.jobs.insert([store.draft(unique=Unique("replaced", mode="replace"), payload=b"2")], tx=tx)
        await store.engine.jobs.settle([conclude(claim, Done(b"1"))], tx=tx)
        page = await store.engine.operator.find(Query(order="oldest"), tx=tx)
        assert [(job.id, job.status, job.payload) for job in page.jobs] == [
            (ended, Status.DONE, claim.payload),
            (other, Status.PENDING, b"2"),
            (new.job_id, Status.PENDING, new.payload),
        ]
        assert (page.jobs[2].priority, page.jobs[2].tenant) == (3, "t")
        for query in (Query(statuses=frozenset({Status.DONE})), Query(order="finished")):
            assert [job.id for job in (await store.engine.operator.find(query, tx=tx)).jobs] == [ended]
        [due] = (await store.engine.operator.find(Query(order="due", tenant="t"), tx=tx)).jobs
        assert due.id == new.job_id
        assert await store.engine.operator.find(Query(order="oldest")) == before
    after = await store.engine.operator.find(Query(order="oldest"))
    assert [job.id for job in after.jobs] == [ended, other, new.job_id]


@pytest.mark.spec("TX-07")
async def test_pages_of_a_transaction_follow_one_another(store: Store) -> None:
    """The cursor of a page leads to the next one, across what was stored before and what the transaction stores."""
    needs(store, Feature.OWN_TRANSACTION)
    jobs = [await store.add() for _ in range(3)]
    async with store.engine.transaction() as tx:
        drafts = [store.draft() for _ in range(3)]
        await store.engine.jobs.insert(drafts, tx=tx)
        found, cursor = [], None
        while True:
            page = await store.engine.operator.find(Query(order="oldest", limit=2, cursor=cursor), tx=tx)
            found += [job.id for job in page.jobs]
            if (cursor := page.cursor) is None:
                break
    assert found == [*jobs, *(draft.job_id for draft in drafts)]
