"""Jobs of another store: stored as they were there, once, with their steps."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from stoker.model.archive import Archived, Put, read, written
from stoker.model.ids import JobId
from stoker.model.job import Job, Note, Status
from stoker.model.outcome import Done, Failed
from stoker.model.steps import Save, Step
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE
from stoker.model.unique import Unique
from stoker.testing.conformance.alter_helpers import each_status
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store
from stoker.testing.conformance.limit_helpers import limited, running


async def carried(store: Store, job: JobId) -> tuple[Job, Archived]:
    """A job, and the same under another id as a line of an archive carries it."""
    [found], [steps] = await store.engine.operator.get([job]), await store.engine.steps.get([job])
    assert found is not None
    one = read(written(msgspec.structs.replace(found, id=store.mint()), steps), 1)
    return found, one


async def put(store: Store, *jobs: Archived) -> list[Put]:
    return await store.engine.operator.put(jobs)


@pytest.mark.core
@pytest.mark.spec("PUT-01")
async def test_a_job_of_every_status_comes_back_as_it_was(store: Store) -> None:
    """One that ran is pending, without the attempt that has not ended; counters know all of them."""
    jobs = await each_status(store)
    before = (await store.engine.operator.census()).by_status()
    pairs = [await carried(store, job) for job in jobs.values()]
    assert await put(store, *(one for _, one in pairs)) == [Put.STORED] * len(pairs)
    found = await store.engine.operator.get([one.record.id for _, one in pairs])
    for (was, one), now in zip(pairs, found, strict=True):
        assert now is not None
        wanted = msgspec.structs.replace(was, id=one.record.id, known_as=now.known_as)
        if was.status is Status.RUNNING:
            pending = {"status": Status.PENDING, "worker": None, "attempts": 0, "started_at": None}
            wanted = msgspec.structs.replace(wanted, **pending)
        assert now == wanted
    after = (await store.engine.operator.census()).by_status()
    assert Counter(after) == Counter(before) + Counter(one.record.status for _, one in pairs)
    assert await put(store, *(one for _, one in pairs)) == [Put.EXISTING] * len(pairs)
    assert (await store.engine.operator.census()).by_status() == after
    claim = await store.take(queue=Status.RUNNING.value)
    assert (claim.attempt, claim.id) == (1, pairs[list(jobs).index(Status.RUNNING)][1].record.id)
    assert await store.finish(claim, Done(b"2")) == "applied"


@pytest.mark.spec("PUT-01")
async def test_history_log_metadata_and_progress_come_back(store: Store) -> None:
    job = await store.add(tenant="acme", priority=7, attempts=9)
    for n in range(3):
        claim = await store.take()
        noted = Note(claim.id, claim.worker, claim.token, 0.5, {"n": str(n)}, (f"line {n}",))
        await store.engine.jobs.note([noted])
        await store.finish(claim, Failed(f"error {n}\n\0é", after=0))
    was, one = await carried(store, job)
    assert await put(store, one) == [Put.STORED]
    [now] = await store.engine.operator.get([one.record.id])
    assert now == msgspec.structs.replace(was, id=one.record.id)
    assert [entry.error for entry in one.record.history] == [entry.error for entry in was.history]
    assert len(was.history) == 3


@pytest.mark.spec("PUT-02")
async def test_a_key_that_is_held_blocks_an_active_job_and_no_finished_one(store: Store) -> None:
    """A success keeps its key for what is left of its time."""
    held = await store.add(unique=Unique("img:7"))
    _, one = await carried(store, held)
    other = await carried(store, await store.add())
    assert await put(store, one, other[1]) == [Put.BLOCKED, Put.STORED]
    assert await store.engine.operator.get([one.record.id]) == [None]
    claim = next(one for one in await store.claim(n=9) if one.id == held)
    await store.finish(claim, Done())
    _, done = await carried(store, held)
    assert await put(store, done, one) == [Put.STORED, Put.STORED]
    assert (await store.engine.jobs.insert([store.draft(unique=Unique("img:7"))]))[0].id == one.record.id
    keeps = await store.add(unique=Unique("img:8", for_=60))
    [claim] = [one for one in await store.claim(n=9) if one.id == keeps]
    await store.finish(claim, Done())
    _, kept = await carried(store, keeps)
    again = msgspec.structs.replace(kept.record, unique=Unique("img:9", for_=60))
    assert await put(store, Archived(again)) == [Put.STORED]
    assert (await store.engine.jobs.insert([store.draft(unique=Unique("img:9"))]))[0].id == again.id
    store.pass_time(MINUTE)
    assert (await store.engine.jobs.insert([store.draft(unique=Unique("img:9"))]))[0].stored == "inserted"


@pytest.mark.spec("PUT-03")
async def test_steps_come_back_with_their_job(store: Store) -> None:
    job = await store.add()
    claim = await store.take()
    rows = (Step("charge", value=b'{"id": 7}'), Step("ask", value=b"null"))
    await store.engine.steps.save([Save(job, claim.worker, claim.token, rows)])
    await store.finish(claim, Failed("again", after=HOUR))
    _, one = await carried(store, job)
    assert await put(store, one) == [Put.STORED]
    was, now = await store.engine.steps.get([job, one.record.id])
    assert now == was
    assert {row.name: row.value for row in now} == {"charge": b'{"id": 7}', "ask": b"null"}


@pytest.mark.spec("PUT-04")
async def test_jobs_that_are_due_wake_a_waiter_and_obey_their_limit(store: Store) -> None:
    first = await store.insert(*(limited(store, "a", 1, rate=Rate(1_000)) for _ in range(3)))
    assert len(await store.claim(n=9)) == 1
    parts = [(await carried(store, job))[1] for job in first[1:]]
    await store.quiet(QUEUE)
    waiting = asyncio.create_task(store.engine.jobs.wait([QUEUE], ARRIVES))
    await asyncio.sleep(0)
    assert await put(store, *parts) == [Put.STORED, Put.STORED]
    assert await waiting == {QUEUE}
    assert await store.claim(n=9) == []
    assert await running(store) == {"api/a": 1}
    assert [one.waiting for one in await store.engine.control.subqueues(QUEUE, counted=True)] == [4]


@pytest.mark.spec("PUT-04")
async def test_nothing_is_put(store: Store) -> None:
    assert await put(store) == []
