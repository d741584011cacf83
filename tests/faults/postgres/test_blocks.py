"""Blocks with COMMITs whose answer is lost: every job has its effect exactly once."""

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
from stoker.model.job import Draft, Status
from stoker.model.retry import Fixed
from stoker.worker import Worker
from tests import services
from tests.faults.postgres.trials import Make
from tests.harness.proxy import Proxy

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(1_800)]


async def run_once(jobs: Stoker, drafts: list[Draft], runs: Counter[int], url: str, schema: str) -> None:
    """Run the jobs, of which each writes its place into a table; every effect must have happened exactly once."""
    number = len(drafts)
    async with jobs:
        with psycopg.connect(url) as connection:
            connection.execute(f"create table {schema}.effects (n integer)".encode())
        await jobs.enqueue_many(drafts)
        engine = await jobs.engine()
        async with Worker(jobs, {"default": 4}, poll=0.05) as worker:
            async with asyncio.timeout(300):
                while (await engine.operator.census()).by_status()[Status.DONE] < number:
                    await asyncio.sleep(0.05)
                while worker.runs or worker.counts[Status.DONE] + worker.lost < number:
                    await asyncio.sleep(0.01)
    with psycopg.connect(url) as connection:
        effects = Counter(n for (n,) in connection.execute(f"select n from {schema}.effects".encode()))
    assert effects == Counter(range(number))
    # What the worker did not count as done was in doubt, happened, and was refused by the store.
    assert worker.counts[Status.DONE] + worker.lost == number
    assert worker.lost > 0
    assert sum(runs.values()) == number + worker.counts[Status.RETRYING]


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

    await run_once(jobs, [(plain if n % 2 else charge).draft(n) for n in range(number)], runs, server.url, schema)


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

    await run_once(jobs, [charge.draft(n) for n in range(number)], runs, server.url, schema)
