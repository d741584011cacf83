"""Subqueues of a queue: how their states are stored, what operators read of them, and numbers that operators set.

Scripts change the states in the step that changes the jobs (`lua/_subqueues.lua`).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.engines.call_times import timed
from stoker.engines.redis.census import held_keys
from stoker.engines.redis.keys import DAMAGE, Shard
from stoker.engines.redis.record_format import OFFSET, eight, ids_in_subqueue_entry
from stoker.engines.redis.scripts import script
from stoker.engines.redis.stored_job import as_record
from stoker.engines.shared.facets import Facet
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.limit import Slot
from stoker.model.query import Repair
from stoker.model.subqueues import TENANT, Head, State, SubqueueView, slot_of, suspicious_since, view
from stoker.model.throttle import Bucket, Rate

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store

log = logging.getLogger("stoker.engines.redis")

_STATE = struct.Struct(">B3I4Q")
_HEAD = struct.Struct(">HQ16s")
_BUCKET = struct.Struct(">4dQ")
_NUMBER, _PINNED, _NEXT, _AT, _SINCE, _HAS_HEAD, _HAS_BUCKET = (1 << n for n in range(7))

COUNTED_AT_ONCE = 1_000
"""How many subqueues, or entries of one, one call counts."""

REPINNED_AT_ONCE = 200
"""Subqueues that one script looks at after an operator changed numbers."""

_REPIN = script("repin", with_subqueues=True)
_RECOUNT = script("recount", with_subqueues=True)
_ACTIVE = script("active", with_subqueues=True)


def slot_text(slot: Slot | None) -> str:
    """A limit as scripts read it: its number, and its rate as three numbers."""
    if slot is None:
        return ""
    number = "" if slot.n is None else str(slot.n)
    return number if slot.rate is None else ";".join((number, *map(repr, slot.rate.numbers)))


def read(name: str, raw: bytes) -> State:
    """A state as scripts write it."""
    flags, number, pinned, running, next_, at, turn, since = _STATE.unpack_from(raw)
    place = _STATE.size
    head: Head | None = None
    bucket: Bucket | None = None
    if flags & _HAS_HEAD:
        priority, due, job = _HEAD.unpack_from(raw, place)
        head = (priority - OFFSET, due, job)
        place += _HEAD.size
    if flags & _HAS_BUCKET:
        n, per, burst, tokens, refilled = _BUCKET.unpack_from(raw, place)
        bucket = Bucket(Rate(n, per, burst), tokens, refilled)
    return State(
        name=name,
        limit=None if name.startswith(TENANT) else name.partition("/")[0],
        number=number if flags & _NUMBER else None,
        pinned=pinned if flags & _PINNED else None,
        running=running,
        bucket=bucket,
        head=head,
        next=next_ if flags & _NEXT else None,
        at=at if flags & _AT else None,
        turn=turn,
        since=since if flags & _SINCE else None,
    )


class Subqueues(Facet["Store"]):
    """The subqueues of queues."""

    @timed(write=False)
    async def subqueues(
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        names: Sequence[str] | None = None,
        counted: bool = False,
    ) -> list[SubqueueView]:
        store = self._store
        store.connection.inside()
        shard, limit = store.shard(queue), max(limit, 0)
        if names is None:
            found = await page(store, shard, queue, after, limit)
        else:
            found = sorted({name for name in names if after is None or name > after})
        if not found or not limit:
            return []
        raws = await store.connection.call("HMGET", shard.of_queue("subqueues", queue), *found)
        states = [read(name, raw) for name, raw in zip(found, raws, strict=True) if raw is not None][:limit]
        holders = await _holders(store, shard, queue, {state.name for state in states if state.running})
        waiting = await _waiting(store, shard, queue, [state.name for state in states]) if counted else None
        return [view(queue, state, sorted(holders.get(state.name, ())), waiting) for state in states]


async def _waiting(store: Store, shard: Shard, queue: str, names: Sequence[str]) -> dict[str, int]:
    """How many jobs of these subqueues are due. Their entries are read some at a time: no script is long."""
    key, now = shard.of_queue("subqueue_entries", queue), eight(await store.now())
    found = dict.fromkeys(names, 0)
    behind = {name: b"[" + name.encode() + b"\0" for name in names}
    while behind:
        asked = [
            ("ZRANGEBYLEX", key, start, b"(" + name.encode() + b"\1", "LIMIT", 0, COUNTED_AT_ONCE)
            for name, start in behind.items()
        ]
        pages = dict(zip(behind, await store.connection.pipeline(asked), strict=True))
        for name, members in pages.items():
            due = [one for one in members if one.partition(b"\0")[2][2:10] <= now]
            found[name] += sum(len(ids_in_subqueue_entry(one)) for one in due)
        behind = {name: b"(" + members[-1] for name, members in pages.items() if len(members) == COUNTED_AT_ONCE}
    return found


async def recount(store: Store, limit: int) -> list[Repair]:
    """Count the slots of subqueues that have been full for long; repairs up to `limit` wrong numbers."""
    repairs: list[Repair] = []
    for shard in await store.shards():
        for queue in await _with_subqueues(store, shard):
            await _restore_lost(store, shard, queue)
            repairs += await _recount(store, shard, queue, limit - len(repairs))
    return repairs


async def _restore_lost(store: Store, shard: Shard, queue: str) -> None:
    """Make states anew that are gone: `order` lists their subqueues, and no claim takes a job of them until then.

    A slot that comes back while they are counted leaves a number that is too large: `_recount` repairs it.
    """
    order, key = shard.of_queue("order", queue), shard.of_queue("subqueues", queue)
    listed, stored = await store.connection.pipeline([("ZLEXCOUNT", order, b"[s", b"(t"), ("HLEN", key)])
    await store.connection.call("HDEL", shard.key(DAMAGE), f"limits:{queue}")
    if stored >= listed:
        return
    restored, after = 0, None
    while names := await page(store, shard, queue, after, COUNTED_AT_ONCE):
        after = names[-1]
        raws = await store.connection.call("HMGET", key, *names)
        lost = [name for name, raw in zip(names, raws, strict=True) if raw is None]
        holders = await _holders(store, shard, queue, set(lost))
        for name in lost:
            held = holders.get(name, [])
            slot = await _limit_of(store, shard, queue, name, held)
            args = (queue, name, "", len(held), slot_text(slot))
            restored += await store.run(_RECOUNT, shard, args, queues=(queue,), with_subqueues=True)
    lost_states = count(restored, "limit")
    log.warning("queue %s: the state of %s was gone; running jobs are counted anew", queue, lost_states)
    if store.connection.cluster:
        await store.wake([queue])


async def _limit_of(store: Store, shard: Shard, queue: str, name: str, held: Sequence[JobId]) -> Slot | None:
    """The limit that a job of a subqueue names: one that waits, else one that runs."""
    key, subqueue = shard.of_queue("subqueue_entries", queue), name.encode()
    bounds = b"[" + subqueue + b"\0", b"(" + subqueue + b"\1"
    found = await store.connection.call("ZRANGEBYLEX", key, *bounds, "LIMIT", 0, 10)
    ids = [job for member in found for job in ids_in_subqueue_entry(member)] + list(held)
    _, rows = await store.read(shard, ids)
    limits = [row.record.options.limit for row in rows if row is not None]
    return next((limit for limit in limits if limit is not None), None)


async def _with_subqueues(store: Store, shard: Shard) -> list[str]:
    fields = await store.connection.call("HKEYS", shard.key("queues"))
    mark = b"/has_subqueues"
    return sorted(field.removesuffix(mark).decode() for field in fields if field.endswith(mark))


async def _recount(store: Store, shard: Shard, queue: str, limit: int) -> list[Repair]:
    """Count before the script that repairs: it writes only where no slot was taken or came back meanwhile.

    Every such change also changes the state: a full subqueue has another `since` after it.
    """
    until = suspicious_since(await store.now()) + 1
    order, key = shard.of_queue("order", queue), shard.of_queue("subqueues", queue)
    if limit <= 0 or until <= 0:
        return []
    full = await store.connection.call("ZRANGEBYLEX", order, b"[f", b"(f" + eight(until))
    names = sorted(member[9:].decode() for member in full)
    repairs: list[Repair] = []
    for start in range(0, len(names), COUNTED_AT_ONCE):
        part = names[start : start + COUNTED_AT_ONCE]
        raws = await store.connection.call("HMGET", key, *part)
        workers = await held_keys(store, shard)
        holders = await _holders(store, shard, queue, set(part))
        if await held_keys(store, shard) != workers:
            break  # claims may have passed on to a worker that was not asked for: the next sweep counts
        for name, raw in zip(part, raws, strict=True):
            n = len(holders.get(name, ()))
            if raw is None or read(name, raw).running == n or len(repairs) == limit:
                continue
            if await store.run(_RECOUNT, shard, (queue, name, raw, n), queues=(queue,), with_subqueues=True):
                repairs.append(Repair(queue, name, read(name, raw).running, n))
    if repairs and store.connection.cluster:
        await store.wake([queue])
    return repairs


async def page(store: Store, shard: Shard, queue: str, after: str | None, limit: int) -> list[str]:
    """The names of subqueues strictly behind one, at most so many."""
    bound = b"[s" if after is None else b"(s" + after.encode()
    key = shard.of_queue("order", queue)
    found = await store.connection.call("ZRANGEBYLEX", key, bound, b"(t", "LIMIT", 0, limit)
    return [member[1:].decode() for member in found]


async def _holders(store: Store, shard: Shard, queue: str, names: set[str]) -> dict[str, list[JobId]]:
    """The jobs that hold slots of these subqueues: those that run, and those that wait and keep theirs."""
    found: dict[str, list[JobId]] = {}
    if not names:
        return found
    # All lease sets at one instant: a claim that passes from one worker to another is in one of them.
    held = await store.run(_ACTIVE, shard, (0,), more=await held_keys(store, shard), with_subqueues=True)
    ids: dict[JobId, None] = dict.fromkeys(held)
    order = shard.of_queue("order", queue)
    for name in sorted(names):
        prefix = b"k" + name.encode()
        kept = await store.connection.call("ZRANGEBYLEX", order, b"[" + prefix + b"\0", b"(" + prefix + b"\1")
        ids.update(dict.fromkeys(member[-16:] for member in kept))
    _, rows = await store.read(shard, list(ids))
    for row in rows:
        place = None if row is None else slot_of(as_record(row))
        if row is not None and place is not None and place[0] == queue and place[1] in names:
            found.setdefault(place[1], []).append(row.record.id)
    return found


async def repin(store: Store, queue: str) -> None:
    """Apply the numbers that an operator set to every subqueue, some at a time, and wake a worker.

    A call that is repeated does the same again, so one that fails half-way can be repeated.
    """
    shard = store.shard(queue)
    after: str | None = None
    while names := await page(store, shard, queue, after, REPINNED_AT_ONCE):
        many = after is not None or len(names) == REPINNED_AT_ONCE
        await store.run(_REPIN, shard, (queue, "1" if many else "", *names), queues=(queue,), with_subqueues=True)
        after = names[-1]
    if after is not None:
        await store.wake([queue])
