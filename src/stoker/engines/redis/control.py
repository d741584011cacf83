"""Stores what operators tune and workers share: queues, budgets, named locks, presences.

The model decides. The engine reads a budget or a lock, computes its new value by the model, and writes it only if the
field still has the value that was read (`lua/swap.lua`); otherwise it computes again from the present value. Calls of
one process for the same budget wait for each other, so only processes compete. The home shard holds all of this but
the queues: a queue's settings are beside its jobs, where claim and settle read them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from stoker.engines.base import CONTROL
from stoker.engines.call_times import timed
from stoker.engines.redis import audit
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.record_format import eight
from stoker.engines.redis.scripts import KEEP_DONE, script
from stoker.engines.redis.subqueues import Subqueues, repin
from stoker.engines.shared.budget_format import pack_buckets, pack_budget, read_buckets, read_budget
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.audit import By, of_setting
from stoker.model.budgets import (
    Buckets,
    Budget,
    KeyBuckets,
    Rates,
    Spend,
    at_hand,
    budgeted,
    emptied,
    forgets,
    full_at,
    spend_of,
)
from stoker.model.control import NamedLock, Pause, Presence, Queue, Tuning, may_release, may_take, opens, tuned
from stoker.model.job import check_name, check_span
from stoker.model.lifecycle import KEEP_DEAD
from stoker.model.retry import OFF, Curve
from stoker.model.throttle import OPEN, Bucket, Cooldown, Grant, Rate
from stoker.model.time import Instant, Span

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store
    from stoker.engines.redis.unit_of_work import Unit

T = TypeVar("T")
Decide = Callable[[bytes | None, Instant], tuple[bytes | None, T]]
"""From a field's value and the time to its new value and the result for the caller."""

Take = Callable[[Budget | None, Buckets | None, Instant], tuple[Buckets | None, T]]
"""From a budget, the buckets of its key and the time to the new buckets, if they change, and the result."""


JUDGED_BY = ("keep_done", "keep_dead", "curve", "until", "count", "fair", "has_subqueues")
"""The fields of a queue that a change of its jobs depends on."""

QUEUE_FIELDS = (*JUDGED_BY, "paused", "reason", "by", "workers", "bucket", "declared", "limits")
"""How a queue is stored: as fields `queue/field` of one hash, so that scripts read only what they need."""

_SWAP = script("swap")
_BEAT = script("beat")
_FORGET = script("forget")

FORGOTTEN_AT_ONCE = 1_000
"""Keys of budgets that one script forgets; while it runs, the server does nothing else."""

UNREADABLE = (msgspec.MsgspecError, ValueError)
"""What a decoder raises."""

_encode = msgspec.json.Encoder().encode
_read_bucket = msgspec.json.Decoder(tuple[float, float, float, float, int]).decode
_read_tuning = msgspec.json.Decoder(Tuning).decode
_read_presence = msgspec.json.Decoder(Presence).decode
_read_limits = msgspec.json.Decoder(dict[str, int]).decode
_read_curve = msgspec.json.Decoder(Curve).decode


class Control(Facet["Store"]):
    """The settings of one store, as one engine sees them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.subqueues = Subqueues(store).subqueues
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # --- queues -------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def queues(self) -> list[Queue]:
        return [queue_of(name, fields) for name, fields in (await stored_queues(self._store)).items()]

    @timed(write=True)
    async def tune(
        self, name: str, tuning: Tuning | Rate | Rates, *, declared: bool = False, by: By | None = None
    ) -> bool:
        if not isinstance(tuning, Tuning):
            return await self._tune_budget(name, tuning, declared=declared, by=by)
        check_name("queue", name)

        await self._store.introduce([name])

        async def patch(unit: Unit) -> bool:
            await unit.load(Wanted())  # the store's clock
            key = unit.shard.key("queues")
            found = await self._store.connection.call("HMGET", key, *(f"{name}/{field}" for field in QUEUE_FIELDS))
            stored = dict(zip(QUEUE_FIELDS, found, strict=True))
            before, broken = queue_of(name, stored), unreadable(stored)
            after = tuned(before, tuning, unit.now, keep_done=KEEP_DONE, declared=declared)
            if after == before and not broken:
                return False
            wanted, standing = fields_of(after), fields_of(before)
            changed = {field: value for field, value in wanted.items() if value != standing[field] or field in broken}
            # The first write is a removal: a server without free memory accepts it, and the rest with it.
            cooled = ("until", "count") if before.cooldown != after.cooldown or {"until", "count"} & broken else ()
            unit.write("HDEL", key, *(f"{name}/{field}" for field in (*changed, *cooled)))
            unit.write("HSET", key, f"{name}/used", "1")
            for field, value in changed.items():
                if value is not None:
                    unit.write("HSET", key, f"{name}/{field}", value)
            # Claims take tokens all the time: only a change of the rate must not meet one.
            for field in (*(wanted if declared else changed), *cooled):
                unit.expect_hash(key, f"{name}/{field}", stored[field])
            if opens(before, after):
                unit.wake(name)
            audit.write(unit, by, of_setting("queues.tune", f"queue {name}", before, after))
            return True

        done = await self._store.work(self._store.shard(name), patch)
        if tuning.limits:
            await repin(self._store, name)
        return done

    # --- budgets ------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def budgets(self) -> list[Budget]:
        return await stored_budgets(self._store)

    async def _tune_budget(self, name: str, rates: Rate | Rates, *, declared: bool, by: By | None) -> bool:
        check_name("budget", name)
        if by is not None:
            return await self._tune_audited(name, rates, by, declared=declared)

        def decide(stored: bytes | None, now: Instant) -> tuple[bytes | None, bool]:
            before = read_budget(name, stored)
            after = budgeted(before, name, rates, now, declared=declared)
            return (stored, False) if after == before else (pack_budget(after), True)

        return await self._one_at_a_time("budgets", name, decide)

    async def _tune_audited(self, name: str, rates: Rate | Rates, by: By, *, declared: bool) -> bool:
        key = self._store.home.key("budgets")

        async def tune(unit: Unit) -> bool:
            await unit.load(Wanted())  # the store's clock
            stored = await self._store.connection.call("HGET", key, name)
            before = read_budget(name, stored)
            after = budgeted(before, name, rates, unit.now, declared=declared)
            if after == before:
                return False
            unit.expect_hash(key, name, stored)
            unit.write("HSET", key, name, pack_budget(after))
            audit.write(unit, by, of_setting("limits.tune", f"limit {name}", before, after))
            return True

        return await self._store.work(self._store.home, tune)

    @timed(write=False)
    async def buckets(self, budget: str, *, limit: int = 100, keys: Sequence[str] | None = None) -> list[KeyBuckets]:
        call, now = self._store.connection.call, await self._store.now()
        known = await self._budget(budget)
        full, kept = _key_names(self._store, budget)
        chosen = list(keys) if keys is not None else await call("ZREVRANGE", full, 0, limit - 1) if limit > 0 else []
        if not chosen:
            return []
        stored = zip(chosen, await call("HMGET", kept, *chosen), strict=True)
        found = [(key, buckets) for key, value in stored if (buckets := read_buckets(value)) is not None]
        named = [(key if isinstance(key, str) else key.decode(), buckets) for key, buckets in found]
        named.sort(key=lambda one: (full_at(one[1]), one[0]), reverse=True)
        shown = [(key, at_hand(known, key, buckets, now)) for key, buckets in named[: max(limit, 0)]]
        return [KeyBuckets(key, buckets) for key, buckets in shown if buckets is not None]

    @timed(write=True)
    async def spend(self, name: str, n: int | Spend = 1) -> Grant:
        asked = spend_of(n)
        # A correction that gives tokens back must not be made twice, so it is not sent again when a reply was lost.
        return await self._take(name, asked.key, asked.of, repeat=not asked.corrects)

    @timed(write=True)
    async def drain(self, name: str, *, key: str | None = None) -> bool:
        def drained(budget: Budget | None, kept: Buckets | None, now: Instant) -> tuple[Buckets | None, bool]:
            after = emptied(budget, key, kept, now)
            return after, after is not None

        return await self._take(name, key, drained)

    async def _take(self, name: str, key: str | None, decide: Take[T], *, repeat: bool = True) -> T:
        """Change the buckets of a budget, or of one of its keys."""

        def of_budget(stored: bytes | None, now: Instant) -> tuple[bytes | None, T]:
            budget = read_budget(name, stored)
            after, result = decide(budget, None, now)
            return stored if budget is None or after is None else pack_budget(replace(budget, buckets=after)), result

        if key is None:
            return await self._one_at_a_time("budgets", name, of_budget, repeat=repeat)
        budget = await self._budget(name)

        def of_key(stored: bytes | None, now: Instant) -> tuple[bytes | None, T]:
            after, result = decide(budget, read_buckets(stored), now)
            return stored if after is None else pack_buckets(after), result

        return await self._one_at_a_time(f"budget_keys:{name}", key, of_key, f"budget_full:{name}", repeat=repeat)

    async def _budget(self, name: str) -> Budget | None:
        return read_budget(name, await self._store.connection.call("HGET", self._store.home.key("budgets"), name))

    # --- named locks --------------------------------------------------------------------------------------------

    @timed(write=True)
    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        check_name("lock", name)
        check_span("lease", lease)

        def decide(stored: bytes | None, now: Instant) -> tuple[bytes | None, bool]:
            if not may_take(_lock_of(stored), owner, now):
                return stored, False
            return eight(now + lease) + owner.encode(), True

        return await _exchange(self._store, "locks", name, decide)

    @timed(write=True)
    async def unlock(self, name: str, owner: str) -> bool:
        return await _unlock(self._store, name, owner)

    # --- presences ----------------------------------------------------------------------------------------------

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        store = self._store
        args = [presence.worker.encode(), _encode(presence)]
        await store.run(_BEAT, store.home, args, more=[store.home.key("presences")])

    @timed(write=False)
    async def workers(self) -> list[Presence]:
        found = await self._all("presences")
        return [_presence_of(found[worker]) for worker in sorted(found)]

    # --- fields --------------------------------------------------------------------------------------------------

    async def _all(self, name: str) -> dict[str, bytes]:
        found = await self._store.connection.call("HGETALL", self._store.home.key(name))
        return {field.decode(): value for field, value in pairs(found)}

    async def _one_at_a_time(
        self, name: str, field: str, decide: Decide[T], by_time: str | None = None, *, repeat: bool = True
    ) -> T:
        lock = self._locks.setdefault(f"{name}/{field}", asyncio.Lock())
        async with lock:
            return await _exchange(self._store, name, field, decide, by_time, repeat=repeat)


async def _unlock(store: Store, name: str, owner: str) -> bool:
    """Release a named lock of this owner."""

    def decide(stored: bytes | None, _: Instant) -> tuple[bytes | None, bool]:
        return (None, True) if may_release(_lock_of(stored), owner) else (stored, False)

    return await _exchange(store, "locks", name, decide)


async def _exchange(
    store: Store, name: str, field: str, decide: Decide[T], by_time: str | None = None, *, repeat: bool = True
) -> T:
    """Change a field as `decide` computes, again while other processes change it meanwhile.

    `by_time`: fields are buckets, and this sorted set tells when those of each are full again. `repeat`: also when a
    reply was lost.
    """
    more = [store.home.key(one) for one in (by_time, name) if one is not None]
    now, _, found = await store.run(_SWAP, store.home, [field], more=more)
    while True:
        seen = bytes(found) or None
        wanted, result = decide(seen, int(now))
        if wanted == seen:
            return result
        given: list[object] = [field, seen or b"", wanted or b""]
        if by_time is not None:
            given += [full_at(read_buckets(wanted) or {}), field]
        now, swapped, found = await store.run(_SWAP, store.home, given, more=more, repeat=repeat)
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
    """What changes of jobs need of their queues, stored or not."""
    fields = [f"{name}/{field}" for name in names for field in JUDGED_BY]
    found = await store.connection.call("HMGET", shard.key("queues"), *fields)
    size = len(JUDGED_BY)
    return {name: judged_queue(store, name, found[at * size : (at + 1) * size]) for at, name in enumerate(names)}


def judged_queue(store: Store, name: str, values: Sequence[bytes | None]) -> Queue:
    """A queue by its fields `JUDGED_BY`."""
    stored = dict(zip(JUDGED_BY, values, strict=True))
    if stored["fair"] is not None or stored["has_subqueues"] is not None:
        store.with_subqueues.add(name)
    return queue_of(name, stored)


async def stored_queues(store: Store) -> dict[str, dict[str, bytes | None]]:
    """The fields of every queue, by name."""
    found: dict[str, dict[str, bytes | None]] = {}
    keys = [shard.key("queues") for shard in await store.shards()]
    for flat in await spread(keys, lambda key: store.connection.call("HGETALL", key)):
        for field, value in pairs(flat):
            name, _, what = field.decode().partition("/")
            found.setdefault(name, {})[what] = value
    return dict(sorted(found.items()))


def queue_of(name: str, stored: Mapping[str, bytes | None]) -> Queue:
    """A queue as its fields say. One that cannot be read counts as not set, but a pause as one without an end."""
    try:
        return _queue_of(name, stored)
    except UNREADABLE:
        broken = unreadable(stored)
        return _queue_of(name, {**stored, **dict.fromkeys(broken), **({"paused": b"0"} if "paused" in broken else {})})


def unreadable(stored: Mapping[str, bytes | None]) -> set[str]:
    """The fields of a queue that cannot be read."""
    found: set[str] = set()
    for field, read in _READERS.items():
        value = stored.get(field)
        try:
            if value is not None:
                read(value)
        except UNREADABLE:
            found.add(field)
    return found


def _queue_of(name: str, stored: Mapping[str, bytes | None]) -> Queue:
    number = {field: int(stored.get(field) or 0) for field in ("keep_done", "keep_dead", "until", "count")}
    workers, declared = stored.get("workers"), stored.get("declared")
    cooling = stored.get("until") is not None or number["count"] > 0
    return Queue(
        name=name,
        pause=pause_of(stored.get("paused"), stored.get("reason"), stored.get("by")),
        workers=None if workers is None else int(workers),
        fair=stored.get("fair") is not None,
        limits=_limits_of(stored.get("limits")),
        bucket=bucket_of(stored.get("bucket")),
        keep_done=KEEP_DONE if stored.get("keep_done") is None else number["keep_done"],
        keep_dead=KEEP_DEAD if stored.get("keep_dead") is None else number["keep_dead"],
        curve=curve_of(stored.get("curve")),
        cooldown=Cooldown(number["until"], number["count"]) if cooling else OPEN,
        declared=None if declared is None else _read_tuning(declared),
    )


def count_of(stored: bytes | None) -> int:
    """How often a queue was throttled in a row; 0 where that cannot be read."""
    return int(stored) if stored is not None and stored.isdigit() else 0


def _limits_of(stored: bytes | None) -> tuple[tuple[str, int], ...]:
    return () if stored is None else tuple(sorted(_read_limits(stored).items()))


def pause_of(stored: bytes | None, reason: bytes | None = None, by: bytes | None = None) -> Pause | None:
    """A queue's pause: the instant of its end, 0 for none."""
    if stored is None:
        return None
    return Pause(int(stored) or None, None if reason is None else reason.decode(), None if by is None else by.decode())


def bucket_of(stored: bytes | None) -> Bucket | None:
    """A queue's bucket: n, per, burst, tokens, refilled. Claims rewrite it (`lua/_claim.lua`)."""
    if stored is None:
        return None
    n, per, burst, tokens, refilled = _read_bucket(stored)
    return Bucket(Rate(n, per, burst), tokens, refilled)


_READERS: dict[str, Callable[[bytes], object]] = {
    **dict.fromkeys(("keep_done", "keep_dead", "until", "count", "paused", "workers"), int),
    **dict.fromkeys(("reason", "by"), bytes.decode),
    "limits": _limits_of,
    "bucket": bucket_of,
    "curve": _read_curve,
    "declared": _read_tuning,
}
"""What reads each field of a queue that is more than a mark."""


def fields_of(queue: Queue) -> dict[str, Any]:
    """What to write for a queue's settings, its cool-down apart; None for a field to be removed."""
    pause, bucket, declared = queue.pause, queue.bucket, queue.declared
    return {
        "paused": None if pause is None else pause.until or 0,
        "reason": None if pause is None else pause.reason,
        "by": None if pause is None else pause.by,
        "workers": queue.workers,
        "fair": "1" if queue.fair else None,
        "limits": _encode(dict(queue.limits)) if queue.limits else None,
        "bucket": None if bucket is None else _encode((*bucket.rate.numbers, bucket.tokens, bucket.refilled_at)),
        "keep_done": None if queue.keep_done == KEEP_DONE else queue.keep_done,
        "keep_dead": None if queue.keep_dead == KEEP_DEAD else queue.keep_dead,
        "curve": None if queue.curve == OFF else _encode(queue.curve),
        "declared": None if declared is None else _encode(declared),
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


async def forget_full(store: Store, limit: int) -> int:
    """Forget keys of budgets whose buckets are full again, up to `limit` of them; returns how many."""
    gone, now = 0, await store.now()
    for budget in await stored_budgets(store):
        while forgets(budget, now) and gone < limit:
            wanted = min(FORGOTTEN_AT_ONCE, limit - gone)
            found = int(await store.run(_FORGET, store.home, [wanted], more=_key_names(store, budget.name)))
            gone += found
            if found < wanted:
                break
    return gone


async def stored_budgets(store: Store) -> list[Budget]:
    """Every budget that can be read, by name."""
    found = sorted(pairs(await store.connection.call("HGETALL", store.home.key("budgets"))))
    return [budget for name, value in found if (budget := read_budget(name.decode(), value)) is not None]


def _key_names(store: Store, budget: str) -> list[str]:
    """Keys of a budget by when their buckets are full again, and their buckets."""
    return [store.home.key(f"budget_full:{budget}"), store.home.key(f"budget_keys:{budget}")]


async def unlock_all(store: Store, owners: Collection[str]) -> None:
    """Release every named lock of these workers, and wake the services that wait for one; part by part."""
    cursor, released = b"0", False
    while True:
        cursor, flat = await store.connection.call("HSCAN", store.home.key("locks"), cursor, "COUNT", 1_000)
        for name, stored in pairs(flat):
            lock = _lock_of(stored)
            if lock is not None and lock.owner in owners:
                released |= await _unlock(store, name.decode(), lock.owner)
        if int(cursor) == 0:
            break
    if released:
        await store.wake([CONTROL])


def _lock_of(stored: bytes | None) -> NamedLock | None:
    return None if stored is None else NamedLock(stored[8:].decode(), int.from_bytes(stored[:8]))


def _presence_of(stored: bytes) -> Presence:
    return msgspec.structs.replace(_read_presence(stored[8:]), seen_at=int.from_bytes(stored[:8]))
