"""What the engine says about its server: read back, never assumed, and with the name of what is in the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from stoker.engines.base import Description
from stoker.engines.postgres import PostgresEngine, describe
from tests import services
from tests.services.handles import PostgresServer

pytestmark = pytest.mark.engine("postgres")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that keeps what it is told, and allows slots and prepared transactions."""
    with services.postgres_server(fsync=True, wal_level="logical", max_prepared_transactions="3") as server:
        yield server


@asynccontextmanager
async def opened(url: str, schema: str = "stoker") -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(url, schema=schema)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def described(engine: PostgresEngine, true: Callable[[Description], bool]) -> Description:
    """The first description of which something is true."""
    deadline = time.monotonic() + 60
    while not true(found := await engine.describe()):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)
    return found


def held(found: Description) -> str:
    return found.facts["held_snapshot"]


@pytest.mark.spec("PGOP-07")
async def test_it_reads_back_what_durability_rests_on(server: PostgresServer) -> None:
    async with opened(server.url) as engine:
        found = await engine.describe()
    assert found.engine == "postgres"
    assert found.version.split(".")[0].isdecimal()
    assert "power loss" in found.durability
    assert "fsync=on" in found.durability
    for fact, wanted in {
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "recovery": "primary",
        "wal_level": "logical",
        "schema": "stoker",
    }.items():
        assert found.facts[fact] == wanted
    assert found.size is not None
    assert found.size >= int(found.facts["job_bytes"]) > 0
    assert found.warnings == ()


@pytest.mark.spec("PGOP-07")
@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
async def test_it_warns_of_a_server_that_may_forget(setting: str) -> None:
    settings = {setting: "off"} if setting != "fsync" else {}
    with services.postgres_server(fsync=setting != "fsync", **settings) as server:
        async with opened(server.url) as engine:
            found = await engine.describe()
    [warning] = found.warnings
    assert f"{setting} is off" in warning
    assert found.facts[setting] == "off"
    if setting != "full_page_writes":
        assert f"{setting}=off" in found.durability
        assert "not" in found.durability


@pytest.mark.spec("PGOP-07")
async def test_it_knows_a_standby(server: PostgresServer) -> None:
    async with opened(server.url):
        pass
    server.demote()
    try:
        async with opened(server.url) as engine:
            found = await engine.describe()
    finally:
        server.promote()
    assert found.facts["recovery"] == "standby"
    assert any("standby" in warning for warning in found.warnings)


@pytest.mark.spec("PGOP-08")
async def test_it_names_the_session_that_holds_an_old_snapshot(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "HELD_FOR", 0.5)
    async with opened(server.url) as engine:
        with psycopg.connect(server.url, application_name="report") as connection:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute("select 1 from pg_class limit 1")
            name = f"session {connection.info.backend_pid} (report, postgres, idle in transaction)"
            found = await described(engine, lambda found: name in held(found))
            [warning] = found.warnings
            assert name in warning
            assert "pg_terminate_backend" in warning
        assert not (await described(engine, lambda found: held(found) == "none")).warnings


@pytest.mark.spec("PGOP-08")
async def test_it_names_a_prepared_transaction_that_does_not_end(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "HELD_FOR", 0)
    async with opened(server.url) as engine:
        with psycopg.connect(server.url, autocommit=True) as connection:
            for statement in ("begin", "create table forgotten ()", "prepare transaction 'it''s mine'"):
                connection.execute(statement.encode())
            try:
                found = await engine.describe()
            finally:
                connection.execute("rollback prepared 'it''s mine'")
    assert "prepared transaction 'it''s mine' (postgres)" in held(found)
    assert any("ROLLBACK PREPARED" in warning for warning in found.warnings)


@pytest.mark.spec("PGOP-08")
async def test_it_names_a_replication_slot_without_a_reader(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server.url) as engine:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("select pg_create_logical_replication_slot('left_behind', 'test_decoding')")
            try:
                found = await engine.describe()
                assert "slot left_behind (logical, inactive)" in held(found)
                assert found.warnings == (), "a young slot is no reason to worry"
                monkeypatch.setattr(describe, "HELD_OVER", 0)
                found = await engine.describe()
            finally:
                connection.execute("select pg_drop_replication_slot('left_behind')")
    [warning] = found.warnings
    assert "slot left_behind" in warning
    assert "pg_drop_replication_slot" in warning


@pytest.mark.spec("PGOP-08")
async def test_it_says_when_it_may_not_look(server: PostgresServer) -> None:
    """A role without the right to see others' sessions cannot vouch for them."""
    async with opened(server.url):
        pass
    server.sql("create role worker login")
    server.sql("grant usage on schema stoker to worker; grant all on all tables in schema stoker to worker")
    try:
        async with opened(server.url.replace("postgres@", "worker@", 1)) as engine:
            found = await engine.describe()
    finally:
        server.sql("drop owned by worker; drop role worker")
    assert any("pg_read_all_stats" in warning for warning in found.warnings)
