"""The second door: what a claim script hands out becomes claims.

A claim's `ref` holds what a settlement needs to know beside the fence: queue, kind, the key's slot and text, and the
notes earlier runs left. So ending a run reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.engines.redis import records
from stoker.engines.redis.control import curve_of
from stoker.engines.redis.keys import Keys, Shard
from stoker.engines.redis.records import Row
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared import careful
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import PLAIN, Claim, Demand, Status
from stoker.model.retry import Curve
from stoker.model.time import Instant

_CLAIM = script("claim")
_ENLIST = script("enlist")

Ref = tuple[str, str, str | None, str | None, bytes | None]


async def claim(store: Store, demand: Demand) -> list[Claim]:
    """Hand due jobs to a worker with a live lease."""
    claims: list[Claim] = []
    left = limit(demand)
    for shard, queues in demanded(store, demand):
        if left <= 0:
            break
        if not await enlist(store, shard, demand.worker):
            continue
        names = list(dict.fromkeys(name for name, _ in queues))
        keys = Keys(shard.all_keys(names))
        args = (store.arg_now(), *arguments(shard, keys, demand.worker, left, queues))
        taken: list[Claim] = []
        found: list[Any] = [None]
        # Jobs that all had to be set aside are no empty queue: what stands behind them is next.
        while found and not taken:
            told, found = await store.connection.run(_CLAIM, keys.names, args)
            taken = await taken_over(store, shard, store.seen(told), demand.worker, names, found)
        left -= len(taken)
        claims += taken
    return claims


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
    """Make a worker's lease known where it wants to claim; False where there is nothing, or it was reaped."""
    if shard.queue is None or (worker, shard.queue) in store.enlisted:
        return True
    if not await store.knows(shard.queue):
        return False
    until = await store.connection.call("ZSCORE", store.home.key("workers"), worker)
    if until is None:
        return False
    told, known = await store.run(_ENLIST, shard, (worker, int(float(until))))
    store.seen(told)
    if known:
        store.enlisted.add((worker, shard.queue))
    return bool(known)


async def taken_over(
    store: Store, shard: Shard, now: Instant, worker: str, names: Sequence[str], found: list[Any]
) -> list[Claim]:
    """The claims a script handed out; what cannot be read is set aside and hinders nobody."""
    claims: list[Claim] = []
    for number, stored_curve, count, jobs in found:
        curve, cool = curve_of(stored_curve), int(count or 0)
        name = names[number - 1]
        refs: dict[str, Ref] = {}
        for job in jobs:
            if type(job) is bytes and (plain := records.read_plain(job)) is not None:
                id_, kind, payload, budget, created, due, priority = plain
                ref = refs.get(kind) or refs.setdefault(kind, (name, kind, None, None, None))
                # fmt: off
                claims.append(Claim(
                    id_, kind, name, payload, 1, 0, budget, worker, now, now, created, due, priority,
                    PLAIN, None, None, 0, 0, None, False, None, curve, cool, None, None, ref,
                ))
                # fmt: on
                continue
            try:
                if type(job) is bytes:
                    record = records.read_body(job)
                    record.attempts, record.token, record.started_at, record.worker = 1, now, now, worker
                    before = Status.PENDING
                else:
                    record = stored(job)
                    before = records.STATUSES[job[4]]
                claims.append(as_claim(record, name, curve, cool, before))
            except CorruptRecord as error:
                raw = job if type(job) is bytes else job[0]
                await set_aside(store, shard, raw[:16], str(error))
    return claims


def stored(row: list[Any]) -> Row:
    """A record from body, state, last error and notes."""
    record = records.apply_state(records.read_body(row[0]), row[1])
    record.last_error = None if row[2] is None else row[2].decode(errors="replace")
    record.notes = row[3]
    return record


def as_claim(record: Row, queue: str, curve: Curve, cool: int, before: Status = Status.RUNNING) -> Claim:
    """A running record in the hands of its worker."""
    if record.corrupt is not None:
        raise CorruptRecord(record.corrupt)
    unique = record.unique
    slot, key = (None, None) if unique is None else (unique.slot(record.kind), unique.key)
    noted = None if record.notes is None else records.read_notes(record.notes).metadata or None
    assert record.worker is not None
    assert record.started_at is not None
    return Claim(
        record.id,
        record.kind,
        queue,
        record.payload,
        record.attempts,
        record.base,
        record.budget,
        record.worker,
        record.token,
        record.started_at,
        record.created_at,
        record.scheduled_at,
        record.priority,
        record.options,
        unique,
        record.tenant,
        record.crashes,
        record.throttles,
        record.last_error,
        record.cancel_requested,
        noted,
        curve,
        cool,
        record.former,
        record.former_at,
        (queue, record.kind, slot, key, record.notes),
        before,
    )


async def set_aside(store: Store, shard: Shard, job: JobId, why: str) -> None:
    """End a job whose record cannot be read: people can look at it, workers never meet it again."""

    async def end(unit: Unit) -> None:
        await unit.load(Wanted(frozenset({job})))
        record = unit.get(job)
        if record is not None and record.status is Status.RUNNING:
            careful.set_aside(unit, record, why, started=False)
            unit.write("HSET", shard.key("corrupt"), job, why)

    await store.work(shard, end)
