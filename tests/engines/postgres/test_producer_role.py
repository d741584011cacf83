"""Least privilege: a role that may enqueue, and nothing else."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.model.control import Tuning
from stoker.model.errors import EngineRefused
from stoker.model.ids import Mint
from stoker.model.job import Demand, Draft, Status, Stored
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed
from stoker.model.query import Cancel, Retention, Selection
from stoker.model.time import HOUR
from stoker.model.unique import Unique

pytestmark = pytest.mark.engine("postgres")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "postgres.md"
BLOCK = re.compile(r"```sql\n(.*?)```", re.DOTALL)
mint = Mint(lambda: time.time_ns() // 1000, os.urandom)


def documented(number: int, schema: str, role: str) -> str:
    """The grants that the page tells people to give: to a caller of the function, a producer, a worker."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("## Database roles")
    grants = BLOCK.findall(rest.partition("\n## ")[0])[number]
    placed = re.sub(r"\bjobs\b", schema, grants)
    return re.sub(r"\b(web|worker)\b", role, placed)


def lowly(url: str, role: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{role}@{rest.rpartition('@')[2]}"


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def grant(
    admin: psycopg.Connection, postgres_url: str, postgres_schema: str
) -> AsyncIterator[Callable[[int], str]]:
    """Give the documented grants to a fresh role; answers a URL for it."""
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.close()
    name = f"r_{postgres_schema}"
    admin.execute(f"create role {name} login".encode())

    def give(number: int) -> str:
        admin.execute(documented(number, postgres_schema, name).encode())
        return lowly(postgres_url, name)

    yield give
    admin.execute(f"drop owned by {name}; drop role {name}".encode())


@pytest.mark.spec("PGROLE-01")
async def test_a_role_that_may_only_call_the_function_needs_no_table(
    grant: Callable[[int], str], postgres_schema: str, admin: psycopg.Connection
) -> None:
    """It enqueues through SQL; every table is closed to it."""
    url = grant(0)
    with psycopg.connect(url) as connection:
        connection.execute(f"select {postgres_schema}.enqueue('work', unique_key => 'k')".encode())
        connection.commit()
        for table in ("job", "ready", "done"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"select * from {postgres_schema}.{table}".encode())
            connection.rollback()
    assert admin.execute(f"select count(*) from {postgres_schema}.ready".encode()).fetchone() == (1,)


@pytest.mark.spec("PGROLE-02")
async def test_a_producer_can_insert_and_nothing_else(
    grant: Callable[[int], str], postgres_schema: str, admin: psycopg.Connection
) -> None:
    """Plain and keyed drafts are stored; reading payloads, claiming, canceling and deleting are refused."""
    url = grant(1)
    engine = PostgresEngine(url, schema=postgres_schema)
    await engine.open()
    plain, keyed = Draft(mint(), "work"), Draft(mint(), "work", unique=Unique("k"))
    assert [one.stored for one in await engine.jobs.insert([plain])] == [Stored.INSERTED]
    assert [one.stored for one in await engine.jobs.insert([plain, keyed])] == [Stored.EXISTING, Stored.INSERTED]
    assert (await engine.jobs.insert([Draft(mint(), "work", unique=Unique("k"))]))[0].id == keyed.job_id
    for refused in (
        engine.jobs.renew("w1", [], first=True),
        engine.jobs.claim(Demand("w1", (("default", 1),))),
        engine.operator.get([plain.job_id]),
        engine.operator.alter(Selection((plain.job_id,)), Cancel()),
    ):
        with pytest.raises(EngineRefused):
            await refused
    await engine.close()
    with psycopg.connect(url) as connection:
        for table in ("job", "ready", "dedupe", "delta", "done", "lease"):
            for forbidden in (f"delete from {postgres_schema}.{table}", f"select payload from {postgres_schema}.job"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(forbidden.encode())
                connection.rollback()
    assert admin.execute(f"select count(*) from {postgres_schema}.job".encode()).fetchone() == (2,)


@pytest.mark.spec("PGROLE-03")
async def test_a_worker_needs_no_more_than_the_page_says(grant: Callable[[int], str], postgres_schema: str) -> None:
    """Everything from insert to reap, and an operator's actions, with a role that owns nothing."""
    engine = PostgresEngine(grant(2), schema=postgres_schema)
    await engine.open()
    drafts = [Draft(mint(), "work", unique=Unique(f"k{n}")) for n in range(3)]
    await engine.jobs.insert(drafts)
    await engine.jobs.renew("w1", [], first=True)
    one, two = await engine.jobs.claim(Demand("w1", (("default", 2),)))
    await engine.jobs.settle([conclude(one, Done(b"1")), conclude(two, Failed("boom", after=HOUR))])
    await engine.operator.alter(Selection((drafts[2].job_id,)), Cancel())
    await engine.control.tune("default", Tuning(paused=True))
    assert await engine.jobs.reap("w1", 10) == []
    await engine.operator.expire(Retention())
    statuses = (await engine.operator.census()).by_status()
    assert (statuses[Status.DONE], statuses[Status.RETRYING], statuses[Status.CANCELED]) == (1, 1, 1)
    await engine.close()
