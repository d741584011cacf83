"""Removing a record that cannot be read, before anybody claimed it: what it says about its own place cannot be trusted.

So all places are searched. This is rare and nobody waits for it; the walk goes in small steps, and the commit checks
that what was found is still there.
"""

from __future__ import annotations

from stoker.engines.redis.expire import ending
from stoker.engines.redis.find import held_keys, names
from stoker.engines.redis.keys import AGAIN, WAIT
from stoker.engines.redis.record_format import CHARS, HAS_STATE, ODD, ids_of
from stoker.engines.redis.store import Store
from stoker.engines.redis.stored_job import StoredJob
from stoker.engines.redis.unit_of_work import Unit
from stoker.model.ids import JobId
from stoker.model.job import Status

STEP = 1_000


async def scrap(store: Store, unit: Unit, broken: StoredJob) -> None:
    """Take a broken record out of every place it may be in; the caller forgets it then."""
    record, key = broken.record, unit.shard.key
    job = record.id
    found = await store.connection.call("HGET", key("state"), job)
    unit.expect_hash(key("state"), job, found)
    place = await _waiting(store, unit, job)
    status = Status.DONE
    if place is not None:
        queue, entry = place
        unit.write("LEAVE", unit.shard.of_queue(WAIT, queue), entry)
        again = await store.connection.call("ZSCORE", unit.shard.of_queue(AGAIN, queue), job)
        unit.write("ZREM", unit.shard.of_queue(AGAIN, queue), job)
        status = Status.PENDING if again is None else Status.RETRYING
    for held in await held_keys(store, unit.shard):
        for lot in await store.connection.call("ZRANGE", held, 0, -1):
            if job in ids_of(lot[8:]):
                unit.write("LET_GO", held, lot[:8], job)
                status = Status.RUNNING
    for odd in sorted(ODD):
        if await store.connection.call("ZSCORE", key("odd"), CHARS[odd] + job) is not None:
            unit.write("ZREM", key("odd"), CHARS[odd] + job)
            status = odd
    expires = await _ended(store, unit, job)
    if expires is not None:
        unit.write("UNEND", key("ends"), expires, job)
    if record.kind:
        unit.write("HINCRBY", key("counts"), f"{record.queue}/{record.kind}/{CHARS[status].decode()}", -1)
    if record.unique is not None:
        slot = record.unique.slot(record.kind)
        if await store.connection.call("HGET", key("keys"), slot) == job:
            unit.expect_hash(key("keys"), slot, job)
            unit.write("HDEL", key("keys"), slot)


async def _waiting(store: Store, unit: Unit, job: JobId) -> tuple[str, bytes] | None:
    """The line a job stands in, and its place there."""
    for queue in await names(store, unit.shard):
        start = 0
        while True:
            line = await store.connection.call("ZRANGE", unit.shard.of_queue(WAIT, queue), start, start + STEP - 1)
            for entry in line:
                if job in ids_of(entry[10:]):
                    return queue, entry if entry.endswith(job + HAS_STATE) else entry[:10] + job
            if len(line) < STEP:
                break
            # Lines move on while one walks along them: look at some of it twice rather than miss anything.
            start += STEP // 2
    return None


async def _ended(store: Store, unit: Unit, job: JobId) -> int | None:
    """When a job is said to expire, by the lot it stands in."""
    start = 0
    while True:
        lots = await ending(store, unit.shard, start, STEP)
        for expires, lot in lots:
            if job in ids_of(lot):
                return expires
        if len(lots) < STEP:
            return None
        start += STEP // 2
