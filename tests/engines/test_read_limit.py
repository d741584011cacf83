"""An engine whose reads are limited: the store stops them, so that people's questions do not slow workers down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest

from stoker.engines.base import Engine
from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisEngine
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineSlow, EngineUnavailable
from tests.harness.apps import PATIENCE, within
from tests.harness.proxy import Proxy

LIMIT = 0.05
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
LONG = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000) SELECT max(i) FROM n"

Limited: TypeAlias = Callable[[Engine], Any]


@pytest.fixture
async def limited() -> AsyncIterator[Limited]:
    """Opens a limited twin of an engine, and closes both."""
    async with AsyncExitStack() as stack:

        async def opened(engine: Engine, limit: float = LIMIT) -> Any:
            await engine.open()
            stack.push_async_callback(engine.close)
            twin = engine.for_loop(read_limit=limit)
            await twin.open()
            stack.push_async_callback(twin.close)
            return twin

        yield opened


def asked(statement: str) -> Exchange[list[Row]]:
    """An exchange of one statement."""
    rows: list[Row] = yield statement, ()
    return rows


async def answers(engine: Engine) -> None:
    """Ask until it answers in time: a busy machine may need longer than the limit for a short question too."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(EngineSlow):
                assert (await engine.operator.census()).counts == ()
                return


@pytest.mark.spec("DESCRIBE-10")
@pytest.mark.engine("sqlite")
async def test_sqlite_stops_a_long_read_and_not_a_long_write(limited: Any, tmp_path: Path) -> None:
    twin = await limited(SqliteEngine(tmp_path / "jobs.db"))
    for read in (twin._store.read, twin._store.read_in_slices):
        with pytest.raises(EngineSlow, match="longer than one call may"):
            await read(lambda _: asked(ENDLESS))
        await answers(twin)
    assert await twin._store.write(lambda _: asked(LONG)) == [(2_000_000,)]
    again = twin.for_loop()
    await again.open()
    with pytest.raises(EngineSlow):
        await again._store.read(lambda _: asked(ENDLESS))
    await again.close()


@pytest.mark.spec("DESCRIBE-10")
@pytest.mark.engine("postgres")
@pytest.mark.parametrize("pooled", [False, True])
async def test_postgres_stops_a_long_read_and_not_a_long_write(
    request: pytest.FixtureRequest, limited: Any, postgres_url: str, postgres_schema: str, pooled: bool
) -> None:
    url = request.getfixturevalue("postgres_pooler_url") if pooled else postgres_url
    twin = await limited(PostgresEngine(url, schema=postgres_schema))
    store = twin._store
    store.texts = {**store.texts, "long": "SELECT pg_sleep(30)", "short": "SELECT pg_sleep(0.2)::text"}
    with pytest.raises(EngineSlow, match="took too long"):
        await store.read(lambda _: asked("long"))
    await answers(twin)
    with pytest.raises(EngineSlow, match="took too long"):
        await store.each("admin", lambda: asked("long"))
    await answers(twin)
    with psycopg.connect(postgres_url) as connection:
        running = "select count(*) from pg_stat_activity where state = 'active' and query = 'SELECT pg_sleep(30)'"
        assert connection.execute(running).fetchone() == (0,)
    assert await store.write(lambda _: asked("short"), notify=False) == [("",)]


@pytest.mark.spec("DESCRIBE-10")
@pytest.mark.engine("redis")
async def test_on_redis_the_caller_stops_waiting(limited: Any, redis_url: str, redis_prefix: str) -> None:
    with Proxy(redis_url) as proxy:
        twin = await limited(RedisEngine(proxy.url, prefix=redis_prefix), 2)
        assert (await twin.operator.census()).counts == ()
        proxy.blackhole()
        with pytest.raises(EngineUnavailable):
            await within(twin.operator.census())
        proxy.heal()
        assert (await within(twin.operator.census())).counts == ()
