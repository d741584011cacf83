"""Schedules on a Redis Cluster: each lives in the shard of its queue, and moves when its queue changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from stoker.engines.redis import RedisClusterEngine
from stoker.engines.redis.cluster import schedules as across
from stoker.model.job import Draft, Status
from stoker.model.schedule import NO_ID, Action, Edit, Schedule, draft_of, pack, tick
from stoker.model.time import HOUR
from tests.engines.redis.stand import Stand

pytestmark = pytest.mark.engine("redis-cluster")

RED, BLUE = (Draft(NO_ID, "work", queue=queue) for queue in ("red", "blue"))


@pytest.fixture
async def stand(redis_cluster_url: str, redis_cluster_prefix: str) -> AsyncIterator[Stand]:
    async with Stand.on(redis_cluster_url, redis_cluster_prefix, RedisClusterEngine) as stand:
        yield stand


async def seeded(stand: Stand, **more: Any) -> Schedule:
    given: dict[str, Any] = {"name": "report", "expression": "@hourly", "template": RED, **more}
    new = await stand.engine.schedules.put(Schedule(**given))
    assert new is not None
    found = (await stand.engine.schedules.fire(tick(new, stand.clock()))).schedule
    assert found is not None
    return found


async def copies(stand: Stand) -> set[str]:
    """The queues in whose shards the schedule is stored."""
    return {queue for queue in ("red", "blue") if await stand.call("HLEN", stand.store.shard(queue).key("schedules"))}


class Died(Exception):
    """The process ends here."""


@pytest.mark.spec("SCHED-02")
@pytest.mark.parametrize("survived", range(4))
async def test_a_move_that_is_cut_short_leaves_one_schedule_that_can_fire_at_most(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """Whatever step its process dies after, the schedule is there once, is not fired twice, and can be repaired."""
    before = await seeded(stand)
    swap, left = across._swap, [None] * survived

    async def dying(*args: Any) -> bool:
        if not left:
            raise Died
        left.pop()
        return await swap(*args)

    with monkeypatch.context() as patch:
        patch.setattr(across, "_swap", dying)
        try:
            await stand.engine.schedules.put(Edit(name="report", template=BLUE))
        except Died:
            assert survived < 3
    [found] = await stand.engine.schedules.read()
    assert await copies(stand) == [{"red"}, {"red", "blue"}, {"blue"}, {"blue"}][survived]
    if survived < 2:
        assert found == before, "the edit was never acknowledged"
    elif survived == 2:
        assert (found.enabled, found.last_error) == (False, across.MOVING)
    assert before.next_fire is not None
    stand.clock.set(before.next_fire)
    for one in (before, found):
        decision = tick(one, stand.clock())
        await stand.engine.schedules.fire(decision, [draft_of(one, at) for at in decision.fires])
    jobs = (await stand.engine.operator.census()).by_status()[Status.PENDING]
    assert jobs == (0 if survived == 2 else 1)
    repaired = await stand.engine.schedules.put(Schedule(name="report", expression="@hourly", template=BLUE))
    assert repaired is not None
    assert (repaired.enabled, repaired.template.queue) == (True, "blue")
    assert await stand.engine.schedules.read() == [repaired]
    assert await copies(stand) == {"blue"}


@pytest.mark.spec("SCHED-02")
async def test_a_schedule_that_fires_while_it_moves_is_moved_as_it_is_then(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await seeded(stand)
    assert before.next_fire is not None
    stand.clock.set(before.next_fire)
    swap, calls = across._swap, 0

    async def interrupted(*args: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 2:  # stored in blue, not yet deleted in red
            fired = await stand.engine.schedules.fire(tick(before, stand.clock()), [draft_of(before, stand.clock())])
            assert fired.applied
        return await swap(*args)

    monkeypatch.setattr(across, "_swap", interrupted)
    moved = await stand.engine.schedules.put(Edit(name="report", template=BLUE))
    assert moved is not None
    assert (moved.next_fire, moved.last_fire) == (before.next_fire + HOUR, before.next_fire)
    assert await stand.engine.schedules.read() == [moved]
    assert await copies(stand) == {"blue"}


@pytest.mark.spec("SCHED-01")
async def test_two_copies_are_listed_as_one_and_dropped_together(stand: Stand) -> None:
    """As after two calls that made the same name in two queues at once: the newer one counts."""
    old = await seeded(stand)
    newer = msgspec.structs.replace(old, template=BLUE, changed_at=old.changed_at + 1)
    await stand.store.introduce(["blue"])
    await stand.call("HSET", stand.store.shard("blue").key("schedules"), "report", pack(newer))
    assert await stand.engine.schedules.read() == [newer]
    edited = await stand.engine.schedules.put(Edit(name="report", jitter=5))
    assert edited is not None
    assert (edited.template.queue, await copies(stand)) == ("blue", {"blue"})
    await stand.call("HSET", stand.store.shard("red").key("schedules"), "report", pack(old))
    assert await stand.engine.schedules.drop("report")
    assert await copies(stand) == set()


@pytest.mark.spec("SCHED-10")
async def test_a_key_that_a_cluster_cannot_keep_is_the_last_error(stand: Stand) -> None:
    """Jobs of one kind with keys go to one queue of a cluster; the schedule into another one says so and goes on."""
    first = await seeded(stand, name="first", overlap="skip")
    second = await seeded(stand, name="second", overlap="skip", template=BLUE)
    assert first.next_fire is not None
    stand.clock.set(first.next_fire)
    found = []
    for one in (first, second):
        fired = await stand.engine.schedules.fire(tick(one, stand.clock()), [draft_of(one, stand.clock())])
        assert fired.schedule is not None
        found.append(fired.schedule)
    assert [one.last_status for one in found] == [Action.FIRE, Action.FAIL]
    assert "go to queue 'red' on this Redis Cluster" in (found[1].last_error or "")
    assert found[1].enabled
