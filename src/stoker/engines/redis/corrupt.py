"""Removes a job that cannot be read and was not claimed yet.

What it stores about its own entries cannot be trusted, so this module searches all sets, in small steps, and the commit
checks that what was found is still there. That is rare.
"""

from __future__ import annotations

from stoker.engines.redis.census import held_keys, names
from stoker.engines.redis.expire import ending
from stoker.engines.redis.keys import RETRYING, SUBQUEUE_KEYS, WAIT
from stoker.engines.redis.record_format import CHARS, HAS_STATE, ids_of
from stoker.engines.redis.store import Store
from stoker.engines.redis.stored_job import StoredJob
from stoker.engines.redis.unit_of_work import Unit
from stoker.model.ids import JobId
from stoker.model.job import LISTED, Status

STEP = 1_000


async def remove_corrupt(store: Store, unit: Unit, broken: StoredJob) -> Status:
    """Take a broken job out of every set it may be in, and return its status; the caller then forgets its record."""
    record, key = broken.record, unit.shard.key
    job = record.id
    found = await store.connection.call("HGET", key("state"), job)
    unit.expect_hash(key("state"), job, found)
    found_entry = await _waiting(store, unit, job)
    status: Status | None = None
    if found_entry is not None:
        queue, subqueue, entry = found_entry
        unit.leave(queue, subqueue, entry)
        retrying = await store.connection.call("ZSCORE", unit.shard.of_queue(RETRYING, queue), job)
        unit.write("ZREM", unit.shard.of_queue(RETRYING, queue), job)
        status = Status.PENDING if retrying is None else Status.RETRYING
    for held in await held_keys(store, unit.shard):
        for claimed in await store.connection.call("ZRANGE", held, 0, -1):
            if job in ids_of(claimed[8:]):
                unit.write("LET_GO", held, claimed[:8], job)
                status = Status.RUNNING
                if record.options.limit is not None:
                    unit.free(record.queue, record.options.limit.subqueue, job)
    for listed in sorted(LISTED):
        if await store.connection.call("ZSCORE", key("unsuccessful"), CHARS[listed] + job) is not None:
            unit.write("ZREM", key("unsuccessful"), CHARS[listed] + job)
            status = listed
    expires = await _ended(store, unit, job)
    if expires is not None:
        unit.write("UNEND", key("ends"), expires, job)
    status = status or (Status.PENDING if expires is None else Status.DONE)
    if record.kind:
        unit.write("HINCRBY", key("counts"), f"{record.queue}/{record.kind}/{CHARS[status].decode()}", -1)
    if record.unique is not None:
        slot = record.unique.slot(record.kind)
        if await store.connection.call("HGET", key("keys"), slot) == job:
            unit.expect_hash(key("keys"), slot, job)
            unit.write("HDEL", key("keys"), slot)
    return status


async def _waiting(store: Store, unit: Unit, job: JobId) -> tuple[str, str | None, bytes] | None:
    """The queue and the subqueue (None: the waiting set) in which a job waits, and its entry there."""
    for queue in await names(store, unit.shard):
        for name in (WAIT, SUBQUEUE_KEYS[0]):
            found = await _entry(store, unit.shard.of_queue(name, queue), job, in_subqueues=name != WAIT)
            if found is not None:
                return queue, *found
    return None


async def _entry(store: Store, key: str, job: JobId, *, in_subqueues: bool) -> tuple[str | None, bytes] | None:
    start = 0
    while True:
        members = await store.connection.call("ZRANGE", key, start, start + STEP - 1)
        for member in members:
            subqueue, _, entry = member.partition(b"\0") if in_subqueues else (None, b"", member)
            if job in ids_of(entry[10:]):
                name = None if subqueue is None else subqueue.decode()
                return name, entry if entry.endswith(job + HAS_STATE) else entry[:10] + job
        if len(members) < STEP:
            return None
        # The set shrinks meanwhile: read some entries twice rather than miss one.
        start += STEP // 2


async def _ended(store: Store, unit: Unit, job: JobId) -> int | None:
    """When a job expires, by the score of its entry."""
    start = 0
    while True:
        entries = await ending(store, unit.shard, start, STEP)
        for expires, packed in entries:
            if job in ids_of(packed):
                return expires
        if len(entries) < STEP:
            return None
        start += STEP // 2
