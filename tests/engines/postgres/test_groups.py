"""Groups on Postgres: ends are appended, and closing is a look after the commit."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.engines.postgres.groups import GroupCloser
from stoker.model.groups import Group, Swept, into_group, new_group
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Job, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.unique import Unique
from tests.harness.apps import PATIENCE

pytestmark = pytest.mark.engine("postgres")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
DEMAND = Demand("w", (("default", 100),))


def draft(kind: str = "work", **options: Any) -> Draft:
    return Draft(job_id=mint(), kind=kind, **options)


@pytest.fixture
async def engine(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresEngine]:
    found = PostgresEngine(postgres_url, schema=postgres_schema)
    await found.open()
    await found.jobs.renew("w", [], first=True)
    yield found
    await found.close()


async def make(engine: PostgresEngine, n: int, then: Draft | None = None, *, sealed: bool = True) -> bytes:
    group = mint()
    made = new_group(group, then=then, sealed=sealed)
    await engine.jobs.insert(into_group(group, [draft() for _ in range(n)]), group=made)
    return group


async def read(engine: PostgresEngine, group: bytes) -> Group:
    [found] = await engine.groups.get([group])
    assert found is not None
    return found


async def job(engine: PostgresEngine, one: Draft) -> Job | None:
    [found] = await engine.operator.get([one.job_id])
    return found


async def closed(engine: PostgresEngine, group: bytes) -> Group:
    async with asyncio.timeout(PATIENCE):
        while (found := await read(engine, group)).closed_at is None:
            await asyncio.sleep(0.002)
    return found


async def end(engine: PostgresEngine, claims: list[Claim]) -> None:
    settled = await engine.jobs.settle([conclude(claim, Done()) for claim in claims])
    assert set(settled.verdicts) == {Verdict.APPLIED}


@pytest.mark.spec("GROUP-28")
async def test_the_engine_looks_by_itself_after_the_commit(engine: PostgresEngine) -> None:
    """Without a sweep: for plain successes, for a seal, and for a transaction of its own."""
    then = draft("then", queue="after")
    group = await make(engine, 3, then)
    await end(engine, await engine.jobs.claim(DEMAND))
    assert (await closed(engine, group)).done == 3
    assert await job(engine, then) is not None
    unsealed = await make(engine, 1, sealed=False)
    await end(engine, await engine.jobs.claim(DEMAND))
    assert await engine.groups.seal(unsealed)
    await closed(engine, unsealed)
    inside = await make(engine, 1)
    [claim] = await engine.jobs.claim(DEMAND)
    async with engine.transaction() as tx:
        await engine.jobs.settle([conclude(claim, Done())], tx=tx)
    await closed(engine, inside)


@pytest.mark.spec("GROUP-28")
async def test_the_commit_of_a_users_transaction_is_looked_at(engine: PostgresEngine, postgres_url: str) -> None:
    group = await make(engine, 1)
    [claim] = await engine.jobs.claim(DEMAND)
    async with await psycopg.AsyncConnection.connect(postgres_url) as theirs:
        await engine.jobs.settle([conclude(claim, Done())], tx=theirs)
        await engine.groups.sweep()
        assert (await read(engine, group)).waiting == 1
        await theirs.commit()
    await engine.groups.sweep()
    assert (await closed(engine, group)).done == 1


@pytest.mark.spec("GROUP-26")
async def test_a_process_killed_between_commit_and_look_costs_a_sweep(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several sweeps of other processes one closes the group."""
    then = draft("then", queue="after")
    group = await make(engine, 2, then)
    claims = await engine.jobs.claim(DEMAND)
    with monkeypatch.context() as patched:
        patched.setattr(GroupCloser, "add", lambda *_: None)
        await end(engine, claims)
    found = await read(engine, group)
    assert (found.waiting, found.closed_at) == (0, None)
    twins = [engine.for_loop() for _ in range(4)]
    for twin in twins:
        await twin.open()
    try:
        swept = await asyncio.gather(*(twin.groups.sweep() for twin in twins))
        assert sum(one.closed for one in swept) == 1
    finally:
        for twin in twins:
            await twin.close()
    assert (await read(engine, group)).closed_at is not None
    assert await job(engine, then) is not None
    assert await engine.groups.sweep() == Swept()


@pytest.mark.spec("GROUP-26")
async def test_an_engine_looks_before_it_closes(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engines.postgres.groups.MERGED", 3_600)
    group = await make(engine, 1)
    twin = engine.for_loop()
    await twin.open()
    claims = await twin.jobs.claim(DEMAND)
    await end(twin, claims)
    assert (await read(engine, group)).closed_at is None
    await twin.close()
    assert (await read(engine, group)).closed_at is not None


@pytest.mark.spec("GROUP-28")
async def test_a_group_does_not_close_while_jobs_join_it(engine: PostgresEngine) -> None:
    """An open transaction that adds a member holds up the closing, and nothing else."""
    then = draft("then", queue="after")
    group = await make(engine, 1, then)
    claims = await engine.jobs.claim(DEMAND)
    async with engine.transaction() as tx:
        await engine.jobs.insert(into_group(group, [draft()]), tx=tx)
        await end(engine, claims)
        await engine.groups.sweep()
        assert await job(engine, then) is None
    await engine.groups.sweep()
    found = await read(engine, group)
    assert (found.total, found.waiting, found.closed_at) == (2, 1, None)
    await end(engine, await engine.jobs.claim(DEMAND))
    await closed(engine, group)
    assert await job(engine, then) is not None


@pytest.mark.spec("GROUP-28")
async def test_a_callback_whose_key_an_open_transaction_holds_keeps_its_group_open(engine: PostgresEngine) -> None:
    """Other groups of the same look close; this one does when the transaction is over."""
    then = draft("then", queue="after", unique=Unique("k"))
    held, free = await make(engine, 1, then), await make(engine, 1)
    claims = await engine.jobs.claim(DEMAND)
    with pytest.raises(ZeroDivisionError):
        async with engine.transaction() as tx:
            await engine.jobs.insert([draft("then", queue="after", unique=Unique("k"))], tx=tx)
            await end(engine, claims)
            await closed(engine, free)
            await engine.groups.sweep()
            assert (await read(engine, held)).closed_at is None
            raise ZeroDivisionError
    await engine.groups.sweep()
    assert (await read(engine, held)).closed_at is not None
    assert await job(engine, then) is not None


@pytest.mark.spec("GROUP-28")
async def test_settlements_of_one_group_do_not_wait_for_each_other(engine: PostgresEngine) -> None:
    """One is held open by a transaction; the others commit meanwhile, and the group waits for it."""
    group = await make(engine, 4)
    [first] = await engine.jobs.claim(Demand("w", (("default", 1),)))
    others = await engine.jobs.claim(DEMAND)
    async with engine.transaction() as tx:
        await engine.jobs.settle([conclude(first, Done())], tx=tx)
        async with asyncio.timeout(PATIENCE):
            await end(engine, others)
        await engine.groups.sweep()
        assert (await read(engine, group)).waiting == 1
    assert (await closed(engine, group)).done == 4


@pytest.mark.spec("GROUP-28")
async def test_old_changes_are_added_up(engine: PostgresEngine, postgres_url: str, postgres_schema: str) -> None:
    """Numbers and ids stay; no row of a closed group is left behind."""
    group = await make(engine, 2, sealed=False)
    await engine.jobs.insert(into_group(group, [draft()]))
    claims = await engine.jobs.claim(DEMAND)
    for claim in claims[:2]:
        await end(engine, [claim])
    before = await read(engine, group)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        changes = f"select count(*) from {postgres_schema}.group_change".encode()
        assert admin.execute(changes).fetchone() == (3,)
        admin.execute(f"update {postgres_schema}.group_change set at = at - 2000000".encode())
        await engine.groups.sweep()
        assert admin.execute(changes).fetchone() == (0,)
        after = await read(engine, group)
        assert (after.total, after.done, after.members) == (before.total, before.done, before.members) != (0, 0, ())
        await engine.groups.seal(group)
        await end(engine, claims[2:])
        await closed(engine, group)
        assert admin.execute(changes).fetchone() == (0,)


@pytest.mark.spec("GROUP-29")
async def test_a_group_closes_no_earlier_than_its_last_member_ended(
    postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction that closes may have begun before the one that ended the last member."""
    now = 1_800_000_000_000_000
    early = PostgresEngine(postgres_url, schema=postgres_schema, clock=lambda: now)
    late = PostgresEngine(postgres_url, schema=postgres_schema, clock=lambda: now + 7)
    monkeypatch.setattr(GroupCloser, "add", lambda *_: None)
    async with AsyncExitStack() as stack:
        for one in (early, late):
            await one.open()
            stack.push_async_callback(one.close)
        group = await make(early, 1)
        await late.jobs.renew("w", [], first=True)
        [claim] = await late.jobs.claim(DEMAND)
        await late.jobs.settle([conclude(claim, Done())])
        assert await early.groups.sweep() == Swept(closed=1)
        assert (await read(early, group)).closed_at == now + 7
