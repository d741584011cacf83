"""Moving a waiting job to another queue of a cluster, where two queues share no atomic step.

The job leaves its queue for a hash beside it, `moving`, in one step; it is stored in the other queue in a second, with
a mark that it arrived; then it is removed from `moving`. No worker can claim it in between, so it never runs twice; a
process that dies meanwhile leaves it in `moving`, from where the next move, signal or `expire` delivers it. Its steps
stay where they are until it has arrived, and are copied then. The mark
keeps a second delivery from storing it again, also when it was claimed and deleted there. Marks are kept for a day. A
single Redis uses none of this.
"""

from __future__ import annotations

import os
from functools import partial

import msgspec

from stoker.engines.redis import record_format, step_rows
from stoker.engines.redis.control import pairs
from stoker.engines.redis.keys import STEPS, Shard
from stoker.engines.redis.record_format import eight
from stoker.engines.redis.store import Store
from stoker.engines.redis.stored_job import as_record
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.ids import JobId
from stoker.model.record import Record
from stoker.model.time import DAY

MARKS_KEPT = DAY


class MovedJob(msgspec.Struct, frozen=True, array_like=True):
    """A job between two queues: its body, for the new queue already, and all that belongs to it."""

    ticket: bytes
    queue: str
    body: bytes
    state: bytes
    last: str | None
    notes: bytes | None
    errors: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(MovedJob).decode


def send(unit: Unit, record: Record, queue: str) -> None:
    """Take a waiting job, which was read with its details, out of its queue and put it into `moving`."""
    row, moved = unit.rows[record.id], record.move(queue, unit.now)
    errors = [record_format.failure(one) for one in row.record.history]
    state = record_format.state(moved, errors=row.errors, version=row.version)
    moved_job = MovedJob(os.urandom(8), queue, record_format.body(moved), state, record.last_error, row.notes, errors)
    unit.remove(record, events=False)
    unit.leave_steps(record.id)
    unit.write("HSET", unit.shard.key("moving"), record.id, _encode(moved_job))


async def deliver(store: Store, shard: Shard) -> None:
    """Store every job that left this shard in its new one."""
    if shard is store.home:
        return
    for job, stored in pairs(await store.connection.call("HGETALL", shard.key("moving"))):
        moved_job = _decode(stored)
        await store.introduce([moved_job.queue])
        await store.work(store.shard(moved_job.queue), partial(_arrive, store, shard, job, moved_job))
        await store.work(shard, partial(_strike_off, store, job, stored))
    await _drop_marks(store, shard)


async def _arrive(store: Store, shard: Shard, job: JobId, moved_job: MovedJob, unit: Unit) -> None:
    marks, mark = unit.shard.key("arrived"), job + moved_job.ticket
    await unit.load(Wanted(frozenset({job}), queues=frozenset({moved_job.queue})))
    if unit.get(job) is not None or await store.connection.call("HGET", marks, mark) is not None:
        return
    row = record_format.apply_state(record_format.read_body(moved_job.body), moved_job.state)
    row.errors = len(moved_job.errors)
    unit.rows[job] = row
    unit.expect_hash(marks, mark, None)
    unit.write("HSET", marks, mark, eight(unit.now))
    unit.put(as_record(row))
    if moved_job.last is not None:
        unit.write("HSET", unit.shard.key("last"), job, moved_job.last)
    if moved_job.notes is not None:
        unit.write("HSET", unit.shard.key("notes"), job, moved_job.notes)
    for place, error in enumerate(moved_job.errors):
        unit.write("HSET", unit.shard.key("errors"), job + bytes((place,)), error)
    # No worker writes rows of a job that is in no shard.
    unit.drop_steps(job)
    for name, stored in await step_rows.of_jobs(store, shard, [job]):
        unit.write("STEP", unit.shard.key(STEPS), name, stored)


async def _strike_off(store: Store, job: JobId, stored: bytes, unit: Unit) -> None:
    key = unit.shard.key("moving")
    if await store.connection.call("HGET", key, job) == stored:
        unit.expect_hash(key, job, stored)
        unit.write("HDEL", key, job)
        await unit.load(Wanted(frozenset({job})))
        if unit.get(job) is None:  # else it has come back, with its rows
            unit.expect_absent(job)
            unit.drop_steps(job)


async def _drop_marks(store: Store, shard: Shard) -> None:
    """Remove marks of long ago."""
    key = shard.key("arrived")
    marks = pairs(await store.connection.call("HGETALL", key))
    if marks:
        before = await store.now() - MARKS_KEPT
        old = [mark for mark, at in marks if int.from_bytes(at) < before]
        if old:
            await store.connection.call("HDEL", key, *old)
