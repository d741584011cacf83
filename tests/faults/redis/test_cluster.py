"""A Redis Cluster that changes while jobs run."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.engines.redis import RedisClusterEngine
from stoker.model.errors import EngineBusy, EngineUnavailable
from stoker.model.job import Draft
from stoker.registry import mint
from tests import services
from tests.faults.redis.trials import Make, trial, whole
from tests.services.clusters import Cluster, until

pytestmark = [pytest.mark.engine("redis"), pytest.mark.timeout(900)]


NODE_TIMEOUT = 1_000
"""Milliseconds: a failover begins soon."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with services.cluster(node_timeout=NODE_TIMEOUT) as found:
        yield found


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def make(cluster: Cluster, prefix: str) -> Make:
    def engine(url: str | None = None, **options: Any) -> RedisClusterEngine:
        return RedisClusterEngine(url or cluster.url, **{"prefix": prefix, "patience": 1.0, **options})

    return engine


def home(cluster: Cluster, prefix: str) -> int:
    """The slot of the trial's queue."""
    return cluster.slot(f"{{{prefix}:default}}:jobs")


@pytest.mark.spec("RDFAULT-30")
async def test_a_slot_is_moved_while_jobs_run_without_notice(cluster: Cluster, make: Make, prefix: str) -> None:
    cluster.set_node_timeout(15_000)  # a busy machine is no failover
    async with whole(make, workers=2) as running:
        await running.consuming()
        slot = home(cluster, prefix)
        for _ in range(3):
            source = cluster.owner(slot)
            target = next(node for node in cluster.masters if node is not source)
            assert await asyncio.to_thread(cluster.move, slot, target)
            await running.consuming()
        assert not running.errors
    cluster.set_node_timeout(NODE_TIMEOUT)


@pytest.mark.spec("RDFAULT-31")
async def test_a_master_is_killed_and_what_its_replica_had_is_kept(cluster: Cluster, make: Make, prefix: str) -> None:
    """Replication is asynchronous: what was acknowledged before the replica confirmed is safe, and that is all."""
    async with trial(make, flow=False, slots=20) as running:
        await running.consuming()
        master = cluster.owner(home(cluster, prefix))
        jobs = [running.draft(1.0 + n / 20) for n in range(30)]
        await running.put(*jobs)
        await running.until(lambda: len(running.runs) > 20, "they run")
        assert master.ask("WAIT", 1, 60_000) == 1
        heir = await asyncio.to_thread(cluster.kill, master)
        await asyncio.to_thread(cluster.promoted, heir)
        await running.consuming()
        await running.until(lambda: all(running.ends[one.job_id] for one in jobs), "everything is done")
    await asyncio.to_thread(cluster.revive, master)


@pytest.mark.spec("RDFAULT-32")
async def test_a_master_that_answers_no_more_is_left_for_its_replica(cluster: Cluster, make: Make, prefix: str) -> None:
    """Its connections stay open: only the time limit shows that it is gone, and the next call asks the others."""
    engine = make(timeout=0.5, patience=0.1)
    await engine.open()
    try:
        await engine.jobs.insert([Draft(mint(), "work")])
        master = cluster.owner(home(cluster, prefix))
        heir = cluster.replica(master)
        assert master.ask("WAIT", 1, 60_000) == 1
        master.server.freeze()
        try:
            job = Draft(mint(), "work")
            stored = None
            while stored is None:
                with contextlib.suppress(EngineUnavailable, EngineBusy):
                    [stored] = await engine.jobs.insert([job])
            assert stored.id == job.job_id
            assert heir.master
        finally:
            master.server.thaw()
        await asyncio.to_thread(until, lambda: master.synced, "the old master follows the new one")
    finally:
        await engine.close()
    await asyncio.to_thread(cluster.wait_whole)
