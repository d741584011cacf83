"""What a check-up finds on a Postgres server, with each trouble provoked.

A version with a known bug and a bloated table of 64 MB cannot be provoked in a moment: the rules for them are tested by
their facts. A server without free connections is one with few of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.engines.postgres.diagnose import expected_indexes
from stoker.model.health import jobs, postgres
from stoker.model.health.check import Check, Grade
from stoker.model.job import Draft
from stoker.model.outbox.stream import Stream
from stoker.model.query import Delete, Selection
from tests import services
from tests.services.handles import PostgresServer

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.spec("HEALTH-02")]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with services.postgres_server(fsync=True, wal_level="logical", max_connections="20") as server:
        yield server


@asynccontextmanager
async def opened(url: str, **options: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(url, **options)  # type: ignore[arg-type]
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def complaints(engine: PostgresEngine) -> dict[str, Check]:
    facts = (await engine.diagnose()).postgres
    assert facts is not None
    order = list(Grade)
    checks = sorted(postgres.judge(facts), key=lambda check: order.index(check.verdict))
    return {check.name: check for check in checks if check.verdict is not Grade.OK}  # the gravest of a name


async def found(engine: PostgresEngine, true: Callable[[dict[str, Check]], bool]) -> dict[str, Check]:
    deadline = time.monotonic() + 60
    while not true(checks := await complaints(engine)):
        assert time.monotonic() < deadline, checks
        await asyncio.sleep(0.1)
    return checks


async def test_a_server_in_order_has_nothing_to_complain_of(server: PostgresServer) -> None:
    async with opened(server.url) as engine:
        assert await complaints(engine) == {}
    assert {"ready_id", "done_listed", "event_first"} <= expected_indexes()


async def test_a_held_snapshot(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "HELD_FOR", 0.5)
    async with opened(server.url) as engine:
        with psycopg.connect(server.url, application_name="report") as connection:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute("select 1 from pg_class limit 1")
            checks = await found(engine, lambda checks: "held snapshots" in checks)
    assert "report" in checks["held snapshots"].read


async def test_a_replication_slot_without_a_reader(server: PostgresServer) -> None:
    async with opened(server.url) as engine:
        server.sql("select pg_create_logical_replication_slot('left_behind', 'test_decoding')")
        try:
            checks = await complaints(engine)
        finally:
            server.sql("select pg_drop_replication_slot('left_behind')")
    assert "left_behind is inactive" in checks["replication slots"].read


async def test_a_missing_and_an_invalid_index(server: PostgresServer) -> None:
    async with opened(server.url) as engine:
        server.sql("drop index stoker.event_first")
        assert "stoker.event_first is missing" in (await complaints(engine))["indexes"].read
        server.sql("create index event_first on stoker.event (first, n)")
        server.sql("update pg_index set indisvalid = false where indexrelid = 'stoker.event_first'::regclass")
        assert "stoker.event_first is invalid" in (await complaints(engine))["indexes"].read
        server.sql("reindex index stoker.event_first")
        assert await complaints(engine) == {}


async def test_a_sequence_behind_its_table(server: PostgresServer) -> None:
    async with opened(server.url) as engine:
        await engine.outbox.register(Stream("orders", 4))
        sequences = [
            name for (name,) in server.sql("select sequencename from pg_sequences where schemaname = 'stoker'")
        ]
        facts = (await engine.diagnose()).postgres
        assert facts is not None
        assert sorted(one.name for one in facts.sequences) == sorted(f"stoker.{name}" for name in sequences)
        server.sql("alter sequence stoker.stream_sid_seq restart")
        assert "stoker.stream_sid_seq is at 0; 1 is stored already" in (await complaints(engine))["sequences"].read
        server.sql("select setval('stoker.stream_sid_seq', 1)")
        assert await complaints(engine) == {}


async def test_autovacuum_that_is_off_or_behind(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(server.url) as engine:
        server.sql("alter table stoker.remembered set (autovacuum_enabled = false)")
        assert "stoker.remembered" in (await complaints(engine))["autovacuum"].read
        server.sql(
            "insert into stoker.remembered select gen_random_uuid(), 0 from generate_series(1, 3000); "
            "delete from stoker.remembered"
        )
        server.sql("alter table stoker.remembered reset (autovacuum_enabled)")
        server.sql("alter system set autovacuum_naptime = '1h'")
        server.sql("select pg_reload_conf()")
        monkeypatch.setattr(postgres, "BLOATED", 0)
        checks = await found(engine, lambda checks: "dead rows" in checks.get("autovacuum", _none).read)
        assert "bloat" in checks
        server.sql("alter system set autovacuum = off")
        server.sql("select pg_reload_conf()")
        try:
            await found(engine, lambda checks: "is off" in checks.get("autovacuum", _none).read)
        finally:
            server.sql("alter system reset all")
            server.sql("select pg_reload_conf()")
            server.sql("vacuum stoker.remembered")


_none = Check("", Grade.OK, "")


async def test_durability_that_a_role_gave_up(server: PostgresServer) -> None:
    server.sql("alter role postgres set synchronous_commit = off")
    try:
        async with opened(server.url) as engine:
            checks = await complaints(engine)
    finally:
        server.sql("alter role postgres reset synchronous_commit")
    assert checks["durability"].verdict is Grade.WRONG


async def test_a_role_that_may_not_look(server: PostgresServer) -> None:
    async with opened(server.url):
        server.sql("create role looker login")
        server.sql("grant usage on schema stoker to looker; grant all on all tables in schema stoker to looker")
        server.sql("grant all on all sequences in schema stoker to looker")
    async with opened(server.url.replace("postgres@", "looker@")) as engine:
        checks = await complaints(engine)
    assert checks["held snapshots"].verdict is Grade.NOTE


async def test_connections_that_run_out(server: PostgresServer) -> None:
    async with opened(server.url) as engine:
        await engine.diagnose()  # so that its own connections are open
        others = [psycopg.connect(server.url) for _ in range(13)]
        try:
            checks = await complaints(engine)
        finally:
            for one in others:
                one.close()
    assert checks["connections"].verdict in {Grade.WARNING, Grade.WRONG}


async def test_a_pooler_that_swallows_notifications(server: PostgresServer) -> None:
    async with opened(server.url, pooler="transaction") as engine:
        checks = await complaints(engine)
    assert checks["pooler"].verdict is Grade.WARNING
    async with opened(server.url, pooler="transaction", direct=server.url) as engine:
        assert await complaints(engine) == {}


@pytest.mark.spec("HEALTH-06")
async def test_damaged_counters(server: PostgresServer) -> None:
    async with opened(server.url) as engine:
        await engine.jobs.insert([Draft(bytes(16), "send", queue="counted")])
        assert {one.verdict for one in jobs.judge_counts(await engine.diagnose())} == {Grade.OK}
        server.sql("insert into stoker.delta (queue, kind, pending) values ('counted', 'send', 5)")
        found = {check.name: check for check in jobs.judge_counts(await engine.diagnose())}
        assert found["counters"].verdict is Grade.WRONG
        assert "counted" in found["counters"].read
        server.sql("insert into stoker.delta (queue, kind, pending) values ('counted', 'send', -5)")
        await engine.operator.alter(Selection((bytes(16),)), Delete())
