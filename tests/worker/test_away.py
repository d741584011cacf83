"""A store that is away when `stoker work` starts, on real servers."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stoker import outage
from stoker.app import Stoker
from stoker.engines.memory import MemoryEngine
from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.outage import QUIET, Outage
from tests import services
from tests.services.handles import PostgresServer, RedisServer
from tests.worker.shell import Deployment, until


@pytest.fixture(
    params=[
        pytest.param("postgres", marks=pytest.mark.engine("postgres")),
        pytest.param("redis", marks=pytest.mark.engine("redis")),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer | RedisServer]:
    if request.param == "postgres":
        with services.postgres_server() as postgres:
            yield postgres
    else:
        with services.redis_server() as redis:
            yield redis


def enqueue(url: str) -> None:
    async def put() -> None:
        async with Stoker(url) as jobs:
            jobs.declare("quick")
            await jobs.enqueue(jobs.draft("quick", {"n": 1}))

    asyncio.run(put())


@pytest.mark.spec("OUTAGE-01", "OUTAGE-02")
def test_a_start_waits_for_the_server_and_says_so_once(
    deployment: Deployment, server: PostgresServer | RedisServer
) -> None:
    deployment.url = deployment.environ["STOKER_URL"] = server.url
    enqueue(server.url)
    server.stop()
    with deployment.work(ready=False) as command:
        until(lambda: "does not answer" in command.log)
        assert not deployment.ready_file.exists()
        server.start()
        until(deployment.ready_file.exists)
        until(lambda: deployment.marks("start"))
        assert command.log.count("does not answer") == 1, command.log
        [line] = [line for line in command.log.splitlines() if "does not answer" in line]
        assert f"127.0.0.1:{urlsplit(server.url).port}" in line and "The start waits for it" in line
        assert "the store answers; the start goes on" in command.log
        command.send(signal.SIGTERM)
        assert command.wait() == 0


@pytest.mark.spec("OUTAGE-01")
def test_a_start_that_waits_can_be_stopped(deployment: Deployment) -> None:
    with deployment.work(ready=False, STOKER_URL="redis://127.0.0.1:1/0") as command:
        until(lambda: "does not answer" in command.log)
        command.send(signal.SIGTERM)
        assert command.wait() == 0


@pytest.mark.spec("OUTAGE-01")
def test_what_waiting_does_not_mend_exits_with_1(deployment: Deployment, postgres_url: str, redis_url: str) -> None:
    parts = urlsplit(postgres_url)
    wrong = parts._replace(path="/no_such_database").geturl()
    for url, why in {
        wrong: 'no_such_database" does not exist. Create it',
        urlsplit(redis_url)._replace(netloc=f"x:wrong@{urlsplit(redis_url).netloc}").geturl(): "password",
        "mysql://127.0.0.1/shop": "unknown scheme",
        f"sqlite:///{deployment.folder}/no/such/folder/jobs.db": "does not exist",
    }.items():
        with deployment.work(ready=False, STOKER_URL=url) as command:
            assert command.wait() == 1, url
            assert why in command.log


# --- what is said -----------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTAGE-02")
def test_a_store_that_comes_and_goes_gets_one_line_per_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, outage.logger.name)
    now = 0.0
    talk = Outage(lambda: now)
    for _ in range(30):
        for error in ("first", "second", "third"):
            talk.report("away: %s", error)
        talk.over("back")
        now += 1
    assert caplog.messages == ["away: first", "back"] * 3
    assert QUIET == 10


@pytest.mark.spec("START-01")
def test_an_engine_says_where_its_store_is_and_never_a_password(tmp_path: Path) -> None:
    assert SqliteEngine(tmp_path / "a.db").where == str(tmp_path / "a.db")
    assert MemoryEngine().where == "in this process"
    postgres = PostgresEngine("postgresql://app:secret@db.internal:6432/shop?schema=jobs")
    assert postgres.where == "postgresql://db.internal:6432/shop?schema=jobs"
    assert RedisEngine("redis://app:secret@cache:6380/2?prefix=shop").where == "redis://cache:6380/2?prefix=shop"
    cluster = RedisEngine("redis+cluster://:secret@node:7000")
    assert cluster.where.startswith("redis+cluster://node:7000") and "secret" not in cluster.where
