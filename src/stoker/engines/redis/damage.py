"""Restores what damage to a key took from a shard.

A script that meets bytes that Stoker never wrote goes on without them, and notes in the hash `damage` what it met
(`lua/_head.lua`). A cleaning reads these notes: it gives jobs that stand in no set their entry again, and drops notes
on what can be read again. It also removes counters of waiting jobs where none waits.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stoker.engines.base import PLACELESS
from stoker.engines.redis import groups
from stoker.engines.redis.census import held_keys, names
from stoker.engines.redis.control import pairs
from stoker.engines.redis.keys import DAMAGE, Shard
from stoker.engines.redis.scripts import script
from stoker.engines.redis.stored_job import as_record
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.errors import CorruptRecord, sentence
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, Status

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store
    from stoker.engines.redis.unit_of_work import Unit

log = logging.getLogger("stoker.engines.redis")

READ_AT_ONCE = 1_000
RESTORED_AT_ONCE = 100

_ACTIVE = script("active", with_subqueues=True)
_STRAYS = script("strays")
_ADRIFT = script("adrift", with_subqueues=True)

ENTRIES, QUEUE, GROUP = b"entries", b"queue:", b"group:"
"""Fields of `damage`: entries are missing, a key of a queue has another type, a group cannot be read."""


async def notes(store: Store, shard: Shard) -> dict[bytes, bytes]:
    """What scripts noted about damage, by what it is about."""
    return dict(pairs(await store.connection.call("HGETALL", shard.key(DAMAGE))))


async def repair(store: Store, shard: Shard) -> None:
    """Restore the entries that damage has taken, and look again at what could not be read."""
    noted = await notes(store, shard)
    await _repair_counters(store, shard)
    for field in noted:
        if field.startswith(QUEUE) or (field.startswith(GROUP) and not await _is_damaged(store, shard, field)):
            await store.connection.call("HDEL", shard.key(DAMAGE), field)
    if ENTRIES not in noted:
        return
    try:
        strays = await _strays(store, shard)
        for start in range(0, len(strays), RESTORED_AT_ONCE):
            await _restore(store, shard, strays[start : start + RESTORED_AT_ONCE])
    except CorruptRecord as error:
        log.warning("entries of jobs cannot be restored yet: %s The next cleaning tries again.", sentence(error))
        return
    await store.connection.call("HDEL", shard.key(DAMAGE), ENTRIES)
    if strays:
        found = count(len(strays), "waiting or running job")
        log.warning("listed %s again that stood in no list after damage", found)


async def _repair_counters(store: Store, shard: Shard) -> None:
    """Remove what jobs whose body is lost left in the counters of their queue, once nothing waits there."""
    queues = await names(store, shard)
    found: list[bytes] = await store.run(_ADRIFT, shard, queues, queues=queues, with_subqueues=True) if queues else []
    for field, n in zip(found[::2], found[1::2], strict=True):
        queue, kind, _ = field.decode().split("/")
        log.warning(
            "queue %s: the counter of waiting jobs of kind %s was %d, and none waits. The counter is repaired; the "
            "server lost data",
            *(queue, kind, int(n)),
        )


async def _is_damaged(store: Store, shard: Shard, field: bytes) -> bool:
    try:
        await groups.read(store, f"{shard.tag}:{field.decode()}")
    except CorruptRecord:
        return True
    return False


async def _strays(store: Store, shard: Shard) -> list[JobId]:
    """Jobs that wait or run by their state and stand in no list, neither before nor after they were looked for."""
    listed = await _listed(store, shard)
    strays: list[JobId] = []
    last = b""
    while True:
        last, found = await store.run(_STRAYS, shard, (last, READ_AT_ONCE))
        strays += [job for job in found if job not in listed]
        if not last:
            break
    listed = await _listed(store, shard) if strays else set()
    return [job for job in strays if job not in listed]


async def _listed(store: Store, shard: Shard) -> set[JobId]:
    queues, held = await names(store, shard), await held_keys(store, shard)
    return set(await store.run(_ACTIVE, shard, [len(queues)], queues=queues, more=held, with_subqueues=True))


async def _restore(store: Store, shard: Shard, ids: list[JobId]) -> None:
    async def enter(unit: Unit) -> None:
        await unit.load(Wanted(frozenset(ids)))
        for job in ids:
            if job in unit.rows and unit.rows[job].corrupt == PLACELESS:
                _fresh(unit, job)
            record = unit.get(job)
            if record is None or record.status not in ACTIVE or unit.rows[job].broken:
                continue
            unit.restore(record)
            if record.status is Status.RUNNING:
                # A worker that is not known any more lapsed long ago: the next reap takes its claims over.
                unit.write("ZADD", shard.key("workers"), "NX", 0, record.worker or "")

    await store.work(shard, enter)


def _fresh(unit: Unit, job: JobId) -> None:
    """Take a job that is nowhere for a waiting one: entries are known to be missing, its own among them."""
    row = unit.rows[job]
    row.corrupt, row.broken = None, False
    row.change(status=Status.PENDING, last_error=None)
    unit.add_record(job, as_record(row))
