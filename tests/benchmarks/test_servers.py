"""The bare loops beside the engines on servers: they do what the engines do, by the same statements."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from benchmarks import catalog
from benchmarks.bare_postgres import BarePostgres
from benchmarks.bare_redis import BareRedis
from benchmarks.catalog import Benchmark
from benchmarks.grounds import Place
from benchmarks.server_cost import drain_bare, fill_bare
from benchmarks.session import Session
from stoker.model.job import Status
from stoker.registry import mint

BATCH, BATCHES = 10, 3


def batches() -> list[list[bytes]]:
    return [[mint() for _ in range(BATCH)] for _ in range(BATCHES)]


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.engine(name)) for name in ("postgres", "redis")])
def place(request: pytest.FixtureRequest) -> Place:
    value = request.getfixturevalue
    if request.param == "postgres":
        url, part = value("postgres_url"), value("postgres_schema")
        return Place(url, part, f"{url}?schema={part}", BarePostgres.open)
    url, part = value("redis_url"), value("redis_prefix")
    return Place(url, part, f"{url}?prefix={part}", BareRedis.open)


async def test_the_bare_loop_stores_claims_and_ends_jobs(place: Place) -> None:
    engine = place.engine()
    await engine.open()
    try:
        async with place.bare() as bare:
            stored = await fill_bare(bare, batches())
            ended = await drain_bare(bare, BATCH)
        census = await engine.operator.census()
    finally:
        await engine.close()
    assert stored.jobs == ended.jobs == BATCH * BATCHES
    assert {(count.status, count.n) for count in census.counts} == {(Status.DONE, BATCH * BATCHES)}


def test_servers_are_started_only_on_request() -> None:
    def nothing(_session: Session) -> list[Any]:
        return []

    local, server = Benchmark("drain.full", ("sqlite",), nothing), Benchmark("redis.drain", ("redis",), nothing)
    every = [local, server]
    scale = Benchmark("scale.redis.queues", ("redis",), nothing)
    assert catalog.chosen(every, [], []) == [local]
    assert catalog.chosen(every, [], ["drain"]) == [local]
    assert catalog.chosen(every, [], ["redis.drain"]) == [server]
    assert catalog.chosen([*every, scale], [], ["scale.redis"]) == [scale]
    assert catalog.chosen(every, ["redis"], []) == [server]
    assert catalog.chosen(every, ["redis", "sqlite"], ["drain"]) == every


def test_a_session_ends_its_servers(tmp_path: Any) -> None:
    ended: list[str] = []
    with Session(tmp_path, quick=True) as session:
        stack: ExitStack = session._servers
        stack.callback(ended.append, "server")
    assert ended == ["server"]
