"""Groups on Redis: closing by a script and storing callbacks are two steps, and a cluster counts in one queue."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from stoker.engines.redis import RedisClusterEngine, RedisEngine, groups
from stoker.engines.redis.store import Store
from stoker.model.errors import EngineRefused, EngineUnavailable
from stoker.model.groups import Callbacks, Group, Swept, into_group, new_group, pack_callbacks
from stoker.model.job import Demand, Draft, Job, Options, Status, Verdict, chain
from stoker.model.kept import Part
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.query import Move, Selection
from stoker.testing.clock import VirtualClock

DEMAND = Demand("w", (("default", 10), ("other", 10)))


def draft(kind: str = "work", **options: Any) -> Draft:
    return Draft(secrets.token_bytes(16), kind, **options)


async def make(engine: RedisEngine, *members: Draft, then: Draft | None = None) -> bytes:
    group = secrets.token_bytes(16)
    await engine.jobs.insert(into_group(group, members), group=new_group(group, then=then, sealed=True))
    return group


async def read(engine: RedisEngine, group: bytes) -> Group:
    [found] = await engine.groups.get([group])
    assert found is not None
    return found


async def job(engine: RedisEngine, one: Draft) -> Job | None:
    [found] = await engine.operator.get([one.job_id])
    return found


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_800_000_000_000_000)


@pytest.fixture
async def engine(redis_url: str, redis_prefix: str, clock: VirtualClock) -> AsyncIterator[RedisEngine]:
    found = RedisEngine(redis_url, prefix=redis_prefix, clock=clock)
    await found.open()
    await found.jobs.renew("w", [], first=True)
    yield found
    await found.close()


@pytest.fixture
async def cluster(
    redis_cluster_url: str, redis_cluster_prefix: str, clock: VirtualClock
) -> AsyncIterator[RedisClusterEngine]:
    found = RedisClusterEngine(redis_cluster_url, prefix=redis_cluster_prefix, clock=clock)
    await found.open()
    await found.jobs.renew("w", [], first=True)
    yield found
    await found.close()


async def lose_closings(monkeypatch: pytest.MonkeyPatch, engine: RedisEngine) -> None:
    """End the only claim, and die before its group's callbacks are stored."""

    async def die(*_: object) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(Store, "close_groups", die)
        [claim] = await engine.jobs.claim(DEMAND)
        assert (await engine.jobs.settle([conclude(claim, Done())])).verdicts == [Verdict.APPLIED]


@pytest.mark.engine("redis")
@pytest.mark.spec("GROUP-26")
async def test_a_process_killed_between_the_last_end_and_the_callbacks_costs_a_sweep(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = draft("then")
    group = await make(engine, draft(), then=then)
    await lose_closings(monkeypatch, engine)
    found = await read(engine, group)
    assert found.closed_at == await engine.now()
    assert await job(engine, then) is None
    assert (await engine.groups.sweep()).closed == 1
    assert await job(engine, then) is not None
    assert (await engine.groups.sweep()).closed == 0
    assert (await read(engine, group)).expires_at is not None


@pytest.mark.engine("redis")
@pytest.mark.spec("SEAL-16")
async def test_callbacks_of_a_group_that_is_closing_are_stored_before_they_change_their_form(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow client that has read them finds that they are stored: none comes later in the old form."""
    then = draft("then", payload=b'"old"')
    await make(engine, draft(), then=then)
    await lose_closings(monkeypatch, engine)
    [kept] = await engine.operator.kept(Part.GROUPS)
    new = kept._replace(body=pack_callbacks(Callbacks(then=msgspec.structs.replace(then, payload=b'"new"'))))
    assert await engine.operator.swap_kept(Part.GROUPS, [(kept, new)]) == 1
    stored = await job(engine, then)
    assert stored is not None
    assert stored.payload == b'"old"'
    assert (await engine.groups.sweep()).closed == 0


@pytest.mark.engine("redis")
@pytest.mark.spec("GROUP-26")
async def test_many_sweeps_at_once_store_the_callbacks_once(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that runs and is removed at once: the mark is gone with its insert."""
    then = draft("then", options=Options(keep=0))
    await make(engine, draft(), then=then)
    await lose_closings(monkeypatch, engine)
    swept = await asyncio.gather(*(engine.groups.sweep() for _ in range(8)))
    assert sum(one.closed for one in swept) == 1
    [claim] = await engine.jobs.claim(DEMAND)
    assert claim.id == then.job_id
    await engine.jobs.settle([conclude(claim, Done())])
    await asyncio.gather(*(engine.groups.sweep() for _ in range(8)))
    assert await engine.jobs.claim(DEMAND) == []


@pytest.mark.engine("redis")
@pytest.mark.spec("GROUP-26")
async def test_a_sweep_keeps_a_group_whose_callbacks_another_client_stored_meanwhile(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = draft("then")
    group = await make(engine, draft(), then=then)
    await lose_closings(monkeypatch, engine)
    look = groups._due

    async def slowly(*arguments: Any) -> Any:
        found = await look(*arguments)
        monkeypatch.setattr(groups, "_due", look)
        assert (await engine.groups.sweep()).closed == 1
        return found

    monkeypatch.setattr(groups, "_due", slowly)
    assert await engine.groups.sweep() == Swept()
    assert (await read(engine, group)).expires_at is not None


@pytest.mark.engine("redis")
@pytest.mark.spec("GROUP-26")
async def test_a_server_that_fails_after_the_last_end_does_not_fail_the_settlement(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    then = draft("then")
    await make(engine, draft(), then=then)
    [claim] = await engine.jobs.claim(DEMAND)

    async def away(*_: object) -> bool:
        raise EngineUnavailable("no answer.")

    with monkeypatch.context() as patched:
        patched.setattr("stoker.engines.redis.groups.close", away)
        assert (await engine.jobs.settle([conclude(claim, Done())])).verdicts == [Verdict.APPLIED]
    assert "the next sweep stores the callbacks of 1 group: no answer." in caplog.text
    assert (await engine.groups.sweep()).closed == 1
    assert await job(engine, then) is not None


# --- a cluster --------------------------------------------------------------------------------------------------


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("GROUP-27")
async def test_members_of_two_queues_are_refused_by_name(cluster: RedisClusterEngine) -> None:
    one, other = draft(), draft(queue="other")
    for members in ([one, other], [chain(one, other)]):
        with pytest.raises(EngineRefused, match=r"go to queue 'default'.* and one to 'other'"):
            await make(cluster, *members)
    assert await cluster.operator.get([one.job_id, other.job_id]) == [None, None]
    group = await make(cluster, one)
    with pytest.raises(EngineRefused, match="go to queue 'default'"):
        await cluster.jobs.insert(into_group(group, [other]))
    twin = cluster.for_loop()
    await twin.open()
    try:
        with pytest.raises(EngineRefused, match="go to queue 'default'"):
            await twin.jobs.insert(into_group(group, [other]), group=new_group(group))
    finally:
        await twin.close()
    assert (await read(cluster, group)).total == 1


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("GROUP-27")
async def test_a_group_that_was_stored_without_members_takes_none(cluster: RedisClusterEngine) -> None:
    group = secrets.token_bytes(16)
    await cluster.jobs.insert([], group=new_group(group))
    with pytest.raises(EngineRefused, match="stored without a member"):
        await cluster.jobs.insert(into_group(group, [draft()]))
    assert await cluster.groups.seal(group)
    assert (await read(cluster, group)).closed_at is not None


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("GROUP-27")
async def test_callbacks_go_anywhere(cluster: RedisClusterEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    then = draft("then", queue="other")
    await make(cluster, draft(), then=then)
    await lose_closings(monkeypatch, cluster)
    assert (await cluster.groups.sweep()).closed == 1
    found = await job(cluster, then)
    assert found is not None
    assert (found.queue, found.status) == ("other", Status.PENDING)


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("GROUP-27")
async def test_a_member_stays_in_the_queue_of_its_group(
    cluster: RedisClusterEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """A move is refused; a job that joins from a handler and goes elsewhere loses the group, with a warning."""
    member, more = draft(), draft(queue="other")
    group = await make(cluster, member)
    assert (await cluster.operator.alter(Selection((member.job_id,)), Move("other"))).blocked == 1
    [claim] = await cluster.jobs.claim(DEMAND)
    joining = tuple(into_group(group, [more]))
    assert (await cluster.jobs.settle([conclude(claim, Done(followups=joining))])).verdicts == [Verdict.APPLIED]
    found = await job(cluster, more)
    assert found is not None
    assert found.options.group is None
    assert "joins no group" in caplog.text
    assert (await read(cluster, group)).closed_at is not None


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("GROUP-10")
async def test_a_removed_group_leaves_nothing_behind(cluster: RedisClusterEngine, clock: VirtualClock) -> None:
    group = await make(cluster, draft(options=Options(keep=0)))
    store = cluster._store
    members = store.shard("default").members(group)
    assert await store.connection.call("ZCARD", members) == 1
    [claim] = await cluster.jobs.claim(DEMAND)
    await cluster.jobs.settle([conclude(claim, Done())])
    clock.advance(3_601)
    assert (await cluster.groups.sweep()).removed == 1
    assert await store.connection.call("EXISTS", members) == 0
    for shard in (store.home, store.shard("default")):
        for key in ("groups", "groups:open", "groups:closed"):
            assert await store.connection.call("ZCARD", shard.key(key)) == 0
    assert await store.connection.call("HLEN", store.home.key("grouped")) == 0
