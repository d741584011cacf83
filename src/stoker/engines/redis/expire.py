"""Removes what has expired.

Every job in the set `ends` is finished, and its score is its expiry, so a script removes jobs without further checks.
Jobs that ended in the same step share an entry. A script removes few at a time: while it runs, the server does nothing
else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from stoker.engines.call_times import timed
from stoker.engines.redis import audit, damage, documents
from stoker.engines.redis import events as event_log
from stoker.engines.redis.census import counts_of
from stoker.engines.redis.cluster import move
from stoker.engines.redis.control import forget_full, pairs, scored
from stoker.engines.redis.keys import KEPT, Shard
from stoker.engines.redis.record_format import ids_of
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.engines.redis.subqueues import recount
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.sweeps import in_steps
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE
from stoker.model.query import Expired, Retention, Sweep, bounded
from stoker.model.time import Instant, Span

AT_ONCE = 250
SWEPT_AT_ONCE = 5_000
ENTRIES_AT_ONCE = 100
KEYS_AT_ONCE = 100

KIND_POINTS = "kind_points"
"""What the script is asked for beside the sweeps."""

_EXPIRE = script("expire")
_SWEEP = script("sweep")


class Sweeper(Facet[Store]):
    """Removes what has expired; finished jobs beyond a count go by their expiry."""

    @timed(write=True)
    async def expire(self, retention: Retention) -> Expired:
        self._store.connection.inside()
        kept = bounded(retention, self._store.history)
        return await in_steps(kept, partial(_expire, self._store, kept))


async def _expire(store: Store, retention: Retention, sweep: Sweep) -> Expired:
    if sweep is Sweep.JOBS:
        return await _expire_jobs(store, retention)
    if sweep is Sweep.RECEIPTS:
        return Expired()  # this engine stores none
    if sweep is Sweep.KEYS:
        return Expired(keys=sum([await _lapsed_keys(store, shard) for shard in await store.shards()]))
    if sweep is Sweep.LIMITS:
        return Expired(repairs=tuple(await recount(store, retention.limit)))
    if sweep is Sweep.BUCKETS:
        return Expired(buckets=await forget_full(store, retention.limit))
    if sweep is Sweep.AUDIT:
        return Expired(audit=await audit.expire(store, await store.now() - retention.audit))
    if sweep is Sweep.OPERATIONS:
        before = await store.now() - retention.operations
        return Expired(operations=await documents.expire_operations(store, before))
    kept = {Sweep.EVENTS: retention.events, Sweep.POINTS: retention.points, Sweep.PRESENCES: retention.presences}
    removed = await _sweep(store, store.home, sweep, max(kept.get(sweep, 0), 0))
    if sweep is Sweep.POINTS:
        removed += await _sweep(store, store.home, KIND_POINTS, retention.kind_points)
    if sweep is Sweep.PRESENCES:
        for shard in await store.shards():
            if shard is not store.home:
                await _sweep(store, shard, sweep, 0)
    found: dict[str, Any] = {sweep: removed}
    return Expired(**found)


async def _expire_jobs(store: Store, retention: Retention) -> Expired:
    left = max(retention.limit, 0)
    jobs = 0
    shards = await store.shards()
    for shard in shards:
        await damage.repair(store, shard)
        await move.deliver(store, shard)
        jobs += await _outdated(store, shard, left - jobs)
    if retention.finished is not None and jobs < left:
        jobs += await _surplus(store, shards, max(retention.finished, 0), left - jobs)
    return Expired(jobs=jobs)


async def _outdated(store: Store, shard: Shard, limit: int) -> int:
    """Remove jobs past their expiry; returns how many."""
    jobs = 0
    while jobs < limit:
        wanted = min(AT_ONCE, limit - jobs)
        gone = await _remove(store, shard, wanted, [])
        jobs += gone
        if gone < wanted:
            break
    return jobs


async def _remove(store: Store, shard: Shard, limit: int, ids: list[JobId]) -> int:
    more = [shard.key(name) for name in event_log.KEYS]
    gone: list[JobId] = await store.run(_EXPIRE, shard, [limit, *ids], more=more)
    if gone and shard is not store.home:
        await event_log.cross_out(store, gone)
    return len(gone)


async def _surplus(store: Store, shards: list[Shard], kept: int, limit: int) -> int:
    """Remove the jobs nearest to their expiry, beyond the number that is kept; returns how many."""
    surplus = min(sum([await _finished(store, shard) for shard in shards]) - kept, limit)
    if surplus <= 0:
        return 0
    nearest: list[tuple[Instant, JobId, int]] = []
    for place, shard in enumerate(shards):
        nearest += [(expires, job, place) for expires, job in await _nearest(store, shard, surplus)]
    nearest = sorted(nearest)[:surplus]
    jobs = 0
    for place, shard in enumerate(shards):
        ids = [job for _, job, where in nearest if where == place]
        for start in range(0, len(ids), AT_ONCE):
            jobs += await _remove(store, shard, AT_ONCE, ids[start : start + AT_ONCE])
    return jobs


async def _finished(store: Store, shard: Shard) -> int:
    fields = await store.connection.call("HGETALL", shard.key("counts"))
    return sum(one.n for one in counts_of(pairs(fields)) if one.status not in ACTIVE)


async def _nearest(store: Store, shard: Shard, n: int) -> list[tuple[Instant, JobId]]:
    """The next n jobs to expire, and those that expire together with the last of them."""
    found: list[tuple[Instant, JobId]] = []
    start = 0
    while entries := await ending(store, shard, start, ENTRIES_AT_ONCE):
        for expires, packed in entries:
            if len(found) >= n and expires > found[-1][0]:
                return found
            found += [(expires, job) for job in ids_of(packed)]
        start += len(entries)
    return found


async def ending(store: Store, shard: Shard, start: int, n: int) -> list[tuple[Instant, bytes]]:
    """Packed ids of finished jobs in the order of their expiry, from a rank on."""
    flat = await store.connection.call("ZRANGE", shard.key("ends"), start, start + n - 1, "WITHSCORES")
    return [(int(expires), packed) for packed, expires in scored(flat)]


async def _lapsed_keys(store: Store, shard: Shard) -> int:
    """Release keys that were kept for a time; a job that took one since has it, and only its old entry goes."""
    released = 0
    while True:
        now = await store.now()
        found = await store.connection.call("ZRANGEBYSCORE", shard.key(KEPT), "-inf", now, "LIMIT", 0, KEYS_AT_ONCE)
        if found:
            released += await store.work(shard, partial(_release_lapsed, found, now))
        if len(found) < KEYS_AT_ONCE:
            return released


async def _release_lapsed(slots: list[bytes], now: Instant, unit: Unit) -> int:
    await unit.load(Wanted(slots=frozenset(slot.decode() for slot in slots)))
    return sum(unit.lapse(slot.decode(), now) for slot in slots)


async def _sweep(store: Store, shard: Shard, sweep: str, kept: Span) -> int:
    """Remove what of a shard is older than `kept`, and locks that lapsed."""
    removed = 0
    more = [shard.key(name) for name in event_log.KEYS]
    while True:
        swept = int(await store.run(_SWEEP, shard, [sweep, kept, SWEPT_AT_ONCE], more=more))
        removed += swept
        if swept < SWEPT_AT_ONCE:
            return removed
