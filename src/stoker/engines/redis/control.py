"""Stores what operators tune and workers share: queues, budgets, named locks, presences.

The model decides. The engine reads a budget or a lock, computes its new value by the model, and writes it only if the
field still has the value that was read (`lua/swap.lua`); otherwise it computes again from the present value. Calls of
one process for the same budget wait for each other, so only processes compete. The home shard holds all of this but
the queues: a queue's settings are beside its jobs, where claim and settle read them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.record_format import eight
from stoker.engines.redis.scripts import script
from stoker.model.control import Budget, NamedLock, Presence, Queue, Rate, Tuning, may_release, may_take, tuned
from stoker.model.job import check_name, check_span
from stoker.model.lifecycle import KEEP_DEAD
from stoker.model.retry import OFF, Curve
from stoker.model.throttle import OPEN, Bucket, Cooldown, Grant, drained, full, retuned, spend, wait_hint
from stoker.model.time import HOUR, Instant, Span

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store
    from stoker.engines.redis.unit_of_work import Unit

T = TypeVar("T")
Decide = Callable[[bytes | None, Instant], tuple[bytes | None, T]]
"""From a field's value and the time to its new value and the result for the caller."""

KEEP_DONE: Span = HOUR
"""For done jobs of a queue without settings: they take memory, so Redis keeps them for less than other engines."""

QUEUE_FIELDS = ("paused", "workers", "keep_done", "keep_dead", "curve", "until", "count")
"""How a queue is stored: as fields `queue/field` of one hash, so that scripts read only what they need."""

_SWAP = script("swap")
_BEAT = script("beat")

_encode = msgspec.json.Encoder().encode
_read_bucket = msgspec.json.Decoder(tuple[float, float, float, int]).decode
_read_presence = msgspec.json.Decoder(Presence).decode
_read_curve = msgspec.json.Decoder(Curve).decode


class Control:
    """The settings of one store, as one engine sees them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # --- queues -------------------------------------------------------------------------------------------------

    async def queues(self) -> list[Queue]:
        """Every queue that was tuned, cooled or used, by name."""
        found: dict[str, dict[str, bytes | None]] = {}
        keys = [shard.key("queues") for shard in await self._store.shards()]
        for flat in await spread(keys, lambda key: self._store.connection.call("HGETALL", key)):
            for field, value in pairs(flat):
                name, _, what = field.decode().partition("/")
                found.setdefault(name, {})[what] = value
        return [queue_of(name, found[name]) for name in sorted(found)]

    async def tune(self, name: str, tuning: Tuning | Rate, *, if_absent: bool) -> bool:
        """Patch a queue or set a budget."""
        if isinstance(tuning, Rate):
            return await self._tune_budget(name, tuning, if_absent=if_absent)
        check_name("queue", name)

        await self._store.introduce([name])

        async def patch(unit: Unit) -> bool:
            key, fields = unit.shard.key("queues"), (*QUEUE_FIELDS, "tuned")
            found = await self._store.connection.call("HMGET", key, *(f"{name}/{field}" for field in fields))
            stored = dict(zip(fields, found, strict=True))
            # A queue that was only used or cooled counts as absent: it has no settings yet.
            if if_absent and stored["tuned"] is not None:
                return False
            before = queue_of(name, stored)
            after = tuned(before, tuning)
            # The first write is a removal: a server without free memory accepts it, and the rest with it.
            unit.write("HDEL", key, f"{name}/tuned")
            for field, value in {**fields_of(after), "tuned": "1"}.items():
                unit.expect_hash(key, f"{name}/{field}", stored[field])
                if value is None:
                    unit.write("HDEL", key, f"{name}/{field}")
                else:
                    unit.write("HSET", key, f"{name}/{field}", value)
            if before.paused and not after.paused:
                unit.wake(name)
            return True

        return await self._store.work(self._store.shard(name), patch)

    # --- budgets ------------------------------------------------------------------------------------------------

    async def budgets(self) -> list[Budget]:
        """Every budget, by name."""
        found = await self._all("budgets")
        return [Budget(name, bucket_of(found[name])) for name in sorted(found)]

    async def _tune_budget(self, name: str, rate: Rate, *, if_absent: bool) -> bool:
        check_name("budget", name)

        def decide(stored: bytes | None, now: Instant) -> tuple[bytes | None, bool]:
            if stored is None:
                return bytes_of(full(rate.capacity, rate.rate, now)), True
            if if_absent:
                return stored, False
            return bytes_of(retuned(bucket_of(stored), rate.capacity, rate.rate)), True

        return await self._one_at_a_time("budgets", name, decide)

    async def spend(self, name: str, n: int) -> Grant:
        """Take `n` tokens or none."""

        def decide(stored: bytes | None, now: Instant) -> tuple[bytes | None, Grant]:
            if stored is None:
                return None, Grant(granted=False, wait=wait_hint(None))
            bucket, grant = spend(bucket_of(stored), n, now)
            return bytes_of(bucket) if grant.granted else stored, grant

        return await self._one_at_a_time("budgets", name, decide)

    async def drain(self, name: str) -> bool:
        """Empty a budget."""

        def decide(stored: bytes | None, now: Instant) -> tuple[bytes | None, bool]:
            if stored is None:
                return None, False
            return bytes_of(drained(bucket_of(stored), now)), True

        return await self._one_at_a_time("budgets", name, decide)

    # --- named locks --------------------------------------------------------------------------------------------

    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        """Take or extend a named lock."""
        check_name("lock", name)
        check_span("lease", lease)

        def decide(stored: bytes | None, now: Instant) -> tuple[bytes | None, bool]:
            if not may_take(_lock_of(stored), owner, now):
                return stored, False
            return eight(now + lease) + owner.encode(), True

        return await self._exchange("locks", name, decide)

    async def unlock(self, name: str, owner: str) -> bool:
        """Release one's own lock."""

        def decide(stored: bytes | None, _: Instant) -> tuple[bytes | None, bool]:
            return (None, True) if may_release(_lock_of(stored), owner) else (stored, False)

        return await self._exchange("locks", name, decide)

    # --- presences ----------------------------------------------------------------------------------------------

    async def beat(self, presence: Presence) -> None:
        """Show a worker, stamped with the store's now."""
        store = self._store
        args = [presence.worker.encode(), _encode(presence)]
        await store.run(_BEAT, store.home, args, more=[store.home.key("presences")])

    async def workers(self) -> list[Presence]:
        """Every presence, by worker."""
        found = await self._all("presences")
        return [_presence_of(found[worker]) for worker in sorted(found)]

    # --- fields --------------------------------------------------------------------------------------------------

    async def _all(self, name: str) -> dict[str, bytes]:
        found = await self._store.connection.call("HGETALL", self._store.home.key(name))
        return {field.decode(): value for field, value in pairs(found)}

    async def _one_at_a_time(self, name: str, field: str, decide: Decide[T]) -> T:
        lock = self._locks.setdefault(field, asyncio.Lock())
        async with lock:
            return await self._exchange(name, field, decide)

    async def _exchange(self, name: str, field: str, decide: Decide[T]) -> T:
        """Change a field as `decide` computes, again while other processes change it meanwhile."""
        store = self._store
        more = [store.home.key(name)]
        now, _, found = await store.run(_SWAP, store.home, [field], more=more)
        while True:
            seen = bytes(found) or None
            wanted, result = decide(seen, int(now))
            if wanted == seen:
                return result
            now, swapped, found = await store.run(_SWAP, store.home, [field, seen or b"", wanted or b""], more=more)
            if swapped:
                return result


# --- stored forms -----------------------------------------------------------------------------------------------


def curve_of(stored: bytes | None) -> Curve:
    """A queue's curve; one that cannot be read is off."""
    try:
        return OFF if stored is None else _read_curve(stored)
    except msgspec.MsgspecError:
        return OFF


async def read_queues(store: Store, shard: Shard, names: Sequence[str]) -> dict[str, Queue]:
    """The settings of queues, stored or not."""
    fields = [f"{name}/{field}" for name in names for field in QUEUE_FIELDS]
    found = await store.connection.call("HMGET", shard.key("queues"), *fields)
    size = len(QUEUE_FIELDS)
    return {
        name: queue_of(name, dict(zip(QUEUE_FIELDS, found[at * size : (at + 1) * size], strict=True)))
        for at, name in enumerate(names)
    }


def queue_of(name: str, stored: Mapping[str, bytes | None]) -> Queue:
    """A queue as its fields say."""
    number = {field: int(stored.get(field) or 0) for field in ("keep_done", "keep_dead", "until", "count")}
    workers = stored.get("workers")
    cooling = stored.get("until") is not None or number["count"] > 0
    return Queue(
        name=name,
        paused=stored.get("paused") is not None,
        workers=None if workers is None else int(workers),
        keep_done=KEEP_DONE if stored.get("keep_done") is None else number["keep_done"],
        keep_dead=KEEP_DEAD if stored.get("keep_dead") is None else number["keep_dead"],
        curve=curve_of(stored.get("curve")),
        cooldown=Cooldown(number["until"], number["count"]) if cooling else OPEN,
    )


def fields_of(queue: Queue) -> dict[str, Any]:
    """What to write for a queue's settings, its cool-down apart; None for a field to be removed."""
    return {
        "paused": "1" if queue.paused else None,
        "workers": queue.workers,
        "keep_done": queue.keep_done,
        "keep_dead": queue.keep_dead,
        "curve": None if queue.curve == OFF else _encode(queue.curve),
    }


def pairs(flat: dict[bytes, bytes] | list[bytes]) -> list[tuple[bytes, bytes]]:
    """A hash as the server sends it, in RESP2 a flat list and in RESP3 a map."""
    if isinstance(flat, dict):
        return list(flat.items())
    return list(zip(flat[::2], flat[1::2], strict=True))


def scored(flat: list[Any]) -> list[tuple[bytes, float]]:
    """Members with their scores as the server sends them: flat, or in pairs where the driver made pairs of them."""
    if flat and isinstance(flat[0], (list, tuple)):
        return [(member, float(score)) for member, score in flat]
    return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def bucket_of(stored: bytes) -> Bucket:
    """What `bytes_of` wrote."""
    return Bucket(*_read_bucket(stored))


def bytes_of(bucket: Bucket) -> bytes:
    """A bucket in full: JSON carries every float exactly."""
    return _encode((bucket.capacity, bucket.rate, bucket.tokens, bucket.refilled_at))


def _lock_of(stored: bytes | None) -> NamedLock | None:
    return None if stored is None else NamedLock(stored[8:].decode(), int.from_bytes(stored[:8]))


def _presence_of(stored: bytes) -> Presence:
    return msgspec.structs.replace(_read_presence(stored[8:]), seen_at=int.from_bytes(stored[:8]))
