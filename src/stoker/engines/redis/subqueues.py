"""Subqueues of a queue: how their states are stored, what operators read of them, and numbers that operators set.

Scripts change the states in the step that changes the jobs (`lua/_subqueues.lua`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.engines.redis.census import held_keys
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.record_format import HIGHEST, ids_of
from stoker.engines.redis.scripts import script
from stoker.engines.redis.stored_job import as_record
from stoker.model.ids import JobId
from stoker.model.limit import Slot
from stoker.model.subqueues import TENANT, Head, State, SubqueueView, slot_of, view
from stoker.model.throttle import Bucket, Rate

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store

_STATE = struct.Struct(">B3I4Q")
_HEAD = struct.Struct(">HQ16s")
_BUCKET = struct.Struct(">4dQ")
_NUMBER, _PINNED, _NEXT, _AT, _SINCE, _HAS_HEAD, _HAS_BUCKET = (1 << n for n in range(7))

REPINNED_AT_ONCE = 200
"""Subqueues that one script looks at after an operator changed numbers."""

_REPIN = script("repin", divided=True)


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
        head = (priority - HIGHEST, due, job)
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


async def subqueues(
    store: Store, queue: str, after: str | None, limit: int, names: Sequence[str] | None
) -> list[SubqueueView]:
    """Subqueues, by name, with the first of the jobs that hold their slots."""
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
    return [view(queue, state, sorted(holders.get(state.name, ()))) for state in states]


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
    ids: dict[JobId, None] = {}
    for key in await held_keys(store, shard):
        for lot in await store.connection.call("ZRANGE", key, 0, -1):
            ids.update(dict.fromkeys(ids_of(lot[8:])))
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
        await store.run(_REPIN, shard, (queue, *names), queues=(queue,), divided=True)
        after = names[-1]
    if after is not None:
        await store.wake([queue])
