"""Claims due jobs for a worker.

A claim's `ref` holds what a settlement needs beside the fence: queue, kind, the unique key's slot and text, the notes
of earlier runs, the group, the limit, the tenant, and until when a success keeps the key. So settling reads nothing,
but for a key that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.redis import record_format, step_rows
from stoker.engines.redis.control import count_of, curve_of
from stoker.engines.redis.keys import Keys, Shard
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.engines.redis.stored_job import StoredJob, read_notes
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared import one_by_one
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.control import Queue
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import PLAIN, Claim, Demand, Status
from stoker.model.limit import Slot
from stoker.model.retry import Curve
from stoker.model.steps import Step
from stoker.model.throttle import Cooldown
from stoker.model.time import Instant

_CLAIM = {with_subqueues: script("claim", with_subqueues=with_subqueues) for with_subqueues in (False, True)}
_ENLIST = script("enlist")

Ref = tuple[str, str, str | None, str | None, bytes | None, JobId | None, Slot | None, str | None, Instant | None]


_PLAIN_REF = (None, None, None, None, None, None, None)


class Claimer(Facet[Store]):
    """Hands out jobs by themselves; `Settler` does so with a settlement."""

    @timed(write=True)
    async def claim(self, demand: Demand) -> list[Claim]:
        return await claim_each(self._store, demand)


async def claim_each(store: Store, demand: Demand) -> list[Claim]:
    """Hand due jobs to a worker with a live lease, shard by shard."""
    claims: list[Claim] = []
    left = limit(demand)
    for shard, queues in demanded(store, demand):
        if left <= 0:
            break
        if not await enlist(store, shard, demand.worker):
            continue
        taken = await claim_in(store, shard, demand.worker, left, queues)
        left -= len(taken)
        claims += taken
    return claims


async def claim_in(
    store: Store, shard: Shard, worker: str, total: int, queues: Sequence[tuple[str, int]]
) -> list[Claim]:
    """Claim from queues of one shard, at most `total`."""
    claims: list[Claim] = []
    while queues and len(claims) < total:
        names = list(dict.fromkeys(name for name, _ in queues))
        with_subqueues = not store.with_subqueues.isdisjoint(names)
        keys = Keys(shard.all_keys(names, with_subqueues=with_subqueues), with_subqueues=with_subqueues)
        args = (store.arg_now(), *arguments(shard, keys, worker, total - len(claims), queues))
        instant, found = await store.connection.run(_CLAIM[with_subqueues], keys.names, args)
        taken = await taken_over(store, shard, store.seen(instant), worker, names, found)
        claims += taken
        if (rest := unasked(store, names, queues, found, taken)) is not None:
            queues = rest
        elif taken or not found:
            break
        # Else all claimed jobs were set aside, and the queue is not empty: claim the next ones.
    return claims


def unasked(
    store: Store, names: Sequence[str], queues: Sequence[tuple[str, int]], found: list[Any], taken: Sequence[Claim]
) -> list[tuple[str, int]] | None:
    """What a script left to a further call, in the form that knows subqueues; None: nothing."""
    if not found or len(found[-1]) < 5 or not found[-1][4]:
        return None
    name = names[found[-1][0] - 1]
    store.with_subqueues.add(name)
    place = [one for one, _ in queues].index(name)
    got = sum(claim_.queue == name for claim_ in taken)
    return [(one, n - got if one == name else n) for one, n in queues[place:] if one != name or n > got]


def limit(demand: Demand) -> int:
    """How many jobs a demand asks for in all."""
    return sum(n for _, n in demand.queues if n > 0) if demand.total is None else demand.total


def demanded(store: Store, demand: Demand) -> list[tuple[Shard, Sequence[tuple[str, int]]]]:
    """Where the queues of a demand are, in its order."""
    wanted = [(name, n) for name, n in demand.queues if n > 0]
    if not store.connection.cluster:
        return [(store.home, wanted)] if wanted else []
    return [(store.shard(name), [(name, n)]) for name, n in wanted]


def arguments(shard: Shard, keys: Keys, worker: str, total: int, queues: Sequence[tuple[str, int]]) -> list[Any]:
    """A demand as the scripts read it; the keys begin with those of all its queues."""
    args: list[Any] = [worker, keys.number(shard.held(worker)), total]
    for name, n in queues:
        args += (keys.queue(shard, name), name, n)
    return args


async def enlist(store: Store, shard: Shard, worker: str) -> bool:
    """Copy a worker's lease into a shard; False where the queue is unknown or the worker was reaped."""
    if shard.queue is None or (worker, shard.queue) in store.enlisted:
        return True
    if not await store.knows(shard.queue):
        return False
    until = await store.connection.call("ZSCORE", store.home.key("workers"), worker)
    if until is None:
        return False
    instant, known = await store.run(_ENLIST, shard, (worker, int(float(until))))
    store.seen(instant)
    if known:
        store.enlisted.add((worker, shard.queue))
    return bool(known)


async def taken_over(
    store: Store, shard: Shard, now: Instant, worker: str, names: Sequence[str], found: list[Any]
) -> list[Claim]:
    """The claims a script returned; a job that cannot be read is set aside."""
    claims: list[Claim] = []
    for number, stored_curve, count, jobs, *_ in found:
        curve, cool = curve_of(stored_curve), count_of(count)
        name = names[number - 1]
        refs: dict[str, Ref] = {}
        for job in jobs:
            if type(job) is bytes and (plain := record_format.read_plain(job)) is not None:
                id_, kind, payload, budget, created, due, priority = plain
                ref = refs.get(kind) or refs.setdefault(kind, (name, kind, *_PLAIN_REF))
                # fmt: off
                claims.append(Claim(
                    id_, kind, name, payload, 1, 0, budget, worker, now, now, created, due, priority,
                    PLAIN, None, None, 0, 0, None, False, None, curve, cool, None, None, ref, fresh=True,
                ))
                # fmt: on
                continue
            try:
                if type(job) is bytes:
                    found_job, before, fresh, rows = record_format.read_body(job), Status.PENDING, True, None
                    found_job.record = found_job.record.claimed(worker, now)
                else:
                    found_job, before, fresh = stored(job), record_format.STATUSES[job[4][:1]], len(job[4]) > 1
                    rows = step_rows.brought(job[5]) if len(job) > 5 and job[5] else None
                claims.append(as_claim(found_job, curve, cool, before, fresh=fresh, rows=rows))
            except CorruptRecord as error:
                raw = job if type(job) is bytes else job[0]
                await set_aside(store, shard, raw[:16], str(error))
    return claims


def stored(row: list[Any]) -> StoredJob:
    """A job from its body, state, last error and notes."""
    error = None if row[2] is None else row[2].decode(errors="replace")
    job = record_format.apply_state(record_format.read_body(row[0]), row[1], last_error=error)
    job.notes = row[3]
    return job


def as_claim(
    job: StoredJob,
    curve: Curve,
    cool: int,
    before: Status = Status.RUNNING,
    *,
    fresh: bool = False,
    rows: tuple[Step, ...] | None = None,
) -> Claim:
    """A running job in the hands of its worker. Raises `CorruptRecord` for one that cannot be read."""
    if job.corrupt is not None:
        raise CorruptRecord(job.corrupt)
    record = job.record
    if job.notes is not None:
        record = msgspec.structs.replace(record, metadata=read_notes(job.notes).metadata)
    queue = Queue(name=record.queue, curve=curve, cooldown=Cooldown(0, cool))
    return record.as_claim(queue, before, ref_of(job), fresh=fresh, rows=rows)


def ref_of(job: StoredJob) -> Ref:
    """What a settlement of this job needs."""
    record = job.record
    key = None if record.unique is None else record.unique.key
    until = None if record.keeps is None else record.keeps.until
    more = (record.options.group, record.options.limit, record.tenant, until)
    return record.queue, record.kind, record.slot, key, job.notes, *more


async def set_aside(store: Store, shard: Shard, job: JobId, why: str) -> None:
    """End a job that cannot be read: operators can look at it, workers never claim it again."""

    async def end(unit: Unit) -> None:
        await unit.load(Wanted(frozenset({job})))
        record = unit.get(job)
        if record is not None and record.status is Status.RUNNING:
            one_by_one.set_aside(unit, record, why, started=False)
            unit.write("HSET", shard.key("corrupt"), job, why)

    await store.work(shard, end)
