"""Jobs in users' own transactions: they exist if and only if the user commits."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker.engines.sql.user_handles.handles import drive
from stoker.engines.sqlite.engine import SqliteEngine
from stoker.engines.sqlite.write_lock import WriteLock
from stoker.model.errors import Duplicate, EngineBusy, EngineRefused
from stoker.model.groups import Closing, into_group, new_group
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.query import Query
from stoker.model.unique import Unique
from tests.engines.sql.openers import OPENERS, SYNCHRONOUS, maybe, plain

pytestmark = pytest.mark.engine("sqlite")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)


def draft(**options: Any) -> Draft:
    return Draft(job_id=mint(), kind="work", **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(path)
    await engine.open()
    yield engine
    await engine.close()


async def statuses(engine: SqliteEngine) -> dict[Status, int]:
    """Return counts by status from the counters, which must agree with the jobs after a rollback too."""
    return {status: n for status, n in (await engine.operator.census()).by_status().items() if n}


async def claimed(engine: SqliteEngine) -> Claim:
    await engine.jobs.insert([draft()])
    await engine.jobs.renew("w1", [], first=True)
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
    return claim


@pytest.mark.spec("SQLITE-70")
@pytest.mark.parametrize("name", OPENERS)
async def test_jobs_exist_once_the_user_commits(engine: SqliteEngine, path: Path, name: str) -> None:
    first, second = draft(), draft(queue="mail", delay=1_000_000)
    async with OPENERS[name](path) as handle:
        receipts = await engine.jobs.insert([first, second], tx=handle)
        assert [(receipt.id, receipt.stored) for receipt in receipts] == [
            (first.job_id, Stored.INSERTED),
            (second.job_id, Stored.INSERTED),
        ]
        assert await engine.operator.get([first.job_id, second.job_id]) == [None, None]
        assert await statuses(engine) == {}
        await maybe(handle.commit())
        assert [job and job.status for job in await engine.operator.get([first.job_id, second.job_id])] == [
            Status.PENDING
        ] * 2
        assert await statuses(engine) == {Status.PENDING: 2}
    await engine.jobs.renew("w1", [], first=True)
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 5), ("mail", 5))))
    assert claim.id == first.job_id


@pytest.mark.spec("SQLITE-70")
@pytest.mark.parametrize("name", OPENERS)
async def test_a_rollback_leaves_nothing(engine: SqliteEngine, path: Path, name: str) -> None:
    job = draft(unique=Unique("once"))
    async with OPENERS[name](path) as handle:
        await engine.jobs.insert([job], tx=handle)
        await maybe(handle.rollback())
    async with OPENERS[name](path) as handle:
        await engine.jobs.insert([job], tx=handle)  # never ended
    assert await engine.operator.get([job.job_id]) == [None]
    assert await statuses(engine) == {}
    [receipt] = await engine.jobs.insert([job])
    assert receipt.stored == Stored.INSERTED


@pytest.mark.spec("SQLITE-70")
@pytest.mark.parametrize("name", OPENERS)
async def test_a_settlement_counts_once_the_user_commits(engine: SqliteEngine, path: Path, name: str) -> None:
    claim = await claimed(engine)
    settlement = conclude(claim, Done(b'"ok"'))
    for ending, status in (("rollback", Status.RUNNING), ("commit", Status.DONE)):
        async with OPENERS[name](path) as handle:
            assert (await engine.jobs.settle([settlement], tx=handle)).verdicts == [Verdict.APPLIED]
            [job] = await engine.operator.get([claim.id])
            assert job is not None and job.status == Status.RUNNING
            await maybe(getattr(handle, ending)())
        assert await statuses(engine) == {status: 1}


@pytest.mark.spec("GROUP-32")
@pytest.mark.parametrize("commits", [True, False])
async def test_a_closing_in_a_users_transaction_is_reported_by_a_sweep(
    engine: SqliteEngine, path: Path, *, commits: bool
) -> None:
    """A user's connection does not report its commit: the next sweep looks whether the group is closed."""
    reported: list[Closing] = []
    engine.groups.watch_closings(reported.append)
    group, then = mint(), draft(queue="after")
    await engine.jobs.insert(into_group(group, [draft()]), group=new_group(group, then=then, sealed=True))
    await engine.jobs.renew("w1", [], first=True)
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
    with closing(sqlite3.connect(path)) as user:
        await engine.jobs.settle([conclude(claim, Done())], tx=user)
        await engine.groups.sweep()
        assert reported == []
        (user.commit if commits else user.rollback)()
    await engine.groups.sweep()
    await engine.groups.sweep()
    assert [one.group.id for one in reported] == [group] * commits
    assert [one.stored[0].job_id for one in reported] == [then.job_id] * commits


@pytest.mark.spec("SQLITE-70")
async def test_a_lost_settlement_changes_nothing_in_the_users_transaction(engine: SqliteEngine, path: Path) -> None:
    claim = await claimed(engine)
    settlement = conclude(claim, Done())
    await engine.jobs.settle([settlement])
    before = await engine.operator.get([claim.id])
    async with plain(path) as handle:
        [verdict] = (await engine.jobs.settle([settlement], tx=handle)).verdicts
        handle.commit()
    assert verdict in {Verdict.LOST, Verdict.REPEATED}
    assert await engine.operator.get([claim.id]) == before


@pytest.mark.spec("SQLITE-70")
async def test_the_users_own_writes_commit_with_the_job(engine: SqliteEngine, path: Path) -> None:
    async with plain(path) as handle:
        handle.execute("CREATE TABLE orders (id INTEGER)")
        handle.execute("INSERT INTO orders VALUES (1)")
        await engine.jobs.insert([draft()], tx=handle)
        handle.rollback()
        assert handle.execute("SELECT count(*) FROM orders").fetchone() == (0,)
        assert await statuses(engine) == {}
        handle.execute("INSERT INTO orders VALUES (2)")
        await engine.jobs.insert([draft()], tx=handle)
        await engine.jobs.insert([draft()], tx=handle)
        handle.commit()
        assert handle.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert await statuses(engine) == {Status.PENDING: 2}


@pytest.mark.spec("SQLITE-70")
@pytest.mark.parametrize("name", ["sqlite3", "aiosqlite", "sqlalchemy-session", "sqlalchemy-async-session"])
async def test_a_refused_call_leaves_the_rest_of_the_transaction_alone(
    engine: SqliteEngine, path: Path, name: str
) -> None:
    holder, other = draft(unique=Unique("k")), draft()
    await engine.jobs.insert([holder])
    async with OPENERS[name](path) as handle:
        await engine.jobs.insert([other], tx=handle)
        with pytest.raises(Duplicate):
            await engine.jobs.insert([draft(), draft(unique=Unique("k", mode="raise"))], tx=handle)
        await maybe(handle.commit())
    assert await statuses(engine) == {Status.PENDING: 2}


@pytest.mark.spec("SQLITE-71")
@pytest.mark.parametrize("name", OPENERS)
async def test_a_handle_on_another_file_is_refused_by_name(engine: SqliteEngine, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other.db"
    async with OPENERS[name](other) as handle:
        with pytest.raises(EngineRefused) as caught:
            await engine.jobs.insert([draft()], tx=handle)
    assert "jobs.db" in str(caught.value)
    assert "other.db" in str(caught.value)
    assert type(handle).__name__ in str(caught.value)


@pytest.mark.spec("SQLITE-71")
async def test_a_database_in_memory_and_a_stranger_are_refused(engine: SqliteEngine) -> None:
    with closing(sqlite3.connect(":memory:")) as handle, pytest.raises(EngineRefused, match="in memory"):
        await engine.jobs.insert([draft()], tx=handle)
    with pytest.raises(EngineRefused, match=r"builtins\.object"):
        await engine.jobs.insert([draft()], tx=object())
    assert await statuses(engine) == {}


@pytest.mark.spec("SQLITE-71")
async def test_a_handle_that_commits_by_itself_is_refused(engine: SqliteEngine, path: Path) -> None:
    async with plain(path, isolation_level=None) as handle:
        with pytest.raises(EngineRefused, match="Begin a transaction"):
            await engine.jobs.insert([draft()], tx=handle)
    assert await statuses(engine) == {}


@pytest.mark.spec("SQLITE-71")
async def test_the_same_file_by_another_path_is_the_same_file(engine: SqliteEngine, path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    async with plain(tmp_path / "link" / path.name) as handle:
        await engine.jobs.insert([draft()], tx=handle)
        handle.commit()
    assert await statuses(engine) == {Status.PENDING: 1}


@pytest.mark.spec("SQLITE-72")
@pytest.mark.parametrize("name", OPENERS)
async def test_the_gate_is_never_taken(engine: SqliteEngine, path: Path, name: str) -> None:
    write_lock = WriteLock(f"{path}-stoker/write.lock")
    assert write_lock.acquire(60)
    try:
        async with OPENERS[name](path) as handle:
            await asyncio.wait_for(engine.jobs.insert([draft()], tx=handle), 60)
            await maybe(handle.commit())
        assert await statuses(engine) == {Status.PENDING: 1}
        # The write lock is the right one: the engine's own writes wait for it.
        own = asyncio.ensure_future(engine.jobs.insert([draft()]))
        assert not (await asyncio.wait((own,), timeout=0.05))[0]
    finally:
        write_lock.close()
    await own
    assert await statuses(engine) == {Status.PENDING: 2}


@pytest.mark.spec("SQLITE-72")
async def test_an_open_transaction_keeps_no_writer_from_the_write_lock(engine: SqliteEngine, path: Path) -> None:
    async with plain(path) as handle:
        await engine.jobs.insert([draft()], tx=handle)
        own = asyncio.ensure_future(engine.jobs.insert([draft()]))
        await asyncio.sleep(0.02)
        assert not own.done()
        write_lock = WriteLock(f"{path}-stoker/write.lock")
        try:
            # The waiting writer comes back to look now and then; in between the write lock is free.
            assert await asyncio.to_thread(write_lock.acquire, 60)
            write_lock.release()
        finally:
            write_lock.close()
        handle.commit()
        await own
    assert await statuses(engine) == {Status.PENDING: 2}


@pytest.mark.spec("SQLITE-72")
async def test_a_transaction_that_stays_open_is_a_typed_error_for_the_others(path: Path) -> None:
    engine = SqliteEngine(path, busy_timeout=0.05)
    await engine.open()
    try:
        async with plain(path) as handle:
            await engine.jobs.insert([draft()], tx=handle)
            with pytest.raises(EngineBusy):
                await engine.jobs.insert([draft()])
            assert await engine.operator.get([mint()]) == [None]
            handle.commit()
        await engine.jobs.insert([draft()])
        assert await statuses(engine) == {Status.PENDING: 2}
    finally:
        await engine.close()


@pytest.mark.spec("SQLITE-72")
@pytest.mark.parametrize("name", ["sqlite3", "aiosqlite", "sqlalchemy-session", "sqlalchemy-async-session"])
async def test_a_locked_database_is_a_typed_error_for_the_user(engine: SqliteEngine, path: Path, name: str) -> None:
    async with plain(path, isolation_level=None) as blocker, OPENERS[name](path) as handle:
        raw = handle
        if name.startswith("sqlalchemy"):
            connection = await maybe(handle.connection())
            raw = (
                (await connection.get_raw_connection()).driver_connection
                if "async" in name
                else connection.connection.driver_connection
            )
        await maybe(raw.execute("PRAGMA busy_timeout = 0"))
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(EngineBusy):
            await engine.jobs.insert([draft()], tx=handle)
        blocker.execute("ROLLBACK")
    assert await statuses(engine) == {}


@pytest.mark.spec("SQLITE-73")
@pytest.mark.parametrize("name", OPENERS)
async def test_a_waiter_wakes_soon_after_the_users_commit(engine: SqliteEngine, path: Path, name: str) -> None:
    async with OPENERS[name](path) as handle:
        for _ in range(3):
            waiter = asyncio.ensure_future(engine.jobs.wait(["default"], 3600))
            await engine.jobs.insert([draft()], tx=handle)
            await asyncio.sleep(0.005)
            assert not waiter.done()
            await maybe(handle.commit())
            assert await asyncio.wait_for(waiter, 60) == {"default"}
            await engine.jobs.renew("w1", [], first=True)
            assert len(await engine.jobs.claim(Demand("w1", (("default", 5),)))) == 1


@pytest.mark.spec("SQLITE-73")
async def test_a_waiter_does_not_wake_for_a_rollback(engine: SqliteEngine, path: Path) -> None:
    async with plain(path) as handle:
        waiter = asyncio.ensure_future(engine.jobs.wait(["default"], 0.15))
        await asyncio.sleep(0)
        await engine.jobs.insert([draft()], tx=handle)
        handle.rollback()
        assert await waiter == frozenset()


@pytest.mark.spec("SQLITE-73")
async def test_a_waiter_wakes_for_a_commit_that_came_before_it_waited(engine: SqliteEngine, path: Path) -> None:
    await engine.jobs.wait(["default"], 0)
    async with plain(path) as handle:
        await engine.jobs.insert([draft()], tx=handle)
        handle.commit()
    assert await engine.jobs.wait(["default"], 5) == {"default"}


@pytest.mark.spec("SQLITE-74")
@pytest.mark.parametrize("name", SYNCHRONOUS)
async def test_a_synchronous_handle_never_makes_the_call_suspend(engine: SqliteEngine, path: Path, name: str) -> None:
    opened = SYNCHRONOUS[name](path)
    async with opened as handle:
        [receipt] = drive(engine.jobs.insert([draft()], tx=handle))
        handle.commit()
        claim = await claimed(engine)
        drive(engine.jobs.settle([conclude(claim, Done())], tx=handle))
        handle.commit()
    assert await statuses(engine) == {Status.PENDING: 1, Status.DONE: 1}
    assert receipt.stored == Stored.INSERTED


@pytest.mark.spec("SQLITE-87")
@pytest.mark.parametrize("name", OPENERS)
async def test_find_reads_through_the_users_handle(engine: SqliteEngine, path: Path, name: str) -> None:
    """What the user has not committed is found with his handle alone, as it will be stored."""
    claim, new = await claimed(engine), draft(payload='{"é": 1}'.encode(), tenant="t", unique=Unique("k"))
    async with OPENERS[name](path) as handle:
        await engine.jobs.insert([new], tx=handle)
        await engine.jobs.settle([conclude(claim, Done(b"1"))], tx=handle)
        inside = (await engine.operator.find(Query(order="oldest"), tx=handle)).jobs
        assert [(job.id, job.status) for job in inside] == [(claim.id, Status.DONE), (new.job_id, Status.PENDING)]
        by_due = await engine.operator.find(Query(order="due", text="é"), tx=handle)
        assert [job.id for job in by_due.jobs] == [new.job_id]
        assert [job.status for job in (await engine.operator.find(Query())).jobs] == [Status.RUNNING]
        await maybe(handle.commit())
    assert (await engine.operator.find(Query(order="oldest"))).jobs == inside


@pytest.mark.spec("SQLITE-87")
async def test_a_look_through_a_handle_without_a_transaction_begins_none(engine: SqliteEngine, path: Path) -> None:
    """Others would wait for a lock that the user does not know of."""
    job = draft()
    await engine.jobs.insert([job])
    with closing(sqlite3.connect(path)) as connection:
        assert [one.id for one in drive(engine.operator.find(Query(), tx=connection)).jobs] == [job.job_id]
        assert not connection.in_transaction
