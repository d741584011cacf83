"""A Postgres whose tables are held by others, that gives up transactions, or that has no room left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import psycopg
import pytest

from stoker.model.errors import EngineBusy, EngineFull, EngineUnavailable
from tests import services
from tests.faults.postgres.trials import Make, trial
from tests.faults.trial import opened
from tests.services import PostgresServer

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(900)]

FAILING = """
create sequence {schema}.faults;
create function {schema}.fail() returns trigger language plpgsql as $$
begin
    if nextval('{schema}.faults') % {every} = 0 then
        raise exception 'injected' using errcode = '{state}';
    end if;
    return null;
end $$;
"""
DISARMED = """
create or replace function {schema}.fail() returns trigger language plpgsql as $$ begin return null; end $$
"""
ARMED = "create trigger fail before insert or update or delete on {schema}.{table} execute function {schema}.fail();"
LEVELS = """
create table {schema}.levels (level text);
create function {schema}.watch() returns trigger language plpgsql as $$
begin
    insert into {schema}.levels values (current_setting('transaction_isolation'));
    return null;
end $$;
"""
WATCHED = "create trigger watch after insert or update or delete on {schema}.{table} execute function {schema}.watch();"
SESSIONS = "select count(*) from pg_stat_activity where application_name like 'stoker %'"

PATIENT = 60.0
"""Seconds: where no caller may see an error, a busy machine must not make one."""

WRITTEN = ("job", "ready", "lease", "done", "worker")


@asynccontextmanager
async def failing(server: PostgresServer, schema: str, state: str, every: int) -> AsyncIterator[None]:
    """Every so many statements that write a table of the hot path fail with a code, in every session.

    Triggers are made beside the loop: they wait for transactions that only the loop can end.
    """
    await asyncio.to_thread(server.sql, FAILING.format(schema=schema, state=state, every=every))
    for table in WRITTEN:
        await asyncio.to_thread(server.sql, ARMED.format(schema=schema, table=table))
    yield
    await asyncio.to_thread(server.sql, DISARMED.format(schema=schema))


@pytest.mark.spec("PGFAULT-10")
@pytest.mark.parametrize("state", ["40P01", "40001"], ids=["deadlock", "serialization failure"])
async def test_a_transaction_that_the_server_aborts_is_begun_again_silently(
    state: str, server: PostgresServer, schema: str, make: Make
) -> None:
    async with trial(make, timeout=PATIENT, workers=2) as running:
        await running.consuming()
        async with failing(server, schema, state, every=40):
            for _ in range(10):
                await running.consuming()
            [(attempts,)] = server.sql(f"select last_value from {schema}.faults")
            assert attempts > 80, "some of them failed"
        assert not running.errors
        assert running.ready


@pytest.mark.spec("PGFAULT-10")
async def test_a_database_that_is_strict_by_default_is_served_all_the_same(server: PostgresServer, make: Make) -> None:
    server.sql("alter role postgres set default_transaction_isolation = 'serializable'")
    try:
        async with trial(make, timeout=PATIENT, workers=3) as running:
            for _ in range(10):
                await running.consuming()
            assert not running.errors
    finally:
        server.sql("alter role postgres reset default_transaction_isolation")


@pytest.mark.spec("PGFAULT-13")
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooler"])
async def test_a_database_that_is_strict_by_default_costs_no_transaction(
    pooled: bool, server: PostgresServer, schema: str, make: Make
) -> None:
    """Stoker writes at the level that it needs, and the server aborts nothing."""
    server.sql("alter role postgres set default_transaction_isolation = 'serializable'")
    try:
        with ExitStack() as stack:
            url = stack.enter_context(services.pooler(server.url, own=True)) if pooled else None
            async with opened(make()):
                server.sql(LEVELS.format(schema=schema))
                for table in WRITTEN:
                    server.sql(WATCHED.format(schema=schema, table=table))
            async with trial(make, url, timeout=PATIENT, workers=2) as running:
                for _ in range(3):
                    await running.consuming()
                assert not running.errors
            async with opened(make(url)) as engine, engine.transaction() as tx:
                await engine.jobs.insert([running.draft()], tx=tx)
        assert server.sql(f"select distinct level from {schema}.levels") == [("read committed",)]
    finally:
        server.sql("alter role postgres reset default_transaction_isolation")


@pytest.mark.spec("PGFAULT-11")
async def test_a_locked_table_makes_callers_wait_or_fail_and_nothing_else(
    server: PostgresServer, schema: str, make: Make
) -> None:
    async with trial(make) as running:
        await running.consuming()
        with psycopg.connect(server.url) as holder:
            for table in WRITTEN:
                await asyncio.to_thread(holder.execute, f"lock table {schema}.{table}".encode())
            async with opened(make()) as engine:
                with pytest.raises((EngineBusy, EngineUnavailable)):
                    await engine.jobs.insert([running.draft()])
            await running.until(lambda: not running.ready, "the lease cannot be renewed")
            await running.until(lambda: running.errors.total() >= 4, "producers try again and again")
            assert server.sql(SESSIONS)[0][0] < 20, "what was given up is over on the server too"
        await running.consuming()


@pytest.mark.spec("PGFAULT-12")
async def test_a_full_disk_is_said_and_waited_for(server: PostgresServer, schema: str, make: Make) -> None:
    async with trial(make) as running:
        await running.consuming()
        async with failing(server, schema, "53100", every=1):
            await running.until(lambda: running.errors["EngineFull"] and not running.ready, "no room is noticed")
            with pytest.raises(EngineFull, match="no room"):
                await (await running.app.engine()).jobs.insert([running.draft()])
        await running.consuming()
