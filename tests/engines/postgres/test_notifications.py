"""Other processes are notified of new jobs, each at once while there are few."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from stoker.engines.postgres.wakeup import listener, notifier
from stoker.model.ids import JobId
from stoker.model.job import Draft, Stored
from stoker.model.time import HOUR
from tests.engines.postgres.sleepers import Make, until, woken

pytestmark = pytest.mark.engine("postgres")


def draft(**options: Any) -> Draft:
    return Draft(JobId(os.urandom(16)), "work", **options)


@asynccontextmanager
async def stranger(url: str, schema: str, found: list[str], look: Any = None) -> AsyncIterator[None]:
    """A session that listens to notifications of a schema, and may look at something at that moment."""

    def heard(_link: Any, _pid: int, _channel: str, message: str) -> None:
        about, _, topics = message.split(" ", 2)
        if about == schema:
            found.extend(topics.split(" "))
            if look is not None:
                look()

    ear = await asyncpg.connect(url)
    try:
        await ear.add_listener(listener.CHANNEL, heard)
        yield
    finally:
        await ear.close()


@pytest.mark.spec("PGPUT-01")
async def test_a_waiter_of_another_engine_is_woken(make: Make) -> None:
    engine, other = await make(), await make()
    await other.jobs.wait(["mail"], 0)
    sleeper = asyncio.create_task(woken(other, "mail"))
    await engine.jobs.insert([draft(queue="mail")])
    assert await sleeper == {"mail"}


@pytest.mark.spec("PGPUT-01")
async def test_jobs_one_by_one_are_notified_one_by_one(make: Make, postgres_url: str, postgres_schema: str) -> None:
    engine = await make()
    heard: list[str] = []
    messages: list[int] = []
    async with stranger(postgres_url, postgres_schema, heard, lambda: messages.append(len(heard))):
        for n in range(notifier.BURST // 2):
            await engine.jobs.insert([draft(queue=f"q{n}")])
            await until(lambda: len(heard) > n)  # noqa: B023 - called before the next turn
    assert messages == list(range(1, notifier.BURST // 2 + 1))


@pytest.mark.spec("PGPUT-01")
async def test_what_comes_too_fast_is_told_together(
    make: Make, postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "RATE", 0.0)
    monkeypatch.setattr(notifier, "BURST", 3)
    monkeypatch.setattr(notifier, "PAUSES", (0.3,))
    engine = await make()
    heard: list[str] = []
    messages: list[int] = []
    async with stranger(postgres_url, postgres_schema, heard, lambda: messages.append(len(heard))):
        queues = [f"q{n}" for n in range(20)]
        for n, queue in enumerate(queues):
            await engine.jobs.insert([draft(queue=queue)])
            if n < 3:
                await until(lambda: len(heard) > n)  # noqa: B023 - called before the next turn
        await until(lambda: set(heard) == set(queues))
    assert messages[:3] == [1, 2, 3], "the first ones are sent at once and by themselves"
    assert len(messages) < len(queues)
    assert len(heard) == len(queues), "nothing is said twice"


@pytest.mark.spec("PGPUT-01")
def test_only_what_exceeds_the_rate_is_merged() -> None:
    flow, now = notifier.Flow(), 100.0
    for _ in range(2_000):  # 200 a second, ten seconds long
        now += 0.005
        assert flow.add(now)
    at_once = 0
    for _ in range(1_000):  # 1,000 a second, one second long
        now += 0.001
        at_once += flow.add(now)
    assert notifier.BURST <= at_once <= 2 * notifier.BURST
    assert flow.full(now)
    now += notifier.BURST / notifier.RATE + 0.01
    assert not flow.full(now), "a moment later it is over"
    assert flow.add(now)


@pytest.mark.spec("PGPUT-02")
async def test_a_notified_engine_finds_the_job(make: Make, postgres_url: str, postgres_schema: str) -> None:
    engine = await make()
    counts: list[int] = []
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def look() -> None:
            [row] = connection.execute(f'select count(*) from "{postgres_schema}".ready').fetchall()
            counts[-1] = row[0]

        async with stranger(postgres_url, postgres_schema, [], look):
            for _ in range(5):
                counts.append(-1)
                await engine.jobs.insert([draft()])
                await until(lambda: counts[-1] >= 0)
    assert counts == [1, 2, 3, 4, 5]


@pytest.mark.spec("PGPUT-03")
async def test_nothing_is_said_where_there_is_nothing_to_say(
    make: Make, postgres_url: str, postgres_schema: str
) -> None:
    engine = await make()
    known = draft(queue="known")
    heard: list[str] = []
    async with stranger(postgres_url, postgres_schema, heard):
        await engine.jobs.insert([known])
        await until(lambda: heard == ["known"])
        heard.clear()
        await engine.jobs.insert([draft(queue="later", delay=HOUR)])
        [receipt] = await engine.jobs.insert([known])
        assert receipt.stored is Stored.EXISTING
        await engine.jobs.insert([draft(queue="now")])
        await until(lambda: "now" in heard)
    assert heard == ["now"]
