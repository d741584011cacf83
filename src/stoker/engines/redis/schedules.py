"""Schedules and their ticks: one packed value each, changed by compare-and-set in the shard of its queue.

So a tick and its jobs are one step, on a cluster too. There a schedule can be found only by looking into every shard,
and an edit of its queue moves it to another one (`cluster/schedules.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from stoker.engines.base import CONTROL
from stoker.engines.call_times import timed
from stoker.engines.redis import audit
from stoker.engines.redis.cluster import schedules as across
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.control import pairs
from stoker.engines.redis.insert import keep_keys_together
from stoker.engines.redis.keys import SCHEDULES, Shard
from stoker.engines.shared import one_by_one
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.schedules import Firing, TickBatcher, decide_each, fire, moved
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model import schedule as rules
from stoker.model.audit import By, of_setting
from stoker.model.job import Draft
from stoker.model.schedule import Edit, Fired, Schedule, Tick, pack, unpack

if TYPE_CHECKING:
    from stoker.engines.redis.server_checks import ServerChecks
    from stoker.engines.redis.store import Store
    from stoker.engines.redis.unit_of_work import Unit


class Schedules(Facet["Store"]):
    """The schedules of one store. Stores concurrent ticks together, those of one shard: on a cluster, of one queue."""

    def __init__(self, store: Store, server_checks: ServerChecks) -> None:
        super().__init__(store)
        self._server_checks = server_checks
        self._batchers: dict[Shard, TickBatcher] = {}

    @timed(write=False, name="read_schedules")
    async def read(self) -> list[Schedule]:
        store = self._store
        keys = [shard.key(SCHEDULES) for shard in await store.shards()]
        found: dict[str, Schedule] = {}
        for flat in await spread(keys, lambda key: store.connection.call("HGETALL", key)):
            for field, raw in pairs(flat):
                one = unpack(field.decode(), raw)
                found[one.name] = across.valid(found.get(one.name, one), one)
        return [found[name] for name in sorted(found)]

    @timed(write=True)
    async def put(self, given: Schedule | Edit, *, keep_edited: bool = False, by: By | None = None) -> Schedule | None:
        self._server_checks.insist()
        store = self._store
        change = partial(_put, store=store, given=given, keep_edited=keep_edited, by=by)
        if store.connection.cluster:
            return await across.put(store, given, change, keep_edited=keep_edited)
        return await store.work(store.home, change, repeat=True)

    @timed(write=True)
    async def drop(self, name: str, *, by: By | None = None) -> bool:
        store = self._store
        if by is not None:
            return any(
                await spread(await store.shards(), lambda shard: store.work(shard, partial(_drop, store, name, by)))
            )
        keys = [shard.key(SCHEDULES) for shard in await store.shards()]
        return any(await spread(keys, lambda key: store.connection.call("HDEL", key, name)))

    @timed(write=True)
    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        self._server_checks.insist()
        return await fire(self._batched, tick, drafts)

    async def _batched(self, tick: Tick, drafts: Sequence[Draft]) -> Fired:
        """Store a tick with its jobs, if it applies."""
        await keep_keys_together(self._store, drafts)
        await self._store.introduce([tick.queue])
        shard = self._store.shard(tick.queue)
        if shard not in self._batchers:
            self._batchers[shard] = TickBatcher(partial(_fire, self._store, shard))
        return await self._batchers[shard].fire(tick, drafts)

    async def close(self) -> None:
        """Store what is still waiting."""
        for batcher in self._batchers.values():
            await batcher.close()


async def _put(
    unit: Unit, store: Store, given: Schedule | Edit, *, keep_edited: bool, by: By | None
) -> Schedule | None:
    before = await _load(store, unit, given.name)
    await unit.load(Wanted())
    after = rules.put(before, given, unit.now, keep_edited=keep_edited)
    if after is not None and after is not before:
        unit.write("HSET", unit.shard.key(SCHEDULES), after.name, pack(after))
        unit.wake(CONTROL)
        audit.write(unit, by, of_setting("schedules.put", f"schedule {after.name}", before, after))
    return after


async def _drop(store: Store, name: str, by: By, unit: Unit) -> bool:
    before = await _load(store, unit, name)
    await unit.load(Wanted())
    if before is None:
        return False
    unit.write("HDEL", unit.shard.key(SCHEDULES), name)
    audit.write(unit, by, of_setting("schedules.drop", f"schedule {name}", before, None))
    return True


async def _fire(store: Store, shard: Shard, ticks: Sequence[Firing]) -> list[Fired]:
    """Store ticks with their jobs, each if it applies."""
    names = sorted({tick.name for tick, _ in ticks})

    async def attempt(unit: Unit) -> list[Fired]:
        key = unit.shard.key(SCHEDULES)
        stored: dict[str, Schedule] = {}
        for name, raw in zip(names, await store.connection.call("HMGET", key, *names), strict=True):
            unit.expect_hash(key, name, raw)
            if raw is not None:
                stored[name] = unpack(name, raw)
        await unit.load(one_by_one.wanted_by_drafts(draft for _, drafts in ticks for draft in drafts))
        fired = decide_each(unit, stored, ticks)
        for name, after in moved(fired).items():
            unit.write("HSET", key, name, pack(after))
        return fired

    return await store.work(shard, attempt)


async def _load(store: Store, unit: Unit, name: str) -> Schedule | None:
    """A schedule, which must still be the same when the unit is written."""
    key = unit.shard.key(SCHEDULES)
    raw = await store.connection.call("HGET", key, name)
    unit.expect_hash(key, name, raw)
    return None if raw is None else unpack(name, raw)
