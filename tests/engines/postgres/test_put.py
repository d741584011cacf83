"""One draft is stored, and told to whoever waits for it, by one call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine, listening
from stoker.model.ids import JobId
from stoker.model.job import Draft, Stored
from stoker.model.time import HOUR
from tests.engines.postgres.sleepers import Make, until, woken

pytestmark = pytest.mark.engine("postgres")


def draft(**options: Any) -> Draft:
    return Draft(JobId(os.urandom(16)), "work", **options)


def noted_lanes(engine: PostgresEngine) -> list[str]:
    """The lanes of the calls an engine makes from now on."""
    store: Any = engine._store
    once, lanes = store.once, []

    async def noting(lane: str, name: str, values: Sequence[Any], **how: Any) -> Any:
        lanes.append(lane)
        return await once(lane, name, values, **how)

    store.once = noting
    return lanes


@asynccontextmanager
async def stranger(url: str, schema: str, found: list[str], look: Any = None) -> AsyncIterator[None]:
    """Somebody who hears what is said about a schema, and may look at something in that moment."""

    def heard(_link: Any, _pid: int, _channel: str, message: str) -> None:
        about, _, topics = message.split(" ", 2)
        if about == schema:
            found.extend(topics.split(" "))
            if look is not None:
                look()

    ear = await asyncpg.connect(url)
    try:
        await ear.add_listener(listening.CHANNEL, heard)
        yield
    finally:
        await ear.close()


@pytest.mark.spec("PGPUT-01")
async def test_one_call_stores_and_tells(make: Make) -> None:
    engine, other = await make(), await make()
    await other.wait(["mail"], 0)
    lanes = noted_lanes(engine)
    sleeper = asyncio.create_task(woken(other, "mail"))
    await engine.insert([draft(queue="mail")])
    assert await sleeper == {"mail"}
    await until(lambda: engine._store.first_word({"mail"}) is not None)
    assert lanes == ["write"]


@pytest.mark.spec("PGPUT-01")
async def test_what_follows_within_a_moment_is_said_together(
    make: Make, postgres_url: str, postgres_schema: str
) -> None:
    engine = await make()
    heard: list[str] = []
    messages: list[int] = []
    async with stranger(postgres_url, postgres_schema, heard, lambda: messages.append(len(heard))):
        queues = [f"q{n}" for n in range(40)]
        for queue in queues:
            await engine.insert([draft(queue=queue)])
        await until(lambda: set(heard) == set(queues))
    assert messages[0] == 1, "the first is said at once and by itself"
    assert len(messages) < len(queues)
    assert len(heard) == len(queues), "nothing is said twice"


@pytest.mark.spec("PGPUT-02")
async def test_whoever_hears_of_it_finds_it(make: Make, postgres_url: str, postgres_schema: str) -> None:
    engine = await make()
    counts: list[int] = []
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def look() -> None:
            [row] = connection.execute(f'select count(*) from "{postgres_schema}".ready').fetchall()
            counts[-1] = row[0]

        async with stranger(postgres_url, postgres_schema, [], look):
            for _ in range(5):
                counts.append(-1)
                await engine.insert([draft()])
                await until(lambda: counts[-1] >= 0)
                await until(lambda: engine._store.first_word({"default"}) is not None)
    assert counts == [1, 2, 3, 4, 5]


@pytest.mark.spec("PGPUT-03")
async def test_nothing_is_said_where_there_is_nothing_to_say(
    make: Make, postgres_url: str, postgres_schema: str
) -> None:
    engine = await make()
    known = draft(queue="known")
    await engine.insert([known])
    await until(lambda: engine._store.first_word({"known"}) is not None)
    heard: list[str] = []
    async with stranger(postgres_url, postgres_schema, heard):
        await engine.insert([draft(queue="later", delay=HOUR)])
        [receipt] = await engine.insert([known])
        assert receipt.stored is Stored.EXISTING
        await engine.insert([draft(queue="now")])
        await until(lambda: "now" in heard)
    assert heard == ["now"]
