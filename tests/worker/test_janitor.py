"""Cleaning: a sweep that fails hinders no other, on any engine, and is tried again."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import psycopg
import pytest
import redis

from stoker import Stoker
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisClusterEngine, RedisEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.control import Presence
from stoker.model.errors import EngineUnavailable
from stoker.model.events import Event, EventType, Point, Window
from stoker.model.job import Demand, Draft, Options
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.outcome import Done
from stoker.model.query import Expired, Query, Retention, Sweep
from stoker.model.time import DAY, MINUTE, SECOND
from stoker.registry import mint
from stoker.services import ServiceContext
from stoker.settings import RetentionSettings
from stoker.worker import janitor
from tests.harness.doubles import Double

FIRST = 1_700_000_000 * SECOND

Broken = tuple[Engine, Callable[[], None], Callable[[], None]]
"""An engine, what makes its points unusable, and what mends them."""


class Clock:
    now = FIRST

    def __call__(self) -> int:
        return self.now


def memory(clock: Clock, request: pytest.FixtureRequest) -> Broken:
    del request

    class Breakable(Double):
        broken = False

        async def expire(self, retention: Retention) -> Expired:
            if self.broken and Sweep.POINTS in retention.sweeps:
                raise ValueError("the points are unusable")
            return await self.real.operator.expire(retention)

    engine = Breakable(clock=clock)
    return engine, lambda: setattr(engine, "broken", True), lambda: setattr(engine, "broken", False)


def sqlite(clock: Clock, request: pytest.FixtureRequest) -> Broken:
    path: Path = request.getfixturevalue("tmp_path") / "jobs.db"

    def run(statement: str) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()

    return (
        SqliteEngine(path, clock=clock),
        lambda: run("ALTER TABLE stoker_points RENAME TO hidden_points"),
        lambda: run("ALTER TABLE hidden_points RENAME TO stoker_points"),
    )


def postgres(clock: Clock, request: pytest.FixtureRequest) -> Broken:
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")

    def run(statement: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())

    return (
        PostgresEngine(url, schema=schema, clock=clock),
        lambda: run(f"ALTER TABLE {schema}.point RENAME TO hidden_point"),
        lambda: run(f"ALTER TABLE {schema}.hidden_point RENAME TO point"),
    )


def on_redis(clock: Clock, request: pytest.FixtureRequest) -> Broken:
    url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
    client = redis.Redis.from_url(url)
    request.addfinalizer(client.close)
    engine = RedisEngine(url, prefix=prefix, clock=clock)
    return engine, *hiding(client, prefix)


def on_cluster(clock: Clock, request: pytest.FixtureRequest) -> Broken:
    url, prefix = request.getfixturevalue("redis_cluster_url"), request.getfixturevalue("redis_cluster_prefix")
    client = redis.RedisCluster.from_url(url.replace("redis+cluster", "redis"))
    request.addfinalizer(client.close)
    return RedisClusterEngine(url, prefix=prefix, clock=clock), *hiding(client, prefix)


def hiding(client: redis.Redis | redis.RedisCluster, prefix: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Put a key of another type where the points are, and the points back."""
    key, aside = f"{{{prefix}}}:points", f"{{{prefix}}}:points-aside"

    def hide() -> None:
        client.rename(key, aside)
        client.set(key, "no points")

    def show() -> None:
        client.rename(aside, key)

    return hide, show


ENGINES = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
    "redis": on_redis,
    "redis-cluster": on_cluster,
}


async def leave_something(engine: Engine, clock: Clock) -> None:
    """Leave one outdated thing for each sweep."""
    at = clock.now
    await engine.jobs.insert([Draft(mint(), "work", options=Options(keep=SECOND))])
    await engine.jobs.renew("w", [], first=True)
    [claim] = await engine.jobs.claim(Demand("w", (("default", 1),)))
    await engine.jobs.settle([conclude(claim, Done())])
    await engine.timeline.record([Event(at, EventType.STARTED, mint(), "q", "k")], [Point("q", "m", at, 1)], now=at)
    await engine.control.beat(Presence(worker="silent", host="h", pid=1, queues={}))
    await engine.control.lock("lapsed", "me", SECOND)
    clock.now += 40 * DAY


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The worker's own: an engine may warn of the server it found."""
    found = [record for record in caplog.records if record.name == "stoker.worker"]
    return [record for record in found if record.levelno >= logging.WARNING]


@pytest.mark.spec("WORKER-38")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.engine(name)) for name in ENGINES], ids=list(ENGINES)
)
async def test_a_sweep_that_fails_hinders_no_other(
    name: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """What the broken sweep leaves, the next cleaning removes once the sweep works again."""
    clock = Clock()
    engine, break_points, mend_points = ENGINES[name](clock, request)
    await engine.open()
    try:
        await leave_something(engine, clock)
        break_points()
        with caplog.at_level(logging.INFO, "stoker.worker"):
            assert (await janitor.clean(engine, Retention())).jobs == 1
        assert not (await engine.operator.find(Query())).jobs
        assert await engine.timeline.events(Window(0, clock.now)) == []
        assert await engine.control.workers() == []
        assert (await engine.operator.expire(Retention(sweeps=frozenset(Sweep) - {Sweep.POINTS}))) == Expired()
        [warning] = warnings(caplog)
        assert warning.getMessage().startswith("could not remove old points: ")
        assert warning.getMessage().endswith("this one is tried again at the next cleaning.")
        mend_points()
        caplog.clear()
        assert len(await engine.timeline.points(0, clock.now, ["m"])) == 1
        await janitor.clean(engine, Retention())
        assert await engine.timeline.points(0, clock.now, ["m"]) == []
        assert not warnings(caplog)
    finally:
        await engine.close()


class Recording(Double):
    """Notes the sweeps in their order, and fails at those that it is told to."""

    def __init__(self, failing: dict[str, Exception]) -> None:
        super().__init__()
        self.failing = failing
        self.swept: list[str] = []

    async def expire(self, retention: Retention) -> Expired:
        [sweep] = retention.sweeps
        self._sweep(sweep)
        return Expired()

    def _sweep(self, what: str) -> None:
        self.swept.append(what)
        if what in self.failing:
            raise self.failing[what]


ALL = list(Sweep)


@pytest.mark.spec("WORKER-38")
@pytest.mark.parametrize("failing", ALL)
async def test_whichever_sweep_fails_all_are_tried(failing: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = Recording({failing: ValueError("broken")})
    await engine.open()
    assert await janitor.clean(engine, Retention()) == Expired()
    assert engine.swept == ALL
    [warning] = caplog.records
    what = "count the running jobs of full limits again" if failing == Sweep.LIMITS else f"remove old {failing}"
    assert f"could not {what}: broken" in warning.getMessage()
    assert warning.exc_info is not None, "an error that is not Stoker's own shows where it was raised"
    await engine.close()


@pytest.mark.spec("WORKER-38")
async def test_a_store_that_is_away_is_no_news_of_the_janitor(caplog: pytest.LogCaptureFixture) -> None:
    """The store loop logs it once."""
    engine = Recording(dict.fromkeys(ALL, EngineUnavailable("away")))
    await engine.open()
    with caplog.at_level(logging.INFO, "stoker.worker"):
        assert await janitor.clean(engine, Retention()) == Expired()
    assert engine.swept == ALL
    assert not caplog.records
    await engine.close()


@pytest.mark.spec("LIMIT-32")
async def test_a_repaired_limit_is_logged_and_is_an_event(caplog: pytest.LogCaptureFixture) -> None:
    """The janitor that repairs it says so, once."""
    app, clock = Stoker("memory://"), Clock()
    engine = MemoryEngine(clock=clock)
    await engine.open()
    slot = Slot("api", "a", 1, "running", None)
    await engine.jobs.insert([Draft(mint(), "work", options=Options(limit=slot)) for _ in range(2)])
    await engine.jobs.renew("w", [], first=True)
    [claim] = await engine.jobs.claim(Demand("w", (("default", 2),)))
    states = engine._store.subqueues["default"]
    states.put(msgspec.structs.replace(states.states["api/a"], running=4), clock.now)
    clock.now += MINUTE
    async with app:
        await janitor.Janitor(RetentionSettings()).clean(ServiceContext(app, engine, str))
        assert app.timeline is not None
        await app.timeline.flush((await app.engine()).timeline)
        [event] = await (await app.engine()).timeline.events(Window(0, 1 << 60))
    assert (event.type, event.queue, event.kind, event.attempt) == (EventType.LIMIT_REPAIRED, "default", "api", 3)
    [warning] = warnings(caplog)
    assert "the number of running jobs under the limit api/a was 4, but 1 is right" in warning.getMessage()
    await engine.jobs.settle([conclude(claim, Done())])
    await engine.jobs.renew("w", [], first=True)
    assert len(await engine.jobs.claim(Demand("w", (("default", 2),)))) == 1
    await engine.close()
