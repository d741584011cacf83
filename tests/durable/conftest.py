"""Apps on each engine, on a virtual clock and on the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisClusterEngine, RedisEngine
from stoker.testing.clock import VirtualClock
from tests.harness.apps import clock, make_engine
from tests.harness.shared_schema import SharedSchema, shared_schema

__all__ = ["clock"]

ENGINES = [
    pytest.param(name, marks=pytest.mark.engine(name))
    for name in ("memory", "sqlite", "postgres", "redis", "redis-cluster")
]

MakeEngine = Callable[[VirtualClock | None], Engine]


@pytest.fixture(scope="module")
def schema(postgres_url: str) -> Iterator[SharedSchema]:
    with shared_schema(postgres_url) as found:
        yield found


@pytest.fixture(params=ENGINES)
def new_engine(request: pytest.FixtureRequest, tmp_path: Path) -> MakeEngine:
    """Makes the engine of an empty store."""
    of = request.getfixturevalue
    match request.param:
        case "postgres":
            schema: SharedSchema = of("schema")
            return lambda clock: PostgresEngine(f"{schema.url}?sslmode=disable", schema=schema.empty(), clock=clock)
        case "redis":
            url, prefix = of("redis_url"), of("redis_prefix")
            return lambda clock: RedisEngine(url, prefix=prefix, clock=clock)
        case "redis-cluster":
            url, prefix = of("redis_cluster_url"), of("redis_cluster_prefix")
            return lambda clock: RedisClusterEngine(url, prefix=prefix, clock=clock)
        case name:
            return lambda clock: make_engine(name, tmp_path, clock)


@pytest.fixture
async def jobs(new_engine: MakeEngine) -> AsyncIterator[Stoker]:
    """An app on the real clock."""
    async with Stoker(new_engine(None)) as app:
        yield app


@pytest.fixture
async def timed_jobs(new_engine: MakeEngine, clock: VirtualClock) -> AsyncIterator[Stoker]:
    """An app whose store goes by `clock`."""
    async with Stoker(new_engine(clock)) as app:
        yield app
