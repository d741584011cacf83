"""A Redis whose memory is used up, or that starts to drop keys."""

from __future__ import annotations

import asyncio

import pytest
import redis

from stoker.engines.redis import server_checks
from stoker.model.errors import EngineFull, EngineRefused
from stoker.model.job import Draft, Status, Stored
from stoker.model.query import Query
from stoker.model.schedule import NO_ID, Schedule, draft_of, tick
from stoker.registry import mint
from tests.faults.redis.trials import Make, trial
from tests.faults.trial import opened
from tests.services import RedisServer

pytestmark = [pytest.mark.engine("redis"), pytest.mark.timeout(900)]

ROOM = 400_000
"""Bytes that are left before the memory is full."""


LARGE = b'{"x": "%s"}' % (b"x" * 500)


@pytest.mark.spec("RDFAULT-10")
async def test_a_full_memory_refuses_jobs_whole(server: RedisServer, client: redis.Redis, make: Make) -> None:

    async with opened(make()) as engine:
        stored: list[Draft] = []
        batch: list[Draft] = []
        client.config_set("maxmemory", client.info("memory")["used_memory"] + ROOM)
        with pytest.raises(EngineFull, match="maxmemory"):
            for _ in range(100):
                batch = [Draft(job_id=mint(), kind="work", queue="default", payload=LARGE) for _ in range(50)]
                await engine.jobs.insert(batch)
                stored += batch
        assert stored
        assert {one is None for one in await engine.operator.get([draft.job_id for draft in stored])} == {False}
        assert set(await engine.operator.get([draft.job_id for draft in batch])) == {None}, "nothing is half written"
        assert (await engine.operator.census()).by_status()[Status.PENDING] == len(stored)
        page = await engine.operator.find(Query(limit=1_000))
        assert {job.id for job in page.jobs} <= {draft.job_id for draft in stored}
        client.config_set("maxmemory", 0)
        await engine.jobs.insert(batch)
        assert (await engine.operator.census()).by_status()[Status.PENDING] == len(stored) + len(batch)


@pytest.mark.spec("RDFAULT-10")
async def test_workers_survive_a_full_memory(server: RedisServer, client: redis.Redis, make: Make) -> None:
    async with trial(make) as running:
        await running.consuming()
        client.config_set("maxmemory", 1)
        await running.until(lambda: running.errors["EngineFull"] > 5, "no room is noticed")
        client.config_set("maxmemory", 0)
        await running.consuming()


@pytest.mark.spec("SCHED-18")
async def test_a_full_memory_costs_no_occurrence(server: RedisServer, client: redis.Redis, make: Make) -> None:
    """The ticks that find no room store nothing; the next one makes all jobs, as the policy for missed ones says."""
    async with opened(make()) as engine:
        template = Draft(NO_ID, "tick")
        schedule = Schedule(name="ticks", expression="@every 1s", template=template, misfire="all")
        stored = await engine.schedules.put(schedule)
        assert stored is not None
        seeded = (await engine.schedules.fire(tick(stored, await engine.now()))).schedule
        assert seeded is not None
        assert seeded.next_fire is not None
        while (now := await engine.now()) < seeded.next_fire:
            await asyncio.sleep(0.05)
        decision = tick(seeded, now)
        drafts = [draft_of(seeded, at) for at in decision.fires]
        client.config_set("maxmemory", 1)
        with pytest.raises(EngineFull, match="maxmemory"):
            await engine.schedules.fire(decision, drafts)
        client.config_set("maxmemory", 0)
        assert await engine.schedules.read() == [seeded]
        fired = await engine.schedules.fire(decision, drafts)
        assert [one.stored for one in fired.receipts] == [Stored.INSERTED] * len(drafts)
        assert drafts


@pytest.mark.spec("RDFAULT-11")
async def test_a_policy_that_drops_keys_is_refused_and_noticed_at_run_time(
    server: RedisServer, client: redis.Redis, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_checks.LOOK_EVERY <= 60
    client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(EngineRefused, match="noeviction"):
        await make().open()
    client.config_set("maxmemory-policy", "noeviction")
    monkeypatch.setattr(server_checks.ServerChecks.__init__, "__defaults__", (0.05,))
    async with trial(make) as running:
        await running.consuming()
        client.config_set("maxmemory-policy", "allkeys-lru")
        await running.until(lambda: running.errors["EngineRefused"], "the policy is noticed")
        described = await (await running.app.engine()).describe()
        assert any("allkeys-lru" in text for text in described.warnings)
        client.config_set("maxmemory-policy", "noeviction")
        await running.consuming()
