"""A user's open transaction that holds a unique key: who needs that key waits, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import psycopg
import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.postgres import PostgresEngine, settle
from stoker.engines.sql.user_handles.handles import drive
from stoker.model.errors import EngineBusy
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Settlement, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed
from stoker.model.time import HOUR
from stoker.model.unique import Mode, Unique
from tests.engines.postgres.sleepers import Make
from tests.harness.apps import PATIENCE, until, working

pytestmark = pytest.mark.engine("postgres")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)


def draft(kind: str = "work", **options: Any) -> Draft:
    return Draft(job_id=mint(), kind=kind, **options)


def keyed(key: str, mode: Mode = "existing") -> Draft:
    return draft("child", unique=Unique(key, mode=mode))


async def claims(engine: PostgresEngine, n: int) -> list[Claim]:
    await engine.jobs.insert([draft() for _ in range(n)])
    await engine.jobs.renew("w1", [], first=True)
    return await engine.jobs.claim(Demand("w1", (("default", n),)))


def done(claim: Claim, *followups: Draft) -> Settlement:
    return conclude(claim, Done(followups=followups))


@pytest.mark.spec("PGTX-08")
async def test_a_worker_whose_follow_up_meets_a_key_goes_on_with_everything_else(
    postgres_url: str, postgres_schema: str
) -> None:
    jobs = Stoker(PostgresEngine(postgres_url, schema=postgres_schema))

    @jobs.task
    async def work(n: int) -> int:
        if n == 0:
            current().follow_up(work.using(unique="k").draft(99))
        return n

    async with jobs:
        with psycopg.connect(postgres_url) as theirs:
            await work.using(unique="k", tx=theirs).enqueue(98)
            async with working(jobs) as worker:
                held = await work.enqueue(0)
                await until(lambda: len(worker.outcomes.held))
                others = [await work.enqueue(n) for n in range(1, 51)]
                assert [await handle.result(PATIENCE) for handle in others] == list(range(1, 51))
                assert worker.ready
                assert (await held.refresh()).status is Status.RUNNING
                theirs.commit()
                assert await held.result(PATIENCE) == 0


@pytest.mark.spec("PGTX-08")
@pytest.mark.parametrize("mode", ["existing", "replace", "raise"])
async def test_every_mode_of_a_key_is_held_and_only_those_that_need_it(
    make: Make, postgres_url: str, mode: Mode
) -> None:
    engine = await make()
    mine = await claims(engine, 7)
    settlements = [
        done(mine[0], keyed("free", mode)),
        done(mine[1], keyed("k", mode)),
        done(mine[2]),
        done(mine[3], keyed("l", mode), draft()),
        done(mine[4], keyed("k", mode)),
        conclude(mine[5], Failed("boom", after=HOUR)),
        done(mine[6], keyed("other", mode), keyed("k", mode)),
    ]
    with psycopg.connect(postgres_url) as theirs:
        await engine.jobs.insert([keyed("k"), keyed("l")], tx=theirs)
        verdicts = (await engine.jobs.settle(settlements)).verdicts
        assert [place for place, verdict in enumerate(verdicts) if verdict is Verdict.HELD] == [1, 3, 4, 6]
        assert set(verdicts) == {Verdict.HELD, Verdict.APPLIED}
        assert (await engine.jobs.settle([settlements[1]])).verdicts == [Verdict.HELD]
        theirs.rollback()
    verdicts = (await engine.jobs.settle([settlements[place] for place in (1, 3, 4, 6)])).verdicts
    assert verdicts == [Verdict.APPLIED] * 4
    counts = (await engine.operator.census()).by_status()
    assert (counts[Status.DONE], counts[Status.RETRYING], counts[Status.PENDING]) == (6, 1, 5)


@pytest.mark.spec("PGTX-08")
async def test_a_holder_that_is_being_replaced_holds_too(make: Make, postgres_url: str) -> None:
    """The key's row is stored, but the job that holds it is being changed."""
    engine = await make()
    [claim] = await claims(engine, 1)
    await engine.jobs.insert([keyed("k")])
    with psycopg.connect(postgres_url) as theirs:
        await engine.jobs.insert([keyed("k", "replace")], tx=theirs)
        settlement = done(claim, keyed("k", "replace"))
        assert (await engine.jobs.settle([settlement])).verdicts == [Verdict.HELD]
        theirs.commit()
    assert (await engine.jobs.settle([settlement])).verdicts == [Verdict.APPLIED]


@pytest.mark.spec("PGTX-08")
async def test_inserts_that_wait_for_a_key_leave_the_way_free(make: Make, postgres_url: str) -> None:
    """However many wait: settlements, plain inserts and notes have connections of their own."""
    engine = await make(timeout=PATIENCE)
    [claim] = await claims(engine, 1)
    with psycopg.connect(postgres_url) as theirs:
        await engine.jobs.insert([keyed("k")], tx=theirs)
        waiting = [asyncio.create_task(engine.jobs.insert([keyed("k", "raise")])) for _ in range(8)]
        async with asyncio.timeout(PATIENCE):
            while theirs.execute("select 1 from pg_stat_activity where wait_event_type = 'Lock'").fetchone() is None:
                await asyncio.sleep(0.01)
            await engine.jobs.insert([draft() for _ in range(3)])
            assert (await engine.jobs.settle([done(claim)])).verdicts == [Verdict.APPLIED]
        assert not any(task.done() for task in waiting)
        theirs.rollback()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(one, list) for one in found) == 1


@pytest.mark.spec("PGTX-06")
async def test_an_open_transaction_does_not_hold_up_the_holder_it_names(make: Make, postgres_url: str) -> None:
    engine = await make()
    await engine.jobs.insert([keyed("k")])
    await engine.jobs.renew("w1", [], first=True)
    with psycopg.connect(postgres_url) as theirs:
        [named] = await engine.jobs.insert([keyed("k")], tx=theirs)
        assert named.stored is Stored.EXISTING
        [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
        assert claim.id == named.id
        [again] = await engine.jobs.insert([keyed("k", "replace")], tx=theirs)
        assert again.stored is Stored.EXISTING
        assert (await engine.jobs.settle([conclude(claim, Failed("boom", after=HOUR))])).verdicts == [Verdict.APPLIED]


@pytest.mark.spec("PGRACE-10")
@pytest.mark.parametrize("key", ["same", "other"])
@pytest.mark.parametrize("joined", [False, True], ids=["alone", "in a transaction"])
async def test_a_draft_stored_by_two_at_once_is_stored_once(
    make: Make, postgres_url: str, postgres_schema: str, key: str, joined: bool
) -> None:
    engine = await make()
    first = keyed("same")
    second = Draft(job_id=first.job_id, kind=first.kind, unique=Unique(key))
    beside = keyed("beside")
    with psycopg.connect(postgres_url) as theirs, psycopg.connect(postgres_url) as ours:
        await engine.jobs.insert([first], tx=theirs)
        if joined:
            call = asyncio.to_thread(drive, engine.jobs.insert([beside, second], tx=ours))
        else:
            call = engine.jobs.insert([beside, second])
        task = asyncio.ensure_future(call)
        async with asyncio.timeout(PATIENCE):
            while theirs.execute("select 1 from pg_stat_activity where wait_event_type = 'Lock'").fetchone() is None:
                await asyncio.sleep(0.01)
        theirs.commit()
        receipts = await task
        ours.commit()
        assert [receipt.stored for receipt in receipts] == [Stored.INSERTED, Stored.EXISTING]
        held = ours.execute(f"select slot, id from {postgres_schema}.dedupe order by slot".encode()).fetchall()
        assert [(slot, job.bytes) for slot, job in held] == [
            ("child/beside", beside.job_id),
            ("child/same", first.job_id),
        ]
    assert {(count.status, count.n) for count in (await engine.operator.census()).counts} == {(Status.PENDING, 2)}


@pytest.mark.spec("PGFAULT-11")
async def test_a_lock_on_a_whole_table_is_no_key_of_one_settlement(
    make: Make, postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a settlement is reached the owner of the lock is not known: the call fails as busy and may be repeated."""
    monkeypatch.setattr(settle, "LOCK_WAIT", 0.05)
    engine = await make(timeout=3.0)
    [claim] = await claims(engine, 1)
    with psycopg.connect(postgres_url) as theirs:
        theirs.execute(f"lock table {postgres_schema}.lease".encode())
        with pytest.raises(EngineBusy):
            await engine.jobs.settle([done(claim)])
        theirs.rollback()
    assert (await engine.jobs.settle([done(claim, keyed("k"))])).verdicts == [Verdict.APPLIED]
