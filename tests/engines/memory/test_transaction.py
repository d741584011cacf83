from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.engines.memory import MemoryEngine
from stoker.model.errors import Duplicate, EngineBusy, EngineRefused, InvalidInput
from stoker.model.ids import compose
from stoker.model.job import Claim, Demand, Draft, Settlement, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, Throttled
from stoker.model.query import Query
from stoker.model.unique import Unique

_numbers = iter(range(1, 1_000_000))


def draft(**options: Any) -> Draft:
    number = next(_numbers)
    return Draft(compose(number, number), "work", **options)


@pytest.fixture
async def engine() -> AsyncIterator[MemoryEngine]:
    engine = MemoryEngine()
    await engine.open()
    await engine.jobs.renew("w", [], first=True)
    yield engine
    await engine.close()


async def take(engine: MemoryEngine, n: int = 1) -> list[Claim]:
    return await engine.jobs.claim(Demand("w", (("default", n),)))


async def everything(engine: MemoryEngine) -> list[object]:
    """Whatever a neighbour can see, but the time."""
    census = await engine.operator.census()
    page = await engine.operator.find(Query(limit=1_000))
    return [page.jobs, census.counts, census.totals, census.later, await engine.control.queues()]


class Change(Exception):
    pass


@pytest.mark.spec("MEMORY-07")
async def test_a_neighbour_sees_nothing_before_the_end_and_all_of_it_after(engine: MemoryEngine) -> None:
    await engine.jobs.insert([draft()])
    [claim] = await take(engine)
    twin = engine.for_loop()
    await twin.open()
    before = await everything(twin)
    async with engine.transaction() as tx:
        receipts = await engine.jobs.insert([draft(), draft(queue="other", delay=5)], tx=tx)
        settled = await engine.jobs.settle([conclude(claim, Done(b"1"))], tx=tx)
        assert settled.verdicts == [Verdict.APPLIED]
        assert await everything(twin) == before
        assert await take(engine) == []
    found = await twin.operator.get([receipt.id for receipt in receipts] + [claim.id])
    assert [job and job.status for job in found] == [Status.PENDING, Status.PENDING, Status.DONE]
    assert len(await take(engine)) == 1
    await twin.close()


@pytest.mark.spec("MEMORY-07")
async def test_a_block_that_raises_leaves_no_trace(engine: MemoryEngine) -> None:
    await engine.jobs.insert([draft(unique=Unique("weak")), draft()])
    weak, running = await take(engine, 2)
    await engine.jobs.settle([conclude(weak, Failed("again", after=10**9))])
    before = await everything(engine)
    await engine.jobs.wait(["default", "elsewhere"], 0)
    with pytest.raises(Change):
        async with engine.transaction() as tx:
            await engine.jobs.insert([draft(unique=Unique("weak")), draft(queue="elsewhere")], tx=tx)
            follow = draft(unique=Unique("another"))
            request = conclude(running, Throttled())
            request = Settlement(
                request.id, request.worker, request.token, request.status, cool=request.cool, followups=(follow,)
            )
            assert (await engine.jobs.settle([request], tx=tx)).verdicts == [Verdict.APPLIED]
            raise Change
    assert await everything(engine) == before
    assert await engine.jobs.wait(["default", "elsewhere"], 0) == frozenset()
    assert (await engine.jobs.renew("w", [(running.id, running.token)])).lost == []


@pytest.mark.spec("MEMORY-07")
async def test_waiters_are_woken_by_the_commit_and_not_before(engine: MemoryEngine) -> None:
    waiting = asyncio.create_task(engine.jobs.wait(["default"], 5))
    await asyncio.sleep(0)
    async with engine.transaction() as tx:
        await engine.jobs.insert([draft()], tx=tx)
        await asyncio.sleep(0.01)
        assert not waiting.done()
    assert await asyncio.wait_for(waiting, 60) == {"default"}


@pytest.mark.spec("MEMORY-07")
async def test_each_step_sees_the_steps_before_it(engine: MemoryEngine) -> None:
    one, two = draft(unique=Unique("k")), draft(unique=Unique("k"))
    async with engine.transaction() as tx:
        [first] = await engine.jobs.insert([one], tx=tx)
        [second] = await engine.jobs.insert([two], tx=tx)
        [again] = await engine.jobs.insert([one], tx=tx)
        plain = draft()
        assert [r.stored for r in await engine.jobs.insert([plain, plain], tx=tx)] == [Stored.INSERTED, Stored.EXISTING]
    assert (first.stored, second.stored, second.id) == (Stored.INSERTED, Stored.EXISTING, one.job_id)
    assert again.stored is Stored.EXISTING
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 2


@pytest.mark.spec("MEMORY-07")
async def test_a_refused_step_does_not_spoil_the_others(engine: MemoryEngine) -> None:
    async with engine.transaction() as tx:
        await engine.jobs.insert([draft(unique=Unique("k"))], tx=tx)
        one = draft()
        with pytest.raises(Duplicate):
            await engine.jobs.insert([one, draft(unique=Unique("k", mode="raise"))], tx=tx)
        [receipt] = await engine.jobs.insert([one], tx=tx)
        assert receipt.stored is Stored.INSERTED
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 2


@pytest.mark.spec("MEMORY-07")
async def test_many_plain_inserts_stay_cheap(engine: MemoryEngine) -> None:
    drafts = [draft() for _ in range(2_000)]
    async with engine.transaction() as tx:
        for one in drafts:
            await engine.jobs.insert([one], tx=tx)
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 2_000


@pytest.mark.spec("MEMORY-08")
async def test_a_foreign_handle_is_refused_by_name(engine: MemoryEngine) -> None:
    with sqlite3.connect(":memory:") as foreign, pytest.raises(EngineRefused, match=r"sqlite3\.Connection"):
        await engine.jobs.insert([draft()], tx=foreign)
    foreign.close()
    with pytest.raises(EngineRefused, match="object"):
        await engine.jobs.settle([], tx=object())
    assert (await engine.operator.census()).counts == ()


@pytest.mark.spec("MEMORY-08")
async def test_a_handle_of_another_store_or_of_the_past_is_refused(engine: MemoryEngine) -> None:
    other = MemoryEngine()
    await other.open()
    async with other.transaction() as tx:
        with pytest.raises(EngineRefused, match="another memory store"):
            await engine.jobs.insert([draft()], tx=tx)
    with pytest.raises(EngineRefused, match="has ended"):
        await other.jobs.insert([draft()], tx=tx)
    await other.close()


@pytest.mark.spec("MEMORY-08")
async def test_a_twins_handle_is_one_of_the_same_store(engine: MemoryEngine) -> None:
    twin = engine.for_loop()
    await twin.open()
    async with twin.transaction() as tx:
        await engine.jobs.insert([draft()], tx=tx)
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 1
    await twin.close()


@pytest.mark.spec("MEMORY-08")
async def test_a_claim_cannot_depend_on_a_commit(engine: MemoryEngine) -> None:
    async with engine.transaction() as tx:
        with pytest.raises(InvalidInput, match="tx="):
            await engine.jobs.settle([], tx=tx, demand=Demand("w", ()))


@pytest.mark.spec("MEMORY-09")
async def test_a_promise_the_store_cannot_keep_any_more_fails_the_whole_block(engine: MemoryEngine) -> None:
    mine, extra = draft(unique=Unique("k")), draft()
    theirs = draft(unique=Unique("k"))
    with pytest.raises(EngineBusy):
        async with engine.transaction() as tx:
            await engine.jobs.insert([extra, mine], tx=tx)
            await engine.jobs.insert([theirs])
    assert await engine.operator.get([mine.job_id, extra.job_id]) == [None, None]
    assert (await engine.operator.census()).totals["work"].enqueued == 1


@pytest.mark.spec("MEMORY-09")
async def test_a_claim_lost_before_the_commit_fails_the_whole_block(engine: MemoryEngine) -> None:
    await engine.jobs.insert([draft()])
    [claim] = await take(engine)
    extra = draft()
    await engine.jobs.renew("w2", [], first=True)
    with pytest.raises(EngineBusy):
        async with engine.transaction() as tx:
            assert (await engine.jobs.settle([conclude(claim, Done())], tx=tx)).verdicts == [Verdict.APPLIED]
            await engine.jobs.insert([extra], tx=tx)
            await engine.jobs.reap("w2", 1, dead=["w"])
    assert await engine.operator.get([extra.job_id]) == [None]
    [job] = await engine.operator.get([claim.id])
    assert job is not None
    assert (job.status, job.worker) == (Status.RUNNING, "w2")


@pytest.mark.spec("MEMORY-09")
async def test_a_key_taken_before_the_commit_is_a_duplicate(engine: MemoryEngine) -> None:
    extra = draft()
    with pytest.raises(Duplicate):
        async with engine.transaction() as tx:
            await engine.jobs.insert([extra, draft(unique=Unique("k", mode="raise"))], tx=tx)
            await engine.jobs.insert([draft(unique=Unique("k"))])
    assert await engine.operator.get([extra.job_id]) == [None]
