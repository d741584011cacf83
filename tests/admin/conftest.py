"""An app and its Admin on every engine, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisEngine
from stoker.testing.clock import VirtualClock
from tests.harness.apps import make_engine

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres", "redis")]


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Engine:
    if request.param == "postgres":
        url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        return PostgresEngine(url, schema=schema, clock=clock)
    if request.param == "redis":
        url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
        return RedisEngine(url, prefix=prefix, clock=clock)
    return make_engine(request.param, tmp_path, clock)


@pytest.fixture
async def app(store: Engine) -> AsyncIterator[Stoker]:
    app = Stoker(store)
    app.declare("send")
    app.declare("resize")
    yield app
    await app.close()


@pytest.fixture
def admin(app: Stoker) -> Admin:
    return Admin(app)
