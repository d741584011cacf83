"""Processes that deliver an outbox, killed and frozen, on SQLite and Postgres."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stoker.app import Stoker
from stoker.outbox import Outbox, StreamState
from tests.worker.shell import Command, Deployment, until

pytestmark = pytest.mark.timeout(300)

APP = "tests.worker.apps.shop:jobs"
KEYS = 12


class Shop:
    """A store, processes that deliver it, and what they left behind."""

    def __init__(self, deployment: Deployment, url: str, database: Any, insert: str) -> None:
        self.deployment = deployment
        self.database = database
        self.jobs = Stoker(url)
        self.outbox = Outbox[int](self.jobs, stream="orders", partitions=8)
        deployment.environ |= {"STOKER_URL": url, "INSERT": insert}

    def append(self, first: int, count: int, **headers: str) -> None:
        async def fill() -> None:
            async with self.jobs:
                for n in range(first, first + count):
                    await self.outbox.append(str(n % KEYS), n, headers=headers)

        asyncio.run(fill())

    def state(self) -> StreamState:
        async def look() -> StreamState:
            async with self.jobs:
                return await self.outbox.state()

        return asyncio.run(look())

    def all_is_delivered(self) -> bool:
        consumers = self.state().consumers
        return len(consumers) == 3 and not any(one.waiting for one in consumers)

    @contextmanager
    def deliver(self) -> Iterator[Command]:
        with self.deployment.command("-m", "stoker", "outbox", "run", APP, "-p", "2") as command:
            yield command

    def published(self) -> list[tuple[str, int]]:
        path = self.deployment.folder / "marks"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(fields[1], int(fields[2])) for fields in map(str.split, lines) if fields[0] == "publish"]

    def judge(self, count: int) -> int:
        """Nothing is lost or overtaken, effects happen once; returns how many deliveries came again."""
        found = self.published()
        first: dict[str, list[int]] = {}
        for key, n in found:
            if n not in first.setdefault(key, []):
                first[key].append(n)
        assert sum(map(len, first.values())) == count
        assert all(numbers == sorted(numbers) for numbers in first.values())
        effects = [n for (n,) in self.database("select n from effects")]
        assert sorted(effects) == list(range(count))
        return len(found) - count


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.engine("sqlite")),
        pytest.param("postgres", marks=pytest.mark.engine("postgres")),
    ]
)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    deployment = Deployment(tmp_path)
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"

        def ask(text: str) -> Any:
            with sqlite3.connect(path, timeout=30) as db:
                return db.execute(text).fetchall()

        ask("create table effects (n integer primary key)")
        return Shop(deployment, f"sqlite:///{path}", ask, "insert into effects values (?)")
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")

    def ask_server(text: str) -> Any:
        with psycopg.connect(url, autocommit=True, options=f"-csearch_path={schema}") as db:
            found = db.execute(text.encode())
            return found.fetchall() if found.description else []

    ask_server("create table effects (n integer primary key)")
    return Shop(deployment, f"{url}?schema={schema}", ask_server, f"insert into {schema}.effects values ($1)")


@pytest.mark.spec("DELIVER-30")
def test_kills_and_freezes_lose_nothing_and_invert_nothing(shop: Shop, campaign: bool) -> None:
    chance = random.Random(7)
    rounds, each = (20, 300) if campaign else (4, 60)
    with shop.deliver() as command:
        until(lambda: len(command.children) == 2)
        for n in range(rounds):
            shop.append(n * each, each)
            until(lambda n=n: len(shop.published()) > n * each, what="deliveries go on")  # type: ignore[misc]
            victim = chance.choice(until(lambda: command.children))
            if n % 2:
                os.kill(victim, signal.SIGKILL)
            else:
                os.kill(victim, signal.SIGSTOP)
                time.sleep(3.5)  # longer than a lease
                os.kill(victim, signal.SIGCONT)
        until(shop.all_is_delivered, 120, "all is delivered")
    again = shop.judge(rounds * each)
    print(f"{rounds * each} messages, {again} delivered again")


@pytest.mark.spec("DELIVER-15")
def test_a_message_that_kills_its_process_is_given_up(shop: Shop) -> None:
    shop.append(0, 20)
    shop.append(20, 1, kill="yes")
    shop.append(21, 20)
    with shop.deliver():
        until(shop.all_is_delivered, 120, "all is delivered or given up")

    async def look() -> list[tuple[str, str]]:
        async with shop.jobs:
            page = await shop.outbox.letters()
            return [(one.consumer, one.payload.decode()) for one in page.letters]

    assert asyncio.run(look()) == [("deadly", "20")]
    marks = (shop.deployment.folder / "marks").read_text().splitlines()
    deaths = Counter(line.split()[0] for line in marks)["deadly"]
    assert 3 <= deaths <= 8
    assert shop.judge(41) >= 0
