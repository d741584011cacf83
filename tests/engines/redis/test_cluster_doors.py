"""Insert, claim, settle and leases on a Redis Cluster, where each queue is a shard of its own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.engines.redis import RedisClusterEngine, RedisEngine
from stoker.engines.url import engine_from_url
from stoker.model.errors import EngineRefused
from stoker.model.job import Demand, Draft, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Snoozed
from stoker.model.time import HOUR, MINUTE
from stoker.model.unique import Unique
from stoker.testing.clock import VirtualClock

pytestmark = pytest.mark.engine("redis-cluster")

QUEUES = ("a", "b", "c", "d", "e")
DEMAND = tuple((queue, 10) for queue in QUEUES)


def draft(queue: str, kind: str = "work", **options: Any) -> Draft:
    return Draft(secrets.token_bytes(16), kind, queue=queue, **options)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_800_000_000_000_000)


@pytest.fixture
async def engine(
    redis_cluster_url: str, redis_cluster_prefix: str, clock: VirtualClock
) -> AsyncIterator[RedisClusterEngine]:
    found = RedisClusterEngine(redis_cluster_url, prefix=redis_cluster_prefix, clock=clock)
    await found.open()
    yield found
    await found.close()


@pytest.mark.spec("REDIS-20")
async def test_a_url_of_a_cluster_makes_the_engine_for_it() -> None:
    assert type(engine_from_url("redis+cluster://localhost:1/0")) is RedisClusterEngine
    assert type(RedisEngine("redis+cluster://localhost:1/0")) is RedisClusterEngine
    assert type(RedisEngine("redis://localhost:1/0").for_loop()) is RedisEngine


@pytest.mark.spec("REDIS-21")
async def test_one_call_reaches_queues_on_all_servers(engine: RedisClusterEngine) -> None:
    """Receipts, claims and verdicts come in the order asked, wherever the queues are."""
    drafts = [draft(queue) for _ in range(3) for queue in QUEUES]
    assert [receipt.id for receipt in await engine.jobs.insert(drafts)] == [one.job_id for one in drafts]
    await engine.jobs.renew("w1", [], first=True)
    claims = await engine.jobs.claim(Demand("w1", DEMAND, total=12))
    assert [claim.queue for claim in claims] == list("aaabbbcccddd")
    mixed = sorted(claims, key=lambda claim: claim.id)
    settled = await engine.jobs.settle([conclude(one, Done()) for one in mixed], demand=Demand("w1", DEMAND))
    assert settled.verdicts == [Verdict.APPLIED] * 12
    assert [claim.queue for claim in settled.claims] == ["e"] * 3
    cluster = engine._store.connection._cluster
    assert cluster is not None
    nodes = [cluster.get_node_from_key(engine._store.shard(queue).key("jobs")) for queue in QUEUES]
    assert len({node.name for node in nodes if node is not None}) > 1


@pytest.mark.spec("REDIS-22")
async def test_keys_that_would_span_queues_are_refused(engine: RedisClusterEngine) -> None:
    """A global key, and a keyed kind in a second queue, are refused by name and nothing is stored."""
    with pytest.raises(EngineRefused, match="global"):
        await engine.jobs.insert([draft("a"), draft("a", unique=Unique("k", scope="global"))])
    with pytest.raises(EngineRefused, match="'work'"):
        await engine.jobs.insert([draft("a", unique=Unique("k")), draft("b", unique=Unique("l"))])
    assert (await engine.operator.census()).counts == ()
    await engine.jobs.insert([draft("a", unique=Unique("k"))])
    twin = engine.for_loop()
    await twin.open()
    try:
        with pytest.raises(EngineRefused, match="queue 'a'"):
            await twin.jobs.insert([draft("b", unique=Unique("other"))])
        assert (await twin.jobs.insert([draft("a", unique=Unique("k"))]))[0].stored is Stored.EXISTING
        assert (await twin.jobs.insert([draft("b", "push", unique=Unique("k"))]))[0].stored is Stored.INSERTED
    finally:
        await twin.close()


@pytest.mark.spec("REDIS-23")
async def test_follow_ups_reach_other_queues(engine: RedisClusterEngine) -> None:
    """They are stored if the claim stands, and not if it is lost; a key no cluster can keep is left out, and said."""
    await engine.jobs.insert([draft("a")])
    await engine.jobs.renew("w1", [], first=True)
    [claim] = await engine.jobs.claim(Demand("w1", DEMAND))
    after = (draft("a"), draft("b"), draft("c", unique=Unique("k", scope="global")))
    settlement = conclude(claim, Done(followups=after))
    assert (await engine.jobs.settle([settlement])).verdicts == [Verdict.APPLIED]
    found = await engine.operator.get([one.job_id for one in after])
    assert [job and (job.queue, job.status, job.unique) for job in found] == [
        ("a", Status.PENDING, None),
        ("b", Status.PENDING, None),
        ("c", Status.PENDING, None),
    ]
    more = (draft("b"),)
    assert (await engine.jobs.settle([conclude(claim, Done(followups=more))])).verdicts == [Verdict.REPEATED]
    assert await engine.operator.get([more[0].job_id]) == [None]


@pytest.mark.spec("REDIS-23")
async def test_follow_ups_of_an_older_claim_of_the_same_worker_are_refused(engine: RedisClusterEngine) -> None:
    """The job went back and the worker claimed it again: only its new token counts."""
    await engine.jobs.insert([draft("a")])
    await engine.jobs.renew("w1", [], first=True)
    [older] = await engine.jobs.claim(Demand("w1", DEMAND))
    assert (await engine.jobs.settle([conclude(older, Snoozed(0))])).verdicts == [Verdict.APPLIED]
    [newer] = await engine.jobs.claim(Demand("w1", DEMAND))
    assert (newer.id, newer.worker) == (older.id, older.worker)
    assert newer.token > older.token
    late, good = draft("b"), draft("b")
    assert (await engine.jobs.settle([conclude(older, Done(followups=(late,)))])).verdicts == [Verdict.LOST]
    assert await engine.operator.get([late.job_id]) == [None]
    assert (await engine.jobs.settle([conclude(newer, Done(followups=(good,)))])).verdicts == [Verdict.APPLIED]
    assert [job is not None for job in await engine.operator.get([late.job_id, good.job_id])] == [False, True]


@pytest.mark.spec("REDIS-24")
async def test_a_worker_is_alive_or_unknown_in_all_queues(engine: RedisClusterEngine, clock: VirtualClock) -> None:
    """A renewal reaches queues that came later, and a worker reaped in one queue is unknown in all of them for ever."""
    await engine.jobs.renew("w1", [], first=True)
    await engine.jobs.insert([draft(queue) for queue in QUEUES])
    claims = await engine.jobs.claim(Demand("w1", DEMAND))
    assert len(claims) == 5
    held = [(claim.id, claim.token) for claim in claims]
    renewal = await engine.jobs.renew("w1", held[:3])
    assert (renewal.known, renewal.lost, renewal.orphaned) == (True, [], [])
    clock.set(clock() + MINUTE)
    renewal = await engine.jobs.renew("w1", [*held[:3], (held[3][0], 1)])
    assert renewal.lost == [(held[3][0], 1)]
    assert sorted(claim.queue for claim in renewal.orphaned) == ["d", "e"]
    clock.set(clock() + HOUR)
    await engine.jobs.renew("w2", [], first=True)
    assert len(await engine.jobs.reap("w2", 3)) == 3
    assert len(await engine.jobs.reap("w2", 10)) == 2
    assert await engine.jobs.reap("w2", 10) == []
    for _ in range(2):
        assert not (await engine.jobs.renew("w1", [])).known
        assert not (await engine.jobs.renew("w1", [], first=True)).known
    await engine.jobs.insert([draft("f")])
    assert await engine.jobs.claim(Demand("w1", (("f", 1),))) == []
    assert len(await engine.jobs.claim(Demand("w2", (("f", 1),)))) == 1


@pytest.mark.spec("REDIS-25")
async def test_a_waiter_hears_of_any_queue(engine: RedisClusterEngine) -> None:
    """Tokens of all queues are waited for together, whichever engine put them in."""
    await engine.jobs.insert([draft("c"), draft("d", delay=HOUR)])
    assert await engine.jobs.wait(QUEUES, 5) == {"c"}
    assert await engine.jobs.wait(QUEUES, 0.01) == frozenset()


@pytest.mark.spec("REDISOPS-35")
async def test_a_connection_that_the_driver_closes_under_a_call_counts_as_lost(
    engine: RedisClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that may be repeated is repeated; other mistakes of a program are not taken for an outage."""
    cluster = engine._store.connection._cluster
    assert cluster is not None
    send, errors = cluster.execute_command, [AttributeError("writelines", name="writelines", obj=None)]

    async def trip_first(*command: Any) -> Any:
        if errors:
            raise errors.pop()
        return await send(*command)

    monkeypatch.setattr(cluster, "execute_command", trip_first)
    assert (await engine.jobs.ahead(["a"])).wait is None
    assert errors == []
    errors.append(AttributeError("typo", name="typo", obj=engine))
    with pytest.raises(AttributeError, match="typo"):
        await engine.jobs.ahead(["a"])
