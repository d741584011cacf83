"""Jobs in users' own transactions: they exist if and only if the user commits, and no other call waits for the user."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import asyncpg
import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine, claim_cursor, user_transaction
from stoker.engines.sql.user_handles.handles import drive
from stoker.model.errors import Duplicate, EngineRefused
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed
from stoker.model.query import Query
from stoker.model.time import HOUR
from stoker.model.unique import Unique
from tests.engines.postgres.openers import OPENERS, SYNCHRONOUS, TELLING, alchemy_session, bare, handle_of, plain
from tests.engines.sql.openers import maybe

pytestmark = pytest.mark.engine("postgres")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)


def draft(**options: Any) -> Draft:
    return Draft(job_id=mint(), kind="work", **options)


@pytest.fixture
async def engine(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    yield engine
    await engine.close()


async def statuses(engine: PostgresEngine) -> dict[Status, int]:
    return {status: n for status, n in (await engine.operator.census()).by_status().items() if n}


async def claimed(engine: PostgresEngine, **options: Any) -> Claim:
    await engine.jobs.insert([draft(**options)])
    await engine.jobs.renew("w1", [], first=True)
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
    return claim


@pytest.mark.spec("PGTX-01")
@pytest.mark.parametrize("name", OPENERS)
async def test_an_insert_joins_the_users_transaction(engine: PostgresEngine, postgres_url: str, name: str) -> None:
    """Gone after a rollback, there after the commit, on every kind of handle; payload and options as given."""
    first = draft(payload='{"é": ["%s", "$1", null]}'.encode(), priority=-3, tenant="t'%", delay=5)
    keyed = draft(unique=Unique("k"))
    async with OPENERS[name](postgres_url) as opened:
        handle = handle_of(opened)
        assert [one.stored for one in await engine.jobs.insert([first, keyed], tx=handle)] == [Stored.INSERTED] * 2
        assert await engine.operator.get([first.job_id]) == [None]
        await maybe(opened.rollback())
        assert await engine.operator.get([first.job_id]) == [None]
        assert await statuses(engine) == {}
        receipts = await engine.jobs.insert([first, keyed, first, draft(unique=Unique("k"))], tx=handle)
        await maybe(opened.commit())
    assert [one.stored for one in receipts] == [Stored.INSERTED, Stored.INSERTED, Stored.EXISTING, Stored.EXISTING]
    assert receipts[3].id == keyed.job_id
    [record] = await engine.operator.get([first.job_id])
    assert record is not None
    assert (record.payload, record.priority, record.tenant) == (first.payload, -3, "t'%")
    assert await statuses(engine) == {Status.PENDING: 2}


@pytest.mark.spec("PGTX-02")
@pytest.mark.parametrize("name", OPENERS)
async def test_a_settlement_joins_the_users_transaction(engine: PostgresEngine, postgres_url: str, name: str) -> None:
    """Rolled back the job still runs under the same claim; committed it is done, with result and follow-up."""
    claim = await claimed(engine)
    child = draft()
    settlement = conclude(claim, Done(b'{"a": 1}', followups=(child,)))
    async with OPENERS[name](postgres_url) as opened:
        handle = handle_of(opened)
        assert (await engine.jobs.settle([settlement], tx=handle)).verdicts == [Verdict.APPLIED]
        await maybe(opened.rollback())
        assert await statuses(engine) == {Status.RUNNING: 1}
        assert (await engine.jobs.settle([settlement], tx=handle)).verdicts == [Verdict.APPLIED]
        await maybe(opened.commit())
        assert (await engine.jobs.settle([settlement], tx=handle)).verdicts == [Verdict.REPEATED]
        await maybe(opened.rollback())
    record, follow = await engine.operator.get([claim.id, child.job_id])
    assert record is not None
    assert (record.status, record.result) == (Status.DONE, b'{"a": 1}')
    assert follow is not None
    assert await statuses(engine) == {Status.DONE: 1, Status.PENDING: 1}


@pytest.mark.spec("PGTX-02")
@pytest.mark.parametrize("name", ["psycopg", "asyncpg"])
async def test_a_failure_is_settled_in_the_users_transaction(
    engine: PostgresEngine, postgres_url: str, name: str
) -> None:
    """Error, history and metadata of a failed run are written there too."""
    claim = await claimed(engine, unique=Unique("k"))
    settlement = conclude(claim, Failed("bö'%m", after=HOUR), metadata={"a": "1"})
    async with OPENERS[name](postgres_url) as opened:
        assert (await engine.jobs.settle([settlement], tx=handle_of(opened))).verdicts == [Verdict.APPLIED]
        await maybe(opened.commit())
    [record] = await engine.operator.get([claim.id])
    assert record is not None
    assert (record.status, record.last_error, record.metadata) == (Status.RETRYING, "bö'%m", {"a": "1"})


@pytest.mark.spec("PGTX-03")
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_synchronous_handle_needs_no_loop_and_no_open_engine(
    postgres_url: str, postgres_schema: str, name: str
) -> None:
    """A caller with neither a loop nor an open engine can enqueue with a transaction."""
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    asyncio.run(engine.migrate())
    mine = draft()

    async def put() -> None:
        async with SYNCHRONOUS[name](postgres_url) as opened:
            drive(engine.jobs.insert([mine], tx=opened))
            opened.commit()

    drive(put())
    with psycopg.connect(postgres_url) as connection:
        [row] = connection.execute(f"select count(*) from {postgres_schema}.ready".encode()).fetchall()
    assert row == (1,)


@pytest.mark.spec("PGTX-04")
async def test_a_refused_insert_leaves_the_users_transaction_usable(engine: PostgresEngine, postgres_url: str) -> None:
    """A Duplicate that the user catches undoes its own call only."""
    holder = draft(unique=Unique("k"))
    await engine.jobs.insert([holder])
    first, lost, last = draft(), draft(), draft()
    async with plain(postgres_url) as handle:
        await engine.jobs.insert([first], tx=handle)
        with pytest.raises(Duplicate):
            await engine.jobs.insert([lost, draft(unique=Unique("k", mode="raise"))], tx=handle)
        await engine.jobs.insert([last], tx=handle)
        handle.commit()
    assert [one is not None for one in await engine.operator.get([first.job_id, lost.job_id, last.job_id])] == [
        True,
        False,
        True,
    ]


@pytest.mark.spec("PGTX-05")
async def test_a_handle_that_commits_each_statement_is_refused(engine: PostgresEngine, postgres_url: str) -> None:
    """Without a transaction the job would exist whether the user commits or not."""
    connection = await asyncpg.connect(postgres_url)
    mine = draft()
    with pytest.raises(EngineRefused, match="commits every statement"):
        await engine.jobs.insert([mine], tx=connection)
    with psycopg.connect(postgres_url, autocommit=True) as automatic, pytest.raises(EngineRefused, match="commits"):
        await engine.jobs.insert([mine], tx=automatic)
    await connection.close()
    assert await engine.operator.get([mine.job_id]) == [None]


@pytest.mark.spec("PGTX-05")
async def test_a_handle_on_another_database_is_refused_by_name(
    engine: PostgresEngine, postgres_url: str, postgres_schema: str
) -> None:
    """A file, another database, and a database without our tables are all named."""
    with closing(sqlite3.connect(":memory:")) as file, pytest.raises(EngineRefused, match="on sqlite"):
        await engine.jobs.insert([draft()], tx=file)
    other = f"d_{postgres_schema}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"create database {other}".encode())
        try:
            elsewhere = postgres_url.rpartition("/")[0] + f"/{other}"
            with psycopg.connect(elsewhere) as handle, pytest.raises(EngineRefused, match=other):
                await engine.jobs.insert([draft()], tx=handle)
        finally:
            admin.execute(f"drop database {other} with (force)".encode())


@pytest.mark.spec("PGTX-09")
@pytest.mark.parametrize("name", OPENERS)
async def test_a_connection_is_not_asked_each_time_where_it_is(
    engine: PostgresEngine, postgres_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot leave its database; what a session of SQLAlchemy's is connected to may change."""
    asked = 0
    check = user_transaction._check

    async def counted(*given: Any) -> None:
        nonlocal asked
        asked += 1
        await check(*given)

    monkeypatch.setattr(user_transaction, "_check", counted)
    mine = [draft() for _ in range(3)]
    async with OPENERS[name](postgres_url) as opened:
        for one in mine:
            await engine.jobs.insert([one], tx=handle_of(opened))
            await maybe(opened.commit())
        assert asked == (3 if name.startswith("sqlalchemy") else 1)
        monkeypatch.setattr(user_transaction, "TRUSTED", 0.0)
        await engine.jobs.insert([draft()], tx=handle_of(opened))
        assert asked == (4 if name.startswith("sqlalchemy") else 2)
        await maybe(opened.rollback())
    found = await engine.operator.get([one.job_id for one in mine])
    assert all(one is not None and abs(one.created_at - time.time_ns() // 1_000) < HOUR for one in found)


@pytest.mark.spec("PGTX-06")
async def test_an_open_user_transaction_holds_up_no_other_call(engine: PostgresEngine, postgres_url: str) -> None:
    """While a user thinks, his duplicates stall neither the holder's settlement nor other inserts nor claims."""
    claim = await claimed(engine, unique=Unique("k"))
    async with bare(postgres_url) as opened:
        await engine.jobs.insert(
            [draft(), draft(unique=Unique("k")), draft(unique=Unique("new"))], tx=opened.connection
        )
        async with asyncio.timeout(60):
            assert (await engine.jobs.settle([conclude(claim, Done())])).verdicts == [Verdict.APPLIED]
            await engine.jobs.insert([draft(), draft(unique=Unique("k"))])
            assert len(await engine.jobs.claim(Demand("w1", (("default", 10),)))) == 2
        await opened.commit()
    assert len(await engine.jobs.claim(Demand("w1", (("default", 10),)))) == 2


@pytest.mark.spec("PGTX-07")
@pytest.mark.parametrize("name", TELLING)
async def test_a_users_commit_wakes_a_waiter(engine: PostgresEngine, postgres_url: str, name: str) -> None:
    """Where the library tells of the commit, and not before it; a rollback is nothing to wake for."""
    async with OPENERS[name](postgres_url) as opened:
        await engine.jobs.insert([draft()], tx=opened)
        await maybe(opened.rollback())
        await engine.jobs.insert([draft(delay=HOUR)], tx=opened)
        await maybe(opened.commit())
        assert await engine.jobs.wait(["default"], 0.1) == frozenset()
        waiting = asyncio.create_task(engine.jobs.wait(["default"], 60))
        await engine.jobs.insert([draft(), draft()], tx=opened)
        await asyncio.sleep(0)
        assert not waiting.done()
        await maybe(opened.commit())
        assert await asyncio.wait_for(waiting, 60) == {"default"}
    await engine.jobs.renew("w1", [], first=True)
    assert len(await engine.jobs.claim(Demand("w1", (("default", 10),)))) == 2


@pytest.mark.spec("PGTX-07")
async def test_a_savepoint_is_no_commit_and_a_thread_may_commit(engine: PostgresEngine, postgres_url: str) -> None:
    """The wake-up waits for the outermost commit, which may come from any thread."""
    async with alchemy_session(postgres_url) as session:
        with session.begin_nested():
            await engine.jobs.insert([draft()], tx=session)
        assert await engine.jobs.wait(["default"], 0.1) == frozenset()
        waiting = asyncio.create_task(engine.jobs.wait(["default"], 60))
        await asyncio.to_thread(session.commit)
        assert await asyncio.wait_for(waiting, 60) == {"default"}


@pytest.mark.spec("PGTX-07")
async def test_what_a_user_commits_late_is_not_behind_the_marks(
    engine: PostgresEngine, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stamped before jobs that were taken already, it is the next to be taken."""
    monkeypatch.setattr(claim_cursor, "MIN_TAKEN", 1)
    monkeypatch.setattr(claim_cursor, "FULL_SCAN_EVERY", 1e9)
    monkeypatch.setattr(claim_cursor, "SLACK_EVERY", 1e9)
    await engine.jobs.renew("w1", [], first=True)
    late = draft()
    async with alchemy_session(postgres_url) as session:
        await engine.jobs.insert([late], tx=session)
        await engine.jobs.insert([draft() for _ in range(9)])
        for _ in range(2):
            assert len(await engine.jobs.claim(Demand("w1", (("default", 2),)))) == 2
        session.commit()
        assert await engine.jobs.wait(["default"], 10) == {"default"}
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
    assert claim.id == late.job_id


@pytest.mark.spec("PGTX-10")
@pytest.mark.parametrize("name", OPENERS)
async def test_find_reads_through_the_users_handle(engine: PostgresEngine, postgres_url: str, name: str) -> None:
    """What the user has not committed is found with his handle alone, as it will be stored."""
    claim = await claimed(engine)
    new = draft(payload='{"é": ["%s", "$1", null]}'.encode(), tenant="t'%", unique=Unique("k"), delay=5)
    settled = conclude(claim, Failed("boom", after=HOUR))
    async with OPENERS[name](postgres_url) as opened:
        handle = handle_of(opened)
        await engine.jobs.insert([new], tx=handle)
        await engine.jobs.settle([settled], tx=handle)
        inside = (await engine.operator.find(Query(order="oldest"), tx=handle)).jobs
        assert [(job.id, job.status) for job in inside] == [(claim.id, Status.RETRYING), (new.job_id, Status.PENDING)]
        by_due = await engine.operator.find(Query(order="due", text="é"), tx=handle)
        assert [job.id for job in by_due.jobs] == [new.job_id]
        assert [job.status for job in (await engine.operator.find(Query())).jobs] == [Status.RUNNING]
        await maybe(opened.commit())
    assert (await engine.operator.find(Query(order="oldest"))).jobs == inside


@pytest.mark.spec("PGTX-10")
async def test_a_look_through_a_handle_without_a_transaction_begins_none(
    engine: PostgresEngine, postgres_url: str
) -> None:
    job = draft()
    await engine.jobs.insert([job])
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert [one.id for one in drive(engine.operator.find(Query(), tx=connection)).jobs] == [job.job_id]
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
