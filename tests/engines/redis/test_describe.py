"""What a server says about itself, what is refused, and what is noticed when its settings change."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis

from stoker.engines.redis import RedisEngine
from stoker.engines.redis import engine as engine_module
from stoker.engines.redis.describe import durability, objection, warnings
from stoker.engines.redis.lost_writes import Count
from stoker.engines.redis.server_checks import LOOK_EVERY, ServerChecks
from stoker.engines.redis.server_info import ServerInfo
from stoker.model.errors import EngineReadOnly, EngineRefused
from stoker.model.ids import Mint
from stoker.model.job import Demand, Draft
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.query import Retention
from stoker.model.time import DAY
from tests import services

pytestmark = pytest.mark.engine("redis")

EVICTING = ["allkeys-lru", "allkeys-lfu", "allkeys-random"]
SPARING = ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"]
PATIENCE = 60.0

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
numbers = itertools.count()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with services.redis_server() as server:
        yield server.url


@pytest.fixture
def admin(url: str) -> Iterator[redis.Redis]:
    """The server itself; its settings are as before when the test is over."""
    names = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "no-appendfsync-on-rewrite")
    with redis.Redis.from_url(url, decode_responses=True) as client:
        before: dict[str, str] = {name: client.config_get(name)[name] for name in names}
        yield client
        for name, value in before.items():
            client.config_set(name, value)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[RedisEngine]:
    engine = RedisEngine(url, prefix=f"t{next(numbers)}", **options)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def node(**info: str) -> ServerInfo:
    given = {"redis_version": "7.2.4", "role": "master", "aof_enabled": "1", "maxmemory_policy": "noeviction"}
    return ServerInfo("10.0.0.1:6379", {**given, **info}, {"appendfsync": "everysec"})


class Counting(ServerChecks):
    looks = 0

    async def look(self) -> list[ServerInfo]:
        self.looks += 1
        return await super().look()


# --- durability -------------------------------------------------------------------------------------------------


@pytest.mark.spec("REDISOPS-01")
@pytest.mark.parametrize(
    ("level", "words"),
    [("always", "and a power loss"), ("everysec", "last second or two"), ("no", "half a minute")],
)
async def test_durability_is_what_the_server_syncs(url: str, admin: redis.Redis, level: str, words: str) -> None:
    admin.config_set("appendfsync", level)
    async with opened(url) as engine:
        told = await engine.describe()
    assert told.durable
    assert words in told.durability
    assert told.facts["appendfsync"] == level
    assert told.facts["appendonly"] == "yes"
    assert any("appendfsync is no" in warning for warning in told.warnings) == (level == "no")


@pytest.mark.spec("REDISOPS-02")
async def test_a_server_without_a_log_is_not_called_durable(
    url: str, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    admin.config_set("appendonly", "no")
    with caplog.at_level(logging.WARNING, "stoker.engines.redis"):
        async with opened(url) as engine:
            told = await engine.describe()
    assert not told.durable
    assert "not durable" in told.durability
    assert "loses everything" in told.durability
    assert sum("memory only" in message for message in caplog.messages) == 1, "said once, when it is opened"
    assert any("memory only" in warning for warning in told.warnings)


@pytest.mark.spec("REDISOPS-01")
async def test_facts_are_read_back(url: str, admin: redis.Redis) -> None:
    admin.config_set("maxmemory", "512mb")
    info: dict[str, Any] = admin.info()
    async with opened(url) as engine:
        told = await engine.describe()
    assert told.version == info["redis_version"]
    assert told.facts["maxmemory"] == str(512 << 20)
    assert told.facts["maxmemory-policy"] == "noeviction"
    assert (told.facts["role"], told.facts["replicas"], told.facts["cluster_state"]) == ("master", "0", "no cluster")
    assert told.size is not None
    assert told.size > 0
    assert told.warnings == ()


@pytest.mark.spec("REDISOPS-01")
async def test_syncs_that_pause_are_warned_of(url: str, admin: redis.Redis) -> None:
    admin.config_set("no-appendfsync-on-rewrite", "yes")
    async with opened(url) as engine:
        assert ["rewritten" in warning for warning in (await engine.describe()).warnings] == [True]


@pytest.mark.spec("REDISOPS-03")
async def test_a_server_that_hides_its_settings_is_described_from_what_it_tells(url: str, admin: redis.Redis) -> None:
    admin.acl_setuser(
        "app",
        enabled=True,
        passwords=["+geheim"],
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
        commands=["-config"],
    )
    try:
        async with opened(url.replace("redis://", "redis://app:geheim@")) as engine:
            told = await engine.describe()
            admin.config_set("maxmemory-policy", "allkeys-lru")
            assert any("allkeys-lru" in warning for warning in (await engine.describe()).warnings)
    finally:
        admin.acl_deluser("app")
    assert told.durable
    assert "not known" in told.durability
    assert told.facts["appendfsync"] == "unknown"
    assert "geheim" not in repr(told)


@pytest.mark.spec("REDISOPS-01")
def test_the_weakest_of_a_cluster_counts() -> None:
    strong, weak, bare = node(), node(), node(aof_enabled="0")
    strong.config["appendfsync"], weak.config["appendfsync"] = "always", "no"
    assert "half a minute" in durability([strong, weak])[1]
    durable, words = durability([strong, bare])
    assert not durable
    assert bare.name in words
    assert any("state fail" in warning for warning in warnings([strong, node(cluster_state="fail")]))


@pytest.mark.spec("REDISOPS-01")
def test_replicas_are_said_to_lag() -> None:
    assert "asynchronous" in durability([node(connected_slaves="1")])[1]
    assert "asynchronous" not in durability([node()])[1]


@pytest.mark.spec("REDISOPS-01")
def test_a_log_that_cannot_be_written_is_warned_of() -> None:
    assert any("failed" in warning for warning in warnings([node(aof_last_write_status="err")]))
    assert any("failed" in warning for warning in warnings([node(aof_last_bgrewrite_status="err")]))


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("REDISOPS-04")
@pytest.mark.parametrize("policy", EVICTING)
async def test_a_server_that_evicts_is_refused(url: str, admin: redis.Redis, policy: str) -> None:
    admin.config_set("maxmemory", "100mb")
    admin.config_set("maxmemory-policy", policy)
    engine = RedisEngine(url, prefix="t")
    with pytest.raises(EngineRefused) as refused:
        await engine.open()
    for word in (policy, str(100 << 20), "Nothing was opened", "CONFIG SET maxmemory-policy noeviction"):
        assert word in str(refused.value)
    admin.config_set("maxmemory-policy", "noeviction")
    await engine.open()
    await engine.close()


@pytest.mark.spec("REDISOPS-05")
@pytest.mark.parametrize("policy", SPARING)
async def test_a_server_that_evicts_only_what_expires_is_taken_with_a_warning(
    url: str, admin: redis.Redis, policy: str
) -> None:
    admin.config_set("maxmemory-policy", policy)
    async with opened(url) as engine:
        await engine.jobs.insert([Draft(mint(), "work")])
        assert any(policy in warning for warning in (await engine.describe()).warnings)
        keys: list[str] = admin.keys(f"*{engine._options.prefix}*")  # type: ignore[assignment]
        assert keys
        assert {admin.ttl(key) for key in keys} == {-1}, "no key of ours expires"


@pytest.mark.spec("REDISOPS-06")
async def test_a_replica_is_refused(url: str, admin: redis.Redis) -> None:
    admin.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(EngineReadOnly, match=r"replica of 127\.0\.0\.1:1 .*primary"):
            await RedisEngine(url, prefix="t").open()
    finally:
        admin.replicaof("NO", "ONE")


@pytest.mark.spec("REDISOPS-06")
@pytest.mark.parametrize(
    ("version", "welcome"), [("5.0.14", False), ("6.0.20", False), ("6.2.0", True), ("10.0.0", True), ("?", True)]
)
def test_a_server_that_is_too_old_is_refused(version: str, welcome: bool) -> None:
    refusal = objection([node(redis_version=version)])
    assert (refusal is None) == welcome
    if refusal is not None:
        assert version in str(refusal)
        assert "6.2" in str(refusal)


# --- changes at run time ----------------------------------------------------------------------------------------


@pytest.mark.spec("REDISOPS-07")
async def test_a_policy_changed_at_run_time_is_noticed(
    url: str, admin: redis.Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LOOK_EVERY <= 60
    monkeypatch.setattr(engine_module, "ServerChecks", partial(ServerChecks, every=0.02))
    engine = RedisEngine(url, prefix="run-time")
    await engine.open()
    try:
        draft = Draft(mint(), "work")
        await engine.jobs.insert([draft])
        admin.config_set("maxmemory-policy", "allkeys-lru")
        await until(lambda: engine._server_checks.evicting is not None)
        with pytest.raises(EngineRefused, match="Nothing was stored; jobs that are stored go on") as refused:
            await engine.jobs.insert([Draft(mint(), "work")])
        assert "allkeys-lru" in str(refused.value)
        assert any("allkeys-lru" in message for message in caplog.messages)
        assert any("Inserts are refused" in warning for warning in (await engine.describe()).warnings)
        await engine.jobs.renew("w", [], first=True)
        assert [claim.id for claim in await engine.jobs.claim(Demand("w", (("default", 5),)))] == [draft.job_id]
        admin.config_set("maxmemory-policy", "noeviction")
        await until(lambda: engine._server_checks.evicting is None)
        await engine.jobs.insert([Draft(mint(), "work")])
        assert "accepted again" in caplog.messages[-1]
    finally:
        await engine.close()


@pytest.mark.spec("REDISOPS-07")
async def test_a_guard_outlives_a_server_that_is_away_and_ends_with_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "ServerChecks", partial(Counting, every=0.02))
    with services.redis_server() as server:
        engine = RedisEngine(server.url, prefix="away", patience=0.1)
        guard = engine._server_checks
        assert isinstance(guard, Counting)
        await engine.open()
        task = guard._task
        assert task is not None
        server.kill()
        seen = guard.looks
        await until(lambda: guard.looks > seen + 1)
        assert not task.done()
        server.start(maxmemory_policy="allkeys-lru")
        await until(lambda: engine._server_checks.evicting is not None)
        await engine.close()
        assert task.done()


# --- going back -------------------------------------------------------------------------------------------------


@pytest.mark.spec("REDISOPS-08")
async def test_a_store_that_went_back_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A server without a log comes back empty: what it had acknowledged is gone, and the next write tells."""
    with services.redis_server(appendonly="no") as server:
        async with opened(server.url) as engine:
            for _ in range(3):
                await engine.jobs.insert([Draft(mint(), "work")])
            server.kill()
            server.start()
            assert engine._write_counter.losses == []
            await engine.jobs.insert([Draft(mint(), "work")])
            [told] = engine._write_counter.losses
            assert "the store went back to before 20" in told
            assert (await engine.describe()).warnings[0] == told
            await until(lambda: told in caplog.messages)
            await engine.jobs.insert([Draft(mint(), "work")])
            assert engine._write_counter.losses == [told], "said once"


@pytest.mark.spec("REDISOPS-08")
async def test_a_replica_that_lacks_one_write_is_told_of(url: str, admin: redis.Redis) -> None:
    """The count of the last write is gone although everything else is there."""
    async with opened(url) as engine:
        key = f"{{{engine._options.prefix}}}:writes"
        await engine.jobs.insert([Draft(mint(), "work")])
        await engine.jobs.insert([Draft(mint(), "work")])
        assert admin.hvals(key) == ["2"]
        admin.hset(key, engine._write_counter._engine, 1)
        await engine.jobs.insert([Draft(mint(), "work")])
        assert len(engine._write_counter.losses) == 1


@pytest.mark.spec("REDISOPS-08")
def test_answers_that_overtake_one_another_are_no_news() -> None:
    count = Count()
    assert not any(count.went_back(told) for told in (2, 1, 4, 3, *range(5, 2_500), *range(2_501, 3_000), 2_500))
    assert count.went_back(2_999)
    assert not count.went_back(3_000)
    assert count.went_back(5)
    assert not any(count.went_back(told) for told in range(6, 3_000))


@pytest.mark.spec("REDISOPS-08")
@pytest.mark.parametrize("level", ["always", "everysec"])
async def test_a_store_that_kept_everything_is_no_news(level: str) -> None:
    with services.redis_server(appendfsync=level) as server, redis.Redis.from_url(server.url) as admin:
        async with opened(server.url) as engine:
            twin = engine.for_loop()
            await twin.open()
            for one in (engine, twin) * 3:
                await one.jobs.insert([Draft(mint(), "work")])
            server.stop()
            server.start()
            for one in (engine, twin) * 3:
                await one.jobs.insert([Draft(mint(), "work")])
            admin.config_set("maxmemory", 1)
            await engine.jobs.renew("w", [], first=True)
            [claim] = await engine.jobs.claim(Demand("w", (("default", 1),)))
            await engine.jobs.settle([conclude(claim, Done())])
            admin.config_set("maxmemory", 0)
            await engine.jobs.insert([Draft(mint(), "work")])
            assert engine._write_counter.losses == twin._write_counter.losses == []
            await twin.close()
        assert admin.keys("*write*") == []


@pytest.mark.spec("REDISOPS-08")
async def test_counts_that_no_engine_raises_are_swept(url: str, admin: redis.Redis) -> None:
    """Those of an engine that died go after a day, those of a living one stay."""
    async with opened(url) as engine:
        prefix = engine._options.prefix
        await engine.jobs.insert([Draft(mint(), "work")])
        await engine._write_counter.report()
        assert admin.hlen(f"{{{prefix}}}:writers") == 1
        old = (time.time_ns() // 1000 - 2 * DAY).to_bytes(8)
        admin.hset(f"{{{prefix}}}:writers", "dead", old)
        admin.hset(f"{{{prefix}}}:writes", "dead", 5)
        await engine.operator.expire(Retention())
        assert (
            admin.hkeys(f"{{{prefix}}}:writes")
            == admin.hkeys(f"{{{prefix}}}:writers")
            == [engine._write_counter._engine]
        )
