"""A Redis that is killed and started again: what its settings promise holds exactly."""

from __future__ import annotations

import asyncio
import functools
import os

import pytest
import redis

from stoker.model.errors import EngineReadOnly
from stoker.model.job import Demand, Draft, Status
from stoker.registry import mint
from tests import services
from tests.faults.redis.trials import Make, trial, whole
from tests.faults.trial import opened
from tests.services import RedisServer

pytestmark = [pytest.mark.engine("redis"), pytest.mark.timeout(900)]


def draft() -> Draft:
    return Draft(job_id=mint(), kind="work", queue="default", payload=b"{}")


@pytest.mark.spec("RDFAULT-01")
async def test_killed_under_load_nothing_acknowledged_is_lost(server: RedisServer, make: Make, campaign: bool) -> None:
    server.stop()
    server.start(appendfsync="always")
    async with trial(make, workers=2) as running:
        for _ in range(30 if campaign else 4):
            await running.consuming()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await running.consuming()
        described = await running.direct.describe()
        assert described.durable
        assert "appendfsync always" in described.durability


def all_is_in_the_log(client: redis.Redis) -> bool:
    """While a sync is under way the server keeps what it acknowledged to itself, for two seconds at most."""
    found = client.info("persistence")
    return bool(found["aof_buffer_length"] == 0 == found["aof_pending_bio_fsync"])


@pytest.mark.spec("RDFAULT-07")
async def test_synced_every_second_a_kill_costs_nothing_that_is_in_the_log(
    server: RedisServer, client: redis.Redis, make: Make, campaign: bool
) -> None:
    async with trial(make, workers=2, flow=False) as running:
        for _ in range(30 if campaign else 3):
            await running.consuming()
            batch = [running.draft() for _ in range(50)]
            await running.put(*batch)
            wanted = {one.job_id for one in batch}
            await running.until(functools.partial(wanted.issubset, running.ends), "all have run")
            await running.until(lambda: all_is_in_the_log(client), "all is written")
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await running.consuming()
        described = await running.direct.describe()
        assert described.durable
        assert "appendfsync everysec" in described.durability


@pytest.mark.spec("RDFAULT-02")
async def test_without_a_log_nothing_is_called_durable_and_a_restart_is_survived(
    server: RedisServer, make: Make
) -> None:
    server.stop()
    server.start(appendonly="no")
    async with trial(make) as running:
        await running.consuming()
        described = await running.direct.describe()
        assert not described.durable
        assert "not durable" in described.durability
        assert any("memory only" in text for text in described.warnings)
        await running.calm()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        running.forget()
        await running.consuming()


@pytest.mark.spec("RDFAULT-03")
async def test_a_torn_end_of_the_log_costs_what_stood_there_and_no_more(server: RedisServer, make: Make) -> None:
    drafts = [draft() for _ in range(20)]
    async with opened(make()) as engine:
        for one in drafts[:-1]:
            await engine.jobs.insert([one])
        sound = server.log_of_writes.stat().st_size
        await engine.jobs.insert([drafts[-1]])
    server.kill()
    log = server.log_of_writes
    torn = (sound + log.stat().st_size) // 2
    os.truncate(log, torn)
    server.start()
    async with opened(make()) as engine:
        found = await engine.operator.get([one.job_id for one in drafts])
        assert [job is not None for job in found] == [True] * 19 + [False]
        assert (await engine.operator.census()).by_status()[Status.PENDING] == 19
        await engine.jobs.insert([drafts[-1]])
        assert (await engine.operator.census()).by_status()[Status.PENDING] == 20
        await engine.jobs.renew("w", [], first=True)
        claims = await engine.jobs.claim(Demand("w", (("default", 50),)))
        assert {claim.id for claim in claims} == {one.job_id for one in drafts}, "all of it can be used"


@pytest.mark.spec("RDFAULT-04")
async def test_scripts_are_flushed_and_servers_restarted_and_no_caller_is_told(
    server: RedisServer, client: redis.Redis, make: Make
) -> None:
    async with whole(make) as running:
        for _ in range(20):
            client.script_flush()
            await running.consuming()
        for _ in range(3):
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await running.consuming()
        assert not running.errors


@pytest.mark.spec("RDFAULT-05")
async def test_a_server_that_does_not_answer_for_a_while(server: RedisServer, make: Make) -> None:
    async with trial(make) as running:
        await running.consuming()
        server.freeze()
        await running.until(lambda: running.errors["EngineUnavailable"] and not running.ready, "the silence is noticed")
        server.thaw()
        await running.consuming()


@pytest.mark.spec("RDFAULT-06")
async def test_a_replica_by_mistake_is_refused_by_name(server: RedisServer, make: Make) -> None:
    leader = f"127.0.0.1 {server.port}"
    with services.redis_server(replicaof=leader) as replica, pytest.raises(EngineReadOnly, match="replica"):
        await make(replica.url).open()
