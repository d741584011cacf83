"""Jobs with a limit that operators, newer jobs and transactions change."""

from __future__ import annotations

import asyncio

import pytest

from stoker.engines.base import Feature
from stoker.model.control import Tuning
from stoker.model.job import Stored, Verdict
from stoker.model.outcome import Done, Failed
from stoker.model.query import Cancel, Clone, Delete, Move, Prioritize, Requeue, RunNow
from stoker.model.time import HOUR
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store, needs
from stoker.testing.conformance.limit_helpers import alter, ids, limited, running


@pytest.mark.spec("LIMIT-20")
async def test_an_operators_number_counts_for_all_keys_of_a_name(store: Store) -> None:
    """Until it is cleared, whatever jobs bring; raising it wakes a waiter, lowering it stops nothing."""
    jobs = await store.insert(*(limited(store, key) for _ in range(3) for key in ("a", "b")))
    assert ids(await store.claim(n=9)) == jobs[:2]
    await store.quiet(QUEUE)
    waiting = asyncio.create_task(store.engine.jobs.wait([QUEUE], ARRIVES))
    await asyncio.sleep(0)
    assert await store.engine.control.tune(QUEUE, Tuning(limits=(("api", 2),)))
    assert await waiting == {QUEUE}
    second = await store.claim(n=9)
    assert ids(second) == jobs[2:4]
    views = await store.engine.control.subqueues(QUEUE)
    assert [(one.name, one.running, one.most, one.pinned) for one in views] == [
        ("api/a", 2, 2, True),
        ("api/b", 2, 2, True),
    ]
    jobs += await store.insert(*(limited(store, "c", n=1) for _ in range(3)))
    assert ids(await store.claim(n=9)) == jobs[6:8]
    assert await store.engine.control.tune(QUEUE, Tuning(limits=(("api", None),)))
    assert not await store.engine.control.tune(QUEUE, Tuning(limits=(("api", None),)))
    assert await store.claim(n=9) == []
    for claim in second:
        assert await store.finish(claim, Done()) is Verdict.APPLIED
    assert await store.claim(n=9) == []
    [queue] = [one for one in await store.engine.control.queues() if one.name == QUEUE]
    assert queue.limits == ()


@pytest.mark.core
@pytest.mark.spec("LIMIT-21")
async def test_a_moved_job_counts_in_its_new_queue(store: Store) -> None:
    """It leaves one subqueue and joins the other queue's."""
    needs(store, Feature.ACROSS_QUEUES)
    jobs = await store.insert(limited(store), limited(store), limited(store, queue="other"))
    first = await store.take(queue="other")
    await alter(store, Move("other"), jobs[0])
    assert ids(await store.claim(n=9)) == jobs[1:2]
    assert await store.claim(n=9, queue="other") == []
    await store.finish(first, Done())
    assert ids(await store.claim(n=9, queue="other")) == jobs[:1]
    assert await running(store) == await running(store, "other") == {"api/a": 1}


@pytest.mark.spec("LIMIT-22", "LIMIT-23")
async def test_prioritize_and_run_now_give_a_new_place_in_the_key(store: Store) -> None:
    jobs = await store.insert(limited(store, n=9), limited(store, n=9), limited(store, n=9, delay=HOUR))
    await alter(store, Prioritize(-1), jobs[1])
    assert ids(await store.claim()) == jobs[1:2]
    await alter(store, RunNow(), jobs[2])
    await alter(store, Prioritize(-9), jobs[2])
    assert ids(await store.claim(n=9)) == [jobs[2], jobs[0]]


@pytest.mark.core
@pytest.mark.spec("LIMIT-24")
async def test_a_replaced_job_has_the_limit_of_the_newer_draft(store: Store) -> None:
    """Another key, no key, and where the store can another queue."""
    unique = Unique("u", mode="replace")
    first, full = await store.insert(limited(store, unique=unique), limited(store))
    [receipt] = await store.engine.jobs.insert([limited(store, "b", unique=unique)])
    assert (receipt.id, receipt.stored) == (first, Stored.REPLACED)
    assert ids(await store.claim(n=9)) == [first, full]
    assert await running(store) == {"api/a": 1, "api/b": 1}
    [third] = await store.insert(limited(store, "c", unique=Unique("v", mode="replace")))
    [receipt] = await store.engine.jobs.insert([store.draft(unique=Unique("v", mode="replace"))])
    assert receipt.id == third
    assert ids(await store.claim(n=9)) == [third]
    assert "api/c" not in await running(store)
    if Feature.ACROSS_QUEUES in store.engine.features:
        [fourth] = await store.insert(limited(store, "d", unique=Unique("w", mode="replace")))
        await store.insert(limited(store, "d", unique=Unique("w", mode="replace"), queue="other"))
        assert await store.claim(n=9) == []
        assert ids(await store.claim(n=9, queue="other")) == [fourth]


@pytest.mark.spec("LIMIT-25")
async def test_a_superseded_job_leaves_its_key(store: Store) -> None:
    """A newer job ends the one that waits for its retry; the key goes on."""
    unique = Unique("u")
    await store.insert(limited(store, unique=unique))
    await store.finish(await store.take(), Failed("broken", after=0))
    [newer] = await store.insert(limited(store, unique=unique))
    assert ids(await store.claim(n=9)) == [newer]
    assert await running(store) == {"api/a": 1}


@pytest.mark.core
@pytest.mark.spec("LIMIT-26", "LIMIT-27")
async def test_requeued_and_cloned_jobs_join_their_key(store: Store) -> None:
    jobs = await store.insert(*(limited(store, attempts=1) for _ in range(2)))
    for _ in jobs:
        await store.finish(await store.take(), Failed("broken"))
    [blocker] = await store.insert(limited(store))
    holder = await store.take()
    await alter(store, Requeue(), jobs[0])
    clone = store.mint()
    await alter(store, Clone((clone,)), jobs[1])
    assert await store.claim(n=9) == []
    assert await store.finish(holder, Done()) is Verdict.APPLIED
    [claim] = await store.claim(n=9)
    assert claim.id in (jobs[0], clone)
    assert blocker not in ids([claim])
    await store.finish(claim, Done())
    assert {claim.id, *ids(await store.claim(n=9))} == {jobs[0], clone}


@pytest.mark.core
@pytest.mark.spec("LIMIT-30", "LIMIT-36")
async def test_canceled_and_deleted_jobs_leave_their_key(store: Store) -> None:
    """The head of a full key may go: the next one starts, and a key without jobs leaves nothing behind."""
    jobs = await store.insert(*(limited(store) for _ in range(4)))
    claim = await store.take()
    await alter(store, Cancel(), jobs[1])
    await alter(store, Cancel(), jobs[2])
    await alter(store, Delete(), jobs[2])
    await store.finish(claim, Done())
    [last] = await store.claim(n=9)
    assert last.id == jobs[3]
    await store.finish(last, Done())
    assert await store.claim(n=9) == []
    assert await store.engine.control.subqueues(QUEUE) == []


@pytest.mark.core
@pytest.mark.spec("LIMIT-28")
async def test_a_job_of_a_transaction_counts_if_it_commits(store: Store) -> None:
    """A rollback leaves nothing; an open transaction delays no other job of the key."""
    needs(store, Feature.OWN_TRANSACTION)
    engine = store.engine

    class Undone(Exception):
        pass

    with pytest.raises(Undone):
        async with engine.transaction() as tx:
            await engine.jobs.insert([limited(store)], tx=tx)
            raise Undone
    assert await store.claim(n=9) == []
    assert await store.engine.control.subqueues(QUEUE) == []
    async with engine.transaction() as tx:
        [receipt] = await engine.jobs.insert([limited(store)], tx=tx)
        if Feature.BESIDE_TRANSACTIONS in engine.features:
            other = await store.insert(limited(store))
            claim = await store.take()
            assert [claim.id] == other
            await store.finish(claim, Done())
    assert ids(await store.claim(n=9)) == [receipt.id]
