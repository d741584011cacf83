"""What a check-up finds on Redis servers, with each trouble provoked.

A failed write of the append-only file needs a disk that fails under the server, a lost write a failover: the rules for
them are tested by their facts, and the loss itself in the tests of failovers. An old server cannot be had here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from stoker.engines.redis import RedisEngine
from stoker.engines.redis.diagnose import _node
from stoker.engines.redis.server_info import ServerInfo
from stoker.model.health import jobs
from stoker.model.health import redis as rules
from stoker.model.health.check import Check, Grade
from stoker.model.health.facts import RedisFacts
from stoker.model.job import Draft
from stoker.model.unique import Unique
from tests import services
from tests.services.handles import RedisServer

pytestmark = [pytest.mark.engine("redis"), pytest.mark.spec("HEALTH-04")]

numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with services.redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def url(server: RedisServer) -> str:
    return server.url


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    """The server itself; its settings are as before when the test is over."""
    names = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync")
    with redis.Redis.from_url(url, decode_responses=True) as client:
        before: dict[str, str] = {name: client.config_get(name)[name] for name in names}
        client.config_set("appendonly", "yes")
        yield client
        for name, value in before.items():
            client.config_set(name, value)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[RedisEngine]:
    engine = RedisEngine(url, prefix=f"diagnose{next(numbers)}", **options)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def complaints(engine: RedisEngine) -> dict[str, Check]:
    facts = await _facts(engine)
    found = [check for check in rules.judge(facts) if check.verdict is not Grade.OK]
    return {check.name: check for check in found if check.name != "version"}


async def test_settings_that_lose_jobs(url: str, client: redis.Redis) -> None:
    async with opened(url) as engine:
        assert await complaints(engine) == {}
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert (await complaints(engine))["eviction policy"].verdict is Grade.WRONG
        client.config_set("maxmemory-policy", "volatile-lru")
        assert (await complaints(engine))["eviction policy"].verdict is Grade.NOTE
        client.config_set("maxmemory-policy", "noeviction")
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", used + used // 20)
        assert (await complaints(engine))["memory"].verdict in {Grade.WARNING, Grade.WRONG}
        client.config_set("maxmemory", 0)
        client.config_set("appendfsync", "no")
        assert "half a minute" in (await complaints(engine))["persistence"].meaning
        client.config_set("appendonly", "no")
        assert "restart" in (await complaints(engine))["persistence"].meaning


async def test_damaged_counters_keys_and_records(url: str, client: redis.Redis) -> None:
    async with opened(url) as engine:
        job = bytes(range(16))
        await engine.jobs.insert([Draft(job, "send", unique=Unique("one")), Draft(bytes(16), "send")])
        prefix = engine._store.home.tag
        client.hset(f"{prefix}:counts", "default/send/p", "7")
        client.hset(f"{prefix}:state", job, b"d" + bytes(60))
        facts = await engine.diagnose()
        found = {check.name: check.verdict for check in jobs.judge_counts(facts)}
        assert found == {"counters": Grade.WRONG, "unique keys": Grade.WRONG}
        assert facts.idle_keys == 1


async def test_a_replica_is_listed(url: str) -> None:
    with services.redis_server() as replica, redis.Redis.from_url(replica.url) as other:
        host, port = url.removeprefix("redis://").split("/")[0].split(":")
        other.execute_command("REPLICAOF", host, port)
        async with opened(url) as engine, asyncio.timeout(60):
            while not (nodes := (await _facts(engine)).nodes)[0].replicas:
                await asyncio.sleep(0.05)
        other.execute_command("REPLICAOF", "NO", "ONE")
    [found] = nodes[0].replicas
    assert found.state in {"wait_bgsave", "send_bulk", "online"}


async def test_a_replica_that_falls_behind(url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is frozen, and the primary goes on writing."""
    monkeypatch.setattr(rules, "BEHIND", 10_000)
    with services.redis_server() as replica, redis.Redis.from_url(replica.url) as other:
        host, port = url.removeprefix("redis://").split("/")[0].split(":")
        other.execute_command("REPLICAOF", host, port)
        async with opened(url) as engine, asyncio.timeout(60):
            while "replicas" in await complaints(engine) or not (await _facts(engine)).nodes[0].replicas:
                await asyncio.sleep(0.05)
            replica.freeze()
            client.set("written meanwhile", "x" * 20_000)
            client.delete("written meanwhile")
            check = (await complaints(engine))["replicas"]
            assert check.verdict is Grade.WARNING
            assert "behind" in check.read
            replica.thaw()
        other.execute_command("REPLICAOF", "NO", "ONE")


async def test_a_snapshot_and_a_rewrite_that_fail(server: RedisServer, client: redis.Redis) -> None:
    """The server may not write into its directory any more."""
    if server.data.stat().st_uid == 0:
        pytest.skip("the server runs as root here, which may write everywhere: it is shown by its facts only")
    mode = server.data.stat().st_mode
    folders = [server.data, *(path for path in server.data.glob("appendonlydir") if path.is_dir())]
    async with opened(server.url) as engine, asyncio.timeout(60):
        while client.info("persistence")["aof_rewrite_in_progress"]:
            await asyncio.sleep(0.05)
        for folder in folders:
            folder.chmod(0o500)
        try:
            client.bgsave()
            while "last snapshot failed" not in (await complaints(engine)).get("persistence", _none).meaning:
                await asyncio.sleep(0.05)
        finally:
            for folder in folders:
                folder.chmod(mode)
        client.bgsave()
        while "persistence" in await complaints(engine):
            await asyncio.sleep(0.05)


_none = Check("", Grade.OK, "")


async def test_a_slot_that_no_server_serves(redis_cluster_url: str) -> None:
    slot = 7
    with redis.RedisCluster.from_url(redis_cluster_url.replace("redis+cluster", "redis")) as cluster:
        owner = cluster.nodes_manager.get_node_from_slot(slot)
        with redis.Redis(host=owner.host, port=owner.port) as node:
            async with opened(redis_cluster_url) as engine, asyncio.timeout(60):
                node.execute_command("CLUSTER", "DELSLOTS", slot)
                try:
                    while "cluster" not in (checks := await complaints(engine)):
                        await asyncio.sleep(0.05)
                    assert checks["cluster"].verdict is Grade.WRONG
                finally:
                    node.execute_command("CLUSTER", "ADDSLOTS", slot)
                while "cluster" in await complaints(engine):
                    await asyncio.sleep(0.05)


async def _facts(engine: RedisEngine) -> RedisFacts:
    facts = (await engine.diagnose()).redis
    assert facts is not None
    return facts


def test_a_replica_as_its_primary_reports_it() -> None:
    info = {
        "redis_version": "7.4.6",
        "master_repl_offset": "900",
        "slave0": "ip=10.0.0.2,port=6380,state=online,offset=400,lag=1",
        "slave_expires": "0",
    }
    [replica] = _node(ServerInfo("here:6379", info)).replicas
    assert (replica.name, replica.state, replica.behind, replica.silent) == ("10.0.0.2:6380", "online", 500, 1)


async def test_a_cluster_says_how_many_slots_it_serves(redis_cluster_url: str) -> None:
    async with opened(redis_cluster_url) as engine:
        facts = await _facts(engine)
    assert {(node.cluster_state, node.slots_ok) for node in facts.nodes} == {("ok", 16_384)}
