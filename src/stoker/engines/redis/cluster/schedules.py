"""A schedule that changes its queue on a cluster, where two queues share no atomic step.

It is stored in the new queue switched off, then deleted in the old one if nothing has changed it since, then switched
on. So at no time can two copies fire. A process that dies on the way leaves the old one as it was, or the new one
switched off with the reason as its last error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from stoker.engines.base import CONTROL
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.keys import SCHEDULES, Shard
from stoker.model import schedule as rules
from stoker.model.errors import EngineBusy
from stoker.model.schedule import Edit, Schedule, pack, unpack
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store
    from stoker.engines.redis.unit_of_work import Unit

MOST_TRIES = 100
MOVING = "the schedule is moving to another queue; if it stays so, the process that moved it has died: resume it"


def valid(one: Schedule, other: Schedule) -> Schedule:
    """Of two copies the one that counts: enabled before disabled, then the newer."""
    return max(one, other, key=_weight)


def _weight(copy: Schedule) -> tuple[bool, Instant, str]:
    return copy.enabled, copy.changed_at, copy.template.queue


async def put(
    store: Store,
    given: Schedule | Edit,
    change: Callable[[Unit], Awaitable[Schedule | None]],
    *,
    keep_edited: bool,
) -> Schedule | None:
    """Store or change a schedule in the shard of its queue, moving it there if need be."""
    name = given.name
    for _ in range(MOST_TRIES):
        copies = await _copies(store, name)
        source = max(copies, key=lambda shard: _weight(unpack(name, copies[shard])), default=None)
        before = None if source is None else unpack(name, copies[source])
        after = rules.put(before, given, await store.now(), keep_edited=keep_edited)
        if after is None:
            return None
        target = store.shard(after.template.queue)
        await store.introduce([after.template.queue])
        for stale in copies.keys() - {source}:
            await _swap(store, stale, name, copies[stale], None)
        if source in (None, target):
            return await store.work(target, change, repeat=True)
        if await _move(store, source, target, copies[source], after):
            await store.wake([CONTROL])
            return after
    raise EngineBusy(
        f"schedule {name!r} was changed by others {MOST_TRIES} times in a row. Nothing was written; try again"
    )


async def _copies(store: Store, name: str) -> dict[Shard, bytes]:
    """What is stored under a name, by shard: more than one after a move that was cut short."""
    shards = await store.shards()
    found = await spread(shards, lambda shard: store.connection.call("HGET", shard.key(SCHEDULES), name))
    return {shard: raw for shard, raw in zip(shards, found, strict=True) if raw is not None}


async def _move(store: Store, source: Shard, target: Shard, raw: bytes, after: Schedule) -> bool:
    """Store a schedule in another shard and delete it in its own; False: it has changed, nothing is moved."""
    halfway = pack(msgspec.structs.replace(after, enabled=False, last_error=MOVING))
    if not await _swap(store, target, after.name, None, halfway):
        return False
    if not await _swap(store, source, after.name, raw, None):
        await _swap(store, target, after.name, halfway, None)
        return False
    return await _swap(store, target, after.name, halfway, pack(after))


async def _swap(store: Store, shard: Shard, name: str, before: bytes | None, after: bytes | None) -> bool:
    """Replace a stored value if it is still the one before."""
    key = shard.key(SCHEDULES)

    async def change(unit: Unit) -> bool:
        if await store.connection.call("HGET", key, name) != before:
            return False
        unit.expect_hash(key, name, before)
        unit.write(*(("HDEL", key, name) if after is None else ("HSET", key, name, after)))
        return True

    return await store.work(shard, change)
