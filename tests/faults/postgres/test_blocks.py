"""Blocks under kill -9, and with COMMITs whose answer is lost: every job has its effect exactly once."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Status
from stoker.model.retry import Fixed
from stoker.worker import Worker
from tests import services
from tests.faults.blocks import Site, judge, storm
from tests.faults.fork_server import ForkServer
from tests.faults.postgres.trials import Make
from tests.harness.proxy import Proxy

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(1_800)]


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer("tests.faults.blocks")
    yield made
    made.close()


@pytest.mark.spec("BLOCK-17")
def test_effects_are_exactly_once_under_kills(
    fork_server: ForkServer, campaign: bool, postgres_url: str, postgres_schema: str
) -> None:
    seed, jobs = secrets.randbits(32), 10_000 if campaign else 500
    arguments = {"url": postgres_url, "schema": postgres_schema, "jobs": jobs, "seed": seed}
    found = fork_server.call(storm, within=1_500 if campaign else 900, **arguments).answer
    print(f"seed {seed}: {found}")
    site = Site(postgres_url, postgres_schema)
    assert judge(site.rows, site.table, found, jobs) == [], seed
    assert found["killed"] >= 5


@pytest.mark.spec("BLOCK-04", "BLOCK-17")
async def test_commits_without_answer_are_exactly_once(
    make: Make, proxy: Proxy, server: services.PostgresServer, schema: str, campaign: bool
) -> None:
    """Half of the COMMITs are carried out and never answered, and handlers hide that: nothing is done twice, and the
    worker reports no success that it does not know of.
    """
    seed, number = secrets.randbits(32), 400 if campaign else 60
    chance = random.Random(seed)
    print(f"seed {seed}")
    jobs = Stoker(make(), attempts=1_000, backoff=Fixed(0.01))
    runs = Counter[int]()

    @asynccontextmanager
    async def on_loop() -> AsyncIterator[Any]:
        connection = await asyncpg.connect(proxy.url)
        try:
            async with connection.transaction():
                yield connection
                if chance.random() < 0.5:
                    proxy.lose_reply(b"COMMIT")
        finally:
            connection.terminate()

    @contextmanager
    def in_thread() -> Iterator[Any]:
        with closing(psycopg.connect(proxy.url)) as connection, connection:
            yield connection
            if chance.random() < 0.5:
                proxy.lose_reply(b"COMMIT")

    @jobs.task
    async def charge(n: int) -> str:
        runs[n] += 1
        try:
            async with current().transaction(on_loop) as handle:
                await handle.execute(f"insert into {schema}.effects values ({n})")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            if n % 4 == 0:
                raise
        return "fine"

    @jobs.task
    def plain(n: int) -> str:
        runs[n] += 1
        try:
            with current().transaction(in_thread) as handle:
                handle.execute(f"insert into {schema}.effects values ({n})")
        except psycopg.Error:
            if n % 4 == 1:
                raise
        return "fine"

    async with jobs:
        with psycopg.connect(server.url) as connection:
            connection.execute(f"create table {schema}.effects (n integer)".encode())
        await jobs.enqueue_many([(plain if n % 2 else charge).draft(n) for n in range(number)])
        engine = await jobs.engine()
        async with Worker(jobs, {"default": 4}, poll=0.05) as worker:
            async with asyncio.timeout(300):
                while (await engine.operator.census()).by_status()[Status.DONE] < number:
                    await asyncio.sleep(0.05)
                while worker.runs or worker.counts[Status.DONE] + worker.lost < number:
                    await asyncio.sleep(0.01)
    with psycopg.connect(server.url) as connection:
        effects = Counter(n for (n,) in connection.execute(f"select n from {schema}.effects".encode()))
    assert effects == Counter(range(number)), seed
    # What the worker did not count as done was in doubt, happened, and was refused by the store.
    assert worker.counts[Status.DONE] + worker.lost == number
    assert worker.lost > 0
    assert sum(runs.values()) == number + worker.counts[Status.RETRYING]


@pytest.mark.spec("BLOCK-04", "BLOCK-17")
async def test_own_commits_without_answer_are_exactly_once(
    make: Make, proxy: Proxy, server: services.PostgresServer, schema: str, campaign: bool
) -> None:
    """The same in the engine's own transactions, whose settlement goes with the commit: half are not answered."""
    seed, number = secrets.randbits(32), 400 if campaign else 40
    chance = random.Random(seed)
    print(f"seed {seed}")
    jobs = Stoker(make(proxy.url), attempts=1_000, backoff=Fixed(0.01))
    runs = Counter[int]()

    @jobs.task
    async def charge(n: int) -> str:
        runs[n] += 1
        try:
            async with current().transaction() as tx:
                await tx.execute(f"insert into {schema}.effects values ($1)", n)
                if chance.random() < 0.5:
                    proxy.lose_reply(b"settle_claim")
        except EngineUnavailable:
            if n % 2 == 0:
                raise
        return "fine"

    async with jobs:
        with psycopg.connect(server.url) as connection:
            connection.execute(f"create table {schema}.effects (n integer)".encode())
        await jobs.enqueue_many([charge.draft(n) for n in range(number)])
        engine = await jobs.engine()
        async with Worker(jobs, {"default": 4}, poll=0.05) as worker:
            async with asyncio.timeout(300):
                while (await engine.operator.census()).by_status()[Status.DONE] < number:
                    await asyncio.sleep(0.05)
                while worker.runs or worker.counts[Status.DONE] + worker.lost < number:
                    await asyncio.sleep(0.01)
    with psycopg.connect(server.url) as connection:
        effects = Counter(n for (n,) in connection.execute(f"select n from {schema}.effects".encode()))
    assert effects == Counter(range(number)), seed
    assert worker.counts[Status.DONE] + worker.lost == number
    assert worker.lost > 0
    assert sum(runs.values()) == number + worker.counts[Status.RETRYING]
