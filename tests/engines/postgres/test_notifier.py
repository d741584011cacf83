"""Wake-ups between processes: said after the commit, heard on one connection, never relied upon."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import asyncpg
import psycopg
import pytest

from stoker.engines.base import CONTROL
from stoker.engines.postgres.wakeup import listener
from stoker.model.ids import JobId
from stoker.model.job import Demand, Draft
from stoker.model.time import SECOND
from tests.engines.postgres.sleepers import SOON, Make, until, woken
from tests.harness.proxy import Proxy

pytestmark = pytest.mark.engine("postgres")

PRODUCER = """
import asyncio, os, sys
from stoker.engines.postgres import PostgresEngine
from stoker.model.job import Draft
async def main():
    engine = PostgresEngine(sys.argv[1], schema=sys.argv[2])
    await engine.open()
    await engine.jobs.insert([Draft(os.urandom(16), "work", queue="mail")])
    await engine.close()
asyncio.run(main())
"""


def draft(job: int, **options: Any) -> Draft:
    return Draft(JobId(job.to_bytes(16)), "work", **options)


def listeners(url: str) -> set[int]:
    """The sessions that listen: what they did last is to begin, or to send a pulse."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("select pid from pg_stat_activity where query ~* '^(listen|select 1$)'").fetchall()
        return {pid for (pid,) in rows}


@pytest.mark.spec("PGOP-01")
async def test_an_insert_in_another_process_wakes_a_sleeper(
    make: Make, postgres_url: str, postgres_schema: str
) -> None:
    engine = await make()
    assert await engine.jobs.wait(["mail"], 0) == frozenset()
    sleeper = asyncio.create_task(woken(engine, "mail", "post"))
    producer = [sys.executable, "-c", PRODUCER, postgres_url, postgres_schema]
    await asyncio.to_thread(subprocess.run, producer, check=True, timeout=SOON)
    assert await sleeper == {"mail"}


@pytest.mark.spec("PGOP-01")
async def test_a_wake_up_is_for_one_schema(make: Make, postgres_url: str) -> None:
    here, elsewhere = await make(), await make(schema="stoker_elsewhere", migrate="auto")
    try:
        await here.jobs.wait([CONTROL], 0)
        await elsewhere.jobs.wake([CONTROL, "mail"])
        await elsewhere.jobs.wake(["mail"])
        twin = here.for_loop()
        await twin.open()
        await twin.jobs.wake(["post"])
        assert await woken(here, "mail", "post", CONTROL) == {"post"}
        await twin.close()
    finally:
        await elsewhere.close()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("drop schema stoker_elsewhere cascade")


@pytest.mark.spec("PGOP-02")
async def test_many_wake_ups_at_once_are_said_once(make: Make, postgres_url: str, postgres_schema: str) -> None:
    engine = await make()
    heard: list[str] = []
    ear = await asyncpg.connect(postgres_url)
    try:
        await ear.add_listener(listener.CHANNEL, lambda *said: heard.append(said[3]))
        for n in range(300):
            await engine.jobs.wake([f"queue-{n % 30}"])

        def topics() -> set[str]:
            return {
                topic
                for message in heard
                for topic in message.split(" ")[2:]
                if message.split(" ")[0] == postgres_schema
            }

        await until(lambda: len(topics()) == 30)
        assert len(heard) <= 3
    finally:
        await ear.close()


@pytest.mark.spec("PGOP-02")
async def test_more_than_fits_into_a_message_wakes_all_waiters(
    make: Make,
) -> None:
    engine, other = await make(), await make()
    await engine.jobs.wait(["mail"], 0)
    sleepers = [asyncio.create_task(woken(engine, topic)) for topic in ("mail", CONTROL)]
    await asyncio.sleep(0)
    await until(lambda: set(engine._store.notifier._waiters.waited_for()) >= {"mail"})
    await other.jobs.wake([f"{n:0>100}" for n in range(200)])
    assert await asyncio.gather(*sleepers) == [{"mail"}, {CONTROL}]


@pytest.mark.spec("PGOP-03")
async def test_a_listener_that_was_ended_listens_again(make: Make, postgres_url: str) -> None:
    engine, other = await make(), await make()
    before = listeners(postgres_url)
    await engine.jobs.wait([CONTROL], 0)
    [ear] = listeners(postgres_url) - before
    sleeper = asyncio.create_task(woken(engine, CONTROL))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(%s)", (ear,))
    assert await sleeper == {CONTROL}, "what was sent meanwhile is not known, so all waiters look"
    await until(lambda: bool(listeners(postgres_url) - before - {ear}))
    sleeper = asyncio.create_task(woken(engine, "mail"))
    await other.jobs.wake(["mail"])
    assert await sleeper == {"mail"}


@pytest.mark.spec("PGOP-03")
async def test_a_listener_without_a_reply_is_given_up(
    make: Make, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket stays open and nothing comes: the pulse notices, and the next connection listens."""
    assert 2 * listener.PULSE <= 10
    monkeypatch.setattr(listener, "PULSE", 0.1)
    other = await make()
    with Proxy(postgres_url) as proxy:
        engine = await make(direct=proxy.url)
        await engine.jobs.wait([CONTROL], 0)
        opened = proxy.connections
        proxy.blackhole()
        await until(lambda: proxy.connections > opened)
        proxy.heal()
        assert await woken(engine, CONTROL) == {CONTROL}
        await other.jobs.wake(["mail"])
        assert await woken(engine, "mail") == {"mail"}


@pytest.mark.spec("PGOP-04")
async def test_behind_a_pooler_a_process_warns_once_that_it_cannot_listen(
    make: Make,
    postgres_pooler_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener._registry, "_cannot_listen", set())
    with caplog.at_level(logging.WARNING, "stoker.engines.postgres"):
        earlier = await make(postgres_pooler_url)
        assert await earlier.jobs.wait(["mail"], 0) == frozenset()
        await earlier.close()
        engine, twin = await make(postgres_pooler_url), await make(postgres_pooler_url)
        for waiting in (engine, twin, engine):
            assert await waiting.jobs.wait(["mail", CONTROL], 0.01) == frozenset()
        await engine.jobs.insert([draft(1, queue="mail")])
        assert await woken(engine, "mail") == {"mail"}, "what this engine does it knows without listening"
    [said] = [record.getMessage() for record in caplog.records]
    assert "LISTEN" in said
    assert "direct=" in said
    described = await engine.describe()
    assert described.facts["pooler"] == "transaction"
    assert said in described.warnings


@pytest.mark.spec("PGOP-04")
async def test_a_direct_url_leads_past_the_pooler(
    make: Make,
    postgres_pooler_url: str,
    postgres_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = await make(postgres_pooler_url, direct=postgres_url)
    other = await make(postgres_pooler_url)
    await engine.jobs.wait(["mail"], 0)
    await other.jobs.insert([draft(1, queue="mail")])
    assert await woken(engine, "mail") == {"mail"}
    assert caplog.records == []
    assert not any("LISTEN" in warning for warning in (await engine.describe()).warnings)


@pytest.mark.spec("PGOP-05")
async def test_the_server_says_when_the_next_job_is_due(make: Make) -> None:
    """No notification comes when time makes a job due: a waiter asks beforehand, by the clock of the server."""
    engine = await make()
    await engine.jobs.insert(
        [
            draft(1, queue="later", delay=600 * SECOND),
            draft(2, queue="soon", priority=7, delay=SECOND // 4),
            draft(3, queue="soon", priority=3, delay=60 * SECOND),
        ]
    )
    wait = (await engine.jobs.ahead(["later", "soon"])).wait
    assert wait is not None
    assert 0 <= wait <= SECOND // 4
    await asyncio.sleep(wait / SECOND)
    assert (await engine.jobs.ahead(["later", "soon"])).wait == 0
    await engine.jobs.renew("w", [], first=True)
    [claim] = await engine.jobs.claim(Demand("w", (("soon", 5),)))
    assert claim.id == JobId((2).to_bytes(16))


@pytest.mark.spec("PGOP-06")
async def test_closing_sends_sleepers_home(make: Make, postgres_url: str) -> None:
    engine = await make()
    before = listeners(postgres_url)
    await engine.jobs.wait(["mail"], 0)
    assert len(listeners(postgres_url) - before) == 1
    sleeper = asyncio.create_task(woken(engine, "mail"))
    await until(lambda: engine._store.notifier._waiters.waited_for() == ["mail"])
    await engine.close()
    assert await sleeper == frozenset()
    await until(lambda: not listeners(postgres_url) - before)
