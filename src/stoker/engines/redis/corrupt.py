"""Removes a job that cannot be read and was not claimed yet.

What it stores about its own entries cannot be trusted, so this module searches all sets, in small steps, and the commit
checks that what was found is still there. That is rare.
"""

from __future__ import annotations

from stoker.engines.redis.census import held_keys, names
from stoker.engines.redis.expire import ending
from stoker.engines.redis.keys import AGAIN, WAIT
from stoker.engines.redis.record_format import CHARS, HAS_STATE, ODD, ids_of
from stoker.engines.redis.store import Store
from stoker.engines.redis.stored_job import StoredJob
from stoker.engines.redis.unit_of_work import Unit
from stoker.model.ids import JobId
from stoker.model.job import Status

STEP = 1_000


async def remove_corrupt(store: Store, unit: Unit, broken: StoredJob) -> Status:
    """Take a broken job out of every set it may be in, and return its status; the caller then forgets its record."""
    record, key = broken.record, unit.shard.key
    job = record.id
    found = await store.connection.call("HGET", key("state"), job)
    unit.expect_hash(key("state"), job, found)
    found_entry = await _waiting(store, unit, job)
    status = Status.DONE
    if found_entry is not None:
        queue, entry = found_entry
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
    return status


async def _waiting(store: Store, unit: Unit, job: JobId) -> tuple[str, bytes] | None:
    """The queue whose waiting set holds a job, and its entry there."""
    for queue in await names(store, unit.shard):
        start = 0
        while True:
            entries = await store.connection.call("ZRANGE", unit.shard.of_queue(WAIT, queue), start, start + STEP - 1)
            for entry in entries:
                if job in ids_of(entry[10:]):
                    return queue, entry if entry.endswith(job + HAS_STATE) else entry[:10] + job
            if len(entries) < STEP:
                break
            # The set shrinks meanwhile: read some entries twice rather than miss one.
            start += STEP // 2
    return None


async def _ended(store: Store, unit: Unit, job: JobId) -> int | None:
    """When a job expires, by the score of its lot."""
    start = 0
    while True:
        lots = await ending(store, unit.shard, start, STEP)
        for expires, lot in lots:
            if job in ids_of(lot):
                return expires
        if len(lots) < STEP:
            return None
        start += STEP // 2
