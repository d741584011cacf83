"""A Postgres that is stopped, crashed, demoted, out of connections or in the hands of an impatient administrator."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from stoker.engines.sql.user_handles.handles import drive
from stoker.model.errors import EngineReadOnly, EngineRefused, EngineUnavailable
from stoker.model.job import Demand, Draft
from stoker.registry import mint
from tests.faults.network import Attempt
from tests.faults.postgres.trials import Make, trial
from tests.faults.trial import opened
from tests.harness.proxy import Proxy
from tests.services import PostgresServer

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(900)]


@pytest.mark.spec("PGFAULT-01")
async def test_ten_crashes_of_the_server_under_load(server: PostgresServer, make: Make) -> None:
    async with trial(make, workers=2) as running:
        for _ in range(10):
            await running.consuming()
            with running.crash():
                await asyncio.to_thread(server.restart, "immediate")
        await running.consuming()


@pytest.mark.spec("PGFAULT-02")
async def test_a_server_that_is_stopped_and_started(server: PostgresServer, make: Make) -> None:
    async with trial(make) as running:
        await running.consuming()
        await asyncio.to_thread(server.stop, "fast")
        await running.until(lambda: running.errors["EngineUnavailable"] and not running.ready, "the outage is noticed")
        await asyncio.to_thread(server.start)
        await running.consuming()
        assert set(running.errors) == {"EngineUnavailable"}


@pytest.mark.spec("PGFAULT-03")
async def test_every_session_is_terminated_each_second(server: PostgresServer, make: Make, campaign: bool) -> None:
    async with trial(make, workers=2) as running:
        ended = 0
        until = time.monotonic() + (60 if campaign else 3)
        while time.monotonic() < until or ended < 3:
            await running.consuming()
            ended += await asyncio.to_thread(server.terminate_all)
            await asyncio.sleep(0.8)
        await running.consuming()


@pytest.mark.spec("PGFAULT-04")
async def test_a_standby_refuses_writes_and_its_promotion_ends_that(server: PostgresServer, make: Make) -> None:
    async with trial(make) as running:
        await running.consuming()
        await asyncio.to_thread(server.demote)
        await running.until(lambda: running.errors["EngineReadOnly"] and not running.ready, "writes are refused")
        async with opened(make()) as engine:
            assert (await engine.operator.census()).by_status(), "what can be read is read"
            described = await engine.describe()
            assert any("recovery" in text or "standby" in text for text in described.warnings)
            with pytest.raises(EngineReadOnly, match="standby"):
                await engine.jobs.insert([running.draft()])
        await asyncio.to_thread(server.promote)
        await running.consuming()


@pytest.mark.spec("PGFAULT-05")
async def test_a_server_without_a_free_connection_is_waited_for(
    server: PostgresServer, proxy: Proxy, make: Make, attempt: Attempt
) -> None:
    async with attempt() as running:
        await running.consuming()
        with ExitStack() as hogs:
            proxy.refuse()
            try:
                for _ in range(200):
                    hogs.enter_context(psycopg.connect(server.url))
                pytest.fail("there is no end of connections")
            except psycopg.OperationalError:
                proxy.heal()
            with pytest.raises(EngineUnavailable):
                await make().open()
            await running.until(lambda: not running.ready, "no connection is accepted")
        await running.consuming()


@pytest.mark.spec("PGFAULT-06")
async def test_a_job_cannot_start_before_its_enqueue_is_durable(server: PostgresServer, make: Make) -> None:
    async with opened(make(timeout=30)) as engine, opened(make(timeout=30)) as worker:
        await worker.jobs.renew("w", [], first=True)
        # A commit that is to be safe waits for a standby, and there is none.
        server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        server.sql("SELECT pg_reload_conf()")
        try:
            async with asyncio.timeout(60):
                asked = asyncio.ensure_future(engine.jobs.insert([draft()]))
                while not await waiting_for_a_standby(server, asked):  # the server has not read the setting yet
                    await asked
                    asked = asyncio.ensure_future(engine.jobs.insert([draft()]))
                early = await worker.jobs.claim(Demand("w", (("default", 100),)))
                assert not asked.done()
        finally:
            server.sql("ALTER SYSTEM RESET synchronous_standby_names")
            server.sql("SELECT pg_reload_conf()")
        [receipt] = await asked
        assert receipt.id not in [claim.id for claim in early]
        assert [claim.id for claim in await worker.jobs.claim(Demand("w", (("default", 100),)))] == [receipt.id]


async def waiting_for_a_standby(server: PostgresServer, call: asyncio.Future[Any]) -> bool:
    """Has a call come to where only the disk and a standby are missing? False when it is over without."""
    while not call.done():
        if server.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
            return True
        await asyncio.sleep(0.001)
    return False


@pytest.mark.spec("PGFAULT-06")
async def test_an_enqueue_is_answered_when_the_log_is_written(server: PostgresServer, make: Make) -> None:
    """What is flushed when the answer comes lies behind all that was written before the enqueue began."""
    async with opened(make()) as engine:
        with psycopg.connect(server.url, autocommit=True) as beside:
            for _ in range(10):
                before = beside.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
                assert before is not None
                await engine.jobs.insert([draft()])
                row = beside.execute("SELECT pg_current_wal_flush_lsn() > %s::pg_lsn", before).fetchone()
                assert row == (True,)


def draft(**options: Any) -> Draft:
    return Draft(mint(), "work", **options)


@pytest.mark.spec("PGFAULT-08")
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_the_first_enqueue_after_a_restart_is_stored(server: PostgresServer, make: Make, mode: str) -> None:
    """The loop is busy while the server restarts, so it has not read yet that its connections are closed."""
    async with opened(make()) as engine:
        stored = [draft() for _ in range(4)]
        await asyncio.gather(engine.jobs.insert(stored[:1]), engine.operator.get([stored[0].job_id]))
        server.restart(mode)
        assert [receipt.stored.value for receipt in await engine.jobs.insert(stored[1:2])] == ["inserted"]
        server.restart(mode)
        assert (await engine.operator.get([stored[1].job_id]))[0] is not None
        await engine.jobs.insert(stored[2:3])
        await asyncio.to_thread(server.restart, mode)
        await engine.jobs.insert(stored[3:])
        assert None not in await engine.operator.get([one.job_id for one in stored])


@pytest.mark.spec("PGFAULT-07")
@pytest.mark.parametrize("change", ["restart", "failover"])
async def test_users_transactions_are_accepted_after_the_server_changed(
    server: PostgresServer, make: Make, change: str
) -> None:
    """The engine looks where it is again before it refuses a handle, on a loop, on a blocked one and without one."""
    async with opened(make()) as engine:
        stored = [draft() for _ in range(4)]
        with psycopg.connect(server.url) as before:
            await engine.jobs.insert([stored[0]], tx=before)
            before.commit()
        for one, handle in zip(stored[1:], ("async", "sync", "thread"), strict=True):
            if change == "restart":
                await asyncio.to_thread(server.restart, "fast")
            else:
                await asyncio.to_thread(server.demote)
                await asyncio.to_thread(server.promote)
            if handle == "async":
                async with await psycopg.AsyncConnection.connect(server.url) as theirs:
                    await engine.jobs.insert([one], tx=theirs)
                continue
            with psycopg.connect(server.url) as theirs:
                if handle == "sync":
                    await engine.jobs.insert([one], tx=theirs)
                else:
                    await asyncio.to_thread(drive, engine.jobs.insert([one], tx=theirs))
        while True:
            try:
                assert None not in await engine.operator.get([one.job_id for one in stored])
                break
            except EngineUnavailable:  # its idle connections are those of the server before
                continue


@pytest.mark.spec("PGFAULT-07")
async def test_a_handle_on_another_server_is_refused_after_a_restart_too(
    server: PostgresServer, schema: str, make: Make, postgres_url: str
) -> None:
    """Also one whose database has the same name and the same tables."""
    name = server.url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        if name != admin.info.dbname:
            admin.execute(f"create database {name}".encode())
    elsewhere = f"{postgres_url.rpartition('/')[0]}/{name}"
    async with opened(make()) as engine, opened(make(elsewhere)):
        await asyncio.to_thread(server.restart, "fast")
        with psycopg.connect(elsewhere) as theirs, pytest.raises(EngineRefused, match="cannot hold both"):
            await engine.jobs.insert([draft()], tx=theirs)
        with psycopg.connect(server.url) as theirs:
            await engine.jobs.insert([draft()], tx=theirs)
        with psycopg.connect(elsewhere) as theirs, pytest.raises(EngineRefused, match="cannot hold both"):
            await engine.jobs.insert([draft()], tx=theirs)
    with psycopg.connect(elsewhere) as admin:
        admin.execute(f"drop schema {schema} cascade".encode())
