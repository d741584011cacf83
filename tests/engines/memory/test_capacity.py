from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.engines.memory import MemoryEngine
from stoker.model.errors import EngineClosed, EngineFull, InvalidOption
from stoker.model.ids import JobId, compose
from stoker.model.job import Claim, Demand, Draft, Receipt, Status, Stored
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, Outcome, Rejected
from stoker.model.query import Requeue, Selection
from stoker.model.schedule import NO_ID, Schedule, after_tick, draft_of, tick
from stoker.model.time import MINUTE
from stoker.model.unique import Unique

_numbers = iter(range(1, 1_000_000))


def draft(**options: Any) -> Draft:
    number = next(_numbers)
    return Draft(compose(number, number), "work", **options)


async def take(engine: MemoryEngine, n: int = 1) -> list[Claim]:
    await engine.jobs.renew("w", [], first=True)
    return await engine.jobs.claim(Demand("w", (("default", n),)))


async def end(engine: MemoryEngine, outcome: Outcome, n: int = 1) -> None:
    for claim in await take(engine, n):
        await engine.jobs.settle([conclude(claim, outcome)])


async def active(engine: MemoryEngine) -> int:
    counts = (await engine.operator.census()).by_status()
    return counts[Status.PENDING] + counts[Status.RUNNING] + counts[Status.RETRYING]


async def settled(*tasks: asyncio.Task[Any]) -> list[bool]:
    for _ in range(10):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


@pytest.fixture
async def full() -> AsyncIterator[MemoryEngine]:
    """Room for three, three inside, callers raise."""
    engine = MemoryEngine(capacity=3)
    await engine.open()
    await engine.jobs.insert([draft(), draft(), draft()])
    yield engine
    await engine.close()


@pytest.fixture
async def patient() -> AsyncIterator[MemoryEngine]:
    """Room for three, three inside, callers wait."""
    engine = MemoryEngine(capacity=3, when_full="wait")
    await engine.open()
    await engine.jobs.insert([draft(), draft(), draft()])
    yield engine
    await engine.close()


@pytest.mark.spec("MEMORY-02")
async def test_a_full_store_refuses_by_naming_its_capacity(full: MemoryEngine) -> None:
    with pytest.raises(EngineFull, match="capacity=3"):
        await full.jobs.insert([draft()])
    assert await active(full) == 3
    assert (await full.operator.census()).totals["work"].enqueued == 3


@pytest.mark.spec("MEMORY-02")
async def test_a_call_that_fits_only_in_part_stores_nothing(full: MemoryEngine) -> None:
    await end(full, Done())
    with pytest.raises(EngineFull):
        await full.jobs.insert([draft(), draft(queue="never.seen")])
    assert await active(full) == 2
    assert [queue.name for queue in await full.control.queues()] == ["default"]
    await full.jobs.insert([draft()])


@pytest.mark.spec("MEMORY-02")
async def test_a_full_store_still_answers_what_it_knows(full: MemoryEngine) -> None:
    await end(full, Done())
    keyed = draft(unique=Unique("k"))
    await full.jobs.insert([keyed])
    assert await full.jobs.insert([keyed, draft(unique=Unique("k"))]) == [Receipt(keyed.job_id, Stored.EXISTING)] * 2


@pytest.mark.spec("MEMORY-03")
async def test_running_and_retrying_jobs_take_room_and_finished_ones_do_not(full: MemoryEngine) -> None:
    await take(full, 3)
    with pytest.raises(EngineFull):
        await full.jobs.insert([draft()])
    engine = MemoryEngine(capacity=1)
    await engine.open()
    await engine.jobs.insert([draft()])
    await end(engine, Failed("again", after=1_000_000))
    with pytest.raises(EngineFull):
        await engine.jobs.insert([draft()])
    await engine.close()


@pytest.mark.spec("MEMORY-03")
async def test_a_follow_up_and_a_requeue_are_never_refused(full: MemoryEngine) -> None:
    [claim] = await take(full)
    follow = [draft(), draft()]
    await full.jobs.settle([conclude(claim, Done(followups=tuple(follow)))])
    assert await active(full) == 4
    [claim] = await take(full)
    await full.jobs.settle([conclude(claim, Rejected("no"))])
    assert (await full.operator.alter(Selection((claim.id,)), Requeue())).changed == 1
    assert await active(full) == 4


@pytest.mark.spec("MEMORY-02")
async def test_a_transaction_is_refused_when_it_does_not_fit(full: MemoryEngine) -> None:
    async with full.transaction() as tx:
        with pytest.raises(EngineFull):
            await full.jobs.insert([draft()], tx=tx)
    assert await active(full) == 3


@pytest.mark.spec("MEMORY-04")
async def test_a_patient_caller_is_let_in_when_a_job_ends(patient: MemoryEngine) -> None:
    waiting = asyncio.create_task(patient.jobs.insert([draft()]))
    assert await settled(waiting) == [False]
    await end(patient, Failed("again", after=0))
    assert await settled(waiting) == [False]
    await end(patient, Done())
    assert (await asyncio.wait_for(waiting, 60))[0].stored is Stored.INSERTED
    assert await active(patient) == 3


@pytest.mark.spec("MEMORY-04")
async def test_patient_callers_are_let_in_as_they_came(patient: MemoryEngine) -> None:
    much = asyncio.create_task(patient.jobs.insert([draft(), draft()]))
    little = asyncio.create_task(patient.jobs.insert([draft()]))
    assert await settled(much, little) == [False, False]
    await end(patient, Done())
    late = asyncio.create_task(patient.jobs.insert([draft()]))
    assert await settled(much, little, late) == [False, False, False]
    await end(patient, Done())
    assert await settled(much, little, late) == [True, False, False]
    await end(patient, Done(), n=2)
    assert await settled(much, little, late) == [True, True, True]


@pytest.mark.spec("MEMORY-04")
async def test_an_insert_that_gives_up_waiting_makes_way(patient: MemoryEngine) -> None:
    job = draft()
    first = asyncio.create_task(patient.jobs.insert([draft(), job]))
    second = asyncio.create_task(patient.jobs.insert([draft()]))
    await end(patient, Done())
    assert await settled(first, second) == [False, False]
    first.cancel()
    assert await settled(first, second) == [True, True]
    assert second.result()[0].stored is Stored.INSERTED
    assert await patient.operator.get([job.job_id]) == [None]


@pytest.mark.spec("MEMORY-04")
async def test_what_can_never_fit_is_refused_at_once(patient: MemoryEngine) -> None:
    with pytest.raises(EngineFull):
        await asyncio.wait_for(patient.jobs.insert([draft() for _ in range(4)]), 60)
    waiting = asyncio.create_task(patient.jobs.insert([draft()]))
    await end(patient, Done())
    assert await settled(waiting) == [True]


@pytest.mark.spec("MEMORY-04")
async def test_closing_sends_patient_callers_home(patient: MemoryEngine) -> None:
    waiting = asyncio.create_task(patient.jobs.insert([draft()]))
    await settled(waiting)
    await patient.close()
    with pytest.raises(EngineClosed):
        await asyncio.wait_for(waiting, 60)


@pytest.mark.spec("MEMORY-04")
async def test_a_crowd_through_a_narrow_gate(patient: MemoryEngine) -> None:
    stored: list[JobId] = []

    async def producer() -> None:
        for _ in range(20):
            [receipt] = await patient.jobs.insert([draft()])
            stored.append(receipt.id)
            assert await active(patient) <= 3

    producers = [asyncio.create_task(producer()) for _ in range(10)]
    while not all(task.done() for task in producers):
        await end(patient, Done(), n=2)
        await asyncio.sleep(0)
    await asyncio.gather(*producers)
    assert len(set(stored)) == 200


@pytest.mark.spec("MEMORY-02")
@pytest.mark.parametrize("options", [{"capacity": 0}, {"when_full": "drop"}, {"history": 0}], ids=str)
def test_impossible_options_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as refused:
        MemoryEngine(**options)
    assert refused.value.field in options


@pytest.mark.spec("SCHED-18")
async def test_a_full_store_leaves_an_occurrence_for_later(full: MemoryEngine) -> None:
    schedule = Schedule(name="report", expression="* * * * *", template=Draft(NO_ID, "work"))
    seeded = after_tick(schedule, tick(schedule, 1))
    full._store.schedules["report"] = seeded
    decision, job = tick(seeded, MINUTE), draft_of(seeded, MINUTE)
    with pytest.raises(EngineFull, match="has room for 3 active jobs"):
        await full.schedules.fire(decision, [job])
    assert await full.schedules.read() == [seeded]
    assert await active(full) == 3
    await end(full, Done())
    fired = await full.schedules.fire(decision, [job])
    assert fired.receipts == (Receipt(job.job_id, Stored.INSERTED),)
    assert await active(full) == 3
